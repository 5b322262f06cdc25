"""Reads the rotary geometry of a configuration.

With :mod:`ropescale.configs.writing` the only file that knows transformers 5's ``rope_parameters`` from
transformers 4's ``rope_theta`` + ``rope_scaling``.
"""

from __future__ import annotations

import json
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..errors import ConfigError
from ..formatting import brief, listed
from ..rope import Rope
from . import class_defaults

# ---------------------------------------------------------------------------------------------------------
# Reading a configuration

ALL_LAYERS = class_defaults.ALL_LAYERS
"""The key of the one geometry of a model that keeps one table for all its layers."""

NOT_SCALING = {"default", "proportional"}
"""Rope types that describe the geometry; proportional only scales through its factor."""

QWEN3_MAXIMUM, QWEN3_TRAINED = 40_960, 32_768
"""Qwen3 states 40,960 positions: 32,768 trained ones and room for 8,192 of output (its model card)."""

_RENAMED_TYPES = {"su": "longrope", "mrope": "default"}

_SCALING_KEYS = frozenset(
    "rope_type type factor original_max_position_embeddings attention_factor attn_factor beta_fast beta_slow mscale "
    "mscale_all_dim truncate extrapolation_factor short_factor long_factor short_mscale long_mscale low_freq_factor "
    "high_freq_factor alpha finetuned max_position_embeddings".split()
)
"""Keys that belong to a scaling; every other key of ``rope_parameters`` is the model's own and is kept."""

_TEMPERATURE = "llama_4_scaling_beta"
"""Ministral 3 and Mistral 4 scale queries by the position over the trained length, which they read beside this key."""

_THREE_KEYS = ("phi3", "phi4_multimodal")
"""Types whose v4 code accepts exactly type, short_factor and long_factor."""

_TWO_KEYS = ("olmo", "olmo2")
"""Types whose v4 code accepts exactly type and factor."""

_NULL_HEAD_DIM_IN_V4 = ("mistral",)
"""Types whose class left an unstated ``head_dim`` null in transformers 4.52 to 4.57."""

_TABLE_OF_HEAD_DIM = ("axk1", "deepseek_v3", "longcat_flash", "youtu")
"""Types with latent attention whose table follows a ``head_dim`` in the file; the others overwrite it."""

_SINUSOIDS = "by a sinusoid table that its code computes from rotary_dim and a fixed base of 10000"

_NO_ROPE_PARAMETERS = {
    "gptj": f"rotates {_SINUSOIDS}, not by rope_parameters",
    "codegen": f"rotates {_SINUSOIDS}, not by rope_parameters",
    "roformer": "rotates by a sinusoidal position embedding with a fixed base of 10000, not by rope_parameters",
    "blt": "keeps a rotary embedding in each of its four sub-models (patcher, encoder, global, decoder), and none of "
    "its own",
}
"""Types that rotate, and why nothing in their configuration says by which frequencies."""

_POSITIONS = {
    "it learns an embedding for every position": (
        "bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small camembert data2vec-text "
        "electra ernie git gpt-sw3 gpt2 gpt_bigcode gpt_neo mbart megatron-bert mvp openai-gpt opt plbart prophetnet "
        "reformer rembert roberta roberta-prelayernorm roc_bert trocr whisper xlm xlm-roberta xlm-roberta-xl xmod"
    ),
    "it adds sinusoids to its embeddings": (
        "ctrl marian musicgen musicgen_decoder musicgen_melody musicgen_melody_decoder pegasus xglm"
    ),
    "it biases attention by the distance (ALiBi)": "bloom mpt",
    "it learns how attention depends on the distance": "cpmant inkling_text inkling2_text xlnet",
    "it is recurrent and needs no positions": "falcon_mamba mamba mamba2 rwkv xlstm",
    "its recurrent layers carry the order, and its attention layers use no positions": (
        "jamba kimi_linear nemotron_h zamba"
    ),
}
_INSTEAD = {name: what for what, names in _POSITIONS.items() for name in names.split()}
"""What the types without rotary embeddings have instead, as their modeling code shows (transformers 5.23)."""

