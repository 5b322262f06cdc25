"""Reads rope parameters, and completes them as the configuration classes of transformers 5 do."""

import json
from collections.abc import Iterable, Iterator, Mapping

from ..errors import ConfigError
from ..files import Json, present
from ..output.formatting import brief, listed
from . import class_defaults
from .class_defaults import ALL_LAYERS, PARTIAL_NAMES, THETA_NAMES
from .section import LARGEST_THETA, RENAMED_BY, RENAMED_TYPES, Parameters, Section, is_name, normalised, number, share

_MOST_TYPES = 64
"""The largest accepted number of layer types with separate tables."""


def read_parameters(section: Section) -> dict[str, Parameters]:
    """Reads the rope parameters of every rotating layer type, with theta and partial factor filled in.

    Adds stated keys that the model type ignores to ``section.ignored``.

    Raises:
        ConfigError: the model has no RoPE, fields are missing, or two stated values disagree.
    """
    check_section(section)
    if section.per_type:
        types = _layer_types(section)
        left = [key for key in types if key not in section.new] if section.is_nested else []
        if left and section.defaults.get("needs_every_type"):
            raise ConfigError(
                f"rope_parameters leave out {listed(left[:1])}, which {section.model_type} does not fill in; state its "
                "parameters too"
            )
        parameters = {key: _of_type(section, key) for key in types}
    else:
        if section.new and section.old:
            _refuse_disagreement(section, ALL_LAYERS, section.new, whole="longrope" not in section.family.v4_keys)
        parameters = {ALL_LAYERS: _filled(section, ALL_LAYERS, section.old or section.new)}
    beside = section.stated.get("partial_rotary_factor")
    read = [parameter.get("partial_rotary_factor", 1) for parameter in parameters.values()]
    if section.is_known and beside not in (None, *read):
        section.ignored["partial_rotary_factor"] = beside
    return parameters


def _of_type(section: Section, key: str) -> Parameters:
    """Returns the completed parameters of a layer type, which may be stated for this type or for all types."""
    stated = section.new.get(key) if section.is_nested else None
    given = stated if isinstance(stated, Mapping) else {}
    flat = section.old or ({} if section.is_nested else section.new)
    old = flat if key in section.v4.get("rope_scaling", ()) else {}
    if given and old:
        _refuse_disagreement(section, key, given, whole=False)
    return _filled(section, key, {**given, **old})


def _layer_types(section: Section) -> list[str]:
    """Returns the model's rotating layer types. Null parameters mark a layer type that does not rotate."""
    stated = section.new if section.is_nested else {}
    if len(stated) > _MOST_TYPES:
        raise ConfigError(f"rope_parameters name {len(stated)} layer types ({listed(stated, 1)}), beyond any model")
    rotating = [key for key, value in {**section.default_parameters, **stated}.items() if value is not None]
    present = section.stated.get("layer_types") or section.defaults.get("layer_types")
    used = [key for key in rotating if key in present] if isinstance(present, list) else []
    return used or rotating  # DeepSeek-V4's tables have other names than its layer types


def _filled(section: Section, key: str, given: Json) -> Parameters:
    """Completes parameters as transformers does, from top-level keys and then from the class's defaults.

    Args:
        given: the stated parameters of this layer type; empty if there are none.
    """
    default = section.default(key)
    way = section.way(given)
    parameters = normalised(given or (default if section.defaults.get("fixed") else {**default, "rope_theta": None}))
    if given:
        check_parameters_beside(section, key, parameters)
    filled = section.fills(key, way)
    kind = "default" if parameters["rope_type"] == "default" else "linear"  # linear stands for every scaling
    # with own_partial, the class replaces a partial factor stated in the parameters by its own
    own = not given or kind in section.defaults.get("own_partial", ())
    partial = None if own else parameters.get("partial_rotary_factor")
    if not own:
        _refuse_null(section, parameters, filled)
    if partial is None:
        beside = section.beside(key, PARTIAL_NAMES, way)
        partial = beside[1] if beside else _default_partial(section, filled)
    parameters["partial_rotary_factor"] = partial
    if partial is None or _ignores_partial(section, parameters["rope_type"], partial):
        del parameters["partial_rotary_factor"]
    if parameters.get("rope_theta") is None:
        theta = section.beside(key, THETA_NAMES, way)
        null = [name for name in section.reaching(key, THETA_NAMES, way) if name in section.stated]
        if null and not theta and section.is_known:
            raise ConfigError(f"{null[0]} is null in the configuration, and transformers stops on it; give its value")
        parameters["rope_theta"] = theta[1] if theta else filled.get("rope_theta")
    if given and parameters["rope_type"] == "yarn" and filled.get("attention_factor") is not None:
        parameters.setdefault("attention_factor", filled["attention_factor"])
    return parameters


