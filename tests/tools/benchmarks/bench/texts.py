"""a whole text, measured as `eval` does by default, beside the bare forward passes.

A long text under as-is and YaRN, with truncation and the short-context cost. "Bare" is a loop of stock transformers
over the token ids: one window after the other, whole logits.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import sides

CHECKPOINTS, TEXTS = os.environ.get("ROPESCALE_STORIES260K", ""), os.environ.get("ROPESCALE_TEXTS", "")
"""Folders with ``stories260k/`` and ``tinyshakespeare.txt``; without them: the bundled model and its held-out text."""

SCHEDULE = "yarn:factor=4"


@dataclass(frozen=True)
class Measurement:
    """What is measured: a checkpoint, a text, a short and a long length, and the tokens under each schedule."""

    checkpoint: Path
    text: Path
    lengths: tuple[int, int]
    budget: int

    @property
    def words(self) -> list[object]:
        """The command that measures it."""
        lengths = ",".join(map(str, self.lengths))
        given = ["--data", self.text, "--lengths", lengths, "--schedule", SCHEDULE, "--budget-tokens", self.budget]
        return ["-m", "ropescale", "eval", self.checkpoint, *given]


def measure(seconds: float) -> list[sides.Row]:
    """Returns ratios of CPU time."""
    from ropescale.evals.reference import CHECKPOINT, held_out_documents

    if CHECKPOINTS and TEXTS:
        checkpoint, text = Path(CHECKPOINTS) / "stories260k", Path(TEXTS) / "tinyshakespeare.txt"
        return compared(Measurement(checkpoint, text, (512, 2048), 65_536), seconds)
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        text.write_text("\n".join(held_out_documents()), encoding="utf-8")
        return compared(Measurement(CHECKPOINT, text, (128, 512), 8192), seconds)


def compared(asked: Measurement, seconds: float) -> list[sides.Row]:
    """Returns the call and the command over the forward passes."""
    from ropescale.checkpoints.loading import load_model, load_tokenizer
    from ropescale.evals import perplexity
    from ropescale.evals.data.sources import TextSource

    models.one_thread()
    model, tokenizer = load_model(asked.checkpoint, "float32").eval(), load_tokenizer(asked.checkpoint)

    def ours() -> Any:
        texts = TextSource([str(asked.text)]).texts()
        options = {"tokenizer": tokenizer, "budget_tokens": asked.budget, "source": str(asked.text)}
        return perplexity(model, texts[str(asked.text)], asked.lengths, [SCHEDULE], **options)

    result = ours()
    windows = fed(result, asked.lengths, tokenizer.bos_token_id)
    positions = sum(len(window) for each in windows.values() for window in each)
    runs = [*result.passes, *result.divergences, *([result.truncation] if result.truncation else [])]
    assert positions == sum(each.positions for each in runs), "the loop feeds what ropescale feeds"
    acts = {
        "perplexity()": lambda: sides.cpu(ours),
        "the bare forward passes": lambda: sides.cpu(lambda: bare(model, windows)),
        "reading and tokenizing": lambda: sides.cpu(
            lambda: tokenizer(asked.text.read_text(encoding="utf-8"), verbose=False)
        ),
        "ropescale eval": lambda: sides.command(*asked.words),
    }
    seen = sides.in_turn(acts, seconds, lambda act: act(), warm=False)
    return rows(seen, f"{positions:,} positions, for {len(result.documents)} windows of {asked.lengths[1]:,}")


def rows(seen: dict[str, list[float]], said: str) -> list[sides.Row]:
    """Returns the call over the passes alone, and with reading and tokenizing beside them, and the command."""
    ours, passes, read, command = seen.values()
    both = "reading, tokenizing and the bare forward passes"
    with_reading = {"perplexity()": ours, both: [a + b for a, b in zip(passes, read, strict=True)]}
    alone = {"perplexity()": ours, "ropescale eval": command, "the bare forward passes": passes}
    size = sides.Row("what is fed", statistics.median(passes), unit="s", rounds=len(passes), note=said)
    return [*sides.ratios(alone, "the bare forward passes"), *sides.ratios(with_reading, both), size]


def fed(result: Any, lengths: tuple[int, int], bos: int) -> dict[str, list[list[int]]]:
    """Returns what is fed under each schedule: whole windows, their beginnings again, and truncation's."""
    short, long = lengths
    whole = [[bos, *each.ids][:long] for each in result.documents]
    beginnings = [each[:short] for each in whole]  # of the short-context cost
    cut = [window for each in whole for window in truncated(each, result.truncation.length, result.truncation.stride)]
    return {"as-is": whole + beginnings + cut, SCHEDULE: whole + beginnings}


def truncated(window: list[int], context: int, stride: int) -> Iterator[list[int]]:
    """Yields windows of BOS and ``context - 1`` tokens whose last ``stride`` are scored, to the window's end."""
    for stop in range(context + stride, len(window) + 1, stride):
        yield [window[0], *window[stop - context + 1 : stop]]


def bare(model: Any, windows: dict[str, list[list[int]]]) -> float:
    """Returns the sum of all losses."""
    import torch

    import ropescale

    total = 0.0
    for schedule, each in windows.items():
        with ropescale.patch(model, schedule), torch.inference_mode():
            for window in each:
                ids = torch.tensor([window])
                logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
                total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
    return total