_OPTIONAL = {
    "falcon": ("alibi", False, False),
    "granitemoehybrid": ("position_embedding_type", "rope", None),
    "zamba2": ("use_mem_rope", True, False),
}
"""Types that rotate only if their configuration says so: the field, the value for it, and the class's default."""


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
    ropes = {key: _rope(reader, key, found, original_length) for key, found in reader.parameters().items()}
    if not ropes:
        raise ConfigError(f"no layer of this {reader.model_type} rotates; there is nothing to scale")
    return ropes


def ignored_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a configuration, with their values, at which its type's code does not look and which are not kept.

    Raises:
        ConfigError: as :func:`read_rope` does.
    """
    reader = _Reader(text_section(config))
    read = reader.parameters().values()
    beside = reader.config.get("partial_rotary_factor")
    if reader.known and beside not in (None, 1) and not any("partial_rotary_factor" in each for each in read):
        reader.ignored["partial_rotary_factor"] = beside
    return reader.ignored


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that holds the language model: itself, or a multimodal one's ``text_config``."""
    entry = class_defaults.load().get(str(config.get("model_type")))
    default_type = entry.get("text") if isinstance(entry, dict) else None
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config if default_type is None else {"model_type": default_type}
    return text if text.get("model_type") else {**text, "model_type": default_type or config.get("model_type")}


def default_of(config: Mapping[str, Any], field: str) -> Any:
    """A field of the language model: what the file says (null included), else its class's default."""
    section = text_section(config)
    entry = class_defaults.load().get(str(section.get("model_type"))) or {}
    return section.get(field, entry.get(field))


def is_scaled(rope: Rope) -> bool:
    """Whether the configuration already scales this geometry."""
    kind = rope.scaling.get("rope_type", "default")
    return kind not in NOT_SCALING or (kind == "proportional" and rope.scaling.get("factor", 1) != 1)


