"""Rows of well-known training data, recognized by their fields: ShareGPT, Alpaca, and prompts with completions.

They are read as LLaMA-Factory and TRL read them: ShareGPT's ``from`` becomes a role, Alpaca's ``instruction`` and
``input`` are joined by a line end, and a completion follows its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import DataError

Row = Mapping[str, object]
Content = str | list[object]
"""A text, or a chat's messages."""

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "tool"), "tool"),
    "system": "system",
}
"""The roles of ShareGPT's ``from``."""


@dataclass(frozen=True)
class Format:
    """A kind of rows.

    Attributes:
        what: its name in messages.
        fields: the fields that a row must have.
        optional: further fields that are read.
        read: returns the content of a row; its second argument names the row in errors.
    """

    what: str
    fields: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Row, str], Content]


def _share_gpt(row: Row, name: str) -> Content:
    turns, messages = row["conversations"], _system(row)
    if not isinstance(turns, list):
        raise DataError(f"{name}: field 'conversations' is not a list of messages")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, Mapping) or "from" not in turn:
            messages.append(turn)
            continue
        role = _ROLES.get(str(turn["from"]).lower())
        if role is None:
            raise DataError(f"{name}: message {number} is from {turn['from']!r}, which is none of {', '.join(_ROLES)}")
        messages.append({"role": role, "content": turn.get("value")})
    return messages


def _alpaca(row: Row, name: str) -> Content:
    messages, history = _system(row), row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise DataError(f"{name}: field 'history' is not a list of pairs of an instruction and an output")
    asked = "\n".join(str(row[field]) for field in ("instruction", "input") if row.get(field))
    for prompt, answer in [*history, (asked, row["output"])]:
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return messages


def _completion(row: Row, name: str) -> Content:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        return [*prompt, *completion]
    if isinstance(prompt, str) and isinstance(completion, str):
        return prompt + completion
    raise DataError(f"{name}: fields 'prompt' and 'completion' are neither two texts nor two lists of messages")


def _system(row: Row) -> list[object]:
    text = row.get("system")
    return [{"role": "system", "content": text}] if text else []


SHARE_GPT = Format("ShareGPT conversations, read as chats", ("conversations",), ("system",), _share_gpt)

FORMATS = (
    SHARE_GPT,
    Format("Alpaca instructions, read as chats", ("instruction", "output"), ("input", "system", "history"), _alpaca),
    Format("prompts followed by completions", ("prompt", "completion"), (), _completion),
)


def recognized(names: Mapping[str, object]) -> Format | None:
    """Returns the format that has all its fields among ``names``."""
    return next((each for each in FORMATS if all(field in names for field in each.fields)), None)
