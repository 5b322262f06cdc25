"""A healthy value or file, with something wrong in it. Everything follows from the random generator that is given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

Path = tuple[Any, ...]
"""Keys and positions that lead to a place inside a JSON value."""

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", [], {}, [[]], {"": None}, [None], [{}], 0, 1, 2, 3, 5, 7, 8, 64, -1, -7, -0.0, 0.5, 1.5),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63), 10**18, 10**30, -(10**30), 10**400),
    *(1e-320, 1e-30, 1e10, 1e30, 1e100, 1e300, 1.7976931348623157e308, -1e300),
    *(float("nan"), float("inf"), float("-inf")),
    *("0", "1", "-1", "4", "1e999", "nan", "inf", "true", "null", "None", "64", "4.0", "auto", "default", "all"),
    *("yarn", "linear", "dynamic", "longrope", "su", "llama3", "mrope", "proportional", "yran", "YARN"),
    *(
        "é",
        "模型",
        "🦙" * 40,
        "\u202e\u0000\u200b",
        "\ud800",
        "a\nb",
        "a\r\nb",
        "`rm`",
        "$(x)",
        "|x|",
        "<b>&",
        "%s%n{0}",
    ),
    *("../x", "/etc/passwd", "~", "~nobody/x", "-o", "a/b", "a\\b", ".", "..", "con", "x" * 300, "x" * 100_000),
    *([0], [1.0], [-1.0], ["a"], [True], [1e308] * 8, [1.0] * 1000, [1.0] * 100_000, [0] * 8, ["x"] * 1000),
    *({"a": {"b": {"c": {}}}}, {"rope_type": "yarn"}, {"rope_type": "default"}, {"factor": 4.0}, {"type": "su"}),
)
"""What programs trip over: the ends of every kind of number, text that is a number, names, nothing, too much."""

_RAW = "\u0001raw "
"""Marks a string that stands for JSON that ``json.dumps`` would not write."""

_AGAIN = "\u0001again"
"""Marks a key that is another one, for the second time."""

RAW = (
    *("9" * 5000, "-" + "9" * 5000, "1" + "0" * 400, "1e400", "-1e400", "1E-400", "NaN", "Infinity", "-Infinity"),
    *("[" * 200 + "]" * 200, "[" * 700 + "]" * 700, "[" * 100_000 + "]" * 100_000, '{"a":' * 900 + "1" + "}" * 900),
    *("01", "+1", ".5", "1.", "nul", "'a'", '"a', '"\\ud800"', '"\t"', "[1,]", "{,}", "//", ""),
)
"""JSON that is out of measure, and what is nearly JSON."""


def raw(text: str) -> str:
    """A value that :func:`as_text` writes as this text, whatever it is."""
    return _RAW + text


def as_text(value: Any, indent: int | None = 2) -> str:
    """JSON, with what only a file can hold: keys twice, raw text."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) < 2**20:  # the indents of a long list in deep nesting would take gigabytes
        text = json.dumps(value, indent=indent, ensure_ascii=False)
    text = re.sub(_escaped(_AGAIN) + r"\d*", "", text)
    return re.sub(
        f'"{_escaped(_RAW)}((?:[^"\\\\]|\\\\.)*)"', lambda found: json.loads(f'"{found[1]}"', strict=False), text
    )


def _escaped(mark: str) -> str:
    return re.escape(json.dumps(mark)[1:-1])


def as_bytes(value: Any) -> bytes:
    """:func:`as_text` as UTF-8; half a surrogate pair becomes the bytes that it would be."""
    return as_text(value).encode("utf-8", "surrogatepass")


def pool(values: Iterable[Any]) -> dict[str, list[Any]]:
    """Every key of these JSON values with the values that it has there."""
    found: dict[str, list[Any]] = {}
    for value in values:
        for path in paths(value):
            if path and isinstance(path[-1], str):
                found.setdefault(path[-1], []).append(at(value, path))
    return found


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """The way to every place inside a JSON value, itself first; of a long list the first eight alone."""
    yield above
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*above, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:8]):
            yield from paths(inner, (*above, number))


def at(value: Any, path: Path) -> Any:
    """What lies at the end of a path."""
    for key in path:
        value = value[key]
    return value


def mutated(
    rng: Random, value: Any, known: dict[str, list[Any]], likes: Callable[[Path], bool] = lambda path: True
) -> Any:
    """A copy with one to four things wrong.

    Args:
        known: keys with values that may come in from elsewhere, see :func:`pool`.
        likes: the places where most of it happens.
    """
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        value = _with_one(rng, value, known, likes)
    return value


