"""The cost of a step in each method of ``ropescale search``, in forward passes of the same tokens."""

from __future__ import annotations

import models
import sides


def measure(seconds: float) -> list[sides.Row]:
    """Returns the CPU time of a gradient step over that of scoring, which takes no gradient."""
    import torch

    from ropescale.evals.searching.learner import Learner, LiveTables, gradient
    from ropescale.evals.searching.options import SearchOptions, plan_of_start
    from ropescale.evals.searching.search_space import space_of
    from ropescale.evals.searching.windows import WeightedWindow, mean_of
    from ropescale.models.rotary_modules import evaluating

    model, documents = models.reference()
    options, target = SearchOptions(), 2048
    plan = plan_of_start(model.config.to_dict(), target, options.patching)
    live, space, learner = LiveTables(model, plan), space_of(plan, target, options), Learner(model)
    ids = torch.tensor(documents[0][:1024])
    window = WeightedWindow(ids, [mean_of(1, 1024)])
    with live.patched(), evaluating(model):
        with torch.inference_mode():
            learner.check(ids)
        acts = {
            "scoring 1,024 tokens": lambda: learner.nll_of(ids),
            "a step of the gradient": lambda: gradient(learner, live, space, space.start, window),
        }
        seen = sides.in_turn(acts, seconds, sides.cpu)
    return sides.ratios(seen, next(iter(acts)))
