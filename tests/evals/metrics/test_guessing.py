"""A model that predicts a text worse than a uniform guess over its vocabulary is said to, and nothing is concluded."""

import math

import pytest
from tiny import VOCABULARY, documents, llama, naive_nll, uniform_llama

from ropescale.evals import Recommendation, Result, perplexity, recommend, search
from ropescale.evals.metrics.verdicts import guessing as said, worse_than_a_guess
from ropescale.evals.reporting.runs import load

LENGTHS = [32, 64, 128]
CONCLUSIONS = ("pays off", "pay off", "Lowest loss")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Random weights, on text that they know nothing of."""
    out = tmp_path_factory.mktemp("guess") / "run"
    return perplexity(llama(), documents(12, 130), LENGTHS, ["yarn:factor=2"], out=out), out


def mean_loss(texts):
    """Of the first 32 tokens of each, by stock transformers."""
    losses = [naive_nll(llama(), ids[:32]) for ids in texts]
    return sum(map(sum, losses)) / sum(map(len, losses))


def test_random_weights_are_worse_than_a_guess_by_stock_transformers(run):
    result, out = run
    mean = mean_loss(documents(12, 130))
    assert mean > math.log(VOCABULARY) + 0.5
    assert result.model["vocabulary"] == VOCABULARY
    sentence = (
        "As it is, the model predicts this text worse than a uniform guess over its 61 tokens (perplexity "
        f"{math.exp(mean):.4g} at 32 tokens, against 61). The weights or the tokenizer may not be its own, so no "
        "figure here shows which schedule is better."
    )
    for text in (result.to_markdown(), Result.load(out).to_markdown()):
        assert text.startswith(f"{sentence}\n\n{result.rests_on()}\n\n| perplexity")
        assert "Against truncation" in text and not any(each in text for each in CONCLUSIONS)
    assert (out / "REPORT.md").read_text().split("\n\n")[1] == sentence
    assert load([out])[0].sentences == [sentence, result.rests_on()] and "; each interval holds by" in result.rests_on()


def test_a_guess_itself_is_not_worse_than_a_guess():
    result = perplexity(uniform_llama(), documents(6, 130), LENGTHS, ["yarn:factor=2"])
    assert [row.nll for row in result.rows] == pytest.approx([math.log(VOCABULARY)] * 6, abs=1e-6)
    assert [pair.delta_nll for pair in result.paired] == [0.0] * 3
    assert worse_than_a_guess(result) == "" and "a verdict needs" in result.to_markdown()


def test_the_bound_is_that_of_the_vocabulary():
    bound = math.log(2048)
    assert said(bound, 64, 2048) == said(bound - 1, 64, 2048) == said(math.nan, 64, 2048) == said(99.0, 64, None) == ""
    assert "over its 2,048 tokens (perplexity 2,069 at 1,024 tokens, against 2,048)." in said(bound + 0.01, 1024, 2048)
    assert "(perplexity 26,000 at 64 tokens, against 2,048)" in said(math.log(26_000), 64, 2048)
    assert "(perplexity 8.218e+307 at" in said(2000.0, 64, 2048)


def test_a_recommendation_of_random_weights_says_so_and_names_no_schedule(tmp_path, monkeypatch):
    monkeypatch.setattr("ropescale.evals.recommending.candidates.FACTORS", (1.0,))
    monkeypatch.setattr("ropescale.evals.recommending.candidates.LARGER", (1.0,))
    texts = documents(12, 132)
    answer = recommend(llama(), texts, 128, out=tmp_path / "run", batch_tokens=512).answer
    assert answer.answer.startswith("As it is, the model predicts this text worse than a uniform guess over its 61 ")
    assert f"(perplexity {math.exp(mean_loss(texts)):.4g} at 32 tokens, against 61)" in answer.answer
    assert answer.answer.endswith("no figure here shows which schedule is better.")
    assert (answer.guessed, answer.decided, answer.command) == (True, False, "")
    again = Recommendation.load(tmp_path / "run")
    assert again.to_markdown().startswith(answer.answer[:60])
    assert load([tmp_path / "run"])[0].sentences == [answer.answer, again.rests_on()]


def test_a_search_on_random_weights_says_so_and_concludes_nothing():
    texts = documents(12, 132)
    found = search(llama(), texts, 128, budget_tokens=128 * 24)
    held = [texts[int(name.split()[-1])][:64] for name in found.protocol["held_out"]]
    mean = sum(sum(naive_nll(llama(), ids)) / 63 for ids in held) / len(held)
    text = found.to_markdown()
    assert f"worse than a uniform guess over its 61 tokens (perplexity {math.exp(mean):#.4g} at 64 tokens" in text
    assert "nothing was gained" not in text and "better than" not in text
    own = search(uniform_llama(), texts, 128, budget_tokens=128 * 24).to_markdown()
    assert "uniform guess" not in own and "Not proved" in own
