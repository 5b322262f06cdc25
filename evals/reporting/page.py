"""Writes the page: data as JSON, tables as HTML and pictures by plotly, in one file that needs no network."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, DataError, RopescaleError
from ...files import sha256
from ...output.formatting import finite
from ...output.plotting import is_want_of_memory
from .. import checking, single_file
from ..checking import Wrong
from ..metrics import METRICS
from ..metrics.against_truncation import pays_off, verdict
from ..metrics.base import Bounded
from ..metrics.best import worse_than_a_guess
from ..metrics.drawing import FEW, LINES
from ..metrics.paired import difference
from ..recommending.results import Recommendation
from ..results.formats import SERIES
from ..results.result import Result
from ..retrieving.answers import chance
from ..retrieving.metrics import answered
from ..retrieving.results import Retrieval
from ..searching.results import SearchResult
from .runs import StoredRun, refusing_damage
from .sections import recommendation, search, source_tables, typographic

_MARKERS = {
    "circle": "M6.5,5a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0Z",
    "square": "M7,2h6v6h-6Z",
    "triangle-up": "M10,1.5L14,8.2H6Z",
    "diamond": "M10,.8L14.2,5L10,9.2L5.8,5Z",
    "triangle-down": "M10,8.5L14,1.8H6Z",
    "cross": "M8.7,1.2h2.6v2.5h2.5v2.6h-2.5v2.5h-2.6v-2.5h-2.5v-2.6h2.5Z",
    "x": "M7.4,1L10,3.6L12.6,1L14,2.4L11.4,5L14,7.6L12.6,9L10,6.4L7.4,9L6,7.6L8.6,5L6,2.4Z",
    "triangle-left": "M6,5L12.7,1V9Z",
    "star": "M10,.6L11.2,3.8L14.6,3.9L11.9,6L12.9,9.3L10,7.4L7.1,9.3L8.1,6L5.4,3.9L8.8,3.8Z",
}
"""Plotly's symbols, and as paths of SVG in a box of 20 by 10 for the list of series.

