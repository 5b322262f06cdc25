"""A corpus of tokens: one stream to train on, and held-out documents of one length."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

STREAM, HELD, TOKENIZER, MANIFEST = "train.u16.xz", "held.u16.xz", "tokenizer.json", "manifest.json"
MEASURED, CHOSEN_BY = "eval", "choose"
"""The documents that are measured, and those by which ``recommend``, ``search`` and validation choose."""


@dataclass(frozen=True)
class Corpus:
    """A corpus in memory.

    Attributes:
        stream: the training tokens, uint16; every file begins with token 0.
        held: the held-out documents without BOS, the measured ones first, int64 [documents, length].
        tokenizer: what encoded them.
        manifest: where everything comes from; ``held`` has package, path, tokens and copied share of each document.
    """

    stream: np.ndarray
    held: np.ndarray
    tokenizer: Tokenizer
    manifest: Mapping[str, Any]

    @property
    def starts(self) -> np.ndarray:
        """Where files begin in the stream."""
        return np.asarray(self.manifest["starts"])

    @property
    def choosing(self) -> np.ndarray:
        """The documents by which something is chosen, int64 [documents, length]."""
        return self.held[len(self.manifest["held"][MEASURED]) :]

    def measured(self, most: int) -> np.ndarray:
        """Returns the first measured documents, int64 [documents, length]."""
        return self.held[: len(self.manifest["held"][MEASURED])][:most]

    def described(self, most: int) -> list[list[Any]]:
        """Returns package, path, tokens and copied share of the first measured documents."""
        return self.manifest["held"][MEASURED][:most]

    def facts(self) -> dict[str, Any]:
        """Returns what tells one corpus from another."""
        names = ("versions", "train_tokens", "train_sha256", "held_sha256", "in_long_files")
        return {name: self.manifest[name] for name in names}


def read(folder: Path) -> Corpus:
    """Reads a corpus that :func:`write` wrote.

    Raises:
        ValueError: the files are not those of the manifest.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    stream = np.frombuffer(lzma.decompress((folder / STREAM).read_bytes()), "<u2")
    held = np.frombuffer(lzma.decompress((folder / HELD).read_bytes()), "<u2")
    for name, array in (("train", stream), ("held", held)):
        if sha256(array.tobytes()) != manifest[f"{name}_sha256"]:
            raise ValueError(f"{folder}: the {name} tokens are not those of {MANIFEST}; make the corpus again")
    documents = held.reshape(-1, manifest["held_length"]).astype(np.int64)
    return Corpus(stream, documents, Tokenizer.from_file(str(folder / TOKENIZER)), manifest)


def write(corpus: Corpus, folder: Path) -> None:
    """Writes a corpus: tokens as compressed uint16, the tokenizer, and the manifest with sizes and hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STREAM).write_bytes(packed(corpus.stream))
    (folder / HELD).write_bytes(packed(corpus.held))
    corpus.tokenizer.save(str(folder / TOKENIZER))
    files = {}
    for name in (STREAM, HELD, TOKENIZER):
        content = (folder / name).read_bytes()
        files[name] = [len(content), sha256(content)]
    manifest = json.dumps({**corpus.manifest, "files": files}, separators=(",", ":"))
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")


def packed(tokens: np.ndarray) -> bytes:
    """Compresses tokens, in a window of up to 192 MiB."""
    content = tokens.astype("<u2").tobytes()
    window = min(192 << 20, max(1 << 16, len(content)))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": window, "lc": 2, "lp": 1, "pb": 1}]
    return lzma.compress(content, format=lzma.FORMAT_XZ, filters=filters)


def sha256(content: bytes) -> str:
    """Returns the hash in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
