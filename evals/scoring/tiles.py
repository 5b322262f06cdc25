"""Runs the MLPs of a model in tiles of rows, so that the peak of a layer's memory is that of its attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...models.rotary_modules import text_config
from .memory import width

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 4096
"""The number of positions in a tile, enough for the full speed of matrix products."""

_ODD = 37
"""Rows beyond two tiles in the check, because kernels may treat the last rows differently."""

_DRAWN = 251
"""Rows that are drawn, and repeated, because drawing all on a processor can take longer than a batch on an accelerator;
a prime, so that tiles differ."""

Same = Callable[[torch.Tensor, torch.Tensor], bool]


def blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the modules of all module lists that are as long as the configured number of layers."""
    count = getattr(text_config(model), "num_hidden_layers", None)
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) == count]
    return [block for each in lists for block in each]


@torch.inference_mode()
def mlps(model: PreTrainedModel, same: Same) -> list[nn.Module]:
    """Returns the parts of the blocks that give the same numbers in tiles as at once, such as dense and sparse MLPs.

    One part of each name and class is run on random rows. Attentions are left out, and parts whose weights accelerate
    loads for each call.

    Args:
        same: compares the result of a call with that of two tiles.
    """
    found = list[nn.Module]()
    known = dict[tuple[str, type], bool]()
    dtype = model.get_input_embeddings().get_parameter("weight").dtype
    dice = torch.Generator().manual_seed(0)
    rows = torch.randn(1, _DRAWN, width(model), generator=dice).to(dtype)
    for block in blocks(model):
        for name, part in block.named_children():
            if "att" in name or not list(part.children()) or any(map(_is_offloaded, part.modules())):
                continue
            kind = name, type(part)
            if kind not in known:
                known[kind] = _agrees(part, rows, same)
            if known[kind]:
                found.append(part)
    return found


def _agrees(part: nn.Module, rows: torch.Tensor, same: Same) -> bool:
    rows = rows.to(next(part.parameters()).device)[:, torch.arange(2 * ROWS + _ODD) % _DRAWN]
    rows[:, -1] *= 64  # which changes all others if they share a scale; in half precision it may overflow itself
    try:
        whole = part(rows)
        return isinstance(whole, torch.Tensor) and same(whole[:, :-1], in_tiles(part, rows)[:, :-1])
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError):  # it needs more than rows
        return False


def _is_offloaded(module: nn.Module) -> bool:
    hook = getattr(module, "_hf_hook", None)
    return any(getattr(each, "offload", False) for each in getattr(hook, "hooks", [hook]))


def in_tiles(
    forward: Callable[..., torch.Tensor], states: torch.Tensor, *more: object, **named: object
) -> torch.Tensor:
    """Calls a function with :data:`ROWS` positions at a time, and with more at last; at once if it takes more than
    states.

    Args:
        states: [windows, positions, width].
    """
    if more or named:
        return forward(states, *more, **named)
    rows = states.reshape(1, -1, states.shape[-1])
    sizes = [ROWS] * max(1, rows.shape[1] // ROWS)
    sizes[-1] += rows.shape[1] - sum(sizes)
    whole = rows.new_empty(0)
    at = 0
    for tile in rows.split(sizes, dim=1):
        part = forward(tile)
        if not at:
            whole = part.new_empty(rows.shape[1], part.shape[-1])
        whole[at : at + tile.shape[1]] = part[0]
        at += tile.shape[1]
    return whole.view(*states.shape[:-1], -1)
