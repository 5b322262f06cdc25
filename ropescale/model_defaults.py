"""What ``config.json`` leaves to transformers' configuration classes, without importing transformers.

``model_defaults.json`` is generated: ``python -m ropescale.model_defaults`` rewrites it from the installed
transformers, and a test keeps the two equal. Per model type it holds ``{"text": TYPE}`` for a multimodal wrapper,
null for a model that has no rotary embeddings driven by ``rope_parameters``, or:

* the class's defaults for :data:`FIELDS`, under our names, and ``names`` where the class has others;
  ``head_dim`` is null where the class leaves it so;
* ``head_dims``: per layer type, where layers differ;
* ``rope_parameters``: those of a configuration that says nothing; ``fixed`` where no top-level key changes them;
* ``default_theta``: the theta of rope parameters that state none, per layer type where they are kept so;
* ``layer_types``: the kinds of layers of a default model, where there is more than one, or one table per kind;
* ``v4``: which layer types each top-level key of transformers 4 reaches, where that is not :data:`V4`.

The last four were not read but tried out: the class is built with the key, and what changed is written down.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_suffix(".json")
ALL_LAYERS = "all"
FIELDS = (
    "head_dim",
    "hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "qk_rope_head_dim",
    "sliding_window",
    "attention_chunk_size",
)
THETA_NAMES = (
    "rope_theta",
    "rotary_emb_base",
    "global_rope_theta",
    "local_rope_theta",
    "rope_local_base_freq",
    "swa_rope_theta",
    "compress_rope_theta",
)
PARTIAL_NAMES = ("partial_rotary_factor", "rotary_pct")
V4 = {name: [ALL_LAYERS] for name in ("rope_theta", "partial_rotary_factor", "rope_scaling")}
"""What a class with one table does with transformers 4's keys, unless its entry says otherwise."""


@cache
def load() -> dict[str, Any]:
    """The table: model type -> defaults, ``{"text": TYPE}`` or None."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def is_nested(parameters: Any) -> bool:
    """Whether rope parameters are kept per layer type: every value is an object or null."""
    values = parameters.values() if isinstance(parameters, Mapping) else ()
    return bool(values) and all(value is None or isinstance(value, Mapping) for value in values)


# ---------------------------------------------------------------------------------------------------------
# Generating it: the only part that imports transformers


def generate() -> dict[str, Any]:
    """Builds the table from the installed transformers' causal language models."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    table: dict[str, Any] = {}
    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        config = _built(CONFIG_MAPPING[model_type], **copy.deepcopy(_NEEDED.get(model_type, {})))
        if config is None:
            continue
        text = config.get_text_config(decoder=True)
        table[text.model_type] = entry = _entry(text)
        table[model_type] = entry if text.model_type == config.model_type else {"text": text.model_type}
    return dict(sorted(table.items()))


_NEEDED = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 6,
        }
    }
}
"""What classes that refuse their own defaults must be given."""


def _built(cls: type[Any], **fields: Any) -> Any:
    """What a configuration class makes of a file with these fields; None where it refuses."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # it warns about each key that is tried out
    try:
        return cls.from_dict(fields)
    except Exception:
        return None
    finally:
        logging.disable(before)


def _entry(config: Any) -> dict[str, Any] | None:
    base = getattr(config, "rope_parameters", None)
    if base is None:
        return None
    cls = type(config)
    found = _fields(config) | {"rope_parameters": base, "default_theta": _default_theta(cls, base)}
    v4, flat = _v4(cls, base), not _is_per_type(base)
    layer_types: list[str] = sorted(set(getattr(config, "layer_types", None) or ()))
    optional = {
        "head_dims": _head_dims(config, layer_types),
        "layer_types": layer_types if len(layer_types) > 1 or not flat else None,
        "fixed": flat and not any(_reached(cls, base, **{name: _ODD}) for name in THETA_NAMES),
    }
    return found | {key: value for key, value in optional.items() if value} | ({"v4": v4} if v4 != V4 else {})


def _is_per_type(base: Mapping[str, Any]) -> bool:
    return not base or is_nested(base)  # a class that states nothing leaves every layer type to the file


def _fields(config: Any) -> dict[str, Any]:
    cls = type(config)
    found = {name: getattr(cls, name, None) for name in FIELDS}
    entry: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, (int, float))}
    names = {ours: theirs for ours, theirs in (cls.attribute_map or {}).items() if ours in FIELDS}
    for ours, theirs in names.items():
        if isinstance(getattr(config, theirs, None), (int, float)):
            entry[ours] = getattr(config, theirs)
    if vars(config).get("head_dim", 0) is None:
        entry["head_dim"] = None
    return entry | ({"names": names} if names else {})


def _head_dims(config: Any, layer_types: list[str]) -> dict[str, int]:
    """Head dims per layer type, of a class whose layers differ (Gemma 4)."""
    if not config.is_heterogeneous:
        return {}
    found = {key: getattr(config.per_layer_config[key], "head_dim", None) for key in layer_types}
    stated = {key: value for key, value in found.items() if value is not None}
    return stated if len(set(stated.values())) > 1 else {}


_ODD = 12345.0
"""A theta that no class has by itself."""

_SCALED = {"rope_type": "linear", "factor": 3.0}


def _v4(cls: type[Any], base: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which layer types each top-level key reaches."""
    given = {} if _is_per_type(base) else {"rope_parameters": dict(_SCALED)}
    if _built(cls, **copy.deepcopy(given)) is None:  # Phi-3's classes take nothing but longrope
        given = {}
    found = {name: _reached(cls, base, **given, **{name: _ODD}) for name in THETA_NAMES}
    found |= {name: _reached(cls, base, **given, **{name: 0.75}) for name in PARTIAL_NAMES}
    found["rope_scaling"] = (
        _reached(cls, base, rope_scaling=dict(_SCALED)) if given or _is_per_type(base) else [ALL_LAYERS]
    )
    if _is_per_type(base):
        found["rope_parameters"] = _reached(cls, base, rope_parameters=dict(_SCALED))
    return {name: keys for name, keys in found.items() if keys}


def _reached(cls: type[Any], base: Mapping[str, Any], **fields: Any) -> list[str]:
    """The layer types whose parameters hold one of these values (a number, or the whole of a scaling)."""
    wanted = copy.deepcopy(list(fields.values())[-1])  # the classes write into what they are given
    config = _built(cls, **copy.deepcopy(fields))
    parameters = getattr(config, "rope_parameters", None)
    if not parameters or is_nested(parameters) != _is_per_type(base):
        return []
    kept = parameters if _is_per_type(base) else {ALL_LAYERS: parameters}
    return [key for key, value in sorted(kept.items()) if value and _holds(value, wanted)]


def _holds(parameters: Mapping[str, Any], wanted: Any) -> bool:
    return wanted.items() <= parameters.items() if isinstance(wanted, Mapping) else wanted in parameters.values()


def _default_theta(cls: type[Any], base: Mapping[str, Any]) -> Any:
    """The theta of parameters that state none: tried out, else what the class says."""
    parameters = getattr(_built(cls, rope_scaling=dict(_SCALED)), "rope_parameters", None)
    if parameters and is_nested(parameters):
        return {key: value["rope_theta"] for key, value in sorted(parameters.items()) if value}
    if _is_per_type(base):
        return {key: value["rope_theta"] for key, value in sorted(base.items()) if value}
    return (parameters or {}).get("rope_theta", cls.default_theta)


if __name__ == "__main__":
    PATH.write_text(json.dumps(generate(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
