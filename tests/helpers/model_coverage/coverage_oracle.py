"""Computes from the papers' formulas, in float64, what four schedules make of a stock model, and reads what it does.

Nothing here uses ropescale's own computation: the geometry is that of the stock rotary module, the formulas are
written out again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rotary_modules import tables_of
from torch import nn

from ropescale import Frequencies, Rope

FACTOR = 4.0
RTOL = 2e-6
"""How far float32 tables may be from float64 ones, relatively."""

SCALE_RTOL = 1e-5
"""The same for attention scales: Phi-3's is derived from a whole number of positions."""

Table = tuple[torch.Tensor, float]
"""Frequencies, float64 [pairs], and what cos and sin are multiplied by."""


@dataclass(frozen=True)
class Waves:
    """A user's own schedule: every pair is slowed by another number, and cos and sin grow."""

    step: float = 0.5

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies([f / (1.25 + self.step * i) for i, f in enumerate(rope.inv_freq())], 1.1)


SCHEDULES: dict[str, Any] = {
    "linear": f"linear:factor={FACTOR:g}",
    "yarn": f"yarn:factor={FACTOR:g}",
    "llama3": f"llama3:factor={FACTOR:g}",
    "table": Waves(),
}
"""The schedules of the sweep, by the name under which the oracle knows them."""


@dataclass(frozen=True)
class Geometry:
    """One table of a stock model before any scaling.

    Attributes:
        theta: the base.
        plain: ``theta^(-2i/d)``, 0 for pairs that do not turn, float64 [pairs].
        trained: the trained length in tokens.
    """

    theta: float
    plain: torch.Tensor
    trained: int

    @property
    def dim(self) -> int:
        return 2 * len(self.plain)


def geometries(model: nn.Module, trained: int) -> dict[str, Geometry]:
    """The geometry of every table of a stock model, by layer type (``all`` where there is one table)."""
    found = {}
    for _, module in rotary_modules(model):
        for key, (stock, _) in tables_of(module).items():
            parameters = module.config.rope_parameters
            theta = (parameters if key == "all" else parameters[key])["rope_theta"]
            steps = torch.arange(len(stock), dtype=torch.float64) / len(stock)
            found[key] = Geometry(theta, torch.where(stock == 0, 0.0, theta**-steps), trained)
    return found


def expected(name: str, rope: Geometry) -> Table:
    """What a schedule makes of a geometry."""
    return {"linear": _linear, "yarn": yarn_table, "llama3": _llama3, "table": _waves, "base": _base}[name](rope)


def _base(rope: Geometry) -> Table:
    return rope.plain, 1.0


def _linear(rope: Geometry) -> Table:
    return rope.plain / FACTOR, 1.0


def yarn_table(rope: Geometry, truncate: bool = True) -> Table:
    """Peng et al. 2023, arXiv:2309.00071, and its released code: a ramp over the pair index, rounded outwards."""

    def pair_of(turns: float) -> float:
        return rope.dim * math.log(rope.trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(32), pair_of(1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = ((torch.arange(len(rope.plain)) - low).double() / (high - low)).clamp(0, 1)
    return rope.plain / FACTOR * ramp + rope.plain * (1 - ramp), 0.1 * math.log(FACTOR) + 1


def _llama3(rope: Geometry) -> Table:
    """Llama 3.1's released code: wavelengths above L are divided, those below L / 4 kept, a blend between."""
    wavelengths = 2 * math.pi / rope.plain
    blend = ((rope.trained / wavelengths - 1) / (4 - 1)).clamp(0, 1)
    return (1 - blend) * rope.plain / FACTOR + blend * rope.plain, 1.0


def _waves(rope: Geometry) -> Table:
    return rope.plain / (1.25 + 0.5 * torch.arange(len(rope.plain)).double()), 1.1


# ---------------------------------------------------------------------------------------------------------
# What a model does


def rotary_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """The rotary modules of the language model, by name."""
    text = model.config.get_text_config(decoder=True)
    for name, module in model.named_modules():
        if tables_of(module) and getattr(getattr(module, "config", None), "model_type", None) == text.model_type:
            yield name, module


def rotation(module: Any, key: str, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of these positions as a rotary module hands them to the layers, float64 [positions, width]."""
    layer = {} if key == "all" else {"layer_type": key}
    with torch.no_grad():
        return cos_and_sin(module(torch.zeros(1, 1, 1), positions[None], **layer))


def cos_and_sin(handed: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The two, of a pair or of one complex table."""
    cos, sin = handed if isinstance(handed, tuple) else (handed.real, handed.imag)
    return cos[0].double(), sin[0].double()


def assert_rotates_by(found: tuple[torch.Tensor, torch.Tensor], wanted: Table, positions: torch.Tensor) -> None:
    """cos and sin of float32 angles against those of a float64 table, in whichever layout the model has.

    An angle is off by the rounding of its frequency and its own: 2^-23 of itself in all.
    """
    inv_freq, scale = wanted
    angles = positions.double()[:, None] * inv_freq
    tolerance = scale * (2e-6 + SCALE_RTOL + angles.abs().max(dim=1, keepdim=True).values * (2**-22 + RTOL / 4))
    layouts = [lambda x: x, lambda x: torch.cat([x, x], dim=-1), lambda x: x.repeat_interleave(2, dim=-1)]
    cos, sin = found
    for lay in layouts:
        off = (
            [(real - lay(scale * exact)).abs() for real, exact in ((cos, angles.cos()), (sin, angles.sin()))]
            if (lay(angles).shape == cos.shape)
            else []
        )
        if off and all(bool((each <= tolerance).all()) for each in off):
            return
    raise AssertionError(f"cos and sin do not follow the table: {cos.shape} for {len(inv_freq)} pairs")


def assert_table(module: nn.Module, key: str, wanted: Table) -> None:
    """The buffer and the attention scale of a module against float64 ones."""
    inv_freq, scale = tables_of(module)[key]
    torch.testing.assert_close(inv_freq, wanted[0], rtol=RTOL, atol=1e-25)
    assert abs(scale / wanted[1] - 1) <= SCALE_RTOL, (key, scale, wanted[1])
