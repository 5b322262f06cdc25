"""Retrieval: prompts, teacher-forced scores, and a model whose accuracy is known."""

from __future__ import annotations

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lookup import SURE, lookup_llama
from tiny import byte_tokenizer, llama, markov_llama, naive_nll
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import ropescale
from ropescale.cli import retrieval as command_module
from ropescale.errors import DataError, RunError
from ropescale.evals.reference import CHECKPOINT
from ropescale.evals.retrieving.answering import AnswerScorer
from ropescale.evals.retrieving.filler import NAMES, CorpusFiller, Dice, Generated
from ropescale.evals.retrieving.prompt_set import check_depths
from ropescale.evals.retrieving.tasks import HOPS, TASKS, Prompt, prompts

TEXT = "The ferry left at 12 o'clock.\nNobody saw it go! Was it 24681 metres long?\n\nThe harbour was empty. "


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """As sentencepiece with byte fallback: a space before the text, letters and digits, bytes for all else."""
    letters = [*"▁.", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]
    vocabulary = {token: i for i, token in enumerate(["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def word_tokenizer(vocabulary: str, unknown: str | None = "?") -> PreTrainedTokenizerFast:
    """One token per character of ``vocabulary``; everything else is unknown."""
    ids = {character: i for i, character in enumerate(dict.fromkeys([*([unknown] if unknown else []), *vocabulary]))}
    tokenizer = Tokenizer(models.WordLevel(vocab=ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unknown)


TOKENIZERS = {
    "bytes with BOS": byte_tokenizer(),
    "bytes without BOS": byte_tokenizer(bos=False),
    "byte fallback": byte_fallback_tokenizer(),
    "BPE that merges digits": AutoTokenizer.from_pretrained(CHECKPOINT),
}


def made(task="passkey", length=640, depths=(0.0, 0.5, 1.0), trials=2, seed=0, tokenizer=None, filler=None, bos="auto"):
    tokenizer = tokenizer or byte_tokenizer()
    bos = tokenizer.bos_token_id if bos == "auto" else bos
    return prompts(task, tokenizer, length, depths, trials, seed=seed, filler=filler or Generated(), bos=bos)


def read(tokenizer, ids):
    return tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)


# --- prompts -----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    task=st.sampled_from(sorted(TASKS)),
    name=st.sampled_from(sorted(TOKENIZERS)),
    length=st.integers(900, 1300),
    depths=st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True).map(sorted),
    seed=st.integers(0, 2**40),
    borrowed=st.booleans(),
)
def test_every_prompt_has_exactly_its_length_and_its_keys(task, name, length, depths, seed, borrowed):
    tokenizer = TOKENIZERS[name]
    filler = CorpusFiller(TEXT) if borrowed else Generated()
    for prompt in made(task, length, depths, trials=1, seed=seed, tokenizer=tokenizer, filler=filler):
        numbers = [question.answer for question in prompt.questions]
        assert len(set(numbers)) == len(numbers)
        assert [question.depth for question in prompt.questions] == (
            depths if task != "passkey" else [prompt.questions[0].depth]
        )
        for ending in range(len(prompt.endings)):
            assert len(prompt.ids(ending)) == length
        context = read(tokenizer, prompt.context)
        for question in prompt.questions:
            ids = prompt.ids(question.ending)
            assert re.fullmatch(r"[1-9][0-9]{4}", question.answer)
            assert context.count(question.answer) == 1
            assert "".join(read(tokenizer, ids[question.start : question.stop]).split()) == question.answer
            assert read(tokenizer, ids[question.position : question.position + 8]).lstrip().startswith(question.answer)
            assert question.stop == length or task == "multi-value"


def test_the_actual_depth_is_where_the_key_stands_in_the_filler():
    for prompt in made(length=3000, depths=(0.0, 0.3, 1.0), trials=3):
        text = read(byte_tokenizer(), prompt.context[1:])
        needle = re.search(r" The pass key is \d+\.", text)
        preamble = "There is a pass key in this text. Remember it."
        fragment = re.match(r".*?(?=[.] )[.]|.*?[.]", text[len(preamble) :])[0] if text[len(preamble)] != " " else ""
        filler = len(text) - len(preamble) - len(fragment) - len(needle[0])
        question = prompt.questions[0]
        assert question.actual_depth == pytest.approx(
            (needle.start() - len(preamble) - len(fragment)) / filler, abs=0.03
        )
        assert abs(question.actual_depth - question.depth) < 0.02  # a sentence is 40 to 80 of 2,900 bytes
        assert question.position == 1 + needle.start() + len(" The pass key is")


def test_needles_stand_between_sentences():
    for task in TASKS:
        for prompt in made(task, 1500, (0.0, 0.25, 0.8), trials=2):
            text = read(byte_tokenizer(), prompt.context[1:])
            for needle in re.finditer(r" (?:The pass key|A pass key|The number in) ", text):
                assert text[needle.start() - 1] == "."


def test_the_links_of_a_chain_stand_in_order_and_lead_to_its_number():
    for prompt in made("variable-tracking", 2000, (0.0, 0.5, 1.0), trials=3):
        text = read(byte_tokenizer(), prompt.context[1:])
        for question in prompt.questions:
            asked = read(byte_tokenizer(), prompt.endings[question.ending])
            box = re.search(r"in the (\w+) box is", asked)[1]
            places = []
            for _ in range(HOPS):
                link = re.search(rf"The {box} box holds the same number as the (\w+) box\.", text)
                places.append(link.start())
                box = link[1]
            first = re.search(rf"The number in the {box} box is (\d+)\.", text)
            assert first[1] == question.answer
            assert [first.start(), *reversed(places)] == sorted([first.start(), *places])


BYTES = """
class Bytes:
    def __call__(self, text, **rest):
        return {"input_ids": [list(t.encode()) for t in text] if isinstance(text, list) else list(text.encode())}

    def decode(self, ids, **rest):
        return bytes(ids).decode()
"""


def test_the_same_seed_gives_the_same_ids_in_another_process_and_whatever_else_is_asked(python):
    code = f"""{BYTES}
from ropescale.evals.retrieving import filler, tasks
for length in (2048, 700, 1024):
    for task in reversed(tasks.TASKS):
        for p in tasks.prompts(task, Bytes(), length, (0.5, 1.0), 3, seed=5, filler=filler.Generated(), bos=None):
            print(length, task, *p.context, *(i for each in p.endings for i in each))
"""
    done = python("-c", code, env={"PYTHONHASHSEED": "17"})
    assert done.returncode == 0, done.stderr
    there = {line for line in done.stdout.splitlines() if line.startswith("1024 multi-key")}
    scope: dict = {}
    exec(BYTES, scope)
    found = made("multi-key", 1024, (0.5, 1.0), 3, seed=5, tokenizer=scope["Bytes"](), bos=None)
    assert there == {" ".join(map(str, ("1024 multi-key", *p.context, *np.ravel(p.endings)))) for p in found}
    other = made("multi-key", 1024, (0.5, 1.0), 3, seed=6, tokenizer=scope["Bytes"](), bos=None)
    assert not any(np.array_equal(a.context, b.context) for a, b in zip(found, other))


def test_fewer_trials_are_the_first_of_more():
    few, many = made("multi-value", trials=2), made("multi-value", trials=5)
    assert all(np.array_equal(a.ids(0), b.ids(0)) for a, b in zip(few, many))


def test_no_number_is_a_key_that_the_haystack_holds_already():
    text = " ".join(f"{number}." for number in range(10_000, 99_990))
    found = {prompt.questions[0].answer for prompt in made(filler=CorpusFiller(text), trials=4)}
    assert found <= {str(number) for number in range(99_990, 100_000)}


def test_the_haystack_is_the_users_text_in_its_order():
    text = "".join(f"This is sentence {word} of the tale. " for word in NAMES)
    prompt = made(depths=(1.0,), trials=1, filler=CorpusFiller(text))[0]
    words = re.findall(r"sentence (\w+) of", read(byte_tokenizer(), prompt.context))
    start = NAMES.index(words[0])
    assert words == [NAMES[(start + i) % len(NAMES)] for i in range(len(words))]
    assert len(words) > 10


def test_names_are_no_words_of_the_generated_text():
    stream = Generated().sentences(Dice("names"))
    words = {word for _ in range(3000) for word in re.findall(r"[a-z]+", next(stream).lower())}
    assert not words & set(NAMES)
    assert len(set(NAMES)) == len(NAMES) == 128


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (
            word_tokenizer("abcdefghijklmnopqrstuvwxyzAT. "),
            "the tokenizer cannot write numbers: 90817263545 comes back",
        ),
        (word_tokenizer("0123456789."), "the tokenizer tells too few names apart"),
    ],
    ids=["no digits", "no letters"],
)
def test_a_tokenizer_that_cannot_ask_is_refused(tokenizer, words):
    with pytest.raises(DataError, match=words):
        made("variable-tracking", tokenizer=tokenizer)


