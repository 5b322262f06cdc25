"""Compares the rotary tables that engines' own code builds from configurations with the tables asked for.

A tiny configuration of each model type, patched with a schedule of each rope type, is spelled as ropescale writes it
(``both``), as transformers 5 alone does (``v5``) and as transformers 4 does (``v4``); so is one with another
``partial_rotary_factor`` and one with another ``head_dim``, where the model type reads these.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coverage_models import tiny_config
from coverage_outcomes import load
from planning import make_plan

from ropescale.configs.class_defaults import PARTIAL_NAMES, THETA_NAMES
from ropescale.configs.configuration import Configuration
from ropescale.engines.base import layers_of
from ropescale.errors import ConfigError, RopescaleError
from ropescale.planning.plan import Plan
from ropescale.schedules.as_is import stock_table

THETA = 54321.0
KINDS = {
    "default": f"abf:rope_theta={THETA}",
    "linear": "linear:factor=4",
    "yarn": "yarn:factor=4,truncate=true",
    "llama3": "llama3:factor=4",
    "longrope": "",
    "dynamic": "dynamic:factor=4",
    "proportional": "proportional:partial_rotary_factor=0.5,factor=2",
}
"""A schedule per rope type; for longrope, a table of as many factors as the model has pairs."""

CHANGES = {"partial": {"partial_rotary_factor": 0.75}, "head_dim": {"head_dim": 16}}
_V4 = {"rope_scaling", *THETA_NAMES, *PARTIAL_NAMES}
DIALECTS = {"both": set(), "v5": _V4, "v4": {"rope_parameters"}, "bare": {*_V4, "rope_parameters"}}
"""The keys that each dialect lacks."""
_WRAPPED = {"mistral3": ["ministral3"]}
"""Types of language models that a wrapper may have, apart from its default."""

_EVERY_FOURTH = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Types of which every fourth layer rotates."""


@dataclass(frozen=True)
class Case:
    """A configuration, and the tables asked for by layer type; ``kind`` is a rope type or a key of CHANGES."""

    name: str
    kind: str
    dialect: str
    read: Configuration
    length: int

    @property
    def config(self) -> dict[str, Any]:
        """The configuration in this dialect."""
        return _without(self.read.raw, DIALECTS[self.dialect])

    @property
    def asked(self) -> dict[str, Sequence[float]]:
        """The frequencies by layer type."""
        return {key: stock_table(rope, self.length).inv_freq for key, rope in self.read.ropes.items()}

    def key_of(self, path: str) -> str:
        """Returns the layer type of the module at a path."""
        kinds: Any = self.read.default_of("layer_types") or ()
        [number] = re.findall(r"\.(\d+)\.", path)[:1] or ["0"]
        keyed = "all" not in self.read.ropes and int(number) < len(kinds)
        return kinds[int(number)] if keyed else "all"


