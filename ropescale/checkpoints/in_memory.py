"""Reconstructs a loaded model's configuration file from its source's file and the changes made since."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..configs.configuration import Configuration
from ..errors import CheckpointError, ConfigError, RopescaleError, ScheduleError
from ..files import Data, Json, write_synced
from ..models.patching import check_live, installed, why_held
from ..models.rotary_modules import quiet_transformers, whole_config
from ..output.formatting import first_line
from ..planning.plan import Plan, make_plan
from ..record import as_json, make_record
from ..request import Request
from .contents import new_files, raised_limit, record_of, source_name
from .locating import ModelFolder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ..stored_record import Record


@dataclass(frozen=True)
class SavedSchedule:
    """The schedule of a model in memory, in the form that a checkpoint records.

    Attributes:
        plan: the plan of the schedule on the configuration to write. The plan has no layers if the model was already
            loaded with the schedule.
        record: the record, without the list of files.
        source: the checkpoint that the model was loaded from, or None if it is unknown or no longer exists.
    """

    plan: Plan
    record: Data
    source: ModelFolder | None

    @property
    def earlier(self) -> Record | None:
        """The record of the source, if there is one."""
        return self.source and self.source.record

    def write(self, folder: Path) -> None:
        """Writes the files that patching changes, except the record, into a folder with the source's files.

        The record gets the limit of the folder's tokenizer.
        """
        self.record.update(raised_limit(folder, self.plan.length, self.earlier))
        files = {"config.json": as_json(self.plan.config)}
        files |= new_files(folder, str(self.record["source"]), self.plan, self.earlier)
        for each, content in files.items():
            write_synced(folder / each, content)


def is_adapted(model: nn.Module) -> bool:
    """Whether a model is wrapped by PEFT, or has adapters that were added through transformers."""
    return hasattr(model, "get_base_model") or bool(getattr(model, "_hf_peft_config_loaded", False))


def saved_schedule(model: nn.Module) -> SavedSchedule:
    """Returns a model's schedule, from its patches or from the record of the folder that it was loaded from.

    Raises:
        RopescaleError: the model has no schedule, or a schedule that no file can express, or its tables differ from
            its patches.
    """
    name, folder = _loaded_from(model)
    source = None if folder is None else ModelFolder(folder)
    plan = installed(model)
    reason = why_held(model) or (plan.unsavable if plan else None)
    if reason:
        raise RopescaleError(f"this model cannot be saved: {reason}")
    if plan is None:
        return _recorded(model, source)
    check_live(model, plan)
    config = _of_source(source, plan)
    if config is None:
        now = _parsed(model, _with_rope_of(whole_config(model).to_dict(), plan.original.raw))
        written = json.loads(now.to_json_string(use_diff=True)) | _stated({"dtype": "", "architectures": ""}, model)
        base = dict(sorted(written.items()))  # the configuration that save_pretrained writes without the schedule
    else:
        base = _changed_since(config, make_plan(config, plan.request).config, model)
    kept = source if base == config else None
    new = make_plan(base, plan.request)
    record = record_of(kept, new, name) if kept else make_record(new, source_name(name), as_json(base))
    return SavedSchedule(new, record, source)


def _of_source(source: ModelFolder | None, plan: Plan) -> Data | None:
    """Returns the configuration that a model was loaded from, without ropescale's scaling.

    Returns None if there is no source, or if planning the same request on the source's configuration fails or gives
    different tables or a different length, as for a model that was loaded with another schedule.
    """
    if source is None:
        return None
    config = source.original(plan.request.on_top)
    try:
        there = make_plan(config, plan.request)
    except (ConfigError, ScheduleError):
        return None
    return config if (plan.tables, plan.length) == (there.tables, there.length) else None


def _recorded(model: nn.Module, source: ModelFolder | None) -> SavedSchedule:
    """Returns the schedule of a model that was loaded from a folder patched by ropescale.

    Raises:
        RopescaleError: the folder has no record, or the model's rope parameters were changed without a patch.
    """
    if source is None or source.record is None:
        raise RopescaleError(
            "this model carries no schedule from ropescale; patch it first (ropescale.patch), or use save_pretrained"
        )
    config = source.config
    if _rope_of(_parsed(model, config)) != _rope_of(whole_config(model)):
        raise RopescaleError(
            f"the rope parameters of this model were changed without ropescale since it was loaded from "
            f"{source.folder}; load the model again, and patch it"
        )
    base = _changed_since(config, config, model)
    plan = Plan(Request("as-is"), Configuration.read(config), Configuration.read(base), {}, source.record.length)
    return SavedSchedule(plan, record_of(source, plan, ""), source)


def _loaded_from(model: nn.Module) -> tuple[str, Path | None]:
    """Returns the name under which a model was loaded, or its class, and its folder, or None if that is unknown."""
    config: Any = whole_config(model)
    name = str(getattr(config, "_name_or_path", "") or "")
    if not name:
        return type(model).__name__, None
    if Path(name).is_dir():
        return name, Path(name) if (Path(name) / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json", revision=getattr(config, "_commit_hash", None))
    except HFValidationError:  # the folder no longer exists
        found = None
    return (name, Path(found).parent) if isinstance(found, str) else (Path(name).name, None)


# ---------------------------------------------------------------------------------------------------------
# The configuration


_ROPE = (
    "rope_parameters rope_scaling rope_theta max_position_embeddings original_max_position_embeddings head_dim".split()
)
_APART = frozenset([*_ROPE, *"transformers_version _name_or_path dtype torch_dtype architectures".split()])
"""Keys that belong to the schedule, or that are compared separately."""


def _changed_since(config: Data, expected: Json, model: nn.Module) -> Data:
    """Returns a ``config.json`` with the changes that were made to a model's configuration since loading.

    Returns ``config`` unchanged for a model with adapters, because its base's weights are links to the source's files.

    Args:
        config: the content of the file.
        expected: the file's content with the model's schedule; its differences from the model's configuration are the
            changes.
        model: the model, perhaps with more tokens or another dtype.
    """
    if is_adapted(model):
        return config
    before = _parsed(model, expected).to_dict()
    now = whole_config(model).to_dict()
    return _overlaid(config, before, now) | _stated(config, model)


def _overlaid(config: Json, before: Json, now: Json) -> Data:
    gone = before.keys() - now.keys() - _APART  # removed keys, such as the quantization config of dequantized weights
    found = {key: value for key, value in config.items() if key not in gone}
    for key, value in now.items():
        if key in _APART or value == before.get(key):
            continue
        inner = config.get(key)
        there = before.get(key)
        if isinstance(inner, Mapping) and isinstance(there, Mapping) and isinstance(value, Mapping):
            found[key] = _overlaid(inner, there, value)
        else:
            found[key] = json.loads(json.dumps(value, default=str))
    return found


def _stated(config: Json, model: nn.Module) -> Data:
    """Returns the keys of ``config`` that ``save_pretrained`` updates: the weights' dtype and the model's class."""
    now = {
        **dict.fromkeys(("dtype", "torch_dtype"), str(model.dtype).removeprefix("torch.")),
        "architectures": [type(model).__name__.removeprefix("FSDP")],
    }
    return {key: value for key, value in now.items() if config.get(key) is not None}


def _with_rope_of(now: Json, before: Json) -> Data:
    """Returns the configuration ``now`` with the rope keys of the configuration ``before``, in every section."""
    kept = {key: value for key, value in now.items() if key not in _ROPE}
    for key, value in kept.items():
        if isinstance(value, Mapping) and isinstance(there := before.get(key), Mapping):
            kept[key] = _with_rope_of(value, there)
    return kept | {key: before[key] for key in _ROPE if key in before}


def _parsed(model: nn.Module, config: Json) -> PreTrainedConfig:
    """Builds transformers' configuration object from the content of a ``config.json``."""
    with quiet_transformers():
        return type(whole_config(model)).from_dict(copy.deepcopy(dict(config)))


