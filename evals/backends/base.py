"""What a run needs of a model, wherever it computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from ...errors import DataError
from ...files import Json
from ..facts import ModelFacts
from ..progress import Notes
from ..scoring.batches import Batch, ScoresBatches, ScoresTexts
from ..store import Facts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data.documents import Document
    from ..data.prompts import Prompt
    from .schedules import HeldTables, Schedules, WithTables


class Backend(ABC):
    """A model under several schedules, loaded or served, and what it cannot do.

    Attributes:
        facts: the "model" part of results.json.
        trained: the trained length; None if unknown.
        vocabulary: the number of token ids; None if unknown.
        arithmetic: the facts that determine how numbers are rounded, such as the device and the libraries.
        protocol: entries of the "protocol" part of results.json.
        compares: whether it can compare the predictions of two schedules.
        batches: whether several windows are fed together; if not, every batch has one.
    """

    facts: ModelFacts
    trained: int | None
    vocabulary: int | None
    arithmetic: Facts
    protocol: Json
    compares: bool = False
    batches: bool = False

    @property
    def identity(self) -> Facts:
        """The facts that identify the model in a store."""
        return {name: self.facts[name] for name in ("weights", "config_sha256", "dtype")}

    @abstractmethod
    def variants(self, schedules: Schedules, notes: Notes) -> tuple[Sequence[WithTables], str]:
        """Returns the model under every schedule, and the label of the baseline.

        Raises:
            DataError, ScheduleError: a schedule is not available, or two have the same label.
        """

    @abstractmethod
    def as_trained(self, length: int) -> HeldTables:
        """Returns the model's training tables.

        Raises:
            RopescaleError: these tables are not available.
        """

    @abstractmethod
    def texts(self, documents: Sequence[Document], bos: int | None, notes: Notes) -> ScoresTexts:
        """Returns the scorer of documents.

        Args:
            bos: the id to feed before every window, or None.
        """

    @abstractmethod
    def answers(self, prompts: Sequence[Prompt], tables: HeldTables) -> ScoresBatches:
        """Returns the scorer of prompts with their answers under these tables."""

    def differentiable(self) -> PreTrainedModel:
        """Returns the model itself, to compute gradients with it.

        Raises:
            DataError: it is elsewhere.
        """
        raise DataError("gradients need a loaded model, which servers do not give; load the model")

    def ready(self) -> AbstractContextManager[object]:
        """Returns a context in which scorers can run."""
        return nullcontext()

    def refuse(self, longest: int, notes: Notes) -> None:  # noqa: B027 (most have nothing to refuse)
        """Checks that windows of this length can be scored, before anything is scored.

        Raises:
            DataError, ServerError: they cannot.
        """

    def batch_tokens(self, longest: int) -> int:
        """Returns the default number of positions to feed together; at least one window is fed."""
        return 1

    def tell_cost(self, tokens: int, notes: Notes) -> None:  # noqa: B027 (most cost nothing special)
        """Tells what it takes to score or generate this many tokens, before it starts."""

    def memory(self, batch: Batch) -> str:
        """Describes the memory that a batch takes; "" if another machine has it."""
        return ""

    def limits(self, compared: bool) -> list[str]:
        """Returns notes on what this backend cannot measure.

        Args:
            compared: whether a comparison of predictions was requested.
        """
        return []
