"""Draws the pictures of docs/theory.md: ``python docs/pictures.py``. They show the bundled model's geometry."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

import ropescale
from ropescale.evals.reference import CHECKPOINT

HERE = Path(__file__).parent / "pictures"
TRAINED, LENGTH = 256, 1024
PAIRS = {2: "pair 2, a fast one", 11: "pair 11, in the middle", 16: "pair 16, a slow one"}
SCHEDULES = ("linear:factor=8", "ntk:factor=8", "ntk-by-parts:factor=8", "yarn:factor=8", "llama3:factor=8")


def angles() -> Figure:
    """Draws by how much three pairs turn over a distance; what training has seen is shaded."""
    inv_freq = ropescale.frequencies(CHECKPOINT, "base")["all"].inv_freq
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    for axes, (pair, name) in zip(figure.subplots(3, 1, sharex=True), PAIRS.items(), strict=True):
        theta = inv_freq[pair]
        turned = [math.degrees(distance * theta) % 360 for distance in range(LENGTH)]
        seen = min(360.0, math.degrees((TRAINED - 1) * theta))
        axes.axhspan(0, seen, xmax=1, color="tab:green", alpha=0.15, linewidth=0)
        axes.axvline(TRAINED, color="0.4", linestyle="--", linewidth=1)
        axes.scatter(range(LENGTH), turned, s=1.5, c=["tab:blue" if a <= seen else "tab:red" for a in turned])
        axes.set_title(f"{name}: {TRAINED * theta / (2 * math.pi):.2f} turns in training", fontsize=9, loc="left")
        axes.set_ylim(0, 360)
        axes.set_yticks([0, 180, 360])
        axes.set_xlim(0, LENGTH)
    axes.set_xlabel(f"distance between two tokens (the dashed line is the trained length, {TRAINED})")
    figure.supylabel("angle (degrees); green: seen in training, red: new", fontsize=9)
    return figure


def divisors() -> Figure:
    """Draws by what five schedules divide the frequency of each pair."""
    plain = ropescale.frequencies(CHECKPOINT, "base")["all"].inv_freq
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for schedule, style in zip(SCHEDULES, ("-", "-", "--", "-", ":"), strict=True):
        slowed = ropescale.frequencies(CHECKPOINT, schedule)["all"].inv_freq
        axes.plot([b / f for b, f in zip(plain, slowed, strict=True)], style, label=schedule, linewidth=1.8)
    first = next(pair for pair, f in enumerate(plain) if TRAINED * f < 2 * math.pi)
    axes.axvspan(first - 0.5, len(plain) - 1, color="tab:red", alpha=0.08, linewidth=0)
    axes.text(first, 1.1, "no full turn in training", fontsize=8, color="tab:red")
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_xlim(0, len(plain) - 1)
    axes.set_xlabel("pair (fast to slow)")
    axes.set_ylabel("frequency divided by")
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    for draw in (angles, divisors):
        draw().savefig(HERE / f"{draw.__name__}.png", dpi=110)
