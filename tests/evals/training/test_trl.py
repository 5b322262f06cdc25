"""TRL's SFTTrainer, full and with an adapter: what it saves loads in stock transformers and PEFT with the schedule."""

from pathlib import Path

import peft
import pytest
import torch
import training
from launching import finished

import ropescale


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_sft_trainer_runs_with_nothing_but_the_callback_added(tmp_path, kind):
    source, script = training.checkpoint(tmp_path / "source"), Path(training.__file__).with_name("trl_training.py")
    finished([script, source, tmp_path / "out", kind], script.parent, script.parent.parent)
    folder = tmp_path / "out" / "checkpoint-4"
    if kind == "full":
        assert training.weights(source).keys() == training.weights(folder).keys()
        assert not training.same(source, folder)
        model = training.loaded(folder)
    else:
        model = peft.AutoPeftModelForCausalLM.from_pretrained(folder)
    ropescale.patch_checkpoint(source, tmp_path / "oracle", "yarn:factor=4")
    stock = training.loaded(tmp_path / "oracle").model.rotary_emb
    live = next(module for name, module in model.named_modules() if name.endswith("rotary_emb"))
    assert torch.equal(live.inv_freq, stock.inv_freq) and live.attention_scaling == stock.attention_scaling
    assert (folder / "ropescale.json").is_file()
