"""Estimates how long an arm takes, from figures that were measured on one core.

Measured on an AMD EPYC with AVX512 bf16, the reference model, one thread, process time: a step of 4,096 tokens in
bfloat16 took 1.00 s in windows of 256 and 1.58 s in windows of 2,048; a pass in float32 is a third of a step in
float32, 1.41 s and 2.16 s. Both grow linearly with the length of a window, as attention does.
"""

from __future__ import annotations

_SHORT, _LONG, _TOKENS = 256, 2048, 4096
_TRAINING, _SCORING = (1.00, 1.58), (1.41 / 3, 2.16 / 3)
"""Seconds for so many tokens in short windows, and in long ones."""


def training(tokens: float, length: int) -> float:
    """Returns the seconds of training on so many tokens in windows of ``length`` positions."""
    return tokens * _per_token(_TRAINING, length)


def scoring(tokens: float, length: int) -> float:
    """Returns the seconds of scoring so many tokens in windows of ``length`` positions."""
    return tokens * _per_token(_SCORING, length)


def _per_token(measured: tuple[float, float], length: int) -> float:
    short, long = measured
    return (short + (long - short) * (length - _SHORT) / (_LONG - _SHORT)) / _TOKENS
