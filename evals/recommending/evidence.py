"""The evidence for a recommendation, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb

from ..checking import Count, Length
from ..statistics.intervals import familywise
from .candidates import Candidates, Objective
from .deployment import Deployment
from .losses import CandidateLosses, windows_by_document
from .race import Decision, Round, decide

TRUNCATION = "truncation"
"""The label of truncation: the unchanged model on only the last tokens, up to its trained length."""


@dataclass(frozen=True)
class Evidence:
    """The measurements of a recommendation, and its objective.

    Attributes:
        losses: of every candidate on the windows that it was measured on.
        candidates: the candidates.
        rounds: of the race.
        finalists: the candidates that were measured on the text that decides, from the simplest.
        held_out: the windows that decide.
        deployment: what is needed for the command and the memory.
        tolerance: nats per token below which two are equally good.
        vocabulary: how many tokens the model knows.
    """

    losses: CandidateLosses
    candidates: Candidates
    objective: Objective
    rounds: Sequence[Round]
    finalists: Sequence[str]
    held_out: Sequence[int]
    deployment: Deployment
    tolerance: float
    vocabulary: int | None = None

    @property
    def everything(self) -> list[int]:
        """The windows of all finalists; a searched one was not measured on its own search windows."""
        return sorted(set.intersection(*(set(self.losses.measured(each)) for each in self.finalists)))

    @property
    def truncates(self) -> bool:
        """Whether truncation was measured."""
        return TRUNCATION in self.losses.sums

    @property
    def judged(self) -> list[str]:
        """The finalists, and truncation if measured."""
        return [*self.finalists, *([TRUNCATION] if self.truncates else [])]

    @property
    def level(self) -> float:
        """The level of each paired interval on the held-out text, so that all hold simultaneously."""
        return familywise(comb(len(self.judged), 2))

    @property
    def documents(self) -> int:
        """The number of held-out documents."""
        return len(windows_by_document(self.losses.windows, self.held_out))

    @cached_property
    def decision(self) -> Decision:
        """The decision among the finalists."""
        return decide(self.losses, self.finalists, self.held_out, self.everything, self.tolerance, self.level)


@dataclass(frozen=True)
class CandidateRow:
    """A candidate against YaRN's default, on all windows that it was measured on.

    Both were measured on the same windows, and differ little between documents; so candidates that were measured on
    other windows can be compared, too, which they could not be by their differences from the unchanged model.

    Attributes:
        baseline: YaRN at the smallest sufficient factor; the unchanged model where YaRN is no candidate.
        rounds: how many rounds of the race it was in.
        windows: how many windows it was measured on.
        delta, low, high: its objective minus that of ``baseline``, in nats, and the 95% interval.
        delta_target, delta_short: the same at the target, and at the trained length.
        finalist: whether it was measured on the text that decides.
        front: whether no other candidate is better at the target and at the trained length at once.
        same: specs that compute the same.
    """

    schedule: str
    baseline: str
    rounds: Count
    windows: Count
    delta: float
    low: float | None
    high: float | None
    delta_target: float
    delta_short: float
    finalist: bool
    front: bool
    same: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FinalistRow:
    """A finalist, or truncation, on the text that decides.

    Attributes:
        baseline: the schedule that is recommended.
        nll, ppl, ppl_low, ppl_high: at the target.
        short_ppl: at the trained length.
        delta: its objective minus that of ``baseline``, in nats; low and high are an interval that holds for all pairs
            of the table together.
        beyond: mean loss of the tokens beyond the trained length; ``far`` of those that repeat what is further back
            than that length, and ``others`` of the rest; None without any.
    """

    schedule: str
    baseline: str
    length: Length
    nll: float
    ppl: float
    ppl_low: float | None
    ppl_high: float | None
    short_ppl: float
    delta: float
    low: float | None
    high: float | None
    beyond: float | None
    far: float | None
    others: float | None
    far_tokens: Count
    table_sha256: str = ""


@dataclass(frozen=True)
class CurveRow:
    """The mean loss of a finalist up to a length, on the text that decides, in nats with its 95% interval."""

    schedule: str
    length: Length
    nll: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RoundRow:
    """A round of the race: how many candidates, on how many further windows, and how many stayed."""

    candidates: Count
    windows: Count
    kept: Count


@dataclass(frozen=True)
class LeftOutRow:
    """A schedule that was not tried, with the reason."""

    schedule: str
    why: str


@dataclass(frozen=True)
class AnswerRow:
    """The recommendation.

    Attributes:
        schedule: what is recommended; ``as-is`` for nothing. Where nothing is decided, the lowest so far.
        decided: whether the text suffices to say so.
        answer: one sentence.
        command: what puts it into a checkpoint; empty where nothing is recommended.
        open, equal: the schedules that may be better, and those that are as good.
        truncation: what keeping only the last tokens changes for those that repeat what is further back; empty where it
            was not measured.
        memory: the KV cache's memory, in a sentence.
        serve: what serves that checkpoint in the engine that was named; empty without one.
        guessed: whether the unchanged model predicts worse than a uniform guess; nothing is recommended then.
    """

    schedule: str
    decided: bool
    answer: str
    command: str
    open: list[str]
    equal: list[str]
    truncation: str
    memory: str
    serve: str = ""
    guessed: bool = False


def on_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Returns for each point whether it is on the Pareto front (smaller is better)."""
    return [not any(x <= mine[0] and y <= mine[1] and (x, y) != mine for x, y in points) for mine in points]
