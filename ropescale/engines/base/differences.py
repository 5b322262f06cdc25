"""Differences between what an engine computes and what was asked, and how they are known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["honoured", "recomputed", "dropped", "unsupported"]
"""Computed as asked; replaced by the engine's own number; ignored; not supported, or not configurable."""

How = Literal["served", "run", "source", "docs"]
"""A test serves such a model, with such a value, and compares log-probabilities; a test runs that engine's code (of
vLLM and SGLang the rotary layer, of mlx-lm whole models); its code was read; its documentation says so."""

LOST = ("dropped", "unsupported")


@dataclass(frozen=True)
class Difference:
    """One deviation of an engine from the request.

    Attributes:
        field: of the schedule, as in :func:`ropescale.engines.field_rows.fields`.
        status: how the engine treats the field; ``honoured`` if only a condition is worth stating.
        computes: the value that the engine computes instead.
        warning: the sentence for the user, without its subject and with ``{s}`` or ``{ies}`` for the verb's third
            person; empty if there is nothing to warn about.
        who: the subject of that sentence, if not the engine.
        how: how it is known.
        version: the version that it was checked against, if not the engine's usual one.
    """

    field: str
    status: Status
    computes: str
    warning: str = ""
    who: str = ""
    how: How = "source"
    version: str = ""


def base_rope(warning: str, how: How = "source") -> Difference:
    """Returns the difference of an engine that leaves the frequencies unscaled."""
    return Difference("frequencies", "dropped", "base RoPE", warning, how=how)


def stops(warning: str = "", computes: str = "stops with an error", how: How = "source") -> Difference:
    """Returns the difference of an engine that cannot run the model with this schedule."""
    return Difference("frequencies", "unsupported", computes, warning, how=how)


def recomputed_scale(asked: float, computed: float, where: str = "", of_lengths: bool = False) -> Difference:
    """Returns the difference of an engine that computes the attention factor itself, perhaps from the lengths."""
    verb, source = ("compute", " from the lengths") if of_lengths else ("recompute", "")
    text = f"{verb}{{s}} the attention factor{where}{source} ({computed:.4g} instead of {asked:.4g})"
    return Difference("attention factor", "recomputed", f"{computed:.6g}", text)


def always_truncates(where: str = "") -> Difference:
    """Returns the difference of an engine that always rounds yarn's ramp."""
    text = f"always round{{s}} the ramp to whole pairs{where} (truncate = true)"
    return Difference("truncate", "dropped", "true", text)


def ignores_factor(how: How = "source") -> Difference:
    """Returns the difference of an engine that ignores the factor of proportional RoPE."""
    return Difference("factor", "dropped", "1", "ignore{s} the factor of proportional RoPE", how=how)


_FORMS = {False: {"s": "s", "ies": "ies", "self": " itself"}, True: {"s": "", "ies": "y", "self": " themselves"}}
"""Verb endings and the reflexive pronoun, for one engine and for several."""

_FORM = re.compile(r"\{(s|ies|self)\}")
"""Only these braces are replaced; others may come from a configuration."""


def sentence(engines: list[str], warning: str) -> str:
    """Joins a warning with the engines that it concerns: ``vLLM and SGLang: ignore ...``."""
    joined = " and ".join([", ".join(engines[:-1]), engines[-1]] if engines[1:] else engines)
    forms = _FORMS[len(engines) > 1]
    return f"{joined}: {_FORM.sub(lambda found: forms[found[1]], warning)}"
