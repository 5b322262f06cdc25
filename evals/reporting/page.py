"""The page that compares runs: one static file of sentences, tables, SVG figures and their data as JSON.

It needs no network, and a few lines of JavaScript only for its switches. Its tables are those of REPORT.md.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import cast

from ...errors import CheckpointError, RopescaleError
from ...files import Data, write_checked
from ...output.formatting import finite, visible_lines
from ...output.wrapping import folding, to_html
from .. import checking
from ..checking import Damaged, Parsed
from ..metrics import by_position
from ..metrics.cells import change_cell
from ..metrics.drawing import style_of
from ..recommending.results import ANSWER, CANDIDATES, Recommendation, draw_candidates
from ..results.folder import RESULTS, refusing_damage
from ..retrieving.results import ACCURACY, EFFECTIVE, heat_maps_of
from . import figures
from .figures import Series
from .runs import StoredRun
from .summary import compared

FEW = 10
"""The most schedules of which each may be compared with; with more, only the baseline and truncation of each run. A
longer list does not stay on the screen."""


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
    except ImportError as error:
        raise RopescaleError(f"the report needs {error.name or error}; pip install 'ropescale[report]'") from error
    loader = PackageLoader("ropescale.evals.reporting", ".")
    plain = lambda value: visible_lines(value) if type(value) is str else value  # noqa: E731
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=plain)
    if title is None:
        models = dict.fromkeys(Path(run.results["model"]["path"]).name for run in runs)
        sources = dict.fromkeys(run.results["data"]["source"] for run in runs)
        title = f"{', '.join(models)}: {', '.join(sources)}, {date.today()}"
    series = figures.series_of(runs)
    parts = []
    for number, run in enumerate(runs):
        with refusing_damage(run.folder / RESULTS):  # results of another version may lack figures
            figure = _figure(number, run)
            html = visible_lines(to_html(run.report))
            parts.append({"name": run.name, "said": run.sentences, "html": html, "figure": figure})
    return environment.get_template("page.html").render(
        title=title,
        runs=parts,
        compared=to_html(compared(runs)),
        data=finite(page_data(runs)),
        cell=change_cell,
        folding=lambda text: visible_lines(folding(text)),
        series=[(each, style_of(each.number, each.schedule)) for each in series],
        **(_sections(series) if series else {}),
    )


def page_data(runs: Sequence[StoredRun]) -> Data:
    """Returns, for each run, results.json, results.csv and the losses by position, from which the figures are drawn."""
    data = {}
    for run in runs:
        with refusing_damage(run.folder / RESULTS):
            rows = by_position.METRIC.rows(run.result) if run.result else []
            csv = run.result.to_csv() if run.result else ""
            data[run.name] = {**run.results, "csv": csv, "positions": [asdict(row) for row in rows]}
    return data


def _sections(series: Sequence[Series]) -> Data:
    """Returns the figures of perplexity, and the changes from each series that may be compared with."""
    schedules = [each for each in series if each.schedule in each.result.schedules]
    views = []
    for key, name in figures.QUANTITIES.items():
        if found := figures.against_length(series, key):
            figure, table = found
            views.append({"key": key, "name": name, "figure": figure, "table": to_html([table])})
    firsts = [each for each in schedules if each.schedule == each.result.baseline]
    bases = [*(schedules if len(schedules) <= FEW else firsts), *series[len(schedules) :]]
    return {
        "curves": views,
        "bases": [_against(each, schedules) for each in bases],
        "base": firsts[0].number,
        "position": figures.positions(schedules),
    }


def _against(base: Series, schedules: Sequence[Series]) -> Data:
    """Returns the figure and the table of the changes from one series, and the series that are not comparable."""
    found = figures.changes_from(base, schedules)
    return {
        "series": base,
        "figure": figures.changes(f"change-{base.number}", found),
        "changes": found,
        "lengths": sorted(set().union(*found.values())),
        "apart": [each.label for each in schedules if each not in (base, *found)],
    }


def _figure(number: int, run: StoredRun) -> str:
    """Returns the figure of a run of another kind than perplexity; "" for others."""
    results = cast(Parsed, run.results)
    name = f"run-{number}"
    if EFFECTIVE.key in results:
        return figures.svg(heat_maps_of(ACCURACY.read(results), results), name)
    if ANSWER.key in results and CANDIDATES.has_picture(found := Recommendation.load(run.folder)):
        return figures.svg(draw_candidates(found), name)
    return ""


_MARK = b'<meta name="generator" content="ropescale">'


def check_ours(path: Path) -> None:
    """Checks that a file may be replaced: it is empty, or has the mark of ropescale's pages in its head.

    Raises:
        CheckpointError: the file has different content, or cannot be read.
    """
    try:
        content = checking.content(path, _LARGEST)
        if content and _MARK not in content[:1000]:
            raise Damaged("is not a page of ropescale")
    except Damaged as error:
        raise CheckpointError(f"cannot write {path}: the file there {error}; choose another file") from None


_LARGEST = 2**29
"""The largest page, in bytes."""


def write(text: str, out: str | Path) -> Path:
    """Writes the page to a temporary file, then renames the file.

    Raises:
        CheckpointError: the page cannot be written, or would replace a file that is not a page of ropescale.
    """
    return write_checked(text.encode("utf-8", "backslashreplace"), out, check_ours)  # folder names may not be UTF-8
