"""What ropescale measures, and the figures that are kept of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import ropescale.evals
from ropescale.evals import Recommendation, Result, Retrieval, SearchResult

from .lab import Lab

TRUNCATION = "truncation"
_BINS = 64


def perplexity(lab: Lab, model: Any, schedules: Sequence[str], truncation: bool, remapped: bool) -> Result:
    """Measures the held-out documents at all lengths."""
    stride = {"truncation_stride": lab.settings.stride} if truncation else {"truncation": False}
    return ropescale.evals.perplexity(
        model,
        lab.documents.tolist(),
        lab.sizes.lengths,
        schedules,
        bos="no",
        windows=1,
        batch_tokens=lab.settings.batch_tokens,
        logits_bytes=lab.settings.logits_bytes,
        remapped=remapped,
        **stride,
    )


def recommend(lab: Lab, model: Any) -> Recommendation:
    """Recommends a schedule, by the documents to choose by."""
    return ropescale.evals.recommend(
        model,
        lab.corpus.choosing.tolist(),
        lab.sizes.target,
        bos="no",
        windows=1,
        batch_tokens=lab.settings.batch_tokens,
        logits_bytes=lab.settings.logits_bytes,
    )


def search(lab: Lab, model: Any) -> SearchResult:
    """Searches a schedule, by the documents to choose by."""
    return ropescale.evals.search(
        model,
        lab.corpus.choosing.tolist(),
        lab.sizes.target,
        bos="no",
        budget_tokens=lab.settings.search_windows * lab.sizes.target,
        logits_bytes=lab.settings.logits_bytes,
        seed=lab.settings.seed,
    )


def retrieval(lab: Lab, model: Any, tokenizer: Any, schedules: Sequence[str]) -> Retrieval:
    """Hides numbers in texts from the trained length on."""
    return ropescale.evals.retrieval(
        model,
        tokenizer=tokenizer,
        lengths=lab.sizes.lengths[1:],
        depths=5,
        schedules=schedules,
        trials=lab.settings.trials,
        batch_tokens=lab.settings.batch_tokens,
        bos="no",
    )


class Measured:
    """The losses of every schedule on the held-out documents.

    Attributes:
        entry: the entry of the results, which a stage extends.
        losses: by schedule, and truncation if it was measured, at the target, float64 [documents, positions - 1].
    """

    def __init__(
        self, lab: Lab, model: Any, schedules: Sequence[str], truncation: bool = False, remapped: bool = False
    ) -> None:
        start = time.perf_counter()
        result = perplexity(lab, model, schedules, truncation, remapped)
        lab.synchronize()
        spent = time.perf_counter() - start
        self._lab, self._trained, target = lab, lab.sizes.trained, lab.sizes.target
        names = [*result.schedules, *([TRUNCATION] if truncation else [])]
        self._at = {  # some tables depend on the length
            length: {name: np.stack(result.losses(name, length)).astype(np.float64) for name in names}
            for length in lab.sizes.lengths
        }
        self.losses = self._at[target]
        bases = [name for name in ("as-is", lab.schedules.default, TRUNCATION) if name in self.losses]
        self.entry: dict[str, Any] = {
            "seconds": spent,
            "schedules": {name: self._figures(name) for name in names},
            "short_cost": {
                each.schedule: {"kl": _means(each.kl, 6), "same_top": _means(each.same, 5)}
                for each in result.divergences
            },
            "paired": {base: self._paired(base) for base in bases},
            "report": result.to_markdown(),
        }

    def _figures(self, name: str) -> dict[str, Any]:
        """Returns what is kept of a schedule.

        The sums are those of each document, of n - 1 tokens; ``beyond`` is each document's mean past the trained
        length; ``by_position`` has 64 bins, and 16 of each document.
        """
        losses, edges = self.losses[name], np.linspace(0, self._lab.sizes.target, _BINS + 1).astype(int)
        spans = [slice(max(0, start - 1), stop - 1) for start, stop in pairwise(edges)]
        bins = np.stack([losses[:, span].mean(1) for span in spans], 1)
        return {
            "ppl": {str(length): math.exp(each[name].mean()) for length, each in self._at.items()},
            "sums": {str(length): np.round(each[name].sum(1), 3) for length, each in self._at.items()},
            "beyond": np.round(self._beyond(losses), 5),
            "far_sums": np.round((losses * self._lab.far).sum(1), 3),
            "by_position": np.round(bins.mean(0), 4),
            "by_position_and_document": np.round(bins.reshape(len(losses), 16, 4).mean(2), 4),
        }

    def _beyond(self, losses: np.ndarray) -> np.ndarray:
        return losses[:, self._trained - 1 :].mean(1)

    def _far(self, losses: np.ndarray) -> np.ndarray:
        far = self._lab.far
        return (losses * far).sum(1) / np.maximum(1, far.sum(1))

    def _paired(self, base: str) -> dict[str, Any]:
        """Returns the changes of all other schedules against one."""
        found, short = {}, self._at[self._trained]
        for name, losses in self.losses.items():
            if name == base:
                continue
            apart = losses - self.losses[base]
            found[name] = {
                "all": change(self._lab, apart.mean(1)),
                "short": change(self._lab, (short[name] - short[base]).mean(1)),
                "beyond": change(self._lab, self._beyond(apart)),
                "far": change(self._lab, self._far(apart)),
            }
        return found

    def against(self, name: str, beyond: Sequence[float]) -> dict[str, Any]:
        """Returns the change of a schedule, past the trained length, against figures of another measurement."""
        return change(self._lab, self._beyond(self.losses[name]) - np.asarray(beyond))

    def show(self, title: str) -> None:
        """Prints the perplexities at all lengths, and that of far repeats."""
        lab, far = self._lab, self._lab.far
        lab.say(f"{title} ({self.entry['seconds']:.1f} s); perplexity at {lab.sizes.lengths}, far repeats:")
        for name, losses in self.losses.items():
            shown = [*self.entry["schedules"][name]["ppl"].values(), math.exp((losses * far).sum() / max(1, far.sum()))]
            print(f"    {name:60s} " + " ".join(f"{each:8.3f}" for each in shown), flush=True)


def _means(arrays: Sequence[np.ndarray], digits: int) -> list[float]:
    return [round(float(each.mean()), digits) for each in arrays]


def change(lab: Lab, differences: np.ndarray) -> dict[str, Any]:
    """Returns the mean over documents, its standard error over documents and over packages, and how many fell."""
    packages, count = np.asarray(lab.packages), len(differences)
    means = [differences[packages == name].mean() for name in dict.fromkeys(lab.packages)]
    between = float(np.std(means, ddof=1) / len(means) ** 0.5) if len(means) > 1 else None
    return {
        "mean": round(float(differences.mean()), 5),
        "se": round(float(differences.std(ddof=1) / count**0.5), 5),
        "documents": count,
        "se_packages": None if between is None else round(between, 5),
        "below_zero": int((differences < 0).sum()),
    }
