"""What a second patch and a loader make of the files beside config.json."""

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM

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
    model = AutoModelForCausalLM.from_pretrained(first)
    with ropescale.patch(model, "yarn:factor=2"):
        ropescale.save(model, tmp_path / "saved")
    assert limit_of(tmp_path / "saved") == limit_of(once)
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


WHOLE, BIN, SHARD, SHARD_BIN = "model.safetensors", "pytorch_model.bin", "model-1.safetensors", "pytorch_model-1.bin"


LOADED = [
    ([WHOLE], WHOLE, [SHARD], f"transformers loads {WHOLE}, vLLM 0 (nothing)"),
    ([WHOLE, SHARD], WHOLE, [SHARD], f"transformers loads {WHOLE}, vLLM 1 ({SHARD})"),
    ([WHOLE, "old.safetensors"], None, [], f"transformers loads {WHOLE}, vLLM 2 ({WHOLE}, old.safetensors)"),
    ([BIN, "old.safetensors"], None, [], f"transformers loads {BIN}, vLLM 1 (old.safetensors)"),
    ([BIN, SHARD_BIN], BIN, [SHARD_BIN], f"transformers loads {BIN}, vLLM 2 ({SHARD_BIN}, {BIN})"),
    ([BIN, SHARD], WHOLE, [SHARD], None),
    ([WHOLE, SHARD_BIN], BIN, [SHARD_BIN], None),
    ([WHOLE, BIN, "consolidated.safetensors"], None, [], None),
    ([BIN], BIN, [SHARD_BIN], None),
    ([WHOLE], "tf_model.h5", ["lost.h5"], None),
    ([BIN], None, [], None),
    ([SHARD], None, [], f"transformers loads nothing, vLLM 1 ({SHARD})"),
    ([SHARD_BIN], BIN, [SHARD_BIN], None),
    ([SHARD, SHARD_BIN], BIN, [SHARD_BIN, "lost.bin"], "lacks 1 of the 2 files in pytorch_model.bin.index.json"),
    ([SHARD], WHOLE, [SHARD, "lost.safetensors"], "lacks 1 of the 2 files in model.safetensors.index.json"),
    ([WHOLE], WHOLE, [WHOLE, "lost.safetensors"], "lacks 1 of the 2 files in model.safetensors.index.json"),
]


@pytest.mark.parametrize(("names", "index", "shards", "said"), LOADED)
def test_of_two_sets_of_weights_what_transformers_and_vllm_load_is_said(source, tmp_path, names, index, shards, said):
    (source / WHOLE).unlink()
    for name in names:
        (source / name).write_bytes(b"weights")
    if index:
        content = {"weight_map": {str(number): name for number, name in enumerate(shards)}}
        (source / f"{index}.index.json").write_text(json.dumps(content))
    if said and said.startswith("lacks"):
        with pytest.raises(CheckpointError, match=said):
            ropescale.patch_checkpoint(source, tmp_path / "out", "yarn:factor=2")
        return
    warnings = ropescale.patch_checkpoint(source, tmp_path / "out", "yarn:factor=2").warnings
    wanted = [] if said is None else [said_of(source, said)]
    assert [text for text in warnings if "transformers loads" in text] == wanted


def said_of(source, said):
    return f"{source}: {said}; remove what does not belong to the model, or complete the download"


def test_patch_says_on_stdout_that_hard_links_are_overwritten_by_training(source, tmp_path, capsys):
    assert main(["patch", str(source), "-o", str(tmp_path / "out"), "--schedule", "yarn:factor=2"]) == 0
    assert "patch with `--link copy` for a folder to train into" in capsys.readouterr().out
