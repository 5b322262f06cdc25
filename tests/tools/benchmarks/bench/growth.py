"""The cost of measuring as length, vocabulary and documents grow."""

from __future__ import annotations

import random
import statistics
import time

import models
import sides


def measure(seconds: float) -> list[sides.Row]:
    """Returns costs, and the line or the power law through them."""
    return [*_lengths(seconds / 2), *_vocabularies(seconds / 4), *_documents(seconds / 4)]


def _lengths(seconds: float) -> list[sides.Row]:
    """Doubles the length while the next one is likely to fit into the time."""
    from ropescale.evals import perplexity

    model, documents = models.reference()
    text = [token for each in documents for token in each[1:]]
    perplexity(model, [text[:256]], [256])
    wall, end, found, length = 0.0, time.monotonic() + seconds, {}, 1024
    while length <= 32768 and (len(found) < 3 or time.monotonic() + 3 * wall < end):
        start = time.monotonic()
        found[length] = sides.cpu(lambda length=length: perplexity(model, [text[:length]], [length]))
        wall, length = time.monotonic() - start, 2 * length
    rows = [
        sides.Row(f"one document of {length:,} tokens", 1e3 * taken / length, unit="ms a token", note=f"{taken:.1f} s")
        for length, taken in found.items()
    ]
    start, slope, off = sides.line([*found], [1e3 * taken / length for length, taken in found.items()])
    said = f"beside {start:.3f} ms at any length; the line is off by {off:.0%} at most"
    return [*rows, sides.Row("a token costs more for each 1,024 tokens of length", 1024 * slope, unit="ms", note=said)]


def _vocabularies(seconds: float) -> list[sides.Row]:
    """Of a trunk of one layer of width 64, so that the head is nearly all."""
    from ropescale.evals import perplexity

    sizes = (8_192, 32_768, 128_256)
    shape = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 1024}
    made = {size: models.llama(vocab_size=size, **shape) for size in sizes}
    acts = {f"{size:,}": lambda size=size: perplexity(made[size], [list(range(2, 1026))], [1024]) for size in sizes}
    seen = sides.in_turn(acts, seconds, sides.cpu)
    rows = sides.ratios({f"a vocabulary of {name}": each for name, each in seen.items()}, "a vocabulary of 8,192")
    exponent = sides.slope(sizes, [statistics.median(each) for each in seen.values()])
    return [*rows, sides.Row("time grows as the vocabulary to the power of", exponent, unit="")]


def _documents(seconds: float) -> list[sides.Row]:
    """Of 64 tokens each, by a model of one layer: what is not the model's is most of it."""
    from ropescale.evals import perplexity

    model = models.llama(vocab_size=256, hidden_size=32, intermediate_size=64, max_position_embeddings=64)
    drawn, wall, end, found, count = random.Random(0), 0.0, time.monotonic() + seconds, {}, 10
    while count <= 10_000 and (len(found) < 3 or time.monotonic() + 15 * wall < end):
        texts = [[drawn.randrange(256) for _ in range(64)] for _ in range(count)]
        start = time.monotonic()
        found[count] = sides.cpu(lambda texts=texts: perplexity(model, texts, [64]))
        wall, count = time.monotonic() - start, 10 * count
    return [
        sides.Row(f"{count:,} documents of 64 tokens", 1e3 * taken / count, unit="ms a document", note=f"{taken:.2f} s")
        for count, taken in found.items()
    ]
