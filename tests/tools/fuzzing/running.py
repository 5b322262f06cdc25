"""Many cases, in processes that may hang or die, and what they found, once each.

Case ``number`` of a seed is made by ``Random("seed:number")`` and by nothing else, so processes share the numbers out
and the cases are the same however many there are.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

from . import targets
from .judging import Fault, judged
from .seeds import Made
from .targets import Target

PATIENCE = 300.0
"""Seconds after which a process that is deaf to signals is killed; its case is a failure."""

MEMORY = 2 * 2**30
"""Bytes that a case may take beyond what the process has when it starts."""

LIFE = 2000
"""Cases after which a process is replaced by a new one: what all of them leave in memory is no fault of the last."""

KEPT = 3
"""Cases that are kept of one failure."""


@dataclass
class Failure:
    """One way to fail, and where its cases are kept."""

    fault: Fault
    cases: int = 0
    kept: list[Path] = field(default_factory=list)


def make_case(seed: str, number: int, all_targets: list[Target], folder: Path) -> tuple[Target, targets.Commands]:
    """Fills an empty folder with case ``number``; the target and the commands to run."""
    rng = Random(f"{seed}:{number}")
    target = targets.chosen(rng, all_targets)
    return target, target.make(rng, folder)


def run_case(seed: str, number: int, all_targets: list[Target], scratch: Path) -> tuple[str, list[Fault]]:
    """Makes and judges one case in a folder below ``scratch``; the target's name and what is wrong."""
    folder = scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        target, commands = make_case(seed, number, all_targets, folder)
    except Exception as error:  # the fault is ours; hours of a run must not end for it
        return "fuzzing itself", [Fault(type(error).__name__, "make", f"case {number}: {error!r}"[:500])]
    return target.name, judged(target, folder, commands)


def keep(seed: str, number: int, all_targets: list[Target], faults: Sequence[Fault], into: Path) -> Path:
    """Makes the case again, for people and for :func:`replay`."""
    folder = into / f"{seed}-{number}"
    if not folder.exists():
        (folder / "input").mkdir(parents=True)
        try:
            target, commands = make_case(seed, number, all_targets, folder / "input")
        except Exception:  # see run_case
            return folder
        about = {"seed": seed, "number": number, "target": target.name, "commands": commands}
        about["faults"] = [asdict(fault) for fault in faults]
        (folder / "case.json").write_text(json.dumps(about, indent=1))
    return folder


def replay(folder: Path, made: Made) -> tuple[list[Fault], targets.Commands]:
    """Runs a case that was kept, on a copy."""
    about = json.loads((folder / "case.json").read_text())
    [target] = [kind(made) for kind in targets.ALL if kind.name == about["target"]]
    with tempfile.TemporaryDirectory(prefix="ropescale-fuzz-") as scratch:
        copy = Path(scratch) / "case"
        shutil.copytree(folder / "input", copy, symlinks=True, copy_function=_copied)
        return judged(target, copy, about["commands"]), about["commands"]


def _copied(source: str, to: str) -> None:
    """A file, or a pipe, which :func:`shutil.copytree` would read from for ever."""
    shutil.copy2(source, to) if os.path.isfile(source) else os.mkfifo(to)


def warm(all_targets: list[Target]) -> None:
    """Imports what takes seconds, and makes the seeds, before anything is forked or timed."""
    logging.disable(logging.WARNING)
    if any(target.needs_torch for target in all_targets):
        import torch

        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ropescale-fuzz-") as scratch:
        for number, target in enumerate(all_targets):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            target.make(Random(0), folder)


# ---------------------------------------------------------------------------------------------------------
# In processes of their own


@dataclass
class _Worker:
    process: Any
    connection: Connection
    number: int
    since: float


