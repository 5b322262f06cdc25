"""The rotary geometry of a model: pairs, theta, trained length.

The only file that knows transformers v5's ``rope_parameters`` from v4's ``rope_theta`` + ``rope_scaling``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import model_defaults
from .errors import ConfigError


@dataclass(frozen=True)
class Rope:
    """The rotary geometry of one kind of layer, which is all that a schedule sees.

    Coordinates are turned in pairs; pair ``i`` turns by ``theta^(-2i/d)`` radians per token, with ``d`` the
    rotary dim (Su et al. 2021, arXiv:2104.09864, section 3.2.2). Pair 0 is the fastest.

    Attributes:
        rotary_dim: coordinates of a head that rotate, ``d``; there are ``d / 2`` pairs.
        theta: the base of the geometric series, ``rope_theta``.
        original_length: the context the model was trained at before any scaling, in tokens, ``L``.
        head_dim: coordinates of a head; equals ``rotary_dim`` unless RoPE is partial.
        max_length: what the configuration says, ``max_position_embeddings``; equals ``original_length``
            unless the model is already scaled.
        rotated_pairs: how many pairs turn at all (proportional RoPE); all of them when None.
        layer_type: the layers this geometry belongs to, where a model keeps one table per type.
        scaling: the rope parameters that the configuration has (v5 keys, ``rope_type`` included).
        table: frequencies to build on instead of theta's, per pair; set when a schedule goes on top
            of scaling that is already there.
        table_scale: the attention scale that belongs to ``table``.
    """

    rotary_dim: int
    theta: float
    original_length: int
    head_dim: int = 0
    max_length: int = 0
    rotated_pairs: int | None = None
    layer_type: str | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)
    table: tuple[float, ...] | None = None
    table_scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "head_dim", self.head_dim or self.rotary_dim)
        object.__setattr__(self, "max_length", self.max_length or self.original_length)

    @property
    def pairs(self) -> int:
        """Number of frequencies, ``ceil(d / 2)``."""
        return (self.rotary_dim + 1) // 2

    def inv_freq(self) -> list[float]:
        """Radians per token of each pair before the schedule: ``theta^(-2i/d)``, or :attr:`table`."""
        if self.table is not None:
            return list(self.table)
        return self.geometric(self.theta)

    def geometric(self, theta: float) -> list[float]:
        """``theta^(-2i/d)`` for every pair of this geometry, with another theta."""
        turning = self.pairs if self.rotated_pairs is None else self.rotated_pairs
        return [theta ** (-2 * i / self.rotary_dim) if i < turning else 0.0 for i in range(self.pairs)]

    def wavelengths(self) -> list[float]:
        """Tokens per full turn of each pair, ``2 pi / inv_freq``; infinite for a pair that never turns."""
        return [2 * math.pi / f if f else math.inf for f in self.inv_freq()]

    def turns(self) -> list[float]:
        """Full turns of each pair inside the trained length, ``r_i = L / wavelength_i``."""
        return [self.original_length * f / (2 * math.pi) for f in self.inv_freq()]

    def pair_at(self, turns: float) -> float:
        """The (fractional) pair index that makes ``turns`` turns inside the trained length.

        ``d ln(L / (2 pi turns)) / (2 ln theta)`` (YaRN's "correction dim", Peng et al. 2023, arXiv:2309.00071,
        appendix A.2 and the released code). On a :attr:`table` that is not geometric, the same by
        interpolating ln frequency between pairs.
        """
        wanted = 2 * math.pi * turns / self.original_length
        if self.table is None:
            return -self.rotary_dim * math.log(wanted) / (2 * math.log(self.theta))
        return _crossing([f for f in self.table if f > 0], wanted)


def _crossing(descending: list[float], wanted: float) -> float:
    """Where a falling table crosses ``wanted``, in pairs, linear in ln frequency; extrapolates at the ends."""
    logs = [math.log(f) for f in descending]
    below = next((i for i, value in enumerate(logs) if value < math.log(wanted)), len(logs) - 1)
    left = max(0, min(below, len(logs) - 1) - 1)
    if len(logs) < 2 or logs[left + 1] == logs[left]:
        return float(left)
    return left + (math.log(wanted) - logs[left]) / (logs[left + 1] - logs[left])


# ---------------------------------------------------------------------------------------------------------
# Reading a configuration

ALL_LAYERS = "all"
"""The key of the one geometry of a model that keeps one table for all its layers."""

NOT_SCALING = {"default", "proportional"}
"""Rope types that describe the geometry; proportional only scales through its factor."""

_RENAMED_TYPES = {"su": "longrope", "mrope": "default"}
_SCALING_KEYS = frozenset(
    "rope_type type factor original_max_position_embeddings attention_factor attn_factor beta_fast beta_slow mscale "
    "mscale_all_dim truncate extrapolation_factor short_factor long_factor short_mscale long_mscale low_freq_factor "
    "high_freq_factor alpha finetuned max_position_embeddings".split()
)
"""Keys that belong to a scaling; every other key of ``rope_parameters`` is the model's own and is kept."""

