"""The serving engines, and how each computes a schedule. An engine is a module here and a line of the registry.

Each module lists the differences between the requested schedule and what its engine computes. The warnings of
``ropescale patch``, the model card and the table of ``ropescale export`` are derived from these lists.
"""

from collections.abc import Mapping
from importlib import import_module

from ..planning.plan import Plan
from .base import Difference, Engine, layers_of

_MODULES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama.cpp": "llama_cpp",
    "mlx-lm": "mlx_lm",
    "transformers5": "transformers5",
    "transformers4": "transformers4",
}

ENGINES: Mapping[str, Engine] = {
    name: import_module(f".{module}", __name__).ENGINE for name, module in _MODULES.items()
}
"""The engines by command-line name, in the order of their warnings."""


def deviations(engine: Engine, plan: Plan) -> list[Difference]:
    """Returns the differences for the fields that an engine does not honour, in a folder patched by a plan."""
    return [each for layers in layers_of(plan) for each in engine.differences(layers) if each.status != "honoured"]
