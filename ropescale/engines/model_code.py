"""The code with which vLLM and SGLang run a model: the engine's, transformers', the checkpoint's, or none.

``model_code.json`` is generated from the sources of both engines (``tests/tools/generate_model_code.py``), and a test
compares the file with them. Its keys are ``versions``, the versions that were read, ``architectures``, the class that
loads each model type, and one key per engine with lists of classes: ``own`` (with native code), ``transformers`` (run
with the newest transformers that the engine admits) and, for SGLang, ``unscaled`` (the code passes no scaling to the
rotary layer) and ``whole theta`` (the code passes only the integer part of theta). ``types`` has how the tables for
which the model files ask differ from transformers', as in ``mlx_lm.json``.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..configs import class_defaults
from ..configs.class_defaults import ALL_LAYERS
from ..output.formatting import cut
from .base import Difference, Layers

PATH = Path(__file__).with_suffix(".json")

Code = Literal["own", "transformers", "checkpoint", "none"]
"""The origin of the code that runs a model: the engine, transformers, the checkpoint, or none."""


@cache
def load(path: Path = PATH) -> dict[str, Any]:
    """Reads an engine's table, by default the one that the module's docstring describes."""
    return json.loads(path.read_text(encoding="utf-8"))


def is_in_transformers(model_type: str) -> bool:
    """Whether transformers has a language model of this type, alone or within another model."""
    return model_type in class_defaults.load() or model_type in load()["architectures"]


def architecture(layers: Layers) -> str | None:
    """Returns the class that loads a model: the class in the configuration, or transformers' class for the model type.

    Uses the model type also for a model that was saved without its head, whose class is not a language model's.
    Returns None if neither is known.
    """
    stated = layers.configuration.raw.get("architectures")
    first = cut(stated[0], 100) if isinstance(stated, list) and stated and isinstance(stated[0], str) else None
    usual = load()["architectures"].get(layers.whole_type)
    stem = (usual or "").partition("For")[0]
    if usual and first in (f"{stem}Model", f"{stem}TextModel"):
        return usual
    return first or usual


def code(engine: str, layers: Layers) -> Code:
    """Returns the origin of the code that an engine (``vllm`` or ``sglang``) runs a model with."""
    name = architecture(layers)
    known = load()[engine]
    if name in known["own"]:
        return "own"
    if name in known["transformers"]:
        return "transformers"
    return "checkpoint" if layers.configuration.raw.get("auto_map") else "none"


def not_its_own(engine: str, layers: Layers) -> Iterator[Difference]:
    """Yields the differences of an engine for a model that the engine does not run with its own code.

    The code of transformers behaves as before version 5.21, and its rotary modules receive a batch of texts at once.
    """
    whose = code(engine, layers)
    stated = layers.whole_type if "model_type" in layers.configuration.raw else layers.model_type
    name = architecture(layers) or stated
    if whose == "none":
        yield Difference.stops(f"lack{{s}} {name}", "stops: no code for this model")
        return
    if whose == "checkpoint":
        text = f"run{{s}} {name} with the checkpoint's own code, if at all, which was not checked"
        yield Difference.unknown(text)
        return
    if layers.kind == "longrope" and layers.key != ALL_LAYERS:
        text = f"use{{s}} transformers 5.20 or older, which stops at longrope in one of several tables ({layers.key})"
        yield Difference.stops(text, "stops with an error, by transformers' code")
    else:
        yield Difference("frequencies", "honoured", "as requested, by transformers' code for this model")
    if layers.changes_with_length:
        text = "change{s} the table batch by batch, also for keys that are already cached"
        yield Difference("switch", "recomputed", "for the whole batch, by its longest position", text)


def built(engine: str, layers: Layers) -> str | None:
    """Returns how the table that an engine's model file asks for differs, or None if that is not known.

    Dynamic NTK counts as linear, because the engines' own keys for it differ from transformers'.
    """
    is_read = is_in_transformers(layers.whole_type) or layers.configuration.raw.get("auto_map")
    if not is_read or layers.section.get("dual_chunk_attention_config"):  # that has another rotary layer
        return None
    of_class = load()["architectures"]
    types = load()[engine]["types"]
    stranger = not is_in_transformers(layers.model_type)
    names = [f"{layers.whole_type}/{layers.model_type}", layers.whole_type, *types]
    for name in names:
        entry = types.get(name)
        if entry is None or of_class.get(name.partition("/")[0]) != architecture(layers):
            continue
        if stranger or entry["inner"] == layers.model_type:
            return agreement(entry, layers, "linear" if layers.kind == "dynamic" else layers.kind)
    return None


def agreement(entry: Mapping[str, Any], layers: Layers, kind: str, dialect: str = "") -> str | None:
    """Returns how built tables differ for a rope type, from what is known of a model type, or None if not known."""
    rope = layers.rope
    given = entry.get(dialect or layers.dialect, {})
    found = given.get(kind)
    found = found.get(layers.key) if isinstance(found, Mapping) else found
    if found == "" and layers.is_own_width and entry["both"].get("head_dim"):
        found = entry["both"]["head_dim"]
    share = rope.rotary_dim / rope.head_dim
    if found == "" and not layers.is_mla and not math.isclose(share, entry["share"], abs_tol=1e-3):
        found = given.get("partial")
    found = found.get(layers.key) if isinstance(found, Mapping) else found
    return None if found == "unread" else found


def as_read(engine: str, layers: Layers, differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yields an engine's differences, and another if its model file for the type is not known to ask for this table."""
    found = list(differences)
    yield from found
    if any(each.prevents or each.field == "original length" for each in found):
        return
    table = built(engine, layers)
    if table == "base":
        yield Difference.base_rope(f"ignore{{s}} the scaling of {layers.model_type}, silently leaving base RoPE")
    elif table != "":
        yield Difference.unknown(f"was not checked with {layers.kind} for {layers.model_type}")
