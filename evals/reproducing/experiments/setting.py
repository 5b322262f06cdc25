"""The setting of a reproduction: the model, the lengths, the steps and the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...finetuning.recipes import TrainingRecipe
from ...reference import CHECKPOINT, FOUND, HELD_OUT, held_out_documents
from ...reference.corpus import training_documents
from ...reference.taught import save_taught
from ...reference.training import Recipe

RECIPE = TrainingRecipe(
    learning_rate=2e-4, batch=2, warmup=10, decay="cosine", source="chosen on modules that were left out of a trial"
)
"""How every arm is trained. The papers' rate, 2e-5, is for models of 7 billion parameters and more."""

SECOND = Recipe(steps=1000, length=512, head_dim=32, theta=500000.0)
"""Another geometry: heads of 32, theta 500,000, trained at 512."""

NATIVE = Recipe(steps=3200, length=2048)
"""The bundled model's own recipe at the target's length; 3,200 of its steps have the tokens of its 3,000 and ours."""


def held_out() -> list[tuple[str, str]]:
    """Returns the name and the text of each held-out module."""
    return list(zip(HELD_OUT, held_out_documents(), strict=True))


@dataclass(frozen=True)
class Setting:
    """All that the figures depend on.

    Attributes:
        folder: the model; ``trained`` is the length that it was trained at, and ``target`` the one to reach.
        beyond: a length beyond the target.
        found: the schedule's file that a search wrote.
        recipe: how arms are trained; ``batch`` windows of ``target`` positions, or as many tokens of another length.
        steps: of the arms of all schedules, measured every ``every`` of them; ``short_steps`` those of the others.
        seeds: of the order of windows.
        stride: the tokens that each window of truncation scores.
        bf16: train in bfloat16, with weights in float32.
        save_every: the steps that a kill may cost.
        second: how the second model is made; its training's length is what is extended.
        native: how a model is made at the target's length, on as many tokens as the model and its longest arm together.
        trained_on, measured_on: the texts, with names.
        taught: writes a model that answers questions within its trained length into a folder.
        asked: positions of the texts that questions are asked about.
        trials: questions for each place of the key, and each of these lengths.
    """

    folder: Path = CHECKPOINT
    trained: int = 256
    target: int = 2048
    beyond: int = 4096
    found: Path = FOUND
    recipe: TrainingRecipe = RECIPE
    steps: int = 400
    every: int = 100
    short_steps: int = 200
    seeds: Sequence[int] = (0, 1, 2)
    stride: int = 16
    bf16: bool = True
    save_every: int = 50
    second: Recipe = SECOND
    native: Recipe = NATIVE
    trained_on: Callable[[], Sequence[str]] = training_documents
    measured_on: Callable[[], Sequence[tuple[str, str]]] = held_out
    taught: Callable[[Path], None] = save_taught
    asked: Sequence[int] = (256, 512, 1024, 2048)
    trials: int = 10

    def lengths(self, trained: int, last: int) -> tuple[int, ...]:
        """Returns the trained length and its doubles up to the last one."""
        return tuple(trained * 2**n for n in range(30) if trained * 2**n <= last)

    @property
    def factor(self) -> float:
        """How many times longer the target is."""
        return self.target / self.trained

    @cached_property
    def schedules(self) -> dict[str, str]:
        """The schedules that are trained, by name. The control has the model's own table."""
        return {
            "yarn": f"yarn:factor={self.factor:g}",
            "found": self.ramp(),
            "control": "linear:factor=1",
            "linear": f"linear:factor={self.factor:g}",
            "ntk": f"ntk:factor={self.factor:g}",
        }

    def ramp(self, factor: float | None = None) -> str:
        """Returns what the search found; with another factor its ramp, and YaRN's own attention scale for it."""
        found = json.loads(self.found.read_text(encoding="utf-8"))
        names = ("beta_fast", "beta_slow", *(["attention_factor"] if factor is None else []))
        numbers = ",".join(f"{name}={found[name]!r}" for name in names)
        return f"yarn:factor={factor or found['factor']:g},{numbers},truncate=false"
