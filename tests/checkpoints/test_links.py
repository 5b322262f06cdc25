"""Symbolic links in a checkpoint: those that lead out are said, and linked folders are left out."""

from pathlib import Path

import pytest
from configurations import as_cached, write_checkpoint, write_files
from refusing import refused

PATCH = ["patch", "model", "--schedule", "yarn:factor=4", "-o", "out"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint at ``model`` in the working directory, beside a file and a folder that are none of its business."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"secrets/passwd": "a secret", "weights.safetensors": b"other weights"})
    return write_checkpoint(tmp_path / "model", files={"model.safetensors": b"weights", "nested/extra.json": "{}"})


OUT = {"notes.txt": "../secrets/passwd", "nested/deep.txt": "../../secrets/passwd", "first.txt": "second.txt"}


@pytest.mark.parametrize(("name", "target"), OUT.items())
def test_a_link_that_leads_out_is_copied_with_a_warning(model, caplog, ran, name, target):
    (model / "second.txt").symlink_to("../secrets/passwd")
    (model / name).symlink_to(target)
    ran(*PATCH)
    assert f"model/{name} leads out of the checkpoint, to {model.parent}/secrets/passwd" in caplog.text
    assert Path("out", name).read_text() == "a secret"


def test_links_that_stay_and_those_of_weights_are_not_spoken_of_and_linked_folders_are_left_out(model, caplog, ran):
    (model / "same.json").symlink_to("config.json")
    (model / "nested" / "same.json").symlink_to("../config.json")
    (model / "nested" / "up").symlink_to("..")
    (model / "sub").symlink_to("../secrets")
    (model / "model-2.safetensors").symlink_to("../weights.safetensors")
    (model / ".git").mkdir()
    (model / ".git" / "outside").symlink_to("/etc")
    ran(*PATCH)
    assert "leads out" not in caplog.text
    assert not Path("out", "sub").exists() and not Path("out", "nested", "up").exists()


def test_a_snapshot_of_the_hubs_cache_leads_to_its_own_blobs_and_to_nothing_else(model, tmp_path, caplog, ran):
    snapshot = as_cached(model, tmp_path / "hub" / "models--org--name")
    ran("patch", snapshot, *PATCH[2:])
    assert "leads out" not in caplog.text
    (tmp_path / "hub" / "models--org--name" / "refs.txt").write_text("x")
    (snapshot / "x.txt").symlink_to("../../refs.txt")
    ran("patch", snapshot, *PATCH[2:-1], "other")
    assert "x.txt leads out" in caplog.text


@pytest.mark.parametrize("target", ["self", "nothing"])
def test_a_link_that_leads_nowhere_is_one_line(model, capsys, target):
    (model / "self").symlink_to(target)
    refused(capsys, PATCH, "error: model/self links to", "does not exist; is the download")
