"""The base class of metrics, which turn stored numbers into rows, and rows into text."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from ...errors import DataError
from ...files import Data
from ...output.formatting import Block, Grid
from ..checking import Damaged, Parsed, fitting
from ..data.documents import Document
from ..facts import PerWindow
from ..statistics import intervals
from ..statistics.intervals import Estimate, consecutive
from .cells import exp, interval_cell, table
from .stored import Measured, Stored, Totals, sums_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


S_contra = TypeVar("S_contra", bound=Measured, contravariant=True)
R = TypeVar("R")
T = TypeVar("T")

PIECE = 1024
"""Tokens per piece of a single document. Pieces are long because losses correlate over hundreds of tokens."""


@dataclass(frozen=True)
class Picture(Generic[S_contra]):
    """A plot in the run's folder, with its caption in the report."""

    file: str
    caption: str
    draw: Callable[[S_contra], Figure]


@dataclass(frozen=True)
class Option(Generic[T]):
    """An option of a metric, for the command ``eval``, for :func:`ropescale.evals.perplexity`, and for run files.

    Attributes:
        name: the option's keyword argument; with dashes, the command's option.
        type: the type of a value: ``Length`` (tokens), int, float, bool, str or ``Path``, optionally with a range.
        help: the option's text in the command's help.
        default: the value if none is given.
        read: a function that converts a given value, for example a path to the file's content. A loaded run takes the
            option's value from the "protocol" part of results.json; with ``read``, the metric must override
            :meth:`Metric.recalled`.
    """

    name: str
    type: Any
    help: str
    default: T = None  # type: ignore[assignment]
    read: Callable[[Any], T] | None = None

    def value(self, given: Any) -> T:
        """Returns the parsed value, or the default if ``given`` is None.

        Raises:
            DataError: the value is invalid.
        """
        if given is None:
            return self.default
        if self.read is not None:
            return self.read(given)
        try:
            return fitting(given, self.type)
        except Damaged as error:
            raise DataError(f"{self.name} {error}", self.name) from None

    def of(self, stored: Stored) -> T:
        """Returns the option's value in a measurement."""
        return stored.options.get(self.name, self.default)


class Metric(ABC, Generic[S_contra, R]):
    """A metric computed from stored losses.

    A subclass computes the rows, and overrides the methods that present them.

    Attributes:
        row: the frozen dataclass of a row.
        key: the key of the rows in results.json; "" omits them.
        has_facts: whether results.json has the rows under "rows", next to the metric's facts.
        columns: the field of a row for each column of results.csv, which has a line per schedule and length.
        picture: the plot of the rows.
        options: the metric's options, read with :meth:`Option.of`.
    """

    row: type[R]
    key: str = ""
    has_facts: bool = False
    columns: Mapping[str, str] = {}
    picture: Picture[S_contra] | None = None
    options: tuple[Option[Any], ...] = ()

    def check(self, options: Mapping[str, Any], documents: Sequence[Document]) -> None:
        """Checks, before a model is loaded, that the documents support these options.

        Raises:
            DataError: a document does not support an option.
        """

    def recalled(self, results: Parsed) -> Parsed:
        """Returns the options' values from a validated results.json."""
        protocol = results["protocol"]
        return {option.name: protocol[option.name] for option in self.options if option.name in protocol}

    @abstractmethod
    def reduce(self, stored: S_contra) -> list[R]:
        """Computes the rows; called once by :meth:`rows`."""

    def rows(self, stored: S_contra) -> list[R]:
        """Returns the rows, computed on the first call."""
        if self.row not in stored.figures:
            stored.figures[self.row] = self.reduce(stored)
        return stored.figures[self.row]

    def facts(self, stored: S_contra) -> Data:
        """Returns the metric's facts for results.json, in addition to the rows."""
        return {}

    def to_json(self, stored: S_contra) -> Data:
        """Returns the metric's part of results.json, without the facts if there are no rows."""
        rows = [asdict(row) for row in self.rows(stored)]  # type: ignore[call-overload]
        if not self.has_facts:
            return {self.key: rows} if self.key else {}
        return {self.key: {**self.facts(stored), "rows": rows}} if rows else {}

    def read(self, results: Parsed) -> list[R]:
        """Returns the metric's rows from a validated results.json."""
        part = results.get(self.key, [])
        names = [each.name for each in fields(self.row)]  # type: ignore[arg-type]
        lines = part["rows"] if self.has_facts and part else part
        return [self.row(**{name: line[name] for name in names}) for line in lines]

    def to_markdown(self, stored: S_contra) -> Sequence[Block]:
        """Returns the metric's paragraphs and tables."""
        return []

    def has_picture(self, stored: S_contra) -> bool:
        """Returns whether the metric has data to plot."""
        return bool(self.rows(stored))


