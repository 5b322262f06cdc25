"""The same model and text, measured in each published way: the table of docs/measuring.md.

``python tests/benchmarks/protocols.py`` takes minutes, most of them at a stride of 1. The protocols that ropescale
has are run through it; lm-evaluation-harness and llama.cpp are transcribed here, window by window, with stock forward
passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropescale.evals import perplexity
from ropescale.evals.reference import CHECKPOINT, held_out_documents

LENGTH, STRIDE = 256, 32
CHARACTERS = 6000


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    texts = [text[:CHARACTERS] for text in held_out_documents()[:8]]
    print("| how | tokens scored | perplexity |\n| --- | ---: | ---: |")
    ours(model, tokenizer, texts)
    theirs(model, tokenizer, texts)
    # A stride of 1 is costly: a fifth of each text says what there is to say.
    beginnings = [text[: CHARACTERS // 5] for text in texts]
    for name, stride in [("ropescale", 1), ("ropescale", STRIDE), ("hf-docs", 1)]:
        row = perplexity(model, beginnings, [LENGTH], tokenizer=tokenizer, protocol=name, stride=stride).rows[0]
        show(f"a fifth of each text: {name}, stride {stride}", row.tokens, row.ppl)


def ours(model: Any, tokenizer: Any, texts: list[str]) -> None:
    """What ropescale measures."""
    for name, stride in [
        *[("ropescale", STRIDE), ("ropescale", LENGTH // 2), ("ropescale", LENGTH - 1)],
        *[("yarn-paper", STRIDE), ("yarn-paper", LENGTH), ("hf-docs", STRIDE), ("hf-docs", LENGTH)],
    ]:
        row = perplexity(model, texts, [LENGTH], tokenizer=tokenizer, protocol=name, stride=stride).rows[0]
        half = ((row.ppl_high or 0) - (row.ppl_low or 0)) / 2
        show(f"{name}, stride {stride} (± {half:.2f} over documents)", row.tokens, row.ppl)


def theirs(model: Any, tokenizer: Any, texts: list[str]) -> None:
    """What lm-evaluation-harness and llama.cpp would."""
    bos = tokenizer.bos_token_id
    ids = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    once = [loss for each in ids for loss in lm_eval(model, each, bos)]
    show("lm-eval, loglikelihood_rolling", len(once), mean(once))
    twice = [loss for each in ids for loss in lm_eval(model, [bos, *each], bos)]
    show("lm-eval, a tokenizer that adds BOS by itself", len(twice), mean(twice))
    chunks = [loss for chunk in llama_cpp(model, [token for each in ids for token in each], bos) for loss in chunk]
    half = 1.96 * float(torch.tensor(chunks).std()) / math.sqrt(len(chunks)) * mean(chunks)
    show(f"llama-perplexity, texts joined (± {half:.2f} by its formula)", len(chunks), mean(chunks))


def show(what: str, tokens: int, ppl: float) -> None:
    print(f"| {what} | {tokens:,} | {ppl:.3f} |", flush=True)


def mean(losses: Sequence[float]) -> float:
    return math.exp(sum(losses) / len(losses))


def lm_eval(model: Any, ids: Sequence[int], prefix: int) -> Iterator[float]:
    """Windows one after the other, each after one token of context; the last one reaches back until it is full."""
    for start in range(0, len(ids), LENGTH):
        stop = min(start + LENGTH, len(ids))
        first = max(0, stop - LENGTH) if start else 0
        fed = [ids[first - 1] if first else prefix, *ids[first:stop]]
        yield from nll(model, fed)[start - first :]


def llama_cpp(model: Any, ids: Sequence[int], bos: int) -> Iterator[list[float]]:
    """Whole chunks of L tokens, BOS in place of the first; of each, the tokens of the second half are scored."""
    for start in range(0, len(ids) - LENGTH + 1, LENGTH):
        yield nll(model, [bos, *ids[start + 1 : start + LENGTH]])[LENGTH // 2 :]


def nll(model: Any, fed: Sequence[int]) -> list[float]:
    """Of every token but the first."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([fed[:-1]])).logits[0].double().log_softmax(1)
    return (-logits[range(len(fed) - 1), fed[1:]]).tolist()


if __name__ == "__main__":
    main()
