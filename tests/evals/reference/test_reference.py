"""The reference model: what it is, what it was trained on, and the order of the schedules on it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.evals.reference import CHECKPOINT, HELD_OUT, PASSKEY, held_out_documents, load_taught, save_taught


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def measured(tokenizer):
    """``{(schedule, length): perplexity}`` of the first held-out module."""
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    schedules = ["linear:factor=8", "ntk:factor=8", "yarn:factor=8,attention_factor=1", "yarn:factor=8"]
    result = ropescale.evals.perplexity(
        *(model, held_out_documents()[:1], [256, 512, 2048], schedules),
        tokenizer=tokenizer, windows=1, short_context=False,
    )  # fmt: skip
    return {(row.schedule, row.length): row.ppl for row in result.rows}


def test_it_is_a_small_bf16_llama_trained_at_256_tokens():
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_475_712
    assert (model.dtype, model.config.max_position_embeddings) == (torch.bfloat16, 256)
    assert model.config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


def test_the_tokenizer_puts_its_one_special_token_first_and_loses_nothing(tokenizer):
    text = "def f(x):\n    return 'naïve – ☃' + x\n"
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id == 0
    assert tokenizer.decode(ids[1:]) == text


def test_yarn_turns_a_collapse_into_a_gain_and_the_schedules_come_in_the_order_of_the_paper(measured):
    assert measured["as-is", 2048] > 4 * measured["yarn:factor=8", 2048]
    assert measured["yarn:factor=8", 2048] < measured["as-is", 256]
    yarn, cold = "yarn:factor=8", "yarn:factor=8,attention_factor=1"
    at_2048 = [measured[schedule, 2048] for schedule in (yarn, cold, "ntk:factor=8", "linear:factor=8", "as-is")]
    assert at_2048 == sorted(at_2048)
    at_256 = [measured[schedule, 256] for schedule in ("as-is", "ntk:factor=8", yarn, "linear:factor=8")]
    assert at_256 == sorted(at_256)
    assert measured["ntk:factor=8", 512] < measured["ntk:factor=8", 256] < measured["ntk:factor=8", 2048]


def test_held_out_modules_are_long_and_lie_outside_the_tests(tokenizer):
    documents = held_out_documents()
    assert len(documents) == len(HELD_OUT) == 26
    assert min(len(ids) for ids in tokenizer([text[:20_000] for text in documents])["input_ids"]) > 4096
    assert not any(name.startswith(("test/", "idlelib/", "tkinter/")) for name in HELD_OUT)


@pytest.mark.slow
def test_the_demo_prints_the_order_and_leaves_its_files_one_of_which_repeats_it(tmp_path, ran, pictures):
    printed, _ = ran("demo", "-o", tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())["rows"]
    rows = {row["schedule"]: row for row in written[3::4]}
    ppl = {name: row["ppl"] for name, row in rows.items()}
    assert ppl["as-is"] > ppl["linear:factor=8"] > 5 * ppl["yarn:factor=8"]
    assert all(row["length"] == 2048 and row["forward_passes"] == 26 for row in rows.values())
    assert "| yarn:factor=8 " in printed
    assert ropescale.verify(tmp_path / "yarn-x8").live
    assert (tmp_path / "ppl_vs_length.png").stat().st_size > 10_000
    assert json.loads(ran("eval", "--config", tmp_path / "run.yaml", "--json").out)["rows"] == written


# --- the reference model that was taught to answer ---


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
        with pytest.raises(ropescale.RopescaleError, match="exists already"):
            save_taught(out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
