"""One run of a command, struck by a signal at a step on the disk or at a moment, in a fork or in a fresh process."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ropescale

from .scenes import TEMPORARY

PATIENCE = 120.0
"""Seconds until a command that was struck, or was not, counts as hanging."""

NEVER = 10**9


@dataclass(frozen=True)
class Strike:
    """When a command is struck; never, where nothing is said.

    Attributes:
        step: before that step on the disk,
        seconds: or so long after the start; with a step, so long after that.
        fresh: in a process of its own, not a fork.
        created: where the step opens a file to write it, just after that: the file is there and empty.
    """

    number: int = 0
    step: int | None = None
    seconds: float | None = None
    fresh: bool = False
    created: bool = False

    @property
    def exact(self) -> bool:
        """The command strikes itself."""
        return self.step is not None and self.seconds is None

    def __str__(self) -> str:
        what = signal.Signals(self.number).name if self.number else "nothing"
        relation = "within" if self.created else "before" if self.exact else "after"
        where = "" if self.step is None else f" {relation} step {self.step}"
        when = "" if self.seconds is None else f" after {self.seconds * 1000:.2f} ms"
        return f"{what}{where}{when}{' of a fresh process' if self.fresh else ''}"


@dataclass
class Struck:
    """What became of it.

    Attributes:
        code: its exit code, or minus the signal that ended it.
        steps: what it did on the disk, such as ``os.rename``; the last one is that at which it was struck.
        sent: False where it had ended before the signal came.
    """

    code: int
    out: str
    err: str
    seconds: float
    steps: tuple[str, ...] = ()
    sent: bool = True


def run(words: list[str], folder: Path, strike: Strike = Strike()) -> Struck:
    """Runs ``ropescale WORDS...`` in a folder, and strikes it."""
    logs = Path(tempfile.mkdtemp(prefix="ropescale-kill-log-"))
    try:
        begun = time.monotonic()
        code, sent, steps = (_fresh if strike.fresh else _forked)(words, folder, strike, logs)
        took = time.monotonic() - begun
        out, err = ((logs / name).read_text(errors="replace") for name in ("out", "err"))
        return Struck(code, out, err, took, tuple(steps), sent)
    finally:
        shutil.rmtree(logs, ignore_errors=True)


def _fresh(words: list[str], folder: Path, strike: Strike, logs: Path) -> tuple[int, bool, list[str]]:
    found = str(Path(ropescale.__file__).resolve().parent.parent)
    env = os.environ | {"TMPDIR": str(folder / TEMPORARY), "PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1"}
    with open(logs / "out", "wb") as out, open(logs / "err", "wb") as err:
        asked = [sys.executable, "-m", "ropescale", *words]
        started = subprocess.Popen(asked, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            started.wait(PATIENCE if strike.seconds is None else strike.seconds)
            return started.returncode, False, []
        except subprocess.TimeoutExpired:
            started.send_signal(strike.number if strike.seconds is not None else signal.SIGKILL)
        try:
            return started.wait(PATIENCE), True, []
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
            return NEVER, True, []


def _forked(words: list[str], folder: Path, strike: Strike, logs: Path) -> tuple[int, bool, list[str]]:
    """A fork that says through a pipe what it does on the disk, a line before each step, the first when it begins."""
    sys.stdout.flush()
    sys.stderr.flush()
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said)
        _be_the_command(words, folder, strike, logs, says)
    os.close(says)
    try:
        sent, steps = _listened(child, strike, said)
    finally:
        os.close(said)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if sent is not None else NEVER, bool(sent), steps


def _listened(child: int, strike: Strike, said: int) -> tuple[bool | None, list[str]]:
    """Follows the fork to its end and strikes it when it is time; None where it hangs and had to be killed."""
    heard, sent, due = b"", strike.exact, None
    until = time.monotonic() + PATIENCE  # also for a command that never rests, such as one that polls a lock
    while time.monotonic() < until:
        begun = len(heard.splitlines()) > (strike.step or 0)
        if due is None and begun and strike.seconds is not None:
            due = time.monotonic() + strike.seconds
        if due is not None and not sent and time.monotonic() >= due:
            os.kill(child, strike.number)  # it is not reaped yet, so nobody else can have its number
            sent = True
        rest = (until if sent or due is None else due) - time.monotonic()
        if select.select([said], [], [], max(rest, 0))[0]:
            more = os.read(said, 1 << 16)
            if not more:
                return sent, heard.decode().splitlines()[1:]
            heard += more
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, heard.decode().splitlines()[1:]


def _be_the_command(words: list[str], folder: Path, strike: Strike, logs: Path, says: int) -> None:
    """What ``python -m ropescale WORDS...`` does after its imports; never returns."""
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(logs / name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ["TMPDIR"], tempfile.tempdir = str(folder / TEMPORARY), None
        os.chdir(folder)
        sys.argv, sys.dont_write_bytecode = ["ropescale", *words], True
        _watch(folder, strike, says)
        code = _ended()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _ended() -> int:
    """Runs the program to its end as an interpreter would, and says its exit code."""
    try:
        runpy.run_module("ropescale", run_name="__main__")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    return 1


_STEPS = {f"os.{name}" for name in "rename remove mkdir rmdir link symlink chmod chown truncate utime".split()}
"""Audit events of what changes a disk; of ``open``, those that are for writing."""


def _watch(folder: Path, strike: Strike, says: int) -> None:
    """From now on this process says its steps on the disk, and strikes itself before the one that is meant."""
    count, root = itertools.count(1), str(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _STEPS and not (event == "open" and _writes(arguments)):
            return
        if not any(_is_below(argument, root) for argument in arguments[: 1 if event == "open" else 2]):
            return
        os.write(says, f"{event}\n".encode())
        if next(count) == strike.step and strike.exact:
            if strike.created and event == "open":
                os.open(arguments[0], arguments[2] | os.O_CREAT, 0o600)
            os.kill(os.getpid(), strike.number)

    sys.addaudithook(hook)
    os.write(says, b"begun\n")


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _is_below(argument: object, root: str) -> bool:
    """A path below the folder, or relative: to it, or to an open folder as ``rmtree`` works; or an open file."""
    if isinstance(argument, (str, os.PathLike)):
        text = os.fspath(argument)
        return not os.path.isabs(text) or text.startswith(root)
    return isinstance(argument, int) and argument > 2
