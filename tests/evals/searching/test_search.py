"""A whole search: what it finds, what it keeps, and how it goes on."""

import json
import math
import re
import sqlite3
from contextlib import closing

import pytest
import torch
from configurations import edit, write_files
from losses import records_in
from refusing import untouched
from searching import check_resumed, record_fed
from tiny import byte_tokenizer, documents, llama, markov_llama, naive_nll

import ropescale
from ropescale.errors import CheckpointError, DataError
from ropescale.evals import search
from ropescale.evals.results.folder import read_results
from ropescale.evals.running import progress
from ropescale.evals.searching.metrics import CHANGES
from ropescale.evals.searching.options import SearchOptions
from ropescale.evals.searching.running import SearchRun
from ropescale.evals.searching.windows import feed_text, split

TEXT = documents(12, 300)
BUDGET = {"budget_tokens": 128 * 24}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def found():
    return search(llama(), TEXT, 128, **BUDGET)


def windows_of(names, text=TEXT):
    """The first windows of documents, by their names."""
    return [text[int(name.split()[-1])][:128] for name in names]


def test_the_losses_are_those_of_plain_transformers(found):
    model, held = llama(), found.protocol["held_out"]
    assert len(held) == len(set(held)) == 2  # the first windows of two documents
    for name, schedule in ((found.start, "yarn:factor=2,truncate=true"), ("found", found.schedule), ("as-is", "as-is")):
        with ropescale.patch(model, schedule):
            losses = [naive_nll(model, window) for window in windows_of(held)]
        for length in (64, 128):
            wanted = [math.fsum(each[: length - 1]) / (length - 1) for each in losses]
            assert found.curves[name][length] == pytest.approx(wanted, abs=1e-5)
            assert found.perplexity(name)[length] == pytest.approx(math.exp(math.fsum(wanted) / 2), rel=1e-5)


MANY = documents(20, 300, vocabulary=60)


