"""Loads a checkpoint as stock transformers does, and runs the checkpoint's own code only on request."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, ConfigError, DataError
from ..files import Json, is_number
from ..output.formatting import brief, cut, first_line
from ..rope import LARGEST_HEAD
from .folders import shards_of
from .locating import ModelFolder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


LOG = logging.getLogger(__name__)


def load_model(
    folder: Path,
    dtype: str | None = None,
    device: str | None = None,
    *,
    trust_remote_code: bool = False,
    device_map: str | Json | None = None,
    tensor_parallel: bool = False,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """Loads a causal language model, or a model for images and text, on a device and in evaluation mode.

    Args:
        folder: the checkpoint.
        dtype: ``auto`` (the checkpoint's), or a name such as ``bfloat16``. Default: float32 on the CPU, ``auto`` on
            other devices.
        device: a torch device. Default: the GPU if available, else the CPU.
        trust_remote_code: whether the checkpoint's own code may run.
        device_map: a device map for transformers, such as ``auto``, to spread the model over devices.
        tensor_parallel: shard every layer over the processes of the initialised process group.
        attn_implementation: the implementation of attention, such as ``eager``. Default: the model's, usually ``sdpa``.

    Raises:
        CheckpointError: loading failed.
        ConfigError: the model needs custom code that may not run, or its attention is bidirectional.
        DataError: the device cannot be used.
    """
    import torch
    from transformers.utils import logging as bars

    from ..models.rotary_modules import quiet_transformers

    config = ModelFolder(folder).config
    refuse_unloadable(folder, config, trust_remote_code)
    shards_of(folder)  # raises an error for an index that names files outside the folder
    if not sys.stderr.isatty():
        bars.disable_progress_bar()
    place = usable_device(device)
    chosen = dtype or ("float32" if place.type == "cpu" else "auto")
    how: dict[str, Any] = {"dtype": chosen if chosen == "auto" else getattr(torch, chosen), **_code(trust_remote_code)}
    how |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # ropescale reports them on one line
    if attn_implementation is not None:
        how["attn_implementation"] = attn_implementation
    try:
        if device_map is not None:
            how["device_map"] = device_map
        elif place.type != "cpu" and not tensor_parallel:
            how["device_map"] = place  # so that the weights do not go through the memory of the machine
        elif tensor_parallel:
            from transformers.distributed.configuration_utils import DistributedConfig

            how["distributed_config"] = DistributedConfig(tp_plan="auto")
        modeling, sharding = map(quiet_transformers, ("transformers.modeling_utils", "transformers.distributed"))
        with quiet_transformers(), modeling, sharding:  # quiet modeling makes transformers report what is not sharded
            loaded = auto_class(config).from_pretrained(folder, **how)
            return _complete(folder, loaded, None if device_map is not None or tensor_parallel else place)
    except (ConfigError, CheckpointError):
        raise
    except Exception as error:
        raise refusal(f"{folder} does not load as a causal language model", error) from error


def auto_class(config: Json) -> Any:
    """Returns the auto class of transformers for a model: for causal language models, or for images and text.

    Raises:
        ConfigError: the model's attention is bidirectional, so a next-token loss is meaningless.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto as auto

    kind = config.get("model_type")
    if kind == "paligemma":
        raise ConfigError(
            "paligemma's attention is bidirectional without an image, so the model would see the tokens to predict"
        )
    sees = kind in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    also = isinstance(kind, str) and sees and kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForImageTextToText if also else AutoModelForCausalLM


def _complete(folder: Path, loaded: Any, place: torch.device | None) -> PreTrainedModel:
    """Checks that all weights were loaded, and returns the model on its device and in evaluation mode.

    Raises:
        CheckpointError: weights are missing or have a wrong shape, so that transformers initialised them randomly.
    """
    model, info = loaded if isinstance(loaded, tuple) else (loaded, {})  # custom code may not support the option
    mismatched = sorted(info.get("mismatched_keys") or (), key=str)
    if mismatched:
        name = mismatched[0][0] if isinstance(mismatched[0], tuple) else mismatched[0]
        raise CheckpointError(
            f"{folder}: {len(mismatched)} weights differ from config.json in shape, such as {name}; download both again"
        )
    missing = sorted(set(info.get("missing_keys") or ()) & {name for name, _ in model.named_parameters()})
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} weights of its model, such as {missing[0]}, and transformers would "
            "initialise them randomly; complete the download"
        )
    unused = sorted(info.get("unexpected_keys") or ())
    if unused:
        LOG.warning("%s has %d weights that its model does not use, such as %s", folder, len(unused), unused[0])
    return (model if place is None else model.to(place)).eval()


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder contains a tokenizer."""
    return (folder / "tokenizer_config.json").exists()


def load_tokenizer(
    folder: Path, *, trust_remote_code: bool = False, base: Path | None = None
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a checkpoint or an adapter.

    Args:
        folder: the folder with the tokenizer.
        trust_remote_code: whether the checkpoint's own code may run.
        base: the base model's folder, whose configuration is checked for custom code if ``folder`` is an adapter's.

    Raises:
        CheckpointError: the tokenizer is missing or cannot be loaded.
        ConfigError: the tokenizer needs custom code that may not run, or its maximum length is not a number.
    """
    from transformers import AutoTokenizer

    of_model = base or folder
    refuse_unloadable(of_model, ModelFolder(of_model).config, trust_remote_code)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **_code(trust_remote_code))
    except Exception as error:  # errors of many libraries, which all mean that the tokenizer cannot be loaded
        what = f"{folder} has no tokenizer that transformers can load (copy the model's tokenizer files into it)"
        raise refusal(what, error) from error
    longest = tokenizer.model_max_length
    if not is_number(longest):  # transformers compares this limit with the length of every text
        raise ConfigError(f"{folder}/tokenizer_config.json: model_max_length is {brief(longest)}; write a number")
    return tokenizer