def _refuse_null(section: Section, stated: Json, filled: Json) -> None:
    """Raises an error for a null in rope parameters with which transformers would calculate.

    Args:
        stated: the parameters as stated for a layer type.
        filled: the values that the class fills in.
    """
    kind = stated["rope_type"]
    beside = section.stated.get("original_max_position_embeddings")
    read = {
        "rope_theta": True,
        "partial_rotary_factor": kind != "default" or _default_partial(section, filled) is not None,
        "original_max_position_embeddings": kind in ("yarn", "llama3") or (kind == "longrope" and beside is None),
        **dict.fromkeys(_RAMP, kind == "yarn"),
    }
    null = next((name for name in read if read[name] and stated.get(name, 0) is None), None)
    if null is not None:
        read_as = "engines differ in how they read it" if null in _RAMP else "transformers stops on it"
        raise ConfigError(f"{null} is null in the rope parameters, and {read_as}; give its value")


_RAMP = ("truncate", "beta_fast", "beta_slow")


def _default_partial(section: Section, filled: Json) -> object:
    """Returns the partial factor that follows from another field, or that the class fills in."""
    of_slice = section.defaults.get("partial_of_slice") and "partial_rotary_factor" in filled
    own = () if section.is_known else ("rotary_dim", "rotary_pct", "rope_pct")
    for name in (section.family.rotary_dim, "qk_rope_head_dim" if of_slice else "", *own):
        if section.stated.get(name):
            part = number(section.stated[name], name)
            return part if part <= 1 else part / section.head_dim("", {})  # above 1, it counts coordinates
    return filled.get("partial_rotary_factor")


def _ignores_partial(section: Section, kind: object, stated: object) -> bool:
    """Whether a model type ignores a stated partial factor.

    Such a type computes the factor itself (dots3_note), or rotates full heads; then the factor is added to
    ``section.ignored``. A scaled table has the size that the factor gives, which is too small for full heads.

    Raises:
        ConfigError: the parameters combine scaling and a partial factor for a type that rotates full heads.
    """
    partial = share(stated, kind)
    ignored = section.defaults.get("ignores_partial", ())
    if "linear" in ignored:
        return True
    if "default" not in ignored or kind == "proportional" or partial == 1:
        return False
    if kind != "default":
        raise ConfigError(
            f"rope_parameters has {kind} with partial_rotary_factor {brief(partial)}, but {section.model_type} "
            "rotates full heads, and transformers cannot run this; remove the partial_rotary_factor"
        )
    section.ignored["partial_rotary_factor"] = partial
    return True


def _refuse_disagreement(section: Section, key: str, new: Json, whole: bool) -> None:
    """Raises an error if the keys of transformers 4 and 5 disagree, because transformers 5 would use the older ones.

    Args:
        new: the parameters of ``rope_parameters``.
        whole: whether to compare all keys, instead of only those of ``rope_scaling``.
    """
    left = present(normalised(new))
    right = present(normalised(section.old))
    way = section.way(section.old)
    if whole:
        theta = section.beside(key, THETA_NAMES, way)
        right.setdefault("rope_theta", theta[1] if theta else section.fills(key, way).get("rope_theta"))
    for own in ("partial_rotary_factor", "original_max_position_embeddings"):  # may be stated at the top level
        if own not in right:
            left.pop(own, None)
    for name in sorted(left.keys() | right.keys() if whole else right.keys()):
        if left.get(name) != right.get(name):
            raise ConfigError(
                f"{name} is {brief(left.get(name))} in rope_parameters and {brief(right.get(name))} in rope_scaling "
                "(with rope_theta beside it); make both agree, or remove one"
            )


def check_section(section: Section) -> None:
    """Raises an error for a configuration without rotary embeddings, or with rope parameters that would be ignored.

    Raises:
        ConfigError: the message explains the problem and the correction.
    """
    model_type = section.model_type
    family = section.family
    if family.positions:
        raise ConfigError(
            f"{model_type} {family.positions}; its frequencies cannot be changed through the configuration"
        )
    if not family.rotates or class_defaults.load().get(model_type, {}) is None:
        raise ConfigError(f"{model_type} has no rotary position embeddings; nothing can be scaled")
    if family.switch is not None:
        name, wanted, default = family.switch
        value = section.stated.get(name, default)
        if value != wanted:
            raise ConfigError(
                f"this {model_type} has no rotary position embeddings: {name} is {json.dumps(value)} in its "
                f"configuration, and it only rotates with {json.dumps(wanted)}; nothing can be scaled"
            )
    for is_ignored, what in _ignored_forms(section):
        if is_ignored:
            raise ConfigError(what)
    stated = section.stated.get("layer_types")
    if stated is not None and not (isinstance(stated, (list, tuple)) and all(map(is_name, stated))):
        raise ConfigError(f"layer_types is {brief(stated)} in the configuration; it must be a list of names")


