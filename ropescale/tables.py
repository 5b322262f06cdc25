"""The frequencies of a model: ``frequencies(model, schedule)``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from .checkpoints.locating import find_model
from .errors import ConfigError
from .files import Json
from .lengths import parse_length
from .planning.plan import is_as_is, make_plan, refuse_unused
from .request import Request, RequestOptions, check_keywords
from .schedules import Frequencies
from .schedules.as_is import stock_table


def frequencies(
    model: Any, schedule: object = "as-is", length: int | str | None = None, **options: Unpack[RequestOptions]
) -> dict[str, Frequencies]:
    """Returns a model's frequencies under a schedule, in float64.

    Args:
        model: a checkpoint's folder or Hub id (without heavy imports), a configuration, or a loaded model.
        schedule: a schedule or a spec such as ``"yarn:factor=8"``.
        length: the context being processed, in tokens; only length-dependent schedules use it. Default: the
            length that the schedule extends to.
        options: the fields of :class:`ropescale.request.Request`.

    Returns:
        ``{layer type: Frequencies}``; the only key is ``"all"`` for a model with one table. Layer types that the
        schedule does not change have the configuration's own frequencies.

    Raises:
        RopescaleError: the model or the schedule is invalid, or the schedule does not fit the model.
    """
    check_keywords("frequencies", options)
    request = Request.of(schedule, **options)
    plan = make_plan(configuration_of(model, schedule, request.on_top), request)
    refuse_unused(request, {*plan.used, "original_length"})
    at = plan.length if length is None else parse_length(length)
    return {
        key: plan.layers[key].table(at) if key in plan.layers else stock_table(rope, at)
        for key, rope in plan.original.ropes.items()
    }


def configuration_of(model: Any, schedule: object, on_top: bool = False) -> Json:
    """Returns the configuration that a schedule is computed from.

    The configuration excludes ropescale's scaling, unless the schedule is ``as-is`` or ``on_top`` is set.
    """
    if isinstance(model, (str, Path)):
        return find_model(model, weights=False).original(on_top or is_as_is(schedule))
    if isinstance(model, Mapping):
        return model
    if hasattr(model, "named_modules") and not is_as_is(schedule):
        from .models.patching import configuration_before  # torch is already imported for a loaded model

        return configuration_before(model, on_top)
    config = getattr(model, "config", model)
    if not hasattr(config, "to_dict"):
        raise ConfigError(
            f"{type(model).__name__} is neither a checkpoint's folder, a configuration nor a loaded model; "
            "give one of those"
        )
    return config.to_dict()
