"""One document of 131,072 tokens through the reference model: ``python long_text.py``.

It prints the time, and the peak memory of the process, Python and libraries included. The document is all the held-out
text there is, again and again.
"""

from __future__ import annotations

import os
import resource
import time

import torch

from ropescale.checkpoints.loading import load_model, load_tokenizer
from ropescale.evals import perplexity, tokenize
from ropescale.evals.reference import CHECKPOINT, held_out_documents

TOKENS = 131_072


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    texts = tokenize(held_out_documents(), load_tokenizer(CHECKPOINT))
    joined = [token for each in texts for token in each.ids]
    document = (joined * (TOKENS // len(joined) + 1))[:TOKENS]
    start, before = time.perf_counter(), time.process_time()
    result = perplexity(load_model(CHECKPOINT, "float32"), [document], [2048, TOKENS])
    seconds, cpu = time.perf_counter() - start, time.process_time() - before
    for row in result.rows:
        print(f"{row.length:,} positions: perplexity {row.ppl:,.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{seconds:,.0f} s, {cpu:,.0f} s of CPU time over {os.cpu_count()} threads; load {os.getloadavg()[0]:.1f}")
    print(f"peak of the process {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
