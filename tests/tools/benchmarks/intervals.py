"""Counts how often the intervals of ``eval`` hold, and how wide they are: the tables of docs/intervals.md.

``python intervals.py [documents] [few] [windows] [--trials 10000]``, all three without a name: about
eight minutes on one core. Losses are simulated, and intervals computed by :mod:`ropescale.evals.statistics.intervals`
as a run does it. Every table starts from the same seed.

* ``documents``: from 8 documents on, of several genres, skewed or heavy-tailed, alike in size or not.
* ``few``: the lowest and the highest coverage among the same cells with 5 to 11 documents.
* ``windows``: consecutive windows of one text, whose losses hang together.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ropescale.evals.statistics.intervals import Estimate, consecutive, ratio, t_quantile

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""Draws the mean losses of documents, float [trials, documents]."""

Size = Callable[[np.random.Generator, int, int], np.ndarray]
"""Draws their tokens, float [trials, documents]."""


@dataclass(frozen=True)
class Cell:
    """A population of documents: its name, the truth, and how it is drawn."""

    name: str
    truth: float
    draw: Draw


def genres(shares: Sequence[float], apart: float, spread: float) -> Cell:
    """Genres whose mean losses are ``apart`` nats from the next; within one, documents differ normally."""
    levels = apart * np.arange(len(shares))

    def draw(random: np.random.Generator, trials: int, documents: int) -> np.ndarray:
        genre = random.choice(len(shares), p=shares, size=(trials, documents))
        return levels[genre] + spread * random.normal(size=(trials, documents))

    name = f"{len(shares)} genres, {' / '.join(f'{share:.0%}' for share in shares)}, {apart / spread:g} sd apart"
    return Cell(name, float(np.dot(shares, levels)), draw)


def changes(share: float, spreads: tuple[float, float]) -> Cell:
    """Paired changes of two genres, of which a schedule changes only one, by a nat: its documents differ more, too."""

    def draw(random: np.random.Generator, trials: int, documents: int) -> np.ndarray:
        changed = random.random((trials, documents)) < share
        return np.where(changed, -1.0, 0.0) + np.where(changed, *spreads[::-1]) * random.normal(size=changed.shape)

    return Cell(f"paired, {share:.0%} change, sd {spreads[0]:g} and {spreads[1]:g}", -share, draw)


def lognormal(sigma: float) -> Cell:
    """Skewed losses: most documents are easy, a few are very hard."""
    return Cell(
        f"lognormal, sigma {sigma:g}",
        math.exp(sigma**2 / 2),
        lambda random, trials, documents: random.lognormal(0.0, sigma, (trials, documents)),
    )


NORMAL = Cell("normal", 0.0, lambda random, trials, documents: random.normal(size=(trials, documents)))
HEAVY = Cell("t with 3 degrees", 0.0, lambda random, trials, documents: random.standard_t(3, (trials, documents)))

THIRTY, FIFTY, THREE = (0.7, 0.3), (0.5, 0.5), (0.4, 0.3, 0.3)
COMMON = (
    *(genres(shares, 1.0, spread) for shares in (THIRTY, FIFTY, THREE) for spread in (0.4, 0.2)),
    *(changes(share, (0.15, 0.3)) for share in (0.3, 0.5)),
    lognormal(0.5),
    HEAVY,
    NORMAL,
)
RARE = (
    *(genres(shares, 1.0, spread) for shares in ((0.8, 0.2), (0.6, 0.2, 0.2)) for spread in (0.4, 0.2)),
    changes(0.2, (0.15, 0.3)),
)

SIZES: dict[str, Size] = {
    "equal": lambda random, trials, documents: np.ones((trials, documents)),
    "1 to 4": lambda random, trials, documents: random.integers(1, 5, (trials, documents)).astype(float),
}


@dataclass(frozen=True)
class Found:
    """How often the intervals of a cell hold, and the median of their widths in nats."""

    coverage: float
    width: float

    def __str__(self) -> str:
        return f"{self.coverage:.1%} ({self.width:.2f})"


def found(estimates: Iterable[Estimate], truth: float) -> Found:
    """Counts how many of the intervals hold the truth."""
    bounds = np.array([(each.low, each.high) for each in estimates])
    holds = (bounds[:, 0] <= truth) & (truth <= bounds[:, 1])
    return Found(float(holds.mean()), float(np.median(bounds[:, 1] - bounds[:, 0])))


def usual(sums: Sequence[float], counts: Sequence[float]) -> Estimate:
    """Student's t clustered by document, as Cochran (Sampling Techniques, section 6.3) has it."""
    documents, tokens = len(sums), sum(counts)
    mean = sum(sums) / tokens
    squares = sum((s - mean * m) ** 2 for s, m in zip(sums, counts, strict=True))
    half = t_quantile(0.975, documents - 1) * math.sqrt(documents / (documents - 1) * squares) / tokens
    return Estimate(mean, mean - half, mean + half)


