"""Scores token ids with a model, one NLL per token, in bounded memory.

The trunk runs once over the whole window, without logits and without a KV cache. The head then runs over blocks
of rows small enough for a byte budget: full fp32 logits would take ``4 L V`` bytes, 62.6 GiB for Llama 3.1 at
128k. Log-softmax is computed in fp32 for every dtype of the model.

The head is the model's own ``forward`` with the trunk's cached output, so that it includes the model's own changes to
its logits (Gemma's softcap, Cohere's and Granite's scale).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from ...errors import RunError
from ...models.rotary_modules import evaluating, unwrapped
from . import attention, tiles
from .memory import MemoryEstimate, device_of, embedding_shape, needs_mask, stated

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel
    from transformers.utils.generic import ModelOutput

    class TrunkOutput(ModelOutput):
        """The output of a model without its head."""

        last_hidden_state: torch.Tensor

    State = TrunkOutput | torch.Tensor
    """The trunk's output, or the logits of a model without a split."""

LOG = logging.getLogger(__name__)
SCORING = 3
"""The version of scoring. It is increased when the same model and batches would give different NLLs, so that stored
NLLs of earlier versions are not used."""

LOGITS_BYTES = {"cpu": 2**26}
"""The default memory for one block of fp32 logits, in bytes, by device type; 1 GiB on other devices, where a smaller
block takes longer to read the head's weights than to multiply. The peak is about three times as high: the logits in
fp32 and in the model's own dtype, and their logarithms."""

_PROBE = 32
"""The number of positions on which the split is compared with the model's own logits."""