class _Reader:
    """One language model's configuration together with its class's defaults."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.model_type = _model_type(config)
        entry = class_defaults.load().get(self.model_type, {})
        self._refuse_without_rope(entry)
        self.known = bool(entry)
        self.defaults: Mapping[str, Any] = entry
        self.default_parameters: Mapping[str, Any] = entry.get("rope_parameters") or {}
        self.v4: Mapping[str, list[str]] = entry.get("v4", class_defaults.V4)
        self.new, self.old = self._given("rope_parameters"), self._given("rope_scaling")
        self.ignored: dict[str, Any] = {}  # keys that the type does not look at, found while reading
        unstated = entry.get("rope_parameters") == {}  # a class that leaves every layer type to the file
        self.per_type = unstated or class_defaults.is_nested(self.default_parameters or self.new)
        self._refuse_ignored()
        self._refuse_layer_types()

    def _refuse_layer_types(self) -> None:
        stated = self.config.get("layer_types")
        if stated is not None and not _are_names(stated):
            raise ConfigError(f"layer_types is {brief(stated)} in the configuration; it must be a list of names")

    def _refuse_without_rope(self, entry: Any) -> None:
        if self.model_type in _NO_ROPE_PARAMETERS:
            raise ConfigError(
                f"{self.model_type} {_NO_ROPE_PARAMETERS[self.model_type]}; "
                "its frequencies cannot be changed through the configuration"
            )
        if entry is None:
            instead = _INSTEAD.get(self.model_type)
            why = f" ({instead})" if instead else ""
            raise ConfigError(f"{self.model_type} has no rotary position embeddings{why}; there is nothing to scale")
        self._refuse_switched_off()

    def _refuse_switched_off(self) -> None:
        field, wanted, default = _OPTIONAL.get(self.model_type, ("", None, None))
        value = self.config.get(field, default)
        if value != wanted:
            raise ConfigError(
                f"this {self.model_type} has no rotary position embeddings: {field} is {json.dumps(value)} in its "
                f"configuration, and it only rotates with {json.dumps(wanted)}; there is nothing to scale"
            )

    def _given(self, name: str) -> Mapping[str, Any]:
        value = self.config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be an object of keys and values, not {brief(value)}")
        return value or {}

    def _refuse_ignored(self) -> None:
        """What transformers 5 would drop, or choke on, without a word."""
        nested = class_defaults.is_nested(self.new)
        self._refuse_named_by_type()
        types = ", ".join(self.default_parameters or self.defaults.get("layer_types", ()))
        if self.per_type and self.new and not nested and "rope_parameters" not in self.v4:
            raise ConfigError(
                f"{self.model_type} keeps rope_parameters per layer type ({types}); the flat rope_parameters in this "
                "configuration would be ignored by transformers; put it under the layer type it is meant for"
            )
        if nested and not self.per_type:
            raise ConfigError(
                f"{self.model_type} keeps one table for all its layers; the rope_parameters per layer type "
                f"({listed(self.new)}) in this configuration would be ignored; give one flat rope_parameters"
            )
        if self.old and "rope_scaling" not in self.v4:
            raise ConfigError(
                f"{self.model_type} does not read rope_scaling, which this configuration has; "
                f"write it as rope_parameters{f' under a layer type ({types})' if self.per_type else ''}"
            )

    def _refuse_named_by_type(self) -> None:
        kind = None if "rope_type" in self.old else self.old.get("type")
        if kind not in (None, "default") and self.defaults.get("ignores_type"):
            raise ConfigError(
                f"rope_scaling says type {brief(kind)}, and {self.model_type} only reads rope_type there, so "
                "transformers computes without scaling; write rope_type instead of type, or remove rope_scaling"
            )

    def get(self, field: str) -> Any:
        """A field of the file, under whichever of its names the class prefers, else the class's default."""
        own = self.name_of(field)
        ours = [name for name, theirs in self.defaults.get("names", {}).items() if theirs == own]
        own_wins = any(name in self.defaults.get("own_name_wins", ()) for name in ours)
        for name in [own, *ours] if own_wins else [*ours, own]:
            if self.config.get(name) is not None:
                return self.config[name]
        return self.defaults.get(field)

    def name_of(self, field: str) -> str:
        """What this model type calls a field in its file."""
        return self.defaults.get("names", {}).get(field, field)

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Rope parameters in v5 form, theta and partial factor filled in, per layer type that rotates."""
        if not self.per_type:
            return {ALL_LAYERS: self._flat()}
        types = self._layer_types()
        left = [key for key in types if key not in self.new] if class_defaults.is_nested(self.new) else []
        if left and self.defaults.get("needs_every_type"):
            raise ConfigError(
                f"rope_parameters leave out {listed(left[:1])}, which {self.model_type} does not fill in; state its "
                "parameters too"
            )
        return {key: self._of_type(key) for key in types}

    def _flat(self) -> dict[str, Any]:
        if self.new and self.old:
            self._refuse_disagreement(ALL_LAYERS, self.new, self.old, whole=self.model_type not in _THREE_KEYS)
        return self._filled(ALL_LAYERS, self.old or self.new)

    def _of_type(self, key: str) -> dict[str, Any]:
        nested = class_defaults.is_nested(self.new)
        given = (self.new.get(key) if nested else None) or {}
        flat = self.old or ({} if nested else self.new)
        old = flat if key in self.v4.get("rope_scaling", ()) else {}
        if given and old:
            self._refuse_disagreement(key, given, old, whole=False)
        return self._filled(key, {**given, **old})

    def _layer_types(self) -> list[str]:
        """Those that the model has and that rotate: null marks one that does not."""
        stated = self.new if class_defaults.is_nested(self.new) else {}
        if len(stated) > MOST_TYPES or not all(map(_is_name, stated)):
            raise ConfigError(
                f"rope_parameters name {len(stated)} layer types ({listed(stated, 1)}), and no model has these"
            )
        rotating = [key for key, value in {**self.default_parameters, **stated}.items() if value is not None]
        present = self.config.get("layer_types") or self.defaults.get("layer_types")
        used = [key for key in rotating if key in present] if isinstance(present, list) else []
        return used or rotating  # DeepSeek-V4 labels its tables otherwise than its layers

    def _filled(self, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as transformers completes them: their own, then top-level keys, then the class's default."""
        default = self._default(key)
        stated = given or (default if self.defaults.get("fixed") else {**default, "rope_theta": None})
        parameters = _normalised(stated)
        way = self._way(given)
        theta, partial = (
            self._beside(key, names, way) for names in (class_defaults.THETA_NAMES, class_defaults.PARTIAL_NAMES)
        )
        if given:
            _refuse_another(parameters, "rope_theta", self._beside(key, class_defaults.THETA_NAMES), key)
            _refuse_another(parameters, "partial_rotary_factor", self._beside(key, class_defaults.PARTIAL_NAMES), key)
        filled = self._fills(key, way)
        parameters["partial_rotary_factor"] = self._partial(parameters if given else {}, partial, filled)
        if parameters["partial_rotary_factor"] is None or self._ignores_partial(parameters):
            del parameters["partial_rotary_factor"]
        if parameters.get("rope_theta") is None:
            parameters["rope_theta"] = theta[1] if theta else filled.get("rope_theta")
        if given and parameters["rope_type"] == "yarn" and filled.get("attention_factor") is not None:
            parameters.setdefault("attention_factor", filled["attention_factor"])
        return parameters

    def _way(self, given: Mapping[str, Any]) -> str:
        """How the file gives these parameters, as ``beside`` in the table of defaults names it."""
        if not given:
            return "nothing"
        flat = self.per_type and not class_defaults.is_nested(self.new)
        where = "rope_scaling" if self.old else "flat" if flat else "rope_parameters"
        return where if _normalised(given)["rope_type"] == "default" else f"{where} scaled"

    def _fills(self, key: str, way: str) -> Mapping[str, Any]:
        """What the class fills in: other than its whole default, in parameters that are given."""
        default, theta = self._default(key), self.defaults.get("default_theta")
        theta = theta.get(key) if isinstance(theta, Mapping) else theta
        usual = {**default, "rope_theta": default.get("rope_theta", theta) if way == "nothing" else theta}
        return self.defaults.get("beside", {}).get(way, {}).get("fills", {}).get(key, usual)

    def _ignores_partial(self, parameters: Mapping[str, Any]) -> bool:
        """Whether this type does not look at the partial factor, which its file may state all the same.

        It turns whole heads then, or (dots3_note) works the factor out by itself. Scaled tables follow the factor in
        every type, and have half the pairs that such a type's attention needs.
        """
        kind = parameters["rope_type"]
        partial = _share(parameters["partial_rotary_factor"], kind)
        ignored = self.defaults.get("ignores_partial", ())
        if "linear" in ignored:
            return True
        if "default" not in ignored or kind == "proportional" or partial == 1:
            return False
        if kind != "default":
            raise ConfigError(
                f"rope_parameters has {kind} with partial_rotary_factor {brief(partial)}, but {self.model_type} turns "
                "whole heads, and transformers cannot run this; remove the partial_rotary_factor"
            )
        self.ignored["partial_rotary_factor"] = partial
        return True

    def _default(self, key: str) -> Mapping[str, Any]:
        return (self.default_parameters.get(key) if self.per_type else self.default_parameters) or {}

    def _beside(self, key: str, names: Iterable[str], way: str = "") -> tuple[str, Any] | None:
        """The first of these top-level keys that the file has and that reaches this layer type, with its value.

        In this way of giving parameters, or by its meaning.
        """
        reaches = self.defaults.get("beside", {}).get(way, {}).get("reaches", self.v4)
        found = ((name, self.config.get(name)) for name in names if key in reaches.get(name, ()))
        return next(((name, value) for name, value in found if value is not None), None)

    def _partial(self, stated: Mapping[str, Any], beside: tuple[str, Any] | None, filled: Mapping[str, Any]) -> Any:
        if stated.get("partial_rotary_factor") is not None:
            return stated["partial_rotary_factor"]
        if beside is not None:
            return beside[1]
        if self.model_type == "minimax_m2" and self.config.get("rotary_dim"):  # its releases say it in coordinates
            head_dim = _whole(self.get("head_dim"), "head_dim")
            return _whole(self.config["rotary_dim"], "rotary_dim") / head_dim
        slice_dim = self.config.get("qk_rope_head_dim")
        if slice_dim and self.defaults.get("partial_of_slice") and "partial_rotary_factor" in filled:
            return _whole(slice_dim, "qk_rope_head_dim") / _whole(self.get("head_dim"), "head_dim")
        return filled.get("partial_rotary_factor")

    def _refuse_disagreement(self, key: str, new: Mapping[str, Any], old: Mapping[str, Any], whole: bool) -> None:
        """v4 and v5 keys may stand side by side only where they say the same: transformers 5 takes v4's."""
        left, right = _present(_normalised(new)), _present(_normalised(old))
        way = self._way(old)
        theta = self._beside(key, class_defaults.THETA_NAMES, way)
        if whole:
            right.setdefault("rope_theta", theta[1] if theta else self._fills(key, way).get("rope_theta"))
        for own in ("partial_rotary_factor", "original_max_position_embeddings"):  # which may stand elsewhere
            if own not in right:
                left.pop(own, None)
        for name in sorted(left.keys() | right.keys() if whole else right.keys()):
            if left.get(name) != right.get(name):
                raise ConfigError(
                    f"rope_parameters says {name} is {_shown(left, name)} and rope_scaling says {_shown(right, name)} "
                    "(with rope_theta beside it); make the two views agree, or remove one"
                )

    def recorded_length(self) -> Any:
        """The trained length that scaled layers record, which holds for those beside them too."""
        lengths = [each.get("original_max_position_embeddings") for each in self.parameters().values()]
        return max((each for each in lengths if isinstance(each, (int, float))), default=None)

    def head_dim(self, key: str, parameters: Mapping[str, Any]) -> int:
        """Coordinates of a head: stated, the class's own, or hidden_size / num_attention_heads."""
        whole = parameters.get("partial_rotary_factor") in (None, 1) or self.model_type in _TABLE_OF_HEAD_DIM
        has_slice = not self.known or "qk_rope_head_dim" in self.defaults  # elsewhere a stray key, which no class reads
        if has_slice and self.get("qk_rope_head_dim") and whole:
            rotated = _whole(self.get("qk_rope_head_dim"), "qk_rope_head_dim")  # MLA rotates a slice of its own
            self._refuse_another_head_dim(rotated)
            return rotated
        stated = self._head_dim_of_type(key) or self.get("head_dim")
        if stated is not None:
            return _whole(stated, "head_dim")
        return self._head_of_hidden()

    def _head_of_hidden(self) -> int:
        hidden, heads = self.get("hidden_size"), self.get("num_attention_heads")
        if hidden is None or heads is None:
            raise self.missing()
        return _whole(hidden, "hidden_size") // _whole(heads, "num_attention_heads")

    def _refuse_another_head_dim(self, rotated: int) -> None:
        """A table that is built for another number of coordinates than attention rotates, which stops the model."""
        stated = self.config.get("head_dim", self.defaults.get("head_dim", rotated))
        if self.model_type not in _TABLE_OF_HEAD_DIM:
            return
        built = self._head_of_hidden() if stated is None else _whole(stated, "head_dim")
        if built != rotated:
            raise ConfigError(
                f"head_dim is {json.dumps(stated)} and qk_rope_head_dim {rotated}: transformers builds the table of "
                f"{self.model_type} for {built} coordinates and rotates {rotated} by it, which cannot run; "
                f"write head_dim {rotated}"
            )

    def _head_dim_of_type(self, key: str) -> Any:
        """Gemma 4's full-attention layers have larger heads: ``global_head_dim``, or said layer by layer."""
        default = self.defaults.get("head_dims", {}).get(key)
        if default is None or default == self.defaults.get("head_dim"):
            return None
        given = self.config.get("per_layer_config")
        layers: Mapping[Any, Any] = given if isinstance(given, Mapping) else {}
        stated = [layer["head_dim"] for layer in layers.values() if isinstance(layer, Mapping) and "head_dim" in layer]
        return stated[0] if stated else self.config.get("global_head_dim") or default

    def missing(self) -> ConfigError:
        """The error that names every field without which there is no geometry."""
        head = self.get("head_dim") or (self.get("hidden_size") and self.get("num_attention_heads"))
        theta = self.defaults.get("default_theta") or self.new.get("rope_theta") or self.config.get("rope_theta")
        lacks = {
            "rope_theta": not theta,
            "head_dim (or hidden_size and num_attention_heads)": not head,
            "max_position_embeddings": not self.get("max_position_embeddings"),
        }
        names = [name for name, lacking in lacks.items() if lacking]
        why = "" if self.known else ", which is not one that ropescale knows the defaults of,"
        return ConfigError(
            f"the configuration of model type {brief(self.model_type)}{why} lacks {', '.join(names)}; "
            f"add {'it' if len(names) == 1 else 'them'} to config.json"
            + (", or give the trained length (--original-length)" if names == ["max_position_embeddings"] else "")
        )


