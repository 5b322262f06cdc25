"""Compares every schedule with truncation: the unchanged model on only the last tokens, up to its trained length.

The alternative to extension is truncation to the end of a long text. A schedule pays off if it predicts better than
truncation, on the tokens with more context than the trained length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...output.formatting import escaped, listed, markdown
from ..checking import Count, Length
from ..data.far_repeats import far_repeats
from ..statistics.intervals import CONCLUSIVE, Estimate
from . import drawing
from .base import Metric, Picture, estimated, rests_on
from .best import level, together, too_few, worse_than_a_guess
from .cells import change_cell, table
from .far_repeats import distance_of
from .stored import AS_IS, Stored, Totals, Truncation, sums_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL, FAR, OTHER = "all", "far", "other"
SUBSETS = {ALL: "all of them", FAR: "far repeats", OTHER: "the others"}
"""The token subsets, and their names in tables."""


@dataclass(frozen=True)
class TruncationRow:
    """A schedule against truncation at a length, on the tokens at positions [``context``, ``length``), in nats.

    ``context`` is the trained length, ``stride`` the tokens that each window of truncation scores, and ``fed`` the
    tokens fed in all of these windows. ``delta_nll`` is the schedule's loss ``nll`` minus that of truncation,
    ``truncated_nll``, on the same tokens: below zero, longer context is better. The far repeats and the other tokens
    have the same figures, None without such tokens, or if the distance of far repeats is unknown. The intervals hold
    for all ``comparisons`` of the run together; with too few documents, ``comparisons`` is None, and each interval has
    95% by itself.
    """

    schedule: str
    length: Length
    context: Length
    stride: Length
    fed: Count
    tokens: Count
    nll: float
    truncated_nll: float
    delta_nll: float
    low: float | None
    high: float | None
    interval: str | None = None
    far_tokens: Count = 0
    far_nll: float | None = None
    far_truncated_nll: float | None = None
    far_delta_nll: float | None = None
    far_low: float | None = None
    far_high: float | None = None
    far_interval: str | None = None
    other_tokens: Count = 0
    other_nll: float | None = None
    other_truncated_nll: float | None = None
    other_delta_nll: float | None = None
    other_low: float | None = None
    other_high: float | None = None
    other_interval: str | None = None
    documents: Count | None = None
    far_documents: Count | None = None
    other_documents: Count | None = None
    comparisons: Count | None = None

    def change(self, which: str = ALL) -> Estimate | None:
        """Returns the schedule's loss minus truncation's on a token subset; None for an empty one."""
        before = "" if which == ALL else f"{which}_"
        mean, low, high, over = (getattr(self, before + name) for name in ("delta_nll", "low", "high", "interval"))
        return None if mean is None else Estimate(mean, low, high, over)

    def truncated(self, which: str = ALL) -> float | None:
        """Returns truncation's loss on a token subset."""
        return self.truncated_nll if which == ALL else getattr(self, f"{which}_truncated_nll")


def draw(stored: Stored) -> Figure:
    """Draws every schedule's loss minus truncation's; see :func:`.drawing.changes`."""
    rows, title = METRIC.rows(stored), "Against truncation; below zero reading further is better"
    return drawing.changes(stored, rows, f"the last {rows[0].context:,} tokens", title, linestyle=(0, (4, 3)))


