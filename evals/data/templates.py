"""Renders chat templates, which are programs of strangers, in a process with limits on time and memory."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DataError
from ...output.formatting import first_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from transformers import PreTrainedTokenizerBase

SECONDS = 10
"""The processor time that a template may take for one chat."""

BYTES = 2**30
"""The memory that a template may take in addition to the process."""

LONGEST = 2**26
"""The largest number of characters that a template may write."""


def render(tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any]) -> str:
    """Returns ``tokenizer.apply_chat_template(**given)``; on Linux, a process renders all chats of a tokenizer.

    Raises:
        DataError: the template raises an error, or exceeds a limit.
    """
    if sys.platform != "linux":
        return _rendered(tokenizer, given)
    try:
        process = _process(tokenizer, str(tokenizer.special_tokens_map))
        process.send(given)
        found = process.recv()
    except (EOFError, ConnectionError):
        _process.cache_clear()
        raise DataError(f"it takes more than {SECONDS} seconds, or the memory of this machine") from None
    except BaseException:  # an answer that comes later would be taken for that of the next chat
        _process.cache_clear()
        raise
    if isinstance(found, DataError):
        raise found
    return found


def _rendered(tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any]) -> str:
    try:
        text = str(tokenizer.apply_chat_template(**given, tokenize=False))
    except MemoryError:
        raise DataError(f"it takes more than {BYTES / 1e9:.2g} GB of memory") from None
    except Exception as error:  # a template can raise any error
        raise DataError(first_line(error)) from None
    if len(text) > LONGEST:
        raise DataError(f"it writes more than {LONGEST:,} characters")
    return text


@lru_cache(1)
def _process(tokenizer: PreTrainedTokenizerBase, special: str) -> Connection:
    """Starts a process that renders, and ends with this one, when the connection to it closes."""
    ours, theirs = Pipe()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else tokenizers warns of every fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, whose work the process never touches
        if os.fork():
            return ours
    try:
        ours.close()
        _serve(theirs, tokenizer)
    finally:
        os._exit(0)


def _serve(connection: Connection, tokenizer: PreTrainedTokenizerBase) -> None:
    """Answers each request with a text or a DataError, until the connection closes."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + BYTES)
    while True:
        given = connection.recv()
        _limit(resource.RLIMIT_CPU, int(sum(os.times()[:2])) + SECONDS)
        try:
            connection.send(_rendered(tokenizer, given))
        except DataError as error:
            connection.send(error)


def _limit(which: int, most: int) -> None:
    import resource

    with suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
