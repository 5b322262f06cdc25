"""PEFT adapters on disk: which base they name, and under which schedule they were trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError
from ..files.reading import local_path, read_json
from ..formatting import cut
from .locating import ADAPTER, find_model, locate
from .record import read_record

if TYPE_CHECKING:
    from .stored_record import Record

CONFIG = ADAPTER
BASE = "base"
"""The folder of the base, inside that of an adapter that :func:`ropescale.save` wrote."""


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder and its base.

    Attributes:
        folder: the adapter's folder.
        base: the name of its base, a folder or a Hub id, as the adapter says it.
        base_folder: where the base lies.
        record: what ropescale recorded beside the adapter; None where it did not write it.
    """

    folder: Path
    base: str
    base_folder: Path
    record: Record | None


def find_adapter(model: str | Path, revision: str | None = None, *, weights: bool = True) -> Adapter | None:
    """Finds an adapter and its base; None where ``model`` is a whole model.

    Args:
        model, revision, weights: as for :func:`ropescale.checkpoints.locating.find_model`.

    Raises:
        CheckpointError: the base cannot be found, or is not named.
    """
    folder = locate(model, revision, weights=weights)
    if not (folder / CONFIG).exists():
        return None
    config = read_json(folder / CONFIG)
    base, pinned = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base, str) or not base:
        raise CheckpointError(f"{folder / CONFIG} names no base model; write its folder into base_model_name_or_path")
    is_local = local_path(base).is_dir()
    try:
        there = find_model(base, pinned if isinstance(pinned, str) and not is_local else None, weights=weights)
    except CheckpointError as error:
        raise CheckpointError(f"the base of the adapter {folder}: {error} (base_model_name_or_path)") from error
    return Adapter(folder, cut(base, 200), there, read_record(folder))


def find_base(model: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Finds the folder of a model, or of the base of an adapter.

    Args:
        model, revision, weights: as for :func:`ropescale.checkpoints.locating.find_model`.

    Raises:
        CheckpointError: it cannot be found.
    """
    adapter = find_adapter(model, revision, weights=weights)
    return find_model(model, revision, weights=weights) if adapter is None else adapter.base_folder