def _rope_of(config: PreTrainedConfig) -> tuple[object, object]:
    text: Any = config.get_text_config(decoder=True)
    return getattr(text, "rope_parameters", None), getattr(text, "max_position_embeddings", None)


def refuse_parts(model: nn.Module) -> None:
    """Raises an error for a model with weights in other processes or on the meta device.

    Raises:
        ConfigError: the object is not a transformers model.
        CheckpointError: weights are elsewhere; the message names an alternative.
    """
    whole_config(model)  # raises ConfigError for other objects
    for name, parameter in model.named_parameters():
        if parameter.is_meta and not hasattr(model, "hf_device_map"):
            raise CheckpointError(f"{name} is on the meta device and has no numbers; load the model's weights first")
        if hasattr(parameter, "full_tensor") or hasattr(parameter, "ds_id"):
            raise CheckpointError(
                "this model's weights are spread over several processes; save them with your trainer, and complete "
                "the saved folder by patching it with the schedule as-is",
                "schedule",
            )


def save_pretrained(what: Any, folder: Path, **options: Any) -> None:
    """Saves a model or a tokenizer with its own ``save_pretrained``.

    Raises:
        CheckpointError: saving failed.
    """
    try:
        what.save_pretrained(folder, **options)
    except (RopescaleError, OSError):
        raise
    except Exception as error:
        raise CheckpointError(f"{type(what).__name__} cannot be saved: {first_line(error)}") from error
