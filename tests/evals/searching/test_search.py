"""A whole search: what it finds, what it keeps, and how it goes on."""

import json
import math
import re
import shutil

import pytest
import torch
from configurations import edit, write_files
from losses import records_in
from refusing import untouched
from searching import check_resumed, record_fed
from tiny import documents, llama, markov_llama, naive_nll, naive_truncation

import ropescale
from ropescale.errors import CheckpointError, DataError, RunError
from ropescale.evals import progress, search
from ropescale.evals.data.sources import texts_of
from ropescale.evals.results.folder import read_results
from ropescale.evals.scoring import memory
from ropescale.evals.searching.options import SearchOptions
from ropescale.evals.searching.windows import Budget, feed_text, held_out_for, split
from ropescale.evals.statistics.intervals import average, familywise
from ropescale.evals.store import Store

TEXT = documents(12, 300)
MANY = documents(20, 300, vocabulary=60)
BUDGET = {"budget_tokens": 128 * 24}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("found")


@pytest.fixture(scope="module")
def found(folder):
    return search(llama(), TEXT, 128, out=folder / "factors.json", **BUDGET)


def windows_of(names, text=TEXT):
    """The first windows of documents, by their names."""
    return [text[int(name.split()[-1])][:128] for name in names]


def measured(result):
    """The losses of a search's table."""
    return {(result.named(row.schedule), row.length): row.nll for row in result.comparison.rows}


def test_the_losses_are_those_of_plain_transformers(found):
    model, held, losses = llama(), found.protocol["held_out"], measured(found)
    assert len(held) == len(set(held)) == 2  # the first windows of two documents
    schedules = {found.search.start: "yarn:factor=2,truncate=true", "found": found.schedule, "as-is": "as-is"}
    assert {name for name, _ in losses} == schedules.keys()
    for name, schedule in schedules.items():
        with ropescale.patch(model, schedule):
            nll = [naive_nll(model, window) for window in windows_of(held)]
        for length in (64, 128):
            wanted = math.fsum(math.fsum(each[: length - 1]) for each in nll) / (2 * (length - 1))
            assert losses[name, length] == pytest.approx(wanted, abs=1e-5)


def test_documents_that_judge_were_neither_learned_from_nor_chosen_by(monkeypatch):
    fed, model = record_fed(monkeypatch), llama()
    result = search(model, MANY, 128, **BUDGET)
    chose, judges = result.protocol["held_out"], windows_of(result.protocol["judged"], MANY)
    assert len(judges) == 10 and not {*result.protocol["judged"]} & {*chose}
    assert [list(document.ids) for document in result.comparison.documents] == judges
    assert sum(map(len, fed)) == result.search.spent <= BUDGET["budget_tokens"]
    assert not any(ids[:64] == window[:64] for ids in fed for window in judges)
    assert result.search.found.loss == min(check.loss for check in result.search.checks)

    nll = {}
    for name in ("found", result.search.start, "as-is"):
        with ropescale.patch(model, result.schedule if name == "found" else name):
            nll[name] = [math.fsum(naive_nll(model, ids)) for ids in judges]
    stride = result.protocol["truncation_stride"]
    whole = [naive_nll(model, ids[:64]) + naive_truncation(model, ids, 128, stride) for ids in judges]
    nll["truncation"] = [math.fsum(each) for each in whole]
    changes = result.changes()
    assert changes.keys() == nll.keys() - {"found"}
    for name, change in changes.items():
        differences = [ours - theirs for ours, theirs in zip(nll["found"], nll[name], strict=True)]
        wanted = average(differences, [127.0] * 10, familywise(3))
        bounds = change.mean, change.low, change.high
        assert bounds == pytest.approx((wanted.mean, wanted.low, wanted.high), abs=2e-5), name


def test_with_too_few_documents_nothing_is_proved_and_the_sentence_says_so(found):
    assert found.protocol["judged"] == [] and all(each.low is each.high is None for each in found.changes().values())
    own = search(markov_llama(torch.full((60, 60), 1 / 60, dtype=torch.float64)), MANY[:15], 128, **BUDGET)
    text = own.to_markdown()
    assert "Not proved at 128 tokens, because the documents that measure the schedule also chose it: " in text
    assert "Give 16 documents of 128 tokens or more." in text and "so the table is too favourable" in text
    assert "better than" not in text and "worse than" not in text


