"""The engines: a module beside this one and a line here for each."""

from __future__ import annotations

from collections.abc import Mapping

from ..planning.plan import Plan
from . import llama_cpp, mlx_lm, sglang, transformers4, transformers5, vllm
from .differences import sentence
from .engine import Engine
from .layers import layers_of

ENGINES: Mapping[str, Engine] = {
    "vllm": vllm.ENGINE,
    "sglang": sglang.ENGINE,
    "llama.cpp": llama_cpp.ENGINE,
    "mlx-lm": mlx_lm.ENGINE,
    "transformers5": transformers5.ENGINE,
    "transformers4": transformers4.ENGINE,
}
"""The engines under the names that the command line has for them, in the order in which their warnings are told."""


def engine_warnings(plan: Plan) -> list[str]:
    """Returns one sentence per difference, with the engines it holds for; none where all compute what was asked."""
    subjects: dict[str, dict[str, None]] = {}
    for layers in layers_of(plan):
        for engine in ENGINES.values():
            for found in filter(lambda each: each.warning, engine.differences(layers)):
                subjects.setdefault(found.warning, {})[found.who or engine.name] = None
    return [sentence(list(who), text) for text, who in subjects.items()]
