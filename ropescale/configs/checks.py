"""Checks of the numbers and names that a configuration gives, before any formula sees them."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import TypeGuard, cast

from ..errors import ConfigError
from ..output.formatting import brief

LARGEST = 2**53
"""No length or dimension is larger; beyond it float64 no longer counts one by one."""

LONGEST_NAME = 100
"""Characters of a name that a configuration gives to a kind of model, of layer or of scaling."""

LARGEST_THETA = 1e100
"""No theta comes near it; what does would overflow in the formulas."""

_SMALL_HEAD = 4
"""transformers lets odd heads of up to this many coordinates through; its tests have such models."""

_SCALARS = (
    "factor attention_factor attn_factor beta_fast beta_slow mscale mscale_all_dim extrapolation_factor short_mscale "
    "long_mscale low_freq_factor high_freq_factor alpha original_max_position_embeddings"
).split()
_PER_PAIR = ("short_factor", "long_factor")
_REAL = "a finite number below 1e+100"


def number(value: object, name: str, most: float = LARGEST) -> float:
    """Returns a number between 0 and ``most``.

    Raises:
        ConfigError: it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ConfigError(f"{name} is {brief(value)} in the configuration; it must be a number between 0 and {most:g}")
    return value


def whole(value: object, name: str) -> int:
    """Returns a whole number above 0.

    Raises:
        ConfigError: it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LARGEST or value % 1:
        raise ConfigError(f"{name} is {brief(value)} in the configuration; it must be a whole number above 0")
    return int(value)


def theta(value: object) -> float:
    """Returns a theta, which must exceed 1."""
    base = number(value, "rope_theta", most=LARGEST_THETA)
    if base <= 1:
        raise ConfigError(f"rope_theta is {brief(value)} in the configuration; it must be greater than 1")
    return base


def share(value: object, kind: object) -> float:
    """Returns the partial factor; checked even for types that ignore it.

    Only proportional RoPE works with no rotating pair.
    """
    part = number(value, "partial_rotary_factor", most=1)
    if part == 0 and kind != "proportional":
        raise ConfigError("partial_rotary_factor is 0 in the configuration, which leaves no coordinate to rotate")
    return part


def check_parameters(parameters: Mapping[str, object]) -> None:
    """Checks that the numbers of a scaling are numbers, and that factors per pair are lists of them.

    Raises:
        ConfigError: one is not.
    """
    for name in _SCALARS:
        if parameters.get(name) is not None and not _is_real(parameters[name]):
            raise ConfigError(f"{name} is {brief(parameters[name])} in the rope parameters; it must be {_REAL}")
    for name in _PER_PAIR:
        value = parameters.get(name)
        if value is not None and not (isinstance(value, (list, tuple)) and all(map(_is_real, value))):
            raise ConfigError(f"{name} is {brief(value)} in the rope parameters; each must be {_REAL}")


def check_head(head_dim: int, partial: float) -> None:
    """Refuses an odd head that rotates whole, which leaves a coordinate without a partner.

    An odd part of a head is fine, because transformers rounds it to pairs.
    """
    if head_dim > _SMALL_HEAD and head_dim % 2 and int(head_dim * partial) == head_dim:
        raise ConfigError(
            f"head_dim is {head_dim} in the configuration, or follows from hidden_size; coordinates turn in pairs, and "
            "transformers refuses a head that is odd and rotates whole; give an even head_dim"
        )


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can name a type of model, layer or scaling."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _is_real(value: object) -> bool:
    """Whether the formulas can use the value; numpy's numbers pass."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return -LARGEST_THETA < cast(float, value) < LARGEST_THETA