def test_a_prompt_that_tokenizes_otherwise_as_a_whole_says_so():
    assert all(prompt.retokenizes for name in TOKENIZERS for prompt in made(tokenizer=TOKENIZERS[name], trials=1))
    across = Tokenizer(models.BPE(vocab=byte_tokenizer().get_vocab() | {".Ġ": 257}, merges=[(".", "Ġ")]))
    across.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    across.decoder = decoders.ByteLevel()
    assert not any(prompt.retokenizes for prompt in made(tokenizer=PreTrainedTokenizerFast(tokenizer_object=across)))


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_length_that_is_too_short_names_one_that_is_not(task):
    with pytest.raises(DataError, match="too short") as caught:
        made(task, 40)
    assert f"length 40 is too short for {task}" in str(caught.value)
    enough = int(re.search(r"take (\d+) tokens", str(caught.value))[1])
    assert {len(prompt.ids(0)) for prompt in made(task, enough + 40)} == {enough + 40}


# --- scores ------------------------------------------------------------------------------------------------------


def with_answer(prompt: Prompt, answer: list[int]) -> Prompt:
    """The prompt with another answer after its question."""
    question = prompt.questions[0]
    head = prompt.endings[0][: question.start - len(prompt.context)]
    whole = len(prompt.context) + len(head)
    changed = dataclasses.replace(question, start=whole, stop=whole + len(answer))
    endings = np.concatenate([head, answer])[None]
    return dataclasses.replace(prompt, length=whole + len(answer), endings=endings, questions=(changed,))


