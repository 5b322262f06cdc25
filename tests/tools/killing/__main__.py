"""``python -m killing``, with ``tests`` on the path; ``make kill`` calls it."""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import surroundings  # noqa: F401

for _library in ("OMP", "OPENBLAS", "MKL"):  # before anything imports it
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

from .judging import Prepared, judged, prepare  # noqa: E402
from .scenes import SCENES, copied  # noqa: E402
from .striking import Strike  # noqa: E402

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

BEFORE, AFTER, FRESH = 0.4, 0.2, 0.1
"""Of all strikes: just before a step on the disk; within two milliseconds after one, where files are half written; at a
moment of a fresh process. The others: at a moment of a fork."""


@dataclass
class Row:
    """What the strikes of one signal on one command showed."""

    command: str
    number: signal.Signals
    kills: int = 0
    landed: int = 0
    early: int = 0
    left: int = 0
    failed: int = 0
    points: set[str] = field(default_factory=set)


def main() -> int:
    """0 where everything held, 1 with the table and the distinct failures where something did not."""
    parser = argparse.ArgumentParser(prog="killing", description="Kill ropescale's commands and see what is left.")
    parser.add_argument("--kills", type=int, default=50, help="of each command by each signal (default: 50)")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--commands", default="", help=f"these alone, joined by commas: {', '.join(SCENES)}")
    parser.add_argument("--signals", default="", help="these alone, joined by commas: SIGKILL, SIGTERM, SIGINT")
    parser.add_argument("--exact", action="store_true", help="at steps on the disk alone, which chance has no part in")
    parser.add_argument("--keep", type=Path, help="a folder for what the first of each failure left")
    options = parser.parse_args()
    commands = [name.strip() for name in options.commands.split(",") if name.strip()] or list(SCENES)
    signals = [each for each in SIGNALS if each.name in options.signals or not options.signals]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # to remove what was made
    warm(commands)
    harness = Harness(options.seed, options.kills, options.keep, options.exact)
    try:
        for command in commands:
            harness.kill(command, signals)
    finally:
        shutil.rmtree(harness.scratch, ignore_errors=True)
    print("\n".join(harness.report()))
    return 1 if harness.failures else 0


class Harness:
    """Kills commands and counts."""

    def __init__(self, seed: str, kills: int, keep: Path | None, exact: bool) -> None:
        self.seed, self.kills, self.keep, self.exact = seed, kills, keep, exact
        self.scratch = Path(tempfile.mkdtemp(prefix="ropescale-kill-"))
        self.rows: list[Row] = []
        self.failures: Counter[str] = Counter()
        self.begun = time.monotonic()

    def kill(self, command: str, signals: list[signal.Signals]) -> None:
        """Strikes a command by each signal; a line for each."""
        scenes = [self._prepared(command, number) for number in range(len(SCENES[command]))]
        for each in signals:
            row = Row(command, each)
            self.rows.append(row)
            rngs = [Random(f"{self.seed}:{command}:{each.name}:{place}") for place in range(len(scenes))]
            how = exact if self.exact else strikes
            planned = [how(rng, each, prepared) for rng, prepared in zip(rngs, scenes)]
            for number in range(self.kills):
                place = number % len(scenes)
                self._strike(row, scenes[place], next(planned[place]))
            said = f"{command}, {each.name}: {row.kills} strikes, {row.landed} landed, {row.failed} failed"
            print(f"{time.monotonic() - self.begun:6.0f} s  {said}", flush=True)

    def _prepared(self, command: str, number: int) -> Prepared:
        scene = SCENES[command][number]
        prepared = prepare(scene, self.scratch / f"{number}-{command.replace(' ', '')}")
        for wrong in prepared.wrong:
            self._note(f"{command} ({scene.name}): {wrong[0]}", wrong[1])
        print(
            f"{command} ({scene.name}): {len(prepared.steps)} steps on the disk, {prepared.seconds:.2f} s, "
            f"{prepared.fresh_seconds:.2f} s as a fresh process",
            flush=True,
        )
        return prepared

    def _strike(self, row: Row, prepared: Prepared, strike: Strike) -> None:
        root = prepared.template.with_name("root")
        struck, verdict = judged(prepared, root, strike)
        row.kills += 1
        row.landed += verdict.landed
        row.early += verdict.early
        row.left += verdict.left
        row.failed += bool(verdict.wrong)
        row.points.add(str(strike) if struck.sent else "after the end")
        for wrong, seen in verdict.wrong:
            example = f"{strike} ({', '.join(struck.steps[-1:])}): {seen!r}"
            self._note(f"{row.command} ({prepared.scene.name}), {row.number.name}: {wrong}", example, root)

    def _note(self, failure: str, example: str = "", root: Path | None = None) -> None:
        self.failures[failure] += 1
        if self.failures[failure] > 1:
            return
        kept = ""
        if self.keep is not None and root is not None:
            copied(root, self.keep / str(len(self.failures)))
            kept = f"; kept in {self.keep / str(len(self.failures))}"
        print(f"failure: {failure}; {example}{kept}", flush=True)

    def report(self) -> Iterator[str]:
        """The table, and the distinct failures."""
        header = ["command", "signal", "strikes", "points", "landed", "early", "left", "failed"]
        yield "| " + " | ".join(header) + " |"
        yield "|" + "---|" * len(header)
        for row in self.rows:
            cells = [row.command, row.number.name, row.kills, len(row.points)]
            yield "| " + " | ".join(map(str, [*cells, row.landed, row.early, row.left, row.failed])) + " |"
        yield "points: distinct moments; landed: ended by the signal; early: before there was a handler, nothing done;"
        yield "left: something hidden lay there until the command was given again"
        for failure, count in self.failures.most_common():
            yield f"* {count} x {failure}"


def strikes(rng: Random, number: signal.Signals, prepared: Prepared) -> Iterator[Strike]:
    """When to strike, without end: mostly at steps on the disk, because a file command spends its time on starting."""
    at_steps = exact(rng, number, prepared)
    while True:
        chance = rng.random()
        if chance < BEFORE:
            yield next(at_steps)
        elif chance < BEFORE + AFTER:
            yield Strike(number, rng.randint(1, max(len(prepared.steps), 1)), rng.uniform(0, 0.002))
        elif chance < 1 - FRESH:
            yield Strike(number, seconds=rng.uniform(0, prepared.seconds))
        else:
            yield Strike(number, seconds=rng.uniform(0, prepared.fresh_seconds), fresh=True)


def exact(rng: Random, number: signal.Signals, prepared: Prepared) -> Iterator[Strike]:
    """Before every step, in any order, and by SIGKILL also just after each file was made; then again."""
    steps = prepared.steps
    every = [Strike(number, step) for step in range(1, len(steps) + 1)] or [Strike(number, 1)]
    if number == signal.SIGKILL:
        every += [Strike(number, step, created=True) for step, name in enumerate(steps, 1) if name == "open"]
    rng.shuffle(every)
    return itertools.cycle(every)


def warm(commands: list[str]) -> None:
    """Imports everything that the commands import, before anything is forked; no thread of torch's has run."""

    if any(command.startswith(("eval", "retrieval", "recommend", "search", "keys", "gguf")) for command in commands):
        import matplotlib.pyplot  # noqa: F401
        import torch
        import transformers.models.llama.modeling_llama  # noqa: F401

        torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())
