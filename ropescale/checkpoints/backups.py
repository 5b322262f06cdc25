"""Changes a checkpoint in place so that it can be undone byte for byte, even after a crash.

The originals are copied into a folder of ours inside the checkpoint, then its manifest is written, and only then is
a file replaced. So without a manifest nothing has been changed yet, and with one everything can be put back. The
manifest says what was replaced by what, by SHA-256, so that nothing is overwritten that somebody changed since; and at
last that all is done, so that an interrupted patch is known for one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, ConfigError
from ..files import deferred, read_bytes, read_json, sha256, write_synced

if TYPE_CHECKING:
    from pydantic import TypeAdapter

BACKUP = "ropescale-backup"
"""The folder in which ``in_place`` keeps what it replaced."""

FILES = ("config.json", "ropescale.json", "README.md", "tokenizer_config.json")
"""All that patching ever writes; the weights and whatever else lies in a checkpoint are never replaced."""

_MANIFEST, _PART, _LOCK = "manifest.json", ".part.ropescale", ".lock"


@dataclass
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        replaced: names whose originals are kept here.
        added: names that were not there.
        written: SHA-256 of everything that ropescale wrote under each name.
        originals: SHA-256 of each original.
        finished: whether the change was completed.
    """

    replaced: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    written: dict[str, list[str]] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)
    finished: bool = True

    @property
    def names(self) -> list[str]:
        """Every name that patching wrote."""
        return self.replaced + self.added


def write_in_place(folder: Path, files: Mapping[str, bytes]) -> None:
    """Keeps what is there, then replaces file by file.

    Args:
        folder: the checkpoint.
        files: the new content of each file, by its name, one of :data:`FILES`.

    Raises:
        CheckpointError: the backup is a link to another folder, holds files that are not ours, or another command is
            at work; a file was changed since it was patched, and the backup does not have that.
        ConfigError: an earlier backup is damaged.
    """
    assert set(files) <= set(FILES), "restoring would refuse the others"
    with _locked(folder, make=True) as backup:
        manifest = _manifest(backup)
        _refuse_changed(folder, manifest, "patching again")
        _keep_originals(folder, backup, list(files), manifest)
        for name, content in files.items():
            manifest.written.setdefault(name, []).append(sha256(content))
        _store(backup, manifest, finished=False)
        for name, content in files.items():
            _replace(folder, name, content, manifest)
        manifest.written = {**manifest.written, **{name: [sha256(content)] for name, content in files.items()}}
        _store(backup, manifest, finished=True)


def put_back(folder: Path) -> bool:
    """Puts every original back and removes what was added; False where nothing had been changed.

    Raises:
        CheckpointError: the backup is a link to another folder, or another command is at work; a file was changed since
            it was patched.
        ConfigError: the manifest is damaged.
    """
    if not os.path.lexists(folder / BACKUP):
        return False
    with _locked(folder) as backup:
        manifest = _manifest(backup)
        changed = (backup / _MANIFEST).exists()
        _refuse_damaged(folder, backup, manifest)
        if changed:
            _refuse_changed(folder, manifest, "restoring")
            for name in manifest.names:
                _refuse_foreign(folder / name, name, manifest, "restoring")
                if name in manifest.added:
                    (folder / name).unlink(missing_ok=True)
                elif os.path.lexists(backup / name):  # else a restore that was interrupted has put it back
                    os.replace(backup / name, folder / name)
            (backup / _MANIFEST).unlink()
    return changed


def is_interrupted(folder: Path) -> bool:
    """Whether patching in place, or restoring, was begun here and not finished, or is going on now.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged.
    """
    backup = folder / BACKUP
    if not (backup / _MANIFEST).exists():
        return False
    manifest = _manifest(backup)
    restored = any(not os.path.lexists(backup / name) for name in manifest.replaced)
    recorded = os.path.lexists(folder / FILES[1])  # nobody knows what a configuration without a record was made of
    return restored or not recorded or not manifest.finished


@contextmanager
def _locked(folder: Path, make: bool = False) -> Iterator[Path]:
    """Yields the backup's folder, made if wanted, and locked against other commands; removes it if nothing is in it."""
    from filelock import FileLock, Timeout

    backup = folder / BACKUP
    _refuse_linked(backup)
    try:
        if make:
            backup.mkdir(exist_ok=True)
        with FileLock(backup / _LOCK).acquire(timeout=0):
            try:
                yield backup
            finally:
                with deferred(), suppress(OSError, CheckpointError):
                    if not (backup / _MANIFEST).exists():  # nothing was changed, or everything is restored
                        for name in (_PART, *(name for name in FILES if _is_copy(folder, backup, name))):
                            (backup / name).unlink(missing_ok=True)
                    (backup / _LOCK).unlink()
    except Timeout:
        raise CheckpointError(f"another command is changing {folder} in place; wait until it is done") from None
    finally:
        with suppress(OSError):
            backup.rmdir()


def _refuse_linked(backup: Path) -> None:
    for path in (backup, backup / _LOCK):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a symbolic link, and only a folder holds originals; remove the link")
    if backup.exists() and not backup.is_dir():
        raise CheckpointError(f"{backup} is a file, and originals are kept in a folder of that name; move it away")


