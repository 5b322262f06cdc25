"""What a measurement leaves: per-token NLLs, and everything that is a reduction of them.

Rows, intervals, paired differences, loss by position and bits per byte all come from the stored NLLs, so a new
figure never needs a second forward pass.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CheckpointError, RopescaleError
from ...files.reading import local_path
from ...formatting import escaped, markdown
from ...plotting import drawn
from ..data.documents import Document
from ..data.far_repeats import ORDER, far_repeats
from ..data.key_tokens import KeyRow, KeySpans
from ..data.windows import position_bins, prefix
from ..running.batches import Cost
from ..running.protocols import PROTOCOLS, ROPESCALE, published_windows, weighted
from . import belongings, nll
from .bootstrap import block_of, by_block, by_document
from .formats import SCHEMA
from .statistics import Estimate, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Pass:
    """One forward pass over every document under one set of rotary tables.

    Attributes:
        schedule: the schedule's label.
        table_sha256: of the live tables.
        lengths: the lengths read from it, ascending; the last is the one that was fed.
        nll: per document, NLL in nats of each scored token, fp32 [scored].
        forward_passes: how many windows went through the model; 0 where another schedule had the same tables.
        cost: what its windows take, whoever ran them.
        split_batches: how many of its batches were scored in parts, because memory ran out.
        key: what the numbers depend on; passes with the same key share them.
    """

    schedule: str
    table_sha256: str
    lengths: tuple[int, ...]
    nll: list[np.ndarray]
    forward_passes: int
    cost: Cost | None = None
    split_batches: int = 0
    key: object = None


@dataclass(frozen=True)
class Divergence:
    """How the predictions of a schedule differ from the baseline's, token by token.

    Attributes:
        schedule, baseline: the labels.
        length: positions of the windows.
        kl: per document, KL(baseline || schedule) in nats at each scored token, fp32 [scored].
        same: per document, 1 where both have the same most likely token, else 0; fp32 [scored].
        forward_passes, positions: windows that went through the model for it, and what they fed.
    """

    schedule: str
    baseline: str
    length: int
    kl: list[np.ndarray]
    same: list[np.ndarray]
    forward_passes: int
    positions: int


@dataclass(frozen=True)
class Row:
    """Perplexity of one schedule at one length. The interval is None with fewer than two documents.

    ``tail_nll`` is over the tokens at positions [L/2, L) of the documents that have L. ``ppl_boot_low`` and ``_high``
    are percentiles over resamples of what ``bootstrap`` says: "documents", or blocks of tokens where there is only one.
    ``mode`` is "prefix" (the first L positions) or "sliding" (whole documents, in windows of L positions), and
    ``documents_at_length`` says how many of the documents have L positions.
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
    bits_per_byte: float | None
    forward_passes: int
    mode: str
    documents_at_length: int
    tail_nll: float | None = None
    tail_low: float | None = None
    tail_high: float | None = None
    ppl_boot_low: float | None = None
    ppl_boot_high: float | None = None
    bootstrap: str | None = None
    protocol: str = ROPESCALE


@dataclass(frozen=True)
class Paired:
    """NLL per token of a schedule minus the baseline's, on the same tokens, in nats.

    ``kl`` is the mean of KL(baseline || schedule) over those tokens in nats, ``top1`` the share of them at which both
    have the same most likely token; None where they were not compared, as beyond the trained length.
    """

    schedule: str
    baseline: str
    length: int
    delta_nll: float
    low: float | None
    high: float | None
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    top1: float | None = None
    top1_low: float | None = None
    top1_high: float | None = None
    boot_low: float | None = None
    boot_high: float | None = None
    bootstrap: str | None = None


_COMPARED = ("kl", "kl_low", "kl_high", "top1", "top1_low", "top1_high")
"""Fields of :class:`Paired` that only some lengths have."""


@dataclass(frozen=True)
class Repeats:
    """Perplexity of the tokens that repeat something far back, and of all others.

    See :mod:`ropescale.evals.data.far_repeats`.

    The interval is None with fewer than two documents, the perplexity where there is no such token.
    """

    schedule: str
    length: int
    distance: int
    order: int
    far_tokens: int
    far_ppl: float | None
    far_low: float | None
    far_high: float | None
    other_tokens: int
    other_ppl: float | None
    other_low: float | None
    other_high: float | None


@dataclass(frozen=True)
class Bin:
    """Mean NLL of the tokens with ``start <= position < stop``; position counts what comes before, BOS included."""

    start: int
    stop: int
    nll: float
    low: float | None
    high: float | None


