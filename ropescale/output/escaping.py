r"""Escapes foreign text in ropescale's output: names of files and folders, specs, words of a configuration.

Such text may hold newlines, backticks, marks that change the direction of writing, or the end of a comment. Harmless
text is never changed.
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
    """Returns a name for a sentence: visible, with the middle of a long one cut."""
    shown = visible(os.fspath(text))
    half = (_LONGEST - 5) // 2
    return shown if len(shown) <= _LONGEST else f"{shown[:half]} ... {shown[-half:]}"


def stays_below(name: str) -> bool:
    r"""Whether a name from a file can only be that of a file in its folder or below, on any system.

    False for an empty part or ``..``, also between backslashes, for absolute names, and for a drive's letter.
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
    """Escapes Markdown for a table: any bar would begin the next cell, even after an escaped backslash."""
    return re.sub(r"\\*\|", r"\|", text)


def sentence(text: str) -> str:
    """Escapes a sentence for a paragraph or an item of Markdown; names in it cannot begin a block, a tag or a link."""
    return visible(text).replace("<", "&lt;").replace("](", "]\\(")


def escaped(name: str) -> str:
    """Escapes a name for a line of Markdown: it begins no code, tag, comment or link, and ends no line.

    The name stays readable, and most names do not change.
    """
    return _MARKUP.sub(r"\\\g<0>", visible(name))


_MARKUP = re.compile(r"\\(?=[!-/:-@\[-`{-~])|`|<(?=[A-Za-z/!?])|(?<=\])\(")


def fenced(language: str, text: str) -> str:
    """Returns a block of code in Markdown, with a fence longer than any in the code."""
    longest = max(map(len, re.findall("^ *(`+)", text, re.MULTILINE)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def uncommented(text: str) -> str:
    """Escapes Markdown so that nothing in it begins or ends a comment."""
    return text.replace("<!--", "<\\!--").replace("-->", "--\\>")


def shell_word(word: str) -> str:
    r"""Quotes a word of a shell's command line where needed: on one line, and with nothing invisible.

    A word that is not printable becomes ``$'...'``, which bash and zsh read.
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
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", kept))  # three digits end an escape


def argument(path: str | Path) -> str:
    """Returns a path for a command; a leading dash would be read as an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text
