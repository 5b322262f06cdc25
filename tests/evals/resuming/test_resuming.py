"""A run that stops keeps what it has finished, and two runs never write into one folder."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch
from configurations import write_files
from crashing import kills, lasting, raising, tree
from forking import struck
from refusing import untouched
from tiny import documents, llama

from ropescale.cli import main as shell
from ropescale.errors import CheckpointError
from ropescale.evals import perplexity
from ropescale.evals.resuming import fingerprints, finished_batches
from ropescale.evals.resuming.batch_log import Scored, record, records
from ropescale.evals.resuming.finished_batches import FolderShelf, opened
from ropescale.evals.running.batches import plan_pass
from ropescale.evals.scoring.executor import Executor

pytestmark = pytest.mark.usefixtures("no_plots")

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. "


def batches(count=5, seed=0):
    """Numbers and made-up NLLs of different sizes."""
    generator = np.random.default_rng(seed)
    return {n: Scored(generator.normal(size=3 + n).astype(np.float32), 1 + n % 2) for n in range(count)}


def plain(found):
    return {number: (scored.nll.tolist(), scored.parts) for number, scored in found.items()}


PLAN = plan_pass([4 + n for n in range(5)], 9, None, False, 1)
"""Only its sizes matter: batch n has 8 scored tokens."""


def eights(count=5):
    return {n: Scored(np.full(8, n, np.float32)) for n in range(count)}


# --- the log ---


def test_a_log_that_is_cut_anywhere_gives_the_whole_records_before_the_cut():
    made = batches()
    parts = [record(number, scored) for number, scored in made.items()]
    ends = np.cumsum([0, *map(len, parts)])
    content = b"".join(parts)
    for cut in range(len(content) + 1):
        whole = int((ends <= cut).sum()) - 1
        found, good = records(content[:cut])
        assert good == ends[whole]
        assert plain(found) == plain({n: made[n] for n in range(whole)})


def test_a_changed_byte_is_noticed_wherever_it_is():
    content = b"".join(record(number, scored) for number, scored in batches(2).items())
    first = len(record(0, batches(1)[0]))
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        found, good = records(changed)
        assert (len(found), good) == ((0, 0) if at < first else (1, first))


def test_what_is_put_is_there_when_the_shelf_is_made_again(tmp_path):
    shelf = FolderShelf(tmp_path / "pass", {"a": 1}, PLAN)
    assert not (tmp_path / "pass").exists()  # a pass that never starts leaves nothing
    for number, scored in eights(3).items():
        shelf.put(number, scored)
    # Not closed: the process may have been killed.
    assert plain(FolderShelf(tmp_path / "pass", {"a": 1}, PLAN).batches) == plain(eights(3))


def test_a_record_that_was_cut_off_is_dropped_and_the_next_ones_follow_the_whole_ones(tmp_path):
    shelf = FolderShelf(tmp_path, {}, PLAN)
    for number, scored in eights(2).items():
        shelf.put(number, scored)
    with open(tmp_path / "0.log", "ab") as file:
        file.write(record(2, eights()[2])[:-5])
    again = FolderShelf(tmp_path, {}, PLAN)
    assert plain(again.batches) == plain(eights(2))
    again.put(3, eights()[3])
    assert list(FolderShelf(tmp_path, {}, PLAN).batches) == [0, 1, 3]


def test_the_logs_of_all_who_worked_on_a_pass_are_read(tmp_path):
    for writer in (0, 1):
        shelf = FolderShelf(tmp_path, {}, PLAN, writer=writer)
        shelf.put(writer, eights()[writer])
        shelf.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.log", "1.log", "facts.json"]
    assert plain(FolderShelf(tmp_path, {}, PLAN).batches) == plain(eights(2))


def test_a_batch_that_has_not_the_size_of_the_plans_is_not_taken(tmp_path):
    shelf = FolderShelf(tmp_path, {}, PLAN)
    shelf.put(0, Scored(np.zeros(7, np.float32)))
    shelf.put(9, Scored(np.zeros(8, np.float32)))
    assert FolderShelf(tmp_path, {}, PLAN).batches == {}


@pytest.mark.parametrize("content", ['{"a": 2}', "no json", None])
def test_a_pass_whose_facts_are_others_is_refused(tmp_path, content):
    tmp_path.joinpath("0.log").write_bytes(b"")
    if content is not None:
        tmp_path.joinpath("facts.json").write_text(content)
    with pytest.raises(CheckpointError, match="is not what a run wrote; remove it, or choose another"):
        FolderShelf(tmp_path, {"a": 1}, PLAN)


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path, monkeypatch):
    shelf = FolderShelf(tmp_path, {}, PLAN)
    shelf.put(0, eights()[0])

    def full(file, content):
        file.write(content[:11])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(finished_batches, "_write_all", full)
        with pytest.raises(CheckpointError, match=r"cannot write into .*: No space left on device"):
            shelf.put(1, eights()[1])
    assert (tmp_path / "0.log").read_bytes() == record(0, eights()[0])
    shelf.put(2, eights()[2])  # there is room again
    assert list(FolderShelf(tmp_path, {}, PLAN).batches) == [0, 2]


def test_a_kill_at_any_step_on_the_disk_leaves_what_the_next_run_continues(tmp_path):
    def fill():
        shelf = FolderShelf(tmp_path / str(step) / "pass", {"a": 1}, PLAN)
        for number, scored in eights(2).items():
            shelf.put(number, scored)
        shelf.close()

    step = 1
    for step in kills(tmp_path, lambda: fill()):
        shelf = FolderShelf(tmp_path / str(step) / "pass", {"a": 1}, PLAN)
        for number, scored in eights(2).items():
            shelf.put(number, scored)
        assert plain(FolderShelf(tmp_path / str(step) / "pass", {"a": 1}, PLAN).batches) == plain(eights(2))
    assert step >= 3  # a folder, the facts beside, their renaming, the log


# --- the lock ---


def test_the_second_of_two_runs_is_refused_and_the_first_goes_on(tmp_path):
    with opened(tmp_path) as first:
        with (
            pytest.raises(CheckpointError, match=rf"another run \(process {os.getpid()} on .*\) is writing into"),
            opened(tmp_path),
        ):
            pass
        with pytest.raises(CheckpointError, match="choose another folder with out="):
            finished_batches.refuse_if_busy(tmp_path)
        first.begin({"facts": {"still": "ours"}})
    finished_batches.refuse_if_busy(tmp_path)
    with opened(tmp_path) as second:
        assert second.last == {"facts": {"still": "ours"}}


def test_a_killed_process_does_not_keep_its_lock(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with opened(tmp_path):
            os.write(writer, b"held")
            time.sleep(60)
        os._exit(0)
    assert os.read(reader, 4) == b"held"
    with pytest.raises(CheckpointError, match=f"process {child} on"):
        finished_batches.refuse_if_busy(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with opened(tmp_path):
        pass


def test_a_resume_folder_that_is_not_ours_is_refused_and_left_alone(tmp_path):
    write_files(tmp_path, {"resume/cv.txt": "a career"})
    with untouched(tmp_path, "resume is not what an evaluation wrote"):
        perplexity(llama(), documents(1, 40), [16], out=tmp_path)


def test_starting_anew_removes_passes_and_nothing_else(tmp_path):
    with opened(tmp_path) as kept:
        kept.shelf({"a": 1}, PLAN).put(0, eights()[0])
        kept.begin({"facts": {"b": 2}})
    write_files(tmp_path, {"resume/mine/notes.txt": "mine"})
    with opened(tmp_path, fresh=True) as kept:
        assert kept.last == {} and not kept.shelf({"a": 1}, PLAN).batches
    names = {path.name for path in (tmp_path / "resume").rglob("*")}
    assert names == {"lock", "holder", "mine", "notes.txt"}


# --- runs ---

IDS = [*documents(2, 110), documents(1, 30, seed=7)[0]]
GIVEN = {"stride": 12, "batch_tokens": 160}
SCHEDULES = ["yarn:factor=4", "dynamic:factor=4"]


def measured(out, lengths=(32, 80), schedules=SCHEDULES, **changes):
    return perplexity(changes.pop("model", None) or llama(), IDS, lengths, schedules, out=out, **(GIVEN | changes))


def written(out):
    """The bytes of all that must be the same, however a run came about."""
    names = ["results.json", "results.csv", "REPORT.md"]
    nll = sorted(path for path in (out / "nll").rglob("*") if path.is_file())
    return {str(path.relative_to(out)): path.read_bytes() for path in [*map(out.joinpath, names), *nll]}


@pytest.fixture
def scored(monkeypatch):
    """The number of every batch that is scored, or compared, from here on."""
    numbers, score, compare = [], Executor.score, Executor.compare

    def counting(self, batch):
        numbers.append(batch.number)
        return score(self, batch)

    def counting_others(self, batch, one, others):
        numbers.extend(batch.number for _ in others)
        return compare(self, batch, one, others)

    monkeypatch.setattr(Executor, "score", counting)
    monkeypatch.setattr(Executor, "compare", counting_others)
    return numbers


@pytest.fixture
def lines(monkeypatch):
    """What the user is told."""
    told = []
    monkeypatch.setattr("ropescale.evals.running.progress.Notes.tell", lambda self, line: told.append(line))
    return told


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("whole")
    measured(out)
    return out


@pytest.fixture
def out(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "out")


def stopping(monkeypatch, after):
    """The run stops when this many batches are scored or compared."""
    stopped = lasting(after, KeyboardInterrupt())
    for name in ("score", "compare"):
        monkeypatch.setattr(Executor, name, stopped(getattr(Executor, name)))


@pytest.mark.parametrize("after", [0, 20, 31])
def test_an_interrupted_run_goes_on_where_it_was_and_ends_byte_for_byte_the_same(
    whole, tmp_path, monkeypatch, scored, lines, after
):
    with monkeypatch.context() as patched:
        stopping(patched, after)
        with pytest.raises(KeyboardInterrupt):
            measured(tmp_path)
    done = len(scored)
    assert done == after
    measured(tmp_path)
    total = sum(len(records(log.read_bytes())[0]) for log in whole.glob("resume/*/0.log"))
    assert len(scored) == total == 30 + 6  # each batch once, in both runs together
    assert (f"resuming: {done} of {total} batches are done" in lines) == (done > 0)
    assert written(tmp_path) == written(whole)


def test_a_finished_run_is_repeated_without_a_forward_pass(whole, out, monkeypatch, lines):
    for name in ("results.json", "results.csv", "REPORT.md"):
        (out / name).unlink()
    model = llama()
    monkeypatch.setattr(type(model), "forward", None)
    monkeypatch.setattr(type(model.model), "forward", None)
    measured(out, model=model)
    assert written(out) == written(whole)
    assert any(line.startswith("all ") and line.endswith("are done already; nothing is run") for line in lines)


def test_a_schedule_more_finds_what_it_shares(out, scored):
    measured(out, schedules=["linear:factor=1", *SCHEDULES])
    assert scored == []  # the tables of as-is
    result = measured(out, schedules=["ntk:factor=3"])
    assert len(scored) == sum(len(plan.batches) for plan in plans_of(result)) + 6  # and the comparison at 32
    assert [row.schedule for row in result.rows] == ["as-is", "as-is", "ntk:factor=3", "ntk:factor=3"]


def plans_of(result):
    """Of one schedule of a result."""
    tokens = [len(document.ids) for document in result.documents]
    return [plan_pass(tokens, n, result.protocol["stride"], result.bos, GIVEN["batch_tokens"]) for n in result.lengths]


def test_a_shorter_length_more_needs_no_pass_when_prefixes_are_measured(tmp_path, scored):
    first = measured(tmp_path, [100], ["yarn:factor=4"], stride=None, short_context=False)
    scored.clear()
    second = measured(tmp_path, [20, 100], ["yarn:factor=4"], stride=None, short_context=False)
    assert scored == []
    assert second.rows[1] == first.rows[0] and second.rows[0].length == 20


CHANGES = [
    ({"model": llama(1)}, "the weights differ"),
    ({"model": llama(rms_norm_eps=1e-3)}, "config.json differs"),
    ({"bos": 3}, "bos none became 3"),
    ({"stride": 11}, "stride 12 became 11"),
    ({"batch_tokens": 96}, "batch-tokens 160 became 96"),
    ({"logits_bytes": 2**20}, "logits-bytes 67108864 became 1048576"),
    ({"max_docs": 2}, "the text differs, the tokens differ"),
    ({"model": llama().to(torch.bfloat16)}, "the weights differ, dtype float32 became bfloat16"),
]


@pytest.mark.parametrize(("change", "sentence"), CHANGES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_changes_the_numbers_starts_a_new_run_and_is_named(out, lines, scored, change, sentence):
    before = tree(out / "resume")
    measured(out, schedules=[], **change)
    assert f"starting a new run: {sentence}; its results replace the old ones, whose batches stay in resume/" in lines
    assert len(scored) >= 6
    after = tree(out / "resume")
    logs = [name for name in before if name.endswith(".log")]
    assert logs and all(after[name] == before[name] for name in logs)


def test_a_schedule_that_is_no_longer_asked_for_is_named(out, lines):
    measured(out, schedules=["linear:factor=2"])
    assert any(line.startswith("the results will be without yarn:factor=4, dynamic:factor=4, ") for line in lines)


def test_going_back_to_what_was_measured_before_runs_nothing(whole, out, scored):
    measured(out, schedules=[], bos=3)
    scored.clear()
    measured(out)
    assert scored == [] and written(out) == written(whole)


@pytest.mark.parametrize(("fact", "value"), [("torch", "3.0"), ("transformers", "6.0"), ("attention", "eager")])
def test_another_version_or_attention_is_another_run(out, monkeypatch, lines, scored, fact, value):
    arithmetic = fingerprints.arithmetic
    monkeypatch.setattr(
        "ropescale.evals.resuming.fingerprints.arithmetic", lambda model: arithmetic(model) | {fact: value}
    )
    measured(out, schedules=[])
    assert scored and f"{fact} {arithmetic(llama())[fact]} became {value}" in lines[0]


def test_fresh_measures_anew(whole, out, scored):
    measured(out, fresh=True)
    assert len(scored) == 36 and written(out) == written(whole)


def test_an_estimate_of_batch_tokens_is_kept_for_the_run_that_goes_on(tmp_path, monkeypatch, scored):
    first = measured(tmp_path, schedules=[], batch_tokens=None)
    scored.clear()
    monkeypatch.setattr("ropescale.evals.scoring.memory.total_memory", lambda device: 2**20)  # a smaller machine
    second = measured(tmp_path, schedules=[], batch_tokens=None)
    assert scored == [] and second.protocol["batch_tokens"] == first.protocol["batch_tokens"] == 8192


def test_a_full_disk_stops_the_run_with_one_sentence_and_the_next_one_goes_on(whole, tmp_path, monkeypatch, scored):
    full = lasting(20, OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patched:
        patched.setattr(finished_batches, "_write_all", full(finished_batches._write_all))
        with pytest.raises(CheckpointError, match=r"No space left on device.* kept"):
            measured(tmp_path)
    assert len(scored) == 21
    measured(tmp_path)
    assert written(tmp_path) == written(whole)


def test_how_long_it_took_is_apart_from_the_results(whole):
    (line,) = (whole / "resume" / "timing.jsonl").read_text().splitlines()
    assert json.loads(line).keys() == {"tokens", "seconds", "tokens_per_second", "device", "threads"}
    cost = json.loads((whole / "results.json").read_text())["cost"]
    assert json.loads(line)["tokens"] == sum(each["positions"] for each in cost if each["forward_passes"])


# --- the command line ---


@pytest.fixture(scope="module")
def words(checkpoint, tmp_path_factory):
    """A command of a few dozen batches, without -o."""
    texts = {f"{number}.txt": TEXT[number:] * (2 + number) for number in range(5)}
    folder = write_files(tmp_path_factory.mktemp("texts"), texts)
    given = ["--lengths", "32,64", "--stride", "8", "--batch-tokens", "128", "--schedule", "yarn:factor=2"]
    return ["eval", checkpoint, "--data", str(folder), *given]


def stored(out):
    """Bytes of finished batches."""
    return sum(log.stat().st_size for log in out.glob("resume/*/*.log"))


def kill_and_resume(words, folder, moments, seed):
    """Kills as many runs, each in a folder of its own, resumes them, and compares with one that was left alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked child has no other
    try:
        assert shell.main([*words, "-o", str(folder / "whole")]) == 0
        dice, killed = random.Random(seed), 0
        for number in range(moments):
            out, least = folder / str(number), dice.randint(1, stored(folder / "whole"))
            run = partial(shell.main, [*words, "-o", str(out)])
            killed += struck(run, partial(stored, out), least, dice.uniform(0, 0.01))
            assert run() == 0
            assert written(out) == written(folder / "whole")
        return killed
    finally:
        torch.set_num_threads(threads)


