"""Key tokens, against a stock forward pass for every token, and spans worked out by hand."""

import json
import math

import numpy as np
import pytest
import tiny
import torch
from configurations import write_files
from tiny import byte_tokenizer, llama, naive_nll
from tokenizers.processors import TemplateProcessing

from ropescale.errors import DataError
from ropescale.evals import TextSource, keys, perplexity
from ropescale.evals.data.documents import Document, of_ids
from ropescale.evals.data.rows import ReadOptions
from ropescale.evals.metrics.key_tokens import METRIC, KeySpans, load
from ropescale.evals.scoring.scorer import Scorer
from ropescale.evals.store import opened
from ropescale.files import sha256

TEXTS = ["It was a bright cold day in April, and the clocks. ", "a café, a naïve résumé, and 12 more € for Ünal"]


def document(text, pieces):
    """Tokens that are these pieces of a text, in order."""
    assert "".join(pieces) == text
    return Document("a text", range(len(pieces)), np.cumsum([len(each.encode()) for each in pieces]), "sha")


def naive_keys(model, ids, window, stride, alpha, beta):
    """Token after token through the stock model: the whole prefix, and the window that its block of tokens shares."""
    whole, found = naive_nll(model, ids), []
    for start in range(0, len(ids) - window, stride):
        block = naive_nll(model, ids[start : start + window + stride])
        for at, short in enumerate(block[window - 1 :], start + window):
            assert abs(short - whole[at - 1] - alpha) > 1e-5 and abs(whole[at - 1] + beta) > 1e-5
            if short - whole[at - 1] > alpha and whole[at - 1] < -beta:
                found.append(at)
    return found


