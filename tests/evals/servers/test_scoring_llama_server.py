"""``ropescale eval``, ``retrieval`` and ``verify --server`` of a stand-in of llama-server, with its traps."""

import json
import os
import re
import signal
import sys
import time

import numpy as np
import pytest
import tiny
from fake_engine import arithmetic, serving
from losses import tensors

from ropescale.cli.main import main
from ropescale.errors import ServerError
from ropescale.evals import Server
from ropescale.evals.backends.engines import Generating, Scoring
from ropescale.evals.reporting.figures import changes_from, series_of
from ropescale.evals.reporting.runs import load

YARN = "yarn:factor=2"
LLAMA = {"kind": "llamacpp", "models": ("model.gguf",)}


def words(engine, checkpoint, text, *more, lengths="16,64"):
    beside = ["--tokenizer", checkpoint, "--data", text, "--lengths", lengths, "--windows", "1"]
    return ["eval", "--server", engine.url, *beside, *more]


def test_a_file_and_the_folder_it_came_from_are_scored_alike_and_the_cost_told(checkpoint, text, tokens, tmp_path, ran):
    few = ["--max-docs", "2", "-o"]
    about = {"logprobs": tiny.logprobs_of(checkpoint), "tokens": tokens, "incomplete": lambda id: id % 7 == 4}
    with serving(**LLAMA, **about) as one, serving(logprobs=tiny.logprobs_of(checkpoint, YARN), tokens=tokens) as other:
        given = ["--served-as", "base", "--server", other.url, "--served-as", YARN]
        _, said = ran(*words(one, checkpoint, text, *given, *few, tmp_path / "served"))
    ran("eval", checkpoint, "--schedule", YARN, "--data", text, "--lengths", "16,64", "--windows", "1",
        *few, tmp_path / "loaded")  # fmt: skip
    assert re.search(r"up to [\d,]+ tokens to score: llama-server scores a token per request, each a decoding", said)
    found, wanted = tensors(tmp_path / "served"), tensors(tmp_path / "loaded")
    names = [name for name in wanted if "@" in name and "kl" not in name and "same top" not in name]
    assert names and all(np.abs(found[name] - wanted[name]).max() < 1e-4 for name in names)
    series = series_of(load([tmp_path / "served", tmp_path / "loaded"]))
    [changes] = changes_from(series[0], [each for each in series if each.schedule == "as-is"]).values()
    assert list(changes) == [16, 64] and all(abs(each.mean) < 1e-5 for each in changes.values())
    mine, loaded = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("served", "loaded"))
    assert mine["protocol"]["servers"] == {"as-is": "llama-server b1-0", YARN: "vLLM 0.0.1"}
    for row, other_row in zip(mine["paired"], loaded["paired"], strict=True):
        assert row["delta_nll"] == pytest.approx(other_row["delta_nll"], rel=1e-3, abs=1e-5)


def test_a_file_is_compared_with_the_folder_under_one_schedule(checkpoint, text, tmp_path, ran):
    """What a format costs: the labels of two servers with one schedule name the engine and the model."""
    with serving() as whole, serving(**LLAMA, logprobs=lambda ids: [x - 0.25 for x in arithmetic(ids)]) as file:
        given = ["--served-as", YARN, "--server", file.url, "--served-as", YARN, "-o", tmp_path]
        ran(*words(whole, checkpoint, text, *given, lengths="16"))
    found = json.loads((tmp_path / "results.json").read_text())
    assert [row["schedule"] for row in found["rows"]] == [f"{YARN} (vLLM, tiny)", f"{YARN} (llama-server, model.gguf)"]
    [pair] = found["paired"]
    assert (pair["delta_nll"], pair["baseline"]) == (pytest.approx(0.25, abs=1e-6), f"{YARN} (vLLM, tiny)")


def test_tokens_are_forced_one_after_the_other_up_to_the_whole_context():
    ids = list(range(20, 36))
    ranks = [1, 2] * 7 + [1]
    with serving(**LLAMA, limit=16, ranks=lambda ids: ranks[: len(ids) - 1]) as engine:
        server = Server(engine.url)
        [every, last] = server.answers([Scoring(ids, 15, ranked=True), Scoring(ids, 4)])
        assert [len(body["prompt"]) for body in engine.scored] == [*range(1, 16), *range(12, 16)]
        assert engine.most_at_once == 1
        assert server.answers([Generating(ids[:9], 3)])[0]["ids"].tolist() == [0, 0, 0]
    assert every["nll"] == pytest.approx([-each for each in arithmetic(ids)])
    assert every["first"].tolist() == [rank == 1 for rank in ranks]
    assert last["nll"] == pytest.approx(every["nll"][-4:])


