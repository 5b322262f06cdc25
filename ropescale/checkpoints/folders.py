"""Builds a checkpoint's folder from another folder, atomically: links weights and copies other files.

A new folder is renamed when it is complete. Files are moved into an empty folder, which may be a mount point. The next
command with the same target undoes what a killed one had begun.

``force`` may replace only a folder whose files are all unchanged since ropescale wrote them. The record of a patched
checkpoint lists its files. A weight file is recognised without being read: a hard link by its inode, a symbolic link by
its target, a copy by its size and modification time. Any other file is recognised by its SHA-256.
"""

import fnmatch
import logging
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Never

from ..errors import CheckpointError, ConfigError
from ..files import (
    Contents,
    Json,
    deferred,
    hidden_path,
    made_folder,
    read_json,
    set_aside,
    sha256,
    sha256_of,
    sweep_leftovers,
    translated,
    write_synced,
)
from ..output.formatting import argument, brief, cut, shell_word, stays_below
from ..record import RECORD, Entry, Listing, files_in, with_files
from .backups import BACKUP

LOG = logging.getLogger(__name__)

LINKS = ("auto", "hard", "symlink", "copy")
"""The accepted values of the ``link`` option."""

_WEIGHTS = (
    "*.safetensors pytorch_model*.bin model*.bin consolidated*.pth consolidated*.pt *.gguf tf_model*.h5 "
    "flax_model*.msgpack *.onnx *.onnx_data"
).split()
LOST = "lost+found"
"""The folder at the root of an ext4 file system, which only root can read."""

_SKIPPED = {*".git .gitattributes .cache .huggingface .locks __pycache__ .ipynb_checkpoints".split(), LOST, BACKUP}


