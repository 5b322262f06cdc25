"""Where the text comes from, and how it becomes token ids.

Nothing is dropped silently: what is empty or too short is counted. Text files are read as Python reads them: UTF-8,
line ends of any kind become ``\\n``, a leading byte-order mark is not text. Ids are encoded without special tokens, and
BOS is put in front once by whoever feeds them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...checkpoints.locating import hub_silence
from ...errors import DataError
from ...files.reading import local_path
from ...formatting import first_line
from .documents import Text


def read_texts(
    source: str | Path, *, split: str | None = None, text_field: str | None = None, concat: bool = False
) -> list[Text]:
    """The documents of ``source``, empty ones included.

    Args:
        source: a text file (one document), a folder (one per file, in order of path), a ``.jsonl`` or
            ``.parquet`` file (one per row), a folder that ``datasets`` saved, ``-`` for standard input, or the
            name of a dataset on the Hub (``owner/name`` or ``owner/name:config``).
        split: which split of a dataset; needed when it has several and none is called "test".
        text_field: the field that holds the text; "text", or the only field of strings, when None.
        concat: join them all into one document, a blank line between two.

    Raises:
        DataError: nothing there, not text, malformed, without the field, or a split or field of what has none.
    """
    texts = _reader(str(source))(str(source), split, text_field)
    if not texts:
        raise DataError(f"no documents in {source}; give text, with one document per row or file")
    if concat:
        return [Text(str(source), "\n\n".join(text.text for text in texts))]
    return texts


def stream_texts(source: str, *, split: str | None = None, text_field: str | None = None) -> Iterator[Text]:
    """The documents of a dataset on the Hub, one after the other, read as they are asked for.

    Args:
        source, split, text_field: as in :func:`read_texts`.

    Raises:
        DataError: not the name of a dataset, or as :func:`read_texts`.
    """
    if _reader(source) is not _hub:
        raise DataError(f"--streaming is for a dataset on the Hub, and {source} is here; leave --streaming out")
    rows = _one_split(_from_hub(source, streaming=True), source, split)
    return _streamed(rows, source, text_field)


# --- sources ---------------------------------------------------------------------------------------------------

Reader = Callable[[str, "str | None", "str | None"], list[Text]]


def _reader(source: str) -> Reader:
    path = local_path(source)
    if source == "-":
        return _standard_input
    if source and path.is_dir():
        saved = (path / "state.json").exists() or (path / "dataset_dict.json").exists()
        return _saved_dataset if saved else _folder
    if path.is_file():
        return {".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}.get(path.suffix.lower(), _file)
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1 or path.suffix or not source:
        raise DataError(f"no file or folder at {source!r}; --data takes a file, a folder, a Hub dataset's name, or -")
    return _hub


def _refuse(source: str, kind: str, **given: str | None) -> None:
    """An option that this kind of source has no use for would be ignored without a word."""
    for name, value in given.items():
        if value is not None:
            option = name.replace("_", "-")
            raise DataError(f"--{option} is given, and {source} is {kind}, which has none; leave --{option} out")


def _standard_input(source: str, split: str | None, field: str | None) -> list[Text]:
    _refuse("standard input", "plain text", split=split, text_field=field)
    return [_decoded("standard input", sys.stdin.buffer.read())]


def _file(source: str, split: str | None, field: str | None) -> list[Text]:
    _refuse(source, "a text file", split=split, text_field=field)
    text = _text_file(local_path(source))
    if not text.text.strip():
        raise DataError(f"{source} is empty; give a file with text in it")
    return [text]


def _folder(source: str, split: str | None, field: str | None) -> list[Text]:
    _refuse(source, "a folder of text files", split=split, text_field=field)
    root = local_path(source)
    files = sorted(path for path in root.rglob("*") if path.is_file() and not _hidden(path.relative_to(root)))
    if not files:
        raise DataError(f"no files in {source}; give a folder of text files (hidden ones are not read)")
    return [_text_file(path) for path in files]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _text_file(path: Path) -> Text:
    """A file that is text; what holds texts in another form would be measured with its brackets and commas.

    Raises:
        DataError: it cannot be read, is not UTF-8, is compressed, or is a table.
    """
    kind = _NO_TEXT.get(path.suffix.lower())
    if kind:
        raise DataError(f"{path} is {kind}, or a text that should be called .txt")
    try:
        text = _decoded(str(path), path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if path.suffix.lower() == ".json" and _is_array(text.text):
        raise DataError(f"{path} is a JSON array; write it as .jsonl, one object per line")
    return text


_TABLE = "a table; make it JSONL or parquet"
_COMPRESSED = "compressed; unpack it first"
_NO_TEXT = {
    **dict.fromkeys((".csv", ".tsv"), _TABLE),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), _COMPRESSED),
}


def _is_array(text: str) -> bool:
    """Whether a text is a JSON list of texts or rows."""
    if not text.lstrip().startswith("["):
        return False
    try:
        return all(isinstance(each, (dict, str)) for each in json.loads(text))
    except (ValueError, RecursionError):
        return False


def _decoded(name: str, raw: bytes) -> Text:
    if b"\0" in raw:
        raise DataError(f"{name} is not text: it has a zero byte at {raw.index(0)}; give UTF-8 text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: byte {error.start} does not decode; convert it first") from None
    return Text(name, text.replace("\r\n", "\n").replace("\r", "\n"))


def _json_lines(source: str, split: str | None, field: str | None) -> list[Text]:
    _refuse(source, "a file of rows", split=split)
    rows = list(_json_rows(source))
    return _texts_of([row for _, row in rows], [f"{source} line {line}" for line, _ in rows], field, source)


def _json_rows(source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_text_file(local_path(source)).text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{source} line {number} is not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError):  # a number of thousands of digits, or brackets thousands deep
            raise DataError(f"{source} line {number} is not JSON that can be read; one object per line") from None
        if not isinstance(row, dict):
            raise DataError(f'{source} line {number} is not a JSON object; write one per line, like {{"text": "..."}}')
        yield number, row


def _parquet(source: str, split: str | None, field: str | None) -> list[Text]:
    import pyarrow
    import pyarrow.parquet

    _refuse(source, "a file of rows", split=split)
    try:
        rows = pyarrow.parquet.read_table(local_path(source)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: {first_line(error)}") from None
    return _texts_of(rows, [f"{source} row {i}" for i in range(len(rows))], field, source)


def _saved_dataset(source: str, split: str | None, field: str | None) -> list[Text]:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(local_path(source)))
    except Exception as error:
        raise DataError(f"{source} is not a readable datasets folder: {first_line(error)}") from None
    return _dataset_texts(loaded, source, split, field)


def _hub(source: str, split: str | None, field: str | None) -> list[Text]:
    return _dataset_texts(_from_hub(source), source, split, field)


def _from_hub(source: str, streaming: bool = False) -> Any:
    """A dataset of the Hub, from its cache where the Hub does not answer."""
    import datasets

    name, _, config = source.partition(":")
    silence = hub_silence(name, kind="dataset")
    try:
        with _offline(silence is not None):
            return datasets.load_dataset(name, config or None, streaming=streaming)
    except Exception as error:
        why = first_line(error) if silence is None else f"the Hub cannot be reached ({silence}), nor has its cache it"
        raise DataError(f"{source!r} is no file or folder here, and no dataset that the Hub gives: {why}") from None


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """``datasets`` looks into its cache at once inside, where it would ask for half a minute before."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _dataset_texts(loaded: Any, source: str, split: str | None, field: str | None) -> list[Text]:
    rows = list(_one_split(loaded, source, split))
    part = f"{source} {_split_of(loaded, source, split)}" if isinstance(loaded, dict) else source
    return _texts_of(rows, [f"{part} row {i}" for i in range(len(rows))], field, source)


