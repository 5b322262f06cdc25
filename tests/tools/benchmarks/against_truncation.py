"""Compares schedules with truncation on the last doubling of their length: figures of docs/measuring.md.

``against_truncation.py SCHEDULE@LENGTH ...`` measures the bundled model on its held-out modules, for instance
``yarn:factor=2@512 yarn:factor=4@1024 yarn:factor=8@2048``, and prints mean losses in nats and the difference.
"""

from __future__ import annotations

import sys

import numpy as np

from ropescale.checkpoints.loading import load_model, load_tokenizer
from ropescale.evals import perplexity
from ropescale.evals.metrics.far_repeats import far_repeats
from ropescale.evals.reference import CHECKPOINT, held_out_documents

TRAINED, STRIDE = 256, 16


def main(pairs: list[str]) -> None:
    """Prints one line per schedule, and one about its far repeats."""
    asked = [(schedule, int(length)) for schedule, _, length in (each.rpartition("@") for each in pairs)]
    lengths = sorted({TRAINED, *(length for _, length in asked)})
    model, tokenizer = load_model(CHECKPOINT), load_tokenizer(CHECKPOINT)
    given = {"tokenizer": tokenizer, "windows": 1, "truncation_stride": STRIDE}
    result = perplexity(model, held_out_documents(), lengths, [schedule for schedule, _ in asked], **given)
    for schedule, stop in asked:
        start = stop // 2
        truncated = np.concatenate([each[start - TRAINED : stop - TRAINED] for each in result.truncation.nll])
        further = np.concatenate([each[start - 1 : stop - 1] for each in result.losses(schedule, stop)])
        apart = (further - truncated).reshape(len(result.documents), -1).sum(1, dtype=float)
        difference = result.estimate(list(apart), [stop - start] * len(apart))
        print(schedule, f"{start} to {stop - 1}:", truncated.mean(dtype=float), further.mean(dtype=float), difference)
        far = np.concatenate([far_repeats(each.ids, TRAINED)[start - 1 : stop - 1] for each in result.documents])
        for name, which in (("far repeats", far), ("others", ~far)):
            print(f"  {name} {which.sum()}:", truncated[which].mean(dtype=float), further[which].mean(dtype=float))


if __name__ == "__main__":
    main(sys.argv[1:])
