"""llama.cpp: what its converter writes into the GGUF, what its flags can say, and what ``ropescale gguf`` writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Literal

from ..gguf_architectures import OWN_SOFTMAX_SCALE, SLIDING_SHARES_SCALE, TAKES_FREQS, TAKES_LISTS
from ..rope import ALL_LAYERS
from ..schedules.yarn import temperature
from .facts import Difference, How, Layers
from .parity import attention_factor
from .serving import Command, Serving, compact, shell

NAME, VERSION = "llama.cpp", "in llama-cpp-python 0.3.36"

CARRIES_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
"""Types for which the converter writes per-pair factors from a longrope configuration."""

CARRIES_LLAMA3 = tuple(
    "apertus arcee exaone4 exaone_moe granite granitemoe granitemoehybrid llama llama4_text mistral".split()
)
"""Types whose architecture rotates by the ``rope_freqs`` that the converter writes for llama3.

Falcon-H1's loads them too, and rotates without them.
"""

_ARCHITECTURES = {
    **dict.fromkeys(("llama", "mistral", "mixtral"), "llama"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), "deepseek2"),
    "exaone_moe": "exaone-moe",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granitemoehybrid": "granitehybrid",
    "llama4_text": "llama4",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    **{name: name for name in "apertus arcee exaone4 falcon gemma gemma2 glm4 granite granitemoe minicpm".split()},
    **{name: name for name in "minicpm3 nemotron olmo olmo2 phi3 phimoe qwen2 qwen3 stablelm starcoder2".split()},
}
"""What GGUF files call the architecture of a model type, where it is known here."""

FLAGS = {"default": "none", "linear": "linear", "yarn": "yarn"}
"""Rope types that the command line can say, and what it calls them."""

_RUN = ("frequencies", "theta", "factor", "original length", "beta_fast", "beta_slow", "truncate", "attention factor")
_RUN += ("low_freq_factor", "high_freq_factor", "partial_rotary_factor")


def how(layers: Layers, field: str) -> How:
    """A Llama was run with these flags and with the tables of ``ropescale gguf``; of other architectures code was read.

    The way of the flags is the same for every architecture. ``--override-kv`` was not run, the key that it sets was.
    """
    overridden = field == "attention factor" and layers.kind == "yarn" and bool(_attention(layers))
    return "run" if architecture(layers) == "llama" and field in _RUN and not overridden else "source"


def architecture(layers: Layers) -> str | None:
    """What a GGUF file calls this type of model; None where that is not known here."""
    return _ARCHITECTURES.get(layers.model_type)


def spelled(serving: Serving) -> Serving:
    """llama.cpp has no spelling of its own."""
    return serving


def serve(serving: Serving) -> list[Command]:
    """``llama-server`` with flags where they can say it, else with a GGUF that ``ropescale gguf`` writes."""
    name = PurePath(serving.model).name
    gguf, made = f"{PurePath(serving.source or serving.model).name}.gguf", f"{name}-{serving.length}.gguf"
    route = _route(serving)
    made_of = f"{gguf} is what llama.cpp's convert_hf_to_gguf.py makes of {serving.source or serving.model}"
    if route == "table":
        write = shell("ropescale", "gguf", gguf, "-o", made, *_spec(serving))
        return [Command("sh", write, made_of), Command("sh", _server(serving, made))]
    told = flags(serving) or []
    return [Command("sh", _server(serving, gguf, *told), made_of)] if route else []


def _server(serving: Serving, gguf: str, *told: str) -> str:
    return shell("llama-server", "-m", gguf, "-c", str(serving.length), *told)


def _spec(serving: Serving) -> tuple[str, ...]:
    """The options of ``ropescale gguf``: the schedule by its name, else the one list that the configuration has."""
    layers = serving.layers[0]
    if serving.spec or layers.kind != "longrope" or layers.changes_with_length:
        return serving.spec
    factors, scale = list(layers.parameters["long_factor"]), attention_factor(layers)
    table = compact({"name": "table", "factors": factors, "attention_factor": scale})
    makers = ("--replace-scaling",) if serving.is_written and serving.source is None else ()
    return ("--schedule", table, "--target-length", str(serving.length), *makers)


def _route(serving: Serving) -> Literal["flags", "table", "converted"] | None:
    """How llama.cpp comes to know the schedule; None where it cannot."""
    changed = [layers for layers in serving.layers if layers.kind != "default"]
    said, tabled = flags(serving) is not None, bool(_spec(serving)) and all(map(_takes_table, changed))
    if said and not (tabled and any(layers.parameters.get("truncate") is False for layers in changed)):
        return "flags"
    if tabled:
        return "table"
    lost = [found for layers in changed for found in differences(layers) if found.field == "frequencies"]
    return None if lost else "converted"


def way_out(layers: Layers) -> str:
    """What to do where it cannot be served."""
    if layers.kind == "dynamic":
        return "freeze it at a length (--freeze-at N), or use yarn"
    return "use yarn, linear or another rope_theta (ntk, abf), which it has for every architecture"


def flags(serving: Serving) -> list[str] | None:
    """The rotary part of a llama.cpp command line; None where it has no words for this."""
    layers = next((each for each in serving.layers if each.kind != "default"), serving.layers[0])
    if layers.kind not in FLAGS or not _reached_alone(serving, layers):
        return None
    parameters = layers.parameters
    if layers.kind == "default":
        return ["--rope-freq-base", f"{parameters['rope_theta']:.10g}"]
    told = ["--rope-scaling", FLAGS[layers.kind], "--rope-scale", f"{parameters['factor']:.10g}"]
    if layers.kind == "linear":
        return told
    return [*told, "--yarn-orig-ctx", str(layers.rope.original_length), *_betas(parameters), *_attention(layers)]


def _betas(parameters: Mapping[str, Any]) -> list[str]:
    """The flags of a ramp that is not llama.cpp's own, 32 to 1."""
    usual = {"--yarn-beta-fast": ("beta_fast", 32.0), "--yarn-beta-slow": ("beta_slow", 1.0)}
    given = {flag: parameters.get(key) or default for flag, (key, default) in usual.items()}
    return [word for flag, value in given.items() if value != usual[flag][1] for word in (flag, f"{value:.10g}")]


