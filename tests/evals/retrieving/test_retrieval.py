"""Retrieval: prompts, teacher-forced scores, and a model whose accuracy is known."""

import csv
import dataclasses
import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest
import tiny_models
import torch
from crashing import lasting, raising
from hypothesis import HealthCheck, given, settings, strategies as st
from lookup import SURE, lookup_llama
from tiny import byte_tokenizer, llama, markov_llama, naive_nll
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import ropescale
from ropescale.errors import DataError, RunError
from ropescale.evals.backends.loaded import AnswerScorer
from ropescale.evals.reference import CHECKPOINT
from ropescale.evals.retrieving.prompt_set import RetrievalOptions, check_depths, make_prompts
from ropescale.evals.retrieving.prompts import passkey_prompts
from ropescale.evals.retrieving.results import CHANCE


def byte_fallback_tokenizer():
    """As sentencepiece with byte fallback: a space before the text, letters and digits, bytes for all else."""
    letters = [*"▁.", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]
    vocabulary = {token: i for i, token in enumerate(["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


TOKENIZERS = {"bytes with BOS": byte_tokenizer(), "bytes without BOS": byte_tokenizer(bos=False)}
TOKENIZERS |= {"byte fallback": byte_fallback_tokenizer(), "BPE": AutoTokenizer.from_pretrained(CHECKPOINT)}


def made(length=640, depths=(0.0, 0.5, 1.0), trials=2, seed=0, tokenizer=None, bos="auto"):
    tokenizer = tokenizer or byte_tokenizer()
    bos = tokenizer.bos_token_id if bos == "auto" else bos
    return passkey_prompts(tokenizer, length, depths, trials, seed=seed, bos=bos)


def read(tokenizer, ids):
    return tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)


# --- prompts -----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(TOKENIZERS)),
    length=st.integers(900, 1300),
    depths=st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True).map(sorted),
    seed=st.integers(0, 2**40),
)
def test_every_prompt_has_exactly_its_length_and_its_key(name, length, depths, seed):
    tokenizer = TOKENIZERS[name]
    found = made(length, depths, trials=1, seed=seed, tokenizer=tokenizer)
    assert [prompt.depth for prompt in found] == depths
    for prompt in found:
        (question,) = prompt.questions
        ids = question.ids
        assert len(ids) == prompt.length == length
        assert re.fullmatch(r"[1-9][0-9]{4}", question.answer)
        assert "".join(read(tokenizer, ids[-question.tokens :]).split()) == question.answer
        assert read(tokenizer, ids[prompt.position : prompt.position + 8]).lstrip().startswith(question.answer)
        assert read(tokenizer, ids[: -question.tokens]).count(question.answer) == 1


def test_a_key_stands_between_sentences_at_its_depth_in_the_filler():
    for prompt in made(length=3000, depths=(0.0, 0.3, 1.0), trials=3):
        text = read(byte_tokenizer(), prompt.questions[0].ids[1:])
        needle = re.search(r"(?<=\.) The pass key is \d+\.", text)
        start = len("There is a pass key in this text. Remember it.")
        depth = (needle.start() - start) / (len(text) - start - len(needle[0]) - len(" The pass key is 12345"))
        assert depth == pytest.approx(prompt.depth, abs=0.05)  # a sentence is 40 to 80 of 2,900 bytes
        assert prompt.position == 1 + needle.start() + len(" The pass key is")


def test_the_prompts_are_those_that_published_figures_were_measured_with():
    found = make_prompts(TOKENIZERS["BPE"], [300, 512], [0, 0.4, 1], RetrievalOptions(trials=2))
    assert found.data["sha256"].startswith("eb4907999fd9")


def test_fewer_trials_are_the_first_of_more():
    few, many = made(depths=(0.5,), trials=2), made(depths=(0.5,), trials=5)
    assert all(np.array_equal(a.questions[0].ids, b.questions[0].ids) for a, b in zip(few, many))


LACKING = {"abcdefghijklmnopqrstuvwxyzAT. ": "the tokenizer cannot encode numbers: 90817263545 is decoded"}
LACKING["0123456789"] = "makes no tokens of English text"


