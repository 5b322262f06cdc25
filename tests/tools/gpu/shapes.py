"""Random models in the shapes of published ones, and the floating-point operations of a forward pass."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PretrainedConfig, Qwen3Config

_NO_MARKS = {"bos_token_id": None, "eos_token_id": None}
_TINY = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
_LLAMA_1B = _LLAMA_8B | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
LLAMAS = {"8B": _LLAMA_8B, "1B": _LLAMA_1B, "0.6B": _LLAMA_1B | {"num_hidden_layers": 6}}
"""Sizes of Llama 3.1 and 3.2; ``0.6B`` is the 1B with six layers."""

_QWEN_06B = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_GEMMA_1B = {
    "vocab_size": 262144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
}


class Shapes:
    """Configurations in real sizes, or all tiny."""

    def __init__(self, tiny: bool) -> None:
        self._tiny = tiny

    def llama(self, size: str, trained: int) -> LlamaConfig:
        """Returns a Llama 3.1 of this size."""
        sizes = _TINY if self._tiny else LLAMAS[size]
        return LlamaConfig(**sizes, **_NO_MARKS, max_position_embeddings=trained, rope_theta=5e5)

    def qwen3(self, trained: int) -> Qwen3Config:
        """Returns a Qwen3-0.6B."""
        sizes = _TINY if self._tiny else _QWEN_06B
        return Qwen3Config(**sizes, **_NO_MARKS, max_position_embeddings=trained, tie_word_embeddings=True)

    def gemma3(self, trained: int) -> Gemma3TextConfig:
        """Returns a Gemma-3-1B, with five sliding layers for each full one."""
        tiny = _TINY | {"num_hidden_layers": 6, "sliding_window": 64}
        sizes = tiny if self._tiny else _GEMMA_1B
        return Gemma3TextConfig(**sizes, **_NO_MARKS, max_position_embeddings=trained)


def build(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype, head_gain: float = 1.0
) -> torch.nn.Module:
    """Builds a random model; ``head_gain`` above 1 makes its losses differ as those of a trained model do."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if head_gain != 1.0:
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(head_gain)
    return model.to(device)


def flops(model: torch.nn.Module, length: int) -> float:
    """Returns the operations of one window: two per weight and token, and causal attention.

    The input embedding counts only where it is the head, too, and layers only where they run.
    """
    config = model.config.get_text_config()
    layers = sum(
        each.numel() for layer in model.model.layers[: config.num_hidden_layers] for each in layer.parameters()
    )
    others = [each.numel() for name, each in model.named_parameters() if not name.startswith("model.")]
    weights = layers + sum(others)
    if config.tie_word_embeddings:
        weights += config.vocab_size * config.hidden_size
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 2.0 * config.num_hidden_layers * config.num_attention_heads * head * length**2
    return 2.0 * weights * length + attention