def _with_one(rng: Random, value: Any, known: dict[str, list[Any]], likes: Callable[[Path], bool]) -> Any:
    places = list(paths(value))
    liked = [path for path in places if likes(path)]
    path = rng.choice(liked if liked and rng.random() < 0.8 else places)
    if not path:
        return _other(rng, value, value, known) if rng.random() < 0.1 else _grown(rng, value, known)
    holder, key = at(value, path[:-1]), path[-1]
    rng.choice(_STEPS)(rng, value, holder, key, known)
    return value


def _replace(rng: Random, root: Any, holder: Any, key: Any, known: dict[str, list[Any]]) -> None:
    holder[key] = _other(rng, holder[key], root, known)


def _from_its_own_kind(rng: Random, root: Any, holder: Any, key: Any, known: dict[str, list[Any]]) -> None:
    """A value that this key has elsewhere: alone it is healthy, here it may contradict the rest."""
    holder[key] = _copied(rng.choice(known.get(key, [None]) if isinstance(key, str) else [0]))


def _delete(rng: Random, root: Any, holder: Any, key: Any, known: dict[str, list[Any]]) -> None:
    del holder[key]


def _rename(rng: Random, root: Any, holder: Any, key: Any, known: dict[str, list[Any]]) -> None:
    if isinstance(holder, dict):
        holder[rng.choice([*known, str(key).upper(), f"{key} ", f"_{key}", ""])] = holder.pop(key)
    else:
        holder.append(holder[key])


def _twice(rng: Random, root: Any, holder: Any, key: Any, known: dict[str, list[Any]]) -> None:
    if isinstance(holder, dict):
        holder[f"{key}{_AGAIN}{rng.randrange(10**6)}"] = _other(rng, holder[key], root, known)
    else:
        holder[key:key] = [_copied(holder[key])] * rng.choice((1, 2, 1000))


def _grow(rng: Random, root: Any, holder: Any, key: Any, known: dict[str, list[Any]]) -> None:
    holder[key] = _grown(rng, holder[key], known)


_STEPS = (_replace, _replace, _replace, _from_its_own_kind, _from_its_own_kind, _delete, _rename, _twice, _grow)


def _grown(rng: Random, value: Any, known: dict[str, list[Any]]) -> Any:
    """An object with one key more; a list with one entry more; anything else held by a list or an object."""
    key = rng.choice([*known]) if known else "x"
    if isinstance(value, dict):
        return {**value, key: _copied(rng.choice(known.get(key, [0])))}
    if isinstance(value, list) and rng.random() < 0.7:
        return rng.choice((value[1:], value[:-1], value + value, value[::-1], [*value, _copied(rng.choice(HOSTILE))]))
    depth = rng.choice((1, 1, 2, 30, 90))
    for _ in range(depth):
        value = {key: value} if rng.random() < 0.5 else [value]
    return value


def _other(rng: Random, value: Any, root: Any, known: dict[str, list[Any]]) -> Any:
    """Something else in place of a value: near it, hostile, or from somewhere else."""
    chance = rng.random()
    if chance < 0.35:
        return _near(rng, value)
    if chance < 0.75:
        return _copied(rng.choice(HOSTILE))
    if chance < 0.8:
        return raw(rng.choice(RAW))
    if chance < 0.9 and known:
        return _copied(rng.choice(known[rng.choice([*known])]))
    return _copied(at(root, rng.choice(list(paths(root)))))


def _near(rng: Random, value: Any) -> Any:
    """The same in another type, or a little beside."""
    if isinstance(value, bool):
        return rng.choice((not value, int(value), str(value), [value]))
    if isinstance(value, (int, float)):
        near = (lambda: -value, lambda: value + 1, lambda: value - 1, lambda: value * 2, lambda: value / 3)
        far = (lambda: value * 1_000_000, lambda: float(value), lambda: int(value), lambda: str(value), lambda: [value])
        try:
            return rng.choice(near + far)()
        except (OverflowError, ValueError):
            return 0
    if isinstance(value, str):
        return rng.choice((value.upper(), value[:-1], value + value[:1], f" {value}", [value], {value: value}, 5))
    if isinstance(value, list):
        return rng.choice(
            ({str(i): each for i, each in enumerate(value)}, str(value), len(value), [value], tuple(value))
        )
    return rng.choice((list(value or ()), str(value), [value], True))


