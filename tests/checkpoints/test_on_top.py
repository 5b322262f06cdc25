"""A schedule on top of one that ropescale put there: built on the folder as it is, as on a vendor's scaling."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from configurations import read
from transformers import AutoModelForCausalLM

import ropescale

FIRST = ("yarn:factor=4", "linear:factor=4", "ntk:factor=4", "llama3:factor=4", "giraffe:scale_power=0.5")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("once") / "source", tiny.llama(vocab_size=258))


def table_of(model) -> tuple[torch.Tensor, float]:
    return model.model.rotary_emb.inv_freq, model.model.rotary_emb.attention_scaling


def stock(folder: Path) -> tuple[torch.Tensor, float]:
    """The table that stock transformers builds from a folder."""
    return table_of(AutoModelForCausalLM.from_pretrained(folder))


@pytest.mark.parametrize("first", FIRST)
def test_on_top_of_our_own_schedule_is_what_it_is_on_a_vendors(source, tmp_path, first):
    own, out, vendors = tmp_path / "own", tmp_path / "out", tmp_path / "vendors"
    ropescale.patch_checkpoint(source, own, first)
    shutil.copytree(own, vendors)
    (vendors / "ropescale.json").unlink()
    ropescale.patch_checkpoint(own, out, "linear:factor=2", on_top=True)
    ropescale.patch_checkpoint(vendors, tmp_path / "oracle", "linear:factor=2", on_top=True)
    assert read(out / "config.json") == read(tmp_path / "oracle" / "config.json")

    length = read(own / "ropescale.json")["length"]
    record = read(out / "ropescale.json")
    assert (record["original_length"], record["length"]) == ({"all": length}, 2 * length)
    (below, scale), (above, same) = stock(own), stock(out)
    assert torch.allclose(above, below / 2, rtol=1e-6, atol=0) and same == pytest.approx(scale, rel=1e-6)
    assert ropescale.verify(out).live


def test_every_way_to_ask_builds_on_the_same_ground(source, tmp_path, ran):
    own, out = tmp_path / "own", tmp_path / "out"
    ropescale.patch_checkpoint(source, own, "yarn:factor=4")
    ropescale.patch_checkpoint(own, out, "linear:factor=2", on_top=True)
    wanted = stock(out)

    in_memory = AutoModelForCausalLM.from_pretrained(own)
    with ropescale.patch(in_memory, "linear:factor=2", on_top=True):
        assert torch.equal(table_of(in_memory)[0], wanted[0]) and table_of(in_memory)[1] == wanted[1]
        ropescale.save(in_memory, tmp_path / "saved")
    assert read(tmp_path / "saved" / "config.json") == read(out / "config.json")

    twice = AutoModelForCausalLM.from_pretrained(source)
    with ropescale.patch(twice, "yarn:factor=4"):
        with ropescale.patch(twice, "linear:factor=2", on_top=True):
            assert torch.equal(table_of(twice)[0], wanted[0]) and table_of(twice)[1] == wanted[1]
        assert torch.equal(table_of(twice)[0], stock(own)[0])
    assert torch.equal(table_of(twice)[0], stock(source)[0])

    recorded = read(out / "ropescale.json")["tables"]["all"]["inv_freq"]
    assert ropescale.frequencies(own, "linear:factor=2", on_top=True)["all"].inv_freq == recorded
    asked = ["--schedule", "linear:factor=2", "--on-top", "--json"]
    shown = json.loads(ran("inspect", own, *asked).out)["layers"]["all"]
    assert [pair["new_inv_freq"] for pair in shown["table"]] == pytest.approx(recorded)
    vllm = ((own, asked), (out, ["--json"]))
    served = [json.loads(ran("export", folder, "--for", "vllm", *more).out) for folder, more in vllm]
    assert served[0]["length"] == served[1]["length"] == 512
