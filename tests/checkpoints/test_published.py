"""What a second patch, an upload and a loader make of the files beside config.json."""

from __future__ import annotations

import json
import shutil

import pytest

import ropescale
from ropescale.cli.main import main
from ropescale.errors import CheckpointError
from ropescale.evals.reference import CHECKPOINT


@pytest.fixture
def source(tmp_path):
    folder = shutil.copytree(CHECKPOINT, tmp_path / "source")
    path = folder / "tokenizer_config.json"
    stated = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**stated, "model_max_length": 512}))
    return folder


def limit_of(folder):
    return json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_second_patch_ends_with_the_tokenizer_limit_of_the_first_from_the_original(source, tmp_path, in_place):
    once, first, second = (tmp_path / name for name in ("once", "first", "second"))
    ropescale.patch_checkpoint(source, once, "yarn:factor=2")
    if in_place:
        first = second = source
    for out, spec, start in ((first, "yarn:factor=8", source), (second, "yarn:factor=2", first)):
        ropescale.patch_checkpoint(start, None if in_place else out, spec, in_place=in_place)
    assert limit_of(second) == limit_of(once)
    third = tmp_path / "third"
    ropescale.patch_checkpoint(second, third, "yarn:factor=4")
    ropescale.patch_checkpoint(third, tmp_path / "fourth", "yarn:factor=2")
    assert limit_of(tmp_path / "fourth") == limit_of(once)


def test_verify_says_when_the_tokenizer_cuts_later_than_the_schedule(source, tmp_path, capsys):
    ropescale.patch_checkpoint(source, tmp_path / "out", "yarn:factor=2")
    path = tmp_path / "out" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 99999}))
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "model_max_length is 99,999, above the" in capsys.readouterr().err


@pytest.mark.parametrize("absent", [True, False])
def test_an_index_beside_a_whole_file_is_told_apart_as_transformers_reads_it(source, tmp_path, absent):
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    if not absent:
        shutil.copy(source / "model.safetensors", source / "model-00001-of-00001.safetensors")
    done = ropescale.patch_checkpoint(source, tmp_path / "out", "yarn:factor=2")
    [warning] = [text for text in done.warnings if "vLLM the files of the index" in text]
    assert f"of which {int(not absent)} exist: transformers loads model.safetensors" in warning
    (source / "model.safetensors").unlink()
    if absent:
        with pytest.raises(CheckpointError, match="lacks 1 of the 1 files"):
            ropescale.patch_checkpoint(source, tmp_path / "two", "yarn:factor=2")


def test_a_weight_file_that_links_out_of_the_folder_is_not_uploaded(source, tmp_path):
    private = tmp_path / "mine.safetensors"
    private.write_bytes(b"x" * 1000)
    (source / "extra.safetensors").symlink_to(private)
    with pytest.raises(CheckpointError, match=r"extra.safetensors leads out of the checkpoint"):
        ropescale.patch_checkpoint(source, None, "yarn:factor=2", dry_run=True, push_to_hub="me/x")


def test_patch_says_on_stdout_that_hard_links_are_overwritten_by_training(source, tmp_path, capsys):
    assert main(["patch", str(source), "-o", str(tmp_path / "out"), "--schedule", "yarn:factor=2"]) == 0
    assert "patch with `--link copy` for a folder to train into" in capsys.readouterr().out
