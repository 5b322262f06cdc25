"""What a short adaptation is to do: checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import DataError
from .collators import MixedWindows, PlainWindows, PoseWindows
from .recipes import RECIPES, TrainingRecipe


@dataclass(frozen=True)
class TrainingJob:
    """How a model is adapted.

    Attributes:
        steps: of the optimizer.
        recipe: its numbers.
        length: positions of a window; None is the length that the schedule is for.
        lora: train an adapter, see :func:`ropescale.evals.training.lora.with_lora`; ``rank`` is its.
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
    rank: int = 8
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
        for name in ("steps", "micro_batch", "save_every", "rank"):
            if getattr(self, name) < 1:
                raise DataError(f"{name}={getattr(self, name)} is less than 1", name)
        if self.mixed is not None and self.pose is not None:
            raise DataError("mixed and pose are two ways to choose windows; give one of them", "mixed", "pose")
        if self.eval_every is not None and not self.eval_lengths:
            raise DataError("eval_every is given, and no eval_lengths; say where to measure", "eval_every")

    def collator(self, length: int, bos: int | None) -> Collator:
        """Returns what makes batches of windows of ``length`` positions."""
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


Collator = MixedWindows | PlainWindows | PoseWindows
