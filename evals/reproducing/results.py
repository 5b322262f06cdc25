"""A reproduction: the claims and every figure that they rest on, as it is printed, written and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...files.reading import local_path
from ...output.escaping import escaped
from ..metrics.cells import csv_text
from ..results.saving import Saved
from ..run_folder.formats import SCHEMA
from ..run_folder.loading import read_results
from .comparisons import Records
from .metrics import ANSWERS, ARMS, CLAIMS, METRICS, summary
from .reducing import answers_rows, arm_rows, claim_rows, described
from .rows import KIND, AnswersRow, ArmRow, ClaimRow

if TYPE_CHECKING:
    from .experiments.setting import Setting


@dataclass(repr=False)
class Reproduction(Saved):
    """The claims, and the perplexity of every arm."""

    kind: ClassVar[str] = KIND
    __repr__ = Saved.__repr__
    metrics = METRICS

    @classmethod
    def load(cls, out: str | Path) -> Reproduction:
        """Reads a folder that :meth:`save` wrote.

        Raises:
            DataError: the folder holds no such results, or a file is damaged or missing.
        """
        found: Mapping[str, Any] = read_results(local_path(out), cls.kind)
        made = cls(found["model"], found["data"], dict(found["protocol"]), found["versions"])
        made.figures |= {each.row: each.read(found) for each in cls.metrics}
        return made

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

    def to_dict(self) -> dict[str, object]:
        """Returns the content of results.json."""
        meta = {name: getattr(self, name) for name in ("kind", "model", "data", "protocol", "versions")}
        return {"schema": SCHEMA, **meta, **self._parts()}

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

    def _lines(self) -> list[list[Any]]:
        return [[each.name for each in fields(ArmRow)], *([*asdict(row).values()] for row in self.rows)]

    def _tables(self) -> dict[str, str]:
        names = ("claim", "verdict", "text", "source", "figures")
        claims = csv_text([names, *([getattr(row, name) for name in names] for row in self.claims)])
        return {"results.csv": self.to_csv(), "claims.csv": claims}

    def _heading(self) -> str:
        return f"Reproduction: {self.protocol['trained_length']:,} to {self.protocol['target_length']:,} tokens"

    def _source(self) -> str:
        return f"Data: {escaped(self.data['source'])}, text sha256 `{self.data['sha256']}`.\n"


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
