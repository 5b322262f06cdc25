"""Searches on the reference model, and what they find on the 26 held-out modules: the tables of docs/searching.md.

``python searching.py NAME OUT '{"seed": 1}'`` searches; ``grid OUT`` scores a grid on the same text;
``tables OUT`` scores all that was found below OUT on text that nothing was learned from. Each keeps what it has done
below OUT and goes on from there. ``beyond OUT`` is ``tables OUT`` up to twice the target.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.evals import Result, perplexity, search
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.output.plotting import COLOURS, drawn, in_style

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference_model import training_documents

TARGET = 2048
LONG, EVERY = 20_000, 4
"""Of the modules that the model was trained on, those with so many characters, and of these every fourth."""

GRID = [
    f"yarn:factor={factor},beta_fast={fast},beta_slow={slow}"
    for factor, fast, slow in itertools.product((6, 8, 10, 12), (8, 16, 32, 64), (0.5, 1, 2))
]


def sample() -> list[str]:
    """Returns the modules to learn from."""
    return [text for text in training_documents() if len(text) >= LONG][::EVERY]


@dataclass(frozen=True)
class Setting:
    """What is searched for: a model, a target length, and the text to learn from and to measure on.

    Attributes:
        texts: a folder of texts, of which every second one is learned from and the others are measured on; None for
            the standard library's modules.
    """

    model: str = str(CHECKPOINT)
    target: int = TARGET
    texts: Path | None = None

    def learned(self) -> list[str]:
        """Returns the text to learn from."""
        return sample() if self.texts is None else self._files()[::2]

    def measured(self) -> list[str]:
        """Returns the text to measure on."""
        return held_out_documents() if self.texts is None else self._files()[1::2]

    def _files(self) -> list[str]:
        assert self.texts is not None
        return [file.read_text(encoding="utf-8") for file in sorted(self.texts.glob("*.txt"))]

    def lengths(self, trained: int) -> list[int]:
        """Returns the trained length and its doubles up to twice the target."""
        return [trained * 2**n for n in range(20) if trained * 2**n <= 2 * self.target]


class Bench:
    """A model, and the folder of all that was measured."""

    def __init__(self, out: Path, setting: Setting) -> None:
        self.out, self.setting = out, setting
        out.mkdir(parents=True, exist_ok=True)
        self.model = AutoModelForCausalLM.from_pretrained(setting.model, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(setting.model)
        self.trained = int(self.model.config.max_position_embeddings)
        self.start = f"yarn:factor={setting.target / self.trained:g}"

    def search(self, name: str, **options: object) -> None:
        """Searches, and keeps the schedule's file."""
        given = {"progress": True, **options}
        file = self.out / f"{name}.json"
        learned, target = self.setting.learned(), self.setting.target
        search(self.model, learned, target, tokenizer=self.tokenizer, out=file, **given)  # type: ignore[arg-type]

    def score(
        self, name: str, texts: Sequence[str], schedules: Iterable[object], baseline: object, reach: int = 1
    ) -> Result:
        """Measures schedules on the first positions of each text, up to ``reach`` times the target."""
        most = max(len(self.tokenizer(text).input_ids) for text in texts)
        return perplexity(
            self.model,
            texts,
            [n for n in self.setting.lengths(self.trained) if n <= min(reach * self.setting.target, most)],
            schedules,
            baseline=baseline,
            tokenizer=self.tokenizer,
            windows=1,
            short_context=False,
            progress=True,
            out=self.out / name,
        )

    def grid_best(self) -> str:
        """Returns the grid's schedule that is best on the text that is learned from, by the objective of the search."""
        texts, target = self.setting.learned(), self.setting.target
        result = self.score("grid", texts[:: max(1, len(texts) // 16)], GRID, self.start)
        rows = {(row.schedule, row.length): row.nll for row in result.rows}

        def objective(schedule: str) -> float:
            """The loss of the whole window, and as much again of what is within the trained length."""
            whole, within = rows[schedule, target] * (target - 1), rows[schedule, self.trained] * (self.trained - 1)
            return (whole + within) / (target + self.trained - 2)

        return min(GRID, key=objective)

    def tables(self, reach: int = 1) -> None:
        """Scores everything that was found on text that nothing was learned from, and prints the tables."""
        found = {file.stem: str(file) for file in sorted(self.out.glob("*.json"))}
        found |= {"best of the grid": self.grid_best()} if (self.out / "grid").exists() else {}
        names = {ropescale.schedules.specs.parse(spec).text: name for name, spec in found.items()}  # type: ignore[union-attr]
        for baseline in dict.fromkeys([self.start, found.get("best of the grid", self.start)]):
            result = self.score(
                "measured" if reach == 1 else "beyond",
                self.setting.measured(),
                [self.start, *found.values()],
                baseline,
                reach,
            )
            print(f"\nagainst {baseline}, nats; perplexity")
            ppl = {(row.schedule, row.length): row.ppl for row in result.rows}
            for row in result.paired:
                interval = f"{row.low:+.4f} to {row.high:+.4f}" if row.low is not None else "-"
                label, value = names.get(row.schedule, row.schedule), ppl[row.schedule, row.length]
                print(f"| {label} | {row.length} | {value:.3f} | {row.delta_nll:+.4f} | {interval} |")


def picture(out: Path) -> None:
    """Draws every search below OUT: the held-out loss against tokens, and what each pair is divided by."""
    with in_style(10, 4.2) as figure:
        left, right = figure.subplots(1, 2)
        for folder in sorted(out.glob("*-search")):
            found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
            name = folder.name.removesuffix("-search")
            held = [row for row in found["history"] if row["held_out"]]
            spent, losses = [row["tokens"] / 1000 for row in held], [row["loss"] - held[0]["loss"] for row in held]
            left.plot(spent, losses, "o-", label=name, markersize=4)
            right.plot([row["found"] for row in found["divisors"]], label=name)
        start = [row["start"] for row in found["divisors"]]
        right.plot(start, "--", color=COLOURS["black"], label="yarn's default")
        left.set(xlabel="thousand tokens fed", ylabel="change of the held-out loss (weighted, nats)")
        right.set(xlabel="pair", ylabel="frequency divided by")
        for axes in (left, right):
            axes.legend()
    (out / "searching.png").write_bytes(drawn(lambda: figure))


def main() -> None:
    """Does one task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", help="grid, tables, beyond, picture, or a name for a search")
    parser.add_argument("out", type=Path)
    parser.add_argument("options", nargs="?", default="{}", help='of the search, as JSON: {"seed": 1}')
    parser.add_argument("--model", default=str(CHECKPOINT))
    parser.add_argument("--target", type=int, default=TARGET)
    parser.add_argument("--texts", type=Path)
    given = parser.parse_args()
    if given.task == "picture":
        picture(given.out)
        return
    bench = Bench(given.out, Setting(given.model, given.target, given.texts))
    if given.task == "grid":
        print(bench.grid_best())
    elif given.task in ("tables", "beyond"):
        bench.tables(reach=1 if given.task == "tables" else 2)
    else:
        bench.search(given.task, **json.loads(given.options))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
