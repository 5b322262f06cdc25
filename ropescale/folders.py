"""Making a checkpoint's folder out of another's: weights linked, the rest copied, there whole or not at all."""

from __future__ import annotations

import errno
import fnmatch
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from .backups import BACKUP
from .errors import CheckpointError
from .records import NAME as RECORD

LINKS = ("auto", "hard", "symlink", "copy")
"""The ways a weight file may come over."""

_WEIGHTS = (
    "*.safetensors pytorch_model*.bin model*.bin consolidated*.pth consolidated*.pt *.gguf tf_model*.h5 "
    "flax_model*.msgpack *.onnx *.onnx_data"
).split()
SKIPPED = {".git", ".gitattributes", ".cache", ".huggingface", ".locks", "__pycache__", ".ipynb_checkpoints", BACKUP}


def is_weight(name: str) -> bool:
    """Whether a file of this name holds weights."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in _WEIGHTS)


def files_of(folder: Path) -> list[Path]:
    """Every file of a checkpoint, relative to its folder, sorted; version control and caches left out.

    Links to folders are followed, because nothing but their content is wanted; one that leads back up is not.
    """
    files = list(islice(_walk(folder, Path(), frozenset({os.path.realpath(folder)})), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise CheckpointError(f"{folder} holds more than {MOST_FILES} files; give the checkpoint's own folder")
    return sorted(files)


MOST_FILES = 100_000
"""Of a checkpoint; links to folders that hold links to one another can make endlessly many of a few."""


def _walk(folder: Path, below: Path, above: frozenset[str]) -> Iterator[Path]:
    for entry in os.scandir(folder / below):
        name = below / entry.name
        if entry.name in SKIPPED:
            continue
        if _leads_to_itself(folder / name):
            raise CheckpointError(f"{folder / name} is a link that leads back to itself; remove it")
        if not os.path.isdir(folder / name):
            yield name
        elif (real := os.path.realpath(folder / name)) not in above:
            yield from _walk(folder, name, above | {real})


def _leads_to_itself(path: Path) -> bool:
    """Whether a link, or the links that it leads to, never arrive anywhere."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def check_target(source: Path, out: str | Path, force: bool) -> Path:
    """The folder to make, once it is certain that making it harms nothing.

    Raises:
        CheckpointError: it exists, is or holds the source or its weights, or lies under a file.
    """
    try:
        target = Path(out).expanduser()
        here, there = source.resolve(), target.resolve()
    except (RuntimeError, ValueError) as error:  # a home that nobody has, a null byte
        raise CheckpointError(f"{str(out)!r} cannot be written: {error}; choose another folder") from None
    if here == there:
        raise CheckpointError(f"{target} is the source itself; choose another folder, or use --in-place")
    if here in there.parents or there in here.parents:
        raise CheckpointError(f"{target} and the source {source} lie inside one another; choose another folder")
    if os.path.lexists(target):
        _refuse_to_replace(source, target, force)
    nearest = next(parent for parent in target.absolute().parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise CheckpointError(f"{target} cannot be written: {nearest} is not a folder; choose another place")
    return target


def _refuse_to_replace(source: Path, target: Path, force: bool) -> None:
    """``--force`` replaces what ropescale wrote: no other files, nor weights that are about to be linked."""
    if not force:
        raise CheckpointError(f"{target} exists already; choose another folder, or replace it with --force")
    empty = target.is_dir() and not any(target.iterdir())
    if not (empty or (target / RECORD).exists()):
        raise CheckpointError(
            f"{target} was not written by ropescale (no {RECORD}), so --force leaves it; remove it yourself"
        )
    there = target.resolve()
    for name in files_of(source):
        if is_weight(name.name) and there in (source / name).resolve().parents:
            raise CheckpointError(
                f"{target} holds the weights that {source / name} links to, so replacing it would destroy them; "
                "choose another folder"
            )


def write_folder(source: Path, target: Path, files: Mapping[str, bytes], link: str) -> dict[str, str]:
    """Builds the folder beside its final place and renames it: it is there whole, or not at all.

    Args:
        files: the content of every file that differs from the source's, or is not there.
        link: how weights come over, one of :data:`LINKS`.

    Returns:
        How each weight file came over, ``{name: "hard" | "symlink" | "copy"}``.

    Raises:
        CheckpointError: something cannot be read or written; nothing is left behind.
    """
    with translated(target), _building_beside(target) as building:
        links = {}
        for name in files_of(source):
            if name.as_posix() in files:
                continue
            (building / name).parent.mkdir(parents=True, exist_ok=True)
            how = _bring(source / name, building / name, link if is_weight(name.name) else None)
            links |= {name.as_posix(): how} if how else {}
        for text, content in files.items():
            (building / text).write_bytes(content)
        _swap_in(building, target)
    return links


def _bring(path: Path, destination: Path, link: str | None) -> str | None:
    """Links a weight file; copies any other, because a later ``save_pretrained`` would write through a link."""
    real = path.resolve()
    if not real.exists():
        raise CheckpointError(f"{path} is a link to {real}, which does not exist; is the download complete?")
    if not real.is_file():
        raise CheckpointError(f"{path} is not a regular file; remove it from the checkpoint")
    if link is not None:
        return _link(real, destination, link)
    shutil.copyfile(real, destination)
    return None


def _link(real: Path, destination: Path, how: str) -> str:
    """Brings a weight file over and says how. The real file, because hub caches are made of symlinks."""
    ways: dict[str, Callable[[], Any]] = {
        "hard": lambda: os.link(real, destination),
        "symlink": lambda: os.symlink(real, destination),
        "copy": lambda: shutil.copyfile(real, destination),
    }
    for way in ways if how == "auto" else (how,):
        try:
            ways[way]()
            return way
        except OSError as error:
            destination.unlink(missing_ok=True)
            if how != "auto" or way == "copy":
                hint = "" if way == "copy" else "; use --link auto"
                raise CheckpointError(
                    f"{real} cannot be brought to {destination.parent.parent} ({way}): {error.strerror or error}{hint}"
                ) from error
    raise AssertionError("unreachable: copy either works or raises")


@contextmanager
def translated(where: Path, what: Literal["read", "written"] = "written") -> Iterator[None]:
    """Turns what the operating system says about files below ``where`` into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        elsewhere = f" ({error.filename})" if _is_elsewhere(error.filename, where) else ""
        raise CheckpointError(f"{where} cannot be {what}: {error.strerror or error}{elsewhere}") from error


def _is_elsewhere(name: object, where: Path) -> bool:
    """Whether a file that failed is not one of ours, so that the sentence must name it."""
    return isinstance(name, str) and not (name.startswith(str(where)) or f".{where.name[:200]}." in name)


@contextmanager
def _building_beside(target: Path) -> Iterator[Path]:
    """A new hidden folder next to ``target``; gone afterwards, unless it was renamed away."""
    parent = target.absolute().parent
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    building = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{target.name[:200]}.", suffix=".ropescale", dir=parent))
        building.chmod(0o777 & ~umask())
        yield building
    except BaseException:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def umask() -> int:
    """The process's file mode creation mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _swap_in(building: Path, target: Path) -> None:
    if not os.path.lexists(target):
        building.rename(target)
        return
    aside = building.with_name(building.name + ".old")
    target.rename(aside)
    try:
        building.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    aside.unlink() if aside.is_symlink() else shutil.rmtree(aside, ignore_errors=True)
