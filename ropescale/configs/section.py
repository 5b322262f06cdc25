"""The language model's part of a configuration, with the defaults of its class."""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TypeGuard, cast

from ..errors import ConfigError
from ..files import Data, Json, is_number
from ..output.formatting import brief
from . import class_defaults
from .class_defaults import Entry
from .families import Family, family
from .finding import ORIGINAL, lengths_in

Parameters = Data
"""Rope parameters under the keys of transformers 5."""

RENAMED_TYPES = {"su": "longrope", "mrope": "default"}
RENAMED_BY = {"su": ("phi3", "phi4_multimodal"), "mrope": ("qwen2_vl", "qwen2_5_vl")}
"""The model types, also with ``_text``, whose classes know these old names of rope types."""


@dataclass(frozen=True)
class Section:
    """The configuration of a language model and the defaults of its class.

    Attributes:
        stated: the keys and values in the file.
        ignored: the stated keys and values that the model type's code ignores; filled while the parameters are read.
    """

    stated: Json
    ignored: Parameters = field(default_factory=dict, compare=False)

    @cached_property
    def model_type(self) -> str:
        """The type of the language model.

        Raises:
            ConfigError: the configuration has no type.
        """
        model_type = self.stated.get("model_type")
        if not model_type or not is_name(model_type):
            raise ConfigError("the configuration has no model_type; is this a transformers checkpoint's config.json?")
        return model_type

    @cached_property
    def family(self) -> Family:
        """The special cases of the model type."""
        return family(self.model_type)

    @cached_property
    def defaults(self) -> Entry:
        """The defaults of the model type's class; empty for an unknown type."""
        return class_defaults.load().get(self.model_type) or {}

    @property
    def is_known(self) -> bool:
        """Whether transformers has a class for the model type."""
        return bool(self.defaults)

    @cached_property
    def new(self) -> Json:
        """The configuration's ``rope_parameters``, without a ``rope_type`` next to tables per layer type."""
        return class_defaults.tables_alone(self._object("rope_parameters"))

    @cached_property
    def old(self) -> Json:
        """The configuration's ``rope_scaling``, unchanged."""
        return self._object("rope_scaling")

    def _object(self, name: str) -> Json:
        value = self.stated.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be an object of keys and values, not {brief(value)}")
        return value or {}

    @property
    def v4(self) -> Mapping[str, list[str]]:
        """The layer types that each top-level key of transformers 4 applies to."""
        return self.defaults.get("v4", class_defaults.V4)

    @property
    def default_parameters(self) -> Json:
        """The class's default rope parameters."""
        return self.defaults.get("rope_parameters") or {}

    @property
    def is_nested(self) -> bool:
        """Whether the file's ``rope_parameters`` are stated per layer type."""
        return class_defaults.is_nested(self.new)

    @cached_property
    def per_type(self) -> bool:
        """Whether the class keeps rope parameters per layer type or, for an unknown class, whether the file does."""
        return self.defaults.get("rope_parameters") == {} or class_defaults.is_nested(
            self.default_parameters or self.new
        )

    def name_of(self, field: str) -> str:
        """Returns the name that the model type uses for a field."""
        return self.defaults.get("names", {}).get(field, field)

    @cached_property
    def maximum_name(self) -> str:
        """The key of the maximum; for an unknown type without ``max_position_embeddings``, another stated length."""
        name = self.name_of("max_position_embeddings")
        if self.is_known or self.stated.get(name) is not None:
            return name
        return next((each.key for each in lengths_in(self.stated)), name)

    @property
    def maximum(self) -> object:
        """The maximum that the file or the class states, or None, also for a null, on which transformers stops."""
        if self.stated.get(self.maximum_name, 0) is None:
            return None
        return self.get("max_position_embeddings") or self.stated.get(self.maximum_name)

    def get(self, field: str) -> object:
        """Returns a field's value under the name that takes precedence in the class, or else the class's default."""
        own = self.name_of(field)
        ours = [name for name, theirs in self.defaults.get("names", {}).items() if theirs == own]
        own_wins = any(name in self.defaults.get("own_name_wins", ()) for name in ours)
        stated = (self.stated.get(name) for name in ([own, *ours] if own_wins else [*ours, own]))
        return next((value for value in stated if value is not None), self.defaults.get(field))

    def default(self, key: str) -> Json:
        """Returns the class's default rope parameters for a layer type."""
        parameters = self.default_parameters.get(key) if self.per_type else self.default_parameters
        return parameters if isinstance(parameters, Mapping) else {}

    def way(self, given: Json) -> str:
        """Returns the form in which the file states these parameters, as a key of ``beside`` in the class defaults."""
        if not given:
            return "nothing"
        where = "rope_scaling" if self.old else "flat" if self.per_type and not self.is_nested else "rope_parameters"
        return where if normalised(given)["rope_type"] == "default" else f"{where} scaled"

    def fills(self, key: str, way: str) -> Json:
        """Returns the values that the class fills in for a layer type, given the form from :meth:`way`."""
        default = self.default(key)
        theta = self.defaults.get("default_theta")
        theta = theta.get(key) if isinstance(theta, Mapping) else theta
        usual = {**default, "rope_theta": default.get("rope_theta", theta) if way == "nothing" else theta}
        return self.defaults.get("beside", {}).get(way, {}).get("fills", {}).get(key, usual)

    def beside(self, key: str, names: Iterable[str], way: str = "") -> tuple[str, object] | None:
        """Returns the name and value of the first of these top-level keys that is stated and applies to a layer type.

        Args:
            key: the layer type.
            names: the top-level keys.
            way: the form from :meth:`way`, which determines the layer types that a key applies to. Default: :attr:`v4`.
        """
        stated = ((name, self.stated.get(name)) for name in self.reaching(key, names, way))
        return next(((name, value) for name, value in stated if value is not None), None)

    def reaching(self, key: str, names: Iterable[str], way: str) -> list[str]:
        """Returns those of the top-level keys, as for :meth:`beside`, that apply to a layer type."""
        reaches = self.defaults.get("beside", {}).get(way, {}).get("reaches", self.v4)
        return [name for name in names if key in reaches.get(name, ())]

    def named_by(self, name: str) -> list[str]:
        """Returns the layer types whose theta a top-level key states, if the class does not read this key."""
        return [] if name in self.v4 or not self.is_known else class_defaults.THETA_OF[name]

    def head_dim(self, key: str, parameters: Json) -> int:
        """Returns the dimension of a head: the stated value, the class's default, or hidden_size / num_attention_heads.

        For latent attention, returns the dimension of the slice that rotates.

        Raises:
            ConfigError: the dimension is missing, or the size of transformers' table differs from the rotated slice.
        """
        partial = parameters.get("partial_rotary_factor")
        kind = parameters.get("rope_type")
        is_whole = partial in (None, 1) or self.family.table_of_head_dim
        is_whole = is_whole or (kind == "proportional" and not self.is_known)  # the slice's size before patching
        has_slice = not self.is_known or "qk_rope_head_dim" in self.defaults  # other classes ignore this key
        if has_slice and self.get("qk_rope_head_dim") and is_whole:
            sliced = self.get("qk_rope_head_dim")
            stated = self.get("head_dim")  # MLA rotates a separate slice
            if self.family.table_of_head_dim and stated is not None and stated != sliced:
                raise ConfigError(
                    f"head_dim is {brief(stated)} and qk_rope_head_dim is {brief(sliced)}: {self.model_type} rotates "
                    "qk_rope_head_dim coordinates, and transformers builds its table for head_dim; make them equal"
                )
            return whole(sliced, "qk_rope_head_dim")
        stated = self.get("head_dim")
        default = self.defaults.get("head_dims", {}).get(key)
        if default is not None and default != self.defaults.get("head_dim"):  # Gemma 4's larger full-attention heads
            layers = self.stated.get("per_layer_config")
            layers = layers.values() if isinstance(layers, Mapping) else ()
            heads = [layer["head_dim"] for layer in layers if isinstance(layer, Mapping) and "head_dim" in layer]
            stated = (heads[0] if heads else self.stated.get("global_head_dim") or default) or stated
        if stated is not None:
            return whole(stated, "head_dim")
        hidden = self.get("hidden_size")
        heads = self.get("num_attention_heads")
        if hidden is None or heads is None:
            raise self.missing()
        return whole(
            whole(hidden, "hidden_size") // whole(heads, "num_attention_heads"), "hidden_size / num_attention_heads"
        )

    def missing(self) -> ConfigError:
        """Returns an error that names every missing field of the geometry."""
        theta = self.new.get("rope_theta") or self.stated.get("rope_theta") or self.defaults.get("default_theta")
        heads = self.get("head_dim") or (self.get("hidden_size") and self.get("num_attention_heads"))
        fields = {
            "rope_theta": theta,
            "head_dim (or hidden_size and num_attention_heads)": heads,
            "max_position_embeddings": self.maximum,
        }
        names = ", ".join(name for name, value in fields.items() if not value)
        what = f"the configuration of model type {brief(self.model_type)}"
        if not self.is_known:
            return ConfigError(
                f"{what}, whose defaults ropescale does not know, lacks {names}; its own code may compute this from "
                "other keys, so nothing is read or changed"
            )
        if names == "max_position_embeddings":
            return ConfigError(
                f"{what} lacks {names}; add it to config.json, or give the original length", "original_length"
            )
        return ConfigError(f"{what} lacks {names}; add them to config.json")


