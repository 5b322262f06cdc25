"""What all stages share: the settings, the corpus, the device, the results, and what a later call needs."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ropescale.evals.metrics.far_repeats import far_repeats

from .corpus import Corpus
from .plan import Schedules, Settings

RESULTS, WEIGHTS = "results.json", "base.pt"
MOST_LOSSES = 15.5 * 2**20
"""Bytes of a file of losses, at most."""


class Lab:
    """The settings, the corpus, the device and the results so far.

    Args:
        out: the folder for results.json and files of losses.
        state: the folder for the trained weights and the results, for later calls.
        began: when this call began, by ``time.perf_counter``.

    Attributes:
        results: by stage; written to both folders after every stage.
        far: which of the scored tokens 1 ... L1 - 1 are far repeats, bool [documents, positions - 1].
        micro_tokens: positions of a training step that fit into memory together.
        models: models that later stages use, too, by name.
        tuned_losses: losses of all arms of fine-tuning so far, by arm and schedule.
    """

    def __init__(self, settings: Settings, corpus: Corpus, out: Path, state: Path, began: float) -> None:
        self.settings, self.corpus, self.sizes = settings, corpus, settings.sizes
        self.schedules = Schedules(settings.sizes)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.on_gpu = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32
        self._out, self._state, self._began = out, state, began
        for folder in (out, state):
            folder.mkdir(parents=True, exist_ok=True)
        earlier = state / RESULTS
        self.results: dict[str, Any] = json.loads(earlier.read_text()) if earlier.exists() else {}
        self._check()
        self.documents = corpus.measured(settings.documents)
        self.packages = [package for package, *_ in corpus.described(settings.documents)]
        self.far = np.stack([far_repeats(row.tolist(), self.sizes.trained)[1:] for row in self.documents])
        self.micro_tokens = settings.rows * self.sizes.trained
        self.models: dict[str, Any] = {}
        self.tuned_losses: dict[str, np.ndarray] = {}
        self.mfu = self.results.get("train", {}).get("mfu") or settings.mfu

    def _check(self) -> None:
        sizes, manifest = self.sizes, self.corpus.manifest
        length, vocabulary = manifest["held_length"], manifest["vocab"]
        if (length, vocabulary) != (sizes.target, sizes.vocabulary):
            raise ValueError(
                f"the corpus has documents of {length} tokens and a vocabulary of {vocabulary}, "
                f"not {sizes.target} and {sizes.vocabulary}; make it in this size"
            )
        earlier = self.results.get("setup", {}).get("corpus", {}).get("train_sha256")
        if earlier not in (None, manifest["train_sha256"]):
            raise ValueError(f"the model in {self._state} was trained on another corpus; give another --state")

    @cached_property
    def tokens(self) -> torch.Tensor:
        """The training stream on the device, int32 [tokens]."""
        return torch.from_numpy(self.corpus.stream.astype(np.int32)).to(self.device)

    def windows(self, starts: Any, length: int) -> torch.Tensor:
        """Returns windows of the training stream, int64 [windows, length]."""
        firsts = torch.as_tensor(starts, device=self.device)[:, None]
        return self.tokens[firsts + torch.arange(length, device=self.device)].long()

    # --- time and memory ---

    def elapsed(self) -> float:
        """Returns the seconds since this call began."""
        return time.perf_counter() - self._began

    def left(self) -> float:
        """Returns the seconds that are left to this call."""
        return self.settings.seconds - self.elapsed()

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def free(self, *names: str) -> None:
        """Frees these models, and all memory that nothing refers to."""
        for name in names:
            self.models.pop(name, None)
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    # --- results ---

    def say(self, *words: object) -> None:
        """Prints at once, with the time."""
        print(f"[{self.elapsed():6.1f}s]", *words, flush=True)

    def store(self, name: str, entry: Any) -> None:
        """Adds an entry to the results, and writes them."""
        self.results[name] = entry
        for folder in (self._state, self._out):
            part = folder / ".results.part"
            part.write_text(json.dumps(self.results, default=_plain))
            part.replace(folder / RESULTS)

    def store_setup(self) -> None:
        """Stores what was given, and where it runs."""
        entry = {
            "settings": dataclasses.asdict(self.settings),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name(0) if self.on_gpu else "cpu",
            "dtype": str(self.dtype),
            "lengths": self.sizes.lengths,
            "parameters": self.sizes.body + self.sizes.head,
            "documents": self.corpus.described(self.settings.documents),
            "far": self.far.sum(1).tolist(),
            "corpus": self.corpus.facts(),
        }
        self.store("setup", entry)

    def store_losses(self, name: str, losses: Mapping[str, np.ndarray]) -> list[str]:
        """Writes losses per token as float16; returns the names of the last ones that did not fit into the file."""
        kept, dropped = dict(losses), list[str]()
        path = self._out / f"losses_{name}.npz"
        while kept:
            arrays: dict[str, Any] = {key.replace("/", "_"): value.astype(np.float16) for key, value in kept.items()}
            np.savez_compressed(path, **arrays)
            if path.stat().st_size <= MOST_LOSSES:
                break
            dropped.append(kept.popitem()[0])
        return dropped

    # --- the trained model ---

    def has_weights(self) -> bool:
        """Returns whether there is a trained model."""
        return (self._state / WEIGHTS).exists()

    def save_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Keeps the trained model for all later stages."""
        torch.save(dict(weights), self._state / WEIGHTS)

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the trained model's weights, in float32 on the processor."""
        return torch.load(self._state / WEIGHTS, weights_only=True)


def _plain(value: Any) -> Any:
    """Returns what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else str(value)
