"""The cost of training at a length, from a model's shape alone: memory in bytes and arithmetic in FLOPs.

For a dense model of Llama's kind (Llama, Mistral, Qwen 2): grouped attention that is never written out as a matrix, a
gated MLP, RMSNorm. One window at a time, with gradient checkpointing and the loss in blocks, as ``ropescale finetune
--checkpointing --micro-batch 1`` trains::

    python -m ropescale.evals.training MODEL --lengths 32k,128k

Memory is that of one process that holds the whole model, without what the allocator and the libraries take: under
:data:`MIXED` 16 bytes for each parameter (weight, gradient and AdamW's two moments in float32), under :data:`BFLOAT16`
8 (Rajbhandari et al., arXiv 1910.02054, section 3.1, counts 2 + 2 + 12 where a bfloat16 copy is kept beside the float32
one). Checkpointing keeps the input of each layer and computes one layer again at a time (Chen et al., arXiv 1604.06174,
section 4). Arithmetic counts a multiplication and an addition as two (Chowdhery et al., arXiv 2204.02311, appendix B,
halved for causal attention): ``2 N`` for each token in a forward pass with ``N`` weights that multiply, and
``2 Q L^2`` for attention in each layer over a window of ``L``, with ``Q`` coordinates of all heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..finetuning.lora import RANK
from ..scoring.scorer import LOGITS_BYTES

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MIXED, BFLOAT16 = "mixed", "bfloat16"
"""How it is computed: with weights in float32 under bfloat16 autocast (``--bf16``), or all in bfloat16."""

_STATE = {MIXED: 16, BFLOAT16: 8}
_ADAPTER_STATE = 16  # PEFT holds an adapter in float32, whatever its base is in
_FROZEN = {MIXED: 4, BFLOAT16: 2}
_STREAM = {MIXED: 4, BFLOAT16: 2}
"""Bytes of a coordinate between layers; autocast leaves those in float32."""

_HIDDEN = {MIXED: 26, BFLOAT16: 18}
"""Bytes that a layer keeps for each coordinate between layers, while it is computed again: both norms' inputs, float32
copies and outputs, and gradients."""


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that its cost follows from.

    Attributes:
        layers: how many.
        hidden: coordinates of a token between layers.
        intermediate: coordinates inside the MLP.
        heads, kv_heads, head_dim: of attention.
        vocabulary: rows of the embeddings.
        tied: whether the head is the embeddings.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: PreTrainedConfig) -> ModelShape:
        """Reads the shape from a configuration of transformers.

        Raises:
            AttributeError: the configuration is not of a model of this kind.
        """
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )

    @property
    def queries(self) -> int:
        """Coordinates of all heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Coordinates of all key heads together, which are those of the values, too."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Weights of one layer that multiply: attention's four matrices and the MLP's three."""
        return 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.intermediate

    @property
    def embedding(self) -> int:
        """Weights of the embeddings."""
        return self.vocabulary * self.hidden

    @property
    def norms(self) -> int:
        """Weights of all norms."""
        return (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.layers * self.layer_matrices + self.norms + (1 if self.tied else 2) * self.embedding

    @property
    def multiplying(self) -> int:
        """Weights that multiply each token: all matrices and the head, but not the table of embeddings."""
        return self.layers * self.layer_matrices + self.embedding

    def adapter(self, rank: int) -> int:
        """Returns the weights of a LoRA adapter of attention's four matrices."""
        return self.layers * rank * (4 * self.hidden + 2 * self.queries + 2 * self.keys)


@dataclass(frozen=True)
class TrainingMemory:
    """The parts of the peak of one training step, in bytes.

    Attributes:
        state: weights, gradients and moments.
        checkpoints: the input of every layer.
        layer: what one layer keeps while it is computed again, and its gradients.
        logits: three blocks of the loss: logits, their probabilities, their gradient.
    """

    state: int
    checkpoints: int
    layer: int
    logits: int

    @property
    def total(self) -> int:
        """All together; the peak of a step that adds to gradients of windows before it."""
        return self.state + self.checkpoints + max(self.layer, self.logits)


def training_memory(shape: ModelShape, length: int, arithmetic: str = MIXED, rank: int | None = None) -> TrainingMemory:
    """Returns the memory of training on windows of ``length`` positions, one at a time.

    Args:
        arithmetic: :data:`MIXED` or :data:`BFLOAT16`.
        rank: of a LoRA adapter on attention with norms and embeddings, as ``finetune --lora`` trains; None for all
            weights.
    """
    attention = 4 * (shape.queries + shape.keys + shape.heads)
    token = 12 * shape.intermediate + attention + _HIDDEN[arithmetic] * shape.hidden + 4 * shape.head_dim
    if rank is not None:  # PEFT's float32 copies of the inputs of queries, keys and values, and what A makes of them
        token += 12 * shape.hidden + 16 * rank
    cast = 2 * shape.layer_matrices if arithmetic == MIXED else 0
    # Tied embeddings gather the head's gradient until that of the table comes, after all layers.
    tied = _STREAM[arithmetic] * shape.embedding if shape.tied else 0
    return TrainingMemory(
        state=_state(shape, arithmetic, rank),
        checkpoints=_STREAM[arithmetic] * shape.layers * shape.hidden * length,
        layer=token * length + cast + tied,
        logits=3 * min(LOGITS_BYTES, 4 * shape.vocabulary * length),
    )


def _state(shape: ModelShape, arithmetic: str, rank: int | None) -> int:
    if rank is None:
        return _STATE[arithmetic] * shape.parameters
    # PEFT keeps a frozen copy of the norms and embeddings that it trains.
    whole = _STATE[arithmetic] * (shape.embedding + shape.norms)
    return _FROZEN[arithmetic] * shape.parameters + whole + _ADAPTER_STATE * shape.adapter(rank)


def training_flops(shape: ModelShape, length: int) -> int:
    """Returns the arithmetic of training on one window: a forward pass, twice as much backward, one more to recompute.

    An adapter saves up to half of the backward pass, and is counted as full training.
    """
    return 4 * forward_flops(shape, length)


def forward_flops(shape: ModelShape, length: int) -> int:
    """Returns the arithmetic of one forward pass over a window, the head included."""
    return 2 * shape.multiplying * length + 2 * shape.layers * shape.queries * length**2


def table(shapes: dict[str, ModelShape], lengths: list[int]) -> list[str]:
    """Returns Markdown: full training and an adapter of every model at every length."""
    head = "| model | length | trained | weights and optimizer | checkpoints | one layer | in all | PFLOP a window |"
    lines = [head, "|---|---:|---|---:|---:|---:|---:|---:|"]
    for name, shape in shapes.items():
        for length in lengths:
            for label, arithmetic, rank in (("all", MIXED, None), ("adapter", BFLOAT16, RANK)):
                memory = training_memory(shape, length, arithmetic, rank)
                parts = (memory.state, memory.checkpoints, max(memory.layer, memory.logits), memory.total)
                cells = [name, f"{length:,}", label, *(f"{part / 1e9:,.1f} GB" for part in parts)]
                lines.append(f"| {' | '.join(cells)} | {training_flops(shape, length) / 1e15:,.2f} |")
    return lines
