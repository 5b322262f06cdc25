"""Real models on real text against an independent loop: stock transformers, full logits, log-softmax in float64.

The loop knows nothing of ropescale: one forward pass per window, and the windows written down again.
"""

import numpy as np
import pytest
import torch
from tiny import naive_nll
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropescale.evals import perplexity, reference, tokenize


def naive_sliding(model, ids, length, stride, bos):
    """Windows of ``length - 1`` tokens after BOS, ``stride`` apart; each scores what the one before did not reach."""
    found: list[float] = []
    for start in range(0, len(ids), stride):
        window = ids[start : start + length - 1]
        found += naive_nll(model, [bos, *window])[len(found) - start - len(window) :]
        if len(found) == len(ids):
            break
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("length", "stride"), [(1024, None), (256, 128)])
def test_the_reference_model_has_the_nlls_of_the_naive_loop(length, stride):
    model = AutoModelForCausalLM.from_pretrained(reference.CHECKPOINT, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(reference.CHECKPOINT)
    ids = [document.ids[:2048] for document in tokenize(reference.held_out_documents()[:6], tokenizer)]
    bos = tokenizer.bos_token_id
    result = perplexity(model, ids, [length], stride=stride, windows=None if stride else 1, bos=bos)
    ours = np.concatenate(result.passes[0].nll).astype(np.float64)
    if stride is None:
        theirs = [naive_nll(model, [bos, *each[: length - 1]]) for each in ids if len(each) >= length - 1]
    else:
        theirs = [naive_sliding(model, each, length, stride, bos) for each in ids]
    exact = np.concatenate(theirs)
    apart, mean = np.abs(ours - exact), abs(ours.mean() - exact.mean())
    assert len(ours) == len(exact) == result.rows[0].tokens
    assert apart.max() < 1e-4 and mean < 1e-6 and result.rows[0].nll == pytest.approx(exact.mean(), abs=1e-6)
