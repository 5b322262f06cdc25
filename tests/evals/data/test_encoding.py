"""The tokens of a text, and the first of them without the rest."""

import random
from functools import cache

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ropescale.evals.data.documents import TextEncoder
from ropescale.evals.reference import held_out_documents

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@cache
def text():
    """A real text with runs, digits, characters of several bytes and a special token's name in it."""
    real, dice = held_out_documents()[0][:12_000], random.Random(1)
    odd = ["=" * 700, " " * 300, "\n" * 200, "1234567890" * 60, "漢字仮名" * 150, "e\u0301ﬁ😀" * 40, "<s>", "ab" * 400]
    places = sorted(dice.sample(range(len(real)), 2 * len(odd)))
    return "".join(real[a:b] + odd[n % len(odd)] for n, (a, b) in enumerate(zip([0, *places], places)))


@cache
def made(kind):
    learned, alphabet = [held_out_documents()[1][:20_000]], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer = Tokenizer(models.BPE())
    if kind == "byte-level":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "llama-3":
        split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    elif kind == "llama-2":  # no words: merges go over the whole text
        vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "<s>": 257}
        pairs = ("t h", "\u2581 th", "\u2581th e", "= =", "== ==", "i n", "\u2581 \u2581")
        merges = [tuple(pair.split()) for pair in pairs]
        for token in [*"abcdefghijklmnopqrstuvwxyz=\u2581", *("".join(pair) for pair in merges)]:
            vocabulary.setdefault(token, len(vocabulary))
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
    elif kind == "metaspace":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        special = {"special_tokens": ["<unk>"], "unk_token": "<unk>"}
        trainer = trainers.UnigramTrainer(vocab_size=500, **special, show_progress=False)
    tokenizer.train_from_iterator(learned, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.mark.parametrize("kind", ["byte-level", "llama-3", "llama-2", "metaspace", "unigram"])
def test_the_first_tokens_and_their_places_are_those_of_the_whole(kind):
    tokenizer = made(kind)
    whole = tokenizer(text(), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = np.maximum.accumulate([len(text()[:end].encode()) for _, end in whole["offset_mapping"]])
    encoder = TextEncoder(tokenizer)
    found = encoder.whole(text())
    assert found.ids == whole["input_ids"] and found.byte_ends.tolist() == ends.tolist()
    for count in (1, 500, 2000, len(ends), len(ends) + 1):
        first = encoder.first(text().encode(), count)
        assert first.ids == whole["input_ids"][:count] and first.byte_ends.tolist() == ends[:count].tolist()


@pytest.mark.parametrize("kind", ["byte-level", "llama-2"])
@pytest.mark.parametrize("count", [300, 9000])
def test_a_text_is_encoded_only_as_far_as_the_first_tokens_need(kind, count, monkeypatch):
    run = "def f():\n    pass\nxyz" + "a" * 400_000  # without any boundary
    encoder, fed = TextEncoder(made(kind)), []
    whole = encoder.whole
    monkeypatch.setattr(encoder, "whole", lambda text: fed.append(len(text)) or whole(text))
    for given in (run, text() * 40):
        fed.clear()
        found = encoder.first(given.encode(), count)
        assert sum(fed) < 200_000
        assert found.ids == whole(given[: 8 * count]).ids[:count]
