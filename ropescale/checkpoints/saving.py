"""Saves a loaded model with the schedule that it carries, as ``ropescale patch`` would have written its checkpoint."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..adapters import adapter_saving
from ..errors import CheckpointError
from ..files.reading import local_path, translated
from .folders import bring, build_folder, check_target, is_of_weights, is_weight, recover, share
from .in_memory import Carried, carried, is_adapted, refuse_parts, save_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_shard_size: int | str | None = None,
) -> Path:
    """Writes a model with the schedule that it carries, as :func:`ropescale.patch_checkpoint` writes one from disk.

    That is ``config.json`` with the keys of transformers 4 and 5, the tokenizer with its limit raised,
    ``ropescale.json`` and the model card, beside the weights as they are now. Tokenizer, card and other files come
    from the folder, or the Hub's cache, that the model was loaded from; what was changed in the configuration since
    (more tokens, another dtype) is kept.

    Of a PEFT model the adapter is written, and its base in the folder ``base`` inside: the configuration with the
    schedule, and the weights linked; it is refused where they were changed in memory. The adapter names that
    base, so that stock PEFT loads both.

    Args:
        model: a transformers model that :func:`ropescale.patch` changed, or that was loaded from a patched folder;
            PEFT-wrapped and compiled ones work alike.
        folder: the folder to make; it must not exist yet.
        tokenizer: is saved in place of the source's.
        max_shard_size: the largest weight file, as ``save_pretrained`` takes it.

    Returns:
        The folder.

    Raises:
        RopescaleError: the model carries no schedule, or one that no file can hold.
        VerificationError: its tables are not those of its patch.
        CheckpointError: the folder exists, or something cannot be written; nothing is left behind.
    """
    whole = getattr(model, "_orig_mod", model)
    refuse_parts(whole)
    found = carried(whole)
    target = _target(found.source, folder)
    if is_adapted(whole):
        fill = partial(adapter_saving.fill, whole, found, tokenizer, target)
    else:
        options = {} if max_shard_size is None else {"max_shard_size": max_shard_size}
        fill = partial(_fill, whole, found, tokenizer, options)
    build_folder(target, fill, found.record)
    return target


def _target(source: Path | None, folder: str | Path) -> Path:
    path = local_path(folder)
    recover(path)
    if os.path.lexists(path):
        raise CheckpointError(f"{path} exists already; choose another folder, or remove it yourself")
    return check_target(source, folder)


def _fill(
    model: Any, found: Carried, tokenizer: PreTrainedTokenizerBase | None, options: dict[str, Any], folder: Path
) -> dict[str, str]:
    """Lets transformers write the weights, and writes everything else as patching does."""
    save_pretrained(model, folder, **options)
    generation = generation_config(model, found.source, folder)
    if found.source is not None:
        with translated(found.source, "read"):
            bring(found.source, folder, generation, "copy", is_of_weights)
    if tokenizer is not None:
        save_pretrained(tokenizer, folder)
    found.write(folder)
    share(folder, "config.json")
    return {name: "copy" for name in sorted(os.listdir(folder)) if is_weight(name)}


def generation_config(model: Any, source: Path | None, folder: Path) -> dict[str, bytes]:
    """Returns the generation settings that were just written, where they are not the source's; else removes them.

    Transformers makes settings up from the configuration where a checkpoint has none.
    """
    from transformers import GenerationConfig

    written = folder / "generation_config.json"
    if source is None or not written.exists():
        return {}
    now = model.generation_config
    if (source / written.name).exists():
        same = _settings(GenerationConfig.from_pretrained(source)) == _settings(now)
    else:
        same = now._from_model_config
    if not same:
        return {written.name: written.read_bytes()}
    written.unlink()
    return {}


def _settings(config: Any) -> dict[str, object]:
    return {key: value for key, value in config.to_dict().items() if key not in ("transformers_version",)}
