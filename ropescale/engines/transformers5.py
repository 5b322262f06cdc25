"""transformers 5: what ``ropescale verify`` checks."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import Difference, Layers

NAME, VERSION = "transformers 5", "5.23.0"


def differences(layers: Layers) -> Iterator[Difference]:
    """What transformers 5 does otherwise for this kind of layer."""
    if layers.kind == "dynamic":
        text = "keeps state between calls, so results depend on earlier ones; cached keys keep old angles"
        yield Difference("switch", "honoured", "at every call, for all of the call's tokens", text, "transformers")
