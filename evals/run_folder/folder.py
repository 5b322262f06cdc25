"""Writes a run's folder, and replaces only files that a run wrote.

``results.json`` lists every file beside it with its sha256; while a file is being replaced, it lists the old and the
new one. It is written before the others, so a run that was killed at any moment still recognises its files. Any other
file is refused by name. Versions before 0.1.0 wrote no such list; their files are recognised by their content, see
:mod:`ropescale.evals.run_folder.older`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ...files import atomic_path, local_path, sweep_leftovers
from ..resuming import finished_batches
from . import checking, formats, nll, older
from .checking import Wrong, sealed, sha256
from .formats import Results
from .leftovers import RESULTS, WRITTEN, is_regular

NLL = "nll"
ELSEWHERE = "choose another folder"

_LARGEST = 2**30
"""The largest file that a run writes, in bytes. A million answers take a tenth of it."""


@dataclass(frozen=True)
class There:
    """The files of an earlier run in a folder.

    Attributes:
        results: the sha256 of ``results.json``, if there is one.
        files: by name, the sha256 of the files that it lists.
        nll: by name, the sha256 of the files below ``nll/``.
    """

    results: str | None
    files: dict[str, str]
    nll: dict[str, str]


def writable_folder(out: str | Path, kind: str = "perplexity") -> Path:
    """Returns the folder that a run will be written into, or refuses it before hours of work.

    Args:
        kind: the kind of run; results.json has it under "kind" unless it is "perplexity".

    Raises:
        CheckpointError: the home folder does not exist; the folder, or the one it would be created in, is a file or
            read-only; it holds a model and no run; or files that no run wrote, or results of another kind of run.
    """
    return opened_folder(out, kind)[0]


def opened_folder(out: str | Path, kind: str) -> tuple[Path, There]:
    """Returns the folder as :func:`writable_folder` does, with the files of an earlier run in it."""
    folder = _named_folder(out)
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise CheckpointError(f"cannot write into {folder}: {nearest} is a file; {ELSEWHERE}")
    with finished_batches.kept(folder, what=None):
        _refuse_model(folder)
    _try_writing(folder, nearest)
    with finished_batches.kept(folder, what=None):
        return folder, check(folder, kind)


def _refuse_model(folder: Path) -> None:
    """Refuses the folder of a model, into whose files nobody means to mix those of a first run."""
    if not folder.is_dir() or any(os.path.lexists(folder / name) for name in _RUNS):
        return
    model = next((name for name in sorted(os.listdir(folder)) if name in _MODELS or name.endswith(_WEIGHTS)), None)
    if model is not None:
        raise CheckpointError(f"cannot write into {folder}: it holds a model ({model}) and no run; {ELSEWHERE}")


_RUNS = (RESULTS, f"{finished_batches.FOLDER}/lock")
_MODELS = ("config.json", "adapter_config.json")
_WEIGHTS = (".safetensors", ".gguf")


def _try_writing(folder: Path, nearest: Path) -> None:
    """Creates a file, because permissions do not tell: root may write anywhere, but not in /proc."""
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        why = f"no file can be created in {nearest} ({error.strerror})"
        raise CheckpointError(f"cannot write into {folder}: {why}; {ELSEWHERE}") from None


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


def check(folder: Path, kind: str) -> There:
    """Returns the files of an earlier run in a folder, after checking that the run may replace all of them.

    Raises:
        CheckpointError: names a file that no run wrote, that was changed since, or that another kind of run wrote.
    """

    there = [name for name in WRITTEN[kind] if os.path.lexists(folder / name)]

    def refused(path: Path, why: str, what: str = "it") -> CheckpointError:
        away = "" if why.startswith(("is not what an", "is of")) else f"move {what} away, or "
        return CheckpointError(f"cannot write into {folder}: {path} {why}; {away}{ELSEWHERE}")

    foreign = finished_batches.foreign(folder / finished_batches.FOLDER)
    if foreign is not None:
        raise refused(foreign, "is not what an evaluation wrote")
    _refuse_other_kind(folder, kind, refused)
    results = _results(folder / RESULTS, there, refused)
    if results is None and there:
        why = "is not known to be what an evaluation wrote (there is no results.json that lists it)"
        raise refused(folder / there[0], why, _joined(there))
    return There(
        None if results is None else sha256(checking.content(folder / RESULTS)),
        {name: _own(folder / name, results, refused) for name in there if results},
        nll.check(folder / NLL, refused) if kind == "perplexity" else {},
    )


def _joined(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _refuse_other_kind(folder: Path, kind: str, refused: nll.Refused) -> None:
    """Refuses a folder with the results, or the batches of a stopped run, of another kind."""
    for path in (folder / RESULTS, folder / finished_batches.FOLDER / "run.json"):
        there = _kind_in(path)
        if there not in (None, kind):
            what = f"is of a {there} run, and this is a {kind} run" if there else "is not what an evaluation wrote"
            raise refused(path, what)


def _results(path: Path, beside: Sequence[str], refused: nll.Refused) -> Results | None:
    """Reads ``results.json``, if there is one."""
    if not os.path.lexists(path):
        return None
    try:
        if path.is_symlink():
            raise Wrong("is a link")
        return checking.checked(path, formats.results)
    except Wrong as error:
        raise refused(path, str(error), _joined([RESULTS, *beside])) from None


def _kind_in(path: Path) -> str | None:
    """Returns the kind of run that wrote a file; None if it is missing or damaged, "" if no run wrote it."""
    if not os.path.lexists(path):
        return None
    try:
        found = checking.parsed(path)
    except Wrong:
        return None
    kind = found.get("kind", "perplexity")
    if {"schema", "facts"} & found.keys() and isinstance(kind, str) and kind in WRITTEN:
        return kind
    return "" if path.name == RESULTS else None  # resuming sets a foreign record aside


def _own(path: Path, results: Results, refused: nll.Refused) -> str:
    """Returns the sha256 of a file that ``results.json`` lists."""
    listed = results.get("files")
    if not is_regular(path) or (listed is not None and path.name not in listed):
        raise refused(path, "is not what an evaluation wrote")
    try:
        content = checking.content(path, _LARGEST)
    except (Wrong, OSError) as error:
        raise refused(path, str(error)) from None
    if listed is None and not older.is_ours(path.name, content, results):
        raise refused(path, "is not what a version before 0.1.0 wrote for the results beside it")
    if listed is not None and sha256(content) not in listed[path.name]:
        raise refused(path, "was changed since it was written")
    return sha256(content)


def identity(results: Mapping[str, Any]) -> str:
    """Returns a hash of what was measured. ``nll/`` stores it too, which shows that both belong together."""
    about = [[part, name, results[part].get(name)] for part, names in _IDENTITY.items() for name in names]
    return sha256(json.dumps(about).encode())


_IDENTITY = {
    "model": ("weights", "config_sha256", "dtype"),
    "data": ("sha256",),
    "protocol": ("name", "mode", "bos", "stride"),
}


class Book:
    """``results.json`` with its list of the files beside it, kept up to date while they are written.

    Args:
        results: its content without that list.
        there: the files that :func:`check` found.
    """

    def __init__(self, folder: Path, results: Mapping[str, object], there: There) -> None:
        self.folder, self.results = folder, results
        self._there, self._last = dict(there.files), there.results

    def write(self, files: Mapping[str, bytes | str]) -> None:
        """Lists files in ``results.json``, then writes them beside it.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        contents = {name: _encoded(each) if isinstance(each, str) else each for name, each in files.items()}
        digests = {name: sha256(content) for name, content in contents.items()}
        self._note(digests)
        for name, content in contents.items():
            replace(self.folder / name, content, self._there.get(name))
        self._there |= digests

    def close(self) -> None:
        """Removes from the list what was there before.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        self._note({})

    def _note(self, coming: Mapping[str, str]) -> None:
        names = sorted({*self._there, *coming})
        pairs = {name: [coming.get(name), self._there.get(name)] for name in names}
        listed = {name: list(dict.fromkeys(each for each in pair if each)) for name, pair in pairs.items()}
        text = sealed({**self.results, "files": listed}).encode()
        replace(self.folder / RESULTS, text, self._last)
        self._last = sha256(text)


def replace(path: Path, content: bytes, before: str | None) -> None:
    """Writes a file in place of the one that was found there, and of no other; not again if it is the same.

    Args:
        before: the sha256 of the file to replace; None if there was none.

    Raises:
        CheckpointError: another file has this name by now; it stays.
        OSError: the disk is full or cannot be written.
    """

    def check(there: Path) -> None:
        if not is_regular(there) or sha256(checking.content(there, _LARGEST)) != before:
            raise changed

    if before == sha256(content):
        sweep_leftovers(path)
        return
    changed = CheckpointError(
        f"cannot write {path}: it has appeared or changed meanwhile; move it away, or {ELSEWHERE}"
    )
    try:
        with atomic_path(path, new=before is None, check=check) as beside:
            beside.write_bytes(content)
    except (FileExistsError, Wrong):
        raise changed from None


def _encoded(text: str) -> bytes:
    """Encodes a text as UTF-8; bytes of a file name that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace")
