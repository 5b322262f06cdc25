"""Tiny checkpoints of several families, schedules in every spelling, and what stock transformers makes of them.

What engines compute is compared with it token by token, on a prompt inside the trained length and on one past it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_models
import torch
from transformers import AutoModelForCausalLM

import ropescale

TRAINED, LENGTH, FACTOR = 128, 512, 4
"""The trained length and the length asked for, in tokens."""

PROMPTS = [tiny_models.document(tokens, seed=tokens)[0].tolist() for tokens in (TRAINED - 8, LENGTH - 1)]
"""Random ids: one prompt inside the trained length, one past it."""

_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
_SMALL = {
    "vocab_size": 257,
    "hidden_size": 128,
    "intermediate_size": 192,
    "max_position_embeddings": TRAINED,
    "initializer_range": 0.2,
    "attention_dropout": 0.0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _HEADS,
    "qwen3": _HEADS,
    "mistral": _HEADS | {"sliding_window": None},
    "phi3": {"num_attention_heads": 4, "num_key_value_heads": 2, "original_max_position_embeddings": TRAINED},
    "gemma3_text": _HEADS
    | {
        "hidden_size": 256,
        "sliding_window": 64,
        "num_hidden_layers": 6,
        "layer_types": None,
        "query_pre_attn_scalar": 32,
    },
    "olmo": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "olmo2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "gpt_neox": {
        "intermediate_size": 512,
        "hidden_act": "gelu_new",
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rotary_pct": 0.5,
    },
}
"""Heads of 32 of which all coordinates rotate, but for GPT-NeoX: 32 of 64.

Some values are as mlx-lm's code has them: GPT-NeoX widens fourfold and has the approximate GELU, and the square root by
which Gemma's embeddings are multiplied must be one that bfloat16 holds.
"""

_FACTORS = [1.0 + i / 4 for i in range(16)]
ROUTES: dict[str, Any] = {
    "base": "base",
    **{name: f"{name}:factor={FACTOR}" for name in ("yarn", "linear", "ntk", "llama3", "dynamic")},
    "per pair": {"name": "table", "factors": _FACTORS, "attention_factor": 1.2},
}
"""Every way in which a schedule is written to a configuration."""

SEARCHED = {
    "all": "yarn:factor=4.2,beta_fast=5.3,beta_slow=0.31,truncate=false,attention_factor=1.17",
    "mlx-lm": "yarn:factor=4.2,beta_fast=6.442139149374341,beta_slow=0.1145592340593805",
}
"""As `ropescale search` finds them: a ramp between pairs with a scale of its own, and from pair 2 to 9 for mlx-lm."""

WRONG: dict[str, Any] = {
    "base": "abf:rope_theta=20000",
    **{name: f"{name}:factor={FACTOR + 1}" for name in ("yarn", "linear", "ntk", "llama3", "dynamic")},
    "per pair": {"name": "table", "factors": _FACTORS, "attention_factor": 1.25},
}
"""The same with a wrong number, which has to be seen."""

_PHI3 = {
    "yarn": f"yarn:factor={FACTOR},attention_factor=1.1385543128240998",
    "per pair": {"name": "table", "factors": _FACTORS, "attention_factor": 1.1999693319787574},
}
"""Attention scales that a whole number of tokens gives, as Phi-3's code computes them."""


def schedule(model_type: str, route: str) -> Any:
    """The schedule that this family is given by a route; None for dynamic NTK in Phi-3, which is refused."""
    if model_type == "phi3":
        return {**ROUTES, **_PHI3, "dynamic": None}[route]
    return ROUTES[route]


def wrong(model_type: str, route: str) -> Any:
    """The schedule of the same route with a wrong number."""
    if model_type == "phi3" and route in _PHI3:
        return {**ROUTES, **_PHI3}["yarn" if route == "per pair" else "per pair"]
    return WRONG[route]


def kind(family: str, route: str) -> str:
    """The rope type that a route is written as."""
    if route in ("base", "ntk"):
        return "default"
    return "longrope" if family == "phi3" or route == "per pair" else route


def original(model_type: str, folder: Path) -> Path:
    """Writes a random model of this type, with a tokenizer, as its makers would."""
    model = tiny_models.build(model_type, **(_SMALL | FAMILIES[model_type]))
    model.save_pretrained(folder)
    tiny.byte_tokenizer(limit=TRAINED).save_pretrained(folder)
    return folder


def patched(source: Path, folder: Path, schedule: Any, **options: Any) -> Path:
    """Patches a checkpoint, for :data:`LENGTH` tokens where the schedule has no factor that says so."""
    target = {} if "factor=" in schedule else {"target_length": LENGTH}
    ropescale.patch_checkpoint(source, folder, schedule, **target, **options)
    return folder


def checkpoints(family: str, folder: Path) -> Path:
    """Writes ``original``, a patched folder per route, and ``frozen``: dynamic NTK as one table, that of the length."""
    source = original(family, folder / "original")
    for route in ROUTES:
        if schedule(family, route) is not None:
            patched(source, folder / route, schedule(family, route))
    if (folder / "dynamic").exists():
        patched(source, folder / "frozen", ROUTES["dynamic"], freeze_at=LENGTH)
    return folder


@cache
def expected(folder: Path) -> list[torch.Tensor]:
    """Log-probabilities in fp64 of every id but the first, one tensor [tokens - 1] per prompt, by transformers."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return [_chosen(model(torch.tensor([ids])).logits[0], ids) for ids in PROMPTS]


def _chosen(logits: torch.Tensor, ids: list[int]) -> torch.Tensor:
    return logits[:-1].double().log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@dataclass(frozen=True)
class Apart:
    """Absolute differences of log-probabilities, in nats: the largest and the mean, over both prompts."""

    largest: float
    mean: float

    @classmethod
    def between(cls, found: list[Any], wanted: list[torch.Tensor]) -> Apart:
        """Compares two lists with an entry per prompt; NaN stays NaN."""
        gaps = torch.cat([(torch.as_tensor(a, dtype=torch.float64) - b).abs() for a, b in zip(found, wanted)])
        return cls(float(gaps.max()), float(gaps.mean()))


def selected(request: pytest.FixtureRequest, cases: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the cases of the tests that were chosen with ``-k``; no engine is asked for others."""
    chosen = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    wanted = {(params["family"], params.get("route")) for params in chosen if "family" in params}
    return [case for case in cases if case in wanted]


def markdown(found: dict[tuple[str, str], Apart]) -> str:
    """Returns the differences as a table with a row per family and a column per route: the largest and the mean."""
    families, routes = list(dict.fromkeys(key[0] for key in found)), list(dict.fromkeys(key[1] for key in found))
    rows = [["", *routes]]
    for family in families:
        each = [found.get((family, route)) for route in routes]
        rows.append([f"`{family}`", *(f"{one.largest:.0e} ({one.mean:.0e})" if one else "-" for one in each)])
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---|" + "---:|" * len(routes), *rest])
