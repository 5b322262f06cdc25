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
from pathlib import Path

from ..errors import CheckpointError, ConfigError
from ..files import atomic, interrupts, locks, renaming
from ..files.reading import read_bytes, read_json, sha256

BACKUP = "ropescale-backup"
"""The folder in which ``in_place`` keeps what it replaced."""

FILES = ("config.json", "ropescale.json", "README.md", "tokenizer_config.json")
"""All that patching ever writes; the weights and whatever else lies in a checkpoint are never replaced."""

_MANIFEST, _PART = "manifest.json", ".part.ropescale"
_EARLIER_PART = "part"
"""The name of a file that is being written, in versions that kept no hashes."""


@dataclass
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        replaced: names whose originals are kept here.
        added: names that were not there.
        written: SHA-256 of whatever ropescale wrote under each name.
        originals: SHA-256 of each original.
        finished: whether all that was begun was done; None in one of a version that did not say.
    """

    replaced: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    written: dict[str, list[str]] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)
    finished: bool | None = True

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
    with _held(folder, make=True) as backup:
        manifest = _manifest(backup)
        _refuse_changed(folder, manifest, "patching again")
        _adopt(folder, backup, manifest)
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
    with _held(folder) as backup:
        manifest = _manifest(backup)
        changed = (backup / _MANIFEST).exists()
        _refuse_damaged(folder, backup, manifest)
        if changed:
            _refuse_changed(folder, manifest, "restoring")
            _put_back(folder, backup, manifest)
        _clear(folder, backup, manifest)
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
    if any(not os.path.lexists(backup / name) for name in manifest.replaced):
        return True  # a restore has put it back
    if manifest.finished and not os.path.lexists(folder / FILES[1]):
        return True  # without its record nobody knows what the configuration was made of
    return not (_looks_finished(folder, manifest) if manifest.finished is None else manifest.finished)


def can_tell(folder: Path) -> bool:
    """Whether the manifest has the hash of every file that ropescale wrote, so that nothing else is overwritten."""
    manifest = _manifest(folder / BACKUP)
    return all(name in manifest.written for name in manifest.names)


def _looks_finished(folder: Path, manifest: Manifest) -> bool:
    """Whether an old version finished: it wrote the record after the configuration."""
    backup, record = folder / BACKUP, FILES[1]
    if record in manifest.added:
        return (folder / record).exists()
    replaced = [name for name in FILES[:2] if name in manifest.replaced]
    changed = [(folder / name).exists() and not _is_copy(folder, backup, name) for name in replaced]
    return all(changed) or not any(changed)


@contextmanager
def _held(folder: Path, make: bool = False) -> Iterator[Path]:
    """Yields the backup's folder, made if wanted, and locked against other commands where the system has locks."""
    backup = folder / BACKUP
    _refuse_link(backup)
    if make:
        backup.mkdir(exist_ok=True)
    handle = None
    with suppress(OSError):  # Windows opens no folders
        handle = os.open(backup, os.O_RDONLY)
    try:
        if handle is not None and (locks.take(handle) is False or not atomic.is_still(handle, backup)):
            make = False
            raise CheckpointError(f"another command is changing {folder} in place; wait until it is done")
        yield backup
    except BaseException:
        if make and not (backup / _MANIFEST).exists():
            with suppress(OSError, CheckpointError):
                _clear(folder, backup, Manifest())  # nothing was changed yet
        raise
    finally:
        if handle is not None:
            os.close(handle)


def _refuse_link(backup: Path) -> None:
    if backup.is_symlink():
        raise CheckpointError(f"{backup} is a symbolic link, and only a folder holds originals; remove the link")
    if backup.exists() and not backup.is_dir():
        raise CheckpointError(f"{backup} is a file, and originals are kept in a folder of that name; move it away")


def _adopt(folder: Path, backup: Path, manifest: Manifest) -> None:
    """Adds hashes to a manifest without them: what lies there counts as what was written."""
    for name in manifest.names:
        if name not in manifest.written and os.path.lexists(folder / name):
            manifest.written[name] = [sha256(read_bytes(folder / name))]
        if name in manifest.replaced and name not in manifest.originals:
            manifest.originals[name] = sha256(read_bytes(backup / name))


def _refuse_damaged(folder: Path, backup: Path, manifest: Manifest) -> None:
    """Refuses to put back or remove anything while an original is missing or changed.

    Raises:
        ConfigError: names the file.
    """
    for name in FILES:
        kept, there = backup / name, folder / name
        original = manifest.originals.get(name)
        if name not in manifest.replaced:
            if os.path.lexists(kept) and not _is_copy(folder, backup, name):
                raise ConfigError(f"{backup / _MANIFEST} does not list {kept}; put it back by hand if it is yours")
        elif os.path.lexists(kept):
            if original not in (None, sha256(read_bytes(kept))):
                raise ConfigError(f"{kept} is not the original that was kept; download the checkpoint's {name} again")
        elif original is not None and not (there.is_file() and sha256(read_bytes(there)) == original):
            raise ConfigError(f"{kept} is missing, and {there} is not the original; download that file again")
    for name in manifest.added:
        if name not in manifest.written and not _has_our_marks(folder / name):
            raise ConfigError(f"{folder / name} was not written by ropescale, whatever {backup / _MANIFEST} says")


def _has_our_marks(path: Path) -> bool:
    """Whether a file is clearly ours, so that a manifest without hashes suffices to remove it."""
    if not os.path.lexists(path):
        return True
    marks = {"ropescale.json": (b'"schema"', b'"undo"'), "README.md": (b"<!-- ropescale: begin -->",)}.get(path.name)
    return marks is not None and all(mark in read_bytes(path) for mark in marks)


