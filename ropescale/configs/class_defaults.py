"""Defaults of transformers' configuration classes for ``config.json``, without importing transformers.

``class_defaults.json`` is generated: ``tests/tools/generate_class_defaults.py`` rewrites the file from the newest
transformers, and a test compares the two. ``class_defaults_earlier.json`` contains the differences of earlier versions:
``5.16.1`` lists the entries that are valid only up to that version. The generator's ``--earlier`` adds the installed
version to that file; call it for the newest version first. The entry of a model type is ``{"text": TYPE}`` for a
multimodal wrapper, null for a model without rotary embeddings that ``rope_parameters`` control, or an object with:

* the class's defaults for :data:`FIELDS`, under the names in :data:`FIELDS`; ``head_dim`` is null if the class's
  default is null;
* ``names``: the class's own names of fields that it names differently;
* ``own_name_wins``: the fields for which the class's own name takes precedence in a file that has both names;
* ``head_dims``: the head dimension per layer type, if layers differ;
* ``rope_parameters``: the rope parameters of a configuration that states none; ``fixed``: whether no top-level key
  changes them;
* ``default_theta``: the theta for rope parameters without one, per layer type if the class has one per type;
* ``layer_types``: the layer types of a default model, if there are several, or if the class has one table per type;
* ``v4``: the layer types that each top-level key of transformers 4 applies to, if they differ from :data:`V4`;
* ``beside``: how the class completes parameters without a theta, if it differs from other classes: ``reaches`` has the
  layer types that a top-level key applies to, and ``fills`` the values that the class fills in without such a key.
  Both depend on the form of the parameters in the file: ``nothing`` (none are stated), ``rope_parameters`` in the
  class's own form, ``flat`` ones in a class with a table per layer type, or ``rope_scaling``. The last three have a
  second form, such as ``flat scaled``, because transformers completes scaled parameters once more;
* ``partial_of_slice``: whether the class computes a missing partial factor from ``qk_rope_head_dim``;
* ``ignores_type``: whether the class reads ``rope_type`` in ``rope_scaling``, but not ``type``;
* ``needs_every_type``: whether the class does not complete ``rope_parameters`` in which a layer type is missing;
* ``ignores_partial``: the rope types under which the class ignores ``partial_rotary_factor``, or computes it from
  ``qk_rope_head_dim`` and ``qk_nope_head_dim`` (``default``, or ``linear``, which represents every scaling);
* ``own_partial``: the rope types under which the class uses its own default partial factor unless a top-level key
  states one (before transformers 5.17).

All but the first four are measured: the generator builds the class with a key, and records the effect.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from ..errors import RopescaleError
from ..files import Data, Json

LOWEST = "5.16"
"""The lowest supported version of transformers, as in pyproject.toml."""

PATH = Path(__file__).with_suffix(".json")
EARLIER = PATH.with_stem(f"{PATH.stem}_earlier")
SECTIONS = PATH.with_name("class_sections.json")
"""The sections whose rope parameters the class of another type reads, as dotted paths, each with the layer types that
have a table of their own; generated in the same way."""

ALL_LAYERS = "all"
"""The key that replaces the layer type for a model with one table for all layers."""
FIELDS = (
    "head_dim hidden_size num_attention_heads max_position_embeddings original_max_position_embeddings "
    "qk_rope_head_dim sliding_window attention_chunk_size"
).split()
THETA_OF = {
    "rope_theta": [ALL_LAYERS, "full_attention", "main"],
    "rotary_emb_base": [],
    "global_rope_theta": ["full_attention"],
    "local_rope_theta": ["sliding_attention"],
    "rope_local_base_freq": ["sliding_attention"],
    "swa_rope_theta": ["sliding_attention"],
    "compress_rope_theta": ["compress"],
}
"""The layer types whose theta each top-level key states in a vendor's file, if the class itself does not read it."""
THETA_NAMES = tuple(THETA_OF)
PARTIAL_NAMES = ("partial_rotary_factor", "rotary_pct")
V4 = {name: [ALL_LAYERS] for name in ("rope_theta", "partial_rotary_factor", "rope_scaling")}
"""The layer types that each top-level key of transformers 4 applies to, unless the class's entry has its own ``v4``."""


class RopeDefaults(TypedDict, total=False):
    """The layer types that top-level keys apply to, and the values that a class fills in, for a form of parameters."""

    reaches: dict[str, list[str]]
    fills: dict[str, Data]


class Entry(TypedDict, total=False):
    """The defaults of one model type; the module's docstring describes the fields."""

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
    rope_parameters: Data
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
"""A mapping from model type to defaults, ``{"text": TYPE}`` or None."""


@cache
def load() -> Table:
    """Reads the table for the installed transformers, or for the newest known version if none is installed.

    Raises:
        RopescaleError: the installed version is older than :data:`LOWEST`.
    """
    return table_of(json.loads(EARLIER.read_text(encoding="utf-8")), installed())


@cache
def sections() -> dict[str, dict[str, list[str]]]:
    """Reads the table of :data:`SECTIONS`."""
    return json.loads(SECTIONS.read_text(encoding="utf-8"))


def table_of(earlier: Mapping[str, Table], version: str) -> Table:
    """Returns the newest table, with entries replaced by those of ``earlier`` that are valid for a version.

    A model type that was added after that version keeps its newest entry.

    Args:
        earlier: the content of ``class_defaults_earlier.json``.
        version: the version of transformers; "" for the newest table.
    """
    table: Table = json.loads(PATH.read_text(encoding="utf-8"))
    for last in sorted(earlier, key=release, reverse=True):
        if version and release(version) <= release(last):
            table |= earlier[last]
    return table


def release(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, such as (5, 16, 0) for ``5.16.0.dev0``."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))


def installed() -> str:
    """Returns the version of the installed transformers, or "" if it is not installed.

    Raises:
        RopescaleError: as for :func:`load`.
    """
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
    """Whether rope parameters are stated per layer type, so that every value is an object or null."""
    values = parameters.values() if isinstance(parameters, Mapping) else ()
    return bool(values) and all(value is None or isinstance(value, Mapping) for value in values)


def tables_alone(parameters: Json) -> Json:
    """Returns parameters per layer type without the extra ``rope_type`` of transformers before 5.17."""
    if not any(isinstance(value, Mapping) for value in parameters.values()):
        return parameters
    return {key: value for key, value in parameters.items() if key != "rope_type"}