def test_a_model_whose_tables_follow_the_length_is_measured_as_it_is_at_each():
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
    result = search(model, TEXT, 128, **BUDGET, replace_scaling=True, original_length=64)
    for length in (64, 128):  # transformers' own tables at that length
        nll = [naive_nll(model, window[:length]) for window in windows_of(result.protocol["held_out"])]
        wanted = math.fsum(map(math.fsum, nll)) / (2 * (length - 1))
        assert measured(result)["as-is", length] == pytest.approx(wanted, abs=1e-5)
    assert "truncation" in result.changes()


def test_a_search_that_was_stopped_finds_the_same_bit_for_bit(found, tmp_path, monkeypatch):
    file = check_resumed(lambda out: search(llama(), TEXT, 128, out=out, **BUDGET), found, 4, tmp_path, monkeypatch)
    assert ropescale.schedules.specs.parse(str(file)).build() == found.schedule


def test_a_search_on_a_patched_model_is_that_of_the_model_before_its_patch(found, folder, tmp_path, monkeypatch):
    out = shutil.copytree(folder, tmp_path / "again") / "factors.json"
    fed, model = record_fed(monkeypatch), llama()
    with ropescale.patch(model, "linear:factor=3"):
        again = search(model, TEXT, 128, out=out, **BUDGET)
    assert again.comparison.rows == found.comparison.rows and not fed  # every step was kept
    assert again.model["config_sha256"] == found.model["config_sha256"]


def test_weights_that_are_not_finite_stop_it_and_nothing_is_stored(tmp_path):
    model = llama()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(RunError, match=r"weights contain NaN or infinity, in lm_head.weight"):
        search(model, TEXT, 128, out=tmp_path / "factors.json", **BUDGET)
    assert not (tmp_path / "factors.json").exists() and not records_in(tmp_path / "factors-search")


