"""``ropescale verify --server``: which of two models a server agrees with, past the trained length."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
import transformers
from fake_engine import serving

import ropescale
from ropescale.evals.backends import server_verifying as verifying

served = cache(tiny.logprobs_of)


@pytest.fixture(scope="module")
def folders(checkpoint, tmp_path_factory):
    """The unpatched folder, the one that is meant to be served, and one with another factor."""
    place = tmp_path_factory.mktemp("patched")
    for name, spec in (("right", "yarn:factor=4"), ("other", "yarn:factor=8")):
        ropescale.patch_checkpoint(checkpoint, place / name, spec)
    return {"unpatched": Path(checkpoint), "right": place / "right", "other": place / "other"}


VERDICTS = [("right", "live", 0), ("unpatched", "not live: the server computes the unscaled model", 1)]
VERDICTS += [("other", "neither: the server computes neither", 1)]


@pytest.mark.parametrize(("name", "verdict", "code"), VERDICTS)
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_verdict_is_the_folders_that_is_served(kind, name, verdict, code, folders, ran):
    with serving(kind=kind, logprobs=served(folders[name]), limit=200) as engine:
        words = ["verify", folders["right"], "--server", engine.url, "--json"]
        words += [] if code == 0 and kind == "vllm" else ["--dtype", "float32"]
        out, said = ran(*words, code=code)
    report = json.loads(out)
    assert report["dtype"] == "float32" and report["tolerance"] == 1e-3  # nothing else agrees so closely
    assert report["verdict"].startswith(verdict) and (code == 0 or f"error: {verdict}" in said)
    assert report["length"] == (200 if kind == "vllm" else 199) and report["trained"] == 64
    body = engine.scored[0]
    ids = [*(body.get("prompt") or body["input_ids"]), *body.get("allowed_token_ids", [])]
    for field, folder in (("stock", "right"), ("unscaled", "unpatched")):
        apart = [abs(a - b) for a, b in zip(served(folders[name])(ids), served(folders[folder])(ids), strict=True)][63:]
        assert report[field] == pytest.approx(sum(apart) / len(apart), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("drafts", [(2, 40), (0, 12), (20, 40), None])
@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_a_draft_that_is_out_of_step_past_the_trained_length_is_warned_of(kind, drafts, folders, ran):
    """By the server's own figures: not of few draft tokens, nor where it accepts them or has no draft."""
    with serving(kind=kind, logprobs=served(folders["right"]), drafts=drafts, limit=192) as engine:
        _, said = ran("verify", folders["right"], "--server", engine.url)
    told = f"warning: {engine.url} accepts 2 of 40 draft tokens past the trained length; the draft may lack the"
    assert (told in said.replace("\n", " ")) is ("draft" in said) is (drafts == (2, 40))
    written = engine.scored[-1]
    assert 64 < len(written.get("prompt") or written["input_ids"]) <= 128


OUT_OF_RANGE = "400 Out of range float values are not JSON compliant: nan"


LIMITS = [("vllm", fault, "--max-model-len") for fault in (OUT_OF_RANGE, "NaN")]


@pytest.mark.parametrize(("kind", "fault", "option"), [*LIMITS, ("sglang", "null", "--context-length")])
def test_a_server_that_computes_nan_has_another_schedule(kind, fault, option, folders, text, ran):
    with serving(kind=kind, fault=lambda number, ids: fault) as engine:
        out, said = ran("verify", folders["right"], "--server", engine.url, "--json", code=1)
        asked = ["--tokenizer", folders["right"], "--data", text, "--lengths", "64"]
        assert "computes NaN" in ran("eval", "--server", engine.url, *asked, code=1)[1]
    report = json.loads(out)
    assert report["verdict"] == f"not this schedule: NaN; the table is probably shorter than {option}"
    assert f"error: {report['verdict']}" in said and (report["within"], report["stock"]) == (None, None)