_V4_THETA = {"full_attention": ("rope_theta", "global_rope_theta"), "sliding_attention": ("rope_local_base_freq", "local_rope_theta")}
_V4_SCALES_FULL_ONLY = ("gemma3_text", "gemma3n_text", "olmo3")
"""Types with one table per layer type whose v4 ``rope_scaling`` means the full-attention layers."""

_V4_ONE_THETA = ("olmo3",)
"""Of these, the types whose v4 ``rope_theta`` serves the sliding layers as well."""

_NEOX_NAMES = ("gpt_neox", "gpt_neox_japanese")
"""Types that call theta ``rotary_emb_base`` and the partial factor ``rotary_pct``."""

_OTHER_TABLES = {
    "gptj": "a sinusoid table computed from rotary_dim",
    "codegen": "a sinusoid table computed from rotary_dim",
    "roformer": "a sinusoidal position embedding",
}


def read_rope(config: Mapping[str, Any], original_length: int | None = None) -> dict[str, Rope]:
    """The rotary geometry that transformers 5 would read from a ``config.json``, per layer type.

    Args:
        config: the parsed file (or ``model.config.to_dict()``); v4 and v5 keys, flat or per layer type.
        original_length: the trained length in tokens, where the file does not know it or has it wrong.

    Returns:
        ``{layer type: Rope}``, or ``{"all": Rope}`` for a model that keeps one table. Layer types that
        do not rotate are left out.

    Raises:
        ConfigError: no RoPE, fields missing, or two views of the same thing that disagree.
    """
    reader = _Reader(text_section(config))
    ropes = {key: reader.rope(key, parameters, original_length) for key, parameters in reader.parameters().items()}
    if not ropes:
        raise ConfigError(f"{reader.model_type} has no layer that rotates; there is nothing to scale")
    return ropes


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that holds the language model: itself, or a multimodal one's ``text_config``."""
    entry = model_defaults.load().get(str(config.get("model_type")))
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    default_type = entry.get("text") if isinstance(entry, dict) else None
    return text if text.get("model_type") else {**text, "model_type": default_type or config.get("model_type")}


def is_scaled(rope: Rope) -> bool:
    """Whether the configuration already scales this geometry."""
    kind = rope.scaling.get("rope_type", "default")
    return kind not in NOT_SCALING or (kind == "proportional" and rope.scaling.get("factor", 1) != 1)