def _refuse_damaged(folder: Path, backup: Path, manifest: Manifest) -> None:
    """Refuses to put back or remove anything while an original is missing or changed.

    Raises:
        ConfigError: names the file.
    """
    for name in FILES:
        kept, current = backup / name, folder / name
        if name not in manifest.replaced:
            if os.path.lexists(kept) and not _is_copy(folder, backup, name):
                raise ConfigError(f"{backup / _MANIFEST} does not list {kept}; put it back by hand if it is yours")
        elif os.path.lexists(kept):
            if sha256(read_bytes(kept)) != manifest.originals.get(name):
                raise ConfigError(f"{kept} is not the original that was kept; download the checkpoint's {name} again")
        elif not (current.is_file() and sha256(read_bytes(current)) == manifest.originals.get(name)):
            raise ConfigError(f"{kept} is missing, and {current} is not the original; download that file again")


def _refuse_changed(folder: Path, manifest: Manifest, doing: str) -> None:
    """Refuses to overwrite files that were changed since: no backup has those changes."""
    for name in manifest.names:
        _refuse_foreign(folder / name, name, manifest, doing)


def _refuse_foreign(path: Path, name: str, manifest: Manifest, doing: str) -> None:
    """Refuses to overwrite a file that is neither what ropescale wrote nor the original."""
    ours = [*manifest.written.get(name, []), manifest.originals.get(name)]
    if not os.path.lexists(path):
        return
    if path.is_symlink() or sha256(read_bytes(path)) not in ours:
        raise CheckpointError(
            f"{path} was changed since it was patched in place, and {doing} would lose that; move the file away first"
        )


def _is_copy(folder: Path, backup: Path, name: str) -> bool:
    """Whether a file in the backup is only a copy, as a patch leaves that was killed before it wrote the manifest."""
    kept, current = backup / name, folder / name
    both = kept.is_file() and current.is_file() and not kept.is_symlink()
    return both and read_bytes(kept) == read_bytes(current)


def _keep_originals(folder: Path, backup: Path, names: list[str], manifest: Manifest) -> None:
    """Adds to the backup what is not in it yet: after a second patch it still holds the first originals."""
    new = [name for name in names if name not in manifest.names]
    existing = [name for name in new if os.path.lexists(folder / name)]
    for name in existing:
        if os.path.lexists(backup / name) and not _is_copy(folder, backup, name):
            raise CheckpointError(f"{backup / name} is not what ropescale kept; move {backup} away")
        write_synced(backup / _PART, read_bytes(folder / name))
        shutil.copystat(folder / name, backup / _PART)
        os.replace(backup / _PART, backup / name)
        manifest.originals[name] = sha256(read_bytes(backup / name))
    manifest.replaced += existing
    manifest.added += [name for name in new if name not in existing]


def _manifest(backup: Path) -> Manifest:
    """Returns what lies in the backup; it may have been downloaded with the checkpoint, so it reaches no file but ours.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged, or names a file that patching never writes.
    """
    path = backup / _MANIFEST
    _refuse_linked(backup)
    if not path.exists():
        return Manifest()
    from pydantic import ValidationError

    needed = {"replaced": None, "added": None, "finished": None}
    try:
        manifest = _adapter().validate_python(needed | read_json(path))
    except ValidationError:
        manifest = None
    names = manifest.names if manifest else []
    distinct = len({*names} & {*FILES}) == len(names)  # a file named twice would go back twice
    there = [backup / name for name in FILES if os.path.lexists(backup / name)]
    if manifest is None or not distinct or any(each.is_symlink() or not each.is_file() for each in there):
        raise ConfigError(f"{path} is damaged; the originals lie beside it, put them back by hand")
    return manifest


@cache
def _adapter() -> TypeAdapter[Manifest]:
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)


def _store(backup: Path, manifest: Manifest, finished: bool) -> None:
    manifest.finished = finished
    write_synced(backup / _PART, (json.dumps(asdict(manifest), indent=2) + "\n").encode())
    os.replace(backup / _PART, backup / _MANIFEST)


def _replace(folder: Path, name: str, content: bytes, manifest: Manifest) -> None:
    """Writes a file in one step; the half-written one lies in the backup, where restoring clears it away.

    Raises:
        CheckpointError: somebody has changed the file, or made one, since its original was kept; it stays.
    """
    part, target = folder / BACKUP / _PART, folder / name
    write_synced(part, content)
    if target.exists():
        shutil.copymode(target, part)
    _refuse_foreign(target, name, manifest, "patching")
    os.replace(part, target)


def refuse_links(folder: Path, names: list[str]) -> None:
    """Refuses to replace links, which belong to something else as well, such as the Hub's cache.

    Raises:
        CheckpointError: one of the files to be replaced is a symbolic link.
    """
    for name in names:
        if (folder / name).is_symlink():
            raise CheckpointError(
                f"{folder / name} is a symbolic link, as in the Hub's cache, which is shared; "
                "write to another folder instead",
                "out",
                "in_place",
            )
