"""The types of a run's files: every field that is read, with its range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, get_type_hints

from annotated_types import Ge, Interval, Len
from pydantic import AfterValidator, FailFast
from typing_extensions import TypedDict

from ..metrics import METRICS
from ..metrics.base import Metric
from ..passkey.metrics import METRICS as ASKED
from ..recommending.metrics import METRICS as JUDGED
from ..reproducing.metrics import METRICS as CLAIMED
from ..results.stored import DataFacts, ModelFacts, Tables
from ..searching.metrics import METRICS as LEARNED
from .checking import SEAL, Count, Length, Shape, Wrong

SCHEMA = 1

SERIES = 256
"""The most schedules on one page, which compares every two of them."""

_ROWS = 20_000


def _matches(pattern: re.Pattern[str], what: str, text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"Input should be {what}")
    return text


def _matching(pattern: str, what: str) -> AfterValidator:
    return AfterValidator(partial(_matches, re.compile(pattern), what))


_PLACE = r"(?!\.)[A-Za-z0-9._=,-]{1,120}/[0-9]{1,15}(-divergence|-truncation)?"
ARRAY = re.compile(_PLACE + r"/[0-9]{5,12}\.npy")
"""Names of files below ``nll/``."""

Digest = Annotated[str, _matching("[0-9a-f]{64}", "a sha256")]
Place = Annotated[str, _matching(_PLACE, "a folder below nll/")]
Beside = Annotated[str, _matching(r"(?!\.)[A-Za-z0-9._=,-]{1,120}", "a file that a run writes")]
Below = Annotated[str, _matching(ARRAY.pattern, "a file that a run writes")]


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
    cost: NotRequired[Annotated[list[PassCost], FailFast(), Len(0, 10 * _ROWS)]]
    files: NotRequired[dict[Beside, Annotated[list[Digest], Len(1, 2)]]]
    tables: NotRequired[Tables]
    sha256: NotRequired[Digest]


def _rows(metric: Metric[Any, Any]) -> object:
    """Returns the type of a metric's part of results.json; a field with a default may be missing."""
    hints = get_type_hints(metric.row, include_extras=True)
    missing = {each.name for each in fields(metric.row) if each.default is not MISSING}
    keys = {name: NotRequired[hint] if name in missing else hint for name, hint in hints.items()}
    rows = Annotated[list[TypedDict(metric.row.__name__, keys)], FailFast(), Len(0, 100 * _ROWS)]  # type: ignore[misc]
    part = TypedDict(metric.key, {"rows": rows}) if metric.has_facts else rows  # type: ignore[misc]
    return part if metric.key in ("rows", "paired") else NotRequired[part]


def _results_of(kind: str, metrics: Iterable[Metric[Any, Any]]) -> Shape[Results]:
    parts = {metric.key: _rows(metric) for metric in metrics if metric.key}
    one = TypedDict("SourceResults", {"documents": Count, **parts})  # type: ignore[misc]
    parts["sources"] = NotRequired[dict[str, one]]
    return Shape(TypedDict(kind, {**get_type_hints(Results, include_extras=True), **parts}))  # type: ignore[misc]


METRICS_OF: dict[str, Sequence[Metric[Any, Any]]] = {
    "perplexity": METRICS,
    "retrieval": ASKED,
    "recommendation": JUDGED,
    "reproduction": CLAIMED,
    "search": LEARNED,
}
"""The metrics of each kind of run."""

_KINDS = {kind: _results_of(kind, metrics) for kind, metrics in METRICS_OF.items()}


def results(value: Any) -> Results:
    """Checks ``results.json`` of either kind of run.

    Raises:
        Wrong: names what does not fit.
    """
    if value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        raise Wrong("is not one that this version can read")
    kind = value.get("kind", "perplexity")
    if kind not in list(_KINDS):
        raise Wrong("is of a kind of run that this version does not know")
    _KINDS[kind](value)
    if kind in ("recommendation", "search") and SEAL not in value:  # no version has written one without
        raise Wrong(f"lacks {SEAL}, its checksum")
    rows = [*value["rows"], *(value.get("answers", []) if kind == "reproduction" else [])]
    schedules = {row["schedule"] for row in rows}
    if not 0 < len(schedules) <= SERIES:
        raise Wrong(f"has {len(schedules):,} schedules, and 1 to {SERIES} can be compared")
    return value


class StoredDocument(TypedDict):
    """A document in ``nll/index.json``."""

    name: str
    sha256: str
    ids_sha256: NotRequired[str]
    at: NotRequired[dict[str, str]]
    windows: NotRequired[Annotated[int, Interval(ge=1, le=2**32)]]
    scored: NotRequired[Annotated[list[Annotated[list[Count], Len(2, 2)]], FailFast()]]
    source: NotRequired[str]
    size: NotRequired[Length]


class _Entry(TypedDict):
    """An entry of ``nll/index.json``: the place of files, and their checksums."""

    at: Place
    files: NotRequired[Annotated[list[Digest], FailFast()]]


class StoredPass(_Entry):
    """The place of a pass's losses."""

    schedule: str
    table_sha256: str
    lengths: Annotated[list[Length], FailFast(), Len(1, 10_000)]


class StoredComparison(_Entry):
    """The place of a comparison of predictions."""

    schedule: str
    baseline: str
    length: Length


class StoredTruncation(_Entry):
    """The place of the losses of truncation."""

    length: Length
    stride: Length
    table_sha256: str


class Index(TypedDict):
    """``nll/index.json``."""

    bos: bool
    documents: Annotated[list[StoredDocument], FailFast()]
    passes: Annotated[list[StoredPass], FailFast(), Len(0, _ROWS)]
    divergences: NotRequired[Annotated[list[StoredComparison], FailFast(), Len(0, _ROWS)]]
    truncation: NotRequired[Annotated[list[StoredTruncation], Len(0, 1)]]
    of: NotRequired[Digest]
    before: NotRequired[dict[Below, Digest]]
    sha256: NotRequired[Digest]


_INDEX: Shape[Index] = Shape(Index)


def stored_in(value: Index) -> list[StoredPass | StoredComparison | StoredTruncation]:
    """Returns every entry of an index that has files."""
    return [*value["passes"], *value.get("divergences", []), *value.get("truncation", [])]


def index(value: Index) -> Index:
    """Checks ``nll/index.json``.

    Raises:
        Wrong: names what does not fit.
    """
    made = stored_in(_INDEX(value))
    if len({each["at"] for each in made}) < len(made):
        raise Wrong("has two passes in one folder")
    if made and not value["documents"]:
        raise Wrong("has passes and no documents")
    for one in made:
        if "files" in one and len(one["files"]) != len(value["documents"]):
            raise Wrong(f"has {len(one['files']):,} checksums for the {len(value['documents']):,} files in {one['at']}")
    return value


class LastRun(TypedDict):
    """``resume/run.json``."""

    facts: dict[str, object]
    lengths: NotRequired[Annotated[list[Length], FailFast()]]
    batch_tokens: NotRequired[Annotated[int, Ge(1)]]
    schedules: NotRequired[Annotated[list[str], FailFast()]]
    kind: NotRequired[str]


LAST: Shape[dict[str, object]] = Shape(LastRun)
