"""the cost added to a forward pass."""

from __future__ import annotations

from typing import Any

import models
import sides


def measure(seconds: float) -> list[sides.Row]:
    """Returns ratios of CPU time."""
    import ropescale

    (model, documents), (patched, _) = models.reference(), models.reference()  # so that neither is patched in between
    ropescale.patch(patched, "yarn:factor=8")
    rows = _measuring(model, [each[:2048] for each in documents[:2]], seconds / 3)
    rows += _patched(model, patched, documents[0][:1024], seconds / 3)
    return rows + _generating(model, patched, documents[0][:200], seconds / 3)


def _measuring(model: Any, documents: list[list[int]], seconds: float) -> list[sides.Row]:
    import torch

    from ropescale.evals import perplexity

    lengths = list(range(128, 2049, 128))

    @torch.inference_mode()
    def bare() -> None:
        for ids in documents:
            rows = torch.tensor([ids])
            hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state[:, :-1]
            model.lm_head(hidden)

    acts = {"the bare trunk and head": bare, "perplexity(), 16 lengths": lambda: perplexity(model, documents, lengths)}
    return sides.ratios(sides.in_turn(acts, seconds, sides.cpu), "the bare trunk and head")


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
