"""The per-token losses in a run's folder: ``nll/<schedule>/<fed length>/<document>.npy``, and ``index.json``.

The index lists every file with its sha256, so that a changed byte is noticed and only listed files are replaced. It
is written first, so a run that is killed leaves no unlisted file. Files of an older measurement are listed under
``before`` until they are replaced or removed. An index from before 0.1.0 has no checksums; there a file must have a
listed name and hold such an array.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ...files import SUFFIX, atomic_write, hidden_name
from . import checking, formats
from .checking import Wrong, sealed, sha256
from .leftovers import is_regular

INDEX = "index.json"
_MOST = 128 * 2**20
"""The largest index that is read, in bytes; each document of each pass takes a hundred."""

_LARGEST = 2**30
"""The largest file of one document's losses, in bytes: 268 million tokens."""

_HEADER = 128

Array = tuple[str, Callable[[], np.ndarray]]
"""A file's name below ``nll/``, and a function that makes its content."""

Refused = Callable[..., CheckpointError]
"""Makes an error from a path, what is wrong with it, and optionally what to move away."""


def name_of(at: str, number: int) -> str:
    """Returns the name of the file of a document's losses."""
    return f"{at}/{number:05d}.npy"


def read_index(folder: Path) -> formats.Index:
    """Reads ``index.json`` of the folder ``nll/``.

    Raises:
        Wrong: it is damaged, or no evaluation wrote it.
    """
    return checking.checked(folder / INDEX, formats.index, _MOST)


def read(path: Path, wanted: str | None, rows: int = 0) -> np.ndarray:
    """Reads an array, fp32 [tokens] or [rows, tokens].

    Args:
        wanted: its sha256, if known.

    Raises:
        Wrong: it was changed, or is not such an array.
        OSError: it cannot be read.
    """
    found = checking.content(path, _LARGEST)
    if wanted is not None and sha256(found) != wanted:
        raise Wrong("is not as it was written (its checksum differs)")
    count, over = divmod(len(found) - _HEADER, 4 * max(rows, 1))
    shape = (rows, count) if rows else (count,)
    if count < 0 or over or found[:_HEADER] != _header(shape):
        raise Wrong("does not hold the losses of a document")
    values = np.frombuffer(found, "<f4", offset=_HEADER).reshape(shape)
    if not np.isfinite(values).all():
        raise Wrong("holds losses that are not finite")
    return values


