"""transformers 5: what ``ropescale verify`` checks."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import Difference, How, Layers
from .serving import Command, Serving, snippet, stated_positions, v5_changes

NAME, VERSION = "transformers 5", "5.23.0"


def how(layers: Layers, field: str) -> How:
    """The rotary modules of every model type are built and compared; it has no maximum length to run into."""
    return "source" if field == "max length" else "run"


def serve(serving: Serving) -> list[Command]:
    """``from_pretrained``, with the configuration's changes where the folder does not hold them."""
    changed = v5_changes(serving, stated_positions(serving))
    return [Command("python", snippet(serving, changed))]


def differences(layers: Layers) -> Iterator[Difference]:
    """What transformers 5 does otherwise for this kind of layer."""
    if layers.kind == "dynamic":
        text = "keeps state between calls, so results depend on earlier ones; cached keys keep old angles"
        yield Difference("switch", "honoured", "at every call; cached keys keep old angles", text, "transformers")
    elif layers.changes_with_length:
        yield Difference("switch", "honoured", "at every call; cached keys keep old angles")


def spelled(serving: Serving) -> Serving:
    """It reads the configuration as it is written."""
    return serving


def served(serving: Serving, layers: Layers) -> Iterator[Difference]:
    """What remains otherwise with the code that :func:`serve` gives."""
    return differences(layers)


def way_out(layers: Layers) -> str:
    """What to do where it cannot be served."""
    return "patch the checkpoint, and ask `ropescale verify`"
