"""A parsed configuration, and the rotary geometry that transformers computes from its language model's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..errors import ConfigError
from ..files import Data, Json, is_number, present
from ..output.formatting import brief, cut
from ..rope import Rope
from . import class_defaults
from .class_defaults import ALL_LAYERS, PARTIAL_NAMES, THETA_NAMES
from .families import Family, family
from .finding import (
    LENGTH_KEYS,
    ORIGINAL,
    Draft,
    Lengths,
    Path,
    StatedLength,
    at,
    dotted,
    draft_in,
    find_section,
    lengths_in,
    originals_in,
    placed,
)
from .parameters import check_theta, ignored_flat, read_parameters
from .section import (
    LARGEST,
    LONGEST_NAME,
    Parameters,
    Section,
    check_head,
    check_parameters,
    is_name,
    share,
    theta,
    whole,
)

MAXIMUM_STAYS = ("linear", "dynamic", "proportional")
"""The rope types under which ``max_position_embeddings`` stays the trained length."""


@dataclass(frozen=True)
class Configuration:
    """A parsed ``config.json`` or ``model.config.to_dict()``, with the keys of transformers 4 or 5.

    Create one object per mapping with :meth:`read`, because values are computed on first use and cached. A patch needs
    two objects, one for the current and one for the written configuration::

        before = Configuration.read(read_config(folder), original_length)
        after = Configuration.read(write_rope(before, scaling))
        before.ropes, after.ropes

    :meth:`read` never raises an error; :attr:`ropes`, and attributes that use it, raise ConfigError for a model without
    RoPE.

    Attributes:
        raw: the full mapping, which must not change afterwards.
        stated_length: the trained length in tokens that the user gave, if the file's length is missing or wrong.
        section: the language model's part: ``raw`` itself, or a part of a multimodal model such as ``text_config``.
        path: the keys that lead to ``section``.
        unclear: why the section cannot be determined, or "".
    """

    raw: Json
    stated_length: int | None
    section: Json
    path: Path = ()
    unclear: str = ""

    @classmethod
    def read(cls, config: Json, original_length: int | None = None) -> Configuration:
        """Reads a configuration; ``original_length`` is the trained length, if the user gave one."""
        path, unclear = find_section(config)
        found = at(config, path)
        section: Json = {}
        if isinstance(found, Mapping):
            section = found
        elif found is not None:
            unclear = f"{dotted(path)} must be an object of keys and values, not {brief(found)}"
        stated = config.get("model_type")
        if not isinstance(stated or "", str):
            unclear = f"model_type must be a name, not {brief(stated)}"
        if path and not section.get("model_type"):
            entry = class_defaults.load().get(str(stated)) or {}
            section = {**section, "model_type": entry.get("text") or stated}
        return cls(config, original_length, section, path, unclear)

    @cached_property
    def model_type(self) -> str:
        """The language model's type, or ``"None"`` if the configuration has no type."""
        return str(self.section.get("model_type"))

    @cached_property
    def whole_type(self) -> str:
        """The type of the whole model, which differs from :attr:`model_type` for a multimodal model."""
        return cut(str(self.raw.get("model_type")), LONGEST_NAME)

    @property
    def family(self) -> Family:
        """The special cases of the model type."""
        return family(self.model_type)

    @property
    def draft(self) -> Draft | None:
        """The draft head that this is, or the MTP layers of the model; None for neither."""
        return draft_in(self.raw, self.section)

    @property
    def is_head(self) -> bool:
        """Whether this is a draft head, which runs only beside its target."""
        return self.draft is not None and not self.draft.layers

    @property
    def is_scaled(self) -> bool:
        """Whether any layer's geometry is already scaled."""
        return any(rope.is_scaled for rope in self.ropes.values())

    @property
    def max_length(self) -> int:
        """The largest ``max_position_embeddings`` of all layer types."""
        return max(rope.max_length for rope in self.ropes.values())

    @property
    def meant_length(self) -> int:
        """The context, in tokens, that the configuration is meant for (:attr:`lengths`)."""
        return self.lengths.served.tokens

    @cached_property
    def lengths(self) -> Lengths:
        """The trained and the served length, with the keys that state them.

        Raises:
            ConfigError: as for :attr:`ropes`.
        """
        ropes = self.ropes.values()
        limit = self.max_length
        maximum = StatedLength(limit, self._maximum_key)
        trained = max(map(self._trained, ropes), key=_tokens)
        stated = [
            each
            for each in [*lengths_in(self.section), *originals_in(self.section)]
            if each.key != self.text.maximum_name
        ]
        reached = self.family.reached.get(limit)
        products = [each for rope in ropes if (each := _product(rope, trained.key)) and trained.tokens != reached]
        is_left = trained.tokens in (limit, self.family.trained.get(limit))  # the maximum stays the original
        served = max([maximum, *(products if is_left else ())], key=_tokens)
        agreeing = {trained.tokens, served.tokens, limit}
        odd = next((each for each in [*stated, *products] if each.tokens not in agreeing), None)
        scaled = {rope.kind for rope in ropes if rope.is_scaled}
        other = None if scaled else odd
        if scaled - {"dynamic"} and trained.key == maximum.key:
            is_confirmed = served.tokens != limit and any(each.tokens == served.tokens for each in stated)
            other = None if is_confirmed else next(filter(None, map(_divided, ropes)), None)
        if self.stated_length is not None:
            other = odd = None
        outer = lengths_in(self.raw, ("max_position_embeddings", *LENGTH_KEYS)) if self.path else []
        others = [each for each in stated if each.key not in (trained.key, served.key)]
        others += [replace(each, key=f"top level: {each.key}") for each in outer]
        return Lengths(trained, served, tuple(others), other, odd)

    def _trained(self, rope: Rope) -> StatedLength:
        """Returns a layer type's trained length and what states it."""
        length = rope.original_length
        where = "rope_scaling" if self.text.old else "rope_parameters"
        if self.stated_length is not None:
            return StatedLength(length, "as given")
        inner = f"{where}.{rope.layer_type}" if self.text.is_nested else where
        stated = {ORIGINAL: self.section.get(ORIGINAL), f"{inner}.{ORIGINAL}": rope.scaling.get(ORIGINAL)}
        stated |= {each.key: each.tokens for each in originals_in(self.section)}
        stated[self._maximum_key] = rope.max_length
        is_known = rope.max_length in (self.family.trained or self.family.reached)
        other = "its model card" if is_known else "another layer type or a class default"
        return StatedLength(length, next((key for key, value in stated.items() if value == length), other))

    @property
    def _maximum_key(self) -> str:
        name = self.text.maximum_name
        if self.text.maximum is None:
            return "as given"
        stated = name if name in self.section else "max_position_embeddings"
        return stated if self.section.get(stated) else f"{name}, the default of {self.model_type}"

    @property
    def layer_types(self) -> set[str]:
        """The stated layer types or, if none are stated, those of the class's default model."""
        kinds = self.default_of("layer_types")
        return set(filter(is_name, kinds)) if isinstance(kinds, (list, tuple)) else set()

    @property
    def ignored(self) -> Parameters:
        """The stated keys and values that the model type's code ignores."""
        return self.text.ignored if self.parameters else {}

    @cached_property
    def text(self) -> Section:
        """The language model's part, together with the defaults of its class."""
        return Section(self.section)

    @cached_property
    def parameters(self) -> dict[str, Parameters]:
        """The rope parameters per rotating layer type, under the keys of transformers 5 and completed as there."""
        if self.unclear:
            raise ConfigError(self.unclear)
        if self.draft and not self.draft.rotates:
            raise ConfigError(f"a {self.draft} does not rotate, and needs no change under any schedule of its target")
        return read_parameters(self.text)

    @cached_property
    def ropes(self) -> dict[str, Rope]:
        """The rotary geometry per rotating layer type, or under ``"all"`` for a model with one table for all layers.

        Raises:
            ConfigError: the model has no RoPE, fields are missing, or two stated values disagree.
        """
        ropes = {key: self._rope(key, parameters) for key, parameters in self.parameters.items()}
        if not ropes:
            raise ConfigError(f"no layer of this {self.model_type} rotates; nothing can be scaled")
        outer = self.whole_type
        read = class_defaults.sections().get(outer)
        path = ".".join(self.path)
        if read is not None and path not in read:
            ways = " or ".join(name or "the top level" for name in read) or "no section"
            raise ConfigError(
                f"transformers reads the rope parameters of {outer} in {ways}, and config.json describes a language "
                f"model in {dotted(self.path)}; nothing is read or changed"
            )
        if read and read[path] and ALL_LAYERS in ropes:
            raise ConfigError(ignored_flat(outer, read[path]))
        return ropes

    def default_of(self, field: str) -> object:
        """Returns the stated value of a field of the language model, even if it is null, or the class's default."""
        return self.section.get(field, self.text.defaults.get(field))

    def _rope(self, key: str, parameters: Parameters) -> Rope:
        """Returns the geometry of one set of parameters."""
        check_parameters(parameters)
        text = self.text
        maximum = text.maximum or self.stated_length
        if parameters.get("rope_theta") is None and text.is_known:
            raise ConfigError(
                f"the rope_parameters ({key} layers) state no rope_theta, and {text.model_type} does not fill it in; "
                "state it there"
            )
        if parameters.get("rope_theta") is None or maximum is None:
            raise text.missing()
        check_theta(text, key, parameters["rope_theta"])
        head_dim = text.head_dim(key, parameters)
        partial = share(parameters.get("partial_rotary_factor", 1.0), parameters["rope_type"])
        proportional = parameters["rope_type"] == "proportional"
        max_length = whole(maximum, text.maximum_name)
        rotary_dim = head_dim if proportional else int(head_dim * partial)
        if rotary_dim < 1:
            raise ConfigError(f"partial_rotary_factor {partial} of head_dim {head_dim} leaves no coordinate to rotate")
        check_head(head_dim, partial)
        trained = self.stated_length or self._recorded(parameters, max_length)
        if trained < 2:
            raise ConfigError(
                "the trained length is 1 token, but RoPE depends on distances; give the original length",
                "original_length",
            )
        return Rope(
            rotary_dim=rotary_dim,
            theta=theta(parameters["rope_theta"]),
            original_length=trained,
            head_dim=head_dim,
            max_length=max_length,
            rotated_pairs=int(partial * head_dim // 2) if proportional else None,
            layer_type=None if key == ALL_LAYERS else key,
            scaling=parameters,
        )

    def _recorded(self, parameters: Parameters, max_length: int) -> int:
        """Returns the recorded trained length, or the maximum if none is recorded.

        A length at the top level takes precedence over a length in the parameters, as in transformers. A length that is
        recorded only for one layer type also applies to the other types.
        """
        name = ORIGINAL
        text = self.text
        top = text.stated.get(name)
        inner = parameters.get(name)
        where = "at the top level"
        if top is None and parameters["rope_type"] == "longrope":  # Phi-3's class has a top-level default
            top = text.defaults.get(name)
            where = f"by {text.model_type}'s default (state it at the top level)"
        if text.per_type:  # tables per layer type ignore the top level
            top = top if inner is None else inner
        if top is not None and inner is not None and top != inner:
            raise ConfigError(
                f"{name} is {brief(top)} {where} and {brief(inner)} inside the rope parameters; make them agree"
            )
        others = [parameter.get(name) for parameter in self.parameters.values()]
        beside = max(filter(is_number, others), default=None)
        recorded = next((each for each in (top, inner, beside) if each is not None), None)
        if recorded is not None:
            return whole(recorded, name)
        is_linear = any(each["rope_type"] == "linear" for each in self.parameters.values())
        known = (is_linear and text.family.reached) or text.family.trained
        return next(map(_tokens, originals_in(self.section)), known.get(max_length, max_length))


def _tokens(reading: StatedLength) -> int:
    return reading.tokens


def _product(rope: Rope, key: str) -> StatedLength | None:
    """Returns factor x original for a rope type whose maximum may stay the original; None for others."""
    factor = rope.scaling.get("factor")
    if rope.kind not in (*MAXIMUM_STAYS, "yarn") or not is_number(factor):
        return None
    if not 1 < factor <= LARGEST / rope.original_length:
        return None
    return StatedLength(round(factor * rope.original_length), f"factor {factor:g} x {key}")


def _divided(rope: Rope) -> StatedLength | None:
    """Returns the maximum / factor, from which the maximum may have been extended; None for a rope without a factor."""
    factor = rope.scaling.get("factor")
    if not rope.is_scaled or not is_number(factor) or factor <= 1:
        return None
    return StatedLength(max(2, round(rope.max_length / factor)), f"max_position_embeddings / factor {factor:g}")


def read_rope(config: Json, original_length: int | None = None) -> dict[str, Rope]:
    """Returns the rotary geometry per layer type of a configuration.

    Raises:
        ConfigError: as for :attr:`Configuration.ropes`.
    """
    return Configuration.read(config, original_length).ropes


def trained_in(config: Json) -> int:
    """Returns the context that a model was trained for: the served length if its vendor scaled it, else the original.

    The vendor's dynamic scaling is not of the training: it starts beyond the maximum.

    Args:
        config: the configuration, without ropescale's scaling.

    Raises:
        ConfigError: as for :attr:`Configuration.ropes`.
    """
    configuration = Configuration.read(config)
    lengths = configuration.lengths
    kinds = {rope.kind for rope in configuration.ropes.values() if rope.is_scaled}
    return (lengths.served if kinds - {"dynamic"} else lengths.trained).tokens


_SCALING_KEYS = (
    "rope_type type factor original_max_position_embeddings attention_factor attn_factor beta_fast beta_slow mscale "
    "mscale_all_dim truncate extrapolation_factor short_factor long_factor short_mscale long_mscale low_freq_factor "
    "high_freq_factor alpha finetuned max_position_embeddings"
).split()
"""Keys that belong to a scaling. All other keys of ``rope_parameters`` belong to the model and are kept."""

_TEMPERATURE = "llama_4_scaling_beta"
"""A key of Ministral 3 and Mistral 4, which scale queries depending on position / original_max_position_embeddings."""


def read_by_queries(parameters: Json) -> Json:
    """Returns the original length if the model's code scales queries by it too, so that no schedule may change it."""
    return {ORIGINAL: parameters[ORIGINAL]} if {_TEMPERATURE, ORIGINAL} <= parameters.keys() else {}


ONLY_V5_KEYS = (
    "config.json has only rope_parameters, which transformers 4 ignores: it would use its default theta without "
    "scaling; patch with the schedule as-is to add the keys of transformers 4"
)
"""The message about configurations for which :func:`unread_by_v4` is true."""


@dataclass(frozen=True)
class Scaling:
    """The values by which a configuration expresses a schedule.

    Attributes:
        parameters: the new rope parameters per layer type that changes, without the model's own keys.
        max_length: the new ``max_position_embeddings``.
        original_length: the new ``original_max_position_embeddings``; None keeps the current value.
    """

    parameters: Mapping[str, Mapping[str, Any]]
    max_length: int
    original_length: int | None


_READ_BESIDE = ("rope_theta", "partial_rotary_factor")


def unread_by_v4(configuration: Configuration) -> bool:
    """Whether transformers 4, which ignores ``rope_parameters``, would use different parameters than transformers 5."""
    section = configuration.section
    if "rope_parameters" not in section:
        return False
    rope = configuration.ropes.get(ALL_LAYERS)
    if rope and not any(name in section for name in THETA_NAMES):
        own = configuration.text.default_parameters or {"rope_theta": rope.theta}
        # where the class of transformers 5 has 10000 as its default, that of transformers 4 has it, too
        if rope.theta != 10000 or any(own.get(name) != rope.scaling.get(name) for name in _READ_BESIDE):
            return True
    return section.get("rope_scaling") is None and _v4_scaling(configuration.text, configuration.parameters) is not None


def in_both_dialects(configuration: Configuration) -> Data:
    """Returns a copy of a configuration with equivalent keys for transformers 4 and 5."""
    original = max(rope.original_length for rope in configuration.ropes.values()) if configuration.is_scaled else None
    return write_rope(configuration, Scaling({}, configuration.max_length, original))


def widened(configuration: Configuration, length: int) -> Configuration:
    """Returns a configuration with a longer window and, bit for bit, the same tables.

    Raises:
        ConfigError: the window is that long already, or another maximum would change the tables.
    """
    served = configuration.meant_length
    if length < served or length == served <= configuration.max_length:
        raise ConfigError(
            f"the window is {served:,} tokens already; engines take a shorter one as an option", "target_length"
        )
    parameters = {}
    for key, rope in configuration.ropes.items():
        kind = rope.kind
        if kind == "dynamic" or (kind == "longrope" and configuration.family.derives_attention_scale):
            raise ConfigError(
                f"{kind} of {configuration.model_type} follows max_position_embeddings, so a longer window is another "
                "table; replace the scaling by a schedule",
                "replace_scaling",
                "schedule",
            )
        # what transformers would derive from the old maximum
        derived = {"factor": rope.max_length / rope.original_length, ORIGINAL: rope.original_length}
        parameters[key] = (derived if kind in ("yarn", "longrope", "llama3") else {}) | present(rope.scaling)
    scaling = Scaling(parameters, length, configuration.lengths.trained.tokens)
    return Configuration.read(write_rope(configuration, scaling))


def write_rope(configuration: Configuration, scaling: Scaling) -> Data:
    """Returns a copy of a configuration with the given scaling; other values are shared with it.

    Sets ``rope_parameters`` for transformers 5, and ``rope_scaling`` and ``rope_theta`` for transformers 4. Keeps the
    model's own rope parameters and all other keys.
    """
    text = configuration.text
    merged = {}
    for key, old in configuration.parameters.items():
        new = scaling.parameters.get(key)
        own = {name: value for name, value in old.items() if name not in _SCALING_KEYS}
        kept = read_by_queries(old)
        merged[key] = dict(old) if new is None else {"rope_type": new["rope_type"], **own, **new, **kept}
    section = dict(configuration.section)
    stated = text.new if text.is_nested else text.default_parameters  # with the layer types that do not rotate
    section["rope_parameters"] = {**stated, **merged} if text.per_type else merged[ALL_LAYERS]
    own = text.maximum_name
    if own != "max_position_embeddings":  # both names may be stated, and either may take precedence
        section.pop("max_position_embeddings", None)
    section[own] = scaling.max_length
    if scaling.parameters or scaling.max_length != configuration.max_length:
        section |= {each.key: scaling.max_length for each in lengths_in(section)}  # limits of vLLM and SGLang
    if scaling.original_length is not None:
        section |= {ORIGINAL: scaling.original_length, **read_by_queries(merged.get(ALL_LAYERS, {}))}
    _write_v4(section, merged, text)
    _write_oddities(section, merged, text)
    stated = at(configuration.raw, configuration.path)
    if configuration.path and isinstance(stated, Mapping) and "model_type" not in stated:  # filled in when read
        section.pop("model_type", None)
    return placed(configuration.raw, configuration.path, section)


def _write_v4(section: Data, merged: Mapping[str, Json], text: Section) -> None:
    """Writes the parameters into the keys of transformers 4 if the model type has such keys, and removes stale keys.

    A key that the vendor's file states, but transformers does not read, follows the table that it describes.
    """
    scaling = _v4_scaling(text, merged)
    for name in THETA_NAMES:
        kinds = text.v4.get(name, text.named_by(name))
        table = next((merged[kind] for kind in kinds if kind in merged), {})
        if "rope_theta" in table and (section.get(name) is not None or (_has_v4(text) and name in text.v4)):
            _set(section, name, table["rope_theta"])
    partials = [table.get("partial_rotary_factor") for table in merged.values()]
    for name in PARTIAL_NAMES:
        first = next((merged[kind] for kind in text.v4.get(name, ()) if kind in merged), {})
        if "partial_rotary_factor" in first and (_has_v4(text) or section.get(name) is not None):
            _set(section, name, first["partial_rotary_factor"])
        elif name in text.v4 or (
            name == "partial_rotary_factor" and any(each != section.get(name) for each in partials)
        ):
            section.pop(name, None)  # transformers 5 would give it to every table that states none
    if scaling is not None or _has_v4(text) or "rope_scaling" in section:
        section["rope_scaling"] = scaling  # null means plain RoPE


def _set(section: Data, name: str, value: object) -> None:
    """Sets a key, but keeps the vendor's spelling of an equal number, such as 10000 for 10000.0."""
    if section.get(name) != value:
        section[name] = value


def _has_v4(text: Section) -> bool:
    """Whether transformers 4 has a key for the scaling, and reads it as part of one table."""
    return text.v4.get("rope_scaling") in ([ALL_LAYERS], ["full_attention"])


def _v4_scaling(text: Section, tables: Mapping[str, Json]) -> Parameters | None:
    """Returns the ``rope_scaling`` that is equivalent to rope parameters, or None for plain RoPE or without such a key.

    A class that came later (DeepSeek-V4) reads the key as well, and then builds all its tables from the older keys: it
    gets the key only if the file has older keys, and no table outside the key's reach is scaled.
    """
    reach = text.v4.get("rope_scaling", ())
    if len(reach) != 1 or reach[0] not in tables:
        return None
    parameters = tables[reach[0]]
    if not _has_v4(text):
        is_older = any(text.stated.get(name) is not None for name in (*THETA_NAMES, "rope_scaling"))
        scaled = [kind for kind, table in tables.items() if table["rope_type"] != "default"]
        if not is_older or scaled != reach:
            return None
    kind = str(parameters["rope_type"])
    # mlx-lm reads the partial factor of proportional RoPE in rope_scaling.
    beside = {"rope_theta"} | ({"partial_rotary_factor"} if kind != "proportional" else set())
    rest = {key: value for key, value in parameters.items() if key not in beside}
    if rest == {"rope_type": "default"}:
        return None
    if kind in text.family.v4_keys:
        return {"type": kind} | {key: parameters[key] for key in text.family.v4_keys[kind]}
    return {**rest, "type": kind} if text.old.get("type") else rest  # a vendor's own code may read only the old name


def _write_oddities(section: Data, merged: Mapping[str, Json], text: Section) -> None:
    """Writes further keys that transformers needs, or in which a model type states theta a second time."""
    is_null = "head_dim" in section or "head_dim" in text.defaults or text.family.null_head_dim_in_v4
    if is_null and text.get("head_dim") is None:  # transformers' rope functions fail on a null head_dim
        section["head_dim"] = text.head_dim(ALL_LAYERS, {})
    per_pair = any(parameters["rope_type"] == "longrope" for parameters in merged.values())
    if text.defaults.get("head_dims") and per_pair:  # the check of longrope reads head_dim, which differs by layer
        section["allow_global_per_layer_attribute_access"] = True
    attention = section.get("attn_config")
    if isinstance(attention, Mapping) and attention.get("rope_theta") is not None:  # DBRX, for transformers 4
        section["attn_config"] = {**attention, "rope_theta": merged[ALL_LAYERS]["rope_theta"]}
    thetas = section.get("layer_rope_theta")
    if isinstance(thetas, list):  # Granite's SWA models; 0 marks a layer that does not rotate
        section["layer_rope_theta"] = [merged[ALL_LAYERS]["rope_theta"] if theta else theta for theta in thetas]
