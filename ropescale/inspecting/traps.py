"""Traps: what transformers and other engines do with a configuration without saying so.

Each was seen with transformers 5.23, and 4.51 and 4.57 where an older version is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..configs.checks import LARGEST
from ..configs.configuration import Configuration
from ..configs.writing import ONLY_V5_KEYS, unread_by_v4
from ..files import read_json
from ..output.formatting import brief

Files = Mapping[str, Mapping[str, object]]
"""Parsed files of a checkpoint by name."""


def traps(configuration: Configuration, files: Files | None = None) -> list[str]:
    """Lists the traps to know before these files are changed or served, one sentence each.

    Args:
        configuration: the parsed ``config.json``.
        files: other parsed files of the checkpoint by name (``tokenizer_config.json``, ``generation_config.json``,
            ``ropescale.json``).
    """
    files = files or {}
    found = [
        *_scaling_traps(configuration, patched="ropescale.json" in files),
        *_type_traps(configuration),
        *_key_traps(configuration),
        *_limit_traps(configuration, files),
    ]
    return list(dict.fromkeys(found))


def _scaling_traps(configuration: Configuration, patched: bool) -> Iterator[str]:
    name = "original_max_position_embeddings"
    for rope in configuration.ropes.values():
        kind, where = rope.scaling.get("rope_type"), f" ({rope.layer_type})" if rope.layer_type else ""
        if not rope.is_scaled:
            continue
        if not patched:
            yield (
                f"this model is already scaled{where}: {kind}, {rope.original_length} to {rope.max_length} tokens; "
                "a patch must replace that scaling, or compose with it"
            )
        if kind == "dynamic" or (
            kind == "longrope" and rope.scaling.get("short_factor") != rope.scaling.get("long_factor")
        ):
            yield (
                f"{kind} changes the frequencies with the length of each forward call{where}; decoding with a cache "
                "differs from a full forward pass once the length passes the switch (verify measures it with "
                "generate, a patch that freezes the table at one length ends it)"
            )
        recorded = rope.scaling.get(name) or configuration.section.get(name)
        if kind in ("yarn", "llama3", "longrope") and not recorded:
            yield (
                f"{kind} without original_max_position_embeddings{where}: transformers takes "
                f"max_position_embeddings ({rope.max_length}) for the trained length"
            )


def _key_traps(configuration: Configuration) -> Iterator[str]:
    if unread_by_v4(configuration):
        yield ONLY_V5_KEYS
    for rope in configuration.ropes.values():
        scaling = rope.scaling
        if "attn_factor" in scaling and "attention_factor" not in scaling:
            yield "attn_factor is ignored by transformers; it reads attention_factor"
        if rope.layer_type and scaling.get("truncate") is False:
            yield f"truncate: false is ignored by transformers 5 where it stands per layer type ({rope.layer_type})"
        if rope.rotary_dim % 2:
            yield f"the rotary dim {rope.rotary_dim} is odd; yarn fails on it in transformers"


def _type_traps(configuration: Configuration) -> Iterator[str]:
    text, kind, special = configuration.section, configuration.model_type, configuration.family
    if kind in ("mixtral", "minimax") and text.get("head_dim") is None:
        yield f"{kind} without head_dim: yarn, dynamic and longrope raise a TypeError in transformers 5; write head_dim"
    if special.derives_attention_scale:
        yield f"{kind} accepts no scaling but longrope; other schedules are saved through its per-pair lists"
    if "longrope" in special.not_native:
        yield f"{kind} never uses long_factor in transformers 5; both lists must be the same"
    if special.takes_only_theta:
        yield f"{kind} accepts no scaling type at all; only its rope_theta can change"
    if kind.startswith("gemma4") and not text.get("allow_global_per_layer_attribute_access"):
        yield "gemma4 fails its own validation of longrope unless allow_global_per_layer_attribute_access is true"


def _limit_traps(configuration: Configuration, files: Files) -> Iterator[str]:
    text, longest, meant = configuration.section, configuration.max_length, meant_for(files)
    what = "max_position_embeddings"
    if meant is not None and meant != longest:
        yield f"this checkpoint is meant for {meant} tokens (ropescale.json), and {what} says {longest}"
        longest, what = meant, "the length it is meant for,"
    limit = files.get("tokenizer_config.json", {}).get("model_max_length")
    if isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit < longest:
        shown = f"{limit:.0f}" if isinstance(limit, float) else brief(limit)
        yield f"tokenizer_config.json says model_max_length {shown}, below {what} {longest}"
    maximum = files.get("generation_config.json", {}).get("max_length")
    if isinstance(maximum, int) and 20 < maximum <= longest:  # 20 is transformers' default, which means unset
        yield f"generation_config.json says max_length {maximum}; generation stops there whatever the schedule"
    window = text.get("sliding_window")
    if isinstance(window, int) and 0 < window < longest and text.get("use_sliding_window", True):
        yield f"sliding_window is {window}: layers with sliding attention never look further back"


def read_files(folder: Path) -> dict[str, Mapping[str, object]]:
    """Reads the files beside ``config.json`` that :func:`traps` looks at, as far as they exist.

    Raises:
        ConfigError: one of them is not JSON.
    """
    names = ("tokenizer_config.json", "generation_config.json", "ropescale.json")
    return {name: read_json(folder / name) for name in names if (folder / name).exists()}


def meant_for(files: Files) -> int | None:
    """Returns the context, in tokens, that ropescale patched a checkpoint for; its maximum can say something else."""
    length = files.get("ropescale.json", {}).get("length")
    return length if isinstance(length, int) and not isinstance(length, bool) and 0 < length <= LARGEST else None
