"""``ropescale retrieval --server``: the answers of a loaded model, from servers."""

import json

import pytest
import tiny
import torch
import transformers
from fake_engine import serving

import ropescale

SPEC = "linear:factor=2"


def computed(checkpoint, schedule=None):
    """The log-probability of every id but the first, and its rank, by stock transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    if schedule:
        ropescale.patch(model, schedule)

    def ranks(ids):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([list(ids)])).logits[0]
        return [int((logits[t] > logits[t, ids[t + 1]]).sum()) + 1 for t in range(len(ids) - 1)]

    return {"logprobs": tiny.logprobs_of(checkpoint, schedule), "ranks": ranks}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "lmdeploy"])
def test_two_servers_answer_as_one_loaded_model_does(kind, checkpoint, tmp_path, ran):
    asked = ["--lengths", "256", "--depths", "0,1.0", "--trials", "2"]
    about = {"kind": kind, "limit": 256 + (kind == "sglang")}  # SGLang generates one token more
    with serving(**about, **computed(checkpoint)) as one, serving(**about, **computed(checkpoint, SPEC)) as other:
        servers = ["--server", one.url, "--served-as", "base", "--server", other.url, "--served-as", SPEC]
        words = ["retrieval", *servers, "--tokenizer", checkpoint, *asked, "-o", tmp_path / "served"]
        ran(*words)
        before = len(one.scored)
        _, said = ran(*words)
        assert "are done already; nothing is run" in said and len(one.scored) == before > 0
    ran("retrieval", checkpoint, "--schedule", SPEC, *asked, "-o", tmp_path / "loaded")
    found, wanted = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("served", "loaded"))
    assert len(found["rows"]) == len(wanted["rows"]) > 0 and found["data"]["sha256"] == wanted["data"]["sha256"]
    for mine, theirs in zip(found["rows"], wanted["rows"], strict=True):
        assert (mine["schedule"], mine["accuracy"]) == (theirs["schedule"], theirs["accuracy"])
        assert mine["answer_nll"] == pytest.approx(theirs["answer_nll"], abs=1e-4)


def test_an_answer_is_right_where_every_token_of_it_is_ranked_first(checkpoint, ran):
    asked = ["--tokenizer", checkpoint, "--lengths", "192", "--depths", "0,1.0", "--trials", "1", "--json"]
    for wrong, accuracy, limit in ((0, 1.0, 4096), (1, 0.0, 4096), (0, 1.0, 192), (1, 0.0, 192)):
        with serving(ranks=lambda ids, wrong=wrong: [1] * (len(ids) - 2) + [1 + wrong], limit=limit) as engine:
            out, _ = ran("retrieval", "--server", engine.url, "--served-as", "base", *asked)
        assert {row["accuracy"] for row in json.loads(out)["rows"]} == {accuracy}


def test_another_model_behind_the_address_is_noticed_when_a_run_goes_on(checkpoint, tmp_path, refused):
    asked = ["--tokenizer", checkpoint, "--lengths", "192", "--depths", "0,1.0", "--trials", "3", "-o", tmp_path]
    about = {"fault": lambda number, ids: "400" if number > 4 else "", "ranks": lambda ids: [1] * (len(ids) - 1)}
    with serving(**about) as engine:
        words = ["retrieval", "--server", engine.url, "--served-as", "base", *asked]
        refused(*words)
        before, engine.fault = engine.logprobs, lambda number, ids: ""
        engine.logprobs = lambda ids: [each * 1.1 for each in before(ids)]
        assert "differs from the start of this run" in refused(*words)


def test_an_option_of_a_loaded_model_is_refused_beside_a_server(checkpoint, refused):
    words = ["retrieval", "--server", "http://localhost:1", "--tokenizer", checkpoint, "--lengths", "192"]
    assert "--batch-tokens applies to a loaded model" in refused(*words, "--batch-tokens", "64")
    assert "name a MODEL, or a server" in refused("retrieval", "--lengths", "192")
