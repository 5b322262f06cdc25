"""Fixtures of the tests of commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny import byte_tokenizer, llama


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama of trained length 64 with a tokenizer of bytes, on disk."""
    folder = tmp_path_factory.mktemp("checkpoint")
    llama(vocab_size=257).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def refused(ran: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """Runs the command line, and returns the sentence of its refusal, the one line of its errors."""

    def run(*words: object) -> str:
        out, err = ran(*words, code=2)
        lines = [line for line in err.splitlines() if line.startswith("error:")]
        assert (out, len(lines)) == ("", 1) and "Traceback" not in err, err
        return lines[0]

    return run
