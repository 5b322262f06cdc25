"""``ropescale eval --server``: the numbers of a loaded model, from servers that also fail."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny
from fake_engine import Engine, arithmetic, serving
from losses import tensors

from ropescale.checkpoints.loading import load_tokenizer
from ropescale.cli.main import main
from ropescale.errors import DataError, ServerError
from ropescale.evals import Server, perplexity
from ropescale.evals.backends import client
from ropescale.evals.backends.engines import Scoring
from ropescale.evals.progress import Notes
from ropescale.evals.reporting.figures import changes_from, series_of
from ropescale.evals.reporting.runs import load

LENGTHS = "16,64,128"
BUDGET = ["--budget-tokens", "2048"]
KEY = "sk-RecognisableFakeKey0123456789"


def words(engine, checkpoint, text, *more, lengths=LENGTHS):
    beside = ["--tokenizer", checkpoint, "--data", text, "--lengths", lengths]
    return ["eval", "--server", engine.url, *beside, *([] if "--stride" in more else BUDGET), *more]


def read(out):
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def score(server, ids):
    """The losses of every id but the first."""
    return server.answers([Scoring(ids, len(ids) - 1)])[0]["nll"]


# --- the numbers ---


@pytest.mark.parametrize("kind", ["vllm", "sglang", "lmdeploy"])
def test_two_servers_give_what_one_loaded_model_gives(kind, checkpoint, text, tokens, tmp_path, ran):
    yarn = "yarn:factor=2.0"
    with (
        serving(kind=kind, logprobs=tiny.logprobs_of(checkpoint), tokens=tokens) as one,
        serving(kind=kind, logprobs=tiny.logprobs_of(checkpoint, yarn), tokens=tokens) as other,
    ):
        given = ["--served-as", "base", "--server", other.url, "--served-as", yarn, "--truncation-stride", "32"]
        _, said = ran(*words(one, checkpoint, text, *given, "--baseline", "base", "-o", tmp_path / "served"))
    ran("eval", checkpoint, "--schedule", yarn, "--data", text, "--lengths", LENGTHS, *BUDGET,
        "--truncation-stride", "32", "-o", tmp_path / "loaded")  # fmt: skip
    found, wanted = tensors(tmp_path / "served"), tensors(tmp_path / "loaded")
    shared = [name for name in wanted if " kl" not in name and " same top" not in name]
    assert sorted(found) == sorted(shared) and len(shared) == 3
    for name in shared:
        assert np.abs(found[name] - wanted[name]).max() < 1e-5
    mine, loaded = read(tmp_path / "served"), read(tmp_path / "loaded")
    assert len(mine["rows"]) == 6
    for row, other_row in zip(mine["rows"], loaded["rows"], strict=True):
        assert row["ppl"] == pytest.approx(other_row["ppl"], rel=1e-5)
    for row, other_row in zip(mine["paired"], loaded["paired"], strict=True):
        assert row["baseline"] == "as-is"
        for name in ("delta_nll", "low", "high"):
            assert row[name] == pytest.approx(other_row[name], rel=1e-3, abs=1e-6)
    assert len(mine["truncation"]["rows"]) == 2
    assert "the short-context cost (KL, top-1 agreement) is skipped" in said


def test_sliding_windows_and_a_window_of_the_whole_limit_are_scored(checkpoint, text, tokens, tmp_path, ran):
    sliding = ["--stride", "30", "--max-docs", "1", "-o"]
    with serving(logprobs=tiny.logprobs_of(checkpoint), tokens=tokens, limit=64) as engine:
        ran(*words(engine, checkpoint, text, "--served-as", "base", *sliding, tmp_path / "served", lengths="32,64"))
        whole = [body for body in engine.scored if "allowed_token_ids" in body]
    assert whole and all(len(body["prompt"]) == 63 for body in whole)
    ran("eval", checkpoint, "--data", text, "--lengths", "32,64", *sliding, tmp_path / "loaded")
    found, wanted = tensors(tmp_path / "served"), tensors(tmp_path / "loaded")
    for name in wanted:
        assert np.abs(found[name] - wanted[name]).max() < 1e-5


def test_all_lengths_of_a_window_come_from_one_request_without_truncation(checkpoint, text, tokens, tmp_path, ran):
    with serving(tokens=tokens, seconds=0.05) as engine:
        more = ["--served-as", "dynamic:factor=2", "--concurrency", "3", "-o", tmp_path / "out"]
        _, said = ran(*words(engine, checkpoint, text, *more, "--baseline", "dynamic:factor=2.0"))
    assert [len(body["prompt"]) for body in engine.scored] == 16 * [128]
    assert engine.most_at_once == 3
    assert "truncation is skipped: no server has the model as it is" in said
    assert "a server has one table for all lengths" in said
    assert not read(tmp_path / "out").get("truncation")


def test_python_takes_a_server_in_the_place_of_a_model(tmp_path):
    documents = tiny.documents(12, 64)
    with serving(kind="sglang") as engine:
        result = perplexity(Server(engine.url, "linear:factor=2"), documents, [16, 32], windows=1)
    assert result.rows[-1].schedule == "linear:factor=2"
    wanted = -np.mean([arithmetic(ids[:32]) for ids in documents])
    assert result.rows[-1].nll == pytest.approx(wanted, rel=1e-6)


def test_two_runs_are_compared_by_report_as_one_run_compares_them(checkpoint, text, tmp_path, ran):
    scaled, few = "linear:factor=2", ["--max-docs", "3", "-o"]
    with serving() as one, serving(logprobs=lambda ids: [1.1 * each for each in arithmetic(ids)]) as other:
        ran(*words(one, checkpoint, text, "--served-as", "base", *few, tmp_path / "base", lengths="16,64"))
        ran(*words(other, checkpoint, text, "--served-as", scaled, *few, tmp_path / "scaled", lengths="16,64"))
        both = ["--served-as", "base", "--server", other.url, "--served-as", scaled]
        ran(*words(one, checkpoint, text, *both, *few, tmp_path / "both", lengths="16,64"))
    runs = load([tmp_path / "both"]), load([tmp_path / "base", tmp_path / "scaled"])
    together, apart = (list(changes_from(each[0], each[:2]).values()) for each in map(series_of, runs))
    assert together == apart and list(together[0]) == [16, 64] and together[0][16].mean > 0.1


# --- failing servers ---


@pytest.fixture(scope="module")
def undisturbed(checkpoint, text, tmp_path_factory):
    """The losses of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    with serving() as engine:
        assert main([str(each) for each in words(engine, checkpoint, text, "--served-as", "base", "-o", out)]) == 0
    return tensors(out)


