"""Symbolic links that lead out of a checkpoint: a copy would include what they lead to.

A link that stays in the folder is harmless, and some links out of it are expected: to the Hub's cache, in a snapshot
or in a folder that an older client downloaded to; to weights, where they were made just now; and to weights that our
record lists. These cause no warning, but the last kind is not uploaded: a hostile record may have come with the links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError, RopescaleError
from ..files import entry_of, read_json, translated
from ..output.escaping import named
from .folders import SKIPPED, is_weight
from .metadata.record import NAME as RECORD


@dataclass(frozen=True, order=True)
class Link:
    """A link that leads out of a checkpoint.

    Attributes:
        name: its path, relative to the checkpoint's folder.
        target: the path it leads to, at the end of all links.
    """

    name: str
    target: str


def leaving(folder: Path, ours: Collection[str] = (), *, by_record: bool = True) -> list[Link]:
    """Returns the links below a folder that lead out of it, sorted; what they lead to is not looked at.

    Args:
        folder: a checkpoint.
        ours: names of links to weights that were made by whoever asks.
        by_record: whether the record in the folder is believed, which may be anybody's.
    """
    root, blobs, recorded = os.path.realpath(folder), _blobs(folder), _recorded(folder) if by_record else {}
    away = []
    for name in found(folder):
        target = os.path.realpath(folder / name)
        inside = target == root or target.startswith(os.path.join(root, ""))
        cached = os.path.dirname(target) == blobs or _BLOB.fullmatch(Path(target).as_posix()) is not None
        if not (inside or cached or name in ours or _is_recorded(folder / name, name, recorded)):
            away.append(Link(name, target))
    return sorted(away)


def warning(links: list[Link]) -> Iterator[str]:
    """Yields one line about the links that lead out of a checkpoint, if there are any."""
    if links:
        yield f"{_named(links)}; whoever is given the result gets what lies there: remove what is not of this model"


def refuse_leaving(folder: Path, ours: Collection[str] = ()) -> None:
    """Refuses to send a checkpoint whose links would publish files that lie outside it.

    Raises:
        CheckpointError: a link leads out of it, or nowhere, or a folder cannot be read.
    """
    with translated(folder, "read"):
        links = leaving(folder, ours, by_record=False)
        lost = [name for name in found(folder) if not (folder / name).exists()]
    if links:
        raise CheckpointError(
            f"{named(folder)} is not sent to the Hub: {_named(links)}, which would be published; put a copy of "
            "the file in its place if it belongs to the model, or remove it"
        )
    if lost:
        target = os.path.realpath(folder / lost[0])
        raise CheckpointError(
            f"{named(folder / lost[0])} is a link to {named(target)}, which does not exist; is the download complete?"
        )


def _named(links: list[Link]) -> str:
    """Returns ``the link a.txt leads out of the checkpoint, to /etc/passwd (and 2 more links lead out)``."""
    more = len(links) - 1
    others = f" (and {more} more {'link leads' if more == 1 else 'links lead'} out)" if more else ""
    return f"the link {named(links[0].name)} leads out of the checkpoint, to {named(links[0].target)}{others}"


def found(folder: Path, below: str = "") -> Iterator[str]:
    """Yields every symbolic link below a folder, except in folders that are never copied; follows none."""
    for entry in os.scandir(folder / below):
        name = os.path.join(below, entry.name)
        if entry.name in SKIPPED:
            continue
        if entry.is_symlink():
            yield name
        elif entry.is_dir(follow_symlinks=False):
            yield from found(folder, name)


def _blobs(folder: Path) -> str | None:
    """Returns where the files of a snapshot in the Hub's cache lie: ``models--ORG--NAME/blobs``; None elsewhere.

    The folder may also be one within the snapshot, ``models--ORG--NAME/snapshots/REVISION/FOLDER``.
    """
    real = Path(os.path.realpath(folder))
    for snapshot in (real, *real.parents):
        repository = snapshot.parent.parent
        if snapshot.parent.name == "snapshots" and repository.name.startswith("models--"):
            return str(repository / "blobs")
    return None


_BLOB = re.compile(r".*/models--[^/]+/blobs/([0-9a-f]{40}|[0-9a-f]{64})", re.DOTALL)
"""A model's file in the Hub's cache, where names are hashes."""


def _recorded(folder: Path) -> Mapping[str, object]:
    """Reads the entries of our record in a folder; none where it is missing or damaged."""
    try:
        files = read_json(folder / RECORD).get("files") if (folder / RECORD).is_file() else None
    except RopescaleError:
        return {}
    return files if isinstance(files, dict) else {}


def _is_recorded(path: Path, name: str, recorded: Mapping[str, object]) -> bool:
    """Whether our record vouches for a link.

    Anybody can write a record, so it vouches for no more than weights that lead to weights, by their name.
    """
    known = entry_of(path, "symlink")
    leads_to = os.path.basename(os.path.realpath(path))
    return recorded.get(Path(name).as_posix()) == known and is_weight(path.name) and is_weight(leads_to)
