"""a curve of 16 lengths, against transcriptions of published scripts.

The transcriptions use stock transformers: whole logits, one length after the other. "Off by" is against the mean over
all tokens of the same windows, each once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import models
import sides

LENGTHS = list(range(128, 2049, 128))
SLIDE = 256

Windows = Callable[[int, int], Iterator[tuple[int, int, int]]]
"""From the tokens and the length to windows: start, stop, and the first token whose loss counts."""


def truncated(tokens: int, length: int) -> Iterator[tuple[int, int, int]]:
    """jquesnelle/yarn, eval/perplexity.py with --truncate: the first L tokens, so one window."""
    yield 0, min(tokens, length), 0


def sliding(tokens: int, length: int) -> Iterator[tuple[int, int, int]]:
    """microsoft/LongRoPE, and YaRN's without --truncate: windows of L that slide by 256 over the whole text."""
    yield from _slid(tokens, length, SLIDE)


def guide(tokens: int, length: int) -> Iterator[tuple[int, int, int]]:
    """The Hugging Face guide to perplexity: windows of L, 512 apart (or L, where that is less)."""
    yield from _slid(tokens, length, min(512, length))


def _slid(tokens: int, length: int, step: int) -> Iterator[tuple[int, int, int]]:
    before = 0
    for start in range(0, tokens, step):
        stop = min(start + length, tokens)
        yield start, stop, before
        before = stop
        if stop == tokens:
            return


def by_script(model: Any, ids: list[int], windows: Windows, weigh: bool) -> dict[int, float]:
    """Returns the mean loss at each length; ``weigh`` weighs windows by their tokens, as the guide does since 2025."""
    import torch

    found = {}
    for length in LENGTHS:
        losses, weights = [], []
        for start, stop, first in windows(len(ids), length):
            fed = torch.tensor([ids[start:stop]])
            labels = fed.clone()
            labels[:, : first - start] = -100
            with torch.no_grad():
                losses.append(float(model(fed, labels=labels).loss))
            weights.append(float((labels[:, 1:] != -100).sum()) if weigh else 1.0)
        found[length] = sum(a * b for a, b in zip(losses, weights, strict=True)) / sum(weights)
    return found


def lost(tokens: int, length: int, windows: Windows) -> int:
    """Returns how many tokens a script never scores: ``labels`` are shifted, so a window's first one has no loss."""
    scored = {token for start, stop, first in windows(tokens, length) for token in range(max(first, start + 1), stop)}
    return tokens - 1 - len(scored)


def measure(seconds: float) -> list[sides.Row]:
    """Returns the ratios, and how far each script's figure is from the exact one for its windows."""
    from ropescale.evals import perplexity

    model, documents = models.reference()
    ids = documents[0][: LENGTHS[-1]]
    scripts = {
        "YaRN's script, truncated": (truncated, False),
        "YaRN's and LongRoPE's, sliding by 256": (sliding, False),
        "the Hugging Face guide, 512 apart": (guide, True),
    }
    acts: dict[str, sides.Act] = {"ropescale": lambda: perplexity(model, [ids], LENGTHS)}
    for name, (windows, weigh) in scripts.items():
        acts[name] = lambda windows=windows, weigh=weigh: by_script(model, ids, windows, weigh)
    perplexity(model, [ids[:256]], [128])  # warms up
    rows = sides.ratios(sides.in_turn(acts, seconds, sides.cpu, warm=False), "ropescale")
    for name, (windows, weigh) in scripts.items():
        rows.append(_right(name, model, ids, windows, weigh))
    return rows


def _right(name: str, model: Any, ids: list[int], windows: Windows, weigh: bool) -> sides.Row:
    """Returns the largest error of a script in the perplexity, beside the token-weighted mean over all its tokens."""
    script = by_script(model, ids, windows, weigh)
    off = {length: math.exp(script[length] - exact(model, ids, windows, length)) - 1 for length in LENGTHS}
    worst = max(off, key=lambda length: abs(off[length]))
    missing = {
        length: lost(min(len(ids), length) if windows is truncated else len(ids), length, windows) for length in off
    }
    few = max(missing, key=lambda length: missing[length])
    left = (
        f"of {len(ids) - 1:,} tokens it never scores {missing[few]:,} at {few:,}" if missing[few] else "all are scored"
    )
    said = f"largest, at {worst:,}; {left}"
    return sides.Row(f"{name}: its perplexity, off by", 100 * off[worst], unit="%", note=said)


def exact(model: Any, ids: list[int], windows: Windows, length: int) -> float:
    """Returns the mean over every token but the first, each scored in the first window that has it with one before."""
    import torch

    total, seen = 0.0, set()
    for start, stop, first in windows(len(ids), length):
        wide = max(0, start - 1)  # one token more in front, so that none is lost between two windows
        with torch.no_grad():
            logits = model(torch.tensor([ids[wide:stop]])).logits[0, :-1].double().log_softmax(1)
        for token in range(max(first, wide + 1), stop):
            if token not in seen:
                seen.add(token)
                total -= float(logits[token - wide - 1, ids[token]])
    return total / len(seen)
