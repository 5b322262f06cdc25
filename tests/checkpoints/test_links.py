"""Symbolic links that lead out of a checkpoint: said when a checkpoint is patched, and never sent to the Hub."""

from __future__ import annotations

from pathlib import Path

import fake_hub
import pytest
from configurations import as_cached, edit, write_checkpoint
from refusing import refused

from ropescale.checkpoints.folders import leaving_links
from ropescale.checkpoints.metadata.record import files_in
from ropescale.checkpoints.uploading import Repository, upload
from ropescale.errors import CheckpointError

YARN = ["--schedule", "yarn:factor=4"]
PUSH = ["patch", "model", *YARN, "--push-to-hub", "me/long"]
SECRET = "what nobody else may read"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint at ``model`` in the working directory, beside a file and a folder that are none of its business."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "passwd").write_text(SECRET)
    (tmp_path / "weights.safetensors").write_bytes(b"other weights")
    return write_checkpoint(tmp_path / "model", files={"model.safetensors": b"weights", "nested/extra.json": "{}"})


def names(folder: Path, *ours: str) -> list[str]:
    return [*leaving_links(folder, ours)]


OUT = {
    "a file": ("notes.txt", "../secrets/passwd"),
    "an absolute one": ("notes.txt", "{}/secrets/passwd"),
    "weights": ("model-2.safetensors", "../secrets/passwd"),
    "the card": ("README.md", "../secrets/passwd"),
    "a folder": ("sub", "../secrets"),
    "one below": ("nested/deep.txt", "../../secrets/passwd"),
    "the folder above": ("sub", ".."),
    "through a link that stays": ("first.txt", "second.txt"),
    "nowhere": ("notes.txt", "../not/there"),
    "a neighbour of the same beginning": ("notes.txt", "../model-private/x"),
}


def link_out(model: Path, case: str) -> str:
    """Makes the link; the name of the one that leads out first, by the alphabet."""
    name, target = OUT[case]
    (model / name).symlink_to(target.format(model.parent))
    if target == "second.txt":
        (model / target).symlink_to("../secrets/passwd")
    return name


@pytest.mark.parametrize("case", OUT)
def test_a_link_that_leads_out_is_found_and_named_and_never_sent(model, hub, capsys, case):
    name = link_out(model, case)
    assert names(model)[0] == name
    said = f"error: model is not uploaded: the link {name} leads out of the checkpoint, to /"
    for place in (["-o", "out"], [], ["--in-place"], ["--dry-run"], ["-o", "out", "--force"]):
        refused(capsys, [*PUSH, *place], said)
    assert (hub.requests, hub.repositories) == ([], {})


def test_patching_goes_on_with_a_warning_that_counts_the_others(model, ran):
    for case in ("a file", "weights"):
        link_out(model, case)
    warnings = [line for line in ran("patch", "model", "-o", "out", *YARN).err.splitlines() if "leads out" in line]
    assert warnings == [
        "warning: the link model-2.safetensors leads out of the checkpoint, to "
        f"{model.parent}/secrets/passwd (and 1 more link leads out); a copy of the result includes their targets: "
        "remove foreign links"
    ]
    assert Path("out", "notes.txt").read_text() == SECRET


def test_links_that_stay_are_not_spoken_of(model, hub, ran):
    (model / "same.json").symlink_to("config.json")
    (model / "nested" / "same.json").symlink_to("../config.json")
    (model / "nested" / "up").symlink_to("..")
    (model / "again").symlink_to(model / "nested")
    (model / ".git").mkdir()
    (model / ".git" / "outside").symlink_to("/etc")
    assert names(model) == []
    assert "lead" not in ran(*PUSH).err
    assert hub.repositories["me/long"]["nested/same.json"] == (model / "config.json").read_bytes()


def test_a_snapshot_of_the_hubs_cache_leads_to_its_own_blobs_and_to_nothing_else(model, tmp_path):
    snapshot = as_cached(model, tmp_path / "hub" / "models--org--name")
    (tmp_path / "short").symlink_to(snapshot)
    assert names(snapshot) == names(snapshot / "nested") == names(tmp_path / "short") == []
    other = "../../../models--org--other/blobs/abc"
    for target in (other, "../../blobs/below/abc", "../../refs/main", "../other/config.json", "../../blobs"):
        (snapshot / "x.txt").symlink_to(target)
        assert names(snapshot) == ["x.txt"], target
        (snapshot / "x.txt").unlink()
    blobs = snapshot.parents[1] / "blobs"
    blobs.rename(tmp_path / "moved")
    blobs.symlink_to(tmp_path / "moved")  # which vouches for nothing
    assert names(snapshot) == ["config.json", "model.safetensors", "nested/extra.json"]


