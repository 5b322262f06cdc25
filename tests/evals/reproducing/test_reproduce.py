"""``ropescale reproduce``: the arms of a tiny model, killed and continued, and what is written of them."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import forking
import numpy as np
import pytest
import reproducing
import tiny
import torch
import training
from configurations import write_files
from crashing import raising
from refusing import untouched
from transformers import AutoTokenizer

from ropescale.errors import CheckpointError, DataError
from ropescale.evals.passkey.filler import Generated
from ropescale.evals.passkey.tasks import prompts
from ropescale.evals.reproducing import running
from ropescale.evals.reproducing.comparisons import Point, Records
from ropescale.evals.reproducing.experiments.plan import arms
from ropescale.evals.reproducing.experiments.retrieval_arms import read_answers
from ropescale.evals.reproducing.experiments.room import Room
from ropescale.evals.reproducing.experiments.setting import Setting
from ropescale.evals.reproducing.results import Reproduction
from ropescale.evals.reproducing.rows import NOT_RUN
from ropescale.evals.reproducing.running import Reproducing
from ropescale.evals.results.result import Result
from ropescale.evals.statistics.intervals import ratio

pytestmark = pytest.mark.usefixtures("no_plots", "one_thread")


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return reproducing.setting(tmp_path_factory.mktemp("setting"))


def reproduce(out: Path, setting: Setting, *only: str) -> Reproduction:
    found = Reproducing(out, only, setting).run()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def done(setting, tmp_path_factory) -> tuple[Path, Reproduction]:
    """The arms of YaRN, without training and with it."""
    os.environ["MPLBACKEND"] = "Agg"
    out = tmp_path_factory.mktemp("done") / "out"
    return out, reproduce(out, setting, "untrained", "yarn", "control", "yarn-seed-0")


def naive(folder: Path, text: str, start: int, stop: int, window: int | None = None, stride: int = 1) -> list[float]:
    """The losses of the tokens at positions [start, stop) in stock transformers: after BOS and all before them, or in
    windows without BOS."""
    ids, model = tiny.byte_tokenizer()(text).input_ids, training.loaded(folder).eval()
    if window is None:
        return tiny.naive_nll(model, [256, *ids[: stop - 1]])[start - 1 :]
    found = []
    for first in range(window - 1, stop - 1, stride):  # the token at position p is ids[p - 1]
        part = ids[first + stride - window : first + stride]
        found += tiny.naive_nll(model, part)[-stride:]
    return found[start - window :][: stop - start]


def test_figures_are_those_of_stock_transformers_on_the_saved_weights(done, setting):
    out, found = done
    folder, held = out / "arms" / "yarn", [text for _, text in setting.measured_on()]
    losses = [naive(folder, text, 1, 128) for text in held]
    row = next(row for row in found.rows if (row.arm, row.step, row.length) == ("yarn", 4, 128))
    assert math.log(row.ppl) == pytest.approx(np.mean(losses), abs=1e-5) == row.nll
    assert row.tail_nll == pytest.approx(np.mean([each[63:] for each in losses]), abs=1e-5)
    assert row.ppl < next(r.ppl for r in found.rows if (r.arm, r.step, r.length) == ("yarn", 0, 128))


def test_far_repeats_are_those_of_the_stored_runs(done):
    out, found = done
    run = Result.load(out / "arms" / "yarn-training" / "measured" / "step-000004")
    wanted = next(row for row in run.repeats if row.length == 128)
    row = next(row for row in found.rows if (row.arm, row.step, row.length) == ("yarn", 4, 128))
    assert (row.far_ppl, row.other_ppl) == (wanted.far_ppl, wanted.other_ppl) and row.other_ppl is not None


def test_the_comparison_with_truncation_is_of_the_same_tokens(done, setting):
    out, found = done
    held = [text for _, text in setting.measured_on()]
    ours = [sum(naive(out / "arms" / "yarn-seed-0", text, 64, 128)) for text in held]
    cut = [sum(naive(setting.folder, text, 64, 128, 64, setting.stride)) for text in held]
    wanted = ratio([a - b for a, b in zip(ours, cut, strict=True)], [64] * 4)
    claim = next(row for row in found.claims if row.claim == "truncation")
    assert claim.estimates == [[pytest.approx(each, abs=1e-4) for each in (wanted.mean, wanted.low, wanted.high, 0)]]
    assert claim.verdict == NOT_RUN  # the found schedule's arm is not there
    truncation = next(row for row in found.rows if row.schedule == "truncation")
    assert truncation.tail_nll == pytest.approx(sum(cut) / 256, abs=1e-5)


def test_the_control_keeps_the_models_own_table(done, setting):
    out, found = done
    start = next(row for row in found.rows if (row.arm, row.step, row.length) == ("control", 0, 64))
    original = next(row for row in found.rows if (row.arm, row.schedule, row.length) == ("untrained", "as-is", 64))
    assert start.nll == original.nll
    one, other = training.loaded(out / "arms" / "control"), training.loaded(setting.folder)
    assert torch.equal(one.model.rotary_emb.inv_freq, other.model.rotary_emb.inv_freq)


def test_what_is_written_can_be_loaded_and_shown(done, tmp_path, ran):
    out, found = done
    assert Reproduction.load(out).claims == found.claims and Reproduction.load(out).rows == found.rows
    report = (out / "REPORT.md").read_text()
    assert (
        "Without training, NTK-aware scaling and YaRN beat linear interpolation" in report and "claims hold" in report
    )
    assert (out / "claims.csv").read_text().count("\n") == len(found.claims) + 1
    assert str(out) not in (out / "results.json").read_text()
    ran("report", out, out / "measured" / "untrained", "-o", tmp_path / "page.html")
    assert "claims hold" in (tmp_path / "page.html").read_text()


def test_finished_arms_are_not_run_again(done, setting, monkeypatch):
    out, found = done
    monkeypatch.setattr("ropescale.evals.reproducing.experiments.arms.Adaptation.run", lambda *_: 1 / 0)
    again = reproduce(out, setting, "untrained", "yarn")
    assert again.rows == found.rows and again.claims == found.claims


@pytest.mark.parametrize("step", [1, 3])
def test_a_training_that_was_stopped_inside_goes_on_to_the_same_figures(done, setting, tmp_path, monkeypatch, step):
    whole, found = done
    with training.killed_at(step, monkeypatch):
        reproduce(tmp_path / "out", setting, "yarn")
    made = reproduce(tmp_path / "out", setting, "yarn")
    assert training.same(tmp_path / "out" / "arms" / "yarn", whole / "arms" / "yarn")
    assert made.rows == [row for row in found.rows if row.arm == "yarn"]


def stored(out: Path) -> int:
    """Counts the bytes of a folder, whatever happens to it meanwhile."""
    found = 0
    for folder, _, files in os.walk(out):
        for name in files:
            with suppress(OSError):
                found += os.stat(os.path.join(folder, name)).st_size
    return found


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_files(setting, tmp_path, monkeypatch):
    """A model, a training, a measurement and questions, each killed by SIGKILL wherever it is."""
    monkeypatch.setattr("ropescale.evals.reference.training._KEPT_EVERY", 1)
    arms, moments = ("native", "yarn", "retrieval-yarn"), random.Random(7)
    found = reproduce(tmp_path / "whole", setting, *arms)
    out, killed = tmp_path / "out", 0
    for _ in range(8):
        least = stored(out) + moments.uniform(0, 0.4) * stored(tmp_path / "whole")
        killed += forking.struck(partial(reproduce, out, setting, *arms), partial(stored, out), least)
    again = reproduce(out, setting, *arms)
    assert killed >= 3 and (again.rows, again.answers, again.claims) == (found.rows, found.answers, found.claims)
    for name in ("models/native-model", "arms/yarn", "arms/taught-yarn"):
        assert training.same(out / name, tmp_path / "whole" / name)
    trees = [sorted(str(p.relative_to(f)) for p in f.rglob("*")) for f in (out, tmp_path / "whole")]
    assert [n for n in trees[0] if "resume" not in n] == [n for n in trees[1] if "resume" not in n]


def test_a_model_that_is_made_goes_on_to_the_same_weights(setting, tmp_path, monkeypatch):
    from ropescale.evals.reference import training as making

    monkeypatch.setattr(making, "_KEPT_EVERY", 1)
    found = reproduce(tmp_path / "whole", setting, "native")
    with monkeypatch.context() as patched:
        rate = making.learning_rate
        patched.setattr(making, "learning_rate", lambda step, recipe: 1 / 0 if step == 2 else rate(step, recipe))
        with pytest.raises(ZeroDivisionError):
            reproduce(tmp_path / "out", setting, "native")
    assert not (tmp_path / "out" / "models" / "native-model").exists()
    again = reproduce(tmp_path / "out", setting, "native")
    assert training.same(*(tmp_path / name / "models" / "native-model" for name in ("whole", "out")))
    assert again.rows == found.rows and {row.length for row in found.rows} == {64, 128}


def test_the_second_model_is_made_before_it_is_trained(setting, tmp_path):
    found = reproduce(tmp_path / "out", setting, "second-yarn")
    assert {(row.arm, row.step) for row in found.rows} == {("second-yarn", 0), ("second-yarn", 2)}
    assert (tmp_path / "out" / "models" / "second-model" / "config.json").exists()


def test_truncation_of_a_trained_model_is_of_the_same_tokens(done, setting):
    out, found = done[0], reproduce(done[0], setting, "short")
    held = [text for _, text in setting.measured_on()]
    losses = [naive(out / "arms" / "short-windows", text, 64, 128, 64, setting.stride) for text in held]
    row = next(row for row in found.rows if (row.arm, row.schedule) == ("short", "truncation"))
    assert row.tail_nll == pytest.approx(np.mean(losses), abs=1e-5)
    claim = next(row for row in found.claims if row.claim == "short cost trained")
    long, short = (
        np.mean([naive(out / "arms" / name, text, 1, 64) for text in held]) for name in ("yarn-seed-0", "short-windows")
    )
    assert claim.estimates[0][0] == pytest.approx(long - short, abs=1e-5)


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> tuple[Path, Reproduction]:
    """The taught model's answers about a few short texts."""
    out = tmp_path_factory.mktemp("asked") / "out"
    return out, reproduce(out, replace(Setting(), asked=(128, 512), trials=1), "retrieval")


