"""Computes the rows of a reproduction from what its arms measured."""

from __future__ import annotations

from collections.abc import Iterator

from ..metrics.base import perplexities
from ..running.variants import AS_IS
from . import published
from .arms import MeasuringArm, TrainingArm
from .claims import judge
from .evidence import TRUNCATION, Point, Records
from .plan import SHORT, UNTRAINED, arms
from .rows import ArmRow, ClaimRow


def claim_rows(records: Records) -> list[ClaimRow]:
    """Returns every claim with its verdict."""
    return [judge(each, records) for each in published.claims(records.room.setting)]


def arm_rows(records: Records) -> list[ArmRow]:
    """Returns every arm, step and length that was measured, and truncation on the half that is farthest."""
    rows = [row for point, label in points(records) for row in _rows(records, point, label)]
    return [*rows, *_truncation(records)]


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
    result, setting = records.result(point), records.room.setting
    names = {setting.schedules[name]: name for name in ("found", "control")}
    for length in [] if result is None else result.lengths:
        whole, tail = records.mean(point, length), records.mean(point, length, length // 2)
        if whole is not None and tail is not None:
            bounds = perplexities(whole)
            name, step = names.get(schedule, schedule), point.step or 0
            yield ArmRow(name, point.arm, step, length, whole.mean, *bounds, tail.mean, *records.repeats(point, length))


def _truncation(records: Records) -> list[ArmRow]:
    target = records.room.setting.target
    found = {arm: records.mean(Point(arm, schedule=TRUNCATION), target, target // 2) for arm in (UNTRAINED, SHORT)}
    return [
        ArmRow(TRUNCATION, arm, 0, target, None, None, None, None, each.mean) for arm, each in found.items() if each
    ]
