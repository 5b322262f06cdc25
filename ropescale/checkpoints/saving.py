"""Saves a loaded model with its schedule, in the form that ``ropescale patch`` writes, and an adapter with its base.

Also completes the folder of a model that a trainer saved, so that it has the same files.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from ..errors import CheckpointError
from ..files import local_path, read_json, translated, write_synced
from ..models.patching import installed
from ..models.rotary_modules import quiet_transformers, whole_config
from ..record import RECORD, as_json, read_record
from .contents import raised_tokenizer
from .folders import (
    build_folder,
    check_target,
    files_of,
    is_empty,
    is_weight,
    link_or_copy,
    refuse_missing_shards,
    why_not_ours,
    write_record,
)
from .in_memory import SavedSchedule, is_adapted, refuse_parts, save_pretrained, saved_schedule
from .locating import ADAPTER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TRAINERS = (
    "optimizer* scheduler* scaler* rng_state* trainer_state.json training_args.bin checkpoint-* runs global_step* "
    "*model_fsdp*"
)
"""Patterns of files that trainers write, but :func:`ropescale.save` does not."""


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_shard_size: int | str | None = None,
) -> Path:
    """Saves a model with its schedule, in the form that :func:`ropescale.patch_checkpoint` writes.

    Writes the current weights, ``config.json`` with the keys of transformers 4 and 5, the tokenizer with a raised
    limit, ``ropescale.json`` and the model card. The tokenizer, the card and other files come from the folder, or the
    Hub's cache, that the model was loaded from. Changes of the configuration since then, such as more tokens or a
    different dtype, are kept.

    For a PEFT model, writes the adapter and, in the subfolder ``base``, its base model: the configuration with the
    schedule, and linked weights. The adapter's configuration names that base, so that stock PEFT loads both.

    Args:
        model: a transformers model that :func:`ropescale.patch` changed, or that was loaded from a patched folder. It
            may be compiled, or wrapped by PEFT.
        folder: the folder to create, which must be empty or not exist yet.
        tokenizer: the tokenizer to save instead of the source's.
        max_shard_size: the largest size of a weight file, as for ``save_pretrained``.

    Returns:
        The folder.

    Raises:
        RopescaleError: the model carries no schedule, or a schedule that no file can express.
        VerificationError: the model's tables differ from its patch.
        CheckpointError: the folder exists, or a file cannot be written; no partial folder is left.
    """
    whole = getattr(model, "_orig_mod", model)
    refuse_parts(whole)
    saved = saved_schedule(whole)
    path = local_path(folder)
    if os.path.lexists(path) and not is_empty(path):
        raise CheckpointError(f"{path} exists already; choose another folder, or remove it yourself")
    target = check_target(saved.source and saved.source.folder, folder)
    adapted = is_adapted(whole)
    if adapted:
        linkable(saved)  # raises a clear error before PEFT complains about a base without weights
    options: dict[str, int | str] = {} if adapted or max_shard_size is None else {"max_shard_size": max_shard_size}

    def fill(new: Path) -> dict[str, str]:
        save_pretrained(whole, new, **options)
        if adapted:
            return write_adapter_base(saved, tokenizer, target, new)
        _write_all_but_weights(saved, tokenizer, new)
        return {name: "copy" for name in sorted(os.listdir(new)) if is_weight(name)}

    build_folder(target, fill, saved.record)
    return target


def _write_all_but_weights(saved: SavedSchedule, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Writes the files that patching writes, except the weights, into a folder that ``save_pretrained`` wrote."""
    if tokenizer is not None and not (folder / "tokenizer_config.json").exists():
        save_pretrained(tokenizer, folder)
    if saved.source is not None:
        source = saved.source.folder

        def stays(name: Path) -> bool:
            above = source / name.parts[0] in folder.absolute().parents
            written = name.as_posix() != "README.md" and (folder / name).exists()
            of_weights = is_weight(name.name) or name.name.endswith(".index.json")
            return above or written or of_weights or _is_trainers(name.parts[0])

        with translated(source, "read"):
            link_or_copy(source, folder, {}, "copy", stays)
    saved.write(folder)


# ---------------------------------------------------------------------------------------------------------
# Adapters


BASE = "base"
"""The subfolder of an adapter's folder in which :func:`ropescale.save` writes the base model."""


def linkable(saved: SavedSchedule) -> Path:
    """Returns the folder of an adapter's base model, whose weights will be linked.

    Raises:
        CheckpointError: the base was not loaded from a folder, or the folder lacks weights.
    """
    source = saved.source and saved.source.folder
    if source is None or not any(is_weight(name.name) for name in files_of(source)):
        raise CheckpointError(
            f"the base of this adapter ({saved.record['source']}) has no folder with weights to link; save it with "
            "ropescale.save, load it from that folder, and attach the adapter to it"
        )
    refuse_missing_shards(source)
    return source


