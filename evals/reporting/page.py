"""The page itself: data as JSON, tables as HTML, pictures by plotly, all in one file that needs no network."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, DataError, RopescaleError
from ...files import atomic
from ...files.reading import local_path
from ...plotting import is_want_of_memory
from ..results import checking
from ..results.checking import Wrong
from ..results.formats import SERIES
from ..results.plots import LINES
from ..results.statistics import Estimate
from .runs import StoredRun, paired

SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left", "star")
"""Plotly's names; they and the dashes tell series apart in grey print."""

DASHES = ("solid", "dash", "dot")


def page(runs: Sequence[StoredRun], title: str = "Context extension, measured") -> str:
    """One self-contained HTML document that compares these runs.

    Args:
        runs: as :func:`.runs.load` gives them.
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
        facts=list(dict.fromkeys(key for run in data["runs"] for key in run["facts"])),
        json=_script_json(data),
        css=(files / "page.css").read_text(encoding="utf-8"),
        script=(files / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
    )


def target(out: str | Path) -> Path:
    """Where a page goes, once it is certain that nothing but an older page is replaced by it.

    Raises:
        CheckpointError: it cannot be written there, or what is there is not a page of ours.
    """
    path = local_path(out)
    try:
        path = path.resolve() if path.is_symlink() else path
        if os.path.lexists(path):
            _check_ours(path)
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
    return path


_MARK = b'<meta name="generator" content="ropescale">'
_OLD_MARKS = (b'<!DOCTYPE html>\n<html lang="en">\n', b"<footer><p>Made by ropescale. This page holds all its data")


def _check_ours(path: Path) -> None:
    """A page of ours is known by its head, one of version 0.1.0 by its beginning and its foot.

    Raises:
        CheckpointError: it is something else, and not empty.
    """
    try:
        content = checking.content(path, _LARGEST)
    except Wrong as error:
        raise CheckpointError(f"cannot write {path}: what is there {error}; choose another file with -o") from None
    start, foot = _OLD_MARKS
    if content and not (_MARK in content[:1000] or (content.startswith(start) and foot in content)):
        raise CheckpointError(
            f"cannot write {path}: what is there is not a page of ropescale; choose another file with -o"
        )


_LARGEST = 2**29
"""Bytes of a page."""


def write(text: str, out: str | Path) -> Path:
    """Writes the page beside its place and renames it.

    Raises:
        CheckpointError: it cannot be written, or what is there is not a page of ours.
    """
    path = target(out)
    try:
        with atomic.part(path, check=_check_ours) as beside:
            beside.write_bytes(text.encode("utf-8", "backslashreplace"))  # a folder's name may be no text
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def page_data(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """All that the page shows, as plain data.

    Raises:
        DataError: a stored file is damaged or missing, or there is too much to compare.
    """
    measured = [run for run in runs if run.is_perplexity]
    for run in measured:
        run.check()
    series = [(run, schedule) for run in measured for schedule in run.schedules]
    if len(series) > SERIES:
        raise DataError(
            f"the runs have {len(series):,} schedules, and a page compares {SERIES} at most; give fewer runs"
        )
    return {
        "runs": [_run(run) for run in runs],
        "series": [_series(number, run, schedule, len(measured) > 1) for number, (run, schedule) in enumerate(series)],
        "pairs": _pairs(series),
        "baseline": _baseline(series),
        "retrieval": [heat for run in runs if not run.is_perplexity for heat in _heat_maps(run)],
    }


def _run(run: StoredRun) -> dict[str, Any]:
    """What a run says of itself, for the table of protocols."""
    results = run.results
    model, data, protocol = results["model"], results.get("data", {}), results.get("protocol", {})
    cost = results.get("cost", [])
    facts = {
        "folder": str(run.folder),
        "model": model["path"],
        "parameters": f"{model['parameters']:,}",
        "dtype": model["dtype"],
        "weights": model["weights"][:12],
        **{key: _plain(data[key]) for key in ("source", "documents", "tokens") if key in data},
        "skipped": ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in data.get("skipped", {}).items() if n),
        "text sha256": str(data.get("sha256", ""))[:12],
        "token ids sha256": _tokens(run),
        **{f"protocol: {key.replace('_', ' ')}": _plain(value) for key, value in protocol.items()},
        "forward passes": f"{sum(each['forward_passes'] for each in cost):,}" if cost else "",
        "checksums": "as written" if run.has_checksums else "no checksum stored",
        "versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    }
    return {"name": run.name, "facts": {key: value or "-" for key, value in facts.items()}}


def _tokens(run: StoredRun) -> str:
    """A short hash of all documents' tokens: runs that have it in common are compared token by token."""
    if not run.is_perplexity:
        return ""
    return (
        "not recorded"
        if run.ids is None
        else hashlib.sha256("".join(run.ids).encode(errors="backslashreplace")).hexdigest()[:12]
    )