class AgainstTruncation(Metric[Stored, TruncationRow]):
    """The comparison of every schedule with truncation, on tokens with more context than the trained length."""

    row, key, has_facts, called = TruncationRow, "truncation", True, "truncation"
    picture = Picture("against_truncation.png", "Against the model as it is, given only the last tokens", draw)
    columns = {  # noqa: RUF012
        "truncated_nll": "truncated_nll",
        "truncation_delta": "delta_nll",
        "truncation_low": "low",
        "truncation_high": "high",
        **{
            f"truncation_{which}_{name}": f"{which}_{field}"
            for which in (FAR, OTHER)
            for name, field in (("delta", "delta_nll"), ("low", "low"), ("high", "high"))
        },
    }

    def reduce(self, stored: Stored) -> list[TruncationRow]:
        """Returns a row for every schedule at every length beyond the trained one."""
        last = stored.truncation
        if last is None:
            return []
        marks: dict[str, list[np.ndarray]] = {}  # per window, a mask of the tokens from the trained length on
        distance = distance_of(stored)
        if distance is not None and stored.documents:
            first = last.length - stored.bos
            marks[FAR] = [far_repeats(document.ids, distance)[first:] for document in stored.documents]
            marks[OTHER] = [~each for each in marks[FAR]]
        beyond = [key for key in stored.read_from if key[1] > last.length]
        rows = (_row(stored, last, marks, *key) for key in beyond)
        return [row for row in rows if row]

    def facts(self, stored: Stored) -> dict[str, object]:
        """Returns truncation's windows, and the lengths at which longer context pays off."""
        rows = self.rows(stored)
        windows = {name: getattr(rows[0], name) for name in ("context", "stride", "fed")}
        return {**windows, "pays_off": {each.tokens: asdict(each) for each in pays_off(rows)}}

    def to_markdown(self, stored: Stored) -> list[str]:
        """Returns the changes at every length, those on far repeats at the longest length, and conclusions.

        Draws no conclusion if the unchanged model is worse than a uniform guess.
        """
        rows = self.rows(stored)
        if not rows:
            return []
        context, stride, fed = rows[0].context, rows[0].stride, rows[0].fed
        title = (
            f"Against truncation, the model as it is given only the last {context:,} tokens (windows of {context:,} "
            f"positions without BOS, stride {stride:,}, {fed:,} tokens fed): "
            f"change in NLL on the tokens from position {context:,} on (nats per token, below zero reading "
            f"further is better; {rests_on(stored)}; {together(rows[0].comparisons)}):"
        )
        cells = {(row.schedule, row.length): change_cell(row.change()) for row in rows}
        own = {(_OWN, row.length): f"{row.truncated_nll:.4f}" for row in rows}
        lengths = sorted({row.length for row in rows})
        found = table(lengths, "against truncation", {**cells, **own}, [*stored.schedules, _OWN], name=stored.named)
        if worse_than_a_guess(stored):
            return [title, found, *_subsets(stored, rows)]
        said = verdict(rows, stored.markdown_name)
        return [title, found, *_subsets(stored, rows), *([" ".join(said)] if said else [])]

    def on_page(self, rows: Sequence[TruncationRow]) -> dict[str, object]:
        """Returns the rows, lengths ascending."""
        return {"truncation": [asdict(row) for row in sorted(rows, key=lambda row: row.length)]}


METRIC = AgainstTruncation()


def truncated(stored: Stored) -> dict[tuple[str, int], Estimate]:
    """Returns the mean loss of truncation at each length, which up to the trained length is the unchanged model's.

    Empty if truncation was not measured, or if the unchanged model does not have its training tables.
    """
    last, found = stored.truncation, {}
    for (schedule, length), run in stored.read_from.items():
        if last is None or schedule != AS_IS or run.table_sha256 != last.table_sha256:
            continue
        within = [each[: last.length - 1] for each in stored.losses(schedule, length)]  # index 0 is position 1
        beyond = stored.wanted(last.losses(length))
        whole = [np.concatenate(pair) for pair in zip(within, beyond, strict=True)]
        first = np.concatenate(stored.of_texts(whole)[0])
        found["truncation", length] = estimated(stored, Totals(*sums_of(whole)), first)
    return found


_OWN = "(its loss)"


@dataclass(frozen=True)
class PaysOff:
    """The lengths at which longer context beats truncation with a measured schedule.

    Attributes:
        tokens: the token subset: "all" or "far".
        length: the smallest measured length with a schedule's interval below zero; None without one.
        schedule: the schedule with the lowest loss there; else at the longest length.
        beyond: the longer lengths with a schedule's interval below zero.
    """

    tokens: str
    length: int | None
    schedule: str
    beyond: list[int]


def pays_off(rows: Sequence[TruncationRow]) -> list[PaysOff]:
    """Returns where longer context pays off, on all tokens and on far repeats; empty with too few documents."""
    return [_pays_off(rows, which) for which in (ALL, FAR) if _documents(rows, which) >= CONCLUSIVE]


def _documents(rows: Sequence[TruncationRow], which: str) -> int:
    """Returns the number of documents with such tokens; 0 if unknown."""
    return max(getattr(row, "documents" if which == ALL else f"{which}_documents") or 0 for row in rows)


def _pays_off(rows: Sequence[TruncationRow], which: str) -> PaysOff:
    found = [(row.length, change.mean, row.schedule, change.sign) for row in rows if (change := row.change(which))]
    longest = max(length for length, *_ in found)
    better = sorted(each for each in found if each[3] == -1)
    if not better:
        return PaysOff(which, None, min(each for each in found if each[0] == longest)[2], [])
    length, _, schedule, _ = better[0]
    return PaysOff(which, length, schedule, sorted({each[0] for each in better} - {length}))


