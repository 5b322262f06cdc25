"""Acts measured side by side: in turn, again and again, until the time is over."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

Act = Callable[[], object]
T = TypeVar("T")

LEAST, MOST = 3, 9
"""Rounds: so many at least, whatever the time, and no more than so many."""


@dataclass(frozen=True)
class Row:
    """A figure of the page.

    Attributes:
        what: is measured.
        value, low, high: the median over rounds and the range; without a range where there is one round.
        unit: of the value, such as ``x`` for a ratio.
        rounds: how many.
        note: what else is to be known, such as the seconds of one act.
    """

    what: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = "x"
    rounds: int = 1
    note: str = ""


def cpu(act: Act) -> float:
    """Seconds of this process's CPU time that an act takes."""
    start = time.process_time()
    act()
    return time.process_time() - start


def command(
    *words: object, threads: int = 1, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> float:
    """Seconds of CPU time that a Python process takes, its children included."""
    given = {**os.environ, "OMP_NUM_THREADS": str(threads), **(environment or {})}
    with subprocess.Popen(
        [python, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=given
    ) as child:
        said = child.stderr.read() if child.stderr else b""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(said.decode()[-2000:])
    return usage.ru_utime + usage.ru_stime


def in_turn(
    acts: Mapping[str, T], seconds: float, taken: Callable[[T], float], warm: bool = True
) -> dict[str, list[float]]:
    """Returns the CPU seconds of each act, once per round, in turn, until the time is over.

    Args:
        seconds: of wall time; :data:`LEAST` rounds are done in any case.
        taken: measures one act, in seconds.
        warm: do each once before, which does not count.
    """
    if warm:
        for act in acts.values():
            taken(act)
    seen: dict[str, list[float]] = {name: [] for name in acts}
    end = time.monotonic() + seconds
    for number in range(MOST):
        if number >= LEAST and time.monotonic() > end:
            break
        for name, act in acts.items():
            seen[name].append(taken(act))
    return seen


def ratios(seen: Mapping[str, Sequence[float]], base: str) -> list[Row]:
    """Returns the ratio of each act to the base's of the same round."""
    rows = []
    for name, values in seen.items():
        if name != base:
            each = [a / b for a, b in zip(values, seen[base], strict=True)]
            said = f"{statistics.median(values):.3g} s over {statistics.median(seen[base]):.3g} s"
            rows.append(
                Row(f"{name}, over {base}", statistics.median(each), min(each), max(each), "x", len(each), said)
            )
    return rows


def busy(seconds: float = 1.0) -> float:
    """Returns how many cores are in use: over so long on Linux, elsewhere the load of the last minute."""
    try:
        first = _ticks()
        time.sleep(seconds)
        return (_ticks() - first) / os.sysconf("SC_CLK_TCK") / seconds
    except OSError:
        return os.getloadavg()[0]


def _ticks() -> int:
    """Returns the ticks of all cores that were not idle, nor waiting for a disk."""
    with open("/proc/stat", encoding="ascii") as file:
        used, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
    return used + nice + system + sum(interrupts)


def answer(rows: Sequence[Row]) -> None:
    """Prints the rows for the runner."""
    print("\n" + json.dumps([asdict(row) for row in rows]))