def _series(number: int, run: StoredRun, schedule: str, many: bool) -> dict[str, Any]:
    """One line of the plots."""
    results = run.results
    rows = [row for row in results["rows"] if row["schedule"] == schedule]
    tables = results.get("tables", {})
    own = {row["table_sha256"]: row["length"] for row in rows}
    return {
        "id": number,
        "run": run.name,
        "schedule": schedule,
        "trained": results["model"].get("trained_length"),
        "label": (f"{run.name}: {schedule}" if many else schedule) + run.protocol_note,
        "colour": LINES[number % len(LINES)],
        "symbol": SYMBOLS[number % len(SYMBOLS)],
        "dash": DASHES[number // len(LINES) % len(DASHES)],
        "rows": sorted(rows, key=lambda row: row["length"]),
        "bins": [{"start": a, "stop": b, **_estimate(e)} for a, b, e in run.by_position(schedule)],
        "paired": {p["length"]: p for p in results.get("paired", []) if p["schedule"] == schedule},
        "subsets": _subsets(results, schedule),
        "tables": [{"length": n, "layers": tables[sha]} for sha, n in own.items() if sha in tables],
    }


def _subsets(results: dict[str, Any], schedule: str) -> list[dict[str, Any]]:
    """Perplexities of some of the tokens alone, where the run has them: far repeats, all others, key tokens."""
    repeats = [r for r in results.get("repeats", []) if r["schedule"] == schedule and r["far_tokens"]]
    keys = [r for r in results.get("key_tokens", {}).get("rows", []) if r["schedule"] == schedule]
    lengths = sorted({row["length"] for row in [*repeats, *keys]})
    far, key = {row["length"]: row for row in repeats}, {row["length"]: row for row in keys}
    return [
        {
            "length": length,
            "far": _bounds(far.get(length), "far_ppl", "far_low", "far_high"),
            "other": _bounds(far.get(length), "other_ppl", "other_low", "other_high"),
            "key": _bounds(key.get(length), "ppl", "ppl_low", "ppl_high"),
        }
        for length in lengths
    ]


def _bounds(row: dict[str, Any] | None, *names: str) -> dict[str, float | None] | None:
    if row is None or row[names[0]] is None:
        return None
    return dict(zip(("mean", "low", "high"), (row[name] for name in names), strict=True))


def _pairs(series: Sequence[tuple[StoredRun, str]]) -> dict[str, list[dict[str, Any]]]:
    """``"a:b"`` for a < b: the NLL of series b minus that of a, at every length that both have."""
    found = {}
    for (a, (run_a, one)), (b, (run_b, other)) in itertools.combinations(enumerate(series), 2):
        deltas = [(n, paired(run_b, other, run_a, one, n)) for n in _common_lengths(run_a, one, run_b, other)]
        known = [{"length": n, **_estimate(e)} for n, e in deltas if e is not None]
        if known:
            found[f"{a}:{b}"] = known
    return found


def _common_lengths(run_a: StoredRun, one: str, run_b: StoredRun, other: str) -> list[int]:
    return sorted(_lengths(run_a, one) & _lengths(run_b, other))


def _lengths(run: StoredRun, schedule: str) -> set[int]:
    return {row["length"] for row in run.results["rows"] if row["schedule"] == schedule}


def _baseline(series: Sequence[tuple[StoredRun, str]]) -> int:
    """The series that the first run compares its others with."""
    for number, (run, schedule) in enumerate(series):
        if any(pair["baseline"] == schedule for pair in run.results.get("paired", [])):
            return number
    return 0


def _heat_maps(run: StoredRun) -> list[dict[str, Any]]:
    """Per schedule of a retrieval run: its rows by length and depth, and those over all depths."""
    found, by_schedule = [], dict[str, list[dict[str, Any]]]()
    for row in run.results["rows"]:
        by_schedule.setdefault(row["schedule"], []).append(row)
    for schedule, mine in by_schedule.items():
        rows = [row for row in mine if row.get("depth") is not None]
        overall = [row for row in mine if row.get("depth") is None]
        found.append({"run": run.name, "schedule": schedule, "rows": rows, "overall": overall})
    return [each for each in found if each["rows"]]


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}


def _plain(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _script_json(data: Any) -> str:
    """JSON that may stand inside ``<script>``: no ``<``, and no number that JSON does not have."""
    return json.dumps(_finite(data), allow_nan=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
