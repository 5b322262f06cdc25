"""Generates ``ropescale/configs/class_defaults.json`` from the installed transformers.

The classes' source is not read: each class is built with the key in question, and the effect is written down.
``python tests/tools/generate_class_defaults.py`` writes the file; with ``--earlier`` it adds what the installed version
has otherwise than the next one to ``class_defaults_earlier.json``.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

from ropescale.configs.class_defaults import (
    ALL_LAYERS,
    EARLIER,
    FIELDS,
    PARTIAL_NAMES,
    PATH,
    SECTIONS,
    THETA_NAMES,
    V4,
    is_nested,
    table_of,
    tables_alone,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Json = dict[str, object]

_ODD = {name: 12345.0 + number for number, name in enumerate(THETA_NAMES)}
_ODD |= {name: 0.75 + number / 8 for number, name in enumerate(PARTIAL_NAMES)}
"""For each top-level key a value that no class has by itself."""

_ONE, _OTHER = 48, 96
"""Two sizes that any class takes for any field."""

_PLAIN: Json = {"rope_type": "default"}
_SCALED: Json = {"rope_type": "linear", "factor": 3.0}
_YARN: Json = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 48}

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
"""Fields for classes that refuse their own defaults."""


def generate() -> dict[str, Json | None]:
    """Builds the table from the installed transformers' causal language models."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    table: dict[str, Json | None] = {}
    with _quiet():
        for model_type in sorted([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "mistral4"]):  # listed among models that see
            config = _built(CONFIG_MAPPING[model_type], **copy.deepcopy(_NEEDED.get(model_type, {})))
            if config is None:
                continue
            text = config.get_text_config(decoder=True)
            table[text.model_type] = entry = _entry(text)
            table[model_type] = entry if text.model_type == config.model_type else {"text": text.model_type}
    return dict(sorted(table.items()))


def generate_sections(table: Mapping[str, object]) -> dict[str, dict[str, list[str]]]:
    """Returns the dotted sections in which the class of each type outside the table reads rope parameters.

    Each section has the layer types for which the class keeps a table each; none for a class with one table. A class
    that declares rope parameters, and reads flat ones in no section, is left out: where it reads them is not known.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found = {}
    with _quiet():
        for model_type in sorted(CONFIG_MAPPING_NAMES.keys() - table.keys()):
            cls = CONFIG_MAPPING[model_type]
            parts = {name: getattr(part, "sub_configs", {}) for name, part in getattr(cls, "sub_configs", {}).items()}
            paths = [(), *((name,) for name in parts), *((one, two) for one, inner in parts.items() for two in inner)]
            default = _built(cls)
            if default is None:
                continue
            text = default.get_text_config(decoder=True)
            usual = getattr(text, "rope_parameters", None)
            kinds = [*usual] if is_nested(usual) else []
            sections = {".".join(path): kinds for path in paths if _reads(cls, path)}
            if sections or not hasattr(type(text), "rope_parameters"):
                found[model_type] = sections
    return found


def _reads(cls: type[PreTrainedConfig], path: tuple[str, ...]) -> bool:
    """Whether the text model of a class declares rope parameters, and gets those of a section."""
    fields: Json = {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}
    for name in reversed(path):
        fields = {name: fields}
    try:
        text = cls.from_dict(fields).get_text_config(decoder=True)
    except Exception:  # a class that refuses reads nothing there
        return False
    return hasattr(type(text), "rope_parameters") and "12345.0" in str(getattr(text, "rope_parameters", None))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers, which warns about each key that is tried out and formats each configuration to log it."""
    from transformers import PreTrainedConfig

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with mock.patch.object(PreTrainedConfig, "__repr__", object.__repr__):
            yield
    finally:
        logging.disable(before)


def _built(cls: type[PreTrainedConfig], **fields: object) -> PreTrainedConfig | None:
    """Builds a configuration from a file with these fields; returns None where the class refuses."""
    try:
        return cls.from_dict(fields)
    except Exception:
        return None


def _entry(config: PreTrainedConfig) -> Json | None:
    base = _parameters_of(config)
    if base is None:
        return None
    layer_types: list[str] = sorted(set(getattr(config, "layer_types", None) or ()))
    return {**_fields(config), "rope_parameters": base, **_Probe(type(config), base, layer_types).entry(config)}


def _parameters_of(config: PreTrainedConfig | None) -> Any:
    """Returns the rope parameters themselves, which the configuration may still complete, or None."""
    found = getattr(config, "rope_parameters", None)
    return found and tables_alone(found)