def scores(model, given):
    return [score for _, found in answered(AnswerScorer(model), given) for score in found]


def answered(scorer, given):
    """Pairs each prompt with its scores."""
    return list(zip(given, scorer.scores(given), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_is_correct_exactly_when_greedy_decoding_writes_it(seed):
    model = llama(vocab_size=257, seed=seed)
    prompt = made(length=200, seed=seed)[0]
    asked = prompt.ids(0)[: prompt.questions[0].start]
    written = model.generate(
        torch.tensor(asked)[None], max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0
    )[0, len(asked) :].tolist()
    for place in range(6):
        wrong = [*written[:place], (written[place] + 1) % 257, *written[place + 1 :]]
        right, other = scores(model, [with_answer(prompt, written)]), scores(model, [with_answer(prompt, wrong)])
        assert right[0].correct and not other[0].correct


def test_a_markov_chains_answers_have_their_closed_form():
    generator = torch.Generator().manual_seed(3)
    transitions = torch.rand(260, 260, generator=generator, dtype=torch.float64) ** 8 + 1e-4
    transitions /= transitions.sum(1, keepdim=True)
    best = transitions.argmax(1)
    for task in TASKS:
        for prompt, found in answered(AnswerScorer(markov_llama(transitions)), made(task, 700, trials=1)):
            for question, score in zip(prompt.questions, found, strict=True):
                ids = prompt.ids(question.ending)[question.start - 1 : question.stop]
                expected = -sum(math.log(transitions[a, b]) for a, b in pairwise(ids))
                assert score.nll == pytest.approx(expected, rel=1e-6)
                assert score.correct == all(best[a] == b for a, b in pairwise(ids))


@pytest.mark.parametrize("task", ["multi-key", "variable-tracking"])
@pytest.mark.parametrize("schedule", ["as-is", "yarn:factor=4", "dynamic:factor=4"])
def test_questions_that_share_a_reading_score_as_if_each_was_asked_whole(task, schedule):
    model = llama(vocab_size=257)
    given = made(task, 700, trials=2)
    with ropescale.patch(model, schedule, length=700):
        together, apart = AnswerScorer(model), AnswerScorer(model)
        apart.shares = False
        for (_, one), (_, other) in zip(answered(together, given), answered(apart, given), strict=True):
            assert [score.nll for score in one] == pytest.approx([score.nll for score in other], abs=1e-5)
            assert [score.correct for score in one] == [score.correct for score in other]
    assert together.shares
    assert together.forward_passes == 2  # one for each prompt
    assert apart.forward_passes == 2 * 3


def test_a_sliding_window_can_share_a_reading_too():
    model = tiny_models.build("mistral", vocab_size=257, sliding_window=64)
    together = AnswerScorer(model)
    for prompt, found in answered(together, made("multi-key", 500, trials=2)):
        for question, score in zip(prompt.questions, found, strict=True):
            naive = naive_nll(model, prompt.ids(question.ending).tolist())[question.start - 1 : question.stop - 1]
            assert score.nll == pytest.approx(sum(naive), abs=5e-5)
    assert together.shares


class Forgetful(type(lookup_llama())):
    """Writes into its cache in place, so that the second question also reads the first."""

    def _remembered(self, ids, cache, wanted):
        cache = [] if cache is None and wanted else cache
        if cache is None:
            return None, ids
        cache.extend(ids[0].tolist())
        return cache, torch.tensor([cache])


def test_a_cache_that_cannot_be_continued_twice_is_found_out(monkeypatch, caplog):
    from ropescale.evals.retrieving import answering

    monkeypatch.setattr(
        answering, "_copied", lambda cache: cache
    )  # as for state that a copy of the layers still shares
    model = lookup_llama(reach=420.0)
    model.__class__ = Forgetful
    given = made("multi-key", 600, trials=2)
    answerer = AnswerScorer(model)
    found = [score.correct for scores in answerer.scores(given) for score in scores]
    assert not answerer.shares
    assert "every prompt is read whole" in caplog.text
    expected = [q.start - q.position <= 420 for prompt in given for q in prompt.questions]
    assert found == expected
    assert True in expected and False in expected


def test_logits_are_made_for_the_answers_alone():
    model = lookup_llama()
    AnswerScorer(model).scores(made(length=640))
    assert {call["kept"] for call in model.seen} == {len(" The pass key is 12345")}
    model.seen.clear()
    AnswerScorer(model).scores(made("multi-key", 640, trials=1))
    assert max(call["kept"] for call in model.seen) < 40


def test_a_model_without_logits_to_keep_is_asked_for_all(monkeypatch):
    class Old(type(lookup_llama())):
        def forward(self, input_ids, past_key_values=None, use_cache=None):  # type: ignore
            return super().forward(input_ids, past_key_values, use_cache)

    given = made(length=300, trials=1)
    old = lookup_llama()
    old.__class__ = Old
    assert scores(old, given) == scores(lookup_llama(), given)


def test_too_many_prompts_for_memory_go_in_parts(monkeypatch, caplog):
    model = lookup_llama()
    real = model.forward

    def small(input_ids, **rest):
        if len(input_ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return real(input_ids, **rest)

    given = made(length=400, depths=(0.0, 1.0), trials=3)
    expected = scores(model, given)
    monkeypatch.setattr(model, "forward", small)
    answerer = AnswerScorer(model)
    answerer._keeps = True
    assert [score for found in answerer.scores(given) for score in found] == expected
    assert "out of memory with 6 prompts at once; going on with 3" in caplog.text


def test_one_prompt_that_does_not_fit_is_an_error_that_says_what_to_do(monkeypatch):
    model = lookup_llama()
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    monkeypatch.setattr(model, "forward", raising(full))
    for task in ("passkey", "multi-key"):
        with pytest.raises(RunError, match=r"memory of cpu.*shorter lengths"):
            scores(model, made(task, 640, trials=1))


def test_logits_that_are_not_finite_end_the_run():
    model = llama(vocab_size=257)
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    for task in TASKS:
        with pytest.raises(RunError, match=r"weights hold NaN or infinity, in lm_head.weight"):
            scores(model, made(task, 700))


# --- a model whose accuracy is known -----------------------------------------------------------------------------

LENGTHS = [256, 512, 1024]
DEPTHS = [0, 0.5, 1]


@pytest.fixture(scope="module")
def reaching():
    """Reach 300, four times that under linear:factor=4: at 512 it misses depth 0, at 1,024 depth 0.5 as well."""
    return lookup_llama()


@pytest.fixture(scope="module")
def result(reaching):
    return ropescale.evals.retrieval(
        reaching, byte_tokenizer(), LENGTHS, DEPTHS, ["linear:factor=4"], trials=4, patching={}
    )


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


def test_the_effective_length_is_the_known_one(result):
    assert [(each.schedule, each.length, each.needed) for each in result.effective] == [
        ("as-is", 256, 0.85),
        ("linear:factor=4", 1024, 0.85),
    ]
    lower = dataclasses.replace(result, threshold=0.6)
    assert [each.length for each in lower.effective] == [512, 1024]


def test_a_length_after_a_failure_does_not_count_for_the_effective_length(result):
    after = marked(result, lambda answer: answer.length != 512)
    assert [each.length for each in after.effective] == [256, 256]
    never = marked(result, lambda answer: False)
    assert [each.length for each in never.effective] == [None, None]
    assert "No schedule finds anything at 256 tokens" in never.to_markdown()


def test_chance_is_any_number_of_five_digits(result):
    assert result.chance == pytest.approx(math.log(99_999 - 10_000 + 1))
    line = next(line for line in result.to_markdown().splitlines() if line.startswith("| chance"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["chance", *["11.41"] * 3]


def test_a_map_without_answers_says_whether_the_model_can_do_the_task_at_all(result):
    never = marked(result, lambda answer: False)

    def said(trained):
        return dataclasses.replace(never, model={**result.model, "trained_length": trained}).to_markdown()

    assert "within the 512 tokens that it was trained at (asked at 256, 512; an answer costs it" in said(512)
    assert "as-is was not asked within the 64 tokens" in said(64)
    assert "the trained length of the model is not known" in said(None)
    assert "No schedule answers" not in result.to_markdown()


def test_a_retrieval_has_a_short_repr_and_a_dataframe(result):
    pandas = pytest.importorskip("pandas")
    assert "passkey" in repr(result) and len(repr(result)) < 200
    frame = result.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["accuracy"].tolist() == [row.accuracy for row in result.rows]
    assert result._repr_html_().count("<table>") == 1 + 4


def test_one_bar_for_all_schedules(result):
    """A schedule that does badly everywhere is not good to the end."""
    worse = marked(result, lambda answer: answer.correct and (answer.schedule == "as-is" or answer.depth == 1))
    assert [each.length for each in worse.effective] == [256, None]


def test_the_paired_test_counts_what_came_out_differently(result):
    found = {pair.length: pair for pair in result.paired}
    assert [(found[n].gained, found[n].lost) for n in LENGTHS] == [(0, 0), (4, 0), (8, 0)]
    assert [found[n].p_value for n in LENGTHS] == [1.0, 2 / 2**4, 2 / 2**8]
    assert [found[n].delta_accuracy for n in LENGTHS] == pytest.approx([0, 1 / 3, 2 / 3])
    assert found[1024].delta_nll == pytest.approx(-60 * 2 / 3, rel=1e-6)


@pytest.mark.parametrize("depths", [[0.5], 4])
def test_every_key_of_a_shared_prompt_is_found_exactly_within_the_reach(depths):
    result = ropescale.evals.retrieval(
        lookup_llama(), byte_tokenizer(), [700, 1000], depths, task="multi-key", trials=2
    )
    correct = [answer.correct for answer in result.answers]
    assert correct == [answer.length - answer.tokens - answer.position <= 300 for answer in result.answers]
    # One for each prompt; with several questions one more, the check.
    assert [each["forward_passes"] for each in result.cost] == [2, 2]


def test_copying_alone_finds_no_chain_but_the_one_whose_number_came_last():
    model = lookup_llama(reach=1e6, words=6)  # "box is" and what it was
    for depths in ([0.0], [0.2, 0.6, 0.7]):
        answers = ropescale.evals.retrieval(
            model, byte_tokenizer(), [1500], depths, task="variable-tracking", trials=8
        ).answers
        assert sum(answer.correct for answer in answers) == (0 if depths == [0.0] else 8)
        assert all(answer.depth == 0.7 for answer in answers if answer.correct)


def test_length_dependent_tables_are_frozen_at_the_length_asked_at():
    model = lookup_llama()
    ropescale.evals.retrieval(model, byte_tokenizer(), [256, 512, 1024], [1.0], ["dynamic:factor=2"], trials=1)
    for length in (512, 1024):
        slowest = {call["slowest"] for call in model.seen if call["shape"][1] == length}
        theta = 10000 * (2 * length / 256 - 1) ** (8 / 6)  # a head of 8, so d / (d - 2) = 8 / 6
        assert sorted(slowest) == pytest.approx([theta ** (-6 / 8), 10000 ** (-6 / 8)], rel=1e-6)


def test_schedules_with_the_same_tables_are_asked_once():
    model = lookup_llama()
    result = ropescale.evals.retrieval(model, byte_tokenizer(), [300], 2, ["base", "linear:factor=1"], trials=2)
    assert result.schedules == ["as-is", "base", "linear:factor=1"]
    assert [each["forward_passes"] for each in result.cost] == [4, 0, 0]
    assert len(result.answers) == 3 * 4


# --- arguments ---------------------------------------------------------------------------------------------------


def test_a_number_of_depths_spreads_them_evenly():
    assert check_depths(5) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert check_depths([1, 0.5, 0.5]) == (0.5, 1.0)


@pytest.mark.parametrize("depths", [[], 1, [1.5], [-0.1], [math.nan], ["0"], "0.5", True, [True], 0.5])
def test_depths_that_cannot_be_are_refused(depths):
    with pytest.raises(DataError, match="depth"):
        check_depths(depths)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "pass-key"}, "no task is called 'pass-key'; the tasks are passkey, multi-key"),
        ({"trials": 0}, "trials must be a whole number of 1 or more"),
        ({"lengths": []}, "no lengths"),
        ({"haystack": " \n "}, "the haystack is empty"),
        ({"bos": 900}, "bos id 900 is outside the model's vocabulary of 257"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(changes, words):
    given = {"lengths": [300], "depths": 3, "schedules": []} | changes
    with pytest.raises(ropescale.RopescaleError, match=words):
        ropescale.evals.retrieval(lookup_llama(), byte_tokenizer(), **given)


def test_ids_outside_the_vocabulary_are_refused_before_anything_runs():
    model = lookup_llama(pad_token_id=None)
    with pytest.raises(DataError, match="outside the model's vocabulary of 257"):
        ropescale.evals.retrieval(model, AutoTokenizer.from_pretrained(CHECKPOINT), [300])
    assert model.seen == []


# --- files and pictures ------------------------------------------------------------------------------------------


def test_saved_files_hold_every_number(result, tmp_path, pictures):
    result.save(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *["REPORT.md", "answers.csv", "results.csv", "results.json", "retrieval.png"]
    ]
    assert (tmp_path / "out" / "retrieval.png").stat().st_size > 10_000
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["kind"] == "retrieval" and saved["rows"] == [dataclasses.asdict(row) for row in result.rows]
    assert saved["model"]["trained_length"] == 256
    rows = list(csv.DictReader((tmp_path / "out" / "answers.csv").open()))
    assert [float(row["nll"]) for row in rows] == [answer.nll for answer in result.answers]
    assert (tmp_path / "out" / "REPORT.md").read_text().count("| 0.5 ") == 2


@pytest.fixture
def caught(monkeypatch):
    """The figures that are written to a file, in order."""
    pytest.importorskip("matplotlib")
    found = []
    monkeypatch.setattr("ropescale.evals.results.saving.save", lambda figure, path: found.append(figure))
    return found


def test_the_heat_map_shows_the_known_accuracies(result, caught):
    returned = result.plot("a.png")
    assert caught == [returned] and result.plot() is not returned and len(caught) == 1
    panels = [axes for axes in returned.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in panels] == ["as-is", "linear:factor=4"] * 2
    maps = [axes.images[0].get_array().tolist() for axes in panels]
    assert maps[:2] == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 1, 1]] * 3]
    assert [text.get_text() for text in panels[0].texts] == ["1.00", "0.00", "0.00", "1.00", "1.00", "0.00"] + [
        "1.00"
    ] * 3
    assert [tick.get_text() for tick in panels[0].get_xticklabels()] == ["256", "512", "1k"]
    assert {line.get_xdata()[0] for line in panels[0].lines} == {0.5}  # trained at 256: after the first column
    assert panels[0].images[0].get_clim() == (0, 1)
    assert "dashed line: trained at 256" in caught[0]._suptitle.get_text()


def test_many_schedules_go_on_several_lines(result, caught):
    names = [f"table {i}" for i in range(5)]
    answers = [dataclasses.replace(a, schedule=name) for name in names for a in result.answers if a.schedule == "as-is"]
    tables = {(name, length): "0" * 64 for name in names for length in LENGTHS}
    dataclasses.replace(result, answers=answers, tables=tables, baseline=names[0]).plot("unused.png")
    panels = [axes for axes in caught[0].axes if axes.images]
    assert [axes.get_title(loc="left") for axes in panels] == names * 2
    assert len({round(axes.get_position().x0, 3) for axes in panels}) == 4


# --- the command -------------------------------------------------------------------------------------------------


def test_the_commands_tasks_are_all_the_tasks():
    assert tuple(TASKS) == command_module.TASKS


def test_stdout_is_the_tables_and_the_folder_holds_the_run(ran, checkpoint, tmp_path):
    words = ["--lengths", "150,0.25k", "--depths", "0,1", "--trials", "2", "--schedule", "yarn", "--factor", "2"]
    out, err = ran("retrieval", checkpoint, *words, "-o", tmp_path / "out")
    assert "\n\n| accuracy " in out and "| yarn:factor=2 " in out
    assert err.splitlines()[-1] == f"written to {tmp_path / 'out'}"
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["schedule"] for row in saved["rows"]] == ["as-is"] * 6 + ["yarn:factor=2"] * 6
    assert saved["model"]["path"] == checkpoint and saved["data"]["source"] == "generated"
    assert {pair["baseline"] for pair in saved["paired"]} == {"as-is"}


