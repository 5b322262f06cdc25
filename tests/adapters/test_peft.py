"""A model with a LoRA adapter: patched, measured and saved like any other."""

import peft
import pytest
import tiny
import torch

import ropescale
from ropescale.errors import ConfigError, RopescaleError


def with_adapter() -> peft.PeftModel:
    torch.manual_seed(0)
    settings = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False)
    return peft.get_peft_model(tiny.llama(), settings).eval()


def test_a_patch_goes_through_the_adapter_and_comes_out_bit_for_bit():
    model, ids = with_adapter(), torch.arange(60).unsqueeze(0) % 16
    before = model(ids).logits
    with ropescale.patch(model, "yarn:factor=4"):
        patched = model(ids).logits
        assert not torch.allclose(patched, before)
        assert ropescale.verify(model).live
        assert torch.allclose(model.merge_and_unload().eval()(ids).logits, patched, atol=1e-4)
    model = with_adapter()
    assert torch.equal(model(ids).logits, before)


def test_the_adapter_alone_can_be_saved_under_a_schedule_no_file_can_carry(tmp_path):
    model = with_adapter()
    with ropescale.patch(model, "dynamic-yarn"):
        model.save_pretrained(tmp_path)
        with pytest.raises(RopescaleError, match=r"cannot be saved.*freeze"):
            model.get_base_model().save_pretrained(tmp_path / "base")
    assert (tmp_path / "adapter_config.json").exists()


def test_perplexity_counts_the_adapter():
    ids = [torch.randint(0, 16, (130,), generator=torch.Generator().manual_seed(1)).tolist()]
    lengths, schedules = [64, 128], ["yarn:factor=4"]
    adapted = ropescale.evals.perplexity(with_adapter(), ids, lengths, schedules)
    merged = ropescale.evals.perplexity(with_adapter().merge_and_unload().eval(), ids, lengths, schedules)
    plain = ropescale.evals.perplexity(tiny.llama(), ids, lengths, schedules)
    compiled = ropescale.evals.perplexity(torch.compile(with_adapter(), backend="eager"), ids, [64])
    assert compiled.rows[0].nll == ropescale.evals.perplexity(with_adapter(), ids, [64]).rows[0].nll
    for ours, theirs, without in zip(adapted.rows, merged.rows, plain.rows, strict=True):
        assert abs(ours.nll - theirs.nll) < 1e-5
        assert abs(ours.nll - without.nll) > 1e-4


def test_learned_prompts_are_refused_because_they_are_not_inside_the_model():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model = peft.get_peft_model(tiny.llama(), config)
    with pytest.raises(ConfigError, match=r"PromptTuningConfig\) is a learned prompt"):
        ropescale.evals.perplexity(model, [[1] * 40], [32])