class Scorer:
    """A scorer of windows of token ids under a causal language model.

    Attributes:
        split: whether the trunk and the head run separately (bounded memory). False if the model has no separate trunk,
            or if :meth:`check` found that splitting changes its logits.
        vocabulary: the number of rows of the input embedding; valid ids are smaller.
        retries: whether a batch that ran out of memory may be retried in parts. False if other processes take part in
            every call.
    """

    def __init__(self, model: PreTrainedModel, logits_bytes: int | None = None) -> None:
        self.model: PreTrainedModel = unwrapped(model)
        self.trunk: nn.Module = getattr(self.model, "base_model", self.model)
        if self.trunk is self.model:  # Llama 4 names another
            self.trunk = getattr(self.model, "model", self.model)
        self.device = device_of(self.model)
        self.retries = (getattr(self.model, "tp_size", None) or 1) == 1
        self.vocabulary = embedding_shape(self.model)[0]
        self.logits_bytes = logits_bytes or LOGITS_BYTES.get(self.device.type, 2**30)
        self.split = self.trunk is not self.model

    def check(self, ids: torch.Tensor) -> None:
        """Compares the logits with and without the split on the first positions; disables the split if they differ.

        Args:
            ids: a window, int64 [tokens].

        Raises:
            RunError: the logits are not finite, because a weight is not finite.
        """
        self.split = self.split and self._splits(ids)
        if not self.split:
            LOG.warning(
                "the head of %s cannot run separately; scoring needs its full logits", type(self.model).__name__
            )

    def _splits(self, ids: torch.Tensor) -> bool:
        """Returns whether the logits are the same if the head runs separately."""
        probe = ids[:_PROBE].to(self.device)[None]
        own = self.model(input_ids=probe, use_cache=False).logits.float()
        if not bool(own.isfinite().all()) and (broken := broken_weight(self.model)):
            raise RunError(_broken(broken))
        output = self._run_trunk(probe)
        half = max(1, probe.shape[1] // 2)
        blocks = [self._logits(output, probe, part) for part in (slice(0, half), slice(half, None))]
        return agree(torch.cat(blocks), own[0], output.last_hidden_state.dtype)

    def score(self, ids: torch.Tensor, chunk: int | None = None) -> torch.Tensor:
        """Returns the NLL in nats of every position except the first, given the previous ones.

        Args:
            ids: windows of equal length, int64 [windows, positions].
            chunk: feed this many positions at a time with a key-value cache, for a window that would not fit into
                memory; None feeds all at once. The numbers are the same up to rounding if the rotary tables stay the
                same, which the caller must ensure. Ignored if the model is not split.

        Returns:
            fp32 on the CPU, [windows, positions - 1]. Non-finite values are returned unchanged.
        """
        ids = ids.to(self.device)
        targets = ids[:, 1:].reshape(-1)
        nll = torch.empty(targets.shape, dtype=torch.float32, device=self.device)
        done = 0
        for sources, state in self._parts(ids, chunk):
            for rows in self._blocks(sources.numel()):
                logits = self._logits(state, sources, rows)
                among = slice(done + rows.start, done + rows.stop)
                nll[among] = cross_entropy(logits, targets[among].to(logits.device), reduction="none").to(self.device)
            done += sources.numel()
        return nll.cpu().view(len(ids), -1)

    @cached_property
    def tiled(self) -> list[nn.Module]:
        """The MLPs that run in tiles of rows where more than two tiles are fed.

        On a processor, tiles must not change a bit of what two tiles give; elsewhere, they may change rounding.
        """
        same = torch.equal if self.device.type == "cpu" else agree
        with evaluating(self.model):
            return tiles.mlps(self.model, same) if self.split else []

    @cached_property
    def unmasked(self) -> bool:
        """Whether attention in blocks, without a mask of all positions, gives the model's own numbers."""
        if not self.split:
            return False
        own = self._probed(nullcontext())
        found = self._probed(attention.in_blocks(_PROBE))
        return own is not None and found is not None and agree(found, own)

    @cached_property
    def fused(self) -> bool:
        """Whether one kernel computes a window past a layer's sliding window: it gives what blocks give, in every layer
        that slides; in float32 it raises an error."""
        slides = stated(self.model, "sliding_window", 0)
        if not (slides and self.retries and self.device.type in attention.FUSED_ON and self.unmasked):
            return False
        both: attention.Compared = []
        ran = self._probed(attention.in_blocks(_PROBE // 4, compared=both)) is not None
        return ran and bool(both) and all(agree(one, other) for one, other in both)

    @property
    def kernel(self) -> str:
        """The name of the attention that runs, as transformers calls it, and of the kernel that replaces it."""
        own = str(getattr(self.model.config, "_attn_implementation", None))
        return f"{own}, {attention.FUSED} past sliding windows" if self.fused else own

    def _probed(self, attending: AbstractContextManager[None]) -> torch.Tensor | None:
        """Returns the trunk's output for a few positions; None if an attention of its own cannot be replaced so."""
        probe = torch.arange(_PROBE, device=self.device)[None] % self.vocabulary
        try:
            with torch.inference_mode(), evaluating(self.model), attending:
                return self.trunk(input_ids=probe, use_cache=False)[0]
        except (LookupError, TypeError, ValueError, RuntimeError, ImportError):
            return None

    def estimate(self, fed: int) -> MemoryEstimate:
        """Returns the estimate of the memory of passes over so many positions."""
        is_long = fed > 2 * tiles.ROWS
        is_tiled = is_long and self.tiled
        unmasked = (is_long or needs_mask(self.model, fed)) and self.unmasked
        return MemoryEstimate(self.model, self.logits_bytes, tiles.ROWS if is_tiled else None, unmasked)

    def states(self, ids: torch.Tensor, chunk: int | None = None) -> State:
        """Returns the head's input for every position except the last, computed with the live tables.

        This is the trunk's output with the positions of all windows in a row, [1, positions, width], or the logits of
        a model without a split, [positions, vocabulary].

        Args:
            ids: windows of equal length, int64 [windows, positions].
            chunk: as for :meth:`score`.
        """
        ids = ids.to(self.device)
        if not self.split:
            return torch.cat([self.model(input_ids=row[None], use_cache=False).logits[0, :-1] for row in ids])
        if chunk is None:
            output = self._run_trunk(ids)
            hidden = output.last_hidden_state
            output.last_hidden_state = hidden[:, :-1].reshape(1, -1, hidden.shape[-1])
            return output
        pieces = [(type(output), output.last_hidden_state) for _, output in self._chunked_outputs(ids, chunk)]
        return pieces[0][0](last_hidden_state=torch.cat([hidden for _, hidden in pieces], dim=1))

    def divergence(self, ids: torch.Tensor, one: State, other: State) -> tuple[torch.Tensor, torch.Tensor]:
        """Compares the predictions of two sets of tables at every position except the last.

        The head computes the logits of both block by block, so full logits are never in memory.

        Args:
            ids: the windows that both were computed from, int64 [windows, positions].
            one, other: the results of :meth:`states` with the two sets of tables.

        Returns:
            KL(one || other) in nats, fp32, and whether both have the same most likely token, bool; both on the CPU,
            [windows, positions - 1].
        """
        sources = ids.to(self.device)[:, :-1]
        kl = torch.empty(sources.numel(), device=self.device)
        same = torch.empty_like(kl, dtype=torch.bool)
        # A block of each is in memory at the same time, so they share the budget.
        for rows in self._blocks(sources.numel(), share=2):
            apart, agreeing = divergence(self._logits(one, sources, rows), self._logits(other, sources, rows))
            kl[rows] = apart.to(self.device)
            same[rows] = agreeing.to(self.device)
        return kl.cpu().view(sources.shape), same.cpu().view(sources.shape)

    def chunks_agree(self, ids: torch.Tensor) -> bool:
        """Checks whether the first positions of a window get the same NLLs in chunks and at once, up to rounding.

        Args:
            ids: a window, int64 [tokens].
        """
        probe = ids[: 2 * _PROBE][None]
        if not self.split:
            return False
        try:
            pieces = self.score(probe, chunk=_PROBE // 2)
        except (TypeError, ValueError, NotImplementedError, AttributeError):  # a trunk that does not support this cache
            return False
        return agree(pieces, self.score(probe), next(self.model.parameters()).dtype)

    def _parts(self, ids: torch.Tensor, chunk: int | None) -> Iterable[tuple[torch.Tensor, State]]:
        """Returns the ids of each part of the windows without their last ones, and the head's input for them.

        At most two chunks' states are in memory at a time, or two windows' logits for a model without a split.
        """
        if not self.split:
            whole = (self.model(input_ids=row[None], use_cache=False).logits[0, :-1] for row in ids)
            return zip(ids[:, :-1], whole, strict=True)
        if chunk is None:
            return [(ids[:, :-1], self.states(ids))]
        return self._chunked_outputs(ids, chunk)

    def _chunked_outputs(self, ids: torch.Tensor, chunk: int) -> Iterator[tuple[torch.Tensor, TrunkOutput]]:
        """Feeds windows one by one, ``chunk`` positions at a time; the last position is not fed."""
        from transformers import DynamicCache

        width = ids.shape[1] - 1
        for row in range(len(ids)):
            cache = DynamicCache(config=self.model.config)
            for start in range(0, width, chunk):
                part = ids[row : row + 1, start : min(start + chunk, width)]
                yield part, self._run_trunk(part, past_key_values=cache, use_cache=True)

    def _blocks(self, rows: int, share: int = 1) -> Iterator[slice]:
        """Yields slices of rows whose fp32 logits take ``1 / share`` of the budget."""
        size = max(1, self.logits_bytes // (4 * self.vocabulary * share))
        for start in range(0, rows, size):
            yield slice(start, min(start + size, rows))

    def _run_trunk(self, ids: torch.Tensor, **cache: object) -> TrunkOutput:
        """Runs the trunk; without gradients, its MLPs in tiles and without large masks."""
        with ExitStack() as stack:
            if not torch.is_grad_enabled():
                for part in self.tiled if ids.numel() > 2 * tiles.ROWS else ():
                    stack.enter_context(answering(part, partial(tiles.in_tiles, part.forward)))
                stack.enter_context(self.unmasking(ids.shape[1], bool(cache)))
            return self.trunk(input_ids=ids, return_dict=True, **({"use_cache": False} | cache))

    def unmasking(self, positions: int, cached: bool = False) -> AbstractContextManager[None]:
        """Returns a context without masks of all positions, where windows need one.

        Args:
            cached: whether the windows follow others in a cache.
        """
        is_needed = (cached or needs_mask(self.model, positions)) and self.unmasked
        return attention.in_blocks(fused=self.fused) if is_needed else nullcontext()

    def _logits(self, state: State, ids: torch.Tensor, rows: slice) -> torch.Tensor:
        """Returns the model's own fp32 logits, [rows, vocabulary], for these rows of a result of :meth:`states`.

        Args:
            ids: the ids that it was computed from.
        """
        if isinstance(state, torch.Tensor):
            return state[rows].float()
        block = type(state)(**{**state, "last_hidden_state": state.last_hidden_state[:, rows]})
        with answering(self.trunk, lambda *args, **kwargs: block):
            return self.model(input_ids=ids.reshape(1, -1)[:, rows], use_cache=False).logits[0].float()


@contextmanager
def answering(module: nn.Module, forward: Callable[..., object]) -> Iterator[None]:
    """Replaces ``module.forward`` inside the block, and then restores it, even if it was set on the instance (as
    accelerate does)."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            module.__dict__.pop("forward", None)
        else:
            module.forward = own


def divergence(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns KL(one || other) in nats, and whether the most likely token is the same, each [rows].

    Args:
        one, other: fp32 logits [rows, vocabulary]. A token with zero probability under ``one`` contributes nothing.
    """
    same = one.argmax(1) == other.argmax(1)
    one = torch.log_softmax(one, 1)
    other = torch.log_softmax(other, 1)
    share = one.exp()
    return torch.where(share > 0, share * (one - other), 0.0).sum(1), same


def agree(split: torch.Tensor, own: torch.Tensor, dtype: torch.dtype | None = None) -> bool:
    """Returns whether numbers are equal up to the rounding of matrix products, which depends on the number of rows.

    NaN is equal to NaN.

    Args:
        dtype: the dtype that they were computed in, if it is not their own.
    """
    if split.shape != own.shape:
        return False
    relative = min(64 * torch.finfo(dtype or own.dtype).eps, 0.05)
    largest = float(own.nan_to_num().abs().max())
    return torch.allclose(split, own, rtol=0, atol=relative * largest, equal_nan=True)


def broken_weight(model: nn.Module) -> str | None:
    """Returns the name of the first of this process's weights with NaN or infinity, or None."""
    for name, each in model.named_parameters():
        plain = type(each.data) is torch.Tensor and not each.is_meta and each.dtype.itemsize > 1
        if plain and not bool(torch.isfinite(each).all()):
            return name
    return None


def _broken(name: str) -> str:
    return f"the model's weights contain NaN or infinity, in {name}; download them again, or train again"


def not_finite(model: nn.Module, where: str, otherwise: str = "a smaller factor") -> RunError:
    """Returns the error for non-finite logits. Its message names a non-finite weight, if the model has one.

    Args:
        where: the place of these logits, or their cause, for the message.
        otherwise: an alternative to float32, for the message.
    """
    if (broken := broken_weight(model)) is not None:
        return RunError(_broken(broken))
    wide = next(model.parameters()).dtype == torch.float32
    advice = otherwise if wide else f"float32, or {otherwise}"
    return RunError(f"the model's logits are NaN or infinite {where}; try {advice}", *([] if wide else ["dtype"]))