def same(one, other):
    return sorted(one) == sorted(other) and all(np.array_equal(one[name], other[name]) for name in one)


def test_some_requests_may_fail_and_the_numbers_stay(checkpoint, text, undisturbed, tmp_path, ran):
    faults = {3: "429", 7: "500", 11: "breaks off"}
    with serving(fault=lambda number, ids: faults.get(number, "")) as engine:
        _, said = ran(*words(engine, checkpoint, text, "--served-as", "base", "-o", tmp_path / "out"))
    assert said.count("; trying again in 0.0") == 3 and all(f"responds with {code}" in said for code in (429, 500))
    assert same(tensors(tmp_path / "out"), undisturbed)


FAULTS = {
    "null": "at position 6; serve the tokenizer's model, without prefix caching",
    "too few": "log-probabilities for",
    "too many": "log-probabilities for",
    "other ids": "sent no log-probability of token",
    "rubbish": "too many for this request",
    "400": "refuses the request (400): come back later",
    "redirect": "responds with a redirect (307), which is not followed",
    "503": "failed 6 times, the last time because the server responds with 503: come back later",
}


@pytest.mark.parametrize(("kind", "faults"), [("vllm", [*FAULTS]), ("sglang", ["other ids"])])
def test_broken_answers_are_a_line_and_can_be_continued(
    kind, faults, checkpoint, text, undisturbed, tmp_path, ran, refused
):
    out = tmp_path / "out"
    with serving(kind=kind) as engine:
        command = words(engine, checkpoint, text, "--served-as", "base", "-o", out, "--concurrency", "2")
        for fault in faults:
            engine.fault = lambda number, ids, fault=fault: fault if number > 8 else ""
            assert FAULTS[fault] in refused(*command)
            assert not (out / "results.json").exists()
        engine.fault = lambda number, ids: ""
        before = len(engine.scored)
        _, said = ran(*command)
        kept = int(re.search(r"resuming: (\d+) of (\d+) batches are done", said)[1])
        windows = len(undisturbed["as-is @ 128"]) + truncation(undisturbed)
        late = len(engine.scored) - (before + 1 + windows - kept)  # of the last run, under way when it stopped
        assert kept >= 5 and 0 <= late <= 1
    assert same(tensors(out), undisturbed)


def truncation(found):
    """How many windows truncation takes: 64 tokens of each, 32 at a time."""
    return 2 * len(next(each for name, each in found.items() if name.startswith("truncation")))


def test_another_model_behind_the_address_is_noticed_when_a_run_goes_on(checkpoint, text, tmp_path, refused):
    with serving(fault=lambda number, ids: "400" if number > 8 else "") as engine:
        command = words(engine, checkpoint, text, "--served-as", "base", "-o", tmp_path / "out")
        refused(*command)
        engine.fault, engine.logprobs = lambda number, ids: "", lambda ids: [each * 1.1 for each in arithmetic(ids)]
        assert "differs from the start of this run" in refused(*command)