class Runners:
    """Processes that work through the cases of a seed until the time is over."""

    def __init__(self, seed: str, names: Sequence[str], processes: int, into: Path, say: Callable[[str], Any]) -> None:
        self.seed, self.processes, self.into, self.say = seed, processes, into, say
        self.scratch = Path(tempfile.mkdtemp(prefix="ropescale-fuzz-"))
        kinds = [kind for kind in targets.ALL if not names or kind.name in names]
        self.targets = [kind(Made(self.scratch / "made")) for kind in kinds]
        self.failures: dict[tuple[str, str, str], Failure] = {}
        self.cases: dict[str, int] = dict.fromkeys((target.name for target in self.targets), 0)
        self.workers: list[_Worker] = []

    def run(self, seconds: float) -> None:
        """Runs for that long; what was found is in :attr:`failures`."""
        try:
            warm(self.targets)
            self._run(seconds)
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _run(self, seconds: float) -> None:
        started, said = time.monotonic(), 0
        self.workers = [self._start(number) for number in range(self.processes)]
        while (gone := time.monotonic() - started) < seconds:
            if gone >= 60 * (said + 1):
                said += 1
                self.say(self.line(gone))
            self._listen()
        self.say(self.line(time.monotonic() - started))

    def line(self, seconds: float) -> str:
        """How far it is: cases, cases a second, failures."""
        cases, failures = sum(self.cases.values()), sum(each.cases for each in self.failures.values())
        rate = cases / max(seconds, 1e-9)
        return (
            f"{seconds / 60:5.1f} min  {cases:8,} cases  {rate:6.1f} cases/s  "
            f"{failures:6,} failures, {len(self.failures)} distinct"
        )

    def _listen(self) -> None:
        for ready in wait([worker.connection for worker in self.workers], timeout=0.5):
            [place] = [i for i, worker in enumerate(self.workers) if worker.connection is ready]
            self._hear(place)
        for place, worker in enumerate(self.workers):
            if time.monotonic() - worker.since > PATIENCE:
                worker.process.kill()
                self._lost(place, Fault("hang", "killed", f"did not end within {PATIENCE:g} seconds, deaf to signals"))

    def _hear(self, place: int) -> None:
        worker = self.workers[place]
        try:
            told = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._lost(place, Fault("died", "the process", f"exit code {worker.process.exitcode}"))
            return
        if told is None:
            worker.process.join()
            self.workers[place] = self._start(worker.number)
            return
        number, name, faults = told
        self.cases[name] = self.cases.get(name, 0) + 1
        worker.number, worker.since = number + self.processes, time.monotonic()
        self._note(name, number, faults)

    def _lost(self, place: int, fault: Fault) -> None:
        """A process that is gone: its case is a failure, and another goes on behind it."""
        number = self.workers[place].number
        target = targets.chosen(Random(f"{self.seed}:{number}"), self.targets)
        self._note(target.name, number, [fault])
        self.workers[place].process.join()
        self.workers[place] = self._start(number + self.processes)

    def _note(self, name: str, number: int, faults: Sequence[Fault]) -> None:
        for key, fault in {fault.key: fault for fault in faults}.items():
            failure = self.failures.setdefault((name, *key), Failure(fault))
            failure.cases += 1
            if len(failure.kept) < KEPT:
                failure.kept.append(keep(self.seed, number, self.targets, faults, self.into))
            if failure.cases == 1:
                self.say(f"failure: {name}, case {number} of seed {self.seed}: {fault.kind} in {fault.where}")

    def _start(self, number: int) -> _Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._work, args=(number, theirs), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, number, time.monotonic())

    def _work(self, number: int, connection: Connection) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        scratch = self.scratch / f"worker-{os.getpid()}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        limit_memory(MEMORY)
        for _ in range(LIFE):
            name, faults = run_case(self.seed, number, self.targets, scratch)
            connection.send((number, name, faults))
            number += self.processes
        shutil.rmtree(scratch, ignore_errors=True)
        connection.send(None)


def limit_memory(extra: int) -> None:
    """Lets this process take so many bytes more than it has, where the system can hold it to that."""
    try:
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + extra, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        pass


def listed(failures: dict[tuple[str, str, str], Failure]) -> Iterator[str]:
    """The distinct failures for people, the most frequent first."""
    for (name, kind, where), failure in sorted(failures.items(), key=lambda pair: -pair[1].cases):
        yield f"* {name}: {kind} in {where} ({failure.cases} cases)"
        yield f"    {failure.fault.what.strip()[:300]!r}"
        yield f"    {failure.fault.command}"
        yield from (f'    make fuzz REPLAY="{folder}"' for folder in failure.kept[:1])
