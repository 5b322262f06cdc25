"""Changes a checkpoint in place, and undoes the changes byte for byte, even after a crash.

The order is: list the original files in the manifest of a backup folder inside the checkpoint, copy the files to that
folder, list their replacements, and only then replace them, the record last. So every file with a listed replacement
can be restored, no other file was changed, and every copy is known to be ropescale's. The manifest contains the SHA-256
of originals and replacements, so that a file that somebody changed later is not overwritten.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import CheckpointError, ConfigError
from ..files import Contents, Data, deferred, hidden_path, read_bytes, read_json, sha256, write_synced

BACKUP = "ropescale-backup"
"""The folder in which ``in_place`` keeps the original files."""

FILES = ("config.json", "ropescale.json", "README.md", "tokenizer_config.json")
"""The only files that patching writes; weights and other files of a checkpoint are never replaced."""

_MANIFEST, _PART, _RECORD = "manifest.json", ".part.ropescale", "ropescale.json"

Digests = dict[str, list[str | None]]
"""For every file in a manifest: the SHA-256 of the original, or None without one, and those of what replaced it."""


def write_in_place(folder: Path, files: Contents) -> None:
    """Copies the original files into the backup, then replaces them.

    Args:
        folder: the checkpoint.
        files: the new content by name; the names are among :data:`FILES`, the record last.

    Raises:
        CheckpointError: the backup is a link or contains unknown files, another command is running, or a file was
            changed since it was patched, or during this call.
        ConfigError: an earlier backup is damaged.
    """
    backup = folder / BACKUP
    with _alone(folder):
        is_new = not os.path.lexists(backup)
        if is_new:
            backup.mkdir()
        digests = _manifest(backup)
        _refuse_changed(folder, digests, "patching again")
        # A copy may be missing as long as no replacement is listed.
        new = [name for name in files if len(digests.get(name, [])) < 2 and (folder / name).exists()]
        originals = {name: read_bytes(folder / name) for name in new}
        digests = {**digests, **{name: [sha256(content)] for name, content in originals.items()}}
        try:
            _store(backup, digests)
            for name, content in originals.items():
                _replace(backup, backup / name, content, folder / name)
        except BaseException:
            if is_new:  # no file was changed
                shutil.rmtree(backup)
            raise
        for name, content in files.items():
            original, *written = digests.get(name, [None])
            digest = sha256(content)
            digests[name] = [original, *(each for each in written if each != digest), digest]
        _store(backup, digests)
        _refuse_changed(folder, digests, "patching")
        for name, content in files.items():
            _replace(backup, folder / name, content)
        _store(backup, {name: [original, *written[-1:]] for name, (original, *written) in digests.items()})


def put_back(folder: Path) -> bool:
    """Restores every original file and removes added files; returns whether any file had been changed.

    Raises:
        CheckpointError: the backup is a link, another command is running, or a file was changed since it was patched.
        ConfigError: the manifest is damaged, or an original file is missing or changed.
    """
    backup = folder / BACKUP
    if not os.path.lexists(backup):
        return False
    with _alone(folder):
        digests = _manifest(backup)
        for name, (original, *written) in digests.items():
            if written and original is not None and original not in (_digest(backup / name), _digest(folder / name)):
                raise ConfigError(
                    f"{backup / name} is missing or is not the original; download the checkpoint's {name} again"
                )
        _refuse_changed(folder, digests, "restoring")
        for name in sorted(digests, key=lambda name: name != _RECORD):  # without its record, the restore is unfinished
            if digests[name][0] is None:
                (folder / name).unlink(missing_ok=True)
            elif _digest(backup / name) == digests[name][0]:
                os.replace(backup / name, folder / name)
            else:  # the folder has the original
                (backup / name).unlink(missing_ok=True)
        (backup / _MANIFEST).unlink(missing_ok=True)
    return any(len(each) > 1 for each in digests.values())


def is_interrupted(folder: Path) -> bool:
    """Whether a patch in place, or a restore, was interrupted in this folder or is running now.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged.
    """
    if not os.path.lexists(folder / BACKUP / _MANIFEST):
        return False
    known = _manifest(folder / BACKUP).get(_RECORD, [])
    record = _digest(folder / _RECORD)
    return record in known[:-1] and record != known[-1]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other commands from changing the folder in place; signals wait for the end of the block."""
    if (folder / BACKUP).is_symlink():
        raise CheckpointError(
            f"{folder / BACKUP} is a symbolic link instead of a folder with originals; remove the link"
        )
    with deferred(), hidden_path(folder / BACKUP, alone=True):
        try:
            yield
        finally:
            with suppress(OSError):
                (folder / BACKUP / _PART).unlink(missing_ok=True)
                (folder / BACKUP).rmdir()


def _digest(path: Path) -> str | None:
    return sha256(read_bytes(path)) if path.is_file() and not path.is_symlink() else None


def _refuse_changed(folder: Path, digests: Digests, doing: str) -> None:
    """Raises an error if a file is neither the original nor ropescale's, because its content has no backup."""
    for name, known in digests.items():
        path = folder / name
        if os.path.lexists(path) and (_digest(path) is None or _digest(path) not in known):
            raise CheckpointError(
                f"{path} was changed since it was patched in place, and {doing} would lose the changes; move "
                "the file away first"
            )


def _manifest(backup: Path) -> Digests:
    """Reads and checks the manifest, which may come from a download.

    Raises:
        CheckpointError: the backup is a link, or contains a file that ropescale did not copy.
        ConfigError: the manifest is damaged, or names a file that patching never writes.
    """
    path = backup / _MANIFEST
    originals = {}
    written = {}
    if os.path.lexists(path):
        content: Data = {}
        with suppress(ConfigError):
            content = read_json(path)
        originals = content.get("originals")
        written = content.get("written")
        if not (
            isinstance(originals, Mapping)
            and isinstance(written, Mapping)
            and {*originals, *written} <= {*FILES}
            and all(isinstance(each, list) for each in written.values())
        ):
            raise ConfigError(f"{path} is damaged; move the files beside it back by hand, and remove {backup}")
    for name in FILES:
        if name not in originals and os.path.lexists(backup / name):
            raise CheckpointError(
                f"{path} does not list the copy of {name}; restore that copy by hand, or move it away"
            )
    return {name: [originals.get(name), *written.get(name, [])] for name in {**originals, **written}}


def _store(backup: Path, digests: Digests) -> None:
    originals = {name: original for name, (original, *_) in digests.items() if original is not None}
    written = {name: written for name, (_, *written) in digests.items() if written}
    content = json.dumps({"originals": originals, "written": written}, indent=2) + "\n"
    _replace(backup, backup / _MANIFEST, content.encode())


def _replace(backup: Path, target: Path, content: bytes, original: Path | None = None) -> None:
    """Writes a file atomically, with the mode and times of ``original``, or the mode of the replaced file."""
    write_synced(backup / _PART, content)
    if original is not None:
        shutil.copystat(original, backup / _PART)
    elif target.exists():
        shutil.copymode(target, backup / _PART)
    os.replace(backup / _PART, target)


def refuse_links(folder: Path, names: list[str]) -> None:
    """Raises an error if a file to replace is a symbolic link, whose target may be shared, as in the Hub's cache.

    Raises:
        CheckpointError: a file to replace is a symbolic link.
    """
    for name in names:
        if (folder / name).is_symlink():
            raise CheckpointError(
                f"{folder / name} is a symbolic link, as in the Hub's shared cache; write to another folder instead",
                "out",
            )
