"""Compares runs on one page: a single file of data as JSON, HTML tables and plotly pictures that needs no network."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, cast

from ...errors import CheckpointError, RopescaleError
from ...files import sha256, write_checked
from ...output.formatting import finite, visible_lines
from ...output.wrapping import to_html
from .. import checking
from ..checking import Damaged
from ..metrics import METRICS, by_position
from ..metrics.drawing import LINES
from ..metrics.paired import difference
from ..recommending.results import ANSWER, FINALISTS, cells
from ..results.folder import RESULTS, refusing_damage
from ..results.result import Result
from ..retrieving.results import ACCURACY, CHANCE, EFFECTIVE
from ..searching.results import FINDING
from .runs import StoredRun
from .summary import compared

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
"""Plotly's symbols, each with an SVG path in a box of 20 by 10 for the list of series.

Symbols and dashes distinguish the series in grey print.
"""

_SYMBOLS = tuple(_MARKERS)

FEW = 3
"""The most series that are drawn with bands; with more, only the baseline has a band, because bands overlap."""

TALL = 8
"""The most series for which the list of series stays on the screen."""

DASHES = ("solid", "dash", "dot")


def page(runs: Sequence[StoredRun], title: str | None = None) -> str:
    """Returns one self-contained HTML document that compares these runs.

    Args:
        runs: the runs from :func:`load`.
        title: the heading of the page; None for the models, the data and today's date.

    Raises:
        RopescaleError: the extra ``report`` is not installed.
        DataError: the stored NLLs of a run are incomplete.
    """
    try:
        from jinja2 import Environment, PackageLoader
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise RopescaleError(f"the report needs {error.name or error}; pip install 'ropescale[report]'") from error
    files = resources.files(__package__ or "ropescale.evals.reporting")
    loader = PackageLoader("ropescale.evals.reporting", ".")
    shown = lambda value: visible_lines(value) if type(value) is str else value  # noqa: E731
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=shown)
    data = page_data(runs)
    if title is None:
        models = dict.fromkeys(Path(run.results["model"]["path"]).name for run in runs)
        sources = dict.fromkeys(run.results["data"]["source"] for run in runs)
        title = f"{', '.join(models)}: {', '.join(sources)}, {date.today()}"
    return environment.get_template("page.html").render(
        title=title,
        data=data,
        compared=to_html("\n\n".join(compared(runs))),
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
    """Checks that a file may be replaced: it is empty, or has the mark of ropescale's pages in its head.

    Raises:
        CheckpointError: the file has different content, or cannot be read.
    """
    try:
        content = checking.content(path, _LARGEST)
    except Damaged as error:
        raise CheckpointError(f"cannot write {path}: the file there {error}; choose another file") from None
    if content and _MARK not in content[:1000]:
        raise CheckpointError(f"cannot write {path}: the file there is not a page of ropescale; choose another file")


_LARGEST = 2**29
"""The largest page, in bytes."""


def write(text: str, out: str | Path) -> Path:
    """Writes the page to a temporary file, then renames the file.

    Raises:
        CheckpointError: the page cannot be written, or would replace a file that is not a page of ropescale.
    """
    return write_checked(text.encode("utf-8", "backslashreplace"), out, check_ours)  # folder names may not be UTF-8


class Series(NamedTuple):
    """A schedule of a run, with the run's name and result."""

    run: str
    result: Result
    schedule: str


