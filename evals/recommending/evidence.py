"""The measurements behind a recommendation, and the rows of its tables."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb
from pathlib import Path

from ...engines.exported import patch_command
from ...output.formatting import argument
from ...request import Request
from ..checking import Count, Length
from ..facts import PerWindow
from ..metrics.base import picked
from ..metrics.drawing import tokens
from ..metrics.far_repeats import masks_of
from ..metrics.stored import Totals, part_of, sums_of
from ..results.result import Result
from ..statistics.intervals import familywise
from .candidates import Candidates
from .options import Objective, RecommendOptions
from .race import Decision, Round, decide


@dataclass(frozen=True)
class Evidence:
    """The measurements of a recommendation, and its objective.

    Attributes:
        losses: the losses of every candidate on all windows; empty for windows that it was not measured on.
        candidates: the candidates.
        objective: the objective.
        rounds: the rounds of the race.
        finalists: the candidates that were measured on the held-out text, simplest first.
        comparison: the finalists' measurement on the held-out windows.
        options: the options of the recommendation.
    """

    losses: Result
    candidates: Candidates
    objective: Objective
    rounds: Sequence[Round]
    finalists: Sequence[str]
    comparison: Result
    options: RecommendOptions

    def measured(self, candidate: str) -> tuple[int, ...]:
        """Returns the numbers of the windows that a candidate was measured on."""
        run = self.losses.read_from[candidate, self.objective.target]
        return tuple(number for number, nll in enumerate(run.nll) if len(nll))

    @property
    def everything(self) -> Result:
        """The windows that every finalist was measured on.

        A schedule that a search found is not measured on the windows of its search.
        """
        shared = set.intersection(*(set(self.measured(each)) for each in self.finalists))
        return part_of(self.losses, sorted(shared))

    def far_repeats(self, label: str) -> Totals:
        """Returns the losses of held-out tokens that repeat text further back than the trained length."""
        losses = self.comparison.losses(label, self.objective.target)
        return sums_of(picked(losses, self._far))

    @cached_property
    def _far(self) -> PerWindow:
        return masks_of(self.comparison, self.objective.short)

    @cached_property
    def truncates(self) -> bool:
        """Whether truncation was measured."""
        return self.losses.truncated(self.objective.target) is not None

    @property
    def level(self) -> float:
        """The level of each paired interval on the held-out text, such that all that the answer may use hold together.

        These are every pair, every cost within the trained length, and every schedule's far repeats. If the held-out
        text also chose the finalists, they are those of all candidates.
        """
        chose_too = self.comparison.texts == self.losses.texts
        schedules = len(self.candidates.specs) if chose_too else len(self.finalists)
        return familywise(comb(schedules + self.truncates, 2) + schedules - 1 + schedules * self.truncates)

    @cached_property
    def decision(self) -> Decision:
        """The decision among the finalists."""
        weights = self.objective.weights
        return decide(self.comparison, self.everything, weights, self.finalists, self.options.tolerance, self.level)

    def patch_command(self, schedule: str) -> str:
        """Returns the ``ropescale patch`` command for a candidate."""
        spec = self.candidates.given(schedule)
        request = Request.of(spec, **self.options.text.patching)
        checkpoint = self.options.checkpoint
        revision = checkpoint.revision if checkpoint else None
        return patch_command(argument(self._model), spec, request, self._folder, revision)

    @property
    def export_command(self) -> str:
        """The ``ropescale export`` command for the patched folder; "" if no engine was given."""
        engine = self.options.engine
        return shlex.join(["ropescale", "export", self._folder, "--for", engine]) if engine else ""

    @property
    def _model(self) -> str:
        """The model's name in commands."""
        checkpoint = self.options.checkpoint
        return checkpoint.name if checkpoint else self.losses.model["path"]

    @property
    def _folder(self) -> str:
        """The name of the patched folder in commands."""
        return argument(f"{Path(self._model).name or 'model'}-{tokens(self.objective.target)}")


@dataclass(frozen=True)
class CandidateRow:
    """A candidate against YaRN's default, on all windows that the candidate was measured on.

    The difference is paired by window, and varies little between documents. So it allows a comparison of candidates
    that were measured on different windows, which differences from the unchanged model would not.

    Attributes:
        schedule: the candidate.
        baseline: YaRN at the smallest sufficient factor, or the unchanged model if YaRN is not a candidate.
        rounds: the number of rounds of the race that the candidate was in.
        windows: the number of windows that the candidate was measured on.
        delta, low, high: the candidate's objective minus that of ``baseline``, in nats, and the 95% interval.
        delta_target, delta_short: the same difference at the target, and at the trained length.
        finalist: whether the candidate was measured on the held-out text.
        same: specs that are equivalent to the candidate.
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
    same: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FinalistRow:
    """A finalist, or truncation, on the held-out text.

    Attributes:
        schedule: the finalist, or truncation.
        baseline: the recommended schedule.
        length: the target.
        nll, ppl, ppl_low, ppl_high: the loss in nats at the target, and the perplexity with its interval.
        short_ppl: the perplexity at the trained length.
        delta, low, high: the objective minus that of ``baseline``, in nats, and an interval that holds simultaneously
            for all pairs of rows.
        far: the mean loss of the tokens beyond the trained length that repeat text further back than that length; None
            if there are none.
        far_tokens: the number of tokens that ``far`` is over.
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
    far: float | None
    far_tokens: Count


@dataclass(frozen=True)
class LeftOutRow:
    """A schedule that was not tried, and the reason."""

    schedule: str
    why: str


@dataclass(frozen=True)
class AnswerRow:
    """The recommendation.

    Attributes:
        schedule: the recommended schedule, or ``as-is`` for no change; if undecided, the schedule with the lowest loss.
        decided: whether the text suffices for a decision.
        sentences: the recommendation.
        command: the command that patches a checkpoint; empty if no schedule is recommended.
        open, equal: the schedules that may be better, and the schedules that are as good.
        note: a sentence on the recommended schedule if its tables depend on the length; else empty.
        serve: the command that exports the checkpoint for the given engine; empty if no engine was given.
        guessed: whether the unchanged model predicts worse than a uniform guess; if so, nothing is recommended.
    """

    schedule: str
    decided: bool
    sentences: list[str]
    command: str
    open: list[str]
    equal: list[str]
    note: str
    serve: str = ""
    guessed: bool = False

    @property
    def answer(self) -> str:
        """The recommendation as one paragraph."""
        return " ".join(self.sentences)
