"""Locates a model: a local folder, or a Hub id, whose files huggingface_hub downloads or finds in its cache."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError
from ..files import Data, json_in, local_path, read_bytes, read_json
from ..output.formatting import argument, cut, first_line, shell_word
from ..record import original_config, read_record
from .backups import is_interrupted

if TYPE_CHECKING:
    from ..stored_record import Record

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-]+")


@dataclass(frozen=True)
class ModelFolder:
    """A checkpoint's folder, whose ``config.json`` and record are read once, on first use."""

    folder: Path

    @cached_property
    def content(self) -> bytes:
        """The bytes of ``config.json``.

        Raises:
            CheckpointError: the file is missing or cannot be read.
        """
        return read_bytes(self.folder / "config.json", LARGEST_CONFIG)

    @cached_property
    def config(self) -> Data:
        """The content of ``config.json``.

        Raises:
            CheckpointError: the file is missing or cannot be read.
            ConfigError: the content is not JSON, or not an object.
        """
        return json_in(self.content, self.folder / "config.json")

    @cached_property
    def record(self) -> Record | None:
        """The record of ropescale, or None."""
        return read_record(self.folder)

    def original(self, on_top: bool = False) -> Data:
        """Returns the configuration that a schedule builds on: without ropescale's scaling unless ``on_top``."""
        return original_config(self.config, self.record, on_top)


def find_model(model: str | Path, revision: str | None = None, *, weights: bool = True) -> ModelFolder:
    """Finds a checkpoint.

    Args:
        model: a local folder, or a Hub id such as ``Qwen/Qwen3-8B``, which is downloaded, or read from the cache if the
            Hub cannot be reached.
        revision: branch, tag or commit of a Hub id.
        weights: whether to download the weight files.

    Raises:
        CheckpointError: the folder does not exist, or contains an adapter or no checkpoint, or the Hub does not supply
            the model.
    """
    folder = locate(model, revision, weights=weights)
    if (folder / ADAPTER).exists():  # transformers loads the base then, even if there is a config.json
        base = read_json(folder / ADAPTER).get("base_model_name_or_path")
        named = f" ({cut(str(base), 200)})" if base else ""
        raise CheckpointError(
            f"{folder} is a PEFT adapter; patch the base{named} into a new folder, then write that folder into "
            f"base_model_name_or_path in {ADAPTER}; the adapter should have been trained under the same schedule"
        )
    return ModelFolder(checked(folder))


ADAPTER = "adapter_config.json"
"""The file that every PEFT adapter has."""


def locate(model: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Returns a folder like :func:`find_model`, but accepts a folder with any content, such as an adapter.

    Raises:
        CheckpointError: the folder does not exist or has an unfinished patch in place, or the Hub does not supply it.
    """
    path = local_path(model)
    if not str(model):
        raise CheckpointError("the model's name is empty; give a checkpoint's folder or a Hub id like org/name")
    if path.is_dir():
        if revision is not None:
            raise CheckpointError(
                f"revision applies to a model on the Hub, and {model} is a folder; leave revision out", "revision"
            )
        if is_interrupted(path):
            raise CheckpointError(
                f"{path} has an interrupted or running patch in place; undo it with "
                f"`ropescale restore {shell_word(argument(path))}`, or patch in place again"
            )
        return path
    if path.is_file():
        raise CheckpointError(f"{model} is a file; give the checkpoint's folder (the one with config.json)")
    if not _HUB_ID.fullmatch(str(model)) or str(model).startswith("."):
        raise CheckpointError(f"folder {model} does not exist; give a checkpoint's folder or a Hub id like org/name")
    return _from_hub(str(model), revision, weights)


LARGEST_CONFIG = 8 * 2**20
"""The largest ``config.json``, in bytes. The file of a quantized model that lists every layer has about two million.
Copies and comparisons of a configuration take a hundred times the file's size in memory."""


def checked(folder: Path) -> Path:
    """Returns the folder after checking that it contains a ``config.json``.

    Raises:
        CheckpointError: the folder contains no ``config.json``.
    """
    config = folder / "config.json"
    if config.is_symlink() and not config.exists():
        raise CheckpointError(
            f"{config} is a link to {os.readlink(config)}, which does not exist; copy the folder with what its links "
            "point to (cp -rL)"
        )
    if not config.exists():
        raise CheckpointError(f"{folder} has no config.json; give the folder of a checkpoint in transformers' format")
    return folder


_WEIGHTS = ["*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx*"]

PATIENCE = 10.0
"""Seconds to wait for the Hub's first answer; by default the client would wait without limit."""


def _from_hub(model: str, revision: str | None, weights: bool) -> Path:
    """Returns the folder of a Hub model's snapshot: the current one if the Hub answers, else the cached one."""
    from huggingface_hub import snapshot_download

    silence, _ = ask_hub(model, revision)
    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                ignore_patterns=None if weights else _WEIGHTS,
                local_files_only=silence is not None,
            )
        )
    except Exception as error:  # the client raises a dozen types of errors, which differ between versions
        if silence is None:
            raise CheckpointError(
                f"{model} is neither a folder nor a model that the Hub supplies ({first_line(error)}); check the name, "
                "or log in if it is private or gated: `hf auth login`"
            ) from error
        what = model if revision is None else f"{model} at revision {revision}"
        raise CheckpointError(
            f"{what} is not a folder, nor complete in the Hub's cache, and the Hub cannot be reached ({silence}); "
            "check the name"
        ) from error


def ask_hub(name: str, revision: str | None = None, kind: str = "model") -> tuple[str | None, bool]:
    """Asks the Hub for a model or dataset.

    Returns:
        Why the Hub cannot be reached, or None if it answers, even with an error; and whether it answers that there is
        no such model or dataset.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set", False
    try:
        ask = HfApi().dataset_info if kind == "dataset" else HfApi().model_info
        ask(name, revision=revision, timeout=PATIENCE)
    except HfHubHTTPError as error:
        return None, isinstance(error, RepositoryNotFoundError)
    except Exception as error:
        return first_line(error), False
    return None, False