@pytest.mark.parametrize(("known", "said"), LACKING.items())
def test_a_tokenizer_that_knows_no_digits_or_nothing_else_is_refused(known, said):
    bpe = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(known)}, merges=[]))
    with pytest.raises(DataError, match=said):
        made(tokenizer=PreTrainedTokenizerFast(tokenizer_object=bpe))


def test_a_length_that_is_too_short_names_one_that_is_not():
    with pytest.raises(DataError, match="length 40 is too short for passkey") as caught:
        made(40)
    enough = int(re.search(r"take (\d+) tokens", str(caught.value))[1])
    assert {prompt.length for prompt in made(enough)} == {enough}


# --- scores ------------------------------------------------------------------------------------------------------


def with_answer(prompt, answer):
    """The prompt with another answer after its question."""
    question = prompt.questions[0]
    ids = np.array([*question.ids[: -question.tokens], *answer])
    return dataclasses.replace(prompt, questions=(dataclasses.replace(question, ids=ids, tokens=len(answer)),))


def answered(model, given):
    """Pairs each prompt's question with the NLL of its answer and whether it is right."""
    both = zip([each.questions[0] for each in given], AnswerScorer(model, given).scores(given), strict=True)
    return [(question, float(nll.sum(dtype=float)), bool(right.all())) for question, (nll, right) in both]


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_is_correct_exactly_when_greedy_decoding_writes_it(seed):
    model = llama(vocab_size=257, seed=seed)
    prompt = made(length=200, seed=seed)[0]
    asked = prompt.questions[0].ids[: -prompt.questions[0].tokens]
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    written = model.generate(torch.tensor(asked)[None], **how)[0, len(asked) :].tolist()
    for place in range(6):
        wrong = [*written[:place], (written[place] + 1) % 257, *written[place + 1 :]]
        rights = [answered(model, [with_answer(prompt, answer)])[0][2] for answer in (written, wrong)]
        assert rights == [True, False]


def test_a_markov_chains_answers_have_their_closed_form():
    generator = torch.Generator().manual_seed(3)
    transitions = torch.rand(260, 260, generator=generator, dtype=torch.float64) ** 8 + 1e-4
    transitions /= transitions.sum(1, keepdim=True)
    best = transitions.argmax(1)
    for question, nll, is_right in answered(markov_llama(transitions), made(700, trials=1)):
        ids = question.ids[-question.tokens - 1 :]
        assert nll == pytest.approx(-sum(math.log(transitions[a, b]) for a, b in pairwise(ids)), rel=1e-6)
        assert is_right == all(best[a] == b for a, b in pairwise(ids))


@pytest.mark.parametrize(("kind", "schedule"), [("llama", "as-is"), ("llama", "dynamic:factor=4"), ("window", "as-is")])
def test_an_answer_has_the_losses_of_a_naive_loop(kind, schedule):
    windowed = tiny_models.build("mistral", vocab_size=257, sliding_window=64)
    model = windowed if kind == "window" else llama(vocab_size=257)
    with ropescale.patch(model, schedule, length=500):
        for question, nll, _ in answered(model, made(500, trials=2)):
            expected = sum(naive_nll(model, question.ids.tolist())[-question.tokens :])
            assert nll == pytest.approx(expected, abs=5e-5)


def test_logits_are_made_for_the_answers_alone():
    model = lookup_llama()
    AnswerScorer(model, ()).scores(made(length=640))
    assert {call["kept"] for call in model.seen} == {1 + len(" 12345")}


def test_prompts_that_do_not_fit_are_an_error_that_says_what_to_do(monkeypatch):
    model = lookup_llama()
    monkeypatch.setattr(model, "forward", raising(torch.OutOfMemoryError("Tried to allocate 20.00 GiB")))
    with pytest.raises(RunError, match=r"memory of cpu; use a smaller batch_tokens, shorter lengths"):
        answered(model, made(640, trials=1))


def test_logits_that_are_not_finite_end_the_run():
    model = llama(vocab_size=257)
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    with pytest.raises(RunError, match=r"weights contain NaN or infinity, in lm_head.weight"):
        answered(model, made(700))


# --- a model whose accuracy is known -----------------------------------------------------------------------------

LENGTHS = [256, 512, 1024]