def test_documents_that_judge_were_neither_learned_from_nor_chosen_by(monkeypatch):
    fed = record_fed(monkeypatch)
    result = search(llama(), MANY, 128, **BUDGET)
    chose, judges = result.protocol["held_out"], result.protocol["judged"]
    assert len(set(judges)) == 10 and not {*judges} & {*chose}
    searched = fed[: result.spent // 128]  # how the found schedule is measured comes last
    assert sum(map(len, searched)) == result.spent and sum(map(len, fed)) == result.spent + result.beside
    assert not any(ids[:64] == window[:64] for ids in searched for window in windows_of(judges, MANY))
    assert all(row.low is not None for row in CHANGES.rows(result))


def test_with_too_few_documents_nothing_is_proved_and_the_sentence_says_so(found):
    assert found.protocol["judged"] == [] and all(row.low is row.high is None for row in CHANGES.rows(found))
    own = search(markov_llama(torch.full((60, 60), 1 / 60, dtype=torch.float64)), MANY[:15], 128, **BUDGET)
    text = own.to_markdown()
    assert "Not proved: the schedule was chosen on the documents that measure it (nats at 128: " in text
    assert "Give 16 documents of 128 tokens or more." in text and "so it is too favourable" in text
    assert "better than" not in text and "worse than" not in text


def test_truncation_is_that_of_a_naive_loop_on_the_same_tokens():
    model = llama()
    result = search(model, MANY, 128, **BUDGET)
    stride, found = result.protocol["truncation_stride"], []
    for ids in windows_of(result.protocol["judged"], MANY):
        losses = naive_nll(model, ids[:64])
        for scored in range(64, 128, stride):
            window = ids[scored + stride - 64 : scored + stride]
            losses += naive_nll(model, window)[-min(stride, 128 - scored) :]
        found.append(math.fsum(losses) / 127)
    assert stride == 16 and result.curves["truncation"] == {128: pytest.approx(found, abs=1e-5)}


def test_a_search_takes_the_same_steps_whether_the_model_as_it_is_is_measured_or_not(found):
    options = SearchOptions(**BUDGET)
    run = SearchRun(llama(), feed_text(TEXT, 128, None, "auto", options), options, compared=False)
    run.run()
    alone = run.result()
    assert (alone.checks, alone.steps, alone.spent) == (found.checks, found.steps, found.spent)
    assert alone.curves == {} and alone.beside == 0


def test_a_model_whose_tables_follow_the_length_is_measured_as_it_is_at_each():
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
    result = search(model, TEXT, 128, **BUDGET, patching={"replace_scaling": True, "original_length": 64})
    windows = [TEXT[int(name.split()[-1])] for name in result.protocol["held_out"]]
    for length in (64, 128):  # transformers' own tables at that length
        wanted = [math.fsum(naive_nll(model, each[:length])) / (length - 1) for each in windows]
        assert result.curves["as-is"][length] == pytest.approx(wanted, abs=1e-5)
    assert result.beside == (64 + 128 + 2 * 128) * 2 + (64 + 64 // result.protocol["truncation_stride"] * 64) * 2


def test_where_the_own_table_is_kept_short_text_is_no_gain():
    result = search(llama(), TEXT, 128, **BUDGET, keep_short=True)
    assert result.start == "yarn:factor=2,attention_factor=1"
    assert {(row.baseline, row.length) for row in CHANGES.rows(result)} == {
        (name, 128) for name in (result.start, "as-is", "truncation")
    }
    assert result.curves["found"][64] == pytest.approx(result.curves["as-is"][64], abs=1e-6)
    text = result.to_markdown()
    assert text.count("its own table") == 3 and "so nothing changes there" in text
    with ropescale.patch(llama(), result.start) as patch:
        assert patch.plan.tables["all"].attention_scale == 1


def test_every_token_that_is_fed_counts_and_it_is_never_worse_than_its_start(found, monkeypatch):
    fed = record_fed(monkeypatch)
    again = search(llama(), TEXT, 128, **BUDGET)
    assert sum(map(len, fed)) == again.spent + again.beside
    assert again.spent == found.spent <= BUDGET["budget_tokens"] and again.checks == found.checks
    assert again.beside == (3 * 128 + 64 + 16 * 64) * len(found.names)
    assert found.checks[0].point == found.learned.space.start
    assert found.found.loss == min(check.loss for check in found.checks)


@pytest.mark.parametrize("after", [0, 4])
def test_a_search_that_was_stopped_finds_the_same_bit_for_bit(found, after, tmp_path, monkeypatch):
    file = check_resumed(lambda out: search(llama(), TEXT, 128, out=out, **BUDGET), found, after, tmp_path, monkeypatch)
    assert ropescale.schedules.specs.parse(str(file)).build() == found.schedule


def test_from_an_answer_that_is_damaged_on_all_are_computed_again(found, tmp_path):
    out, run = tmp_path / "factors.json", tmp_path / "factors-search"
    search(llama(), TEXT, 128, out=out, **BUDGET)
    whole = records_in(run)
    with closing(sqlite3.connect(run / "resume" / "0.sqlite")) as store:
        store.execute("UPDATE records SET content = replace(content, '1', '2') WHERE number = 2")
        store.commit()
    assert search(llama(), TEXT, 128, out=out, **BUDGET).checks == found.checks
    assert records_in(run) == whole


def test_the_file_says_where_the_numbers_come_from_and_is_not_replaced_once_it_is_edited(found, tmp_path):
    file = found.save(tmp_path / "factors.json")
    origin = json.loads(file.read_text())["provenance"]
    assert origin["tokens_spent"] == found.spent and origin["protocol"]["method"] == "gradient"
    assert set(origin) >= {"model", "data", "versions", "held_out_perplexity"}
    assert origin["held_out_perplexity"]["before"].keys() == {"64", "128"}
    found.save(file)  # as it was written
    edit(tmp_path, file.name, factor=3.0)
    with untouched(tmp_path, "was changed since a search wrote it; choose another name"):
        found.save(file)


def test_another_search_in_the_same_place_replaces_its_result_and_one_of_another_text_needs_force(tmp_path):
    out = tmp_path / "factors.json"
    search(llama(), TEXT, 128, out=out, **BUDGET)
    search(llama(), TEXT, 128, out=out, **{**BUDGET, "seed": 7})
    with pytest.raises(CheckpointError, match="holds results of another model; choose another folder, or"):
        search(llama(1), TEXT, 128, out=out, **BUDGET)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget_tokens": 300}, "no room for a step at 128 tokens; give at least "),
        ({"numbers": 3}, "numbers must be 4"),
        ({"engine": "vlm"}, "engine 'vlm' is not known; did you mean 'vllm'?"),
        ({"out": "factors"}, "is not the name of a schedule's file"),
        ({"documents": documents(1, 140)}, "needs two"),
        ({"target": 64}, "needs no schedule"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(options, said):
    given = {"documents": TEXT, "target": 128, **BUDGET, **options}
    with pytest.raises(DataError, match=said):
        search(llama(), given.pop("documents"), given.pop("target"), **given)


@pytest.mark.parametrize("text", [TEXT, documents(2, 140), documents(3, 900), documents(1, 400), documents(1, 5000)])
def test_the_least_budget_that_is_named_is_accepted_and_one_token_less_is_not(text):
    with pytest.raises(DataError) as refusal:
        feed_text(text, 128, None, "auto", SearchOptions(budget_tokens=128 * 2))
    least = int(re.search(r"give at least (\d+)", str(refusal.value))[1])
    feed_text(text, 128, None, "auto", SearchOptions(budget_tokens=least))
    with pytest.raises(DataError, match=f"give at least {least}$"):
        feed_text(text, 128, None, "auto", SearchOptions(budget_tokens=least - 1))


def test_logits_that_are_not_finite_stop_it():
    model = llama()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(CheckpointError, match=r"weights hold NaN or infinity, in lm_head.weight"):
        search(model, TEXT, 128, **BUDGET)


def test_texts_are_encoded_and_begin_with_bos():
    text = ["abcdefgh " * 40, "ijkl mnop " * 40, "qrst " * 80]
    result = search(llama(vocab_size=300), text, 128, tokenizer=byte_tokenizer(), **BUDGET)
    assert result.protocol["bos"] == "auto" and result.spent


def test_whole_documents_are_held_out_and_of_a_single_one_the_end():
    counts = [3, 1, 2, 5, 4, 1, 1, 3]
    parts = split(counts, 3, seed=0)
    owners = [document for document, count in enumerate(counts) for _ in range(count)]
    held = {owners[window] for window in parts.held_out}
    assert len(held) == parts.documents == 2
    assert not held & {owners[window] for window in parts.learned}
    assert split(counts, 3, seed=0) == parts != split(counts, 3, seed=1)
    parts = split([9], 4, seed=0)
    assert parts.held_out == (7, 8) and sorted(parts.learned) == list(range(7)) and parts.documents == 0


def test_tokens_within_the_trained_length_count_twice():
    options = SearchOptions(**BUDGET)
    weights = feed_text(TEXT, 128, None, "auto", options).learned(64)[0][0].weights[0]
    assert (weights / weights[-1]).tolist() == [2.0] * 63 + [1.0] * 64
    assert float(weights.sum()) == pytest.approx(1.0)


def test_folders_and_files_of_others_are_refused(found, tmp_path):
    write_files(tmp_path, {"factors-search/resume/mine.txt": "", "mine.json": '{"name": "yarn", "factor": 8}'})
    with pytest.raises(CheckpointError, match="was not written by an evaluation"):
        search(llama(), TEXT, 128, out=tmp_path / "factors.json", **BUDGET)
    for write in (found.save, lambda path: search(llama(), TEXT, 128, out=path, **BUDGET)):
        with untouched(tmp_path, "was not written by a search"):
            write(tmp_path / "mine.json")


def test_the_folder_of_a_run_holds_what_it_shows(found, tmp_path):
    search(llama(), TEXT, 128, out=tmp_path / "factors.json", **BUDGET)
    folder = tmp_path / "factors-search"
    assert {path.name for path in folder.iterdir()} >= {"results.json", "results.csv", "history.csv", "REPORT.md"}
    stored = read_results(folder)
    assert stored["kind"] == "search"
    assert [row["tokens"] for row in stored["history"]] == sorted(row["tokens"] for row in stored["history"])
    divisors = [row["found"] for row in stored["divisors"]]
    own = ropescale.frequencies(llama().config.to_dict(), "base")["all"].inv_freq
    live = ropescale.frequencies(llama().config.to_dict(), found.schedule)["all"].inv_freq
    assert divisors == pytest.approx([b / f for b, f in zip(own, live, strict=True)], rel=1e-12)
    deltas = {(row["baseline"], row["length"]): row["delta_nll"] for row in stored["paired"]}
    ppl = {(row["schedule"], row["length"]): row["ppl"] for row in stored["rows"]}
    wanted = {key: math.log(ppl["found", key[1]] / value) for key, value in ppl.items() if key[0] != "found"}
    assert {n for _, n in ppl} == {64, 128} and deltas == pytest.approx(wanted, abs=1e-12)
    search(llama(), TEXT, 128, out=tmp_path / "factors.json", **BUDGET)  # and it may be written again


def test_the_progress_says_the_loss_of_the_step_and_on_held_out_text(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    told = search(llama(), TEXT, 128, progress=True, **BUDGET)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("search: gradient: ")]
    first, best = told.checks[0].loss, min(check.loss for check in told.checks)
    assert f"loss {first:.4f} held out" in lines[0]
    assert any(
        f"loss {told.steps[-1].loss:.4f} (held out {first:.4f} at first, {best:.4f} at best)" in each for each in lines
    )
