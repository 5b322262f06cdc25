"""At 80 columns no line of a command is wider, but for commands to copy and paths."""

import re

import pytest
from tiny import byte_tokenizer, llama

TEXT = "It was a bright cold day in April, and the clocks were striking. "
TO_COPY = re.compile(r"ropescale [a-z]|vllm serve|--|llama-server|^#|/")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("width")
    llama(vocab_size=259).save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    for number in range(10):
        (folder / "texts").mkdir(exist_ok=True)
        (folder / "texts" / f"{number}.txt").write_text(f"{number} {TEXT[number:]}" * 4)
    return folder


SCHEDULES = ["--schedule", "yarn:factor=2", "--schedule", "linear:factor=2"]


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["eval", "MODEL", "--data", "TEXTS", "--lengths", "32,64,128", *SCHEDULES], 20),
        (["eval", "MODEL", "--data", "TEXTS", "--lengths", "32,64,128", *SCHEDULES, "--verbose"], 200),
        (["retrieval", "MODEL", "--lengths", "96", "--trials", "2", "--schedule", "yarn:factor=2"], 30),
        (["verify", "MODEL"], 20),
        (["verify", "MODEL", "--generate", "--length", "32"], 20),
        (["export", "MODEL", "--for", "vllm", "--schedule", "yarn:factor=2"], 30),
        (["export", "MODEL", "--for", "vllm", "--schedule", "dynamic:factor=2"], 40),
    ],
)
def test_no_line_is_wider_than_eighty_columns(ran, model, monkeypatch, words, most):
    monkeypatch.setenv("COLUMNS", "80")
    places = {"MODEL": model / "model", "TEXTS": model / "texts"}
    out, err = ran(*(places.get(word, word) for word in words))
    wide = [line for line in (out + err).splitlines() if len(line) > 80 and not TO_COPY.search(line)]
    assert not wide and len(out.splitlines()) <= most, out
