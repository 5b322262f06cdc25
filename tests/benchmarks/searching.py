"""Searches on the reference model, and what they find on the 26 held-out modules: the tables of docs/searching.md.

``python tests/benchmarks/searching.py TASK OUT``: each task keeps what it has done below OUT and goes on from there; at
the end ``tables`` scores everything on the held-out modules, once, and writes ``tables.md`` and ``searching.png``.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.evals import Result, perplexity, search
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.evals.reference.corpus import training_documents

TARGET, BUDGET = 2048, 500_000
LENGTHS = [256, 512, 1024, 2048]
LONG, EVERY = 20_000, 4
"""Of the modules that the model was trained on, those with so many characters, and of these every fourth."""

SEEDS = {"gradient": range(5), "evolution": range(2), "cma": range(2)}
GRID = [
    f"yarn:factor={factor},beta_fast={fast},beta_slow={slow}"
    for factor, fast, slow in itertools.product((6, 8, 10, 12), (8, 16, 32, 64), (0.5, 1, 2))
]
START = "yarn:factor=8"


def sample() -> list[str]:
    """Returns the modules to learn from."""
    return [text for text in training_documents() if len(text) >= LONG][::EVERY]


class Bench:
    """The reference model, and the folder of all that was measured."""

    def __init__(self, out: Path) -> None:
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self.model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)

    def search(self, name: str, **options: object) -> Path:
        """Searches, and returns the schedule's file."""
        file = self.out / f"{name}.json"
        search(
            self.model,
            sample(),
            TARGET,
            tokenizer=self.tokenizer,
            out=file,
            **{"budget_tokens": BUDGET, "progress": True, **options},  # type: ignore[arg-type]
        )
        return file

    def score(
        self, name: str, texts: Sequence[str], schedules: Iterable[object], baseline: object, **options
    ) -> Result:
        """Measures schedules on the first 2,048 tokens of each text."""
        return perplexity(
            self.model,
            texts,
            LENGTHS,
            schedules,
            baseline=baseline,
            tokenizer=self.tokenizer,
            short_context=False,
            progress=True,
            out=self.out / name,
            **{"windows": 1, **options},
        )

    def grid_best(self) -> str:
        """Returns the grid's schedule that is best on the text that is learned from, by the objective of the search."""
        result = self.score("grid", sample()[:: len(sample()) // 16], GRID, START)
        rows = {(row.schedule, row.length): row.nll for row in result.rows}

        def objective(schedule: str) -> float:
            """The loss of the whole window, and as much again of what is within the trained length."""
            whole, within = rows[schedule, TARGET] * (TARGET - 1), rows[schedule, 256] * 255
            return (whole + within) / (TARGET - 1 + 255)

        return min(GRID, key=objective)

    def tables(self) -> None:
        """Scores everything that was found on the held-out modules, and writes the tables."""
        files = sorted(self.out.glob("*.json"))
        best = self.grid_best()
        schedules = {file.stem: str(file) for file in files} | {"grid": best}
        found = {START: START, **{ropescale.schedules.specs.parse(spec).text: name for name, spec in schedules.items()}}
        for baseline in (START, best):
            result = self.score("held-out", held_out_documents(), [START, *schedules.values()], baseline)
            print(f"\nagainst {baseline}")
            for row in result.paired:
                print(json.dumps({"name": found.get(row.schedule, row.schedule), **vars(row)}))
            print(result.to_markdown())


def main(task: str, out: str, *rest: str) -> None:
    """Does one task: ``gradient 0``, ``grid``, ``tables``, or another name with options as JSON."""
    bench = Bench(Path(out))
    if task == "grid":
        print(bench.grid_best())
    elif task == "tables":
        bench.tables()
    else:
        bench.search(task, **json.loads(rest[0]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
