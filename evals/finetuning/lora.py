"""LoRA for a longer context: low-rank updates of the attention, with norms and embeddings trained as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ...errors import ConfigError
from ...output.formatting import first_line
from .job import RANK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

ALPHA = 16
"""That of LongLoRA's code (Chen et al., arXiv 2309.12307)."""


def with_lora(model: PreTrainedModel, rank: int = RANK) -> PreTrainedModel:
    """Returns a model with a LoRA adapter on its attention, whose norms and embeddings are trained, too.

    Without these two, LoRA does not adapt to a longer context (arXiv 2309.12307, section 3.3, table 2). Embeddings that
    are tied to the head stay tied.

    Raises:
        ConfigError: peft is not installed, or the model has no attention that is made of linear layers.
    """
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise ConfigError(
            f"lora is asked for, and peft cannot be imported ({first_line(error)}); pip install 'ropescale[adapters]'",
            "lora",
        ) from None
    targets = sorted(_attention(model))
    if not targets:
        raise ConfigError(f"{type(model).__name__} has no linear layers in its attention; leave lora out", "lora")
    settings = LoraConfig(
        r=rank,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        target_modules=targets,
        modules_to_save=sorted(_whole(model)),
        task_type=TaskType.CAUSAL_LM,
        ensure_weight_tying=bool(getattr(model.config, "tie_word_embeddings", False)),
    )
    return get_peft_model(model, settings)  # type: ignore[return-value, arg-type]


def _attention(model: nn.Module) -> Iterator[str]:
    """Yields the paths of the linear layers inside attention."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and any("attn" in part or "attention" in part for part in name.split(".")):
            yield name


def _whole(model: PreTrainedModel) -> Iterator[str]:
    """Yields the paths of the norms and of the input embeddings."""
    embeddings: Any = model.get_input_embeddings()
    for name, module in model.named_modules():
        if module is embeddings or type(module).__name__.endswith("Norm"):
            yield name
