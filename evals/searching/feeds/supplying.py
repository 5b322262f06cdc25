"""Makes what a search is fed: the windows of a text, or prompts with a hidden key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ....errors import DataError
from ....planning.plan import Plan
from ...data.chats import Given
from ..options import KEYS, SearchOptions
from .feeding import Feeding, feeding
from .hidden_keys import PromptFeeding, prompt_feeding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Supply = Feeding | PromptFeeding
"""Feeds a search: with the windows of a text, or with prompts."""


def supply(
    documents: Iterable[Given] | Mapping[str, Iterable[Given]] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    lengths: Sequence[int],
    bos: str | int,
    options: SearchOptions,
) -> Supply:
    """Makes what the objective needs.

    Args:
        lengths: see :func:`lengths_to`.

    Raises:
        DataError: too little text, none, or some where there is no use for it; a budget too small for a step.
    """
    if options.objective == KEYS:
        if documents is not None:
            raise DataError(
                "documents are given, and objective='keys' asks prompts of its own; drop one of the two",
                "documents",
                "objective",
            )
        return prompt_feeding(tokenizer, lengths, bos, options)
    if documents is None:
        raise DataError(
            "no documents are given to learn from; give some, or use objective='keys'", "documents", "objective"
        )
    return feeding(documents, lengths[-1], tokenizer, bos, options)


def lengths_to(plan: Plan, target: int) -> tuple[int, ...]:
    """Returns where held-out figures are given: the trained length, its doubles, and the target."""
    found = [max(layer.rope.original_length for layer in plan.layers.values())]
    while 2 * found[-1] < target:
        found.append(2 * found[-1])
    return (*found, target)