def cases() -> Iterator[Case]:
    """Yields the cases of every measured type that rotates by its configuration."""
    for name, outcome in sorted(load().items()):
        if "refused" in outcome:
            continue
        for inner in (None, *_WRAPPED.get(name, ())):
            config = tiny_config(name)
            text = config.get("text_config") or config
            if text["model_type"] in _EVERY_FOURTH:
                text |= {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
            if name == "falcon_h1":
                config["head_dim"] = 32  # as every release states it
            if inner:
                config["text_config"] = tiny_config(inner)
            yield from _cases_of(f"{name}/{inner}" if inner else name, config)


def _cases_of(name: str, config: dict[str, Any]) -> Iterator[Case]:
    try:
        ropes = Configuration.read(config).ropes
    except ConfigError:  # it states no trained length
        return
    seen: set[str] = set()
    for spec in KINDS.values():
        plan = _plan(config, spec)
        kind = plan and str(layers_of(plan)[0].parameters["rope_type"])
        if plan and kind not in seen:
            seen.add(kind)
            yield from (Case(name, kind, dialect, plan.planned, plan.length) for dialect in ("both", "v5", "v4"))
    bare = _without(config, DIALECTS["bare"])
    with suppress(ConfigError):
        read = Configuration.read(bare)
        if all(rope.scaling["rope_type"] == "default" for rope in read.ropes.values()):
            yield Case(name, "default", "bare", read, 1024)
    for kind in CHANGES:
        inside = config.get("text_config")
        is_whole = not isinstance(inside, dict)
        changed = _changed(config, kind) if is_whole else {**config, "text_config": _changed(inside, kind)}
        plan = _plan(changed, KINDS["yarn" if name == "gpt_oss" else "default"])  # vLLM's gpt_oss reads yarn alone
        sizes = [(each.head_dim, each.rotary_dim) for each in ropes.values()]
        if plan and sizes != [(each.head_dim, each.rotary_dim) for each in plan.planned.ropes.values()]:
            dialects = ("both", "v5", "v4") if kind == "partial" else ("both",)
            yield from (Case(name, kind, dialect, plan.planned, plan.length) for dialect in dialects)


def _changed(section: dict[str, Any], kind: str) -> dict[str, Any]:
    parameters = section.get("rope_parameters") or {}
    changed = section | CHANGES[kind]
    if CHANGES[kind].keys() & parameters.keys():
        changed["rope_parameters"] = parameters | CHANGES[kind]
    return changed


def _without(config: Mapping[str, Any], dropped: set[str]) -> dict[str, Any]:
    copied = json.loads(json.dumps(config))
    for section in (copied, copied.get("text_config") or {}):
        for key in dropped:
            section.pop(key, None)
    return copied


def _plan(config: dict[str, Any], spec: str) -> Plan | None:
    for layers in ("full", "all") if spec == KINDS["default"] else ("all", "full"):
        for replaces in (False, True):
            try:
                asked = spec or _factors(config, layers, replaces)
                plan = make_plan(config, asked, layers=layers, replace_scaling=replaces)
            except RopescaleError:
                continue
            if plan.layers:
                return plan
    return None


def _factors(config: dict[str, Any], layers: str, replaces: bool) -> Any:
    ropes = make_plan(config, KINDS["default"], layers=layers, replace_scaling=replaces).ropes
    tables = {key: {"name": "table", "factors": [1 + i / 8 for i in range(rope.pairs)]} for key, rope in ropes.items()}
    return tables if len({rope.pairs for rope in ropes.values()}) > 1 else next(iter(tables.values()))


# ---------------------------------------------------------------------------------------------------------


def ask(python: Path, worker: str, asked: Sequence[Case], *words: str) -> list[dict[str, Any]]:
    """Returns what a worker answers to each case."""
    lines = [json.dumps({"config": case.config, "length": case.length}) for case in asked]
    script = Path(__file__).with_name(worker)
    done = subprocess.run(
        [str(python), str(script), *words], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def verdict(case: Case, answer: Mapping[str, Any]) -> str | dict[str, str]:
    """Returns how the built tables differ from those asked for, by layer type if they differ in that.

    ``""``: they agree. ``base``: no scaling. ``pairs``: other coordinates turn together. ``width``: another number of
    coordinates rotates. ``other``: other frequencies. ``stops``: an error. ``unread``: no table was found.
    """
    if "error" in answer:
        return "stops"
    found: dict[str, str] = {}
    interleaved = case.read.family.interleaved
    for path, table in answer["tables"].items():
        key = case.key_of(path)
        if key in case.asked and not found.get(key):
            plain = {rope.theta for each, rope in case.read.ropes.items() if each == key}
            found[key] = _apart(table, case.asked[key], next(iter(plain)), interleaved)
    if not found or (missing := case.asked.keys() - found.keys() - {"all"}) == case.asked.keys():
        return "unread"
    found |= dict.fromkeys(missing, "unread")
    return found if len(set(found.values())) > 1 else next(iter(found.values()))


def _apart(table: Mapping[str, Any], asked: Sequence[float], theta: float, interleaved: bool) -> str:
    built = table["inv_freq"]
    turning = [f for f in asked if f]
    if len(built) != len(asked) and [f for f in built if f] != turning:
        return "width" if len([f for f in built if f]) != len(turning) else "other"
    if all(math.isclose(a, b, rel_tol=2e-5) for a, b in zip(built, asked)):
        return "" if table["halves"] is not interleaved or len(asked) == 1 else "pairs"
    base = [theta ** (-i / len(asked)) for i in range(len(asked))]
    return "base" if all(math.isclose(a, b, rel_tol=2e-5) for a, b in zip(built, base)) else "other"


def summary(asked: Sequence[Case], answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the verdicts by model type, dialect and kind, of the types that the engine's code could build.

    Left out, as not known: a type of which nothing could be built or found, one whose plain table is of other pairs
    (its weights may be permuted), and ``minimax_m3_vl``, whose sizes shrink otherwise in transformers.
    """
    types: dict[str, dict[str, Any]] = {}
    for case, answer in zip(asked, answers):
        if "not supported" not in answer.get("error", ""):
            entry = types.setdefault(case.name, {"inner": case.read.model_type, "share": share(case)})
            entry.setdefault(case.dialect, {})[case.kind] = verdict(case, answer)
            if answer.get("whole"):
                entry["whole"] = True
    quits = {case.name for case, answer in zip(asked, answers) if answer.get("error", "").startswith("SystemExit")}
    return {name: entry for name, entry in types.items() if name in quits or _is_known(name, entry)}


def share(case: Case) -> float:
    """Returns the share of a head that rotates."""
    rope = next(iter(case.read.ropes.values()))
    return round(rope.rotary_dim / rope.head_dim, 6)


def _is_known(name: str, entry: Mapping[str, Any]) -> bool:
    built = [found for dialect in ("both", "v5", "v4") for found in entry[dialect].values()]
    plain, yarn = (entry["both"].get(kind) for kind in ("default", "yarn"))
    alone = yarn == "" and plain == "unread"  # gpt-oss takes yarn alone
    return (
        name != "minimax_m3_vl"
        and (alone or plain not in ("pairs", "unread"))
        and not {*map(str, built)} <= {"stops", "unread"}
    )