def documents(cell: Cell, number: int, size: str, trials: int, formula: Callable[..., Estimate] = ratio) -> Found:
    """Draws documents of a cell ``trials`` times and returns how often the interval of the mean holds.

    The values are losses, or paired changes: the mean change over the documents has the same formula.
    """
    random = np.random.default_rng(number)
    counts = SIZES[size](random, trials, number)
    sums = cell.draw(random, trials, number) * counts
    return found((formula(s, m) for s, m in zip(sums.tolist(), counts.tolist(), strict=True)), cell.truth)


def chain(random: np.random.Generator, trials: int, windows: int, memory: float) -> np.ndarray:
    """Losses that forget slowly: AR(1), variance 1, [trials, windows]."""
    noise = random.normal(size=(windows, trials))
    rows = [noise[0]]
    for step in noise[1:]:
        rows.append(memory * rows[-1] + math.sqrt(1 - memory**2) * step)
    return np.stack(rows, axis=1)


def topics(random: np.random.Generator, trials: int, windows: int, length: float) -> np.ndarray:
    """Losses of topics that last ``length`` windows on average, levels and noise with variance 1, [trials, windows]."""
    starts = random.random((trials, windows)) < 1 / length
    starts[:, 0] = True
    latest = np.maximum.accumulate(np.where(starts, np.arange(windows), 0), axis=1)
    levels = np.take_along_axis(random.normal(size=(trials, windows)), latest, axis=1)
    return levels + random.normal(size=(trials, windows))


TEXTS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "independent": partial(chain, memory=0.0),
    **{f"AR(1), {memory}": partial(chain, memory=memory) for memory in (0.3, 0.5, 0.7)},
    **{f"topics of {length} windows": partial(topics, length=length) for length in (2, 4, 8)},
}


def windows(text: str, number: int, trials: int, formula: Callable[..., Estimate] = consecutive) -> Found:
    """Draws a text ``trials`` times and returns how often the interval over its windows holds."""
    losses = TEXTS[text](np.random.default_rng(number), trials, number)
    return found((formula(row, [1.0] * number) for row in losses.tolist()), 0.0)


def print_documents(trials: int) -> None:
    """Prints the cells from 8 documents on, beside the usual t interval."""
    numbers = (8, 12, 20, 40)
    plan = [(cell, numbers) for cell in COMMON] + [(cell, (20, 40)) for cell in RARE] + [(lognormal(1.0), numbers)]
    print(f"| documents | sizes | {' | '.join(f'n = {n}' for n in numbers)} | usual t, n = 12 or 20 |")
    print(f"| --- | --- |{' ---: |' * (len(numbers) + 1)}")
    for size in SIZES:
        for cell, there in plan:
            cells = [str(documents(cell, n, size, trials)) if n in there else "" for n in numbers]
            old = documents(cell, 12 if 12 in there else 20, size, trials, usual)
            print(f"| {cell.name} | {size} | {' | '.join(cells)} | {old} |", flush=True)


def print_few(trials: int) -> None:
    """Prints the cells with fewer documents, the worst first."""
    print("| n | lowest | where | highest |\n| ---: | ---: | --- | ---: |")
    for number in range(5, 12):
        every = {f"{c.name}, {size}": documents(c, number, size, trials).coverage for c in COMMON for size in SIZES}
        worst = min(every, key=lambda name: every[name])
        print(f"| {number} | {every[worst]:.1%} | {worst} | {max(every.values()):.1%} |", flush=True)


def print_windows(trials: int) -> None:
    """Prints the texts, beside the t interval of windows that are taken to be independent."""
    numbers = (8, 16, 32, 64, 128)
    print(f"| windows | {' | '.join(f'n = {n}' for n in numbers)} | as if independent, n = 32 |")
    print(f"| --- |{' ---: |' * (len(numbers) + 1)}")
    for text in TEXTS:
        cells = " | ".join(str(windows(text, n, trials)) for n in numbers)
        print(f"| {text} | {cells} | {windows(text, 32, trials, usual)} |", flush=True)


TABLES = {"documents": print_documents, "few": print_few, "windows": print_windows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], default=[], metavar="NAME")
    parser.add_argument("--trials", type=int, default=10_000)
    given = parser.parse_args()
    for name in given.tables or TABLES:
        print(f"\n{name}, {given.trials:,} trials: coverage (median width)\n")
        TABLES[name](given.trials)


if __name__ == "__main__":
    main()