@pytest.fixture(scope="module")
def reaching():
    """Reach 300, four times that under linear:factor=4: at 512 it misses depth 0, at 1,024 depth 0.5 as well."""
    return lookup_llama()


@pytest.fixture(scope="module")
def result(reaching):
    given = {"tokenizer": byte_tokenizer(), "depths": [0, 0.5, 1], "trials": 4}
    return ropescale.evals.retrieval(reaching, LENGTHS, ["linear:factor=4"], **given)


def marked(result, right):
    """The same run, but for which answers are right."""
    answers = [dataclasses.replace(each, correct=right(each), score=float(right(each))) for each in result.answers]
    return dataclasses.replace(result, answers=answers)


def test_accuracy_is_the_known_one_at_every_length_and_depth(result, reaching):
    assert torch.equal(reaching.model.rotary_emb.inv_freq, llama(vocab_size=257).model.rotary_emb.inv_freq)
    cells = {(row.schedule, row.length, row.depth): row.accuracy for row in result.rows}
    for depth, found in [(0.0, [1, 0, 0]), (0.5, [1, 1, 0]), (1.0, [1, 1, 1]), (None, [1, 2 / 3, 1 / 3])]:
        assert [cells["as-is", length, depth] for length in LENGTHS] == pytest.approx(found)
        assert [cells["linear:factor=4", length, depth] for length in LENGTHS] == [1, 1, 1]
    assert len(result.answers) == 2 * 3 * 3 * 4
    for answer in result.answers:
        reach = {"as-is": 300, "linear:factor=4": 1200}[answer.schedule]
        assert answer.correct == (answer.length - answer.tokens - answer.position <= reach)


def test_answer_nll_is_the_known_one(result):
    right = 6 * math.log1p(256 * math.exp(-SURE))
    wrong = 6 * (SURE + right / 6)  # the target's logit is 0 where another has 10
    for answer in result.answers:
        assert answer.nll == pytest.approx(right if answer.correct else wrong, abs=2e-5)
    rows = {(row.schedule, row.length, row.depth): row for row in result.rows}
    assert rows["as-is", 1024, None].answer_nll == pytest.approx((right + 2 * wrong) / 3, rel=1e-5)
    pair = result.paired[-1]
    assert pair.length == 1024 and pair.delta_nll == pytest.approx((right - wrong) * 2 / 3, rel=1e-5)
    assert pair.low < pair.delta_nll < pair.high < 0
    assert pytest.approx(math.log(99_999 - 10_000 + 1)) == CHANCE
    assert "chance, any number of 5 digits, is 11.41" in result.to_markdown()


def test_the_effective_length_is_by_the_baselines_score_at_the_shortest_length(result):
    found = [(row.schedule, row.length, row.needed) for row in result.effective]
    assert found == [("as-is", 256, 0.85), ("linear:factor=4", 1024, 0.85)]
    assert "at least 0.85 at every length, 85% of that of as-is at 256 tokens" in result.to_markdown()
    half = marked(result, lambda answer: answer.depth == 1 and (answer.length == 256 or answer.schedule != "as-is"))
    assert [(row.length, row.needed) for row in half.effective] == [(256, 0.85 / 3), (1024, 0.85 / 3)]
    after = marked(result, lambda answer: answer.length != 512)  # a length after a failure does not count
    assert [each.length for each in after.effective] == [256, 256]
    failing = marked(result, lambda answer: answer.schedule == "as-is")
    assert [each.length for each in failing.effective] == [1024, None]
    never = marked(result, lambda answer: answer.schedule != "as-is")
    assert [(row.length, row.needed) for row in never.effective] == [(None, 0), (None, 0)]
    assert "as-is finds nothing at 256 tokens, so there is no relative effective length" in never.to_markdown()


def gaining(result, gain, spread, prompts=12):
    """The same run, but at 1,024 tokens the schedule gains ``gain`` nats, more or less by ``spread`` in turn."""
    answers = [each for each in result.answers if each.prompt < prompts]
    for number, each in enumerate(answers):
        if each.length == 1024:
            nll = 20 - (each.schedule != "as-is") * (gain + spread * (-1) ** each.prompt)
            answers[number] = dataclasses.replace(each, nll=nll)
    return dataclasses.replace(result, answers=answers)


