"""axolotl, which sets ``overrides_of_model_config`` on the configuration it loads (axolotl/loaders/utils.py)."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.commands import Command
from ..base.differences import Difference, base_rope
from ..base.layers import Layers
from ..base.serving import Serving
from . import lines


def _serve(serving: Serving) -> list[Command]:
    written = lines.lines(
        "add these lines to your file for `axolotl train FILE`",
        base_model=serving.model,
        revision_of_model=serving.source.revision,
        trust_remote_code=lines.trusting(serving),
        sequence_len=serving.length,
        overrides_of_model_config=lines.changes(serving),
    )
    return [written]


def _of_folder(layers: Layers) -> Iterator[Difference]:
    yield from lines.of_transformers(layers, _TRANSFORMERS)
    if layers.kind == "dynamic":
        text = "raise{s} max_position_embeddings to sequence_len, and dynamic then counts from sequence_len"
        yield base_rope(text, "run")


def _way_out(layers: Layers) -> str:
    if layers.kind == "dynamic":
        return f"ask for the fixed table of one length, freeze_at={layers.length}"
    return lines.PATCH_FIRST


_TRANSFORMERS = 16
"""The minor version of transformers 5 that it pins (5.16.1)."""

ENGINE = lines.trainer("axolotl", "0.19.0", _serve, _of_folder, lines.whole_folders_only, _way_out)
