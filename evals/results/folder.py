"""The files of a run's folder, and the rules for replacing them and moving them aside.

``results.json`` lists every file next to it with its sha256. While results are being replaced, it lists the new hash
and then the old hash, so that the files are still recognized if the process is killed. A run replaces its own files.
Foreign files with the same names, and edited files, are renamed to ``NAME~``, with a note on stderr. Replacing results
of a different text or model, or replacing results by fewer results, requires ``force``.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from ...errors import CheckpointError, DataError
from ...files import (
    Contents,
    Data,
    Json,
    atomic_path,
    atomic_write,
    local_path,
    made_folder,
    sha256,
    sha256_of,
    translated,
)
from ...output.formatting import listed, visible
from .. import store
from ..checking import Damaged, Parsed, fitting, sealed, unsealed
from ..facts import DataFacts, Key, ModelFacts, Tables

RESULTS = "results.json"
LOSSES = "losses.safetensors"

_NAME = re.compile(r"[\w-][\w.-]*\.\w+")
"""The name of a file beside ``results.json``."""

SCHEMA = 2

KINDS = ("perplexity", "retrieval", "recommendation", "search")


class Conclusions(TypedDict):
    """The sentences of ``results.json``."""

    sentences: list[str]
    rests_on: str
    unfinished: NotRequired[str]


class Results(Conclusions):
    """The fields of ``results.json`` that all kinds of runs share; each metric adds its rows."""

    kind: NotRequired[str]
    model: ModelFacts
    data: DataFacts
    protocol: dict[str, Any]
    versions: dict[str, str]
    report: NotRequired[list[Any]]
    rows: list[dict[str, Any]]
    files: dict[str, list[str]]
    tables: NotRequired[Tables]
    sources: NotRequired[dict[str, Any]]


def read_results(path: Path, kind: str | None = None) -> Results:
    """Reads ``results.json`` from a run's folder.

    Args:
        kind: the kind of run that the folder must contain; None accepts every kind.

    Raises:
        DataError: the file is missing or damaged, or belongs to a different kind of run.
    """
    file = path / RESULTS
    if not file.is_file():
        if (path / store.FOLDER).is_dir():
            words = store.last_run(path).get("command")
            command = f": {visible(words)}" if isinstance(words, str) else f" with `-o {path}`"
            raise DataError(f"{path} holds a run that is not finished; repeat its command to continue{command}")
        what = "has no results.json" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; give a folder that `ropescale eval -o` or `ropescale retrieval -o` wrote")
    with refusing_damage(file):
        found = cast(Results, unsealed(file))
        there = found.get("kind", "perplexity")
        if cast(Data, found).get("schema") != SCHEMA or there not in KINDS:
            raise Damaged("has a schema or a kind of run that this version cannot read")
        fitting(found, Conclusions)
    if kind not in (None, there):
        raise DataError(f"{path} holds a {there} run, not a {kind} run; give another folder")
    return found


@contextmanager
def refusing_damage(file: Path) -> Iterator[None]:
    """Converts errors inside the block to an error that names the file.

    Raises:
        DataError: the file cannot be read, or lacks figures.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        why = error if isinstance(error, Damaged) else "lacks figures, or was written by another version"
        raise DataError(f"{file} {why}; move it away and run the evaluation again") from None


# --- the folder

ELSEWHERE = "choose another folder"


def writable_folder(out: str | Path, kind: str = "perplexity") -> Path:
    """Returns the folder that a run will be written into, or raises an error before hours of work.

    Args:
        kind: the kind of run, which is "kind" in results.json unless the kind is "perplexity".

    Raises:
        CheckpointError: the home folder does not exist; the folder, or the folder that it would be created in, is a
            file or read-only; or the folder contains a model and no run, or a different kind of run.
    """
    folder = local_path(out)
    if not str(out) or str(folder).startswith("~"):
        raise CheckpointError(f"cannot write into {str(out)!r}: there is no such folder; {ELSEWHERE}")
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise CheckpointError(f"cannot write into {folder}: {nearest} is a file; {ELSEWHERE}")
    with translated(folder):
        _refuse_model(folder)
        foreign = store.foreign(folder / store.FOLDER)
        if foreign is not None:
            raise CheckpointError(
                f"cannot write into {folder}: {foreign} was not written by an evaluation; {ELSEWHERE}"
            )
        there = existing(folder) or store.last_run(folder)
        found = there.get("kind", "perplexity")
        if there and found != kind:
            raise CheckpointError(f"{folder} holds a {found} run, and this is a {kind} run; {ELSEWHERE}")
        # Permissions do not suffice: root may write anywhere except in /proc.
        with tempfile.TemporaryFile(dir=nearest):
            pass
    return folder


