"""The schedules of a run, with the fields that the request gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...configs.configuration import trained_in
from ...output.formatting import listed
from ...planning.plan import Plan, check_taken, lacks_factor, make_plan, refuse_unused, share_of
from ...request import Request, RequestOptions
from ...schedules import specs
from ...schedules.specs import Spec, of_several, spelled_out
from ..backends.schedules import Schedules
from ..facts import AS_IS
from ..progress import Notes


def filled(asked: Schedules, configs: Callable[[bool], Mapping[str, object]], longest: int, notes: Notes) -> Schedules:
    """Applies the requested factor, target length and fields to several schedules, and validates them.

    Args:
        asked: the schedules and their shared ``patching`` options.
        configs: returns the configuration without ropescale's scaling or, given True, the current one; called once the
            schedules are read.
        longest: the largest measured length, which determines a factor that is not given.
        notes: receives a note on such a factor.

    Raises:
        ScheduleError, ConfigError: a schedule is unknown, does not fit, or contradicts the request; no schedule has a
            requested field; or the model is already scaled, and no option allows that.
    """
    request, given = Request.of(None, **asked.patching), list(asked.given)
    originals = [*given, *([] if asked.baseline is None else [asked.baseline])]
    named = [specs.parse(each) for each in originals]
    check_taken(named, request)
    config = configs(request.on_top)
    complete: list[object] = []
    plans: list[Plan] = []
    without, trained = [], 0
    for original, spec in zip(originals, named, strict=True):
        if spelled_out(spec) == AS_IS:
            complete.append(original)
            continue
        share = share_of(spec, request)
        if share.target_length is None and lacks_factor(spec, share):
            trained = request.original_length or trained_in(config)
            if longest > trained:
                share = replace(share, target_length=longest)
                without.append(spelled_out(spec))
        with of_several(spec, len(named)):
            plans.append(make_plan(config, share))
        whole = _filled(spec, plans[-1])
        complete.append(original if whole == spec else whole)
    one = replace(request, spec=next((spec for spec in named if spelled_out(spec) != AS_IS), None))
    refuse_unused(one, {"original_length"}.union(*(plan.used for plan in plans)))
    if without:
        notes.tell(
            f"note: {listed(without)}: no factor is given; uses {longest / trained:g}, the largest length divided "
            f"by the trained length ({longest:,} / {trained:,})"
        )
    common: RequestOptions = {**asked.patching, "factor": None, "target_length": None, "overrides": None}
    return Schedules(complete[: len(given)], None if asked.baseline is None else complete[-1], common)


def _filled(spec: Spec | Mapping[str, Spec], plan: Plan) -> Spec | Mapping[str, Spec]:
    """Returns a spec with the fields of its plan, or a spec for each layer type if the factors differ."""
    if isinstance(spec, Mapping):
        return {key: _with_fields(part, plan, key) for key, part in spec.items()}
    parts = {key: _with_fields(spec, plan, key) for key in plan.layers}
    texts = {part.text for part in parts.values()}
    return parts if len(texts) > 1 else next(iter(parts.values()), spec)


def _with_fields(spec: Spec, plan: Plan, key: str) -> Spec:
    """Returns a spec with the requested overrides and the resolved factor. Its name, such as a path, is unchanged."""
    spec = spec.with_text({name: text for name, text in plan.request.overrides.items() if spec.accepts(name)})
    factor = Spec.of(plan.layers[key].requested).get("factor") if key in plan.layers else None
    return spec if factor is None or factor == spec.get("factor") else spec.with_fields(factor=factor)
