"""Counts how often the intervals of ``eval`` hold, and how wide they are: the tables of docs/intervals.md.

``python intervals.py [documents] [few] [windows] [verdicts] [power] [--trials 10000] [--runs FOLDER ...]``, all without
a name: about ten minutes on one core. Losses are simulated, and intervals computed by
:mod:`ropescale.evals.statistics.intervals` as a run does it. Every table starts from the same seed,
to which ``--seed`` is added: the rules were chosen with 0, so another one judges them.

* ``documents``: from 8 documents on, of several genres, skewed or heavy-tailed, alike in size or not.
* ``few``: the lowest and the highest coverage among the same cells with 5 to 11 documents.
* ``windows``: consecutive windows of one text, whose losses hang together.
* ``verdicts``: the share of runs that say anything false where no schedule differs from another, by command. With
  ``--runs``, also for the centred differences of documents in folders of ``ropescale eval``.
* ``power``: the share of runs that find an effect, by its size in standard deviations between documents.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb

import numpy as np

from ropescale.evals import Result
from ropescale.evals.statistics.intervals import LEANING, Estimate, average, consecutive, familywise, ratio, t_quantile

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
    random = np.random.default_rng(SEED[0] + number)
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
    losses = TEXTS[text](np.random.default_rng(SEED[0] + number), trials, number)
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


# --- Verdicts: differences of documents without a mean, float [trials, documents]

Chosen = Callable[["Noise", np.random.Generator, int, int], np.ndarray]
"""Draws a run's comparisons ``trials`` times and returns which runs say anything false, bool [trials]."""


