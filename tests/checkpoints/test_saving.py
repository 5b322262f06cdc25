"""``ropescale.save``: from memory, what ``ropescale patch`` writes from disk."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import tiny
import tiny_models
import torch
from configurations import edit, read, write_files
from crashing import tree
from own_schedules import Half
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.adapters import attached
from ropescale.checkpoints.saving import complete
from ropescale.errors import CheckpointError, RopescaleError, VerificationError


@pytest.fixture(scope="module")
def source_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tiny.llama(vocab_size=258), tmp_path_factory.mktemp("once") / "source")


@pytest.fixture
def source(source_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source_once, tmp_path / "source"))


def written(model, folder: Path) -> Path:
    """A checkpoint as vendors publish them, with a card and other files, and a tokenizer for 64 tokens."""
    tiny.checkpoint(folder, model)
    return write_files(folder, {"README.md": "---\nlicense: mit\n---\n\n# A model\n", "nested/LICENSE": "free"})


def loaded(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def contents(folder: Path) -> dict[str, object]:
    """Every file by its name: tensors of weights, bytes of others; of the record all but the list of files."""
    found: dict[str, object] = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name, weights = path.relative_to(folder).as_posix(), path.suffix == ".safetensors"
        found[name] = {k: v.tolist() for k, v in load_file(path).items()} if weights else path.read_bytes()
    return found | {"ropescale.json": read(folder / "ropescale.json") | {"files": {}}}


def config(folder: Path) -> dict:
    return read(folder / "config.json")


def assert_saved_as_patched(source: Path, folder: Path, spec: Any, **options: Any) -> None:
    """Asserts that a model that is patched in memory is saved as it would have been patched on disk."""
    model = loaded(source)
    with ropescale.patch(model, spec, **options):
        model(torch.arange(200)[None])  # which leaves a longer table where tables follow the length
        assert ropescale.save(model, folder / "saved") == folder / "saved"
    ropescale.patch_checkpoint(source, folder / "patched", spec, **options)
    assert contents(folder / "saved") == contents(folder / "patched")


FROZEN = ("dynamic-yarn", {"freeze_at": 200})


SAVED = [("yarn", {"target_length": "256"}), ("dynamic:factor=4", {}), (Half(), {}), FROZEN]


@pytest.mark.parametrize(("spec", "options"), SAVED)
def test_what_is_saved_from_memory_is_what_patch_writes_byte_for_byte(source, tmp_path, spec, options):
    assert_saved_as_patched(source, tmp_path, spec, **options)
    assert sorted(os.listdir(tmp_path)) == ["patched", "saved", "source"]
    assert ropescale.verify(tmp_path / "saved").limits == []


def test_layer_types_and_the_keys_of_transformers_4_come_over_as_patch_has_them(tmp_path):
    source = written(tiny_models.build("gemma3_text", vocab_size=258), tmp_path / "source")
    ropescale.patch_checkpoint(source, tmp_path / "v4", "linear:factor=2")  # a source that states both dialects
    assert_saved_as_patched(tmp_path / "v4", tmp_path, "yarn:factor=4")


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiny_models.SHAPES)
def test_every_family_is_saved_as_patch_writes_it(tmp_path, kind):
    source = written(tiny_models.build(kind, vocab_size=258), tmp_path / "source")
    assert_saved_as_patched(source, tmp_path, "yarn:factor=4")


def test_a_model_that_was_never_on_disk_is_saved_as_if_it_had_been(tmp_path):
    model = tiny.llama(vocab_size=258)
    with ropescale.patch(model, "yarn:factor=4"):
        ropescale.save(model, tmp_path / "saved", tokenizer=tiny.byte_tokenizer())
    source = tiny.checkpoint(tmp_path / "LlamaForCausalLM")
    ropescale.patch_checkpoint(source, tmp_path / "patched", "yarn:factor=4")
    saved, patched = contents(tmp_path / "saved"), contents(tmp_path / "patched")
    assert saved == patched


def test_what_was_trained_and_changed_since_is_saved_and_stock_transformers_reads_it(source, tmp_path):
    edit(source, kept=[1], dropped=2)
    loaded(source).save_pretrained(tmp_path / "source", max_shard_size="20KB")  # whose shards must not come over
    (source / "model.safetensors").unlink()
    model = loaded(source)
    del model.config.dropped
    ids = torch.arange(100)[None]
    with ropescale.patch(model, "yarn:factor=4"), torch.no_grad():
        model.resize_token_embeddings(300)
        model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
        model.generation_config.max_new_tokens = 77
        ropescale.save(model, tmp_path / "out", max_shard_size="60KB")
        expected = model(ids).logits
    out = tmp_path / "out"
    assert config(out)["vocab_size"] == 300 and config(out)["rope_scaling"]["factor"] == 4.0
    assert config(out)["kept"] == [1] and "dropped" not in config(out)
    assert read(out / "generation_config.json")["max_new_tokens"] == 77
    assert len(list(out.glob("model-*.safetensors"))) > 1 and not (out / "model.safetensors").exists()
    assert torch.equal(loaded(out)(ids).logits, expected)
    assert AutoTokenizer.from_pretrained(out).model_max_length == 256
    # Taking the schedule off leaves the rest of the configuration as it was changed.
    ropescale.patch_checkpoint(out, tmp_path / "other", "ntk:factor=2")
    assert config(tmp_path / "other")["vocab_size"] == 300


def test_a_model_that_was_loaded_with_its_schedule_keeps_the_record(source, tmp_path):
    ropescale.patch_checkpoint(source, tmp_path / "patched", "yarn:factor=4")
    ropescale.save(loaded(tmp_path / "patched"), tmp_path / "saved")
    assert contents(tmp_path / "saved") == contents(tmp_path / "patched")


def test_what_cannot_be_saved_is_refused_in_one_line_and_leaves_nothing(source, tmp_path):
    model = loaded(source)

    def refused(reason: str, given: Any = model, out: Path = tmp_path / "out") -> None:
        with pytest.raises(RopescaleError, match=reason):
            ropescale.save(given, out)

    refused("give a transformers model", given="source")
    with ropescale.patch(model, "dynamic-yarn"):
        refused("freeze it at a length")
    with ropescale.patch(model, "dynamic:factor=4", length=99):
        refused("frozen at 99")
    with ropescale.patch(model, "yarn:factor=4"):
        refused("overlap", out=source / "out")
        model.hf_quantizer = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="some"))
        refused("cannot be saved: The model is quantized with some")
        del model.hf_quantizer
        model.lm_head.weight.full_tensor = None  # as of one that several processes share
        refused("spread over several processes")
        del model.lm_head.weight.full_tensor
        model.generation_config.temperature = -1.0  # which transformers refuses to write
        refused("cannot be saved")
        model.model.rotary_emb.inv_freq.mul_(2)
        refused("is not live")
    assert os.listdir(tmp_path) == ["source"]


# ---------------------------------------------------------------------------------------------------------
# Adapters


def with_adapter(base) -> peft.PeftModel:
    torch.manual_seed(1)
    settings = peft.LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM", init_lora_weights=False)
    return peft.get_peft_model(base, settings).eval()


def test_stock_peft_loads_the_adapter_on_a_base_that_carries_the_schedule(source, tmp_path):
    ids = torch.arange(100)[None]
    plain = loaded(source)(ids).logits
    model = loaded(source)
    with ropescale.patch(model, "yarn:factor=4"):
        adapted = with_adapter(model)
        ropescale.save(adapted, tmp_path / "out")
        expected = adapted(ids).logits
    again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(again(ids).logits, expected) and not torch.allclose(expected, plain, atol=1e-2)
    ropescale.patch_checkpoint(source, tmp_path / "patched", "yarn:factor=4")
    assert contents(tmp_path / "out" / "base") == contents(tmp_path / "patched")
    weights = "model.safetensors"
    assert (tmp_path / "out" / "base" / weights).stat().st_ino == (source / weights).stat().st_ino
    named = read(tmp_path / "out" / "adapter_config.json")["base_model_name_or_path"]
    assert named == str(tmp_path / "out" / "base")
    record = read(tmp_path / "out" / "ropescale.json")
    assert record["spec"] == {"all": "yarn:factor=4"} and "base/model.safetensors" in record["files"]


def test_an_adapter_on_a_patched_folder_gets_a_base_of_its_own(source, tmp_path):
    ropescale.patch_checkpoint(source, tmp_path / "patched", "yarn:factor=4")
    ropescale.save(with_adapter(loaded(tmp_path / "patched")), tmp_path / "out", tokenizer=tiny.byte_tokenizer())
    assert contents(tmp_path / "out" / "base") == contents(tmp_path / "patched")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 256


def test_completing_an_adapter_again_replaces_its_base_but_not_one_that_somebody_changed(source, tmp_path):
    model, out = loaded(source), tmp_path / "out"
    for spec in ("yarn:factor=2", "yarn:factor=4"):
        with ropescale.patch(model, spec):
            adapted = with_adapter(model)
            adapted.save_pretrained(out)
            complete(adapted, out)
            adapted.unload()
    ropescale.patch_checkpoint(source, tmp_path / "patched", "yarn:factor=4")
    assert contents(out / "base") == contents(tmp_path / "patched")
    assert [name for name in os.listdir(out) if "base" in name] == ["base"]
    (out / "base" / "config.json").write_text("{}")
    before = tree(out)
    with ropescale.patch(model, "yarn:factor=2"), pytest.raises(CheckpointError, match=r"base/config.json was changed"):
        complete(with_adapter(model), out)
    assert tree(out) == {name: file for name, file in before.items() if name != "ropescale.json"}  # thus unfinished


# ---------------------------------------------------------------------------------------------------------
# Adapters on disk


@pytest.fixture(scope="module")
def adapter_once(source_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = loaded(source_once)
    with ropescale.patch(model, "yarn:factor=4"):
        return ropescale.save(with_adapter(model), tmp_path_factory.mktemp("adapter") / "out")


def renamed(adapter: Path, folder: Path, base: Path) -> Path:
    """A copy of an adapter that names another base."""
    shutil.copytree(adapter, folder, ignore=shutil.ignore_patterns("base"))
    edit(folder, "adapter_config.json", base_model_name_or_path=str(base), target_modules=r".*\.(q_proj|x\d{1,})$")
    return folder


def test_verify_takes_an_adapter_and_names_its_base(adapter_once, ran):
    report = ropescale.verify(adapter_once)
    assert (report.base, report.intended, report.length) == (str(adapter_once / "base"), "all: yarn:factor=4", 256)
    shown = json.loads(ran("inspect", adapter_once, "--json").out)
    assert shown["layers"]["all"]["scaling"]["rope_type"] == "yarn"
    assert any("is an adapter; the output shows its base" in warning for warning in shown["warnings"])
    told = ran("verify", adapter_once).out
    assert f"base: {adapter_once / 'base'}" in told and "live: yes (all: yarn:factor=4, at 256 tokens)" in told


def test_an_adapter_trained_under_another_table_than_its_base_has_is_reported(adapter_once, source, tmp_path):
    moved = renamed(adapter_once, tmp_path / "moved", source)
    with pytest.raises(VerificationError, match=r"was trained with yarn:factor=4, and its base .* has default of 64"):
        ropescale.verify(moved)
    ropescale.patch_checkpoint(source, tmp_path / "again", "yarn:factor=4")
    assert ropescale.verify(renamed(adapter_once, tmp_path / "right", tmp_path / "again")).warnings == []
    (moved / "ropescale.json").unlink()
    (warning,) = ropescale.verify(moved).warnings
    assert "the training frequencies" in warning and "default of 64" in warning


def test_eval_measures_the_adapter_on_its_base(adapter_once, source, tmp_path, ran):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 3)
    lengths = ["--lengths", "32,128", "--no-short-context", "--json"]
    told = ran("eval", adapter_once, "--data", text, *lengths)
    rows = json.loads(told.out)["rows"]
    model = peft.AutoPeftModelForCausalLM.from_pretrained(adapter_once).eval()
    ids = AutoTokenizer.from_pretrained(adapter_once / "base")(text.read_text()).input_ids
    losses = tiny.naive_nll(model, [256, *ids][:128])
    assert [row["nll"] for row in rows] == pytest.approx([sum(losses[: n - 1]) / (n - 1) for n in (32, 128)], abs=1e-5)
    assert "was trained" not in told.err
    moved = renamed(adapter_once, tmp_path / "moved", source)
    told = ran("eval", moved, "--data", text, *lengths)
    assert "was trained with yarn:factor=4" in told.err
    assert "patch the base the same way, and name the result in adapter_config.json" in told.err
    ran("patch", source, "-o", tmp_path / "base", "--schedule", "yarn:factor=4")
    followed = ran("eval", renamed(moved, tmp_path / "named", tmp_path / "base"), "--data", text, *lengths)
    assert "was trained" not in followed.err
    assert [row["nll"] for row in json.loads(followed.out)["rows"]] == [row["nll"] for row in rows]
    assert json.loads(told.out)["rows"][1]["nll"] != pytest.approx(rows[1]["nll"], abs=1e-3)


def test_what_an_adapter_lacks_is_one_line(adapter_once, source, tmp_path, ran):
    told = ran("patch", adapter_once, "-o", tmp_path / "out", "--schedule", "yarn:factor=4", code=2).err
    assert "is a PEFT adapter; patch the base" in told and "base_model_name_or_path" in told
    moved = renamed(adapter_once, tmp_path / "moved", tmp_path / "gone")
    with pytest.raises(CheckpointError, match=r"the base of the adapter .*folder .*gone does not exist"):
        ropescale.verify(moved)
    edit(moved, "adapter_config.json", target_modules="(.*)*x$")
    with pytest.raises(CheckpointError, match=r"adapter_config.json has a pattern that repeats a repetition; list the"):
        ropescale.verify(moved)
    moved = renamed(adapter_once, tmp_path / "empty", source)
    (moved / "adapter_model.safetensors").unlink()
    with pytest.raises(RopescaleError, match="cannot be loaded as an adapter"):
        attached(loaded(source), moved)
