"""Measures how far a recommendation is from the best of an exhaustive grid, and what it takes of the grid's tokens.

``python recommending.py score MODEL TEXT WINDOWS OUT`` scores every candidate on every window once;
run again, it continues. ``python recommending.py replay OUT...`` runs the recommendation's own rule on
the stored losses: it is given a random half of the documents, and the regret is measured on the other half. MODEL is
``reference`` or a folder; TEXT is ``modules``, a folder of texts, each a document, or a file, of which windows are.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median

import numpy as np

from ropescale.checkpoints.loading import load_model, load_tokenizer
from ropescale.evals.data.sources import TextSource
from ropescale.evals.metrics.stored import positions_of
from ropescale.evals.recommending.candidates import find_candidates
from ropescale.evals.recommending.losses import CandidateLosses
from ropescale.evals.recommending.options import SHORT_WEIGHT, TOLERANCE, objective_of
from ropescale.evals.recommending.race import FINALISTS, decide, run_race, share_kept, split_windows
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.evals.running.corpus import Corpus
from ropescale.evals.running.corpus_run import SHARES
from ropescale.evals.running.options import PerplexityOptions, Schedules
from ropescale.evals.running.perplexity import PerplexityRun
from ropescale.evals.running.variants import trained_length
from ropescale.evals.statistics.intervals import LEVEL
from ropescale.evals.store import opened
from ropescale.models.patching import configuration_before

TARGET = 2048


def score(model: str, text: str, windows: int, out: Path) -> None:
    """Scores the whole grid, and keeps the sums of every window at every length in ``OUT/grid.npz``."""
    folder = CHECKPOINT if model == "reference" else Path(model)
    loaded, tokenizer = load_model(folder, "float32", "cpu"), load_tokenizer(folder)
    trained = trained_length(loaded)
    lengths = [length for length in (256, 512, 1024, TARGET) if length >= trained]
    single = Path(text).is_file()
    documents = held_out_documents() if text == "modules" else next(iter(TextSource([text]).texts().values()))
    options = PerplexityOptions(
        windows=windows if single else 1,
        max_docs=None if single else windows,
        short_context=False,
        truncation=False,
        progress=True,
        path=folder,
        source=text,
    )
    corpus = Corpus(documents, lengths, tokenizer, "auto", options)
    specs = [each.spec for each in find_candidates(configuration_before(loaded), TARGET, {}).candidates]
    run = PerplexityRun(loaded, corpus, Schedules(specs), options)
    with opened(out) as store:
        run.run(store)
    result = run.result()
    sums = np.array([[result.totals(each, length).sums for length in lengths] for each in specs])
    counts = np.array([result.totals(specs[0], length).counts for length in lengths])
    about = {"specs": specs, "lengths": lengths, "windows": corpus.windows, "trained": trained, "model": str(folder)}
    np.savez(out / "grid.npz", sums=sums.transpose(0, 2, 1), counts=counts.T, about=json.dumps(about))


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


def replay(folder: Path, seed: int, short_weight: float) -> Replayed:
    """Runs the recommendation's own rule on the stored losses of a random half."""
    stored = np.load(folder / "grid.npz")
    about, sums, counts = json.loads(str(stored["about"])), stored["sums"], stored["counts"]
    order = np.random.default_rng(seed).permutation(len(counts))
    given, other = sorted(order[: len(order) // 2]), sorted(order[len(order) // 2 :])
    config = json.loads((Path(about["model"]) / "config.json").read_text())
    specs, held = about["specs"], {spec: number for number, spec in enumerate(about["specs"])}
    goal = objective_of(TARGET, about["trained"], short_weight)
    single = len(about["windows"]) == 1
    losses = CandidateLosses(
        [len(given)] if single else [1] * len(given), about["lengths"], counts[given], {**goal.weights}
    )
    fed = 0

    def measure(candidates: Sequence[str], windows: Sequence[int]) -> CandidateLosses:
        nonlocal fed
        fed += len(candidates) * len(windows)
        for each in candidates:
            for n in windows:
                losses.put(each, n, dict(zip(about["lengths"], sums[held[each], given[n]].tolist())))
        return losses

    first, second = (sorted(part) for part in split_windows(losses.windows))
    always = find_candidates(config, TARGET, {}).always
    besides = _truncation(about["trained"], len(second), FINALISTS + len(always))
    rounds = run_race(specs, first, always, share_kept(len(specs), len(always), first, second, besides), measure)
    finalists = [each for each in specs if each in {*always, *rounds[-1].kept}]
    measure(finalists, second)
    level = LEVEL ** (1 / comb(len(finalists), 2))
    found = decide(losses, finalists, second, [*first, *second], TOLERANCE, level)
    mine, theirs = (_perplexities(sums, counts, part) for part in (given, other))
    chosen, best = held[found.chosen], int(mine.argmin())
    return Replayed(
        found.chosen,
        specs[best],
        theirs[chosen] / theirs.min() - 1,
        theirs[chosen] / theirs[best] - 1,
        (fed + besides) / (len(specs) * len(given)),
        not (found.open or found.too_short),
    )


def _truncation(trained: int, windows: int, finalists: int) -> float:
    """Returns what truncation feeds on the text that decides, in windows: at the smallest stride that is no dearer."""
    fed = [positions_of([TARGET - trained] * windows, trained, trained // share) / TARGET for share in SHARES]
    return next((each for each in fed if each <= finalists * windows), 0.0)


def _perplexities(sums: np.ndarray, counts: np.ndarray, windows: Sequence[int]) -> np.ndarray:
    """Returns each candidate's perplexity at the target over some windows."""
    return np.exp(sums[:, windows, -1].sum(axis=1) / counts[windows, -1].sum())


def table(folders: Sequence[Path], seeds: int, short_weight: float) -> None:
    """Prints a line for each model and text: medians over random halves."""
    print("| grid | candidates | windows | tokens | regret | behind the grid | decided | recommended most often |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for folder in folders:
        found = [replay(folder, seed, short_weight) for seed in range(seeds)]
        stored = np.load(folder / "grid.npz")
        regret, behind = ([getattr(each, name) for each in found] for name in ("regret", "behind"))
        often = Counter(each.schedule for each in found).most_common(1)[0][0]
        print(
            f"| {folder.name} | {len(stored['sums'])} | {len(stored['counts']) // 2} | "
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
    replaying = commands.add_parser("replay")
    replaying.add_argument("out", type=Path, nargs="+")
    replaying.add_argument("--seeds", type=int, default=10)
    replaying.add_argument("--short-weight", type=float, default=SHORT_WEIGHT)
    given = parser.parse_args()
    if given.command == "score":
        score(given.model, given.text, given.windows, given.out)
    else:
        table(given.out, given.seeds, given.short_weight)


if __name__ == "__main__":
    main()
