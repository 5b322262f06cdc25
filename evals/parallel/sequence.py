"""One window by several processes: ``--sequence-parallel N``, for a sequence that is too long for one device.

Attention is the only part of a decoder in which positions meet. So each of N processes runs the whole model on its
own positions, and attention alone asks the others for their keys and values (one all-gather per layer). A window is
cut into 2N equal pieces; process r holds pieces r and 2N - 1 - r, so that under a causal mask, where a late row costs
more than an early one, all have the same to do (the zig-zag of Brandon et al. 2023, arXiv:2311.09431, section 3.1,
and of Llama 3's training, arXiv:2407.21783, section 3.3.2).

The attention itself stays the model's own: transformers is told of an implementation that gathers and then calls the
one that was there, on a block of rows and exactly the keys before them, under the model's own mask. So sliding windows,
softcaps and sinks stay as they were. Whatever else lets positions meet (convolutions, recurrent layers, attention with
masks of its own) fails a check against one process on the first positions, and is refused by name.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...errors import ConfigError, RopescaleError
from ...output.formatting import first_line
from ..scoring.memory import is_out_of_memory
from ..scoring.scorer import LOGITS_BYTES, Scorer
from .processes import Team

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from ..scoring.scorer import State, TrunkOutput

NAME = "ropescale_sharded"
"""The name of our attention in transformers."""

_BLOCK_BYTES = {"cpu": 64 * 2**20}
"""Budget for the mask, and eager attention's scores, of one block of rows; 1 GiB on an accelerator, where fewer rows
would leave most of it idle."""

_PROBE = 64
"""Positions on which the shards are compared with one process."""

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class ShardedScorer(Scorer):
    """A scorer whose windows are shared by the processes of a team; every one of them must be given the same calls.

    It feeds no chunks: a window is in pieces already. Memory that is short stops it, because a process that tried
    again with less would do it without the others.
    """

    def __init__(self, model: PreTrainedModel, team: Team, logits_bytes: int = LOGITS_BYTES) -> None:
        super().__init__(model, logits_bytes)
        self.team, self.retries, self.eager = team, False, _is_eager(self.model)

    def check(self, ids: torch.Tensor) -> None:
        """Runs :meth:`Scorer.check`, and makes sure that the team computes what each of its processes computes alone.

        Raises:
            ConfigError: it does not; names the model.
        """
        super().check(ids)
        if not self.split:
            raise _unsuited(self.model, "it has no trunk apart from its head")
        probe = ids[: max(_PROBE, 4 * self.team.size)][None]
        shared, alone = self._probed(probe), super().score(probe)
        off = float((shared - alone).abs().nan_to_num().mean())
        # Nats per token: several times what rounding makes, and much less than a token out of sight would.
        if off > max(1e-5, 8 * torch.finfo(next(self.model.parameters()).dtype).eps):
            raise _unsuited(self.model, f"its NLLs would be off by {off:.1e} nats per token")

    def _probed(self, probe: torch.Tensor) -> torch.Tensor:
        try:
            return self.score(probe)
        except _Unsuited as error:
            raise _unsuited(self.model, str(error)) from error
        except Exception as error:  # whatever a layer does with a mask, or with fewer positions, that it did not expect
            if isinstance(error, RopescaleError) or is_out_of_memory(error):
                raise
            raise _unsuited(self.model, f"its layers do not take it: {first_line(error)}") from error

    def chunks_agree(self, ids: torch.Tensor) -> bool:
        """Returns False: a window is in pieces already."""
        return False

    def score(self, ids: torch.Tensor, chunk: int | None = None) -> torch.Tensor:
        """Scores as :meth:`Scorer.score` does; returns the same in every process of the team."""
        padded, shard = self._cut(ids)
        sources, targets = padded[:, shard.positions], padded.roll(-1, 1)[:, shard.positions]
        own = self._nll(self._head_in_blocks(self._run_shard(sources, shard), sources), targets)
        return shard.gathered(own.view(len(ids), -1))[:, : ids.shape[1] - 1].cpu()  # the very last one is meaningless

    def states(self, ids: torch.Tensor, chunk: int | None = None) -> TrunkOutput:
        """Returns what :meth:`Scorer.states` does, of this process's positions alone."""
        padded, shard = self._cut(ids)
        return self._run_shard(padded[:, shard.positions], shard)

    def divergence(self, ids: torch.Tensor, one: State, other: State) -> torch.Tensor:
        """Compares as :meth:`Scorer.divergence` does; returns the same in every process of the team."""
        padded, shard = self._cut(ids)
        own = self._compared(padded[:, shard.positions], one, other).to(self.device)
        return shard.gathered(own, dim=2)[:, :, : ids.shape[1] - 1].cpu()

    def _cut(self, ids: torch.Tensor) -> tuple[torch.Tensor, Shard]:
        """Pads the windows so that they can be cut into equal pieces, and tells which of these are this process's."""
        shard = Shard(self.team, ids.shape[1], self.device, self.eager)
        return torch.nn.functional.pad(ids.to(self.device), (0, shard.padded - ids.shape[1])), shard

    def _run_shard(self, ids: torch.Tensor, shard: Shard) -> TrunkOutput:
        # Without a mask, transformers would take positions that jump for several documents in a row.
        everything = torch.ones(len(ids), shard.padded, dtype=torch.bool, device=self.device)
        with _sharded(self.model, shard):
            return self.trunk(
                input_ids=ids,
                position_ids=shard.positions[None],
                attention_mask=everything,
                use_cache=False,
                return_dict=True,
            )


