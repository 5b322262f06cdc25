"""Verifies a checkpoint on disk: builds its rotary modules as stock transformers would, and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..adapters import Adapter, disagreement, remarks
from ..checkpoints.caveats import number, optional_json, other_limits
from ..checkpoints.loading import refuse_code, refuse_unloadable
from ..checkpoints.locating import read_config
from ..checkpoints.metadata.record import read_record
from ..configs.checks import LARGEST
from ..configs.configuration import MAXIMUM_STAYS, Configuration, read_rope
from ..configs.writing import ONLY_V5_KEYS, unread_by_v4
from ..errors import ConfigError, RopescaleError
from ..models.rotary_modules import RTOL, build_stock, layer_keys, quiet_transformers, rotary_modules, stock_table
from ..output.formatting import brief, first_line, listed
from .intended import Intended, recorded
from .verification import Verification, compare_rotation, compare_sides, compare_softmax, not_live

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..checkpoints.metadata.stored_record import Record


def examine_adapter(name: str, adapter: Adapter, trusted: bool) -> Verification:
    """Compares the tables that transformers builds for an adapter's base with those that the adapter was trained under.

    Args:
        name, trusted: as for :func:`examine_folder`.

    Raises:
        ConfigError: as for :func:`examine_folder`.
    """
    report = examine_folder(name, adapter.base_folder, trusted, adapter.record)
    report.base = adapter.base
    if mismatch := disagreement(adapter):
        report.problems.insert(0, mismatch)
    else:
        report.warnings += remarks(adapter)
    _check_tokenizer(adapter.folder, report, f"in the adapter's folder; write {report.length} there")
    return report


def examine_folder(name: str, folder: Path, trusted: bool, record: Record | None = None) -> Verification:
    """Compares the tables that transformers builds for a checkpoint with its record, or else with its configuration.

    Args:
        name: the checkpoint's name, for the report.
        trusted: whether code that it brings may run.
        record: of what is intended, in place of the checkpoint's own.

    Raises:
        ConfigError: it has no RoPE, or needs custom code that may not run.
    """
    config, record = read_config(folder), record or read_record(folder)
    report = Verification(name, "", 0)
    refuse_unloadable(folder)
    refuse_code(folder, trusted)
    with quiet_transformers():
        skeleton, modules = _stock_modules(folder, trusted, config, report)
    configuration = Configuration.read(config)
    try:
        intended = recorded(configuration, record)
    except ConfigError as error:
        report.problems.append(str(error))
        return report
    report.intended, report.length = intended.text, intended.length
    for where, module in modules:
        try:
            _compare(where, module, intended, report)
        except RopescaleError:
            raise
        except Exception as error:
            report.problems.append(f"{where} cannot compute its table: {type(error).__name__}: {first_line(error)}")
    if modules:
        carried = {key for _, module in modules for key in layer_keys(module)}
        lacking = [key for key in intended.tables if key not in carried]
        report.problems += [f"no rotary module has a table for the {key} layers" for key in lacking]
    compare_softmax(skeleton, intended.softmax, report)
    _check_limits(folder, configuration, report)
    if unread_by_v4(configuration):
        report.warnings.append(ONLY_V5_KEYS)
    return report


def _stock_modules(
    folder: Path, trusted: bool, config: Mapping[str, object], report: Verification
) -> tuple[nn.Module, list[tuple[str, nn.Module]]]:
    """Builds the model without weights, and its rotary modules for real; none where transformers cannot."""
    from transformers import PreTrainedConfig

    skeleton = nn.Module()
    try:
        skeleton = _skeleton(folder, trusted)
        rotary = [(name, module, module.config) for name, module in rotary_modules(skeleton)]
        modules = [
            (name, build_stock(module, own)) for name, module, own in rotary if isinstance(own, PreTrainedConfig)
        ]
    except RopescaleError:
        raise
    except Exception as error:
        report.problems.append(f"transformers cannot build this model: {type(error).__name__}: {first_line(error)}")
        return skeleton, []
    if not modules:
        read_rope(config)  # says why, where the reason is that the model has no RoPE
        report.problems.append(
            "transformers builds no rotary module for this model (one that has inv_freq and a configuration)"
        )
    return skeleton, modules


def _skeleton(folder: Path, trusted: bool) -> PreTrainedModel:
    """Returns the whole model without weights or memory."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
        except ValueError:  # not a causal language model's configuration: a multimodal one, say
            return AutoModel.from_config(config, trust_remote_code=trusted)


def _compare(where: str, module: nn.Module, intended: Intended, report: Verification) -> None:
    for key in layer_keys(module):
        if key not in intended.tables:
            continue
        wanted = intended.tables[key]
        off = report.add(where, key, stock_table(module, key, report.length), wanted)
        if not off <= RTOL:
            report.problems.append(not_live(where, key, off))
        else:
            compare_rotation(where, module, key, wanted, report.length, report)
    compare_sides(where, module, intended.sides, report)


def _check_tokenizer(folder: Path, report: Verification, workaround: str) -> None:
    limit = number(optional_json(folder / "tokenizer_config.json").get("model_max_length"))
    if limit is not None and limit < report.length:
        shown = f"{limit:g}" if abs(limit) < LARGEST else brief(limit)
        report.limits.append(
            f"tokenizer_config.json: model_max_length is {shown}, below the {report.length} tokens the model is for "
            f"({workaround})"
        )


def _check_limits(folder: Path, configuration: Configuration, report: Verification) -> None:
    """Looks for limits below the length that the model is for: those that patching raises, and others to know of."""
    length, maximum = report.length, configuration.max_length
    _check_tokenizer(folder, report, "patching with the schedule as-is raises it")
    kinds = sorted({str(rope.scaling.get("rope_type")) for rope in configuration.ropes.values()} - {"default"})
    if maximum < length and ({*kinds} & {*MAXIMUM_STAYS} or configuration.family.derives_attention_scale):
        report.warnings.append(
            f"max_position_embeddings stays {maximum} under {listed(kinds)}; an engine that stops there "
            f"needs its own option for {length} tokens, which `ropescale export` prints"
        )
    elif maximum < length:
        report.limits.append(f"config.json: max_position_embeddings is {maximum}, below the {length} tokens")
    report.warnings += other_limits(folder, length)