def written(folder: Path, length: int) -> list[bool]:
    """Whether stock transformers writes the answer of each prompt, by greedy decoding."""
    model, tokenizer = training.loaded(folder).eval(), AutoTokenizer.from_pretrained(folder)
    depths, found = (0.0, 0.25, 0.5, 0.75, 1.0), []
    for prompt in prompts(
        "passkey", tokenizer, length, depths, 1, seed=0, filler=Generated(), bos=tokenizer.bos_token_id
    ):
        (question,) = prompt.questions
        ids = torch.from_numpy(prompt.ids(question.ending))[None]
        made = model.generate(ids[:, : question.start], max_new_tokens=question.stop - question.start, do_sample=False)
        found.append(torch.equal(made[0], ids[0, : question.stop]))
    return found


def test_answers_are_those_that_stock_transformers_writes(asked):
    out, found = asked
    rows = {(row.schedule, row.length): row for row in found.answers}
    for length, right in ((128, 5), (512, 0)):
        row = rows["as-is", length]
        assert (row.questions, row.right) == (5, right)
        assert sum(written(out / "models" / "taught-model", length)) == right
    assert rows["linear:factor=8", 128].right == 0 and rows["ntk:factor=8", 512].right >= 4
    assert rows["found", 512].share_high == 1 and found.answers == Reproduction.load(out).answers


