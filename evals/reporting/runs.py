"""Reads what a measurement left in its folder, and compares runs token by token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...files.reading import local_path
from ..data.windows import position_bins, prefix
from ..results import belongings, checking, formats, nll
from ..results.checking import SEAL, Wrong
from ..results.statistics import Estimate, ratio
from ..running.protocols import ROPESCALE


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
        return self.results.get("kind", "perplexity") == "perplexity"

    @property
    def schedules(self) -> list[str]:
        """The labels, in the order they ran."""
        return list(dict.fromkeys(row["schedule"] for row in self.results["rows"]))

    @cached_property
    def index(self) -> dict[str, Any]:
        """``nll/index.json``: the documents, and where each pass's NLLs lie; empty where there are none.

        Raises:
            DataError: it is damaged, or does not belong to these results.
        """
        folder = self.folder / belongings.NLL
        if not (folder / nll.INDEX).exists():
            return {"bos": False, "documents": [], "passes": []}
        try:
            found = nll.read_index(folder)
            self._check_belongs(found)
        except Wrong as error:
            raise _damaged(folder / nll.INDEX, error) from None
        return found

    def _check_belongs(self, index: dict[str, Any]) -> None:
        if index.get("of", belongings.identity(self.results)) != belongings.identity(self.results):
            raise Wrong("is of another measurement than the results beside it")
        passes = {(one["schedule"], n): one["table_sha256"] for one in index["passes"] for n in one["lengths"]}
        if passes != {(row["schedule"], row["length"]): row["table_sha256"] for row in self.results["rows"]}:
            raise Wrong("does not have the schedules and lengths of the results beside it")

    @property
    def has_checksums(self) -> bool:
        """Whether all that it holds has a checksum; version 0.1.0 wrote none."""
        return SEAL in self.results and SEAL in self.index | ({} if self.index["passes"] else {SEAL: None})

    def check(self) -> None:
        """Looks at every stored file.

        Raises:
            DataError: one is damaged or missing.
        """
        for one in [*self.index["passes"], *self.index.get("divergences", [])]:
            for _ in self._arrays(one, "files" in one):
                pass

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
        key = (schedule, length)
        if key not in self._sums:
            self._sums[key] = self._summed(schedule, length)
        return self._sums[key]

    @cached_property
    def _sums(self) -> dict[tuple[str, int], tuple[list[float], list[int]] | None]:
        """Every two series of a page are compared, so they are asked for many times."""
        return {}

    def _summed(self, schedule: str, length: int) -> tuple[list[float], list[int]] | None:
        stored = self._nll(schedule, length)
        if stored is None:
            return None
        if self.is_prefix:
            count = prefix(length, self.index["bos"]).count
            stored = [each[:count] for each in stored]
        counts = [len(each) for each in stored]
        if sum(counts) != next(
            r["tokens"] for r in self.results["rows"] if (r["schedule"], r["length"]) == (schedule, length)
        ):
            raise DataError(
                f"{self.folder}/nll has not the tokens of {schedule} at {length:,}; run the evaluation again"
            )
        return [float(each.sum(dtype=np.float64)) for each in stored], counts

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
        one = next((each for each in self._passes(schedule) if length in each["lengths"]), None)
        return None if one is None else list(self._arrays(one))

    def _arrays(self, one: dict[str, Any], checksums: bool = False) -> Iterator[np.ndarray]:
        """What is stored of a pass, or of a comparison: document after document.

        Raises:
            DataError: a file is damaged or missing.
        """
        rows = 0 if "lengths" in one else 2
        for number in range(len(self.index["documents"])):
            path = self.folder / belongings.NLL / nll.name_of(one["at"], number)
            try:
                yield nll.read(path, one["files"][number] if checksums else None, rows)
            except (Wrong, OSError) as error:
                raise _damaged(path, error) from None


def load(folders: Sequence[str | Path]) -> list[StoredRun]:
    """The runs in these folders, in order.

    Raises:
        DataError: one that is none, or one given twice.
    """
    paths = [local_path(folder) for folder in folders]
    try:
        real = [path.resolve() for path in paths]
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, links in a circle
        raise DataError(f"the runs cannot be read ({error}); give folders that `ropescale eval -o` wrote") from None
    twice = [path for number, path in enumerate(paths) if real[number] in real[:number]]
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


def without_losses(runs: Sequence[StoredRun]) -> list[str]:
    """A sentence for each run whose losses per token are gone, so that nothing that comes of them is shown."""
    gone = [run for run in runs if run.is_perplexity and not (run.folder / "nll" / "index.json").exists()]
    return [f"{run.folder} has no nll/index.json, so loss by position and comparisons are left out" for run in gone]


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


def unchecked(runs: Sequence[StoredRun]) -> list[str]:
    """A sentence for each run without checksums."""
    return [
        f"{run.folder}: no checksum stored, so damage to its figures may not be noticed; the same command again, into "
        "the same folder, writes them"
        for run in runs
        if not run.has_checksums
    ]


def _results(folder: Path) -> dict[str, Any]:
    path = folder / belongings.RESULTS
    if not path.is_file():
        what = "is not there" if not folder.exists() else "has no results.json"
        raise DataError(f"{folder} {what}; give a folder that `ropescale eval -o` or `ropescale passkey -o` wrote")
    try:
        return checking.checked(path, formats.results)
    except Wrong as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Wrong | OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} is missing; run the evaluation again")
    why = error if isinstance(error, Wrong) else f"cannot be read ({error.strerror or error})"
    away = "move it away and " if path.suffix == ".npy" else ""
    return DataError(f"{path} {why}; {away}run the evaluation again")


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parents as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
