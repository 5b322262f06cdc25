"""GGUF files of small transformers models, written with gguf-py the way llama.cpp's own converter lays them out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
}
_GEMMA3 = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_INTERLEAVED = ("llama", "mistral3")
"""Architectures with interleaved pairs."""

_REST = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    model: Any, path: Path, arch: str = "llama", *, weights: str = "F32", tokenizer: Any = None, **metadata: Any
) -> Path:
    """Writes a Llama, Qwen2 or 3, Phi-3 or Gemma 3.

    Args:
        weights: the type of the matrices, such as F16 or Q4_0.
        tokenizer: a byte-level BPE tokenizer; None makes tokens up.
        metadata: more keys of ``arch``.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("a model of the tests")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_vocabulary(writer, config.vocab_size, tokenizer)
    for key, value in metadata.items():
        add_key(writer, f"{arch}.{key}", value)
    for name, array in _tensors(model, arch):
        kind = gguf.GGMLQuantizationType[weights if array.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    return close(writer, path)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int, tokenizer: Any) -> None:
    """Adds a tokenizer's tokens, or tokens of any text; llama-server cannot run without a vocabulary."""
    if tokenizer is not None:
        stated = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        special = set(tokenizer.all_special_ids)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokenizer.convert_ids_to_tokens(range(size)))
        kinds = (gguf.TokenType.CONTROL, gguf.TokenType.NORMAL)
        writer.add_token_types([kinds[id not in special] for id in range(size)])
        unused = ["Ā ā"]  # the list must not be empty
        writer.add_token_merges([" ".join(each) for each in stated["merges"]] or unused)
        return
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{i}>" for i in range(size)])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([gguf.TokenType.NORMAL] * size)


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """A key whose type follows from Python's."""
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(key, value)


def close(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Writes everything that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(model: Any, arch: str) -> Iterator[tuple[str, np.ndarray]]:
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array, kind = tensor.float().numpy(), name.split(".")[-2]
        array = array + 1 if arch == "gemma3" and "norm" in kind else array
        yield (
            _name(name, _GEMMA3 if arch == "gemma3" else _LAYER),
            _interleaved(array, heads[kind]) if arch in _INTERLEAVED and kind in heads else array,
        )


def _name(name: str, parts: dict[str, str]) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _REST:
        return f"{_REST[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{parts[part]}.{kind}"


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Interleaves the two coordinates of each pair, as llama.cpp's converter does."""
    pairs = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def write_keys(path: Path, arch: str = "llama", tables: dict[str, list[float]] | None = None, **keys: Any) -> Path:
    """A file with one weight and no more than it takes to know the geometry: 8 pairs, 256 tokens."""
    writer = gguf.GGUFWriter(path, arch)
    geometry = {"context_length": 256, "rope.dimension_count": 16, "rope.freq_base": 10000.0}
    for key, value in (geometry | keys).items():
        if value is not None:
            add_key(writer, key if key.startswith(("general.", "split.")) else f"{arch}.{key}", value)
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    for name, numbers in (tables or {}).items():
        writer.add_tensor(name, np.array(numbers, dtype=np.float32))
    return close(writer, path)
