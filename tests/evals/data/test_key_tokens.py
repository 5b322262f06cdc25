"""Key tokens, against stock forward passes over every window, and spans worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from configurations import write_files
from tiny import byte_tokenizer, llama, naive_nll

from ropescale.errors import DataError
from ropescale.evals import perplexity
from ropescale.evals.data.documents import Document
from ropescale.evals.data.key_tokens import KeySpans, load, windows_of
from ropescale.evals.metrics.key_tokens import find, key_tokens

TEXTS = ["It was a bright cold day in April, and the clocks. ", "a café, a naïve résumé, and 12 more € for Ünal"]


def document(text: str, pieces: list[str]) -> Document:
    """Tokens that are these pieces of a text, in order."""
    assert "".join(pieces) == text
    return Document("a text", range(len(pieces)), np.cumsum([len(each.encode()) for each in pieces]), "sha")


def sliding_nll(model, ids: list[int], length: int, stride: int) -> list[float]:
    """Window after window through the stock model, BOS (256) in front; each token in the first window that has it."""
    found: list[float] = []
    start = 0
    while len(found) < len(ids):
        stop = min(start + length - 1, len(ids))
        losses = naive_nll(model, [256, *ids[start:stop]])
        found += losses[len(found) - start :]
        start += stride
    return found


@pytest.fixture(scope="module")
def measured():
    return perplexity(llama(vocab_size=257), TEXTS, [8, 32], tokenizer=byte_tokenizer(), stride=4)


@pytest.fixture
def texts(tmp_path):
    return write_files(tmp_path / "texts", {f"{number}.txt": text for number, text in enumerate(TEXTS)})


def test_the_two_thresholds_are_those_of_the_paper():
    short, long = np.array([5.0, 5.0, 3.9, 9.0]), np.array([1.9, 2.1, 1.9, 2.0])
    assert key_tokens(short, long).tolist() == [True, False, False, False]


def test_the_key_tokens_are_those_of_a_naive_loop_over_windows(measured):
    """One token per byte, so spans are runs of token numbers; thresholds so that some are key."""
    spans = find(measured, alpha=0.3, beta=-7.0)
    model, expected = llama(vocab_size=257), 0
    for text, each in zip(TEXTS, measured.documents, strict=True):
        ids = list(text.encode())
        assert list(each.ids) == byte_tokenizer()(text, add_special_tokens=False).input_ids
        short = sliding_nll(model, list(each.ids), 8, 4)
        long = sliding_nll(model, list(each.ids), 32, 4)
        key = [s - n > 0.3 and n < 7.0 for s, n in zip(short, long, strict=True)]
        assert all(abs(s - n - 0.3) > 1e-4 and abs(n - 7.0) > 1e-4 for s, n in zip(short, long, strict=True))
        inside = [any(a <= at < b for a, b in spans.spans[each.sha256]) for at in range(len(ids))]
        # Of a letter of two bytes, the first token covers both, and the second covers nothing.
        covering = [at == 0 or each.byte_ends[at] > each.byte_ends[at - 1] for at in range(len(ids))]
        assert [k for k, c in zip(key, covering, strict=True) if c] == [
            i for i, c in zip(inside, covering, strict=True) if c
        ]
        expected += sum(key)
    assert spans.made["key_tokens"] == expected > 5
    assert spans.made["tokens"] == sum(len(text.encode()) for text in TEXTS)
    assert (spans.made["short"], spans.made["window"], spans.made["stride"]) == (8, 32, 4)


def test_a_token_of_another_tokenizer_counts_where_it_lies_wholly_inside():
    spans = KeySpans({"sha": [(2, 5), (7, 9)]})
    text = "ab cdé fg"  # bytes: a0 b1 _2 c3 d4 é5-6 _7 f8 g9
    marks = spans.marks(document(text, ["ab", " ", "cd", "é", " f", "g"])).tolist()
    assert marks == [False, True, True, False, True, False]
    assert spans.marks(document(text, [text])).tolist() == [False]
    assert spans.marks(document(text, list(text))).tolist() == [*[False] * 2, *[True] * 3, False, *[True] * 2, False]
    assert KeySpans({"sha": []}).marks(document(text, ["ab cdé fg"])).tolist() == [False]


def test_the_perplexity_is_over_those_tokens_alone(measured, tmp_path):
    find(measured, alpha=0.3, beta=-7.0).save(tmp_path / "keys.json")
    spans = load(tmp_path / "keys.json")
    model = llama(vocab_size=257)
    result = perplexity(
        model, TEXTS, [20, 40], ["linear:factor=2"], tokenizer=byte_tokenizer(), key_spans=tmp_path / "keys.json"
    )
    for row in result.key_rows[:2]:
        losses = []
        for each in result.documents:
            marks = spans.marks(each)[: row.length - 1]
            nll = naive_nll(model, [256, *each.ids[: row.length - 1]])
            losses += [x for x, m in zip(nll, marks, strict=True) if m]
        assert row.tokens == len(losses) > 0 and row.fraction == len(losses) / (2 * (row.length - 1))
        assert row.ppl == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    written = result.to_dict()["key_tokens"]
    assert [r["length"] for r in written["rows"]] == [20, 40, 20, 40]
    assert written["spans_sha256"] == spans.sha256 and written["alpha"] == 0.3
    assert f"Key tokens ({result.key_rows[-1].tokens}, " in result.to_markdown()


def test_no_key_tokens_is_none_and_not_nan(measured, tmp_path):
    spans = find(measured, alpha=50.0)
    assert spans.made["key_tokens"] == 0
    result = perplexity(llama(vocab_size=257), TEXTS, [20], tokenizer=byte_tokenizer(), key_spans=spans)
    (row,) = result.key_rows
    assert (row.tokens, row.fraction, row.nll, row.ppl, row.ppl_low) == (0, 0.0, None, None, None)
    (line,) = [each for each in result.to_markdown().split("Key tokens")[1].splitlines() if "| as-is" in each]
    assert line.split("|")[2].strip() == "-"
    json.dumps(result.to_dict(), allow_nan=False)


def test_spans_of_other_texts_and_files_that_hold_none_are_refused(measured, tmp_path):
    model = llama(vocab_size=257)
    with pytest.raises(DataError, match=r"document 0.*`ropescale keys`"):
        perplexity(model, ["another text"], [8], tokenizer=byte_tokenizer(), key_spans=find(measured))
    with pytest.raises(DataError, match=r"key tokens.*tokenizer with offsets"):
        find(perplexity(model, [[1, 2, 3] * 9], [4, 16], stride=2))
    marked = '{"schema": 1, "kind": "key spans", '
    odd = [
        '"spans": 3}',
        '"spans": {"0": [[2, 1]]}}',
        '"spans": {"0": [[0, 9], [5, 7]]}}',
        '"spans": {"0": [[1, 1e400]]}}',
    ]
    odd += ['"spans": {}, "key_model": 3}', '"spans": {}, "window": "64"}', '"spans": {"0": [[0]]}}']
    for content in ("{", "[]", '{"schema": 1, "kind": "else"}', *(marked + each for each in odd)):
        (tmp_path / "odd.json").write_text(content)
        with pytest.raises(DataError, match="make it with `ropescale keys`"):
            load(tmp_path / "odd.json")


def test_the_windows_are_the_trained_length_and_a_quarter_of_it():
    assert windows_of(256, None, None) == (64, 256)
    assert windows_of(None, 128, 16) == (16, 128)
    with pytest.raises(DataError, match="give the window"):
        windows_of(None, None, None)
    with pytest.raises(DataError, match="must be shorter than the long one"):
        windows_of(64, None, 64)


def test_the_command_writes_what_eval_reads(checkpoint, texts, tmp_path, ran, refused):
    words = ["keys", checkpoint, "--data", texts, "--short", "8", "--window", "32", "--alpha", "0.3", "--beta", "-7"]
    said, _ = ran(*words, "-o", tmp_path / "keys.json")
    made = load(tmp_path / "keys.json").made
    assert said.startswith(f"{made['key_tokens']} of {made['tokens']} tokens are key (")
    assert made["stride"] == 4 and made["key_model"]["path"] == checkpoint
    evaluated = ["eval", checkpoint, "--data", texts, "--lengths", "40", "--json", "--key-spans"]
    (row,) = json.loads(ran(*evaluated, tmp_path / "keys.json")[0])["key_tokens"]["rows"]
    assert row["tokens"] > 0 and row["ppl"] > 1
    assert ran(*evaluated, tmp_path / "nowhere.json", code=2)[1].startswith("error: ")
    assert "it is a folder, or" in refused(*words, "-o", tmp_path)
