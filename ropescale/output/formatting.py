"""Formats text for users: tables, numbers, values in messages; escapes foreign text."""

import difflib
import math
import os
import re
import reprlib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path


@dataclass(frozen=True)
class Grid:
    """A table of escaped cells; ``right`` has the indexes of right-aligned number columns. As text, it is Markdown."""

    header: list[str]
    rows: list[list[str]]
    right: list[int]

    @property
    def widths(self) -> list[int]:
        """The width of each column, in characters."""
        return [max(3, *map(len, column)) for column in zip(self.header, *self.rows, strict=True)]

    def __str__(self) -> str:
        widths = self.widths
        signs = [">" if i in self.right else "<" for i in range(len(widths))]
        rule = ["-" * (width - 1) + (":" if sign == ">" else "-") for width, sign in zip(widths, signs)]
        lines = []
        for row in [self.header, *self.rows]:
            lines.append([f"{cell:{sign}{width}}" for cell, sign, width in zip(row, signs, widths)])
        return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


Block = str | Grid
"""A part of a page: a paragraph, a heading or code in Markdown, or a table."""

Page = list[Block]
"""What is printed or written: as Markdown, as HTML, and fitted to a terminal. Empty parts are left out."""


def grid(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> Grid:
    """Returns a table of these texts.

    Args:
        right: the indexes of right-aligned number columns.
    """
    head, *lines = [[cell(visible(text)) for text in row] for row in [header, *rows]]
    return Grid(head, lines, list(right))


def markdown(page: Iterable[Block]) -> str:
    """Returns a page as Markdown."""
    return "\n\n".join(str(block) for block in page if block)


def first_line(error: BaseException) -> str:
    """Returns the first line of another library's error, short enough for a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]  # the reason is on the next line
    return cut(said.rstrip(".:"), _LONGEST_LINE)


_LONGEST_LINE = 300
"""The largest number of characters shown of another library's error; some errors repeat a full file."""

_WIDTH = 60
"""The largest number of characters of a value in a message."""


def cut(text: str, most: int) -> str:
    """Cuts the middle out of a text that is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    head = (most - 5) * 2 // 3
    return f"{text[:head]} ... {text[head + 5 - most :]}"


def brief(value: object) -> str:
    """Returns a value for a message: the start of its ``repr``, in bounded time and memory."""
    text = _Brief().repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def listed(names: Iterable[object], most: int = 12) -> str:
    """Joins names from a file: ``a, b, c``; cuts long names, and ends long lists with ``...``."""
    first = list(islice(names, most + 1))
    words = [cut(name, _WIDTH) if isinstance(name, str) else brief(name) for name in first[:most]]
    return ", ".join([*words, "..."] if len(first) > most else words)


def suggest(word: str, known: Iterable[str], otherwise: str) -> str:
    """Returns ``did you mean 'yarn'?`` if a known word is similar, else ``otherwise``."""
    names = list(known)
    begun = [name for name in names if word and name.startswith(word)]
    close = begun or difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


class _Brief(reprlib.Repr):
    """A bounded ``repr``: the first items of containers, without numbers of thousands of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 20
        self.maxlong = self.maxstring = self.maxother = 2 * _WIDTH

    def repr_int(self, x: int, level: int) -> str:
        try:
            return repr(x)
        except ValueError:
            return "an enormous number"


def size(count: float) -> str:
    """Formats a number of bytes with three digits and a unit: ``12.3 kB``, ``4.56 GB``."""
    units = "B kB MB GB TB".split()
    power = min((len(f"{count:.0f}") - 1) // 3, len(units) - 1)
    return f"{count / 1000**power:.3g} {units[power]}"


def value_text(value: object) -> str:
    """Formats a value for a table: ``none``, ``true``, or a number with six significant digits."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def finite(value: object) -> object:
    """Returns plain data with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- Escaping: names of files and folders, specs, text from a configuration
# Such text may contain newlines, backticks, bidirectional marks, or the end of a comment. Harmless
# text is never changed.

_LONGEST = 120
"""The largest number of characters of a name in a sentence."""


def visible(text: str) -> str:
    r"""Returns a text on one line, with invisible characters escaped as ``\n`` or ``\u202e``."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def visible_lines(text: str) -> str:
    """Returns a text like :func:`visible`, but with its lines."""
    return "\n".join(map(visible, text.split("\n")))


def inert(text: str) -> str:
    """Escapes a text for a cell of CSV: control characters, and starts of a formula, also after a semicolon."""
    return _FORMULA.sub("'", visible_lines(text))


_FORMULA = re.compile(r"(?!-[\d.]+$)(^|(?<=;))(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""The places where a formula, but not a negative number, would start; the last four signs are wide ones."""


def named(text: str | os.PathLike[str]) -> str:
    """Returns a name for a sentence: escaped, and without the middle if it is long."""
    return cut(visible(os.fspath(text)), _LONGEST)


def stays_below(name: str) -> bool:
    r"""Whether a name from a file refers to a path below the file's folder, on any system.

    False for a part that is empty, ``.`` or ``..``, also between backslashes, for absolute names and drive letters.
    """
    parts = re.split(r"[/\\]", name)
    return "\0" not in name and not {"", ".", ".."} & set(parts) and not re.match("[A-Za-z]:", name)


def code_span(text: str) -> str:
    """Returns inline code in Markdown, with a fence longer than any run of backticks inside."""
    shown = visible(text)
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown[:1] == "`" or shown[-1:] == "`" or not shown.strip() else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: str) -> str:
    """Escapes Markdown for a table cell: a bar would start the next cell, even after an escaped backslash."""
    return re.sub(r"\\*\|", r"\|", text)


def sentence(text: str) -> str:
    """Escapes a sentence for a Markdown paragraph or item, so that names cannot start a block, a tag or a link."""
    return visible(text).replace("<", "&lt;").replace("](", "]\\(")


def escaped(name: str) -> str:
    """Escapes a name for a line of Markdown, so that it cannot start code, a tag, a comment or a link, or end the line.

    The name stays readable; most names do not change.
    """
    return _MARKUP.sub(r"\\\g<0>", visible(name))


_MARKUP = re.compile(r"\\(?=[!-/:-@\[-`{-~])|`|<(?=[A-Za-z/!?])|(?<=\])\(")


def fenced(language: str, text: str) -> str:
    """Returns a block of code in Markdown, with a fence longer than any in the code."""
    longest = max(map(len, re.findall("^ *(`+)", text, re.MULTILINE)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def shell_word(word: str) -> str:
    """Quotes a word for a shell if needed, on one line; unprintable words as ``$'...'``, which bash and zsh read."""
    if word.isprintable():
        return shlex.quote(word)
    try:
        escaped = re.sub(rb"[^\w./-]", lambda byte: b"\\%03o" % ord(byte[0]), os.fsencode(word))
    except UnicodeEncodeError:  # a lone surrogate, which no path has
        return shlex.quote(visible(word))
    return f"$'{escaped.decode()}'"


def argument(path: str | Path) -> str:
    """Returns a path for a command, with ``./`` before a leading dash, which would be read as an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


# --- Short names of schedules from files; results.json keeps the full spec


def names_of(files: Mapping[str, str]) -> dict[str, str]:
    """Returns a name for every schedule from a file: the end of its path that no other file has.

    Args:
        files: the file of each schedule, by label. Schedules from the same file get no name.
    """
    paths = Counter(files.values())
    names = dict[str, str]()
    for label, file in files.items():
        if paths[file] == 1:
            ends = ["/".join(Path(file).parts[-count:]) for count in (1, 2)]
            alone = [end for end in ends if sum(f"/{each}".endswith(f"/{end}") for each in paths) == 1]
            names[label] = alone[0] if alone else file
    return names


def definitions(names: Mapping[str, str]) -> str:
    """Returns the paragraph that defines the names; "" if there are no names."""
    return "\n".join(f"* {escaped(name)}: {code_span(label)}" for label, name in names.items() if label != name)
