"""What drafts tokens for speculative decoding: a head beside its target, or the MTP layers inside a model."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEAD = re.compile(r"eagle3|eagle(?!_?2)|dflash|dspark|medusa|mlp_speculator|nextn|mtp")
"""What the names of a head's class and type contain; Eagle 2 and 2.5 are models that also see."""

_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
"""The keys that count MTP layers."""


def draft_in(config: Mapping[str, object], section: Mapping[str, object]) -> str:
    """Returns what drafts, such as ``eagle3 head`` or ``1 MTP layer``; "" for a model without a draft.

    Args:
        config: the whole configuration.
        section: the language model's part.
    """
    names = [config.get(key) for key in ("architectures", "model_type", "speculators_model_type")]
    if found := _HEAD.search(str(names).lower()):
        return f"{found[0].replace('nextn', 'mtp')} head"
    if "draft_vocab_size" in config:
        return "eagle3 head"
    counts = (section.get(key) for key in _LAYERS)
    layers = next((count for count in counts if isinstance(count, int) and count), 0)
    return f"{layers} MTP layer{'s' * (layers > 1)}" if layers else ""