def test_json_equals_the_python_call(ran, checkpoint):
    words = ["--lengths", "700", "--depths", "3", "--trials", "2", "--task", "multi-key", "--seed", "7", "--json"]
    found = json.loads(ran("retrieval", checkpoint, *words)[0])
    result = ropescale.evals.retrieval(
        llama(vocab_size=257), byte_tokenizer(), [700], 3, task="multi-key", trials=2, seed=7
    )
    assert [row["answer_nll"] for row in found["rows"]] == pytest.approx(
        [row.answer_nll for row in result.rows], abs=1e-5
    )
    assert found["data"]["sha256"] == result.data["sha256"]


def test_a_haystack_of_ones_own(ran, checkpoint, tmp_path):
    (tmp_path / "tale.txt").write_text("Once upon a time there was a very small model. " * 20)
    words = ["--lengths", "300", "--depths", "0,1", "--trials", "1", "--json"]
    out, _ = ran("retrieval", checkpoint, *words, "--haystack", tmp_path / "tale.txt")
    assert json.loads(out)["data"]["source"] == str(tmp_path / "tale.txt")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lengths", "64"], "length 64 is too short for passkey"),
        (["--lengths", "1"], "length 1 leaves no token to score"),
        (["--lengths", "200", "--depths", "0,2"], "depth 2.0 is not a number from 0 (the beginning) to 1 (the end)"),
        (["--lengths", "200", "--depths", "1"], "'1' could mean one depth or the depth 1; write 1.0 for the depth"),
        (["--lengths", "200", "--depths", "deep"], "invalid depths 'deep'"),
        (["--lengths", "200", "--depths", ","], "no depths to ask at"),
        (["--lengths", "200", "--depths", "99999999999"], "depths cannot be spread"),
        (["--lengths", "200", "--task", "needle"], "invalid value for '--task'"),
        (["--lengths", "200", "--threshold", "85"], "threshold must be above 0 and at most 1, like 0.85, not 85.0"),
        (["--lengths", "200", "--threshold", "nan"], "threshold must be above 0 and at most 1, like 0.85, not nan"),
        (["--lengths", "200", "--haystack", "no/such/tale.txt"], "no file or folder at 'no/such/tale.txt'; give"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(refused, checkpoint, words, sentence):
    assert sentence in refused("retrieval", checkpoint, *words)


# --- going on ----------------------------------------------------------------------------------------------------

AGAIN = ["--lengths", "700,800", "--depths", "0,1", "--trials", "3", "--batch-tokens", "1600", "--task"]


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


@pytest.mark.parametrize("task", ["passkey", "multi-key"])
def test_an_interrupted_run_asks_what_is_left_and_ends_byte_for_byte_the_same(
    ran, checkpoint, tmp_path, monkeypatch, asked, task
):
    words = [
        "retrieval",
        checkpoint,
        *AGAIN,
        task,
        "--schedule",
        "dynamic:factor=2",
        "--schedule",
        "linear:factor=1",
        "-o",
    ]
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
    out, err = ran(*words, tmp_path / "out")
    assert asked == [] and f"all {batches} batches are done already" in err
    assert "| accuracy " in out and files(tmp_path / "out") == files(tmp_path / "whole")
    ran(*words, tmp_path / "out", "--fresh")
    assert len(asked) == batches and files(tmp_path / "out") == files(tmp_path / "whole")


def test_other_prompts_are_another_run_and_a_length_more_finds_the_rest(ran, checkpoint, tmp_path, asked):
    words = ["retrieval", checkpoint, "--depths", "0,1", "--trials", "2", "-o", tmp_path]
    ran(*words, "--lengths", "700")
    assert "holds results of another seed" in ran(*words, "--lengths", "700", "--seed", "1", code=2)[1]
    assert "starting a new run with another seed" in ran(*words, "--lengths", "700", "--seed", "1", "--force")[1]
    ran(*words, "--lengths", "700", "--force")
    asked.clear()
    assert "resuming: 1 of 2 batches are done" in ran(*words, "--lengths", "700,800")[1] and len(asked) == 1