def test_the_sentence_about_the_loss_concludes_what_the_intervals_of_its_table_show(result):
    """12 prompts whose changes are 1 nat around their mean; one schedule, so one comparison at the longest length."""
    error, start = math.sqrt(1 / 11), "Against as-is, linear:factor=4"
    for gain, words in [
        (1.2, f"{start} gains 1.2 (0.5 to 1.9) nats per answer, in 12 of 12, at 1,024 tokens."),
        (0.4, f"{start} is undecided at 1,024 tokens: -0.4 (-1.1 to +0.3) nats per answer, lower in 6 of 12."),
        (-2, f"{start} costs 2.0 (1.3 to 2.7) nats per answer, in 12 of 12, at 1,024 tokens."),
    ]:
        found = gaining(result, gain, 1)
        row = found.paired[-1]
        assert (row.length, row.prompts, row.comparisons) == (1024, 12, 1)
        assert (row.low, row.high) == pytest.approx((-gain - 2.201 * error, -gain + 2.201 * error), abs=1e-3)
        assert found.sentences()[1:] == [words]
        said = found.to_markdown()
        assert "on the same prompts (nats; 95% intervals at each length):" in said
        assert f"{-gain:+.3f} ± 0.664" in said


def test_fewer_than_ten_prompts_decide_nothing_about_the_loss(result):
    few = gaining(result, 15, 1, prompts=9)
    row = few.paired[-1]
    assert (row.prompts, row.low, row.high) == (9, None, None) and row.delta_nll == pytest.approx(-15, abs=0.2)
    (said,) = few.sentences()[1:]
    assert said.startswith("Against as-is, linear:factor=4 gains 15.")
    assert said.endswith("in 9 of 9, at 1,024 tokens; a verdict needs 10 prompts, and there are 9.")
    assert "verdict" not in gaining(result, 15, 1, prompts=10).sentences()[1]


def test_length_dependent_tables_are_frozen_at_the_length_asked_at():
    model = lookup_llama()
    given = {"tokenizer": byte_tokenizer(), "depths": [1.0], "trials": 1}
    ropescale.evals.retrieval(model, [256, 512, 1024], ["dynamic:factor=2"], **given)
    for length in (512, 1024):
        slowest = {call["slowest"] for call in model.seen if call["shape"][1] == length}
        theta = 10000 * (2 * length / 256 - 1) ** (8 / 6)  # a head of 8, so d / (d - 2) = 8 / 6
        assert sorted(slowest) == pytest.approx([theta ** (-6 / 8), 10000 ** (-6 / 8)], rel=1e-6)


def test_schedules_with_the_same_tables_are_asked_once():
    model = lookup_llama()
    given = {"tokenizer": byte_tokenizer(), "depths": 2, "trials": 2}
    result = ropescale.evals.retrieval(model, [300], ["base", "linear:factor=1"], **given)
    assert result.schedules == ["as-is", "base", "linear:factor=1"]
    assert len(model.seen) == 1  # four prompts together
    assert len(result.answers) == 3 * 4


# --- arguments ---------------------------------------------------------------------------------------------------


def test_depths_are_a_number_or_a_list_also_as_text():
    assert check_depths(5) == check_depths("5") == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert check_depths([1, 0.5, 0.5]) == check_depths("0.5, 1") == (0.5, 1.0) and check_depths("0") == (0.0,)


@pytest.mark.parametrize("depths", [[], 1, "1", [1.5], [-0.1], [math.nan], "1001", "deep", "", True, 0.5])
def test_depths_that_cannot_be_are_refused(depths):
    with pytest.raises(DataError, match="neither a list of numbers from 0"):
        check_depths(depths)


@pytest.mark.parametrize(("lengths", "trials", "words"), [([300], 0, "trials must be 1"), ([], 1, "no lengths")])
def test_what_cannot_be_asked_is_one_sentence(lengths, trials, words):
    with pytest.raises(ropescale.RopescaleError, match=words):
        ropescale.evals.retrieval(lookup_llama(), lengths, tokenizer=byte_tokenizer(), trials=trials)


def test_ids_outside_the_vocabulary_are_refused_before_anything_runs():
    model = lookup_llama(pad_token_id=None)
    with pytest.raises(DataError, match="outside the model's vocabulary of 257"):
        ropescale.evals.retrieval(model, [300], tokenizer=AutoTokenizer.from_pretrained(CHECKPOINT))
    assert model.seen == []


