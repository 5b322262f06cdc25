"""The answers that a search has had, kept one by one, so that it continues where it was stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict

from ....errors import RunError
from ...store import STEP, Facts, Store, key_of
from .asking import Ask, Reply


class Journal:
    """The answers in order, as records of a store.

    Args:
        store: those of an earlier call are read from it, and new ones kept in it.
        facts: all that the answers depend on.

    Attributes:
        kept: hashes of questions, and the answers.
        left: those of an earlier call that :meth:`replayed` has not given yet.
    """

    def __init__(self, store: Store, facts: Facts) -> None:
        self.store, self._key = store, key_of(facts)
        records = ((number, content) for number, content, dtype, _ in store.records(self._key) if dtype == STEP)
        # What follows a damaged answer is asked again.
        self.kept = [_read(content) for place, (number, content) in enumerate(records) if number == place]
        self.left: Iterator[tuple[str, Reply]] = iter(())

    def replayed(self, ask: Ask) -> Reply | None:
        """Returns the next answer of an earlier call, or None.

        Raises:
            RunError: it answers another question.
        """
        asked, answer = next(self.left, ("", None))
        if answer is not None and asked != digest(ask):
            raise RunError("the kept steps are not those of this search; search again with fresh=True", "fresh")
        return answer

    def add(self, ask: Ask, answer: Reply) -> None:
        """Keeps an answer."""
        self.store.put(self._key, len(self.kept), json.dumps([digest(ask), asdict(answer)]).encode(), STEP)
        self.kept.append((digest(ask), answer))


def digest(ask: Ask) -> str:
    """Returns a hash of a question."""
    return hashlib.sha256(json.dumps(asdict(ask)).encode()).hexdigest()[:16]


def _read(content: bytes) -> tuple[str, Reply]:
    asked, answer = json.loads(content)
    return asked, Reply(**{name: _tuples(value) for name, value in answer.items()})


def _tuples(value: object) -> tuple:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value  # type: ignore[return-value]
