"""Keeps what is tested off the network, off a display and out of colours, unless the environment says otherwise.

It is imported before anything that imports a library, which reads these once.
"""

from __future__ import annotations

import os
import tempfile

for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    "NO_COLOR": "1",
    "XDG_CACHE_HOME": tempfile.mkdtemp(prefix="ropescale-tests-"),
}.items():
    os.environ.setdefault(_name, _value)
