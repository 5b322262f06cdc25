"""Published recipes, against plain loops that do what each describes, with stock ``model(labels=...)`` losses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import byte_tokenizer, documents, llama
from tokenizers.processors import TemplateProcessing

import ropescale
from ropescale.errors import DataError, RopescaleError
from ropescale.evals import perplexity
from ropescale.evals.data.protocols import HF, YARN, published_windows, weights
from ropescale.evals.reporting.page import page_data
from ropescale.evals.reporting.runs import load
from ropescale.evals.statistics.intervals import ratio

BOS = 60
SIZES = [150, 97, 40]
IDS = [tiny.documents(1, n, vocabulary=60, seed=n)[0] for n in SIZES]
FIVE = [*IDS, *tiny.documents(2, 70, vocabulary=60, seed=7)]


def loss_of(model, ids: list[int], last: int) -> float:
    """What transformers answers when all labels but the last ones are masked."""
    labels = [-100] * max(0, len(ids) - last) + ids[max(0, len(ids) - last) :]
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss)


def scripted(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Where each window of the scripts begins and ends, and where the one before ended."""
    done = 0
    for begin in range(0, tokens, stride):
        end = min(begin + room, tokens)
        yield begin, end, done
        done = end
        if end == tokens:
            return


def yarn_script(model, texts: list[list[int]], length: int, stride: int, bos: int | None) -> float:
    """The mean over all windows of all texts of each window's mean loss, exponentiated."""
    first = [] if bos is None else [bos]
    losses = [
        loss_of(model, [*first, *ids[begin:end]], end - done)
        for ids in texts
        for begin, end, done in scripted(len(ids), length - len(first), stride)
    ]
    return math.exp(sum(losses) / len(losses))


def guide(model, texts: list[list[int]], length: int, stride: int) -> float:
    """Each window's mean loss times its unmasked labels less one, over the sum of those numbers."""
    total, tokens = 0.0, 0
    for ids in texts:
        for begin, end, done in scripted(len(ids), length, stride):
            counted = min(end - done, end - begin) - 1
            total += loss_of(model, ids[begin:end], end - done) * counted
            tokens += counted
    return math.exp(total / tokens)


@pytest.mark.parametrize("bos", [BOS, "no"])
@pytest.mark.parametrize(("length", "stride"), [(64, 16), (64, 63), (64, 64), (64, 80), (32, 7), (128, 1)])
def test_the_yarn_papers_script_is_reproduced(length, stride, bos):
    """Also where it skips tokens: S > W, and S = L without BOS."""
    model = llama()
    result = perplexity(model, IDS, [length], protocol=YARN, stride=stride, bos=bos)
    expected = yarn_script(model, IDS, length, stride, None if bos == "no" else BOS)
    assert result.rows[0].ppl == pytest.approx(expected, rel=1e-6)
    exact = perplexity(model, IDS, [length], stride=min(stride, length - 1), bos=bos)
    assert abs(exact.rows[0].ppl / expected - 1) > 1e-5


@pytest.mark.parametrize(("length", "stride"), [(64, 16), (64, 63), (64, 64), (64, 80), (32, 7), (128, 1)])
def test_the_guide_of_transformers_is_reproduced(length, stride):
    """With S = 1 every window but the first weighs nothing."""
    model = llama()
    result = perplexity(model, IDS, [length], protocol=HF, stride=stride)
    assert result.rows[0].ppl == pytest.approx(guide(model, IDS, length, stride), rel=1e-6)
    if stride == 1:
        first = perplexity(model, [ids[:128] for ids in IDS[:1]], [128]).rows[0]
        only = perplexity(model, IDS[:1], [128], protocol=HF, stride=1).rows[0]
        assert only.ppl == pytest.approx(first.ppl, rel=1e-6)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 200), st.integers(2, 40), st.integers(1, 45), st.booleans())