@dataclass(frozen=True)
class Noise:
    """A population of documents' differences with mean 0 and deviation 1, in groups of windows or of few tokens."""

    name: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def skewed(sign: int, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Lognormal with sigma 1, centred and scaled, with the long tail on the side of ``sign``."""
    return sign * (random.lognormal(size=shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


def few_tokens(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Means over 1 to some 1,000 tokens, or windows: what is left of a document's own level is larger for a few."""
    counts = np.ceil(random.lognormal(2.0, 1.5, shape))
    return (random.normal(size=shape) + 2 * random.normal(size=shape) / np.sqrt(counts)) / math.sqrt(2)


def rare(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Answers of which a third changes, from found to missed or back: by some ten nats either way."""
    return np.where(random.random(shape) < 1 / 3, 10 * random.choice([-1, 1], shape), 0) + random.normal(size=shape)


def collapsing(size: float, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Of 5% of the documents the loss is larger by ``size`` deviations; centred."""
    return random.normal(size=shape) + size * ((random.random(shape) < 0.05) - 0.05)


def resampled(values: np.ndarray, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Differences of real documents, centred and scaled, of which any of the rows is drawn; both signs."""
    rows = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
    each = random.integers(len(rows), size=(*shape[:-1], 1))
    return random.choice([-1, 1], each.shape) * rows[each, random.integers(rows.shape[1], size=shape)]


NOISES = (
    Noise("normal", lambda random, shape: random.normal(size=shape)),
    Noise("t with 3 degrees", lambda random, shape: random.standard_t(3, shape)),
    Noise("documents of 1 to some 1,000 tokens or windows", few_tokens),
    Noise("lognormal, sigma 1", partial(skewed, 1)),
    Noise("the same, leaning the other way", partial(skewed, -1)),
    Noise("5% collapse by 3 sd", partial(collapsing, 3.0)),
    Noise("5% collapse by 10 sd", partial(collapsing, 10.0)),
)
ANSWERS = Noise("a third of the answers changes", rare)


def of_run(folder: str) -> Noise:
    """The differences of every pair of schedules, and from truncation, in a folder of ``ropescale eval``."""
    result = Result.load(folder)
    longest = result.lengths[-1]
    losses = [np.array(result.totals(label, longest).sums) for label in result.schedules]
    pairs = [one - other for one, other in combinations(losses, 2)]
    if result.truncation:
        cut = np.array([each.sum(dtype=float) for each in result.truncation.nll])
        first = result.truncation.length - 1
        past = [[nll[first:].sum(dtype=float) for nll in result.losses(label, longest)] for label in result.schedules]
        pairs += [np.array(each) - cut for each in past]
    return Noise(f"{folder}: {result.texts} documents", partial(resampled, np.array(pairs)))


def signs(differences: np.ndarray, level: float) -> np.ndarray:
    """The signs of verdicts on [trials, documents], as :func:`average` has them, int [trials]."""
    count = differences.shape[1]
    mean, error = differences.mean(1), differences.std(1, ddof=1) / math.sqrt(count)
    centred = differences - mean[:, None]
    third, second = (centred**3).mean(1), (centred**2).mean(1)
    skewness = third / second**1.5 * math.sqrt(count * (count - 1)) / (count - 2) / math.sqrt(count)
    t = t_quantile((1 + level) / 2, count - 1)
    lean = LEANING * skewness * (1 + 2 * t * t) / 6
    low, high = mean - np.maximum(t, t - lean) * error, mean + np.maximum(t, t + lean) * error
    same = average(differences[0].tolist(), [1] * count, level)
    assert np.allclose([same.low, same.high], [low[0], high[0]])
    return (low > 0).astype(int) - (high < 0)


def picked(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    """One row of [trials, rows, documents] per trial."""
    return values[np.arange(len(values)), which]


@dataclass(frozen=True)
class Parts:
    """What each schedule adds to a document's loss, where truncation adds nothing, [trials, schedules, documents].

    A fifth of the tokens is within the trained length, a quarter up to twice that, the rest beyond. Far repeats are
    among the last.
    """

    whole: np.ndarray
    short: np.ndarray
    past: np.ndarray
    far: np.ndarray

    @classmethod
    def of(cls, noise: Noise, random: np.random.Generator, shape: tuple[int, ...]) -> Parts:
        short, middle, far = (noise.draw(random, shape) for _ in range(3))
        return cls(0.2 * short + 0.25 * middle + 0.55 * far, short, 0.3 * middle + 0.7 * far, far)


def evaluating(schedules: int, noise: Noise, random: np.random.Generator, trials: int, count: int) -> np.ndarray:
    """``eval``: the best of the schedules against all others and truncation, its gain, its cost and its far repeats."""
    parts = Parts.of(noise, random, (trials, schedules, count))
    level = familywise(comb(schedules, 2) + schedules - 1 + 2 * schedules)
    best, changed = parts.whole.mean(2).argmin(1), parts.whole[:, 1:].mean(2).argmin(1) + 1
    wrong = signs(picked(parts.past, best), level) != 0
    wrong |= signs(picked(parts.far, best), level) != 0
    for values in (parts.whole, parts.short):
        wrong |= signs(picked(values, changed) - values[:, 0], level) != 0
    return wrong | against_others(parts.whole, best, level)


def against_others(values: np.ndarray, best: np.ndarray, level: float) -> np.ndarray:
    """Returns the trials in which the best schedule is shown to differ from another, bool [trials]."""
    wrong = np.zeros(len(values), bool)
    for other in range(values.shape[1]):
        apart = values[:, other] - picked(values, best)
        rest = best != other
        if rest.any():
            wrong[rest] |= signs(apart[rest], level) != 0
    return wrong


def recommending(noise: Noise, random: np.random.Generator, trials: int, count: int) -> np.ndarray:
    """``recommend``: of 20 candidates six are compared on the held-out half, or on all documents if they are below 20.

    What it says of the best of the six: the others, the cost within the trained length, truncation and far repeats.
    """
    parts = Parts.of(noise, random, (trials, 20, count))
    race, held, number = (slice(1, None, 2), slice(0, None, 2), 6) if count >= 20 else (slice(None), slice(None), 20)
    order = np.argsort(parts.whole[:, :, race].mean(2), axis=1)[:, :6, None]
    goal, short, far = (
        np.take_along_axis(values[:, :, held], order, axis=1) for values in (parts.whole, parts.short, parts.far)
    )
    level = familywise(comb(number + 1, 2) + 2 * number - 1)
    best = goal.mean(2).argmin(1)
    wrong = against_others(goal, best, level)
    for values in (goal, short, far):
        wrong |= signs(picked(values, best), level) != 0
    return wrong


def answering(noise: Noise, random: np.random.Generator, trials: int, count: int, others: int = 2) -> np.ndarray:
    """``search`` and ``retrieval``: one schedule against each of some baselines, or each of some against one."""
    values = noise.draw(random, (trials, others + 1, count))
    found = [signs(values[:, other] - values[:, 0], familywise(others)) != 0 for other in range(1, others + 1)]
    return np.any(found, axis=0)


COMMANDS: dict[str, Chosen] = {
    **{f"eval, {number} schedules": partial(evaluating, number) for number in (2, 3, 6)},
    "recommend": recommending,
    "search": partial(answering, others=3),
}
RUNS: list[str] = []
SEED = [0]


def print_verdicts(trials: int) -> None:
    """Prints how many runs say anything false."""
    numbers = (10, 12, 26, 50)
    plan = [(command, noise) for command in COMMANDS for noise in (*NOISES, *map(of_run, RUNS))]
    print(f"| command | differences | {' | '.join(f'n = {n}' for n in numbers)} |")
    print(f"| --- | --- |{' ---: |' * len(numbers)}")
    rows = [(command, COMMANDS[command], noise) for command, noise in plan]
    rows += [(f"retrieval, {others} schedules", partial(answering, others=others), ANSWERS) for others in (1, 5)]
    for command, run, noise in rows:
        shares = (run(noise, np.random.default_rng(SEED[0] + n), trials, n).mean() for n in numbers)
        print(f"| {command} | {noise.name} | {' | '.join(f'{share:.1%}' for share in shares)} |", flush=True)


def print_power(trials: int) -> None:
    """Prints how often one effect is decided among the 11 comparisons of three schedules."""
    print("| effect, sd | n = 10 | n = 12 | n = 24 | n = 26 |\n| --- | ---: | ---: | ---: | ---: |")
    for effect in (0.5, 1.0, 1.39, 3.0):
        cells = []
        for count in (10, 12, 24, 26):
            drawn = np.random.default_rng(SEED[0] + count).normal(effect, 1, (trials, count))
            cells.append(f"{(signs(drawn, familywise(11)) == 1).mean():.0%}")
        print(f"| {effect:g} | {' | '.join(cells)} |", flush=True)


TABLES = {
    "documents": print_documents,
    "few": print_few,
    "windows": print_windows,
    "verdicts": print_verdicts,
    "power": print_power,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], default=[], metavar="NAME")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="*", default=[], help="folders that `ropescale eval -o` wrote")
    given = parser.parse_args()
    RUNS.extend(given.runs)
    SEED[0] = given.seed
    for name in given.tables or TABLES:
        what = {"verdicts": "runs that say anything false", "power": "runs that find it"}
        print(f"\n{name}, {given.trials:,} trials: {what.get(name, 'coverage (median width)')}\n")
        TABLES[name](given.trials)


if __name__ == "__main__":
    main()
