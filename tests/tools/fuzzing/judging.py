"""One case: its commands are run in process, with limits, and every outcome is judged.

Whatever the input: the exit code is 0, or 2 with one line on stderr that begins with ``error:`` and stays short, or 1
where a check or a run failed; no file changes but the output, and that is not there after a refusal; it ends in
seconds. What more must hold of a success is for the target to say.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crashing import tree

import ropescale
from ropescale import cli, evals
from ropescale.cli import main as shell
from ropescale.errors import RunError, VerificationError

if TYPE_CHECKING:
    from .targets import Target

SECONDS = 6.0
"""Of the processor's time that one command may take; by the clock it is ten times as much, for busy machines."""

LINE, STDERR, STDOUT = 2_000, 100_000, 4_000_000
"""Characters of an error line, and of all that may be said."""

RUNNING = ("eval", "retrieval")
"""Commands that keep what they have measured when they stop, and say more than an error."""


class TooLong(BaseException):
    """The command does not end. No Exception, so that nothing on the way takes it for one of its own."""


@dataclass
class Outcome:
    """What a command did."""

    words: list[str]
    code: int
    out: str
    err: str
    error: BaseException | None


@dataclass(frozen=True)
class Fault:
    """What must not be.

    Attributes:
        kind: the exception's type, or the rule that was broken.
        where: the innermost line of ropescale that was running; faults are the same where both are.
        what: the sentence for people.
    """

    kind: str
    where: str
    what: str
    command: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.where


def judged(target: Target, folder: Path, commands: Sequence[Sequence[str]]) -> list[Fault]:
    """Runs the commands one after the other in the folder; what is wrong with any of them."""
    found: list[Fault] = []
    for words in map(list, commands):
        before = tree(folder)
        with contextlib.chdir(folder):
            outcome = run(words)
            faults = [*said(outcome), *_left(before, tree(folder), outcome), *_checked(target, folder, outcome)]
        found += [Fault(each.kind, each.where, each.what, shlex.join(words)[:300]) for each in faults]
    return found


def run(words: list[str]) -> Outcome:
    """A command in this process, with the streams that a terminal would give it."""
    raised: list[BaseException] = []
    streams = [
        io.TextIOWrapper(io.BytesIO(), "utf-8", how, write_through=True) for how in ("strict", "backslashreplace")
    ]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]), _recorded(raised):
        try:
            with limited(SECONDS):
                code = shell.main(words)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raised.append(error)
            code = -1
    out, err = (each.buffer.getvalue().decode("utf-8", "replace") for each in streams)  # type: ignore[attr-defined]
    return Outcome(words, code, out, err, raised[-1] if raised else None)


@contextlib.contextmanager
def _recorded(raised: list[BaseException]) -> Iterator[None]:
    """Keeps the exception that the command line turns into a line, for the place where it was raised."""
    original = shell.group.main

    def main(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            raised.append(error.__cause__ if type(error).__name__ == "Abort" and error.__cause__ else error)
            raise

    with mock.patch.object(shell.group, "main", main):
        yield


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises :class:`TooLong` after that much of the processor's time, or ten times as much by the clock."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: Any) -> None:
        raise TooLong(f"did not end within {seconds:g} seconds")

    clocks = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 10 * seconds))
    before = [(number, signal.signal(number, stop)) for _, number, _ in clocks]
    for clock, _, limit in clocks:
        signal.setitimer(clock, limit, 1.0)  # again each second, for what swallows the first
    try:
        yield
    finally:
        for clock, _, _ in clocks:
            signal.setitimer(clock, 0)
        for number, handler in before:
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------------
# What must hold of every outcome