class _Reader:
    """One language model's configuration together with its class's defaults."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.model_type = _model_type(config)
        self.known = self.model_type in model_defaults.load()
        entry = model_defaults.load().get(self.model_type)
        self._refuse_without_rope(entry)
        self.defaults: Mapping[str, Any] = entry or {}
        self.default_parameters: Mapping[str, Any] = self.defaults.get("rope_parameters") or {}
        self.per_type = _is_nested(self.default_parameters) or _is_nested(config.get("rope_parameters") or {})

    def _refuse_without_rope(self, entry: Any) -> None:
        if self.model_type in _OTHER_TABLES:
            raise ConfigError(
                f"{self.model_type} rotates by {_OTHER_TABLES[self.model_type]}, not by rope_parameters; "
                "its frequencies cannot be changed through the configuration"
            )
        if self.known and entry is None:
            raise ConfigError(f"{self.model_type} models have no rotary position embeddings; there is nothing to scale")

    def get(self, field: str) -> Any:
        """A field of the file, under the class's own name for it, else the class's default."""
        for name in (field, self.name_of(field)):
            if self.config.get(name) is not None:
                return self.config[name]
        return self.defaults.get(field)

    def name_of(self, field: str) -> str:
        """What this model type calls a field in its file."""
        return self.defaults.get("names", {}).get(field, field)

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Rope parameters in v5 form, theta and partial factor filled in, per layer type."""
        if self.per_type:
            nested = {key: self._nested(key) for key in self._layer_types()}
            return {key: value for key, value in nested.items() if value is not None}
        return {ALL_LAYERS: self._flat()}

    def _layer_types(self) -> list[str]:
        given = self.config.get("rope_parameters") or {}
        if given and not _is_nested(given):
            raise ConfigError(
                f"{self.model_type} keeps rope_parameters per layer type ({', '.join(self.default_parameters)}); "
                "the flat rope_parameters in this configuration would be ignored by transformers; "
                "put it under the layer type it is meant for"
            )
        return [key for key in {**self.default_parameters, **given} if _is_layer(given.get(key, {}))]

    def _flat(self) -> dict[str, Any]:
        new, old = self.config.get("rope_parameters"), self.config.get("rope_scaling")
        _refuse_disagreement(self.config, new, old)
        parameters = _normalised(old or new or self.default_parameters)
        self._fill(parameters, ("rope_theta", "rotary_emb_base"), self.default_parameters, self.defaults.get("default_theta"))
        return parameters

    def _nested(self, key: str) -> dict[str, Any] | None:
        given = (self.config.get("rope_parameters") or {}).get(key, {})
        default = self.default_parameters.get(key, {})
        if given is None or (not given and default is None):
            return None
        old = self.config.get("rope_scaling") if self._v4_scales(key) else None
        _refuse_disagreement(self.config if key == "full_attention" else {}, given, old)
        parameters = _normalised({**(given or default), **(old or {})})
        names = ("rope_theta",) if self.model_type in _V4_ONE_THETA else _V4_THETA.get(key, ())
        if not given:
            parameters = {k: v for k, v in parameters.items() if k != "rope_theta"} if self._has(names) else parameters
        self._fill(parameters, names, default or {}, (default or {}).get("rope_theta"))
        return parameters

    def _has(self, names: tuple[str, ...]) -> bool:
        return any(self.config.get(name) is not None for name in names)

    def _v4_scales(self, key: str) -> bool:
        return key == "full_attention" or self.model_type.startswith("modernbert")

    def _fill(self, parameters: dict[str, Any], theta_names: tuple[str, ...], default: Mapping[str, Any], theta: Any) -> None:
        """Adds theta and the partial factor in transformers' order of precedence."""
        for name in theta_names:
            if parameters.get("rope_theta") is None and self.config.get(name) is not None:
                parameters["rope_theta"] = self.config[name]
        if parameters.get("rope_theta") is None:
            parameters["rope_theta"] = theta
        if parameters.get("partial_rotary_factor") is None:
            partial = self._partial(default)
            if partial is not None:
                parameters["partial_rotary_factor"] = partial

    def _partial(self, default: Mapping[str, Any]) -> Any:
        for name in ("partial_rotary_factor", "rotary_pct"):
            if self.config.get(name) is not None:
                return self.config[name]
        if self.model_type == "minimax_m2" and self.config.get("rotary_dim"):  # its releases say it in coordinates
            return self.config["rotary_dim"] / self.get("head_dim")
        return default.get("partial_rotary_factor")

    def rope(self, key: str, parameters: dict[str, Any], original_length: int | None) -> Rope:
        """The geometry that one set of parameters describes."""
        head_dim = self.head_dim(parameters)
        partial = _number(parameters.get("partial_rotary_factor", 1.0), "partial_rotary_factor")
        max_length = self._require("max_position_embeddings", self.get("max_position_embeddings"))
        proportional = parameters["rope_type"] == "proportional"
        return Rope(
            rotary_dim=head_dim if proportional else int(head_dim * partial),
            theta=_number(self._require("rope_theta", parameters.get("rope_theta")), "rope_theta"),
            original_length=original_length or self._original_length(parameters, int(max_length)),
            head_dim=head_dim,
            max_length=int(_number(max_length, "max_position_embeddings")),
            rotated_pairs=int(partial * head_dim // 2) if proportional else None,
            layer_type=None if key == ALL_LAYERS else key,
            scaling=parameters,
        )

    def head_dim(self, parameters: Mapping[str, Any]) -> int:
        """Coordinates of a head: stated, the class's own, or hidden_size / num_attention_heads."""
        if self.get("qk_rope_head_dim") and not parameters.get("partial_rotary_factor"):
            return int(self.get("qk_rope_head_dim"))  # MLA rotates a slice of its own
        head_dim = self.get("head_dim")
        if head_dim is None:
            hidden, heads = self.get("hidden_size"), self.get("num_attention_heads")
            if hidden is None or heads is None:
                raise self._missing()
            head_dim = hidden // heads
        return int(_number(head_dim, "head_dim"))

    def _original_length(self, parameters: Mapping[str, Any], max_length: int) -> int:
        """Trained length: the recorded one (top level before nested, as transformers does), else the maximum."""
        top, inner = self.config.get("original_max_position_embeddings"), parameters.get("original_max_position_embeddings")
        if top is not None and inner is not None and top != inner:
            raise ConfigError(
                f"original_max_position_embeddings is {top} at the top level and {inner} inside the rope parameters; "
                "make them agree"
            )
        recorded = top if top is not None else inner
        if recorded is not None:
            return int(_number(recorded, "original_max_position_embeddings"))
        if self.model_type.startswith("qwen3") and max_length == QWEN3_MAXIMUM:
            return QWEN3_TRAINED
        return max_length

    def _require(self, name: str, value: Any) -> Any:
        if value is None:
            raise self._missing()
        return value

    def _missing(self) -> ConfigError:
        have_head_dim = self.get("head_dim") or (self.get("hidden_size") and self.get("num_attention_heads"))
        theta = self.config.get("rope_theta") or (self.config.get("rope_parameters") or {}).get("rope_theta")
        missing = [
            *([] if theta else ["rope_theta"]),
            *([] if have_head_dim else ["head_dim (or hidden_size and num_attention_heads)"]),
            *([] if self.get("max_position_embeddings") else ["max_position_embeddings"]),
        ]
        return ConfigError(
            f"model type {self.model_type!r} is not one that ropescale knows the defaults of, and its configuration "
            f"lacks {', '.join(missing)}; add {'it' if len(missing) == 1 else 'them'} to config.json"
        )


QWEN3_MAXIMUM, QWEN3_TRAINED = 40_960, 32_768
"""Qwen3 states 40,960 positions: 32,768 trained ones and room for 8,192 of output (its model card)."""


def _model_type(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError("the configuration has no model_type; is this a transformers checkpoint's config.json?")
    return model_type


def _is_nested(parameters: Any) -> bool:
    """Whether rope parameters are kept per layer type: every value is a dict or null."""
    return isinstance(parameters, Mapping) and bool(parameters) and all(v is None or isinstance(v, Mapping) for v in parameters.values())


def _is_layer(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _normalised(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with ``rope_type`` first, and ``type``, ``su`` and ``mrope`` translated."""
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"the rope parameters must be an object of keys and values, not {parameters!r}")
    new, old = parameters.get("rope_type"), parameters.get("type")
    if new and old and _RENAMED_TYPES.get(old, old) != _RENAMED_TYPES.get(new, new):
        raise ConfigError(f"the rope parameters have rope_type {new!r} and type {old!r}; keep one")
    kind = new or old or "default"
    rest = {key: value for key, value in parameters.items() if key not in ("rope_type", "type")}
    return {"rope_type": _RENAMED_TYPES.get(kind, kind), **rest}


def _refuse_disagreement(config: Mapping[str, Any], new: Any, old: Any) -> None:
    """v4 keys and v5 keys may stand side by side only where they say the same."""
    if new and old:
        left, right = _normalised(new), _normalised(old)
        right.setdefault("rope_theta", config.get("rope_theta", config.get("rotary_emb_base")))
        for key in sorted(_SCALING_KEYS & (left.keys() | right.keys()) | {"rope_type", "rope_theta"}):
            if key in _V5_EXTRAS and (key not in left or key not in right):
                continue
            if left.get(key) != right.get(key):
                raise ConfigError(
                    f"rope_parameters says {key} is {_shown(left, key)} and rope_scaling says {_shown(right, key)} "
                    "(with rope_theta beside it); make the two views agree, or remove one"
                )
    theta = config.get("rope_theta")
    if new and not old and theta is not None and new.get("rope_theta", theta) != theta:
        raise ConfigError(
            f"rope_parameters says rope_theta is {new['rope_theta']} and the top level says {theta}; make them agree"
        )


_V5_EXTRAS = frozenset({"attention_factor", "factor", "original_max_position_embeddings", "short_mscale", "long_mscale"})
"""Keys that v4's stricter validators made checkpoints leave out of ``rope_scaling`` (Phi-3 allows three keys)."""


def _shown(parameters: Mapping[str, Any], key: str) -> str:
    value = parameters.get(key)
    return "missing" if value is None else f"a list of {len(value)}" if isinstance(value, list) else repr(value)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} is {value!r} in the configuration; it must be a number")
    return value


# ---------------------------------------------------------------------------------------------------------
# Writing a configuration


@dataclass(frozen=True)
class Scaling:
    """What a schedule becomes in a configuration.

    Attributes:
        parameters: v5 rope parameters per layer type that changes (the model's own keys not included).
        max_length: the new ``max_position_embeddings``.
        original_length: what ``original_max_position_embeddings`` becomes.
    """

    parameters: Mapping[str, Mapping[str, Any]]
    max_length: int
    original_length: int


def write_rope(config: Mapping[str, Any], scaling: Scaling) -> dict[str, Any]:
    """A copy of a configuration that carries ``scaling``, for transformers 5 and 4 alike.

    Writes ``rope_parameters`` (v5) and ``rope_scaling`` with ``rope_theta`` beside it (v4) so that they agree;
    every other key, and every key of the rope parameters that is the model's own, is kept.
    """
    new = copy.deepcopy(dict(config))
    section = text_section(new)
    if section is not new:
        new["text_config"] = section = dict(section)
    assert isinstance(section, dict)
    reader = _Reader(config if section is new else text_section(config))
    merged = {key: _merged(old, scaling.parameters.get(key)) for key, old in reader.parameters().items()}
    section["rope_parameters"] = merged if reader.per_type else merged[ALL_LAYERS]
    if reader.per_type:
        _keep_null_layers(section["rope_parameters"], reader)
    section[reader.name_of("max_position_embeddings")] = scaling.max_length
    section["original_max_position_embeddings"] = scaling.original_length
    _write_v4(section, merged, reader)
    if reader.model_type in _NULL_HEAD_DIM and section.get("head_dim") is None:
        section["head_dim"] = reader.head_dim({})
    return new


_NULL_HEAD_DIM = ("mixtral", "minimax")
"""Types whose class leaves head_dim null, which transformers 5.23's rope functions cannot read."""

_PHI3 = ("phi3", "phi4_multimodal")
"""Types whose v4 code accepts exactly type, short_factor and long_factor."""


def _merged(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> dict[str, Any]:
    """New scaling over the keys that are the model's own."""
    if new is None:
        return dict(old)
    own = {key: value for key, value in old.items() if key not in _SCALING_KEYS}
    return {"rope_type": new["rope_type"], **own, **new}


def _keep_null_layers(parameters: dict[str, Any], reader: _Reader) -> None:
    for key, value in (reader.config.get("rope_parameters") or reader.default_parameters).items():
        if value is None:
            parameters[key] = None


def _write_v4(section: dict[str, Any], merged: Mapping[str, Mapping[str, Any]], reader: _Reader) -> None:
    """The same in v4's keys where v4 has any; stale ones are dropped."""
    for name in ("rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor"):
        section.pop(name, None)
    if not reader.per_type:
        parameters = merged[ALL_LAYERS]
        theta_name, partial_name = _v4_names(reader)
        section[theta_name] = parameters["rope_theta"]
        if "partial_rotary_factor" in parameters:
            section[partial_name] = parameters["partial_rotary_factor"]
        section["rope_scaling"] = _v4_scaling(parameters, reader.model_type)
    elif reader.model_type in _V4_SCALES_FULL_ONLY:
        full, sliding = merged["full_attention"], merged["sliding_attention"]
        section["rope_theta"] = full["rope_theta"]
        if reader.model_type not in _V4_ONE_THETA:
            section["rope_local_base_freq"] = sliding["rope_theta"]
        section["rope_scaling"] = _v4_scaling(full, reader.model_type)


def _v4_names(reader: _Reader) -> tuple[str, str]:
    return ("rotary_emb_base", "rotary_pct") if reader.model_type in _NEOX_NAMES else ("rope_theta", "partial_rotary_factor")


def _v4_scaling(parameters: Mapping[str, Any], model_type: str) -> dict[str, Any] | None:
    """``rope_scaling``: the parameters without what v4 keeps at the top level; null for plain RoPE."""
    if model_type in _PHI3 and parameters["rope_type"] == "longrope":
        return {"type": "longrope", "short_factor": parameters["short_factor"], "long_factor": parameters["long_factor"]}
    rest = {key: value for key, value in parameters.items() if key not in ("rope_theta", "partial_rotary_factor")}
    return None if rest == {"rope_type": "default"} else rest
