"""The reference model: what it is, what it was trained on, and the order of the schedules on it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.evals.reference import CHECKPOINT, HELD_OUT, held_out_documents


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
    beginnings = [text[:20_000] for text in documents]
    assert min(len(ids) for ids in tokenizer(beginnings)["input_ids"]) > 4096
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
