"""What each serving engine computes for a schedule, one module per engine.

A module says what its engine does *otherwise* than asked, and how that is known. The warnings of ``ropescale patch``,
the model card and the parity table of ``ropescale export`` are views of those facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..plans import Plan
from . import llama_cpp, mlx_lm, sglang, transformers4, transformers5, vllm
from .facts import Engine, Layers, layers_of

ENGINES: tuple[Engine, ...] = (vllm, sglang, llama_cpp, mlx_lm, transformers5, transformers4)
"""In the order in which their warnings are told."""


def engine_warnings(plan: Plan) -> list[str]:
    """One sentence per difference, with the engines it holds for; empty where all compute what was asked."""
    subjects: dict[str, list[str]] = {}
    for layers in layers_of(plan):
        for who, sentence in _sentences(layers):
            subjects.setdefault(sentence, [])
            subjects[sentence] += [who] if who not in subjects[sentence] else []
    return [f"{_joined(who)}: {sentence.format(**_FORMS[len(who) > 1])}" for sentence, who in subjects.items()]


_FORMS = {False: {"s": "s", "ies": "ies", "self": " itself"}, True: {"s": "", "ies": "y", "self": " themselves"}}
"""How a verb ends, and what refers back, for one engine and for several."""


def _sentences(layers: Layers) -> Iterator[tuple[str, str]]:
    for engine in ENGINES:
        for found in engine.differences(layers):
            if found.warning:
                yield found.who or engine.NAME, found.warning


def _joined(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
