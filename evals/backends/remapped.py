"""Remapped positions, for measurement: what a model could do if no distance were unknown to it.

A key nearer than a window, half of the trained length, is seen at its distance. For all others the query at position i
counts as at ``(i - window) // group + window``, and the key at j as at ``j // group``, with the smallest group that
keeps every distance within the trained length (Jin et al. 2024, arXiv:2401.01325, without their neighbours' overlap).
Frequencies and the attention scale are those of the live tables. No file describes this, and no engine serves it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...errors import ConfigError, RopescaleError
from ...lengths import parse_length
from ...models.patching import Patch
from ...models.rotary_modules import evaluating, layer_keys, live_table, rotary_modules, text_config, unwrapped
from ...output.formatting import first_line
from ..facts import REFERENCE
from .loaded import REMAPPED, Variant, is_remapped, trained_length

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

_REFUSED = "save_pretrained", "set_attn_implementation"

_BLOCK = 128
"""The number of queries whose scores are in memory together."""

_PROBE, _SHIFT, _TOLERANCE = 4, 7, 0.05
"""A probe has so many tokens, is moved by so many positions, and may then differ by this share from a turned one."""


@contextmanager
def remapped(model: PreTrainedModel, length: int | str, *, scale: bool = True) -> Iterator[None]:
    """Remaps a model's positions inside the block, for windows of at most ``length`` tokens without a cache.

    This shows what any table leaves behind; nothing can deploy it. See :mod:`ropescale.evals.backends.remapped`.

    Args:
        model: a loaded model, patched or not; its tables and their attention scale stay.
        length: the number of tokens of the longest window, which determines how far positions are grouped.
        scale: whether the logits of the n-th token grow by ``(0.1 ln(n / L) + 1)^2`` past the trained length L.

    Raises:
        ConfigError: the model's attention cannot be replaced, or does not turn whole queries and keys.
    """
    with Remapped(unwrapped(model), scale).applied(parse_length(length)):
        yield


class Remapped(Variant):
    """A model with remapped positions, beyond its trained length.

    Args:
        scale: as for :func:`remapped`.
        is_unpatched: whether the model's own patches are reverted.
    """

    def __init__(self, model: PreTrainedModel, scale: bool, is_unpatched: bool = False) -> None:
        super().__init__(model, label=f"{REFERENCE}{'' if scale else ', no scale'}", is_unpatched=is_unpatched)
        self._config = text_config(model)
        self._scale = scale
        self._length = 0
        self._trained = trained_length(model) or 0
        self._probed: dict[nn.Module, torch.Tensor] = {}

    @property
    def rotation(self) -> str:
        own = super().rotation
        return f"{own} remapped for {self._length}, scale {self._scale}" if is_remapped(self.model) else own

    def _depends_on_length(self, patch: Patch | None) -> bool:
        return True

    @contextmanager
    def applied(self, length: int | None = None) -> Iterator[Patch | None]:
        from transformers import AttentionInterface, AttentionMaskInterface

        with super().applied(length) as patch, ExitStack() as undo:
            self._length = length or 0
            if self._length > self._trained:
                if is_remapped(self.model):
                    raise ConfigError("the positions of this model are remapped already; leave that block first")
                AttentionInterface.register(REMAPPED, self._attend)
                AttentionMaskInterface.register(REMAPPED, AttentionMaskInterface()["sdpa"])
                parts = [module for module in self.model.modules() if hasattr(module, "save_pretrained")]
                refused = [(part, name, _refuse) for part in parts for name in _REFUSED]
                for target, name, value in [(self._config, "_attn_implementation_internal", REMAPPED), *refused]:
                    undo.callback(_put, target, name, target.__dict__.get(name))
                    _put(target, name, value)
                try:
                    self._check()
                except Exception as error:
                    kind = self._config.model_type
                    raise ConfigError(f"the positions of {kind} cannot be remapped: {first_line(error)}") from error
            yield patch

    def _check(self) -> None:
        """Refuses models that do not turn every key whole, as a probe at two places shows."""
        ids = torch.arange(_PROBE, device=next(self.model.parameters()).device)
        probes = []
        for start in (0, _SHIFT):
            self._probed = {}
            with torch.no_grad(), evaluating(self.model):
                self.model(input_ids=ids[None], position_ids=ids[None] + start, use_cache=False)
            probes.append(self._probed)
        if not self._probed:
            raise ConfigError("no layer that looks further than the trained length asks transformers for its attention")
        for module, key in probes[0].items():
            moved = probes[1][module].float()
            off = moved - self._turned(module, key, torch.full_like(ids, _SHIFT))
            if not off.norm() < _TOLERANCE * moved.norm():
                raise ConfigError(f"{type(module).__name__} does not turn whole queries and keys")

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        softcap: float | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Computes a layer's attention; arguments and result are those of transformers' attention functions."""
        size = key.shape[2]
        limit = sliding_window or self._length
        is_padded = attention_mask is not None and size <= limit
        if module.config is not self._config or not query.shape[2] == size <= self._length or is_padded:
            raise ConfigError(
                f"remapped positions are for one model and whole windows of at most {self._length:,} tokens, without "
                "padding or a cache"
            )
        if others.get("s_aux") is not None:
            raise ConfigError("its attention has sinks")
        at = torch.arange(size, device=key.device)
        growth = 0.1 * self._scale * ((at[:, None] + 1) / self._trained).log().clamp(min=0)
        query = (query * scaling * (1 + growth) ** 2).to(query.dtype)
        far_query = query
        far_key = key
        window = limit
        if limit > self._trained:
            if size == _PROBE:
                self._probed[module] = key
            window = self._trained // 2
            group = (self._length - 1 - window) // (self._trained - window) + 1
            held_back = torch.floor((at - window) / group).long() + window
            far_query = self._turned(module, query, held_back - at)
            far_key = self._turned(module, key, at // group - at)
        found = []
        for start in range(0, size, _BLOCK):
            near = slice(max(0, start - window + 1), min(start + _BLOCK, size))
            far = slice(0, max(0, near.stop - window))
            rows = slice(start, near.stop)
            distance = at[rows, None] - torch.cat([at[far], at[near]])
            is_far = torch.arange(distance.shape[1], device=key.device) < far.stop
            seen = (is_far == (distance >= window)) & (distance >= 0) & (distance < limit)
            scores = [
                queries[:, :, rows].reshape(*key.shape[:2], -1, key.shape[3]) @ keys[:, :, which].transpose(2, 3)
                for queries, keys, which in ((far_query, far_key, far), (query, key, near))
            ]
            logits = torch.cat(scores, dim=-1).float()
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            unseen = ~seen.repeat(query.shape[1] // key.shape[1], 1)
            shares = logits.masked_fill_(unseen, -math.inf).softmax(dim=-1).to(value.dtype)
            mixed = shares @ torch.cat([value[:, :, far], value[:, :, near]], dim=2)
            found.append(mixed.reshape(*query.shape[:2], near.stop - start, -1))
        return torch.cat(found, dim=2).transpose(1, 2).contiguous(), None

    def _turned(self, module: nn.Module, states: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Returns turned queries or keys, moved on by so many positions.

        Args:
            states: [windows, heads, positions, width], of which the first part turns.
            shift: int64 [positions].
        """
        (_, rotary), *more = rotary_modules(self.model)
        if more:
            raise ConfigError("it has several rotary modules")
        kinds = layer_keys(rotary)
        wide = states.float()
        kind = kinds[0] if len(kinds) == 1 else self._config.layer_types[module.layer_idx]
        tables = rotary(wide, shift[None], *kinds[1:] and [kind])
        cos, sin = (table / live_table(rotary, kind)[1] for table in tables)
        width = cos.shape[-1]
        part = wide[..., :width]
        turned, _ = sys.modules[type(module).__module__].apply_rotary_pos_emb(part, part, cos, sin)
        return torch.cat([turned, wide[..., width:]], dim=-1).to(states.dtype)


def _put(target: object, name: str, value: object) -> None:
    """Sets an attribute of an object itself, or removes it if the value is None."""
    target.__dict__[name] = value
    if value is None:
        del target.__dict__[name]


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RopescaleError(
        "the positions of this model are remapped, which no file describes and another attention would undo; leave the "
        "block first"
    )