def test_links_to_weights_are_not_warned_of_where_the_record_lists_them_and_not_sent(model, hub, ran, capsys):
    (model / "model-2.safetensors").symlink_to("../weights.safetensors")
    out = "the link model-2.safetensors leads out of the checkpoint"
    assert out in ran("patch", "model", "-o", "earlier", *YARN, "--link", "symlink").err
    assert "leads out" not in ran("patch", "earlier", "-o", "later", *YARN).err
    edit(Path("earlier"), "ropescale.json", files={**(files_in(Path("earlier")) or {}), "model-2.safetensors": {}})
    assert f"{out}, to {model.parent}/weights.safetensors;" in ran("patch", "earlier", "--dry-run", *YARN).err
    for folder, place in (("model", ["-o", "out"]), ("earlier", ["--in-place"]), ("earlier", ["--dry-run"])):
        words = ["patch", folder, *YARN, "--push-to-hub", "me/long", *place]
        refused(capsys, words, "safetensors leads out of the checkpoint")
    assert hub.requests == []


@pytest.mark.parametrize("digits", [40, 64])
def test_a_folder_of_links_into_the_hubs_cache_is_sent(model, hub, ran, tmp_path, digits):
    """As older versions of the Hub's client made it of ``--local-dir``."""
    blob = tmp_path / "hub" / "models--org--name" / "blobs" / ("a" * digits)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"cached")
    (model / "model-2.safetensors").symlink_to(blob)
    (model / "tokenizer.json").symlink_to(blob)
    assert names(model) == []
    ran(*PUSH)
    assert hub.repositories["me/long"]["tokenizer.json"] == b"cached"


@pytest.mark.parametrize(
    "where",
    [
        "models--org--name/blobs/" + "a" * 41,
        "models--org--name/blobs/" + "g" * 40,
        "models--org--name/refs/" + "a" * 40,
        "datasets--org--name/blobs/" + "a" * 40,
        "models--org--name/blobs/below/" + "a" * 40,
        "blobs/" + "a" * 40,
    ],
)
def test_what_else_a_folder_links_to_in_the_cache_leads_out(model, tmp_path, where):
    (model / "model-2.safetensors").symlink_to(tmp_path / "hub" / where)
    assert names(model) == ["model-2.safetensors"]


def test_a_folder_is_looked_at_once_more_before_it_is_sent(model, hub, tmp_path):
    (model / "notes.txt").symlink_to("../secrets/passwd")
    with pytest.raises(CheckpointError, match=r"the link notes\.txt leads out of the checkpoint"):
        upload(model, Repository("me/long", token=fake_hub.TOKEN), "title", ["model.safetensors"])
    assert hub.requests == []


@pytest.mark.parametrize(("name", "target"), [("self", "self"), ("gone", "nothing"), ("one", "nested/two")])
def test_a_link_that_leads_nowhere_is_one_line(model, hub, capsys, name, target):
    (model / name).symlink_to(target)
    if name == "one":
        (model / "nested" / "two").symlink_to("../one")
    for place in (["-o", "out"], ["--in-place"]):
        refused(capsys, [*PUSH, *place], "error: model/", "which does not exist; is the download complete?\n")
    assert hub.requests == []


@pytest.mark.parametrize("targets", [{"self": "self"}, {"a": "b", "b": "a"}])
def test_links_that_lead_in_a_circle_are_named(model, capsys, targets):
    for name, target in targets.items():
        (model / "nested" / name).symlink_to(target)
    for place in (["-o", "out"], ["-o", "out", "--dry-run"]):
        said = refused(capsys, ["patch", "model", *YARN, *place])
        assert any(said.endswith(f"{name} is a link that leads back to itself; remove it\n") for name in targets)


def test_names_that_would_break_the_line_are_shown_and_cut(model, hub, capsys):
    (model / "a\nerror: \u202eb").symlink_to("../secrets/" + "x" * 250)
    refused(capsys, PUSH, "the link a\\nerror: \\u202eb leads out")
