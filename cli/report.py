"""``ropescale report RUN... -o report.html``: compares many runs in one self-contained page."""

from __future__ import annotations

import click

from .options import Place, option, out_option, say, sectioned_command

_OPTIONS = [
    out_option("The page to write.", "FILE", default="report.html"),
    option("--title", "TEXT", "The heading of the page; by default the models, the data and the date."),
]


@sectioned_command(
    "report", {"The page": _OPTIONS}, click.Argument(["runs"], type=Place(), metavar="RUN...", nargs=-1, required=True)
)
def command(runs: tuple[str, ...], out: str, title: str | None) -> None:
    """Write one interactive page that compares RUNs: folders written by `eval -o` or `retrieval -o`.

    Runs that scored the same tokens are compared token by token, for example a model before and after fine-tuning. The
    page is self-contained and needs no network. Requires the extra `report`.
    """
    from ..evals.reporting.page import check_ours, load, page, unpaired, write
    from ..files import writable_file

    writable_file(out, check_ours)
    loaded = load(runs)
    written = write(page(loaded, title), out)
    for line in unpaired(loaded):
        say(f"note: {line}")
    say(f"written to {written}")