def verdict(rows: Sequence[TruncationRow], name: Callable[[str], str] = escaped) -> list[str]:
    """Returns a sentence on all tokens and one on far repeats: where longer context pays off.

    Args:
        name: returns the displayed name of a label.
    """
    found = {each.tokens: each for each in pays_off(rows)}
    said = []
    for which in (ALL, FAR):
        documents = _documents(rows, which)
        start = f"{_START[which]} further than the last {rows[0].context:,} tokens"
        if which in found:
            said.append(f"{start} {_said(found[which], rows, name)}.")
        elif documents:
            said.append(f"Whether {start[0].lower()}{start[1:]} pays off is undecided: {too_few(documents)}.")
    return said


_START = {ALL: "Reading", FAR: "On far repeats reading"}


def _said(found: PaysOff, rows: Sequence[TruncationRow], name: Callable[[str], str]) -> str:
    lengths = sorted({row.length for row in rows if row.change(found.tokens)})
    at = found.length or lengths[-1]
    (change,) = (row.change(found.tokens) for row in rows if (row.schedule, row.length) == (found.schedule, at))
    by = f"{change_cell(change)} nats per token"
    if found.length is None:
        stands = "is worse than" if change and change.sign == 1 else "is not significantly better than"
        return f"is not shown to pay off: the best at {at:,} tokens, {name(found.schedule)}, {stands} truncation ({by})"
    longer = [length for length in lengths if length > at]
    also = listed([f"{length:,}" for length in found.beyond])
    if not longer:
        rest = ""
    elif found.beyond == longer:
        rest = ", and at every longer length under some schedule"
    elif found.beyond:
        rest = f", and at {also}; at the other longer lengths that is not shown"
    else:
        rest = "; at longer lengths that is not shown"
    return f"pays off at {at:,} tokens, under {name(found.schedule)} ({by}){rest}"


def _subsets(stored: Stored, rows: Sequence[TruncationRow]) -> list[str]:
    """Returns the table of far repeats and of the others at the longest length; empty without far repeats."""
    longest = max(row.length for row in rows)
    last = [row for row in rows if row.length == longest]
    if not last[0].far_tokens:
        return []
    counts = {ALL: last[0].tokens, FAR: last[0].far_tokens, OTHER: last[0].other_tokens}
    header = [f"at {longest:,}", *(f"{name} ({counts[which]:,})" for which, name in SUBSETS.items())]
    lines = [
        [stored.markdown_name(row.schedule), *(change_cell(row.change(which)) for which in SUBSETS)] for row in last
    ]
    own = [last[0].truncated(which) for which in SUBSETS]
    lines.append([_OWN, *("-" if each is None else f"{each:.4f}" for each in own)])
    distance = distance_of(stored)
    back = f"{distance:,} or more tokens" if distance else "far"
    title = f"The same for the tokens that repeat something {back} back, and for the others ({rests_on(stored)}):"
    return [title, markdown(header, lines, right=range(1, 4))]


def _row(
    stored: Stored, last: Truncation, marks: dict[str, list[np.ndarray]], schedule: str, length: int
) -> TruncationRow | None:
    """Returns a schedule's row; None without a counted token."""
    ours = [each[last.length - 1 :] for each in stored.losses(schedule, length)]  # index 0 is position 1
    theirs = [np.where(np.isnan(one), np.nan, two) for one, two in zip(ours, last.losses(length), strict=True)]
    parts = _figures(stored, ours, theirs)
    if not parts:
        return None
    for which, kept in marks.items():
        one, two = (
            [np.where(mark[: len(each)], each, np.nan) for each, mark in zip(losses, kept, strict=True)]
            for losses in (ours, theirs)
        )
        parts |= {f"{which}_{name}": value for name, value in _figures(stored, one, two).items()}
    about = {"schedule": schedule, "length": length, "context": last.length, "stride": last.stride}
    return TruncationRow(**about, fed=last.positions, comparisons=stored.comparisons, **parts)  # type: ignore[arg-type]


def _figures(stored: Stored, ours: list[np.ndarray], theirs: list[np.ndarray]) -> dict[str, object]:
    """Returns the figures of a row over the tokens that are not NaN; empty without any."""
    (one, counts), (two, _) = sums_of(ours), sums_of(theirs)
    tokens = sum(counts)
    if not tokens:
        return {}
    apart = [a.astype(np.float64) - b for a, b in zip(ours, theirs, strict=True)]
    first = np.concatenate(stored.of_texts(apart)[0])
    change = estimated(stored, Totals([a - b for a, b in zip(one, two, strict=True)], counts), first, level(stored))
    documents = stored.texts_with(counts)
    if stored.comparisons is not None and documents < CONCLUSIVE:
        change = Estimate(change.mean, None, None)
    return {
        "documents": documents,
        "tokens": tokens,
        "nll": sum(one) / tokens,
        "truncated_nll": sum(two) / tokens,
        "delta_nll": change.mean,
        "low": change.low,
        "high": change.high,
        "interval": change.over,
    }
