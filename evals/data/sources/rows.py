"""The documents in the rows of a table, and the split of a dataset that holds them.

A row holds a text, a chat (``messages``) or token ids (``input_ids``), as the value of its field says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from ....errors import DataError
from ....output.formatting import cut
from ..chats import Chat
from ..documents import Document, of_ids
from ..prompts import PromptRow, prompt_row
from ..texts import Text
from .read_options import ReadOptions

Row = Mapping[str, object]
RowDocument = Text | Chat | Document | PromptRow

CHAT, IDS, TOOLS = "messages", "input_ids", "tools"
"""The usual names of the fields of chats, of token ids, and of the tools beside a chat."""


def dataset_texts(loaded: Any, source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Returns the document in every row of one split.

    Raises:
        DataError: there is no such split or field, or which one is not said.
    """
    rows = one_split(loaded, source, asked.split)
    part = f"{source} {_split_of(loaded, source, asked.split)}" if isinstance(loaded, dict) else source
    return texts_of(enumerate(rows), f"{part} row", asked, source)


def one_split(loaded: Any, source: str, split: str | None) -> Iterable[Row]:
    """Returns the rows of the split that is asked for; else of "test", or of the only one.

    They hold Python's own values, whatever a dataset is set to return.
    """
    if isinstance(loaded, dict):
        loaded = loaded[_split_of(loaded, source, split)]
    else:
        ReadOptions(split).only(source, "one part of a dataset")
    return loaded.with_format(None)


def texts_of(rows: Iterable[tuple[int, Row]], part: str, asked: ReadOptions, source: str) -> Iterator[RowDocument]:
    """Yields the document, or the prompt with its answers, in each of the numbered rows.

    Where the field is not said, it is "text", "messages", "input_ids", or the only one of strings, in the first row.

    Args:
        part: what the rows are called, before their numbers.

    Raises:
        DataError: there is no such field, or it holds something else.
    """
    field = asked.text_field
    for number, row in rows:
        if asked.prompt_field is not None:
            yield prompt_row(row, asked.prompt_field, f"{part} {number}", source)
            continue
        field = _guess_field(row, source) if field is None else field
        yield _text_in(row, field, f"{part} {number}")


def _text_in(row: Row, field: str, name: str) -> RowDocument:
    if field not in row:
        raise DataError(f"{name} has no field {field!r}; it has {', '.join(row) or 'none'}")
    value = row[field]
    if isinstance(value, list) and value:
        return (_chat if isinstance(value[0], dict) else _ids)(name, field, value, row)
    if not isinstance(value, (str, list, type(None))):
        raise DataError(f"{name}: field {field!r} holds {type(value).__name__}, not text, messages or token ids")
    return Text(name, value if isinstance(value, str) else "")


def _guess_field(row: Row, source: str) -> str:
    strings = [key for key, value in row.items() if isinstance(value, str)]
    if "text" in row:
        return "text"
    for name in (CHAT, IDS):
        if isinstance(row.get(name), list):
            return name
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
    """Checks a chat as far as every template needs it.

    Raises:
        DataError: names the message that is wrong.
    """
    for number, each in enumerate(value, start=1):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise DataError(f"{name}: message {number} of {field!r} has no role; give objects of role and content")
        if not isinstance(each.get("content"), (str, list, type(None))):
            raise DataError(f"{name}: the content of message {number} of {field!r} is no text")
    return Chat(name, cast(list[dict[str, object]], value), _tools(name, row.get(TOOLS)))


def _tools(name: str, given: object) -> list[dict[str, object]] | None:
    """Returns the tools beside a chat, which datasets hold as a list or as its JSON."""
    try:
        found = json.loads(given) if isinstance(given, str) and given else given
    except (ValueError, RecursionError):
        raise DataError(f"{name}: field 'tools' is not JSON that can be read; give a list of objects") from None
    if not found:
        return None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise DataError(f"{name}: field 'tools' is not a list of objects; correct it or leave it out")
    return found


def _split_of(parts: Mapping[str, object], source: str, asked: str | None) -> str:
    split = asked if asked is not None else "test" if "test" in parts or len(parts) != 1 else next(iter(parts))
    if split not in parts:
        wrong = "has several splits" if asked is None else f"has no split {asked!r}"
        raise DataError(f"{source} {wrong}; choose one: {', '.join(parts)}", "split")
    return split
