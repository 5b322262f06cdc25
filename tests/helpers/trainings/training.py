"""Tiny trainings with transformers' Trainer, on the CPU and in one thread."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import tiny
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, default_data_collator

VOCABULARY = 258


def checkpoint(folder: Path, **changes: Any) -> Path:
    """Writes a tiny checkpoint with a tokenizer of bytes."""
    return tiny.checkpoint(folder, tiny.llama(vocab_size=VOCABULARY, **changes))


def loaded(folder: Path) -> Any:
    """Loads a model as a user would."""
    return AutoModelForCausalLM.from_pretrained(folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Reads what a training saved: the tensors of a model, or of an adapter."""
    name = "adapter_model.safetensors" if (folder / "adapter_config.json").exists() else "model.safetensors"
    return load_file(folder / name)


def same(one: Path, other: Path) -> bool:
    """Whether two trainings saved the same tensors, bit for bit."""
    left, right = weights(one), weights(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class Windows(torch.utils.data.Dataset):
    """Random windows of token ids, each its own labels."""

    def __init__(self, count: int = 64, length: int = 48) -> None:
        generator = torch.Generator().manual_seed(5)
        self.ids = torch.randint(VOCABULARY - 2, (count, length), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[number], "labels": self.ids[number]}


def trainer(model: nn.Module | None, out: Path, *callbacks: Any, evaluate: bool = False, **settings: Any) -> Trainer:
    """Makes a Trainer of four steps that says nothing and asks no network."""
    usual: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    model_init = settings.pop("model_init", None)
    gc.freeze()  # Trainer looks for garbage when it ends, which takes longest in the libraries
    if evaluate:
        usual |= {"eval_strategy": "steps", "eval_steps": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = TrainingArguments(output_dir=str(out), **(usual | settings))
        data = {"train_dataset": Windows(), **({"eval_dataset": Windows(4)} if evaluate else {})}
        shared = {"processing_class": tiny.byte_tokenizer(), "data_collator": default_data_collator}
        return Trainer(model, args, **data, callbacks=list(callbacks), model_init=model_init, **shared)
