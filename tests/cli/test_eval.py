"""``ropescale eval``: the command, its output and its errors."""

import json
import math
from functools import partial
from itertools import chain
from statistics import mean

import pytest
import torch
from configurations import write_checkpoint
from coverage_models import build, tiny_config
from crashing import raising, unchanged
from refusing import one_error
from tiny import TEXT, byte_tokenizer, llama, naive_nll
from transformers import AutoModelForCausalLM

import ropescale
from ropescale.errors import CheckpointError
from ropescale.evals.results.result import Result
from ropescale.evals.scoring.scorer import Scorer


@pytest.fixture
def evaluate(ran, checkpoint, texts):
    """Runs ``ropescale eval`` on these texts."""
    return partial(ran, "eval", checkpoint, "--data", texts)


def test_without_a_factor_the_largest_length_over_the_trained_one_is_taken_and_said(evaluate):
    words = ["--lengths", "96,160", "--schedule", "yarn", "--schedule", "linear:factor=3", "--json"]
    out, err = evaluate(*words)
    found = json.loads(out)["rows"]
    assert {row["schedule"] for row in found} == {"as-is", "yarn:factor=2.5", "linear:factor=3"}
    assert "note: yarn: no factor is given; uses 2.5, the largest length divided by the trained length" in err
    same = json.loads(evaluate(*words[:2], "--schedule", "yarn:factor=2.5", "--json").out)["rows"]
    assert [row for row in found if "linear" not in row["schedule"]] == same


def test_an_attention_is_chosen_and_stated_and_another_one_is_another_run(evaluate, refused, checkpoint, tmp_path):
    words = ["--lengths", "32,96", "--json", "-o", tmp_path / "out", "--attn-implementation"]
    found = {name: evaluate(*words, name) for name in ("eager", "sdpa")}
    eager, sdpa = (json.loads(each.out) for each in found.values())
    assert (eager["model"]["attention"], sdpa["model"]["attention"]) == ("eager", "sdpa")
    assert [row["ppl"] for row in eager["rows"]] == pytest.approx([row["ppl"] for row in sdpa["rows"]], rel=1e-5)
    assert "starting a new run, because this changed: attention" in found["sdpa"].err
    assert ", float32, sdpa" in (tmp_path / "out" / "REPORT.md").read_text()
    said = refused("eval", checkpoint, *words, "sdpaa")
    assert "invalid value for '--attn-implementation': 'sdpaa' is not one of 'eager', 'sdpa'," in said


def test_stdout_is_the_table_alone(evaluate):
    out, err = evaluate("--lengths", "32,64,0.125k", "--schedule", "yarn:factor=2")
    said, table, rests, where = out.removesuffix("\n").split("\n\n")
    tables, _, last = table.rpartition("\n")
    assert said.startswith("As it is, the model predicts this text worse than a uniform guess over its 257 tokens (")
    assert tables.startswith("| perplexity") and "| yarn:factor=2 " in tables and last.startswith("| truncation ")
    assert "pays off" not in out and "Lowest loss" not in out
    assert rests == "Measured on 2 documents; other texts may differ." and where == "All tables: --verbose."
    whole = evaluate("--lengths", "32,64,0.125k", "--schedule", "yarn:factor=2", "--verbose").out
    assert said in whole and "±" not in whole and "skipped: 1 too short" in whole
    assert "error" not in err and "exceed" not in err and "longer than" not in err


def test_a_book_is_measured_in_many_windows_which_are_stored_and_continued(ran, checkpoint, tmp_path, monkeypatch):
    book, out = tmp_path / "book.txt", str(tmp_path / "out")
    book.write_text("".join(f"{number} {TEXT}\n" for number in range(150)))
    options = "--lengths 16,64 --schedule yarn:factor=2 --verbose".split()
    words = ["eval", checkpoint, "--data", book, *options, "-o", out]
    small = ran(*words, "--budget-tokens", "63", code=2).err
    assert "--budget-tokens is less than one window of each document, which takes 64 tokens; raise it, or" in small
    said, _ = ran(*words, "--budget-tokens", "2560")
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    data, size = stored["data"], len(book.read_bytes())
    assert (data["documents"], data["windows"], data["tokens"]) == (1, 40, 40 * 63)
    assert (data["whole"], data["unit"]) == (size, "bytes") and data["share"] == data["measured"] / size
    assert (stored["protocol"]["windows"], stored["protocol"]["budget_tokens"]) == (None, 2560)
    assert f"40 windows, {100 * data['share']:.3g}% of {size:,} bytes" in said
    assert {row["interval"] for row in stored["rows"]} == {"40 windows in 5 blocks"}
    assert all(row["ppl_low"] < row["ppl"] < row["ppl_high"] for row in stored["rows"])
    assert Result.load(out).to_markdown() in said
    monkeypatch.setattr(Scorer, "score", lambda *args, **more: pytest.fail("scored again"))
    assert ran(*words, "--budget-tokens", "2560").out == said


