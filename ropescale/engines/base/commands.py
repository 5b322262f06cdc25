"""Building blocks of the engines' commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...configs.class_defaults import load
from ...output.escaping import fenced, shell_word, visible


@dataclass(frozen=True)
class Command:
    """A command or snippet to paste.

    Attributes:
        language: ``sh``, ``python``, ``yaml`` or ``json``.
        text: the text to paste, without a final newline.
        note: its assumptions; may be empty.
    """

    language: str
    text: str
    note: str = ""

    def fenced(self) -> str:
        """Returns the command as a block of Markdown."""
        note = f"# {visible(self.note)}\n" if self.note else ""
        return fenced(self.language, note + self.text)


def shell(*words: str) -> str:
    """Returns a quoted command line; in a long one each option begins a line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shell_word(word))
    parts = [" ".join(line) for line in lines]
    return " ".join(parts) if len(" ".join(parts)) <= 110 else " \\\n  ".join(parts)


def option(name: str, told: object) -> list[str]:
    """Returns an option with its value as JSON on one line; nothing for an empty value."""
    return [name, json.dumps(told)] if told else []


def needs_remote_code(config: Mapping[str, object]) -> bool:
    """Whether transformers has no code for this model type and runs the checkpoint's own."""
    return bool(config.get("auto_map")) and str(config.get("model_type")) not in load()
