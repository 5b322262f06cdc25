"""The losses of single tokens as ``nll/`` holds them: its index, and the content of each file."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from ...files import sha256
from ..run_folder import nll
from .stored import Divergence, Pass, Stored
from .truncation import Truncation


def arrays(stored: Stored) -> Iterator[nll.Array]:
    """Yields the files of ``nll/``: losses, and for comparisons both numbers of each token."""
    for run in (*stored.passes, *filter(None, [stored.truncation])):
        for number, windows in enumerate(stored.of_texts(run.nll)):
            yield nll.name_of(place(run), number), functools.partial(_together, windows)
    for made in stored.divergences:
        for number, both in enumerate(zip(stored.of_texts(made.kl), stored.of_texts(made.same), strict=True)):
            yield nll.name_of(place(made), number), functools.partial(_stacked, both)


def index_of(stored: Stored) -> dict[str, object]:
    """Returns the content of ``nll/index.json``, without checksums."""
    passes = [
        {
            "schedule": run.schedule,
            "table_sha256": run.table_sha256,
            "lengths": list(run.lengths),
            "at": place(run),
        }
        for run in stored.passes
    ]
    compared = [
        {"schedule": each.schedule, "baseline": each.baseline, "length": each.length, "at": place(each)}
        for each in stored.divergences
    ]
    documents = [
        {name: value for name, value in (asdict(each) | {"windows": count}).items() if value not in (None, "")}
        for each, count in zip(stored.identified(), stored.windows or [1] * stored.texts, strict=True)
    ]
    cut = [
        {"length": each.length, "stride": each.stride, "table_sha256": each.table_sha256, "at": place(each)}
        for each in filter(None, [stored.truncation])
    ]
    last = {"truncation": cut} if cut else {}
    return {"bos": stored.bos, "documents": documents, "passes": passes, "divergences": compared, **last}


def place(run: Pass | Divergence | Truncation) -> str:
    """Returns the folder of a pass: its label, made safe and given a hash if it is not a safe file name."""
    if isinstance(run, Truncation):
        return f"truncation/{run.length}-truncation"
    safe = re.sub(r"[^A-Za-z0-9._=,-]+", "_", run.schedule)[:80].strip(".") or "schedule"
    if safe != run.schedule:
        safe += "-" + sha256(run.schedule.encode())[:8]
    return f"{safe}/{run.lengths[-1]}" if isinstance(run, Pass) else f"{safe}/{run.length}-divergence"


def _together(windows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the losses of a document's windows, one after the other."""
    return np.concatenate([np.asarray(each, np.float32) for each in windows])


def _stacked(both: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    return np.stack([_together(each) for each in both])
