"""Runs inside an environment with vLLM: the log-probabilities of prompts under some folders.

Standard input: ``[[output.json, {arguments of LLM}, [[ids], ...]], ...]``. Each output holds a list per prompt, the
log-probability of every id but the first, or ``{"error": ...}`` for a folder that vLLM does not load.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, so that the next model can take its place


def main() -> None:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    for output, arguments, prompts in json.load(sys.stdin):
        try:
            found: Any = scored(arguments, prompts)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        Path(output).write_text(json.dumps(found))
        gc.collect()
        cleanup_dist_env_and_memory()


def scored(arguments: dict[str, Any], prompts: list[list[int]]) -> list[list[float]]:
    """A list per prompt, each a batch of its own; one token is generated, because vLLM cannot be asked for none."""
    from vllm import LLM, SamplingParams

    usual = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True, "enable_prefix_caching": False}
    engine = LLM(**usual, **arguments)
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
    answers = [engine.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)[0] for ids in prompts]
    return [
        [tokens[id].logprob for id, tokens in zip(ids[1:], answer.prompt_logprobs[1:], strict=True)]
        for ids, answer in zip(prompts, answers)
    ]


if __name__ == "__main__":
    main()