class Shard:
    """This process's part of a window.

    Attributes:
        padded: positions of the window, rounded up to a multiple of 2N. The padding comes last, so no token of the
            text sees it.
        positions: the two pieces that this process holds, int64 [2 padded / 2N].
        eager: whether the model attends by the plain function of its file.
    """

    def __init__(self, team: Team, length: int, device: torch.device, eager: bool = False) -> None:
        pieces = 2 * team.size
        self.team, self.eager = team, eager
        self.block_bytes = _BLOCK_BYTES.get(device.type, 2**30)
        self.size = -(-length // pieces)
        self.padded = pieces * self.size
        self.starts = [self.size * piece for piece in (team.rank, pieces - 1 - team.rank)]
        self.positions = torch.cat([torch.arange(start, start + self.size, device=device) for start in self.starts])

    def gathered(self, own: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Returns the parts of all processes along ``dim``, in order of position."""
        parts = self.team.gathered(own)
        early = [part.narrow(dim, 0, self.size) for part in parts]
        late = [part.narrow(dim, self.size, self.size) for part in reversed(parts)]
        return torch.cat(early + late, dim)

    def blocks(self, row_bytes: int) -> Iterator[tuple[slice, int]]:
        """Yields the rows of this process that are attended for together, and the position of the first of them.

        Args:
            row_bytes: what one row takes per key.
        """
        for piece, start in enumerate(self.starts):
            rows = max(1, self.block_bytes // (row_bytes * (start + self.size)))
            for first in range(0, self.size, rows):
                here = piece * self.size + first
                yield slice(here, min(here + rows, (piece + 1) * self.size)), start + first


@dataclass(frozen=True)
class _Mask:
    """The mask that transformers hands to the layers: the keys that a row may see, as a function of positions."""

    sees: MaskFunction
    causal: bool

    def rows(self, start: int, stop: int, device: torch.device) -> tuple[slice, torch.Tensor]:
        """Returns the keys from the first that any of these rows sees, and their mask, bool [1, 1, rows, keys]."""
        first = torch.zeros((), dtype=torch.long, device=device)
        rows, keys = torch.arange(start, stop, device=device), torch.arange(stop, device=device)
        mask = self.sees(first, first, rows[:, None], keys[None, :])
        begin = 0 if self.causal else int(mask.any(0).int().argmax())
        return slice(begin, stop), mask[None, None, :, begin:]


class _Unsuited(Exception):
    """A reason why a model's positions cannot be shared out; met by the check."""


_SHARD: ContextVar[Shard] = ContextVar("shard")


@contextmanager
def _sharded(model: PreTrainedModel, shard: Shard) -> Iterator[None]:
    """Lets the model's attention gather keys and values inside."""
    _register()
    configs = _configs(model)
    before = {key: config._attn_implementation_internal for key, config in configs.items()}
    token = _SHARD.set(shard)
    try:
        for config in configs.values():
            config._attn_implementation_internal = NAME
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
        _SHARD.reset(token)


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def _mask(*args: object, mask_function: MaskFunction, use_vmap: bool = False, **how: object) -> _Mask:
    """Makes a layer type's mask for transformers. No padding is ever seen, so the function of positions says all."""
    from transformers.masking_utils import causal_mask_function

    if use_vmap:
        raise _Unsuited("its masks depend on more than positions")
    return _Mask(mask_function, mask_function is causal_mask_function)


def _attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: object, **how: Any
) -> tuple[torch.Tensor, None]:
    """Attends in every layer, for transformers: [1, heads, positions, width] of this process to its outputs."""
    shard = _SHARD.get()
    if not isinstance(attention_mask, _Mask) or how.get("position_bias") is not None:
        raise _Unsuited(f"{type(module).__name__} makes masks of its own")
    if _counts_positions(type(module)):
        raise _Unsuited(f"{type(module).__name__} counts positions by itself")
    attend = _Rows(module, shard.gathered(key, 2), shard.gathered(value, 2), attention_mask, how)
    blocks = shard.blocks(_row_bytes(query, shard.eager))
    each = attend.eager if shard.eager else attend.sdpa
    return torch.cat([each(query[:, :, rows], start) for rows, start in blocks], dim=1), None


def _row_bytes(query: torch.Tensor, eager: bool) -> int:
    """Returns what one row takes for each key."""
    if eager:
        return query.shape[0] * query.shape[1] * (2 * query.element_size() + 4)  # scores, and their softmax in fp32
    return 1 + query.element_size()  # the mask as booleans, and as what is added


@dataclass(frozen=True)
class _Rows:
    """A layer's attention over all keys, for some rows at a time, by the implementation that the model has without us.

    Attributes:
        how: further arguments of that implementation, such as ``scaling``.
    """

    module: nn.Module
    key: torch.Tensor
    value: torch.Tensor
    mask: _Mask
    how: Mapping[str, Any]

    def sdpa(self, query: torch.Tensor, start: int) -> torch.Tensor:
        """Attends by torch's scaled dot products, through transformers' function."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if self.mask.causal and self.how.get("softcap") is None:
            keys = slice(start + query.shape[2])
            return _causal(query, self.key[:, :, keys], self.value[:, :, keys], self.how.get("scaling")).transpose(1, 2)
        keys, seen = self.mask.rows(start, start + query.shape[2], query.device)
        return sdpa_attention_forward(
            self.module, query, self.key[:, :, keys], self.value[:, :, keys], seen, **self.how
        )[0]

    def eager(self, query: torch.Tensor, start: int) -> torch.Tensor:
        """Attends by the plain function of the modelling file, which adds the mask to the scores."""
        forward = getattr(sys.modules[type(self.module).__module__], "eager_attention_forward", None)
        if forward is None:
            raise _Unsuited("its eager attention is no function of its own")
        keys, seen = self.mask.rows(start, start + query.shape[2], query.device)
        added = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
        added.masked_fill_(~seen, torch.finfo(query.dtype).min)
        return forward(self.module, query, self.key[:, :, keys], self.value[:, :, keys], added, **self.how)[0]


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Attends for rows at the last of the keys' positions; on a GPU by a kernel without a mask or repeated keys."""
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    bias = causal_lower_right(query.shape[2], key.shape[2])
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale, enable_gqa=grouped)


