"""The numbers alone: from a folder, a configuration, a loaded model, patched before or not."""

import pytest
import tiny
from configurations import write_checkpoint

import ropescale
from ropescale.inspecting import inspect
from ropescale.models.rotary_modules import live_table
from ropescale.schedules import AsIs


@pytest.fixture
def folder(tmp_path):
    tiny.llama().save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


@pytest.mark.parametrize("first", ["ntk:factor=8", "linear:factor=8", "yarn:factor=2", "dynamic:factor=2"])
@pytest.mark.parametrize("then", ["yarn:factor=8", "linear:factor=2"])
def test_a_checkpoint_patched_before_is_computed_from_the_original_by_everyone(folder, tmp_path, first, then):
    ropescale.patch_checkpoint(folder, tmp_path / "out", first)
    plain = ropescale.frequencies(folder, then)["all"]
    assert ropescale.frequencies(tmp_path / "out", then)["all"] == plain
    assert inspect(str(tmp_path / "out"), then).geometries[0].frequencies == plain
    assert ropescale.patch_checkpoint(tmp_path / "out", None, then, dry_run=True).plan.tables["all"] == plain
    model = type(tiny.llama()).from_pretrained(tmp_path / "out")
    assert ropescale.frequencies(model, then)["all"] == plain
    with ropescale.patch(model, then):
        live, scale = live_table(model.model.rotary_emb, "all")
        assert live.tolist() == pytest.approx(plain.inv_freq, rel=2e-6)
        assert scale == pytest.approx(plain.attention_scale)


def test_a_model_patched_in_memory_is_computed_from_the_original():
    model = tiny.llama()
    plain = ropescale.frequencies(model, "linear:factor=2")
    with ropescale.patch(model, "ntk:factor=8"):
        assert ropescale.frequencies(model, "linear:factor=2") == plain
        assert ropescale.frequencies(model, AsIs()) == ropescale.frequencies(model, "ntk:factor=8")


@pytest.mark.parametrize("as_is", ["as-is", " as-is ", {"name": "as-is"}, AsIs()], ids=str)
def test_as_is_is_what_the_folder_has_even_where_it_was_patched_before(folder, tmp_path, as_is):
    ropescale.patch_checkpoint(folder, tmp_path / "out", "linear:factor=4")
    assert ropescale.frequencies(tmp_path / "out", as_is)["all"].inv_freq[0] == 0.25
    assert inspect(str(tmp_path / "out"), as_is).geometries[0].frequencies.inv_freq[0] == 0.25


def test_layers_that_a_second_schedule_leaves_alone_are_shown_as_they_were_originally(tmp_path):
    config = {"model_type": "gemma3_text", "hidden_size": 128, "num_attention_heads": 2, "head_dim": 64}
    plain = write_checkpoint(tmp_path / "plain", config, {"model.safetensors": b"weights"})
    ropescale.patch_checkpoint(plain, tmp_path / "out", "linear:factor=4", layers="all")
    shown = {each.layer_type: each for each in inspect(str(tmp_path / "out"), "yarn:factor=2").geometries}
    sliding = shown["sliding_attention"]
    assert (sliding.frequencies, sliding.rope.inv_freq()[0], sliding.scaling["factor"]) == (None, 1.0, 4.0)
    assert ropescale.frequencies(tmp_path / "out", "yarn:factor=2")["sliding_attention"].inv_freq[0] == 1.0
