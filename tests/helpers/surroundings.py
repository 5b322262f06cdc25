"""Keeps what is tested off the network, off a display and out of colours, unless the environment says otherwise.

It is imported before anything that imports a library, which reads these once.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading

for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    "NO_COLOR": "1",
}.items():
    os.environ.setdefault(_name, _value)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # and not one that was forked of it
        shutil.rmtree(folder, ignore_errors=True)


os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and pages would be folded to it

if "XDG_CACHE_HOME" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="ropescale-tests-")
    atexit.register(_remove, os.environ["XDG_CACHE_HOME"], os.getpid())

# tqdm's own lock is shared with forked processes: one that is killed while it holds it blocks all others for ever.
from tqdm import tqdm  # noqa: E402 (it may look at the variables above)

tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0  # no thread that may hold the lock while another forks
