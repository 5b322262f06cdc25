"""Measures how far a recommendation is from the best of an exhaustive grid, and what it takes of the grid's tokens.

``python tests/benchmarks/recommending.py score MODEL TEXT WINDOWS OUT`` scores every candidate on every window once;
run again, it continues. ``python tests/benchmarks/recommending.py replay OUT...`` runs the recommendation's own rule on
the stored losses: it is given a random half of the documents, and the regret is measured on the other half. MODEL is
``reference`` or a folder; TEXT is ``modules``, a folder of texts, each a document, or a file, of which windows are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ropescale.evals.data.sources import TextSource
from ropescale.evals.recommending.candidates import field_of
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.evals.running.perplexity import PerplexityRun
from ropescale.evals.running.resuming import opened
from ropescale.evals.running.selection import Corpus, PerplexityOptions
from ropescale.evals.running.variants import trained_length
from ropescale.models.loading import load_model, load_tokenizer
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
        windows=windows if single else 1, max_docs=None if single else windows, short_context=False, progress=True,
        path=folder, source=text,
    )  # fmt: skip
    corpus = Corpus(documents, lengths, tokenizer, "auto", options)
    specs = [each.spec for each in field_of(configuration_before(loaded), TARGET, {}).candidates]
    run = PerplexityRun(loaded, corpus, specs, None, options)
    with opened(out) as store:
        run.run(store)
    result = run.result()
    sums = np.array([[result.totals(each, length).sums for length in lengths] for each in specs])
    counts = np.array([result.totals(specs[0], length).shares for length in lengths])
    about = {"specs": specs, "lengths": lengths, "windows": corpus.windows, "trained": trained, "text": text}
    np.savez(out / "grid.npz", sums=sums.transpose(0, 2, 1), counts=counts.T, about=json.dumps(about))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    scoring = commands.add_parser("score")
    scoring.add_argument("model")
    scoring.add_argument("text")
    scoring.add_argument("windows", type=int)
    scoring.add_argument("out", type=Path)
    given = parser.parse_args()
    score(given.model, given.text, given.windows, given.out)


if __name__ == "__main__":
    main()
