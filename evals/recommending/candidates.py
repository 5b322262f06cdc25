"""The schedules that are tried: every one that a model and a target allow, over factors and the fields that matter.

They follow from the configuration alone, before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...engines.base import layers_of
from ...engines.registry import ENGINES
from ...errors import ConfigError, ScheduleError
from ...lengths import parse_length
from ...output.formatting import listed, names_of
from ...planning.plan import Plan, make_plan
from ...request import Request, RequestOptions
from ...schedules import base, specs
from ...schedules.fields import parameters
from ...schedules.specs import ParsedSpec, distinct, file_of, is_same, of_several, spelled_out
from ...tables import frequencies
from ..metrics.stored import AS_IS
from .options import Objective, RecommendOptions, objective_of

FACTORS = (1.0, 1.25, 1.5, 2.0)
"""Times the smallest factor that reaches the target."""

LARGER = (1.0, 1.5, 2.0, 3.0, 4.0)
"""The same for schedules that change theta: their middle pairs slow down by less than the factor."""

_THETA = {"ntk", "ntk-su", "ntk-mixed", "ntk-critical"}

STEEPNESS = (1.0, 1.5, 2.0, 3.0, 4.0)
"""Factors of ``dynamic``, whose divisor follows the length by itself."""

FIELDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "yarn": {"beta_fast": (8.0, 16.0, 32.0, 64.0), "beta_slow": (0.5, 1.0, 2.0)},
}
"""Fields that are varied besides the factor."""

_HOLDS = {"resonance": "yarn"}
"""Schedules that change another one, and which."""


Tables = tuple[tuple[str, tuple[float, ...], float], ...]
"""Per layer type, its frequencies and its attention scale."""


@dataclass(frozen=True)
class Candidate:
    """A schedule that is tried.

    Attributes:
        spec: the schedule on one line, as ``--schedule`` takes it.
        rank: its place in the order of simplicity; smaller is simpler.
        tables: a key of its frequencies and scales at the target; the same for candidates that compute the same.
        held: its frequencies and scales at the target, where they follow the length.
        reach: ``max_position_embeddings`` of a folder that is patched with it, where they follow the length.
    """

    spec: str
    rank: tuple[int, int, int, float, str]
    tables: Tables | str = ()
    held: Tables = ()
    reach: int | None = None


@dataclass(frozen=True)
class Candidates:
    """The candidates of a run.

    Attributes:
        candidates: from the simplest; each computes something else.
        left_out: why others are not tried, by their names.
        same: specs that compute the same as a candidate, by its spec.
        factor: the smallest factor that reaches the target.
        wanted: the specs that the user named, with that factor where they lack one.
        files: by spec, the file that it came from.
        searched: the spec that a search found.
        served: whether servers compute them, so that all of the text decides.
    """

    candidates: list[Candidate]
    left_out: dict[str, str]
    same: dict[str, list[str]]
    factor: float
    wanted: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    searched: str | None = None
    served: bool = False

    @classmethod
    def unchanged(cls, others: Iterable[str]) -> Candidates:
        """Returns the model as it is, and what the user wants to try beside it."""
        given = distinct(map(specs.parse, others))
        texts = [AS_IS, *(_text(each) for each in given)]
        made = [Candidate(spec, (number, 0, 0, 1.0, spec)) for number, spec in enumerate(dict.fromkeys(texts))]
        return cls(made, {}, {}, 1.0, tuple(each.spec for each in made[1:]), _files(given))

    @property
    def specs(self) -> list[str]:
        """The specs of all, from the simplest."""
        return [each.spec for each in self.candidates]

    @property
    def names(self) -> dict[str, str]:
        """Short names of the candidates that came from files, and of the one that was searched, by spec."""
        found = {} if self.searched is None else {self.searched: "searched"}
        return {**found, **names_of(self.files)}

    def named(self, spec: str) -> str:
        """Returns what sentences and tables call a candidate."""
        return self.names.get(spec, spec)

    def given(self, spec: str) -> str:
        """Returns a candidate as commands are given it: the file that it came from, if any."""
        return self.files.get(spec, spec)

    @property
    def repeated(self) -> list[str]:
        """Says of each spec of the user that computes the same as a simpler candidate, which one that is."""
        pairs = ((spec, self.held(spec)) for spec in self.wanted)
        return [f"{self.given(spec)} computes the same as {held}" for spec, held in pairs if held not in (None, spec)]

    @property
    def usual(self) -> str:
        """The schedule that most people would take without measuring: yarn at the smallest sufficient factor."""
        return self.held(spelled("yarn", {"factor": self.factor})) or AS_IS

    @property
    def always(self) -> list[str]:
        """The candidates that reach the text that decides in any case, from the simplest."""
        named = {AS_IS, self.usual, *(self.held(spec) for spec in self.wanted)}
        return [each.spec for each in self.candidates if each.spec in named]

    def with_searched(self, spec: str) -> Candidates:
        """Returns the candidates with one that was searched, as the least simple of all."""
        if spec in [each.spec for each in self.candidates]:
            return self
        searched = Candidate(spec, (100, 0, 0, 1.0, spec))
        return replace(self, candidates=[*self.candidates, searched], wanted=(*self.wanted, spec), searched=spec)

    def following(self, spec: str) -> tuple[Candidate, str | None] | None:
        """Returns a candidate whose tables follow the length, and the fixed one that is the same at the target."""
        found = next((each for each in self.candidates if each.spec == spec and each.held), None)
        return found and (found, next((each.spec for each in self.candidates if each.tables == found.held), None))

    def held(self, spec: str) -> str | None:
        """Returns the candidate that computes what a spec does; None if it is not tried."""
        same = (each.spec for each in self.candidates if spec in (each.spec, *self.same.get(each.spec, [])))
        return next(same, None)


def find_candidates(
    config: Mapping[str, object],
    target: int,
    request: RequestOptions,
    engine: str | None = None,
    others: Iterable[str] = (),
    now: Mapping[str, object] | None = None,
) -> Candidates:
    """Returns the candidates for a model's configuration.

    Args:
        config: ``config.json`` before ropescale changed it.
        target: the context wanted, in tokens.
        request: how schedules are applied, such as ``layers``.
        engine: leave out what this engine would not compute as asked; a key of ``ENGINES``.
        others: further specs to try; these must fit.
        now: the configuration as it is, where ropescale has changed it.

    Raises:
        ScheduleError: no such engine; one of ``others`` does not fit; the target is shorter than the trained length.
        ConfigError: the model has no rotary embedding, or is scaled already and ``request`` does not say what to do.
    """
    if engine is not None and engine not in ENGINES:
        said = base.suggest(engine, ENGINES, f"it is none of {', '.join(ENGINES)}")
        raise ScheduleError(f"engine {engine!r} is not known; {said}", "engine")
    factor = sufficient_factor(config, target, request)
    asked = distinct(_filled(spec, factor) for spec in others)
    for each in asked:
        with of_several(each, len(asked)):
            make_plan(config, Request.of(each, **request))
    given = [_text(each) for each in asked]
    made, left_out = [_as_is(now or config, config, target, request)], {}
    for name in [*_names(left_out), *given]:
        found, why = _fitting(config, [name] if name in given else grid(name, factor), target, request, engine)
        made += found
        if not found:
            left_out[name] = why
    kept: dict[Tables | str, Candidate] = {}  # the simplest of those that compute the same
    same: dict[str, list[str]] = {}
    for each in sorted(made, key=lambda each: each.rank):
        first = kept.setdefault(each.tables or each.spec, each)
        if first is not each:
            same.setdefault(first.spec, []).append(each.spec)
    return Candidates(list(kept.values()), left_out, same, factor, tuple(given), _files(asked))


def sufficient_factor(config: Mapping[str, object], target: int, request: RequestOptions) -> float:
    """Returns the smallest factor that reaches a target: of ``linear``, as every option of the request has it."""
    asked: RequestOptions = {**request, "target_length": target, "factor": None}
    plan = make_plan(config, Request.of("linear", **asked))
    return max(float(getattr(each, "factor", 1.0)) for each in plan.schedules.values())


def grid(name: str, factor: float) -> list[str]:
    """Returns the specs of one schedule that are tried: every factor with every value of its varied fields."""
    known, varied = parameters(base.lookup(name)), FIELDS.get(name, {})
    scale = STEEPNESS if name == "dynamic" else [factor * each for each in (LARGER if name in _THETA else FACTORS)]
    if name in _HOLDS:
        return [f"{name}:over={_HOLDS[name]},factor={each:.10g}" for each in scale]
    axes = {"factor": list(scale), **varied} if "factor" in known else dict(varied)
    defaults = {key: known[key].default for key in axes}
    points = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    return [spelled(name, {key: value for key, value in point.items() if value != defaults[key]}) for point in points]


def spelled(name: str, fields: Mapping[str, float]) -> str:
    """Returns a spec on one line; whole numbers without a point."""
    return f"{name}:{','.join(f'{key}={value:.10g}' for key, value in fields.items())}" if fields else name


def _names(left_out: dict[str, str]) -> Iterator[str]:
    """Yields the schedules whose fields follow from a target, and notes why others do not."""
    for name in base.names():
        needed = [each.name for each in parameters(base.lookup(name)).values() if each.required]
        unknown = [each for each in needed if each != "factor" and name not in _HOLDS]
        if unknown:
            left_out[name] = f"needs {listed(unknown)}, which no target length gives"
        elif name != AS_IS:
            yield name


def _filled(spec: str, factor: float) -> ParsedSpec:
    """Returns a user's spec with the smallest sufficient factor where it takes one and names none."""
    parsed = specs.parse(spec)
    return parsed.with_fields(factor=factor) if isinstance(parsed, specs.Spec) and parsed.lacks("factor") else parsed


