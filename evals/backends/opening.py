"""What a user gives as a model, opened: a loaded model, a checkpoint that a run loads, or servers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...adapters import Adapter, attached, find_loadable, read_configs, remarks
from ...checkpoints.loading import has_tokenizer, load_model, load_tokenizer
from ...checkpoints.locating import ModelFolder
from ...errors import DataError
from ...files import AnyPath, Json, read_given
from ..parallel.processes import Sharing, World, world
from ..progress import Notes
from .base import Backend
from .server import ServedModel, Server

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Given: TypeAlias = "PreTrainedModel | Server | Sequence[Server] | Checkpoint | AnyPath"


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
        stored, adapter = self._found
        return stored.folder if adapter is None else adapter.folder

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def adapter(self) -> Adapter | None:
        """The adapter and its base; None for a full model."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[ModelFolder, Adapter | None]:
        return find_loadable(self.name, self.revision, weights=self.weights)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Loads the tokenizer, with the requested chat template. An adapter without a tokenizer has its base's.

        Raises:
            RopescaleError: the template cannot be read.
        """
        trusted = self.trust_remote_code
        adapter = self.adapter
        if adapter is None:
            tokenizer = load_tokenizer(self.folder, trust_remote_code=trusted)
        else:
            folder = adapter.folder if has_tokenizer(adapter.folder) else adapter.base.folder
            tokenizer = load_tokenizer(folder, trust_remote_code=trusted, base=adapter.base.folder)
        if self.chat_template is not None:
            tokenizer.chat_template = read_given(self.chat_template, "chat_template", _LARGEST_TEMPLATE)
        return tokenizer

    def model(self, here: World) -> PreTrainedModel:
        """Loads the model, or an adapter on its base, on this process's device."""
        adapter = self.adapter
        model = load_model(
            self._found[0].folder,
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
    def configs(self) -> tuple[Json, Json]:
        """The configuration without ropescale's scaling, and the unchanged configuration. Does not need the weights."""
        return read_configs(self.name, self.revision)


class OpenedModel(ABC):
    """A model before it is loaded.

    Attributes:
        model: the loaded model, the checkpoint, or the servers.
        path: the folder of its files; None if it has none.
        checkpoint: the path, if it is a checkpoint.
        notes: the notes of its run, which only the first of the processes that share it shows.
        served: whether servers have it.
    """

    served = False

    def __init__(
        self, model: Any, tokenizer: PreTrainedTokenizerBase | None, path: AnyPath | None, progress: bool
    ) -> None:
        self.model = model
        self.path = path
        self._tokenizer = tokenizer
        self.checkpoint = path if isinstance(path, Checkpoint) else None
        self.notes = Notes(progress and (self.sharing is None or world().leads))

    @property
    def sharing(self) -> Sharing | None:
        """How launched processes share a run; None if a run stays in this process."""
        return Sharing()

    @property
    @abstractmethod
    def configs(self) -> tuple[Json, Json]:
        """The configuration without ropescale's scaling, and the current one. Does not need the weights."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer; None if there is none."""
        if self._tokenizer is None and self.checkpoint is not None:
            self._tokenizer = self.checkpoint.tokenizer()
        return self._tokenizer

    @abstractmethod
    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        """Loads the model on this process's device.

        Args:
            logits_bytes: the memory for one block of fp32 logits, in bytes; None for that of the device.
        """

    def refuse_unused(self, chats: int) -> None:
        """Raises an error if a chat template is given, and no document is a chat."""
        if self.checkpoint and self.checkpoint.chat_template and not chats:
            raise DataError("chat_template has no effect: no document is a chat; leave it out", "chat_template")

    def warn(self) -> None:  # noqa: B027 (most have no files to warn of)
        """Warns about the model's files."""


class InMemory(OpenedModel):
    """A model that the user has loaded."""

    @property
    def sharing(self) -> None:
        return None

    @property
    def configs(self) -> tuple[Json, Json]:
        from ...models.patching import configuration_before, unpatched
        from ...models.rotary_modules import unwrapped, whole_config

        with unpatched(self.model):
            now = whole_config(unwrapped(self.model)).to_dict()
        return configuration_before(self.model), now

    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        from .loaded import LoadedModel

        return LoadedModel(self.model, self.path, logits_bytes)


class OnDisk(OpenedModel):
    """A checkpoint in a folder or on the Hub."""

    checkpoint: Checkpoint

    @property
    def sharing(self) -> Sharing:
        return Sharing(self.checkpoint.tp, self.checkpoint.device_map, self.checkpoint.device)

    @property
    def configs(self) -> tuple[Json, Json]:
        return self.checkpoint.configs

    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        from .loaded import LoadedModel

        return LoadedModel(self.checkpoint.model(here), self.checkpoint, logits_bytes)

    def warn(self) -> None:
        for remark in remarks(self.checkpoint.adapter) if self.checkpoint.adapter else ():
            self.notes.warn(f"warning: {remark}")


class OnServers(OpenedModel):
    """A model that servers have; ``path`` is the checkpoint that is served, without its weights."""

    served = True

    @property
    def configs(self) -> tuple[Json, Json]:
        if self.path is None:
            raise DataError("servers return no configuration; name the folder of the served checkpoint", "path")
        return read_configs(Path(self.path))

    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        return ServedModel(self.model, self.path, self.tokenizer)


def opened(
    model: Given, tokenizer: PreTrainedTokenizerBase | None = None, path: AnyPath | None = None, progress: bool = False
) -> OpenedModel:
    """Opens what a user gives as a model.

    Args:
        model: a loaded model, a :class:`Server` or several, or a :class:`Checkpoint`, a path or a Hub id, which the run
            loads.
        tokenizer: the tokenizer; None takes a checkpoint's own.
        path: the folder of a loaded or served model.
        progress: whether its run shows notes.

    Raises:
        DataError: ``path`` is given with a checkpoint, which is its own; or a list holds something else than servers.
    """
    if isinstance(model, str | os.PathLike | Checkpoint):
        if path is not None:
            raise DataError("path is given, but the model is a checkpoint, which has its own; leave path out", "path")
        checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(os.fspath(model))
        if "://" in checkpoint.name:
            raise DataError(
                f"{checkpoint.name} is an address; give ropescale.evals.Server({checkpoint.name!r})", "model"
            )
        return OnDisk(checkpoint, tokenizer, checkpoint, progress)
    if isinstance(model, Server | Sequence):
        servers = [model] if isinstance(model, Server) else model
        if not servers or not all(isinstance(server, Server) for server in servers):
            raise DataError(
                "model is neither a loaded model nor one or several Servers; load the model, or give its Server"
            )
        return OnServers(servers, tokenizer, path, progress)
    return InMemory(model, tokenizer, path, progress)
