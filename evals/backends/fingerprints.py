"""Fingerprints of a measured model: weights, configuration, rotary tables, versions."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...files import AnyPath, Data, atomic_write, sha256, sha256_of
from ..data.documents import Document
from ..facts import LayerTable, ModelFacts
from ..scoring.memory import device_of, embedding_shape

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

_WEIGHTS = {".safetensors", ".bin", ".pt", ".gguf"}
_BLOCK = 1 << 24
"""The size in bytes of the blocks in which a tensor on an accelerator, or with unusual strides, is copied."""
_THREADS = 8
_PLAIN = (bool, int, float, str)

Tensor = torch.Tensor | Callable[[], torch.Tensor]
"""A tensor, or a function that loads it."""


def describe(model: PreTrainedModel, path: AnyPath | None, attention: str) -> ModelFacts:
    """Returns the "model" part of results.json.

    Args:
        attention: the name of the attention that runs.
        path: the checkpoint's folder, whose weight files are hashed. Without a folder (for a model built or changed in
            memory), or for a model with adapters, the live tensors are hashed instead.
    """
    folder = Path(path) if path else None
    file = folder / "config.json" if folder else None
    config = file.read_bytes() if file and file.exists() else _configuration(model)
    return {
        "path": str(folder or getattr(model, "name_or_path", "") or type(model).__name__),
        "config_sha256": sha256(config),
        "weights": files_fingerprint(folder) if folder and not adapters(model) else parameters_fingerprint(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": _device_name(device_of(model)),
        "attention": attention,
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": embedding_shape(model)[0],
        "as_is": f"the {'folder' if folder else 'model'} as it is",
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _configuration(model: PreTrainedModel) -> bytes:
    """Returns a model's configuration as JSON, without the keys that ``save_pretrained`` sets in the saving process."""
    stated = json.loads(model.config.to_json_string(use_diff=False))
    return json.dumps({key: value for key, value in stated.items() if key not in ("architectures", "dtype")}).encode()


