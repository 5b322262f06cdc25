"""Finds key tokens with a key model, or reads them from the files of LongPPL's authors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ...errors import DataError
from ...files import read_given, sha256
from ..backends.fingerprints import describe
from ..data.chats import Unread
from ..data.documents import Document, check_ids
from ..data.encoding import TextEncoder, byte_places
from ..data.key_tokens import ALPHA, BETA, MAX_LENGTH, STRIDE, WINDOW, KeySpans, check_window, joined
from ..data.texts import Text, TextFile
from ..progress import Notes, Progress
from ..scoring.scorer import Scorer, not_finite

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def find(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[Unread],
    *,
    window: int = WINDOW,
    stride: int = STRIDE,
    alpha: float = ALPHA,
    beta: float = BETA,
    max_length: int = MAX_LENGTH,
    path: Path | None = None,
    check: Callable[[KeySpans], None] = lambda planned: None,
    notes: Notes | None = None,
) -> KeySpans:
    """Finds the key spans of texts with a key model. Texts start with the tokenizer's usual prefix, such as BOS.

    Args:
        window, stride, alpha, beta: as for :func:`key_positions`.
        max_length: the number of tokens that longer texts are cut to; the tokens that follow are never key tokens.
        path: the model's folder, which is stored with the spans.
        check: called with the texts and parameters, without spans, before any text is scored.
        notes: shows the progress, by texts.

    Raises:
        DataError: a document is not a text, the tokenizer has no offsets or is another model's, or no text has more
            tokens than the window.
        RunError: losses are NaN or infinite.
    """
    check_window(window, max_length)
    if not tokenizer.is_fast:
        raise DataError("key tokens need a tokenizer with offsets (a fast one); choose another key model")
    scorer, encoder, held = Scorer(model), TextEncoder(tokenizer), list(_written(texts))
    facts = describe(model, path)
    made: dict[str, Any] = {"key_model": {name: facts[name] for name in ("path", "weights", "config_sha256", "dtype")}}
    made |= {"window": window, "stride": stride, "alpha": alpha, "beta": beta, "max_length": max_length}
    spans: dict[str, list[tuple[int, int]]] = {_identity(text): [] for text in held}
    check(KeySpans(spans, made))
    prefix, found, scored, cut = _prefix(tokenizer), 0, 0, 0
    with Progress("key tokens, by text", len(held), notes is not None and notes.shown) as progress:
        for text in held:
            with text.reading() as reading:
                encoded = encoder.first(reading, max_length + 1 - len(prefix))
            cut += len(prefix) + len(encoded) > max_length
            ids = np.concatenate([prefix, encoded.ids]).astype(np.int64)[:max_length]
            check_ids([Document(text.name, ids.tolist(), None, "")], scorer.vocabulary)
            key = key_positions(scorer, torch.tensor(ids), window, stride, alpha, beta, text.name)
            ends = np.concatenate([0 * np.array(prefix, np.int64), cast(np.ndarray, encoded.byte_ends)])
            starts = np.concatenate([[0], ends])[
                np.searchsorted(ends, ends)
            ]  # tokens that share a character have it whole
            spans[_identity(text)] = joined(np.stack([starts, ends], 1)[key].tolist())
            found, scored = found + len(key), scored + max(0, len(ids) - window)
            progress.add(1)
    if not scored:
        raise DataError(f"no text has more tokens than the window of {window:,}; give longer texts", "window")
    return KeySpans(spans, {**made, "key_tokens": found, "tokens": scored, "cut_texts": cut})


def _identity(text: Text | TextFile) -> str:
    """Returns the hash of a full text."""
    return text.read_through.sha256 if isinstance(text, TextFile) else sha256(text.encoded)


def _prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the ids that the tokenizer puts before every text."""
    one = tokenizer("a", return_special_tokens_mask=True)
    return one["input_ids"][: [*one["special_tokens_mask"], 0].index(0)]


def key_positions(
    scorer: Scorer,
    ids: torch.Tensor,
    window: int,
    stride: int,
    alpha: float = ALPHA,
    beta: float = BETA,
    name: str = "the text",
) -> list[int]:
    """Returns the positions of the key tokens in ``ids``, which start with the tokenizer's prefix, such as BOS.

    ``stride`` consecutive tokens share a short context that starts ``window`` tokens before the first of them, so each
    has a context of ``window`` to ``window + stride - 1`` tokens. A token is a key token if the full context lowers its
    loss by more than ``alpha`` nats, to below ``-beta``. The first ``window`` tokens are never key tokens.

    Raises:
        RunError: losses are NaN or infinite; the message has the text's ``name``.
    """
    found: list[int] = []
    whole = scorer.score(ids[None])[0] if len(ids) > window else ids
    for start in range(0, len(ids) - window, stride):
        first, stop = start + window, min(start + window + stride, len(ids))
        short, long = scorer.score(ids[None, start:stop])[0, window - 1 :], whole[first - 1 : stop - 1]
        if not bool((short + long).isfinite().all()):
            raise not_finite(scorer.model, f"in {name}", "a smaller max_length")
        found += (first + ((short - long > alpha) & (long < -beta)).nonzero()[:, 0]).tolist()
    return found


def imported(files: Sequence[str], texts: Iterable[Unread]) -> KeySpans:
    """Reads LongPPL's files of key tokens, ``[start, end];...`` in characters, one file per text in order.

    Raises:
        DataError: a file cannot be read, has another format, or has ranges outside its text; or the numbers of files
            and texts differ.
    """
    spans, held = {}, list(_written(texts))
    if len(files) != len(held):
        raise DataError(f"{len(files)} files of key tokens for {len(held)} texts; give one for each, in order")
    for file, text in zip(files, held, strict=True):
        content = read_given(file, "import").strip()
        if not re.fullmatch(r"(\[\d{1,12}, \d{1,12}\](;|$))*", content, re.ASCII):
            raise DataError(f"{file} has no key tokens of LongPPL, whose format is [start, end];[start, end]")
        places = np.array(re.findall(r"\d+", content), np.int64)
        whole = text.text
        if len(places) and places.max() > len(whole):
            raise DataError(f"{file} has ranges outside {text.name}, which has {len(whole):,} characters")
        spans[_identity(text)] = joined(byte_places(whole, places).reshape(-1, 2).tolist())
    return KeySpans(spans, {"imported": [Path(file).name for file in files]})


def _written(texts: Iterable[Unread]) -> Iterator[Text | TextFile]:
    for each in texts:
        if not isinstance(each, Text | TextFile):
            raise DataError(f"{each.name} is not text, and key tokens are byte ranges of a text; give a field of text")
        yield each