def test_the_difference_of_questions_missed_is_over_the_same_questions(asked):
    out, _ = asked
    records = Records(Room(out, replace(Setting(), asked=(128, 512), trials=1)))
    ntk, own = (Point("retrieval", schedule=spec) for spec in ("ntk:factor=8", "as-is"))
    one, other = (np.array(records.answers(point, 512)) for point in (ntk, own))
    missed = records.missed(ntk, own, 512)
    assert missed.mean == pytest.approx(other.mean() - one.mean()) and -1 <= missed.low <= missed.mean < missed.high < 0
    assert records.missed(Point("retrieval-yarn"), own, 512) is None and records.missed(ntk, own, 256) is None


def test_answers_to_other_questions_are_not_compared(asked, tmp_path):
    out, _ = asked
    records = Records(Room(out))
    other = read_answers(out / "measured" / "retrieval")
    other = replace(other, run=replace(other.run, data={**other.run.data, "sha256": "0" * 64}))
    own = records.answered
    records.answered = lambda point: other if point.arm == "retrieval-yarn" else own(point)
    with pytest.raises(DataError, match="retrieval-yarn and retrieval were asked other questions"):
        records.missed(Point("retrieval-yarn"), Point("retrieval"), 512)


def test_damaged_answers_are_one_line(asked, tmp_path):
    shutil.copytree(asked[0] / "measured" / "retrieval", tmp_path / "run")
    (tmp_path / "run" / "answers.csv").write_text("other,columns\n1,2\n")
    with pytest.raises(DataError, match=r"answers\.csv is damaged or missing .*remove the folder"):
        read_answers(tmp_path / "run")
    assert read_answers(tmp_path) is None


