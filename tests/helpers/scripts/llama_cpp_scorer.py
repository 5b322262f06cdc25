"""Runs inside an environment with llama-cpp-python: the logits of some ids under each of some GGUF files.

Standard input: ``{"ids": [...], "context": N, "runs": [[path, {more arguments of Llama}, output.npy], ...]}``. A file
that llama.cpp does not load leaves no output. Keys and values are cached in float32, so that what is compared is RoPE.
"""

import json
import sys

import numpy as np
from llama_cpp import Llama

job = json.load(sys.stdin)
for path, arguments, output in job["runs"]:
    try:
        model = Llama(
            path,
            n_ctx=job["context"],
            n_threads=2,
            n_threads_batch=2,
            logits_all=True,
            type_k=0,
            type_v=0,
            verbose=False,
            **arguments,
        )
    except ValueError:
        continue
    model.eval(job["ids"])
    np.save(output, np.asarray(model.scores[: len(job["ids"])], dtype=np.float32))
    model.close()