def _fields(config: PreTrainedConfig) -> Json:
    cls = type(config)
    found = {name: getattr(cls, name, None) for name in FIELDS}
    entry: Json = {name: value for name, value in found.items() if isinstance(value, (int, float))}
    names = {ours: theirs for ours, theirs in (cls.attribute_map or {}).items() if ours in FIELDS}
    for ours, theirs in names.items():
        if isinstance(getattr(config, theirs, None), (int, float)):
            entry[ours] = getattr(config, theirs)
    if vars(config).get("head_dim", 0) is None:
        entry["head_dim"] = None
    return entry | ({"names": names} if names else {})


@dataclass(frozen=True)
class _Probe:
    """A configuration class that is tried out.

    Attributes:
        cls: the class.
        base: the rope parameters of its default configuration.
        layer_types: the kinds of layers of that.
        tried: what was found so far.
    """

    cls: type[PreTrainedConfig]
    base: dict[str, Any]
    layer_types: list[str]
    tried: dict[str, dict[str, Json]] = field(default_factory=dict)

    def entry(self, config: PreTrainedConfig) -> Json:
        """Returns how the class treats rope parameters, under the keys of the table."""
        found: dict[str, object] = {
            "default_theta": self.default_theta,
            "head_dims": self._head_dims(config),
            "layer_types": self.layer_types if len(self.layer_types) > 1 or self.per_type else None,
            "fixed": not self.per_type and not any(name in self._reach({}) for name in THETA_NAMES),
            "own_name_wins": self._own_name_wins(),
            "beside": self._beside(),
            "partial_of_slice": self._partial_of_slice(),
            "ignores_type": self._ignores_type(),
            "needs_every_type": self._needs_every_type(),
            **self._ways_with_partial(),
        }
        kept = {key: value for key, value in found.items() if value or key == "default_theta"}
        return kept | ({"v4": self.v4} if self.v4 != V4 else {})

    @property
    def per_type(self) -> bool:
        """Whether the class keeps parameters per layer type; without any of its own, the file decides."""
        return not self.base or is_nested(self.base)

    @cached_property
    def default_theta(self) -> object:
        """The theta of parameters that state none: tried out, or the class attribute."""
        parameters = _parameters_of(_built(self.cls, rope_scaling=dict(_SCALED)))
        kept = parameters if parameters and is_nested(parameters) else self.base if self.per_type else None
        if kept is not None:
            return {key: value["rope_theta"] for key, value in sorted(kept.items()) if value}
        return (parameters or {}).get("rope_theta", getattr(self.cls, "default_theta", None))

    @cached_property
    def v4(self) -> dict[str, list[str]]:
        """The layer types that each top-level key reaches: beside flat ``rope_parameters``, or alone if nested."""
        found = self._reach({} if self.per_type else {"rope_parameters": _PLAIN})
        takes_others = _built(self.cls, rope_scaling=dict(_SCALED)) is not None  # Phi-3's take nothing but longrope
        found["rope_scaling"] = self._reached(rope_scaling=dict(_SCALED)) if takes_others else [ALL_LAYERS]
        if not self.per_type and self._share("rope_scaling") != self._share("rope_parameters"):
            del found["rope_scaling"]  # in place of rope_parameters, it loses the share that the class computes
        if self.per_type:
            found["rope_parameters"] = self._reached(rope_parameters=dict(_SCALED))
        return {name: keys for name, keys in found.items() if keys}

    def _share(self, name: str, **more: object) -> object:
        """Returns the partial factor that the class gives to scaling which the file states under this key."""
        return self._parameters({name: _YARN, **more}).get(ALL_LAYERS, {}).get("partial_rotary_factor")

    def _head_dims(self, config: PreTrainedConfig) -> dict[str, int]:
        """Returns head dims per layer type, of a class whose layers differ (Gemma 4)."""
        if not getattr(config, "is_heterogeneous", False):
            return {}
        layers = getattr(config, "per_layer_config", {})
        found = {key: getattr(layers[key], "head_dim", None) for key in self.layer_types}
        stated = {key: value for key, value in found.items() if value is not None}
        return stated if len(set(stated.values())) > 1 else {}

    def _own_name_wins(self) -> list[str]:
        """Returns the fields for which the class prefers its own name over the common one."""
        names = {ours: theirs for ours, theirs in (self.cls.attribute_map or {}).items() if ours in FIELDS}
        both = {ours: _built(self.cls, **{ours: _ONE, theirs: _OTHER}) for ours, theirs in names.items()}
        return sorted(ours for ours, config in both.items() if getattr(config, ours, None) == _OTHER)

    def _reach(self, given: Json) -> dict[str, list[str]]:
        """Returns which layer types a top-level theta or partial factor reaches beside the given keys.

        All keys are tried together, and alone those that reach any type so; then the others together, until none does.
        """
        left, found = dict(_ODD), {}
        while left:
            together = self._parameters({**given, **left})
            read = [name for name in left if any(left[name] in held.values() for held in together.values())]
            if together and not read:
                break
            for name in read or list(left):
                found[name] = self._reached(**given, **{name: left.pop(name)})
        return {name: keys for name, keys in found.items() if keys}

    def _reached(self, **fields: object) -> list[str]:
        """Returns the layer types whose parameters hold the last of these values (a number, or a whole scaling)."""
        wanted = list(fields.values())[-1]
        return [key for key, value in self._parameters(fields).items() if _holds(value, wanted)]

    def _parameters(self, fields: Json) -> dict[str, Json]:
        """Returns the parameters, by layer type, from which the class computes its tables; none where it refuses."""
        key = repr(fields)
        if key not in self.tried:
            self.tried[key] = self._computed(fields)
        return self.tried[key]

    def _computed(self, fields: Json) -> dict[str, Json]:
        config = _built(self.cls, **copy.deepcopy(fields))  # the classes modify their arguments
        parameters = _parameters_of(config)
        if config is None or not parameters or is_nested(parameters) != self.per_type:
            return {}
        kept = parameters if self.per_type else {ALL_LAYERS: parameters}
        if any(value and value.get("rope_type") == "yarn" for value in kept.values()):
            types = getattr(config, "layer_types", None)
            if types and self.per_type:  # whose default need not have a layer of every kind
                config.__dict__["layer_types"] = sorted({*types, *kept})
            config.standardize_rope_params()  # like the functions for scaled tables
        return {key: value for key, value in sorted(kept.items()) if value}

    def _beside(self) -> dict[str, Json]:
        """Returns where the class reads or fills in other values than usual, by the way the file states parameters."""
        named = (*THETA_NAMES, *PARTIAL_NAMES)
        usual: Json = {"reaches": {name: keys for name, keys in self.v4.items() if name in named}}
        usual["fills"] = {key: self._usually_filled(key) for key in self._for_each({}, ALL_LAYERS)}
        found = {}
        for name, given in self._files().items():
            if self._parameters(given):
                fills = self._fills(given) if given else usual["fills"]
                tried: Json = {"reaches": self._reach(given), "fills": fills}
                found[name] = {what: value for what, value in tried.items() if value != usual[what]}
        return {name: differs for name, differs in found.items() if differs}

    def _files(self) -> dict[str, Json]:
        """Returns every way in which a file can give parameters without a theta, as ``beside`` names it."""
        ways: dict[str, Json] = {"nothing": {}}
        for suffix, parameters in (("", _PLAIN), (" scaled", _YARN)):
            ways[f"rope_parameters{suffix}"] = {"rope_parameters": self._for_each(parameters)}
            if "rope_scaling" in self.v4:
                ways[f"rope_scaling{suffix}"] = {"rope_scaling": parameters}
            if "rope_parameters" in self.v4:
                ways[f"flat{suffix}"] = {"rope_parameters": parameters}
        return ways

    def _usually_filled(self, key: str) -> Json:
        """Returns the usual values for a layer type: the class's theta and partial factor."""
        theta, own = self.default_theta, (self.base if key == ALL_LAYERS else self.base.get(key)) or {}
        found = {
            "rope_theta": theta.get(key) if isinstance(theta, Mapping) else theta,
            "partial_rotary_factor": own.get("partial_rotary_factor"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _fills(self, given: Json) -> dict[str, Json]:
        names = ("rope_theta", "partial_rotary_factor", "attention_factor")
        found = {
            key: {name: value[name] for name in names if value.get(name) is not None}
            for key, value in self._parameters(given).items()
        }
        if given == {"rope_parameters": self._for_each(_PLAIN)}:
            for key, partial in self._partial_of_table().items():
                found.setdefault(key, {}).setdefault("partial_rotary_factor", partial)
        return found

    def _for_each(self, parameters: Json, only: str | None = None) -> Json:
        """Returns these parameters for every layer type that rotates, where each has a table (else under ``only``)."""
        if not self.per_type:
            return dict(parameters) if only is None else {only: dict(parameters)}
        types = self.base or {key: {} for key in self.layer_types}
        return {key: dict(parameters) if types[key] is not None else None for key in types}

    def _ignores_type(self) -> bool:
        """Whether the class ignores scaling named under ``type``, the first key of transformers 4."""
        if "rope_scaling" not in self.v4 or not self.per_type:
            return False
        found = self._parameters({"rope_scaling": {"type": "linear", "factor": 3.0}})
        return any(found[key].get("rope_type") != "linear" for key in self.v4["rope_scaling"] if key in found)

    def _needs_every_type(self) -> bool:
        """Whether the class loses parameters, or leaves them incomplete, where one layer type is not stated."""
        if not self.per_type:
            return False
        every = {key: value for key, value in self._for_each(_SCALED).items() if value}
        tried = {left: {key: every[key] for key in every if key != left} for left in every if len(every) > 1}
        found = {left: self._parameters({"rope_parameters": given}) for left, given in tried.items()}
        return any(
            left not in found[left] or any(not _holds(found[left].get(key, {}), _SCALED) for key in given)
            for left, given in tried.items()
        )

    def _partial_of_slice(self) -> bool:
        """Whether a class without a partial factor computes it from ``qk_rope_head_dim`` (DeepSeek-V4)."""
        found = self._parameters({"head_dim": 512, "qk_rope_head_dim": 96})
        return bool(found) and all(value.get("partial_rotary_factor") == 96 / 512 for value in found.values())

    def _ways_with_partial(self) -> Json:
        """Returns the rope types under which the partial factor in the parameters counts for nothing, by what does."""
        of_slices = self._share("rope_parameters", qk_rope_head_dim=48, qk_nope_head_dim=80) == 48 / 128  # Mistral 4
        kinds = [kind for kind in ("default", "linear") if of_slices or self._ignores_partial(kind)]
        whole = {} if "default" in kinds else self._pairs_with("default", 1.0)
        own = [kind for kind in kinds if whole and self._pairs_with(kind, 1.0) != whole]
        return {"ignores_partial": [kind for kind in kinds if kind not in own], "own_partial": own}

    def _ignores_partial(self, kind: str) -> bool:
        """Whether as many coordinates turn with half the head in ``partial_rotary_factor`` as with all of it."""
        half, full = (self._pairs_with(kind, part) for part in (0.5, 1.0))
        return half == full != {}

    def _partial_of_table(self) -> dict[str, float]:
        """Returns the partial factor that the code of plain tables has, where it is that of the class (MiMo-V2)."""
        if not self.per_type:
            return {}
        parts = {key: (value or {}).get("partial_rotary_factor") for key, value in self.base.items()}
        stated = {value for value in parts.values() if value is not None}
        if len(stated) != 1:
            return {}
        [part] = stated
        unstated, own, full = (self._pairs_with("default", each) for each in (None, part, 1.0))
        return dict.fromkeys(parts, part) if unstated == own != full else {}

    def _pairs_with(self, kind: str, partial: float | None) -> dict[str, int]:
        """Returns how many pairs turn with this partial factor in the rope parameters (None: unstated)."""
        stated: Json = {"rope_type": kind, "rope_theta": _ODD["rope_theta"]}
        stated |= {} if kind == "default" else {"factor": 3.0}
        stated |= {} if partial is None else {"partial_rotary_factor": partial}
        config = _built(self.cls, rope_parameters=self._for_each(stated))
        return {} if config is None else _pairs(config)


def _holds(parameters: Json, wanted: object) -> bool:
    return wanted.items() <= parameters.items() if isinstance(wanted, Mapping) else wanted in parameters.values()


def _pairs(config: PreTrainedConfig) -> dict[str, int]:
    """Returns how many pairs the tables of a configuration's rotary module have; nothing where it cannot be built."""
    module = _modeling(type(config))
    for name, cls in sorted(vars(module).items()):
        if name.endswith("RotaryEmbedding") and "Vision" not in name and cls.__module__ == module.__name__:
            try:
                buffers = cls(copy.deepcopy(config)).named_buffers()
            except Exception:  # the embedding of another part of the model, or one that this configuration cannot have
                continue
            return {key: len(table) for key, table in buffers if key.endswith("inv_freq") and "original" not in key}
    return {}


def _modeling(cls: type[PreTrainedConfig]) -> ModuleType:
    """Imports the modeling file beside a class, or that of another type whose code it shares (InternLM 3)."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    name = cls.__module__.replace("configuration_", "modeling_")
    return importlib.import_module(name if find_spec(name) else MODEL_FOR_CAUSAL_LM_MAPPING[cls].__module__)


def _write(path: Path, table: object) -> None:
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _add(version: str) -> None:
    """Adds to the earlier versions what this one, which is installed, has otherwise than the next one known."""
    earlier = {
        each: table for each, table in json.loads(EARLIER.read_text(encoding="utf-8")).items() if each != version
    }
    later, found = table_of(earlier, version), json.loads(json.dumps(generate()))
    differs = {key: entry for key, entry in found.items() if key in later and entry != later[key]}
    _write(EARLIER, earlier | ({version: differs} if differs else {}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--earlier"]:
        _add(metadata.version("transformers"))
    else:
        table = generate()
        _write(PATH, table)
        _write(SECTIONS, generate_sections(table))
