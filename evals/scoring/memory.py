"""Estimates the memory of a forward pass, so that batches fit, and recognizes out-of-memory errors."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...errors import RunError
from ...models.rotary_modules import text_config
from ...output.formatting import size
from .attention import QUERIES
from .batches import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_BATCH_TOKENS = {"cpu": 8192}
"""The largest default batch in positions, by device type. Larger batches are no faster, because a CPU's caches are full
long before. For other devices the limit is 32,768: from a few thousand positions on, an accelerator spends its time on
arithmetic instead of reading the weights."""

LEAST_CHUNK = 2048
"""The smallest default chunk of a long window: smaller chunks are slower."""

_SHARES = {"cpu": 0.5, "meta": 0.5}
"""The share of the memory left after the weights that one batch may use, by device type. The rest is for the allocator
and other programs. On other devices it is 0.85, because running out of memory is caught there, and retried."""


@dataclass
class MemoryEstimate:
    """The memory of forward passes of a model beside its weights, in bytes.

    Every part is the sum of the tensors that are held at the same time, which the libraries' code determines.

    Attributes:
        logits_bytes: the memory for one block of fp32 logits, in bytes.
        tile: the number of positions that an MLP runs at a time where more than two tiles are fed; None for all.
        unmasked: whether attention runs in blocks, without a mask of all positions.
    """

    model: PreTrainedModel
    logits_bytes: int
    tile: int | None = None
    unmasked: bool = False

    def __post_init__(self) -> None:
        self.item_bytes = next(self.model.parameters()).element_size()
        self._shares = getattr(self.model, "tp_size", None) or 1
        self._stream = self.item_bytes * width(self.model)

    def whole(self, fed: int, length: int) -> float:
        """Returns the peak of a forward pass over ``fed`` positions in windows of ``length``.

        The peak is either one layer's attention or its MLP, in addition to the residual streams, or the head.
        """
        tile = fed
        if self.tile and fed > 2 * self.tile:
            tile = self.tile + fed % self.tile
        # The embeddings, the layer's input and what it works on; for the MLP, also its input and output.
        norm = 8 * width(self.model)  # in fp32: the states, and their product
        attention = fed * (3 * self._stream + max(norm, self._attention(length)))
        mlp = fed * 5 * self._stream + tile * (self._mlp() + self._stream * (tile < fed))
        logits = min(self.logits_bytes, 4 * fed * embedding_shape(self.model)[0])
        return max(attention, mlp, fed * 2 * self._stream + 3 * logits)

    def in_chunks(self, length: int, chunk: int) -> float:
        """Returns the peak of feeding one window in chunks.

        In addition to a chunk, this is a cache of the keys and values of all layers, one of them twice, because it is
        copied when it grows; keys and values of one layer repeated per head; and an attention mask over all earlier
        positions, as booleans and in the model's dtype, for a block of queries or for all.
        """
        heads, head = heads_of(self.model)
        kept = 2 * stated(self.model, "num_key_value_heads", heads) * head
        layers = stated(self.model, "num_hidden_layers", 1) / len(devices_of(self.model)) + 1
        cache = self.item_bytes * (layers * kept + 2 * heads * head) / self._shares
        queries = QUERIES if self.unmasked else chunk
        return self.whole(chunk, length) + length * (cache + queries * (1 + self.item_bytes))

    def _attention(self, length: int) -> float:
        """Returns the bytes per position of a layer's attention.

        These are the queries, keys and values, the cosines and sines (possibly of two kinds), and the larger of: three
        more copies of what is being rotated; or the output, and the keys and values repeated per head. Normalized
        queries are in fp32. Latent attention (MLA) holds the queries twice, the expanded latents, the keys, padded
        values and the output.
        """
        heads, head = heads_of(self.model)
        queries = heads * head
        keys = stated(self.model, "num_key_value_heads", heads) * head
        held = max(4 * queries + 2 * keys, 2 * queries + 5 * keys)
        if plain := stated(self.model, "qk_nope_head_dim", 0):
            held = 5 * queries + heads * (plain + stated(self.model, "v_head_dim", head))
        each = max(self.item_bytes * held, (self.item_bytes + 8) * queries) + 4 * self.item_bytes * head
        return each / self._shares + self.pairs(length)

    def pairs(self, length: int) -> float:
        """Returns the bytes per position of what a layer stores for each pair of positions: a mask, as a boolean and a
        number; and in eager attention each head's score in the model's dtype, twice, and the softmax in fp32."""
        is_eager = getattr(text_config(self.model), "_attn_implementation", None) == "eager"
        scores = is_eager * heads_of(self.model)[0] * (2 * self.item_bytes + 4) / self._shares
        is_masked = is_eager or (not self.unmasked and needs_mask(self.model, length))
        return length * (scores + is_masked * (1 + self.item_bytes))

    def _mlp(self) -> float:
        """Returns the bytes per position of an MLP: two inner tensors, or gate, up and their product; or those of its
        experts, with their inputs and outputs."""
        inner = stated(self.model, "intermediate_size", 4 * width(self.model))
        is_gated = any("gate" in name for name, _ in self.model.named_parameters())
        held = (2 + is_gated) * inner
        experts = stated(self.model, "num_experts_per_tok", 0)
        if experts:
            inner = stated(self.model, "moe_intermediate_size", inner)
            held = max(held, experts * (width(self.model) + max(4 * inner, 3 * width(self.model))))
        return self.item_bytes * held / self._shares

    def batch_tokens(self, longest: int) -> int:
        """Returns the default number of positions to feed together: a power of two that is estimated to fit into
        memory, with windows of ``longest`` positions.

        The estimate is based on the total memory instead of the free memory, so the same command on the same machine
        makes the same plan.
        """
        free = budget(self.model)
        fitting = MOST_BATCH_TOKENS.get(device_of(self.model).type, 32768)
        while fitting > 1 and self.whole(fitting, longest) > free:
            fitting //= 2
        return fitting

    def chunk(self, length: int) -> int | None:
        """Returns the size of the largest chunks, a power of two, in which a window is estimated to fit into memory;
        None if the full window fits."""
        free = budget(self.model)
        if self.whole(length, length) <= free:
            return None
        chunk = 1 << ((length - 1).bit_length() - 1)
        while chunk > LEAST_CHUNK and self.in_chunks(length, chunk) > free:
            chunk //= 2
        return chunk

    def refuse(self, length: int, chunks: bool) -> None:
        """Refuses a window that cannot fit.

        Args:
            chunks: whether it may be fed in chunks.

        Raises:
            RunError: it would need more than all memory that the weights leave.
        """

        def least(positions: int) -> float:
            whole = self.whole(positions, positions)
            return min(whole, self.in_chunks(positions, LEAST_CHUNK)) if chunks else whole

        refuse(self.model, length, least, "a window")

    def described(self, batch: Batch) -> str:
        """Describes the memory that the weights take, and the estimated memory of a batch."""
        weights = sum(weight_bytes(self.model).values())
        working = self.whole(batch.fed, batch.positions)
        return f"memory: {size(weights)} of weights, about {size(working)} for batches of {batch.fed:,} tokens"


def budget(model: PreTrainedModel, share: float | None = None) -> float:
    """Returns the bytes that a forward pass may use: a share of the memory left after the weights, the usual one of the
    kind of device if None is given.

    For a model on several devices, the device with the least memory left determines the result, because every window
    passes through all of them.
    """
    weights = weight_bytes(model)
    devices = devices_of(model)
    share = share or _SHARES.get(device_of(model).type, 0.85)
    return share * min(total_memory(device) - weights.get(device, 0) for device in devices)


def refuse(model: PreTrainedModel, positions: int, needed: Callable[[int], float], what: str) -> None:
    """Refuses what needs more than all memory that the weights leave.

    Args:
        needed: the bytes that are needed for so many positions, on the device that needs most.
        what: what has these positions, for the message.

    Raises:
        RunError: it cannot fit.
    """
    room = budget(model, 1)
    if needed(positions) > room:
        # A length that was tried and fits, even if a longer one needs less.
        fitting = bisect_right(range(1, positions), room, key=needed)
        raise RunError(
            f"{what} of {positions:,} positions needs about {size(needed(positions))}, but the weights leave "
            f"{size(max(0, room))} of the memory of {device_of(model)}; at most {fitting:,} positions fit; "
            "use shorter lengths, bfloat16, or more devices",
            "dtype",
        )


def devices_of(model: PreTrainedModel) -> set[torch.device]:
    """Returns the devices that compute: the accelerators that have weights, or the device of the inputs."""
    return {device for device in weight_bytes(model) if device.type not in ("cpu", "meta")} or {device_of(model)}


def weight_bytes(model: PreTrainedModel) -> dict[torch.device, int]:
    """Returns the bytes of this process's weights by device. Weights offloaded to disk are on the device "meta"."""
    found = {}
    for parameter in model.parameters():
        local = getattr(parameter, "to_local", None)
        own = local() if local else parameter  # a part, under tensor parallelism
        found[own.device] = found.get(own.device, 0) + own.nbytes
    return found


