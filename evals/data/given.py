"""The documents that a user gives to a Python function, in any of their forms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...errors import DataError
from .chats import Chat, Given, Unread, named
from .documents import Document
from .prompts import PromptRow
from .rows import ReadOptions, Row, documents_of
from .sources import TextSource
from .texts import Text

if TYPE_CHECKING:
    import datasets

    OneText = Given | Path
    Documents = OneText | Iterable[OneText] | datasets.Dataset | datasets.IterableDataset | TextSource
    TextsGiven = Documents | Mapping[str, Documents]


def texts_of(documents: TextsGiven) -> tuple[Iterable[Unread] | Mapping[str, Iterable[Unread]], TextSource | None]:
    """Returns lazily read documents, or several sources of them by name, and the source that they are read from.

    Args:
        documents: texts, chats, lists of token ids, ``Path`` objects of files and folders, a ``datasets.Dataset``, a
            :class:`TextSource`, or a mapping of names to these.

    Raises:
        DataError: a source cannot be read, or a text is the path of an existing file.
    """
    if isinstance(documents, TextSource):
        return documents.texts(), documents
    if isinstance(documents, os.PathLike):
        source = TextSource([os.fspath(documents)])
        return source.texts(), source
    if isinstance(documents, Mapping) and not _is_message(documents):
        return {str(name): _read(each, f"{name} document") for name, each in documents.items()}, None
    return _read(documents, "document"), None


def _read(documents: Any, name: str) -> Iterator[Unread]:
    """Yields the documents of one source; their default names are numbered."""
    if isinstance(documents, TextSource):
        yield from chain.from_iterable(documents.texts().values())
    elif hasattr(documents, "with_format"):  # a dataset; importing the library takes a second
        rows = cast("Iterable[tuple[int, Row]]", enumerate(documents.with_format(None)))
        yield from documents_of(rows, f"{name} of the dataset", ReadOptions(), "the dataset")
    else:
        alone = isinstance(documents, str | os.PathLike | Text | Chat | Document | PromptRow)
        for number, each in enumerate([documents] if alone else documents):
            yield from _one(each, f"{name} {number}")


def _one(given: Any, name: str) -> Iterator[Unread]:
    """Yields a document, or all documents of a path.

    Raises:
        DataError: the document is text that names an existing file or folder.
    """
    if isinstance(given, os.PathLike):
        yield from chain.from_iterable(TextSource([os.fspath(given)]).texts().values())
        return
    if isinstance(given, str) and len(given) < _LONGEST_PATH and "\n" not in given and os.path.exists(given):
        raise DataError(
            f"{name} is {given!r}, the path of an existing file or folder; give Path({given!r}) to read it, or "
            f'Text("{name}", {given!r}) to measure these words',
            "documents",
        )
    yield named(name, given)


_LONGEST_PATH = 4096


def _is_message(given: Mapping[Any, Any]) -> bool:
    return "role" in given and "content" in given


def prompts_in(documents: object) -> bool:
    """Returns whether documents are read from a source of prompts with answers."""
    return isinstance(documents, TextSource) and documents.options.prompt_field is not None


def refuse_endless(documents: object, max_docs: int | None) -> None:
    """Raises an error if documents are streamed, and their number is not limited."""
    if isinstance(documents, TextSource):
        documents.refuse_endless(max_docs)


def folders_in(documents: object) -> Sequence[str]:
    """Returns the names of the sources that documents are read from."""
    if isinstance(documents, TextSource):
        return documents.names
    return [os.fspath(documents)] if isinstance(documents, str | os.PathLike) else []
