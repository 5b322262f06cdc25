"""A run replaces the files that it wrote, and no others, whenever it is killed; foreign ones are named."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from configurations import write_files
from crashing import failures, kills, raising, tree
from refusing import untouched
from tiny import byte_tokenizer, documents, llama

from ropescale import files
from ropescale.errors import CheckpointError
from ropescale.evals import Result, perplexity, retrieval
from ropescale.evals.data.key_tokens import KeySpans
from ropescale.evals.reporting import page
from ropescale.evals.resuming.finished_batches import opened
from ropescale.evals.run_folder import nll
from ropescale.evals.run_folder.folder import writable_folder
from ropescale.output import plotting

PICTURES = ("ppl_vs_length.png", "loss_by_position.png", "paired_change.png")


@pytest.fixture(autouse=True, scope="module")
def quick_plots():
    """They take longer than everything else here; their content is the report's length, so that it changes."""
    with pytest.MonkeyPatch.context() as patched:
        drawn = lambda self: {name: self.to_markdown().encode() for name in PICTURES}  # noqa: E731
        patched.setattr("ropescale.evals.results.result.Result._plots", drawn)
        patched.setattr("ropescale.evals.passkey.results.Retrieval._plots", lambda self: {"retrieval.png": b"map"})
        yield


def measured(seed: int = 0, lengths: tuple[int, ...] = (16, 32)) -> Result:
    return perplexity(llama(seed), documents(2, 40), lengths, ["yarn:factor=2"])


@pytest.fixture(scope="module")
def results() -> tuple[Result, Result]:
    """Two that have nothing in common: other losses, other lengths."""
    return measured(), measured(1, (24,))


@pytest.fixture(scope="module")
def folder(results, tmp_path_factory) -> Path:
    return results[0].save(tmp_path_factory.mktemp("belongings") / "run")


@pytest.fixture
def run(folder, tmp_path) -> Path:
    shutil.copytree(folder, tmp_path / "run")
    return tmp_path / "run"


FOREIGN = ("results.csv", "REPORT.md", *PICTURES, "nll/as-is/32/00000.npy", "nll/notes.txt", "nll/as-is/32/mine.npy")


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_a_run_did_not_write_is_named_and_left_before_any_weight_is_read(run, ran, name):
    (run / name).write_bytes(b"years of work")
    before = tree(run)
    _, said = ran("eval", "/no/such/model", "--data", "/no/such/text", "--lengths", "64", "-o", run, code=2)
    assert said.startswith(f"error: cannot write into {run}: {run / name} ") and said.count("\n") == 1
    assert tree(run) == before


@pytest.mark.parametrize("name", ["results.csv", "REPORT.md", *PICTURES])
def test_a_file_of_a_runs_name_in_a_folder_without_a_run_is_left(results, tmp_path, name):
    (tmp_path / name).write_bytes(b"years of work")
    with untouched(tmp_path, f"{name} is not known to be what .* lists it.; move {name} away, or"):
        results[0].save(tmp_path)


@pytest.mark.parametrize("name", ["REPORT.md", "results.json", "nll/index.json", "nll/as-is/32/00000.npy", "resume"])
def test_a_link_or_a_pipe_in_place_of_a_file_is_left(run, tmp_path, name):
    (tmp_path / "elsewhere").write_text("years of work")
    path = run / name
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"{name} |{name.partition('/')[0]} "):
        writable_folder(run)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=f"{name} "):
        writable_folder(run)
    assert (tmp_path / "elsewhere").read_text() == "years of work"


def test_a_report_that_somebody_went_on_writing_is_not_replaced(run, results):
    with open(run / "REPORT.md", "a") as file:
        file.write("What this means for our paper: ...")
    with untouched(run, r"REPORT\.md .*changed.*move it"):
        results[1].save(run)


def test_a_file_that_appears_while_a_run_is_written_is_left(results, tmp_path, monkeypatch):
    def slow(self):
        (tmp_path / "REPORT.md").write_text("years of work")
        return {}

    monkeypatch.setattr(Result, "_plots", slow)
    with pytest.raises(CheckpointError, match=r"REPORT\.md.* meanwhile.*move it"):
        results[0].save(tmp_path)
    assert (tmp_path / "REPORT.md").read_text() == "years of work"


