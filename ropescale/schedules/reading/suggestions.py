"""Guesses what somebody meant who wrote a schedule in other words: ``YaRN``, ``pi``, ``yarn,factor=4``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

OTHER_NAMES = {
    "as-it-is": "as-is",
    "asis": "as-is",
    "default": "base",
    "dynamic-ntk": "dynamic",
    "dynamic-scaling": "dynamic",
    "interpolation": "linear",
    "llama-3": "llama3",
    "llama31": "llama3",
    "llama3.1": "llama3",
    "long-rope": "longrope",
    "no": "base",
    "none": "base",
    "ntk-alpha": "ntk",
    "ntk-aware": "ntk",
    "ntk-aware-dynamic": "dynamic",
    "ntk-aware-scaling": "ntk",
    "ntk-by-part": "ntk-by-parts",
    "ntk-dynamic": "dynamic",
    "ntk-fixed": "ntk",
    "ntk-parts": "ntk-by-parts",
    "ntk-rope": "ntk",
    "ntk-scaling": "ntk",
    "original": "as-is",
    "p-rope": "proportional",
    "pi": "linear",
    "plain": "base",
    "position-interpolation": "linear",
    "rope": "base",
    "su": "longrope",
    "theta": "abf",
    "unscaled": "base",
    "yarn-dynamic": "dynamic-yarn",
}
"""What the field, or another library, calls a schedule that has another name here; only for suggestions."""

_LONGEST = 200
_BETWEEN = " ,;:/=()[]\t-_"


def meant(text: str, known: Mapping[str, Collection[str]]) -> str | None:
    """Returns the spec that somebody may have meant, ``yarn:factor=4`` for ``YaRN factor=4``; None for no idea.

    Args:
        text: what was written instead of a schedule's name.
        known: the schedules' names, each with its fields.
    """
    if len(text) > _LONGEST:
        return None
    words = {**{name: name for name in known}, **OTHER_NAMES}
    written = re.sub(r"[\s_]", "-", text.lower())  # as long as the text
    starts = [word for word in words if written.startswith(word) and not written[len(word) :][:1].isalpha()]
    word = max((word for word in starts if words[word] in known), key=len, default=None)
    if word is None:
        return None
    name = words[word]
    fields = given(text[len(word) :].strip(_BETWEEN), known[name])
    return f"{name}:{fields}" if fields else name


def given(text: str, fields: Collection[str]) -> str:
    """Returns the fields that a text with other separators seems to give: ``factor=4,truncate=no``, or nothing."""
    if re.fullmatch(r"x?[\d.]+x?", text) and "factor" in fields:
        return f"factor={text.strip('x')}"
    pairs = re.findall(r"([A-Za-z_]\w*)\s*[=:\s]\s*([^\s,;=:]+)", text)
    found = {key.lower(): value for key, value in pairs if key.lower() in fields}
    return ",".join(f"{key}={value}" for key, value in found.items())
