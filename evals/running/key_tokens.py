"""Finds key tokens with a key model, or reads them from the files of LongPPL's authors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...errors import DataError
from ...files import read_given, sha256
from ..data.chats import Unread
from ..data.encoding import byte_places
from ..data.key_tokens import KeySpans, joined
from ..data.texts import Text, TextFile
from ..scoring.scorer import Scorer
from .fingerprints import describe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WINDOW, STRIDE, ALPHA, BETA = 4096, 1024, 2.0, -2.0
"""The values in the paper."""

MAX_LENGTH = 32768
"""The default of LongPPL's script. One pass covers a text, and its time grows with the square of the length."""


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
) -> KeySpans:
    """Finds the key spans of texts with a key model. Texts start with the tokenizer's usual prefix, such as BOS.

    Args:
        window, stride, alpha, beta: as for :func:`key_positions`.
        max_length: the number of tokens that longer texts are cut to; the tokens that follow are never key tokens.
        path: the model's folder, which is stored with the spans.

    Raises:
        DataError: a document is not a text, the tokenizer has no offsets, or no text has more tokens than the window.
    """
    check_window(window, max_length)
    if not tokenizer.is_fast:
        raise DataError("key tokens need a tokenizer with offsets (a fast one); choose another key model")
    scorer, spans, found, scored, cut = Scorer(model), {}, 0, 0, 0
    for text in _written(texts):
        encoded = tokenizer(text.text, return_offsets_mapping=True, verbose=False)
        ids = torch.tensor(encoded["input_ids"][:max_length], dtype=torch.long)
        cut += len(ids) < len(encoded["input_ids"])
        key = key_positions(scorer, ids, window, stride, alpha, beta)
        places = np.array(encoded["offset_mapping"], np.int64).reshape(-1, 2)
        # A token includes the space before it, which its offsets may omit.
        places[1:, 0] = np.minimum(places[1:, 0], np.maximum.accumulate(places[:-1, 1]))
        spans[sha256(text.encoded)] = joined(byte_places(text.text, places[key]).tolist())
        found, scored = found + len(key), scored + max(0, len(ids) - window)
    if not scored:
        raise DataError(f"no text has more tokens than the window of {window:,}; give longer texts", "window")
    facts = describe(model, path)
    made = {"key_model": {name: facts[name] for name in ("path", "weights", "config_sha256", "dtype")}}
    made |= {"window": window, "stride": stride, "alpha": alpha, "beta": beta, "max_length": max_length}
    return KeySpans(spans, {**made, "key_tokens": found, "tokens": scored, "cut_texts": cut})


def check_window(window: int, max_length: int) -> None:
    """Checks that a text of ``max_length`` tokens has tokens after the window.

    Raises:
        DataError: it has none.
    """
    if max_length <= window:
        raise DataError(
            f"max_length is {max_length:,}, so no text has tokens after the window of {window:,}; give a larger "
            "max_length or a smaller window",
            "max_length",
            "window",
        )


def key_positions(
    scorer: Scorer, ids: torch.Tensor, window: int, stride: int, alpha: float = ALPHA, beta: float = BETA
) -> list[int]:
    """Returns the positions of the key tokens in ``ids``, which start with the tokenizer's prefix, such as BOS.

    ``stride`` consecutive tokens share a short context that starts ``window`` tokens before the first of them, so each
    has a context of ``window`` to ``window + stride - 1`` tokens. A token is a key token if the full context lowers its
    loss by more than ``alpha`` nats, to below ``-beta``. The first ``window`` tokens are never key tokens.
    """
    found: list[int] = []
    whole = scorer.score(ids[None])[0] if len(ids) > window else ids
    for start in range(0, len(ids) - window, stride):
        first, stop = start + window, min(start + window + stride, len(ids))
        short, long = scorer.score(ids[None, start:stop])[0, window - 1 :], whole[first - 1 : stop - 1]
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
        if len(places) and places.max() > len(text.text):
            raise DataError(f"{file} has ranges outside {text.name}, which has {len(text.text):,} characters")
        spans[sha256(text.encoded)] = joined(byte_places(text.text, places).reshape(-1, 2).tolist())
    return KeySpans(spans, {"imported": [Path(file).name for file in files]})


def _written(texts: Iterable[Unread]) -> Iterator[Text]:
    for each in texts:
        if not isinstance(each, (Text, TextFile)):
            raise DataError(f"{each.name} is not text, and key tokens are byte ranges of a text; give a field of text")
        yield Text(each.name, each.text)