def _text(asked: ParsedSpec) -> str:
    """Returns a spec on one line that can be read again: of a file with long lists, the file."""
    text = spelled_out(asked)
    try:
        again = is_same(specs.parse(text), asked)
    except ScheduleError:
        again = False
    return text if again else file_of(asked) or text


def _files(asked: Iterable[ParsedSpec]) -> dict[str, str]:
    return {_text(each): file for each in asked if (file := file_of(each))}


def _fitting(
    config: Mapping[str, object], tried: Sequence[str], target: int, request: RequestOptions, engine: str | None
) -> tuple[list[Candidate], str]:
    """Returns the candidates among specs, and the first reason why one is none."""
    found, why = [], ""
    for spec in tried:
        try:
            plan = make_plan(config, Request.of(spec, **request))
        except (ScheduleError, ConfigError) as error:
            why = why or str(error)
            continue
        reason = _reason(plan, engine)
        why = why or reason
        if not reason:
            found.append(_candidate(spec, plan, target))
    return found, why


def _reason(plan: Plan, engine: str | None) -> str:
    """Says why a schedule that fits is not tried; "" if it is."""
    if plan.unsavable:
        return plan.unsavable
    if engine is None:
        return ""
    chosen = ENGINES[engine]
    found = (each for layers in layers_of(plan) for each in chosen.differences(layers) if each.status != "honoured")
    lost = next(found, None)
    return "" if lost is None else f"{chosen.name} computes {lost.computes} for its {lost.field}"


