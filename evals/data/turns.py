"""The documents of several sources, in turn, and which source each is from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...errors import DataError
from .chats import Given, Unread, as_chat
from .documents import named
from .prompts import PromptRow
from .texts import Text


class InTurn:
    """An iterator over documents: the first of each source, then the second of each, as they are asked for.

    So where there is a limit, every source has as many below it as any other that does not end before.

    Args:
        sources: the documents of each source, by its name.

    Attributes:
        sources: the names of the sources.
        names: the source of each document that was read, by the document's name.
    """

    def __init__(self, sources: Mapping[str, Iterable[Given | Unread]]) -> None:
        if not sources:
            raise DataError("there is no source of documents; give at least one")
        self.sources, self.names = frozenset(sources), dict[str, str]()
        self._reading = self._in_turn(sources)

    def __iter__(self) -> Iterator[Unread]:
        return self._reading

    def _in_turn(self, sources: Mapping[str, Iterable[Given | Unread]]) -> Iterator[Unread]:
        left = {name: iter([texts] if isinstance(texts, (str, Text)) else texts) for name, texts in sources.items()}
        for number in itertools.count():
            for name in list(left):
                found = next(left[name], _END)
                if found is _END:
                    del left[name]
                else:
                    yield self._named(name, number, found)
            if not left:
                return

    def _named(self, source: str, number: int, given: Any) -> Unread:
        """Returns a document under a name that no other one has, and remembers its source."""
        name = f"{source} document {number}"
        made = given if isinstance(given, PromptRow) else as_chat(given, name) or named(name, given)
        if made.name in self.names:
            made = replace(made, name=f"{source}: {made.name}")
        self.names[made.name] = source
        return made


_END = object()
