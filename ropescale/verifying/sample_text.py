"""The text that a model is made to follow: its own tokenizer's, or random token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from ..models.rotary_modules import text_config, whole_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Text = Callable[[int], Sequence[int]]
"""Returns at least this many token ids, or all there are."""


def ids_of(model: PreTrainedModel, tokens: int, text: Text | None = None) -> torch.Tensor:
    """Makes token ids, int64 [tokens]: the text's where they are enough and all known, else random ones from a seed."""
    rows = model.get_input_embeddings().get_parameter("weight").shape[0]
    vocabulary = min(rows, int(getattr(text_config(model), "vocab_size", None) or rows))
    given = [] if text is None else list(text(tokens))[:tokens]
    if len(given) == tokens and min(given) >= 0 and max(given) < vocabulary:
        return torch.tensor(given)
    special = _special(whole_config(model).to_dict())
    usable = [i for i in range(vocabulary) if i not in special] or list(range(vocabulary))
    chosen = torch.randint(len(usable), (tokens,), generator=torch.Generator().manual_seed(0))
    return torch.tensor(usable)[chosen]


def _special(config: object) -> set[int]:
    """Collects every id that a configuration names: ends of text, and placeholders of images, without embeddings."""
    if not isinstance(config, dict):
        return set()
    named = [value for key, value in config.items() if str(key).endswith(("_token_id", "_token_index"))]
    each = [one for value in named for one in (value if isinstance(value, list) else [value])]
    return {value for value in each if isinstance(value, int)}.union(*map(_special, config.values()))


def written(tokenizer: PreTrainedTokenizerBase, tokens: int) -> list[int]:
    """Returns ids of a numbered text of at least ``tokens`` tokens; fewer where the tokenizer makes few."""
    count = max(8, tokens // 8)
    while True:
        text = " ".join(f"This is sentence {i} of a text that says nothing else." for i in range(1, count))
        ids = tokenizer(text)["input_ids"]
        if len(ids) >= tokens or count > 8 * tokens:
            return list(ids)
        count *= 2
