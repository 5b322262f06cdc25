"""Says whether a search gained anything, by the intervals of documents that chose nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..metrics.cells import around, mark, signed
from .feeds.splitting import ENOUGH
from .searched import AS_IS


@dataclass(frozen=True)
class ChangeRow:
    """The loss under the found schedule minus that under another, paired by document, in nats per token.

    The intervals of all baselines at one length hold together. There are none where the documents chose the schedule.
    """

    schedule: str
    baseline: str
    length: int
    delta_nll: float
    low: float | None
    high: float | None
    interval: str | None

    @property
    def standing(self) -> str:
        """How the found schedule stands to the other one, by the interval; "" without one."""
        if self.low is None or self.high is None:
            return ""
        return "better than" if self.high < 0 else "worse than" if self.low > 0 else "not told apart from"

    @property
    def named(self) -> str:
        """The other one in a sentence."""
        return "the model as it is" if self.baseline == AS_IS else self.baseline


def change_cell(row: ChangeRow) -> str:
    """Writes a change with its interval."""
    return f"{signed(row.delta_nll)}{around(row.delta_nll, row.low, row.high, sign='+')}{mark(row.interval)}"


def verdict(changes: Sequence[ChangeRow], target: int, documents: int, *, unmoved: bool, kept: bool, held: str) -> str:
    """Says how the found schedule stands to what there is without a search, and what to use otherwise.

    Args:
        changes: the found schedule against where the search started, and against the others that were measured.
        documents: how many documents, or sets of prompts, the rows are of.
        unmoved: whether the search found nothing better than its start.
        kept: whether the model's own table is kept for short text, which the start, used alone, would not do.
        held: what was held out, "text" or "prompts".
    """
    over, *others = rows = [row for row in changes if row.length == target]
    nothing = [f"No check beat the start, {over.named}: nothing was gained."] if unmoved else []
    if not over.standing:
        figures = ", ".join(f"{signed(row.delta_nll)} against {row.named}" for row in (others if unmoved else rows))
        why = f"The schedule was chosen on the documents it is measured on; not proved (nats at {target:,}: {figures})."
        return " ".join([*nothing, why, f"Give {ENOUGH} documents of {target:,} tokens or more."])
    sets, answers = ("", "") if held == "text" else ("sets of ", " of an answer")
    where = f"At {target:,} tokens, on {documents} {sets}{'documents' if held == 'text' else held} that chose nothing, "
    if unmoved:
        said = [*nothing, *([f"{where}it is {_standings(others)}."] if others else [])]
    else:
        figure = f"{change_cell(over)} nats per token{answers}"
        said = [f"{where}the found schedule is {over.standing} {over.named} ({figure})."]
        said += [f"It is {_standings(others)}."] if others else []
    return " ".join([*said, *_advice(rows, kept=kept, held=held)])


def _standings(rows: Sequence[ChangeRow]) -> str:
    return " and ".join(f"{row.standing} {row.named} ({change_cell(row)})" for row in rows)


def _advice(rows: Sequence[ChangeRow], *, kept: bool, held: str) -> list[str]:
    """Names what is shown to be better, or the start where nothing is shown to be gained over it."""
    over = rows[0]
    better = [row for row in rows if row.standing == "worse than" and not (kept and row is over)]
    if better:
        return [f"Use {max(better, key=lambda row: row.delta_nll).named}."]
    if over.standing == "better than" or kept:
        return []
    until = "Ask more with `ropescale passkey`, and until then use" if held == "prompts" else "Use"
    return [f"{until} {over.named}."]