@pytest.fixture
def meanwhile(monkeypatch):
    """Makes a file somebody's once a save has looked at what is there, and before it writes losses."""

    def arrange(path: Path) -> None:
        def wrapped(*args):
            write_files(path.parent, {path.name: "years of work"})
            return known(*args)

        known = nll._with_checksums
        monkeypatch.setattr(nll, "_with_checksums", wrapped)

    return arrange


def test_losses_that_somebody_changed_while_others_were_written_are_not_removed(run, results, meanwhile):
    path = run / "nll" / "as-is" / "32" / "00000.npy"
    meanwhile(path)
    results[1].save(run)
    assert path.read_text() == "years of work"
    assert not path.with_name("00001.npy").exists()


def test_losses_are_not_written_over_a_file_that_appeared_meanwhile(results, tmp_path, meanwhile):
    path = tmp_path / "nll" / "as-is" / "24" / "00000.npy"
    meanwhile(path)
    with pytest.raises(CheckpointError, match=r"as-is/24/00000\.npy.* meanwhile.*move it"):
        results[1].save(tmp_path)
    assert path.read_text() == "years of work"


def test_empty_folders_of_losses_that_a_killed_save_left_are_removed_and_no_others(run, results, tmp_path):
    for name in ("as-is/77", "linear/88-divergence"):
        (run / "nll" / name).mkdir(parents=True)
    (run / "nll" / "my notes").mkdir()
    results[1].save(run)
    (run / "nll" / "my notes").rmdir()
    assert tree(run) == tree(results[1].save(tmp_path / "fresh"))


def _save_picture(path: Path) -> None:
    plotting.save(pytest.importorskip("matplotlib.figure").Figure((1, 1)), path)


