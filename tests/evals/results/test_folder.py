"""A run replaces the files that it wrote, and no others, whenever it is killed; foreign ones are named."""

import os
import shutil

import pytest
from configurations import write_files
from crashing import failures, kills, tree, unchanged
from losses import digest, reseal
from tiny import documents, llama

from ropescale.errors import CheckpointError, DataError, StorageError
from ropescale.evals import Result, perplexity
from ropescale.evals.metrics.key_tokens import KeySpans
from ropescale.files import atomic_path

PICTURES = ("ppl_vs_length.png", "loss_by_position.png")


@pytest.fixture(autouse=True, scope="module")
def quick_plots():
    """They take longer than everything else here; their content is the report's length, so that it changes."""
    with pytest.MonkeyPatch.context() as patched:
        drawn = lambda self: {name: self.to_markdown().encode() for name in PICTURES}  # noqa: E731
        patched.setattr("ropescale.evals.results.result.Result._plots", drawn)
        yield


def measured(seed=0, lengths=(16, 32)):
    return perplexity(llama(seed), documents(2, 40), lengths, ["yarn:factor=2"])


@pytest.fixture(scope="module")
def results():
    """Two that have nothing in common: other losses, other lengths."""
    return measured(), measured(1, (24,))


@pytest.fixture(scope="module")
def folder(results, tmp_path_factory):
    return results[0].save(tmp_path_factory.mktemp("belongings") / "run")


@pytest.fixture
def run(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "run")


@pytest.mark.parametrize("name", ["results.csv", "REPORT.md", "losses.safetensors", *PICTURES, "results.json"])
def test_a_file_that_is_not_ours_or_was_edited_is_moved_aside_and_said(run, results, tmp_path, capsys, name):
    (run / name).write_bytes(b"years of work")
    (run / f"{name}~").write_bytes(b"older work")
    results[0].save(run)
    said = f"note: {run / name} was not written by an evaluation, or was edited since; it is now called {name}~2"
    assert said in capsys.readouterr().err
    assert (run / f"{name}~2").read_bytes() == b"years of work"
    assert (run / f"{name}~").read_bytes() == b"older work"
    (run / f"{name}~").unlink()
    (run / f"{name}~2").unlink()
    moved = [path for path in run.iterdir() if path.name.endswith("~")]  # what a lost results.json listed
    assert name == "results.json" or not moved
    foreign = write_files(tmp_path / "no run", {name: "years of work"})
    results[0].save(foreign)
    assert (foreign / f"{name}~").read_text() == "years of work"
    for path in moved:
        path.unlink()
    assert tree(run) == tree(results[0].save(tmp_path / "fresh"))


@pytest.mark.parametrize("name", ["REPORT.md", "results.json", "losses.safetensors"])
def test_a_link_or_a_pipe_in_place_of_a_file_is_moved_aside_and_not_followed(run, results, tmp_path, name):
    (tmp_path / "elsewhere").write_text("years of work")
    path = run / name
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    results[0].save(run)
    assert (run / f"{name}~").is_symlink() and not path.is_symlink()
    path.unlink()
    os.mkfifo(path)
    results[0].save(run)
    assert (run / f"{name}~2").is_fifo() and path.is_file()
    assert (tmp_path / "elsewhere").read_text() == "years of work"


@pytest.mark.parametrize("name", ["../thesis", "a\0b", "resume"])
def test_a_list_of_files_outside_the_folder_is_refused(run, results, tmp_path, name):
    (tmp_path / "thesis").write_text("years of work")
    reseal(run, lambda found: found["files"].update({name: [digest(tmp_path / "thesis")]}))
    with pytest.raises(CheckpointError, match="lists files outside the folder"):
        results[0].save(run)
    assert (tmp_path / "thesis").exists()


def test_pictures_that_no_longer_belong_are_deleted_unless_somebody_edited_them(run, results, monkeypatch):
    (run / PICTURES[1]).write_bytes(b"edited")
    monkeypatch.setattr(Result, "_plots", lambda self: {})
    results[0].save(run)
    assert not [name for name in PICTURES if (run / name).exists()]
    assert (run / f"{PICTURES[1]}~").read_bytes() == b"edited"


@pytest.mark.parametrize(("first", "every", "least"), [(3, 14, 3), pytest.param(1, 1, 40, marks=pytest.mark.slow)])
def test_a_kill_at_a_step_on_the_disk_makes_no_file_foreign_nor_ours(results, folder, tmp_path, first, every, least):
    """The next save finishes what the killed one began, leaves nothing hidden, and what is not ours stays."""
    one, two = results
    whole = tree(two.save(tmp_path / "whole"))
    out, count = tmp_path / "out", 0
    shutil.copytree(folder, out)
    for step in kills(tmp_path, lambda: two.save(out, force=True), first, every):
        count += 1
        (out / "mine.txt").write_text("years of work")
        if count % 2:  # the other one first, which has to know again what both of them wrote
            one.save(out, force=True)
        two.save(out, force=True)
        assert (out / "mine.txt").read_text() == "years of work"
        (out / "mine.txt").unlink()
        assert tree(out) == whole, step
        shutil.rmtree(out)
        shutil.copytree(folder, out)
    assert count > least


@pytest.mark.slow
def test_a_full_disk_at_any_step_leaves_nothing_half_written(results, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "out")
    full = OSError(28, "No space left on device")
    for raised in failures(tmp_path, lambda: results[1].save(tmp_path / "out", force=True), full):
        assert raised is None or "No space left on device" in str(raised)
        left = [path for path in tmp_path.rglob(".*") if path.is_file()]
        assert all(path.name.endswith("-lock") for path in left)  # what failed was its removal
        if left:
            results[1].save(tmp_path / "out", force=True)
            assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(folder, tmp_path / "out")


def test_a_full_disk_leaves_the_results_before_and_losses_of_others_are_refused(run, results, tmp_path, monkeypatch):
    def full(path, **how):
        if path.name == "losses.safetensors":
            raise OSError(28, "No space left on device", str(path))
        return atomic_path(path, **how)

    with monkeypatch.context() as patched, unchanged(run):
        patched.setattr("ropescale.evals.results.folder.atomic_path", full)
        with pytest.raises(StorageError, match="No space left on device; free some space"):
            results[1].save(run, force=True)
    results[1].save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "losses.safetensors", run)
    with pytest.raises(DataError, match=r"losses.safetensors does not belong to the results beside it"):
        Result.load(run)
    results[1].save(run, force=True)
    assert [row.ppl for row in Result.load(run).rows] == [row.ppl for row in results[1].rows]


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
    KeySpans({}, {"window": 8}).save(tmp_path / "new.json")
    KeySpans({"0": [(1, 2)]}, {"window": 8}).save(tmp_path / "new.json")
    assert '"0": [[1, 2]]' in (tmp_path / "new.json").read_text()


def test_a_page_replaces_a_page_and_nothing_else(folder, tmp_path, ran, refused):
    pytest.importorskip("matplotlib")
    path = tmp_path / "report.html"
    path.write_text("<!DOCTYPE html>\n<html lang='en'>years of work")
    with unchanged(tmp_path):
        said = refused("report", "/no/such/run", "-o", path)
    assert f"cannot write {path}: the file there is not a page of ropescale" in said
    path.unlink()
    for _ in range(2):
        ran("report", folder, "-o", path)
    assert '<meta name="generator" content="ropescale">' in path.read_text()[:1000]
    (tmp_path / "link.html").symlink_to(path)
    ran("report", folder, "-o", tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
