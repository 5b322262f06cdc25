"""At 80 columns no line of a command is wider, but for commands to copy and paths."""

import json
import re

import pytest
from configurations import write_files
from fake_engine import serving
from tiny import checkpoint, llama, naive_nll

from ropescale.evals import reference

TEXT = "It was a bright cold day in April, and the clocks were striking. "
TO_COPY = re.compile(r"ropescale [a-z]|vllm serve|--|llama-server|^#|/|^ *`?[a-z0-9-]+:\w+=")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("width")
    checkpoint(folder / "model", llama(vocab_size=259))
    checkpoint(folder / "reference", llama(vocab_size=259, max_position_embeddings=256))
    rows = [{"input": f"{TEXT}The code {n} is", "outputs": [str(n)], "task": f"a task {n % 2}"} for n in range(6)]
    files = {f"texts/{number}.txt": f"{number} {TEXT[number:]}" * 4 for number in range(10)}
    return write_files(folder, files | {"prompts.jsonl": "\n".join(map(json.dumps, rows))})


SCHEDULES = ["--schedule", "yarn:factor=2", "--schedule", "linear:factor=2"]


PRINTING = [
    (["eval", "MODEL", "--data", "TEXTS", "--lengths", "32,64,128", *SCHEDULES], 20),
    (["eval", "MODEL", "--data", "TEXTS", "--lengths", "32,64,128", *SCHEDULES, "--verbose"], 200),
    (["retrieval", "MODEL", "--lengths", "96", "--trials", "2", "--schedule", "yarn:factor=2"], 30),
    (["eval", "MODEL", "--data", "ONE", "--lengths", "32,64,128", *SCHEDULES], 20),
    (["retrieval", "MODEL", "--prompts", "PROMPTS", "--lengths", "128", "--new-tokens", "4", *SCHEDULES], 30),
    (["recommend", "MODEL", "--data", "TEXTS", "--target-length", "128"], 30),
    (["search", "MODEL", "--data", "TEXTS", "--target-length", "128", "--budget-tokens", "3k"], 30),
    (["search", "MODEL", "--data", "TEXTS", "--target-length", "128", "--budget-tokens", "3k", "--verbose"], 90),
    (["demo"], 30),
    (["verify", "MODEL"], 20),
    (["verify", "MODEL", "--generate", "--length", "32"], 20),
    (["export", "MODEL", "--schedule", "yarn:factor=2"], 31),
    (["export", "MODEL", "--for", "vllm", "--schedule", "yarn:factor=2"], 30),
    (["export", "MODEL", "--for", "vllm", "--schedule", "dynamic:factor=2"], 40),
]


@pytest.mark.usefixtures("few_candidates")
@pytest.mark.parametrize(("words", "most"), PRINTING)
def test_no_line_is_wider_than_eighty_columns(ran, model, monkeypatch, words, most):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(reference, "CHECKPOINT", model / "reference")
    monkeypatch.setattr(reference, "held_out_documents", lambda: [f"{number} {TEXT * 6}" for number in range(10)])
    monkeypatch.setattr("ropescale.cli.demo.LENGTHS", (128, 256, 320))
    one, prompts = model / "texts" / "0.txt", model / "prompts.jsonl"
    places = {"MODEL": model / "model", "TEXTS": model / "texts", "ONE": one, "PROMPTS": prompts}
    out, err = ran(*(places.get(word, word) for word in words), code=int("dynamic:factor=2" in words))
    assert not wide(out + err) and len(out.splitlines()) <= most, out


def test_the_verdict_on_a_server_is_no_wider(ran, model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran("patch", model / "model", "-o", model / "patched", "--schedule", "yarn:factor=4")
    loaded = llama(vocab_size=259)
    with serving(logprobs=lambda ids: [-each for each in naive_nll(loaded, list(ids))], limit=160) as engine:
        out, err = ran("verify", model / "patched", "--server", engine.url, "--dtype", "float32", code=1)
    assert "not live" in out and not wide(out + err), out


def wide(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if len(line) > 80 and not TO_COPY.search(line)]
