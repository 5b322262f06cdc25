"""What ``ropescale report`` prints: the comparison of models, each run's sentences, and what a run does not show."""

from collections.abc import Sequence

from ...errors import DataError
from ...output.formatting import Page, escaped
from ..metrics.cells import digits, table
from ..metrics.verdicts import of_two_models
from ..results.result import Result
from .runs import StoredRun, measured


def summary(runs: Sequence[StoredRun]) -> Page:
    """Returns the comparison of the runs' models, and the conclusions of each run."""
    return [*compared(runs), *(_named(run, "\n".join(run.sentences), len(runs) > 1) for run in runs)]


def compared(runs: Sequence[StoredRun]) -> Page:
    """Returns the second model minus the first, or with more runs on a text, the table of models by length."""
    known = measured(runs)
    alike = [(name, result) for name, result in known if result.same_text(known[0][1])]
    if len(alike) < 2:
        return []
    (first, before), (second, after), *others = alike
    same = all(result.same_tokens(before) for _, result in alike)
    if same and not others and _model(before) != _model(after):
        return of_two_models(after, before, (escaped(second), escaped(first)))
    cells = []
    for name, result in alike:
        for row in result.rows:
            value = row.ppl if same else row.bits_per_byte
            text = "-" if value is None else digits(value, 4)
            cells.append((f"{name}: {result.named(row.schedule)}", row.length, text))
    return [table("perplexity" if same else "bits per byte", cells)]


def _model(result: Result) -> tuple[str, str]:
    return result.model["weights"], result.model["dtype"]


def not_shown(runs: Sequence[StoredRun], requirements: Sequence[str]) -> list[str]:
    """Returns a line for every requirement that a run does not show.

    Raises:
        DataError: a requirement cannot be read, its schedule or length was not measured, or a run has no losses.
    """
    lines = []
    for run in runs if requirements else ():
        if run.result is None:
            raise DataError(
                f"{run.folder} is a {run.results.get('kind')} run, without losses to judge; give a run of `eval`"
            )
        try:
            lines += [_named(run, line, len(runs) > 1) for line in run.result.unmet(requirements)]
        except DataError as error:
            why = f"{error}; the run is not whole" if run.result.unfinished else str(error)
            raise DataError(_named(run, why, len(runs) > 1), *error.fields) from None
    return lines


def _named(run: StoredRun, text: str, several: bool) -> str:
    """Returns a text about a run, after the run's name if there are several."""
    return f"{escaped(run.name)}: {text}" if several and text else text
