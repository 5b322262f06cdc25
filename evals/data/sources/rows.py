"""The text in the rows of a table, and the split of a dataset that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from ....errors import DataError
from ..texts import Text

Row = Mapping[str, object]


def refuse(source: str, kind: str, **given: str | None) -> None:
    """Refuses an option that this kind of source has no use for, which would be ignored without a word."""
    for name, value in given.items():
        if value is not None:
            raise DataError(f"{name} is given, and {source} is {kind}, which has none; leave {name} out", name)


def dataset_texts(loaded: Any, source: str, split: str | None, text_field: str | None) -> Iterator[Text]:
    """Returns the text of every row of one split.

    Raises:
        DataError: there is no such split or field, or which one is not said.
    """
    rows = one_split(loaded, source, split)
    part = f"{source} {_split_of(loaded, source, split)}" if isinstance(loaded, dict) else source
    return texts_of(rows, (f"{part} row {i}" for i in count()), text_field, source)


def one_split(loaded: Any, source: str, split: str | None) -> Iterable[Row]:
    """Returns the rows of the split that is asked for; else of "test", or of the only one."""
    if isinstance(loaded, dict):
        return loaded[_split_of(loaded, source, split)]
    refuse(source, "one part of a dataset", split=split)
    return loaded


def texts_of(rows: Iterable[Row], names: Iterable[str], text_field: str | None, source: str) -> Iterator[Text]:
    """Yields the text of each row under its name; all from the field that the first one has."""
    for row, name in zip(rows, names):
        text, text_field = text_in(row, text_field, name, source)
        yield text


def text_in(row: Row, text_field: str | None, name: str, source: str) -> tuple[Text, str]:
    """Returns a row's text and the field that holds it: "text" or the only one of strings where it is not said.

    Raises:
        DataError: there is no such field, or it holds something else.
    """
    field = _guess_field(row, source) if text_field is None else text_field
    if field not in row:
        raise DataError(f"{name} has no field {field!r}; it has {', '.join(row) or 'none'}")
    value = row[field]
    if value is not None and not isinstance(value, str):
        raise DataError(f"{name}: field {field!r} holds {type(value).__name__}, not text")
    return Text(name, value or ""), field


def _guess_field(row: Row, source: str) -> str:
    strings = [key for key, value in row.items() if isinstance(value, str)]
    if "text" in row:
        return "text"
    if len(strings) != 1:
        raise DataError(f"{source} has no field 'text'; choose one with text_field=NAME: {', '.join(row) or 'none'}")
    return strings[0]


def _split_of(parts: Mapping[str, object], source: str, asked: str | None) -> str:
    split = asked if asked is not None else "test" if "test" in parts or len(parts) != 1 else next(iter(parts))
    if split not in parts:
        wrong = "has several splits" if asked is None else f"has no split {asked!r}"
        raise DataError(f"{source} {wrong}; choose one with split=NAME: {', '.join(parts)}")
    return split
