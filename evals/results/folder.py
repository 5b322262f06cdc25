"""The files of a run's folder: types of results.json, and rules for refusing, replacing and moving files.

``results.json`` lists every file beside it with its sha256, and during a replacement both the old and the new hashes,
so a killed run still recognizes its own files. A run replaces its own files; other files with these names, and edited
ones, are renamed to ``NAME~``, with a note on stderr. Replacing results of another text or model, or by fewer results,
needs ``force``.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, get_type_hints

from annotated_types import Len
from pydantic import AfterValidator, FailFast
from typing_extensions import TypedDict

from ...errors import CheckpointError, DataError
from ...files import atomic_write, local_path, sha256, sha256_of, translated
from ...output.formatting import listed
from .. import checking, store
from ..checking import Count, Length, Shape, Wrong, sealed
from ..metrics import METRICS
from ..metrics.base import Metric
from ..metrics.stored import DataFacts, ModelFacts, Tables

RESULTS = "results.json"
LOSSES = "losses.safetensors"

SCHEMA = 1

SERIES = 256
"""The most schedules on one page, which compares every pair."""

ROWS = 20_000


def _matching(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"Input should be {what}")
        return text

    return AfterValidator(check)


Digest = Annotated[str, _matching("[0-9a-f]{64}", "a sha256")]
Beside = Annotated[str, _matching(r"(?!\.)[A-Za-z0-9._=,-]{1,120}", "a file that a run writes")]


class ProtocolFacts(TypedDict, total=False):
    """The fields of the "protocol" part of results.json that are read; the page shows all fields."""

    name: str
    mode: str
    stride: Length | None
    seed: int | None
    named: dict[str, str]


class PassCost(TypedDict):
    """The cost of a pass or of a comparison."""

    schedule: str
    lengths: Annotated[list[Length], FailFast()]
    forward_passes: Count
    forwards: NotRequired[Count]
    positions: NotRequired[Count]
    scored: NotRequired[Count]
    times_one_pass: NotRequired[float]
    split_batches: NotRequired[Count]


class Results(TypedDict):
    """The fields that ``results.json`` of every kind of run has; each metric adds its rows."""

    schema: Literal[1]
    kind: NotRequired[str]
    model: ModelFacts
    data: DataFacts
    protocol: ProtocolFacts
    versions: dict[str, str]
    rows: list[dict[str, Any]]
    cost: NotRequired[Annotated[list[PassCost], FailFast(), Len(0, 10 * ROWS)]]
    files: dict[Beside, Annotated[list[Digest], Len(1, 2)]]
    tables: NotRequired[Tables]
    sha256: Digest


def _rows(metric: Metric[Any, Any]) -> object:
    """Returns the type of a metric's part of results.json."""
    row = TypedDict(metric.row.__name__, get_type_hints(metric.row, include_extras=True))  # type: ignore[misc]
    rows = Annotated[list[row], FailFast(), Len(0, 100 * ROWS)]
    part = TypedDict(metric.key, {"rows": rows}) if metric.has_facts else rows  # type: ignore[misc]
    return part if metric.key in ("rows", "paired") else NotRequired[part]


@cache
def shape_of(kind: str) -> Shape[Results]:
    """Returns the type of ``results.json`` for a kind of run, from its metrics' rows."""
    module, name = KINDS[kind].split(":")
    metrics: tuple[Metric[Any, Any], ...] = getattr(import_module(f"ropescale.evals.{module}"), name).metrics
    parts = {metric.key: _rows(metric) for metric in metrics if metric.key}
    one = TypedDict("SourceResults", {"documents": Count, **parts})  # type: ignore[misc]
    parts["sources"] = NotRequired[dict[str, one]]
    options = {each.name: each.type for metric in metrics for each in metric.options if each.in_protocol}
    protocol = get_type_hints(ProtocolFacts, include_extras=True) | options
    parts["protocol"] = TypedDict("ProtocolFacts", protocol, total=False)  # type: ignore[misc]
    return Shape(TypedDict(kind, {**get_type_hints(Results, include_extras=True), **parts}))  # type: ignore[misc]


KINDS = {
    "perplexity": "results.result:Result",
    "retrieval": "retrieving.results:Retrieval",
    "recommendation": "recommending.results:Recommendation",
    "search": "searching.results:SearchResult",
}
"""The class of each kind of run: its module below ``ropescale.evals``, and its name; imported on demand."""


