"""Computes the loss of windows and its gradient with respect to the tables' parameters, in bounded memory.

transformers computes cos and sin under ``torch.no_grad``, and its modules may change their own tables. Inside
:meth:`LiveTables.differentiable`, modules run their innermost ``forward`` instead, which preserves every model family's
layout of cos and sin. Meanwhile the model is patched with the starting schedule, so that the configuration, softmax
scales and everything else except the searched numbers are the same as under the found schedule.

Only the few searched numbers have a gradient; the weights have none. For a large model or window, the backward pass
recomputes the first blocks (``torch.utils.checkpoint``), on a processor but for their attention. So only their inputs,
and the activations of the last blocks or of one, are in memory. The loss of the head is differentiated in blocks of
rows, so the full logits are never in memory.
"""

import inspect
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ...errors import ConfigError
from ...models import patching
from ...models.rotary_modules import layer_keys, prefix, preserved, rotary_modules
from ...planning.plan import Plan
from ..parallel.processes import Group
from ..scoring.memory import MemoryEstimate, embedding_shape, heads_of, needs_mask, stated, width
from ..scoring.scorer import Scorer, answering, not_finite
from ..scoring.tiles import blocks
from .search_space import DiffTables, Point, Space
from .windows import WeightedWindow

T = TypeVar("T")