def naive_losses(model, length):
    """The losses of the first tokens of each of the long documents, by the naive loop."""
    encoded = byte_tokenizer()([TEXT * 3, TEXT[::-1] * 3], add_special_tokens=False).input_ids
    return [naive_nll(model, [256, *ids][:length]) for ids in encoded]


@pytest.mark.parametrize(("given", "dtype"), [("float32", "float32"), ("bf16", "bfloat16"), ("float16", "float16")])
def test_json_has_every_digit_and_equals_the_naive_loop_in_any_dtype(evaluate, checkpoint, tmp_path, given, dtype):
    words = ["--lengths", "64", "--lengths", "16,32", "--windows", "1", "--dtype", given]
    out, _ = evaluate(*words, "--json", "-o", tmp_path / "OUT")
    assert (f"{dtype} rounds" in (tmp_path / "OUT" / "REPORT.md").read_text()) is (dtype != "float32")
    found, stock = json.loads(out), AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
    assert found["model"]["dtype"] == dtype and [row["length"] for row in found["rows"]] == [16, 32, 64]
    for row in found["rows"]:
        losses = chain.from_iterable(naive_losses(stock, row["length"]))
        assert row["nll"] == pytest.approx(mean(losses), abs=2e-6)


IMPOSSIBLE = [
    ("--lengths 1k", "no document has the 1,023 tokens needed; the longest"),
    ("--lengths 1", "length 1 leaves no token to score"),
    ("--schedule yarn", "yarn needs a factor"),
    ("--schedule yarn:factor=2 --factor 2,4", "has its own factor, and factors 2,4 are"),
    ("--schedule yarn:factor=4 --target-length 128", "factor 4 x trained length 64"),
    ("--schedule runs/a.txt", "a schedule's file must end in .json or .py"),
    ("--bos 257", "bos id 257 is outside"),
    ("--device abacus", "device 'abacus' cannot be used"),
    ("--dtype float23", "'float23' is not one of 'auto', 'float32'"),
    ("-o FILE/out", "is a file; choose another folder"),
]


@pytest.mark.parametrize(("words", "sentence"), IMPOSSIBLE)
def test_what_cannot_be_measured_is_one_sentence(refused, checkpoint, texts, words, sentence):
    given = words.replace("FILE", str(texts / "a.txt")).split()
    assert sentence in refused("eval", checkpoint, "--data", texts, "--lengths", "64", *given)


def test_a_checkpoint_without_weights_or_tokenizer_is_one_sentence(refused, texts, tmp_path):
    model = write_checkpoint(tmp_path / "model", llama(vocab_size=257).config.to_dict())
    words = ["eval", model, "--data", texts, "--lengths", "64"]
    assert "has no tokenizer that transformers can load (copy the model's tokenizer files into it)" in refused(*words)
    byte_tokenizer().save_pretrained(model)
    assert "does not load as a causal language model" in refused(*words)


def test_an_output_that_is_not_ours_is_refused_before_the_weights_are_read(refused, texts, tmp_path):
    words = ["/no/such/model", "--data", texts, "--lengths", "64", "-o"]
    for name in ("", "~no-such-user/out"):
        said = refused("eval", *words, name)
        assert f"cannot write into {name!r}" in said and "; choose another folder" in said


def test_the_results_of_another_kind_of_run_are_refused_and_left_alone(ran, refused, checkpoint, texts, tmp_path):
    out, given = tmp_path / "out", ["--lengths", "300", "--depths", "0.5", "--trials", "1"]
    ran("retrieval", checkpoint, *given, "-o", out)
    with unchanged(out):
        sentence = refused("eval", "/no/such/model", "--data", texts, "--lengths", "64", "-o", str(out))
    assert sentence == f"error: {out} holds a retrieval run, and this is a perplexity run; choose another folder"


