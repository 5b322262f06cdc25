"""Perplexity of each schedule at each length, with the loss on the second half of the positions and bits per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from ...output.formatting import Page
from ..data.windows import prefix
from ..facts import TRUNCATION, Pass, PerWindow
from ..statistics.intervals import Estimate
from . import drawing
from .base import Metric, Picture, estimated, mean_of, perplexities, ppl_table, reaching
from .cells import exp
from .stored import Stored, sums_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PerplexityRow:
    """The perplexity of one schedule at one length L. The bounds are None if there is too little text for an interval.

    ``tail_nll`` is the loss of the tokens at positions [L/2, L) of the documents that have L positions. ``interval``
    names the sampling unit of the interval of ``ppl``: "documents", or for few documents blocks of windows or tokens.
    ``mode`` is "prefix" (the first L positions of each window) or "sliding" (whole documents, in windows of L
    positions). ``documents_at_length`` is the number of documents that have L positions, and ``windows`` is the number
    of windows with scored tokens.
    """

    schedule: str
    table_sha256: str
    length: int
    documents: int
    tokens: int
    nll: float
    ppl: float
    ppl_low: float | None
    ppl_high: float | None
    bits_per_byte: float | None = None
    forward_passes: int = 0
    mode: str = "prefix"
    documents_at_length: int = 0
    tail_nll: float | None = None
    tail_low: float | None = None
    tail_high: float | None = None
    interval: str | None = None
    protocol: str = "ropescale"
    windows: int = 0


def draw(stored: Stored) -> Figure:
    """Draws a line per schedule with 95% interval bars on logarithmic axes, and marks the trained length.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    aside = "; points are set apart sideways" if len(stored.lengths) == 1 else ""
    x = f"{drawing.LENGTH}{aside}", stored.lengths
    return drawing.draw(stored, curves_of(stored), stored.title, x, "perplexity (log scale, lower is better)", log=True)


def curves_of(stored: Stored) -> dict[str, list[drawing.Point]]:
    """Returns the perplexities with their bounds by length, for each schedule and truncation."""
    curves = {schedule: [] for schedule in stored.schedules}
    for row in sorted([*METRIC.rows(stored), *truncated(stored)], key=lambda row: row.length):
        curves.setdefault(row.schedule, []).append((row.length, row.ppl, row.ppl_low, row.ppl_high))
    return curves


def truncated(stored: Stored) -> list[SimpleNamespace]:
    """Returns the perplexities of truncation and their bounds at each length, with the names of a row's fields."""
    rows = []
    for length in stored.truncated_losses:
        loss = estimated(stored, stored.totals(TRUNCATION, length), stored.first(TRUNCATION, length)).within(0)
        ppl, low, high = perplexities(loss)
        place = {"schedule": TRUNCATION, "length": length, "nll": loss.mean, "interval": loss.over}
        rows.append(SimpleNamespace(**place, ppl=ppl, ppl_low=low, ppl_high=high))
    return rows


class Perplexity(Metric[Stored, PerplexityRow]):
    """Perplexity against length."""

    row = PerplexityRow
    key = "rows"
    columns = {field.name: field.name for field in fields(PerplexityRow)}  # noqa: RUF012
    picture = Picture("ppl_vs_length.png", "Perplexity against length", draw)

    def reduce(self, stored: Stored) -> list[PerplexityRow]:
        """Returns a row for every schedule and length."""
        return [_row(stored, run, length) for (_, length), run in stored.read_from.items()]

    def to_markdown(self, stored: Stored) -> Page:
        """Returns the table of perplexities, including those of truncation."""
        return [ppl_table(stored, [*self.rows(stored), *truncated(stored)])]


METRIC = Perplexity()


def _row(stored: Stored, run: Pass, length: int) -> PerplexityRow:
    totals = stored.totals(run.schedule, length)
    losses = stored.losses(run.schedule, length)
    estimate = estimated(stored, totals, stored.first(run.schedule, length)).within(0)
    whole = prefix(length, stored.bos)
    later = reaching(stored.wanted(run.nll), max(1, length // 2), whole.count + 1)
    tail = mean_of(stored, later)
    low, high = perplexities(estimate)[1:]
    reached = [max(len(window.ids) for window in text) for text in stored.of_texts(stored.documents)]
    return PerplexityRow(
        schedule=run.schedule,
        table_sha256=run.table_sha256,
        length=length,
        documents=stored.texts_with(totals.counts),
        windows=sum(map(bool, totals.counts)),
        tokens=sum(totals.counts),
        nll=estimate.mean,
        ppl=exp(estimate.mean),
        ppl_low=low,
        ppl_high=high,
        bits_per_byte=_bits_per_byte(stored, estimate, losses),
        forward_passes=run.forward_passes,
        mode="sliding" if stored.sliding else "prefix",
        documents_at_length=sum(each >= whole.stop for each in reached),
        tail_nll=tail and tail.mean,
        tail_low=tail and tail.low,
        tail_high=tail and tail.high,
        interval=estimate.over,
        protocol=stored.protocol["name"],
    )


def _bits_per_byte(stored: Stored, estimate: Estimate, losses: PerWindow) -> float | None:
    """Returns ``sum NLL / (ln 2 * bytes)``, with the number of UTF-8 bytes of text that the scored tokens cover.

    Returns None if the tokens' positions in the text are unknown, or if they cover no bytes.
    """
    if any(each.byte_ends is None for each in stored.documents):
        return None
    first = 0 if stored.bos else 1
    covered = 0
    for document, nll in zip(stored.documents, losses, strict=True):
        sizes = document.sizes[first : first + len(nll)]
        covered += int(sizes[~np.isnan(nll)].sum())
    return estimate.mean * sum(sums_of(losses)[1]) / (math.log(2) * covered) if covered else None