@pytest.mark.slow
def test_ctrl_c_ends_a_run_that_waits_and_keeps_what_was_answered(checkpoint, text, tmp_path):
    def stuck(number, ids):
        if number > 6:
            time.sleep(60)
        return ""

    with serving(fault=stuck) as engine:
        command = [str(word) for word in words(engine, checkpoint, text, "--served-as", "base", "-o", tmp_path / "out")]
        child = os.fork()
        if child == 0:
            sys.stdout = sys.stderr = open(tmp_path / "said", "w", buffering=1)  # noqa: SIM115
            os._exit(main(command))
        while len(engine.scored) < 8:
            time.sleep(0.02)
        time.sleep(2)  # until the child has read what was answered, also on a busy machine
        began = time.monotonic()
        os.kill(child, signal.SIGINT)
        status = os.waitpid(child, 0)[1]
        assert time.monotonic() - began < 30 and os.waitstatus_to_exitcode(status) == 130
    said = (tmp_path / "said").read_text()
    assert re.search("the run stopped; [1-6] finished batches are kept", said) and "Traceback" not in said


LAST = [
    ("no ids", "sent 14 log-probabilities for 15 tokens"),
    ("no choice", "sent an invalid response (choices"),
    ("two choices", "sent an invalid response (choices"),
    ("processed", "sent processed log-probabilities; serve with --logprobs-mode raw_logprobs"),
]


@pytest.mark.parametrize(("fault", "told"), LAST)
def test_an_answer_about_the_last_token_of_a_whole_limit_that_is_not_as_asked_is_refused(fault, told):
    ids = list(range(20, 36))
    with serving(limit=16, fault=lambda number, ids: fault) as engine:
        with pytest.raises(ServerError, match=re.escape(f"{engine.url} {told}")):
            score(Server(engine.url), ids)
        engine.fault = lambda number, ids: ""
        assert score(Server(engine.url), ids) == pytest.approx([-each for each in arithmetic(ids)])
        engine.logprobs = lambda ids: [*arithmetic(ids)[:-1], -0.0]  # a probability that rounds to 1
        assert score(Server(engine.url), ids)[-1] == 0


def test_an_answer_that_drips_costs_one_timeout():
    told = pytest.raises(ServerError, match=r"failed because no complete response within 0\.2 s")
    with serving(fault=lambda number, ids: "drips") as engine, told:
        score(Server(engine.url, timeout=0.2), [20, 21])
    assert len(engine.scored) == 1


@pytest.mark.parametrize("wait", ["0.3", "-5", "soon"])
def test_a_server_that_names_a_pause_is_asked_again_after_it(wait, capfd):
    with serving(fault=lambda number, ids: "503" if number == 1 else "") as engine:
        server, engine.error_headers = Server(engine.url), {"Retry-After": wait}
        server.client.report_to(Notes(shown=True))
        assert len(score(server, [20, 21])) == 1
    pause = float(re.search(r"come back later; trying again in (\S+) s", capfd.readouterr().err)[1])
    assert pause == (0.3 if wait == "0.3" else 0.01)


def test_a_server_that_dies_is_left_soon_and_its_reason_is_told(capfd):
    with serving() as engine:
        server = Server(engine.url)
        server.client.report_to(Notes(shown=True))

        def dies(number, ids):
            server.client.url = "http://127.0.0.1:9"
            return "500 CUDA error: out of memory"

        engine.fault = dies
        with pytest.raises(ServerError) as told:
            score(server, [20, 21])
    said = str(told.value)
    assert said.startswith("http://127.0.0.1:9 failed 4 times, the last time because ")
    first = "; the first time, because the server responds with 500: CUDA error: out of memory; is it still running?"
    assert said.endswith(first)
    assert capfd.readouterr().err.count("trying again") == 3


def test_a_server_without_a_secure_connection_is_not_called_silent():
    insecure = r"has no secure connection \(\[SSL: .*name the certificates .* SSL_CERT_FILE"
    with serving() as engine, pytest.raises(ServerError, match=insecure):
        score(Server(engine.url.replace("http:", "https:")), [20, 21])


def test_the_asked_token_is_found_behind_another_one_of_its_position():
    ids, ranks = list(range(20, 36)), [1, 2] * 7 + [1]
    with serving(ranks=lambda ids: ranks, fault=lambda number, ids: "another first") as engine:
        [answer] = Server(engine.url).answers([Scoring(ids, 15, ranked=True)])
    assert answer["nll"] == pytest.approx([-each for each in arithmetic(ids)])
    assert answer["first"].tolist() == [rank == 1 for rank in ranks]


# --- what is refused before the first window ---