def _ignored_forms(section: Section) -> Iterator[tuple[bool, str]]:
    """Yields, for each form of rope parameters that some classes ignore, whether this class does so, and the error."""
    model_type = section.model_type
    own = None if "rope_type" in section.old else section.old.get("type")
    kinds = [*(section.default_parameters or section.defaults.get("layer_types", ()))]
    types = ", ".join(kinds)
    for stated in (section.new, section.old):
        old = str(stated.get("rope_type") or stated.get("type"))
        if old in RENAMED_BY and section.is_known:
            lacks = model_type.removesuffix("_text") not in RENAMED_BY[old]
            yield (
                lacks,
                f"{model_type} has no rope type {brief(old)}, and transformers stops; write {RENAMED_TYPES[old]!r}",
            )
        foreign = {"dynamic": "alpha", "yarn": "extrapolation_factor"}.get(old, "")
        value = stated.get(foreign)
        is_read = not section.is_known or model_type.startswith("hunyuan")  # as alpha, by code of their own
        yield (
            not is_read and value is not None and (old, value) != ("yarn", 1),
            f"{foreign} is {brief(value)} in the rope parameters, by which vLLM or SGLang scales, and transformers' "
            f"{model_type} does not; remove it",
        )
    yield (
        own not in (None, "default") and bool(section.defaults.get("ignores_type")),
        f"rope_scaling has type {brief(own)}, and {model_type} only reads rope_type there, so transformers computes "
        "without scaling; write rope_type instead of type, or remove rope_scaling",
    )
    yield (
        section.per_type and bool(section.new) and not section.is_nested and "rope_parameters" not in section.v4,
        ignored_flat(model_type, kinds),
    )
    yield (
        section.is_nested and not section.per_type,
        f"{model_type} keeps one table for all its layers; the rope_parameters per layer type "
        f"({listed(section.new)}) in this configuration would be ignored; give one flat rope_parameters",
    )
    yield (
        bool(section.old) and "rope_scaling" not in section.v4,
        f"{model_type} does not read rope_scaling, which this configuration has; write it as rope_parameters"
        f"{f' under a layer type ({types})' if section.per_type else ''}",
    )


def ignored_flat(model_type: str, kinds: Iterable[str]) -> str:
    """Returns the message about flat rope parameters for a class with a table per layer type."""
    return (
        f"{model_type} keeps rope_parameters per layer type ({', '.join(kinds)}); the flat rope_parameters in this "
        "configuration would be ignored by transformers; put it under the layer type it is meant for"
    )


def check_parameters_beside(section: Section, key: str, parameters: Json) -> None:
    """Raises an error if theta or the partial factor has two values, because transformers would silently use one."""
    for name, names in (
        ("rope_theta", class_defaults.THETA_NAMES),
        ("partial_rotary_factor", class_defaults.PARTIAL_NAMES),
    ):
        beside = section.beside(key, names)
        inner = parameters.get(name)
        if beside is not None and inner is not None and inner != beside[1]:
            raise ConfigError(
                f"{name} is {brief(inner)} in rope_parameters ({key} layers), and {beside[0]} is {brief(beside[1])} at "
                "the top level; make them agree"
            )


def check_theta(section: Section, key: str, theta: object) -> None:
    """Raises an error if some layers, or transformers 4, would use a different theta."""
    thetas = section.stated.get("layer_rope_theta")  # Granite's SWA models; 0 marks a layer that does not rotate
    stated = [value for value in thetas if value and value != theta] if isinstance(thetas, list) else []
    others = {number(value, "layer_rope_theta", most=LARGEST_THETA) for value in stated}
    if others:
        raise ConfigError(
            f"layer_rope_theta gives some layers the theta {min(others)} in addition to rope_theta {brief(theta)}; "
            "a model with more than one theta in one table cannot be described by one schedule"
        )
    for name in THETA_NAMES:
        value = section.stated.get(name)
        if key in section.named_by(name) and value is not None and value != theta:
            raise ConfigError(
                f"{name} is {brief(value)} at the top level, which {section.model_type} does not read, and "
                f"transformers computes with the rope_theta {brief(theta)} of rope_parameters or its class; make them "
                "agree"
            )
    part = section.stated.get("attn_config")  # DBRX's theta, which transformers 4 read there and 5 does not
    inner = part.get("rope_theta") if isinstance(part, Mapping) else None
    if inner is not None and inner != theta:
        raise ConfigError(
            f"rope_theta is {brief(inner)} in attn_config, and transformers 5 computes with {brief(theta)}, because "
            f"it only reads the top level; write rope_theta {brief(inner)} there"
        )
