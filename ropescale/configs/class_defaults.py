"""What ``config.json`` leaves to transformers' configuration classes, without importing transformers.

``class_defaults.json`` is generated: ``python -m ropescale.configs.class_defaults`` rewrites it from the installed
transformers, and a test keeps the two equal. Per model type it holds ``{"text": TYPE}`` for a multimodal wrapper,
null for a model that has no rotary embeddings driven by ``rope_parameters``, or:

* the class's defaults for :data:`FIELDS`, under our names, and ``names`` where the class has others;
  ``head_dim`` is null where the class leaves it so;
* ``own_name_wins``: which of those names the class prefers over ours in a file that has both;
* ``head_dims``: per layer type, where layers differ;
* ``rope_parameters``: those of a configuration that says nothing; ``fixed`` where no top-level key changes them;
* ``default_theta``: the theta of rope parameters that state none, per layer type where they are kept so;
* ``layer_types``: the kinds of layers of a default model, where there is more than one, or one table per kind;
* ``v4``: which layer types each top-level key of transformers 4 reaches, where that is not :data:`V4`;
* ``beside``: what the class makes of parameters that state no theta, where that is something else again: which
  layer types a top-level key ``reaches``, and what it ``fills`` in without one; in a file that has ``nothing`` else,
  ``rope_parameters`` as the class keeps them, ``flat`` ones in a class with a table per layer type, or
  ``rope_scaling``; and the same once they are ``scaled``, because transformers' scaled tables look once more;
* ``partial_of_slice``: a class that computes an unstated partial factor from ``qk_rope_head_dim``;
* ``ignores_type``: a class that reads ``rope_type`` in ``rope_scaling``, but not ``type``;
* ``needs_every_type``: a class that does not complete ``rope_parameters`` that leave out a layer type;
* ``ignores_partial``: the rope types (``default``; ``linear`` stands for every scaling) under which the class turns
  the same coordinates whatever ``partial_rotary_factor`` says.

All but the first three were not read but tried out: the class is built with the key, and what changed is written down.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

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


class Ways(TypedDict, total=False):
    """Which layer types top-level keys reach, and what the class fills in, for one way of giving parameters."""

    reaches: dict[str, list[str]]
    fills: dict[str, dict[str, object]]


class Entry(TypedDict, total=False):
    """The defaults of one model type, as the module's docstring describes them."""

    text: str
    head_dim: int | None
    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    original_max_position_embeddings: int
    qk_rope_head_dim: int
    sliding_window: int | None
    attention_chunk_size: int | None
    names: dict[str, str]
    own_name_wins: list[str]
    head_dims: dict[str, int]
    rope_parameters: dict[str, object]
    fixed: bool
    default_theta: float | dict[str, float]
    layer_types: list[str]
    v4: dict[str, list[str]]
    beside: dict[str, Ways]
    partial_of_slice: bool
    ignores_type: bool
    needs_every_type: bool
    ignores_partial: list[str]


