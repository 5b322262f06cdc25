"""Reads a run's folder, and checks every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ..results.stored import Divergence, Identity, Pass
from ..results.truncation import Truncation
from ..running.batches import Cost
from . import checking, folder, formats, nll
from .checking import Wrong
from .formats import Index, Results, StoredComparison, StoredDocument, StoredPass, StoredTruncation

Spent = Mapping[str, Any]
"""The cost of a pass as results.json has it; empty where it has none."""


@dataclass(frozen=True)
class Losses:
    """The content of ``nll/``; without passes if the folder is gone."""

    bos: bool
    identities: list[Identity]
    passes: list[Pass]
    divergences: list[Divergence]
    windows: list[int] = field(default_factory=list)
    truncation: Truncation | None = None


def read_results(path: Path, kind: str | None = None) -> Results:
    """Reads ``results.json`` of a run's folder.

    Args:
        kind: the kind of run it must hold; None accepts every kind.

    Raises:
        DataError: the file is missing, damaged, or from another kind of run.
    """
    file = path / folder.RESULTS
    if not file.is_file():
        what = "has no results.json" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; give a folder that `ropescale eval -o` or `ropescale passkey -o` wrote")
    try:
        results = checking.checked(file, formats.results)
    except Wrong as error:
        raise damaged(file, error) from None
    found = results.get("kind", "perplexity")
    if kind not in (None, found):
        raise DataError(f"{path} holds a {found} run, not a {kind} run; give another folder")
    return results


def read_losses(path: Path, results: Results) -> Losses:
    """Reads the losses that belong to these results.

    Raises:
        DataError: a file is damaged or missing, or belongs to other results.
    """
    at = path / folder.NLL
    if not (at / nll.INDEX).exists():
        return Losses(False, [], [], [])
    try:
        index = nll.read_index(at)
        _check_belongs(index, results)
    except Wrong as error:
        raise damaged(at / nll.INDEX, error) from None
    ran = iter(results.get("cost", []))
    passes = [_pass(one, next(ran, {}), list(_arrays(at, index, one))) for one in index["passes"]]
    compared = [_divergence(one, next(ran, {}), list(_arrays(at, index, one))) for one in index.get("divergences", [])]
    named = [_identity(each) for each in index["documents"]]
    last = [_truncation(one, next(ran, {}), list(_arrays(at, index, one))) for one in index.get("truncation", [])]
    return Losses(index["bos"], named, passes, compared, _windows(index), last[0] if last else None)


def _identity(document: StoredDocument) -> Identity:
    scored = document.get("scored")
    ranges = None if scored is None else [(start, stop) for start, stop in scored]
    found = document["name"], document["sha256"], document.get("ids_sha256"), ranges, document.get("at", {})
    return Identity(*found, document.get("source", ""), document.get("size"))


def damaged(path: Path, error: Wrong | OSError) -> DataError:
    """Returns the error of a file that cannot be used."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} is missing; run the evaluation again")
    why = error if isinstance(error, Wrong) else f"cannot be read ({error.strerror or error})"
    away = "move it away and " if path.suffix == ".npy" else ""
    return DataError(f"{path} {why}; {away}run the evaluation again")


def _check_belongs(index: Index, results: Results) -> None:
    if index["of"] != folder.identity(results):
        raise Wrong("belongs to another measurement than the results beside it")
    passes = {(one["schedule"], n): one["table_sha256"] for one in index["passes"] for n in one["lengths"]}
    if passes != {(row["schedule"], row["length"]): row["table_sha256"] for row in results["rows"]}:
        raise Wrong("does not have the schedules and lengths of the results beside it")


def _arrays(at: Path, index: Index, one: StoredPass | StoredComparison | StoredTruncation) -> Iterator[np.ndarray]:
    """Yields the stored array of each window, for a pass, a comparison, or truncation."""
    for number, count in enumerate(_windows(index)):
        path = at / nll.name_of(one["at"], number)
        try:
            whole = nll.read(path, one["files"][number], 2 if "baseline" in one else 0)
            if whole.shape[-1] % count:
                raise Wrong(f"does not hold {count:,} windows of the same size")
            if "stride" in one and whole.size != count * (_longest(index) - one["length"]):
                raise Wrong(f"does not hold the tokens from position {one['length']:,} on")
        except (Wrong, OSError) as error:
            raise damaged(path, error) from None
        yield from np.split(whole, count, axis=-1)


def _longest(index: Index) -> int:
    return max((each for one in index["passes"] for each in one["lengths"]), default=0)


def _windows(index: Index) -> list[int]:
    """Returns the number of windows of each document."""
    return [each.get("windows", 1) for each in index["documents"]]


def _pass(one: StoredPass, spent: Spent, losses: list[np.ndarray]) -> Pass:
    known = spent.keys() >= Cost.__dataclass_fields__.keys()
    return Pass(
        one["schedule"],
        one["table_sha256"],
        tuple(one["lengths"]),
        losses,
        forward_passes=spent.get("forward_passes", 0),
        cost=Cost(*(spent[name] for name in Cost.__dataclass_fields__)) if known else None,
        split_batches=spent.get("split_batches", 0),
    )


def _divergence(one: StoredComparison, spent: Spent, both: list[np.ndarray]) -> Divergence:
    kl, same = ([each[row] for each in both] for row in range(2))
    ran = spent.get("forward_passes", 0), spent.get("positions", 0)
    return Divergence(one["schedule"], one["baseline"], one["length"], kl, same, *ran)


def _truncation(one: StoredTruncation, spent: Spent, losses: list[np.ndarray]) -> Truncation:
    parts = spent.get("split_batches", 0)
    return Truncation(one["length"], one["stride"], one["table_sha256"], losses, parts)
