"""PEFT adapters on disk: their base, their training schedule, and loading."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoints.loading import refusal
from .checkpoints.locating import ADAPTER, ModelFolder, checked, find_model, locate
from .configs.configuration import read_rope
from .errors import CheckpointError, ConfigError
from .files import Data, local_path, read_json
from .output.formatting import cut, first_line, named
from .planning.layers import describe_scaling
from .record import RECORD, read_record
from .schedules import Frequencies
from .schedules.as_is import stock_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from .stored_record import Record


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder and its base.

    Attributes:
        folder: the adapter's folder.
        name: the name of its base, a folder or a Hub id, from its configuration.
        base: the base.
        record: the adapter's ``ropescale.json``, or None.
    """

    folder: Path
    name: str
    base: ModelFolder
    record: Record | None


def find_loadable(
    model: str | Path, revision: str | None = None, *, weights: bool = True
) -> tuple[ModelFolder, Adapter | None]:
    """Finds a model, or an adapter's base and the adapter.

    Args:
        model, revision, weights: as for :func:`ropescale.checkpoints.locating.find_model`.

    Raises:
        CheckpointError: the model or an adapter's base is missing, or the adapter does not name its base.
    """
    folder = locate(model, revision, weights=weights)
    if not (folder / ADAPTER).exists():
        return ModelFolder(checked(folder)), None
    adapter = _adapter(folder, weights)
    return adapter.base, adapter


def read_configs(model: str | Path, revision: str | None = None) -> tuple[Data, Data]:
    """Returns two configurations of a model or an adapter's base: without ropescale's scaling, and as stored.

    Raises:
        RopescaleError: the configuration is missing or unreadable.
    """
    stored, _ = find_loadable(model, revision, weights=False)
    return stored.original(), stored.config


_LONGEST = 4096
"""The largest number of characters in a path that operating systems accept."""


def _adapter(folder: Path, weights: bool) -> Adapter:
    config = read_json(folder / ADAPTER)
    base = config.get("base_model_name_or_path")
    pinned = config.get("revision")
    if re.search(r"[*+}]\)+[*+{]", str(config)):  # which PEFT would try on every module, for hours
        raise CheckpointError(f"{folder / ADAPTER} has a pattern that repeats a repetition; list the modules instead")
    if not isinstance(base, str) or not 0 < len(base) <= _LONGEST:
        raise CheckpointError(f"{folder / ADAPTER} names no base model; write its folder into base_model_name_or_path")
    try:
        is_local = local_path(base).is_dir()
        stored = find_model(base, pinned if isinstance(pinned, str) and not is_local else None, weights=weights)
    except (OSError, ValueError) as error:  # an invalid name, or a missing path
        raise CheckpointError(
            f"the base of the adapter {folder}: {first_line(error)} (base_model_name_or_path)"
        ) from error
    return Adapter(folder, cut(base, 200), stored, read_record(folder))


def remarks(adapter: Adapter) -> Iterator[str]:
    """Yields a warning if an adapter may have been trained with frequencies that its base does not have."""
    trained = adapter.record
    if trained is None:
        yield (
            f"the training frequencies of the adapter {named(adapter.folder)} are not recorded (it has no {RECORD}); "
            f"the frequencies of its base {named(adapter.name)} are used ({_carried_by(adapter)})"
        )
    elif mismatch := disagreement(adapter):
        yield mismatch


def disagreement(adapter: Adapter) -> str | None:
    """Describes a mismatch between an adapter's training frequencies and its base's; returns None if they agree or are
    not recorded."""
    record = adapter.record
    ropes = read_rope(adapter.base.config)
    if record is None:
        return None
    tables = {key: table for key, table in record.frequencies.items() if key in ropes}
    of_base = {key: stock_table(ropes[key], record.length) for key in tables}
    if tables.keys() == record.tables.keys() and all(map(_same, tables.values(), of_base.values())):
        return None
    trained = ", ".join(dict.fromkeys(record.labels.values()))
    return (
        f"the adapter {named(adapter.folder)} was trained with {trained}, and its base {named(adapter.name)} has "
        f"{_carried_by(adapter)}; patch the base the same way, and name the result in {ADAPTER}"
    )


def _same(one: Frequencies, other: Frequencies) -> bool:
    first = [*one.inv_freq, one.attention_scale]
    second = [*other.inv_freq, other.attention_scale]
    return len(first) == len(second) and all(math.isclose(a, b, rel_tol=_RTOL) for a, b in zip(first, second))


_RTOL = 2e-6
"""The largest relative difference at which two tables count as equal; a table may come from a configuration's lists."""


def _carried_by(adapter: Adapter) -> str:
    """Returns the base's schedule as text, from its record or its configuration."""
    record = adapter.base.record
    ropes = read_rope(adapter.base.config)
    labels = record.labels.values() if record else ()
    return ", ".join(dict.fromkeys(labels or map(describe_scaling, ropes.values())))


def attached(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> PreTrainedModel:
    """Attaches an adapter to a model; returns it in evaluation mode.

    Args:
        model: the base.
        folder: the adapter's folder.
        tokenizer: the adapter's own tokenizer, if any; the base's embeddings grow to the tokenizer's size.

    Raises:
        ConfigError: peft is not installed.
        CheckpointError: the adapter does not load, or lacks weights, which PEFT would initialise randomly.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ConfigError(
            f"{folder} is a PEFT adapter, and peft cannot be imported ({first_line(error)}); pip install "
            "'ropescale[adapters]'"
        ) from None
    rows: Any = model.get_input_embeddings()
    if tokenizer is not None and len(tokenizer) > rows.weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a warning between PEFT and transformers
            warnings.filterwarnings("error", message=".*missing adapter keys")
            whole: Any = PeftModel.from_pretrained(model, str(folder))
    except Exception as error:
        raise refusal(f"{folder} cannot be loaded as an adapter of its base", error) from error
    return whole.eval()
