"""Sources of texts: files, folders, datasets and standard input.

Nothing is dropped silently: empty and short documents are counted. Text files are read as in Python: they are UTF-8,
line ends of any kind become ``\\n``, and a leading byte-order mark is removed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ...errors import DataError
from ...files import LARGEST, local_path
from .. import checking
from .chats import Chat, Given, Unread
from .documents import JSON_LINES, Document, NoText, Text, contents_suffix, decoded, of_ids, starts_json, text_of
from .prompts import PromptFields, PromptRow
from .rows import PARQUET, ReadOptions, Row, documents_of, is_name, is_saved, record_in, rows_of

if TYPE_CHECKING:
    import datasets

    OneText = Given | Path
    Documents: TypeAlias = "OneText | Iterable[OneText] | datasets.Dataset | datasets.IterableDataset | TextSource"
    TextsGiven = Documents | Mapping[str, Documents]


LOG = logging.getLogger(__name__)


# --- Kinds of sources


def _standard_input(source: str, options: ReadOptions) -> Iterator[Text]:
    raw = sys.stdin.buffer.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise DataError(f"standard input is longer than {LARGEST:,} bytes; write it to a file, which is read in pieces")
    yield decoded("standard input", raw)


def _text_file(source: str, options: ReadOptions) -> Iterator[Text]:
    text = text_of(local_path(source))
    if not text.text.strip():
        raise DataError(f"{source} is empty; give a file with text in it")
    yield text


def _folder(source: str, options: ReadOptions) -> Iterator[Unread]:
    """Reads all files in a folder and its subfolders, except hidden ones: texts, and JSON objects of one document each.

    Skips files that are not text or belong to a run, and adds their names to ``options.left_out``. If prompts are
    requested, reads every JSON lines file; RULER's generators write a folder of such files for each task.

    Raises:
        DataError: the folder contains no text, or a file cannot be read.
    """
    files = _files(source, options.glob)
    if options.prompt_field is not None:
        paths = [path for path in files if contents_suffix(path) in JSON_LINES]
        if not paths:
            raise DataError(f"no .jsonl file in {source}; give JSON lines with a prompt and its answers in each row")
        yield from chain.from_iterable(rows_of(str(path), options) for path in paths)
        return
    count = 0
    runs = {path.parent for path in files if path.name == "results.json" and _is_run(path)}
    for path in files:
        name = str(path.relative_to(local_path(source)))
        if runs.intersection(path.parents):
            options.left_out.append(f"{name} of a run")
            continue
        try:
            text = text_of(path)
        except NoText:
            options.left_out.append(name)
            continue
        count += 1
        record = record_in(text.text) if contents_suffix(path) == ".json" else None
        found: list[Unread] = [text]
        if record is not None:
            with suppress(DataError):  # fields with the names of documents, and other contents
                found = [*documents_of([(0, record)], f"{path} row", options, source)]
        yield from found
    if not count:
        raise DataError(f"no text in {source}: {no_texts(options.left_out)}; give text files in UTF-8")


def _files(source: str, glob: str | None) -> list[Path]:
    """Returns the matching files, sorted by path.

    Raises:
        DataError: no file matches, or the pattern matches paths outside the folder.
    """
    root = local_path(source)
    pattern = "*" if glob is None else glob
    try:
        search = root.glob if "/" in pattern else root.rglob
        paths = list(search(pattern)) if pattern else []
        below = [path.relative_to(root) for path in paths if path != root]
    except (ValueError, NotImplementedError):  # absolute, or out of the folder
        raise DataError(f"glob {glob!r} is not a pattern of files in {root}; write it like *.txt", "glob") from None
    visible = [path for path in below if not any(part[0] == "." for part in path.parts)]
    # A dangling link is kept, so that reading it is an error: its text is missing.
    files = sorted(path for path in map(root.joinpath, visible) if path.is_file() or not path.exists())
    if not files:
        what = "files" if glob is None else f"file that fits {glob!r}"
        raise DataError(f"no {what} in {source}; give a folder of text files (hidden ones are not read)")
    return files


def _is_run(results: Path) -> bool:
    """Returns whether a file is the ``results.json`` of a run."""
    with suppress(checking.Damaged):
        return {"schema", "versions", "rows"} <= checking.parsed(results).keys()
    return False


def no_texts(files: list[str]) -> str:
    """Describes files that are not text, by their number and the first three names."""
    more = f" and {len(files) - 3:,} more" if len(files) > 3 else ""
    what = "1 file is not text" if len(files) == 1 else f"{len(files):,} files are not text"
    return f"{what} ({', '.join(files[:3])}{more})"


def _dataset(source: str, options: ReadOptions) -> Iterator[Unread]:
    from .named_datasets import read

    return read(source, options)


class Kind(NamedTuple):
    """A kind of source.

    Attributes:
        what: the kind's name in messages.
        takes: a function that returns whether a source is of this kind.
        read: a function that lazily reads a source's documents, including empty ones.
        uses: the reading options that apply to this kind.
    """

    what: str
    takes: Callable[[str], bool]
    read: Callable[[str, ReadOptions], Iterable[Unread]]
    uses: tuple[str, ...]


def _is_rows(source: str) -> bool:
    path = local_path(source)
    return path.is_file() and (path.suffix.lower() == PARQUET or bool(starts_json(path)))


_ROWS = ("text_field", "prompt_field")

KINDS = (
    Kind("standard input", lambda source: source == "-", _standard_input, ()),
    Kind("a saved dataset", is_saved, _dataset, (*_ROWS, "split")),
    Kind(
        "a folder of text files",
        lambda source: bool(source) and local_path(source).is_dir(),
        _folder,
        ("glob", "prompt_field"),
    ),
    Kind("a file of rows", _is_rows, rows_of, _ROWS),
    Kind("a text file", lambda source: local_path(source).is_file(), _text_file, ()),
    Kind("a dataset", is_name, _dataset, (*_ROWS, "split", "streaming")),
)
"""All kinds of sources. The first kind whose ``takes`` accepts a source reads that source."""


def _kind_of(source: str) -> Kind:
    for kind in KINDS:
        if kind.takes(source):
            return kind
    raise DataError(f"no file or folder at {source!r}; give a file, a folder, a dataset's name on the Hub, or -")


# --- Reading


@dataclass(frozen=True)
class TextSource:
    """One or several sources, with their reading options.

    Attributes:
        names: the sources, as for :func:`read_texts`.
        options: the reading options; each given option must apply to at least one source.
        concat: whether to join all documents of a source into one, with blank lines between them.
    """

    names: Sequence[str]
    options: ReadOptions = field(default_factory=ReadOptions)
    concat: bool = False

    def __post_init__(self) -> None:
        if self.options.streaming and self.concat:
            raise DataError(
                "streaming reads one document at a time, and concat joins all of them; leave concat out",
                "streaming",
                "concat",
            )
        twice = next((name for number, name in enumerate(self.names) if name in self.names[:number]), None)
        if twice is not None:
            raise DataError(f"source {twice} is given twice; give each source once", "source")

    @property
    def name(self) -> str:
        """The names of all sources; a short name also shows its dataset once it has been read."""
        known = self.options.resolved
        return ", ".join(f"{name} ({known[name]})" if name in known else name for name in self.names)

    @property
    def left_out(self) -> str:
        """A description of the files skipped so far."""
        return f"{no_texts(self.options.left_out)}; text must be UTF-8"

    def kinds(self) -> dict[str, Kind]:
        """Returns the kind of each source; nothing is read.

        Raises:
            DataError: a source is missing, or an option does not apply.
        """
        kinds = {name: _kind_of(name) for name in self.names}
        for name, kind in kinds.items():
            for option in self.options.given:
                if not any(option in other.uses for other in kinds.values()):
                    raise DataError(
                        f"{option} is given, and {name} is {kind.what}, which does not use it; leave it out", option
                    )
        return kinds

    def texts(self) -> dict[str, Iterator[Unread]]:
        """Returns an iterator over each source's documents, by source.

        Only the first document of each source is read before the iteration.

        Raises:
            DataError: as for :func:`read_texts`.
        """
        return {name: self._read(name, kind) for name, kind in self.kinds().items()}

    def _read(self, name: str, kind: Kind) -> Iterator[Unread]:
        """Reads a source's first document, and returns an iterator over all of the source's documents."""
        unused = {option: None for option in self.options.given if option not in kind.uses}
        texts = iter(kind.read(name, replace(self.options, **unused)))
        first = next(texts, None)
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
    concat: bool = False,
) -> list[Text | Chat | Document]:
    """Reads the documents of ``source`` into memory, including empty ones.

    Args:
        source: a text file (one document), a folder (one document per text file, sorted by path), a ``.jsonl`` or
            ``.parquet`` file (one document per row), a folder that ``datasets`` saved, ``-`` for standard input, the
            short name of a dataset (see :data:`.named_datasets.DATASETS`), or a dataset's name on the Hub
            (``owner/name`` or ``owner/name:config``).
        split: the split of a dataset; required if the dataset has several and none is called "test".
        text_field: the field that contains the text, the chat (a list of messages) or the token ids; None for "text",
            "messages", "input_ids" or the only field of strings.
        glob: a pattern for a folder's files, like ``*.txt``. A pattern with a slash is relative to the folder; a
            pattern without a slash matches file names at any depth.
        concat: whether to join all documents into one, with blank lines between them.

    Raises:
        DataError: the source is missing, is not text, is malformed or lacks the field, or an option does not apply.
    """
    options = ReadOptions(split, text_field, glob)
    documents = TextSource([str(source)], options, concat).texts()[str(source)]
    texts = list(documents)
    if options.left_out:
        LOG.warning("%s of %s", no_texts(options.left_out), source)
    return cast("list[Text | Chat | Document]", texts)


def read_prompts(source: str | Path, fields: PromptFields) -> tuple[Iterator[PromptRow], str]:
    """Lazily reads prompts with answers from RULER's files, a folder of such files, or other rows.

    Args:
        source: a ``.jsonl`` or ``.parquet`` file, a folder of ``.jsonl`` files, or a dataset as for :func:`read_texts`.

    Returns:
        The rows, and the source's name for the results, which also shows the dataset of a short name.

    Raises:
        DataError: the source is missing or has no rows, or a row lacks a prompt or an answer.
    """
    kind = _kind_of(str(source))
    if "prompt_field" not in kind.uses:
        raise DataError(f"{source} is {kind.what} without rows of prompts; give a .jsonl or .parquet file", "prompts")
    prompts = TextSource([str(source)], ReadOptions(prompt_field=fields))
    return cast(Iterator[PromptRow], prompts.texts()[str(source)]), prompts.name


def joined(texts: Iterable[Unread]) -> str:
    """Joins texts with blank lines between them.

    Raises:
        DataError: a document is a chat or token ids.
    """
    parts = []
    for each in texts:
        if not isinstance(each, Text):
            raise DataError(f"{each.name} is not text, and cannot be joined with others; give a field of text")
        parts.append(each.text)
    return "\n\n".join(parts)


# --- What a Python program gives


def texts_of(
    documents: TextsGiven, max_docs: int | None = None
) -> tuple[Mapping[str, Iterable[Unread]], TextSource | None]:
    """Returns lazily read documents by their source, and the source that all of them are read from.

    Args:
        documents: texts, chats, lists of token ids, ``Path`` objects of files and folders, a ``datasets.Dataset``, a
            :class:`TextSource`, or a mapping of names to these.
        max_docs: how many of them are read; None for all.

    Raises:
        DataError: a source cannot be read, a stream is not limited, or a text is the path of an existing file.
    """
    if isinstance(documents, os.PathLike):
        documents = TextSource([os.fspath(documents)])
    if isinstance(documents, TextSource):
        if documents.options.streaming and not max_docs:
            raise DataError(
                "streaming is given, and a stream may be endless; limit its documents with max_docs",
                "streaming",
                "max_docs",
            )
        return documents.texts(), documents
    if isinstance(documents, Mapping) and not {"role", "content"} <= documents.keys():  # a message
        return {str(name): _read(each, f"{name} document") for name, each in documents.items()}, None
    return {"": _read(documents, "document")}, None


def _read(documents: Any, name: str) -> Iterator[Unread]:
    """Yields the documents of one source; their default names are numbered."""
    if isinstance(documents, TextSource):
        yield from chain.from_iterable(documents.texts().values())
    elif hasattr(documents, "with_format"):  # a dataset; importing the library takes a second
        rows = cast("Iterable[tuple[int, Row]]", enumerate(documents.with_format(None)))
        yield from documents_of(rows, f"{name} of the dataset", ReadOptions(), "the dataset")
    else:
        one = (str, os.PathLike, Text, Chat, Document, PromptRow)
        several: Iterable[Any] = documents
        if isinstance(documents, one) or not isinstance(documents, Iterable):
            several = [documents]
        for number, each in enumerate(several):
            yield from _one(each, f"{name} {number}")


def _one(given: Any, name: str) -> Iterator[Unread]:
    """Yields a document, or all documents of a path.

    Raises:
        DataError: the document is text that names an existing file or folder, or is neither a text nor messages nor
            token ids.
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
    if isinstance(given, str):
        yield Text(name, given)
    elif isinstance(given, (Text, Chat, Document, PromptRow)):
        yield given
    elif isinstance(given, (list, tuple)) and given and isinstance(given[0], Mapping):
        yield Chat(name, given)
    else:
        yield of_ids(name, given)


_LONGEST_PATH = 4096


def folders_in(documents: object) -> Sequence[str]:
    """Returns the names of the sources that documents are read from."""
    if isinstance(documents, TextSource):
        return documents.names
    return [os.fspath(documents)] if isinstance(documents, str | os.PathLike) else []
