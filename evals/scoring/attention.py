"""Attention without a mask of all positions, where transformers' sdpa would build one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

QUERIES = 512
"""The number of queries in a block, enough for the full speed of a kernel; more would see more keys than their own."""


FUSED = "varlen_attn"
"""torch's name of FlashAttention for windows of any length, which computes sliding windows in one kernel."""

FUSED_ON = ("cuda",)
"""The types of devices that may have it, in half precision. With torch 2.11 an H100 ran blocks instead, and a
Gemma-3-1B took 0.75 s for 32,768 positions."""

Compared = list[tuple[torch.Tensor, torch.Tensor]]
"""The outputs of the fused kernel and of blocks, for each layer."""


@contextmanager
def in_blocks(most: int | None = None, fused: bool = False, compared: Compared | None = None) -> Iterator[None]:
    """Replaces transformers' sdpa and its masks inside the block.

    A mask that is causal, with or without a sliding window, becomes an empty tensor whose last size is the window, 0
    without one; models hand it to their attention as they do with any mask. Attention runs in blocks of queries that
    see only the keys of their window. Of chunks that see only themselves (Llama 4), the tensor has two heads, and one
    more for each key of the first chunk that a cache has left out. Other masks stay as they are.

    Args:
        most: replace also masks that transformers would leave out, with windows of at most so many positions, for a
            check with few positions.
        fused: compute whole windows past a sliding window in one kernel, where no gradient is wanted.
        compared: gets what that kernel computes, and what blocks compute.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as attentions

    with ExitStack() as stack:
        own_attention = partial(_attention, {}, fused, compared)
        for functions, own in ((masks, partial(_mask, most)), (attentions, own_attention)):
            before = dict(functions._local_mapping)
            stack.callback(functions._local_mapping.update, before)
            stack.callback(functions._local_mapping.clear)
            functions["sdpa"] = partial(own, functions["sdpa"])
        yield


def _mask(most: int | None, stock: Callable[..., torch.Tensor | None], **named: Any) -> torch.Tensor | None:
    """Returns an empty mask with the window, or transformers' own mask."""
    queries = named["q_length"]
    keys = named["kv_length"]
    window = named.get("local_size")
    at_end = named["q_offset"] + queries == named["kv_offset"] + keys
    is_plain = named.get("attention_mask") is None and named.get("allow_is_causal_skip", True)
    first, second = False, True
    if window:  # which keys the first query past it sees: the second if it slides, none of them if windows are chunks
        allowed = named["mask_function"]
        first, second = (bool(allowed(0, 0, torch.tensor(window), torch.tensor(key))) for key in (0, 1))
    if first or not at_end or not is_plain:
        return stock(**named)
    if queries == keys <= (window or keys) and most is None:
        return None
    narrowed = min(window or 0, most or keys)
    heads = 1 if second else 2 + named["kv_offset"] % window
    return torch.empty(1, heads, 0, narrowed, dtype=torch.bool, device=named["device"])


def _attention(
    seen: dict[tuple[int, int, int, torch.device], torch.Tensor],
    fused: bool,
    compared: Compared | None,
    stock: Callable[..., tuple[torch.Tensor, object]],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **named: Any,
) -> tuple[torch.Tensor, object]:
    """Computes attention, in blocks of queries or in one kernel if the mask is empty.

    Args:
        seen: the biases of blocks of a window so far, which repeat; a backward pass keeps them.
        fused, compared: as for :func:`in_blocks`.
        stock: transformers' sdpa, which computes each block.
    """
    width = value.shape[-1]
    if width < query.shape[-1] and query.device.type == "cpu":  # else a score per head and pair of positions is stored
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
    if mask is None or mask.shape[-2]:
        return stock(module, query, key, value, mask, **named)[0][..., :width], None
    queries = query.shape[2]
    keys = key.shape[2]
    window = mask.shape[-1] or keys
    before = keys - queries
    if mask.shape[1] > 1:
        chunks = list[torch.Tensor]()
        for start in range(before - (before + mask.shape[1] - 2) % window, keys, window):  # the first query's, and on
            own = slice(max(start, 0), start + window)
            part = query[:, :, max(start - before, 0) : start + window - before], key[:, :, own], value[:, :, own]
            chunks.append(_attention(seen, fused, compared, stock, module, *part, mask[:, :1, :, :0], **named)[0])
        return torch.cat(chunks, dim=1), None
    if window >= keys and query.device.type != "cpu":
        from torch.nn.attention.bias import causal_lower_right  # late: it imports torch's compiler

        lower_right = causal_lower_right(queries, keys)
        return stock(module, query, key, value, lower_right, **named)
    slides = window < keys == queries and not query.requires_grad
    in_one_kernel = partial(_fused, query, key, value, window, named.get("scaling"))
    if slides and fused:
        return in_one_kernel(), None
    found = list[torch.Tensor]()
    for start in range(before, keys, QUERIES):
        low = max(0, start - window + 1)
        stop = min(start + QUERIES, keys)
        block = query[:, :, start - before : stop - before]
        shape = (start - low, stop - low, window, query.device)
        bias = seen[shape] if shape in seen else _bias(block, *shape[:3])
        if window < keys:
            seen[shape] = bias
        output, _ = stock(module, block, key[:, :, low:stop], value[:, :, low:stop], bias, **named)
        found.append(output[..., :width])
    whole = torch.cat(found, dim=1)
    if slides and compared is not None:
        compared.append((in_one_kernel(), whole))
    return whole, None


def _fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, scale: float | None
) -> torch.Tensor:
    """Computes attention to the last ``window`` keys up to each query, [windows, positions, heads, width].

    Raises:
        RuntimeError: this device, or the width of these heads, has no such kernel.
    """
    from torch.nn.attention.varlen import varlen_attn  # late: torch 2.9 has none

    windows, heads, positions, _ = query.shape
    starts = torch.arange(windows + 1, dtype=torch.int32, device=query.device) * positions
    queries, keys, values = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
    found = varlen_attn(
        queries,
        keys,
        values,
        starts,
        starts,
        positions,
        positions,
        scale=scale,
        window_size=(window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(found, torch.Tensor)
    return found.view(windows, positions, heads, -1)


def _bias(query: torch.Tensor, first: int, keys: int, window: int) -> torch.Tensor:
    """Returns what a block adds to its scores, [1, 1, queries, keys]: 0 for the last ``window`` keys up to each query,
    and else minus infinity.

    Args:
        first: the place of the first query among the keys.
    """
    places = torch.arange(keys, device=query.device)
    back = places[first:, None] - places
    hidden = (back < 0) | (back >= window)
    return torch.zeros_like(back, dtype=query.dtype).masked_fill_(hidden, -torch.inf)[None, None]
