"""transformers 5: what ``ropescale verify`` checks."""

from __future__ import annotations

from collections.abc import Iterator

from ..configs.class_defaults import load
from ..configs.reading import ALL_LAYERS
from .facts import Difference, How, Layers
from .serving import Command, Serving, snippet, stated_positions, v5_changes

NAME, VERSION = "transformers 5", "5.23.0"


def how(layers: Layers, field: str) -> How:
    """The rotary modules of every model type are built and compared; it has no maximum length to run into."""
    return "source" if field == "max length" or is_foreign(layers) else "run"


def is_foreign(layers: Layers) -> bool:
    """Whether a model's code does not come with transformers."""
    return layers.model_type not in load() and str(layers.config.get("model_type")) not in load()


def serve(serving: Serving) -> list[Command]:
    """``from_pretrained``, with the configuration's changes where the folder does not hold them."""
    changed = v5_changes(serving, stated_positions(serving))
    return [Command("python", snippet(serving, changed))]


def differences(layers: Layers) -> Iterator[Difference]:
    """What transformers 5 does otherwise for this kind of layer."""
    if is_foreign(layers):
        yield Difference("frequencies", "honoured", "as asked, where the model's own code reads these keys")
    if layers.kind == "dynamic":
        text = (
            "keeps state between calls, so results depend on earlier ones; cached keys keep old angles; "
            "--freeze-at LENGTH makes one fixed table of it"
        )
        yield Difference("switch", "honoured", "at every call; cached keys keep old angles", text, "transformers")
    elif layers.changes_with_length:
        yield Difference("switch", "honoured", "at every call; cached keys keep old angles")
    if layers.key != ALL_LAYERS:
        yield from _kept_per_layer_type(layers)


def _kept_per_layer_type(layers: Layers) -> Iterator[Difference]:
    """Faults of earlier versions where each kind of layer has parameters of its own."""
    if layers.kind == "longrope":
        past = layers.rope.original_length
        text = f"stop{{s}} with an error at the second text past {past} tokens ({layers.key}); use 5.21 or later"
        yield _stopped("5.20.2", text, "transformers 5.0 to 5.20", "run")
    if layers.kind == "yarn":
        text = f"stop{{s}} with a KeyError at yarn kept per layer type ({layers.key}); use 5.9 or later"
        yield _stopped("5.0.0 to 5.8.1", text, "transformers 5.0 to 5.8", "source")


def _stopped(version: str, warning: str, who: str, how: How) -> Difference:
    return Difference("frequencies", "unsupported", "stops with an error", warning, who, how, version)


def spelled(serving: Serving) -> Serving:
    """It reads the configuration as it is written."""
    return serving


def served(serving: Serving, layers: Layers) -> Iterator[Difference]:
    """What remains otherwise with the code that :func:`serve` gives."""
    return differences(layers)


def way_out(layers: Layers) -> str:
    """What to do where it cannot be served."""
    return "patch the checkpoint, and ask `ropescale verify`"
