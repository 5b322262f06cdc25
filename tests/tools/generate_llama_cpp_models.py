"""Writes ``ropescale/engines/llama_cpp.json``: what llama.cpp's converter makes of built_tables.py's cases.

Run with tests/helpers and its folders engines and model_coverage in PYTHONPATH and llama.cpp's folder as argument, it
writes the file again, after a change of the version there.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from built_tables import CHANGES, Case, ask, cases, share

from ropescale.engines import llama_cpp, model_code
from ropescale.rope import Rope


@dataclass(frozen=True)
class Named(Case):
    """A case whose configuration names the class that loads the model, by which the converter finds its code."""

    @property
    def config(self) -> dict[str, Any]:
        config = super().config
        return {**config, "architectures": [model_code.load()["architectures"].get(config["model_type"])]}


def generate(folder: Path) -> dict[str, Any]:
    """Returns the file's content."""
    asked = [Named(each.name, each.kind, each.dialect, each.read, each.length) for each in cases()]
    architectures, *answers = ask(Path(sys.executable), "llama_cpp_worker.py", asked, str(folder))
    types: dict[str, dict[str, Any]] = {}
    for case, answer in zip(asked, answers):
        if answer.get("keys") and case.kind != "dynamic":
            entry = types.setdefault(case.name, {"share": share(case), "both": {}})
            entry.setdefault(case.dialect, {})[case.kind] = _verdict(case, answer)
    return {"version": llama_cpp.ENGINE.version, "architectures": architectures, "types": types}


def _verdict(case: Case, answer: Mapping[str, Any]) -> str:
    """Returns what the keys have otherwise than the file: ``theta``, ``width``, ``scaling`` or nothing (``""``)."""
    keys, ropes = answer["keys"], case.read.ropes
    rope = ropes.get("full_attention") or next(iter(ropes.values()))
    if not math.isclose(keys.get("rope.freq_base", 10000.0), rope.theta, rel_tol=1e-6):
        return "theta"
    usual = keys.get("embedding_length", 0) // max(1, _first(keys.get("attention.head_count", 1)))
    width = keys.get("rope.dimension_count", keys.get("attention.key_length", usual))
    if width != 2 * len(case.asked[next(key for key in ropes if ropes[key] is rope)]):
        return "width"
    kind = "yarn" if case.kind in CHANGES and rope.scaling["rope_type"] == "yarn" else case.kind
    return "" if _is_scaled(kind, rope, keys, answer["tensors"]) else "scaling"


def _first(value: Any) -> int:
    return value[0] if isinstance(value, list) else value


def _is_scaled(kind: str, rope: Rope, keys: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    stated, factor = keys.get("rope.scaling.type", "none"), keys.get("rope.scaling.factor", 1.0)
    if kind in ("linear", "yarn"):
        return stated == kind and factor == rope.scaling["factor"]
    names = {name.partition(".")[0] for name in tensors}
    wanted = {"longrope": "rope_factors_long", "llama3": "rope_freqs", "proportional": "rope_freqs"}
    return wanted[kind] in names if kind in wanted else not names and (stated == "none" or factor == 1)


if __name__ == "__main__":
    llama_cpp.PATH.write_text(json.dumps(generate(Path(sys.argv[1])), indent=1) + "\n")
