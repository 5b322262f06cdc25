"""Names the parts of a schedule that no test runs in a whole model, though one runs its rope type there."""

from __future__ import annotations

import math

from ...schedules.yarn import temperature
from .layers import Layers

ONLY = {
    "yarn": {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
"""The fields of each rope type of which tests run one value; of other numbers, such as factors, any stands for all."""

_PARTIAL = ("gpt_neox",)
"""Types of which tests run models that rotate a part of each head."""


def untried(layers: Layers) -> frozenset[str]:
    """Returns the fields whose value no test runs; the frequencies among them, where they are computed from one."""
    stated = layers.parameters
    only = ONLY.get(layers.kind, {})
    found = {field for field, value in only.items() if stated.get(field) not in (None, value)}
    if layers.is_partial and layers.whole_type not in _PARTIAL:
        found.add("rotary dim")
    if layers.kind == "dynamic" and "alpha" in stated:
        found.add("factor")
    if layers.kind == "longrope" and layers.changes_with_length:
        found.add("switch")
    computed = {"frequencies"} if found else set()
    return frozenset(found | computed | _scales(layers))


def _scales(layers: Layers) -> set[str]:
    """Returns the scales of attention that are not as in tests: not yarn's usual one, or of one list among two."""
    stated = layers.parameters
    if layers.kind == "longrope":
        return {"attention factor"} if layers.changes_with_length else set()
    if layers.kind != "yarn":
        return set()
    has_weights = any(stated.get(key) is not None for key in ("mscale", "mscale_all_dim"))
    is_usual = not has_weights and math.isclose(layers.attention_factor, temperature(stated["factor"]))
    return set() if is_usual else {"attention factor", "softmax scale"}
