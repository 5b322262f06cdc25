"""What the files of a run must hold: every field that anything reads, its type and its range."""

from __future__ import annotations

import re
from typing import Any

from .checking import (
    SEAL,
    Check,
    Wrong,
    digest,
    each,
    fields,
    flag,
    mapping,
    number,
    optional,
    plain,
    text,
    whole,
)

SCHEMA = 1

_LENGTH = whole(1, 2**40)
_SOME = optional(number())
_POSITIVE = optional(number(0, 1.8e308))
_SHARE = number(0, 1)

SERIES = 256
"""Schedules of one page. Every two of them are compared."""

_ROWS = 20_000


def results(value: Any, where: str = "") -> None:
    """``results.json``, of either kind of run.

    Raises:
        Wrong: says what is not as it should be.
    """
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        raise Wrong("is not one that this version can read")
    kind = value.get("kind", "perplexity")
    if not isinstance(kind, str) or kind not in _RESULTS:
        raise Wrong("is of a kind of run that this version does not know")
    _RESULTS[kind](value, where)
    schedules = {row["schedule"] for row in value["rows"]}
    if len(schedules) > SERIES:
        raise Wrong(f"has {len(schedules):,} schedules, and {SERIES} is the most that can be compared")


def _place(value: Any, where: str) -> None:
    """A pass's folder below ``nll/``: two plain names, neither of which leads up."""
    if not isinstance(value, str) or not _PLACE.fullmatch(value):
        raise Wrong(f"does not say in {where} which folder below nll/ is meant")


_PLACE = re.compile(r"(?!\.)[A-Za-z0-9._=,-]{1,120}/[0-9]{1,15}(-divergence)?")

_NAME = re.compile(r"(?!\.)[A-Za-z0-9._=,-]{1,120}")
ARRAY = re.compile(_PLACE.pattern + r"/[0-9]{5,12}\.npy")
"""Names of files below ``nll/``."""


def _by_name(pattern: re.Pattern[str], check: Check) -> Check:
    """An object whose keys are names of files."""

    def check_all(value: Any, where: str) -> None:
        mapping(check)(value, where)
        odd = next((key for key in value if not pattern.fullmatch(key)), None)
        if odd is not None:
            raise Wrong(f"names a file in {where} that no run writes")

    return check_all


FILES = _by_name(_NAME, each(digest, 1, 2))

_MODEL = fields(
    {"path": text, "config_sha256": text, "weights": text, "dtype": text, "parameters": whole()},
    {"trained_length": optional(_LENGTH)},
)
_DATA = fields(
    {"source": text, "sha256": text, "documents": whole(), "tokens": whole()},
    {"skipped": mapping(whole())},
)


def _protocol(value: Any, where: str) -> None:
    mapping(plain)(value, where)
    fields({}, {"name": text, "mode": text, "stride": optional(_LENGTH), "seed": plain})(value, where)


_COST = each(
    fields({"schedule": text, "lengths": each(_LENGTH), "forward_passes": whole()}),
    most=10 * _ROWS,
)
_COMMON = {"model": _MODEL, "data": _DATA, "protocol": _protocol, "versions": mapping(text)}
_AROUND = {"cost": _COST, "files": FILES, SEAL: digest}

