"""Estimates the memory of a forward pass, so that batches fit, and recognizes out-of-memory errors."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .batches import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MOST_BATCH_TOKENS = {"cpu": 8192}
"""The largest default batch in positions, by device type. Larger batches are no faster, because a CPU's caches are full
long before. For other devices the limit is 32,768: from a few thousand positions on, an accelerator spends its time on
arithmetic instead of reading the weights."""

MOST_CHUNK, LEAST_CHUNK = 4096, 256
"""The range of the chunk sizes of a long window: larger chunks are no faster, and smaller ones are slower."""

_SHARE = 0.5
"""The share of the memory left after the weights that one batch may use. The rest is for the allocator and other
programs."""


def default_batch_tokens(model: PreTrainedModel, longest: int, logits_bytes: int) -> int:
    """Returns the default number of positions to feed together: the number estimated to fit into memory, rounded down
    to a power of two.

    The estimate is based on the total memory instead of the free memory, so the same command on the same machine makes
    the same plan.

    Args:
        longest: the number of positions of the longest window.
        logits_bytes: the memory for one block of fp32 logits, in bytes.
    """
    fitting = max(1, int(budget(model, logits_bytes) // position_bytes(model, longest)))
    most = MOST_BATCH_TOKENS.get(device_of(model).type, 32768)
    return min(1 << (fitting.bit_length() - 1), most)


def chunk_for(model: PreTrainedModel, length: int, logits_bytes: int) -> int | None:
    """Estimates the chunk size with which a window fits into memory; returns None if the full window fits.

    Chunks need additional memory for the keys and values of all layers, and for an attention mask over all earlier
    positions, once as booleans and once in the model's dtype.
    """
    free = budget(model, logits_bytes)
    if length * position_bytes(model, length) <= free:
        return None
    left = free - length * cache_bytes(model)
    mask = length * (1 + next(model.parameters()).element_size())
    fitting = max(1, int(left // (position_bytes(model, length) + mask)))
    return min(MOST_CHUNK, max(LEAST_CHUNK, 1 << (fitting.bit_length() - 1)))


def described(model: PreTrainedModel, batch: Batch, logits_bytes: int) -> str:
    """Describes the memory that the weights take, and the estimated memory of a batch."""
    weights = sum(weight_bytes(model).values())
    logits = 3 * min(logits_bytes, 4 * batch.fed * embedding_shape(model)[0])
    working = batch.fed * position_bytes(model, batch.positions) + logits
    return f"memory: {_size(weights)} of weights, about {_size(working)} for batches of {batch.fed:,} tokens"


def _size(number: float) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"


def budget(model: PreTrainedModel, logits_bytes: int) -> float:
    """Returns the bytes that a forward pass may use: a share of the memory left after the weights, minus three blocks
    of logits.

    For a model on several devices, the device with the least memory left determines the result, because every window
    passes through all of them.
    """
    weights = weight_bytes(model)
    devices = {device for device in weights if device.type not in ("cpu", "meta")} or {device_of(model)}
    return _SHARE * min(total_memory(device) - weights.get(device, 0) for device in devices) - 3 * logits_bytes


def weight_bytes(model: PreTrainedModel) -> dict[torch.device, int]:
    """Returns the bytes of this process's weights by device. Weights offloaded to disk are on the device "meta"."""
    found: dict[torch.device, int] = {}
    for parameter in model.parameters():
        local = getattr(parameter, "to_local", None)
        own = parameter if local is None else local()  # a part, under tensor parallelism
        found[own.device] = found.get(own.device, 0) + own.numel() * own.element_size()
    return found


def device_of(model: PreTrainedModel) -> torch.device:
    """Returns the device of a model's inputs, even if accelerate offloads its weights."""
    embedding = model.get_input_embeddings()
    place = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return next(model.parameters()).device if place is None else torch.device(place)


def cache_bytes(model: PreTrainedModel) -> int:
    """Returns the bytes per position of a key-value cache. One layer is counted twice, because a layer's cache is
    copied when it grows."""
    return (_stated(model, "num_hidden_layers", 1) + 1) * layer_cache_bytes(model)


def layer_cache_bytes(model: PreTrainedModel) -> int:
    """Returns the bytes per position of one layer's keys and values."""
    heads, head = _heads(model)
    shared = _stated(model, "num_key_value_heads", heads)
    return 2 * shared * head * next(model.parameters()).element_size()


def position_bytes(model: PreTrainedModel, length: int) -> int:
    """Estimates the peak memory of a forward pass without KV cache and logits, in bytes per fed position.

    The peak is either one layer's attention (queries, keys repeated per head, values, output) or its MLP (gate, up,
    their product), in addition to the residual stream and its fp32 norm. Eager attention also stores a score per head
    and position in the model's dtype, and the softmax in fp32.
    """
    parameter = next(model.parameters())
    width, (heads, head) = _width(model), _heads(model)
    inner = _stated(model, "intermediate_size", 4 * width)
    stream = (3 * parameter.element_size() + 2 * 4) * width
    attention = 6 * parameter.element_size() * heads * head
    if getattr(_text_config(model), "_attn_implementation", None) == "eager":
        attention += heads * length * (2 * parameter.element_size() + 4)
    return stream + max(attention, 4 * parameter.element_size() * inner)


def total_memory(device: torch.device) -> int:
    """Returns the total memory of a device in bytes. For a CPU, this is the memory of the machine, or the limit of its
    control group if that is lower."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 * 2**30
    limits = [machine]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no control groups here, or no limit: "max"
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return min(limit for limit in limits if limit)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error reports that a device, or the machine, is out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    known = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate")
    return isinstance(error, RuntimeError) and any(words in text for words in known)


def release(device: torch.device) -> None:
    """Releases the allocator's cached memory after a failed forward pass."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def work(model: PreTrainedModel, positions: int) -> float:
    """Returns the FLOPs per token of a forward pass over ``positions``: 2 per weight, and 4 per coordinate and key.

    Only half of the keys are counted, because that is the number that the average token of a causal model sees.
    """
    layers, (heads, head) = _stated(model, "num_hidden_layers", 1), _heads(model)
    weights = sum(parameter.numel() for parameter in model.parameters())
    return 2.0 * weights + 2.0 * layers * heads * head * positions


def embedding_shape(model: PreTrainedModel) -> torch.Size:
    """Returns the shape of the input embedding: vocabulary size and width."""
    return model.get_input_embeddings().get_parameter("weight").shape


def _heads(model: PreTrainedModel) -> tuple[int, int]:
    """Returns the number of heads of a layer, and their width."""
    heads = _stated(model, "num_attention_heads", 1)
    return heads, _stated(model, "head_dim", 0) or _width(model) // heads


def _width(model: PreTrainedModel) -> int:
    """Returns the width of the residual stream."""
    return _stated(model, "hidden_size", 0) or embedding_shape(model)[1]


def _stated(model: PreTrainedModel, name: str, usual: int) -> int:
    """Returns a number from the text model's configuration, or ``usual`` if the number is missing or 0."""
    return int(getattr(_text_config(model), name, 0) or usual)


def _text_config(model: PreTrainedModel) -> PreTrainedConfig:
    return model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