@dataclass(frozen=True)
class LiveTables:
    """The tables of a plan's layers in a model.

    Attributes:
        model: the causal language model itself, without wrappers.
        plan: the plan of the starting schedule.
    """

    model: nn.Module
    plan: Plan

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Patches the model with the starting schedule and freezes the weights inside the block, and then restores
        everything bit for bit."""
        asked = {each: each.requires_grad for each in self.model.parameters()}
        with patching.Patch(self.model, self.plan), preserved(self.model):
            try:
                self.model.requires_grad_(False)
                yield
            finally:
                for parameter, wanted in asked.items():
                    parameter.requires_grad_(wanted)

    @contextmanager
    def differentiable(self) -> Iterator[None]:
        """Enables gradients through cos and sin inside the block."""
        with ExitStack() as stack:
            for module in self._modules():
                innermost = inspect.unwrap(type(module).forward)
                stack.enter_context(answering(module, MethodType(innermost, module)))
            yield

    def write(self, tables: DiffTables) -> None:
        """Writes tables into the modules, in float32 as in transformers, without detaching their gradients."""
        for module in self._modules():
            for key in set(layer_keys(module)) & tables.keys():
                inv_freq, scale = tables[key]
                name = prefix(key) + "inv_freq"
                there = module._buffers[name]
                assert there is not None
                module._buffers[name] = inv_freq.to(there.device, torch.float32)
                wanted = scale.to(there.device, torch.float32) if scale.requires_grad else float(scale)
                module.__dict__[prefix(key) + "attention_scaling"] = wanted

    def _modules(self) -> list[nn.Module]:
        changed = self.plan.layers.keys()
        return [module for _, module in rotary_modules(self.model) if changed & set(layer_keys(module))]


MOST_KEPT = 2**30
"""The maximum size in bytes of the activations kept between the forward and the backward pass, if they are those of
several blocks. Recomputing them makes a step take up to 1.4 times as long (1.2 on a processor), and does not change the
gradient by a single bit."""


class Learner(Scorer):
    """A scorer that computes gradients."""

    def nll_of(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the NLL in nats of every position of a window except the first, fp32 [positions - 1], on the CPU."""
        with torch.inference_mode():
            return self.score(ids[None])[0]

    def backward(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Accumulates the gradient of a window's weighted NLL in the parameters of the tables.

        Args:
            ids: one window, int64 [positions].
            weights: the weight of each position except the first, float64 [positions - 1].

        Returns:
            The NLL of each position except the first, fp32 [positions - 1], on the CPU.

        Raises:
            ConfigError: the model does not use the tables of its rotary modules.
        """
        ids = ids.to(self.device)[None]
        kept = self._kept_blocks(ids.shape[1])
        with (
            torch.enable_grad(),
            _recomputed(blocks(self.model)[:-kept], but_attention=self.device.type == "cpu"),
            self.unmasking(ids.shape[1]),
        ):
            state = self.states(ids)
            whole = state[None] if isinstance(state, torch.Tensor) else state.last_hidden_state
            if not whole.requires_grad:
                raise ConfigError(
                    f"{type(self.model).__name__} does not use the tables of its rotary modules, so there is no "
                    "gradient"
                )
            slope = torch.empty_like(whole)
            nll = torch.empty(whole.shape[1], dtype=torch.float32, device=whole.device)
            for rows in self._blocks(len(nll)):
                part = whole.detach()[:, rows].requires_grad_()
                block = part[0] if isinstance(state, torch.Tensor) else type(state)(last_hidden_state=part)
                logits = self._logits(block, ids[:, rows], slice(None))
                losses = cross_entropy(logits, ids[0, 1:][rows].to(logits.device), reduction="none")
                losses.backward(weights[rows].to(losses))
                assert part.grad is not None
                slope[:, rows] = part.grad
                nll[rows] = losses.detach()
            whole.backward(slope)
        return nll.cpu()

    def _kept_blocks(self, positions: int) -> int:
        """Returns the number of last blocks whose activations are kept. One block's would be in memory anyway."""
        fitting = MOST_KEPT // (positions * self._block_bytes(positions))
        return min(max(1, int(fitting)), len(blocks(self.model)))

    def step_bytes(self, positions: int) -> int:
        """Estimates the memory of a gradient beside the weights, in bytes: what the backward pass of the kept
        blocks reads, and the inputs of the others, on a processor with their attention; and three blocks of logits."""
        vocabulary, stream = embedding_shape(self.model)
        heads, head = heads_of(self.model)
        kept = self._kept_blocks(positions)
        held = stream + (self.device.type == "cpu") * heads * head
        inputs = held * MemoryEstimate(self.model, self.logits_bytes).item_bytes
        each = kept * self._block_bytes(positions) + (len(blocks(self.model)) - kept) * inputs
        return int(positions * each) + 3 * min(self.logits_bytes, 4 * positions * vocabulary)

    def _block_bytes(self, positions: int) -> float:
        """Estimates what the backward pass of a block reads, in bytes per position: five tensors of the MLP's inner
        width, or of its experts' with two of the stream; four of all heads; four of the stream; and what is stored per
        pair of positions."""
        stream = width(self.model)
        heads, head = heads_of(self.model)
        inner = stated(self.model, "intermediate_size", 4 * stream)
        if experts := stated(self.model, "num_experts_per_tok", 0):
            inner = max(inner, experts * (stated(self.model, "moe_intermediate_size", inner) + stream // 2))
        unmasked = needs_mask(self.model, positions) and self.unmasked
        estimate = MemoryEstimate(self.model, self.logits_bytes, unmasked=unmasked)
        return estimate.item_bytes * (5 * inner + 4 * heads * head + 4 * stream) + estimate.pairs(positions)


@contextmanager
def _recomputed(parts: Sequence[nn.Module], but_attention: bool) -> Iterator[None]:
    """Recomputes these blocks in the backward pass, instead of storing their activations.

    Args:
        but_attention: store what a processor's fused attention computes, which is most of their time; elsewhere memory
            is dearer.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if but_attention:
        kernels = [torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]
        options["context_fn"] = partial(create_selective_checkpoint_contexts, kernels)
    with ExitStack() as stack:
        for block in parts:
            stack.enter_context(answering(block, partial(checkpoint, block.forward, **options)))
        yield


def gradient(
    learner: Learner, live: LiveTables, space: Space, point: Point, window: WeightedWindow
) -> tuple[torch.Tensor, list[float]]:
    """Returns the NLLs of a window at a point of the search space, fp32 [positions - 1], and the gradient of their
    weighted sum with respect to the point."""
    numbers = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    live.write(space.tables(numbers))
    with live.differentiable():
        nll = learner.backward(window.ids, window.weights)
    assert numbers.grad is not None
    return nll, numbers.grad.tolist()


@dataclass(frozen=True)
class Evaluator:
    """Computes losses and gradients in several processes; every process gets all results.

    The numbers of a window are the same in every process, and are added in the order of the windows. So the results do
    not depend on the number of processes.
    """

    learner: Learner
    live: LiveTables
    space: Space
    group: Group

    def means(self, points: Sequence[Point], windows: Sequence[WeightedWindow]) -> list[float]:
        """Returns the mean loss of windows at each point.

        Raises:
            RunError: a loss is not finite.
        """
        jobs = [partial(self._score, point, window) for point in points for window in windows]
        losses = iter(self._shared(jobs))
        return [sum(islice(losses, len(windows))) / len(windows) for _ in points]

    def gradient(self, point: Point, windows: Sequence[WeightedWindow]) -> tuple[float, list[float]]:
        """Returns the mean loss of windows, and its gradient with respect to a point.

        Raises:
            RunError: a loss is not finite.
        """
        jobs = [partial(self._step, point, window) for window in windows]
        losses, slopes = zip(*self._shared(jobs))
        return sum(losses) / len(windows), [sum(each) / len(windows) for each in zip(*slopes)]

    def _shared(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Distributes jobs over the processes, and returns all results in order."""
        world = self.group.world
        own = {number: jobs[number]() for number in range(world.rank, len(jobs), world.size)}
        found = ChainMap(*self.group.from_all(own))
        return [found[number] for number in range(len(jobs))]

    def _score(self, point: Point, window: WeightedWindow) -> float:
        self.live.write(self.space.tables(point))
        return self._weighted(point, window, self.learner.nll_of(window.ids))

    def _step(self, point: Point, window: WeightedWindow) -> tuple[float, list[float]]:
        nll, slope = gradient(self.learner, self.live, self.space, point, window)
        return self._weighted(point, window, nll), slope

    def _weighted(self, point: Point, window: WeightedWindow, nll: torch.Tensor) -> float:
        """Returns the weighted loss of a window.

        Raises:
            RunError: the loss is not finite.
        """
        loss = float((window.weights * nll.double()).sum())
        if not loss < float("inf"):
            named = ", ".join(f"{name} {value:.4g}" for name, value in zip(self.space.names, point))
            raise not_finite(self.learner.model, f"under {named}", "a smaller target_length")
        return loss
