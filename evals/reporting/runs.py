"""Reads what a measurement left in its folder, and compares runs token by token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ..protocols import ROPESCALE
from ..results import SCHEMA
from ..statistics import Estimate, ratio
from ..windows import position_bins, prefix


@dataclass(frozen=True)
class StoredRun:
    """A folder that ``ropescale eval -o`` or ``ropescale passkey -o`` wrote.

    Attributes:
        folder: where it lies.
        name: what the page calls it: the folder's name, with its parent's where two are called the same.
        results: ``results.json``.
    """

    folder: Path
    name: str
    results: dict[str, Any]

    @property
    def is_perplexity(self) -> bool:
        """Whether it holds losses of tokens; else it is a retrieval run."""
        return "ppl" in next(iter(self.results["rows"]), {})

    @property
    def schedules(self) -> list[str]:
        """The labels, in the order they ran."""
        return list(dict.fromkeys(row["schedule"] for row in self.results["rows"]))

    @cached_property
    def index(self) -> dict[str, Any]:
        """``nll/index.json``: the documents, and where each pass's NLLs lie; empty where there are none."""
        path = self.folder / "nll" / "index.json"
        return _read(path) if path.exists() else {"bos": False, "documents": [], "passes": []}

    @property
    def is_prefix(self) -> bool:
        """Whether every length is a prefix of one window; else the windows slide, and each length has its own pass."""
        return self.results["protocol"].get("stride") is None

    @cached_property
    def text(self) -> tuple[Any, ...]:
        """Which text was scored, and how it was cut into windows."""
        documents = tuple(document["sha256"] for document in self.index["documents"])
        protocol = self.results["protocol"]
        return (documents, self.index["bos"], protocol.get("stride"), protocol.get("name"))

    @cached_property
    def ids(self) -> tuple[str, ...] | None:
        """Per document, a hash of its token ids; None in a folder of a version that did not write them."""
        found = [document.get("ids_sha256") for document in self.index["documents"]]
        return None if None in found else tuple(found)

    def same_tokens(self, other: StoredRun) -> bool:
        """Whether the same tokens were scored, so that losses can be paired; not where that is not known."""
        if self is other:
            return True
        return self.text == other.text and self.ids is not None and self.ids == other.ids

    @property
    def is_exact(self) -> bool:
        """Whether tokens weigh the same; under another protocol, they do not, and windows may skip some."""
        return self.results["protocol"].get("name", ROPESCALE) == ROPESCALE

    @property
    def protocol_note(self) -> str:
        """What to add to the name of numbers that reproduce a published script."""
        return "" if self.is_exact else f" ({self.results['protocol']['name']})"

    def sums(self, schedule: str, length: int) -> tuple[list[float], list[int]] | None:
        """Per document, the fp64 sum of the NLLs at a length and how many there are; None where none are stored."""
        nll = self._nll(schedule, length)
        if nll is None:
            return None
        if self.is_prefix:
            count = prefix(length, self.index["bos"]).count
            nll = [each[:count] for each in nll]
        return [float(each.sum(dtype=np.float64)) for each in nll], [len(each) for each in nll]

    def by_position(self, schedule: str) -> list[tuple[int, int, Estimate]]:
        """``(first position, one past the last, mean NLL)`` in bins that grow by sqrt(2), from the longest pass.

        Each over the documents that reach its end; position 1 is the first token that is scored.
        """
        lengths = [n for each in self._passes(schedule) for n in each["lengths"]] if self.is_exact else []
        nll = self._nll(schedule, max(lengths)) if lengths else None
        if nll is None:
            return []
        return [(start, stop, _mean(nll, start, stop)) for start, stop in position_bins(1 + max(map(len, nll)))]

    def _passes(self, schedule: str) -> list[dict[str, Any]]:
        return [each for each in self.index["passes"] if each["schedule"] == schedule]

    def _nll(self, schedule: str, length: int) -> list[np.ndarray] | None:
        """Per document, the stored NLLs of the pass that a length is read from."""
        at = next((each["at"] for each in self._passes(schedule) if length in each["lengths"]), None)
        return None if at is None else self._stored(at)

    def _stored(self, at: str) -> list[np.ndarray]:
        files = sorted((self.folder / "nll" / at).glob("*.npy"))
        if len(files) != len(self.index["documents"]):
            raise DataError(
                f"{self.folder}/nll/{at} holds {len(files)} documents and not {len(self.index['documents'])}; "
                "run the evaluation again"
            )
        return [np.load(file, mmap_mode="r") for file in files]


