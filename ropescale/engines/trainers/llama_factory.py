"""LLaMA-Factory, which reads a folder's own schedule as long as ``rope_scaling`` is not given.

With ``rope_scaling: linear|dynamic|yarn|llama3`` it writes a scaling of its own over the folder's, whose factor is
``cutoff_len / original length`` rounded up, and whose other fields are fixed (llamafactory/model/model_utils/rope.py).
The maximum becomes a float, which transformers 5.6, the newest it admits, refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..base.commands import Command
from ..base.differences import Difference, stops
from ..base.layers import Layers
from ..base.serving import Serving, is_untouched
from . import lines


def _serve(serving: Serving) -> list[Command]:
    written = lines.lines(
        "add these lines to your file for `llamafactory-cli train FILE`, and no rope_scaling: it replaces the folder's",
        model_name_or_path=serving.model,
        model_revision=serving.source.revision,
        trust_remote_code=lines.trusting(serving),
        cutoff_len=serving.length,
    )
    return [written]


def _unasked(serving: Serving, layers: Layers) -> Iterator[Difference]:
    if not serving.is_written and not is_untouched(serving, layers):
        text = (
            "take{s} no rope parameters but the name of a rope_scaling, makes a factor of its own from cutoff_len, and "
            "with transformers 5.6 stops at it"
        )
        yield stops(text, "stops, or its own factor", "run")


_TRANSFORMERS = 6
"""The newest minor version of transformers 5 that it admits (5.6.0)."""

ENGINE = lines.trainer("LLaMA-Factory", "0.9.5", _serve, partial(lines.of_transformers, minor=_TRANSFORMERS), _unasked)
