"""Runs inside an environment with mlx-lm: the log-probabilities of prompts under some folders.

Standard input: ``[[output.json, {arguments of mlx_lm.utils.load_model}, [[ids], ...]], ...]``. Each output holds a list
per prompt, the log-probability of every id but the first, or ``{"error": ...}`` for a folder that does not load.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model


def main() -> None:
    mx.set_default_device(mx.cpu)
    for output, arguments, prompts in json.load(sys.stdin):
        try:
            found: Any = scored(arguments, prompts)
        except (Exception, SystemExit) as error:  # models/olmo.py exits
            found = {"error": f"{type(error).__name__}: {error}"}
        Path(output).write_text(json.dumps(found))


def scored(arguments: dict[str, Any], prompts: list[list[int]]) -> list[list[float]]:
    model, _ = load_model(Path(arguments.pop("path_or_hf_repo")), **arguments)
    return [chosen(model(mx.array([ids]))[0].astype(mx.float32), ids) for ids in prompts]


def chosen(logits: Any, ids: list[int]) -> list[float]:
    rows = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return [rows[i, id].item() for i, id in enumerate(ids[1:])]


if __name__ == "__main__":
    main()
