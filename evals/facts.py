"""The facts of every run: the labels of what is always measured, the model, the data, the tables, and the passes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NotRequired

import numpy as np
from typing_extensions import TypedDict

AS_IS = "as-is"
"""The label of the model before any patch, which is always measured."""

TRUNCATION = "truncation"
"""The label of truncation: the model without ropescale's scaling on only the last tokens, up to its trained length."""

REFERENCE = "remapped positions (reference, not exportable)"
"""The start of the labels of remapped positions, which no sentence recommends."""


Key = tuple[str, int]
"""The label of a schedule, and a length."""

PerWindow = list[np.ndarray]
"""One array per window, such as the losses of its tokens, NaN for tokens that do not count."""


class ModelFacts(TypedDict):
    """The "model" part of results.json."""

    path: str
    config_sha256: str
    weights: str
    dtype: str
    device: NotRequired[str]
    attention: NotRequired[str]  # its name in transformers, and a kernel of ours
    parameters: int
    vocabulary: NotRequired[int]
    trained_length: NotRequired[int | None]
    as_is: NotRequired[str]  # what as-is measures, in words


DataFacts = dict[str, Any]
"""The "data" part of results.json.

It contains the ``source``, the ``sha256`` of the texts, the numbers of ``documents``, ``windows`` and scored
``tokens``, and the numbers of ``skipped`` documents by reason. ``measured`` and ``whole`` are the sizes of the windows
and of the documents in bytes or tokens (``unit``), and ``share`` is their ratio; they are absent if unknown. Optional
are the numbers of ``special_tokens``, ``chats``, ``pretokenized`` documents and ``prompts``, and the ``layouts`` of
chats, in words, if the tokenizer has no chat template.
"""


class LayerTable(TypedDict):
    """The rotary table of one layer type."""

    inv_freq: list[float]
    attention_scale: NotRequired[float]


Tables = dict[str, dict[str, LayerTable]]
"""The rotary tables, by table_sha256 and layer type."""


@dataclass(frozen=True)
class Pass:
    """One forward pass over every document under one set of rotary tables.

    Attributes:
        schedule: the schedule's label.
        table_sha256: a hash of the live tables.
        lengths: the lengths that the pass measures, ascending; windows of the last one were fed.
        nll: per window, the NLL of each scored token in nats, fp32 [scored].
        forward_passes, positions: the numbers of windows and of positions that were fed for this pass; 0 if a different
            schedule with the same tables had already been measured.
        key: an identifier of everything that the numbers depend on; passes with the same key share their numbers.
    """

    schedule: str
    table_sha256: str
    lengths: tuple[int, ...]
    nll: PerWindow
    forward_passes: int
    positions: int = 0
    key: object = None


@dataclass(frozen=True)
class Divergence:
    """A comparison of a schedule's predictions with the baseline's, token by token.

    Attributes:
        schedule, baseline: the labels of the two schedules.
        length: the number of positions of each window.
        kl: per window, KL(baseline || schedule) in nats at each scored token, fp32 [scored].
        same: per window, 1 for each scored token with the same most likely prediction, else 0; fp32 [scored].
    """

    schedule: str
    baseline: str
    length: int
    kl: PerWindow
    same: PerWindow


@dataclass(frozen=True)
class Truncation:
    """The losses of the tokens at positions from the trained length L0 on, each with at most L0 - 1 positions before.

    The tokens were scored in windows of L0 positions with the model's training tables, with BOS if the schedules have
    BOS. Windows are ``stride`` tokens apart, and each window scores its last ``stride`` tokens, which have L0 - stride
    to L0 - 1 positions before them. A token's loss depends on the stride, but not on later tokens, so one run serves
    every length beyond L0.

    Attributes:
        length: L0, the number of positions of a window.
        stride: the number of tokens that a window scores.
        table_sha256: a hash of the training tables.
        nll: per window of the measurement, the NLL of each token at positions [L0, longest length) in nats, fp32.
    """

    length: int
    stride: int
    table_sha256: str
    nll: PerWindow = field(repr=False)

    @property
    def positions(self) -> int:
        """The number of fed positions."""
        return positions_of(map(len, self.nll), self.length, self.stride)

    @property
    def facts(self) -> dict[str, int]:
        """Truncation's part of the protocol in results.json."""
        return {"truncation_context": self.length, "truncation_stride": self.stride}

    def losses(self, length: int) -> PerWindow:
        """Returns, per window of the measurement, the losses of the tokens at positions [L0, length), fp32."""
        return [each[: max(0, length - self.length)] for each in self.nll]


def positions_of(tokens: Iterable[int], length: int, stride: int) -> int:
    """Returns the number of positions in truncation's windows.

    A window has ``length`` positions. The last one per window of the measurement is shorter if fewer than ``stride``
    tokens are left.

    Args:
        tokens: the number of tokens to score per window of the measurement.
    """
    return sum(-(-count // stride) * length - (-count % stride) for count in tokens)