def is_weight(name: str) -> bool:
    """Whether a file with this name contains weights."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in _WEIGHTS)


def files_of(folder: Path) -> list[Path]:
    """Returns the files of a checkpoint relative to its folder, sorted, except those of version control and caches.

    Links to folders are not followed.
    """
    found = []
    for above, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        kept = (name for name in files if name not in _SKIPPED and not name.startswith(f".{BACKUP}."))
        found += [Path(above, name).relative_to(folder) for name in kept]
    return sorted(found)


def _raise(error: OSError) -> Never:
    raise error


def build_folder(
    target: Path, fill_folder: Callable[[Path], dict[str, str]], record: Json, force: bool = False
) -> dict[str, str]:
    """Builds a folder atomically: creates it under a hidden name, beside the target or in it if that is empty.

    Args:
        target: the folder's path; an empty folder is filled.
        fill_folder: writes the files into the hidden folder, and returns the link type of each weight file.
        record: the record, without the list of files.
        force: replace an empty folder, or a folder that ropescale wrote entirely.

    Returns:
        The link type of each weight file, ``{name: "hard" | "symlink" | "copy"}``.

    Raises:
        CheckpointError: a file cannot be read or written, or ``target`` was created meanwhile; no partial folder is
            left.
    """
    with translated(target), made_folder(target.absolute().parent):
        recover(target)
        into = is_empty(target)
        with hidden_path(target / target.name if into else target) as new:
            new.mkdir()
            links = fill_folder(new)
            write_record(new, record, links)
            with deferred():
                if into:
                    _move_up(new)
                else:
                    _place(new, target, force)
    return links


def _move_up(new: Path) -> None:
    """Moves the content of a hidden folder into the folder above; the record last, so that it proves the end."""
    target = new.parent
    for name in os.listdir(target):
        if name != LOST and not name.startswith(new.name):
            raise CheckpointError(f"{target / name} was created meanwhile; move it away, or choose another folder")
    try:
        for name in sorted(os.listdir(new), key=lambda name: (name == RECORD, name == "config.json")):
            os.rename(new / name, target / name)
    except OSError:
        _undo_moves(new)
        raise


def _undo_moves(new: Path) -> None:
    """Removes the files that were already moved from the hidden folder ``new`` to its parent.

    The record is moved last, so it still lists them.
    """
    target = new.parent
    files = files_in(new) or {}
    within = Counter(path.lstat().st_ino for path in target.rglob("*"))
    there = [name for name in files if os.path.lexists(target / name)]
    _remove_files(target, [name for name in there if not _difference(target / name, files[name], within)])


def recover(target: Path) -> None:
    """Undoes what a killed command had begun to do with a folder, and removes its hidden files."""

    def put_back(hidden: Path) -> None:
        note = hidden.read_text(errors="replace") if hidden.is_file() else ""
        if not re.fullmatch(rf"{re.escape(target.name)}~\d*", note):
            return
        aside = target.with_name(note)
        if not os.path.lexists(target):
            os.rename(aside, target)
        elif is_empty(aside):  # the removal was nearly complete
            aside.rmdir()
        elif os.path.lexists(aside) and os.path.lexists(target / RECORD):
            _remove_aside(aside, target)

    sweep_leftovers(target, put_back)
    if target.is_dir():
        sweep_leftovers(target / target.name, _undo_moves)


def _place(new: Path, target: Path, force: bool) -> None:
    """Gives a new folder its final name. First renames an earlier result to ``NAME~``, and removes it at the end."""
    if not os.path.lexists(target):
        os.rename(new, target)
        return
    if not force:
        raise CheckpointError(f"{target} was created meanwhile; choose another folder, or remove it")
    if why := why_not_ours(target):
        raise CheckpointError(why, "out")
    with hidden_path(target) as note:
        aside = set_aside(target, note)
        try:
            os.rename(new, target)
        except OSError:
            if os.path.lexists(target):
                raise CheckpointError(
                    f"another command created {target} while it was replaced; the earlier version is {aside}; move "
                    "one of them away"
                ) from None
            os.rename(aside, target)
            raise
        _remove_aside(aside, target)


def _remove_aside(aside: Path, target: Path) -> None:
    """Removes the earlier version of a folder, or warns that it could not be removed."""
    removed = False
    with suppress(OSError):
        # checked again, because no other command changes the folder under this name
        removed = why_not_ours(aside) is None and remove_ours(aside)
    if not removed:
        LOG.warning(
            "%s is the earlier version of %s and could not be removed completely; check and remove it", aside, target
        )


def write_record(
    folder: Path, record: Json, links: Mapping[str, str], is_listed: Callable[[Path], bool] = lambda name: True
) -> None:
    """Writes a folder's record with a list of its files.

    Args:
        links: the link type of each weight file.
        is_listed: whether to list a file, given its path relative to the folder.
    """
    names = [name.as_posix() for name in files_of(folder) if is_listed(name)]
    entries = {name: entry_of(folder / name, links.get(name)) for name in names}
    write_synced(folder / RECORD, with_files(record, entries))


def link_or_copy(
    source: Path, folder: Path, files: Contents, link: str, leave: Callable[[Path], bool] = lambda name: False
) -> dict[str, str]:
    """Links or copies a checkpoint's files into a folder, and writes the changed files.

    Weights are linked. Other files are copied, because a later ``save_pretrained`` would write through a link.

    Args:
        source: the checkpoint.
        folder: the folder to fill.
        files: the content of every changed or new file, by name.
        link: how to link weights, one of :data:`LINKS`.
        leave: a function that returns whether to skip a file, given its path relative to the source.

    Returns:
        The link type of each weight file.
    """
    links = {}
    for name in files_of(source):
        if name.as_posix() in (*files, RECORD) or leave(name):
            continue
        real = real_file(source / name)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if is_weight(name.name):
            links[name.as_posix()] = _link(real, folder / name, link)
        else:
            if not (real.is_relative_to(os.path.realpath(source)) or _BLOB.fullmatch(str(real))):
                LOG.warning("%s leads out of the checkpoint, to %s, which is copied", source / name, real)
            shutil.copyfile(real, folder / name)
    for text, content in files.items():
        write_synced(folder / text, content)
    return links


_BLOB = re.compile(r".*/models--[^/]+/blobs/([0-9a-f]{40}|[0-9a-f]{64})", re.DOTALL)
"""The path of a model's file in the Hub's cache, whose name is a hash."""


def real_file(path: Path) -> Path:
    """Returns the path of a regular file with all links resolved.

    Raises:
        CheckpointError: the file does not exist, or is not a regular file.
    """
    real = Path(os.path.realpath(path))
    if not real.exists():
        raise CheckpointError(f"{path} links to {real}, which does not exist; is the download complete?")
    if not real.is_file():
        raise CheckpointError(f"{path} is not a regular file; remove it from the checkpoint")
    return real


def _link(real: Path, destination: Path, how: str) -> str:
    """Links a weight file and returns the link type.

    Args:
        real: the resolved file, because the files in the Hub's cache are symbolic links.
        destination: the path of the new link or copy.
        how: the link type, one of :data:`LINKS`.
    """
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


# ---------------------------------------------------------------------------------------------------------
# Indexes of weights


def refuse_missing_shards(source: Path) -> None:
    """Raises an error for an incomplete download, because no engine could load the result.

    An index that transformers does not read, because it finds other weights, may name missing files.
    """
    read = _read_first(source)
    for index, shards in shards_of(source):
        if read not in (None, index.name, *shards):
            continue
        missing = sorted(name for name in shards if not os.path.exists(source / name))
        if missing:
            raise CheckpointError(
                f"{source} lacks {len(missing)} of the {len(shards)} files in {index.name}, such as "
                f"{cut(missing[0], 100)}; complete the download first"
            )


_READ_FIRST = tuple(
    f"{whole}{end}" for whole in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")
)
"""The files from which transformers 5.23 loads weights; it reads the first that exists (modeling_utils.py)."""


def _read_first(source: Path) -> str | None:
    return next((name for name in _READ_FIRST if os.path.exists(source / name)), None)


def two_sets(source: Path) -> Iterator[str]:
    """Yields a warning if transformers and vLLM would load different weights.

    vLLM 0.32 loads all ``*.safetensors`` that ``model.safetensors.index.json`` lists, or without it all, and only
    without any the ``*.bin`` (default_loader.py). The makers' own form, ``consolidated*``, is left out.
    """
    indexes = {index.name: shards for index, shards in shards_of(source)}
    read = _read_first(source)
    names = [name for name in os.listdir(source) if is_weight(name) and not name.startswith("consolidated")]
    tensors = {name for name in names if name.endswith(".safetensors")}
    shards = indexes.get("model.safetensors.index.json", set())
    listed = {name for name in shards if os.path.exists(source / name)}
    served = {name for name in names if name.endswith(".bin")}
    if tensors or listed:
        served = listed if shards else tensors
    loaded = indexes.get(read, {read}) if read else set()
    if served != loaded:
        shown = ", ".join(sorted(served)[:3]) or "nothing"
        yield (
            f"{source}: transformers loads {read or 'nothing'}, vLLM {len(served)} ({cut(shown, 100)}); remove what "
            "does not belong to the model, or complete the download"
        )


def shards_of(source: Path) -> list[tuple[Path, set[str]]]:
    """Returns each index of weights in a folder, with the names of the files that it lists, which may not exist.

    Raises:
        ConfigError: an index is malformed, or names a path outside the folder.
    """
    shards = []
    for index in sorted(source.glob("*.index.json")):
        if is_weight(index.name.removesuffix(".index.json")):
            weights = read_json(index, _LARGEST_INDEX).get("weight_map")
            names: Iterable[object] = weights.values() if isinstance(weights, Mapping) else [weights]
            for name in names:
                if not isinstance(name, str) or not stays_below(name.removeprefix("./")):
                    raise ConfigError(
                        f"{index} has {brief(name)} instead of the name of a file in its folder; download it again"
                    )
            shards.append((index, set(map(str, names))))
    return shards


_LARGEST_INDEX = 128 * 2**20
"""The largest index, in bytes; the index of a model with a million tensors has a hundred million bytes."""


# ---------------------------------------------------------------------------------------------------------
# Recognising the folders that ``force`` may replace


def entry_of(path: Path, how: str | None) -> Entry:
    """Returns the record's entry for a file, by which :func:`why_not_ours` recognises the file later.

    Args:
        how: "hard", "symlink" or "copy" for weights, whose content is not read; None for any other file.
    """
    if how is None:
        return {"sha256": sha256_of(path)}
    if how == "symlink":  # hashed, because the target may contain private names of folders
        return {"how": how, "sha256": sha256(os.fsencode(os.readlink(path)))}
    status = path.lstat()
    if how == "hard":
        return {"how": how, "inode": status.st_ino}
    return {"how": how, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def why_not_ours(folder: Path) -> str | None:
    """Returns why ``force`` may not replace a folder, or None if ropescale wrote everything in it."""
    foreign = None
    if folder.is_symlink():
        foreign = "a symbolic link"
    elif not folder.is_dir():
        foreign = "a file"
    elif not os.path.lexists(folder / RECORD):
        foreign = f"no {RECORD}"
    if foreign:
        return f"{folder} was not written by ropescale ({foreign}), so it is never replaced; choose another folder"
    if os.path.lexists(folder / BACKUP):
        undo = f"undo the patch first (`ropescale restore {shell_word(argument(folder))}`), or "
        if not os.path.lexists(folder / BACKUP / RECORD):  # without it, the folder was not ours before, either
            undo = ""
        return (
            f"{folder} was patched in place and contains {BACKUP}, so it is never replaced; {undo}choose another folder"
        )
    files = files_in(folder)
    if files is None:
        return (
            f"{folder / RECORD} does not list the files that ropescale wrote (it is damaged), and yours may be "
            "among them; check the folder and remove it yourself, or choose another one"
        )
    foreign = next(_foreign_files(folder, files), None)
    return foreign and f"{folder / foreign}, so {folder} is never replaced; move it away, or choose another folder"


def _foreign_files(folder: Path, files: Listing) -> Iterator[str]:
    """Yields every file or folder that ropescale did not write, or that was changed since then, with the reason."""
    folders = {str(parent) for name in files for parent in Path(name).parents}
    paths = sorted(folder.rglob("*"))
    within = Counter(path.lstat().st_ino for path in paths)  # the number of each inode's names inside the folder
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            if name not in folders:
                yield f"{name}/ was not written by ropescale"
        elif name in files:
            if why := _difference(path, files[name], within):
                yield f"{name} {why}"
        elif name != RECORD or path.is_symlink():
            yield f"{name} was not written by ropescale"


def _difference(path: Path, entry: Entry, within: Mapping[int, int]) -> str | None:
    """Returns why a file may not be replaced: it differs from the written file, or is the last copy of weights.

    Args:
        entry: the file's entry in the record.
        within: the number of names that each inode has inside the folder.
    """
    status = path.lstat()
    how = entry.get("how")
    if not (stat.S_ISLNK if how == "symlink" else stat.S_ISREG)(status.st_mode):
        return "is not the file that ropescale wrote"
    if entry_of(path, how if isinstance(how, str) else None) != entry:
        return "was changed since ropescale wrote it"
    is_last = how == "hard" and status.st_nlink <= within[status.st_ino]
    return "is the only copy left of these weights" if is_last else None


def remove_ours(folder: Path) -> bool:
    """Removes the files that ropescale wrote, then the folder; returns False if other files remain."""
    for names in (files_in(folder) or (), [RECORD]):  # the record last, so that an interrupted removal can be continued
        _remove_files(folder, names)
    return not os.path.lexists(folder)


def _remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes files, then the folders that they leave empty."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    above = {folder / parent for name in names for parent in Path(name).parents}
    for directory in sorted(above, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            directory.rmdir()


def is_empty(folder: Path) -> bool:
    """Whether a path is a folder, and no link, without files; ``lost+found`` is the file system's."""
    return folder.is_dir() and not folder.is_symlink() and not {*os.listdir(folder)} - {LOST}