def check_results(value: Any) -> Results:
    """Checks ``results.json`` of any kind of run.

    Raises:
        Wrong: names the first value that does not fit.
    """
    if value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        raise Wrong("has a schema that this version cannot read")
    kind = value.get("kind", "perplexity")
    if kind not in list(KINDS):
        raise Wrong("has a kind of run that is unknown to this version")
    shape_of(kind)(value)
    schedules = {row["schedule"] for row in value["rows"]}
    if not 0 < len(schedules) <= SERIES:
        raise Wrong(f"has {len(schedules):,} schedules; 1 to {SERIES} can be compared")
    return value


def read_results(path: Path, kind: str | None = None) -> Results:
    """Reads ``results.json`` of a run's folder.

    Args:
        kind: the kind of run it must hold; None accepts every kind.

    Raises:
        DataError: the file is missing, damaged, or from another kind of run.
    """
    file = path / RESULTS
    if not file.is_file():
        what = "has no results.json" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; give a folder that `ropescale eval -o` or `ropescale retrieval -o` wrote")
    try:
        found = checking.checked(file, check_results)
    except Wrong as error:
        raise damaged(file, error) from None
    there = found.get("kind", "perplexity")
    if kind not in (None, there):
        raise DataError(f"{path} holds a {there} run, not a {kind} run; give another folder")
    return found


def damaged(path: Path, error: Wrong | OSError) -> DataError:
    """Returns the error for a file that cannot be used."""
    why = error if isinstance(error, Wrong) else f"cannot be read ({error.strerror or error})"
    return DataError(f"{path} {why}; move it away and run the evaluation again")


# --- the folder

ELSEWHERE = "choose another folder"


def writable_folder(out: str | Path, kind: str = "perplexity") -> Path:
    """Returns the folder that a run will be written into, or refuses it before hours of work.

    Args:
        kind: the kind of run, which is "kind" in results.json unless it is "perplexity".

    Raises:
        CheckpointError: the home folder does not exist; the folder, or the one it would be created in, is a file or
            read-only; it holds a model and no run, or another kind of run.
    """
    folder = _named_folder(out)
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise CheckpointError(f"cannot write into {folder}: {nearest} is a file; {ELSEWHERE}")
    with translated(folder):
        _refuse_model(folder)
        _refuse_other_kind(folder, kind)
    try:  # permissions do not suffice: root may write anywhere except in /proc
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        why = f"no file can be created in {nearest} ({error.strerror})"
        raise CheckpointError(f"cannot write into {folder}: {why}; {ELSEWHERE}") from None
    return folder


def _named_folder(out: str | Path) -> Path:
    """Returns the path with ``~`` expanded; refuses invalid names."""
    folder = local_path(out)
    if not str(out) or str(folder).startswith("~"):
        raise CheckpointError(f"cannot write into {str(out)!r}: there is no such folder; {ELSEWHERE}")
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, or with a null byte
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot write into {str(out)!r}: {why}; {ELSEWHERE}") from None
    return folder


def _refuse_model(folder: Path) -> None:
    """Refuses a model's folder without a run, because results would mix with its files."""
    if not folder.is_dir() or any(os.path.lexists(folder / name) for name in (RESULTS, f"{store.FOLDER}/lock")):
        return
    names = sorted(os.listdir(folder))
    model = next((each for each in names if each in _CONFIGS or (each.endswith(_WEIGHTS) and each != LOSSES)), None)
    if model is not None:
        raise CheckpointError(f"cannot write into {folder}: it holds a model ({model}) and no run; {ELSEWHERE}")


_CONFIGS = ("config.json", "adapter_config.json")
_WEIGHTS = (".safetensors", ".gguf")


def _refuse_other_kind(folder: Path, kind: str) -> None:
    """Refuses a folder with the results, or the batches of a stopped run, of another kind."""
    foreign = store.foreign(folder / store.FOLDER)
    if foreign is not None:
        raise CheckpointError(f"cannot write into {folder}: {foreign} was not written by an evaluation; {ELSEWHERE}")
    there = existing(folder) or store.last_run(folder)
    found = there.get("kind", "perplexity")
    if there and found != kind:
        raise CheckpointError(f"{folder} holds a {found} run, and this is a {kind} run; {ELSEWHERE}")


