"""What an engine computes otherwise than asked, and how that is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["honoured", "recomputed", "dropped", "unsupported"]
"""Computed as asked; replaced by a number of the engine's own; ignored; the engine stops or cannot be told."""

How = Literal["run", "source", "docs"]
"""A test runs that engine's code; its code was read; its documentation says so."""

LOST = ("dropped", "unsupported")


@dataclass(frozen=True)
class Difference:
    """One thing that an engine does otherwise than asked, or cannot do.

    Attributes:
        field: of the schedule, as in :func:`ropescale.engines.rows.fields`.
        status: what becomes of it; ``honoured`` where only a condition has to be told.
        computes: what the engine computes instead.
        warning: the sentence for whoever patches, without its subject and with ``{s}`` or ``{ies}`` where the verb's
            third person ends; empty where there is nothing to warn about.
        who: the subject of that sentence, where it is not the engine as such.
        how: how it is known, where that is not how the engine's other behaviour is.
        version: what it was checked against, where that is not the engine's other version.
    """

    field: str
    status: Status
    computes: str
    warning: str = ""
    who: str = ""
    how: How | None = None
    version: str = ""


def base_rope(warning: str, how: How | None = None) -> Difference:
    """Returns the difference of an engine that leaves the frequencies unscaled."""
    return Difference("frequencies", "dropped", "base RoPE", warning, how=how)


def stops(warning: str = "", computes: str = "stops with an error", how: How | None = None) -> Difference:
    """Returns the difference of an engine that cannot run the model under this schedule."""
    return Difference("frequencies", "unsupported", computes, warning, how=how)


def recomputed_scale(asked: float, computed: float, where: str = "", of_lengths: bool = False) -> Difference:
    """Returns the difference of an engine that computes the attention factor itself, perhaps from the lengths."""
    verb, source = ("compute", " from the lengths") if of_lengths else ("recompute", "")
    text = f"{verb}{{s}} the attention factor{where}{source} ({computed:.4g} instead of {asked:.4g})"
    return Difference("attention factor", "recomputed", f"{computed:.6g}", text)


def always_truncates(where: str = "") -> Difference:
    """Returns the difference of an engine that rounds yarn's ramp whatever is asked."""
    text = f"always round{{s}} the ramp to whole pairs{where} (truncate = true)"
    return Difference("truncate", "dropped", "true", text)


def ignores_factor(how: How | None = None) -> Difference:
    """Returns the difference of an engine that reads no factor of proportional RoPE."""
    return Difference("factor", "dropped", "1", "ignore{s} the factor of proportional RoPE", how=how)


_FORMS = {False: {"s": "s", "ies": "ies", "self": " itself"}, True: {"s": "", "ies": "y", "self": " themselves"}}
"""How a verb ends, and what refers back, for one engine and for several."""

_FORM = re.compile(r"\{(s|ies|self)\}")
"""Only these braces are read; those of a configuration's own words stay."""


def sentence(engines: list[str], warning: str) -> str:
    """Joins a warning with the engines that it holds for: ``vLLM and SGLang: ignore ...``."""
    joined = " and ".join([", ".join(engines[:-1]), engines[-1]] if engines[1:] else engines)
    forms = _FORMS[len(engines) > 1]
    return f"{joined}: {_FORM.sub(lambda found: forms[found[1]], warning)}"
