"""The result of verification, and the comparisons shared by checkpoints and loaded models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration, read_rope
from ..files import Data
from ..models.patching import held_at, installed
from ..models.rotary_modules import (
    RTOL,
    Table,
    difference,
    full_precision,
    layer_keys,
    live_table,
    reads_mscale,
    table_at,
    whole_config,
)
from ..planning.layers import describe_scaling
from ..planning.plan import Plan
from ..record import around_switch, softmax_factor
from ..rope import Rope
from ..schedules import AsIs, Frequencies, compute
from .decoding import Stretch

if TYPE_CHECKING:
    from ..stored_record import Record


STATED = "the configuration"
"""What modules without record or patch are compared with."""

_SOFTMAX_RTOL = 1e-9
"""The largest relative difference between two float64 computations of one softmax scale."""


@dataclass(frozen=True)
class Module:
    """One table of one rotary module.

    Attributes:
        name: the module's path in the model.
        layer_type: the layer type that uses the table; ``all`` for a single table.
        pairs: the number of frequencies.
        dtype: the dtype of the table.
        attention_scale: the factor on cos and sin.
        difference: the largest relative difference from the intended float64 table, including the scale.
    """

    name: str
    layer_type: str
    pairs: int
    dtype: str
    attention_scale: float
    difference: float


@dataclass(repr=False)
class Verification:
    """The result of :func:`ropescale.verifying.examining.examine`; :attr:`live` if there are no problems.

    Attributes:
        model: the name of the model.
        intended: the schedule of each layer type, as text.
        length: the target context in tokens. :attr:`modules` lists the tables at this length; for a loaded model whose
            tables follow the length, the tables of a pass over a few tokens.
        modules: every table of every rotary module.
        softmax_factor: the factor on an MLA model's softmax scale (``mscale_all_dim``); None for other models.
        generation: the lengths at which decoding with the cache was compared with forward passes.
        problems: why the model is not live or decodes wrongly, one sentence per problem.
        limits: other limits below :attr:`length` that must be raised, one sentence per limit. They do not affect
            :attr:`live`.
        warnings: remarks on intended behaviour that users should know.
        base: the base whose modules were examined, if the model is an adapter.
        compared: what the modules were compared with: the record or patch, the request, or :data:`STATED`.
    """

    model: str
    intended: str
    length: int
    modules: list[Module] = field(default_factory=list)
    softmax_factor: float | None = None
    generation: list[Stretch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    base: str | None = None
    compared: str = ""

    @property
    def live(self) -> bool:
        """Whether the model uses the intended frequencies."""
        return not self.problems

    @property
    def failure(self) -> str | None:
        """The message of the error that :func:`ropescale.verify` raises; None if it raises none."""
        if self.problems or not self.limits:
            return "; ".join(self.problems) or None
        return f"the frequencies are live, but another limit is too low: {'; '.join(self.limits)}"

    @property
    def verdict(self) -> str:
        """One line with the result, the schedule and the length."""
        said = "yes" if self.live else "NO"
        about = f"({self.intended}, at {self.length:,} tokens)"
        if self.compared != STATED:
            return f"live: {said} {about}"
        return (
            f"the modules agree with {STATED}: {said} {about}; no record says that this is wanted, so a lost schedule "
            "would not show: compare with one (--schedule), or with the original (--like)"
        )

    def __repr__(self) -> str:
        return f"<Verification of {self.model}: {self.failure or self.verdict}>"

    def to_dict(self) -> Data:
        """Returns the result as plain data for JSON."""
        return {"live": self.live, **asdict(self)}


@full_precision()
def compare_module(
    where: str,
    module: nn.Module,
    intended: Intended,
    report: Verification,
    read: Callable[[nn.Module, str], Table],
    positions: Mapping[str, int],
) -> None:
    """Compares a module's tables, at one length and on both sides of a switch, and its cos with the intended ones.

    Args:
        where: the module's name.
        read: a function that returns the module's table for a layer type.
        positions: per layer type, the position at which to compare cos if the tables are right; may be empty.
    """
    before = len(report.problems)
    for key in layer_keys(module):
        if key not in intended.tables:
            continue
        table, scale = read(module, key)
        off = difference(table, scale, intended.tables[key])
        dtype = str(table.dtype).removeprefix("torch.")
        report.modules.append(Module(where, key, len(table), dtype, scale, off))
        if not off <= RTOL and table.dtype != torch.float32:
            report.problems.append(
                f"{where}: the table was rounded to {dtype} (it differs by {off:.1e} relative), by model.to() or "
                ".half(); load with from_pretrained(dtype=...) instead, or patch again"
            )
        elif not off <= RTOL:
            report.problems.append(_not_live(where, key, off))
        for length, wanted in intended.sides.get(key, {}).items():
            off = difference(*table_at(module, key, length), wanted)
            if not off <= RTOL:
                report.problems.append(f"{_not_live(where, key, off)} at {length:,} tokens")
        if key in positions and len(report.problems) == before:
            _compare_rotation(where, module, key, intended.tables[key], positions[key], report)


def _not_live(where: str, key: str, off: float) -> str:
    return f"{where} ({key} layers) does not have the intended table: it differs by {off:.1e} relative"


def _compare_rotation(
    where: str, module: nn.Module, key: str, wanted: Frequencies, position: int, report: Verification
) -> None:
    """Compares the module's cos at a position with the table's, in any of the usual layouts."""
    device = live_table(module, key)[0].device
    layer = {} if key == ALL_LAYERS else {"layer_type": key}
    with torch.no_grad():
        out = module(torch.zeros(1, 1, 1, device=device), torch.tensor([[position]], device=device), **layer)
    cos = (out[0] if isinstance(out, tuple) else out.real).flatten().cpu()
    expected = torch.tensor([position * f for f in wanted.inv_freq], dtype=torch.float64).cos()
    expected = expected * wanted.attention_scale
    layouts = (expected, torch.cat([expected, expected]), expected.repeat_interleave(2))
    # the error is at most position * 2^-24 radians for float32 angles, and 2e-6 of an angle for the tables
    tolerance = 1e-5 + (position + 1) * max(wanted.inv_freq) * (2**-23 + RTOL)
    for want in layouts:
        if len(cos) == len(want) and (cos.double() - want).abs().max() < tolerance:
            return
    report.problems.append(f"{where} ({key} layers) has the intended table, but its cos does not match it")


def compare_softmax(model: nn.Module, factors: Mapping[str, float], report: Verification) -> None:
    """Compares the softmax scale of an MLA model, which depends on the schedule, with the intended one."""
    own_factors = {}  # in units of the plain scale, if the class reads mscale_all_dim
    for name, module in model.named_modules():
        scale = getattr(module, "scaling", None)
        width = getattr(module, "qk_head_dim", None)
        if isinstance(scale, float) and isinstance(width, int) and reads_mscale(type(module)):
            own_factors[name] = scale * width**0.5
    if not own_factors or ALL_LAYERS not in factors:
        return
    report.softmax_factor = wanted = factors[ALL_LAYERS]
    wrong = [(name, own) for name, own in own_factors.items() if not abs(own - wanted) <= _SOFTMAX_RTOL * abs(wanted)]
    if wrong:
        name, own = wrong[0]
        others = f" (and {len(wrong) - 1} more layers)" if len(wrong) > 1 else ""
        report.problems.append(f"{name}{others} multiplies its softmax scale by {own:.6g} instead of {wanted:.6g}")


@dataclass(frozen=True)
class Intended:
    """The frequencies that a model should have; all mappings are keyed by layer type.

    Attributes:
        schedules: the schedules, as text.
        length: the length in tokens that :attr:`tables` belong to.
        tables: the frequencies.
        sides: the frequencies at the trained length and one token past it; empty if all lengths share one table.
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
    """Computes a configuration's tables at a length in tokens."""
    return Intended(
        schedules={key: describe_scaling(rope) for key, rope in ropes.items()},
        length=length,
        tables={key: compute(AsIs(), rope, length) for key, rope in ropes.items()},
        sides={key: around_switch(AsIs().bound(rope), rope) for key, rope in ropes.items()},
        softmax={key: softmax_factor(rope) for key, rope in ropes.items()},
    )


