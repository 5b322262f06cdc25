"""A registry of readers of text, one module for each kind of source.

Nothing is dropped silently: what is empty or too short is counted. Text files are read as Python reads them: UTF-8,
line ends of any kind become ``\\n``, a leading byte-order mark is not text.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

from ....errors import DataError
from ..chats import Chat, Unread
from ..documents import Document
from ..prompts import PromptFields, PromptRow
from ..texts import Text, TextFile
from .base import ReadOptions, Unused
from .folder import no_texts

LOG = logging.getLogger(__name__)


class SourceReader(Protocol):
    """A module that reads one kind of source."""

    def takes(self, source: str) -> bool:
        """Whether a source is of this kind."""
        ...

    def read(self, source: str, asked: ReadOptions) -> Iterable[Unread]:
        """Gives the documents of a source one after the other, as they are asked for; empty ones included.

        What is wrong with the source or an option is raised at the first one at the latest.
        """
        ...


_NAMES = (
    "dataset",
    "folder",
    "row_file",
    "text_file",
)

READERS = tuple(cast(SourceReader, import_module(f".{name}", __name__)) for name in _NAMES)
"""The first that takes a source reads it."""


@dataclass(frozen=True)
class TextSource:
    """One source or several, and how they are read.

    Attributes:
        names: each as for :func:`read_texts`.
        asked: the options of reading; of several sources, at least one has a use for each.
        concat: join all the documents of a source into one, a blank line between two.
    """

    names: Sequence[str]
    asked: ReadOptions = field(default_factory=ReadOptions)
    concat: bool = False

    def __post_init__(self) -> None:
        if self.asked.streaming and self.concat:
            raise DataError("streaming reads one document after the other; leave concat out", "streaming", "concat")
        twice = next((name for number, name in enumerate(self.names) if name in self.names[:number]), None)
        if twice is not None:
            raise DataError(f"source {twice} is given twice; give each source once", "source")

    @property
    def name(self) -> str:
        """The names of all sources; a dataset's short name once read says what it stood for."""
        known = self.asked.resolved
        return ", ".join(f"{name} ({known[name]})" if name in known else name for name in self.names)

    @property
    def left_out(self) -> str:
        """Says which files of folders were no text, as far as they were read; empty without any."""
        if not self.asked.left_out:
            return ""
        return f"{no_texts(self.asked.left_out)}; text that is not UTF-8 is read once its encoding is named"

    def refuse_endless(self, max_docs: int | None) -> None:
        """Refuses to read all of a stream.

        Raises:
            DataError: nobody says how many documents are enough.
        """
        if self.asked.streaming and not max_docs:
            raise DataError(
                "streaming is given, and a stream may have no end; say how many documents with max_docs",
                "streaming",
                "max_docs",
            )

    def texts(self) -> dict[str, Iterator[Unread]]:
        """Reads each source's documents one after the other, as they are asked for; the first one now.

        Raises:
            DataError: as :func:`read_texts`.
        """
        refused: dict[str, list[Unused]] = {}
        found = {name: self._read(name, self.asked, refused) for name in self.names}
        for errors in refused.values():
            if len(errors) == len(self.names):
                raise errors[0]
        return found

    def _read(self, name: str, asked: ReadOptions, refused: dict[str, list[Unused]]) -> Iterator[Unread]:
        """Reads the first document of a source, and returns all of them; without the options that it refuses."""
        reader = next((each for each in READERS if each.takes(name)), None)
        if reader is None:
            raise DataError(f"no file or folder at {name!r}; give a file, a folder, a dataset's name on the Hub, or -")
        try:
            texts = iter(reader.read(name, asked))
            first = next(texts, None)
        except Unused as error:
            if len(self.names) == 1:
                raise
            refused.setdefault(error.fields[0], []).append(error)
            return self._read(name, replace(asked, **{error.fields[0]: None}), refused)
        if first is None:
            raise DataError(f"no documents in {name}; give text, with one document per row or file")
        texts = chain([first], texts)
        return iter([Text(name, joined(texts))]) if self.concat else texts


def read_texts(
    source: str | Path,
    *,
    split: str | None = None,
    text_field: str | None = None,
    glob: str | None = None,
    encoding: str | None = None,
    concat: bool = False,
) -> list[Text | Chat | Document]:
    """Reads the documents of ``source`` into memory, empty ones included.

    Args:
        source: a text file (one document), a folder (one per text file, in order of path), a ``.jsonl`` or
            ``.parquet`` file (one per row), a folder that ``datasets`` saved, ``-`` for standard input, the short name
            of a dataset (see :mod:`~.dataset`), or its name on the Hub (``owner/name`` or ``owner/name:config``).
        split: which split of a dataset; needed when it has several and none is called "test".
        text_field: the field that holds the text, the chat (a list of messages) or the token ids; when None it is
            "text", "messages", "input_ids" or the only field of strings.
        glob: which files of a folder, like ``*.txt``; with a slash from the folder on, else by name in every folder.
        encoding: of text files; UTF-8 when None.
        concat: join them all into one document, a blank line between two.

    Raises:
        DataError: nothing there, not text, malformed, without the field, or an option that the source has no use for.
    """
    found = TextSource([str(source)], ReadOptions(split, text_field, glob, encoding), concat)
    read = list(found.texts()[str(source)])
    if found.asked.left_out:
        LOG.warning("%s of %s", no_texts(found.asked.left_out), source)
    texts = [Text(each.name, each.text) if isinstance(each, TextFile) else each for each in read]
    return cast("list[Text | Chat | Document]", texts)


def read_prompts(source: str | Path, fields: PromptFields) -> tuple[Iterator[PromptRow], str]:
    """Reads prompts with their answers: RULER's files, a folder of them, or any rows; one after the other.

    Args:
        source: a ``.jsonl`` or ``.parquet`` file, a folder of ``.jsonl`` files, or a dataset as for :func:`read_texts`.

    Returns:
        The rows, and the name of the source for the results: of a short name, what it stood for.

    Raises:
        DataError: nothing there, no rows, or a row without a prompt or an answer.
    """
    found = TextSource([str(source)], ReadOptions(prompt_field=fields))
    return cast(Iterator[PromptRow], found.texts()[str(source)]), found.name


def joined(texts: Iterable[Unread]) -> str:
    """Joins texts, a blank line between two.

    Raises:
        DataError: a chat or token ids, which are no text.
    """
    parts = []
    for each in texts:
        if not isinstance(each, (Text, TextFile)):
            raise DataError(f"{each.name} is no text that can be joined with others; give a field of text")
        parts.append(each.text)
    return "\n\n".join(parts)