def _one_split(loaded: Any, source: str, split: str | None) -> Any:
    if isinstance(loaded, dict):
        return loaded[_split_of(loaded, source, split)]
    _refuse(source, "one part of a dataset", split=split)
    return loaded


def _streamed(rows: Iterable[dict[str, Any]], source: str, field: str | None) -> Iterator[Text]:
    for number, row in enumerate(rows):
        field = _guess_field(row, source) if field is None else field
        name = f"{source} row {number}"
        yield Text(name, _field_of(row, field, name))


def _split_of(parts: dict[str, Any], source: str, asked: str | None) -> str:
    """The split that is asked for; else "test", or the only one."""
    split = asked if asked is not None else "test" if "test" in parts or len(parts) != 1 else next(iter(parts))
    if split not in parts:
        wrong = "has several splits" if asked is None else f"has no split {asked!r}"
        raise DataError(f"{source} {wrong}; choose one with --split: {', '.join(parts)}")
    return split


def _texts_of(rows: list[dict[str, Any]], names: list[str], field: str | None, source: str) -> list[Text]:
    if not rows:
        return []
    field = _guess_field(rows[0], source) if field is None else field
    return [Text(name, _field_of(row, field, name)) for row, name in zip(rows, names, strict=True)]


def _guess_field(row: dict[str, Any], source: str) -> str:
    strings = [key for key, value in row.items() if isinstance(value, str)]
    if "text" in row:
        return "text"
    if len(strings) != 1:
        raise DataError(f"{source} has no field 'text'; choose one with --text-field: {', '.join(row) or 'none'}")
    return strings[0]


def _field_of(row: dict[str, Any], field: str, name: str) -> str:
    if field not in row:
        raise DataError(f"{name} has no field {field!r}; it has {', '.join(row) or 'none'}")
    value = row[field]
    if value is not None and not isinstance(value, str):
        raise DataError(f"{name}: field {field!r} holds {type(value).__name__}, not text")
    return value or ""
