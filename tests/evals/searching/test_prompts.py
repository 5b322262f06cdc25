"""A search by prompts with a hidden key, of which only the answers count."""

import math
from functools import cache

import numpy as np
import pytest
from searching import check_resumed, check_slopes, record_fed
from tiny import byte_tokenizer, documents, llama, naive_nll

import ropescale
from ropescale.errors import CheckpointError, DataError
from ropescale.evals import Result, search
from ropescale.evals.parallel.processes import Group, World
from ropescale.evals.results.folder import read_results
from ropescale.evals.retrieving.prompt_set import RetrievalOptions, make_prompts
from ropescale.evals.searching import prompts
from ropescale.evals.searching.learner import Evaluator
from ropescale.evals.searching.options import SearchOptions
from ropescale.evals.searching.search_run import SearchRun
from ropescale.models.rotary_modules import evaluating

LENGTHS, SIZE = (128, 256), 128 + 256
JUDGES = range(2, 12)
"""The sets of prompts that judge; the first two choose."""
ANSWER = 6
"""Tokens of an answer: a byte each, the space before the five digits included."""
BUDGET = {"objective": "keys", "budget_tokens": SIZE * 20, "tokenizer": byte_tokenizer()}
pytestmark = pytest.mark.usefixtures("one_thread")


def model(**changes):
    """A tiny Llama of trained length 128."""
    return llama(vocab_size=257, max_position_embeddings=128, **changes)


@pytest.fixture(scope="module")
def found():
    return search(model(), None, 256, **BUDGET)


def made(**options):
    chosen = SearchOptions(objective="keys", **{"budget_tokens": SIZE * 20, **options})
    return prompts.make_data(None, byte_tokenizer(), LENGTHS, "auto", chosen)


@cache
def quiz():
    """Held-out prompts, made as `ropescale retrieval` makes its own."""
    options = RetrievalOptions(seed=2**42 + 1, trials=9)
    return make_prompts(byte_tokenizer(), LENGTHS, 5, options)


