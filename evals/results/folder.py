"""The files of a run's folder: what is refused, what is replaced, and what is moved out of the way.

``results.json`` lists every file beside it with its sha256; while files are being replaced, it lists the old and the
new ones, so a run that was killed at any moment still recognizes its own. Those are replaced. Whatever else has one of
these names, or was edited, is renamed to ``NAME~``, and a line on stderr says so. Results of another text or model, and
fewer than are there, need ``force``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ...files import atomic_write, local_path, sha256, sha256_of
from ...output.formatting import listed
from .. import checking, store
from ..checking import Wrong, sealed
from ..metrics import METRICS
from .formats import LOSSES, RESULTS, Results, check_results

ELSEWHERE = "choose another folder"


def writable_folder(out: str | Path, kind: str = "perplexity") -> Path:
    """Returns the folder that a run will be written into, or refuses it before hours of work.

    Args:
        kind: the kind of run; results.json has it under "kind" unless it is "perplexity".

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
    try:  # permissions do not tell: root may write anywhere, but not in /proc
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        why = f"no file can be created in {nearest} ({error.strerror})"
        raise CheckpointError(f"cannot write into {folder}: {why}; {ELSEWHERE}") from None
    return folder


def _named_folder(out: str | Path) -> Path:
    """Returns the path with ``~`` expanded, and refuses a name that no folder can have."""
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
    """Refuses the folder of a model, into whose files nobody means to mix those of a first run."""
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
        raise CheckpointError(f"cannot write into {folder}: {foreign} is not what an evaluation wrote; {ELSEWHERE}")
    there = existing(folder) or store.last_run(folder)
    found = there.get("kind", "perplexity")
    if there and found != kind:
        raise CheckpointError(f"{folder} holds a {found} run, and this is a {kind} run; {ELSEWHERE}")


def existing(folder: Path) -> Results | None:
    """Returns the results that a folder holds; None where there are none, or where they are damaged or edited."""
    path = folder / RESULTS
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return checking.checked(path, check_results)
    except Wrong:
        return None


# --- what would be lost ---


def refuse_loss(folder: Path, results: Mapping[str, Any], force: bool) -> None:
    """Refuses to replace results by those of something else, or by fewer.

    Args:
        results: results.json as it will be, as far as it is known; of rows, ``schedule`` and ``length``.

    Raises:
        CheckpointError: names what would be lost.
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
    """Returns what results lack that a folder holds, as the object of a sentence; "" for nothing."""
    kind = there.get("kind", "perplexity")
    for part, names in _IDENTITY.items():
        for name, what in names.items():
            if kind == "retrieval" and part == "data":  # that is of the prompts of all lengths
                continue
            if name in there[part] and there[part][name] != results[part].get(name):
                return f"results of another {what}"
    if kind == "retrieval" and there["protocol"].get("seed") != results["protocol"].get("seed"):
        return "results of another seed"
    if kind not in ("perplexity", "retrieval"):  # what others measure follows from the above
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
    """Writes ``results.json`` and the files beside it; each is written under another name and then renamed.

    Raises:
        CheckpointError: the folder holds more, or something else; or the disk is full or cannot be written.
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
            else:  # of what is measured no more, or drawn no more
                (folder / name).unlink(missing_ok=True)
        atomic_write(folder / RESULTS, sealed({**results, "files": digests}))


def _move_foreign_aside(path: Path, digests: Iterable[str]) -> None:
    """Renames what has the name of a file of ours, unless it is a file with one of these hashes."""
    ours = not path.is_symlink() and path.is_file() and sha256_of(path) in digests
    if os.path.lexists(path) and not ours:
        store.move_aside(path, "is not what an evaluation wrote, or was edited since")


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Turns what the system says about the disk into one sentence.

    Raises:
        CheckpointError: something below the folder cannot be read or written.
    """
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot write into {folder}: {error.strerror or error}") from error
