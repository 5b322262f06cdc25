"""The reference model with its retrieval adapter, merged without peft."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CheckpointError
from . import CHECKPOINT, PASSKEY

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_taught(adapter: Path = PASSKEY) -> PreTrainedModel:
    """Loads the reference model in float32, on the CPU, with the adapter merged: ``W + alpha / r * B A``.

    (Hu et al., arXiv 2106.09685, equation 3.)
    """
    import torch
    from safetensors.torch import load_file

    from ...checkpoints.loading import load_model

    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale = settings["lora_alpha"] / settings["r"]
    model = load_model(CHECKPOINT, "float32", "cpu")
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in tensors.items():
            if module := re.fullmatch(r"base_model\.model\.(.+)\.lora_A\.weight", name):
                up = tensors[name.replace("lora_A", "lora_B")]
                model.get_submodule(module[1]).weight += scale * (up @ down)
    return model


def save_taught(out: Path) -> None:
    """Writes the merged model as a float32 checkpoint, which needs neither peft nor ropescale.

    Raises:
        CheckpointError: ``out`` exists and is not an empty folder.
    """
    from ...checkpoints.loading import load_tokenizer

    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise CheckpointError(f"{out} exists already; choose another folder")
    load_taught().save_pretrained(out)
    load_tokenizer(CHECKPOINT).save_pretrained(out)
    (out / "README.md").write_bytes((PASSKEY / "README.md").read_bytes())
