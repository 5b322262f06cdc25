"""Published recipes that turn windows into a perplexity, so that their numbers can be reproduced, bug for bug.

All of them slide windows of L positions over whole documents, S tokens apart; a window counts the tokens that no
earlier one has reached. What differs is how much each window weighs, and where BOS goes. ``docs/measuring.md`` says
what each does wrong and by how much; ``ropescale`` is the one to use where nothing has to be reproduced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DataError
from .documents import Document, bos_id
from .windows import Window

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROPESCALE, YARN, HF = "ropescale", "yarn-paper", "hf-docs"


@dataclass(frozen=True)
class Protocol:
    """A way to measure.

    Attributes:
        name: its name.
        said: how it weighs, in a few words.
        stride: the published script's default; None where windows need not slide.
    """

    name: str
    said: str
    stride: int | None = None

    @property
    def exact(self) -> bool:
        """Whether every token is scored once and weighs the same."""
        return self.name == ROPESCALE


PROTOCOLS = {
    each.name: each
    for each in (
        Protocol(ROPESCALE, "every token scored once, token-weighted"),
        Protocol(YARN, "the mean of the windows' mean losses, each window weighing the same", 256),
        Protocol(HF, "the windows' mean losses, each weighing its targets less one", 512),
    )
}


def protocol(name: str) -> Protocol:
    """Returns the protocol of this name.

    Raises:
        DataError: there is none.
    """
    if name not in PROTOCOLS:
        raise DataError(f"no protocol named {name!r}; there are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def published_windows(tokens: int, length: int, stride: int, bos: bool) -> Iterator[Window]:
    """Yields the windows of the published scripts over a document of ``tokens``.

    Window k feeds ``[kS, min(kS + W, n))``, ``W = length - bos``, until one reaches the end. It scores what comes after
    the end of the window before, but never its own first position, before which nothing is fed: with no BOS and S = L
    one token in L is never scored, and with S > W those between two windows.
    """
    reached = 0
    for start in range(0, tokens, stride):
        stop = min(start + length - bos, tokens)
        yield Window(start, stop, max(reached, start + (not bos)))
        reached = stop
        if stop == tokens:
            return


def weights(name: str, windows: Sequence[Window]) -> list[float]:
    """Returns the weight of each window's mean loss.

    ``yarn-paper``: 1. ``hf-docs``: the labels that are not masked, less one "due to internal label shift": the tokens
    after the end of the window before, and one too few wherever there was a window before.
    """
    if name == YARN:
        return [1.0] * len(windows)
    if name == ROPESCALE:
        return [float(window.count) for window in windows]
    reached = [0, *(window.stop for window in windows)]
    return [float(w.stop - max(w.start, before) - 1) for w, before in zip(windows, reached)]


def weighted(name: str, windows: Sequence[Window], nll: np.ndarray) -> tuple[float, float]:
    """Returns one document's weighted sum of window means, fp64, and the sum of the weights.

    Args:
        nll: of the tokens that the windows score, one window after the other.
    """
    total, at, shares = 0.0, 0, weights(name, windows)
    for window, share in zip(windows, shares, strict=True):
        total += share * float(nll[at : at + window.count].mean(dtype=np.float64))
        at += window.count
    return total, sum(shares)


def check_windows(name: str, documents: Iterable[Document], lengths: Iterable[int], stride: int, bos: bool) -> None:
    """Refuses a window with nothing to score: its mean loss is NaN, which the published scripts take into the whole.

    Raises:
        DataError: names the document.
    """
    pool = list(documents)
    for length in lengths:
        for document in pool:
            tokens = len(document.ids)
            if not all(window.count for window in published_windows(tokens, length, stride, bos)):
                raise DataError(
                    f"{name} gives NaN at {length:,}: of the {tokens:,} tokens of {document.name}, the last one is "
                    f"alone in its window at stride {stride:,}; choose another stride, or protocol='ropescale'",
                    "stride",
                    "protocol",
                )


def placed(
    name: str, documents: Sequence[Document], bos: str | int, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[Document], int | None, int | None]:
    """Returns the documents as they are fed, the id in front of every window, and the one that only begins documents.

    ``hf-docs`` tokenizes with the tokenizer's defaults and then cuts. So BOS is the first token of each document and in
    no other window, if the tokenizer adds one by itself or is asked to. A document without a token stays without one,
    to be counted as empty.
    """
    found = bos_id(bos, tokenizer)
    if name != HF:
        return *_once(documents, found, bos), None
    if found is None or (bos == "auto" and not _adds(tokenizer, found)):
        return list(documents), None, None
    return [_with_bos(document, found) if len(document.ids) else document for document in documents], None, found


def _once(documents: Sequence[Document], found: int | None, bos: str | int) -> tuple[list[Document], int | None]:
    """Takes BOS off documents that begin with it, since it is put in front of every window.

    Unless it is asked for, none is put in front of chats whose template writes none: the model was trained so.

    Raises:
        DataError: it is in front of some documents and not of others.
    """
    if found is None:
        return list(documents), None
    bare = [each for each in documents if each.kind == "chat" and len(each.ids) and each.ids[0] != found]
    if bare and bos == "auto":
        if len(bare) < sum(map(bool, (len(each.ids) for each in documents))):
            raise unequal_bos(bare[0].name)
        return list(documents), None
    return [_without_bos(each) if each.kind and list(each.ids[:1]) == [found] else each for each in documents], found


def unequal_bos(name: str) -> DataError:
    """Returns the error where documents do not agree on BOS.

    Args:
        name: a chat whose template writes none.
    """
    return DataError(
        f"the chat template writes no BOS in front of {name}, and other documents begin with one; say bos='yes' or "
        "bos='no' for all of them",
        "bos",
    )


def _adds(tokenizer: PreTrainedTokenizerBase | None, bos: int) -> bool:
    return tokenizer is not None and list(tokenizer("a").input_ids)[:1] == [bos]


def _without_bos(document: Document) -> Document:
    ends, scored = document.byte_ends, document.scored
    return replace(
        document,
        ids=document.ids[1:],
        byte_ends=None if ends is None else ends[1:] - ends[0],
        scored=None if scored is None else scored[1:],
    )


def _with_bos(document: Document, bos: int) -> Document:
    if document.kind and document.ids[0] == bos:
        return document
    ends = document.byte_ends
    return replace(document, ids=[bos, *document.ids], byte_ends=None if ends is None else np.concatenate([[0], ends]))
