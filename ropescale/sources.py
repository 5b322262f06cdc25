"""Where a model comes from: a local folder, or a Hub id through huggingface_hub's cache."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .errors import CheckpointError, ConfigError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-]+")


def find_model(model: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """The folder of a checkpoint.

    Args:
        model: a local folder, or a Hub id such as ``Qwen/Qwen3-8B`` (downloaded, or taken from the cache
            where there is no network).
        revision: branch, tag or commit of a Hub id.
        weights: False leaves the weight files where they are, on the Hub.

    Raises:
        CheckpointError: no such folder, not a checkpoint, or the Hub cannot supply it.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.is_file():
        raise CheckpointError(f"{model} is a file; give the checkpoint's folder (the one with config.json)")
    if not _HUB_ID.fullmatch(str(model)) or str(model).startswith("."):
        raise CheckpointError(f"there is no folder {model}; give a checkpoint's folder or a Hub id like org/name")
    return _checked(_from_hub(str(model), revision, weights))


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's ``config.json``.

    Raises:
        CheckpointError: it is missing or cannot be read.
        ConfigError: it is not JSON, or not an object.
    """
    return read_json(folder / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, with errors that name the file and the line."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "restore it from where it was downloaded"
        ) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}, not an object")
    return value


def _checked(folder: Path) -> Path:
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        base = json.loads((folder / "adapter_config.json").read_text()).get("base_model_name_or_path", "the base model")
        raise CheckpointError(f"{folder} is a PEFT adapter; patch the base ({base}), then attach the adapter to it")
    if not any(folder.iterdir()):
        raise CheckpointError(f"{folder} is empty; give a checkpoint's folder (the one with config.json)")
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder} has no config.json; is it a transformers checkpoint?")
    return folder


def _from_hub(model: str, revision: str | None, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    ignore = None if weights else ["*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx*"]
    try:
        return Path(snapshot_download(model, revision=revision, ignore_patterns=ignore))
    except Exception as error:  # the Hub client has a dozen ways to say no; all mean the same here
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{model} is neither a folder nor a model that the Hub or its cache can supply ({cause})"
        ) from error
