"""The reference model: a small real Llama in the package, and the text to measure it on.

``python -m ropescale.evals.reference --taught -o OUT`` writes the model with the small adapter that was trained to
answer ``ropescale retrieval``.

The text is the source of the running Python's own standard library. Every Python installation has it, so no text is
committed. A fixed list of modules is held out of training for evaluation; each is long, lies outside ``test/`` (many
distributions leave that out) and is present in every supported Python. The text differs a little between Python
versions, so results carry its hash.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

CHECKPOINT = Path(__file__).parent / "llama-3.5m-stdlib"
"""The folder of the trained checkpoint: bf16 safetensors, configuration, tokenizer, model card."""

PASSKEY = Path(__file__).parent / "llama-3.5m-stdlib-passkey"
"""The folder of the adapter that was trained to answer: PEFT's configuration, float32 safetensors, card."""

FOUND = Path(__file__).parent / "found-2048.json"
"""The result of ``ropescale search`` for 2,048 tokens (by gradient, seed 0, 500,000 tokens): a file for
``--schedule``."""

HELD_OUT = (
    "argparse.py",
    "bdb.py",
    "configparser.py",
    "dataclasses.py",
    "difflib.py",
    "doctest.py",
    "fractions.py",
    "ftplib.py",
    "functools.py",
    "http/client.py",
    "http/cookiejar.py",
    "imaplib.py",
    "inspect.py",
    "ipaddress.py",
    "logging/handlers.py",
    "mailbox.py",
    "optparse.py",
    "pickletools.py",
    "plistlib.py",
    "shutil.py",
    "smtplib.py",
    "statistics.py",
    "subprocess.py",
    "tarfile.py",
    "unittest/mock.py",
    "xml/dom/minidom.py",
)
"""Paths inside the standard library that are never trained on."""


def held_out_documents() -> list[str]:
    """Reads the held-out modules, one document each, in :data:`HELD_OUT`'s order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [(root / name).read_text(encoding="utf-8") for name in HELD_OUT]
