"""verify: the intended table is live, or the reason why not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from configurations import DEEPSEEK_V3, edit, edit_rope
from tiny_models import build
from transformers import AutoModelForCausalLM, LlamaConfig

import ropescale
from ropescale.cli.main import main
from ropescale.errors import ConfigError, DataError, ScheduleError, VerificationError
from ropescale.verifying.examining import examine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny checkpoint as transformers 5 saves it."""
    build().save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


SPECS = ["ntk:factor=4", "dynamic:factor=4", "yarn:factor=4", "yarn:factor=4,extrapolation_factor=0.5"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_patched_checkpoint_is_live(folder, tmp_path, spec):
    ropescale.patch_checkpoint(folder, tmp_path / "out", spec)
    report = ropescale.verify(tmp_path / "out")
    assert [(m.name, m.pairs, m.dtype) for m in report.modules] == [("model.rotary_emb", 4, "float32")]
    assert report.modules[0].difference < 5.2e-7
    assert repr(report) == f"<Verification of {tmp_path / 'out'}: live: yes (all: {spec}, at {report.length} tokens)>"


SHORTER = {"original_max_position_embeddings": 32}
YARN_BY_HAND = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


EDITED = [
    ("llama", "yarn:factor=4", {"rope_theta": 5e5}, {"rope_theta": None, "rope_scaling": None}, "differs by"),
    ("llama", None, {}, {"rope_scaling": YARN_BY_HAND}, r"rope_parameters.*rope_scaling"),  # loses theta
    ("gemma3_text", None, {}, {"rope_parameters": YARN_BY_HAND}, "would be ignored by transformers"),
    ("llama", "two lists", {"short_factor": [2.0] * 4}, {}, r"differs by 5\.0e-01 relative at 64 tokens"),
    ("llama", "two lists", SHORTER, SHORTER, "at 64"),
]


@pytest.mark.parametrize(("kind", "spec", "inside", "beside", "words"), EDITED)
def test_a_folder_edited_by_hand_is_not_live(kind, spec, inside, beside, words, tmp_path):
    build(kind).save_pretrained(tmp_path / "in")
    wanted = {"full_attention", "sliding_attention"} if kind == "gemma3_text" else {"all"}
    assert {m.layer_type for m in ropescale.verify(tmp_path / "in").modules} == wanted
    folder = tmp_path / "in"
    if spec:
        folder = ropescale.patch_checkpoint(folder, tmp_path / "out", TWO_LISTS if spec == "two lists" else spec).folder
    if inside:
        edit_rope(folder, **inside)
    edit(folder, **beside)
    with pytest.raises(VerificationError, match=words):
        ropescale.verify(folder)


def test_a_model_of_671_billion_parameters_is_verified_without_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    report = ropescale.verify(tmp_path)
    assert [(m.pairs, m.attention_scale) for m in report.modules] == [(32, 1.0)]
    assert report.softmax_factor == pytest.approx(1.8739, rel=3e-5)  # by the configuration, without a record


def test_the_command_exits_with_one_and_the_reason(folder, tmp_path, capsys):
    ropescale.patch_checkpoint(folder, tmp_path / "out", "yarn:factor=4")
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "live: yes (all: yarn:factor=4, at 256 tokens)" in capsys.readouterr().out
    edit(tmp_path / "out", rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    assert main(["verify", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert "live: NO" in captured.out
    said = "error: model.rotary_emb (all layers) does not have the intended table: it differs by"
    assert captured.err.startswith(said)
    assert main(["verify", str(tmp_path / "out"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["live"] is False
    assert main(["verify", str(folder), "--revision", "main"]) == 2
    assert "revision applies to a model on the Hub" in capsys.readouterr().err
    edit(tmp_path / "out", model_type="gpt2")
    assert main(["verify", str(tmp_path / "out")]) == 2 and "gpt2" in capsys.readouterr().err


def test_a_lost_schedule_without_a_record_is_caught_by_what_it_should_be(folder, tmp_path, ran):
    """A trainer saves config.json alone: once with the theta of NTK, once with the theta before."""
    patched = ropescale.patch_checkpoint(folder, tmp_path / "patched", "ntk:factor=2").folder
    asked = [["--like", patched], ["--like", folder, "--schedule", "ntk:factor=2"]]
    kept, lost = (shutil.copytree(patched, tmp_path / name) for name in ("kept", "lost"))
    edit(lost, rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    for tuned, code, theta in ((kept, 0, "2"), (lost, 1, "10,000")):
        (tuned / "ropescale.json").unlink()
        out, _ = ran("verify", tuned)
        assert f"the modules agree with the configuration: yes (all: default of 64, theta {theta}" in out
        assert "live: yes" not in out and all(each in out for each in ("the original (--like)", "no weights were read"))
        for words in asked:
            out, _ = ran("verify", tuned, *words, code=code)
            assert f"live: {'NO' if code else 'yes'} (all: ntk:factor=2" in out and ("(--generate does)" in out) != code
    for spec in ("ntk", "ntk:factor=2"):
        assert "name the original (--like)" in ran("verify", lost, "--schedule", spec, code=1)[1]
    with pytest.raises(VerificationError, match="does not have the intended table"):
        ropescale.verify(lost, like=patched)
    with pytest.raises(VerificationError, match="does not have the intended table"):
        ropescale.verify(AutoModelForCausalLM.from_pretrained(patched), schedule="as-is")
    assert ropescale.verify(AutoModelForCausalLM.from_pretrained(kept), like=patched).live
    for spec, error, why in (
        ("yrn", ScheduleError, "did you mean 'yarn'"),
        ("as-is", DataError, "as-is compares the model with itself; leave schedule out, or name the original"),
        ("yarn", ScheduleError, "needs its factor; give it, as in yarn:factor=8"),  # no longer context is stated
    ):
        edit(lost, max_position_embeddings=64)
        for model in (lost, build()):
            with pytest.raises(error, match=why):
                ropescale.verify(model, schedule=spec)


def test_a_loaded_model_is_live_and_says_what_is_installed():
    model = build()
    found = ropescale.verify(model)
    assert (found.intended, found.length) == ("all: default of 64, theta 10,000", 64)
    with pytest.raises(VerificationError, match="does not have the intended table"):
        ropescale.verify(model, schedule="linear:factor=2")
    with ropescale.patch(model, "yarn:factor=4"):
        found = ropescale.verify(model)
        assert (found.intended, found.length) == ("all: yarn:factor=4", 256)
        assert ropescale.verify(model, schedule="yarn:factor=4").live
    with ropescale.patch(model, "dynamic:factor=4", length=100):
        assert ropescale.verify(model).length == 100


def test_tables_rounded_by_a_cast_are_named():
    model = build().to(torch.bfloat16)
    with pytest.raises(VerificationError, match="rounded to bfloat16"):
        ropescale.verify(model)
    with ropescale.patch(model, "yarn:factor=4"):
        assert ropescale.verify(model).modules[0].dtype == "float32"


def test_a_configuration_or_a_table_changed_after_loading_is_not_live():
    model = build()
    with ropescale.patch(model, "yarn:factor=4"):
        model.model.rotary_emb.inv_freq.mul_(0.5)
        with pytest.raises(VerificationError, match=r"differs by 5\.0e-01"):
            ropescale.verify(model)
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq[:3]
        with pytest.raises(VerificationError, match=r"model\.rotary_emb .* has a table of 3 pairs instead of 4"):
            ropescale.verify(model)
    model = build()
    model.config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    with pytest.raises(VerificationError, match="does not have the intended table"):
        ropescale.verify(model)
    with torch.device("meta"), pytest.raises(ConfigError, match="on the meta device"):
        ropescale.verify(build())


def test_a_table_of_a_module_that_nobody_calls_is_named():
    model, linear = build(), build(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    model.model.layers[0].self_attn.rotary_emb = linear.model.rotary_emb
    assert "layers.0.self_attn.rotary_emb is never called" in examine(model).problems[-1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("spec", [None, "yarn:factor=4"])
def test_a_table_or_scale_that_is_no_number_is_not_live(bad, spec):
    model = build()
    if spec:
        ropescale.patch(model, spec)
    kept = model.model.rotary_emb.inv_freq.clone()
    model.model.rotary_emb.inv_freq[3] = bad
    assert examine(model).modules[0].difference == float("inf")
    with pytest.raises(VerificationError, match="does not have the intended table"):
        ropescale.verify(model)
    model.model.rotary_emb.inv_freq.copy_(kept)
    assert ropescale.verify(model).live
    model.model.rotary_emb.attention_scaling = bad
    with pytest.raises(VerificationError, match="does not have the intended table"):
        ropescale.verify(model)


TWO_LISTS = {"name": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0], "factor": 4.0}


@pytest.mark.parametrize(("name", "length"), [("short_factor", 64), ("long_factor", 65)])
def test_both_lists_of_a_loaded_model_are_checked(name, length):
    model = build()
    ropescale.patch(model, TWO_LISTS)
    assert ropescale.verify(model).live
    model.config.rope_parameters[name] = [2 * factor for factor in TWO_LISTS[name]]
    with pytest.raises(VerificationError, match=rf"differs by 5\.0e-01 relative at {length} tokens"):
        ropescale.verify(model)


LIVE = ["dynamic:factor=4", "dynamic-yarn", "yarn:factor=4", "resonance:over=linear,factor=4", TWO_LISTS]


@pytest.mark.parametrize("length", [None, 200])
@pytest.mark.parametrize("spec", LIVE)
def test_a_patched_model_is_live_before_and_after_long_inputs(spec, length):
    model = build()
    with ropescale.patch(model, spec, length=length):
        assert ropescale.verify(model).live
        model(torch.zeros(1, 200, dtype=torch.long))
        assert ropescale.verify(model).live


def test_the_tables_of_an_image_encoder_are_not_the_language_models():
    model, tower, rotary = build(), torch.nn.Module(), torch.nn.Module()
    rotary.register_buffer("inv_freq", torch.ones(4), persistent=False)
    tower.rotary, tower.config = rotary, LlamaConfig()
    tower.config.model_type = "some_encoder"
    model.model.tower = tower
    assert ropescale.verify(model).live


@pytest.mark.parametrize("held", [None, 256])
def test_a_forward_that_ignores_the_table_is_not_live(held):
    model, base = build(), build()
    with ropescale.patch(model, "dynamic:factor=4" if held else "yarn:factor=4", length=held):
        assert ropescale.verify(model).live
        model.model.rotary_emb.forward = base.model.rotary_emb.forward
        with pytest.raises(VerificationError, match="its cos does not match it"):
            ropescale.verify(model)


# ---------------------------------------------------------------------------------------------------------
# The softmax scale of MLA models


EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "topk_group": 1, "n_group": 1}
MLA = {"deepseek_v2": EXPERTS, "deepseek_v3": EXPERTS, "minicpm3": {}, "youtu": {}}
MSCALES = [  # factor 40: the softmax factor and the attention scale that transformers' classes were seen to have
    ("mscale=1,mscale_all_dim=1", 1.8739, 1.0),
    ("mscale=1,mscale_all_dim=0.5", 1.4029, 1.1557),
    ("truncate=true", 1.0, 1.3689),
]


def tiny_mla(kind: str, **changes: Any) -> Any:
    sizes = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    return build(kind, **{**sizes, "head_dim": 8, "num_key_value_heads": 4, **MLA[kind], **changes})


@pytest.mark.parametrize("kind", MLA)
@pytest.mark.parametrize(("weights", "softmax", "attention"), MSCALES)
def test_the_softmax_scale_of_mla_is_verified_on_disk_and_in_memory(kind, weights, softmax, attention, tmp_path):
    model, spec = tiny_mla(kind), f"yarn:factor=40,{weights}"
    model.save_pretrained(tmp_path / "in")
    ropescale.patch_checkpoint(tmp_path / "in", tmp_path / "out", spec)
    on_disk = ropescale.verify(tmp_path / "out")
    with ropescale.patch(model, spec):
        for report in (on_disk, ropescale.verify(model)):
            assert report.softmax_factor == pytest.approx(softmax, rel=3e-5)
            assert report.modules[0].attention_scale == pytest.approx(attention, rel=3e-5)
        model.model.layers[1].self_attn.scaling *= 1.01
        with pytest.raises(VerificationError, match=r"layers\.1\.self_attn multiplies its softmax scale by"):
            ropescale.verify(model)
        model.model.layers[1].self_attn.scaling /= 1.01
    assert ropescale.verify(model).softmax_factor == 1.0


def test_a_softmax_scale_other_than_the_recorded_one_is_not_live(tmp_path):
    tiny_mla("deepseek_v3").save_pretrained(tmp_path / "in")
    ropescale.patch_checkpoint(tmp_path / "in", tmp_path / "out", "yarn:factor=40,mscale=1,mscale_all_dim=1")
    # which leaves the table and the attention scale as they are
    edit_rope(tmp_path / "out", mscale=0.5, mscale_all_dim=0.5)
    with pytest.raises(VerificationError, match=r"1 more layers\) multiplies .* 1\.4029\d* instead of 1\.8738"):
        ropescale.verify(tmp_path / "out")


def test_deepseeks_softmax_scale_stays_under_a_table_that_goes_on_top_of_its_own(tmp_path):
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 64}
    parameters = {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}
    tiny_mla("deepseek_v3", rope_parameters=parameters, max_position_embeddings=2560).save_pretrained(tmp_path / "in")
    ropescale.patch_checkpoint(tmp_path / "in", tmp_path / "out", "giraffe:scale_power=0.5", on_top=True)
    assert ropescale.verify(tmp_path / "out").softmax_factor == pytest.approx(1.8739, rel=3e-5)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older torch")
@pytest.mark.parametrize("backend", ["cuda", "mkldnn"])
def test_tables_are_compared_in_full_precision_whatever_the_caller_allows(backend, monkeypatch):
    model, matmul, seen = build("llama"), getattr(torch.backends, backend).matmul, []
    own, before = type(model.model.rotary_emb).forward, matmul.fp32_precision

    def watched(*given, **named):
        seen.append(matmul.fp32_precision)
        return own(*given, **named)

    monkeypatch.setattr(type(model.model.rotary_emb), "forward", watched)
    matmul.fp32_precision = "tf32"
    try:
        ropescale.verify(model)
        assert "ieee" in seen and matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