def test_a_run_killed_at_a_random_moment_ends_byte_for_byte_the_same(words, tmp_path, capsys):
    assert kill_and_resume(words, tmp_path, 1, seed=1) == 1


def test_a_run_with_truncation_killed_at_random_moments_ends_byte_for_byte_the_same(words, tmp_path, capsys):
    given = ["--lengths", "64,128", "--windows", "1", "--batch-tokens", "128", "--truncation-stride", "4"]
    assert kill_and_resume([*words[:4], *given, "--schedule", "yarn:factor=2"], tmp_path, 3, seed=3) >= 2
    assert list(tmp_path.glob("0/nll/truncation/64-truncation/*.npy"))


@pytest.mark.slow
@pytest.mark.long
def test_runs_killed_at_thirty_random_moments_end_byte_for_byte_the_same(words, tmp_path, capsys):
    assert kill_and_resume(words, tmp_path, 30, seed=2) >= 25


def test_the_command_refuses_a_folder_that_another_run_writes_into_before_it_reads_the_model(words, tmp_path, ran):
    with opened(tmp_path / "out"):
        out, err = ran("eval", "/no/such/model", *words[2:], "-o", tmp_path / "out", code=2)
    assert out == "" and err.startswith(f"error: another run (process {os.getpid()} on ") and err.count("\n") == 1