def existing(folder: Path) -> Results | None:
    """Returns a folder's results; None if they are missing, damaged or edited."""
    path = folder / RESULTS
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return checking.checked(path, check_results)
    except Wrong:
        return None


# --- what would be lost ---


def refuse_loss(folder: Path, results: Mapping[str, Any], force: bool) -> None:
    """Refuses to replace results by fewer results or those of another measurement.

    Args:
        results: the new results.json as far as it is known; its rows have ``schedule`` and ``length``.

    Raises:
        CheckpointError: results would be lost; names them.
    """
    there = None if force else existing(folder)
    lost = lost_from(there, results) if there else ""
    if lost:
        raise CheckpointError(
            f"{folder} holds {lost}; {ELSEWHERE}, or replace its results with force",
            "out",
            "force",
        )


def lost_from(there: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Describes a folder's results that new results lack, as the object of a sentence; "" for none."""
    kind = there.get("kind", "perplexity")
    for part, names in _IDENTITY.items():
        for name, what in names.items():
            if kind == "retrieval" and part == "data":  # its hash is over the prompts of all lengths
                continue
            if name in there[part] and there[part][name] != results[part].get(name):
                return f"results of another {what}"
    if kind == "retrieval" and there["protocol"].get("seed") != results["protocol"].get("seed"):
        return "results of another seed"
    if kind not in ("perplexity", "retrieval"):  # the above determines the rows of the other kinds
        return ""
    cells = [{(row["schedule"], row.get("length")) for row in each["rows"]} for each in (there, results)]
    schedules = sorted({schedule for schedule, _ in cells[0]} - {schedule for schedule, _ in cells[1]})
    if schedules:
        return f"results of {listed(schedules)}, which this run leaves out"
    lengths = sorted({length for _, length in cells[0] - cells[1]})
    if lengths:
        return f"results at {listed([f'{length:,}' for length in lengths])} tokens, which this run leaves out"
    compared = [any(row.get("kl") is not None for row in each.get("paired", ())) for each in (there, results)]
    parts = ["the short-context cost"] if compared == [True, False] else []
    parts += [each.called for each in METRICS if each.called and there.get(each.key) and not results.get(each.key)]
    return f"figures of {listed(parts)}, which this run leaves out" if parts else ""


_IDENTITY = {
    "model": {"weights": "model", "config_sha256": "configuration", "dtype": "dtype"},
    "data": {"sha256": "text"},
    "protocol": {
        name: name.replace("_", " ")
        for name in ("name", "task", "depths", "trials", "mode", "bos", "stride", "score", "target_length", "engine")
    },
}


# --- writing ---


def write(folder: Path, results: Mapping[str, object], files: Mapping[str, bytes], force: bool = False) -> None:
    """Writes ``results.json`` and the files beside it, each by renaming a temporary file.

    Raises:
        CheckpointError: the folder holds more results, or other ones, or the disk is full or cannot be written.
    """
    refuse_loss(folder, results, force)
    with translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
        there = existing(folder)
        listed_there = {} if there is None else there.get("files", {})
        digests = {name: [sha256(content)] for name, content in files.items()}
        names = [*digests, *(name for name in listed_there if name not in digests)]
        known = {name: [*digests.get(name, []), *listed_there.get(name, [])] for name in names}
        if there is None:
            _move_foreign_aside(folder / RESULTS, [])
        atomic_write(folder / RESULTS, sealed({**results, "files": known}))
        for name in names:
            _move_foreign_aside(folder / name, known[name])
            if name in files:
                atomic_write(folder / name, files[name])
            else:  # a metric or picture that the new results lack
                (folder / name).unlink(missing_ok=True)
        atomic_write(folder / RESULTS, sealed({**results, "files": digests}))


def _move_foreign_aside(path: Path, digests: Iterable[str]) -> None:
    """Moves aside a file with a run's file name, unless it has one of these hashes."""
    ours = not path.is_symlink() and path.is_file() and sha256_of(path) in digests
    if os.path.lexists(path) and not ours:
        store.move_aside(path, "was not written by an evaluation, or was edited since")