def device_of(model: PreTrainedModel) -> torch.device:
    """Returns the device of a model's inputs, even if accelerate offloads its weights."""
    embedding = model.get_input_embeddings()
    place = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return next(model.parameters()).device if place is None else torch.device(place)


def total_memory(device: torch.device) -> int:
    """Returns the total memory of a device in bytes. For a CPU, this is the memory of the machine, or the limit of its
    control group if that is lower."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 * 2**30]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no control groups here, or no limit: "max"
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return min(limit for limit in limits if limit)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error reports that a device, or the machine, is out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    known = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate", "status_alloc_failed")
    return isinstance(error, RuntimeError) and any(words in text for words in known)


def needs_mask(model: PreTrainedModel, length: int) -> bool:
    """Returns whether transformers' sdpa would store a number per pair of positions: for layers with windows or chunks
    that are shorter, and on a processor for latent attention (MLA)."""
    local = stated(model, "sliding_window", 0) or stated(model, "attention_chunk_size", length)
    return length > local or stated(model, "qk_nope_head_dim", 0) > 0


def embedding_shape(model: PreTrainedModel) -> torch.Size:
    """Returns the shape of the input embedding: vocabulary size and width."""
    return model.get_input_embeddings().get_parameter("weight").shape


def heads_of(model: PreTrainedModel) -> tuple[int, int]:
    """Returns the number of heads of a layer, and the width of their queries."""
    heads = stated(model, "num_attention_heads", 1)
    head = stated(model, "head_dim", 0) or width(model) // heads
    if plain := stated(model, "qk_nope_head_dim", 0):
        head = plain + stated(model, "qk_rope_head_dim", 0)
    return heads, head


def width(model: PreTrainedModel) -> int:
    """Returns the width of the residual stream."""
    return stated(model, "hidden_size", 0) or embedding_shape(model)[1]


def stated(model: PreTrainedModel, name: str, usual: int) -> int:
    """Returns a number from the text model's configuration, the largest where layers differ; ``usual`` if it is missing
    or 0."""
    config = text_config(model)
    try:
        found = getattr(config, name, 0)
    except RuntimeError:  # transformers refuses a number that differs between layers
        found = [getattr(each, name, 0) or 0 for each in config.per_layer_config]
    return int((max(found) if isinstance(found, (list, tuple)) else found) or usual)
