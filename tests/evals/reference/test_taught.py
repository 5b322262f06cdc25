"""The reference model that was taught to answer: what it answers, what it was taught, and that it stays small."""

import json

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.evals.reference import CHECKPOINT, PASSKEY, held_out_documents, load_taught, save_taught
from ropescale.evals.reference.__main__ import main


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.mark.slow
def test_it_answers_within_its_trained_length_and_beyond_it_under_yarn_alone(tokenizer):
    yarn = "yarn:factor=8"
    result = ropescale.evals.retrieval(load_taught(), [256, 1024], [yarn], tokenizer=tokenizer, depths=4, trials=1)
    asked = {(row.schedule, row.length): row.accuracy for row in result.rows if row.depth is None}
    assert asked == {("as-is", 256): 1, ("as-is", 1024): 0, (yarn, 256): 1, (yarn, 1024): 1}


@pytest.mark.slow
def test_it_predicts_python_nearly_as_well_as_before(tokenizer):
    """Within 4% of the perplexity of the first 256 tokens of the 26 held-out modules, by transformers' loss."""
    beginnings = [text[:2000] for text in held_out_documents()]
    ids = torch.tensor([each[:256] for each in tokenizer(beginnings)["input_ids"]])
    before = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    with torch.inference_mode():
        old, new = (float(model(input_ids=ids, labels=ids).loss.exp()) for model in (before, load_taught()))
    assert old == pytest.approx(19.19, abs=0.01)
    assert new == pytest.approx(19.84, abs=0.01) and new < 1.04 * old


def test_both_models_are_below_ten_megabytes_and_the_adapter_names_its_base_and_no_path_of_a_machine():
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in (CHECKPOINT, PASSKEY)]
    assert sum(sizes) < 10_000_000 and sizes[1] < 2_000_000
    settings = json.loads((PASSKEY / "adapter_config.json").read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == CHECKPOINT.name
    assert (settings["r"], settings["lora_alpha"]) == (8, 16)


def test_merging_is_what_peft_does():
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(base, str(PASSKEY)).merge_and_unload().state_dict()
    found, plain = load_taught().state_dict(), AutoModelForCausalLM.from_pretrained(CHECKPOINT).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-7)
        assert torch.equal(weight, plain[name].float()) == (".self_attn." not in name), name


def test_the_taught_model_is_a_checkpoint_that_stock_transformers_loads(tmp_path, tokenizer):
    save_taught(tmp_path / "TAUGHT")
    ids = tokenizer("import os\n", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "TAUGHT", dtype=torch.float32)(ids).logits
        assert torch.equal(found, load_taught()(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "TAUGHT")("import os\n")["input_ids"] == ids[0].tolist()


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "mine.txt").symlink_to("nothing")
    for out in (tmp_path, tmp_path / "mine.txt"):
        done = CliRunner().invoke(main, ["--taught", "-o", str(out)])
        assert done.exit_code == 2 and "exists already" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
