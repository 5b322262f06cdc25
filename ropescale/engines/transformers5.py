"""transformers 5, which ``ropescale verify`` runs."""

from collections.abc import Iterator

from ..configs.class_defaults import ALL_LAYERS
from ..configs.finding import ORIGINAL
from .base import Command, Difference, Engine, How, Layers, Serving
from .model_code import architecture, is_in_transformers, load

_READ_AS_DEEPSEEK_V3 = ("kimi_k25", "kimi_k2")
"""A model and its language model, whose type the model's class replaces (Kimi_K25Config)."""

_CAME_WITH_5_21 = ("dots3_note_text", "lfm3")
"""Model types with a table per layer type that were added with transformers 5.21."""


def lacked(layers: Layers) -> str:
    """Returns the type or the class of the model for which transformers has no code, or "" if it has both."""
    types = (layers.whole_type, layers.model_type)
    name = architecture(layers) or ""
    if missing := next((each for each in types if not is_in_transformers(each)), ""):
        return "" if types == _READ_AS_DEEPSEEK_V3 else missing
    is_usual = name.endswith("Classification") or name in load()["architectures"].values()
    return name if name and not is_usual else ""


def foreign_code(layers: Layers) -> Iterator[Difference]:
    """Yields a difference if transformers has no code for the model."""
    if name := lacked(layers):
        text = f"lack{{s}} {name}, and it is not known what the checkpoint's own code, if any, reads"
        yield Difference.unknown(text)


def keeps_state(layers: Layers) -> Difference:
    """Returns the difference of transformers for frequencies that change with the length of the text."""
    text = "keep{s} state between calls, so results depend on earlier calls, and cached keys keep old angles"
    computes = "at every call; cached keys keep old angles"
    return Difference("switch", "honoured", computes, text if layers.kind == "dynamic" else "")


class Transformers5Engine(Engine):
    """transformers 5."""

    name = "transformers 5"
    version = "5.16 to 5.24"
    derives_factor = True

    def differences(self, layers: Layers) -> Iterator[Difference]:
        """Yields the conditions of this and earlier versions of transformers 5 for one kind of layer."""
        past = layers.rope.original_length
        yield from foreign_code(layers)
        stated = layers.configuration.text.old or layers.configuration.text.new
        if "su" in stated.values() and not (ORIGINAL in stated or lacked(layers)):
            yield Difference.stops("stop{s} at the old name su; write longrope")
        if layers.changes_with_length:
            yield keeps_state(layers)
        if layers.key != ALL_LAYERS and layers.kind == "longrope" and layers.model_type not in _CAME_WITH_5_21:
            text = f"before 5.21, the second forward pass over more than {past:,} tokens fails ({layers.key})"
            yield Difference("frequencies", "honoured", "as requested", text)
        if layers.model_type == "phi3":  # past the trained length, its code drops the cache but feeds only one token
            text = f"before 5.20, generation past {past:,} tokens forgets the previous text"
            yield Difference("frequencies", "honoured", "as requested", text)

    def evidence(self, layers: Layers) -> How:
        """Returns ``run``: tests compare the rotary modules of all model types."""
        return "not known" if lacked(layers) else "run"

    def serve(self, serving: Serving) -> list[Command]:
        """Returns Python code that loads the model, with the changes that the folder's configuration lacks."""
        return [serving.snippet(serving.v5_changes(serving.wanted.max_length))]


ENGINE = Transformers5Engine()
