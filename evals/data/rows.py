"""Documents in the rows of a table: JSON lines, JSON arrays, parquet, and the rows of datasets.

A row contains a text, a chat (``messages``) or token ids (``input_ids``); the type of the field determines which. Or it
has the fields of one of :data:`FORMATS`: rows of well-known training data, recognized by their fields, and read as
LLaMA-Factory and TRL read them. ShareGPT's ``from`` becomes a role, Alpaca's ``instruction`` and ``input`` are joined
by a line end, and a completion follows its prompt.

The ``datasets`` library is not used to read files, because it does not report the line of an error, treats a row
without the field as empty, fails on dates outside Python's range in unused columns, and takes a second to start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, cast

from ...errors import DataError
from ...files import LARGEST, local_path
from ...output.formatting import brief, cut, first_line, listed
from .chats import ALPACA, TURNS, Chat, Unread
from .documents import EXPANDS, Document, NoText, Text, most_unpacked, of_ids, opened, starts_json, text_of
from .prompts import PromptFields, prompt_row

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


Row = Mapping[str, object]
_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "tool"), "tool"),
    "system": "system",
}
"""The roles of ShareGPT's ``from``."""


@dataclass(frozen=True)
class Format:
    """A kind of rows.

    Attributes:
        what: its name in messages; "" for rows that are not recognized by their fields.
        fields: the fields that a row must have.
        read: returns the content of a row, a text or a list of messages; its second argument names the row in errors.
        layout: how its chats are written if the tokenizer has no chat template.
    """

    what: str
    fields: tuple[str, ...]
    read: Callable[[Row, str], object]
    layout: str = TURNS


def _share_gpt(row: Row, name: str) -> object:
    turns = row["conversations"] or []
    if not isinstance(turns, list):
        raise DataError(f"{name}: field 'conversations' is not a list of messages")
    return [*_system(row), *turns]


def _alpaca(row: Row, name: str) -> object:
    messages = _system(row)
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise DataError(f"{name}: field 'history' is not a list of pairs of an instruction and an output")
    asked = "\n".join(str(row[field]) for field in ("instruction", "input") if row.get(field))
    for prompt, answer in [*history, (asked, row["output"])]:
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return messages