def files_fingerprint(folder: Path) -> str:
    """Hashes the names and the content of the weight files, following links.

    The names of files in the Hub's cache are their SHA-256. The digests of other files are cached as long as path,
    size, modification and change times (ns) and inode stay the same.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in _WEIGHTS and file.is_file())
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(_content_sha256, files))
    return sha256("\n".join(f"{file.name} {digest}" for file, digest in zip(files, digests, strict=True)).encode())


def _content_sha256(file: Path) -> str:
    real = file.resolve()
    if real.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", real.name):
        return real.name
    state = real.stat()
    key = f"{real} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropescale"
    known = cache / f"{sha256(key.encode())}.sha256"
    with suppress(OSError):
        stored = known.read_bytes()
        if re.fullmatch(b"[0-9a-f]{64}", stored):  # else the file is damaged
            return stored.decode()
    digest = sha256_of(real)
    with suppress(OSError):  # a cache that cannot be written only costs time
        cache.mkdir(parents=True, exist_ok=True)
        atomic_write(known, digest)
    return digest


def parameters_fingerprint(model: nn.Module) -> str:
    """Hashes every byte of every parameter and buffer, and the adapter state.

    Excludes the rotary tables, which :func:`rotation_sha256` hashes. Includes tensors that accelerate offloaded.
    Tensors on an accelerator are copied in blocks of 16 MiB. Up to eight threads hash in parallel; one core of an EPYC
    took 0.86 s per GB of bfloat16 on the CPU.
    """
    digest = hashlib.sha256(json.dumps(adapters(model), sort_keys=True).encode())
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        elsewhere = _put_elsewhere(model)
        hashes = list[tuple[str, str | Future[str]]]()
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            if not name.endswith("inv_freq"):
                # A sharded tensor is gathered from several processes, so in this thread and in order.
                whole = getattr(tensor, "full_tensor", None)
                if whole is None:
                    hashes.append((name, pool.submit(_tensor_sha256, elsewhere.get(name, tensor))))
                else:
                    hashes.append((name, _tensor_sha256(whole)))
        for name, found in hashes:
            digest.update(f"{name} {found if isinstance(found, str) else found.result()}".encode())
    return digest.hexdigest()


def adapters(model: nn.Module) -> dict[str, Data]:
    """Returns the state of each PEFT layer: the active and the merged adapters, and plain values such as scaling."""
    found = dict[str, Data]()
    layer: Any
    for name, layer in model.named_modules():
        if hasattr(layer, "_disable_adapters"):
            found[name] = {
                "active": [] if layer._disable_adapters else list(layer.active_adapters),
                "merged": list(getattr(layer, "merged_adapters", [])),
            }
            for key, value in vars(layer).items():
                if isinstance(value, dict) and not key.startswith("_"):
                    found[name][key] = {adapter: each for adapter, each in value.items() if isinstance(each, _PLAIN)}
    return found


def _put_elsewhere(model: nn.Module) -> dict[str, Tensor]:
    """Returns the offloaded tensors, which accelerate loads from the CPU or the disk for each forward pass."""
    found = {}
    for prefix, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        maps = [getattr(each, "weights_map", None) for each in getattr(hook, "hooks", [hook])]
        for kept in (each for each in maps if each is not None):
            for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
                if tensor.is_meta:
                    found.setdefault(f"{prefix}.{name}".lstrip("."), functools.partial(kept.__getitem__, name))
    return found


@torch.no_grad()
def _tensor_sha256(tensor: Tensor) -> str:
    """Hashes the shape, the dtype and every byte of a tensor, independently of strides and device."""
    tensor = (tensor if isinstance(tensor, torch.Tensor) else tensor()).detach()
    digest = hashlib.sha256(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:  # quantized: made of plain tensors
        names, about = flatten()
        digest.update(repr(about).encode())
        for name in names:
            digest.update(_tensor_sha256(getattr(tensor, name)).encode())
    elif not tensor.is_meta and tensor.numel():
        rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        for block in rows.split(max(1, _BLOCK // row_bytes)):  # whole rows, without a copy
            digest.update(block.contiguous().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def table_sha256(model: nn.Module) -> str:
    """Hashes the live rotary tables: each distinct fp32 ``inv_freq`` with its attention scale.

    The hash does not depend on the modules that have the tables, so the same tables have the same hash in a wrapped
    model or in a model loaded from disk.
    """
    return sha256(b"".join(f"{key} {scale!r} ".encode() + values for key, values, scale in _distinct_tables(model)))


def live_tables(model: nn.Module) -> dict[str, LayerTable]:
    """Returns the live rotary tables by layer type: fp32 ``inv_freq`` in radians per token, and the scale.

    Different tables of one layer type are numbered: "all (2)" and so on.
    """
    found = {}
    for key, values, scale in _distinct_tables(model):
        layer = key.removesuffix("inv_freq").rstrip("_") or "all"
        again = sum(name.partition(" (")[0] == layer for name in found)
        name = f"{layer} ({again + 1})" if again else layer
        found[name] = {"inv_freq": np.frombuffer(values, np.float32).tolist(), "attention_scale": scale}
    return found


def _distinct_tables(model: nn.Module) -> list[tuple[str, bytes, float]]:
    return sorted({table for module in model.modules() for table in _own_tables(module)})


def _own_tables(module: nn.Module) -> list[tuple[str, bytes, float]]:
    """Returns the live tables of one module: the name, the fp32 values and the attention scale of each buffer."""
    tables = []
    for key, buffer in sorted(module._buffers.items()):
        if buffer is not None and key.endswith("inv_freq") and "original" not in key:
            scale = float(getattr(module, key.replace("inv_freq", "attention_scaling"), 1.0))
            tables.append((key, buffer.detach().float().cpu().numpy().tobytes(), scale))
    return tables


def rotation_sha256(model: nn.Module) -> str:
    """Hashes everything that a schedule determines: each module's live tables with their attention scales, and the
    softmax scales (in MLA models, they depend on the schedule). Schedules with the same hash give the same outputs."""
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        scaling = getattr(module, "scaling", None)
        if isinstance(scaling, float):
            digest.update(f"{name}.scaling {scaling!r} ".encode())
        for key, values, scale in _own_tables(module):
            digest.update(f"{name}.{key} {scale!r} ".encode() + values)
    return digest.hexdigest()


def arithmetic(model: PreTrainedModel) -> dict[str, str]:
    """Returns the facts that determine rounding: the device, its libraries and precision, the attention implementation,
    versions, and tensor parallelism."""
    shares = getattr(model, "tp_size", None) or 1
    installed = versions()
    device = device_of(model)
    return {
        "device": _device_name(device),
        "precision": precision(device.type),
        **(_cuda_settings() if device.type == "cuda" else {}),
        "torch": installed["torch"],
        "transformers": installed["transformers"],
        **({"tensor_parallel": str(shares)} if shares > 1 else {}),
    }


def _cuda_settings() -> dict[str, str]:
    """Returns what else changes the rounding of a pass on the same card: CUDA, cuDNN, and the kernels of attention."""
    backends = torch.backends
    kernels = [
        name for name in ("flash", "cudnn", "mem_efficient", "math") if getattr(backends.cuda, f"{name}_sdp_enabled")()
    ]
    return {"cuda": f"{torch.version.cuda}, cuDNN {backends.cudnn.version()}", "attention_kernels": ", ".join(kernels)}


def precision(kind: str) -> str:
    """Returns the flags of a kind of device that change the rounding of matrix products: TF32 and its like, and sums in
    half precision."""
    products = getattr(torch.backends.cuda if kind == "cuda" else torch.backends.mkldnn, "matmul", None)
    names = ["fp32_precision" if hasattr(products, "fp32_precision") else "allow_tf32", "allow_fp16_accumulation"]
    for dtype in ("bf16", "fp16"):
        reduced = f"allow_{dtype}_reduced_precision_reduction"
        names += [reduced, f"{reduced}_split_k"]
    return ", ".join(f"{name} {getattr(products, name)}" for name in names if hasattr(products, name))


def tokens_sha256(documents: Iterable[Document]) -> str:
    """Hashes the documents' token ids, in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{len(document.ids)} ".encode() + np.asarray(document.ids, "<i8").tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Returns the versions of the packages that the numbers depend on."""
    import transformers

    import ropescale

    return {package.__name__: str(package.__version__) for package in (ropescale, torch, transformers)}