def _copied(value: Any) -> Any:
    """Apart from where it came from; a tuple would be as good as a list."""
    return json.loads(json.dumps(value)) if isinstance(value, (list, dict, tuple)) else value


# ---------------------------------------------------------------------------------------------------------
# Bytes


def damaged(
    rng: Random,
    value: Any,
    known: dict[str, list[Any]],
    share: float = 0.8,
    likes: Callable[[Path], bool] = lambda path: True,
) -> bytes:
    """A JSON value as a file with something wrong: in a share of all cases :func:`mutated`, else :func:`spoiled`."""
    if rng.random() < share:
        return as_bytes(mutated(rng, value, known, likes))
    return spoiled(rng, as_bytes(value))


def spoiled(rng: Random, content: bytes, within: int | None = None) -> bytes:
    """A copy with one to three changes of bytes.

    Args:
        within: most changes are in the first that many bytes.
    """
    for _ in range(rng.choice((1, 1, 2, 3))):
        end = within if within is not None and rng.random() < 0.9 else len(content)
        content = rng.choice(_BYTE_STEPS)(rng, content, min(end, len(content)))
    return content


def _flip(rng: Random, content: bytes, end: int) -> bytes:
    if not end:
        return content
    place = rng.randrange(end)
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def _cut(rng: Random, content: bytes, end: int) -> bytes:
    return content[: rng.randrange(end + 1)]


def _without(rng: Random, content: bytes, end: int) -> bytes:
    start, stop = _span(rng, end)
    return content[:start] + content[stop:]


def _insert(rng: Random, content: bytes, end: int) -> bytes:
    place = rng.randrange(end + 1)
    return content[:place] + rng.choice((rng.randbytes(rng.randrange(1, 40)), *_WORDS)) + content[place:]


def _again(rng: Random, content: bytes, end: int) -> bytes:
    start, stop = _span(rng, end)
    return content[:stop] + content[start:stop] * rng.choice((1, 1, 50)) + content[stop:]


def _zero(rng: Random, content: bytes, end: int) -> bytes:
    start, stop = _span(rng, end)
    return content[:start] + bytes(stop - start) + content[stop:]


def _overwrite(rng: Random, content: bytes, end: int) -> bytes:
    """Lengths and counts are whole words: a huge one where a small one was."""
    word = rng.choice(_WORDS)
    place = rng.randrange(end + 1)
    return content[:place] + word + content[place + len(word) :]


def _nothing(rng: Random, content: bytes, end: int) -> bytes:
    return rng.choice((b"", b"\n", b"\xef\xbb\xbf" + content, content + b"\0", content.replace(b"\n", b"\r\n")))


def _span(rng: Random, end: int) -> tuple[int, int]:
    start = rng.randrange(end + 1)
    return start, min(end, start + rng.choice((1, 1, 2, 4, 8, 50, 1000)))


_BYTE_STEPS = (_flip, _flip, _flip, _cut, _without, _insert, _again, _zero, _overwrite, _nothing)

_WORDS = (
    *(bytes([255]) * count for count in (1, 4, 8)),
    *(number.to_bytes(8, "little") for number in (1, 2**31, 2**32, 2**40, 2**62, 2**63)),
    *(number.to_bytes(4, "little") for number in (1, 9, 13, 2**31 - 1, 2**31)),
    *(b"\n", b"\r", b"\0", b"{", b"}", b"[", b'"', b",", b"NaN", b"1e999", b"9" * 5000, b"\xff\xfe", b"\xed\xa0\x80"),
)


def scrambled(rng: Random, text: str) -> str:
    """A text with one to three changes of characters."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, length = rng.randrange(len(text) + 1), rng.choice((0, 1, 1, 2, 6))
        new = rng.choice(
            ("", "", text[place : place + 4] * 2, rng.choice(_PIECES), chr(rng.choice((10, 233, 0x6A21, 0xDCFF))))
        )
        text = text[:place] + new + text[place + length :]
    return text


_PIECES = (
    *(":", ",", "=", "::", ".py::", ".json", "{", "}", "[", "]", '"', "'", "/", "\\", "~", " ", "\0", "-", "%", "\t"),
    *("nan", "inf", "-1", "0", "1e308", "1e999", "9" * 5000, "9" * 30, "x" * 5000, "factor=4", "factor=", "=4", "null"),
    *("true", "[[", "]]", "[" * 2000, '{"a":' * 2000, "as-is", "yarn", "over=yarn", "🦙", "é", "\u202e"),
)
