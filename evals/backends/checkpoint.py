"""The checkpoint of a command: its folder, its loading options, and the schedules for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...adapters import Adapter, attached, find_loadable, read_configs, remarks
from ...checkpoints.loading import has_tokenizer, load_model, load_tokenizer
from ...files import read_given
from ..parallel.processes import World
from ..progress import Notes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_LARGEST_TEMPLATE = 1 << 20
"""The size limit of a chat template, in bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """A model's or adapter's folder or Hub id, with loading options.

    A checkpoint can be used as the path of its folder, which is downloaded on demand.

    Attributes:
        name: the folder or the Hub id; ``revision`` is a branch, tag or commit.
        trust_remote_code: whether to run the checkpoint's own Python code.
        dtype, device, device_map, attn_implementation: as for :func:`ropescale.checkpoints.loading.load_model`.
        tp: whether to shard each layer over the processes (tensor parallelism).
        chat_template: a file with a Jinja template that replaces the tokenizer's own.
        weights: whether the weights are needed; servers have their own.
    """

    name: str
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    device: str | None = None
    device_map: str | None = None
    attn_implementation: str | None = None
    tp: bool = False
    chat_template: str | None = None
    weights: bool = True

    @cached_property
    def folder(self) -> Path:
        """The checkpoint's folder, including the weights if they are needed."""
        folder, adapter = self._found
        return folder if adapter is None else adapter.folder

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def adapter(self) -> Adapter | None:
        """The adapter and its base; None for a full model."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Path, Adapter | None]:
        return find_loadable(self.name, self.revision, weights=self.weights)

    def warn(self, notes: Notes) -> None:
        """Warns about an adapter's frequencies."""
        for remark in remarks(self.adapter) if self.adapter else ():
            notes.warn(f"warning: {remark}")

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Loads the tokenizer, with the requested chat template. An adapter without a tokenizer has its base's.

        Raises:
            RopescaleError: the template cannot be read.
        """
        trusted, adapter = self.trust_remote_code, self.adapter
        if adapter is None:
            tokenizer = load_tokenizer(self.folder, trust_remote_code=trusted)
        else:
            folder = adapter.folder if has_tokenizer(adapter.folder) else adapter.base_folder
            tokenizer = load_tokenizer(folder, trust_remote_code=trusted, base=adapter.base_folder)
        if self.chat_template is not None:
            tokenizer.chat_template = read_given(self.chat_template, "chat_template", _LARGEST_TEMPLATE)
        return tokenizer

    def model(self, here: World) -> PreTrainedModel:
        """Loads the model, or an adapter on its base, on this process's device."""
        adapter = self.adapter
        model = load_model(
            self.folder if adapter is None else adapter.base_folder,
            self.dtype,
            here.device(self.device),
            trust_remote_code=self.trust_remote_code,
            device_map=self.device_map,
            tensor_parallel=self.tp,
            attn_implementation=self.attn_implementation,
        )
        if adapter is None:
            return model
        return attached(model, adapter.folder, self.tokenizer() if has_tokenizer(adapter.folder) else None)

    @cached_property
    def configs(self) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """The configuration without ropescale's scaling, and the unchanged configuration. Does not need the weights."""
        return read_configs(self.name, self.revision)

    @property
    def config(self) -> Mapping[str, object]:
        """The configuration without ropescale's scaling."""
        return self.configs[0]
