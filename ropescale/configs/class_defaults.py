"""Defaults of transformers' configuration classes for ``config.json``, without importing transformers.

``class_defaults.json`` is generated: ``tests/tools/generate_class_defaults.py`` rewrites it from the newest
transformers, and a test compares them. ``class_defaults_earlier.json`` has the differences of earlier versions:
``5.16.1`` lists the entries that are valid only up to that version. ``--earlier`` adds the installed version to it,
from the newest to the oldest. Per model type an entry is ``{"text": TYPE}`` for a multimodal wrapper, null for a model
that has no rotary embeddings driven by ``rope_parameters``, or:

* the class's defaults for :data:`FIELDS`, under our names, and ``names`` for fields with other names in the class;
  ``head_dim`` is null if the class leaves it null;
* ``own_name_wins``: which of those names the class prefers over ours in a file that has both;
* ``head_dims``: per layer type, if layers differ;
* ``rope_parameters``: those of a configuration that states none; ``fixed`` if no top-level key changes them;
* ``default_theta``: the theta of rope parameters that state none, per layer type if the class keeps one per type;
* ``layer_types``: the kinds of layers of a default model, if there are several, or one table per kind;
* ``v4``: the layer types that each top-level key of transformers 4 applies to, if they differ from :data:`V4`;
* ``beside``: how the class completes parameters without a theta, if this differs from the usual: the layer types that a
  top-level key ``reaches``, and the values that the class ``fills`` in without one; in a file that has ``nothing``
  else, ``rope_parameters`` as the class keeps them, ``flat`` ones in a class with a table per layer type, or
  ``rope_scaling``; and the same once they are ``scaled``, because transformers looks again for scaled tables;
* ``partial_of_slice``: a class that computes an unstated partial factor from ``qk_rope_head_dim``;
* ``ignores_type``: a class that reads ``rope_type`` in ``rope_scaling``, but not ``type``;
* ``needs_every_type``: a class that does not complete ``rope_parameters`` that leave out a layer type;
* ``ignores_partial``: the rope types (``default``; ``linear`` stands for every scaling) under which the class turns
  the same coordinates whatever ``partial_rotary_factor`` says;
* ``own_partial``: the rope types under which the class turns its own default part of a head, unless a top-level key
  states another (before transformers 5.17).

All but the first three are measured: the generator builds the class with the key, and records the effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from ..errors import RopescaleError

LOWEST = "5.16"
"""The first supported version of transformers, as in pyproject.toml."""

PATH = Path(__file__).with_suffix(".json")
EARLIER = PATH.with_stem(f"{PATH.stem}_earlier")
ALL_LAYERS = "all"
"""The key of the geometry of a model with one table for all layers."""
FIELDS = (
    "head_dim",
    "hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "qk_rope_head_dim",
    "sliding_window",
    "attention_chunk_size",
)
THETA_NAMES = (
    "rope_theta",
    "rotary_emb_base",
    "global_rope_theta",
    "local_rope_theta",
    "rope_local_base_freq",
    "swa_rope_theta",
    "compress_rope_theta",
)
PARTIAL_NAMES = ("partial_rotary_factor", "rotary_pct")
V4 = {name: [ALL_LAYERS] for name in ("rope_theta", "partial_rotary_factor", "rope_scaling")}
"""The layer types of transformers 4's keys in a class with one table; its entry may differ."""


class RopeDefaults(TypedDict, total=False):
    """The layer types that top-level keys apply to, and the class's defaults, for one way of stating parameters."""

    reaches: dict[str, list[str]]
    fills: dict[str, dict[str, object]]


class Entry(TypedDict, total=False):
    """The defaults of one model type, as the module's docstring describes them."""

    text: str
    head_dim: int | None
    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    original_max_position_embeddings: int
    qk_rope_head_dim: int
    sliding_window: int | None
    attention_chunk_size: int | None
    names: dict[str, str]
    own_name_wins: list[str]
    head_dims: dict[str, int]
    rope_parameters: dict[str, object]
    fixed: bool
    default_theta: float | dict[str, float]
    layer_types: list[str]
    v4: dict[str, list[str]]
    beside: dict[str, RopeDefaults]
    partial_of_slice: bool
    ignores_type: bool
    needs_every_type: bool
    ignores_partial: list[str]
    own_partial: list[str]


Table = dict[str, Entry | None]
"""Model type -> defaults, ``{"text": TYPE}`` or None."""


@cache
def load() -> Table:
    """Reads the table of the installed transformers, or of the newest known version.

    Raises:
        RopescaleError: the installed version is older than :data:`LOWEST`.
    """
    return table_of(json.loads(EARLIER.read_text(encoding="utf-8")), installed())


def table_of(earlier: Mapping[str, Table], version: str) -> Table:
    """Returns the newest table with the entries that ``earlier`` has for this version, which may be empty.

    A type that came with a later version has that version's entry.
    """
    table: Table = json.loads(PATH.read_text(encoding="utf-8"))
    for last in sorted(earlier, key=release, reverse=True):
        if version and release(version) <= release(last):
            table |= earlier[last]
    return table


def release(version: str) -> tuple[int, ...]:
    """Returns a version's leading numbers: ``5.16.0.dev0`` is (5, 16, 0)."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))


def installed() -> str:
    """Returns the version of the installed transformers, "" without one; raises errors like :func:`load`."""
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return ""
    if release(version) < release(LOWEST):
        raise RopescaleError(
            f"transformers {version} is installed, and ropescale needs {LOWEST} or newer; "
            f"run pip install 'transformers>={LOWEST},<6'"
        )
    return version


def is_nested(parameters: object) -> bool:
    """Whether rope parameters are kept per layer type: every value is an object or null."""
    values = parameters.values() if isinstance(parameters, Mapping) else ()
    return bool(values) and all(value is None or isinstance(value, Mapping) for value in values)


def tables_alone(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Returns parameters per layer type without the extra ``rope_type`` of transformers before 5.17."""
    if not any(isinstance(value, Mapping) for value in parameters.values()):
        return parameters
    return {key: value for key, value in parameters.items() if key != "rope_type"}