def bos_tokenizer():
    """The byte tokenizer, which puts BOS (256) in front by itself, as Llama's does."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return tokenizer


MODEL = {"window": 8, "stride": 5, "alpha": 0.3, "beta": -7.0}


@pytest.fixture(scope="module")
def found():
    return keys(llama(vocab_size=257), TEXTS, tokenizer=bos_tokenizer(), **MODEL)


@pytest.fixture
def texts(tmp_path):
    return write_files(tmp_path / "texts", {f"{number}.txt": text for number, text in enumerate(TEXTS)})


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(("window", "stride", "length"), [(8, 5, 53), (8, 5, 48), (16, 1, 40), (8, 100, 60)])
def test_the_key_tokens_are_those_of_a_naive_loop_over_tokens(bos, window, stride, length):
    """The last block is whole, cut, or of one token; or the only window is the whole text."""
    model, text = llama(vocab_size=257), TEXTS[0] * 2
    tokenizer = bos_tokenizer() if bos else byte_tokenizer()
    expected = naive_keys(model, tokenizer(text).input_ids[:length], window, stride, 0.3, -7.0)
    found = keys(model, [text], tokenizer=tokenizer, **MODEL | {"window": window, "stride": stride}, max_length=length)
    assert [at + bos for span in found.spans[sha256(text.encode())] for at in range(*span)] == expected
    assert bool(expected) is (stride < length)


def test_the_spans_are_the_characters_of_the_key_tokens(found):
    """As the tokenizer places them: both tokens of a letter of two bytes stand for the whole letter."""
    model, tokenizer, expected = llama(vocab_size=257), bos_tokenizer(), 0
    for text in TEXTS:
        encoded = tokenizer(text, return_offsets_mapping=True)
        key = naive_keys(model, encoded.input_ids, *MODEL.values())
        covered = {at for start, end in (encoded.offset_mapping[k] for k in key) for at in range(start, end)}
        spans = found.spans[sha256(text.encode())]
        ends = np.cumsum([0, *(len(letter.encode()) for letter in text)])
        assert {at for at in range(len(text)) if any(a <= ends[at] and ends[at + 1] <= b for a, b in spans)} == covered
        expected += len(key)
    assert found.made["key_tokens"] == expected > 5
    assert found.made["tokens"] == sum(len(text.encode()) + 1 - 8 for text in TEXTS)
    assert {name: found.made[name] for name in MODEL} == MODEL


def test_a_token_of_another_tokenizer_counts_where_it_lies_wholly_inside():
    spans = KeySpans({"sha": [(2, 5), (7, 9)]})
    text = "ab cdé fg"  # bytes: a0 b1 _2 c3 d4 é5-6 _7 f8 g9
    marks = spans.marks(document(text, ["ab", " ", "cd", "é", " f", "g"])).tolist()
    assert marks == [False, True, True, False, True, False]
    assert spans.marks(document(text, [text])).tolist() == [False]
    halves = Document("a text", range(4), np.array([3, 4, 6, 6]), "sha")  # the last is the second half of é
    assert KeySpans({"sha": [(4, 6)]}).marks(halves).tolist() == [False, False, True, True]
    assert KeySpans({"sha": [(6, 9)]}).marks(halves).tolist() == [False] * 4
    assert spans.marks(document(text, list(text))).tolist() == [*[False] * 2, *[True] * 3, False, *[True] * 2, False]
    assert KeySpans({"sha": []}).marks(document(text, ["ab cdé fg"])).tolist() == [False]


def test_the_perplexity_is_over_those_tokens_alone(found, tmp_path):
    found.save(tmp_path / "keys.json")
    spans = load(tmp_path / "keys.json")
    model = llama(vocab_size=257)
    given = {"tokenizer": byte_tokenizer(), "key_spans": tmp_path / "keys.json"}
    result = perplexity(model, TEXTS, [20, 40], ["linear:factor=2"], **given)
    for row in METRIC.rows(result)[:2]:
        losses = []
        for each in result.documents:
            nll = naive_nll(model, [256, *each.ids[: row.length - 1]])
            losses += [x for x, m in zip(nll, spans.marks(each)[: row.length - 1], strict=True) if m]
        assert row.tokens == len(losses) > 0 and row.fraction == len(losses) / (2 * (row.length - 1))
        assert row.ppl == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    written = result.to_dict()["key_tokens"]
    assert [r["length"] for r in written["rows"]] == [20, 40, 20, 40]
    assert written["spans_sha256"] == spans.sha256 and written["alpha"] == 0.3
    assert f"Key tokens ({METRIC.rows(result)[-1].tokens}, " in result.to_markdown()


def test_no_key_tokens_is_none_and_not_nan():
    spans = keys(llama(vocab_size=257), TEXTS, tokenizer=byte_tokenizer(), **MODEL | {"alpha": 50.0})
    assert spans.made["key_tokens"] == 0
    result = perplexity(llama(vocab_size=257), TEXTS, [20], tokenizer=byte_tokenizer(), key_spans=spans)
    (row,) = METRIC.rows(result)
    assert (row.tokens, row.fraction, row.nll, row.ppl, row.ppl_low) == (0, 0.0, None, None, None)
    (line,) = [each for each in result.to_markdown().split("Key tokens")[1].splitlines() if "| as-is" in each]
    assert line.split("|")[2].strip() == "-"
    json.dumps(result.to_dict(), allow_nan=False)


def test_spans_of_other_texts_and_files_that_hold_none_are_refused(found, tmp_path):
    model = llama(vocab_size=257)
    with pytest.raises(DataError, match=r"document 0.*`ropescale keys`"):
        perplexity(model, ["another text"], [8], tokenizer=byte_tokenizer(), key_spans=found)
    with pytest.raises(DataError, match=r"ids is not text"):
        keys(model, [of_ids("ids", [1, 2, 3], "ids")], tokenizer=byte_tokenizer())
    with pytest.raises(DataError, match=r"more tokens than the window of 4,096"):
        keys(model, ["short"], tokenizer=byte_tokenizer())
    with pytest.raises(DataError, match=r"a stride of 0 leave no key tokens"):
        keys(model, TEXTS, tokenizer=byte_tokenizer(), stride=0)
    stream = TextSource(["owner/name"], ReadOptions(streaming=True))
    with pytest.raises(DataError, match="leave streaming out, or give a list of its first documents"):
        keys(model, stream, tokenizer=byte_tokenizer())
    marked = '{"schema": 1, "kind": "key spans", '
    odd = (
        '"spans": {}}',
        '"window": 8, "spans": 3}',
        '"window": 8, "spans": {"0": [[0, 9], [5, 7]]}}',
        '"spans": {}, "window": "64"}',
    )
    for content in ("{", '{"schema": 1, "kind": "else"}', *(marked + each for each in odd)):
        (tmp_path / "odd.json").write_text(content)
        with pytest.raises(DataError, match="make it with `ropescale keys`"):
            load(tmp_path / "odd.json")
    (tmp_path / "odd.json").write_text(marked + '"window": 8, "spans": {}, "spans_sha256": "forged", "rows": [9]}')
    assert load(tmp_path / "odd.json").facts == {"window": 8, "spans_sha256": KeySpans({}).sha256}


def test_the_command_writes_what_eval_reads(checkpoint, texts, tmp_path, ran, refused):
    words = ["keys", checkpoint, "--data", texts, "--window", "8", "--stride", "5", "--alpha", "0.3", "--beta", "-7"]
    said, _ = ran(*words, "-o", tmp_path / "keys.json")
    made = load(tmp_path / "keys.json").made
    assert said.startswith(f"{made['key_tokens']} of {made['tokens']} tokens are key (")
    assert (made["window"], made["stride"]) == (8, 5) and made["key_model"]["path"] == checkpoint
    evaluated = ["eval", checkpoint, "--data", texts, "--lengths", "40", "--json", "--key-spans"]
    (row,) = json.loads(ran(*evaluated, tmp_path / "keys.json")[0])["key_tokens"]["rows"]
    assert row["tokens"] > 0 and row["ppl"] > 1
    assert ran(*evaluated, tmp_path / "nowhere.json", code=2)[1].startswith("error: ")
    assert "which is a folder" in refused(*words, "-o", tmp_path)
    assert "leave no key tokens in the first 8 of" in refused(*words, "--max-length", "8", "-o", tmp_path / "k.json")


def test_spans_of_another_text_model_or_window_stay_and_one_command_writes(checkpoint, texts, tmp_path, ran, refused):
    out, other = tmp_path / "keys.json", write_files(tmp_path / "other", {"a.txt": TEXTS[0][::-1]})
    model = tiny.checkpoint(tmp_path / "model", llama(1, vocab_size=257))

    def words(data=texts, model=checkpoint, window=8, alpha=0.3):
        return ["keys", model, "--data", data, "--window", window, "--alpha", alpha, "--beta", "-7", "-o", out]

    ran(*words())
    before = out.read_bytes()
    for given in [words(other), words(model=model), words(window=9), words(alpha=0.4)]:
        assert "of another text, model or window; choose another file, or allow to replace them" in refused(*given)
    with opened(tmp_path / "keys-run"):
        assert "another run is writing" in refused(*words())
    ran(*words())  # the same again
    assert out.read_bytes() == before
    ran(*words(other), "--force")
    assert out.read_bytes() != before and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("continued_in_python", [False, True])
def test_an_interrupted_search_for_keys_continues(continued_in_python, checkpoint, texts, tmp_path, ran, monkeypatch):
    words = ["keys", checkpoint, "--data", texts, "--window", "8", "--stride", "5", "--alpha", "0.3", "--beta", "-7"]
    ran(*words, "-o", tmp_path / "whole.json")
    fed, score = [], Scorer.score

    def counted(self, ids, chunk=None):
        if len(fed) == 5:
            raise KeyboardInterrupt
        fed.append(ids.shape)
        return score(self, ids, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "score", counted)
        said = ran(*words, "-o", tmp_path / "keys.json", code=130)[1]
    assert f"5 finished batches are kept in {tmp_path / 'keys-run'}; run the same command to continue" in said
    assert not (tmp_path / "keys.json").exists()
    fed.clear()
    monkeypatch.setattr(Scorer, "score", lambda self, ids, chunk=None: fed.append(ids.shape) or score(self, ids, chunk))
    if continued_in_python:
        keys(checkpoint, texts, **MODEL, out=tmp_path / "keys.json")
    else:
        said = ran(*words, "-o", tmp_path / "keys.json")[1]
        assert "resuming: 5 of 20 batches are done" in said
    assert len(fed) == 20 - 5
    assert (tmp_path / "keys.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    fed.clear()
    ran(*words[:-3], "0.9", "--beta", "-7", "-o", tmp_path / "keys.json", "--force")  # thresholds feed nothing again
    assert not fed


def test_weights_with_nan_and_another_models_tokenizer_give_no_spans(checkpoint, texts, tmp_path, ran):
    model = llama(vocab_size=257)
    for name, sentence, code in (("nan", "the model's weights contain NaN", 1), ("small", "outside the model's", 2)):
        with torch.no_grad():
            model.lm_head.weight[5] = math.nan if name == "nan" else 0
        built = model if name == "nan" else llama(vocab_size=100)
        words = ["keys", tiny.checkpoint(tmp_path / name, built), "--data", texts, "--window", "8"]
        assert sentence in ran(*words, "-o", tmp_path / "keys.json", code=code)[1]
    assert not list(tmp_path.glob("*keys*"))


def test_no_more_of_a_text_is_tokenized_than_its_first_tokens(texts, tmp_path, monkeypatch):
    """A long file, in a line and in many."""
    tokenizer, seen = bos_tokenizer(), []
    encode = type(tokenizer).__call__
    told = lambda *given, **how: seen.append(given[1]) or encode(*given, **how)  # noqa: E731
    monkeypatch.setattr(type(tokenizer), "__call__", told)
    for blank in ("\n", " "):
        (tmp_path / "large.txt").write_text((TEXTS[0] + blank) * 5_000)
        spans = keys(llama(vocab_size=257), tmp_path / "large.txt", tokenizer=tokenizer, **MODEL, max_length=50)
        assert (spans.made["tokens"], spans.made["cut_texts"]) == (50 - 8, 1)
        assert [*spans.spans] == [sha256((tmp_path / "large.txt").read_bytes())]
    assert max(map(len, seen)) < 5000


def test_a_longer_text_is_cut_and_nothing_after_the_cut_is_a_key_token(found):
    cut = keys(llama(vocab_size=257), TEXTS, tokenizer=bos_tokenizer(), **MODEL, max_length=30)  # BOS and 29 bytes
    assert (cut.made["cut_texts"], cut.made["tokens"]) == (2, 2 * (30 - 8)) and found.made["cut_texts"] == 0
    for (text, spans), whole in zip(cut.spans.items(), found.spans.values(), strict=True):
        assert found.spans[text] == whole and spans == [span for span in whole if span[1] <= 29] != whole
