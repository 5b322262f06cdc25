"""Tokens that are kept for the next run: the same ones, or made again."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tiny import byte_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ropescale.evals.data import documents, token_cache


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache of its own, for texts of any size."""
    monkeypatch.setenv("ROPESCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(token_cache, "LEAST", 1)
    return tmp_path / "cache" / "tokens"


class Counting:
    """A tokenizer that knows how often it was asked."""

    def __init__(self, tokenizer):
        self.tokenizer, self.calls = tokenizer, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.tokenizer(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


@pytest.fixture
def counting(monkeypatch):
    """A byte tokenizer that counts, and is known by what it wraps."""
    fingerprint = token_cache.fingerprint
    monkeypatch.setattr(token_cache, "fingerprint", lambda tokenizer: fingerprint(tokenizer.tokenizer))
    return Counting(byte_tokenizer())


TEXTS = ["one é", "", "a 😀 b"]


def test_a_text_is_tokenized_once(counting, home):
    first = documents.tokenize(TEXTS, counting)
    assert counting.calls == 3 and len(list(home.iterdir())) == 1
    again = documents.tokenize(TEXTS, counting)
    assert counting.calls == 3
    for one, other in zip(first, again, strict=True):
        assert (one.name, one.ids, one.sha256) == (other.name, other.ids, other.sha256)
        assert np.array_equal(one.byte_ends, other.byte_ends) and other.byte_ends.dtype == np.int64
    assert len(again[0].ids) == len(TEXTS[0].encode()) == 6
    assert again[2].byte_ends[-1] == len(TEXTS[2].encode())


@pytest.mark.parametrize("other", [["one e", "", "a 😀 b"], TEXTS[:2], TEXTS[::-1], ["one é", "a 😀 b", ""]])
def test_other_texts_have_other_tokens(counting, other):
    documents.tokenize(TEXTS, counting)
    found = documents.tokenize(other, counting)
    assert [each.ids for each in found] == byte_tokenizer()(other, add_special_tokens=False)["input_ids"]


def words(vocabulary, **special):
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", **special)


def test_tokenizers_that_differ_in_a_word_or_an_option_share_nothing(home):
    one, other = words({"?": 0, "a": 1, "b": 2}), words({"?": 0, "a": 2, "b": 1})
    assert token_cache.fingerprint(one) == token_cache.fingerprint(words({"?": 0, "a": 1, "b": 2}))
    assert [documents.tokenize(["a b"], each)[0].ids for each in (one, other, one)] == [[1, 2], [2, 1], [1, 2]]
    for _ in range(2):
        as_token, as_text = [
            documents.tokenize(["<s>"], byte_tokenizer(), split_special_tokens=s)[0] for s in (False, True)
        ]
        assert as_token.ids == [256] and len(as_text.ids) == 3
    assert len(list(home.iterdir())) == 4


def test_ids_of_a_large_vocabulary_are_kept_whole():
    """More than 65,536, and more than a 16-bit number holds."""
    large = words({"?": 0, "low": 65_535, "high": 65_536, "most": 262_143})
    for _ in range(2):
        assert documents.tokenize(["low high most what"], large)[0].ids == [65_535, 65_536, 262_143, 0]


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "another"])
def test_a_damaged_file_is_made_anew(counting, home, damage, caplog):
    first = documents.tokenize(TEXTS, counting)
    (file,) = home.iterdir()
    raw = bytearray(file.read_bytes())
    where = raw.index(np.asarray(first[0].ids, np.int32).tobytes())
    raw[where] ^= damage == "flipped"
    file.write_bytes({"cut": raw[: len(raw) // 2], "emptied": b"", "another": b"not a zip file"}.get(damage, raw))
    again = documents.tokenize(TEXTS, counting)
    assert counting.calls == 6 and [a.ids for a in again] == [b.ids for b in first]
    assert "is damaged" in caplog.text and "made again" in caplog.text
    documents.tokenize(TEXTS, counting)
    assert counting.calls == 6


def test_many_at_once_get_the_same_and_leave_one_file(home):
    tokenizers = [byte_tokenizer() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: documents.tokenize(TEXTS, each)[2].ids, tokenizers))
    assert all(ids == found[0] for ids in found)
    assert len(list(home.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_a_warning(counting, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROPESCALE_CACHE", str(tmp_path / "file"))
    assert documents.tokenize(["ab"], counting)[0].ids == documents.tokenize(["ab"], counting)[0].ids
    assert counting.calls == 2 and "tokens cannot be kept in" in caplog.text


def test_small_texts_and_tokenizers_that_cannot_be_known_leave_nothing(home, monkeypatch):
    class Own(PreTrainedTokenizerFast):
        """May do anything in its code."""

    own = Own(tokenizer_object=byte_tokenizer().backend_tokenizer)
    assert token_cache.fingerprint(own) is None is token_cache.fingerprint(object())
    documents.tokenize(["ab"], own)
    monkeypatch.setattr(token_cache, "LEAST", 3)
    documents.tokenize(["ab"], byte_tokenizer())
    assert not home.exists()


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"ROPESCALE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/ropescale"),
        ({"ROPESCALE_CACHE": "", "XDG_CACHE_HOME": ""}, "~/.cache/ropescale"),
    ],
)
def test_the_place_is_chosen_by_the_environment(given, place, monkeypatch):
    for name in ("ROPESCALE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert token_cache.folder() == Path(os.path.expanduser(place))