def held_out(number):
    """The ids of a set of held-out prompts, shortest first."""
    by_depth = [{prompt.depth: prompt for prompt in made[number // 5 :: 9]} for made in quiz().prompts.values()]
    depths = [((number + place) % 5) / 4 for place in range(len(LENGTHS))]
    return [prompts[depth].questions[0].ids.tolist() for prompts, depth in zip(by_depth, depths, strict=True)]


def answers(net, ids):
    """The oracle: the mean NLL of the answer, the last tokens of a prompt, by plain transformers."""
    return math.fsum(naive_nll(net, ids)[-ANSWER:]) / ANSWER


def test_the_loss_is_that_of_the_answers_alone_by_plain_transformers(found):
    net, search = model(), found.search
    schedules = {search.start: "yarn:factor=2,truncate=true", "found": search.spec}
    for schedule, check in zip(schedules.values(), (search.checks[0], search.found), strict=True):
        with ropescale.patch(net, schedule):
            wanted = [answers(net, held_out(number)[-1]) for number in range(2)]  # the sets that choose
        assert check.loss == pytest.approx(sum(wanted) / 2, abs=1e-5)
    nll = {(found.named(row.schedule), row.length): row.answer_nll for row in found.rows if row.is_overall}
    assert {name for name, _ in nll} == {*schedules, "as-is"} and found.judges == len(JUDGES)
    for name, schedule in {**schedules, "as-is": "as-is"}.items():
        for place, length in enumerate(LENGTHS):
            with ropescale.patch(net, schedule):
                wanted = [ANSWER * answers(net, held_out(number)[place]) for number in JUDGES]
            assert nll[name, length] == pytest.approx(sum(wanted) / len(wanted), abs=1e-4)
    changes = {name: change.mean for name, change in found.changes().items()}
    wanted = {name: nll["found", 256] - nll[name, 256] for name in (search.start, "as-is")}
    assert changes == pytest.approx(wanted, abs=1e-9)


def test_the_gradient_is_that_of_the_answer_by_plain_transformers():
    net, options = model().double(), SearchOptions(objective="keys", budget_tokens=SIZE * 20)
    run = SearchRun(net, made(), options)
    (window,) = run.data.learned(128)[3]
    assert len(window.ids) == 256

    def loss(point):
        with ropescale.patch(net, run.space.schedule(point)):
            return answers(net, window.ids.tolist())

    point = run.space.nearest([value + 0.15 for value in run.space.start])
    with run.live.patched(), evaluating(net):
        found, slopes = Evaluator(run.learner, run.live, run.space, Group(World())).gradient(point, [[window]])
    assert found == pytest.approx(loss(point), abs=1e-6)
    check_slopes(loss, point, slopes, run.space.names)


def test_no_prompt_is_learned_from_and_held_out_or_asked_by_default():
    fed = made()
    usual = make_prompts(byte_tokenizer(), LENGTHS, 5, RetrievalOptions(trials=4))
    other = made(seed=1)
    asked = [prompt.questions[0].ids.tobytes() for each in (*fed.drawn, *other.drawn, usual) for prompt in each.every]
    assert len(set(asked)) == len(asked) == 2 * (15 + 2 * 15) + 40
    assert prompts.seeds(0)[0] == prompts.FIRST_SEED
    assert len({seed for number in range(50) for seed in prompts.seeds(number)}) == 100


def test_every_set_has_one_prompt_of_each_length_and_the_keys_lie_at_every_depth_in_turn():
    quiz = make_prompts(byte_tokenizer(), (128, 256, 300), 5, RetrievalOptions(trials=2))
    sets = [list(prompts.set_of(quiz, number).values()) for number in range(10)]
    assert all([prompt.length for prompt in each] == [128, 256, 300] for each in sets)
    places = np.array([[prompt.depth for prompt in each] for each in sets])
    assert all(len(set(row)) == 3 for row in places.tolist())
    for five in (places[:5], places[5:]):
        assert np.sort(five, axis=0).T.tolist() == [[0, 0.25, 0.5, 0.75, 1]] * 3
    ids = [prompt.questions[0].ids.tobytes() for each in sets for prompt in each]
    assert len(set(ids)) == 30 and all(prompt.questions[0].ids[0] == 256 for each in sets for prompt in each)  # BOS


def test_every_token_that_is_fed_counts_and_where_short_text_is_kept_its_answers_are_the_models_own(monkeypatch):
    fed = record_fed(monkeypatch)
    result = search(model(), None, 256, **BUDGET, keep_short=True)
    assert sum(map(len, fed)) == result.search.spent <= BUDGET["budget_tokens"]
    nll = {(result.named(row.schedule), row.length): row.answer_nll for row in result.rows if row.is_overall}
    assert nll["found", 128] == pytest.approx(nll["as-is", 128], abs=1e-5)


def test_other_prompts_are_another_search(tmp_path, capsys):
    def run(**changes):
        options = {**BUDGET, "budget_tokens": 5120, **changes}
        search(model(), None, 256, out=tmp_path / "factors.json", progress=True, **options)
        return capsys.readouterr().err

    run()
    assert "resuming" in run()
    with pytest.raises(CheckpointError, match="holds results of another text"):
        run(seed=1)


def test_what_it_shows_says_that_answers_were_counted(found, tmp_path):
    text = found.to_markdown()
    assert "(only their answers count)" in text and "10 others measured the table" in text
    assert "2 sets of prompts, one of each length, in generated text chose" in text
    stored = read_results(found.save(tmp_path / "run"))
    assert stored["protocol"]["objective"] == "keys"
    assert stored["protocol"]["prompt_seeds"] == {"learned": 2**42, "held_out": 2**42 + 1}
    assert stored["data"]["documents"] == 2 * len(JUDGES)
    with pytest.raises(DataError, match="holds a search run, not a perplexity run"):
        Result.load(tmp_path / "run")
    with pytest.raises(DataError, match=r"nowhere does not exist; give a folder"):
        Result.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": "needles"}, "objective must be text or keys, not 'needles'"),
        ({"objective": "text"}, "no documents are given to learn from; give some, or use the objective keys"),
        ({"documents": documents(3, 300)}, "documents are given, and the objective keys makes its own prompts"),
        ({"max_docs": 3}, "max_docs is for documents, but the objective keys has none; drop max_docs"),
        ({"split_special_tokens": True}, "split_special_tokens is for documents"),
        ({"within": 1.0}, "within is only for the objective text, because prompts have the target length"),
        ({"tokenizer": None}, "needs a tokenizer"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(changes, said):
    given = {**BUDGET, **changes}
    with pytest.raises(DataError, match=said):
        search(model(), given.pop("documents", None), 256, **given)


def test_the_least_budget_that_is_named_is_accepted_and_one_token_less_is_not():
    assert made(budget_tokens=5120).budget.most <= 5120
    with pytest.raises(DataError, match=r"too small for a step at 256 tokens; give at least 5120$"):
        made(budget_tokens=5119)


def test_a_model_with_no_room_for_a_question_is_refused():
    said = r"prompts of the trained length, but length 64 is too short for passkey: .* use the objective text$"
    with pytest.raises(DataError, match=said):
        search(llama(vocab_size=257), None, 128, **BUDGET)


def test_a_search_that_was_stopped_finds_the_same_bit_for_bit(found, tmp_path, monkeypatch):
    check_resumed(lambda out: search(model(), None, 256, out=out, **BUDGET), found, 2, tmp_path, monkeypatch)