def _refuse_model(folder: Path) -> None:
    """Checks that a folder does not contain a model without a run, because results would mix with the model's files.

    Raises:
        CheckpointError: the folder contains a model and no run.
    """
    if not folder.is_dir() or any(os.path.lexists(folder / name) for name in (RESULTS, f"{store.FOLDER}/lock")):
        return
    configs = ("config.json", "adapter_config.json")
    weights = (".safetensors", ".gguf")
    for name in sorted(os.listdir(folder)):
        if name in configs or (name.endswith(weights) and name != LOSSES):
            raise CheckpointError(f"cannot write into {folder}: it holds a model ({name}) and no run; {ELSEWHERE}")


def existing(folder: Path) -> Results | None:
    """Returns the results in a folder; None if they are missing, damaged or edited."""
    if (folder / RESULTS).is_symlink():
        return None
    try:
        return read_results(folder)
    except DataError:
        return None


# --- what would be lost ---


def refuse_loss(folder: Path, results: Parsed, force: bool) -> None:
    """Checks that new results would not replace more results, or the results of a different measurement.

    Args:
        results: the new results.json as far as it is known; each row needs ``schedule`` and ``length``.
        force: whether to skip the check.

    Raises:
        CheckpointError: results would be lost; the message names them.
    """
    there = None if force else existing(folder)
    with refusing_damage(folder / RESULTS):
        lost = lost_from(there, results) if there else ""
    if lost:
        raise CheckpointError(
            f"{folder} holds {lost}; {ELSEWHERE}, or allow to replace its results",
            "out",
            "force",
        )


def lost_from(there: Parsed, results: Parsed) -> str:
    """Describes the results in a folder that new results lack, as the object of a sentence; "" if none are lost."""
    if results.get("unfinished") and not there.get("unfinished"):
        return "the results of a whole run"
    kind = there.get("kind", "perplexity")
    for part, names in _IDENTITY.items():
        for name, what in names.items():
            if kind == "retrieval" and part == "data":  # a retrieval's hash covers the prompts of all lengths
                continue
            if name in there[part] and there[part][name] != results[part].get(name):
                return f"results of another {what}"
    if kind == "retrieval" and there["protocol"].get("seed") != results["protocol"].get("seed"):
        return "results of another seed"
    if kind not in ("perplexity", "retrieval"):  # the facts above determine the rows of all other kinds
        return ""
    lost = sorted(_cells(there) - _cells(results))
    if lost:
        schedule, length = lost[0]
        others = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        return f"results of {schedule} at {length:,} tokens{others}, which this run leaves out"
    parts = ["the short-context cost"] if _has_divergences(there) and not _has_divergences(results) else []
    parts += [name for key, name in _OPTIONAL.items() if there.get(key) and not results.get(key)]
    return f"figures of {listed(parts)}, which this run leaves out" if parts else ""


def _cells(results: Parsed) -> set[Key]:
    return {(row["schedule"], row["length"]) for row in results["rows"]}


def _has_divergences(results: Parsed) -> bool:
    return any(row.get("kl") is not None for row in results.get("paired", ()))


_OPTIONAL = {"truncation": "truncation", "repeats": "far repeats", "key_tokens": "key tokens"}
"""The parts of results that options leave out, and their names in messages."""


_IDENTITY = {
    "model": {"weights": "model", "config_sha256": "configuration", "dtype": "dtype"},
    "data": {"sha256": "text"},
    "protocol": {
        name: name.replace("_", " ")
        for name in "name task depths trials mode bos stride score target_length engine".split()
    },
}


# --- writing ---


def write(folder: Path, results: Json, files: Contents, force: bool = False) -> None:
    """Writes ``results.json`` and the files next to it, each by renaming a temporary file.

    Raises:
        CheckpointError: the folder contains more results or different ones, or the files cannot be written.
    """
    refuse_loss(folder, results, force)
    with made_folder(folder), translated(folder):
        there = existing(folder)
        listed_there = there["files"] if there else {}
        if not all(map(_NAME.fullmatch, listed_there)):
            raise CheckpointError(f"{folder / RESULTS} lists files outside the folder; {ELSEWHERE}")
        digests = {name: [sha256(content)] for name, content in files.items()}
        known = {name: digests.get(name, []) + listed_there.get(name, []) for name in digests | listed_there}
        with ExitStack() as written:  # first all files beside their places, because the disk may be full
            for name, content in files.items():
                written.enter_context(atomic_path(folder / name)).write_bytes(content)
            begun = written.enter_context(atomic_path(folder / RESULTS))  # the last one, which is renamed first
            begun.write_bytes(sealed({**results, "files": known}).encode())
            if there is None:
                _move_foreign_aside(folder / RESULTS, [])
            for name, hashes in known.items():
                _move_foreign_aside(folder / name, hashes)
        for name in listed_there.keys() - files.keys():  # a metric or picture that the new results lack
            (folder / name).unlink(missing_ok=True)
        atomic_write(folder / RESULTS, sealed({**results, "files": digests}))


def _move_foreign_aside(path: Path, digests: Iterable[str]) -> None:
    """Moves aside a file with the name of a run's file, unless the file has one of these hashes."""
    ours = not path.is_symlink() and path.is_file() and sha256_of(path) in digests
    if os.path.lexists(path) and not ours:
        store.move_aside(path, "was not written by an evaluation, or was edited since")
