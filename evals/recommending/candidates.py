"""The candidate schedules for a model and a target, with several factors and values of important fields.

Candidates depend only on the model's configuration, and finding them needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...configs.configuration import trained_in
from ...engines import ENGINES, deviations
from ...engines.base import layers_of
from ...errors import ConfigError, DataError, ScheduleError
from ...files import Json
from ...lengths import parse_length
from ...output.formatting import listed, names_of
from ...planning.plan import make_plan, refuse_unused
from ...request import Request, RequestOptions
from ...schedules import base, specs
from ...schedules.fields import parameters
from ...schedules.specs import ParsedSpec, distinct, file_of, is_same, of_several, spelled_out
from ...tables import frequencies
from ..facts import AS_IS
from ..searching.options import check_engine
from .options import Objective, RecommendOptions, objective_of

FACTORS = (1.0, 1.25, 1.5)
"""The factors of candidates, as multiples of the smallest sufficient factor."""

LARGER = (1.0, 1.5, 2.0, 3.0, 4.0)
"""The multiples for schedules that change theta; larger, because the same factor slows the middle pairs down less."""

_THETA = {"ntk", "ntk-su", "ntk-mixed", "ntk-critical"}

STEEPNESS = (1.0, 1.5, 2.0, 3.0, 4.0)
"""The factors of ``dynamic``, independent of the target because this schedule adapts to the length by itself."""

FIELDS: Mapping[str, Sequence[str]] = {
    "yarn": (
        "",
        ",beta_fast=16",
        ",beta_fast=8",
        ",beta_slow=0.5",
        ",truncate=false",
        ",beta_fast=8,truncate=false",
        ",beta_fast=16,truncate=false",
        ",beta_slow=0.5,truncate=false",
        ",beta_fast=8,beta_slow=0.5,truncate=false",
        ",beta_fast=16,beta_slow=0.5,truncate=false",
        ",beta_slow=0.25,truncate=false",
        ",beta_fast=8,beta_slow=0.25,truncate=false",
        ",beta_fast=16,beta_slow=0.25,truncate=false",
    ),
    "resonance": (",over=yarn",),
}
"""The fields that follow the factor: YaRN's ramps, rounded to whole pairs and not, and what a wrapper wraps."""


Tables = tuple[tuple[str, tuple[float, ...], float], ...]
"""The frequencies and the attention scale of each layer type."""


@dataclass(frozen=True)
class Candidate:
    """A candidate schedule.

    Attributes:
        spec: the schedule on one line, in the form that ``--schedule`` accepts.
        rank: a key to sort candidates by simplicity; smaller is simpler.
        tables: the schedule's frequencies and scales at the target, or its spec if these depend on the length; equal
            for equivalent candidates.
        held: the schedule's frequencies and scales at the target, if these depend on the length; else empty.
        reach: ``max_position_embeddings`` of a folder that is patched with the schedule, if the tables depend on the
            length; else None.
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
        candidates: the candidates, simplest first; no two are equivalent.
        left_out: the schedules that are not candidates, with the reasons.
        same: for a candidate's spec, the specs that are equivalent to it.
        factor: the smallest factor that reaches the target.
        wanted: the user's specs, with that factor if they lack one.
        files: the file that each of the user's specs was read from; "" if none.
        searched: the spec that a search found; None if there was no search.
        served: whether servers compute the candidates; if so, there is no race, and the decision uses the full text.
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
        """Returns candidates that are only the unchanged model and the user's schedules."""
        files = _files(distinct(map(specs.parse, others)))
        texts = dict.fromkeys([AS_IS, *files])
        made = [Candidate(spec, (number, 0, 0, 1.0, spec)) for number, spec in enumerate(texts)]
        return cls(made, {}, {}, 1.0, tuple(texts)[1:], files)

    @property
    def specs(self) -> list[str]:
        """The specs of all candidates, simplest first."""
        return [candidate.spec for candidate in self.candidates]

    @property
    def names(self) -> dict[str, str]:
        """The short names of candidates from files and of the searched candidate, by spec."""
        found = {} if self.searched is None else {self.searched: "searched"}
        return {**found, **names_of({spec: file for spec, file in self.files.items() if file})}

    def named(self, spec: str) -> str:
        """Returns the name of a candidate in sentences and tables."""
        return self.names.get(spec, spec)

    def given(self, spec: str) -> str:
        """Returns a candidate's spec as written in commands, which is its file if it has one."""
        return self.files.get(spec) or spec

    @property
    def usual(self) -> str:
        """The schedule that is usually chosen without measuring: yarn at the smallest sufficient factor."""
        return self.held(f"yarn:factor={self.factor:.10g}") or AS_IS

    @property
    def always(self) -> list[str]:
        """The candidates that are always finalists, simplest first."""
        named = {AS_IS, self.usual, *(self.held(spec) for spec in self.wanted)}
        return [spec for spec in self.specs if spec in named]

    def with_searched(self, spec: str) -> Candidates:
        """Returns these candidates and a searched one, which ranks as the least simple."""
        if spec in self.specs:
            return self
        searched = Candidate(spec, (100, 0, 0, 1.0, spec))
        return replace(self, candidates=[*self.candidates, searched], wanted=(*self.wanted, spec), searched=spec)

    def held(self, spec: str) -> str | None:
        """Returns the spec of the candidate that is equivalent to a spec; None if there is none."""
        return next((own for own in self.specs if spec in (own, *self.same.get(own, []))), None)


