"""Saves a PEFT adapter with its patched base, so that stock PEFT loads both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import CheckpointError
from ..files import read_json, translated, write_synced
from ..record import NAME as RECORD
from ..record import as_json
from . import model_card
from .contents import raised_tokenizer
from .folders import build_folder, copy_mode, files_of, is_weight, link_or_copy, refuse_missing_shards
from .in_memory import SavedSchedule, save_pretrained
from .locating import ADAPTER
from .ownership import why_not_ours

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BASE = "base"
"""The folder of the base inside an adapter's folder that :func:`ropescale.save` writes."""


def linkable(saved: SavedSchedule) -> Path:
    """Returns the folder of an adapter's base, whose weights are linked.

    Raises:
        CheckpointError: the base has no folder with weights.
    """
    source = saved.source
    if source is None or not any(is_weight(name.name) for name in files_of(source)):
        raise CheckpointError(
            f"the base of this adapter ({saved.record['source']}) has no folder with weights to link; load it "
            "from one (save_pretrained makes one) and attach the adapter to that"
        )
    refuse_missing_shards(source)
    return source


def write_adapter_base(
    model: Any, saved: SavedSchedule, tokenizer: PreTrainedTokenizerBase | None, target: Path, folder: Path
) -> dict[str, str]:
    """Adds the base and the schedule's files to a folder that PEFT wrote; returns the link type of each weight file.

    Args:
        target: the folder's final path.
        folder: the folder's current path; a base that ropescale wrote there is replaced.

    Raises:
        CheckpointError: the base's weights were changed, or a file cannot be written.
    """
    source, base = linkable(saved), folder / BASE
    with translated(source, "read"):
        refuse_changed(model, source, folder)
    if os.path.lexists(base) and (why := why_not_ours(base)):
        raise CheckpointError(why)
    for path in sorted(folder.rglob(ADAPTER)):
        # PEFT resolves a relative path from the working directory, not from the adapter.
        named = {"base_model_name_or_path": os.path.abspath(target / BASE), "revision": None}
        write_synced(path, as_json({**read_json(path), **named}, ADAPTER))
        if path.parent != folder:  # another adapter, in a folder of its name
            write_synced(path.parent / RECORD, as_json(saved.record, RECORD))
    if tokenizer is not None:
        save_pretrained(tokenizer, folder)
    if raised := raised_tokenizer(folder / "tokenizer_config.json", saved.plan.length):
        write_synced(folder / "tokenizer_config.json", raised)
    write_synced(folder / "README.md", model_card.adapter_card(folder / "README.md", saved.record))
    copy_mode(folder, "README.md")

    def fill(new: Path) -> dict[str, str]:
        with translated(source, "read"):
            links = link_or_copy(source, new, {}, "auto")
        saved.write(new)
        return links

    links = build_folder(base, fill, saved.record, force=True)
    return {f"{BASE}/{name}": how for name, how in links.items()}


# ---------------------------------------------------------------------------------------------------------
# Comparing the base's weights in memory with the files to link

_PLAIN = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_WRAPPERS = (".base_layer", ".original_module")
"""Name parts that PEFT adds to the tensors that it wraps."""


def refuse_changed(model: Any, source: Path, adapter: Path) -> None:
    """Refuses a base whose weights were changed in memory; reads one tensor at a time.

    Compares tensors of equal name. Skips tensors that the adapter's files contain, layers with a merged active adapter,
    quantized models, and types whose weights transformers converts at loading.

    Raises:
        CheckpointError: a weight differs; names the tensor.
    """
    from safetensors import safe_open
    from transformers import conversion_mapping

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    is_quantized = getattr(base.config, "quantization_config", None) is not None
    if is_quantized or conversion_mapping.get_checkpoint_conversion_mapping(base.config.model_type) is not None:
        return
    saved: set[str] = set()  # such as biases and embeddings
    for path in adapter.rglob("adapter_model*.safetensors"):
        with safe_open(path, "pt") as file:
            saved |= {_plain(name.removeprefix("base_model.model.")) for name in file.keys()}  # noqa: SIM118
    merged = tuple(f"{name}." for name, module in base.named_modules() if getattr(module, "merged", False) is True)
    parameters = {
        _plain(name): parameter.data
        for name, parameter in base.named_parameters()
        if not parameter.is_meta and not name.startswith(merged)
    }
    whole = source / "model.safetensors"
    for path in [whole] if whole.exists() else sorted(source.glob("model-*-of-*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in (parameters.keys() - saved) & set(file.keys()):
                if not _is_same(parameters[name], file.get_tensor(name)):
                    raise CheckpointError(
                        f"the base's weights differ from the files in {source} that would be linked: {name}; "
                        "merge_and_unload and save the full model, or save the changed base, load it, and attach the "
                        "adapter to it"
                    )


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _is_same(here: torch.Tensor, there: torch.Tensor) -> bool:
    """Whether two tensors are equal, perhaps after a cast to fewer bits and back."""
    if type(here) is not torch.Tensor or here.dtype not in _PLAIN or there.dtype not in _PLAIN:
        return True
    if here.shape != there.shape:
        return False
    there = there.to(here.device)
    casts = (there.to(dtype).to(here.dtype) for dtype in (here.dtype, torch.bfloat16, torch.float16))
    return any(torch.equal(here, cast) or torch.allclose(here, cast, rtol=0, atol=0, equal_nan=True) for cast in casts)