def _refuse_changed(folder: Path, manifest: Manifest, doing: str) -> None:
    """Refuses to overwrite files that were changed since: no backup has those changes."""
    for name in manifest.names:
        _refuse_foreign(folder / name, name, manifest, doing)


def _refuse_foreign(path: Path, name: str, manifest: Manifest, doing: str) -> None:
    """Refuses to overwrite a file that is neither what ropescale wrote nor the original."""
    if not os.path.lexists(path) or (name not in manifest.written and manifest.finished is None):
        return  # versions that kept no hashes knew no better
    ours = [*manifest.written.get(name, []), manifest.originals.get(name)]
    if path.is_symlink() or sha256(read_bytes(path)) not in ours:
        raise CheckpointError(
            f"{path} was changed since it was patched in place, and {doing} would lose that; move the file away first"
        )


def _put_back(folder: Path, backup: Path, manifest: Manifest) -> None:
    for name in manifest.names:
        _refuse_foreign(folder / name, name, manifest, "restoring")
        if name in manifest.added:
            (folder / name).unlink(missing_ok=True)
        elif os.path.lexists(backup / name):  # not there: put back by a restore that was interrupted
            os.replace(backup / name, folder / name)


def _clear(folder: Path, backup: Path, manifest: Manifest) -> None:
    """Removes our files from the backup, the manifest last, and then the folder if it is empty."""
    with interrupts.deferred():
        earlier = [_EARLIER_PART] if manifest.finished is None else []
        for name in (_PART, *earlier, *(name for name in FILES if _is_copy(folder, backup, name)), _MANIFEST):
            (backup / name).unlink(missing_ok=True)
        with suppress(OSError):
            backup.rmdir()


def _is_copy(folder: Path, backup: Path, name: str) -> bool:
    """Whether a file in the backup is only a copy, as a patch leaves that was killed before it wrote the manifest."""
    kept, there = backup / name, folder / name
    both = kept.is_file() and there.is_file() and not kept.is_symlink()
    return both and read_bytes(kept) == read_bytes(there)


def _keep_originals(folder: Path, backup: Path, names: list[str], manifest: Manifest) -> None:
    """Adds to the backup what is not in it yet: after a second patch it still holds the first originals."""
    new = [name for name in names if name not in manifest.names]
    there = [name for name in new if os.path.lexists(folder / name)]
    for name in there:
        if os.path.lexists(backup / name) and not _is_copy(folder, backup, name):
            raise CheckpointError(f"{backup / name} is not what ropescale kept; move {backup} away")
        atomic.fill(backup / _PART, read_bytes(folder / name))
        shutil.copystat(folder / name, backup / _PART)
        os.replace(backup / _PART, backup / name)
        manifest.originals[name] = sha256(read_bytes(backup / name))
    manifest.replaced += there
    manifest.added += [name for name in new if name not in there]


def _manifest(backup: Path) -> Manifest:
    """Returns what lies in the backup; it may have been downloaded with the checkpoint, so it reaches no file but ours.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged, or names a file that patching never writes.
    """
    path = backup / _MANIFEST
    _refuse_link(backup)
    if not path.exists():
        return Manifest()
    from pydantic import TypeAdapter, ValidationError

    needed = {"replaced": None, "added": None, "finished": None}
    try:
        manifest = TypeAdapter(Manifest).validate_python(needed | read_json(path))
    except ValidationError:
        manifest = None
    names = manifest.names if manifest else []
    distinct = len({*names} & {*FILES}) == len(names)  # a file named twice would go back twice
    there = [backup / name for name in FILES if os.path.lexists(backup / name)]
    if manifest is None or not distinct or any(each.is_symlink() or not each.is_file() for each in there):
        raise ConfigError(f"{path} is damaged; the originals lie beside it, put them back by hand")
    return manifest


def _store(backup: Path, manifest: Manifest, finished: bool) -> None:
    manifest.finished = finished
    atomic.fill(backup / _PART, (json.dumps(asdict(manifest), indent=2) + "\n").encode())
    os.replace(backup / _PART, backup / _MANIFEST)


def _replace(folder: Path, name: str, content: bytes, manifest: Manifest) -> None:
    """Writes a file in one step; the half-written one lies in the backup, where restoring clears it away.

    Raises:
        CheckpointError: somebody has changed the file, or made one, since its original was kept; it stays.
    """
    part, target = folder / BACKUP / _PART, folder / name
    atomic.fill(part, content)
    _refuse_foreign(target, name, manifest, "patching")
    if target.exists():
        shutil.copymode(target, part)
    with interrupts.deferred():
        if not os.path.lexists(target) or not renaming.exchange(part, target):
            os.replace(part, target)
            return
        try:
            _refuse_foreign(part, name, manifest, "patching")
        except BaseException:
            renaming.exchange(part, target)
            raise
        part.unlink()


def refuse_links(folder: Path, names: list[str]) -> None:
    """Refuses to replace links, which belong to something else as well, such as the Hub's cache.

    Raises:
        CheckpointError: one of the files to be replaced is a symbolic link.
    """
    for name in names:
        if (folder / name).is_symlink():
            raise CheckpointError(
                f"{folder / name} is a symbolic link, as in the Hub's cache, which is shared; "
                "use out=OUT instead of in_place=True",
                "out",
                "in_place",
            )
