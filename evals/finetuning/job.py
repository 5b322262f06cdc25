"""The settings of a short adaptation, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import DataError
from ..data.windows import check_lengths, check_windows
from .recipes import RECIPES, TrainingRecipe

if TYPE_CHECKING:
    from ..training.collators import MixedWindows, PlainWindows, PoseWindows

    Collator = MixedWindows | PlainWindows | PoseWindows

RANK = 8
"""Of an adapter, as in LongLoRA's code (Chen et al., arXiv 2309.12307)."""


@dataclass(frozen=True)
class TrainingJob:
    """How a model is adapted.

    Attributes:
        steps: of the optimizer.
        recipe: its numbers.
        length: positions of a window; None is the length that the schedule is for.
        lora: train an adapter, see :func:`ropescale.evals.finetuning.lora.with_lora`; ``rank`` is its, :data:`RANK`
            when None.
        micro_batch: windows in one forward pass of a process.
        mixed: positions of short windows, into which half of the batches are cut.
        pose: positions of a window whose positions reach up to ``length``.
        bf16: compute in bfloat16, with weights in their own dtype; None does on accelerators.
        checkpointing: compute activations again in the backward pass, for less memory.
        save_every: steps between two checkpoints.
        seed: of the order of windows, and of what is drawn.
        eval_lengths: where to measure; empty measures nothing. ``eval_every`` measures on the way, too.
        eval_windows: windows of each document.

    Raises:
        DataError: what cannot be.
    """

    steps: int
    recipe: TrainingRecipe = field(default_factory=lambda: RECIPES["yarn"])
    length: int | None = None
    lora: bool = False
    rank: int | None = None
    micro_batch: int = 1
    mixed: int | None = None
    pose: int | None = None
    bf16: bool | None = None
    checkpointing: bool = False
    save_every: int = 50
    seed: int = 0
    eval_lengths: Sequence[int] = ()
    eval_every: int | None = None
    eval_windows: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "micro_batch", "save_every", "rank", "eval_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name}={value} is less than 1", name)
        if self.mixed is not None and self.pose is not None:
            raise DataError("mixed and pose are two ways to choose windows; give one of them", "mixed", "pose")
        if self.rank is not None and not self.lora:
            raise DataError("rank is given, and lora is not; give both, or neither", "rank", "lora")
        for name in ("eval_every", "eval_windows"):
            if getattr(self, name) is not None and not self.eval_lengths:
                raise DataError(f"{name} is given, and no eval_lengths; say where to measure", name, "eval_lengths")
        if self.eval_lengths:
            check_lengths(self.eval_lengths)
        check_windows(self.eval_windows, "eval_windows")

    def check(self, length: int, processes: int = 1) -> None:
        """Refuses short windows that do not fit into ``length`` positions, and a batch that cannot be shared out.

        Raises:
            DataError: names the option.
        """
        for name in ("mixed", "pose"):
            short = getattr(self, name)
            if short is not None and not 2 <= short < length:
                raise DataError(
                    f"{name}={short} is not a number of positions between 2 and the {length:,} that are reached", name
                )
        self.accumulated(processes)

    def collator(self, length: int, bos: int | None) -> Collator:
        """Returns what makes batches of windows of ``length`` positions."""
        from ..training.collators import MixedWindows, PlainWindows, PoseWindows

        if self.mixed is not None:
            return MixedWindows(self.mixed, bos=bos, seed=self.seed)
        return PlainWindows() if self.pose is None else PoseWindows(length, self.pose, self.seed)

    def accumulated(self, processes: int) -> int:
        """Returns how many forward passes of a process make a step.

        Raises:
            DataError: the batch cannot be shared out evenly.
        """
        together = self.micro_batch * processes
        if self.recipe.batch % together:
            raise DataError(
                f"batch={self.recipe.batch} windows cannot be shared out over {processes} "
                f"process{'es' * (processes > 1)} with micro_batch={self.micro_batch}; give a multiple of {together}",
                "batch",
                "micro_batch",
            )
        return self.recipe.batch // together