def find_candidates(
    config: Json,
    target: int,
    request: RequestOptions,
    engine: str | None = None,
    others: Iterable[str] = (),
    now: Json | None = None,
) -> Candidates:
    """Returns the candidates for a model's configuration.

    Args:
        config: ``config.json`` before ropescale changed it.
        target: the wanted context length, in tokens.
        request: how schedules are applied, such as ``layers``.
        engine: a key of ``ENGINES``; schedules that this engine would compute differently are omitted.
        others: the user's specs, which must fit the model.
        now: the current configuration, if ropescale has changed it.

    Raises:
        DataError: the engine is unknown.
        ScheduleError: one of ``others`` does not fit, or the target is shorter than the trained length.
        ConfigError: the model has no rotary embedding, or is already scaled and ``request`` does not determine what to
            do about that.
    """
    check_engine(engine)
    wanted = Request.of("linear", **{**request, "target_length": target, "factor": None})
    linear = make_plan(config, wanted)
    refuse_unused(wanted, linear.used)
    factor = max(float(getattr(schedule, "factor", 1.0)) for schedule in linear.schedules.values())
    given = [specs.parse(each) for each in others]
    for number, each in enumerate(given):
        if isinstance(each, specs.Spec) and each.lacks("factor"):
            given[number] = each.with_fields(factor=factor)
    asked = distinct(given)
    for each in asked:
        with of_several(each, len(asked)):
            make_plan(config, Request.of(each, **request))
    files = _files(asked)
    left_out: dict[str, str] = {}
    tried: dict[str, list[str]] = {}
    for name in base.names():
        fields = parameters(base.lookup(name)).values()
        needed = [each.name for each in fields if each.required and each.name != "factor"]
        if needed and name not in FIELDS:
            left_out[name] = f"needs {listed(needed)}, which a target length does not determine"
        elif name != AS_IS:
            tried[name] = grid(name, factor)
    tried |= {spec: [spec] for spec in files}
    made = [_as_is(now or config, config, target, request)]
    for name, spellings in tried.items():
        found = [_candidate(config, spec, target, request, engine) for spec in spellings]
        fitting = [each for each in found if isinstance(each, Candidate)]
        made += fitting
        if not fitting:
            left_out[name] = str(found[0])
    kept: dict[Tables | str, Candidate] = {}  # the simplest of equivalent candidates
    same: dict[str, list[str]] = {}
    for each in sorted(made, key=lambda each: each.rank):
        first = kept.setdefault(each.tables or each.spec, each)
        if first is not each:
            same.setdefault(first.spec, []).append(each.spec)
    return Candidates(list(kept.values()), left_out, same, factor, tuple(files), files)


def grid(name: str, factor: float) -> list[str]:
    """Returns the candidate specs of a schedule: all factors combined with all its :data:`FIELDS`."""
    if name not in FIELDS and "factor" not in parameters(base.lookup(name)):
        return [name]
    factors = [factor * each for each in (LARGER if name in _THETA else FACTORS)]
    if name == "dynamic":
        factors = [*STEEPNESS]
    return [f"{name}:factor={each:.10g}{fields}" for each in factors for fields in FIELDS.get(name, ("",))]


