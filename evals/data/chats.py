"""Chats, rendered by the tokenizer's template, with a mask of the assistant's tokens.

The assistant's tokens are those that a template marks with ``{% generation %}``. If the template has no such mark, an
assistant's message is the text that this message adds to the rendering of all previous messages with the generation
prompt, up to and including the special token that ends the message. Either way, the rendering of the full chat must
contain the same text: a template may render earlier messages differently from the last one, and a tokenizer may merge
the assistant's first characters with the template's last.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataError
from ...files import present, sha256
from ...output.formatting import brief, first_line
from .documents import Document, Text, byte_ends_of
from .prompts import PromptRow

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, object]
Span = tuple[int, int]
"""Characters ``[start, stop)`` of a rendered chat."""

ALL, ASSISTANT = SCORES = ("all", "assistant")
"""The choices of tokens to score."""


# A line end closes a turn. It belongs to the assistant's, because one token may hold it and the end of the text.
_LAYOUT = r"""{{ bos_token }}
{%- set end = '\n\n' if alpaca else '\n' %}
{% if tools %}{{ tools | tojson ~ end }}{% endif %}
{% for message in messages %}
{% set text = message.content or '' %}
{% if text is not string %}{% set text = text | map(attribute='text') | join %}{% endif %}
{% set text = text | trim ~ (message.tool_calls | tojson if message.tool_calls else '') ~ end %}
{% if message.role == 'assistant' %}
{{ '### Response:\n' if alpaca else 'Assistant:' -}}
{% generation %}{{ text if alpaca else ' ' ~ text }}{% endgeneration %}
{% elif alpaca %}
{{ '### Instruction:\n' ~ text if message.role == 'user' else text }}{% else %}
{{ message.role | capitalize }}: {{ text }}{% endif %}
{% endfor %}"""

_WHY = ", as the tokenizer has no chat template"
TURNS = f"written as lines that begin with User: and Assistant:{_WHY}"
ALPACA = f"written below ### Instruction: and ### Response:{_WHY}"
LAYOUTS = {TURNS: _LAYOUT, ALPACA: "{% set alpaca = true %}" + _LAYOUT}
"""Chat templates for tokenizers without one, by what they do, in words."""


@dataclass(frozen=True)
class Chat:
    """A chat before rendering.

    Attributes:
        name: the origin of the chat.
        messages: mappings with ``role``, ``content`` and further keys for the template.
        tools: descriptions of the assistant's tools for the template.
        layout: the key of :data:`LAYOUTS` that is used if the tokenizer has no template.
    """

    name: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    layout: str = TURNS


Unread = Text | Chat | Document | PromptRow
"""A document before it is rendered and encoded."""

Given = Document | Text | Chat | PromptRow | str | Sequence[int] | Sequence[Message]
"""A document as users pass it to Python functions."""


def rendered(chat: Chat, tokenizer: PreTrainedTokenizerBase, assistant: bool = False) -> Document:
    """Renders a chat by the tokenizer's template, or else by the chat's layout.

    Returns its tokens, including the template's BOS, if any.

    Args:
        assistant: whether to score only the assistant's tokens.

    Raises:
        DataError: the template cannot render the chat, or the assistant's tokens cannot be identified exactly.
    """
    if not chat.messages:
        return Document(chat.name, [], np.zeros(0, np.int64), sha256(b""), "chat")
    template = LAYOUTS[chat.layout]
    if has_template(tokenizer):
        template = tokenizer.get_chat_template(None, chat.tools)  # type: ignore[arg-type]
    write = partial(_written, chat, tokenizer, template=template)
    text = write(chat.messages)
    fast = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=fast, verbose=False)
    ids = list(encoded["input_ids"])
    offsets = encoded["offset_mapping"] if fast else None
    scored = None
    if assistant:
        if offsets is None:
            raise _inexact(chat, "the tokenizer has no offsets (it is a slow one)")
        if _GENERATION.search(template):
            spans = _marked_spans(chat, write, template, text)
        else:
            added = getattr(tokenizer, "added_tokens_decoder", {}).values()
            ends = {*map(str, tokenizer.all_special_tokens), *(token.content for token in added if token.special)}
            spans = _turn_spans(chat, write, text, tuple(ends))
        scored = _inside(chat, text, np.array(offsets, np.int64).reshape(-1, 2), spans)
    byte_ends = None if offsets is None else byte_ends_of(text, offsets)
    return Document(chat.name, ids, byte_ends, sha256(text.encode()), "chat", scored)


def has_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether a tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def _written(
    chat: Chat, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, template: str, prompt: bool = False
) -> str:
    """Renders messages of a chat.

    Raises:
        DataError: the template cannot render the messages, or the rendered text has a lone surrogate.
    """
    given = [present(each) for each in messages]
    how = {"conversation": given, "tools": chat.tools, "chat_template": template, "add_generation_prompt": prompt}
    try:
        text = render(tokenizer, how)
    except DataError as error:
        raise DataError(f"{chat.name} does not fit the chat template: {error}; repair either") from None
    return Text(chat.name, text).text


# --- the assistant's part ---


_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_START, _STOP = "\ufdd0", "\ufdd1"
"""Markers: noncharacters, which no text contains (Unicode 3.4, D14)."""


def _marked_spans(chat: Chat, write: Callable[..., str], template: str, text: str) -> Iterable[Span]:
    """Returns the spans between ``{% generation %}`` and ``{% endgeneration %}``, by rendering a marker for each tag.

    transformers also reports these spans, but they are wrong inside a macro or a ``{% set %}`` block.
    """

    def mark(tag: re.Match[str]) -> str:
        return f"{{%{tag[1]} if true %}}{{{{ '{_STOP if tag[2] else _START}' }}}}{{% endif {tag[3]}%}}"

    pieces = re.split(f"[{_START}{_STOP}]", write(chat.messages, template=_GENERATION.sub(mark, template)))
    if "".join(pieces) != text or len(pieces) % 2 == 0:
        raise _inexact(chat, "the template's text changes if its {% generation %} marks are rendered")
    edges = np.cumsum([len(piece) for piece in pieces]).tolist()
    return zip(edges[:-1:2], edges[1::2], strict=True)


def _turn_spans(chat: Chat, write: Callable[..., str], text: str, ends: tuple[str, ...]) -> Iterator[Span]:
    """Yields the span of each message of the assistant, up to and including its final special token."""
    for number, message in enumerate(chat.messages):
        if message.get("role") != "assistant":
            continue
        if not number:
            raise _inexact(chat, "it begins with the assistant instead of a prompt")
        start = write(chat.messages[:number], prompt=True)
        stop = _closed(write(chat.messages[: number + 1]), start, message, text)
        if stop is None:
            raise _inexact(chat, f"the template writes message {number + 1} differently when others follow it")
        bare = stop.rstrip()
        yield len(start), len(bare if len(bare) > len(start) and bare.endswith(ends) else stop)


def _closed(alone: str, start: str, message: Message, text: str) -> str | None:
    """Returns the full chat's text up to the end of a message; None if the message cannot be found in the full chat.

    Args:
        alone: the rendering of the chat that ends with this message.
        start: the rendering of the chat before the message, with the generation prompt.
        text: the rendering of the full chat.
    """
    if alone.startswith(start) and text.startswith(alone):
        return alone
    content = str(message.get("content") or "")
    for written in filter(str.strip, (content, content.strip())):
        _, separator, end = alone[len(start) :].rpartition(written)  # the text after the message's content
        if separator and end and text.startswith(start + written + end):
            return start + written + end
    return None


def _inside(chat: Chat, text: str, offsets: np.ndarray, spans: Iterable[Span]) -> np.ndarray:
    """Returns a mask of the tokens inside the spans, bool [tokens].

    Each token is taken to start at its offset or at the end of the previous token, whichever is earlier, because
    offsets may omit the space before a word.

    Args:
        offsets: int64 [tokens, 2], in characters.
    """
    stops = offsets[:, 1]
    reached = np.concatenate([[0], np.maximum.accumulate(stops)[:-1]]) if len(stops) else stops
    starts = np.minimum(offsets[:, 0], reached)
    marks = np.zeros(len(stops), bool)
    for start, stop in spans:
        touched = (starts < stop) & (stops > start)
        across = np.flatnonzero(touched & ((starts < start) | (stops > stop)))
        if len(across):
            token = text[starts[across[0]] : stops[across[0]]]
            raise _inexact(
                chat,
                f"the token {brief(token)} holds some of the assistant's text and some of the template's",
                "mark the assistant's text where a token begins and ends (`A:{% generation %} ` instead of "
                "`A: {% generation %}`)",
            )
        marks |= touched
    return marks


def _inexact(chat: Chat, why: str, do: str = "use a chat template with {% generation %}") -> DataError:
    return DataError(
        f"{chat.name}: the assistant's tokens cannot be identified exactly, because {why}; {do}, or score all tokens",
        "score",
    )


# --- Templates, which are programs of strangers: they run in a process with limits on time and memory ---

SECONDS = 10
"""The processor time that a template may take for one chat."""

BYTES = 2**30
"""The memory that a template may take in addition to the process."""

LONGEST = 2**23
"""The largest number of characters that a template may write."""


def render(tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any]) -> str:
    """Returns ``tokenizer.apply_chat_template(**given)``; on Linux, from a process with limits, one per tokenizer.

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
