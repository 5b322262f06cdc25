"""Finds the objective and the candidates from the configuration alone, before torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...lengths import parse_length
from ...request import RequestOptions
from .candidates import Lineup, lineup_of
from .objective import Objective, objective


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The options that decide on the objective and the candidates, which can be checked before anything is loaded."""

    patching: RequestOptions = field(default_factory=lambda: RequestOptions())
    short_weight: float | None = None
    lengths: str | Mapping[int | str, float] | None = None
    engine: str | None = None
    schedules: Sequence[str] = ()


def check_early(model: str, revision: str | None, target: int, wish: Wish) -> None:
    """Refuses from names and files alone what a recommendation would refuse after it has loaded its libraries.

    Raises:
        RopescaleError: the model's folder, its configuration, the target, a weight or a schedule cannot be.
    """
    asked(*read_configs(model, revision), target, wish)


def asked(config: Mapping[str, object], now: Mapping[str, object], target: int, wish: Wish) -> tuple[Objective, Lineup]:
    """Returns the objective and the candidates, before any text or weight is read.

    Args:
        config: the model's configuration before ropescale changed it; ``now`` as it is.
        target: the context wanted, in tokens.
    """
    if wish.patching.get("on_top"):
        config = now
    stated = wish.patching.get("original_length")
    trained = trained_in(config) if stated is None else parse_length(stated)
    goal = objective(target, trained, wish.short_weight, wish.lengths)
    if target <= goal.short:
        return goal, Lineup.unchanged(wish.schedules)
    return goal, lineup_of(config, target, wish.patching, wish.engine, wish.schedules, now)
