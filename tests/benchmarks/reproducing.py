"""The rate of ``ropescale reproduce``: YaRN for 100 steps at several, measured on modules left out of the training.

``python tests/benchmarks/reproducing.py OUT 3e-4`` prints perplexities before and after; a last word, ``256``, mixes
windows of so many positions in.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch

from ropescale.evals.data.documents import Document
from ropescale.evals.finetuning.job import TrainingJob
from ropescale.evals.finetuning.recipes import TrainingRecipe
from ropescale.evals.finetuning.running import Adaptation
from ropescale.evals.reference import CHECKPOINT, HELD_OUT
from ropescale.evals.reference.corpus import library_root
from ropescale.evals.running.preparing import Checkpoint
from ropescale.evals.running.progress import Notes
from ropescale.models.loading import load_tokenizer
from ropescale.request import Request

LENGTH, STEPS = 2048, 100
LONG, EVERY, FIRST = 16_000, 8, 3
"""Left out is every eighth module that is no test and has so many bytes, from the fourth on."""

_TESTS, _NOT_STDLIB = {"test", "tests", "idle_test"}, {"site-packages", "dist-packages", "__pycache__"}


def modules() -> tuple[list[Path], set[Path]]:
    """Returns all modules that the bundled model was trained on, and those that are left out here."""
    root = library_root()
    held = {root / name for name in HELD_OUT}
    found = [path for path in sorted(root.rglob("*.py")) if path not in held and _parts(path).isdisjoint(_NOT_STDLIB)]
    long = [path for path in found if _parts(path).isdisjoint(_TESTS) and path.stat().st_size >= LONG]
    return found, set(long[FIRST::EVERY])


def _parts(path: Path) -> set[str]:
    return set(path.relative_to(library_root()).parts)


def heads(paths: list[Path]) -> list[Document]:
    """Returns the first 2,047 tokens of each module that has as many."""
    tokenizer, found = load_tokenizer(CHECKPOINT), []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        ids = np.asarray(tokenizer(text[: 8 * LENGTH], add_special_tokens=False, verbose=False)["input_ids"], np.int32)
        if len(ids) >= LENGTH - 1:
            ids = ids[: LENGTH - 1]
            found.append(Document(path.name, ids, None, hashlib.sha256(ids.tobytes()).hexdigest()))
    return found


def main() -> None:
    """Trains once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("rate", type=float)
    parser.add_argument("mixed", type=int, nargs="?")
    given = parser.parse_args()
    found, left_out = modules()
    recipe = TrainingRecipe(learning_rate=given.rate, batch=2, warmup=10, decay="cosine")
    measured = {"eval_lengths": (256, LENGTH), "eval_every": STEPS, "eval_windows": 1}
    job = TrainingJob(STEPS, recipe, mixed=given.mixed, bf16=True, **measured)  # type: ignore[arg-type]
    texts, tested = (heads([path for path in found if (path in left_out) is out]) for out in (False, True))
    checkpoint, request = Checkpoint(str(CHECKPOINT)), Request("yarn:factor=8")
    print(Adaptation(checkpoint, request, job, texts, tested, given.out, notes=Notes(True)).run().to_markdown())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
