"""Kills what runs in a forked child, at a moment that is told by what it has stored."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable

PATIENCE = 180
"""Seconds until a child that has not ended counts as hanging."""


def struck(run: Callable[[], object], stored: Callable[[], int], least: float, after: float = 0.0) -> bool:
    """Forks, lets the child run, and kills it once so many bytes are stored, or so many seconds after.

    Returns whether it was still running.
    """
    with tempfile.TemporaryFile("w+") as log:
        child = os.fork()
        if child == 0:
            _run(run, log.fileno())
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and stored() < least:
            time.sleep(1e-4)
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        log.seek(0)
        assert code in (0, -signal.SIGKILL), log.read()
    return code != 0


def _run(run: Callable[[], object], log: int) -> None:
    """Runs it in this child and ends; the log receives the traceback of what fails or hangs."""
    code = 1
    try:
        os.nice(5)  # it must not get to its end before the other process looks
        for number in (1, 2):
            os.dup2(log, number)
        faulthandler.register(signal.SIGALRM, file=log, chain=True)  # the watchdog's thread is lost in a fork
        signal.alarm(PATIENCE)
        run()
        code = 0
    except BaseException:
        os.write(log, traceback.format_exc().encode())
    finally:
        os._exit(code)