def _files(asked: Iterable[ParsedSpec]) -> dict[str, str]:
    """Returns the file of each schedule, by its spec on one line.

    If that line would be parsed differently, as with long lists, the key is the file instead.
    """
    files = {}
    for each in asked:
        text = spelled_out(each)
        file = file_of(each)
        try:
            again = is_same(specs.parse(text), each)
        except ScheduleError:
            again = False
        files[text if again else file or text] = file
    return files


def _candidate(config: Json, spec: str, target: int, request: RequestOptions, engine: str | None) -> Candidate | str:
    """Returns the candidate for a spec, or the reason why the spec is not a candidate.

    Candidates with fewer fields rank as simpler, then those in a native form of transformers, then earlier schedules.
    """
    try:
        plan = make_plan(config, Request.of(spec, **request))
    except (ScheduleError, ConfigError) as error:
        return str(error)
    if plan.unsavable:
        return str(plan.unsavable)
    if engine and (differences := deviations(ENGINES[engine], plan)):
        return f"{ENGINES[engine].name} computes {differences[0].computes} for its {differences[0].field}"
    parsed = specs.one(specs.parse(spec), "a candidate")
    native = all(layers.kind != "longrope" for layers in layers_of(plan))
    extra = len(parsed.fields.keys() - {"factor"})
    place = [*base.names(), parsed.label].index(parsed.label)
    factor = parsed.given.get("factor")
    size = float(factor) if isinstance(factor, (int, float)) else 1.0
    rank = (1 + extra, int(not native), place, size, spec)
    tables = _by_layer({key: layer.table(target) for key, layer in plan.layers.items()})
    if any(base.length_dependent(schedule) for schedule in plan.schedules.values()):
        return Candidate(spec, rank, parsed.plainest().text, tables, plan.planned.max_length)
    return Candidate(spec, rank, tables)


def _as_is(now: Json, config: Json, target: int, request: RequestOptions) -> Candidate:
    """Returns the candidate for the unchanged model, with its tables, so that equivalent schedules are not tried."""
    changed = make_plan(config, Request.of("linear", **{**request, "factor": 2.0})).layers
    found = {key: each for key, each in frequencies(now, AS_IS, target).items() if key in changed}
    return Candidate(AS_IS, (0, 0, 0, 1.0, AS_IS), _by_layer(found))


def _by_layer(tables: Mapping[str, base.Frequencies]) -> Tables:
    """Returns tables in a form in which equal ones are equal; candidates with such need only one measurement."""
    return tuple((key, tuple(each.inv_freq), each.attention_scale) for key, each in tables.items())


def objective_and_candidates(
    config: Json, now: Json, target: int, options: RecommendOptions
) -> tuple[Objective, Candidates]:
    """Returns the objective and the candidates, before any text or weights are read.

    Args:
        config, now: the model's configuration before ropescale changed it, and the current configuration.
        target: the wanted context length, in tokens.
    """
    if options.text.patching.get("on_top"):
        config = now
    stated = options.text.patching.get("original_length")
    trained = trained_in(config) if stated is None else parse_length(stated)
    goal = objective_of(target, trained, options.short_weight)
    if target <= goal.short:
        return goal, Candidates.unchanged(options.schedules)
    return goal, find_candidates(config, target, options.text.patching, options.engine, options.schedules, now)


def served_candidates(
    config: Json, target: int, options: RecommendOptions, labels: Sequence[str]
) -> tuple[Objective, Candidates]:
    """Returns the objective and the candidates of a recommendation among served schedules.

    Args:
        config: the configuration of the served model without ropescale's scaling.
        labels: the labels of the servers.

    Raises:
        DataError: no server has the model as it is, or no server has a schedule.
    """
    scaled = [label for label in labels if label != AS_IS]
    if len(scaled) == len(labels) or not scaled:
        raise DataError(
            "a recommendation needs a server of the model as it is (served_as base), and one per schedule", "served_as"
        )
    goal = objective_of(target, trained_in(config), options.short_weight)
    return goal, replace(Candidates.unchanged(scaled), served=True)
