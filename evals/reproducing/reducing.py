"""Computes the rows of a reproduction from what its arms measured."""

from __future__ import annotations

from collections.abc import Iterator

from ..metrics.base import perplexities
from ..results.stored import Measured
from ..running.variants import AS_IS
from ..statistics.intervals import wilson
from . import published
from .claims import judge
from .comparisons import TRUNCATION, Point, Records
from .experiments.arms import MeasuringArm, TrainingArm
from .experiments.plan import ASKED, SHORT, UNTRAINED, answering, arms
from .experiments.retrieval_arms import AskingArm
from .rows import AnswersRow, ArmRow, ClaimRow


def claim_rows(records: Records) -> list[ClaimRow]:
    """Returns every claim with its verdict."""
    return [judge(each, records) for each in published.claims(records.room.setting)]


def arm_rows(records: Records) -> list[ArmRow]:
    """Returns every arm, step and length that was measured, and truncation on the half that is farthest."""
    rows = [row for point, label in points(records) for row in _rows(records, point, label)]
    return [*rows, *_truncation(records)]


def answers_rows(records: Records) -> list[AnswersRow]:
    """Returns how many questions every model answered, at each length."""
    setting = records.room.setting
    trained = {answering(name): (setting.schedules[name], setting.short_steps) for name in ASKED}
    found: list[AnswersRow] = []
    for arm in arms(setting):
        for spec in (AS_IS, *arm.schedules) if isinstance(arm, AskingArm) else ():
            schedule, step = trained.get(arm.name, (spec, 0))
            found += _answers(records, Point(arm.name, schedule=spec), schedule, step)
    return found


def described(records: Records) -> Measured | None:
    """Returns what says which model, texts and versions the figures are of; None where nothing was measured."""
    first = next((records.result(point) for point, _ in points(records)), None)
    if first is not None:
        return first
    names = (arm.name for arm in arms(records.room.setting) if isinstance(arm, AskingArm))
    return next((found.run for name in names if (found := records.answered(Point(name))) is not None), None)


def _answers(records: Records, point: Point, schedule: str, step: int) -> Iterator[AnswersRow]:
    name = _named(records, schedule)
    for length in records.room.setting.asked:
        answers = records.answers(point, length)
        if answers is not None:
            yield AnswersRow(
                name, point.arm, step, length, len(answers), sum(answers), *wilson(sum(answers), len(answers))
            )


def _named(records: Records, schedule: str) -> str:
    """Returns the schedule's spec, or ``found`` and ``control``, which the protocol spells out."""
    schedules = records.room.setting.schedules
    return {schedules[name]: name for name in ("found", "control")}.get(schedule, schedule)


def points(records: Records) -> Iterator[tuple[Point, str]]:
    """Yields every point that was measured, in the order of the arms, with its schedule."""
    for arm in arms(records.room.setting):
        found: list[tuple[Point, str]] = []
        if isinstance(arm, TrainingArm):
            folders = records.room.trained_runs(arm.name).glob("step-*")
            steps = sorted(int(each.name.removeprefix("step-")) for each in folders)
            found = [(Point(arm.name, step), arm.spec) for step in steps]
        elif isinstance(arm, MeasuringArm):
            found = [(Point(arm.name, schedule=spec), spec) for spec in (AS_IS, *arm.schedules)]
        yield from (each for each in found if records.result(each[0]) is not None)


def _rows(records: Records, point: Point, schedule: str) -> Iterator[ArmRow]:
    result = records.result(point)
    for length in [] if result is None else result.lengths:
        whole, tail = records.mean(point, length), records.mean(point, length, length // 2)
        if whole is not None and tail is not None:
            bounds = perplexities(whole)
            name, step = _named(records, schedule), point.step or 0
            yield ArmRow(name, point.arm, step, length, whole.mean, *bounds, tail.mean, *records.repeats(point, length))


def _truncation(records: Records) -> list[ArmRow]:
    target = records.room.setting.target
    found = {arm: records.mean(Point(arm, schedule=TRUNCATION), target, target // 2) for arm in (UNTRAINED, SHORT)}
    return [
        ArmRow(TRUNCATION, arm, 0, target, None, None, None, None, each.mean) for arm, each in found.items() if each
    ]
