"""llama.cpp, which receives a schedule through its converter, its options, or ``ropescale gguf``."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import ClassVar, Literal

from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import read_by_queries, unread_by_v4
from ..configs.finding import ORIGINAL
from ..gguf import architectures as known
from ..gguf.files import Value
from ..gguf.routes import refusal
from ..output.formatting import argument
from ..planning.layers import is_windowed
from ..record import softmax_factor
from ..schedules.by_parts import temperature
from . import model_code
from .base import BASE_ROPE, EVERY, Command, Difference, Engine, Layers, Serving, shell
from .model_code import is_in_transformers, load

PATH = Path(__file__).with_suffix(".json")
"""What llama.cpp's converter makes of configurations (``tests/tools/generate_llama_cpp_models.py``).

``architectures`` has the architecture of each class that it knows; ``types`` is as in ``mlx_lm.json``, with what the
file has otherwise than transformers: ``theta``, ``width``, ``scaling``, or nothing.
"""

KINDS = ("default", "linear", "yarn")
"""The rope types that every architecture supports."""

CARRIES_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
"""Model types for which the converter writes the per-pair factors of a longrope configuration."""

CARRIES_LLAMA3 = tuple(
    "apertus arcee exaone4 exaone_moe granite granite_swa granitemoe granitemoe_swa granitemoehybrid iquestcoder llama "
    "llama4_text mistral mixtral nemotron-nas".split()
)
"""Model types whose architecture applies the ``rope_freqs`` that the converter writes for llama3.

InternLM 3 is left out, because the converter writes none for the vendor's own class. Falcon-H1 also loads
``rope_freqs``, but does not apply them.
"""


class LlamaCppEngine(Engine):
    """llama.cpp."""

    name = "llama.cpp"
    version = "in llama-cpp-python 0.3.36"
    run: ClassVar = {"llama": EVERY - {"dynamic"}, "qwen3": {*KINDS}}
    in_card = True

    def differences(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of llama.cpp for one kind of layer, in a folder converted to GGUF."""
        return converted(layers)

    def serve(self, serving: Serving) -> list[Command]:
        """Returns the ``llama-server`` command, with options or after a ``ropescale gguf`` command if needed."""
        route = route_of(serving)
        if route is None:
            return []
        of = serving.model if route in ("converted", "patched") else serving.source.folder or serving.model
        if route == "patched":
            folder = argument(f"{PurePath(of).name}-{serving.length}")
            write = shell("ropescale", "patch", of, "-o", folder, *serving.revision, *_spec(serving))
            note = f"{folder}.gguf is the output of llama.cpp's convert_hf_to_gguf.py for {folder}"
            return [write, _server(serving, f"{folder}.gguf", note)]
        gguf = argument(f"{PurePath(of).name}.gguf")
        original = "" if of == serving.model else "; use the unpatched file, because these commands apply the schedule"
        made_of = f"{gguf} is the output of llama.cpp's convert_hf_to_gguf.py for {of}{original}"
        if route == "table":
            made = argument(f"{PurePath(serving.model).name}-{serving.length}.gguf")
            write = shell("ropescale", "gguf", gguf, "-o", made, *_spec(serving), note=made_of)
            return [write, _server(serving, made)]
        return [_server(serving, gguf, made_of)]

    def remaining(self, serving: Serving, layers: Layers) -> Iterator[Difference]:
        """Yields the differences that remain with the commands of :meth:`serve`."""
        route = route_of(serving)
        of_file = converted(layers)
        if route is None:
            yield from _refused(serving, layers)
        elif route in ("converted", "patched"):
            yield from of_file
        else:
            yield from converted_softmax_scale(layers)
            kept = read_by_queries(layers.parameters)
            if kept and str(kept[ORIGINAL]) not in serving.source.spec:
                text = "was not checked with queries that scale by the original length, which the schedule may change"
                yield Difference("query scale", "not known", "not known", text)
            full = _changed(serving)
            theta = full.parameters["rope_theta"]
            shared = architecture(layers) in known.SLIDING_SHARES_THETA and is_windowed(layers.key)
            if shared and theta != layers.parameters["rope_theta"]:
                text = f"uses the theta of {full.key} for {layers.key} as well"
                yield Difference("theta", "recomputed", theta, text)
            if route == "options" and layers.kind == "yarn":
                usual = temperature(layers.parameters["factor"])
                asked = layers.attention_factor
                if not math.isclose(asked, usual, rel_tol=1e-6) and not _corrected(layers):
                    yield Difference.recomputed_scale(asked, usual)
                if not layers.is_truncated:
                    yield Difference.always_truncates()
            yield from (each for each in of_file if each.field == "switch")


def _server(serving: Serving, gguf: str, note: str = "") -> Command:
    told = options(serving) if route_of(serving) == "options" else _window(serving)
    return shell("llama-server", "-m", gguf, "-c", str(serving.length), *(told or ()), note=note)


