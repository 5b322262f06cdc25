"""Attaches a PEFT adapter on disk to its loaded base, as stock PEFT does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, RopescaleError
from ..files import refuse_special_files
from ..models.loading import refusal
from ..output.formatting import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def attached(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> PreTrainedModel:
    """Returns a model with an adapter on it, in evaluation mode.

    Args:
        model: the base.
        folder: the adapter's.
        tokenizer: the adapter's own, if it has one: with more tokens than the base, the base gets rows for them.

    Raises:
        ConfigError: peft is not installed, or the adapter is a learned prompt.
        CheckpointError: the adapter does not load, or lacks weights, which PEFT would make up.
    """
    refuse_special_files(folder)
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ConfigError(
            f"{folder} is a PEFT adapter, and peft cannot be imported ({first_line(error)}); pip install "
            "'ropescale[adapters]'"
        ) from None
    rows: Any = model.get_input_embeddings()
    if tokenizer is not None and len(tokenizer) > rows.weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # between PEFT and transformers
            warnings.filterwarnings("error", message=".*missing adapter keys")
            whole: Any = PeftModel.from_pretrained(model, str(folder))
    except RopescaleError:
        raise
    except Exception as error:
        raise refusal(f"{folder} does not load as an adapter of its base", error) from error
    return whole.eval()
