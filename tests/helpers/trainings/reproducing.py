"""A tiny reproduction: a model of 64 tokens, to be extended to 128, in a few steps."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import training

from ropescale.evals.finetuning.recipes import TrainingRecipe
from ropescale.evals.reference.training import Recipe
from ropescale.evals.reproducing.experiments.setting import Setting


def texts(first: int, count: int) -> tuple[str, ...]:
    """Texts of about a thousand bytes that a model can learn."""
    return tuple(" ".join(str((n * 7919 + j * j) % 997) for j in range(280)) for n in range(first, first + count))


def named(first: int, count: int) -> list[tuple[str, str]]:
    """The same, with names."""
    return [(f"text {n}", text) for n, text in enumerate(texts(first, count))]


def taught(model: Path, out: Path) -> None:
    """Writes the same model as the one that was taught."""
    for file in model.iterdir():
        (out / file.name).write_bytes(file.read_bytes())


def setting(folder: Path) -> Setting:
    """Writes a model and a schedule's file, and returns what is reproduced with them."""
    training.checkpoint(folder / "model")
    found = {"name": "yarn", "factor": 2.0, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False,
             "attention_factor": 1.05}  # fmt: skip
    (folder / "found.json").write_text(json.dumps(found))
    made = {"steps": 3, "batch_tokens": 256, "warmup": 1}
    return Setting(
        folder=folder / "model",
        trained=64,
        target=128,
        beyond=256,
        found=folder / "found.json",
        recipe=TrainingRecipe(learning_rate=1e-2, batch=2, warmup=1, decay="cosine"),
        steps=4,
        every=1,
        short_steps=2,
        seeds=(0,),
        stride=8,
        bf16=False,
        save_every=2,
        second=Recipe(length=64, head_dim=32, **made),
        native=Recipe(length=128, **made),
        trained_on=partial(texts, 0, 12),
        measured_on=partial(named, 100, 4),
        taught=partial(taught, folder / "model"),
        asked=(256, 320),
        trials=2,
    )
