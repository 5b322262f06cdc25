"""Makes a program fail at every step that it takes on the disk, by an exception or by SIGKILL, and counts the steps.

Python's audit events (PEP 578) name every open, mkdir, link, rename and remove before it happens, so nothing in the
program has to be known or replaced.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

_armed: dict[str, Any] = {"fail": None, "left": 0, "root": ""}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed["fail"] is None or not event.startswith(("open", "os.", "shutil.", "tempfile.")):
        return
    if not any(_is_ours(argument) for argument in arguments[:2]):
        return
    _armed["left"] -= 1
    if _armed["left"] == 0:
        fail, _armed["fail"] = _armed["fail"], None
        fail()


def _is_ours(argument: Any) -> bool:
    """A path below the watched folder, or relative to an open one (as ``rmtree`` works)."""
    if not isinstance(argument, (str, os.PathLike)):
        return False
    text = os.fspath(argument)
    return text.startswith(_armed["root"]) or not os.path.isabs(text)


sys.addaudithook(_hook)


def fail_at(step: int, root: Path, act: Callable[[], Any], fail: Callable[[], None]) -> bool:
    """Runs ``act``; ``fail`` is called just before its ``step``-th step below ``root``. False if it has fewer."""
    _armed.update(fail=fail, left=step, root=str(root))
    try:
        act()
    finally:
        reached = _armed["fail"] is None
        _armed["fail"] = None
    return reached


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """A stand-in for any function, which raises."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error

    return fail


def lasting(calls: int, error: BaseException) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps functions, which work so many times in all, and raise from then on."""
    left = iter(range(calls))

    def wrapped(act: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if next(left, None) is None:
                raise error
            return act(*given, **named)

        return run

    return wrapped


def failures(root: Path, act: Callable[[], Any], error: BaseException) -> Iterator[BaseException | None]:
    """Raises ``error`` at step 1, 2, ... of ``act`` until it has no more steps; yields what came out each time.

    A KeyboardInterrupt comes as the signal that it stands for, which may be deferred.
    """
    signalled = isinstance(error, KeyboardInterrupt)
    fail = (lambda: signal.raise_signal(signal.SIGINT)) if signalled else raising(error)
    for step in count(1):
        try:
            if not fail_at(step, root, act, fail):
                return
            yield None
        except (type(error), Exception) as raised:
            yield raised


def kills(root: Path, act: Callable[[], Any], first: int = 1, every: int = 1) -> Iterator[int]:
    """Forks, and kills the child at step 1, 2, ... of ``act`` until it lives to the end; yields each step.

    Args:
        first, every: to take only some of the steps.
    """
    for step in count(first, every):
        child = os.fork()
        if child == 0:
            fail_at(step, root, act, lambda: os.kill(os.getpid(), signal.SIGKILL))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return
        yield step


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Asserts that the block leaves every file below a folder as it was."""
    before = tree(folder)
    yield
    assert tree(folder) == before


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder: its permissions and the sha256 of its bytes, or where it links to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = f"{path.stat().st_mode:o} {digest}"
        else:
            found[name] = "folder"
    return found
