"""Finds measured text that was trained on: what a model has seen says little of what it has learnt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

BLOCK = 64
"""Tokens in a row that count as the same text; a power of two. Licences and the like are rarely as long."""

LEAST = 16
"""The shortest block, for windows that are shorter than that."""

_SLICE = 2**22
"""Tokens of the training text that are looked at together."""

_BASE, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


def seen_share(measured: Iterable[Sequence[int]], trained: np.ndarray, special: Collection[int | None] = ()) -> float:
    """Returns the share of the measured tokens that stand in the training text, in runs of :data:`BLOCK` tokens.

    The measured windows are cut into blocks, each of which is looked for at every place of the training text. So it
    does not matter how either was cut into documents.

    Args:
        measured: token ids of each window that is measured.
        trained: token ids of the training text, in order, int [tokens].
        special: ids that are left out of both first, such as BOS and EOS, which packing puts in.
    """
    windows = [_without(np.asarray(each), special) for each in measured]
    size = _block(windows)
    blocks = [each[n : n + size] for each in windows for n in range(0, len(each) - size + 1, size)]
    if not blocks:
        return 0.0
    wanted = np.concatenate([rolling(each, size) for each in blocks])
    found = np.zeros(len(wanted), bool)
    text = _without(trained, special)
    for start in range(0, max(1, len(text) - size + 1), _SLICE):
        found |= np.isin(wanted, rolling(text[start : start + _SLICE + size - 1], size))
    return float(found.mean())


def rolling(ids: np.ndarray, size: int) -> np.ndarray:
    """Returns a hash of each run of ``size`` tokens, a power of two: uint64 [tokens - size + 1].

    It is a polynomial modulo 2**64, made by doubling: the hash of 2n tokens is that of the first n times B**n, plus
    that of the others.
    """
    found, done, power = (ids.astype(np.uint64) + np.uint64(1)) * _MIX, 1, _BASE
    found ^= found >> np.uint64(29)
    with np.errstate(over="ignore"):
        while done < size and len(found) > done:
            found, power = found[:-done] * power + found[done:], power * power
            done *= 2
    return found if done == size else found[:0]


def _block(windows: Sequence[np.ndarray]) -> int:
    """Returns the size of a block: a power of two that the shortest window holds."""
    shortest = min(map(len, windows), default=0)
    return min(BLOCK, max(LEAST, 1 << max(0, shortest.bit_length() - 1)))


def _without(ids: np.ndarray, special: Collection[int | None]) -> np.ndarray:
    left_out = [each for each in special if each is not None]
    return ids[~np.isin(ids, left_out)] if left_out else ids
