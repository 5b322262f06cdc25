"""Symbolic links that lead out of a checkpoint: said when a checkpoint is patched."""

from __future__ import annotations

from pathlib import Path

import pytest
from configurations import as_cached, write_checkpoint, write_files
from refusing import refused

from ropescale.checkpoints.folders import leaving_links
from ropescale.cli.main import main

YARN = ["--schedule", "yarn:factor=4"]
SECRET = "what nobody else may read"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint at ``model`` in the working directory, beside a file and a folder that are none of its business."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"secrets/passwd": SECRET, "weights.safetensors": b"other weights"})
    return write_checkpoint(tmp_path / "model", files={"model.safetensors": b"weights", "nested/extra.json": "{}"})


def names(folder: Path) -> list[str]:
    return [*leaving_links(folder)]


OUT = {
    "a file": ("notes.txt", "../secrets/passwd"),
    "weights": ("model-2.safetensors", "../secrets/passwd"),
    "the card": ("README.md", "../secrets/passwd"),
    "a folder": ("sub", "../secrets"),
    "one below": ("nested/deep.txt", "../../secrets/passwd"),
    "the folder above": ("sub", ".."),
    "through a link that stays": ("first.txt", "second.txt"),
    "nowhere": ("notes.txt", "../not/there"),
}


def link_out(model: Path, case: str) -> str:
    """Makes the link; the name of the one that leads out first, by the alphabet."""
    name, target = OUT[case]
    (model / name).symlink_to(target.format(model.parent))
    if target == "second.txt":
        (model / target).symlink_to("../secrets/passwd")
    return name


@pytest.mark.parametrize("case", OUT)
def test_a_link_that_leads_out_is_found_and_named(model, capsys, case):
    """``weights`` is one whose target has no such name."""
    name = link_out(model, case)
    assert names(model)[0] == name
    main(["patch", "model", *YARN, "--dry-run"])
    assert f"the link {name} leads out of the checkpoint, to /" in capsys.readouterr().err


def test_patching_goes_on_with_a_warning_that_counts_the_others(model, ran):
    for case in ("a file", "weights"):
        link_out(model, case)
    (warning,) = (line for line in ran("patch", "model", "-o", "out", *YARN).err.splitlines() if "leads out" in line)
    place = f"{model.parent}/secrets/passwd (and 1 more)"
    assert f"the link model-2.safetensors leads out of the checkpoint, to {place}" in warning
    assert Path("out", "notes.txt").read_text() == SECRET


def test_a_folder_that_is_linked_is_left_out(model, ran):
    link_out(model, "a folder")
    (model / "nested" / "up").symlink_to("..")
    assert "the link sub leads out of the checkpoint" in ran("patch", "model", "-o", "out", *YARN).err
    assert not Path("out", "sub").exists() and not Path("out", "nested", "up").exists()


def test_links_that_stay_are_not_spoken_of(model, ran):
    (model / "same.json").symlink_to("config.json")
    (model / "nested" / "same.json").symlink_to("../config.json")
    (model / "nested" / "up").symlink_to("..")
    (model / "model-2.safetensors").symlink_to("../weights.safetensors")
    (model / ".git").mkdir()
    (model / ".git" / "outside").symlink_to("/etc")
    assert names(model) == []
    assert "lead" not in ran("patch", "model", *YARN, "-o", "out").err


def test_a_snapshot_of_the_hubs_cache_leads_to_its_own_blobs_and_to_nothing_else(model, tmp_path):
    snapshot = as_cached(model, tmp_path / "hub" / "models--org--name")
    (tmp_path / "short").symlink_to(snapshot)
    assert names(snapshot) == names(snapshot / "nested") == names(tmp_path / "short") == []
    for target in ("../../../models--org--other/blobs/abc", "../../blobs/below/abc", "../../refs/main", "../../blobs"):
        (snapshot / "x.txt").symlink_to(target)
        assert names(snapshot) == ["x.txt"], target
        (snapshot / "x.txt").unlink()


@pytest.mark.parametrize("target", ["self", "nothing"])
def test_a_link_that_leads_nowhere_is_one_line(model, capsys, target):
    (model / "self").symlink_to(target)
    refused(
        capsys, ["patch", "model", *YARN, "-o", "out"], "error: model/self links to", "does not exist; is the download"
    )