def check_target(source: Path | None, out: str | Path, force: bool = False) -> Path:
    """Returns the folder to write, after checking that nothing will be lost.

    Args:
        source: the folder of the source; None for a model in memory without one.
        force: accept an existing folder that ropescale wrote entirely, not only an empty one.

    Raises:
        CheckpointError: the folder has files, overlaps the source or contains its weights, or its parent is a file.
    """
    if not str(out):
        raise CheckpointError("the output's name is empty; name the folder to write")
    try:
        target = Path(out).expanduser()
        target = target.resolve() if target.name in ("", "..") else target  # `.` has no name
        here = source and source.resolve()
        there = target.resolve()
    except (RuntimeError, ValueError) as error:  # an unknown home, or a null byte
        raise CheckpointError(f"{str(out)!r} cannot be written: {error}; choose another folder") from None
    if here == there:
        raise CheckpointError(f"{target} is the source itself; choose another folder")
    if here and (here in there.parents or there in here.parents):
        raise CheckpointError(f"{target} and the source {source} overlap; choose another folder")
    nearest = next(parent for parent in target.absolute().parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise CheckpointError(f"{target} cannot be written: {nearest} is not a folder; choose another place")
    with translated(target, "read"):
        recover(target)
        if not os.path.lexists(target) or is_empty(target):
            return target
        if why := why_not_ours(target):
            raise CheckpointError(why, "out")
    if there in (Path.cwd(), *Path.cwd().parents):
        raise CheckpointError(f"{target} contains the working directory; choose another folder, or leave it first")
    for path in source.rglob("*") if source else ():
        real = Path(os.path.realpath(path))
        if path.is_symlink() and there in (real, *real.parents):
            raise CheckpointError(
                f"{target} contains the target of the link {path}, which would be destroyed; choose another folder"
            )
    if not force:  # last, so that this advice succeeds
        raise CheckpointError(f"{target} exists already; choose another folder, or allow to replace it", "force")
    return target
