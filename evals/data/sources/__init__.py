"""A registry of readers of text, one module for each kind of source.

Nothing is dropped silently: what is empty or too short is counted. Text files are read as Python reads them: UTF-8,
line ends of any kind become ``\\n``, a leading byte-order mark is not text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

from ....errors import DataError
from ..chats import Chat, Unread
from ..documents import Document
from ..texts import Text, TextFile
from . import hub


class SourceReader(Protocol):
    """A module that reads one kind of source."""

    def takes(self, source: str) -> bool:
        """Whether a source is of this kind."""
        ...

    def read(self, source: str, split: str | None, text_field: str | None) -> Iterable[Unread]:
        """Gives the documents of a source one after the other, as they are asked for; empty ones included.

        What is wrong with the source or an option is raised at the first one at the latest.
        """
        ...


_NAMES = (
    "standard_input",
    "saved_dataset",
    "folder",
    "json_lines",
    "parquet",
    "text_file",
    "hub",
)

READERS = tuple(cast(SourceReader, import_module(f".{name}", __name__)) for name in _NAMES)
"""The first that takes a source reads it."""


@dataclass(frozen=True)
class TextSource:
    """A source, and how it is read.

    Attributes:
        name: as for :func:`read_texts`; so are ``split``, ``text_field`` and ``concat``.
        streaming: read a dataset on the Hub only as far as is needed.
        split_special_tokens: as for :func:`ropescale.evals.data.documents.tokenize`.
    """

    name: str
    split: str | None = None
    text_field: str | None = None
    concat: bool = False
    streaming: bool = False
    split_special_tokens: bool = False

    def __post_init__(self) -> None:
        if self.streaming and self.concat:
            raise DataError("streaming reads one document after the other; leave concat out", "streaming", "concat")

    def texts(self) -> Iterator[Unread]:
        """Reads the documents one after the other, as they are asked for; the first one now, to see that it is there.

        Raises:
            DataError: as :func:`read_texts`.
        """
        if self.streaming:
            return stream_texts(self.name, split=self.split, text_field=self.text_field)
        if self.concat:
            return iter(read_texts(self.name, split=self.split, text_field=self.text_field, concat=True))
        return _begun(self.name, self.split, self.text_field)


def read_texts(
    source: str | Path, *, split: str | None = None, text_field: str | None = None, concat: bool = False
) -> list[Text | Chat | Document]:
    """Reads the documents of ``source`` into memory, empty ones included.

    Args:
        source: a text file (one document), a folder (one per file, in order of path), a ``.jsonl`` or
            ``.parquet`` file (one per row), a folder that ``datasets`` saved, ``-`` for standard input, or the
            name of a dataset on the Hub (``owner/name`` or ``owner/name:config``).
        split: which split of a dataset; needed when it has several and none is called "test".
        text_field: the field that holds the text, the chat (a list of messages) or the token ids; when None it is
            "text", "messages", "input_ids" or the only field of strings.
        concat: join them all into one document, a blank line between two.

    Raises:
        DataError: nothing there, not text, malformed, without the field, or a split or field of a source without.
    """
    texts = _begun(str(source), split, text_field)
    if concat:
        return [Text(str(source), joined(texts))]
    return [Text(each.name, each.text) if isinstance(each, TextFile) else each for each in texts]


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


def stream_texts(source: str, *, split: str | None = None, text_field: str | None = None) -> Iterator[Unread]:
    """Reads the documents of a dataset on the Hub one after the other, as they are asked for.

    Args:
        source, split, text_field: as in :func:`read_texts`.

    Raises:
        DataError: not the name of a dataset, or as :func:`read_texts`.
    """
    if _reader(source) is not hub:
        raise DataError(f"{source} is here, and streaming is for datasets on the Hub; leave streaming out", "streaming")
    return hub.stream(source, split, text_field)


def _begun(source: str, split: str | None, text_field: str | None) -> Iterator[Unread]:
    """Reads the first document, and returns all of them.

    Raises:
        DataError: as :func:`read_texts`.
    """
    texts = iter(_reader(source).read(source, split, text_field))
    first = next(texts, None)
    if first is None:
        raise DataError(f"no documents in {source}; give text, with one document per row or file")
    return chain([first], texts)


def _reader(source: str) -> SourceReader:
    found = next((reader for reader in READERS if reader.takes(source)), None)
    if found is None:
        raise DataError(f"no file or folder at {source!r}; give a file, a folder, a dataset's name on the Hub, or -")
    return found