Symbols and dashes tell series apart in grey print.
"""

_SYMBOLS = tuple(_MARKERS)

TALL = 8
"""With more series than this, their list does not stay on the screen."""

DASHES = ("solid", "dash", "dot")


def page(runs: Sequence[StoredRun], title: str = "Context extension, measured") -> str:
    """Returns one self-contained HTML document that compares these runs.

    Args:
        runs: from :func:`.runs.load`.
        title: the heading.

    Raises:
        RopescaleError: the extra ``report`` is not installed.
        DataError: the stored NLLs of a run are incomplete.
    """
    try:
        from jinja2 import Environment, PackageLoader
        from plotly.offline import get_plotlyjs
    except (ImportError, MemoryError) as error:
        if is_want_of_memory(error):
            raise RopescaleError("there is not enough memory to make the page; give it more") from error
        name = getattr(error, "name", None) or error
        raise RopescaleError(f"the report needs {name}; pip install 'ropescale[report]'") from error
    files = resources.files(__package__ or "ropescale.evals.reporting")
    loader = PackageLoader("ropescale.evals.reporting", ".")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    data = page_data(runs)
    return environment.get_template("page.html").render(
        title=title,
        data=data,
        markers=_MARKERS,
        few=FEW,
        tall=len(data["series"]) > TALL,
        facts=list(dict.fromkeys(key for run in data["runs"] for key in run["facts"])),
        json=json.dumps(finite(data), allow_nan=False).replace("<", "\\u003c"),  # may stand inside <script>
        css=(files / "page.css").read_text(encoding="utf-8"),
        script=(files / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
    )


_MARK = b'<meta name="generator" content="ropescale">'


def check_ours(path: Path) -> None:
    """Refuses to replace a file that is not a page of ropescale, which has a mark in its head.

    Raises:
        CheckpointError: it is another kind of file, and not empty.
    """
    try:
        content = checking.content(path, _LARGEST)
    except Wrong as error:
        raise CheckpointError(f"cannot write {path}: the file there {error}; choose another file") from None
    if content and _MARK not in content[:1000]:
        raise CheckpointError(f"cannot write {path}: the file there is not a page of ropescale; choose another file")


_LARGEST = 2**29
"""The largest page, in bytes."""


def write(text: str, out: str | Path) -> Path:
    """Writes the page under another name and renames it.

    Raises:
        CheckpointError: it cannot be written, or the file there is not a page of ropescale.
    """
    return single_file.write(text.encode("utf-8", "backslashreplace"), out, check_ours)  # folder names may not be UTF-8


@dataclass(frozen=True)
class Series:
    """One schedule of one run."""

    run: StoredRun
    result: Result
    schedule: str


def page_data(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Returns the data of the page.

    Raises:
        DataError: there are too many schedules to compare.
    """
    measured = [(run, run.result) for run in runs if run.result]
    series = [Series(run, result, schedule) for run, result in measured for schedule in result.schedules]
    if len(series) > SERIES:
        raise DataError(
            f"the runs have {len(series):,} schedules, and a page compares at most {SERIES}; give fewer runs"
        )
    names: dict[str, list[str]] = {}  # of schedules from files: a name may stand for another one in each run
    for run in runs:
        for label, name in run.results["protocol"].get("named", {}).items():
            if label != name and label not in names.setdefault(name, []):
                names[name].append(label)
    headlines = {run.name: said for run in runs if (said := headline(run))}
    compared = (any(pair.baseline == each.schedule for pair in each.result.paired) for each in series)
    return {
        "runs": [_run(run) for run in runs],
        "headlines": typographic([f"{name}: {said}" if len(runs) > 1 else said for name, said in headlines.items()]),
        "names": names,
        "few": FEW,
        "series": [_series(number, each, len(measured) > 1) for number, each in enumerate(series)],
        "pairs": _pairs(series),
        "baseline": next((number for number, is_baseline in enumerate(compared) if is_baseline), 0),
        "truncations": [
            {"run": run.name, **{name: getattr(row, name) for name in ("context", "stride", "fed")}}
            for run, result in measured
            for row in result.against_truncation[:1]
        ],
        "sources": typographic(source_tables((run.name, result) for run, result in measured)),
        "retrieval": [heat for run in runs if run.kind == Retrieval.kind for heat in _heat_maps(run)],
        "recommendations": typographic([recommendation(run) for run in runs if run.kind == Recommendation.kind]),
        "searches": typographic([search(run) for run in runs if run.kind == SearchResult.kind]),
    }


def _run(run: StoredRun) -> dict[str, Any]:
    """Returns the facts about a run, for the table of protocols."""
    results = run.results
    model, data, protocol = results["model"], results.get("data", {}), results.get("protocol", {})
    cost, result = results.get("cost", []), run.result
    ids = "".join(result.ids).encode(errors="backslashreplace") if result else b""
    facts = {
        "folder": str(run.folder),
        "model": model["path"],
        "parameters": f"{model['parameters']:,}",
        "dtype": model["dtype"],
        "weights": model["weights"][:12],
        **{key: _plain(data.get(key)) for key in ("source", "documents", "windows", "tokens") if key in data},
        **({"share of the documents": result.share, "tokens": f"{result.data['tokens']:,}"} if result else {}),
        "skipped": ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in data.get("skipped", {}).items() if n),
        "text sha256": str(data.get("sha256", ""))[:12],
        "token ids sha256": sha256(ids)[:12] if result else "",
        **{f"protocol: {key.replace('_', ' ')}": _plain(value) for key, value in protocol.items()},
        "forward passes": f"{sum(each['forward_passes'] for each in cost):,}" if cost else "",
        "versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    }
    return {"name": run.name, "facts": {key: value or "-" for key, value in facts.items()}}


