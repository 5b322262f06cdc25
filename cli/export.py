"""``ropescale export MODEL``: commands to serve a model, and the values that an engine computes, or all engines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..configs.class_defaults import ALL_LAYERS
from ..engines import ENGINES
from ..output.formatting import Page, grid, listed
from .options import (
    SCHEDULE,
    OneOf,
    Sections,
    model_argument,
    option,
    print_result,
    request_sections,
    sectioned_command,
    tell,
)

if TYPE_CHECKING:
    from ..exporting import Export

_SECTIONS: Sections = {
    "The engine": [
        option(
            "--for engines", None, "The engine; repeatable (default: a line for each).", OneOf(ENGINES), multiple=True
        )
    ],
    **request_sections(option("--schedule", "SPEC", SCHEDULE)),
    "The model": ["revision"],
    "The result": ["as_json"],
}


@sectioned_command("export", _SECTIONS, model_argument())
def command(model: str, engines: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show how to serve MODEL (a folder or a Hub id) in an engine, and the values that the engine computes.

    \b
    Examples:
      ropescale export qwen3-128k
      ropescale export Qwen/Qwen3-8B --for sglang --schedule yarn --target-length 128k

    Without --for, or with several, prints a line per engine: whether it loads the model and computes the same; else the
    largest relative differences of a frequency, of the factor on cos and sin and of the softmax scale, or - if not
    known; the ground of the claim; the options that matter.

    With one --for, prints whether the engine computes the schedule as requested, a table of the fields that differ
    (recomputed with the engine's own number, dropped or unsupported), and the command to paste. The numbers come from
    a test that serves such a model in that version and compares log-probabilities with transformers, from a test that
    runs the engine's own code, or from the engine's source. Nothing is loaded or written.

    Without --schedule, MODEL is served with its own schedule, from `ropescale patch` or its vendor. With --schedule,
    its weights are served with that schedule; no patched folder is needed.

    Exits with 1 if one of the engines is not known to compute the same (the command is printed all the same). If it
    cannot, the last line gives an alternative.
    """
    from ..errors import RunError
    from ..exporting import exports

    done, *others = every = exports(model, engines or ENGINES, options.pop("schedule"), **options)
    if others:
        tell(note=dict.fromkeys(chain(*(each.notes for each in every))))
        print_result(as_json, [each.to_dict() for each in every], _lines(every))
        if away := [each.engine for each in every if not each.is_same]:
            raise RunError(f"not the same, or not known to be: {', '.join(away)}; `--for` with one of them says more")
        return
    tell(note=done.notes, warning=done.warnings)
    print_result(as_json, done.to_dict(), _page(done))
    if not done.is_same:
        raise done.error or RunError(f"not the same: {done.engine}")


def _lines(every: Iterable[Export]) -> Page:
    """Returns a line per engine."""
    header = ["engine", "loads it", "the same", "frequencies", "cos and sin", "softmax", "ground", "options"]
    rows = []
    words = {True: "yes", False: "no", None: "not known"}
    for done in every:
        distances = [f"{each:.4g}".replace("inf", "-") for each in astuple(done.distance)]
        same = words[done.is_same if done.how != "not known" else None]
        rows.append([_name(done), words[done.loads], same, *distances, done.ground, done.options or "-"])
    about = (
        "Numbers: the largest relative difference from transformers of a frequency, of the factor on cos and sin, and "
        "of the softmax scale; - is not known. Ground: tests ran it, or its source was read. Options: pass these."
    )
    return [grid(header, rows, right=[3, 4, 5]), about]


def _name(done: Export) -> str:
    """Returns the engine and its version."""
    return f"{done.engine.partition(' ')[0]} {done.version}"


def _page(done: Export) -> Page:
    """Returns whether the engine computes the schedule, a table of the fields that differ, and the commands."""
    known = {"served": f"served in {done.served_version}", "run": "tests run its code", "source": "its source was read"}
    computes = (
        f"differs in {listed(dict.fromkeys(row.field for row in done.rows))}" if done.rows else "all fields honoured"
    )
    claim = f"{computes}; {known[done.how]}" if done.how in known else "not known what it computes"
    page: Page = [f"{_name(done)}: {claim}."]
    if done.rows:
        header = ["layers", "field", "computes", "status"]
        rows = [[row.layers, row.field, row.computes, row.status] for row in done.rows]
        if all(row.layers == ALL_LAYERS for row in done.rows):
            header, *rows = (cells[1:] for cells in (header, *rows))
        page.append(grid(header, rows))
    return [*page, *(command.fenced() for command in done.commands)]