def mean_of(stored: Stored, values: PerWindow, most: float = math.inf) -> Estimate | None:
    """Returns the mean over all tokens, with its interval clipped to possible values; None if there are no tokens.

    Args:
        values: per window, a nonnegative value for each token, or NaN for tokens that do not count; empty for windows
            that do not count.
        most: the largest possible value.
    """
    sums, counts = sums_of(values)
    return stored.estimate(sums, counts).within(0, most) if any(counts) else None


def reaching(losses: Iterable[np.ndarray], start: int, stop: int) -> PerWindow:
    """Returns the losses at positions from ``start`` to before ``stop``; none of a window that ends before ``stop``."""
    found = []
    for nll in losses:
        is_whole = len(nll) >= stop - 1  # index 0 is position 1
        found.append(nll[start - 1 : stop - 1] if is_whole else nll[:0])
    return found


class Marked(NamedTuple):
    """The numbers of marked tokens, and of documents and windows that contain them; and the mean loss of these tokens.

    The loss is None if no token is marked.
    """

    tokens: int
    documents: int
    windows: int
    loss: Estimate | None


def picked(losses: PerWindow, masks: PerWindow) -> PerWindow:
    """Returns the losses of the marked tokens of each window; a mask may be longer than the window's losses."""
    return [nll[mask[: len(nll)]] for nll, mask in zip(losses, masks, strict=True)]


def masked(stored: Stored, losses: PerWindow, masks: PerWindow) -> Marked:
    """Counts the marked tokens, and computes their mean loss.

    Args:
        masks: per window, bool [tokens], for at least as many tokens as there are losses.
    """
    tokens = picked(losses, masks)
    counts = sums_of(tokens).counts
    return Marked(sum(counts), stored.texts_with(counts), sum(map(bool, counts)), mean_of(stored, tokens))


def rests_on(stored: Stored) -> str:
    """Describes the number of documents and, except for sliding windows, the number of windows."""
    number = stored.data["documents"]
    said = f"{number:,} document{'s' * (number != 1)}"
    if stored.sliding:
        return said
    windows = stored.data.get("windows", number)
    return f"{said}, {windows:,} window{'s' * (windows != 1)}"


def perplexities(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    """Returns a mean loss and its bounds as perplexities; None for missing values."""
    if estimate is None:
        return None, None, None
    if estimate.low is None or estimate.high is None:
        return exp(estimate.mean), None, None
    return exp(estimate.mean), exp(estimate.low), exp(estimate.high)


def estimated(stored: Stored, totals: Totals, tokens: np.ndarray) -> Estimate:
    """Returns the mean and its interval over documents, over windows, or over pieces of a single document.

    Args:
        tokens: the values of all tokens of the first document.
    """
    found = stored.estimate(*totals)
    tokens = tokens[~np.isnan(tokens)]
    if found.low is not None or stored.texts > 1 or not len(tokens):
        return found
    pieces = sums_of(tokens[start : start + PIECE] for start in range(0, len(tokens), PIECE))
    return consecutive(*pieces, of=f"its {len(pieces.sums)} pieces of {PIECE:,} tokens")


def ppl_table(stored: Stored, rows: Iterable[Any]) -> Grid:
    """Returns a table of perplexities, from rows with the field ``ppl`` and its bounds."""
    cells = []
    for row in rows:
        text = interval_cell(row.ppl, row.ppl_low, row.ppl_high, row.interval)
        cells.append((stored.named(row.schedule), row.length, text))
    return table("perplexity", cells)


def held(stored: Stored, documents: int, windows: int) -> str:
    """Describes the number of documents and windows that contain a table's tokens.

    If only a few of the documents contain such tokens, also describes the coverage of their interval.
    """
    number = stored.data["documents"]
    said = f", in {documents:,} of {number:,} document{'s' * (number != 1)}"
    if not stored.sliding:
        pieces = stored.data.get("windows", number)
        said += f", {windows:,} of {pieces:,} window{'s' * (pieces != 1)}"
    few = intervals.over_documents(documents) if documents < number else ""
    return f"{said}; their interval {few}" if few else said
