"""Qwen's long case from end to end: the trained length, and the three axes of positions of a model that sees."""

import pytest
import torch
from configurations import read
from coverage_oracle import Geometry, yarn_table
from readme_blocks import QWEN3_5_ROPE, furnish, write_qwen3_5
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import ropescale
from ropescale.checkpoints.loading import load_model

SECTIONS = [4, 2, 2]  # pairs that turn by time, height and width, of 8


def yarn(theta: float, trained: int) -> tuple[torch.Tensor, float]:
    """YaRN's frequencies (float64) and attention scale for 16 coordinates and factor 4."""
    return yarn_table(Geometry(theta, theta ** (torch.arange(8, dtype=torch.float64) / -8), trained))


def axis_of(pair: int) -> int:
    """Which axis turns a pair: time, height, width in turn, until the sections of height and width are used up."""
    return pair % 3 if pair < 3 * SECTIONS[pair % 3] else 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    write_qwen3_5(folder / "model")
    ropescale.patch_checkpoint(folder / "model", folder / "long", "yarn", target_length="1m")
    return folder


@pytest.mark.parametrize("load", [AutoModelForImageTextToText.from_pretrained, load_model])
def test_images_keep_their_three_axes_under_the_schedule(folder, load):
    modules = dict(load(folder / "long").named_modules())
    [rotary] = [modules[name] for name in modules if name.endswith("rotary_emb") and "visual" not in name]
    positions = torch.tensor([[[0, 5, 300_000]], [[0, 70, 1_000]], [[0, 9, 40]]])  # [axis, 1, token]
    cos, sin = rotary(torch.zeros(1, 3, 1), positions)
    frequencies, scale = yarn(QWEN3_5_ROPE["rope_theta"], 262_144)
    before, after = (read(folder / name / "config.json") for name in ("model", "long"))
    rope = after["text_config"]["rope_parameters"]
    assert (rope["mrope_section"], rope["rope_type"]) == (SECTIONS, "yarn")
    assert after["vision_config"] == before["vision_config"] and "rope_parameters" not in after
    axes = [axis_of(pair) for pair in range(8)]
    assert axes == [0, 1, 2, 0, 1, 2, 0, 0]
    for token in range(3):
        angles = (positions[axes, 0, token] * frequencies).repeat(2)
        for found, expected in ((cos, angles.cos()), (sin, angles.sin())):
            # a position of 300,000 times a float32 frequency is exact to 0.02 of a turn's radian
            assert torch.allclose(found[0, token].double(), scale * expected, atol=0.03 if token == 2 else 1e-5)


def test_text_is_computed_alike_by_the_whole_model_and_by_its_text_part(folder):
    ids = torch.arange(200)[None] % 250
    with torch.no_grad():
        kinds = (AutoModelForCausalLM, AutoModelForImageTextToText)
        logits = [kind.from_pretrained(folder / "long").eval()(input_ids=ids).logits for kind in kinds]
    assert torch.equal(*logits)


def test_qwen3_was_trained_below_what_its_configuration_says(tmp_path, ran):
    (tmp_path / "any").mkdir()
    furnish(tmp_path, tmp_path / "any")
    qwen3, out = tmp_path / "Qwen" / "Qwen3-8B", tmp_path / "long"
    assert "| trained length                        | 32,768 tokens" in ran("inspect", qwen3).out
    ran("patch", qwen3, "-o", out, "--schedule", "yarn", "--target-length", "128k")
    rope = read(out / "config.json")["rope_parameters"]
    assert (rope["factor"], rope["original_max_position_embeddings"]) == (4.0, 32768)
    frequencies, scale = yarn(1_000_000.0, 32768)
    rotary = AutoModelForCausalLM.from_pretrained(out).model.rotary_emb
    assert torch.allclose(rotary.inv_freq.double(), frequencies, rtol=1e-6)
    assert rotary.attention_scaling == pytest.approx(scale)
