"""What ``config.json`` leaves to transformers' configuration classes, without importing transformers.

``model_defaults.json`` is generated: ``python -m ropescale.model_defaults`` rewrites it from the installed
transformers, and a test keeps the two equal. Per model type it holds the class's defaults for the fields that
decide the rotary geometry, ``{"text": TYPE}`` for a multimodal wrapper, or null for a model that has no rotary
embeddings driven by ``rope_parameters``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_suffix(".json")
FIELDS = (
    "head_dim",
    "hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "qk_rope_head_dim",
)


@cache
def load() -> dict[str, Any]:
    """The table: model type -> defaults, ``{"text": TYPE}`` or None."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def generate() -> dict[str, Any]:
    """Builds the table from the installed transformers' causal language models."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    table: dict[str, Any] = {}
    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        config = _default_config(CONFIG_MAPPING[model_type])
        if config is None:
            continue
        text = config.get_text_config(decoder=True)
        if text is not config:
            table[model_type] = {"text": text.model_type}
        table[text.model_type] = _entry(text)
    return dict(sorted(table.items()))


def _default_config(cls: type[Any]) -> Any:
    """An instance with every default; None where a class cannot be made without arguments."""
    try:
        return cls()
    except Exception:
        return None


def _entry(config: Any) -> dict[str, Any] | None:
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:
        return None
    cls = type(config)
    fields = {name: getattr(cls, name, None) for name in FIELDS}
    entry = {name: value for name, value in fields.items() if isinstance(value, (int, float))}
    names = {ours: theirs for ours, theirs in (cls.attribute_map or {}).items() if ours in FIELDS}
    for ours, theirs in names.items():
        if isinstance(getattr(config, theirs, None), (int, float)):
            entry[ours] = getattr(config, theirs)
    entry["default_theta"] = cls.default_theta
    entry["rope_parameters"] = parameters
    return entry | ({"names": names} if names else {})


if __name__ == "__main__":
    PATH.write_text(json.dumps(generate(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