def test_windows_and_weights_are_what_masked_labels_leave(tokens, length, stride, bos):
    """Without a model: which labels survive the mask and the shift, and how many the guide counts."""
    windows = list(published_windows(tokens, length, stride, bos))
    begins = []
    for begin, end, done in scripted(tokens, length - bos, stride):
        fed = [None] * bos + list(range(begin, end))
        kept = fed if end - done >= len(fed) else fed[len(fed) - (end - done) :]
        scored = [token for token in kept if token is not None and token != fed[0]]
        begins.append((begin, end, scored, len(kept) - 1))
    assert [(w.start, w.stop, list(range(w.scored, w.stop))) for w in windows] == [each[:3] for each in begins]
    if not bos:
        assert weights(HF, windows) == [each[3] for each in begins]
    assert weights(YARN, windows) == [1.0] * len(windows)


@pytest.mark.parametrize(("tokens", "length", "stride"), [(129, 64, 64), (65, 32, 32), (97, 48, 48)])
def test_the_guides_nan_is_answered_before_anything_runs(tokens, length, stride):
    """n % L == 1 and S = L: the last window is one token, whose loss transformers gives as NaN."""
    model, ids = llama(), documents(1, tokens, vocabulary=60)
    assert tokens % length == 1 and math.isnan(loss_of(model, ids[0][-1:], 1))
    with pytest.raises(
        DataError, match=f"hf-docs gives NaN at {length}: of the {tokens} tokens of document 0, the last"
    ):
        perplexity(model, ids, [length], protocol=HF, stride=stride)
    with pytest.raises(DataError, match="yarn-paper gives NaN"):
        perplexity(model, ids, [length], protocol=YARN, stride=stride)
    assert perplexity(model, ids, [length], protocol=HF, stride=stride - 1).rows[0].ppl > 1


def test_paired_changes_weigh_as_the_perplexities_do():
    """The change is the difference of the logarithms of the two published numbers."""
    model = llama()
    for name, script in ((YARN, yarn_script), (HF, guide)):
        more = {"bos": None} if script is yarn_script else {}
        result = perplexity(model, FIVE, [64], ["linear:factor=2"], protocol=name, stride=20)
        before = script(model, FIVE, 64, 20, **more)
        with ropescale.patch(model, "linear:factor=2"):
            after = script(model, FIVE, 64, 20, **more)
        assert result.paired[0].delta_nll == pytest.approx(math.log(after / before), abs=1e-6)
        assert result.paired[0].low < result.paired[0].delta_nll < result.paired[0].high


def test_the_interval_is_that_of_the_weighted_ratio_over_documents():
    """Unweighted window means, so a document weighs its number of windows."""
    model, length, stride = llama(), 64, 16
    row = perplexity(model, FIVE, [length], protocol=YARN, stride=stride, bos=BOS).rows[0]
    counts = [len(list(published_windows(n, length, stride, True))) for n in map(len, FIVE)]
    means = [math.log(yarn_script(model, [ids], length, stride, BOS)) for ids in FIVE]
    expected = ratio([m * c for m, c in zip(means, counts, strict=True)], counts)
    found = [math.log(value) for value in (row.ppl_low, row.ppl, row.ppl_high)]
    assert found == pytest.approx([expected.low, expected.mean, expected.high], rel=1e-4)
    assert row.bits_per_byte is None and row.tail_nll is None


def test_bos_is_once_in_front_of_the_text_in_the_guide_and_in_every_window_of_the_script():
    tokenizer, model = byte_tokenizer(), llama(vocab_size=257)
    text = "It was a bright cold day in April, and the clocks were striking thirteen. " * 2
    plain = tokenizer(text, add_special_tokens=False).input_ids
    how = {"tokenizer": tokenizer, "stride": 20}
    # This tokenizer has a BOS and does not add it by itself, so the guide's ids have none.
    assert tokenizer(text).input_ids == plain
    row = perplexity(model, [text], [64], protocol=HF, **how).rows[0]
    assert row.ppl == pytest.approx(guide(model, [plain], 64, 20), rel=1e-6)
    row = perplexity(model, [text], [64], protocol=HF, bos="yes", **how).rows[0]
    assert row.ppl == pytest.approx(guide(model, [[256, *plain]], 64, 20), rel=1e-6)
    row = perplexity(model, [text], [64], protocol=YARN, **how).rows[0]
    assert row.ppl == pytest.approx(yarn_script(model, [plain], 64, 20, 256), rel=1e-6)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 256)])
    assert tokenizer(text).input_ids == [256, *plain]
    row = perplexity(model, [text], [64], protocol=HF, **how).rows[0]
    assert row.ppl == pytest.approx(guide(model, [[256, *plain]], 64, 20), rel=1e-6)