def _completion(row: Row, name: str) -> object:
    prompt = row["prompt"]
    completion = row["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        return [*prompt, *completion]
    if isinstance(prompt, str) and isinstance(completion, str):
        return prompt + completion
    raise DataError(f"{name}: fields 'prompt' and 'completion' are neither two texts nor two lists of messages")


def _system(row: Row) -> list[object]:
    text = row.get("system")
    return [{"role": "system", "content": text}] if text else []


FORMATS = (
    Format("ShareGPT conversations, read as chats", ("conversations",), _share_gpt),
    Format("Alpaca instructions, read as chats", ("instruction", "output"), _alpaca, ALPACA),
    Format("prompts followed by completions", ("prompt", "completion"), _completion),
)


PARQUET = ".parquet"

CHAT, IDS, TOOLS = "messages", "input_ids", "tools"
"""The default fields for chats, for token ids, and for a chat's tools."""


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a source.

    Attributes:
        split: the dataset's split.
        text_field: the field that contains the document.
        glob: a pattern for a folder's files, like ``*.txt``. A pattern with a slash is relative to the folder; one
            without matches file names at any depth.
        prompt_field: the fields of a prompt and its answers, which are read from each row instead of a text.
        streaming: whether to read a Hub dataset only as far as needed.
        left_out: the names of a folder's skipped files, collected during reading.
        resolved: the dataset and commit of each short name, collected during reading.
        formats: the recognized format of each source, collected during reading.
    """

    split: str | None = None
    text_field: str | None = None
    glob: str | None = None
    prompt_field: PromptFields | None = None
    streaming: bool = False
    left_out: list[str] = field(default_factory=list, compare=False)
    resolved: dict[str, str] = field(default_factory=dict, compare=False)
    formats: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.prompt_field is not None and self.text_field is not None:
            raise DataError("text_field applies to texts, and prompts are read here; leave it out", "text_field")

    @property
    def given(self) -> list[str]:
        """The names of the given options."""
        return [each.name for each in fields(self) if each.compare and getattr(self, each.name) not in (None, False)]


def is_saved(source: str) -> bool:
    """Returns whether a source is a folder that ``save_to_disk`` wrote."""
    return bool(source) and any((local_path(source) / name).exists() for name in ("state.json", "dataset_dict.json"))


def is_name(source: str) -> bool:
    """Returns whether a source may be the name of a dataset rather than a path."""
    path = local_path(source)
    return bool(source) and not (
        path.exists() or path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1 or path.suffix
    )


def rows_of(source: str, options: ReadOptions) -> Iterator[Unread]:
    """Lazily reads the documents in a parquet file, a JSON array, a JSON object, or a file of JSON lines.

    Raises:
        DataError: the file cannot be read, or a row is not an object or lacks the field; the message names the row.
    """
    part = "row"
    if source.lower().endswith(PARQUET):
        rows = _parquet(source)
    elif starts_json(local_path(source)) in ("[", "{\n}"):
        rows = _array(source)
    else:
        rows = _json_lines(source)
        part = "line"
    return documents_of(rows, f"{source} {part}", options, source)


def _json_lines(source: str) -> Iterator[tuple[int, Row]]:
    """Yields each row in a file of JSON lines with its line number.

    Raises:
        DataError: a line is not a JSON object; the message names the line.
    """
    path = local_path(source)
    try:
        with opened(path) as file:
            left = most_unpacked(path)
            for number, line in enumerate(iter(lambda: file.readline(LARGEST + 1), b""), start=1):
                name = f"{source} line {number}"
                left -= len(line)
                if left < 0:
                    raise DataError(f"{source} unpacks to over {EXPANDS} times its size; unpack it first")
                if len(line) > LARGEST:
                    raise DataError(f"{name} is longer than {LARGEST:,} bytes; write such a text as a .txt file")
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig").rstrip())
                except UnicodeDecodeError:
                    raise NoText(f"{name} is not UTF-8; convert it (iconv)") from None
                except json.JSONDecodeError as error:
                    raise DataError(f"{name} is not JSON: {error.msg} (column {error.colno})") from None
                except (ValueError, RecursionError):  # a number of thousands of digits, or brackets thousands deep
                    raise DataError(f"{name} is not readable JSON; write one object per line") from None
                if not isinstance(row, dict):
                    raise DataError(f'{name} is not a JSON object; write one per line, like {{"text": "..."}}')
                yield number, row
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}") from None


def _array(source: str) -> Iterator[tuple[int, Row]]:
    """Yields each element of a JSON array with its number: an object, a text, or a chat's messages; or a lone object.

    Raises:
        DataError: the file is not JSON, or an element is something else.
    """
    text = text_of(local_path(source), is_array=True).text
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is not readable JSON: {first_line(error)}") from None
    if isinstance(rows, dict):
        rows = [rows]
    for number, row in enumerate(rows):
        if isinstance(row, str):
            row = {"text": row}
        elif isinstance(row, list):
            row = {CHAT: row}
        if not isinstance(row, dict):
            raise DataError(f"{source} row {number} is not an object, a text or a list of messages; give one of these")
        yield number, row


def _parquet(source: str) -> Iterator[tuple[int, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(local_path(source)) as file:
            names = file.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise DataError(
                    f"{source} has {names.count(twice[0])} columns named {brief(twice[0])}; rename all but one"
                )
            _check_expansion(file.metadata, source)
            # Columns of other types are skipped, because they may contain dates that Python cannot read.
            readable = [each.name for each in file.schema_arrow if _READABLE.match(str(each.type))]
            batches = file.iter_batches(_TOGETHER, columns=readable)
            yield from enumerate(
                row for batch in batches for n in range(len(batch)) for row in batch[n : n + 1].to_pylist()
            )
    except (UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{source} holds a value that Python cannot read ({error}); write the file again") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: {first_line(error)}") from None


_READABLE = re.compile(r"(?=.*(string|int|list))(?!.*(date|time|binary))")
"""The types of the columns that are read."""

_ROW = 500
"""What a row counts when a file is judged by its size, in bytes."""

_TOGETHER = 8
"""Rows per read, which may share one stored value. They are converted to Python one by one, because lists of token ids
create many objects."""


def _check_expansion(metadata: pyarrow.parquet.FileMetaData, source: str) -> None:
    """Checks a file's row groups, with eight bytes per value in memory, and its number of rows against its size.

    Raises:
        DataError: a row group is much larger than the file, or there are too many rows, each of which takes time.
    """
    most = most_unpacked(local_path(source))
    if metadata.num_rows > most // _ROW:
        raise DataError(f"{source} has {metadata.num_rows:,} rows, too many for its size; write it as .jsonl")
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        expanded = group.total_byte_size + 8 * sum(group.column(at).num_values for at in range(group.num_columns))
        if expanded > most:
            raise DataError(
                f"{source} has {expanded / 1e9:.2g} GB in one row group, over {EXPANDS} times the file; write it as "
                ".jsonl"
            )


def documents_of(rows: Iterable[tuple[int, Row]], part: str, options: ReadOptions, source: str) -> Iterator[Unread]:
    """Yields the document, or the prompt with answers, of each numbered row.

    The default field is "text", "messages", "input_ids", or else the only string field; the first row determines it.
    Rows with the fields of a format are read as that format.

    Args:
        part: the prefix of the rows' names in messages, before their numbers.

    Raises:
        DataError: the field is missing or has another type.
    """
    form = None if options.text_field is None else _form_of(options.text_field)
    for number, row in rows:
        name = f"{part} {number}"
        if options.prompt_field is not None:
            yield prompt_row(row, options.prompt_field, name, source)
            continue
        form = form or _known_form(row) or _only_text(row, source)
        if form.what:
            options.formats[source] = form.what
        for each in form.fields:
            if each not in row:
                raise DataError(f"{name} has no field {each!r}; it has {listed(row, 30) or 'none'}")
        text_field = form.fields[0]
        value = form.read(row, name)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            chat = _chat(name, text_field, _with_roles(value, name), row)
            yield replace(chat, layout=form.layout)
        elif isinstance(value, list) and value:
            yield _ids(name, text_field, value)
        elif value is None or isinstance(value, (str, list)):
            yield Text(name, str(value or ""))
        else:
            kind = type(value).__name__
            raise DataError(f"{name}: field {text_field!r} holds {kind}, not text, messages or token ids")


def record_in(text: str) -> Row | None:
    """Returns the JSON object that a text is, if its fields are those of documents; else None."""
    with suppress(ValueError, RecursionError):
        row = json.loads(text)
        form = _known_form(row, str) if isinstance(row, dict) else None
        if form and any(row[field] for field in form.fields):
            return row
    return None


def _form_of(field: str) -> Format:
    """Returns the format of rows with a document in this field."""
    own = Format("messages, read as chats" if field == CHAT else "", (field,), lambda row, name: row[field])
    return next((known for known in FORMATS if known.fields == own.fields), own)


def _known_form(row: Row, text: type = object) -> Format | None:
    """Returns the format of a row with a default field or the fields of a format; else None.

    Args:
        text: the type that the field "text" must have.
    """
    for name, kind in (("text", text), (CHAT, list), (IDS, list)):
        if name in row and isinstance(row[name], kind):
            return _form_of(name)
    return next((known for known in FORMATS if row.keys() >= set(known.fields)), None)


def _only_text(row: Row, source: str) -> Format:
    """Returns the format of a row's only field of strings, where no other holds a list, such as messages."""
    texts = [key for key, value in row.items() if isinstance(value, (str, list))]
    if len(texts) != 1 or not isinstance(row[texts[0]], str):
        raise DataError(f"{source} has no field 'text'; choose one: {listed(row, 30) or 'none'}", "text_field")
    return replace(_form_of(texts[0]), what=f"texts, read from the field {brief(texts[0])}, the only one of strings")


def _ids(name: str, field: str, value: list[object]) -> Document:
    for at, each in enumerate(value):
        if type(each) is not int or not 0 <= each < 2**31:
            wrong = cut(repr(each), 40)
            raise DataError(f"{name}: field {field!r} has {wrong} at {at}, which is neither a token id nor a message")
    return of_ids(name, cast(list[int], value), "ids")


def _with_roles(turns: list[object], name: str) -> list[object]:
    """Returns messages with ShareGPT's ``from`` and ``value``, if they have no role, as ``role`` and ``content``."""
    messages = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, Mapping) or turn.get("role") or turn.get("from") is None:
            messages.append(turn)
            continue
        role = _ROLES.get(str(turn["from"]).lower())
        if role is None:
            raise DataError(
                f"{name}: message {number} is from {brief(turn['from'])}, which is none of {', '.join(_ROLES)}"
            )
        messages.append({"role": role, "content": turn.get("value")})
    return messages


def _chat(name: str, field: str, value: list[object], row: Row) -> Chat:
    """Returns a chat after validating its messages and its tools, which may be a list or JSON.

    Raises:
        DataError: a message or the list of tools is invalid; the error gives the number of the message.
    """
    for number, each in enumerate(value, start=1):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise DataError(f"{name}: message {number} of {field!r} has no role; give objects with role and content")
        if not isinstance(each.get("content"), (str, list, type(None))):
            raise DataError(f"{name}: the content of message {number} of {field!r} is not text")
    tools = row.get(TOOLS)
    try:
        tools = json.loads(tools) if isinstance(tools, str) and tools else tools
    except (ValueError, RecursionError):
        raise DataError(f"{name}: field 'tools' is not readable JSON; give a list of objects") from None
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise DataError(f"{name}: field 'tools' is not a list of objects; correct it or leave it out")
    return Chat(name, cast(list[dict[str, object]], value), cast("list[dict[str, object]] | None", tools or None))
