"""The result of a retrieval run, and how it is printed and written."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

from ...output.formatting import escaped
from ..metrics.cells import csv_text, lines_of
from ..results.saving import Saved
from ..statistics.intervals import LEAST_DOCUMENTS, PERCENT
from .answers import AccuracyRow, Answer, StoredAnswers
from .metrics import ACCURACY, EFFECTIVE, GAINS, METRICS, EffectiveRow, GainsRow, answered, by_part

_DEPENDENT = " (questions of one prompt taken as independent)"


@dataclass(repr=False)
class Retrieval(StoredAnswers, Saved):
    """A finished (or interrupted) run; :class:`.answers.StoredAnswers` has its attributes."""

    kind: ClassVar[str] = "retrieval"
    metrics = METRICS
    about = (*Saved.about, "cost")

    @property
    def rows(self) -> list[AccuracyRow]:
        """Per schedule and length, one row over all questions, and one for each depth or task."""
        return ACCURACY.rows(self)

    @property
    def paired(self) -> list[GainsRow]:
        """The change of every schedule against the baseline, at every length that both have."""
        return GAINS.rows(self)

    @property
    def effective(self) -> list[EffectiveRow]:
        """The effective length of every schedule."""
        return EFFECTIVE.rows(self)

    def protocol_line(self) -> str:
        """Returns a few sentences that say how the numbers were measured."""
        protocol, dtype = self.protocol, self.model["dtype"]
        bos = "BOS first" if protocol["has_bos"] else "no BOS"
        joined = "" if protocol["task"] in ("passkey", "prompts") else _DEPENDENT
        if self.chance is None:
            tokens = ", ".join(f"{escaped(task)} {count}" for task, count in sorted(protocol["new_tokens"].items()))
            alone = ", ".join(map(escaped, protocol["alone"]))
            where = f"; several answers each alone, their losses added: {alone}" * bool(alone)
            left_out = self.data.get("skipped", {}).items()
            skipped = "".join(f"; {count:,} {name.replace('_', ' ')}" for name, count in left_out)
            how = (
                f"prompts of {escaped(self.data['source'])}{skipped}; {bos}, {dtype}. Score: the share of the "
                f"answers in what greedy decoding writes, whatever their case (tokens: {tokens}). NLL: of the answers "
                f"in place, joined as the example in the prompt joins its own{where}. Brackets"
            )
        else:
            how = (
                f"protocol {protocol['task']}: {protocol['holds']}; {self._prompts()}, seed {protocol['seed']}, "
                f"{protocol['digits']} digits, {bos}, filler {escaped(self.data['source'])}, {dtype}. An answer counts "
                "when every token of it is ranked first (greedy decoding would write it); brackets"
            )
        return (
            f"{how} are Wilson {PERCENT} intervals{joined}, ± is a {PERCENT} t interval over prompts "
            f"({LEAST_DOCUMENTS} or more). {self._bar()}. Prompts sha256 {self.data['sha256'][:12]}"
        )

    def sentences(self) -> list[str]:
        """Returns the share that each schedule answers at the longest length, and what of it is told apart."""
        said = answered([asdict(row) for row in self.rows], self.short_names)
        rows = [row for row in self.paired if row.length == self.lengths[-1] and row.task is None]
        gains = [row for row in rows if row.p_value < 1]
        if gains and len(said) == 1:
            best = min(gains, key=lambda row: row.p_value)
            said.append(
                f"{self.named(best.schedule)} gains {best.gained} of {best.answers} questions over "
                f"{self.named(best.baseline)} and loses {best.lost} (exact McNemar p = {best.p_value:.2g})."
            )
        elif cheaper := [row for row in rows if row.low is not None and row.high is not None and row.high < 0]:
            best = min(cheaper, key=lambda row: row.delta_nll)
            said.append(
                f"At {best.length:,} tokens the answers cost {self.named(best.schedule)} {-best.delta_nll:.3g} nats "
                f"less than {self.named(best.baseline)} ({-cast(float, best.high):.3g} to "
                f"{-cast(float, best.low):.3g})."
            )
        return said

    def rests_on(self) -> str:
        """Returns how many questions there are."""
        return f"{self._prompts()}; brackets are Wilson {PERCENT} intervals."

    def _summary(self) -> str:
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        asked = f"{self.protocol['task']}, {self.data['documents']} prompts"
        schedules = ", ".join(map(self.named, self.schedules))
        return f"{Path(self.model['path']).name}: {schedules}; at {lengths} tokens; {asked}"

    def _tables(self) -> dict[str, str]:
        # a line for each, whatever was written
        texts = [None if each.generated is None else json.dumps(each.generated) for each in self.answers]
        written = [replace(each, generated=text) for each, text in zip(self.answers, texts, strict=True)]
        return {"answers.csv": csv_text(lines_of(Answer, written))}

    def _heading(self) -> str:
        return f"Retrieval ({self.protocol['task']})"

    def _source(self) -> str:
        return ""

    def _details(self) -> str:
        if self.chance is None:  # tasks have their tables among the others
            return ""
        odd = self.data.get("not_retokenized", 0)
        alike = "Every prompt tokenizes alike"
        which = f"{odd} of {self.data['documents']} prompts tokenize differently" if odd else alike
        ids = f"{which} when its text is tokenized in one piece; the ids of the pieces were used."
        return f"{by_part(self)}\n\n{ids}"

    def _prompts(self) -> str:
        if self.chance is None:
            return f"{self.data['documents']:,} prompts of {escaped(self.data['source'])}"
        depths = ", ".join(f"{depth:.3g}" for depth in self.protocol["depths"])
        trials = self.protocol["trials"]
        count = f"{trials} prompt{'s' * (trials != 1)} of each length"
        return f"{count} and depth ({depths})" if self.protocol["task"] == "passkey" else f"{count} (depths {depths})"

    def _bar(self) -> str:
        """Returns the meaning of the effective length here."""
        shortest, needed = self.lengths[0], self.effective[0].needed
        if not needed:
            return f"No schedule finds anything at {shortest:,} tokens, so none has an effective length"
        share = f"{self.threshold:g} of the best at {shortest:,} tokens"
        return f"Effective length: the longest up to which accuracy is at least {needed:.3g} at every length, {share}"