def test_the_taught_model_is_trained_and_asked_again(setting, tmp_path):
    found = reproduce(tmp_path / "out", setting, "retrieval-yarn")
    assert [(row.arm, row.schedule, row.step, row.length) for row in found.answers] == [
        ("retrieval-yarn", "yarn:factor=2", 2, 256),
        ("retrieval-yarn", "yarn:factor=2", 2, 320),
    ]
    assert {(row.arm, row.step) for row in found.rows} == {("taught-yarn", 0), ("taught-yarn", 2)}
    assert "Questions answered by the taught model, of 10" in (tmp_path / "out" / "REPORT.md").read_text()
    claim = next(row for row in found.claims if row.claim == "retrieval trained")
    assert claim.verdict == NOT_RUN and claim.figures == ""


def test_another_setting_is_refused_and_nothing_is_lost(done, setting, tmp_path):
    out, _ = done
    before = (out / "results.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"holds yarn with other settings \(steps 4 became 5\)"):
        reproduce(out, replace(setting, steps=5), "yarn")
    assert (out / "results.json").read_bytes() == before
    mine = write_files(tmp_path / "out" / "arms" / "yarn", {"thesis.txt": "mine"})
    with untouched(mine, "something else is there"):
        reproduce(tmp_path / "out", setting, "yarn")


def test_the_command_lists_the_arms_and_their_time_and_writes_nothing(tmp_path, ran):
    said, _ = ran("reproduce", "--list", "-o", tmp_path / "out")
    assert all(f"| {arm.name} " in said for arm in arms(Setting()))
    assert "on one core" in said and not (tmp_path / "out").exists()


def test_wrong_input_is_one_line(tmp_path, ran, refused, monkeypatch):
    _, said = ran("reproduce", "--only", "yran", "-o", tmp_path / "out", code=2)
    assert said == "error: no arm named 'yran'; did you mean 'yarn'?\n"
    mine = write_files(tmp_path / "mine", {"REPORT.md": "mine"})
    assert "REPORT.md is not known to be what" in refused("reproduce", "-o", mine)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DataError, match="runs in one process"):
        Reproducing(tmp_path / "out").run()
    assert os.listdir(tmp_path) == ["mine"]


def test_the_command_prints_what_was_found(setting, tmp_path, ran, monkeypatch):
    monkeypatch.setattr(running, "Reproducing", partial(Reproducing, setting=setting))
    words = ["reproduce", "--only", "untrained", "-o", tmp_path / "out"]
    out, err = ran(*words)
    assert "not decided here" in out  # four texts have no interval
    assert "arm 1 of 1, untrained" in err and "written to" in err
    assert json.loads(ran(*words, "--json")[0])["kind"] == "reproduction"


def test_ctrl_c_says_what_is_kept(setting, tmp_path, ran, monkeypatch):
    stopped = raising(KeyboardInterrupt())
    monkeypatch.setattr(running, "Reproducing", partial(Reproducing, setting=setting))
    monkeypatch.setattr("ropescale.evals.reproducing.experiments.arms.MeasuringArm.carry_out", stopped)
    _, err = ran("reproduce", "--only", "untrained", "-o", tmp_path / "out", code=130)
    told = list(filter(None, err.splitlines()))
    assert told[-2:] == [
        f"the run stopped; what is done is kept in {tmp_path / 'out'}; the same command continues",
        "interrupted",
    ]