BEGINS = "the run stopped; nothing was finished yet; the same command begins again"


@pytest.mark.parametrize("where", ["while the model is read", "in the first batch"])
def test_ctrl_c_before_the_first_batch_says_that_the_same_command_begins_again(
    words, tmp_path, ran, monkeypatch, where
):
    kept = [*words, "-o", tmp_path / "out"]
    interrupt = raising(KeyboardInterrupt())
    with monkeypatch.context() as patched:
        if where == "in the first batch":
            stopping(patched, 0)
        else:
            patched.setattr("ropescale.evals.running.preparing.prepare", interrupt)
        said = ran(*kept, code=130)[1].splitlines()
        assert [line for line in said if line][-2:] == [BEGINS, "interrupted"]
        assert BEGINS not in ran(*words, code=130)[1]  # without -o nothing is ever kept
    with monkeypatch.context() as patched:
        stopping(patched, 1)
        assert BEGINS not in ran(*kept, code=130)[1]
    with monkeypatch.context() as patched:
        patched.setattr("ropescale.evals.running.preparing.prepare", interrupt)
        assert BEGINS not in ran(*kept, code=130)[1]  # a batch was finished before


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(words, tmp_path, ran, monkeypatch):
    with monkeypatch.context() as patched:
        stopping(patched, 7)
        _, said = ran(*words, "-o", tmp_path, code=130)
    assert f"the run stopped; 7 finished batches are kept in {tmp_path}; the same command continues" in said
    assert "resuming: 7 of " in ran(*words, "-o", tmp_path)[1]


