"""A cache of token ids: tokenizing a gigabyte takes longer than measuring on a part of it.

One file per set of texts and tokenizer, named by a hash of both, in ``$ROPESCALE_CACHE``, or
``$XDG_CACHE_HOME/ropescale``, or ``~/.cache/ropescale``. Files are renamed into place whole, so that any number of
processes may read and write at once; a damaged one fails its checksum and is made again. The folder can be removed at
any time.
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from ...files import atomic_path, sha256
from .encoding import Encoded

LOG = logging.getLogger(__name__)

LEAST = 2**20
"""Characters below which tokenizing is so quick that a file is not worth it."""

_FORMAT = "1"
"""Raised whenever the same texts and tokenizer would be kept as something else."""


def folder() -> Path:
    """Returns the folder of the cache."""
    chosen = os.environ.get("ROPESCALE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ropescale"


def key(hashes: Sequence[str], tokenizer: object, split_special_tokens: bool) -> str | None:
    """Hashes all that the tokens of texts with these hashes depend on; None for a tokenizer without a fingerprint."""
    tokens = fingerprint(tokenizer)
    if tokens is None:
        return None
    facts = [_FORMAT, tokens, repr([("split_special_tokens", split_special_tokens)]), *hashes]
    return sha256("\n".join(facts).encode())


def fingerprint(tokenizer: object) -> str | None:
    """Hashes all the rules of a fast tokenizer of transformers; None for others, whose rules may lie in their code."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kind = type(tokenizer)
    if backend is None or not hasattr(backend, "to_str") or kind.__module__.split(".")[0] != "transformers":
        return None
    versions = [metadata.version(name) for name in ("transformers", "tokenizers")]
    return sha256("\n".join([kind.__qualname__, *versions, backend.to_str()]).encode())


def load(key: str, count: int) -> list[Encoded] | None:
    """Reads the tokens of ``count`` texts; None where they are not there, or damaged."""
    try:
        with np.load(_file(key), allow_pickle=False) as kept:
            return _cut(kept["lengths"], kept["ids"], kept["ends"], count)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        LOG.warning("%s is damaged (%s) and is made again", _file(key), error)
        return None


def save(key: str, tokens: Sequence[Encoded]) -> None:
    """Keeps tokens. Where they cannot be kept, a warning says why: the run needs no cache."""
    known = all(each.byte_ends is not None for each in tokens)
    arrays = {
        "lengths": np.array([len(each) for each in tokens], np.int64),
        "ids": np.concatenate([each.ids.astype(np.int32) for each in tokens]),
        "ends": np.concatenate([np.asarray(each.byte_ends, np.uint32) for each in tokens]) if known else np.empty(0),
    }
    try:
        path = _file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as beside, open(beside, "wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        LOG.warning("tokens cannot be kept in %s: %s", folder(), error.strerror or error)


def _file(key: str) -> Path:
    return folder() / "tokens" / f"{key}.npz"


def _cut(lengths: np.ndarray, ids: np.ndarray, ends: np.ndarray, count: int) -> list[Encoded]:
    """Cuts the tokens of all texts into those of each.

    Raises:
        ValueError: the parts do not belong together.
    """
    total = int(lengths.sum())
    if len(lengths) != count or len(ids) != total or len(ends) not in (0, total):
        raise ValueError("its parts do not belong together")
    stops = np.cumsum(lengths)
    bounds = zip(stops - lengths, stops, strict=True)
    known = len(ends) == total
    return [Encoded(ids[a:b].astype(np.int64), ends[a:b].astype(np.int64) if known else None) for a, b in bounds]