def _candidate(spec: str, plan: Plan, target: int) -> Candidate:
    """Returns the candidate of a spec. Fewer fields are simpler, then a form of transformers' own, then by schedule."""
    parsed = specs.one(specs.parse(spec), "a candidate")
    native = all(layers.kind != "longrope" for layers in layers_of(plan))
    extra = len([key for key in parsed.fields if key != "factor"])
    place = base.names().index(parsed.label) if parsed.label in base.names() else len(base.names())
    factor = parsed.get("factor")
    size = float(factor) if isinstance(factor, (int, float)) else 1.0
    rank = (1 + extra, 0 if native else 1, place, size, spec)
    if any(base.length_dependent(each) for each in plan.schedules.values()):
        reach = plan.config.get("text_config", plan.config).get("max_position_embeddings")
        return Candidate(spec, rank, parsed.plainest, _tables(plan, target), reach)
    return Candidate(spec, rank, _tables(plan, target))


def _as_is(now: Mapping[str, object], config: Mapping[str, object], target: int, request: RequestOptions) -> Candidate:
    """Returns the model as it is: a schedule that computes the same is not tried."""
    changed = make_plan(config, Request.of("linear", **{**request, "factor": 2.0})).layers
    found = ((key, each) for key, each in frequencies(now, AS_IS, target).items() if key in changed)
    tables = tuple((key, tuple(each.inv_freq), each.attention_scale) for key, each in found)
    return Candidate(AS_IS, (0, 0, 0, 1.0, AS_IS), tables)


def _tables(plan: Plan, target: int) -> Tables:
    """Returns what a fixed schedule computes, by layer type; two that compute the same need one measurement."""
    found = ((key, layer.table(target)) for key, layer in plan.layers.items())
    return tuple((key, tuple(each.inv_freq), each.attention_scale) for key, each in found)


def check_early(model: str, revision: str | None, target: int, options: RecommendOptions) -> None:
    """Refuses from names and files alone what a recommendation would refuse after it has loaded its libraries.

    Raises:
        RopescaleError: the model's folder, its configuration, the target, a weight or a schedule cannot be.
    """
    objective_and_candidates(*read_configs(model, revision), target, options)


def objective_and_candidates(
    config: Mapping[str, object], now: Mapping[str, object], target: int, options: RecommendOptions
) -> tuple[Objective, Candidates]:
    """Returns the objective and the candidates, before any text or weight is read.

    Args:
        config: the model's configuration before ropescale changed it; ``now`` as it is.
        target: the context wanted, in tokens.
    """
    if options.patching.get("on_top"):
        config = now
    stated = options.patching.get("original_length")
    trained = trained_in(config) if stated is None else parse_length(stated)
    goal = objective_of(target, trained, options.short_weight, options.lengths)
    if target <= goal.short:
        return goal, Candidates.unchanged(options.schedules)
    return goal, find_candidates(config, target, options.patching, options.engine, options.schedules, now)