def test_from_an_answer_that_is_damaged_on_all_are_computed_again(found, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    out, run = tmp_path / "factors.json", tmp_path / "factors-search"
    whole, stored = records_in(run), read_results(run)
    assert stored["kind"] == "search"
    assert [row["tokens"] for row in stored["history"]] == sorted(row["tokens"] for row in stored["history"])
    file = run / "resume" / "0.records"
    content = file.read_bytes()
    at = [each.start() for each in re.finditer(b"ropescal", content)][3] - 3  # in the third record
    file.write_bytes(content[:at] + b"2" + content[at + 1 :])
    assert search(llama(), TEXT, 128, out=out, **BUDGET).search.checks == found.search.checks
    assert records_in(run) == whole
    for step in (b"hello", b"[" * 100_000, b"[[NaN], [0.1]]", b'[["x"], [0.1]]', b"[[2.8], [0.1]]", b"{}"):
        Store(run / "resume").put(content[8:72].decode(), 3, step)  # as if a run had written it
        assert search(llama(), TEXT, 128, out=out, **BUDGET).search.checks == found.search.checks
    search(llama(), TEXT, 128, out=out, **BUDGET, seed=7)  # another search in the same place replaces its result
    with pytest.raises(CheckpointError, match="holds results of another model; choose another folder, or"):
        search(llama(1), TEXT, 128, out=out, **BUDGET)


def test_the_file_says_where_the_numbers_come_from_and_is_not_replaced_once_it_is_edited(found, tmp_path):
    file = found.save(tmp_path / "factors.json")
    origin = json.loads(file.read_text())["provenance"]
    assert origin["tokens_spent"] == found.search.spent and origin["protocol"]["method"] == "gradient"
    assert set(origin) >= {"model", "data", "versions"}
    for name in ("as-is", "found", found.search.start):
        ppl = origin["held_out_perplexity"][name]["128"]
        assert math.log(ppl) == pytest.approx(measured(found)[name, 128])
    found.save(file)  # as it was written
    edit(tmp_path, file.name, factor=3.0)
    with untouched(tmp_path, "was changed since a search wrote it; choose another name"):
        found.save(file)


WRONG = [({"documents": documents(1, 140)}, "needs two"), ({"target_length": 64}, "needs no schedule")]


@pytest.mark.parametrize(("options", "said"), [*WRONG, ({"out": "factors"}, "is not the name of a schedule's file")])
def test_what_cannot_be_is_refused_before_anything_runs(options, said):
    with pytest.raises(DataError, match=said):
        search(llama(), **{"documents": TEXT, "target_length": 128, **BUDGET, **options})


def data_of(text, **options):
    return feed_text(texts_of(text)[0], 128, None, "auto", SearchOptions(**options))


@pytest.mark.parametrize("text", [TEXT, documents(2, 140), documents(1, 400)])
def test_the_least_budget_that_is_named_is_accepted_and_one_token_less_is_not(text):
    with pytest.raises(DataError) as refusal:
        data_of(text, budget_tokens=128 * 2)
    windows, tokens = map(int, re.search(r"at least (\d+) windows \((\d+) tokens\)", str(refusal.value)).groups())
    assert tokens == windows * 128
    for name, value in {"budget_tokens": tokens, "budget_windows": windows}.items():
        data_of(text, **{name: value})
        with pytest.raises(DataError, match=f"at least {windows} windows"):
            data_of(text, **{name: value - 1})


@pytest.mark.parametrize(("length", "steps"), [(2048, 88), (32_768, 88), (1_048_576, 88)])
def test_the_default_budget_is_a_number_of_windows_at_any_length(length, steps):
    budget = Budget(SearchOptions().feeds(length), length, held_out_for(240))
    assert (budget.windows, budget.steps) == (240, steps)
    assert SearchOptions(budget_tokens=512_000).feeds(length) == 512_000 // length
    with pytest.raises(DataError, match="in windows and in tokens; drop one"):
        SearchOptions(budget_tokens=1000, budget_windows=20)


def test_few_steps_are_said_with_what_is_needed_and_the_memory_of_a_step(capsys, monkeypatch):
    cards = {"ropescale.evals.searching.search_run.devices_of": lambda model: {"cuda:0", "cuda:1"}}
    for name, several in {**cards, "transformers.PreTrainedModel.tp_size": 2}.items():
        with monkeypatch.context() as patched:
            patched.setattr(memory, "total_memory", lambda device: 477_696)
            patched.setattr(name, several)
            search(llama(), TEXT, 128, budget_windows=24, progress=True)
    told = " ".join(capsys.readouterr().err.split())
    assert "at most 6 steps and 3,072 tokens" in told and "a step takes about" in told
    least = int(re.search(r"the budget has 6 steps, which are few; 20 need (\d+) windows of 128", told)[1])
    assert Budget(least, 128, held_out_for(least)).steps == 20 > Budget(least - 1, 128, held_out_for(least - 1)).steps
    refusals = {477_696: r"of 128 positions needs about 602 kB, .* 400 kB .* at most 85 ", 0: r"leave 0 B .* 0 pos"}
    for total, refusal in refusals.items():
        monkeypatch.setattr(memory, "total_memory", lambda device, total=total: total)
        with pytest.raises(RunError, match=refusal):
            search(llama(), TEXT, 128, **BUDGET)


def test_whole_documents_are_held_out_and_of_a_single_one_the_end():
    counts = [3, 1, 2, 5, 4, 1, 1, 3]
    parts = split(counts, 3, seed=0)
    owners = [document for document, count in enumerate(counts) for _ in range(count)]
    held = {owners[window] for window in parts.held_out}
    assert len(held) == 2 and not held & {owners[window] for window in parts.learned}
    assert split(counts, 3, seed=0) == parts != split(counts, 3, seed=1)
    parts = split([9], 4, seed=0)
    assert parts.held_out == (7, 8) and sorted(parts.learned) == list(range(7))


def test_tokens_within_the_trained_length_count_twice():
    weights = data_of(TEXT, **BUDGET).weighted([0], 64)[0].weights
    assert (weights / weights[-1]).tolist() == [2.0] * 63 + [1.0] * 64 and float(weights.sum()) == pytest.approx(1.0)


def test_folders_and_files_of_others_are_refused(found, tmp_path):
    write_files(tmp_path, {"factors-search/resume/mine.txt": "", "mine.json": '{"name": "yarn", "factor": 8}'})
    with pytest.raises(CheckpointError, match="was not written by an evaluation"):
        search(llama(), TEXT, 128, out=tmp_path / "factors.json", **BUDGET)
    with untouched(tmp_path, "was not written by a search"):
        search(llama(), TEXT, 128, out=tmp_path / "mine.json", **BUDGET)


def test_the_progress_says_the_first_and_the_best_loss_on_held_out_text(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    told = search(llama(), TEXT, 128, progress=True, **BUDGET).search
    printed = capsys.readouterr().err.splitlines()
    lines = [line for line in printed if line.startswith("search: ") and "%" in line]
    before = " ".join(printed[: printed.index(lines[0])])
    assert "a verdict needs 16 documents of 128 tokens, and there are 12;" in before
    first, best = told.checks[0].loss, min(check.loss for check in told.checks)
    assert f"held-out loss {first:.4f}, best {first:.4f}]" in lines[0] and f", best {best:.4f}]" in lines[-1]
