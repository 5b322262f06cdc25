"""``python -m experiment.toy OUT.json``: what the experiment measures, of the bundled model (trained at 256 tokens).

On its 26 held-out modules, on a processor: schedules at 256 to 2,048 tokens, remapped positions, truncation, and one
other ramp at each factor's own length. The page of the experiment has these figures beside those of a larger model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

import ropescale.evals
from ropescale.evals import Result
from ropescale.evals.metrics.far_repeats import far_repeats
from ropescale.evals.reference import CHECKPOINT, FOUND, held_out_documents

from .measuring import TRUNCATION
from .page import FACTORS, LINEAR, NTK, RULE, YARN

TRAINED, LENGTHS = 256, (256, 512, 1024, 2048)


def main() -> None:
    """Measures, and writes the figures."""
    parser = argparse.ArgumentParser("experiment.toy", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--untrained", type=Path, help="that measurement of tests/tools/reproduce.py, if there is one")
    given = parser.parse_args()
    schedules = [LINEAR, NTK, YARN.format(8), str(FOUND), "dynamic-yarn"]
    result = Result.load(given.untrained) if given.untrained else measured(schedules, LENGTHS, truncation_stride=16)
    names = {Path(result.named(name)).name: name for name in [*result.schedules, TRUNCATION]}
    found = {short: figures(result, name) for short, name in names.items()}
    for factor in FACTORS:
        ramps = [YARN.format(factor), RULE.format(factor)]
        apart = measured(ramps, (TRAINED, TRAINED * factor), remapped=factor == max(FACTORS), truncation=False)
        for name in apart.schedules[1:]:
            found.setdefault(name, figures(apart, name))
    about = {"trained": TRAINED, "lengths": LENGTHS, "far": repeats(result).sum(1).tolist()}
    given.out.write_text(json.dumps({**about, "schedules": found}, separators=(",", ":")))


def measured(schedules: Sequence[str], lengths: Sequence[int], **given: Any) -> Result:
    """Measures the first window of every module."""
    return ropescale.evals.perplexity(CHECKPOINT, held_out_documents(), lengths, schedules, windows=1, **given)


def figures(result: Result, name: str) -> dict[str, Any]:
    """Returns the mean loss of each document at every length, past the trained one, and of far repeats."""
    losses = {length: np.stack(result.losses(name, length)).astype(np.float64) for length in result.lengths}
    last, far = losses[result.lengths[-1]], repeats(result)
    return {
        "means": {str(length): np.round(each.mean(1), 5).tolist() for length, each in losses.items()},
        "beyond": np.round(last[:, TRAINED - 1 :].mean(1), 5).tolist(),
        "far": np.round((last * far).sum(1) / np.maximum(1, far.sum(1)), 5).tolist(),
    }


def repeats(result: Result) -> np.ndarray:
    """Returns which of the scored tokens are far repeats, bool [documents, positions - 1]."""
    documents = ropescale.evals.tokenize(held_out_documents(), AutoTokenizer.from_pretrained(CHECKPOINT))
    masks = [far_repeats(document.ids, TRAINED) for document in documents]
    return np.stack([mask[: result.lengths[-1] - 1] for mask in masks])


if __name__ == "__main__":
    main()
