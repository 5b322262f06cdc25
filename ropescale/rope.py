"""The rotary geometry of a model: pairs, theta, trained length."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError


@dataclass(frozen=True)
class Rope:
    """The rotary geometry of a layer type; the input of a schedule, together with the length.

    Coordinates rotate in pairs; pair ``i`` rotates by ``theta^(-2i/d)`` radians per token, with ``d`` the rotary dim
    (Su et al. 2021, arXiv:2104.09864, section 3.2.2). Pair 0 is the fastest.

    Attributes:
        rotary_dim: the number of rotating coordinates per head, ``d``, in ``d / 2`` pairs.
        theta: the base of the geometric series, ``rope_theta``.
        original_length: the context the model was trained at before any scaling, in tokens, ``L``.
        head_dim: the number of coordinates per head; equals ``rotary_dim`` unless RoPE is partial.
        max_length: ``max_position_embeddings`` in the configuration; equals ``original_length``
            unless the model is already scaled.
        rotated_pairs: the number of pairs that rotate (proportional RoPE). Default: all.
        layer_type: the layer type of this geometry, for models with one table per type.
        scaling: the rope parameters in the configuration, under the keys of transformers 5 (``rope_type`` included).
        table: per-pair frequencies to build on instead of theta's, for a schedule on top of existing scaling.
        table_scale: the attention scale that belongs to ``table``.
    """

    rotary_dim: int
    theta: float
    original_length: int
    head_dim: int = 0
    max_length: int = 0
    rotated_pairs: int | None = None
    layer_type: str | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict, hash=False)
    table: tuple[float, ...] | None = None
    table_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.rotary_dim > LARGEST_HEAD:
            raise ConfigError(
                f"a head would rotate {self.rotary_dim} coordinates, beyond any model; is the file damaged?"
            )
        object.__setattr__(self, "head_dim", self.head_dim or self.rotary_dim)
        object.__setattr__(self, "max_length", self.max_length or self.original_length)

    @property
    def kind(self) -> str:
        """The rope type."""
        return str(self.scaling.get("rope_type", "default"))

    @property
    def is_scaled(self) -> bool:
        """Whether the configuration scales this geometry; proportional RoPE is scaled if its factor is not 1."""
        return self.kind != "default" and not (self.kind == "proportional" and self.scaling.get("factor", 1) == 1)

    @property
    def varies(self) -> bool:
        """Whether the scaling changes the frequencies with the length; a fixed alpha of dynamic does not."""
        if self.kind == "longrope":
            return self.scaling.get("short_factor") != self.scaling.get("long_factor")
        return self.kind == "dynamic" and not self.scaling.get("alpha")

    @property
    def is_plain(self) -> bool:
        """Whether every pair follows theta's own series, as most of transformers' rope types require."""
        return self.table is None and self.rotated_pairs is None

    @property
    def pairs(self) -> int:
        """The number of frequencies, ``ceil(d / 2)``."""
        return (self.rotary_dim + 1) // 2

    def inv_freq(self) -> list[float]:
        """Returns the radians per token of each pair before the schedule: ``theta^(-2i/d)``, or :attr:`table`."""
        return self.geometric(self.theta) if self.table is None else list(self.table)

    def geometric(self, theta: float) -> list[float]:
        """Returns ``theta^(-2i/d)`` for every pair of this geometry, with a given theta."""
        turning = self.pairs if self.rotated_pairs is None else self.rotated_pairs
        return [theta ** (-2 * i / self.rotary_dim) if i < turning else 0.0 for i in range(self.pairs)]

    def wavelengths(self) -> list[float]:
        """Returns the tokens per full turn of each pair, ``2 pi / inv_freq``; infinite for a pair that never turns."""
        return [2 * math.pi / f if f else math.inf for f in self.inv_freq()]

    def turns(self) -> list[float]:
        """Returns the number of full turns of each pair inside the trained length, ``r_i = L / wavelength_i``."""
        return [self.original_length * f / (2 * math.pi) for f in self.inv_freq()]

    def pair_at(self, turns: float) -> float:
        """Returns the (fractional) pair index that makes ``turns`` turns inside the trained length.

        The index is ``d ln(L / (2 pi turns)) / (2 ln theta)`` (YaRN's "correction dim", Peng et al. 2023,
        arXiv:2309.00071, appendix A.2 and the released code). For a :attr:`table`, the logarithm of the frequency is
        interpolated between pairs, and extrapolated at the ends.
        """
        wanted = 2 * math.pi * turns / self.original_length
        if self.table is None:
            return -self.rotary_dim * math.log(wanted) / (2 * math.log(self.theta))
        logs = [math.log(f) for f in self.table if f > 0]
        level = math.log(wanted)
        below = next((i for i, value in enumerate(logs) if value < level), len(logs) - 1)
        left = max(0, below - 1)
        if len(logs) < 2 or logs[left + 1] == logs[left]:
            return float(left)
        return left + (level - logs[left]) / (logs[left + 1] - logs[left])


LARGEST_HEAD = 2**16
"""The largest accepted head size; a damaged file could require a table that fills the memory."""
