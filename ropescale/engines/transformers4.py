"""transformers 4: what its versions read from the v4 keys (``rope_theta``, ``rope_scaling``) that are written."""

from __future__ import annotations

from collections.abc import Iterator

from ..rope import ALL_LAYERS
from .facts import Difference, How, Layers
from .serving import Command, Serving, snippet

NAME, VERSION = "transformers 4", "4.51.3, 4.57.1"

REFUSES_LISTS = ("olmo", "olmo2")
IGNORES_LISTS = ("nemotron",)


RUN = frozenset(
    "cohere deepseek_v2 falcon gemma gemma2 gpt_neox granite llama mistral mixtral olmo2 phi3 qwen2 qwen3 stablelm "
    "starcoder2".split()
)
"""Types whose rotary modules tests build in those versions; of the others the shared code was read."""


def how(layers: Layers, field: str) -> How:
    """The rotary modules of some types are built and compared; it has no maximum length to run into."""
    return "source" if field == "max length" or layers.model_type not in RUN else "run"


def serve(serving: Serving) -> list[Command]:
    """``from_pretrained``, with v4's keys where the folder does not hold them."""
    changed = serving.changes()
    v4 = {key: value for key, value in changed.items() if key != "rope_parameters"}
    return [Command("python", snippet(serving, v4 if not serving.is_written else {}))]


def differences(layers: Layers) -> Iterator[Difference]:
    """What transformers 4 does otherwise for this kind of layer."""
    parameters = layers.parameters
    yield from _today(layers)
    if layers.kind == "longrope" and list(parameters["short_factor"]) != list(parameters["long_factor"]):
        yield _before("4.45.2", "switch", "the long list, always", "always use{s} the long list", "transformers 4.45")
    if layers.kind == "yarn":
        text = "puts max_position_embeddings into the ramp; use 4.51 or later"
        yield _before("4.45.2", "original length", "max_position_embeddings", text, "transformers before 4.51")


def _before(version: str, field: str, computes: str, warning: str, who: str) -> Difference:
    """What only older versions do: their own line, beside what the current ones do."""
    return Difference(field, "recomputed", computes, warning, who, version=version)


def _today(layers: Layers) -> Iterator[Difference]:
    kind, model_type = layers.kind, layers.model_type
    if "rope_scaling" not in layers.section or layers.key not in (ALL_LAYERS, "full_attention"):
        where = "" if layers.key == ALL_LAYERS else f" ({layers.key})"
        text = f"has no keys for a scaled {model_type}{where}; load it with transformers 5"
        yield Difference("frequencies", "unsupported", "base RoPE", text)
    elif kind == "longrope" and model_type in REFUSES_LISTS:
        text = f"refuses per-pair factors for {model_type}; load it with transformers 5"
        yield Difference("frequencies", "unsupported", "stops with an error", text)
    elif kind == "longrope" and model_type in IGNORES_LISTS:
        text = f"ignores rope_scaling for {model_type}; load it with transformers 5"
        yield Difference("frequencies", "dropped", "base RoPE", text)
    elif kind == "proportional":
        text = "does not know proportional RoPE and stops with a KeyError; load it with transformers 5"
        yield Difference("frequencies", "unsupported", "stops with a KeyError", text)


def spelled(serving: Serving) -> Serving:
    """It reads the configuration as it is written."""
    return serving


def served(serving: Serving, layers: Layers) -> Iterator[Difference]:
    """What remains otherwise with the code that :func:`serve` gives."""
    return differences(layers)


def way_out(layers: Layers) -> str:
    """What to do where it cannot be served."""
    return "load it with transformers 5"