def _window(serving: Serving) -> list[str]:
    """Returns the option that sets the context length, if the converter may write a shorter one."""
    layers = _changed(serving)
    name = architecture(layers)
    if serving.wanted.max_length >= serving.length and name not in known.OWN_LENGTH:
        return []
    told = f"{name}.context_length=int:{serving.length}"
    if layers.kind == "longrope":  # otherwise the context length selects the list
        told = f"{name}.rope.scaling.original_context_length=int:{layers.rope.original_length},{told}"
    return ["--override-kv", told]


def _spec(serving: Serving) -> tuple[str, ...]:
    """Returns the options of ``ropescale gguf`` for the schedule: its spec, or a table with longrope's single list."""
    layers = serving.layers[0]
    if serving.source.spec or layers.key != ALL_LAYERS or layers.kind != "longrope" or layers.changes_with_length:
        return serving.source.spec
    factors = layers.parameters["long_factor"]
    table = json.dumps({"name": "table", "factors": factors, "attention_factor": layers.attention_factor})
    vendors = ["--replace-scaling"] if serving.is_vendors or serving.source.scaled else []
    return ("--schedule", table, "--target-length", str(serving.length), *vendors)


def route_of(serving: Serving) -> Literal["options", "table", "converted", "patched"] | None:
    """Returns the route by which llama.cpp receives the schedule, or None if there is none.

    ``converted`` is a file from the folder, and ``patched`` one from a folder that is patched first. ``options`` and
    ``table`` (``ropescale gguf``) apply to the vendor's weights. If the vendor scaled the model, only ``table`` and
    ``patched`` work, because no option removes the keys and tables that the converter writes for that scaling.
    """
    if not any(map(architecture, serving.layers)):  # no type that the converter supports
        return None
    tabled = bool(_spec(serving)) and why_not(serving) is None
    if serving.is_vendors:
        return "converted" if _survives(serving) else "table" if tabled else None
    said = options(serving) is not None and not serving.source.scaled
    if said and (not tabled or all(layers.is_truncated for layers in serving.layers)):
        return "options"
    if tabled:
        return "table"
    if not _survives(serving) or not _reaches(_changed(serving)):
        return None
    if serving.is_written:
        return "converted"
    return "patched" if _spec(serving) else None


def _survives(serving: Serving) -> bool:
    """Whether the converter preserves the schedule of the folder's configuration."""
    plain = all(layers.kind == "default" for layers in serving.layers if is_windowed(layers.key))
    lost = any(
        each.field in ("frequencies", "softmax scale") and each.status != "not known"
        for layers in serving.layers
        for each in converted(layers)
    )
    return not lost and (plain or serving.is_vendors)


def why_not(serving: Serving) -> str | None:
    """Returns why ``ropescale gguf`` would reject the schedule for this model, or None if it may accept it."""
    layers = _changed(serving)
    name = architecture(layers)
    if name is None:  # an unknown type, whose architecture only the GGUF file states
        return None
    if serving.source.scaled and name.startswith("hunyuan-"):
        return f"the converter folds alpha into the theta of {name}, and nothing can take it back"
    bound = layers.configuration.default_of("attention_chunk_size" if name == "llama4" else "sliding_window")
    window = bound if isinstance(bound, int) else 0
    keys = {"attention.sliding_window": Value("UINT32", window)} if window or name == "llama4" else {}
    if name not in known.OUT_OF_REACH and not _reaches(layers):
        return f"{name} scales the layers with a window as well"
    if serving.source.scaled:  # an arbitrary factor in place of the vendor's
        keys["rope.scaling.factor"] = Value("FLOAT32", 2.0)
    return refusal(name, keys, layers.parameters, layers.rope, serving.length)


def _reaches(layers: Layers) -> bool:
    """Whether the keys of a GGUF file determine the rotation of these layers, and not that of layers with a window."""
    name = architecture(layers)
    theta_alone = name in known.SLIDING_HAS_THETA and layers.kind == "default"
    is_apart = layers.key == ALL_LAYERS or theta_alone or name in known.SLIDING_UNSCALED
    return name is None or (is_apart and name not in known.OUT_OF_REACH)


def _changed(serving: Serving) -> Layers:
    """Returns the kind of layer that the schedule changes: the first kind without a window, if any."""
    return next((layers for layers in serving.layers if not is_windowed(layers.key)), serving.layers[0])