def normalised(parameters: Json) -> Parameters:
    """Returns a copy of rope parameters with ``rope_type`` first, and with the current name of an old type or key.

    Raises:
        ConfigError: ``rope_type`` and ``type`` disagree, or are not names.
    """
    new = parameters.get("rope_type")
    old = parameters.get("type")
    for kind in (new, old):
        if kind and not is_name(kind):
            raise ConfigError(f"rope_type must be a name such as 'yarn', not {brief(kind)}")
    if new and old and RENAMED_TYPES.get(str(old), old) != RENAMED_TYPES.get(str(new), new):
        raise ConfigError(f"the rope parameters have rope_type {brief(new)} and type {brief(old)}; keep one")
    kind = str(new or old or "default")
    if kind == "mrope" and not isinstance(parameters.get("mrope_section"), (list, tuple)):
        raise _lacking("mrope scaling", ["mrope_section"], "guesses")
    if not (new or old) and any(name in parameters for name in ("rope_type", "type", *chain(*_REQUIRED.values()))):
        raise _lacking("scaling", ["rope_type"], "stops or scales nothing")
    rest = {key: value for key, value in parameters.items() if key not in ("rope_type", "type")}
    return {"rope_type": RENAMED_TYPES.get(kind, kind), **rest}


LARGEST = 2**53
"""The largest accepted length or dimension; float64 does not represent all larger integers."""