@dataclass
class Result:
    """A finished (or interrupted) measurement.

    Attributes:
        model, data, protocol, versions: as results.json has them.
        passes: the stored NLLs.
        documents: what was scored, in order.
        bos: whether BOS was in front of every window.
        baseline: the label that the others are compared with.
        trained_length: the model's trained context, where known; plots mark it.
        tables: by table_sha256, the rotary tables as they were live, by layer type.
        divergences: how predictions differ from the baseline's at the largest length up to the trained one.
        key_spans: where the key tokens lie, for :attr:`key_rows`; None leaves them out.
        repeat_distance: how many tokens back "far" is, for :attr:`repeats`; None leaves them out.
    """

    model: dict[str, Any]
    data: dict[str, Any]
    protocol: dict[str, Any]
    versions: dict[str, str]
    passes: list[Pass]
    documents: list[Document] = field(repr=False)
    bos: bool
    baseline: str
    trained_length: int | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    divergences: list[Divergence] = field(default_factory=list, repr=False)
    repeat_distance: int | None = None
    key_spans: KeySpans | None = None
    _memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def rows(self) -> list[Row]:
        """One per schedule and length, schedules in the order they ran, lengths ascending."""
        return [self._row(run, length) for run in self.passes for length in run.lengths]

    @property
    def paired(self) -> list[Paired]:
        """Every schedule against the baseline at every length that both have."""
        base = {length: run for run in self.passes if run.schedule == self.baseline for length in run.lengths}
        others = [(run, n) for run in self.passes if run.schedule != self.baseline for n in run.lengths if n in base]
        return [self._pair(run, base[length], length) for run, length in others]

    @property
    def repeats(self) -> list[Repeats]:
        """Every schedule at every length beyond the distance: what repeats something far back, and what does not."""
        if self.repeat_distance is None or not self.exact:
            return []
        far = [self._far(document) for document in self.documents]
        longer = [(run, n) for run in self.passes for n in run.lengths if n > self.repeat_distance]
        return [self._repeats(run, length, far) for run, length in longer]

    @property
    def key_rows(self) -> list[KeyRow]:
        """Every schedule at every length, over the key tokens alone."""
        if self.key_spans is None or not self.exact:
            return []
        first = 0 if self.bos else 1
        marks = [self.key_spans.marks(document)[first:] for document in self.documents]
        return [self._key_row(run, length, marks) for run in self.passes for length in run.lengths]

    @property
    def schedules(self) -> list[str]:
        """The labels, in the order they ran."""
        return list(dict.fromkeys(run.schedule for run in self.passes))

    @property
    def lengths(self) -> list[int]:
        """Every length measured, ascending."""
        return sorted({length for run in self.passes for length in run.lengths})

    def by_position(self, schedule: str) -> list[Bin]:
        """Mean NLL in position bins that grow by sqrt(2), from the schedule's longest pass.

        Shows the cliff at the trained length that a prefix perplexity averages away. None under another protocol.
        """
        if not self.exact:  # windows may skip tokens, so that their order does not tell their places
            return []
        run = max((run for run in self.passes if run.schedule == schedule), key=lambda run: run.lengths[-1])
        stop = 1 + max(map(len, run.nll))
        return [self._bin(run, low, high) for low, high in position_bins(stop)]

    def to_dict(self) -> dict[str, Any]:
        """results.json as plain data."""
        model = self.model | {"trained_length": self.trained_length}
        meta = {"model": model, "data": self.data, "protocol": self.protocol, "versions": self.versions}
        rows, paired, repeats = ([asdict(each) for each in part] for part in (self.rows, self.paired, self.repeats))
        found = {"rows": rows, "paired": paired, "repeats": repeats, **self._keys()}
        return {"schema": SCHEMA, **meta, **found, "cost": self.cost, "tables": self.tables}

    def to_dataframe(self) -> Any:
        """The rows as a pandas ``DataFrame``, one per schedule and length, the paired change beside them as in the CSV.

        Raises:
            RopescaleError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise RopescaleError(f"to_dataframe() needs {error.name}; pip install pandas") from error
        missing = [[math.nan if value is None else value for value in line] for line in self._beside()]
        return pandas.DataFrame(missing, columns=self._columns())

    @property
    def cost(self) -> list[dict[str, Any]]:
        """What every pass took: windows, tokens fed and scored, and their ratio to feeding every document once; and
        what comparing predictions took."""
        passes = [
            {
                "schedule": run.schedule,
                "lengths": list(run.lengths),
                "forward_passes": run.forward_passes,
                **(asdict(run.cost) | {"useful_fraction": run.cost.useful_fraction} if run.cost else {}),
                "split_batches": run.split_batches,
            }
            for run in self.passes
        ]
        return passes + [
            {
                "schedule": each.schedule,
                "compared_with": each.baseline,
                "lengths": [each.length],
                "forward_passes": each.forward_passes,
                "positions": each.positions,
            }
            for each in self.divergences
        ]

    @property
    def sliding(self) -> bool:
        """Whether whole documents were scored in sliding windows, and not the first L positions of each."""
        return self.protocol.get("mode") == "sliding"

    def to_markdown(self) -> str:
        """Perplexity per schedule and length, the paired change, and the protocol they were measured under."""
        ppl = {(row.schedule, row.length): _ppl_cell(row) for row in self.rows}
        corner = "perplexity" if self.exact else f"perplexity ({self.protocol['name']})"
        parts = [self._table(corner, ppl, self.schedules)]
        if self.paired:
            delta = {(pair.schedule, pair.length): _delta_cell(pair) for pair in self.paired}
            others = [label for label in self.schedules if label != self.baseline]
            parts += [f"Change in NLL against {escaped(self.baseline)} on the same tokens (nats per token):"]
            parts += [self._table("change", delta, others), *self._short_context()]
        parts += [*self._repeats_table(), *self._keys_table()]
        return "\n\n".join([*parts, self.protocol_line()])

    def protocol_line(self) -> str:
        """One sentence that says how the numbers were made."""
        once = self.protocol.get("bos_once") is not None
        bos = "BOS first" if self.bos else "BOS first in each document, in no other window" if once else "no BOS"
        number, tokens, skipped = self.data["documents"], self.data["tokens"], self.data["skipped"]
        left_out = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in skipped.items() if count)
        documents = f"{number} document{'s' * (number != 1)}{self._reaching()}"
        return (
            f"protocol {self.protocol['name']}: {self.title[0].lower()}{self.title[1:]} ({bos}), "
            f"{PROTOCOLS[self.protocol['name']].said}, {self.model['dtype']}; {documents}"
            f"{f' (skipped: {left_out})' if left_out else ''}, {tokens:,} tokens; "
            f"{self._interval_line()}; "
            f"text sha256 {self.data['sha256'][:12]}"
        )

    @property
    def title(self) -> str:
        """What the perplexities are of, in a few words."""
        if self.sliding:
            name = "" if self.exact else f" ({self.protocol['name']})"
            return f"Perplexity{name} in sliding windows of L positions, stride {self.protocol['stride']:,}"
        return "Perplexity of the first L positions"

    def _interval_line(self) -> str:
        if self.data["documents"] > 1:
            return f"± or (low to high) is the {self.protocol['interval']} interval"
        blocks = next((row.bootstrap for row in reversed(self.rows) if row.bootstrap), None)
        if blocks is None:
            return f"± is the {self.protocol['interval']} interval (it needs two documents)"
        resampled = f"resampled {blocks} of the one document, which knows nothing of others"
        return f"± or (low to high) † is the 95% interval over {resampled}"

    def _reaching(self) -> str:
        """How many documents are as long as the longest window, where they need not be."""
        if not (self.sliding and self.passes):
            return ""
        longest = prefix(self.lengths[-1], self.bos).stop
        reaching = sum(len(each.ids) >= longest for each in self.documents)
        return f" ({reaching} of {self.lengths[-1]:,} positions or more)"

    def to_csv(self) -> str:
        """One line per schedule and length, the paired change beside it."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self._columns())
        writer.writerows(self._beside())
        return out.getvalue()

    def _columns(self) -> list[str]:
        return [*Row.__dataclass_fields__, "baseline", "delta_nll", "delta_low", "delta_high", *_COMPARED]

    def _beside(self) -> list[list[Any]]:
        """Each row's values, and the paired change's; None where it is the baseline."""
        pairs = {(pair.schedule, pair.length): pair for pair in self.paired}
        lines = []
        for row in self.rows:
            pair = pairs.get((row.schedule, row.length))
            change = [pair.baseline, pair.delta_nll, pair.low, pair.high] if pair else [None] * 4
            compared = [getattr(pair, name, None) for name in _COMPARED]
            lines.append([*asdict(row).values(), *change, *compared])
        return lines

    def plot(self, path: str | Path | None = None) -> Figure:
        """Perplexity against length, as a matplotlib ``Figure`` that belongs to no window.

        Args:
            path: an image file to write it to, too; png, svg or pdf.

        Raises:
            RopescaleError: matplotlib is not installed.
            CheckpointError: the file cannot be written.
        """
        from .plots import ppl_vs_length

        return ppl_vs_length(self, path)

    def plot_by_position(self, path: str | Path | None = None) -> Figure:
        """Loss by position; otherwise as :meth:`plot`.

        Raises:
            RopescaleError: matplotlib is not installed, or windows that skip tokens do not tell positions.
            CheckpointError: the file cannot be written.
        """
        from .plots import loss_by_position

        if not self.exact:
            raise RopescaleError(f"there is no loss by position under {self.protocol['name']}, which may skip tokens")
        return loss_by_position(self, path)

    def save(self, out: str | Path) -> Path:
        """Writes results.json, results.csv, nll/, the plots and REPORT.md into ``out`` and returns it.

        Each file is written beside and renamed, the numbers first; see
        :mod:`ropescale.evals.results.belongings` for which files are replaced. Without matplotlib everything but the
        plots is written, and a line on stderr says so.

        Raises:
            CheckpointError: the folder cannot be written, or a file in it is not what a run wrote.
        """
        folder, there = opened_folder(out, "perplexity")
        with belongings.kept(folder):
            folder.mkdir(parents=True, exist_ok=True)
            results = self.to_dict()
            book = belongings.Book(folder, results, there)
            book.write({"results.csv": self.to_csv()})
            index = self._index() | {"of": belongings.identity(results)}
            nll.write(folder / belongings.NLL, index, self._arrays(), there.nll)
            plots = self._plots()
            book.write({**plots, "REPORT.md": self._report(bool(plots))})
            book.close()
        return folder

    # --- reductions ---

    def _row(self, run: Pass, length: int) -> Row:
        counts = self._counts(run, length)
        sums, shares = self._weighted(run.nll, length, counts)
        estimate = ratio(sums, shares)
        low, high = (None if bound is None else _exp(bound) for bound in (estimate.low, estimate.high))
        tail = self._tail(run, length)
        drawn, what = self._resampled(sums, shares, run.nll[0][: counts[0]])
        return Row(
            schedule=run.schedule,
            table_sha256=run.table_sha256,
            length=length,
            documents=len(run.nll),
            tokens=sum(counts),
            nll=estimate.mean,
            ppl=_exp(estimate.mean),
            ppl_low=low,
            ppl_high=high,
            bits_per_byte=self._bits_per_byte(estimate, counts),
            forward_passes=run.forward_passes,
            mode="sliding" if self.sliding else "prefix",
            documents_at_length=sum(len(each.ids) >= prefix(length, self.bos).stop for each in self.documents),
            tail_nll=tail.mean if tail else None,
            tail_low=tail.low if tail else None,
            tail_high=tail.high if tail else None,
            ppl_boot_low=_exp(drawn[0]) if drawn else None,
            ppl_boot_high=_exp(drawn[1]) if drawn else None,
            bootstrap=what,
            protocol=self.protocol["name"],
        )

    def _weighted(
        self, nll: Sequence[np.ndarray], length: int, counts: Sequence[int]
    ) -> tuple[list[float], Sequence[float]]:
        """Per document, the sum of its losses and what it weighs: its tokens, or what another protocol says."""
        if self.exact:
            return [float(each[:count].sum(dtype=np.float64)) for each, count in zip(nll, counts, strict=True)], counts
        name, stride = self.protocol["name"], self.protocol["stride"]
        windows = (list(published_windows(len(each.ids), length, stride, self.bos)) for each in self.documents)
        pairs = [weighted(name, each, losses) for each, losses in zip(windows, nll, strict=True)]
        return [total for total, _ in pairs], [share for _, share in pairs]

    @property
    def exact(self) -> bool:
        """Whether every token was scored once and weighs the same; else a published script is reproduced."""
        return self.protocol["name"] == ROPESCALE

    def _tail(self, run: Pass, length: int) -> Estimate | None:
        """Mean NLL at positions [L/2, L), over the documents that have them; index 0 is position 1."""
        if not self.exact:
            return None
        start, stop = max(1, length // 2) - 1, prefix(length, self.bos).count
        reaching = [nll[start:stop] for nll in run.nll if len(nll) >= stop]
        return _mean(reaching) if reaching else None

    def _resampled(
        self, sums: Sequence[float], counts: Sequence[float], tokens: np.ndarray
    ) -> tuple[tuple[float, float] | None, str | None]:
        """The bootstrap interval of a mean, and what is resampled: documents, or blocks of the only one's tokens."""
        if len(sums) > 1:
            key = (*sums, *counts)
            if key not in self._memo:  # rows are asked for more than once
                self._memo[key] = by_document(sums, counts, self.seed)
            return self._memo[key], "documents"
        drawn = by_block(tokens, self.seed) if self.exact else None
        return drawn, f"blocks of {block_of(len(tokens)):,} tokens" if drawn else None

    @property
    def seed(self) -> int:
        """Of the resampling."""
        return int(self.protocol.get("seed") or 0)

    def _far(self, document: Document) -> np.ndarray:
        """Of each token that can be scored, whether it repeats something far back."""
        key = (document.sha256, self.repeat_distance)
        if key not in self._memo:
            self._memo[key] = far_repeats(document.ids, self.repeat_distance or 0)[0 if self.bos else 1 :]
        return self._memo[key]

    def _repeats(self, run: Pass, length: int, far: Sequence[np.ndarray]) -> Repeats:
        nll = [each[:count] for each, count in zip(run.nll, self._counts(run, length), strict=True)]
        masks = [mask[: len(each)] for mask, each in zip(far, nll, strict=True)]
        figures: list[Any] = []
        for chosen in (masks, [~mask for mask in masks]):
            tokens, estimate = _masked(nll, chosen)
            figures += [tokens, *_perplexities(estimate)]
        return Repeats(run.schedule, length, self.repeat_distance or 0, ORDER, *figures)

    def _counts(self, run: Pass, length: int) -> list[int]:
        """Per document, how many of the pass's scored tokens belong to the row at this length."""
        if self.sliding:
            return [len(nll) for nll in run.nll]
        return [prefix(length, self.bos).count] * len(run.nll)

    def _bits_per_byte(self, estimate: Estimate, counts: Sequence[int]) -> float | None:
        """``sum NLL / (ln 2 * bytes)``, over the UTF-8 bytes of exactly the text that the scored tokens cover."""
        first = 0 if self.bos else 1
        pairs = zip(self.documents, counts, strict=True)
        covered = [document.bytes_between(first, first + count) for document, count in pairs]
        if not self.exact or None in covered or not sum(filter(None, covered)):
            return None
        return estimate.mean * sum(counts) / (math.log(2) * sum(filter(None, covered)))

    def _pair(self, run: Pass, base: Pass, length: int) -> Paired:
        counts = self._counts(run, length)
        ours, shares = self._weighted(run.nll, length, counts)
        theirs, _ = self._weighted(base.nll, length, counts)
        sums = [a - b for a, b in zip(ours, theirs, strict=True)]
        estimate, compared = ratio(sums, shares), self._compared(run, base, length)
        drawn, what = self._resampled(sums, shares, _difference(run, base, counts))
        low, high = drawn or (None, None)
        return Paired(
            schedule=run.schedule,
            baseline=base.schedule,
            length=length,
            delta_nll=estimate.mean,
            low=estimate.low,
            high=estimate.high,
            **compared,
            boot_low=low,
            boot_high=high,
            bootstrap=what,
        )

    def _compared(self, run: Pass, base: Pass, length: int) -> dict[str, float | None]:
        """The mean KL and the agreement over the row's tokens, with bounds, under their names; nothing if unknown."""
        found = self._divergence(run, base, length)
        if found is None:
            return {}
        counts = self._counts(run, length)
        figures = [
            _mean([each[:count] for each, count in zip(per_token, counts, strict=True)])
            for per_token in (found.kl, found.same)
        ]
        return dict(zip(_COMPARED, (bound for each in figures for bound in (each.mean, each.low, each.high))))

    def _divergence(self, run: Pass, base: Pass, length: int) -> Divergence | None:
        """The comparison that holds a row's tokens: made at its length, or at a longer one under the same tables."""
        made = (each for each in self.divergences if each.schedule == run.schedule)
        return next((each for each in made if each.length == length or self._reads(each, run, base, length)), None)

    def _reads(self, made: Divergence, run: Pass, base: Pass, length: int) -> bool:
        """Whether a comparison's windows begin with a shorter length's, and both passes were one for both lengths."""
        shared = set(run.lengths) & set(base.lengths)
        return not self.sliding and length < made.length and made.length in shared

    def _bin(self, run: Pass, start: int, stop: int) -> Bin:
        """Over the documents that reach the bin's end; index 0 is position 1."""
        reaching = [nll[start - 1 : stop - 1] for nll in run.nll if len(nll) >= stop - 1]
        sums = [float(nll.sum(dtype=np.float64)) for nll in reaching]
        estimate = ratio(sums, [stop - start] * len(sums))
        return Bin(start, stop, estimate.mean, estimate.low, estimate.high)

    def _key_row(self, run: Pass, length: int, marks: Sequence[np.ndarray]) -> KeyRow:
        nll = [each[:count] for each, count in zip(run.nll, self._counts(run, length), strict=True)]
        masks = [mask[: len(each)] for mask, each in zip(marks, nll, strict=True)]
        tokens, estimate = _masked(nll, masks)
        fraction = tokens / sum(map(len, nll))
        mean = estimate.mean if estimate else None
        return KeyRow(run.schedule, length, tokens, fraction, mean, *_perplexities(estimate))

    def _keys(self) -> dict[str, Any]:
        """The part of results.json about key tokens, where they are looked at."""
        if self.key_spans is None or not self.exact:
            return {}
        about = {**self.key_spans.made, "spans_sha256": self.key_spans.sha256}
        return {"key_tokens": about | {"rows": [asdict(row) for row in self.key_rows]}}

    def _keys_table(self) -> list[str]:
        if self.key_spans is None or not self.exact:
            return []
        made, rows = self.key_spans.made, self.key_rows
        cells = {(row.schedule, row.length): _interval_cell(row.ppl, row.ppl_low, row.ppl_high) for row in rows}
        last = rows[-1]
        model = Path(str(made.get("key_model", {}).get("path", "?"))).name
        title = (
            f"Key tokens ({last.tokens:,}, {last.fraction:.2%} of all, at {last.length:,}), by {escaped(model)} with "
            f"{made.get('window', 0):,} positions against {made.get('short', 0):,}:"
        )
        return [title, self._table("perplexity", cells, self.schedules)]

    def _short_context(self) -> list[str]:
        """What each schedule costs where the model did well before, beside what it gains; or why that is not known."""
        trained, long = self.trained_length, self.lengths[-1]
        if trained is None:
            repeats = ", nor are far repeats told apart (--repeat-distance)" if self.repeat_distance is None else ""
            return [f"The short-context cost is not known{repeats}: the model does not say how long it was trained at."]
        short = short_length(self.lengths, trained)
        if short is None:
            return [f"The short-context cost is not known: no length up to the trained {trained:,} was measured."]
        pairs = {(pair.schedule, pair.length): pair for pair in self.paired}
        gains = [f"gain at {long:,} (nats)"] if long > trained else []
        header = ["schedule", f"cost at {short:,} (nats)", "mean KL (nats)", "same top-1", *gains]
        rows = [
            [escaped(label), *_short_cells(pairs[label, short]), *(_delta_cell(pairs[label, long], -1) for _ in gains)]
            for label in self.schedules
            if (label, short) in pairs and (label, long) in pairs
        ]
        title = f"Short-context cost against {escaped(self.baseline)}, trained at {trained:,} tokens:"
        return [title, markdown(header, rows, right=range(1, len(header)))]

    def _repeats_table(self) -> list[str]:
        """At the longest length."""
        found = [each for each in self.repeats if each.length == self.lengths[-1] and each.far_tokens]
        if not found:
            return []
        far, tokens = found[0], found[0].far_tokens + found[0].other_tokens
        header = ["perplexity", "far repeats", "others"]
        rows = [[escaped(each.schedule), *(_interval_cell(*ppl) for ppl in _repeated(each))] for each in found]
        title = (
            f"Tokens that repeat something {far.distance:,} or more tokens back ({far.far_tokens:,} of {tokens:,} at "
            f"{far.length:,}: the {far.order} tokens up to there, last seen so far back), and the others:"
        )
        return [title, markdown(header, rows, right=(1, 2))]

    # --- files ---

    def _table(self, corner: str, cells: dict[tuple[str, int], str], labels: Sequence[str]) -> str:
        header = [corner, *(f"{length:,}" for length in self.lengths)]
        rows = [[escaped(label), *(cells.get((label, n), "") for n in self.lengths)] for label in labels]
        return markdown(header, rows, right=range(1, len(header)))

    def _arrays(self) -> Iterator[nll.Array]:
        """What ``nll/`` holds: losses, and of comparisons both numbers of each token."""
        for run in self.passes:
            for number, losses in enumerate(run.nll):
                yield nll.name_of(_place(run), number), functools.partial(np.asarray, losses, np.float32)
        for each in self.divergences:
            for number, both in enumerate(zip(each.kl, each.same, strict=True)):
                yield nll.name_of(_place(each), number), functools.partial(np.stack, both)

    def _index(self) -> dict[str, Any]:
        passes = [
            {
                "schedule": run.schedule,
                "table_sha256": run.table_sha256,
                "lengths": list(run.lengths),
                "at": _place(run),
            }
            for run in self.passes
        ]
        documents = [
            {"name": document.name, "sha256": document.sha256, "ids_sha256": document.ids_sha256}
            for document in self.documents
        ]
        compared = [
            {"schedule": each.schedule, "baseline": each.baseline, "length": each.length, "at": _place(each)}
            for each in self.divergences
        ]
        return {"bos": self.bos, "documents": documents, "passes": passes, "divergences": compared}

    def _plots(self) -> dict[str, bytes]:
        """The pictures, as files; none where they cannot be drawn, and a line on stderr says why."""
        makers = {"ppl_vs_length.png": self.plot} | (
            {"loss_by_position.png": self.plot_by_position} if self.exact else {}
        )
        try:
            return {name: drawn(make) for name, make in makers.items()}
        except RopescaleError as error:
            print(f"note: no plots written; {error}", file=sys.stderr)
            return {}

    def _report(self, plots: bool) -> str:
        images = "![Perplexity against length](ppl_vs_length.png)\n\n"
        if self.exact:
            images += "![Loss by position](loss_by_position.png)\n\n"
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        source = f"Data: {escaped(self.data['source'])}, text sha256 `{self.data['sha256']}`."
        model = f"Model: {escaped(self.model['path'])} ({self.model['parameters']:,} parameters)."
        heading = f"# Perplexity against length: {escaped(Path(self.model['path']).name)}"
        return f"{heading}\n\n{self.to_markdown()}\n\n{images if plots else ''}{model}\n{source}\n{versions}.\n"


def _exp(value: float) -> float:
    """``exp``, and the largest float where that would overflow (a huge interval of a broken model)."""
    return math.exp(min(value, 709.0))


def _ppl_cell(row: Row) -> str:
    if row.ppl_low is None and row.ppl_boot_low is not None:
        return f"{_interval_cell(row.ppl, row.ppl_boot_low, row.ppl_boot_high)} †"
    return _interval_cell(row.ppl, row.ppl_low, row.ppl_high)


def _interval_cell(value: float | None, low: float | None, high: float | None) -> str:
    """``13.82 ± 2.2``, or ``96.44 (12.3 to 756)`` where half the interval is much of the value.

    Intervals are symmetric in nats, so those of perplexities are not, and a wide one may not be written with a ±.
    """
    if value is None:
        return "-"
    if low is None or high is None:
        return _figure(value)
    half = (high - low) / 2
    if half > _WIDE * value:
        return f"{_figure(value)} ({_bound(low)} to {_bound(high)})"
    return f"{_figure(value)} ± {_short(half)}"


_WIDE = 0.3
"""Of a perplexity; at this half-width, the bounds of exp(nats) are 26% below and 34% above it."""


def _delta_cell(pair: Paired, sign: int = 1) -> str:
    """The change of the loss with half its interval; ``sign`` -1 turns it into a gain."""
    if pair.low is None and pair.boot_low is not None:
        return f"{_signed(sign * pair.delta_nll)}{_half(pair.boot_low, pair.boot_high)} †"
    return f"{_signed(sign * pair.delta_nll)}{_half(pair.low, pair.high)}"


def _signed(value: float) -> str:
    """Four decimals; what rounds to zero has no sign."""
    text = f"{value:+.4f}"
    return text if float(text) else text[1:]


def _repeated(found: Repeats) -> list[tuple[float | None, float | None, float | None]]:
    return [(found.far_ppl, found.far_low, found.far_high), (found.other_ppl, found.other_low, found.other_high)]


def _difference(run: Pass, base: Pass, counts: Sequence[int]) -> np.ndarray:
    """Of the first document's tokens, fp64."""
    count = counts[0]
    return run.nll[0][:count].astype(np.float64) - base.nll[0][:count]


def short_length(lengths: Iterable[int], trained: int | None) -> int | None:
    """The largest measured length up to the trained one; None where there is none, or it is not known."""
    return max((length for length in lengths if trained and length <= trained), default=None)


def _short_cells(pair: Paired) -> list[str]:
    """The change, the mean KL and the agreement, each with half its interval where there is one."""
    kl = "-" if pair.kl is None else f"{pair.kl:z.4f}{_half(pair.kl_low, pair.kl_high)}"
    top1 = "-" if pair.top1 is None else f"{pair.top1:.2%}{_half(pair.top1_low, pair.top1_high, '.2%')}"
    return [_delta_cell(pair), kl, top1]


def _half(low: float | None, high: float | None, form: str = ".4f") -> str:
    """Half an interval; one that is there but rounds to nothing is not shown as none."""
    if low is None or high is None:
        return ""
    half, least = (high - low) / 2, 1e-4
    return f" ± <{least:{form}}" if 0 < half < least / 2 else f" ± {half:{form}}"


def _mean(values: Sequence[np.ndarray]) -> Estimate:
    """Over all tokens, clustered by document."""
    return ratio([float(each.sum(dtype=np.float64)) for each in values], [len(each) for each in values])


def _masked(nll: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> tuple[int, Estimate | None]:
    """How many tokens are marked, and their mean over the documents that have any."""
    picked = [each[mask] for each, mask in zip(nll, masks, strict=True) if mask.any()]
    return sum(map(len, picked)), _mean(picked) if picked else None


def _perplexities(estimate: Estimate | None) -> list[float | None]:
    """Of a mean and its bounds; None for what there is not."""
    bounds = (estimate.mean, estimate.low, estimate.high) if estimate else (None, None, None)
    return [None if bound is None else _exp(bound) for bound in bounds]


def _figure(value: float) -> str:
    """Four significant digits, thousands with commas, millions as powers of ten."""
    if value >= 1e6:
        return f"{value:.3e}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}".rstrip(".")


def _bound(value: float) -> str:
    """Three significant digits, thousands with commas, millions as powers of ten."""
    if value >= 1e6:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


def _short(value: float) -> str:
    """Two significant digits, thousands with commas."""
    return f"{value:,.0f}" if value >= 10 else f"{value:#.2g}"


def _place(run: Pass | Divergence) -> str:
    """The folder of a pass: the label where it is a safe file name, else made safe and told apart by a hash."""
    safe = re.sub(r"[^A-Za-z0-9._=,-]+", "_", run.schedule)[:80].strip(".") or "schedule"
    if safe != run.schedule:
        safe += "-" + hashlib.sha256(run.schedule.encode()).hexdigest()[:8]
    return f"{safe}/{run.lengths[-1]}" if isinstance(run, Pass) else f"{safe}/{run.length}-divergence"


def writable_folder(out: str | Path, kind: str = "perplexity") -> Path:
    """The folder that a run will be written into, or a refusal before hours of work.

    Args:
        kind: of the run; results.json says "kind" where it is another than "perplexity".

    Raises:
        CheckpointError: no such home; it, or the folder it would be made in, is a file or read-only; or what is
            in it is not ours to replace, or the results of another kind of run.
    """
    return opened_folder(out, kind)[0]


def opened_folder(out: str | Path, kind: str) -> tuple[Path, belongings.There]:
    """The folder that a run will be written into, and what of its own is in it; else as :func:`writable_folder`."""
    folder = _named_folder(out)
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise CheckpointError(f"cannot write into {folder}: {nearest} is a file; {belongings.ELSEWHERE}")
    _try_writing(folder, nearest)
    with belongings.kept(folder):
        return folder, belongings.check(folder, kind)


def _try_writing(folder: Path, nearest: Path) -> None:
    """Permissions do not tell all: root may write anywhere but in /proc."""
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        why = f"no file can be made in {nearest} ({error.strerror})"
        raise CheckpointError(f"cannot write into {folder}: {why}; {belongings.ELSEWHERE}") from None


def _named_folder(out: str | Path) -> Path:
    """``out`` with its ``~`` expanded, where it can be a folder's name at all."""
    folder = local_path(out)
    if not str(out) or str(folder).startswith("~"):
        raise CheckpointError(f"cannot write into {str(out)!r}: there is no such folder; {belongings.ELSEWHERE}")
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, or a zero byte
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot write into {str(out)!r}: {why}; {belongings.ELSEWHERE}") from None
    return folder
