"""The options of a search, checked before any text is read, and the keywords of :func:`ropescale.evals.search`."""

from dataclasses import dataclass
from pathlib import Path

from ...engines import ENGINES
from ...errors import DataError
from ...files import Json, local_path
from ...output.formatting import suggest
from ...planning.plan import Plan, make_plan, refuse_unused
from ...request import Request, RequestOptions
from ..running.corpus import RunOptions

WINDOWS = 240
"""The default budget, in windows of the target length."""

ENOUGH = 16
"""The smallest number of documents of which some are used only to judge."""


@dataclass(frozen=True)
class SearchOptions(RunOptions):
    """The options of a search.

    Attributes:
        budget_windows: the maximum number of windows to feed, including the checks on held-out data; None for
            :data:`WINDOWS`, unless ``budget_tokens`` is given.
        budget_tokens: the same in tokens.
        seed: determines the held-out documents and the order of the windows.
        engine: search only schedules that this engine computes exactly; see ``ropescale export``.
        max_docs: read at most this many documents.
        logits_bytes: the memory for one block of fp32 logits, in bytes; None for that of the device.
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers``.
        source: the name of the documents in the results.
        notes: the notes to the user.
    """

    budget_windows: int | None = None
    budget_tokens: int | None = None
    seed: int = 0
    engine: str | None = None
    max_docs: int | None = None
    logits_bytes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget_tokens is not None and self.budget_windows is not None:
            raise DataError("the budget is given in windows and in tokens; drop one", "budget_windows", "budget_tokens")
        check_engine(self.engine)

    def feeds(self, target: int) -> int:
        """Returns the maximum number of windows of ``target`` tokens to feed."""
        if self.budget_tokens is not None:
            return self.budget_tokens // target
        return WINDOWS if self.budget_windows is None else self.budget_windows


def check_engine(engine: str | None) -> None:
    """Checks that an engine is a key of ``ENGINES``, or None.

    Raises:
        DataError: it is neither.
    """
    if engine is not None and engine not in ENGINES:
        known = suggest(engine, ENGINES, f"choose from {', '.join(ENGINES)}")
        raise DataError(f"engine {engine!r} is not known; {known}", "engine")


def places(out: str | Path) -> tuple[Path, Path]:
    """Returns the schedule's file and the run's folder next to it, such as ``factors.json`` and ``factors-search``.

    Raises:
        DataError: the name does not end in ``.json``.
    """
    file = local_path(out)
    if file.suffix != ".json" or not file.stem.strip("."):
        raise DataError(f"out {str(out)!r} is not the name of a schedule's file; give one like factors.json", "out")
    return file, file.with_name(f"{file.stem}-search")


def plan_of_start(config: Json, target: int, patching: RequestOptions) -> Plan:
    """Plans YaRN's default for the target length.

    Raises:
        ConfigError, ScheduleError: the model has no rotary embedding that YaRN can change, or is scaled already.
        DataError, ScheduleError: the target is not longer than the trained length.
    """
    request = Request.of("yarn", **{**patching, "target_length": target})
    plan = make_plan(config, request)
    refuse_unused(request, plan.used)
    trained, *_ = lengths_to(plan, target)
    if target <= trained:
        raise DataError(
            f"the target length {target} is within the trained length; the model needs no schedule; give a longer one",
            "target_length",
        )
    return plan


def lengths_to(plan: Plan, target: int) -> tuple[int, ...]:
    """Returns the lengths to measure on held-out data: the trained length, doubled as long as it is below the target,
    and the target."""
    found = [max(layer.rope.original_length for layer in plan.layers.values())]
    while 2 * found[-1] < target:
        found.append(2 * found[-1])
    return (*found, target)
