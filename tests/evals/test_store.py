"""A run that stops keeps what it has finished, and two runs never write into one folder."""

import hashlib
import os
import random
import resource
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from configurations import write_files
from crashing import lasting, raising
from forking import struck
from losses import records_in
from refusing import untouched
from safetensors.numpy import load_file
from tiny import TEXT, documents, llama
from torch.nn.attention import SDPBackend, sdpa_kernel

from ropescale.cli import main as shell
from ropescale.errors import CheckpointError
from ropescale.evals import Result, perplexity
from ropescale.evals.backends import fingerprints
from ropescale.evals.scoring.batches import per_token, plan_pass
from ropescale.evals.scoring.executor import Executor
from ropescale.evals.scoring.scorer import Scorer
from ropescale.evals.store import Store, foreign, last_run, opened, refuse_if_busy
from ropescale.files import hidden_name

# Only its sizes matter: batch n has 8 scored tokens.
PLAN = plan_pass([4 + n for n in range(5)], 9, None, False, 1)


FORM = per_token(nll=np.float32, same=np.bool_, ids=np.int32)


def eights(count=5):
    numbers = np.arange(8, dtype=np.float32)
    ids = np.arange(8, dtype=np.int32) + 2**24  # fp32 does not have every other one
    return {n: {"nll": numbers / 3 + n, "same": numbers > n, "ids": ids + n} for n in range(count)}


def plain(found):
    return {n: {name: (each.dtype, each.tolist()) for name, each in arrays.items()} for n, arrays in found.items()}


def put(out, scored, rank=0, **facts):
    """Keeps batches of a pass; a world of several processes has ranks."""
    folder = out / "resume"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").touch()
    store = Store(folder, rank)
    for number, each in scored.items():
        store.batches(facts, PLAN, FORM).put(number, each)
    store.close()


def kept(out, **facts):
    with opened(out) as store:
        return store.batches(facts, PLAN, FORM).batches


# --- the store ---


def test_a_flipped_bit_costs_batches_or_moves_the_file_aside_and_never_gives_other_numbers(tmp_path, capsys):
    put(tmp_path / "whole", eights(5), a=1)
    content = (tmp_path / "whole" / "resume" / "0.records").read_bytes()
    made, dice = plain(eights(5)), random.Random(5)
    inside = content.index(eights()[2]["nll"].tobytes())
    for number, at in enumerate([inside, 3, inside - 300, *(dice.randrange(len(content)) for _ in range(8))]):
        out = tmp_path / str(number)
        write_files(out / "resume", {"lock": ""})
        changed = content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :]
        (out / "resume" / "0.records").write_bytes(changed)
        found = plain(kept(out, a=1))
        assert found.items() <= made.items() and len(found) < 5
        assert at != inside or len(found) == 4
        aside = list(out.glob("resume/0.records~"))
        assert bool(aside) == ("was not written by a run" in capsys.readouterr().err) == (at < 8)
        put(out, eights(5), a=1)
        assert at == inside or aside or plain(kept(out, a=1)) == made


