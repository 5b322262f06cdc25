"""One model minus another on the same tokens, such as after and before a fine-tuning, by the rule of verdicts."""

from __future__ import annotations

from itertools import groupby, product

from ...errors import DataError
from ...output.formatting import markdown
from .base import rests_on
from .cells import change_cell
from .stored import Stored
from .verdicts import WHOLE, Differences, VerdictRow, effect, rows_of, together, too_few


def between(after: Stored, before: Stored) -> list[VerdictRow]:
    """Returns the loss of one model minus another's, for every schedule that both have, at each length of both.

    A schedule is compared with that of the same name, and with those that have the same tables at the longest length.

    Raises:
        DataError: the two did not score the same tokens.
    """
    if not after.same_tokens(before):
        raise DataError("the two runs did not score the same tokens; measure both on the same text and lengths")
    lengths = [length for length in after.lengths if length in before.lengths]
    differences: Differences = {}
    for one, other in product(after.schedules, before.schedules):
        shared = [n for n in lengths if (one, n) in after.read_from and (other, n) in before.read_from]
        if shared and (one == other or _same_tables(after, one, before, other, shared[-1])):
            for length in shared:
                difference = after.totals(one, length).minus(before.totals(other, length))
                differences[one, other, length, WHOLE] = difference
    return rows_of(after, differences)


def _same_tables(after: Stored, one: str, before: Stored, other: str, length: int) -> bool:
    return after.read_from[one, length].table_sha256 == before.read_from[other, length].table_sha256


def to_markdown(after: Stored, before: Stored, names: tuple[str, str]) -> list[str]:
    """Returns a sentence for each pair of schedules, and the table of the differences at each length.

    Args:
        names: the names of the two runs, as Markdown.
    """
    rows = between(after, before)
    if not rows:
        return []
    few = too_few(max(row.documents for row in rows))
    lengths = sorted({row.length for row in rows})
    sentences, lines = [], []
    for (one, other), group in groupby(rows, key=lambda row: (row.schedule, row.against)):
        own = {row.length: row for row in group}
        labels = [after.markdown_name(one), before.markdown_name(other)]
        effects = [
            effect(own[length].change, "gains", "costs", f"at {length:,} tokens", few)
            for length in dict.fromkeys([max(own), min(own)])
        ]
        ours, theirs = (f"{name} ({label})" for name, label in zip(names, labels, strict=True))
        sentences.append(f"Against {theirs}, {ours} {'; it '.join(effects)}{f' ({few})' if few else ''}.")
        cells = [change_cell(own[length].change) if length in own else "" for length in lengths]
        lines.append([*labels, *cells])
    level = f"no interval: {few}" if few else together(rows[0].comparisons)
    title = (
        f"{names[0]} minus {names[1]} on the same tokens: the difference in the average document (nats, below zero: "
        f"{names[0]} is better; {rests_on(after)}; {level}):"
    )
    header = [*names, *(f"{length:,}" for length in lengths)]
    return ["\n".join(sentences), title, markdown(header, lines, right=range(2, len(header)))]
