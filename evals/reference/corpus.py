"""The reference model's text: the source of the running Python's own standard library.

Every Python installation has it, so no text is committed. A fixed list of modules is held out of
training for evaluation; each is long, lies outside ``test/`` (many distributions leave that out) and
is present in every supported Python. The text differs a little between Python versions, so results
carry its hash.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

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


def library_root() -> Path:
    """Returns the folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def held_out_documents() -> list[str]:
    """Reads the held-out modules, one document each, in :data:`HELD_OUT`'s order."""
    root = library_root()
    return [(root / name).read_text(encoding="utf-8") for name in HELD_OUT]