@cache
def load() -> dict[str, Entry | None]:
    """Reads the table: model type -> defaults, ``{"text": TYPE}`` or None."""
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
    layer_types: list[str] = sorted(set(getattr(config, "layer_types", None) or ()))
    v4, flat = _v4(cls, base), not _is_per_type(base)
    optional = {
        "head_dims": _head_dims(config, layer_types),
        "layer_types": layer_types if len(layer_types) > 1 or not flat else None,
        "fixed": flat and not any(_reached(cls, base, **{name: _ODD}) for name in THETA_NAMES),
        "own_name_wins": _own_name_wins(cls, found.get("names", {})),
        "beside": _beside(cls, {**found, "v4": v4}, layer_types),
        "partial_of_slice": _partial_of_slice(cls, base),
        "ignores_type": _ignores_type(cls, base, v4),
        "needs_every_type": _needs_every_type(cls, base, layer_types),
        "ignores_partial": [kind for kind in ("default", "linear") if _ignores_partial(cls, base, layer_types, kind)],
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


_PLAIN = {"rope_type": "default"}


def _v4(cls: type[Any], base: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which layer types each top-level key reaches: beside flat ``rope_parameters``, or alone where they are nested."""
    found = _reach(cls, base, {} if _is_per_type(base) else {"rope_parameters": _PLAIN})
    takes_others = _built(cls, rope_scaling=dict(_SCALED)) is not None  # Phi-3's classes take nothing but longrope
    found["rope_scaling"] = _reached(cls, base, rope_scaling=dict(_SCALED)) if takes_others else [ALL_LAYERS]
    if _is_per_type(base):
        found["rope_parameters"] = _reached(cls, base, rope_parameters=dict(_SCALED))
    return {name: keys for name, keys in found.items() if keys}


def _reach(cls: type[Any], base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which layer types a top-level theta or partial factor reaches beside what is given."""
    tried = dict.fromkeys(THETA_NAMES, _ODD) | dict.fromkeys(PARTIAL_NAMES, 0.75)
    found = {name: _reached(cls, base, **given, **{name: value}) for name, value in tried.items()}
    return {name: keys for name, keys in found.items() if keys}


_YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 48}


def _beside(cls: type[Any], entry: Mapping[str, Any], layer_types: list[str]) -> dict[str, dict[str, Any]]:
    """Where the class reads or fills in others than usual because of what the file has."""
    base, v4 = entry["rope_parameters"], entry["v4"]
    named = (*THETA_NAMES, *PARTIAL_NAMES)
    usual: dict[str, Any] = {"reaches": {name: keys for name, keys in v4.items() if name in named}}
    usual["fills"] = {key: _usually_filled(entry, key) for key in _for_each(base, layer_types, {}, ALL_LAYERS)}
    found = {}
    for name, given in _files(base, v4, layer_types).items():
        if _parameters(cls, base, given) is not None:
            tried = {
                "reaches": _reach(cls, base, given),
                "fills": _fills(cls, base, given) if given else usual["fills"],
            }
            if name == "rope_parameters":
                for key, partial in _partial_of_table(cls, base, layer_types).items():
                    tried["fills"].setdefault(key, {}).setdefault("partial_rotary_factor", partial)
            found[name] = {what: value for what, value in tried.items() if value != usual[what]}
    return {name: differs for name, differs in found.items() if differs}


def _files(base: Mapping[str, Any], v4: Mapping[str, Any], layer_types: list[str]) -> dict[str, dict[str, Any]]:
    """Every way in which a file can give parameters without a theta, by the name that ``beside`` has for it."""
    ways: dict[str, dict[str, Any]] = {"nothing": {}}
    for suffix, parameters in (("", _PLAIN), (" scaled", _YARN)):
        ways[f"rope_parameters{suffix}"] = {"rope_parameters": _for_each(base, layer_types, parameters)}
        if "rope_scaling" in v4:
            ways[f"rope_scaling{suffix}"] = {"rope_scaling": parameters}
        if "rope_parameters" in v4:
            ways[f"flat{suffix}"] = {"rope_parameters": parameters}
    return ways


def _usually_filled(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What parameters of a layer type are usually filled in with: the class's theta and partial factor."""
    theta, base = entry["default_theta"], entry["rope_parameters"]
    own = (base if key == ALL_LAYERS else base.get(key)) or {}
    found = {
        "rope_theta": theta.get(key) if isinstance(theta, Mapping) else theta,
        "partial_rotary_factor": own.get("partial_rotary_factor"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _fills(cls: type[Any], base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    names = ("rope_theta", "partial_rotary_factor", "attention_factor")
    return {
        key: {name: value[name] for name in names if value.get(name) is not None}
        for key, value in (_parameters(cls, base, given) or {}).items()
    }


def _parameters(cls: type[Any], base: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parameters, by layer type, from which a class computes its tables; None where it refuses."""
    config = _built(cls, **copy.deepcopy(dict(fields)))  # the classes write into what they are given
    parameters = getattr(config, "rope_parameters", None)
    if not parameters or is_nested(parameters) != _is_per_type(base):
        return None
    kept = parameters if _is_per_type(base) else {ALL_LAYERS: parameters}
    if any(value and value.get("rope_type") == "yarn" for value in kept.values()):
        if getattr(config, "layer_types", None) and _is_per_type(
            base
        ):  # whose default need not have a layer of every kind
            config.__dict__["layer_types"] = sorted({*config.layer_types, *kept})
        config.standardize_rope_params()  # as the functions for scaled tables do
    return {key: value for key, value in sorted(kept.items()) if value}


def _ignores_type(cls: type[Any], base: Mapping[str, Any], v4: Mapping[str, list[str]]) -> bool:
    """Whether scaling that is named under ``type``, as transformers 4 first did, is not noticed."""
    if "rope_scaling" not in v4 or not _is_per_type(base):
        return False
    found = _parameters(cls, base, {"rope_scaling": {"type": "linear", "factor": 3.0}}) or {}
    return any(found[key].get("rope_type") != "linear" for key in v4["rope_scaling"] if key in found)


def _needs_every_type(cls: type[Any], base: Mapping[str, Any], layer_types: list[str]) -> bool:
    """Whether parameters of all layer types but one are not kept, or that one's not filled in."""
    if not _is_per_type(base):
        return False
    every = {key: value for key, value in _for_each(base, layer_types, _SCALED).items() if value}
    tried = {left: {key: value for key, value in every.items() if key != left} for left in every if len(every) > 1}
    found = {left: _parameters(cls, base, {"rope_parameters": given}) or {} for left, given in tried.items()}
    return any(
        left not in found[left] or any(not _holds(found[left].get(key, {}), _SCALED) for key in given)
        for left, given in tried.items()
    )


def _for_each(
    base: Mapping[str, Any], layer_types: list[str], parameters: Mapping[str, Any], only: str | None = None
) -> dict[str, Any]:
    """These rope parameters for every layer type that rotates, where each has a table (else under ``only``)."""
    if not _is_per_type(base):
        return dict(parameters) if only is None else {only: dict(parameters)}
    rotating = {key for key in base or layer_types if not base or base[key] is not None}
    return {key: dict(parameters) if key in rotating else None for key in base or layer_types}


def _own_name_wins(cls: type[Any], names: Mapping[str, str]) -> list[str]:
    """Fields for which a class with a name of its own prefers that over the common one."""
    both = {ours: _built(cls, **{ours: _ONE, theirs: _OTHER}) for ours, theirs in names.items()}
    return sorted(ours for ours, config in both.items() if getattr(config, ours, None) == _OTHER)


_ONE, _OTHER = 48, 96
"""Two sizes that any class takes for any field."""


def _ignores_partial(cls: type[Any], base: Mapping[str, Any], layer_types: list[str], kind: str) -> bool:
    """Whether as many coordinates turn with half the head in ``partial_rotary_factor`` as with all of it."""
    half, whole = (_pairs_with(cls, base, layer_types, kind, part) for part in (0.5, 1.0))
    return half == whole != {}


def _partial_of_table(cls: type[Any], base: Mapping[str, Any], layer_types: list[str]) -> dict[str, float]:
    """The partial factor that the code of plain tables has by itself, where it is that of the class (MiMo-V2)."""
    parts = {key: (value or {}).get("partial_rotary_factor") for key, value in base.items() if _is_per_type(base)}
    stated = {value for value in parts.values() if value is not None}
    if len(stated) != 1:
        return {}
    [part] = stated
    unstated, own, whole = (_pairs_with(cls, base, layer_types, "default", each) for each in (None, part, 1.0))
    return dict.fromkeys(parts, part) if unstated == own != whole else {}


def _partial_of_slice(cls: type[Any], base: Mapping[str, Any]) -> bool:
    """Whether a class without a partial factor computes it from ``qk_rope_head_dim`` (DeepSeek-V4)."""
    found = _parameters(cls, base, {"head_dim": 512, "qk_rope_head_dim": 96}) or {}
    return bool(found) and all(value.get("partial_rotary_factor") == 96 / 512 for value in found.values())


def _pairs_with(
    cls: type[Any], base: Mapping[str, Any], layer_types: list[str], kind: str, partial: float | None
) -> dict[str, int]:
    """How many pairs turn with this partial factor in the rope parameters (None: unstated)."""
    stated: dict[str, Any] = {"rope_type": kind, "rope_theta": _ODD} | ({} if kind == "default" else {"factor": 3.0})
    stated |= {} if partial is None else {"partial_rotary_factor": partial}
    return _pairs(_built(cls, rope_parameters=_for_each(base, layer_types, stated)))


def _pairs(config: Any) -> dict[str, int]:
    """How many pairs the tables of a configuration's rotary module have; nothing where it cannot be built."""
    module = _modeling(type(config))
    for name, cls in sorted(vars(module).items()):
        if name.endswith("RotaryEmbedding") and "Vision" not in name and cls.__module__ == module.__name__:
            try:
                buffers = cls(copy.deepcopy(config)).named_buffers()
            except Exception:  # the embedding of another part of the model, or one that this configuration cannot have
                continue
            return {key: len(table) for key, table in buffers if key.endswith("inv_freq") and "original" not in key}
    return {}


def _reached(cls: type[Any], base: Mapping[str, Any], **fields: Any) -> list[str]:
    """The layer types whose parameters hold the last of these values (a number, or the whole of a scaling)."""
    wanted = list(fields.values())[-1]
    return [key for key, value in (_parameters(cls, base, fields) or {}).items() if _holds(value, wanted)]


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


def _modeling(cls: type[Any]) -> ModuleType:
    """The modeling file of a configuration class: beside it, or of another type whose code it shares (InternLM 3)."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    name = cls.__module__.replace("configuration_", "modeling_")
    return importlib.import_module(name if find_spec(name) else MODEL_FOR_CAUSAL_LM_MAPPING[cls].__module__)


if __name__ == "__main__":
    PATH.write_text(json.dumps(generate(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