def write_adapter_base(
    saved: SavedSchedule, tokenizer: PreTrainedTokenizerBase | None, target: Path, folder: Path
) -> dict[str, str]:
    """Adds the base model and the schedule's files to a folder that PEFT wrote.

    Args:
        target: the folder's final path.
        folder: the folder's current path; a base that ropescale wrote there is replaced.

    Returns:
        The link type of each weight file.

    Raises:
        CheckpointError: a file cannot be written.
    """
    source = linkable(saved)
    base = folder / BASE
    if os.path.lexists(base) and (why := why_not_ours(base)):
        raise CheckpointError(why)
    for path in sorted(folder.rglob(ADAPTER)):
        # PEFT resolves a relative path from the working directory, not from the adapter's folder.
        named = {"base_model_name_or_path": os.path.abspath(target / BASE), "revision": None}
        write_synced(path, as_json({**read_json(path), **named}))
        if path.parent != folder:  # a further adapter, whose subfolder has its name
            write_synced(path.parent / RECORD, as_json(saved.record))
    if tokenizer is not None:
        save_pretrained(tokenizer, folder)
    if raised := raised_tokenizer(folder, saved.plan.length, saved.earlier):
        write_synced(folder / "tokenizer_config.json", raised)

    def fill(new: Path) -> dict[str, str]:
        with translated(source, "read"):
            links = link_or_copy(source, new, {}, "auto")
        saved.write(new)
        return links

    links = build_folder(base, fill, saved.record, force=True)
    return {f"{BASE}/{name}": how for name, how in links.items()}


# ---------------------------------------------------------------------------------------------------------
# Trainers' folders


def refuse_incompletable(model: nn.Module) -> bool:
    """Checks before training that :func:`complete` will be possible afterwards.

    Returns:
        Whether :func:`complete` is needed, which is False if the model carries no schedule from ropescale.

    Raises:
        RopescaleError: no file can express the schedule, or the base of an adapter has no folder to link.
    """
    if not carries_ours(model):
        return False
    saved = saved_schedule(model)
    if is_adapted(model):
        linkable(saved)
    return True


def carries_ours(model: nn.Module) -> bool:
    """Whether a model carries a schedule from ropescale, in memory or in the folder that it was loaded from."""
    name = str(getattr(whole_config(model), "_name_or_path", "") or "")
    return installed(model) is not None or (os.path.isdir(name) and read_record(Path(name)) is not None)


def complete(model: nn.Module, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    """Completes a folder that a trainer wrote with the model's ``save_pretrained``.

    Afterwards the folder contains the trainer's files and those of :func:`ropescale.save`: ``config.json`` with the
    keys of transformers 4 and 5 (of 5 alone, if Trainer could not resume with both), the tokenizer with a raised limit,
    the card, ``ropescale.json`` and, for an adapter, the base with the schedule. The weights remain as the trainer
    wrote them, so the model's weights may be spread over processes. The record is written last. The call is idempotent.

    Args:
        model: the model, as for :func:`ropescale.save`.
        folder: the trainer's folder.
        tokenizer: the tokenizer to save if the trainer saved none. Default: a copy of the source's.

    Returns:
        The folder.

    Raises:
        RopescaleError: as for :func:`ropescale.save`.
    """
    path = local_path(folder)
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder; let the trainer save the model into it first")
    saved = saved_schedule(model)
    with translated(path):
        (path / RECORD).unlink(missing_ok=True)
        if is_adapted(model):
            links = write_adapter_base(saved, tokenizer, path, path)
        else:
            _write_all_but_weights(saved, tokenizer, path)
            _keep_resumable(path)
            links = {name.as_posix(): "copy" for name in files_of(path) if is_weight(name.name)}
        write_record(path, saved.record, links, lambda name: not _is_trainers(name.parts[0]))
    return path


def _keep_resumable(folder: Path) -> None:
    """Removes transformers 4's ``rope_scaling`` if transformers' Trainer could not resume with it.

    Trainer reads ``config.json`` as a generic configuration. In transformers 5.23, this fails for ``rope_theta``
    together with a ``rope_scaling`` of yarn, longrope or llama3. ``rope_parameters`` contains the same values.
    """
    from transformers import PreTrainedConfig

    path = folder / "config.json"
    config = read_json(path)
    if not (folder / "trainer_state.json").exists() or "rope_parameters" not in config:
        return
    try:
        with quiet_transformers("transformers.configuration_utils"):
            PreTrainedConfig.from_json_file(str(path))
    except AttributeError:
        write_synced(path, as_json({key: value for key, value in config.items() if key != "rope_scaling"}))


def _is_trainers(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _TRAINERS.split())
