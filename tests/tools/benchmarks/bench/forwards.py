"""the cost added to a forward pass."""

from __future__ import annotations

from itertools import chain
from typing import Any

import models
import sides


def measure(seconds: float) -> list[sides.Row]:
    """Returns ratios of CPU time."""
    import ropescale

    (model, documents), (patched, _) = models.reference(), models.reference()  # so that neither is patched in between
    ropescale.patch(patched, "yarn:factor=8")
    text, rows = list(chain.from_iterable(documents)), list[sides.Row]()
    for length, count in ((1024, 8), (8192, 1)):
        windows = [text[start : start + length] for start in range(0, length * count, length)]
        rows += _measuring(model, windows, length, seconds / 6)
    rows += _patched(model, patched, documents[0][:1024], seconds / 3)
    return rows + _generating(model, patched, documents[0][:200], seconds / 3)


def _measuring(model: Any, windows: list[list[int]], length: int, seconds: float) -> list[sides.Row]:
    """Bare: the trunk, the head and the losses of one batch."""
    import torch
    from torch.nn.functional import cross_entropy

    from ropescale.evals import perplexity

    lengths = list(range(length // 16, length + 1, length // 16))

    @torch.inference_mode()
    def bare() -> None:
        rows = torch.tensor(windows)
        hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state[:, :-1]
        cross_entropy(model.lm_head(hidden).flatten(0, 1), rows[:, 1:].flatten(), reduction="none")

    def ours() -> None:
        perplexity(model, windows, lengths, bos="no", truncation=False)

    base = f"bare passes at {length:,}"
    return sides.ratios(sides.in_turn({base: bare, "perplexity(), 16 lengths": ours}, seconds, sides.cpu), base)


def _forward(model: Any, ids: list[int]) -> sides.Act:
    import torch

    rows = torch.tensor([ids])

    @torch.inference_mode()
    def act() -> None:
        model(rows, use_cache=False)

    return act


def _patched(model: Any, other: Any, ids: list[int], seconds: float) -> list[sides.Row]:
    """Eager, then compiled."""
    import torch

    acts = {"a forward pass": _forward(model, ids), "one patched with YaRN": _forward(other, ids)}
    rows = sides.ratios(sides.in_turn(acts, seconds / 2, sides.cpu), "a forward pass")
    try:
        compiled = [_forward(torch.compile(each), ids) for each in (model, other)]
        acts = {"a compiled forward pass": compiled[0], "a compiled one patched with YaRN": compiled[1]}
        return rows + sides.ratios(sides.in_turn(acts, seconds / 2, sides.cpu), "a compiled forward pass")
    except Exception as error:  # no compiler here
        print(f"compiled: left out, {type(error).__name__}")
        return rows


def _generating(model: Any, other: Any, ids: list[int], seconds: float) -> list[sides.Row]:
    import torch

    rows = torch.tensor([ids])

    def generating(which: Any) -> sides.Act:
        how = {"max_new_tokens": 48, "min_new_tokens": 48, "do_sample": False, "pad_token_id": 0}
        return lambda: which.generate(rows, attention_mask=torch.ones_like(rows), **how)

    acts = {"generating 48 tokens after 200": generating(model), "the same, patched with YaRN": generating(other)}
    return sides.ratios(sides.in_turn(acts, seconds, sides.cpu), "generating 48 tokens after 200")