def test_a_batch_of_another_form_or_with_nan_or_infinity_is_not_taken_for_the_passs(tmp_path):
    put(tmp_path, eights(1), a=1)
    with opened(tmp_path) as store:
        assert not store.batches({"a": 1}, PLAN, per_token(nll=np.float64, same=np.bool_, ids=np.int32)).batches
        store.put(store.batches({"a": 2}, PLAN, FORM).key, 0, b"no arrays")
    put(tmp_path, {n: eights()[n] | {"nll": np.full(8, [np.nan, np.inf][n], np.float32)} for n in (0, 1)}, a=3)
    assert plain(kept(tmp_path, a=1)) == plain(eights(1)) and kept(tmp_path, a=2) == kept(tmp_path, a=3) == {}


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path):
    put(tmp_path, eights(2), a=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            with pytest.raises(CheckpointError, match="where finished work is kept: File too large; raise the limit"):
                store.batches({"a": 1}, PLAN, FORM).put(2, {"nll": np.zeros(100_000, np.float32)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    put(tmp_path, {3: eights()[3]}, a=1)  # what was cut off is removed
    assert kept(tmp_path, a=1).keys() == {0, 1, 3}


def test_a_killed_run_loses_only_the_record_that_it_was_writing(tmp_path):
    put(tmp_path, eights(3), a=1)
    file = tmp_path / "resume" / "0.records"
    whole = file.read_bytes()
    for size in (1, 7, 100, len(whole) // 3 + 1, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert len(kept(tmp_path, a=1)) == 3 * size // len(whole)
        put(tmp_path, eights(3), a=1)
        assert plain(kept(tmp_path, a=1)) == plain(eights(3))
    assert not list((tmp_path / "resume").glob("*~"))


@pytest.mark.parametrize("name", ["0.records", "3.records"])
def test_a_file_of_somebody_elses_under_the_name_of_a_store_is_moved_aside(tmp_path, name, capsys):
    write_files(tmp_path / "resume", {"lock": "", name: "years of work", f"{name}~": "older work"})
    with opened(tmp_path) as store:
        store.batches({"a": 1}, PLAN, FORM).put(0, eights()[0])
    assert f"it is now called {name}~2" in capsys.readouterr().err
    aside = [(tmp_path / "resume" / f"{name}{end}").read_text() for end in ("~", "~2")]
    assert aside == ["older work", "years of work"]
    assert plain(kept(tmp_path, a=1)) == plain(eights(1))


@pytest.mark.parametrize("link", [os.link, os.symlink])
@pytest.mark.parametrize("name", ["0.records", "last.json", "lock"])
def test_a_received_folder_whose_files_are_yours_changes_none_of_them(out, whole, tmp_path, capsys, name, link):
    victim = write_files(tmp_path / "mine", {"victim.txt": bytes(4) + b" years of work"}) / "victim.txt"
    (out / "resume" / name).unlink()
    link(victim, out / "resume" / name)
    measured(out)
    said = capsys.readouterr().err.replace(f"{out}/resume/", "")
    assert f"{name} was not written by a run; it is now called {name}~" in said
    assert victim.read_bytes() == bytes(4) + b" years of work"
    assert written(out) == written(whole)


# --- the lock ---


def test_the_second_of_two_runs_is_refused_and_the_first_goes_on(tmp_path):
    with opened(tmp_path) as first:
        with pytest.raises(CheckpointError, match="another run is writing into"), opened(tmp_path):
            pass
        with pytest.raises(CheckpointError, match="wait for it, or choose another folder"):
            refuse_if_busy(tmp_path)
        first.begin({"facts": {"still": "ours"}})
    refuse_if_busy(tmp_path)
    with opened(tmp_path) as second:
        assert second.last == last_run(tmp_path) == {"facts": {"still": "ours"}}
        for damaged in ({"facts": "ours"}, {"facts": {}, "batch_tokens": 0}):
            second.begin(damaged)
            assert second.last == {}


def test_a_folder_in_which_a_stopped_writer_left_its_lock_stays_ours(tmp_path):
    hidden = tmp_path / "resume" / f"{hidden_name('last.json')}-lock"
    with pytest.raises(SystemExit), opened(tmp_path):
        raise SystemExit(hidden.touch())
    assert foreign(hidden.parent) is None
    with opened(tmp_path) as store:
        store.begin({})
    assert not hidden.exists()


def test_a_resume_folder_that_is_not_ours_is_refused_and_left_alone(tmp_path):
    write_files(tmp_path, {"resume/cv.txt": "a career"})
    with untouched(tmp_path, "resume was not written by an evaluation"):
        perplexity(llama(), documents(1, 40), [16], out=tmp_path)


def test_starting_anew_removes_what_is_finished_and_nothing_else(tmp_path):
    with opened(tmp_path) as store:
        store.batches({"a": 1}, PLAN, FORM).put(0, eights()[0])
        store.begin({"facts": {"b": 2}})
    write_files(tmp_path, {"resume/mine/notes.txt": "mine"})
    with opened(tmp_path, fresh=True) as store:
        assert store.last == {} and not store.batches({"a": 1}, PLAN, FORM).batches
    assert {path.name for path in (tmp_path / "resume").rglob("*")} == {"lock", "mine", "notes.txt"}


# --- runs ---

IDS = [*documents(2, 110), documents(1, 30, seed=7)[0]]
GIVEN = {"stride": 12, "batch_tokens": 160}
SCHEDULES = ["yarn:factor=4", "dynamic:factor=4"]


def measured(out, lengths=(32, 80), schedules=SCHEDULES, **changes):
    model = changes.pop("model", None) or llama()
    return perplexity(model, IDS, lengths, schedules, out=out, **({"force": True} | GIVEN | changes))


def written(out):
    """The bytes of all that must be the same, however a run came about."""
    names = ("results.json", "results.csv", "REPORT.md", "losses.safetensors")
    return {name: (out / name).read_bytes() for name in names}


@pytest.fixture
def scored(monkeypatch):
    """The number of every batch that is scored, or compared, from here on."""
    numbers, score, compare = [], Executor.score, Executor.compare

    def counting(self, batch):
        numbers.append(batch.number)
        return score(self, batch)

    def counting_others(self, one, others, batch, lacking):
        numbers.extend(batch.number for _ in lacking)
        return compare(self, one, others, batch, lacking)

    monkeypatch.setattr(Executor, "score", counting)
    monkeypatch.setattr(Executor, "compare", counting_others)
    return numbers


@pytest.fixture
def lines(monkeypatch):
    """What the user is told."""
    told = []
    monkeypatch.setattr("ropescale.evals.progress.Notes.tell", lambda self, line, level=0: told.append(line))
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


@pytest.mark.parametrize(("after", "killed"), [(20, False), (31, True)])
def test_an_interrupted_run_is_said_and_ends_the_same(whole, tmp_path, monkeypatch, scored, lines, ran, after, killed):
    with monkeypatch.context() as patched:
        stopping(patched, after)
        if killed:  # nothing is written at the end, only while it runs
            patched.setattr("ropescale.evals.store.WRITE_SECONDS", -1)
            patched.setattr("ropescale.evals.running.runner._keep", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            measured(tmp_path)
    stopped, page = Result.load(tmp_path), tmp_path.with_suffix(".html")
    count = len(stopped.passes)
    first = f"This run is not whole: it has {count} finished pass{'es' * (count > 1)} so far. Repeat its command"
    shown = [ran("report", tmp_path, "-o", page)[0], (tmp_path / "REPORT.md").read_text(), page.read_text()]
    assert all(each.index(first) < each.index(stopped.sentences()[0]) for each in shown) and stopped.passes
    assert len(scored) == after
    measured(tmp_path)
    assert len(scored) == records_in(whole) == 30 + 6  # each batch once, in both runs together
    assert f"resuming: {after} of 36 batches are done" in lines
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
    assert not [line for line in lines if line.startswith(("truncation", "memory", "a verdict"))]


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


CHANGES = [
    ({"model": llama(1)}, "weights"), ({"model": llama(rms_norm_eps=1e-3)}, "configuration"), ({"bos": 3}, "bos"),
    ({"stride": 11}, "stride"), ({"batch_tokens": 96}, "batch tokens"), ({"logits_bytes": 2**20}, "logits bytes"),
    ({"max_docs": 2}, "text, tokens"), ({"model": llama().to(torch.bfloat16)}, "weights, dtype"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), CHANGES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_changes_the_numbers_starts_a_new_run_and_is_named(out, lines, scored, change, sentence):
    before = records_in(out)
    measured(out, schedules=[], **change)
    assert f"starting a new run, because this changed: {sentence}; the old batches stay in resume/" in lines
    assert len(scored) >= 6 and records_in(out) == before + len(scored)


LESS = [
    ({"schedules": []}, "results of dynamic:factor=4 at 32 tokens and 3 more, which this run leaves out"),
    ({"lengths": [32]}, "results of as-is at 80 tokens and 2 more, which this run leaves out"),
    ({"short_context": False}, "figures of the short-context cost, which this run leaves out"),
    ({"model": llama(1)}, "results of another model"),
    ({"max_docs": 2}, "results of another text"),
    ({"stride": 11}, "results of another stride"),
]


@pytest.mark.parametrize(("change", "sentence"), LESS, ids=lambda value: value if isinstance(value, str) else "")
def test_fewer_results_or_others_than_the_folder_holds_need_force(out, scored, change, sentence):
    with untouched(out, f"holds {sentence}; choose another folder, or allow to replace its results"):
        measured(out, **change, force=False)
    assert scored == []


def test_a_stopped_run_does_not_replace_results_by_fewer(out, whole, monkeypatch, scored):
    with monkeypatch.context() as patched:
        stopping(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            measured(out, (32, 80), [*SCHEDULES, "linear:factor=2"], force=False)
    assert written(out) == written(whole)


def test_a_touched_checkpoint_is_the_same_and_weights_of_equal_size_and_time_are_not(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    weights = folder / "model.safetensors"
    before, state = fingerprints.files_fingerprint(folder), weights.stat()
    for damage in (b"", b"\xff", b"ab" * 31):
        next(tmp_path.glob("ropescale/*")).write_bytes(damage)
        assert fingerprints.files_fingerprint(folder) == before
    os.utime(weights, ns=(1, 1))
    assert fingerprints.files_fingerprint(folder) == before
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert fingerprints.files_fingerprint(folder) != before


def test_a_file_of_the_hubs_cache_is_known_by_its_name_and_not_read(tmp_path, monkeypatch):
    blob = write_files(tmp_path / "blobs", {"a" * 64: "weights"}) / ("a" * 64)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(blob)
    monkeypatch.setattr(fingerprints, "sha256_of", raising(AssertionError("it was read")))
    wanted = hashlib.sha256(b"model.safetensors " + b"a" * 64).hexdigest()
    assert fingerprints.files_fingerprint(tmp_path / "snapshot") == wanted


def test_going_back_to_what_was_measured_before_runs_nothing_and_fresh_measures_anew(whole, out, scored):
    measured(out, schedules=[], bos=3)
    scored.clear()
    measured(out)
    measured(out, batch_tokens=None)  # an estimate does not replace the size of finished batches
    assert scored == [] and written(out) == written(whole)
    measured(out, fresh=True)
    assert len(scored) == 36 and written(out) == written(whole)
    measured(out, (32, 48, 80), [*SCHEDULES, "linear:factor=1"], force=False)  # more results need no force


@pytest.mark.parametrize(("fact", "value"), [("torch", "3.0"), ("transformers", "6.0"), ("attention", "eager")])
def test_another_version_or_attention_is_another_run(out, monkeypatch, lines, scored, fact, value):
    arithmetic = fingerprints.arithmetic
    monkeypatch.setattr(fingerprints, "arithmetic", lambda model: arithmetic(model) | {fact: value})
    measured(out, schedules=[])
    assert scored and f"this changed: {fact};" in lines[0]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_flags_that_round_matrix_products_are_facts_of_a_run(kind):
    matmul = torch.backends.cuda.matmul if kind == "cuda" else torch.backends.mkldnn.matmul
    names = ["fp32_precision"]
    names += [f"allow_{each}_reduced_precision_reduction" for each in ("bf16", "fp16")] if kind == "cuda" else []
    before, seen = [getattr(matmul, name) for name in names], {fingerprints.precision(kind)}
    for name, was in zip(names, before, strict=True):
        setattr(matmul, name, "ieee" if isinstance(was, str) else not was)
        seen.add(fingerprints.precision(kind))
    for name, was in zip(names, before, strict=True):
        setattr(matmul, name, was)
    assert len(seen) == 1 + len(names) and fingerprints.precision(kind) in seen
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
        assert fingerprints._cuda_settings()["attention_kernels"] == "mem_efficient, math"


@pytest.mark.parametrize(("part", "after"), [(Executor, 20), (Scorer, 1)])  # in a later batch, and in the first one
def test_batches_split_where_memory_ran_out_stay_split_in_the_next_run(tmp_path, monkeypatch, lines, part, after):
    fitting, score = 70, Scorer.score

    def scarce(self, ids, chunk=None):
        if (chunk or ids.numel()) > fitting:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return score(self, ids, chunk) + len(ids) + (chunk == 40)  # shows what was fed together, as rounding may

    monkeypatch.setattr(Scorer, "score", scarce)
    monkeypatch.setattr("ropescale.evals.scoring.executor.LEAST_CHUNK", 16)
    one, two = tmp_path / "one", tmp_path / "two"
    measured(one)
    with monkeypatch.context() as patched:
        patched.setattr(part, "score", lasting(after, KeyboardInterrupt())(part.score))
        with pytest.raises(KeyboardInterrupt):
            measured(two)
    fitting = 10**6
    measured(two)
    assert lines.count("batches are split as in the run before, which ran out of memory") == 1
    again = written(two)
    assert again == written(one) or part is Scorer  # which had met one of the limits
    measured(two, fresh=True)
    assert written(two) != again


# --- the command line ---


@pytest.fixture(scope="module")
def words(checkpoint, tmp_path_factory):
    """A command of a few dozen batches, without -o."""
    texts = {f"{number}.txt": TEXT[number:] * (2 + number) for number in range(5)}
    folder = write_files(tmp_path_factory.mktemp("texts"), texts)
    given = ["--lengths", "32,64", "--stride", "16", "--batch-tokens", "128", "--schedule", "yarn:factor=2"]
    return ["eval", checkpoint, "--data", str(folder), *given]


def stored(out):
    """Bytes of finished batches."""
    return sum(path.stat().st_size for path in out.glob("resume/*.records"))


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


def test_a_run_with_truncation_killed_at_random_moments_ends_byte_for_byte_the_same(words, tmp_path, capsys):
    given = ["--lengths", "64,128", "--windows", "1", "--batch-tokens", "128", "--truncation-stride", "8"]
    assert kill_and_resume([*words[:4], *given, "--schedule", "yarn:factor=2"], tmp_path, 2, seed=3) >= 1
    assert "truncation @ 64" in load_file(tmp_path / "0" / "losses.safetensors")


@pytest.mark.slow
@pytest.mark.long
def test_runs_killed_at_thirty_random_moments_end_byte_for_byte_the_same(words, tmp_path, capsys):
    assert kill_and_resume(words, tmp_path, 30, seed=2) >= 25


@pytest.mark.parametrize("where", ["while the model is read", "in the first batch"])
def test_ctrl_c_before_the_first_batch_says_how_to_begin_again(words, tmp_path, ran, monkeypatch, where):
    kept = [*words, "-o", tmp_path / "out"]
    with monkeypatch.context() as patched:
        if where == "in the first batch":
            stopping(patched, 0)
        else:
            patched.setattr("ropescale.evals.api._corpus", raising(KeyboardInterrupt()))
        said = ran(*kept, code=130)[1].splitlines()
        begin = "the run stopped before any batch was finished; run the same command to restart it"
        assert [line for line in said if line][-2:] == [begin, "interrupted"]
        assert begin not in ran(*words, code=130)[1]  # without -o nothing is ever kept


def test_a_run_that_is_refused_leaves_no_folder_but_one_that_was_there(tmp_path):
    out = tmp_path / "out"
    for before in ([], [out]):
        with pytest.raises(CheckpointError), opened(out):
            raise CheckpointError("no")
        assert list(tmp_path.rglob("*")) == before
        out.mkdir(exist_ok=True)
