"""Spells the parameters that a message names as options of the command line: ``layers='all'`` as ``--layers all``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

_FLAGS = {
    "out": "-o",
    "overrides": "--set",
    "schedules": "--schedule",
    "source": "--data",
    "documents": "--data",
    "engine": "--for",
}
"""Options whose name is not that of the parameter."""

PARAMETERS = (
    "schedule target_length original_length layers replace_scaling on_top freeze_at out in_place dry_run force link "
    "private push_to_hub revision dtype device "
    "batch_tokens short_context truncation truncation_stride "
    "split_special_tokens generate lengths trust_remote_code tp sequence_parallel "
    "device_map repeat_distance stride fresh force key_spans max_docs "
    "windows budget_tokens streaming concat split text_field glob encoding score numbers within keep_short "
    "objective haystack warmup eval_data"
).split()
"""Parameters that notes and warnings name; ``factor`` is also a field of schedules, which stay as they are."""


_VALUE = r"""=(?:'(?P<quoted>[^']*)'|(?P<plain>\w(?:[\w.,:]*\w)?))"""
_ASIDE = r"""(?<!\w)(?P<mark>['"`]).*?(?P=mark)(?!\w)"""
"""Quoted text, which stays as it is."""


def spelled(text: str, fields: Iterable[str] = ()) -> str:
    """Replaces parameters by options.

    Args:
        text: a message in Python's words, such as ``give original_length=N``.
        fields: the parameters it names. One that has no value (``=``) anywhere is replaced where it is a word of the
            sentence, not in quotes or a path. Without any, each of :data:`PARAMETERS` that has a value.
    """
    names = list(fields)
    for name in names or PARAMETERS:
        spell = partial(_option, name)
        text, count = re.subn(rf"(?<![\w:,./\\-]){name}{_VALUE}", spell, text)
        if names and not count:  # beside `layers='all'` the word "layers" is prose
            text = re.sub(rf"{_ASIDE}|(?<![^\s(]){name}(?=[;:,.)]*(?:\s|$))", spell, text)
    return text


def _option(name: str, match: re.Match[str]) -> str:
    groups = match.groupdict()
    if groups.get("mark"):
        return match[0]
    value = groups.get("quoted") or groups.get("plain")
    if value == "False":
        return f"--no-{name.replace('_', '-')}"
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    return flag if value in (None, "True") else f"{flag} {value}"
