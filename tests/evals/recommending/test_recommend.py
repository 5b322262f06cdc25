"""A whole recommendation on a tiny model, from Python and from the command line."""

import json
import re
import shlex
from functools import partialmethod

import numpy as np
import pytest
from configurations import write_files
from losses import reseal
from tiny import documents, llama, naive_nll, naive_truncation

import ropescale
from ropescale.errors import CheckpointError, DataError
from ropescale.evals import Recommendation, recommend
from ropescale.evals.facts import AS_IS, TRUNCATION
from ropescale.evals.recommending import candidates, wording
from ropescale.evals.scoring.executor import Executor
from ropescale.evals.scoring.memory import MemoryEstimate
from ropescale.evals.searching.gradient import Steps
from ropescale.evals.searching.learner import Learner

TARGET = 128


@pytest.fixture(scope="module", autouse=True)
def few_candidates():
    """A grid of a third of the schedules, which is measured as the whole one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "FACTORS", (1.0, 2.0))
        patched.setattr(candidates, "LARGER", (1.0,))
        patched.setattr(candidates, "STEEPNESS", (1.0, 2.0))
        patched.setattr(candidates, "FIELDS", {"yarn": ("", ",beta_fast=16"), "resonance": (",over=yarn",)})
        yield


@pytest.fixture
def texts(tmp_path):
    """Twelve documents of 140 random letters."""
    letters = np.random.default_rng(1).integers(97, 123, (12, 140)).astype(np.uint8)
    return write_files(tmp_path / "texts", {f"{number}.txt": row.tobytes() for number, row in enumerate(letters)})


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def found(model, folder):
    return recommend(model, documents(8, TARGET + 4), TARGET, batch_tokens=256, out=folder)


def naive(model, ids, schedule, length):
    """The mean NLL of the first tokens by stock transformers, in fp64 from its logits."""
    with ropescale.patch(model, schedule):
        return float(np.mean(naive_nll(model, ids[:length])))


# --- a run ---


def test_truncation_is_that_of_a_naive_loop(found, model):
    (row,) = [each for each in found.finalists if each.schedule == "truncation"]
    held_out, stride = documents(8, TARGET + 4)[::2], 8  # at 4 it would cost more than the finalists
    beyond = np.array([naive_truncation(model, ids, TARGET, stride) for ids in held_out])
    assert beyond.shape == (4, TARGET - 64)
    whole = [63 * naive(model, ids, AS_IS, 64) + each.sum() for ids, each in zip(held_out, beyond, strict=True)]
    assert row.nll == pytest.approx(np.sum(whole) / (4 * (TARGET - 1)), abs=2e-6)
    assert row.short_ppl == pytest.approx(np.exp(np.mean([naive(model, ids, AS_IS, 64) for ids in held_out])), rel=1e-6)
    said = wording.against_truncation(found.evidence)
    assert "Whether truncating the input to its last 64 tokens is better is undecided: " in said


def test_the_figures_are_those_of_a_naive_loop(found, model):
    held_out = documents(8, TARGET + 4)[::2]
    for row in found.finalists:
        if row.schedule == "truncation":
            continue
        own = [naive(model, ids, row.schedule, TARGET) for ids in held_out]
        assert row.nll == pytest.approx(np.mean(own), abs=2e-6)
        if "dynamic" not in row.schedule:
            short = [naive(model, ids, row.schedule, 64) for ids in held_out]
            assert row.short_ppl == pytest.approx(np.exp(np.mean(short)), rel=1e-5)
            base = [0.9 * a + 0.1 * b for a, b in zip(own, short, strict=True)]
            chosen = [0.9 * naive(model, ids, row.baseline, TARGET) + 0.1 * naive(model, ids, row.baseline, 64)
                      for ids in held_out]  # fmt: skip
            if "dynamic" not in row.baseline:
                assert row.delta == pytest.approx(np.mean(base) - np.mean(chosen), abs=4e-6)


def test_the_comparison_of_the_finalists_is_a_result_of_its_own(found):
    compared = found.comparison
    rows = {row.schedule: row.ppl for row in compared.rows if row.length == TARGET}
    judged = {row.schedule: row.ppl for row in found.finalists if row.schedule != TRUNCATION}
    assert rows == pytest.approx(judged, rel=1e-6) and compared.data["documents"] == 4
    assert "Measured on 4 documents" in compared.summary()
    assert set(compared.tables) >= {each.table_sha256 for each in compared.passes}
    assert compared.to_markdown() and compared.to_dict()["rows"]


def test_the_race_spends_what_it_says_and_nobody_drops_out_unmeasured(found):
    protocol = found.protocol
    assert protocol["tokens_fed"] <= 0.5 * protocol["grid_tokens"]
    assert all(row.windows >= 1 for row in found.rows)
    assert len({row.schedule for row in found.rows}) == len(found.rows)
    finalists = [row for row in found.rows if row.finalist]
    assert {AS_IS, "yarn:factor=2"} <= {row.schedule for row in finalists}
    assert {row.windows for row in finalists} == {8}
    assert found.rows == sorted(found.rows, key=lambda row: row.delta)


def test_a_target_within_the_trained_length_needs_nothing(model, capsys):
    found = recommend(model, documents(4, 64), 48, progress=True)
    needless, first = "Nothing is needed: the model was trained at 64 tokens, and 48 is within that.", "candidates: 1;"
    said = f"{needless} Only as-is and your schedules are measured.\n{first}"
    assert capsys.readouterr().err.startswith(said)
    assert found.schedule == AS_IS and not found.command and found.answer.decided
    assert found.answer.answer.endswith(f". {needless}")


FEW = [(1, False, 1), (9, False, 5), (10, False, 0), (15, False, 0), (15, True, 9), (16, True, 0)]


@pytest.mark.parametrize(("count", "search", "few"), FEW)
def test_what_a_text_cannot_decide_is_said_before_and_after_alike(model, capsys, monkeypatch, count, search, few):
    said, score = [], Executor.score

    def first(self, batch):
        said.append(capsys.readouterr().err)
        return score(self, batch)

    monkeypatch.setattr(Executor, "score", first)
    monkeypatch.setattr(wording, "worse_than_a_guess", lambda *_: "")  # which random weights are
    options = {"search": True, "search_tokens": "2k"} if search else {}
    if search and few:
        monkeypatch.setattr(Learner, "step_bytes", lambda *_: 10**18)
    found = recommend(model, documents(count, TARGET + 4), TARGET, progress=True, **options)
    needs = "a verdict needs 10 documents{} to test on, and there " + f"{'is' if few == 1 else 'are'} {few}"
    before = f"warning: this text cannot decide: {needs.format(' of 128 tokens')}"
    kept = ", besides 6 for the search" if search else ""
    assert (f"{before}{kept}; the schedule with the lowest loss is named all the same\n" in said[0]) == bool(few)
    assert found.answer.answer.startswith(f"Undecided, because {needs.format('')}: ") == bool(few)
    assert ("a verdict needs" in found.answer.answer) == bool(few) and not (few and found.answer.decided)
    assert ("intervals hold together" in found.rests_on()) == (not few), "so few have no interval"
    most = re.search(r"at most ([\d,]+) tokens to feed", said[0])[1]
    assert found.protocol["tokens_fed"] <= int(most.replace(",", "")), "nothing is measured twice"
    assert ("warning: the search is skipped: a step over a window of" in "".join(said)) == bool(search and few)


def test_a_searched_schedule_is_found_on_the_races_text_and_judged_on_the_other(model, capsys, tmp_path, monkeypatch):
    """And a run that is stopped in the race, in the search and among the finalists continues to the same bytes, with
    the batches of its beginning, however much memory is left."""
    estimates = iter([8192, 8192, 256, 512, 128, 64])
    monkeypatch.setattr(MemoryEstimate, "batch_tokens", lambda *_: next(estimates))
    options = {"search": True, "search_tokens": 5_000, "truncation": False, "progress": True}
    found = recommend(model, documents(12, TARGET + 4), TARGET, out=tmp_path / "whole", **options)
    searched = f"{5_000 // TARGET * TARGET:,}"
    err = capsys.readouterr().err
    said = re.search(rf"at most ([\d,]+) tokens to feed .*, {searched} of them in the search", err)
    assert said and found.protocol["tokens_fed"] <= int(said[1].replace(",", "")) and "tokens/s\nround 2: " in err
    searched = [row for row in found.rows if "truncate=false" in row.schedule]
    assert [(row.finalist, row.windows, row.rounds) for row in searched] == [(True, 6, 0)]
    assert searched[0].schedule in {row.schedule for row in found.finalists}
    assert found.protocol["tokens_fed"] > 5_000 / 2
    assert "truncation" not in {row.schedule for row in found.finalists}

    take, score, done = Steps.take, Executor.score, []

    def stops(self, *given, act, at):
        done.append(act)
        if done.count(act) in at:
            raise KeyboardInterrupt
        return act(self, *given)

    monkeypatch.setattr(Steps, "take", partialmethod(stops, act=take, at=[6]))
    monkeypatch.setattr(Executor, "score", partialmethod(stops, act=score, at=[3, 29]))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            recommend(model, documents(12, TARGET + 4), TARGET, out=tmp_path / "parts", **options)
    recommend(model, documents(12, TARGET + 4), TARGET, out=tmp_path / "parts", **options)
    for name in ("results.json", "results.csv", "REPORT.md"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    monkeypatch.setattr(Executor, "score", lambda *_: pytest.fail("measured again"))
    again = recommend(model, documents(12, TARGET + 4), TARGET, out=tmp_path / "whole", **options)
    assert again.to_dict() == found.to_dict()


def test_a_folder_loads_again_and_is_refused_to_other_runs(found, model, tmp_path, pictures):
    folder = found.save(tmp_path / "run")
    assert (folder / "candidates.png").stat().st_size > 10_000
    again = Recommendation.load(folder)
    assert again.to_dict() == found.to_dict()
    assert again.to_markdown() == found.to_markdown()
    with pytest.raises(CheckpointError, match="holds a recommendation run"):
        ropescale.evals.perplexity(model, documents(2, 64), 64, out=folder)
    reseal(folder, lambda results: results["answer"][0].pop("decided"))
    with pytest.raises(DataError, match=r"results.json lacks figures, or was written by another version"):
        Recommendation.load(folder)


# --- the command ---


def test_the_command_prints_a_command_that_runs(checkpoint, texts, tmp_path, ran, monkeypatch):
    # Random weights are worse than a guess, and get no command.
    monkeypatch.setattr(wording, "worse_than_a_guess", lambda *_: "")
    out = tmp_path / "run"
    words = ["--target-length", 128, "--data", texts, "--max-docs", 7, "-o", out, "--json"]
    said, _ = ran("recommend", checkpoint, *words)
    found = json.loads(said)
    assert found["kind"] == "recommendation" and found["answer"][0]["sentences"]
    ran(*shlex.split(found["answer"][0]["command"])[1:], "--dry-run")
    page = tmp_path / "page.html"
    ran("report", out, "-o", page)
    assert found["sentences"][0][:40] in page.read_text()


def test_a_mistake_is_one_line(checkpoint, texts, refused):
    words = ["recommend", checkpoint, "--target-length", 128, "--data", texts]
    assert "tolerance is 0" in refused(*words, "--tolerance", "0")
