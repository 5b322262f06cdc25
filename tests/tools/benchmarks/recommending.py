"""Measures how far a recommendation is from the best of an exhaustive grid, and what it takes of the grid's tokens.

``python recommending.py score MODEL TEXT WINDOWS OUT`` scores every candidate on every window once, and those of the
grid before ramps ended between pairs; run again, it continues. ``python recommending.py replay OUT...`` runs the
recommendation's own rule on the stored losses: it is given a random half of the documents, and the regret is measured
on the other half. ``python recommending.py grids OUT...`` gives it all documents, and compares what it chooses from
either grid with the best of both on the documents that its race reads. MODEL is ``reference`` or a folder; TEXT is
``modules``, a folder of texts, each a document, or a file, of which windows are.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import comb
from pathlib import Path
from statistics import median

import numpy as np

from ropescale import frequencies
from ropescale.configs.configuration import trained_in
from ropescale.evals import Result, perplexity
from ropescale.evals.backends.schedules import label
from ropescale.evals.facts import AS_IS, positions_of
from ropescale.evals.metrics.stored import Stored, part_of
from ropescale.evals.metrics.verdicts import too_few
from ropescale.evals.recommending.candidates import find_candidates
from ropescale.evals.recommending.options import SHORT_WEIGHT, TOLERANCE, objective_of
from ropescale.evals.recommending.race import FINALISTS, decide, estimate, run_race, share_kept, split_windows
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.evals.running.perplexity import SHARES
from ropescale.evals.statistics.intervals import familywise

TARGET = 2048


def earlier(config: dict[str, object], target: int) -> list[str]:
    """Returns the candidates of the grid before ramps ended between pairs, one of each table."""
    factor = target / trained_in(config)
    specs = [spec for spec in find_candidates(config, target, {}).specs if not spec.startswith("yarn")]
    specs += [f"{name}:factor={2 * factor:g}" for name in ("linear", "ntk-by-parts", "llama3")]
    for times, fast, slow in product((1, 1.25, 1.5, 2), (32, 8, 16, 64), (1, 0.5, 2)):
        fields = [
            f"factor={times * factor:g}",
            *[f"beta_fast={fast}"] * (fast != 32),
            *[f"beta_slow={slow}"] * (slow != 1),
        ]
        specs.append(f"yarn:{','.join(fields)}")
    tables = {}
    for spec in specs:
        found = frequencies(config, spec, length=target)["all"]
        tables.setdefault((tuple(found.inv_freq), found.attention_scale, "dynamic" in spec), spec)
    return [*map(label, tables.values())]


def score(model: str, text: str, windows: int, out: Path, target: int) -> None:
    """Scores both grids, and saves the result in ``OUT``."""
    folder = CHECKPOINT if model == "reference" else Path(model)
    config = json.loads((folder / "config.json").read_text())
    specs = dict.fromkeys([*find_candidates(config, target, {}).specs, *earlier(config, target)])
    lengths = [length for length in (256, 512, 1024, target) if trained_in(config) <= length <= target]
    perplexity(
        folder,
        held_out_documents() if text == "modules" else Path(text),
        lengths,
        [spec for spec in specs if spec != AS_IS],
        windows=windows if Path(text).is_file() else 1,
        max_docs=None if Path(text).is_file() else windows,
        short_context=False,
        truncation=False,
        source=text,
        out=out,
        progress=True,
    )


@dataclass(frozen=True)
class Replayed:
    """A recommendation for one half of the documents, judged on the other.

    Attributes:
        schedule: what is recommended; ``lowest`` on the half that it was given, over the whole grid.
        regret: its perplexity at the target over that of the best of the grid on the other half, minus 1.
        behind: the same against what an exhaustive search of the given half chooses.
        share: the tokens that it fed, of those of every candidate on all the given text.
        decided: whether the given half sufficed.
    """

    schedule: str
    lowest: str
    regret: float
    behind: float
    share: float
    decided: bool


@dataclass(frozen=True)
class Ruled:
    """What the recommendation's rule chooses.

    Attributes:
        race: the windows that its race read.
        share: the tokens that it fed, of those of every candidate on all the text.
    """

    chosen: str
    decided: bool
    race: list[int]
    share: float


def ruled(given: Stored, target: int, specs: Sequence[str], always: Sequence[str], short_weight: float) -> Ruled:
    """Runs the recommendation's own rule on stored losses."""
    trained = given.trained_length or target
    weights = objective_of(target, trained, short_weight).weights
    fed = 0

    def measure(candidates: Sequence[str], windows: Sequence[int]) -> Stored:
        nonlocal fed
        fed += len(candidates) * len(windows)
        return given

    first, second = (sorted(part) for part in split_windows(given.windows, search=False))
    judging = FINALISTS + len(always)
    besides = _truncation(trained, target, len(second), judging // 2 if first == second else judging)
    most = share_kept(len(specs), len(always), first, second, besides)
    rounds = run_race(specs, weights, first, always, most, measure)
    finalists = [each for each in specs if each in {*always, *rounds[-1].kept}]
    judged = len(specs if first == second else finalists)
    level = familywise(comb(judged + 1, 2) + 2 * judged - 1)
    measure([AS_IS] if first == second else finalists, second)
    found = decide(part_of(given, second), given, weights, finalists, TOLERANCE, level)
    decided = not (found.open or too_few(part_of(given, second).texts))
    return Ruled(found.chosen, decided, first, (fed + besides) / (len(specs) * sum(given.windows)))


def replay(stored: Result, seed: int, short_weight: float) -> Replayed:
    """Runs the rule on the stored losses of a random half."""
    order = np.random.default_rng(seed).permutation(sum(stored.windows))
    given, other = (part_of(stored, sorted(half.tolist())) for half in np.split(order, [len(order) // 2]))
    target, candidates = stored.lengths[-1], find_candidates(_config(stored), stored.lengths[-1], {})
    specs = [*map(label, candidates.specs)]
    found = ruled(given, target, specs, candidates.always, short_weight)
    mine, theirs = ({each: math.exp(part.totals(each, target).mean) for each in specs} for part in (given, other))
    best = min(specs, key=mine.__getitem__)
    return Replayed(
        found.chosen,
        best,
        theirs[found.chosen] / min(theirs.values()) - 1,
        theirs[found.chosen] / theirs[best] - 1,
        found.share,
        found.decided,
    )


def _config(stored: Result) -> dict[str, object]:
    return json.loads((Path(stored.model["path"]) / "config.json").read_text())


def grids(folders: Sequence[Path], short_weight: float) -> None:
    """Prints a line for each model and text: what either grid's choice costs on the documents that its race reads."""
    grid = "schedules | tokens | choice | above the best"
    print(f"| text | factor | {grid} | earlier grid: {grid} |")
    print("|---|---:|---:|---:|---|---:|---:|---:|---|---:|")
    for folder in folders:
        stored = Result.load(folder)
        target, config = stored.lengths[-1], _config(stored)
        always = find_candidates(config, target, {}).always
        weights = objective_of(target, trained_in(config), short_weight).weights
        cells = [folder.name, f"{target / trained_in(config):g}"]
        for specs in ([*map(label, find_candidates(config, target, {}).specs)], earlier(config, target)):
            found = ruled(stored, target, specs, always, short_weight)
            part = part_of(stored, found.race)
            losses = {spec: estimate(part, weights, spec).mean for spec in stored.schedules}
            more = losses[found.chosen] - min(losses.values())
            cells += [f"{len(specs)}", f"{found.share:.1%}", f"`{found.chosen}`", f"{more:.4f}"]
        print(f"| {' | '.join(cells)} |")


def _truncation(trained: int, target: int, windows: int, finalists: int) -> float:
    """Returns what truncation feeds on the text that decides, in windows: at the smallest stride that is no dearer."""
    fed = [positions_of([target - trained] * windows, trained, trained // share) / target for share in SHARES]
    return next((each for each in fed if each <= finalists * windows), 0.0)


def table(folders: Sequence[Path], seeds: int, short_weight: float) -> None:
    """Prints a line for each model and text: medians over random halves."""
    print("| grid | candidates | windows | tokens | regret | behind the grid | decided | recommended most often |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for folder in folders:
        stored = Result.load(folder)
        found = [replay(stored, seed, short_weight) for seed in range(seeds)]
        regret, behind = ([getattr(each, name) for each in found] for name in ("regret", "behind"))
        often = Counter(each.schedule for each in found).most_common(1)[0][0]
        print(
            f"| {folder.name} | {len(stored.schedules)} | {sum(stored.windows) // 2} | "
            f"{max(each.share for each in found):.1%} | {median(regret):.2%} (to {max(regret):.2%}) | "
            f"{median(behind):+.2%} | {sum(each.decided for each in found)} of {seeds} | {often} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    scoring = commands.add_parser("score")
    scoring.add_argument("model")
    scoring.add_argument("text")
    scoring.add_argument("windows", type=int)
    scoring.add_argument("out", type=Path)
    scoring.add_argument("--target-length", type=int, default=TARGET)
    both = commands.add_parser("grids")
    both.add_argument("out", type=Path, nargs="+")
    replaying = commands.add_parser("replay")
    replaying.add_argument("out", type=Path, nargs="+")
    replaying.add_argument("--seeds", type=int, default=10)
    replaying.add_argument("--short-weight", type=float, default=SHORT_WEIGHT)
    given = parser.parse_args()
    if given.command == "score":
        score(given.model, given.text, given.windows, given.out, given.target_length)
    elif given.command == "grids":
        grids(given.out, SHORT_WEIGHT)
    else:
        table(given.out, given.seeds, given.short_weight)


if __name__ == "__main__":
    main()