def test_the_result_is_printed_even_when_it_cannot_be_saved(evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "save", raising(CheckpointError("cannot write: no space left")))
    out, err = evaluate("--lengths", "64", "-o", tmp_path / "out", code=2)
    assert "\n\n| perplexity" in out and "no space left" in err


def test_logits_that_are_not_finite_fail_the_run_and_keep_what_was_finished(evaluate, tmp_path, monkeypatch):
    score = Scorer.score

    def breaking(self, ids, chunk=None):
        scaled = self.model.config.rope_parameters["rope_type"] == "linear"
        return score(self, ids, chunk) * (math.nan if scaled else 1.0)

    monkeypatch.setattr(Scorer, "score", breaking)
    out, err = evaluate("--lengths", "64", "--schedule", "linear:factor=2", "-o", tmp_path / "out", code=1)
    assert not out and "error: the model's logits are NaN or infinite in" in err
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["schedule"] for row in saved["rows"]] == ["as-is"]


# --- a request for every schedule --------------------------------------------------------------------------------


def tables(evaluate, *words):
    """The frequencies that each schedule was measured with, by its label."""
    found = json.loads(evaluate("--lengths", "32,64", "--json", *words).out)
    rows = [row for row in found["rows"] if row["length"] == 64]
    return {row["schedule"]: found["tables"][row["table_sha256"]]["all"]["inv_freq"] for row in rows}


def expected(spec, **request):
    (found,) = ropescale.frequencies(llama(vocab_size=257).config.to_dict(), spec, **request).values()
    return list(found.inv_freq)


def test_factors_multiply_the_schedules_that_take_one(evaluate):
    words = ["--schedule", "YaRN", "--schedule", "abf:rope_theta=9000", "--factor", "2,4,2"]
    assert [*tables(evaluate, *words)] == ["as-is", "yarn:factor=2", "yarn:factor=4", "abf:rope_theta=9000"]


def test_a_field_is_set_in_every_schedule_that_has_it_and_stands_in_its_label(evaluate):
    words = ["--schedule", "yarn", "--schedule", "linear", "--factor", "4", "--set", "beta_fast=16"]
    found = tables(evaluate, *words)
    assert set(found) == {"as-is", "yarn:beta_fast=16,factor=4", "linear:factor=4"}
    for spec, table in found.items():
        assert table == pytest.approx(expected(spec), rel=1e-6)


def test_a_length_dependent_schedule_is_measured_frozen(evaluate):
    words = ["--schedule", "dynamic:factor=4", "--schedule", "linear:factor=2", "--baseline", "as-is"]
    found = tables(evaluate, *words, "--freeze-at", "192")
    frozen = expected("dynamic:factor=4", freeze_at=192)
    assert found["dynamic:factor=4"] == pytest.approx(frozen, rel=1e-6)
    assert found["dynamic:factor=4"] != pytest.approx(found["as-is"], rel=1e-6)
    assert found["linear:factor=2"] == pytest.approx(expected("linear:factor=2"), rel=1e-6)


def test_a_model_that_also_sees_is_measured_by_text_as_stock_transformers_computes_it(tmp_path, texts, ran):
    config = tiny_config("qwen3_vl", text_config={"vocab_size": 257})
    model = build(write_checkpoint(tmp_path / "model", config))
    model.save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    words = ("--lengths", "32", "--windows", "1", "--no-truncation", "-o", tmp_path / "out")
    ran("eval", tmp_path / "model", "--data", texts, *words)
    found = Result.load(tmp_path / "out").losses("as-is", 32)
    for row, wanted in zip(found, naive_losses(model, 32), strict=True):
        assert list(row) == pytest.approx(wanted, abs=3e-5)


def test_a_model_that_reads_a_text_in_both_directions_is_refused(tmp_path, texts, ran):
    folder = write_checkpoint(tmp_path / "model", tiny_config("paligemma"))
    byte_tokenizer().save_pretrained(folder)
    one_error(ran("eval", folder, "--data", texts, "--lengths", "32", code=2).err, "paligemma", "bidirectional")


def test_the_demo_replaces_no_other_evaluation_and_says_so_before_it_measures(evaluate, refused, tmp_path):
    evaluate("--lengths", "32", "-o", tmp_path / "out")
    with unchanged(tmp_path):
        said = refused("demo", "-o", tmp_path / "out")
    assert "holds the results of another text; choose another folder" in said
