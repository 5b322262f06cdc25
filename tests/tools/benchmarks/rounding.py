"""What bfloat16 or float16 changes on the bundled model: ``python rounding.py [float16]``; minutes on one core."""

from __future__ import annotations

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropescale.evals import Result, perplexity
from ropescale.evals.reference import CHECKPOINT, held_out_documents


def measured(dtype: torch.dtype) -> Result:
    """As-is and YaRN at the trained length and eight times that, in one dtype."""
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    options = {"tokenizer": tokenizer, "windows": 1, "short_context": False, "truncation": False}
    return perplexity(model, held_out_documents(), [256, 2048], ["yarn:factor=8"], **options)


def main() -> None:
    """Prints the differences."""
    torch.set_num_threads(1)
    name = sys.argv[1] if len(sys.argv) > 1 else "bfloat16"
    exact, rounded = measured(torch.float32), measured(getattr(torch, name))
    print(f"| schedule | length | perplexity in float32 | in {name}, relative |\n|---|---:|---:|---:|")
    for one, other in zip(exact.rows, rounded.rows, strict=True):
        print(f"| {one.schedule} | {one.length:,} | {one.ppl:.3f} | {other.ppl / one.ppl - 1:+.4%} |")
    for one, other in zip(exact.paired, rounded.paired, strict=True):
        print(f"change at {one.length:,}: {one.delta_nll:+.4f}, in {name} {other.delta_nll - one.delta_nll:+.5f}")
    for one, other in zip(exact.passes, rounded.passes, strict=True):
        moved = np.concatenate(other.nll) - np.concatenate(one.nll)
        print(f"{one.schedule}: a token's loss moves by {moved.std():.4f} nats (one standard deviation)")


if __name__ == "__main__":
    main()
