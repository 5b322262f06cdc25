"""The registry of text readers, one module per kind of source.

Nothing is dropped silently: empty and short documents are counted. Text files are read as in Python: UTF-8, line ends
of any kind become ``\\n``, a leading byte-order mark is not text.
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
        """Yields the documents of a source lazily, including empty ones.

        Errors of the source or an option are raised at the first document at the latest.
        """
        ...


_NAMES = (
    "dataset",
    "folder",
    "row_file",
    "text_file",
)

READERS = tuple(cast(SourceReader, import_module(f".{name}", __name__)) for name in _NAMES)
"""Readers in order; the first one that takes a source reads it."""


@dataclass(frozen=True)
class TextSource:
    """One or several sources, with their reading options.

    Attributes:
        names: sources as for :func:`read_texts`.
        asked: the reading options; each must apply to at least one source.
        concat: whether to join all documents of a source into one, with blank lines between them.
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
        """The names of all sources; a short name that was read includes its dataset."""
        known = self.asked.resolved
        return ", ".join(f"{name} ({known[name]})" if name in known else name for name in self.names)

    @property
    def left_out(self) -> str:
        """Names the skipped files of folders read so far; empty without any."""
        if not self.asked.left_out:
            return ""
        return f"{no_texts(self.asked.left_out)}; name the encoding of text that is not UTF-8"

    def refuse_endless(self, max_docs: int | None) -> None:
        """Refuses to read an unlimited stream.

        Raises:
            DataError: the number of documents is not limited.
        """
        if self.asked.streaming and not max_docs:
            raise DataError(
                "streaming is given, and a stream may be endless; limit its documents with max_docs",
                "streaming",
                "max_docs",
            )

    def texts(self) -> dict[str, Iterator[Unread]]:
        """Reads the sources' documents lazily, except the first one.

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
        """Reads a source's first document, and returns an iterator of all, without options that do not apply."""
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
    """Reads the documents of ``source`` into memory, including empty ones.

    Args:
        source: a text file (one document), a folder (one per text file, in order of path), a ``.jsonl`` or
            ``.parquet`` file (one per row), a folder that ``datasets`` saved, ``-`` for standard input, the short name
            of a dataset (see :mod:`~.dataset`), or its name on the Hub (``owner/name`` or ``owner/name:config``).
        split: the split of a dataset; required if it has several and none is called "test".
        text_field: the field with the text, the chat (a list of messages) or the token ids; None for "text",
            "messages", "input_ids" or the only field of strings.
        glob: a pattern for a folder's files, like ``*.txt``; relative to the folder with a slash, else by name at any
            depth.
        encoding: the encoding of text files; None for UTF-8.
        concat: join all documents into one, with blank lines between them.

    Raises:
        DataError: the source is missing, not text, malformed or without the field, or an option does not apply.
    """
    found = TextSource([str(source)], ReadOptions(split, text_field, glob, encoding), concat)
    read = list(found.texts()[str(source)])
    if found.asked.left_out:
        LOG.warning("%s of %s", no_texts(found.asked.left_out), source)
    texts = [Text(each.name, each.text) if isinstance(each, TextFile) else each for each in read]
    return cast("list[Text | Chat | Document]", texts)


def read_prompts(source: str | Path, fields: PromptFields) -> tuple[Iterator[PromptRow], str]:
    """Reads prompts with answers lazily: RULER's files, a folder of them, or other rows.

    Args:
        source: a ``.jsonl`` or ``.parquet`` file, a folder of ``.jsonl`` files, or a dataset as for :func:`read_texts`.

    Returns:
        The rows, and the source's name for the results, with the dataset of a short name.

    Raises:
        DataError: the source is missing or has no rows, or a row lacks a prompt or an answer.
    """
    found = TextSource([str(source)], ReadOptions(prompt_field=fields))
    return cast(Iterator[PromptRow], found.texts()[str(source)]), found.name


def joined(texts: Iterable[Unread]) -> str:
    """Joins texts with blank lines between them.

    Raises:
        DataError: a document is a chat or token ids.
    """
    parts = []
    for each in texts:
        if not isinstance(each, (Text, TextFile)):
            raise DataError(f"{each.name} is not text, and cannot be joined with others; give a field of text")
        parts.append(each.text)
    return "\n\n".join(parts)
