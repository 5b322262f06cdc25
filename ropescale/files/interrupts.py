"""Signals that end a command: handled like Ctrl-C, and deferred during steps that must not be interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a program to end: from `kill`, a scheduler, a closed terminal."""


class Terminated(KeyboardInterrupt):
    """A signal that ends the command, as an exception: whatever cleans up after Ctrl-C cleans up after it.

    Attributes:
        number: the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def terminable() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into :class:`Terminated` meanwhile, unless they are ignored (nohup).

    Not in one of several processes that a launcher started: the launcher ends them with SIGTERM while they wait for one
    another inside the communication library, where no Python code runs. Nor outside the main thread.
    """
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1") or not _in_main_thread():
        yield
        return
    with _handled([number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL], _terminate):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Defers signals until a step that must not be interrupted is done; then raises the first of them."""
    if not _in_main_thread():  # Python handles signals in that one alone
        yield
        return
    came: list[int] = []
    wanted = [number for number in (signal.SIGINT, *_ENDING) if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    try:
        with _handled(wanted, lambda number, frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _handled(numbers: list[Any], handler: Any) -> Iterator[None]:
    """Sets a handler for these signals inside the block; puts all back, even if one comes meanwhile."""
    with ExitStack() as stack:
        for number in numbers:
            stack.callback(signal.signal, number, signal.getsignal(number))
            signal.signal(number, handler)
        yield


def _terminate(number: int, frame: Any) -> None:
    raise Terminated(number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
