"""Options for reading a source, and documents in the rows of a table.

A row contains a text, a chat (``messages``) or token ids (``input_ids``), by the type of its field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import cast

from ....errors import DataError
from ....output.formatting import cut
from ..chats import Chat
from ..documents import Document, of_ids
from ..prompts import PromptFields, PromptRow, prompt_row
from ..texts import Text

Row = Mapping[str, object]
RowDocument = Text | Chat | Document | PromptRow

CHAT, IDS, TOOLS = "messages", "input_ids", "tools"
"""The default fields of chats, of token ids, and of a chat's tools."""


class Unused(DataError):
    """An option that does not apply to a source, and would be ignored silently."""


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a source.

    Attributes:
        split: the dataset's split.
        text_field: the field of a row with the document.
        glob: a pattern for a folder's files, like ``*.txt``; relative to the folder with a slash, else by name at any
            depth.
        encoding: the encoding of text files. Default: UTF-8.
        prompt_field: the fields of a prompt and its answers, which are read from each row instead of a text.
        streaming: read a Hub dataset only as far as needed.
        left_out: collects the names of a folder's skipped files.
        resolved: collects the dataset and commit of a short name.
    """

    split: str | None = None
    text_field: str | None = None
    glob: str | None = None
    encoding: str | None = None
    prompt_field: PromptFields | None = None
    streaming: bool = False
    left_out: list[str] = field(default_factory=list, compare=False)
    resolved: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        try:
            b"text".decode("utf-8" if self.encoding is None else self.encoding)
        except UnicodeError:
            pass  # an encoding of more than one byte
        except (LookupError, ValueError):
            raise DataError(
                f"the encoding {self.encoding!r} is unknown; name one that Python supports, like latin-1, cp1252 or "
                "utf-16",
                "encoding",
            ) from None
        if self.prompt_field is not None and self.text_field is not None:
            raise DataError("text_field is for texts, and each row is a prompt with answers; drop it", "text_field")

    def only(self, source: str, kind: str, *used: str) -> None:
        """Refuses given options that do not apply.

        Args:
            kind: the kind of source, as text.
            used: names of the options that apply.

        Raises:
            Unused: names the option.
        """
        for name in (each.name for each in fields(self) if each.compare and each.name not in used):
            if getattr(self, name) not in (None, False):
                raise Unused(f"{name} is given, and {source} is {kind}, which does not use it; leave it out", name)


def texts_of(rows: Iterable[tuple[int, Row]], part: str, asked: ReadOptions, source: str) -> Iterator[RowDocument]:
    """Yields the document, or the prompt with answers, of each numbered row.

    The default field is "text", "messages", "input_ids", or the only string field, by the first row.

    Args:
        part: the prefix of the rows' names.

    Raises:
        DataError: the field is missing or has another type.
    """
    field = asked.text_field
    for number, row in rows:
        name = f"{part} {number}"
        if asked.prompt_field is not None:
            yield prompt_row(row, asked.prompt_field, name, source)
            continue
        field = _guess_field(row, source) if field is None else field
        if field not in row:
            raise DataError(f"{name} has no field {field!r}; it has {', '.join(row) or 'none'}")
        value = row[field]
        if isinstance(value, list) and value:
            yield (_chat if isinstance(value[0], dict) else _ids)(name, field, value, row)
        elif value is None or isinstance(value, (str, list)):
            yield Text(name, str(value or ""))
        else:
            raise DataError(f"{name}: field {field!r} holds {type(value).__name__}, not text, messages or token ids")


def _guess_field(row: Row, source: str) -> str:
    for name, kind in (("text", object), (CHAT, list), (IDS, list)):
        if name in row and isinstance(row[name], kind):
            return name
    strings = [key for key, value in row.items() if isinstance(value, str)]
    if len(strings) != 1:
        raise DataError(f"{source} has no field 'text'; choose one: {', '.join(row) or 'none'}", "text_field")
    return strings[0]


def _ids(name: str, field: str, value: list[object], row: Row) -> Document:
    for at, each in enumerate(value):
        if type(each) is not int or not 0 <= each < 2**31:
            wrong = cut(repr(each), 40)
            raise DataError(f"{name}: field {field!r} has {wrong} at {at}, which is neither a token id nor a message")
    return of_ids(name, cast(list[int], value), "ids")


def _chat(name: str, field: str, value: list[object], row: Row) -> Chat:
    """Validates a chat's messages; its tools may be a list or JSON.

    Raises:
        DataError: a message is invalid; names it.
    """
    for number, each in enumerate(value, start=1):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise DataError(f"{name}: message {number} of {field!r} has no role; give objects of role and content")
        if not isinstance(each.get("content"), (str, list, type(None))):
            raise DataError(f"{name}: the content of message {number} of {field!r} is not text")
    tools = row.get(TOOLS)
    try:
        tools = json.loads(tools) if isinstance(tools, str) and tools else tools
    except (ValueError, RecursionError):
        raise DataError(f"{name}: field 'tools' is not JSON that can be read; give a list of objects") from None
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise DataError(f"{name}: field 'tools' is not a list of objects; correct it or leave it out")
    return Chat(name, cast(list[dict[str, object]], value), cast("list[dict[str, object]] | None", tools or None))
