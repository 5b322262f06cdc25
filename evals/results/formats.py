"""The types of a run's files: every field that is read, with its range."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, get_type_hints

from annotated_types import Len
from pydantic import AfterValidator, FailFast
from typing_extensions import TypedDict

from ...errors import DataError
from .. import checking
from ..checking import Count, Length, Shape, Wrong
from ..metrics.base import Metric
from ..metrics.stored import DataFacts, ModelFacts, Tables

RESULTS = "results.json"
LOSSES = "losses.safetensors"

SCHEMA = 1

SERIES = 256
"""The most schedules on one page, which compares every two of them."""

ROWS = 20_000


def _matching(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"Input should be {what}")
        return text

    return AfterValidator(check)


Digest = Annotated[str, _matching("[0-9a-f]{64}", "a sha256")]
Beside = Annotated[str, _matching(r"(?!\.)[A-Za-z0-9._=,-]{1,120}", "a file that a run writes")]


class ProtocolFacts(TypedDict, total=False):
    """The fields of the "protocol" part of results.json that are read; the page shows all of it."""

    name: str
    mode: str
    stride: Length | None
    seed: int | None
    named: dict[str, str]


class PassCost(TypedDict):
    """The cost of a pass or of a comparison."""

    schedule: str
    lengths: Annotated[list[Length], FailFast()]
    forward_passes: Count
    forwards: NotRequired[Count]
    positions: NotRequired[Count]
    scored: NotRequired[Count]
    times_one_pass: NotRequired[float]
    split_batches: NotRequired[Count]


class Results(TypedDict):
    """The fields that ``results.json`` of every kind of run has; each metric adds its rows."""

    schema: Literal[1]
    kind: NotRequired[str]
    model: ModelFacts
    data: DataFacts
    protocol: ProtocolFacts
    versions: dict[str, str]
    rows: list[dict[str, Any]]
    cost: NotRequired[Annotated[list[PassCost], FailFast(), Len(0, 10 * ROWS)]]
    files: dict[Beside, Annotated[list[Digest], Len(1, 2)]]
    tables: NotRequired[Tables]
    sha256: Digest


def _rows(metric: Metric[Any, Any]) -> object:
    """Returns the type of a metric's part of results.json; a field with a default may be missing."""
    hints = get_type_hints(metric.row, include_extras=True)
    missing = {each.name for each in fields(metric.row) if each.default is not MISSING}
    keys = {name: NotRequired[hint] if name in missing else hint for name, hint in hints.items()}
    rows = Annotated[list[TypedDict(metric.row.__name__, keys)], FailFast(), Len(0, 100 * ROWS)]  # type: ignore[misc]
    part = TypedDict(metric.key, {"rows": rows}) if metric.has_facts else rows  # type: ignore[misc]
    return part if metric.key in ("rows", "paired") else NotRequired[part]


@cache
def shape_of(kind: str) -> Shape[Results]:
    """Returns the type of ``results.json`` of a kind of run, made of its metrics' rows."""
    module, name = KINDS[kind].split(":")
    metrics: tuple[Metric[Any, Any], ...] = getattr(import_module(f"ropescale.evals.{module}"), name).metrics
    parts = {metric.key: _rows(metric) for metric in metrics if metric.key}
    one = TypedDict("SourceResults", {"documents": Count, **parts})  # type: ignore[misc]
    parts["sources"] = NotRequired[dict[str, one]]
    options = {each.name: each.type for metric in metrics for each in metric.options if each.in_protocol}
    protocol = get_type_hints(ProtocolFacts, include_extras=True) | options
    parts["protocol"] = TypedDict("ProtocolFacts", protocol, total=False)  # type: ignore[misc]
    return Shape(TypedDict(kind, {**get_type_hints(Results, include_extras=True), **parts}))  # type: ignore[misc]


KINDS = {
    "perplexity": "results.result:Result",
    "retrieval": "retrieving.results:Retrieval",
    "recommendation": "recommending.results:Recommendation",
    "search": "searching.results:SearchResult",
}
"""The class of each kind of run: its module below ``ropescale.evals``, and its name; imported when it is needed."""


def check_results(value: Any) -> Results:
    """Checks ``results.json`` of either kind of run.

    Raises:
        Wrong: names what does not fit.
    """
    if value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        raise Wrong("is not one that this version can read")
    kind = value.get("kind", "perplexity")
    if kind not in list(KINDS):
        raise Wrong("is of a kind of run that this version does not know")
    shape_of(kind)(value)
    schedules = {row["schedule"] for row in value["rows"]}
    if not 0 < len(schedules) <= SERIES:
        raise Wrong(f"has {len(schedules):,} schedules, and 1 to {SERIES} can be compared")
    return value


def read_results(path: Path, kind: str | None = None) -> Results:
    """Reads ``results.json`` of a run's folder.

    Args:
        kind: the kind of run it must hold; None accepts every kind.

    Raises:
        DataError: the file is missing, damaged, or from another kind of run.
    """
    file = path / RESULTS
    if not file.is_file():
        what = "has no results.json" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; give a folder that `ropescale eval -o` or `ropescale retrieval -o` wrote")
    try:
        found = checking.checked(file, check_results)
    except Wrong as error:
        raise damaged(file, error) from None
    there = found.get("kind", "perplexity")
    if kind not in (None, there):
        raise DataError(f"{path} holds a {there} run, not a {kind} run; give another folder")
    return found


def damaged(path: Path, error: Wrong | OSError) -> DataError:
    """Returns the error of a file that cannot be used."""
    why = error if isinstance(error, Wrong) else f"cannot be read ({error.strerror or error})"
    return DataError(f"{path} {why}; move it away and run the evaluation again")
