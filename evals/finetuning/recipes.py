"""Published recipes of the short adaptation after a schedule is put in, with their exact numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...errors import DataError
from ...schedules.base import suggest


@dataclass(frozen=True)
class TrainingRecipe:
    """How the weights are adapted: AdamW and a rate that warms up linearly, then stays or falls.

    Attributes:
        learning_rate: at its peak.
        batch: windows of a step, over all processes.
        warmup: steps until the peak.
        warmup_from: the share of the peak that the first step has; 0 where the paper does not say, and then it is an
            equal part of the way.
        decay: ``constant`` after the warm-up, or down to zero at the last step: ``linear``, ``cosine``.
        betas: of AdamW.
        weight_decay: of AdamW.
        gradient_norm: gradients are clipped to it; the papers do not say one, 1.0 is Trainer's.
        source: where the numbers are from.
    """

    learning_rate: float = 2e-5
    batch: int = 64
    warmup: int = 20
    warmup_from: float = 0.0
    decay: str = "constant"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    gradient_norm: float = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise DataError(f"decay={self.decay!r} is none of {', '.join(DECAYS)}", "decay")
        if not 0 < self.learning_rate < math.inf:
            raise DataError(
                f"learning_rate is {self.learning_rate}, and must be a small number above 0", "learning_rate"
            )
        for name, least in (("batch", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise DataError(f"{name}={getattr(self, name)} is less than {least}", name)

    def with_changes(self, **changes: float | int | str | None) -> TrainingRecipe:
        """Returns the recipe with the numbers that are given instead of its own."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def share(self, step: int, steps: int) -> float:
        """Returns the share of the peak rate that a step has, counted from 0, of so many steps."""
        if step < self.warmup:
            first = self.warmup_from or 1 / self.warmup
            return first + (1 - first) * step / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        return {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[self.decay]


DECAYS = ("constant", "linear", "cosine")

RECIPES = {
    # 7B and 13B to 8,192; 33B and 65B have 1e-5. 64 windows a step on 32 GPUs, in all other cases 128 on 128.
    "pi": TrainingRecipe(warmup_from=0.1, source="Chen et al., arXiv 2306.15595, section 3.1"),
    # 400 steps at factor 16, then 200 more at 32; segments between BOS and EOS.
    "yarn": TrainingRecipe(source="Peng et al., arXiv 2309.00071, section 4.1"),
}
"""By name. Neither paper names a decay after the warm-up."""

STEPS = {"pi": 1000, "yarn": 400}
"""The papers' steps of the optimizer."""


def recipe(name: str) -> TrainingRecipe:
    """Returns a published recipe.

    Raises:
        DataError: there is none of this name.
    """
    if name not in RECIPES:
        instead = suggest(name, RECIPES, f"there are {', '.join(RECIPES)}")
        raise DataError(f"no recipe named {name!r}; {instead}", "recipe")
    return RECIPES[name]
