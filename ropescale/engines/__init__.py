"""What each serving engine computes for a schedule, one module per engine.

A module says what its engine does *otherwise* than asked, and how that is known. The warnings of ``ropescale patch``,
the model card and the parity table of ``ropescale export`` are views of those facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..planning.plan import Plan
from . import llama_cpp, mlx_lm, sglang, transformers4, transformers5, vllm
from .facts import Engine, Layers, layers_of, sentence

ENGINES: tuple[Engine, ...] = (vllm, sglang, llama_cpp, mlx_lm, transformers5, transformers4)
"""In the order in which their warnings are told."""


def engine_warnings(plan: Plan) -> list[str]:
    """One sentence per difference, with the engines it holds for; empty where all compute what was asked."""
    subjects: dict[str, list[str]] = {}
    for layers in layers_of(plan):
        for who, text in _sentences(layers):
            subjects.setdefault(text, [])
            subjects[text] += [who] if who not in subjects[text] else []
    return [sentence(who, text) for text, who in subjects.items()]


def _sentences(layers: Layers) -> Iterator[tuple[str, str]]:
    for engine in ENGINES:
        for found in engine.differences(layers):
            if found.warning:
                yield found.who or engine.NAME, found.warning
