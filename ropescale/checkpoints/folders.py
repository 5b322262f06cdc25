"""Builds a checkpoint's folder from another's, atomically: links weights, copies the rest."""

from __future__ import annotations

import errno
import fnmatch
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from ..errors import CheckpointError, ConfigError
from ..files import (
    deferred,
    entry_of,
    foreign_files,
    hidden_path,
    read_json,
    refuse_system,
    remove_files,
    set_aside,
    sweep_leftovers,
    translated,
    write_synced,
)
from ..output.formatting import brief, cut, named, stays_below
from .backups import BACKUP
from .metadata.record import NAME as RECORD
from .metadata.record import files_in, with_files

LOG = logging.getLogger(__name__)

LINKS = ("auto", "hard", "symlink", "copy")
"""The ways to link a weight file."""

_WEIGHTS = (
    "*.safetensors pytorch_model*.bin model*.bin consolidated*.pth consolidated*.pt *.gguf tf_model*.h5 "
    "flax_model*.msgpack *.onnx *.onnx_data"
).split()
SKIPPED = {".git", ".gitattributes", ".cache", ".huggingface", ".locks", "__pycache__", ".ipynb_checkpoints", BACKUP}


def is_weight(name: str) -> bool:
    """Whether a file of this name holds weights."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in _WEIGHTS)


def files_of(folder: Path) -> list[Path]:
    """Returns a checkpoint's files relative to its folder, sorted, without version control and caches.

    Follows links to folders, except links to a parent folder.
    """
    files = list(islice(_walk(folder, Path(), frozenset({os.path.realpath(folder)})), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise CheckpointError(f"{folder} contains more than {MOST_FILES} files; give the checkpoint's own folder")
    return sorted(files)


MOST_FILES = 100_000
"""The most files of a checkpoint; links between folders can multiply a few files without end."""


def _walk(folder: Path, below: Path, above: frozenset[str]) -> Iterator[Path]:
    for entry in os.scandir(folder / below):
        name = below / entry.name
        if entry.name in SKIPPED:
            continue
        if _leads_to_itself(folder / name):
            raise CheckpointError(f"{folder / name} is a link that leads back to itself; remove it")
        if entry.is_symlink():
            refuse_system(folder / name)
        if not os.path.isdir(folder / name):
            yield name
        elif (real := os.path.realpath(folder / name)) not in above:
            yield from _walk(folder, name, above | {real})


def _leads_to_itself(path: Path) -> bool:
    """Whether a link leads in a circle."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def check_target(source: Path | None, out: str | Path, force: bool = False) -> Path:
    """Returns the folder to write, after checking that this overwrites nothing; a model in memory may have no source.

    Raises:
        CheckpointError: it exists, is or contains the source or its weights, or its parent is a file.
    """
    if not str(out):
        raise CheckpointError("the output's name is empty; name the folder to write")
    try:
        target = Path(out).expanduser()
        target = target.resolve() if target.name in ("", "..") else target  # `.` has no name
        here, there = source and source.resolve(), target.resolve()
    except (RuntimeError, ValueError) as error:  # an unknown home, or a null byte
        raise CheckpointError(f"{str(out)!r} cannot be written: {error}; choose another folder") from None
    if here == there:
        raise CheckpointError(f"{target} is the source itself; choose another folder, or patch in place", "in_place")
    if here and (here in there.parents or there in here.parents):
        raise CheckpointError(f"{target} and the source {source} overlap; choose another folder")
    if os.path.lexists(target):
        _refuse_to_replace(source or target, target, force)
    nearest = next(parent for parent in target.absolute().parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise CheckpointError(f"{target} cannot be written: {nearest} is not a folder; choose another place")
    return target


def _refuse_to_replace(source: Path, target: Path, force: bool) -> None:
    """Refuses to replace files that ropescale did not write, and weights to be linked."""
    sweep_leftovers(target)  # the lock of a command that was killed after it had renamed the folder
    if not force:
        raise CheckpointError(f"{target} exists already; choose another folder, or replace it with force", "force")
    with translated(target, "read"):
        why = None if _is_empty(target) else why_not_ours(target)
    if why is not None:
        raise CheckpointError(why, "force")
    there = target.resolve()
    if there in (here := Path.cwd(), *here.parents):
        raise CheckpointError(f"{target} contains the working directory; choose another folder, or leave it first")
    for name in files_of(source):
        if is_weight(name.name) and there in Path(os.path.realpath(source / name)).parents:
            raise CheckpointError(
                f"{target} contains the weights that {source / name} links to, so replacing it would destroy them; "
                "choose another folder"
            )


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def why_not_ours(folder: Path) -> str | None:
    """Returns why ``force`` may not replace a folder, with a file's name; None if ropescale wrote all of it."""
    if folder.is_symlink() or not folder.is_dir():
        kind = "a symbolic link" if folder.is_symlink() else "a file"
        return f"{folder} was not written by ropescale ({kind}), so force leaves it; choose another folder"
    if not os.path.lexists(folder / RECORD):
        return f"{folder} was not written by ropescale (no {RECORD}), so force leaves it; remove it yourself"
    if os.path.lexists(folder / BACKUP):
        return (
            f"{folder} was patched in place and contains {BACKUP}, so force leaves it; choose another folder, or undo "
            f"the patch first: ropescale restore {folder}"
        )
    files = files_in(folder)
    if files is None:
        return (
            f"{folder / RECORD} does not list the files that ropescale wrote (it is damaged), so force cannot "
            f"distinguish them from yours; check {folder} and remove it yourself"
        )
    found = list(islice(foreign_files(folder, files, (RECORD,)), _MOST_COUNTED))
    if not found:
        return None
    if files_in(folder) != files:  # another command has replaced the folder meanwhile
        return why_not_ours(folder)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{folder / found[0]}{more}, so force leaves {folder}; move that away, or choose another folder"


_MOST_COUNTED = 1000
"""The most foreign files to count; a home directory contains millions."""


def remove_ours(folder: Path) -> bool:
    """Removes ropescale's files and the folder; returns False if other files remain."""
    return remove_files(folder, files_in(folder) or (), (RECORD,))


def left_aside(folder: Path) -> Path | None:
    """Returns ``NAME~`` if a killed ``force`` left the earlier result there."""
    aside = Path(f"{folder}~")
    return aside if os.path.lexists(aside / RECORD) else None


def build_folder(
    target: Path, fill_folder: Callable[[Path], dict[str, str]], record: Mapping[str, object], force: bool = False
) -> dict[str, str]:
    """Builds a folder atomically: under a hidden name, renamed at the end.

    Args:
        fill_folder: writes into the hidden folder, and returns the link type of each weight file.
        record: the record, without the list of files.
        force: replace an empty folder, or one that ropescale wrote entirely.

    Returns:
        The link type of each weight file, ``{name: "hard" | "symlink" | "copy"}``.

    Raises:
        CheckpointError: a file cannot be read or written, or appeared meanwhile; no partial folder is left.
    """
    if target.name in ("", ".."):
        raise CheckpointError(f"{target} is not a valid name for a new folder; choose another")
    if aside := left_aside(target):
        LOG.warning("%s is the earlier %s; a command that replaced it was killed, or is running", aside, target)
    with translated(target), _parents(target.absolute().parent), hidden_path(target) as new:
        new.mkdir()
        links = fill_folder(new)
        write_record(new, record, links)
        with deferred():
            _place(new, target, force)
    return links


@contextmanager
def _parents(folder: Path) -> Iterator[None]:
    """Makes a folder and its missing parents; removes them on failure."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise


def _place(new: Path, target: Path, force: bool) -> None:
    """Renames a new folder to its name; an earlier result is renamed to ``NAME~`` and then removed."""
    exists, aside = os.path.lexists(target), None
    if exists and not force:
        raise CheckpointError(f"{target} was created meanwhile; choose another folder, or remove it")
    if exists and not _is_empty(target):
        if why := why_not_ours(target):
            raise CheckpointError(why, "force")
        aside = set_aside(target)
    try:
        os.rename(new, target)
    except OSError:
        if aside and os.path.lexists(target):
            raise CheckpointError(
                f"another command created {target} while it was replaced; the earlier one is {aside}; move "
                "one of them away"
            ) from None
        if aside:
            os.rename(aside, target)
        raise
    if aside:
        try:
            removed = why_not_ours(aside) is None and remove_ours(aside)  # no other command changes it under this name
        except OSError:
            removed = False
        if not removed:
            LOG.warning("%s is the earlier %s and cannot be removed completely; check and remove it", aside, target)


def write_record(
    folder: Path, record: Mapping[str, object], links: Mapping[str, str], names: Iterable[str] | None = None
) -> None:
    """Writes a folder's record with a list of its files.

    Args:
        links: the link type of each weight file.
        names: the files to list. Default: all files.
    """
    listed = map(Path.as_posix, files_of(folder)) if names is None else names
    files = {name: entry_of(folder / name, links.get(name)) for name in listed}
    write_synced(folder / RECORD, with_files(record, files))


def link_or_copy(
    source: Path,
    folder: Path,
    files: Mapping[str, bytes],
    link: str,
    leave: Callable[[Path], bool] = lambda name: False,
) -> dict[str, str]:
    """Links or copies a checkpoint's files into a folder, and writes the changed ones.

    Links weights; copies other files, because a later ``save_pretrained`` would write through a link.

    Args:
        files: the content of every changed or new file.
        link: how to link weights, one of :data:`LINKS`.
        leave: whether to leave a file out, by its name relative to the source.

    Returns:
        The link type of each weight file.
    """
    links = {}
    for name in files_of(source):
        if name.as_posix() in (*files, RECORD) or leave(name):
            continue
        path, real = source / name, Path(os.path.realpath(source / name))
        if not real.exists():
            raise CheckpointError(f"{path} links to {real}, which does not exist; is the download complete?")
        if not real.is_file():
            raise CheckpointError(f"{path} is not a regular file; remove it from the checkpoint")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if is_weight(name.name):
            links[name.as_posix()] = _link(real, folder / name, link)
        else:
            shutil.copyfile(real, folder / name)
    for text, content in files.items():
        write_synced(folder / text, content)
    return links


def copy_mode(folder: Path, like: str) -> None:
    """Gives weight files the mode of another new file, because safetensors makes them readable only by their owner.

    Args:
        folder: a folder without linked weights, whose mode would change at their source.
        like: the name of the other file.
    """
    mode = stat.S_IMODE((folder / like).stat().st_mode)
    for name in files_of(folder):
        if is_weight(name.name):
            (folder / name).chmod(mode)


def _link(real: Path, destination: Path, how: str) -> str:
    """Links a weight file and returns the link type. Takes the real file, because Hub caches consist of symlinks."""
    ways = {"hard": os.link, "symlink": os.symlink, "copy": shutil.copyfile}
    for way in ways if how == "auto" else (how,):
        try:
            ways[way](real, destination)
            return way
        except OSError as error:
            destination.unlink(missing_ok=True)
            if how != "auto" or way == "copy":
                hint = "" if way == "copy" else "; let ropescale choose the link type"
                raise CheckpointError(
                    f"{real} cannot be linked or copied to {destination.parent.parent} ({way}): "
                    f"{error.strerror or error}{hint}",
                    "link",
                ) from error
    raise AssertionError("unreachable: copy either works or raises")


def refuse_missing_shards(source: Path) -> None:
    """Refuses an incomplete download, because no engine would load the result."""
    for index in sorted(source.glob("*.index.json")):
        shards = _shards(index) if is_weight(index.name.removesuffix(".index.json")) else set()
        missing = sorted(name for name in shards if not os.path.exists(source / name))
        if missing:
            first = cut(missing[0], 100)
            raise CheckpointError(
                f"{source} lacks {len(missing)} of the {len(shards)} files in {index.name}, such as {first}; "
                "complete the download first"
            )


def refuse_wild_indexes(source: Path) -> None:
    """Refuses an index of weights that names a file outside its folder, existing or not."""
    for index in source.glob("*.index.json"):
        if is_weight(index.name.removesuffix(".index.json")):
            _shards(index)


_LARGEST_INDEX = 128 * 2**20
"""The most bytes of an index; that of a model with a million tensors has a hundred million."""


def _shards(index: Path) -> set[str]:
    """Returns the files that an index names; all must be in its folder.

    Raises:
        ConfigError: it is not an index, or names a path outside the folder.
    """
    weights = read_json(index, _LARGEST_INDEX).get("weight_map")
    names: Iterable[object] = weights.values() if isinstance(weights, Mapping) else [weights]
    for name in names:
        if not isinstance(name, str) or not stays_below(name.removeprefix("./")):
            raise ConfigError(
                f"{index} has {brief(name)} instead of the name of a file in its folder; download it again"
            )
    return set(map(str, names))


# --- links
# Symbolic links that lead out of a checkpoint: a copy would include their targets.


_BLOB = re.compile(r".*/models--[^/]+/blobs/([0-9a-f]{40}|[0-9a-f]{64})", re.DOTALL)
"""A model's file in the Hub's cache, whose name is a hash."""


def leaving_links(folder: Path, ours: Collection[str] = ()) -> dict[str, str]:
    """Returns the links that lead out of a checkpoint, with their target, which may not exist.

    Files of the Hub's cache count as the checkpoint's own.

    Args:
        folder: a checkpoint.
        ours: names of links to weights that the caller made.
    """
    root, away = os.path.realpath(folder), {}
    for name in sorted({*links_in(folder)} - {*ours}):
        target = os.path.realpath(folder / name)
        inside = target == root or target.startswith(os.path.join(root, ""))
        if not inside and not _BLOB.fullmatch(Path(target).as_posix()):
            away[name] = target
    return away


def link_warning(folder: Path) -> Iterator[str]:
    """Yields a warning if links lead out of a checkpoint; ignores those that ropescale recorded."""
    recorded = files_in(folder) or {}
    links = {
        name: target
        for name, target in leaving_links(folder).items()
        if not _is_recorded(folder / name, target, recorded.get(Path(name).as_posix()))
    }
    if links:
        yield f"{_named(links)}; a copy of the result includes their targets: remove foreign links"


def _is_recorded(path: Path, target: str, entry: object) -> bool:
    """Whether the record lists a link as ropescale's; trusted only for weights, because anybody can write a record."""
    both = is_weight(path.name) and is_weight(os.path.basename(target))
    return both and entry == entry_of(path, "symlink")


def refuse_leaving_links(folder: Path, ours: Collection[str] = ()) -> None:
    """Refuses to upload a checkpoint whose links would publish files outside it.

    Raises:
        CheckpointError: a link leads out of it, a target does not exist, or a folder cannot be read.
    """
    with translated(folder, "read"):
        links = leaving_links(folder, ours)
        lost = [name for name in links_in(folder) if not (folder / name).exists()]
    if links:
        raise CheckpointError(
            f"{named(folder)} is not uploaded: {_named(links)}, which would be published; replace it by a copy if it "
            "belongs to the model, or remove it"
        )
    if lost:
        target = os.path.realpath(folder / lost[0])
        raise CheckpointError(
            f"{named(folder / lost[0])} links to {named(target)}, which does not exist; is the download complete?"
        )


def _named(links: Mapping[str, str]) -> str:
    """Returns ``the link a.txt leads out of the checkpoint, to /etc/passwd (and 2 more links lead out)``."""
    name, target = next(iter(links.items()))
    more = len(links) - 1
    others = f" (and {more} more {'link leads' if more == 1 else 'links lead'} out)" if more else ""
    return f"the link {named(name)} leads out of the checkpoint, to {named(target)}{others}"


def links_in(folder: Path, below: str = "") -> Iterator[str]:
    """Yields every symbolic link below a folder, except in folders that are never copied, without following links."""
    for entry in os.scandir(folder / below):
        name = os.path.join(below, entry.name)
        if entry.name in SKIPPED:
            continue
        if entry.is_symlink():
            yield name
        elif entry.is_dir(follow_symlinks=False):
            yield from links_in(folder, name)
