"""The frequencies that a model should have, by its configuration, its record, or its patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from ..checkpoints.metadata.record import around_switch, softmax_factor
from ..configs.configuration import Configuration, read_rope
from ..models.patching import held_at, installed
from ..models.rotary_modules import whole_config
from ..planning.grounds import describe_scaling
from ..rope import Rope
from ..schedules import AsIs, Frequencies, compute, describe

if TYPE_CHECKING:
    from ..checkpoints.metadata.stored_record import Record


@dataclass(frozen=True)
class Intended:
    """The frequencies that a model should have; each mapping is by layer type.

    Attributes:
        schedules: the schedules, in words.
        length: the length in tokens that :attr:`tables` belong to.
        tables: the frequencies.
        sides: the frequencies at the trained length and one token past it; none where every length has the same.
        softmax: the factor on an MLA model's softmax scale.
    """

    schedules: Mapping[str, str]
    length: int
    tables: Mapping[str, Frequencies]
    sides: Mapping[str, Mapping[int, Frequencies]]
    softmax: Mapping[str, float]

    @property
    def text(self) -> str:
        """The schedules in one line."""
        return "; ".join(f"{key}: {schedule}" for key, schedule in self.schedules.items())


def asked_for(ropes: Mapping[str, Rope], length: int) -> Intended:
    """Computes the tables that a configuration asks for at a length in tokens."""
    return Intended(
        schedules={key: describe_scaling(rope) for key, rope in ropes.items()},
        length=length,
        tables={key: compute(AsIs(), rope, length) for key, rope in ropes.items()},
        sides={key: around_switch(AsIs().bound(rope), rope) for key, rope in ropes.items()},
        softmax={key: softmax_factor(rope) for key, rope in ropes.items()},
    )


def recorded(configuration: Configuration, record: Record | None) -> Intended:
    """Takes the tables of a checkpoint's record, or of its configuration where there is no record."""
    if record is None:
        return asked_for(configuration.ropes, configuration.meant_length)
    asked = asked_for(configuration.ropes, record.length)
    return replace(
        asked,
        schedules=record.labels or asked.schedules,
        tables={**asked.tables, **record.frequencies},
        sides={**asked.sides, **record.sides},
        softmax={**asked.softmax, **record.softmax_factor},
    )


def meant_for(model: nn.Module) -> int:
    """Returns the context, in tokens, that a loaded model is for, or the length at which its tables are held."""
    plan, held = installed(model), held_at(model)
    if plan is None:
        return held or max(rope.max_length for rope in read_rope(whole_config(model).to_dict()).values())
    return held or plan.length


def in_memory(model: nn.Module, length: int) -> Intended:
    """Computes the tables of the patches in a model at a length, or where they are held, over its configuration's."""
    plan, held = installed(model), held_at(model)
    asked = asked_for(read_rope(whole_config(model).to_dict()), held or length)
    layers = {} if plan is None else plan.layers
    patched = {key: around_switch(layer.schedule, layer.rope) for key, layer in layers.items()}
    return replace(
        asked,
        schedules={key: describe(layer.schedule) for key, layer in layers.items()} or asked.schedules,
        tables={**asked.tables, **{key: layer.table(asked.length) for key, layer in layers.items()}},
        sides={} if held is not None else {**asked.sides, **patched},
    )