def _reached_alone(serving: Serving, layers: Layers) -> bool:
    """Whether the flags reach the layers that they are meant for and no others."""
    if layers.key == ALL_LAYERS:
        return True
    others = [each.kind for each in serving.layers if each.key != layers.key]
    reached = layers.key == "full_attention" and architecture(layers) in SLIDING_SHARES_SCALE
    return reached and layers.kind != "default" and set(others) <= {"default"}


def _attention(layers: Layers) -> list[str]:
    """An attention factor other than ``0.1 ln s + 1``, which no flag of its own carries: the metadata key does."""
    correction = _correction(layers)
    if math.isclose(correction, 1) or not _takes_correction(layers):
        return []
    return ["--override-kv", f"{architecture(layers)}.rope.scaling.attn_factor=float:{correction:.10g}"]


def _correction(layers: Layers) -> float:
    return attention_factor(layers) / temperature(layers.parameters["factor"])


def _takes_correction(layers: Layers) -> bool:
    known = architecture(layers)
    return known is not None and known not in OWN_SOFTMAX_SCALE and layers.key == ALL_LAYERS


def _takes_table(layers: Layers) -> bool:
    """Whether ``ropescale gguf`` can write this as one frequency per pair, or as the two lists."""
    if layers.key != ALL_LAYERS or layers.kind == "dynamic":
        return False
    return architecture(layers) in (TAKES_LISTS if layers.changes_with_length else TAKES_FREQS | TAKES_LISTS)


def served(serving: Serving, layers: Layers) -> Iterator[Difference]:
    """What remains otherwise with the commands that :func:`serve` gives."""
    route = _route(serving)
    for found in differences(layers):
        told = found.field.startswith("beta") or (found.field == "attention factor" and bool(_attention(layers)))
        if not (route == "table" and found.field != "switch") and not (route == "flags" and told):
            yield found


def differences(layers: Layers) -> Iterator[Difference]:
    """What llama.cpp does otherwise for this kind of layer, when the folder is converted to GGUF."""
    of_kind = _BY_KIND.get(layers.kind)
    if of_kind is not None:
        yield from of_kind(layers)


def _longrope(layers: Layers) -> Iterator[Difference]:
    if layers.model_type not in CARRIES_LISTS:
        text = "its converter drops per-pair factors for this architecture, silently leaving base RoPE"
        yield Difference("frequencies", "dropped", "base RoPE", text)
    if layers.changes_with_length:
        text = "choose{s} the short or the long list once, by the engine's maximum length"
        yield Difference("switch", "recomputed", "once, by the context's size (-c)", text)


def _yarn(layers: Layers) -> Iterator[Difference]:
    parameters = layers.parameters
    usual = temperature(parameters["factor"])
    scale = parameters.get("attention_factor", usual)
    if scale != usual:
        text = f"recompute{{s}} the attention factor ({usual:.4g} instead of {scale:.4g})"
        yield Difference("attention factor", "recomputed", f"{usual:.6g}", text)
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        text = "recomputes the attention factor from mscale_all_dim"
        yield Difference("attention factor", "recomputed", "from mscale_all_dim", text)
    if not parameters.get("truncate", True):
        yield Difference("truncate", "dropped", "true", "always round{s} the ramp to whole pairs (truncate = true)")
    if _betas(parameters):
        text = f"takes other betas from its flags only ({' '.join(_betas(parameters))})"
        yield Difference("beta_fast", "recomputed", "32", text)
        yield Difference("beta_slow", "recomputed", "1")


def _dynamic(layers: Layers) -> Iterator[Difference]:
    yield Difference("frequencies", "dropped", "base RoPE", "has no dynamic scaling and uses base RoPE")


def _llama3(layers: Layers) -> Iterator[Difference]:
    if layers.model_type not in CARRIES_LLAMA3:
        text = "does not apply llama3 scaling to this architecture and uses base RoPE"
        yield Difference("frequencies", "dropped", "base RoPE", text)
    elif layers.is_partial:
        head, turning = layers.rope.head_dim, layers.rope.rotary_dim
        text = f"its converter spreads llama3 scaling over all {head} coordinates of a head, though {turning} rotate"
        yield Difference("frequencies", "recomputed", f"over {head} coordinates instead of {turning}", text)


def _proportional(layers: Layers) -> Iterator[Difference]:
    if layers.parameters.get("factor", 1) != 1:
        yield Difference("factor", "dropped", "1", "ignore{s} the factor of proportional RoPE")
    if not layers.was_made_proportional:  # no converter expects it then
        text = "does not know proportional RoPE for this architecture"
        yield Difference("frequencies", "unsupported", "the converter stops", text)


_BY_KIND = {
    "longrope": _longrope,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "proportional": _proportional,
}
