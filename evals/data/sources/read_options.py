"""The options of reading a source, which each kind of source takes or refuses."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ....errors import DataError
from ..prompts import PromptFields


class Unused(DataError):
    """An option that a source has no use for, and that would be ignored without a word."""


@dataclass(frozen=True)
class ReadOptions:
    """How a source is read.

    Attributes:
        split: which split of a dataset.
        text_field: the field of a row that holds the document.
        glob: which files of a folder, like ``*.txt``; with a slash from the folder on, else by name in every folder.
        encoding: of text files; UTF-8 when None.
        prompt_field: the fields of a prompt and its answers, which are then read from each row, and no text.
        left_out: takes the names of the files in a folder that are no text.
        resolved: takes what a dataset's short name stood for, its commit included.
    """

    split: str | None = None
    text_field: str | None = None
    glob: str | None = None
    encoding: str | None = None
    prompt_field: PromptFields | None = None
    left_out: list[str] = field(default_factory=list, compare=False)
    resolved: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.encoding is not None:
            _check_encoding(self.encoding)
        if self.prompt_field is not None and self.text_field is not None:
            raise DataError("text_field is for texts, and each row is a prompt with answers; drop it", "text_field")

    def only(self, source: str, kind: str, *used: str) -> None:
        """Refuses what is given and is not used.

        Args:
            kind: the kind of source, in words.
            used: names of the fields that it has a use for.

        Raises:
            Unused: names the option.
        """
        for name in (each.name for each in fields(self) if each.name not in (*used, "left_out", "resolved")):
            if getattr(self, name) is not None:
                raise Unused(f"{name} is given, and {source} is {kind}, which has none; leave {name} out", name)


def _check_encoding(encoding: str) -> None:
    try:
        b"text".decode(encoding)
    except UnicodeError:
        pass  # an encoding of more than one byte
    except (LookupError, ValueError):
        raise DataError(
            f"the encoding {encoding!r} is not known; name one that Python knows, like latin-1, cp1252 or utf-16",
            "encoding",
        ) from None
