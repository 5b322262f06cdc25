r"""Text of others inside ropescale's own: names of files and folders, specs, words of a configuration.

Such a text may hold newlines, backticks, marks that turn the direction of writing, or what ends a comment. Nothing here
changes a harmless one.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

_LONGEST = 120
"""Characters of a name that a sentence has room for."""


def visible(text: str) -> str:
    r"""Returns a text on one line, with characters that cannot be seen written as ``\n`` or ``\u202e``."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def named(text: str | os.PathLike[str]) -> str:
    """Returns a name for a sentence: visible, and without the middle of a long one."""
    shown = visible(os.fspath(text))
    half = (_LONGEST - 5) // 2
    return shown if len(shown) <= _LONGEST else f"{shown[:half]} ... {shown[-half:]}"


def stays_below(name: str) -> bool:
    r"""Whether a name that a file gives can only be that of a file in its folder or below, on any system.

    So it is refused with a part ``..``, also between backslashes, or empty, from the root, and with a drive's letter.
    """
    parts = re.split(r"[/\\]", name)
    return "\0" not in name and not {"", ".", ".."} & set(parts) and not re.match("[A-Za-z]:", name)


def code_span(text: str) -> str:
    """Returns inline code in Markdown; the fence is longer than any run of backticks inside."""
    shown = visible(text)
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown[:1] == "`" or shown[-1:] == "`" or not shown.strip() else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: str) -> str:
    """Escapes Markdown for a table: a bar would begin the next cell, and so would one whose backslash is escaped."""
    return re.sub(r"\\*\|", r"\|", text)


def sentence(text: str) -> str:
    """Escapes a sentence for a paragraph or an item of Markdown; names in it cannot begin a block, a tag or a link."""
    return visible(text).replace("<", "&lt;").replace("](", "]\\(")


def escaped(name: str) -> str:
    """Escapes a name for a line of Markdown: it begins no code, tag, comment or link, and ends no line.

    What is in it stays readable, and most names stay as they are.
    """
    return _MARKUP.sub(r"\\\g<0>", visible(name))


_MARKUP = re.compile(r"\\(?=[!-/:-@\[-`{-~])|`|<(?=[A-Za-z/!?])|(?<=\])\(")


def fenced(language: str, text: str) -> str:
    """Returns a block of code in Markdown, whose fence no line of the code can be."""
    longest = max(map(len, re.findall("^ *(`+)", text, re.MULTILINE)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def uncommented(text: str) -> str:
    """Escapes Markdown so that nothing begins or ends a comment, and the marks around it stay the only ones."""
    return text.replace("<!--", "<\\!--").replace("-->", "--\\>")


def shell_word(word: str) -> str:
    r"""Quotes a word of a shell's command line where needed: on one line, and with nothing invisible.

    What ``shlex.quote`` would leave as it is comes as ``$'...'``, which bash and zsh read.
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_in_dollar_quotes, word)) + "'"


def _in_dollar_quotes(char: str) -> str:
    if char in "'\\":
        return f"\\{char}"
    if char.isprintable():
        return char
    kept = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"  # a byte of a path, or half a pair
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", kept))  # three digits: whatever follows is not read


def argument(path: str | Path) -> str:
    """Returns a path as a command takes it: one that begins with a dash would be read as an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text