def refuse_unloadable(folder: Path, config: Json, trust_remote_code: bool = False) -> None:
    """Raises an error if transformers cannot load a checkpoint, or only by running code that it has or names.

    Model types that transformers supports are loaded by its own classes, even if the checkpoint contains code.

    Raises:
        ConfigError: a size in the configuration exceeds that of any model, which would build too many modules; the
            dtype is not one of torch's; or the checkpoint needs code: the message names it and the option that allows
            it.
    """
    import torch
    from transformers.models.auto import modeling_auto

    known = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *modeling_auto.MODEL_MAPPING_NAMES}
    ending = "read that code, and allow it if you trust it"
    for section in (config, *(value for value in config.values() if isinstance(value, Mapping))):
        for name in ("dtype", "torch_dtype"):
            found = section.get(name)
            if isinstance(found, str) and found != "auto" and not isinstance(getattr(torch, found, None), torch.dtype):
                raise ConfigError(
                    f"{name} is {brief(found)} in {folder}/config.json, which is not a torch dtype; write one, such "
                    "as bfloat16"
                )
        code = remote_code(section)
        kind = section.get("model_type")
        if code and not trust_remote_code and not (isinstance(kind, str) and kind in known):
            raise ConfigError(
                f"{folder} needs custom code ({cut(code, 100)}), because transformers has no model type "
                f"{brief(kind)}; {ending}",
                "trust_remote_code",
            )
    for name, value in _leaves(config):
        most = next((most for words, most in _MOST if words.search(name.rpartition(".")[2])), None)
        if most is not None and is_number(value) and not value <= most:
            raise ConfigError(f"{name} is {brief(value)} in {folder}/config.json, and no model has more than {most}")
        if not trust_remote_code and "implementation" in name and isinstance(value, str) and "/" in value:
            raise ConfigError(
                f"{folder}/config.json requires code from the Hub ({cut(name, 100)}: {brief(value)}); {ending}",
                "trust_remote_code",
            )


_MOST = (
    (re.compile(r"^(?!max_).*(layers?|blocks?|depths?)$"), 4096),
    (re.compile(r"experts$"), 2**16),
    (re.compile(r"(head_dim|rotary_dim|rotary_ndims)$"), LARGEST_HEAD),
    (re.compile(r"^num_labels$"), 2**20),
    (re.compile(r"^(hidden_size|d_model|n_embd|dim)$"), 2**22),
)
"""The largest accepted values of size fields in the configuration, by a pattern of the field's name."""


def _leaves(config: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yields the dotted name and the value of every entry in a configuration, including its sections and lists."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from _leaves(value, f"{name}.{key}" if name else key)
    elif isinstance(config, list):
        for value in config:
            yield from _leaves(value, name)
    else:
        yield name, config


def refusal(what: str, error: Exception) -> CheckpointError | ConfigError:
    """Returns an error with a message of one line for an error from transformers, which is often a paragraph.

    Args:
        what: the start of the message.
    """
    if "trust_remote_code=True" in str(error):
        return ConfigError(f"{what} without custom code; read it, and allow it if you trust it", "trust_remote_code")
    if "weights_only" in str(error):  # following transformers' own advice would run the file's code
        return CheckpointError(
            f"{what}: its pickled weights are damaged, or contain more than tensors, which would run code; get them "
            "as safetensors"
        )
    return CheckpointError(f"{what}: {first_line(error)}")


def remote_code(config: Json) -> str | None:
    """Returns the custom class that a configuration names, as ``file.Class``, or None."""
    listed = config.get("auto_map")
    if not isinstance(listed, Mapping):
        return None
    wanted = ("AutoModelForCausalLM", "AutoConfig", "AutoModel")
    return next((str(listed[name]) for name in wanted if listed.get(name)), None)


def _code(trusted: bool) -> dict[str, bool]:
    """Returns explicit options on custom code, without which transformers would prompt the user."""
    return {"trust_remote_code": trusted, "local_files_only": not trusted}


def usable_device(device: str | None) -> torch.device:
    import torch

    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.ones(1, device=place).item()  # fails on "meta", which stores no numbers
    except (RuntimeError, AssertionError) as error:
        raise DataError(f"device {device!r} cannot be used: {first_line(error)}", "device") from None
    return place