def _series(number: int, series: Series, many: bool) -> dict[str, object]:
    """Returns one line of the plots, with the data of every metric."""
    result, schedule = series.result, series.schedule
    mine = [(metric, [row for row in metric.rows(result) if row.schedule == schedule]) for metric in METRICS]
    name = result.named(schedule)
    own = {run.table_sha256: n for (label, n), run in result.read_from.items() if label == schedule}
    return {
        "id": number,
        "run": series.run.name,
        "schedule": schedule,
        "trained": result.trained_length,
        "label": f"{series.run.name}: {name}" if many else name,
        "colour": LINES[number % len(LINES)],
        "symbol": _SYMBOLS[number % len(_SYMBOLS)],
        "dash": DASHES[number // len(LINES) % len(DASHES)],
        **{name: part for metric, rows in mine for name, part in metric.on_page(rows).items()},
        "subsets": _subsets(
            [(row.length, metric.subset(row)) for metric, rows in mine if metric.subsets for row in rows]
        ),
        "tables": [{"length": n, "layers": result.tables[sha]} for sha, n in own.items() if sha in result.tables],
    }


def _subsets(parts: Sequence[tuple[int, dict[str, Bounded | None]]]) -> list[dict[str, object]]:
    """Returns the perplexities of subsets of the tokens, of all metrics, by length."""
    names = [name for metric in METRICS for name in metric.subsets]
    found: dict[int, dict[str, object]] = {}
    for length, part in parts:
        if part:
            found.setdefault(length, {"length": length, **dict.fromkeys(names)}).update(part)
    return [found[length] for length in sorted(found)]


def _pairs(series: Sequence[Series]) -> dict[str, list[dict[str, object]]]:
    """Returns, under ``"a:b"`` for a < b, the NLL of series b minus that of a at every length that both have."""
    found = {}
    for (a, one), (b, other) in itertools.combinations(enumerate(series), 2):
        common = sorted(_lengths(one) & _lengths(other))
        deltas = [(n, difference(other.result, other.schedule, one.result, one.schedule, n)) for n in common]
        known = [{"length": n, **asdict(e)} for n, e in deltas if e is not None]
        if known:
            found[f"{a}:{b}"] = known
    return found


def _lengths(series: Series) -> set[int]:
    return {length for schedule, length in series.result.read_from if schedule == series.schedule}


def _heat_maps(run: StoredRun) -> list[dict[str, Any]]:
    """Returns, per schedule of a retrieval run, the rows of each depth or task and the rows over all of them."""
    found, digits, names = [], run.results["protocol"].get("digits"), run.results["protocol"].get("named", {})
    for schedule in dict.fromkeys(row["schedule"] for row in run.results["rows"]):
        mine = [row for row in run.results["rows"] if row["schedule"] == schedule]
        overall = [row for row in mine if row.get("depth") is None and row.get("task") is None]
        rows = [row for row in mine if row not in overall] or overall
        found.append(
            {
                "run": run.name,
                "schedule": names.get(schedule, schedule),
                "rows": [{**row, "part": _part(row)} for row in rows],
                "by": "task" if any(row.get("task") for row in rows) else "depth",
                "overall": overall,
                "trained": run.results["model"].get("trained_length"),
                "chance": chance(digits) if isinstance(digits, int) else None,
            }
        )
    return [each for each in found if each["rows"]]


def _part(row: Mapping[str, Any]) -> str:
    """Returns what a row of a retrieval run is over: a task, a depth or all."""
    return row.get("task") or ("all" if row.get("depth") is None else f"{100 * row['depth']:.3g}%")


def _plain(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


@refusing_damage
def headline(run: StoredRun) -> str | None:
    """Returns a run's main result in a few sentences; None where there is nothing to say."""
    if run.kind == Recommendation.kind:
        return run.results["answer"][0]["answer"]  # type: ignore[typeddict-item]
    if run.kind == SearchResult.kind:
        return str(run.results["found"][0]["verdict"])  # type: ignore[typeddict-item]
    if run.result is None:
        return " ".join(answered(run.results["rows"], run.results["protocol"].get("named", {})))
    if guessed := worse_than_a_guess(run.result):
        return guessed
    rows, named = run.result.against_truncation, run.result.named
    said = run.result.sentences() if len(run.result.schedules) > 1 else []
    return " ".join([*said, *(verdict(rows, named) if rows and pays_off(rows) else [])]) or None
