"""Measurements whose losses are drawn at random: every schedule, and truncation, under one law or with an effect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tiny import from_ids

from ropescale.evals import Result
from ropescale.evals.metrics.stored import Pass, Truncation

TRAINED, LONGEST = 8, 32
IDS = [*range(12), *range(12), *range(8)]
"""From position 19 on every token ends a repeat of 8 tokens, 12 back."""


def draws(rng: np.random.Generator, shape: tuple[int, ...], skew: str) -> np.ndarray:
    """Draws of mean 0, and skewed either way by a lognormal of sigma 1, whose mean is 1.6 times its median."""
    if skew == "none":
        return rng.normal(0, 1, shape)
    found = rng.lognormal(0, 1, shape) - np.exp(0.5)
    return found if skew == "right" else -found


def table(
    rng: np.random.Generator,
    schedules: int,
    documents: int,
    lengths: Sequence[int] = (TRAINED, 16, LONGEST),
    skew: str = "none",
    effect: float = 0.0,
    far: bool = False,
) -> Result:
    """Returns a measurement of so many schedules.

    A document's tokens have a loss in common. Each schedule adds to the tokens of a document, from each length to the
    next, what is drawn for it, and an effect of its own where ``effect`` is not 0. Truncation adds nothing.
    """
    parts = np.digitize(np.arange(1, LONGEST), [TRAINED, 16])
    base = rng.lognormal(1, 0.5, (documents, 1))
    means = effect * rng.normal(0, 1, (schedules, 1, 3))
    added = (0.2 * draws(rng, (schedules, documents, 3), skew) + means)[:, :, parts]
    losses = (base + added).astype(np.float32)[:, :, : max(lengths) - 1]
    passes = [Pass(f"s{n}", f"{n:064}", tuple(lengths), list(each), documents) for n, each in enumerate(losses)]
    cut = np.repeat(base, max(lengths) - TRAINED, 1).astype(np.float32)
    model = {"path": "m", "dtype": "float32", "parameters": 1, "weights": "0" * 64}
    facts = {"source": "x", "sha256": "f" * 64, "documents": documents, "tokens": documents * (LONGEST - 1)}
    protocol = {"name": "ropescale", "interval": "document-clustered t, skewness-corrected, 95%"}
    return Result(
        model,  # type: ignore[arg-type]
        facts,  # type: ignore[arg-type]
        protocol,
        {"torch": "2"},
        passes=passes,
        documents=from_ids([IDS[: max(lengths)]] * documents),
        bos=False,
        baseline="s0",
        trained_length=TRAINED,
        options={"repeat_distance": TRAINED if far else LONGEST},
        truncation=Truncation(TRAINED, 1, "0" * 64, list(cut)) if max(lengths) > TRAINED else None,
    )
