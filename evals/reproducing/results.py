"""A reproduction: the claims and every figure that they rest on, as it is printed, written and loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..metrics.cells import csv_text
from ..results.saving import Loadable
from .comparisons import Records
from .metrics import ANSWERS, ARMS, CLAIMS, METRICS, summary
from .reducing import answers_rows, arm_rows, claim_rows, described
from .rows import AnswersRow, ArmRow, ClaimRow

if TYPE_CHECKING:
    from .experiments.setting import Setting


@dataclass(repr=False)
class Reproduction(Loadable):
    """The claims, and the perplexity of every arm."""

    kind: ClassVar[str] = "reproduction"
    metrics = METRICS

    @classmethod
    def of(cls, records: Records) -> Reproduction | None:
        """Computes the rows from what the arms have measured so far; None where that is nothing."""
        first = described(records)
        if first is None:
            return None
        model = {**first.model, "path": records.room.setting.folder.name}
        made = cls(model, first.data, _protocol(records.room.setting), first.versions)  # type: ignore[arg-type]
        made.figures = {
            ArmRow: arm_rows(records),
            AnswersRow: answers_rows(records),
            ClaimRow: claim_rows(records),
        }
        return made

    @property
    def rows(self) -> list[ArmRow]:
        """The perplexity of every arm, step and length."""
        return ARMS.rows(self)

    @property
    def answers(self) -> list[AnswersRow]:
        """The questions that every model answered."""
        return ANSWERS.rows(self)

    @property
    def claims(self) -> list[ClaimRow]:
        """The claims and their verdicts."""
        return CLAIMS.rows(self)

    def protocol_line(self) -> str:
        """Returns a few sentences that say how it was done."""
        p, number = self.protocol, self.data["documents"]
        return (
            f"found: {p['found']}; control: the model's own table. "
            f"Trained in windows that begin where a document does, {p['step_tokens']:,} tokens a step: AdamW, rate "
            f"{p['learning_rate']:g}, {p['warmup']} steps of warm-up, then {p['decay']}, "
            f"{'bfloat16' if p['bf16'] else 'float32'}. Measured on the first positions of {number} texts that nothing "
            f"was trained on, {self.model['dtype']}; truncation: the model as it is, given the last "
            f"{p['trained_length']:,} tokens at most, stride {p['stride']}; text sha256 {self.data['sha256'][:12]}"
        )

    def _summary(self) -> str:
        return f"{Path(self.model['path']).name}: {summary(self.claims)}"

    def _tables(self) -> dict[str, str]:
        names = ("claim", "verdict", "text", "source", "figures")
        return {"claims.csv": csv_text([names, *([getattr(row, name) for name in names] for row in self.claims)])}

    def _heading(self) -> str:
        return f"Reproduction: {self.protocol['trained_length']:,} to {self.protocol['target_length']:,} tokens"


def _protocol(setting: Setting) -> dict[str, Any]:
    recipe = setting.recipe
    return {
        "name": "ropescale",
        "target_length": setting.target,
        "trained_length": setting.trained,
        **{name: setting.schedules[name] for name in ("found", "control")},
        "stride": setting.stride,
        "step_tokens": recipe.batch * setting.target,
        "learning_rate": recipe.learning_rate,
        "warmup": recipe.warmup,
        "decay": recipe.decay,
        "bf16": setting.bf16,
        "seed": setting.seeds[0],
        "interval": "document-clustered t, 95%",
    }