def _header(shape: tuple[int, ...]) -> bytes:
    """Returns the header that numpy writes before an array, so that no header of a file is ever evaluated."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def _bytes(values: np.ndarray) -> bytes:
    return _header(values.shape) + np.ascontiguousarray(values, "<f4").tobytes()


def _listed(index: formats.Index) -> dict[str, list[str]]:
    """Returns the files that an index lists, each with the checksums it may have; none if none were stored."""
    found: dict[str, list[str]] = {}
    for one in formats.stored_in(index):
        for number in range(len(index["documents"])):
            found[name_of(one["at"], number)] = one["files"][number : number + 1] if "files" in one else []
    for name, digest in index.get("before", {}).items():
        found.setdefault(name, []).append(digest)
    return found


# --- checking ---


def check(folder: Path, refused: Refused) -> dict[str, str]:
    """Returns the files below ``nll/`` with their sha256, after checking that an evaluation wrote all of them.

    Args:
        refused: makes the error that names a foreign file.
    """
    if not os.path.lexists(folder):
        return {}
    if folder.is_symlink() or not folder.is_dir():
        raise refused(folder, "is not what an evaluation wrote")
    there = [name for name in _walk(folder) if name != INDEX]
    if not os.path.lexists(folder / INDEX):
        if foreign := [name for name in there if not _left_by(name)]:
            raise refused(folder / foreign[0], "is not what an evaluation wrote")
        return {}
    try:
        listed = _listed(read_index(folder))
    except Wrong as error:
        raise refused(folder / INDEX, str(error), "nll/") from None
    return {name: _own(folder / name, listed.get(name), refused) for name in there if not _left_by(name)}


def _walk(folder: Path, below: str = "") -> Iterator[str]:
    """Yields the names below ``nll/`` of everything that is not a folder; does not follow links."""
    for entry in sorted(os.scandir(folder / below), key=lambda entry: entry.name):
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False) and name.count("/") < 3:
            yield from _walk(folder, name)
        else:
            yield name


_LEFT = re.compile(r"((?:.*/)?)\.([^/]+)\.[0-9a-f]{16}" + re.escape(SUFFIX) + "(-lock)?")


def _left_by(name: str) -> str | None:
    """Returns the file that a killed writer was about to write, if this is the name of such a part."""
    found = _LEFT.fullmatch(name)
    target = f"{found[1]}{found[2]}" if found else ""
    return target if target == INDEX or formats.ARRAY.fullmatch(target) else None


def _own(path: Path, digests: list[str] | None, refused: Refused) -> str:
    if digests is None or not is_regular(path):
        raise refused(path, "is not what an evaluation wrote")
    try:
        found = sha256(checking.content(path, _LARGEST))
        if digests and found not in digests:
            raise Wrong("is not as the evaluation wrote it (its checksum differs)")
        if not digests:
            read(path, None, 2 if path.parent.name.endswith("-divergence") else 0)
    except (Wrong, OSError) as error:
        raise refused(path, str(error)) from None
    return found


# --- writing ---


def write(folder: Path, index: dict[str, Any], arrays: Iterable[Array], there: dict[str, str]) -> None:
    """Makes ``nll/`` hold these arrays and their index.

    Args:
        index: fits :func:`ropescale.evals.run_folder.formats.index`, without checksums.
        there: the files that :func:`check` found.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    made = list(arrays)
    digests = {name: sha256(_bytes(values())) for name, values in made}
    whole = _with_checksums(index, digests)
    before = {name: digest for name, digest in there.items() if digests.get(name) != digest}
    folder.mkdir(exist_ok=True)
    for name in filter(_left_by, list(_walk(folder))):
        (folder / name).unlink()
    atomic_write(folder / INDEX, sealed(whole | ({"before": before} if before else {})))
    missing = [(folder / name, values) for name, values in made if there.get(name) != digests[name]]
    for path in (folder / name for name in digests if name not in there):
        if os.path.lexists(path):
            raise CheckpointError(f"cannot write {path}: it has appeared meanwhile; move it away")
    written = [_put(path, _bytes(values())) for path, values in missing]
    _remove(folder, {name: digest for name, digest in before.items() if name not in digests})
    _settle(written)
    if before:
        atomic_write(folder / INDEX, sealed(whole))


def _with_checksums(index: dict[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    count = len(index["documents"])

    def known(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, "files": [digests[name_of(one["at"], n)] for n in range(count)]} for one in made]

    kinds = ("passes", "divergences", "truncation")
    return {**index, **{key: known(index[key]) for key in kinds if key in index}}


def _put(path: Path, content: bytes) -> Path:
    """Writes a file in one step; :func:`ropescale.files.atomic_write` would look through the folder each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(hidden_name(path.name))
    try:
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    return path


def _settle(written: Iterable[Path]) -> None:
    """Waits until files have reached the disk; all at the end, because the first wait also flushes the others."""
    for path in written:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _remove(folder: Path, old: Mapping[str, str]) -> None:
    """Removes unchanged files of an older measurement, and the folders that are then empty."""
    for name, digest in old.items():
        path = folder / name
        with suppress(Wrong, FileNotFoundError):
            if not path.is_symlink() and sha256(checking.content(path, _LARGEST)) == digest:
                path.unlink()
    for pattern, file in (("*/*", "00000.npy"), ("*", "0/00000.npy")):
        for below in folder.glob(pattern):
            if formats.ARRAY.fullmatch(f"{below.relative_to(folder).as_posix()}/{file}"):
                with suppress(OSError):  # it is not empty, or no folder
                    below.rmdir()