_ROW = fields(
    {
        **dict.fromkeys(("schedule", "table_sha256"), text),
        "length": _LENGTH,
        "documents": whole(1),
        "tokens": whole(1),
        "nll": number(),
        "ppl": number(0, 1.8e308),
        "ppl_low": _POSITIVE,
        "ppl_high": _POSITIVE,
    },
    {
        **dict.fromkeys(("bits_per_byte", "tail_nll", "tail_low", "tail_high"), _SOME),
        **dict.fromkeys(("ppl_boot_low", "ppl_boot_high"), _POSITIVE),
        **{name: whole() for name in ("forward_passes", "documents_at_length")},
        **dict.fromkeys(("mode", "protocol"), text),
        "bootstrap": optional(text),
    },
)
_PAIRED = fields(
    {"schedule": text, "baseline": text, "length": _LENGTH, "delta_nll": number(), "low": _SOME, "high": _SOME},
    dict.fromkeys(("kl", "kl_low", "kl_high", "top1", "top1_low", "top1_high", "boot_low", "boot_high"), _SOME),
)
_REPEATS = fields(
    {
        "schedule": text,
        **{name: whole() for name in ("length", "distance", "order", "far_tokens", "other_tokens")},
        **{f"{which}_{bound}": _POSITIVE for which in ("far", "other") for bound in ("ppl", "low", "high")},
    }
)
_KEY_ROW = fields(
    {
        "schedule": text,
        "length": _LENGTH,
        "tokens": whole(),
        "fraction": _SHARE,
        "nll": _SOME,
        **dict.fromkeys(("ppl", "ppl_low", "ppl_high"), _POSITIVE),
    }
)
_TABLE = fields({"inv_freq": each(number(), most=2**16)}, {"attention_scale": number()})

_PERPLEXITY = fields(
    {**_COMMON, "rows": each(_ROW, 1, _ROWS), "paired": each(_PAIRED, most=_ROWS)},
    {
        **_AROUND,
        "repeats": each(_REPEATS, most=_ROWS),
        "key_tokens": fields({"rows": each(_KEY_ROW, most=_ROWS)}),
        "tables": mapping(mapping(_TABLE)),
    },
)

_ASKED = fields(
    {
        "schedule": text,
        "table_sha256": text,
        "length": _LENGTH,
        "depth": optional(_SHARE),
        "answers": whole(1),
        "correct": whole(),
        **dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"), _SHARE),
        "answer_nll": number(),
        "answer_nll_low": _SOME,
        "answer_nll_high": _SOME,
    }
)
_GAINED = fields(
    {
        **dict.fromkeys(("schedule", "baseline"), text),
        **{name: whole() for name in ("length", "answers", "gained", "lost")},
        **{name: number() for name in ("delta_accuracy", "p_value", "delta_nll")},
        **dict.fromkeys(("low", "high"), _SOME),
    }
)
_EFFECTIVE = fields({"schedule": text, "length": optional(_LENGTH), "needed": number()})

_RETRIEVAL = fields(
    {
        **_COMMON,
        "kind": text,
        "rows": each(_ASKED, 1, 100 * _ROWS),
        "paired": each(_GAINED, most=_ROWS),
        "effective": each(_EFFECTIVE, most=_ROWS),
    },
    _AROUND,
)

_RESULTS: dict[str, Check] = {"perplexity": _PERPLEXITY, "retrieval": _RETRIEVAL}

_DOCUMENT = fields({"name": text, "sha256": text}, {"ids_sha256": text})
_PASS = fields(
    {"schedule": text, "table_sha256": text, "lengths": each(_LENGTH, 1, 10_000), "at": _place},
    {"files": each(digest)},
)
_DIVERGENCE = fields(
    {"schedule": text, "baseline": text, "length": _LENGTH, "at": _place},
    {"files": each(digest)},
)
_INDEX = fields(
    {"bos": flag, "documents": each(_DOCUMENT), "passes": each(_PASS, most=_ROWS)},
    {"divergences": each(_DIVERGENCE, most=_ROWS), "of": digest, "before": _by_name(ARRAY, digest), SEAL: digest},
)


def index(value: Any, where: str = "") -> None:
    """``nll/index.json``.

    Raises:
        Wrong: says what is not as it should be.
    """
    _INDEX(value, where)
    made = [*value["passes"], *value.get("divergences", [])]
    places = [each["at"] for each in made]
    if len(set(places)) < len(places):
        raise Wrong("has two passes in one folder")
    if made and not value["documents"]:
        raise Wrong("has passes and no documents")
    for one in made:
        if "files" in one and len(one["files"]) != len(value["documents"]):
            raise Wrong(f"has {len(one['files']):,} checksums for the {len(value['documents']):,} files in {one['at']}")


LAST = fields(
    {"facts": mapping(plain)},
    {"lengths": each(_LENGTH), "batch_tokens": whole(1), "schedules": each(text), "kind": text},
)
"""``resume/run.json``."""