def load(folders: Sequence[str | Path]) -> list[StoredRun]:
    """The runs in these folders, in order.

    Raises:
        DataError: one that is none, or one given twice.
    """
    paths = [Path(folder).expanduser() for folder in folders]
    twice = [path for number, path in enumerate(paths) if path.resolve() in [p.resolve() for p in paths[:number]]]
    if twice:
        raise DataError(f"{twice[0]} is given twice; give each run once")
    return [StoredRun(path, name, _results(path)) for path, name in zip(paths, _names(paths), strict=True)]


def paired(run: StoredRun, schedule: str, other: StoredRun, baseline: str, length: int) -> Estimate | None:
    """NLL per token of one schedule minus another's on the same tokens; None where they scored different ones.

    Under another protocol, what the run itself has found, against its own baseline.
    """
    if not run.same_tokens(other):
        return None
    if not run.is_exact:
        return _found(run, schedule, baseline, length) if run is other else None
    ours, theirs = run.sums(schedule, length), other.sums(baseline, length)
    if ours is None or theirs is None or ours[1] != theirs[1]:
        return None
    return ratio([a - b for a, b in zip(ours[0], theirs[0], strict=True)], ours[1])


def unpaired(runs: Sequence[StoredRun]) -> list[str]:
    """A sentence for each two runs of the same text whose losses nevertheless are not those of the same tokens, or
    are not known to be."""
    measured = [run for run in runs if run.is_perplexity]
    alike = [(a, b) for a, b in itertools.combinations(measured, 2) if a.text == b.text and not a.same_tokens(b)]
    apart = [(a.name, b.name) for a, b in alike if a.ids is not None and b.ids is not None]
    old = dict.fromkeys(run.folder for pair in alike for run in pair if run.ids is None)
    return [
        *(
            f"{a} and {b} are of the same text in other tokens, so they are not compared token by token; bits per byte "
            "can be compared"
            for a, b in apart
        ),
        *(
            f"{folder} does not say which tokens its tokenizer made, so it is not compared with other runs; the same "
            "`ropescale eval` again, into the same folder, writes it and measures only what is missing"
            for folder in old
        ),
    ]


def _found(run: StoredRun, schedule: str, baseline: str, length: int) -> Estimate | None:
    pairs = {(p["schedule"], p["baseline"], p["length"]): p for p in run.results.get("paired", [])}
    pair, turned = pairs.get((schedule, baseline, length)), pairs.get((baseline, schedule, length))
    if pair is not None:
        return Estimate(pair["delta_nll"], pair["low"], pair["high"])
    if turned is None:
        return None
    low, high = (None if bound is None else -bound for bound in (turned["high"], turned["low"]))
    return Estimate(-turned["delta_nll"], low, high)


def _mean(nll: Sequence[np.ndarray], start: int, stop: int) -> Estimate:
    reaching = [each[start - 1 : stop - 1] for each in nll if len(each) >= stop - 1]
    return ratio([float(each.sum(dtype=np.float64)) for each in reaching], [stop - start] * len(reaching))


def _results(folder: Path) -> dict[str, Any]:
    path = folder / "results.json"
    if not path.is_file():
        what = "is not there" if not folder.exists() else "has no results.json"
        raise DataError(f"{folder} {what}; give a folder that `ropescale eval -o` or `ropescale passkey -o` wrote")
    results = _read(path)
    if results.get("schema") != SCHEMA or not isinstance(results.get("rows"), list):
        raise DataError(f"{path} is not one that this version can read; run the evaluation again")
    return results


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); run the evaluation again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} does not hold an object; run the evaluation again")
    return value


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parents as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