def page_data(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Returns the data that the page shows.

    Raises:
        DataError: results lack figures.
    """
    measured = [(run, run.result) for run in runs if run.result]
    series = [Series(run.name, result, schedule) for run, result in measured for schedule in result.schedules]
    names: dict[str, list[str]] = {}  # by short name of a schedule from a file, its labels, which may differ by run
    facts: list[dict[str, Any]] = []
    headlines: dict[str, str] = {}
    parts: dict[str, list[Any]] = {key: [] for key in _PARTS}
    for run in runs:
        with refusing_damage(run.folder / RESULTS):  # results of another version may lack figures
            for label, name in run.results["protocol"].get("named", {}).items():
                if label != name and label not in names.setdefault(name, []):
                    names[name].append(label)
            facts.append(_run(run))
            headlines[run.name] = " ".join(run.sentences)
            for key in _PARTS.keys() & run.results.keys():
                parts[key].append(_PARTS[key](run))
    compared = (any(pair.baseline == each.schedule for pair in each.result.paired) for each in series)
    return {
        "runs": facts,
        "headlines": [f"{name}: {said}" if len(runs) > 1 else said for name, said in headlines.items() if said],
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
        "sources": [
            {
                "run": run.name,
                "source": name,
                "over": part.extent,
                "tables": to_html("\n\n".join(part.tables_of_metrics())),
            }
            for run, result in measured
            for name, part in result.by_source.items()
        ],
        "retrieval": list(itertools.chain.from_iterable(parts[EFFECTIVE.key])),
        "recommendations": parts[ANSWER.key],
        "searches": parts[FINDING.key],
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
        **{key: _plain(model[key]) for key in ("parameters", "dtype", "weights")},
        **{key: _plain(data[key]) for key in ("source", "documents", "windows", "tokens") if key in data},
        "share of the documents": result.share if result else "",
        "skipped": ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in data.get("skipped", {}).items() if n),
        "text sha256": str(data.get("sha256", ""))[:12],
        "token ids sha256": sha256(ids)[:12] if result else "",
        **{f"protocol: {key.replace('_', ' ')}": _plain(value) for key, value in protocol.items()},
        "forward passes": f"{sum(each['forward_passes'] for each in cost):,}" if cost else "",
        "versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    }
    return {"name": run.name, "facts": {key: value or "-" for key, value in facts.items()}}


def _series(number: int, series: Series, many: bool) -> dict[str, object]:
    """Returns the data of one line of the plots, with the rows of every metric."""
    result, schedule = series.result, series.schedule
    name = result.named(schedule)
    own = {run.table_sha256: n for (label, n), run in result.read_from.items() if label == schedule}
    parts = {metric.key: metric.rows(result) for metric in METRICS if metric.key}
    parts["bins"] = by_position.METRIC.rows(result)
    return {
        "id": number,
        "run": series.run,
        "schedule": schedule,
        "trained": result.trained_length,
        "label": f"{series.run}: {name}" if many else name,
        "colour": LINES[number % len(LINES)],
        "symbol": _SYMBOLS[number % len(_SYMBOLS)],
        "dash": DASHES[number // len(LINES) % len(DASHES)],
        **{part: [asdict(row) for row in rows if row.schedule == schedule] for part, rows in parts.items()},
        "tables": [{"length": n, "layers": result.tables[sha]} for sha, n in own.items() if sha in result.tables],
    }


def _pairs(series: Sequence[Series]) -> dict[str, list[dict[str, object]]]:
    """Returns the NLL of series b minus that of series a at every shared length, by ``"a:b"`` with a < b."""
    found = {}
    for (a, one), (b, other) in itertools.combinations(enumerate(series), 2):
        lengths = one.result.lengths
        deltas = [(n, difference(other.result, other.schedule, one.result, one.schedule, n)) for n in lengths]
        known = [{"length": n, **asdict(e)} for n, e in deltas if e is not None]
        if known:
            found[f"{a}:{b}"] = known
    return found


def _heat_maps(run: StoredRun) -> list[dict[str, Any]]:
    """Returns, for each schedule of a retrieval run, the rows by depth or task, and the overall rows."""
    results, maps = run.results, []
    rows = ACCURACY.read(results)
    for schedule in dict.fromkeys(row.schedule for row in rows):
        overall = [row for row in rows if row.schedule == schedule and row.is_overall]
        parts = [row for row in rows if row.schedule == schedule and not row.is_overall] or overall
        maps.append(
            {
                "run": run.name,
                "schedule": results["protocol"].get("named", {}).get(schedule, schedule),
                "rows": [{**asdict(row), "part": row.part} for row in parts],
                "by": "task" if any(row.task for row in parts) else "depth",
                "overall": [asdict(row) for row in overall],
                "trained": results["model"].get("trained_length"),
                "chance": CHANCE if any(row.depth is not None for row in rows) else None,
            }
        )
    return maps


def _plain(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _recommendation(run: StoredRun) -> dict[str, object]:
    """Returns the data of a recommendation for the page."""
    results = cast(Mapping[str, Any], run.results)
    (answer,) = results["answer"]
    protocol = results["protocol"]
    names = protocol.get("named", {})

    def named(row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, "schedule": names.get(row["schedule"], row["schedule"])}

    return {
        "run": run.name,
        "answer": named(answer),
        "target": protocol["target_length"],
        "trained": protocol["trained_length"],
        "candidates": [named(row) for row in results["rows"]],
        "finalists": [{**named(asdict(row)), "cells": cells(row)} for row in FINALISTS.read(results)],
        "names": names,
    }


def _search(run: StoredRun) -> dict[str, object]:
    """Returns the data of a search for the page, in addition to the data of its measurement."""
    results = cast(Mapping[str, Any], run.results)
    protocol, (found,) = results["protocol"], FINDING.read(results)
    return {
        "run": run.name,
        "method": protocol["method"] if run.result else f"{protocol['method']}, from answers to prompts",
        "spec": found.spec,
        "start": next(iter(found.changes)),
        "spent": found.tokens,
        "said": [found.verdict],
        "divisors": results["divisors"],
        "history": [row for row in results["history"] if row["held_out"]],
    }


_PARTS = {EFFECTIVE.key: _heat_maps, ANSWER.key: _recommendation, FINDING.key: _search}
"""The functions that read data from a run, by the key that results.json has if the run has such data."""
