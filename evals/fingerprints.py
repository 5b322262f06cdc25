"""What was measured, in hashes: weights, configuration, rotary tables, versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .data import Document
from .memory import device_of

_WEIGHTS = {".safetensors", ".bin", ".pt", ".gguf"}
_SAMPLE = 256


def describe(model: Any, path: str | Path | None = None) -> dict[str, Any]:
    """The "model" part of results.json.

    Args:
        path: the checkpoint's folder; without it (a model built or changed in memory) the fingerprint is of
            the live parameters.
    """
    return {
        "path": str(path or getattr(model, "name_or_path", "") or type(model).__name__),
        "config_sha256": config_sha256(model, path),
        "weights": files_fingerprint(Path(path)) if path else parameters_fingerprint(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def config_sha256(model: Any, path: str | Path | None) -> str:
    """Of config.json's bytes; without a folder, of the configuration as JSON."""
    file = Path(path) / "config.json" if path else None
    text = file.read_bytes() if file and file.exists() else model.config.to_json_string(use_diff=False).encode()
    return hashlib.sha256(text).hexdigest()


def files_fingerprint(folder: Path) -> str:
    """SHA-256 over names, sizes and modification times (ns) of the weight files, links followed."""
    files = sorted(file for file in folder.iterdir() if file.suffix in _WEIGHTS and file.is_file())
    facts = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def parameters_fingerprint(model: Any) -> str:
    """SHA-256 over each parameter's name, shape, dtype and a few hundred of its values, evenly spaced.

    Of parameters that accelerate has left on the disk, there are the files' names, sizes and times instead.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1)
        sample = b"" if parameter.is_meta else flat[:: max(1, flat.numel() // _SAMPLE)].float().cpu().numpy().tobytes()
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode() + sample)
    folder = getattr(model, "name_or_path", "")
    if folder and Path(folder).is_dir() and any(parameter.is_meta for parameter in model.parameters()):
        digest.update(files_fingerprint(Path(folder)).encode())
    return digest.hexdigest()


def table_sha256(model: Any) -> str:
    """SHA-256 over the live rotary tables: each distinct fp32 ``inv_freq`` with its attention scale.

    Where in the model a table sits does not matter, so the same table in memory, from disk or under a wrapper
    has the same hash.
    """
    digest = hashlib.sha256()
    for key, values, scale in _distinct_tables(model):
        digest.update(f"{key} {scale!r} ".encode() + values)
    return digest.hexdigest()


def live_tables(model: Any) -> dict[str, dict[str, Any]]:
    """The live rotary tables in figures, by layer type: fp32 ``inv_freq`` in radians per token, and its scale.

    Where modules of one layer type hold different tables, the second is called "all (2)" and so on.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, values, scale in _distinct_tables(model):
        layer = key.removesuffix("inv_freq").rstrip("_") or "all"
        again = sum(name.partition(" (")[0] == layer for name in found)
        name = f"{layer} ({again + 1})" if again else layer
        found[name] = {"inv_freq": np.frombuffer(values, np.float32).tolist(), "attention_scale": scale}
    return found


def _distinct_tables(model: Any) -> list[tuple[str, bytes, float]]:
    """Each distinct table once: its buffer's name, its fp32 values, its scale."""
    tables = {
        (key, buffer.detach().float().cpu().numpy().tobytes(), float(_scale(module, key)))
        for module in model.modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and key.endswith("inv_freq") and "original" not in key
    }
    return sorted(tables)


def rotation_sha256(model: Any) -> str:
    """SHA-256 over all that a schedule decides: each module's live tables, their scales, and the softmax scales (MLA's
    follow the schedule). Models of one class with the same hash compute the same."""
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        scaling = getattr(module, "scaling", None)
        if isinstance(scaling, float):
            digest.update(f"{name}.scaling {scaling!r} ".encode())
        for key, buffer in sorted(module._buffers.items()):
            if buffer is not None and key.endswith("inv_freq") and "original" not in key:
                digest.update(f"{name}.{key} {float(_scale(module, key))!r} ".encode())
                digest.update(buffer.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def arithmetic(model: Any) -> dict[str, str]:
    """What decides how the same model rounds: the kind of device, how many share each layer, the attention's
    implementation, the versions."""
    shares = getattr(model, "tp_size", None) or 1
    return {
        "device": device_of(model).type,
        "attention": str(getattr(model.config, "_attn_implementation", None)),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        **({"tensor_parallel": str(shares)} if shares > 1 else {}),
    }


def tokens_sha256(documents: Iterable[Document]) -> str:
    """SHA-256 over the documents' token ids, in order: what the tokenizer made of the text."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{len(document.ids)} ".encode() + np.asarray(document.ids, "<i8").tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of the packages that the numbers depend on."""
    return {name: _version(name) for name in ("ropescale", "torch", "transformers")}


def _scale(module: Any, key: str) -> float:
    return getattr(module, key.replace("inv_freq", "attention_scaling"), 1.0)


def _version(name: str) -> str:
    if name == "torch":
        return str(torch.__version__)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        import ropescale

        return str(getattr(ropescale, "__version__", "unknown"))
