"""Names a model in training for measurements: its schedule, and how far it has been trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoints.metadata.record import read_record
from ...models.patching import installed
from ...models.rotary_modules import whole_config
from ...output.formatting import cut
from ...verifying.verification import in_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

UNSCALED = "no schedule, before"
"""The model before its schedule and before its first step."""

_FACTOR = re.compile(r"[:,]factor=([^,]+)")
_LONGEST = 40


def stage(model: nn.Module, step: int) -> str:
    """Returns the name of a model at a step: ``yarn x8, before``, ``yarn x8, after 200 steps``."""
    name = cut("; ".join(dict.fromkeys(map(_short, _texts(model)))), _LONGEST)  # several, where layers differ
    return f"{name}, {progress(step)}"


def progress(step: int) -> str:
    """Returns how far a model has been trained, in words."""
    return f"after {step:,} step{'s' * (step > 1)}" if step else "before"


def _texts(model: nn.Module) -> Iterable[str]:
    """Returns the schedules of a model: its patch's, its folder's, or its configuration's."""
    folder = Path(str(getattr(whole_config(model), "_name_or_path", "") or ""))
    record = read_record(folder) if installed(model) is None and folder.name and folder.is_dir() else None
    labels = {} if record is None else record.labels
    return (labels or in_memory(model, 1).schedules).values()


def _short(text: str) -> str:
    factor = _FACTOR.search(text)
    name = re.sub(r" of \d+$", "", text) if ":" not in text else text.partition(":")[0]
    return f"{name} x{factor[1]}" if factor else name