LONGEST_NAME = 100
"""The largest number of characters in the name of a model type, layer type or rope type."""

LARGEST_THETA = 1e100
"""The largest accepted theta; larger values would overflow in the formulas."""

_SMALL_HEAD = 4
"""The largest head size for which an odd size is accepted, as in the tiny models of transformers' tests."""

_SCALARS = (
    "factor attention_factor attn_factor beta_fast beta_slow mscale mscale_all_dim extrapolation_factor short_mscale "
    "long_mscale low_freq_factor high_freq_factor alpha original_max_position_embeddings"
).split()
_PER_PAIR = ("short_factor", "long_factor")
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": _PER_PAIR,
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
"""The keys without which transformers 5 stops (modeling_rope_utils.py), by rope type."""
_REAL = "a finite number below 1e+100"


def number(value: object, name: str, most: float = LARGEST) -> float:
    """Returns the value after checking that it is a number between 0 and ``most``.

    Raises:
        ConfigError: the value is out of range or not a number.
    """
    if not is_number(value) or not 0 <= value <= most:
        raise ConfigError(f"{name} is {brief(value)} in the configuration; it must be a number between 0 and {most:g}")
    return value


def whole(value: object, name: str) -> int:
    """Returns the value as an integer after checking that it is a whole number above 0.

    Raises:
        ConfigError: the value is out of range or not a whole number.
    """
    if not is_number(value) or not 0 < value <= LARGEST or value % 1:
        raise ConfigError(f"{name} is {brief(value)} in the configuration; it must be a whole number above 0")
    return int(value)


