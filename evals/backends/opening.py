"""What a user gives as a model, opened: a loaded model, a checkpoint that a run loads, or servers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...adapters import read_configs
from ...errors import DataError
from ..parallel.processes import Sharing, World
from ..progress import Notes
from .base import Backend
from .checkpoint import Checkpoint
from .server import Server

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Given = PreTrainedModel | Server | Sequence[Server] | Checkpoint | str | os.PathLike[str]

Config = Mapping[str, object]


class OpenedModel(ABC):
    """A model before it is loaded.

    Attributes:
        name: the model's name in printed commands; None for its path in the results.
        revision: its branch, tag or commit; None for the default one.
        path: the folder of its files; None if it has none.
        sharing: how launched processes share a run; None if a run stays in this process.
        served: whether servers have it.
    """

    name: str | None = None
    revision: str | None = None
    path: str | os.PathLike[str] | None = None
    sharing: Sharing | None = None
    served = False

    @property
    @abstractmethod
    def configs(self) -> tuple[Config, Config]:
        """The configuration without ropescale's scaling, and the current one. Does not need the weights."""

    @property
    def labels(self) -> Sequence[str]:
        """The labels of servers' schedules."""
        return ()

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer; None if there is none."""

    @abstractmethod
    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        """Loads the model on this process's device.

        Args:
            logits_bytes: the memory for one block of fp32 logits, in bytes; None for that of the device.
        """

    def refuse_unused(self, chats: int) -> None:
        """Raises an error if a chat template is given, and no document is a chat."""
        if isinstance(self.path, Checkpoint) and self.path.chat_template and not chats:
            raise DataError("chat_template has no effect: no document is a chat; leave it out", "chat_template")

    def warn(self, notes: Notes) -> None:  # noqa: B027 (most have no files to warn of)
        """Warns about the model's files."""


class InMemory(OpenedModel):
    """A model that the user has loaded."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        path: str | os.PathLike[str] | None,
    ) -> None:
        self._model, self._tokenizer, self.path = model, tokenizer, path

    @property
    def configs(self) -> tuple[Config, Config]:
        from ...models.patching import configuration_before, unpatched
        from ...models.rotary_modules import unwrapped, whole_config

        with unpatched(self._model):
            now = whole_config(unwrapped(self._model)).to_dict()
        return configuration_before(self._model), now

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self._tokenizer

    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        from .loaded import LoadedModel

        return LoadedModel(self._model, self.path, logits_bytes)


class OnDisk(OpenedModel):
    """A checkpoint in a folder or on the Hub."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._checkpoint, self._tokenizer = checkpoint, tokenizer
        self.name, self.revision, self.path = checkpoint.name, checkpoint.revision, checkpoint
        self.sharing = Sharing(checkpoint.tp, checkpoint.device_map, checkpoint.device)

    @property
    def configs(self) -> tuple[Config, Config]:
        return self._checkpoint.configs

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        if self._tokenizer is None:
            self._tokenizer = self._checkpoint.tokenizer()
        return self._tokenizer

    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        from .loaded import LoadedModel

        return LoadedModel(self._checkpoint.model(here), self._checkpoint, logits_bytes)

    def warn(self, notes: Notes) -> None:
        self._checkpoint.warn(notes)


class OnServers(OpenedModel):
    """A model that servers have.

    Args:
        path: the checkpoint that is served, without its weights; None if unknown.
    """

    served = True
    sharing = Sharing()

    def __init__(
        self,
        servers: Sequence[Server],
        tokenizer: PreTrainedTokenizerBase | None,
        path: str | os.PathLike[str] | None,
    ) -> None:
        self._servers, self._tokenizer, self.path = servers, tokenizer, path
        self.name = path.name if isinstance(path, Checkpoint) else None

    @property
    def labels(self) -> Sequence[str]:
        """The labels of the servers' schedules."""
        return [each.label for each in self._servers]

    @property
    def configs(self) -> tuple[Config, Config]:
        if self.path is None:
            raise DataError("servers return no configuration; name the folder of the served checkpoint", "path")
        return read_configs(Path(self.path))

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        if self._tokenizer is None and isinstance(self.path, Checkpoint):
            self._tokenizer = self.path.tokenizer()
        return self._tokenizer

    def backend(self, here: World, logits_bytes: int | None = None) -> Backend:
        from .served import ServedModel

        return ServedModel(self._servers, self.path, self.tokenizer)


def opened(
    model: Given,
    tokenizer: PreTrainedTokenizerBase | None = None,
    path: str | os.PathLike[str] | None = None,
) -> OpenedModel:
    """Opens what a user gives as a model.

    Args:
        model: a loaded model, a :class:`Server` or several, or a :class:`Checkpoint`, a path or a Hub id, which the run
            loads.
        tokenizer: the tokenizer; None takes a checkpoint's own.
        path: the folder of a loaded or served model.

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
        return OnDisk(checkpoint, tokenizer)
    if isinstance(model, Server | Sequence):
        servers = [model] if isinstance(model, Server) else model
        if not servers or not all(isinstance(server, Server) for server in servers):
            raise DataError(
                "model is neither a loaded model nor one or several Servers; load the model, or give its Server"
            )
        return OnServers(servers, tokenizer, path)
    return InMemory(model, tokenizer, path)
