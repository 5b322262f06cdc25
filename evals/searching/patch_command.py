"""The command that patches a model with a schedule, for users to paste."""

from __future__ import annotations

import shlex

from ...planning.plan import Plan


def patch_command(model: str, schedule: str, plan: Plan) -> str:
    """Returns ``ropescale patch`` with a schedule, and with the options of the plan that say where it goes."""
    request = plan.request
    words = ["ropescale", "patch", model, "-o", "OUT", "--schedule", schedule]
    words += [] if request.layers == "full" else ["--layers", request.layers]
    words += [] if request.original_length is None else ["--original-length", str(request.original_length)]
    words += ["--replace-scaling"] if request.replace_scaling else []
    words += ["--on-top"] if request.on_top else []
    return shlex.join(words)