def test_a_bos_that_only_the_text_begins_with_is_said_and_does_not_fill_an_empty_text():
    tokenizer, model = byte_tokenizer(), llama(vocab_size=257)
    texts = ["It was a bright cold day in April, and the clocks were striking thirteen. ", ""]
    how = {"tokenizer": tokenizer, "stride": 20, "protocol": HF}
    asked, auto = (perplexity(model, texts, [32], bos=bos, **how) for bos in ("yes", "auto"))
    assert "L positions, stride 20 (BOS first in each document, in no other window)" in asked.protocol_line()
    assert "L positions, stride 20 (no BOS)" in auto.protocol_line()
    assert [each.to_dict()["protocol"].get("bos_once") for each in (asked, auto)] == [256, None]
    assert [each.data["skipped"] for each in (asked, auto)] == [{"too_short": 0, "empty": 1}] * 2
    assert "1 document (" in asked.protocol_line() and "(skipped: 1 empty)" in asked.protocol_line()
    assert asked.data["tokens"] == auto.data["tokens"] + 1


def test_the_protocol_is_with_every_number(tmp_path, caplog):
    result = perplexity(llama(), IDS, [32, 64], ["linear:factor=2"], protocol=YARN, stride=64)
    assert "64, stride 64: 3 of 284 tokens are never scored, as with the published script" in caplog.text
    out = result.save(tmp_path / "out")
    saved = json.loads((out / "results.json").read_text())
    assert saved["protocol"]["name"] == "yarn-paper" and {row["protocol"] for row in saved["rows"]} == {"yarn-paper"}
    text = result.to_markdown()
    assert "\n\n| perplexity (yarn-paper) |" in text
    assert "protocol yarn-paper: " in text and "each window weighing the same" in text
    assert "every token scored once" not in text
    assert result.to_csv().splitlines()[1].count("yarn-paper") == 1
    data = page_data(load([out]))
    assert [series["label"] for series in data["series"]] == ["as-is (yarn-paper)", "linear:factor=2 (yarn-paper)"]
    assert [d["mean"] for d in data["pairs"]["0:1"]] == [p["delta_nll"] for p in saved["paired"]]
    assert [series["bins"] for series in data["series"]] == [[], []]  # windows that skip tokens do not tell positions
    assert not (out / "loss_by_position.png").exists()
    with pytest.raises(RopescaleError, match=r"loss by position .*yarn-paper"):
        result.plot_by_position()


def test_the_strides_of_the_scripts_are_taken_where_none_is_given(checkpoint, tmp_path, ran):
    (tmp_path / "a.txt").write_text("It was a bright cold day in April, and the clocks were striking thirteen. " * 20)
    words = ["eval", checkpoint, "--data", tmp_path / "a.txt", "--lengths", "512,1k", "--json"]
    for name, stride in ((YARN, 256), (HF, 512)):
        assert json.loads(ran(*words, "--protocol", name)[0])["protocol"]["stride"] == stride
    ran(*words, "--protocol", "hf-docs", "--stride", "0", code=2)
    with pytest.raises(DataError, match=r"'yarn'.*ropescale, yarn-paper, hf-docs"):
        perplexity(llama(), IDS, [64], protocol="yarn")
    with pytest.raises(DataError, match="key tokens are not part of hf-docs"):
        perplexity(llama(), IDS, [64], protocol=HF, key_spans="keys.json")


def test_the_same_windows_are_not_run_again_for_another_protocol(tmp_path):
    """The script's windows are our own where BOS leaves none out; only what is made of the losses differs."""
    perplexity(llama(), IDS, [64], stride=16, bos=BOS, out=tmp_path)
    model = llama()
    model.forward = None  # type: ignore[method-assign]
    model.model.forward = None
    row = perplexity(model, IDS, [64], stride=16, bos=BOS, protocol=YARN, out=tmp_path).rows[0]
    assert row.ppl == pytest.approx(yarn_script(llama(), IDS, 64, 16, BOS), rel=1e-6)
