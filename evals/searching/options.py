"""The options of a search, checked before any text is read, and the keywords of :func:`ropescale.evals.search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...engines.registry import ENGINES
from ...errors import DataError
from ...files import local_path
from ...lengths import parse_length
from ...planning.plan import Plan, make_plan
from ...request import Request, RequestOptions
from ...schedules.base import suggest
from ..running.options import RunKeywords, RunOptions
from ..scoring.batches import LOGITS_BYTES

TEXT, KEYS = OBJECTIVES = ("text", "keys")
"""What may be learned from: all tokens of a text, or the answers of prompts with a hidden key."""


@dataclass(frozen=True)
class SearchOptions(RunOptions):
    """The options of a search.

    Attributes:
        objective: "text", whose tokens all count, or "keys": prompts that ask for a hidden number, as ``ropescale
            retrieval`` makes them, of whose tokens the answers alone count.
        budget_tokens: how many tokens may be fed in all, forward or with a gradient, held-out text included.
        seed: of the order of the windows, of the documents that are held out.
        numbers: how many numbers are searched: 4, or 2 (the factor and the scale).
        keep_short: two tables instead of one: the model's own up to the trained length, the found one beyond.
        engine: search what this engine computes; see ``ropescale export``.
        within: how much a token counts whose context is within the trained length; tokens beyond count 1. Of a text
            alone: keys are of the target length.
        haystack: of keys, the text that they are hidden in; None for generated sentences.
        max_docs: read at most this many documents.
        split_special_tokens: as for :func:`ropescale.evals.data.documents.tokenize`.
        logits_bytes: budget for one block of fp32 logits.
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers``.
        source: the name of the documents, or of the haystack.
        path: the checkpoint's folder, whose files are then fingerprinted; else the live parameters are.
        progress: notes on stderr, and a bar where that is a terminal, else a line a minute.
    """

    objective: str = TEXT
    budget_tokens: int = 500_000
    seed: int = 0
    numbers: int = 4
    keep_short: bool = False
    engine: str | None = None
    within: float = 2.0
    haystack: str | None = None
    max_docs: int | None = None
    split_special_tokens: bool = False
    logits_bytes: int = LOGITS_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget_tokens", parse_length(self.budget_tokens))
        if self.numbers not in (2, 4):
            raise DataError(
                f"numbers {self.numbers} is none of 4 (ramp, factor and scale) and 2 (factor and scale)", "numbers"
            )
        if not self.within > 0:
            raise DataError(f"within {self.within!r} is not a weight; use a number above 0", "within")
        if self.engine is not None and self.engine not in ENGINES:
            known = suggest(self.engine, ENGINES, f"it is none of {', '.join(ENGINES)}")
            raise DataError(f"engine {self.engine!r} is not known; {known}", "engine")
        if self.objective not in OBJECTIVES:
            raise DataError(f"objective {self.objective!r} is none of {', '.join(OBJECTIVES)}", "objective")
        if self.objective == TEXT and self.haystack is not None:
            raise DataError(
                "haystack is given, and nothing is hidden in a text that is learned from; use the objective keys, or "
                "drop it",
                "haystack",
                "objective",
            )
        if self.objective == KEYS and self.within != SearchOptions.within:
            raise DataError(
                "within is given, and prompts of the objective keys have the target length, so none is within; drop it",
                "within",
                "objective",
            )
        for name in ("max_docs", "split_special_tokens") if self.objective == KEYS else ():
            if getattr(self, name):
                raise DataError(f"{name} is for documents, and the objective keys has none; drop it", name, "objective")


class SearchKeywords(RunKeywords, total=False):
    """The fields of :class:`.options.SearchOptions`, which says what they mean."""

    objective: str
    budget_tokens: int
    seed: int
    numbers: int
    keep_short: bool
    engine: str | None
    within: float
    haystack: str | None
    max_docs: int | None
    split_special_tokens: bool
    logits_bytes: int


def schedule_file(out: str | Path) -> Path:
    """Returns the path of a schedule's file.

    Raises:
        DataError: the name does not end in ``.json``.
    """
    file = local_path(out)
    if file.suffix != ".json" or not file.stem.strip("."):
        raise DataError(f"out {str(out)!r} is not the name of a schedule's file; give one like factors.json", "out")
    return file


def plan_of_start(config: Mapping[str, object], target: int, patching: RequestOptions) -> Plan:
    """Plans YaRN's default for the target length.

    Raises:
        ConfigError, ScheduleError: the model has no rotation that YaRN can change, or is scaled already.
        DataError: the model needs no schedule for this length.
    """
    asked: RequestOptions = {**patching, "target_length": target}
    plan = make_plan(config, Request.of("yarn", **asked))
    trained = max(layer.rope.original_length for layer in plan.layers.values())
    if target <= trained:
        raise DataError(
            f"the target length {target} is the trained length; the model needs no schedule for it; give a longer one",
            "target_length",
        )
    return plan


def lengths_to(plan: Plan, target: int) -> tuple[int, ...]:
    """Returns where held-out figures are given: the trained length, its doubles, and the target."""
    found = [max(layer.rope.original_length for layer in plan.layers.values())]
    while 2 * found[-1] < target:
        found.append(2 * found[-1])
    return (*found, target)
