"""SGLang, which computes a table when the engine starts, in rotary layers derived from those of vLLM."""

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from ..configs.class_defaults import ALL_LAYERS
from ..configs.finding import placed
from ..files import Json
from ..schedules.by_parts import temperature
from . import vllm
from .base import Command, Difference, Layers, Serving, option, shell
from .model_code import architecture, load


class SGLangEngine(vllm.VLLMEngine):
    """SGLang, which needs other keys than vLLM to compute the same numbers."""

    name = "SGLang"
    version = "0.5.23"
    served_version = ""
    served: ClassVar = {}
    key = "sglang"
    head = "--speculative-algorithm {} --speculative-draft-model-path HEAD"
    mtp = "--speculative-algorithm NEXTN"
    beside = "; --json-model-override-args reaches the draft as well"  # configs/model_config.py
    multiplied = ("linear", "dynamic")

    def in_its_own_code(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of the engine's own model code."""
        kind = layers.kind
        name = layers.model_type
        stated = layers.parameters
        known = load()[self.key]
        runs = architecture(layers)
        if (name, layers.key) == ("deepseek_v4", "main") and kind != "default":
            yield Difference.base_rope(f"never scales the {layers.key} layers of {name}")
            return
        if runs in known["whole theta"] and not float(stated["rope_theta"]).is_integer():
            yield Difference("theta", "honoured", f"{int(stated['rope_theta'])}, the integer part")
        # ernie45_moe_vl.py and the classes of the table pass only theta, and no scaling, to their rotary layers
        unscaled = ["Ernie4_5_VLMoeForConditionalGeneration", *known["unscaled"]]
        if kind != "default" and runs in unscaled:
            yield Difference.base_rope(f"does not scale {name}, silently leaving base RoPE")
            return
        if vllm.takes_one_row(layers):
            yield Difference.one_row(layers)
            return
        if kind == "longrope":
            yield from vllm.own_longrope(layers, "stops with a ValueError")
            if layers.changes_with_length:
                text = "selects the list batch by batch, even if cached keys were rotated with the other list"
                yield Difference("switch", "recomputed", "for the whole batch, by its longest position", text)
        if kind == "yarn":
            if {"mscale", "mscale_all_dim"} & stated.keys() and "mrope_section" in stated:
                yield Difference.stops(f"stops with an error at mscale and mscale_all_dim for {name}")
            if not math.isclose(layers.attention_factor, _yarn_scale(layers)):
                yield Difference.recomputed_scale(layers.attention_factor, _yarn_scale(layers))
        if kind == "dynamic" and "alpha" not in stated:
            yield Difference.one_table(round(layers.factor * layers.rope.original_length))
        if kind == "proportional" and layers.factor != 1:
            yield Difference.ignores_factor()
        if layers.is_mla:
            yield from vllm.overwritten(layers)

    def lengths(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences in the maximum length."""
        yield from vllm.of_the_factor(self.key, layers)
        if layers.kind == "linear":
            yield vllm.multiplied_length(layers)

    def serve(self, serving: Serving) -> list[Command]:
        """Returns the ``sglang.launch_server`` command, with the changes that the folder's configuration lacks."""
        changed = self.spelled(serving).v5_changes(self.positions(serving))
        changes = serving.changes()
        if "partial_rotary_factor" in changes:  # model files read it outside of the rope parameters
            changed["partial_rotary_factor"] = changes["partial_rotary_factor"]
        told = placed({}, serving.stored.path, changed) if changed else changed
        entry = load()[self.key]["types"].get(serving.layers[0].whole_type, {})
        if serving.stored.path and entry.get("whole"):  # it reads the rope parameters outside of their section
            for inner in [each for each in told.values() if isinstance(each, Mapping)]:
                told |= inner
        given = told.get("rope_parameters")
        stored = serving.stored.section
        before = stored.get("rope_parameters") or stored.get("rope_scaling")
        is_flat = serving.layers[0].key == ALL_LAYERS
        if is_flat and isinstance(given, Mapping) and isinstance(before, Mapping):
            # SGLang merges flat rope parameters into the stored ones, so stale parameters are set to null
            stale = {key: 1.0 if key == "factor" else None for key in before if key not in (*given, "type")}
            told = {**told, "rope_parameters": {**given, **stale}}
        words = ["python", "-m", "sglang.launch_server", "--model-path", serving.model]
        words += ["--context-length", str(serving.length), *serving.revision, *serving.trusting]
        return [shell(*words, *option("--json-model-override-args", told))]

    def own_keys(self, layers: Layers, positions: int) -> Json:
        """Returns the rope parameters from which SGLang computes the requested numbers."""
        if layers.kind == "yarn" and not math.isclose(layers.attention_factor, _yarn_scale(layers)):
            correction = layers.attention_factor / _yarn_scale(layers)
            return {**layers.parameters, "attn_factor": layers.parameters.get("attn_factor", 1.0) * correction}
        return layers.parameters if layers.kind == "dynamic" else super().own_keys(layers, positions)


def _yarn_scale(layers: Layers) -> float:
    """Returns the multiplier of cos and sin that SGLang computes under yarn.

    SGLang reads ``attn_factor`` instead of ``attention_factor``.
    """
    parameters = layers.parameters
    weighed = parameters.get("mscale") is not None and parameters.get("mscale_all_dim") is not None
    usual = vllm.deepseek_scale(parameters) if layers.is_mla or weighed else temperature(parameters["factor"])
    return usual * parameters.get("attn_factor", 1.0)


ENGINE = SGLangEngine()
