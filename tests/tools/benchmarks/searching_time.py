"""A gradient's time over a forward pass's: ``python searching_time.py 2048``, on the bundled model with one thread.

Each is measured in turn, nine times: as a search runs it, and with every block but the last recomputed, as for models
and windows whose activations would not fit. The ratios are medians, of CPU time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from ropescale.evals.reference import CHECKPOINT
from ropescale.evals.searching import learner as learning
from ropescale.evals.searching.options import plan_of_start
from ropescale.evals.searching.search_space import space_of
from ropescale.evals.searching.windows import WeightedWindow
from ropescale.models.rotary_modules import evaluating

ROUNDS = 9


def seconds(act: Callable[[], object]) -> float:
    """Returns the processor's time that an act takes."""
    begun = time.process_time()
    act()
    return time.process_time() - begun


def main(length: int) -> None:
    """Prints both ratios."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    plan = plan_of_start(model.config.to_dict(), length, {})
    live, space, learner = learning.LiveTables(model, plan), space_of(plan, length), learning.Learner(model)
    ids = torch.randint(1000, (length,), generator=torch.Generator().manual_seed(0))
    window = WeightedWindow(ids, torch.full((length - 1,), 1 / (length - 1), dtype=torch.float64))
    with live.patched(), evaluating(model):
        with torch.inference_mode():
            learner.check(ids)
        for name, most in (("as a search runs it", learning.MOST_KEPT), ("recomputed", 0)):
            learning.MOST_KEPT, ratios = most, []
            for _ in range(ROUNDS):
                forward = seconds(lambda: learner.nll_of(ids))
                ratios.append(seconds(lambda: learning.gradient(learner, live, space, space.start, window)) / forward)
            print(
                f"{length:,} tokens, {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