def test_what_a_server_cannot_score_is_refused_before_it_scores(checkpoint, text, tokens, refused):
    with serving(tokens=tokens, limit=100, models=("tiny", "adapter")) as engine:
        told = refused(*words(engine, checkpoint, text))
        assert "takes at most 100 positions, and the longest window has 128" in told and "--max-model-len" in told
        engine.tokens = lambda text: tokens(text)[:-1]
        for more, said in (
            (["--served-name", "large"], "does not serve large; it serves tiny, adapter (--served-name)"),
            ([], "tokenizer"),
            (["--schedule", "yarn"], "schedule"),
            (["--server", engine.url], "several servers need distinct labels"),
        ):
            assert said in refused(*words(engine, checkpoint, text, *more, lengths="16"))
        assert "name a MODEL, or a server" in refused("eval", "--data", text, "--lengths", "16")
        assert not engine.scored
    for model in ([], ["http://localhost:8000"]):
        with pytest.raises(DataError, match="neither a loaded model nor one or several Servers"):
            perplexity(model, [[1, 2] * 8], 16)
    with pytest.raises(DataError, match=r"http://localhost:8000 is an address; give ropescale.evals.Server\('http"):
        perplexity("http://localhost:8000", [[1, 2] * 8], 16)
    with pytest.raises(DataError, match="outside the model's vocabulary of 257"), serving() as engine:
        perplexity(Server(engine.url), [[1, 2, 300] * 20], 32, path=checkpoint)
    assert not engine.scored


def test_a_server_without_a_version_a_limit_or_a_tokenizer_is_taken(checkpoint, caplog):
    cards = {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": None}, {"id": "adapter"}]}
    with serving(instead={"/version": {}, "/tokenize": {"tokens": None}, "/v1/models": cards}) as engine:
        server = Server(engine.url)
        server.refuse(16, load_tokenizer(Path(checkpoint)))
        assert server.engine.about == "vLLM of an unknown version" and server.engine.longest is None
    assert "its tokenizer cannot be checked" in caplog.text


def test_an_engine_that_cannot_score_is_refused_by_what_can(checkpoint, text, refused):
    with serving(kind="library") as engine:
        said = refused(*words(engine, checkpoint, text))
        assert "vLLM (vllm serve), SGLang, LMDeploy and llama-server can score" in said
    assert "cannot be reached" in refused(*words(engine, checkpoint, text))


def test_a_proxy_that_cannot_be_used_is_named(checkpoint, text, monkeypatch, refused):
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@127.0.0.1:1")
    beside = ["--tokenizer", checkpoint, "--data", text, "--lengths", "16"]
    told = refused("eval", "--server", "http://host.invalid:8000", *beside)
    assert "correct the proxy (ALL_PROXY" in told and "secret" not in told


# --- the key ---


URLS = ["http://me@host:1", "http://me:secret@host:1", "https://host/?key=secret", "host:1", "http://host:99999"]


@pytest.mark.parametrize("url", URLS)
def test_an_address_with_a_name_or_a_query_is_refused_without_repeating_it(url, checkpoint, text, refused):
    told = refused("eval", "--server", url, "--tokenizer", checkpoint, "--data", text, "--lengths", "16")
    assert "secret" not in told and "me@" not in told


def test_the_key_is_sent_and_stands_in_no_file_or_message(checkpoint, text, tmp_path, monkeypatch, ran, refused):
    monkeypatch.setenv(client.KEY, KEY)
    with serving() as engine:
        printed = ran(*words(engine, checkpoint, text, "--served-as", "base", "-o", tmp_path / "out"))
        assert {each.get("Authorization") for each in engine.headers} == {f"Bearer {KEY}"}
    files = [each.read_text("latin-1") for each in (tmp_path / "out").rglob("*") if each.is_file()]
    assert not any(KEY in content for content in (*printed, *files))
    monkeypatch.setattr(Engine, "answer", lambda self, body: (400, {"error": {"message": f"no {KEY}"}}, ""))
    with serving() as engine:
        told = refused(*words(engine, checkpoint, text))
    assert "no ..." in told and KEY not in told


TRUSTED = ["http://127.0.0.1:8000/v1", "http://localhost:8000", "http://[::1]:8000", "https://example.org"]
OTHERS = ["http://example.org", "http://10.0.0.1:8000", "http://127.0.0.1.example.org"]


@pytest.mark.parametrize(("url", "is_sent"), [*((url, True) for url in TRUSTED), *((url, False) for url in OTHERS)])
def test_a_key_goes_over_plain_http_to_this_machine_alone(url, is_sent, monkeypatch):
    monkeypatch.setenv(client.KEY, KEY)
    made = client.Client(url)
    assert (made.headers.get("Authorization"), made.url[-3:] == "/v1") == (f"Bearer {KEY}" if is_sent else None, False)
