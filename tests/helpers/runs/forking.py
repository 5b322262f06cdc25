"""Kills what runs in a forked child, at a moment that is told by what it has stored."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def struck(run: Callable[[], object], stored: Callable[[], int], least: float, after: float = 0.0) -> bool:
    """Forks, lets the child run, and kills it once so many bytes are stored, or so many seconds after.

    Returns whether it was still running.
    """
    child = os.fork()
    if child == 0:
        os.nice(5)  # it must not get to its end before this process looks
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        run()
        os._exit(0)
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and stored() < least:
        time.sleep(1e-4)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