@pytest.mark.parametrize(("far", "requests"), [(0.0, 3), (-60.0, 4), (60.0, 4)], ids=["alike", "rare", "rare, plain"])
def test_a_token_that_ends_within_a_character_is_compared_with_a_plain_one(far, requests):
    """Token 200 is never plain, 21 always; no probability may leave what float32 holds."""
    logprobs = lambda ids: [-1.5 + min(far, 0) if id == 200 else -2.5 - max(far, 0) for id in ids[1:]]  # noqa: E731
    with serving(**LLAMA, logprobs=logprobs, incomplete=lambda id: id == 200) as engine:
        [scored] = Server(engine.url).answers([Scoring([20, 21, 200], 1)])
    assert scored["nll"][0] == pytest.approx(1.5 - min(far, 0), abs=1e-4) and len(engine.scored) == requests
    told = pytest.raises(ServerError, match="sent no log-probability of token 21 at position 1")
    with serving(**LLAMA, incomplete=lambda id: True) as engine, told:
        Server(engine.url).answers([Scoring([20, 21], 1)])


FAULTS = [
    ("too few", "read 0 tokens of a prompt of 1"),
    ("other ids", "generated [22] instead of token 21"),
    ("NaN", "computes NaN: it sent null for token 21 at position 1"),
    ("401 Unauthorized", "requires a key (401); it is read from OPENAI_API_KEY"),
    ("500 Compute error.", "refuses the request (500): Compute error.; if it has several slots"),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_an_answer_that_is_not_as_asked_is_refused_at_once(fault, told):
    with serving(**LLAMA, fault=lambda number, ids: fault) as engine:
        with pytest.raises(ServerError, match=re.escape(told)):
            Server(engine.url).answers([Scoring([20, 21], 1)])
        assert len(engine.scored) == 1
        engine.fault = lambda number, ids: ""
        with pytest.raises(ServerError, match=r"generated \[7\] instead of token 10001, whatever its bias"):
            Server(engine.url).answers([Scoring([20, 10_001], 1)])
        engine.scored.clear()
        engine.fault = lambda number, ids: "503 Loading model" if number < 4 else ""
        assert len(Server(engine.url).answers([Scoring([20, 21], 1)])[0]["nll"]) == 1


def test_slots_that_share_a_cache_are_asked_one_window_at_a_time_unless_the_user_says_otherwise(checkpoint, text, ran):
    with serving(**LLAMA, seconds=0.005, fault=lambda number, ids: "one cache") as engine:
        few = ["--served-as", "base", "--max-docs", "3"]
        _, said = ran(*words(engine, checkpoint, text, *few, lengths="16"))
        assert engine.most_at_once == 1
        _, said = ran(*words(engine, checkpoint, text, *few, "--concurrency", "3", lengths="16"), code=2)
    assert "Context size has been exceeded." in said and "serve with -np 1 or a larger -c" in said


def test_what_llama_server_cannot_score_is_refused_before_it_scores(checkpoint, text, tokens, refused):
    with serving(**LLAMA, tokens=tokens, limit=100) as engine:
        told = refused(*words(engine, checkpoint, text, lengths="128"))
        assert "takes at most 100 positions" in told and "(-c, which its slots share, and which the length in" in told
        engine.tokens = lambda text: tokens(text)[1:]
        assert "the tokenizer of" in refused(*words(engine, checkpoint, text))
        assert not engine.scored


def test_retrieval_generates_and_scores(checkpoint, tmp_path, ran):
    words = ["--tokenizer", checkpoint, "--lengths", "192", "--depths", "0,1.0", "--trials", "1", "--json"]
    with serving(**LLAMA) as engine:
        out, said = ran("retrieval", "--server", engine.url, "--served-as", "base", *words)
    assert {row["accuracy"] for row in json.loads(out)["rows"]} == {1.0} and "each a decoding step" in said
    assert len(engine.scored) == 2 * 6  # a key has six tokens


@pytest.mark.slow
def test_a_run_that_is_killed_ten_times_ends_as_one_that_is_not(checkpoint, text, tmp_path, ran):
    def command(engine, name):
        more = ["--served-as", "base", "--max-docs", "12", "-o", tmp_path / name]
        return [str(each) for each in words(engine, checkpoint, text, *more, lengths="32")]

    with serving(**LLAMA, incomplete=lambda id: id % 5 == 0) as engine:
        ran(*command(engine, "whole"))
    total, killed = len(engine.scored), 0
    loading = lambda number, ids: "503 Loading model" if number % 9 == 0 else ""  # noqa: E731
    with serving(**LLAMA, incomplete=lambda id: id % 5 == 0, seconds=0.005, fault=loading) as engine:
        while killed < 10:
            before, child = len(engine.scored), os.fork()
            if child == 0:
                sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                os._exit(main(command(engine, "killed")))
            while len(engine.scored) < before + total // 12 and os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            killed += 1
        ran(*command(engine, "killed"))
    found, wanted = tensors(tmp_path / "killed"), tensors(tmp_path / "whole")
    assert sorted(found) == sorted(wanted) and all(np.array_equal(found[name], wanted[name]) for name in wanted)