def test_what_rounding_explains_for_both_is_the_nearer_one_or_needs_a_longer_text(folders, monkeypatch, ran):
    monkeypatch.setattr(verifying, "EXACT", 1e3)
    right, unpatched = served(folders["right"]), served(folders["unpatched"])

    def each_in_turn(ids):
        return [pair[number % 2] for number, pair in enumerate(zip(right(ids), unpatched(ids), strict=True))]

    for logprobs, code, told in (
        (right, 0, "^live "),
        (unpatched, 1, "error: not live"),
        (lambda ids: [sum(pair) / 2 for pair in zip(right(ids), unpatched(ids), strict=True)], 1, "error: cannot tell"),
        (each_in_turn, 1, r"error: cannot tell: .*; a text of some [1-9][\d,]+ tokens would decide"),
    ):
        with serving(logprobs=logprobs) as engine:
            out, said = ran("verify", folders["right"], "--server", engine.url, "--dtype", "float32", code=code)
        assert re.search(told, (out + said).replace("\n", " ")) and "stock transformers on the folder" in out


@pytest.mark.parametrize("bits", [8.5, 5.5])
@pytest.mark.parametrize(("name", "verdict"), [("right", "live"), ("unpatched", "not live"), ("other", "neither")])
def test_a_file_of_few_bits_is_told_by_two_distances_and_what_its_rounding_explains(name, verdict, bits, folders, ran):
    """The stand-in serves weights that are rounded by other code, per row, as few as the file says."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[name], dtype="float32")
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                step = weights.abs().amax(1, keepdim=True) / 2 ** (int(bits) - 1)
                weights.copy_((weights / step).round() * step)
    losses = lambda ids: [-x for x in tiny.naive_nll(model, list(ids))]  # noqa: E731
    with serving(kind="llamacpp", bits=bits, logprobs=losses) as engine:
        words = ["verify", folders["right"], "--server", engine.url, "--length", "264", "--json"]
        out, said = ran(*words, code=int(verdict != "live"))
    report = json.loads(out)
    assert report["verdict"].startswith(verdict) and report["bits"] == pytest.approx(bits, abs=0.01)
    assert report["length"] == 264 and "263 tokens to score: llama-server scores a token per request" in said


def test_a_model_that_does_not_fit_is_not_proved_and_a_weaker_test_is_named(folders, monkeypatch, ran):
    monkeypatch.setattr(verifying, "total_memory", lambda device: 1000)
    with serving(logprobs=lambda ids: [-1.0] * 63 + [-2.5] * (len(ids) - 64)) as engine:
        out, said = ran("verify", folders["right"], "--server", engine.url, code=1)
    assert "1.000 nats per token within the trained length, and 2.500 beyond" in out
    assert "does not prove that the schedule is live" in out
    assert "error: not proved: the model does not fit" in said


def test_scaling_that_was_written_by_hand_is_proved_too(folders, tmp_path, ran):
    """As Qwen's model cards say: ``rope_scaling`` in config.json, without ropescale."""
    folder = shutil.copytree(folders["unpatched"], tmp_path / "by hand")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    for name, code in ((folder, 0), (folders["unpatched"], 1)):
        with serving(logprobs=served(name), limit=200) as engine:
            ran("verify", folder, "--server", engine.url, "--dtype", "float32", code=code)


def test_what_cannot_be_verified_is_refused_before_anything_is_scored(folders, refused):
    assert "--served-name needs a server" in refused("verify", folders["right"], "--served-name", "x")
    with serving(limit=64) as engine:
        words = ["verify", folders["right"], "--server", engine.url]
        assert "ends within the trained length of 64" in refused(*words)
        assert "device 'gpu' cannot be used" in refused(*words, "--device", "gpu")
        assert "without generate" in refused(*words, "--generate")
        assert not engine.scored
    with serving(logprobs=served(folders["unpatched"])) as engine:
        assert "has no schedule to verify" in refused("verify", folders["unpatched"], "--server", engine.url)
