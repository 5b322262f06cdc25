"""Tiny real models and tokenizers for the evaluation's tests, built in milliseconds from a seed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ropescale
from ropescale.evals.data.documents import Document, of_ids

VOCABULARY = 61

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. "

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
"""A shape in the words of transformers, with logits that are far from flat."""


def llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A Llama of 2 layers, 4 heads of 8 over 2 KV heads, trained length 64, with logits that are far from flat."""
    torch.manual_seed(seed)
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    return LlamaForCausalLM(LlamaConfig(**(SMALL | plain | changes))).eval()


def documents(count: int, tokens: int, vocabulary: int = VOCABULARY, seed: int = 0) -> list[list[int]]:
    """Random token ids, a little more or less than ``tokens`` long."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (tokens + i,), generator=generator).tolist() for i in range(count)]


def from_ids(ids: Iterable[Sequence[int]]) -> list[Document]:
    """Documents of these token ids."""
    return [of_ids(f"document {number}", each) for number, each in enumerate(ids)]


def markov_llama(transitions: torch.Tensor, **config: int) -> LlamaForCausalLM:
    """A Llama whose next-token probabilities are exactly ``transitions[current]``, whatever came before.

    Attention and MLP write nothing, embeddings are one-hot, RMSNorm with eps 0 scales a one-hot by sqrt(V), and
    the head holds ``log P^T / sqrt(V)``.

    Args:
        transitions: fp64 [V, V], rows sum to 1, V even.
    """
    size = len(transitions)
    model = llama(
        vocab_size=size, hidden_size=size, num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=0.0, **config
    ).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(transitions.log().T / math.sqrt(size))
    return model


def prefix_mean_llama(head: torch.Tensor, **config: int) -> LlamaForCausalLM:
    """A Llama whose logits depend on which tokens are visible, whatever their order and the schedule.

    Queries and keys are zero, so attention is the mean over all positions in sight; values and output are the identity
    on one-hot embeddings, which RMSNorm with eps 0 scales by sqrt(V); the MLP writes nothing. See
    :func:`prefix_mean_nll` for the closed form.

    Args:
        head: fp64 [V, V], what the last hidden state is multiplied with, V even.
    """
    size = len(head)
    shape = {"hidden_size": size, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    model = llama(vocab_size=size, rms_norm_eps=0.0, **shape, **config).double()
    layer = model.model.layers[0]
    with torch.no_grad():
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.mlp.down_proj):
            part.weight.zero_()
        for part in (layer.self_attn.v_proj, layer.self_attn.o_proj, model.model.embed_tokens):
            part.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(head)
    return model


def prefix_mean_nll(head: torch.Tensor, seen: list[int], token: int) -> float:
    """The closed form: NLL of ``token`` after ``seen`` under :func:`prefix_mean_llama`.

    ``h = e(last) + sqrt(V) mean(e(s) for s in seen)``, logits are ``head @ (h sqrt(V) / |h|)``.
    """
    size = len(head)
    share = torch.bincount(torch.tensor(seen), minlength=size).double() / len(seen)
    hidden = math.sqrt(size) * share
    hidden[seen[-1]] += 1
    logits = head @ (hidden * math.sqrt(size) / hidden.norm())
    return float(logits.logsumexp(0) - logits[token])


def contexts(tokens: int, length: int, stride: int | None, bos: bool) -> Iterator[tuple[int, range]]:
    """The definition of windows, token by token: which tokens of the document token t is predicted from.

    In sliding windows, the first one that reaches a token is the one that scores it.
    """
    wide = length - bos
    for t in range(0 if bos else 1, wide if stride is None else tokens):
        k = 0
        while stride is not None and k * stride + wide <= t:
            k += 1
        yield t, range(k * (stride or 0), t)


def uniform_llama() -> LlamaForCausalLM:
    """Every token equally likely: the head is zero."""
    model = llama()
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


def byte_tokenizer(bos: bool = True, limit: int = 64) -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte (ids 0..255), ``<s>`` 256 as BOS if asked, ``model_max_length`` of ``limit``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>"} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=limit, **special)


def checkpoint(folder: Path, model: LlamaForCausalLM | None = None) -> Path:
    """Writes a model, a tiny Llama by default, with a tokenizer of bytes."""
    (model or llama(vocab_size=258)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def naive_nll(model: Any, ids: list[int]) -> list[float]:
    """The oracle: plain transformers, full logits, log-softmax in fp64; the loss of each token but the first."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    return (-torch.log_softmax(logits, 1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]).tolist()


def naive_truncation(model: Any, ids: list[int], length: int, stride: int, bos: int | None = None) -> list[float]:
    """The losses of the tokens at positions from 64 on, the trained length, by one stock pass per window.

    The whole text with its BOS is a list of positions. The first window scores the positions 64 to ``63 + stride`` and
    begins at ``stride``; the next one begins ``stride`` later. BOS, if any, is the first position of each.
    """
    whole = ([] if bos is None else [bos]) + ids
    found: list[float] = []
    for begin in range(stride, length - 64 + stride, stride):
        window = whole[begin : min(begin + 64, length)]
        found += naive_nll(model, window if bos is None else [bos, *window[1:]])[63 - stride :]
    return found


def logprobs_of(folder: str | Path, schedule: str | None = None) -> Callable[[Sequence[int]], list[float]]:
    """The log-probabilities of stock transformers on a folder, in float32, under a schedule that is patched in."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    if schedule:
        ropescale.patch(model, schedule)
    return lambda ids: [-nll for nll in naive_nll(model, list(ids))]


def keep_code_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets transformers copy the code that it runs to a folder, and forget that of other tests in this process."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    monkeypatch.setattr(sys, "path", [*sys.path])  # transformers adds the folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
