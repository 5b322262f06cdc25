"""Lines of a trainer's YAML file, and what trainers share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from ...configs.class_defaults import ALL_LAYERS
from ..base.commands import Command, needs_remote_code
from ..base.differences import Difference, How, stops
from ..base.engine import Engine
from ..base.layers import Layers
from ..base.serving import Serving, is_untouched, v5_changes

RUN = ("llama", "mistral", "qwen3")
"""Types of which tests let every trainer read the printed lines, and compare the frequencies of the model it builds."""


PATCH_FIRST = "train on a patched folder, which `ropescale patch` writes"
"""The way out, where a trainer cannot be asked for the schedule otherwise."""


def how(layers: Layers, field: str) -> How:
    """Returns ``run`` where a test compares the rotary module that the trainer builds; lengths were only read."""
    return "run" if layers.whole_type in RUN and field != "max length" else "source"


def lines(note: str, **keys: object) -> Command:
    """Returns the lines of a YAML file; keys whose value is None are left out."""
    text = "\n".join(f"{key}: {_flow(value)}" for key, value in keys.items() if value is not None)
    return Command("yaml", text, note)


def trusting(serving: Serving) -> bool | None:
    """Whether the model needs the checkpoint's own code; None where it does not."""
    return True if needs_remote_code(serving.wanted.raw) else None


def changes(serving: Serving) -> dict[str, object] | None:
    """Returns the keys in which the configuration to train differs from the folder's; None where it does not."""
    return v5_changes(serving, serving.wanted.max_length) or None


def whole_folders_only(serving: Serving, layers: Layers) -> Iterator[Difference]:
    """Yields the difference of trainers whose lines reach the outermost level of a configuration alone."""
    if serving.stored.is_multimodal and not serving.is_written and not is_untouched(serving, layers):
        text = "take{s} changes to the outermost level of a configuration, not to that of its language model"
        yield stops(text, "not what lies deeper")


def of_transformers(layers: Layers, minor: int) -> Iterator[Difference]:
    """Yields the faults of transformers 5 up to a minor version, which the trainer loads the model with."""
    kept = layers.key != ALL_LAYERS
    if kept and layers.kind == "longrope" and minor <= 20:
        text = f"stop{{s}} at the second text past {layers.rope.original_length} tokens, in transformers before 5.21"
        yield stops(text, "stops with an error")
    if kept and layers.kind == "yarn" and minor <= 8:
        yield stops("stop{s} with a KeyError at yarn kept per layer type, in transformers before 5.9")
    if layers.model_type == "recurrent_gemma" and layers.is_partial and minor <= 16:
        yield Difference("rotary dim", "recomputed", "whole heads", "turn{s} whole heads of recurrent_gemma")
    if layers.changes_with_length:
        yield Difference("switch", "honoured", "for the whole batch, by its longest text")


def trainer(
    name: str,
    version: str,
    serve: Callable[[Serving], list[Command]],
    of_folder: Callable[[Layers], Iterator[Difference]],
    unasked: Callable[[Serving, Layers], Iterator[Difference]],
    way_out: Callable[[Layers], str] = lambda layers: PATCH_FIRST,
) -> Engine:
    """Returns a trainer as an engine.

    Args:
        name, version, serve, way_out: as for :class:`Engine`.
        of_folder: its differences for one kind of layer of a patched folder; whoever patches is not warned of them,
            and may not train.
        unasked: the differences of its lines, where they cannot ask for the schedule.
    """

    def differences(layers: Layers) -> Iterator[Difference]:
        return (replace(each, warning="") for each in of_folder(layers))

    def remaining(serving: Serving, layers: Layers) -> Iterator[Difference]:
        return chain(unasked(serving, layers), of_folder(layers))

    return Engine(name, version, differences, how, serve, way_out, remaining=remaining)


def _flow(value: object) -> str:
    """Returns a value in YAML's flow style, on one line, as PyYAML reads it back."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_flow(str(key))}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        return "".join(_escaped(char) for char in json.dumps(value, ensure_ascii=False))
    text = json.dumps(value)
    # PyYAML takes `1e-05` for text; with a point it is a number.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def _escaped(char: str) -> str:
    return char if char.isprintable() else f"\\U{ord(char):08X}"
