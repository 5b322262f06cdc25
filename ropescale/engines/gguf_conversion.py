"""llama.cpp's converter and how convert_hf_to_gguf.py translates a configuration into a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..checkpoints.metadata.record import softmax_factor
from ..configs.class_defaults import ALL_LAYERS
from ..gguf import architectures as known
from ..schedules.yarn import temperature
from .base.differences import Difference, always_truncates, base_rope, ignores_factor, recomputed_scale, stops
from .base.layers import Layers

CARRIES_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
"""Types for which the converter writes per-pair factors from a longrope configuration."""

CARRIES_LLAMA3 = tuple(
    "apertus arcee exaone4 exaone_moe granite granitemoe granitemoehybrid llama llama4_text mistral".split()
)
"""Types whose architecture rotates by the ``rope_freqs`` that the converter writes for llama3.

Falcon-H1's loads them too, and rotates without them.
"""


def architecture(layers: Layers) -> str | None:
    """Returns the architecture of this model type in a GGUF file; None if unknown."""
    of_wrapper = known.OF_WRAPPERS.get(layers.whole_type, {})
    return of_wrapper.get(layers.model_type) or known.OF_MODEL_TYPES.get(layers.model_type)


def converted(layers: Layers) -> Iterator[Difference]:
    """Yields the differences of llama.cpp for this kind of layer, when the folder is converted to GGUF."""
    if layers.kind in _BY_KIND:
        yield from _BY_KIND[layers.kind](layers)


def _longrope(layers: Layers) -> Iterator[Difference]:
    if layers.model_type not in CARRIES_LISTS:
        lost = "its converter drops per-pair factors for this architecture, silently leaving base RoPE"
        yield base_rope(f"{lost}; {_instead(layers)}")
    if layers.changes_with_length:
        text = "choose{s} the short or the long list once, by the engine's maximum length"
        yield Difference("switch", "recomputed", "once, by the context's size (-c)", text)


def _instead(layers: Layers) -> str:
    """Returns the advice for a table that the converter drops."""
    name = architecture(layers)
    table = known.TAKES_LISTS if layers.changes_with_length else known.TAKES_FREQS | known.TAKES_LISTS
    if name in table and layers.key == ALL_LAYERS:
        return "`ropescale gguf` puts them into a GGUF file (`ropescale export --for llama.cpp` has the command)"
    return "`ropescale export --for llama.cpp` says what it can be told"


def _yarn(layers: Layers) -> Iterator[Difference]:
    parameters = layers.parameters
    asked, computed = layers.attention_factor, converted_attention_factor(layers)
    if not math.isclose(asked, computed, rel_tol=1e-6):
        found = recomputed_scale(asked, computed)
        yield replace(found, warning=f"{found.warning}; {_HAS_IT}") if takes_correction(layers) else found
    yield from converted_softmax_scale(layers, _log_multiplier(layers))
    if not layers.is_truncated:
        yield always_truncates()
    if betas_told(parameters) and architecture(layers) not in known.READS_BETAS:
        text = f"takes other betas from its command line only; {_HAS_IT}"
        yield Difference("beta_fast", "recomputed", "32", text)
        yield Difference("beta_slow", "recomputed", "1")


_HAS_IT = "`ropescale export --for llama.cpp` has the options"


def takes_correction(layers: Layers) -> bool:
    """Whether ``--override-kv`` can correct the attention factor."""
    name = architecture(layers)
    alone = layers.key == ALL_LAYERS or name in known.SLIDING_SHARES_THETA
    return name is not None and name not in known.OWN_SOFTMAX_SCALE and alone


def _log_multiplier(layers: Layers) -> float:
    """Returns ``mscale_all_dim`` as llama.cpp reads it from a file that the converter made."""
    reads = architecture(layers) in known.READS_LOG_MULTIPLIER
    return float(layers.parameters.get("mscale_all_dim") or 0.0) if reads else 0.0


def converted_attention_factor(layers: Layers) -> float:
    """Returns the multiplier of cos and sin under yarn in a converted file (llama-context.cpp)."""
    factor, under = layers.parameters["factor"], _log_multiplier(layers)
    if not under:
        return temperature(factor)
    over = under if architecture(layers) == "deepseek2" and under != 1 else 1.0
    return temperature(factor, over) / temperature(factor, under)


def converted_softmax_scale(layers: Layers, multiplier: float) -> Iterator[Difference]:
    """Yields the differences in the softmax scale of DeepSeek's attention (deepseek2.cpp).

    ``multiplier`` is the file's log multiplier.
    """
    asked, computed = asked_softmax_factor(layers), own_softmax_factor(layers, multiplier)
    if math.isclose(asked, computed, rel_tol=1e-6):
        return
    if computed == 1:
        text = f"leaves out the softmax scale that mscale_all_dim asks for in {layers.model_type}"
        yield Difference("softmax scale", "dropped", "1", text)
    else:
        text = f"derives a softmax scale of its own from the scaling factor ({computed:.4g} instead of {asked:.4g})"
        yield Difference("softmax scale", "recomputed", f"{computed:.6g}", text)


def asked_softmax_factor(layers: Layers) -> float:
    return softmax_factor(replace(layers.rope, scaling=layers.parameters)) if layers.is_mla else 1.0


def own_softmax_factor(layers: Layers, multiplier: float) -> float:
    """Returns ``(a (1 + 0.1 m ln s))^2``: m the log multiplier, a the attention factor (0.1 ln s + 1 under linear)."""
    if architecture(layers) not in known.OWN_SOFTMAX_SCALE or layers.kind not in ("linear", "yarn"):
        return 1.0
    factor = layers.parameters["factor"]
    own = converted_attention_factor(layers) if multiplier else temperature(factor)
    return (own * temperature(factor, multiplier)) ** 2


def _dynamic(layers: Layers) -> Iterator[Difference]:
    yield base_rope("has no dynamic scaling and uses base RoPE")


def _llama3(layers: Layers) -> Iterator[Difference]:
    if layers.model_type not in CARRIES_LLAMA3:
        yield base_rope("does not apply llama3 scaling to this architecture and uses base RoPE")
    elif layers.is_partial:
        head, turning = layers.rope.head_dim, layers.rope.rotary_dim
        text = f"its converter spreads llama3 scaling over all {head} coordinates of a head, though {turning} rotate"
        yield Difference("frequencies", "recomputed", f"over {head} coordinates instead of {turning}", text)


def _proportional(layers: Layers) -> Iterator[Difference]:
    if layers.parameters.get("factor", 1) != 1:
        yield ignores_factor()
    if not layers.is_proportional_by_default:  # then no converter expects it
        yield stops("does not know proportional RoPE for this architecture", "the converter stops")


_BY_KIND = {
    "linear": partial(converted_softmax_scale, multiplier=0.0),
    "longrope": _longrope,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "proportional": _proportional,
}


def betas_told(parameters: Mapping[str, float]) -> list[str]:
    """Returns the flags of a ramp that is not llama.cpp's own, 32 to 1."""
    usual = {"--yarn-beta-fast": ("beta_fast", 32.0), "--yarn-beta-slow": ("beta_slow", 1.0)}
    given = {flag: parameters.get(key) or default for flag, (key, default) in usual.items()}
    return [word for flag, value in given.items() if value != usual[flag][1] for word in (flag, f"{value:.10g}")]