@pytest.mark.parametrize(
    ("save", "name"),
    [
        (partial(page.write, "<!DOCTYPE html>"), "a.html"),
        (KeySpans({}).save, "a.json"),
        (_save_picture, "a.png"),
        (_save_picture, "a.pdf"),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_a_file_that_appeared_while_another_was_made_for_its_name_stays(tmp_path, monkeypatch, save, name, before):
    path, hidden = tmp_path / name, files.hidden_path

    def overtaken(target):
        path.write_bytes(b"%PDF-1.4, years of work")
        return hidden(target)

    if before:
        path.touch()
    monkeypatch.setattr(files, "hidden_path", overtaken)
    with pytest.raises(CheckpointError, match=f"{name}: (what is|the file) there "):
        save(path)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"%PDF-1.4, years of work"]


def test_a_damaged_results_file_is_named_with_all_that_it_vouched_for(run, results):
    (run / "results.json").write_bytes((run / "results.json").read_bytes()[:-20])
    with pytest.raises(
        CheckpointError, match=r"results\.json is not valid JSON .*; move results\.json, results\.csv, "
    ) as e:
        results[0].save(run)
    for name in ("results.json", "results.csv", "REPORT.md", *PICTURES):
        assert name in str(e.value)
        (run / name).unlink()
    assert results[0].save(run) == run


def test_saving_what_is_there_already_changes_no_byte_and_what_is_new_replaces_all(run, results, tmp_path):
    before = tree(run)
    results[0].save(run)
    assert tree(run) == before
    results[1].save(run)
    assert tree(run) == tree(results[1].save(tmp_path / "fresh"))


def kill_and_save_again(results, folder, tmp_path, first, every):
    """The next save finishes what the killed one began, leaves nothing hidden, and what is not ours stays."""
    one, two = results
    whole = tree(two.save(tmp_path / "whole"))
    out, count = tmp_path / "out", 0
    shutil.copytree(folder, out)
    for step in kills(tmp_path, lambda: two.save(out), first, every):
        count += 1
        (out / "mine.txt").write_text("years of work")
        if count % 2:  # the other one first, which has to know again what both of them wrote
            one.save(out)
        two.save(out)
        assert (out / "mine.txt").read_text() == "years of work"
        (out / "mine.txt").unlink()
        assert tree(out) == whole, step
        shutil.rmtree(out)
        shutil.copytree(folder, out)
    return count


def test_a_kill_at_a_step_on_the_disk_makes_no_file_of_ours_foreign_and_no_foreign_file_ours(results, folder, tmp_path):
    assert kill_and_save_again(results, folder, tmp_path, 30, 15) > 5


@pytest.mark.slow
def test_a_kill_at_any_step_on_the_disk_makes_no_file_foreign_and_none_ours(results, folder, tmp_path):
    assert kill_and_save_again(results, folder, tmp_path, 1, 1) > 80


@pytest.mark.slow
def test_a_full_disk_at_any_step_leaves_nothing_half_written(results, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "out")
    for raised in failures(tmp_path, lambda: results[1].save(tmp_path / "out"), OSError(28, "No space left on device")):
        assert raised is None or "No space left on device" in str(raised)
        assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(folder, tmp_path / "out")


def test_files_that_the_index_does_not_list_are_left_when_a_pass_goes(run, results):
    (run / "nll" / "yarn_factor=2-493ab75c" / "notes").mkdir()
    results[1].save(run)
    there = {path.relative_to(run / "nll").as_posix() for path in (run / "nll").rglob("*")}
    assert "yarn_factor=2-493ab75c/notes" in there
    assert not [name for name in there if "/16" in name or "/32" in name]


def test_retrieval_runs_know_their_files_too(tmp_path, refused):
    result = retrieval(llama(vocab_size=257), byte_tokenizer(limit=400), [150], [0.5], trials=1)
    out = result.save(tmp_path / "out")
    before = tree(out)
    result.save(out)
    assert tree(out) == before
    for name in ("answers.csv", "retrieval.png", "REPORT.md", "results.csv"):
        shutil.copytree(out, tmp_path / "changed")
        (tmp_path / "changed" / name).write_text("years of work")
        said = refused("passkey", "/no/such/model", "--lengths", "150", "-o", tmp_path / "changed")
        assert f"{name} was changed since it was written" in said
        assert (tmp_path / "changed" / name).read_text() == "years of work"
        shutil.rmtree(tmp_path / "changed")


# --- single files ---


@pytest.mark.parametrize("content", ["years of work", "{}", '{"schema": 1, "kind": "notes", "spans": {}}'])
def test_key_spans_replace_key_spans_and_nothing_else(tmp_path, refused, content):
    path = tmp_path / "keys.json"
    path.write_text(content)
    said = refused("keys", "/no/such/model", "--data", "/no/such/text", "-o", path)
    assert f"error: cannot write {path}: the file there holds no key spans; choose another file" in said
    with pytest.raises(CheckpointError, match="holds no key spans"):
        KeySpans({}).save(path)
    assert path.read_text() == content
    KeySpans({}).save(tmp_path / "new.json")
    KeySpans({"0": [(1, 2)]}).save(tmp_path / "new.json")
    assert '"0": [[1, 2]]' in (tmp_path / "new.json").read_text()


def test_a_page_replaces_a_page_and_nothing_else(folder, tmp_path, ran, refused):
    pytest.importorskip("plotly")
    path = tmp_path / "report.html"
    path.write_text("<!DOCTYPE html>\n<html lang='en'>years of work")
    before = path.read_bytes()
    said = refused("report", "/no/such/run", "-o", path)
    assert f"cannot write {path}: the file there is not a page of ropescale" in said
    assert path.read_bytes() == before
    path.unlink()
    for _ in range(2):
        ran("report", folder, "-o", path)
    page = path.read_text()
    assert '<meta name="generator" content="ropescale">' in page[:1000]
    path.write_text(page.replace('<meta name="generator" content="ropescale">\n', ""))  # as it was before version 0.1.0
    ran("report", folder, "-o", path)
    assert path.read_text() == page
    (tmp_path / "link.html").symlink_to(path)
    ran("report", folder, "-o", tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()


def test_a_full_disk_leaves_nothing_of_a_page(folder, tmp_path, monkeypatch, refused):
    pytest.importorskip("plotly")
    monkeypatch.setattr(Path, "write_bytes", raising(OSError(28, "No space left on device")))
    said = refused("report", folder, "-o", tmp_path / "r.html")
    assert f"error: cannot write {tmp_path / 'r.html'}: No space left on device" in said
    assert not list(tmp_path.iterdir())


def test_a_demo_leaves_what_it_did_not_write_and_a_folder_of_an_earlier_version_is_one_line(tmp_path, ran, refused):
    out = write_files(tmp_path / "yarn-x8", {"thesis.txt": "years of work"})
    said = refused("demo", "-o", tmp_path)
    assert f"{out} was not written by ropescale (no ropescale.json); look into {out}" in said
    (out / "ropescale.json").write_text('{"schema": 1, "source": "demo"}')
    _, said = ran("demo", "-o", tmp_path, code=2)
    assert "ropescale.json does not list the files that ropescale wrote" in said and said.count("\n") == 1
    assert sorted(path.name for path in out.iterdir()) == ["ropescale.json", "thesis.txt"]


# --- resume/ ---


@pytest.mark.parametrize("name", ["lock", "holder", "timing.jsonl"])
def test_a_file_of_somebody_elses_in_resume_is_not_written_over(tmp_path, name):
    write_files(tmp_path / "resume", {"lock": "", name: "years of work"})
    with pytest.raises(CheckpointError, match=f"{name} is not what an evaluation wrote"):
        perplexity(llama(), documents(1, 40), [16], out=tmp_path)
    assert (tmp_path / "resume" / name).read_text() == "years of work"


def test_a_damaged_pass_is_set_aside_and_measured_anew_and_no_other(tmp_path, capsys):
    given = documents(2, 40)
    perplexity(llama(), given, [16, 32], ["yarn:factor=2"], out=tmp_path)
    before = tree(tmp_path)
    first, *others = sorted(path for path in (tmp_path / "resume").iterdir() if path.is_dir())
    for content in (b"", b"{", b'{"other": "facts"}'):
        (first / "facts.json").write_bytes(content)
        (first / "mine.txt").write_text("years of work")
        perplexity(llama(), given, [16, 32], ["yarn:factor=2"], out=tmp_path)
        said = capsys.readouterr().err
        assert f"note: {first} is damaged, or not what a run wrote; it is now called {first.name}.damaged" in said
    assert [(path / "mine.txt").read_text() for path in sorted(tmp_path.glob("resume/*.damaged*"))] == [
        "years of work"
    ] * 3
    after = tree(tmp_path)
    logs = [name for name in before if name.endswith((".log", ".npy"))]
    assert len(others) == 2 and all(after[name] == before[name] for name in logs)
    (tmp_path / "resume" / "run.json").write_text("no record")
    perplexity(llama(), given, [16, 32], ["yarn:factor=2"], out=tmp_path)
    assert (tmp_path / "resume" / "run.json.damaged").read_text() == "no record"


def test_a_fresh_start_leaves_what_somebody_put_beside_a_pass(tmp_path):
    perplexity(llama(), documents(1, 40), [16], out=tmp_path)
    (passed,) = (path for path in (tmp_path / "resume").iterdir() if path.is_dir())
    (passed / "mine.txt").write_text("years of work")
    with opened(tmp_path, fresh=True):
        assert [path.name for path in passed.iterdir()] == ["mine.txt"]


def test_what_killed_runs_left_half_written_is_swept_and_nothing_that_looks_alike(tmp_path):
    parts = ["resume/.part-12-run.json", "resume/0123456789abcdef/.part-12-facts.json", ".part-REPORT.md"]
    parts += [".loss_by_position.12.png", ".part-nll/as-is/16/00000.npy", ".part-nll/index.json"]
    current = [f"{below}{files.hidden_name(name)}" for below, name in (("resume/", "run.json"), ("", "REPORT.md"))]
    parts += [f"{name}{end}" for name in current for end in ("", "-lock")]
    alike = [".part-nll/mine.txt", ".part-notes.md", ".loss_by_position.old.png", "resume/.part-x-run.json"]
    write_files(tmp_path, dict.fromkeys([*parts, *alike, "resume/lock"], ""))
    with opened(tmp_path):
        assert not [name for name in parts if (tmp_path / name).exists()]
        assert [name for name in alike if not (tmp_path / name).exists()] == []


def test_stored_losses_keep_their_bytes_and_form(run, results):
    stored = np.load(run / "nll" / "as-is" / "32" / "00001.npy")
    assert stored.dtype == np.float32 and stored.tolist() == results[0].passes[0].nll[1].tolist()
