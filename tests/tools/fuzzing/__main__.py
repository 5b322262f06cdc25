"""``python -m fuzzing``, with ``tests`` on the path; ``make fuzz`` calls it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import surroundings  # noqa: F401

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports a library that reads it

from .judging import Fault
from .running import Runners, limit_memory, listed, replay
from .seeds import Made


def main() -> int:
    """0 where nothing failed, 1 with the distinct failures where something did."""
    parser = argparse.ArgumentParser(prog="fuzzing", description="Run ropescale on mutated input.")
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: 600)")
    parser.add_argument("--seed", default="0", help="any word or number; the cases follow from it")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--targets", default="", help="these alone, joined by commas")
    parser.add_argument("--keep", type=Path, help="a folder for the cases that fail (default: a temporary one)")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="run one kept case again, and nothing else")
    options = parser.parse_args()
    sys.dont_write_bytecode = True  # a schedule of a case leaves nothing beside itself
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes end with us
    return _replayed(options.replay) if options.replay else _searched(options)


def _searched(options: argparse.Namespace) -> int:
    into = options.keep or Path(tempfile.mkdtemp(prefix="ropescale-failures-"))
    names = [name.strip() for name in options.targets.split(",") if name.strip()]
    runners = Runners(options.seed, names, options.processes, into, lambda line: print(line, flush=True))
    runners.run(options.seconds)
    print(", ".join(f"{name} {count:,}" for name, count in runners.cases.items()))
    for line in listed(runners.failures):
        print(line)
    if not runners.failures and not options.keep:
        into.rmdir()
    return 1 if runners.failures else 0


def _replayed(folder: Path) -> int:
    limit_memory(8 * 2**30)
    with tempfile.TemporaryDirectory() as made:
        faults, commands = replay(folder, Made(Path(made)))
    for words in commands:
        print(f"ran: {words}")
    for fault in faults:
        print(_told(fault))
    return 1 if faults else 0


def _told(fault: Fault) -> str:
    return f"{fault.kind} in {fault.where} ({fault.command}):\n  {fault.what.strip()}"


if __name__ == "__main__":
    raise SystemExit(main())
