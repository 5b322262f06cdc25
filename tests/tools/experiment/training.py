"""The model, its loss, and one step of training, in micro-batches that fit into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

from .lab import Lab
from .plan import Sizes

_LOGITS = 1 << 29
"""Logits that are computed together, at most."""


def configuration(sizes: Sizes) -> LlamaConfig:
    """Returns the configuration of the model: a Llama with tied embeddings."""
    return LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=sizes.trained,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.theta},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


def build(lab: Lab, dtype: torch.dtype, weights: Mapping[str, torch.Tensor] | None = None) -> Any:
    """Builds the model on the device, with these weights or random ones."""
    torch.manual_seed(lab.settings.seed)
    kind = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    model = AutoModelForCausalLM.from_config(configuration(lab.sizes), **kind)
    if weights is None:
        _scale_residuals(model)
    else:
        model.load_state_dict(weights)
    model.to(lab.device)
    for parameter in model.parameters():  # not model.to(dtype): the rotary tables stay in float32
        parameter.data = parameter.data.to(dtype)
    return model.eval()


@torch.no_grad()
def _scale_residuals(model: Any) -> None:
    """Scales what is added to the residual stream by one over the root of the additions, as in GPT-2."""
    gain = (2 * len(model.model.layers)) ** -0.5
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(gain)
        layer.mlp.down_proj.weight.mul_(gain)


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    """Returns a model's weights, in float32 on the processor."""
    return {name: value.detach().float().cpu() for name, value in model.state_dict().items()}


def loss_sum(lab: Lab, model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
    """Returns the summed loss of next tokens, in bf16 by autocast over float32 weights on an accelerator.

    Args:
        ids: int64 [rows, positions].
        mask: which targets count, bool [rows, positions - 1]; None counts all.
    """
    with torch.autocast(lab.device.type, torch.bfloat16, enabled=lab.on_gpu):
        embedded = model.model.embed_tokens(ids).to(lab.dtype)
        hidden = model.model(inputs_embeds=embedded, use_cache=False).last_hidden_state[:, :-1]
        targets, head = ids[:, 1:], model.lm_head.weight
        if mask is not None:
            return _cross_entropy(hidden[mask], head, targets[mask])
        hidden, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        size, total = max(1, _LOGITS // len(head)), torch.zeros((), device=ids.device)
        for at in range(0, len(targets), size):
            total = total + _cross_entropy(hidden[at : at + size], head, targets[at : at + size])
        return total


def _cross_entropy(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, head).float(), targets, reduction="sum")


def optimizer_of(lab: Lab, model: Any, decay: float) -> torch.optim.AdamW:
    """Returns AdamW with a weight decay on matrices alone; its rate is set in every step."""
    matrices = [each for each in model.parameters() if each.dim() >= 2]
    vectors = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=lab.on_gpu)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def take_step(lab: Lab, model: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor, rate: float) -> torch.Tensor:
    """Takes one step, and returns the loss per token; micro-batches are halved where memory runs out."""
    set_rate(optimizer, rate)
    while True:
        try:
            loss = _gradients(lab, model, optimizer, ids)
            break
        except torch.OutOfMemoryError:
            if lab.micro_tokens <= ids.shape[1]:
                raise
        lab.micro_tokens //= 2
        lab.free()
        lab.say("out of memory; micro-batches of", lab.micro_tokens, "tokens")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def _gradients(lab: Lab, model: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    rows, count = max(1, lab.micro_tokens // ids.shape[1]), ids.shape[0] * (ids.shape[1] - 1)
    total = torch.zeros((), device=ids.device)
    for at in range(0, len(ids), rows):
        loss = loss_sum(lab, model, ids[at : at + rows]) / count
        loss.backward()
        total = total + loss.detach()
    return total


# --- compiled layers ---


def set_compiled(lab: Lab, model: Any, on: bool) -> None:
    """Compiles each layer (one graph serves all of them), or returns to eager; compiled layers are kept."""
    for layer in model.model.layers:
        if on and getattr(layer, "_kept_call", None) is None:
            layer.compile(backend=lab.settings.backend, dynamic=False)
            layer.__dict__["_kept_call"] = layer._compiled_call_impl
        layer._compiled_call_impl = layer._kept_call if on else None


def is_compiled(model: Any) -> bool:
    """Returns whether the layers run compiled."""
    return model.model.layers[0]._compiled_call_impl is not None


def allow_many_graphs() -> None:
    """Lets torch compile for more than its few shapes."""
    import torch._dynamo

    for name in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, name):
            with contextlib.suppress(Exception):  # an alias that a version refuses
                setattr(torch._dynamo.config, name, 64)
