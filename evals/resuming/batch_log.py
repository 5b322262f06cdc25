"""The log of a pass: its finished batches as records with checksums, one after the other.

A record counts when its checksum is right; what a kill cut off in the middle ends the log.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scored:
    """The numbers of a batch.

    Attributes:
        nll: of its scored tokens in nats, window after window, fp32; of a comparison, see
            :meth:`ropescale.evals.scoring.executor.Executor.compare`.
        parts: in how many parts it was fed; more than 1 where it did not fit into memory.
    """

    nll: np.ndarray
    parts: int = 1


MAGIC = b"RSB1"
_HEADER = struct.Struct("<4sIIII")
"""Magic, batch number, parts, how many values, and the crc32 of the other three and the values."""


def record(number: int, scored: Scored) -> bytes:
    """Returns a batch as bytes: a header with a checksum, then its NLLs as little-endian fp32."""
    values = np.ascontiguousarray(scored.nll, "<f4").tobytes()
    fields = (number, scored.parts, len(scored.nll))
    return _HEADER.pack(MAGIC, *fields, _checksum(fields, values)) + values


def records(content: bytes) -> tuple[dict[int, Scored], int]:
    """Reads the batches of a log up to the first record that is not whole, and how many bytes they take."""
    found: dict[int, Scored] = {}
    at = 0
    while at + _HEADER.size <= len(content):
        magic, number, parts, count, checksum = _HEADER.unpack_from(content, at)
        values = content[at + _HEADER.size : at + _HEADER.size + 4 * count]
        if magic != MAGIC or len(values) < 4 * count or checksum != _checksum((number, parts, count), values):
            break
        found[number] = Scored(np.frombuffer(values, "<f4").astype(np.float32), parts)
        at += _HEADER.size + len(values)
    return found, at


def _checksum(fields: tuple[int, int, int], values: bytes) -> int:
    return zlib.crc32(values, zlib.crc32(struct.pack("<III", *fields)))