def theta(value: object) -> float:
    """Returns the value after checking that it is a valid theta, above 1."""
    base = number(value, "rope_theta", most=LARGEST_THETA)
    if base <= 1:
        raise ConfigError(f"rope_theta is {brief(value)} in the configuration; it must be greater than 1")
    return base


def share(value: object, kind: object) -> float:
    """Returns the value after checking that it is a valid partial factor.

    Only proportional RoPE accepts 0, with which no pair rotates.
    """
    part = number(value, "partial_rotary_factor", most=1)
    if part == 0 and kind != "proportional":
        raise ConfigError("partial_rotary_factor is 0 in the configuration, which leaves no coordinate to rotate")
    return part


def check_parameters(parameters: Json) -> None:
    """Checks that the values of a scaling are numbers, and that its per-pair factors are lists of numbers.

    Raises:
        ConfigError: a required key is missing, or a value has a different type, or is too large.
    """
    kind = str(parameters["rope_type"])
    # null counts as missing, except the factor that transformers then derives from the lengths
    present = {name for name, value in parameters.items() if value is not None or (kind, name) == ("yarn", "factor")}
    required = ("factor",) if kind == "proportional" and "factor" in parameters else _REQUIRED.get(kind, ())
    if lacking := [name for name in required if name not in present]:
        raise _lacking(f"{kind} scaling", lacking, "stops")
    if parameters.get(ORIGINAL) is not None:
        whole(parameters[ORIGINAL], ORIGINAL)
    for name in _SCALARS:
        if parameters.get(name) is not None and not _is_real(parameters[name]):
            raise ConfigError(f"{name} is {brief(parameters[name])} in the rope parameters; it must be {_REAL}")
    for name in _PER_PAIR:
        value = parameters.get(name)
        if value is not None and not (isinstance(value, (list, tuple)) and all(map(_is_real, value))):
            raise ConfigError(f"{name} is {brief(value)} in the rope parameters; each item must be {_REAL}")


def _lacking(which: str, names: Sequence[str], what: str) -> ConfigError:
    """Returns an error about the required keys that a scaling lacks, and what transformers does without them."""
    return ConfigError(
        f"the {which} in config.json lacks {', '.join(names)}, without which transformers {what}; add what is missing "
        "to the rope parameters, or remove the scaling"
    )


def check_head(head_dim: int, partial: float) -> None:
    """Raises an error for full rotation of a head with an odd dimension, where one coordinate has no partner.

    A rotating part with an odd dimension is valid, because transformers rounds it to pairs.
    """
    if head_dim > _SMALL_HEAD and head_dim % 2 and int(head_dim * partial) == head_dim:
        raise ConfigError(
            f"head_dim is {head_dim} in the configuration, or follows from hidden_size; coordinates rotate in pairs, "
            "and transformers refuses full rotation of an odd head; give an even head_dim"
        )


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can be the name of a model type, layer type or rope type."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _is_real(value: object) -> bool:
    """Whether the formulas can use a value; accepts numpy's numbers."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return -LARGEST_THETA < cast(float, value) < LARGEST_THETA