# --- files and pictures ------------------------------------------------------------------------------------------


def test_saved_files_hold_every_number(result, tmp_path, pictures):
    assert repr(result) == "<Retrieval of LookupLlama: Retrieval (passkey), generated>"
    assert result._repr_html_().count("<table>") == 1 + 3 + 2
    result.save(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"REPORT.md", "answers.csv", "results.csv", "results.json", "retrieval.png"}
    assert (tmp_path / "out" / "retrieval.png").stat().st_size > 10_000
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["kind"] == "retrieval" and saved["rows"] == [dataclasses.asdict(row) for row in result.rows]
    assert saved["model"]["trained_length"] == 256
    rows = list(csv.DictReader((tmp_path / "out" / "answers.csv").open()))
    assert [float(row["nll"]) for row in rows] == [answer.nll for answer in result.answers]
    assert (tmp_path / "out" / "REPORT.md").read_text().count("| 50% ") == 2


def test_the_heat_map_shows_the_known_accuracies(result):
    pytest.importorskip("matplotlib")
    figure = result.plot()
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in panels] == ["as-is"] * 2 + ["linear:factor=4"] * 2
    maps = [axes.images[0].get_array().tolist() for axes in panels]
    assert maps[::2] == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 1, 1]] * 3]
    assert {line.get_xdata()[0] for line in panels[0].lines} == {0.5}  # trained at 256: after the first column
    assert "dashed line: trained at 256" in figure._suptitle.get_text()


# --- the command -------------------------------------------------------------------------------------------------


# --- going on ----------------------------------------------------------------------------------------------------

AGAIN = ["--lengths", "300,400", "--depths", "0,1", "--trials", "3", "--batch-tokens", "800"]


@pytest.fixture
def asked(monkeypatch):
    """How many prompts each batch had, that was put to a model."""
    real, sizes = AnswerScorer.scores, []

    def scores(self, prompts):
        sizes.append(len(prompts))
        return real(self, prompts)

    monkeypatch.setattr(AnswerScorer, "scores", scores)
    return sizes


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("results.json", "answers.csv", "results.csv")}


def test_an_interrupted_run_goes_on_and_ends_byte_for_byte_the_same(ran, checkpoint, tmp_path, monkeypatch, asked):
    schedules = ["--schedule", "dynamic:factor=2", "--schedule", "linear:factor=1"]
    words = ["retrieval", checkpoint, *AGAIN, *schedules, "-o"]
    ran(*words, tmp_path / "whole")
    batches = len(asked)
    with monkeypatch.context() as patched:
        patched.setattr(AnswerScorer, "scores", lasting(batches - 2, KeyboardInterrupt())(AnswerScorer.scores))
        _, err = ran(*words, tmp_path / "out", code=130)
    assert f"{batches - 2} finished batches are kept in {tmp_path / 'out'}" in err
    assert files(tmp_path / "out") != files(tmp_path / "whole")  # the tables of what was finished
    _, err = ran(*words, tmp_path / "out")
    assert f"resuming: {batches - 2} of {batches} batches are done" in err
    assert len(asked) == 2 * batches
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    asked.clear()
    _, err = ran(*words, tmp_path / "out")
    assert asked == [] and f"all {batches} batches are done already" in err
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    ran(*words, tmp_path / "out", "--fresh")
    assert len(asked) == batches and files(tmp_path / "out") == files(tmp_path / "whole")


def test_other_prompts_are_another_run_and_a_length_more_finds_the_rest(ran, checkpoint, tmp_path, asked):
    words = ["retrieval", checkpoint, "--depths", "0,1", "--trials", "2", "-o", tmp_path]
    ran(*words, "--lengths", "300")
    other = [*words, "--lengths", "300", "--seed", "1"]
    assert "holds results of another seed" in ran(*other, code=2)[1]
    assert "starting a new run, because this changed: seed;" in ran(*other, "--force")[1]
    ran(*words, "--lengths", "300", "--force")
    asked.clear()
    assert "resuming: 1 of 2 batches are done" in ran(*words, "--lengths", "300,400")[1] and len(asked) == 1
