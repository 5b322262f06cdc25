"""The example of a training in the docs, run as it stands."""

import runpy
from pathlib import Path

import pytest
import torch
from tiny import TEXT, checkpoint, llama
from transformers import AutoModelForCausalLM
from transformers.integrations.integration_utils import rewrite_logs

import ropescale

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["full", "lora", "pose"])
def test_the_example_trains_measures_and_saves_a_schedule_that_is_live(repository, tmp_path, kind, capfd):
    if kind == "lora":
        pytest.importorskip("peft")
    example = runpy.run_path(str(repository / "docs" / "examples" / "finetune.py"))
    assert len(Path(repository, "docs/examples/finetune.py").read_text().splitlines()) <= 150
    source = checkpoint(tmp_path / "source", llama(vocab_size=258))
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text(TEXT * 20)
    words = [str(source), "--schedule", "yarn:factor=2", "--data", str(tmp_path / "train.txt"), "--steps", "2"]
    words += ["--batch", "1", "--eval-data", str(tmp_path / "test.txt"), "-o", str(tmp_path / "OUT")]
    words += ["--report-to", "none", *([] if kind == "full" else [f"--{kind}"])]
    done = example["train"](example["parsed"]([*words, "--learning-rate", "1e-2"]))
    assert capfd.readouterr().err.count("tokens/s\n") == 2  # of both measurements
    groups = [rewrite_logs(entry).keys() for entry in done.state.log_history]  # in W&B and TensorBoard
    assert sum({"eval/ppl_128", "eval/short_context_cost"} <= names for names in groups) == 2
    figures = [entry["eval_ppl_128"] for entry in done.state.log_history if "eval_ppl_128" in entry]
    assert len(figures) == 2 and figures[1] < figures[0]
    if kind != "lora":
        assert ropescale.verify(tmp_path / "OUT").live
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "OUT").state_dict()
        assert not torch.equal(found["lm_head.weight"], llama(vocab_size=258).state_dict()["lm_head.weight"])
    else:
        assert (tmp_path / "OUT" / "adapter_config.json").is_file()
