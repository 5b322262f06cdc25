"""``ropescale report RUN... -o report.html``: compares many runs in one self-contained page."""

import click

from .options import Place, option, out_option, say, sectioned_command, show


@sectioned_command(
    "report",
    {
        "The page": [
            out_option("The page to write.", "FILE", default="report.html"),
            option("--title", "TEXT", "The heading of the page; by default the models, the data and the date."),
        ],
        "The check": [
            option(
                "--require",
                "TEXT",
                "Exit with 1 unless the run shows this, in nats against as-is: 'yarn:factor=8 cost<=0.05 at 4k', or "
                "gain>=0.5. May be repeated.",
                multiple=True,
            )
        ],
    },
    click.Argument(["runs"], type=Place(), metavar="RUN...", nargs=-1, required=True),
)
def command(runs: tuple[str, ...], out: str, title: str | None, require: tuple[str, ...]) -> None:
    """Print what RUNs found, and write one page that compares them.

    \b
    Examples:
      ropescale report OUT
      ropescale report BEFORE AFTER -o report.html

    RUNs are folders written by `eval -o`, `retrieval -o`, `recommend -o` or `search -o`. Runs that scored the same
    tokens are compared token by token, for example a model before and after fine-tuning. The page is self-contained
    and needs no network. Requires the extra `report`.

    A requirement is shown if the whole interval of a verdict keeps it, so it takes ten documents or more.
    """
    from ..errors import VerificationError
    from ..evals.reporting.page import check_ours, page, write
    from ..evals.reporting.runs import load, unpaired
    from ..evals.reporting.summary import not_shown, summary
    from ..files import writable_file

    writable_file(out, check_ours)
    loaded = load(runs)
    failures = not_shown(loaded, require)
    written = write(page(loaded, title), out)
    judged = "\n".join(failures) or (f"shown: {', '.join(require)}" if require else "")
    show([*summary(loaded), judged])
    for line in unpaired(loaded):
        say(f"note: {line}")
    say(f"written to {written}")
    if failures:
        raise VerificationError(f"requirements that are not shown: {len(failures)} of {len(require) * len(loaded)}")