def stated(ropes: Mapping[str, Rope], length: int) -> Intended:
    """Returns a configuration's own tables; the text also has theta, because a lost one shows in nothing else."""
    made = asked_for(ropes, length)
    schedules = {key: f"{text}, theta {ropes[key].theta:,.7g}" for key, text in made.schedules.items()}
    return replace(made, schedules=schedules)


def planned(plan: Plan, length: int) -> Intended:
    """Computes the tables of a plan at a length in tokens."""
    return _on_top(asked_for(plan.planned.ropes, length), plan)


def _on_top(asked: Intended, plan: Plan) -> Intended:
    """Replaces the tables of the layers that a plan changes."""
    layers = plan.layers.items()
    return replace(
        asked,
        schedules={key: plan.label(key) for key, _ in layers} or asked.schedules,
        tables={**asked.tables, **{key: layer.table(asked.length) for key, layer in layers}},
        sides={**asked.sides, **{key: around_switch(layer.schedule, layer.rope) for key, layer in layers}},
    )


def recorded(configuration: Configuration, record: Record | None) -> Intended:
    """Returns the frequencies in a checkpoint's record, or those of its configuration if there is no record."""
    if record is None:
        return stated(configuration.ropes, configuration.meant_length)
    asked = asked_for(configuration.ropes, record.length)
    return replace(
        asked,
        schedules=record.labels or asked.schedules,
        tables={**asked.tables, **record.frequencies},
        sides={**asked.sides, **record.sides},
        softmax={**asked.softmax, **record.softmax_factor},
    )


def meant_for(model: nn.Module) -> int:
    """Returns a loaded model's target context in tokens, or the length at which its tables are frozen."""
    plan = installed(model)
    held = held_at(model)
    if plan is None:
        return held or Configuration.read(whole_config(model).to_dict()).meant_length
    return held or plan.length


def in_memory(model: nn.Module, length: int) -> Intended:
    """Computes the tables of a loaded model's patches, and those of its configuration for unpatched layers.

    The tables are those at ``length``, or at the length at which the model's tables are frozen."""
    plan = installed(model)
    held = held_at(model)
    asked = asked_for(read_rope(whole_config(model).to_dict()), held or length)
    intended = asked if plan is None else _on_top(asked, plan)
    return intended if held is None else replace(intended, sides={})
