"""transformers 5, the version that ``ropescale verify`` runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..configs.class_defaults import ALL_LAYERS, load
from .base import Command, Difference, Engine, How, Layers, Serving

_AFTER_5_20 = frozenset("dots3_note_text lfm3".split())
_AFTER_5_8 = _AFTER_5_20 | frozenset("cohere_compass_text gemma4_unified_text mellum mimo_v2_flash zaya".split())
"""Types with a table per layer type that were added after transformers 5.8."""


def _is_foreign(layers: Layers) -> bool:
    """Whether transformers lacks code for the model."""
    return layers.model_type not in load() and layers.whole_type not in load()


class Transformers5Engine(Engine):
    """transformers 5."""

    name = "transformers 5"
    version = "5.23.0"

    def differences(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of this and earlier versions of transformers 5 for one kind of layer."""
        kind, name, past = layers.kind, layers.model_type, layers.rope.original_length
        if _is_foreign(layers):
            yield Difference("frequencies", "honoured", "as requested, if the model's own code reads these keys")
        if layers.changes_with_length:
            text = (
                "keeps state between calls, so results depend on earlier ones; cached keys keep old angles; "
                "freeze it at a length for one fixed table"
            )
            computes, told = "at every call; cached keys keep old angles", text if kind == "dynamic" else ""
            yield Difference("switch", "honoured", computes, told, "transformers" if told else "")
        if layers.key != ALL_LAYERS and kind == "longrope" and name not in _AFTER_5_20:
            text = f"stop{{s}} with an error at the second text past {past} tokens ({layers.key}); use 5.21 or later"
            yield replace(Difference.stops(text, how="run"), who="transformers 5.0 to 5.20", version="5.20.2")
        if layers.key != ALL_LAYERS and kind == "yarn" and name not in _AFTER_5_8:
            text = f"stop{{s}} with a KeyError at yarn kept per layer type ({layers.key}); use 5.9 or later"
            yield replace(Difference.stops(text), who="transformers 5.0 to 5.8", version="5.0.0 to 5.8.1")
        if name == "recurrent_gemma" and layers.is_partial:
            text = "turn{s} whole heads of recurrent_gemma; use 5.17 or later"
            yield Difference("rotary dim", "recomputed", "whole heads", text, "transformers 5.16", "run", "5.16.1")
        if name == "phi3":  # past the trained length transformers drops the cache and feeds only the newest token
            text = f"forget{{s}} the text before once generation passes {past} tokens; use 5.20 or later"
            who, computes = "transformers 5.0 to 5.19", "generation past the switch forgets"
            yield Difference("max length", "recomputed", computes, text, who, "run", "5.0 to 5.19.0")

    def how(self, layers: Layers, field: str) -> How:
        """Returns ``run``: tests compare the rotary modules of every model type, and no maximum length applies."""
        return "source" if field == "max length" or _is_foreign(layers) else "run"

    def serve(self, serving: Serving) -> list[Command]:
        """Returns ``from_pretrained``, with changes to the configuration if the folder lacks them."""
        return [Command("python", serving.snippet(serving.v5_changes(serving.wanted.max_length)))]

    def workaround(self, layers: Layers) -> str:
        """Returns the advice for a schedule that cannot be computed."""
        return "patch the checkpoint, and check it with `ropescale verify`"


ENGINE = Transformers5Engine()
