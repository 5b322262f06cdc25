"""The same model and text, measured in each published way: the table of docs/measuring.md.

``python tests/tools/protocols.py`` takes minutes, most of them at a stride of 1. The YaRN paper's script, the guide of
transformers, lm-evaluation-harness and llama.cpp are transcribed here, window by window, with stock forward passes.
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
    for stride in (1, STRIDE):
        row = perplexity(model, beginnings, [LENGTH], tokenizer=tokenizer, stride=stride).rows[0]
        show(f"a fifth of each text: ropescale, stride {stride}", row.tokens, row.ppl)
    ids = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in beginnings]
    show("a fifth of each text: hf-docs, stride 1", *guide(model, ids, LENGTH, 1))


def ours(model: Any, tokenizer: Any, texts: list[str]) -> None:
    """What ropescale measures."""
    for stride in (STRIDE, LENGTH // 2, LENGTH - 1):
        row = perplexity(model, texts, [LENGTH], tokenizer=tokenizer, stride=stride).rows[0]
        half = ((row.ppl_high or 0) - (row.ppl_low or 0)) / 2
        show(f"ropescale, stride {stride} (± {half:.2f} over documents)", row.tokens, row.ppl)


def theirs(model: Any, tokenizer: Any, texts: list[str]) -> None:
    """What the others would."""
    bos = tokenizer.bos_token_id
    ids = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    for stride in (STRIDE, LENGTH):
        show(f"yarn-paper, stride {stride}", *yarn_script(model, ids, LENGTH, stride, bos))
        show(f"hf-docs, stride {stride}", *guide(model, ids, LENGTH, stride))
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


def sliding(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Where each window of both scripts begins and ends, and where the one before ended."""
    done = 0
    for begin in range(0, tokens, stride):
        end = min(begin + room, tokens)
        yield begin, end, done
        done = end
        if end == tokens:
            return


def loss_of(model: Any, ids: list[int], last: int) -> float:
    """What transformers answers when all labels but the last ones are masked."""
    labels = [-100] * max(0, len(ids) - last) + ids[max(0, len(ids) - last) :]
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss)


def yarn_script(model: Any, texts: list[list[int]], length: int, stride: int, bos: int) -> tuple[int, float]:
    """The tokens that count, and the mean over all windows of each window's mean loss, exponentiated."""
    windows = [(ids, *each) for ids in texts for each in sliding(len(ids), length - 1, stride)]
    losses = [loss_of(model, [bos, *ids[begin:end]], end - done) for ids, begin, end, done in windows]
    return sum(min(end - done, end - begin) for _, begin, end, done in windows), math.exp(sum(losses) / len(losses))


def guide(model: Any, texts: list[list[int]], length: int, stride: int) -> tuple[int, float]:
    """Each window's mean loss times its unmasked labels less one, over the sum of those numbers."""
    total, weights, scored = 0.0, 0, 0
    for ids in texts:
        for begin, end, done in sliding(len(ids), length, stride):
            count = min(end - done, end - begin)
            total += loss_of(model, ids[begin:end], end - done) * (count - 1)
            weights, scored = weights + count - 1, scored + count - (begin == 0)
    return scored, math.exp(total / weights)


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