def test_fresh_without_a_folder_is_refused(words, refused):
    assert "--fresh is given, and no folder to start again in; name it with -o" in refused(*words, "--fresh")


def test_a_changed_number_in_what_is_known_of_the_last_run_is_noticed(tmp_path, capsys):
    """Another estimate of the tokens fed at once would be another plan of the same batches."""
    out = tmp_path / "out"
    first = measured(out)
    record = out / "resume" / "run.json"
    told = json.loads(record.read_text())
    record.write_text(json.dumps({**told, "batch_tokens": told["batch_tokens"] + 1000}))
    assert measured(out).to_dict() == first.to_dict()
    assert "run.json is damaged" in capsys.readouterr().err
    record.write_text(json.dumps({name: value for name, value in told.items() if name != "sha256"}))
    assert measured(out).to_dict() == first.to_dict()
    assert "damaged" not in capsys.readouterr().err


def _stopping(out, error, begun=False):
    with opened(out) as store:
        if begun:
            store.begin({"facts": {}})
        raise error


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
    with pytest.raises(CheckpointError):
        _stopping(tmp_path / "out", CheckpointError("no"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError):
        _stopping(tmp_path / "out", CheckpointError("no"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_a_run_that_stops_keeps_what_it_had(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        _stopping(tmp_path / "out", KeyboardInterrupt(), begun=True)
    assert (tmp_path / "out" / "resume" / "run.json").exists()