def options(serving: Serving) -> list[str] | None:
    """Returns the options by which llama.cpp overrides a file's keys, or None if they cannot express the schedule.

    ``--rope-freq-base`` and similar options do not suffice, because llama-server cuts requests to the context length in
    the file's keys, and sliding-window layers use only the numbers in the keys.
    """
    layers = next((layer for layer in serving.layers if layer.kind != "default"), serving.layers[0])
    parameters = layers.parameters
    name = architecture(layers)
    kind = layers.kind
    if name is None or kind not in KINDS or name in known.OUT_OF_REACH:
        return None
    if layers.key != ALL_LAYERS:  # the keys must affect only these layers
        alone = layers.key == "full_attention" and name in known.SLIDING_UNSCALED and kind != "default"
        if not alone or any(layer.kind != "default" for layer in serving.layers if layer.key != layers.key):
            return None
    if kind == "default":
        keys = {"rope.freq_base": f"float:{parameters['rope_theta']:.10g}"}
    elif name in known.OWN_SOFTMAX_SCALE:
        return None
    else:
        keys = {"rope.scaling.type": f"str:{kind}", "rope.scaling.factor": f"float:{parameters['factor']:.10g}"}
    betas = []
    if kind == "yarn":
        betas = betas_told(parameters)
        keys["rope.scaling.original_context_length"] = f"int:{layers.rope.original_length}"
        keys |= _corrected(layers)
    # The length comes last: llama.cpp before 2026 reads only the first key, and fails to load if it is a scaling type.
    keys["context_length"] = f"int:{serving.length}"
    return [*betas, "--override-kv", ",".join(f"{name}.{key}={value}" for key, value in keys.items())]


def _corrected(layers: Layers) -> dict[str, str]:
    """Returns the key that corrects the attention factor, or an empty dict if it is correct or cannot be corrected."""
    correction = layers.attention_factor / temperature(layers.parameters["factor"])
    is_alone = layers.key == ALL_LAYERS or architecture(layers) in known.SLIDING_SHARES_THETA
    if math.isclose(correction, 1, rel_tol=1e-6) or not is_alone:
        return {}
    return {"rope.scaling.attn_factor": f"float:{correction:.10g}"}


def _refused(serving: Serving, layers: Layers) -> Iterator[Difference]:
    """Yields why the schedule cannot be served: a field's difference, or the message of ``ropescale gguf``."""
    if not any(map(architecture, serving.layers)):
        text = f"its converter does not support {model_code.architecture(layers) or layers.model_type}"
        yield Difference.stops(text, "the converter stops")
    elif any(each.field == "frequencies" for each in converted(layers)):
        yield from converted(layers)
    elif layers is _changed(serving) or layers.kind != "default":
        yield Difference.other_table(why_not(serving) or "cannot distinguish these layers", "-")


# ---------------------------------------------------------------------------------------------------------
# Configurations converted by convert_hf_to_gguf.py


def architecture(layers: Layers) -> str | None:
    """Returns the architecture that the model type has in a GGUF file, or None if it, or the class, is unknown."""
    name = model_code.architecture(layers)
    stated = layers.configuration.raw.get("architectures")
    if stated and stated == layers.section.get("architectures", stated) and name not in load(PATH)["architectures"]:
        return None
    of_wrapper = known.OF_WRAPPERS.get(layers.whole_type, {})
    named = of_wrapper.get(layers.model_type) or known.OF_MODEL_TYPES.get(layers.model_type)
    return named or load(PATH)["architectures"].get(name)


def converted(layers: Layers) -> Iterator[Difference]:
    """Yields the differences of llama.cpp for one kind of layer, in a file from convert_hf_to_gguf.py."""
    found = list(_computed(layers))
    yield from found
    if not any(each.field == "frequencies" for each in found):
        yield from _written(layers)


def written(layers: Layers) -> str | None:
    """Returns what the converter writes otherwise (see :data:`PATH`), or None if that is not known."""
    types = load(PATH)["types"]
    inner = layers.model_type
    rope = layers.rope
    renamed = inner if is_in_transformers(inner) else known.SAME_CLASS.get(str(model_code.architecture(layers)), "")
    names = (f"{layers.whole_type}/{inner}", layers.whole_type, inner.removesuffix("_text"), renamed)
    entry = next((types[name] for name in names if name in types), None)
    if entry is None or layers.section.get("attention_chunk_size", 8192) != 8192:  # llama4.cpp has its own
        return None
    found = model_code.agreement(entry, layers, layers.kind)
    if layers.dialect == "bare" and found is None:  # the converter fills in the defaults of transformers' class
        found = model_code.agreement(entry, layers, layers.kind, "v5")
    if found == "theta" and rope.theta == 10000:  # llama.cpp's own
        found = ""
    return None if found == "width" else found