def said(outcome: Outcome) -> Iterator[Fault]:
    """What is wrong with the exit code and with what a command said."""
    error, command = outcome.error, outcome.words[0] if outcome.words else ""
    at = place(error) if error is not None else command
    allowed = outcome.code in (0, 2) or (outcome.code == 1 and isinstance(error, (RunError, VerificationError)))
    if not allowed or "error: unexpected " in outcome.err.replace("unexpected extra argument", ""):
        kind = type(error).__name__ if error is not None else f"exit {outcome.code}"
        yield Fault(kind, at, f"exit {outcome.code}: {error or outcome.err}"[:500])
        return
    if outcome.code == 0 and (len(outcome.err) > STDERR or len(outcome.out) > STDOUT):
        yield Fault("much is said", command, f"{len(outcome.err)} characters on stderr, {len(outcome.out)} on stdout")
    if "Traceback (most recent" in outcome.err:
        yield Fault("traceback", at, outcome.err[-500:])
    if outcome.code:
        yield from _refused(outcome, at, command)


def _refused(outcome: Outcome, at: str, command: str) -> Iterator[Fault]:
    *above, last = outcome.err.split("\n")[:-1] or [""]
    if not last.startswith("error: "):
        yield Fault("no error line", at, outcome.err[-500:])
    elif len(last) >= LINE:
        yield Fault("long error line", at, f"{len(last)} characters: {last[:200]}")
    elif len(last.splitlines()) > 1 or any(ord(each) < 32 or 127 <= ord(each) < 160 for each in last):
        yield Fault("control characters", at, ascii(last[:500]))
    others = [line for line in above if not line.startswith(("note: ", "warning: "))]
    if others and command not in RUNNING:
        yield Fault("more than a line", at, outcome.err[:500])


def _left(before: dict[str, str], after: dict[str, str], outcome: Outcome) -> Iterator[Fault]:
    """Nothing but the output may change, and it is there whole or not at all."""
    command = outcome.words[0] if outcome.words else ""
    outputs = _outputs(outcome.words) if outcome.code == 0 or command in RUNNING else set()
    names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    found = [
        _change(name, before, after)
        for name in sorted(names)
        if _top(name) not in outputs and not _restored(name, before, after)
    ]
    if found:
        yield Fault("files changed", f"{command} {'refused' if outcome.code else 'succeeded'}", ", ".join(found)[:500])


def _restored(name: str, before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether the file belongs to a change in place that was found interrupted and undone from its backup."""
    top, _, inner = name.partition("/")
    backup = f"{top}/ropescale-backup"
    if f"{backup}/manifest.json" not in before or f"{backup}/manifest.json" in after:
        return False
    original = before.get(f"{backup}/{inner}")
    return name.startswith(backup) or after.get(name) == original


def _change(name: str, before: dict[str, str], after: dict[str, str]) -> str:
    return f"{'new' if name not in before else 'changed' if name in after else 'gone'}: {name}"


def _top(name: str) -> str:
    return name.partition("/")[0]


def _outputs(words: list[str]) -> set[str]:
    """The names in the case's folder that a command may write."""
    named = {word for flag, word in pairwise(words) if flag in ("-o", "--out")}
    if "--in-place" in words or words[:1] == ["restore"]:
        named |= set(words[1:2])
    return {_top(os.path.normpath(word)) for word in named}


def _checked(target: Target, folder: Path, outcome: Outcome) -> Iterator[Fault]:
    try:
        yield from target.check(folder, outcome)
    except Exception as error:
        yield Fault(f"check {type(error).__name__}", place(error), traceback.format_exc()[-800:])


def place(error: BaseException) -> str:
    """``rope.py:12 in read``: the innermost line of ropescale on the way to an exception."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_ours(each.filename)]
    if not frames:
        return "outside"
    last = frames[-1]
    if isinstance(error, RecursionError):  # it strikes at any line: the function that goes round
        (name, function), _ = Counter((each.filename, each.name) for each in frames).most_common(1)[0]
        return f"{_short(name)} in {function}"
    if isinstance(error, TooLong):
        return f"{_short(last.filename)} in {last.name}"
    return f"{_short(last.filename)}:{last.lineno} in {last.name}"


def _is_ours(filename: str) -> bool:
    return os.path.realpath(filename).startswith(_HOMES)


def _short(filename: str) -> str:
    return "/".join(Path(filename).parts[-2:])


_HOMES = tuple(os.path.dirname(os.path.realpath(str(package.__file__))) + os.sep for package in (ropescale, cli, evals))
"""The folders of ropescale's own code, in a checkout and installed."""
