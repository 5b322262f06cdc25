"""Loads a checkpoint as stock transformers does, and runs the code that it brings only where that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import CheckpointError, ConfigError, DataError
from .formatting import first_line
from .sources import read_config


def load_model(
    folder: Path,
    dtype: str | None = None,
    device: str | None = None,
    *,
    trust_remote_code: bool = False,
    device_map: str | Mapping[str, Any] | None = None,
    tensor_parallel: bool = False,
) -> Any:
    """The checkpoint as a causal language model on its device, in evaluation mode.

    Args:
        dtype: ``auto`` (the checkpoint's), or a name such as ``bfloat16``; float32 on the CPU and ``auto`` elsewhere
            when None.
        device: as torch takes it; the GPU where there is one, else the CPU, when None.
        device_map: spread over the devices of this machine, as transformers takes it: ``auto``, or what goes where.
        tensor_parallel: each of the processes of this world, which must have joined, holds a part of every layer.

    Raises:
        CheckpointError: it does not load.
        ConfigError: it needs code of its own, which may not run, or its class has no plan for tensor parallelism.
        DataError: no such device.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from .patching import quiet_transformers

    refuse_code(folder, trust_remote_code)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    place = _device(device)
    chosen = dtype or ("float32" if place.type == "cpu" else "auto")
    how = {"dtype": chosen if chosen == "auto" else getattr(torch, chosen), **_code(trust_remote_code)}
    try:
        with quiet_transformers():
            if device_map is not None:
                return AutoModelForCausalLM.from_pretrained(folder, device_map=device_map, **how).eval()
            if tensor_parallel:
                return _parts(folder, how).eval()
            return AutoModelForCausalLM.from_pretrained(folder, **how).to(place).eval()
    except ConfigError:
        raise
    except Exception as error:
        raise _refusal(f"{folder} does not load as a causal language model", error) from error


def _parts(folder: Path, how: dict[str, Any]) -> Any:
    """This process's part of the model, by the plan of its class."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    try:
        return AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto"), **how)
    except ValueError as error:
        if "has no `tp_plan`" not in str(error):
            raise
        kind = read_config(folder).get("model_type")
        raise ConfigError(f"transformers has no plan for sharing out {folder} ({kind}); leave --tp out") from None


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The checkpoint's tokenizer.

    Raises:
        CheckpointError: there is none, or it does not load.
        ConfigError: it needs code of its own, which may not run.
    """
    from transformers import AutoTokenizer

    refuse_code(folder, trust_remote_code)
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise CheckpointError(f"{folder} has no tokenizer; copy the model's tokenizer files into it (tokenizer.json)")
    try:
        return AutoTokenizer.from_pretrained(folder, **_code(trust_remote_code))
    except Exception as error:  # transformers raises whatever its parts raise; all mean the same here
        raise _refusal(f"{folder} has no tokenizer that transformers can load", error) from error


_TOKENIZER_FILES = ("*token*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "spiece*", "*.vocab")
"""One of these is there whatever the tokenizer; a class of its own may read more."""


def refuse_code(folder: Path, trust_remote_code: bool = False) -> None:
    """Raises where transformers could load a checkpoint only by running code that comes with it.

    A type that transformers knows is loaded by its own class, whatever code lies beside the weights.

    Raises:
        ConfigError: names the code and the option.
    """
    config = read_config(folder)
    code = remote_code(config)
    if code and not trust_remote_code and not _is_known(config):
        raise ConfigError(
            f"{folder} needs code of its own ({code}), because transformers knows no model type "
            f"{config.get('model_type')!r}; read that code, and give --trust-remote-code (trust_remote_code=True in "
            "Python) if it may run here"
        )


def _refusal(what: str, error: Exception) -> CheckpointError | ConfigError:
    """An error of ours for one of transformers', whose own asks for ``trust_remote_code`` in a paragraph."""
    if "trust_remote_code=True" in str(error):
        return ConfigError(f"{what} without code of its own; read it, and give --trust-remote-code if it may run here")
    return CheckpointError(f"{what}: {first_line(error)}")


def remote_code(config: Mapping[str, Any]) -> str | None:
    """Where a configuration says that its model's code is, ``file.Class``; None without any."""
    listed = config.get("auto_map")
    if not isinstance(listed, Mapping):
        return None
    wanted = ("AutoModelForCausalLM", "AutoConfig", "AutoModel")
    return next((str(listed[name]) for name in wanted if listed.get(name)), None)


def _is_known(config: Mapping[str, Any]) -> bool:
    from transformers.models.auto import modeling_auto

    known = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_MAPPING_NAMES)
    return any(config.get("model_type") in names for names in known)


def _code(trusted: bool) -> dict[str, bool]:
    """An explicit no, or transformers asks at the terminal; the code itself may have to come from the Hub."""
    return {"trust_remote_code": trusted, "local_files_only": not trusted}


def _device(device: str | None) -> Any:
    import torch

    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise DataError(f"--device {device} cannot be used: {first_line(error)}") from None
    return place
