"""The losses of truncation: of the model as it is, given only the last tokens, as many as it was trained at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Truncation:
    """The losses of the tokens at positions from the trained length L0 on, each with at most L0 - 1 tokens before it.

    They were scored in windows of L0 positions without BOS, under the tables that the model was trained with. Windows
    are ``stride`` tokens apart, and each scores its last ``stride`` tokens, which have L0 - stride to L0 - 1 before
    them. A token's loss depends on the stride and on nothing after it, so one run serves every length beyond L0.

    Attributes:
        length: L0, the positions of a window.
        stride: the tokens that a window scores.
        table_sha256: a hash of the tables.
        nll: per window of the measurement, the NLL of each token at positions [L0, longest length) in nats, fp32.
        split_batches: how many batches were scored in parts because memory ran out.
    """

    length: int
    stride: int
    table_sha256: str
    nll: list[np.ndarray] = field(repr=False)
    split_batches: int = 0

    @property
    def forward_passes(self) -> int:
        """How many windows went through the model."""
        return windows_of(map(len, self.nll), self.stride)

    @property
    def positions(self) -> int:
        """How many positions went through the model."""
        return positions_of(map(len, self.nll), self.length, self.stride)

    @property
    def scored(self) -> int:
        """How many tokens were scored."""
        return sum(map(len, self.nll))

    @property
    def cost(self) -> dict[str, object]:
        """The cost, as results.json has it."""
        return {
            "schedule": "truncation",
            "lengths": [self.length],
            "forward_passes": self.forward_passes,
            "positions": self.positions,
            "scored": self.scored,
            "split_batches": self.split_batches,
        }

    @property
    def facts(self) -> dict[str, int]:
        """Returns what the "protocol" part of results.json says of it."""
        return {"truncation_context": self.length, "truncation_stride": self.stride}

    def losses(self, length: int) -> list[np.ndarray]:
        """Returns, per window of the measurement, the losses of the tokens at positions [L0, length), fp32."""
        return [each[: max(0, length - self.length)] for each in self.nll]


def windows_of(tokens: Iterable[int], stride: int) -> int:
    """Counts the windows that score so many tokens of each document."""
    return sum(-(-each // stride) for each in tokens)


def positions_of(tokens: Iterable[int], length: int, stride: int) -> int:
    """Counts the positions of the windows of ``length`` that score so many tokens of each document.

    The last window of a document is shorter where fewer than ``stride`` tokens are left.
    """
    counts = list(tokens)
    lacking = sum(-each % stride for each in counts)
    return windows_of(counts, stride) * length - lacking