def _is_eager(model: PreTrainedModel) -> bool:
    """Tells whether the model attends by the plain function of its file.

    Raises:
        ConfigError: neither so nor by sdpa.
    """
    name = str(model.config.get_text_config()._attn_implementation)
    if name not in ("sdpa", "eager"):
        raise ConfigError(
            f"sequence_parallel knows sdpa and eager attention, and this model is loaded with {name}",
            "sequence_parallel",
        )
    return name == "eager"


def _configs(model: PreTrainedModel) -> dict[int, PreTrainedConfig]:
    """Returns every configuration that a layer of the model looks into."""
    found: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    return {id(config): config for config in found if hasattr(config, "_attn_implementation_internal")}


@functools.cache
def _counts_positions(kind: type) -> bool:
    """Whether an attention class counts from 0 to scale or bias by position; here 0 is where a piece begins. Llama 4
    scales queries so, from 8,192 positions on, which no short check meets."""
    methods = [inspect.unwrap(each) for each in vars(kind).values() if callable(each)]
    return any("arange" in method.__code__.co_names for method in methods if hasattr(method, "__code__"))


def _unsuited(model: PreTrainedModel, why: str) -> ConfigError:
    return ConfigError(
        f"{type(model).__name__} cannot be measured with sequence_parallel ({why}); leave the option out",
        "sequence_parallel",
    )
