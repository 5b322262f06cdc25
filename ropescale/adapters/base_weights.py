"""Compares the weights of an adapter's base in memory with the files that are about to be linked in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointError

_PLAIN = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_WRAPPERS = (".base_layer", ".original_module")
"""What PEFT adds to the names of the tensors that it wraps."""


def refuse_changed(model: Any, source: Path, adapter: Path) -> None:
    """Refuses a base whose weights were changed in memory; one tensor is read at a time.

    Compared are tensors of equal name. Left out are what the adapter's files hold themselves, layers that an active
    adapter is merged into, quantized models, and types whose weights transformers converts as it loads them.

    Raises:
        CheckpointError: names the tensor.
    """
    from safetensors import safe_open

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if _is_converted(base):
        return
    saved = set(_saved_names(adapter))
    present = {name: each for name, each in _present(base).items() if name not in saved}
    for path in _shards(source):
        with safe_open(path, "pt") as file:
            for name in present.keys() & set(file.keys()):
                if not _is_same(present[name], file.get_tensor(name)):
                    raise CheckpointError(
                        f"the base's weights differ from those in {source}, which would be linked: {name}; "
                        "merge_and_unload and save the whole model, or save the changed base first, load that, and "
                        "attach the adapter to it"
                    )


def _is_converted(base: Any) -> bool:
    from transformers import conversion_mapping

    is_quantized = getattr(base.config, "quantization_config", None) is not None
    return is_quantized or conversion_mapping.get_checkpoint_conversion_mapping(base.config.model_type) is not None


def _shards(source: Path) -> list[Path]:
    whole = source / "model.safetensors"
    return [whole] if whole.exists() else sorted(source.glob("model-*-of-*.safetensors"))


def _saved_names(adapter: Path) -> Iterator[str]:
    """Yields the names of the base's tensors that an adapter's files hold, such as biases and embeddings."""
    from safetensors import safe_open

    for path in adapter.rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            yield from (_plain(name.removeprefix("base_model.model.")) for name in file.keys())  # noqa: SIM118


def _present(base: nn.Module) -> Mapping[str, torch.Tensor]:
    """Returns the tensors in memory by the names that they have in a checkpoint."""
    merged = tuple(f"{name}." for name, module in base.named_modules() if getattr(module, "merged", False) is True)
    named = base.named_parameters()
    return {_plain(name): each.data for name, each in named if not each.is_meta and not name.startswith(merged)}


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
    return any(torch.equal(here, each) or torch.allclose(here, each, rtol=0, atol=0, equal_nan=True) for each in casts)