def _written(layers: Layers) -> Iterator[Difference]:
    """Yields the difference between the keys that the converter writes and the configuration."""
    name = architecture(layers)
    found = written(layers)
    if name is None:
        yield Difference.stops(computes="the converter stops")
    elif found is None:
        yield Difference.unknown(f"its converter was not checked with {layers.kind} for {layers.model_type}")
    elif found:
        what = f"{layers.kind} scaling"
        computes = BASE_ROPE
        if found == "theta":
            what = "rope_theta"
            computes = "another theta"
        text = f"its converter writes no {what} for {layers.model_type}"
        yield Difference("frequencies", "dropped", computes, text)
    elif name == "gptneox" and unread_by_v4(layers.configuration):
        text = "its converter stops, or turns a quarter of each head, because config.json states no rotary_pct"
        yield Difference("frequencies", "unsupported", "a quarter of each head", text)


def _computed(layers: Layers) -> Iterator[Difference]:
    """Yields the differences in what llama.cpp computes from a converted file's keys."""
    kind = layers.kind
    name = architecture(layers)
    stated = layers.parameters
    head = layers.rope.head_dim
    turning = layers.rope.rotary_dim
    if layers.lacks_original and ORIGINAL not in layers.section:
        text = "its converter stops, or takes 8,192 tokens, because config.json states no original length"
        yield Difference("frequencies", "recomputed", "from another length", text)
    if kind in ("linear", "yarn"):
        yield from converted_softmax_scale(layers)
    if kind == "longrope" and layers.model_type not in CARRIES_LISTS:
        text = "its converter drops per-pair factors for this architecture, silently leaving base RoPE"
        yield Difference.base_rope(text)
    if kind == "longrope" and layers.changes_with_length:
        yield replace(Difference.one_list(), value="once, by the context's size (-c)")
    if kind == "yarn":
        asked = layers.attention_factor
        computed = converted_attention_factor(layers)
        if not math.isclose(asked, computed, rel_tol=1e-6):
            yield Difference.recomputed_scale(asked, computed)
        if not layers.is_truncated:
            yield Difference.always_truncates()
        if betas_told(stated) and name not in known.READS_BETAS:
            yield Difference("beta_fast", "recomputed", 32, "reads betas other than 32, 1 only from its command line")
            yield Difference("beta_slow", "recomputed", 1)
    if kind == "dynamic" and layers.changes_with_length:
        yield Difference.base_rope("has no dynamic scaling and uses base RoPE")
    if kind == "llama3" and layers.model_type not in CARRIES_LLAMA3:
        yield Difference.base_rope("does not apply llama3 scaling to this architecture and uses base RoPE")
    elif kind == "llama3" and turning != head:
        text = f"its converter spreads llama3 scaling over all {head} coordinates, although only {turning} rotate"
        yield Difference("frequencies", "recomputed", f"over {head} coordinates instead of {turning}", text)
    if kind == "proportional" and stated.get("factor", 1) != 1:
        yield Difference.ignores_factor()
    if kind == "proportional" and not layers.is_proportional_by_default:  # then no converter expects it
        yield Difference.stops("does not support proportional RoPE for this architecture", "the converter stops")


def converted_attention_factor(layers: Layers) -> float:
    """Returns the multiplier of cos and sin that llama.cpp computes under yarn for a converted file."""
    name = architecture(layers)
    factor = layers.parameters["factor"]
    weight = layers.parameters.get("mscale_all_dim") or 0.0
    under = weight if name in known.READS_LOG_MULTIPLIER else 0.0
    return temperature(factor, under if name == "deepseek2" and under else 1.0) / temperature(factor, under)


def converted_softmax_scale(layers: Layers) -> Iterator[Difference]:
    """Yields the differences in the softmax scale of DeepSeek's attention (deepseek2.cpp)."""
    stated = layers.parameters
    name = architecture(layers)
    kind = layers.kind
    asked = softmax_factor(replace(layers.rope, scaling=stated)) if layers.is_mla else 1.0
    if name in known.OWN_SOFTMAX_SCALE and kind in ("linear", "yarn"):
        weight = stated.get("mscale_all_dim") if kind == "yarn" and name == "deepseek2" else None
        computed = temperature(stated["factor"], weight or 1.0) ** 2
        text = f"derives a softmax scale of its own from the scaling factor ({computed:.4g} instead of {asked:.4g})"
        if not math.isclose(asked, computed, rel_tol=1e-6):
            yield Difference("softmax scale", "recomputed", computed, text)
    elif not math.isclose(asked, 1.0, rel_tol=1e-6):
        text = f"leaves out the softmax scale of mscale_all_dim for {layers.model_type}"
        yield Difference("softmax scale", "dropped", 1, text)


def betas_told(parameters: Mapping[str, float]) -> list[str]:
    """Returns the options for yarn's betas that differ from llama.cpp's defaults, 32 and 1."""
    told = []
    for flag, key, usual in (("--yarn-beta-fast", "beta_fast", 32.0), ("--yarn-beta-slow", "beta_slow", 1.0)):
        value = parameters.get(key) or usual
        if value != usual:
            told += [flag, f"{value:.10g}"]
    return told


ENGINE = LlamaCppEngine()
