"""Trains the reference model: ``python -m ropescale.evals.reference -o OUT``.

A Llama of 3.5 M parameters on the running Python's standard library, at 256 tokens with theta 10000,
so that everything past 256 is new to it. Reproducible from ``--seed`` on one machine with one thread
count; about an hour on two CPU cores that have nothing else to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ...errors import CheckpointError
from ...files import atomic_path
from .corpus import training_documents

BOS = "<|bos|>"
_WIDTH = 256
_print = partial(print, flush=True)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, given the text."""

    steps: int = 3000
    seed: int = 0
    length: int = 256
    """Tokens per training window, which becomes max_position_embeddings."""
    batch_tokens: int = 8192
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 0.1
    vocabulary: int = 2048
    head_dim: int = 64
    theta: float = 10000.0


def train_tokenizer(documents: list[str], recipe: Recipe) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE with one special token, which begins every document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=BOS, model_max_length=recipe.length
    )


def tokenize(documents: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Encodes all documents end to end, each after a BOS, into one vector of ids, int64 [tokens]."""
    encoded = tokenizer.backend_tokenizer.encode_batch(list(documents))
    return torch.cat([torch.tensor(document.ids, dtype=torch.int64) for document in encoded])


def build_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> LlamaForCausalLM:
    """Builds the untrained model: 4 layers, 4 heads of 64 over 2 KV heads (or more, narrower ones), tied embeddings."""
    special, heads = tokenizer.backend_tokenizer.token_to_id(str(tokenizer.bos_token)), _WIDTH // recipe.head_dim
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.length,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.theta},
        tie_word_embeddings=True,
        bos_token_id=special,
        eos_token_id=special,
    )
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(config)


def windows(ids: torch.Tensor, recipe: Recipe) -> Iterator[torch.Tensor]:
    """Yields batches of random windows, int64 [batch, length], forever."""
    generator = torch.Generator().manual_seed(recipe.seed)
    rows = recipe.batch_tokens // recipe.length
    offsets = torch.arange(recipe.length)
    while True:
        starts = torch.randint(len(ids) - recipe.length + 1, (rows, 1), generator=generator)
        yield ids[starts + offsets]


def learning_rate(step: int, recipe: Recipe) -> float:
    """Returns the rate of a step: a linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def optimizer(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    """Makes AdamW; only matrices decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95))


def fit(
    model: LlamaForCausalLM,
    ids: torch.Tensor,
    recipe: Recipe,
    keep: Path | None = None,
    tell: Callable[[str], object] = _print,
) -> None:
    """Trains in place, from what ``keep`` holds of an earlier call; tells the loss every hundred steps."""
    optim = optimizer(model, recipe)
    begun, started = _resumed(model, optim, recipe, keep), time.monotonic()
    model.train()
    for step, batch in islice(zip(range(recipe.steps), windows(ids, recipe)), begun, None):
        if keep is not None and step > begun and step % _KEPT_EVERY == 0:
            _keep(model, optim, recipe, step, keep)
        for group in optim.param_groups:
            group["lr"] = learning_rate(step, recipe)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        if step % 100 == 0 or step == recipe.steps - 1:
            tell(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s")
    model.eval()


_KEPT_EVERY = 50
"""Steps that a kill may cost."""


def _keep(model: LlamaForCausalLM, optim: torch.optim.AdamW, recipe: Recipe, step: int, path: Path) -> None:
    """Writes all that the steps from ``step`` on depend on, in one step."""
    with atomic_path(path) as beside:
        state = {"recipe": asdict(recipe), "step": step, "model": model.state_dict(), "optimizer": optim.state_dict()}
        torch.save(state, beside)


def _resumed(model: LlamaForCausalLM, optim: torch.optim.AdamW, recipe: Recipe, path: Path | None) -> int:
    """Returns the step to go on at, with the weights and the optimizer as they were before it.

    Raises:
        CheckpointError: the file was kept under another recipe.
    """
    if path is None or not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if state["recipe"] != asdict(recipe):
        raise CheckpointError(f"{path} was kept by a training with another recipe; remove it, or give the same again")
    model.load_state_dict(state["model"])
    optim.load_state_dict(state["optimizer"])
    return int(state["step"])


def _own_text(recipe: Recipe) -> tuple[Sequence[str], PreTrainedTokenizerFast]:
    documents = training_documents()
    return documents, train_tokenizer(documents, recipe)


def train(
    out: Path,
    recipe: Recipe,
    keep: Path | None = None,
    tell: Callable[[str], object] = _print,
    text: tuple[Sequence[str], PreTrainedTokenizerFast] | None = None,
) -> None:
    """Trains from scratch and saves bf16 safetensors with the tokenizer into ``out``.

    Args:
        keep: a file for what a training that is stopped goes on from, with the same weights.
        tell: is told how it goes.
        text: documents and a tokenizer; None takes the library's modules, and trains a tokenizer on them.
    """
    documents, tokenizer = text or _own_text(recipe)
    ids = tokenize(documents, tokenizer)
    tell(f"{len(documents)} files, {len(ids):,} tokens")
    model = build_model(tokenizer, recipe)
    fit(model, ids, recipe, keep, tell)
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