def _rope(reader: _Reader, key: str, parameters: dict[str, Any], original_length: int | None) -> Rope:
    """The geometry that one set of parameters describes."""
    _refuse_wrong_types(parameters)
    theta, maximum = parameters.get("rope_theta"), reader.get("max_position_embeddings") or original_length
    if theta is None and reader.known:
        where = "" if key == ALL_LAYERS else f" for {key}"
        raise ConfigError(
            f"rope_parameters{where} state no rope_theta, and {reader.model_type} does not fill it in; state it there"
        )
    if theta is None or maximum is None:
        raise reader.missing()
    _refuse_theta_per_layer(reader, theta)
    _refuse_theta_of_attention(reader, theta)
    head_dim = reader.head_dim(key, parameters)
    partial = _share(parameters.get("partial_rotary_factor", 1.0), parameters["rope_type"])
    proportional = parameters["rope_type"] == "proportional"
    max_length = _whole(maximum, reader.name_of("max_position_embeddings"))
    rotary_dim = head_dim if proportional else int(head_dim * partial)
    if rotary_dim < 1:
        raise ConfigError(f"partial_rotary_factor {partial} of head_dim {head_dim} leaves no coordinate to rotate")
    _refuse_odd_head(head_dim, partial)
    trained = original_length or _original_length(reader, parameters, max_length)
    if trained < 2:
        raise ConfigError("the trained length is 1 token, and RoPE turns by distances; give it with --original-length")
    return Rope(
        rotary_dim=rotary_dim,
        theta=_theta(theta),
        original_length=trained,
        head_dim=head_dim,
        max_length=max_length,
        rotated_pairs=int(partial * head_dim // 2) if proportional else None,
        layer_type=None if key == ALL_LAYERS else key,
        scaling=parameters,
    )


_SCALARS = (
    "factor attention_factor attn_factor beta_fast beta_slow mscale mscale_all_dim extrapolation_factor short_mscale "
    "long_mscale low_freq_factor high_freq_factor alpha original_max_position_embeddings"
).split()
_PER_PAIR = ("short_factor", "long_factor")


def _refuse_wrong_types(parameters: Mapping[str, Any]) -> None:
    """What every formula takes for granted of a scaling: numbers are numbers, and factors per pair are listed."""
    for name in _SCALARS:
        if parameters.get(name) is not None and not _is_real(parameters[name]):
            raise ConfigError(f"{name} is {brief(parameters[name])} in the rope parameters; it must be {_REAL}")
    for name in _PER_PAIR:
        value = parameters.get(name)
        if value is not None and not (isinstance(value, (list, tuple)) and all(map(_is_real, value))):
            raise ConfigError(f"{name} is {brief(value)} in the rope parameters; each must be {_REAL}")


_REAL = "a finite number below 1e+100"


def _is_real(value: Any) -> bool:
    """Whether it is a number that the formulas can compute with; numpy's are, too."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return -LARGEST_THETA < cast(float, value) < LARGEST_THETA


def _refuse_odd_head(head_dim: int, partial: float) -> None:
    """An odd head that rotates whole has a coordinate without a partner; so does an odd part, which has room."""
    if head_dim > _SMALL_HEAD and head_dim % 2 and int(head_dim * partial) == head_dim:
        raise ConfigError(
            f"head_dim is {head_dim} in the configuration, or follows from hidden_size; coordinates turn in pairs, and "
            "transformers refuses a head that is odd and rotates whole; give an even head_dim"
        )


def _refuse_another(parameters: Mapping[str, Any], name: str, beside: tuple[str, Any] | None, key: str) -> None:
    """One of two places for the same number, which transformers would prefer without a word."""
    inner = parameters.get(name)
    if beside is not None and inner is not None and inner != beside[1]:
        where = "" if key == ALL_LAYERS else f" for {key}"
        raise ConfigError(
            f"rope_parameters says {name} is {brief(inner)}{where} and {beside[0]} at the top level says "
            f"{brief(beside[1])}; make them agree"
        )


def _original_length(reader: _Reader, parameters: Mapping[str, Any], max_length: int) -> int:
    """Trained length: the recorded one (top level before nested, as transformers does), else the maximum."""
    name = "original_max_position_embeddings"
    top, inner, where = reader.config.get(name), parameters.get(name), "at the top level"
    if top is None and parameters["rope_type"] == "longrope":  # Phi-3's class has a top-level default
        top, where = reader.defaults.get(name), f"by {reader.model_type}'s default (state it at the top level)"
    if reader.per_type:  # whose tables do not look at the top level
        top = top if inner is None else inner
    if top is not None and inner is not None and top != inner:
        raise ConfigError(
            f"{name} is {brief(top)} {where} and {brief(inner)} inside the rope parameters; make them agree"
        )
    recorded = next((each for each in (top, inner, reader.recorded_length()) if each is not None), None)
    if recorded is not None:
        return _whole(recorded, name)
    return QWEN3_TRAINED if _is_qwen3(reader.model_type) and max_length == QWEN3_MAXIMUM else max_length


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_name, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _is_qwen3(model_type: str) -> bool:
    return model_type in ("qwen3", "qwen3_moe")


def _refuse_theta_per_layer(reader: _Reader, theta: Any) -> None:
    """Granite's SWA models may give each layer a theta of its own (0: no rotation), and then use no other."""
    thetas = reader.config.get("layer_rope_theta")
    thetas = thetas if isinstance(thetas, list) else []
    others = {_number(value, "layer_rope_theta", most=LARGEST_THETA) for value in thetas if value and value != theta}
    if others:
        raise ConfigError(
            f"layer_rope_theta gives some layers the theta {sorted(others)[0]} beside rope_theta {brief(theta)}; "
            "a model with more than one theta in one table cannot be described by one schedule"
        )


def _refuse_theta_of_attention(reader: _Reader, theta: Any) -> None:
    """DBRX states its theta in ``attn_config``, where transformers 4 looked for it and transformers 5 does not."""
    part = reader.config.get("attn_config")
    stated = part.get("rope_theta") if isinstance(part, Mapping) else None
    if stated is not None and stated != theta:
        raise ConfigError(
            f"attn_config says rope_theta is {brief(stated)}, and transformers 5 computes with {brief(theta)}, because "
            f"it only reads the top level; write rope_theta {brief(stated)} there"
        )


def _model_type(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    if not model_type or not _is_name(model_type):
        raise ConfigError("the configuration has no model_type; is this a transformers checkpoint's config.json?")
    return model_type


def _normalised(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with ``rope_type`` first, and ``type``, ``su`` and ``mrope`` translated."""
    new, old = parameters.get("rope_type"), parameters.get("type")
    for kind in (new, old):
        if kind and not _is_name(kind):
            raise ConfigError(f"rope_type must be a name such as 'yarn', not {brief(kind)}")
    if new and old and _RENAMED_TYPES.get(old, old) != _RENAMED_TYPES.get(new, new):
        raise ConfigError(f"the rope parameters have rope_type {brief(new)} and type {brief(old)}; keep one")
    kind = new or old or "default"
    rest = {key: value for key, value in parameters.items() if key not in ("rope_type", "type")}
    return {"rope_type": _RENAMED_TYPES.get(kind, kind), **rest}


def _present(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if value is not None}


def _shown(parameters: Mapping[str, Any], key: str) -> str:
    value = parameters.get(key)
    return "missing" if value is None else f"a list of {len(value)}" if isinstance(value, list) else brief(value)


LARGEST = 2**53
"""No length or dimension is larger; beyond it float64 no longer counts one by one."""

LONGEST_NAME = 100
"""Characters of a name that a configuration gives to a kind of model, of layer or of scaling."""

MOST_TYPES = 64
"""No model has more kinds of layers with tables of their own."""

_SMALL_HEAD = 4
"""An odd head of up to this many coordinates is let through by transformers, whose tests have such models."""

LARGEST_THETA = 1e100
"""No theta comes near it; what does would overflow in the formulas."""


def _number(value: Any, name: str, most: float = LARGEST) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ConfigError(f"{name} is {brief(value)} in the configuration; it must be a number between 0 and {most:g}")
    return value


def _share(value: Any, kind: str) -> float:
    """The partial factor; checked also where a type ignores it. Only proportional RoPE can do without a pair."""
    if _number(value, "partial_rotary_factor", most=1) == 0 and kind != "proportional":
        raise ConfigError("partial_rotary_factor is 0 in the configuration, which leaves no coordinate to rotate")
    return value


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LARGEST or value % 1:
        raise ConfigError(f"{name} is {brief(value)} in the configuration; it must be a whole number above 0")
    return int(value)


def _theta(value: Any) -> float:
    if _number(value, "rope_theta", most=LARGEST_THETA) <= 1:
        raise ConfigError(f"rope_theta is {brief(value)} in the configuration; it must be greater than 1")
    return value
