"""A corpus from texts: the tokenizer, the training stream, and held-out documents that are not copied into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import CHOSEN_BY, MEASURED, Corpus, sha256

BOS = "<|bos|>"
GRAM = 32
"""The number of tokens that make a copy."""

MOST_COPIED = 0.05
_WORDS = r" ?_?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n[ \t]*|\s+(?!\S)|\s+"
"""Words, single digits, signs, line ends with the indent that follows, and other space."""


class Text(NamedTuple):
    """A file of a package."""

    package: str
    path: str
    text: str


@dataclass(frozen=True)
class Recipe:
    """The sizes of a corpus.

    Attributes:
        tokens: of the training stream, at most.
        learned_from: characters of training text that the tokenizer learns from, about.
        length: tokens of a held-out document.
        per_package: documents of one package at most, by role.
        documents: documents at most, by role.
    """

    tokens: int = 66_000_000
    vocabulary: int = 16384
    learned_from: float = 60e6
    length: int = 16384
    per_package: Mapping[str, int] = field(default_factory=lambda: {MEASURED: 4, CHOSEN_BY: 6})
    documents: int = 32


class File(NamedTuple):
    """A file in the training stream: where it begins, its tokens and characters."""

    package: str
    path: str
    start: int
    tokens: int
    characters: int


@dataclass(frozen=True)
class Stream:
    """The training files end to end, uint16."""

    files: list[File]
    ids: np.ndarray

    def first(self, tokens: int) -> Stream:
        """Returns the whole files among the first tokens."""
        files = [file for file in self.files if file.start + file.tokens <= tokens]
        return Stream(files, self.ids[: files[-1].start + files[-1].tokens])


class Held(NamedTuple):
    """A held-out document: its tokens, and the share of its n-grams that the stream has, too."""

    package: str
    path: str
    tokens: int
    copied: float
    ids: np.ndarray


def learn_tokenizer(texts: Sequence[Text], recipe: Recipe) -> Tokenizer:
    """Learns a byte-level BPE from every n-th training text; numbers are encoded digit by digit."""
    bpe = Tokenizer(models.BPE())
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WORDS), "isolated"), bytewise])
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary, special_tokens=[BOS], initial_alphabet=alphabet, show_progress=False
    )
    step = max(1, round(sum(len(each.text) for each in texts) / recipe.learned_from))
    bpe.train_from_iterator((each.text for each in texts[::step]), trainer)
    return bpe


def encoded(tokenizer: Tokenizer, texts: Sequence[Text], size: int = 64) -> Iterator[tuple[Text, np.ndarray]]:
    """Yields every text with its tokens without BOS, uint16."""
    for at in range(0, len(texts), size):
        part = texts[at : at + size]
        for text, found in zip(part, tokenizer.encode_batch([each.text for each in part])):
            yield text, np.array(found.ids, np.uint16)


def stream_of(tokenizer: Tokenizer, texts: Sequence[Text], tokens: int) -> Stream:
    """Joins whole texts, each after token 0, until there are this many tokens."""
    files, parts, total = list[File](), list[np.ndarray](), 0
    for text, ids in encoded(tokenizer, texts):
        if total + len(ids) + 1 > tokens:
            break
        files.append(File(text.package, text.path, total, len(ids) + 1, len(text.text)))
        parts += [np.zeros(1, np.uint16), ids]
        total += len(ids) + 1
    return Stream(files, np.concatenate(parts))


def grams(ids: np.ndarray) -> np.ndarray:
    """Returns a hash of every ``GRAM`` tokens, uint64 [tokens - GRAM + 1]."""
    count = max(0, len(ids) - GRAM + 1)
    found = np.zeros(count, np.uint64)
    for at in range(GRAM):
        found = found * np.uint64(0x9E3779B97F4A7C15) + ids[at : at + count].astype(np.uint64) + np.uint64(1)
    return found


def hold_out(
    tokenizer: Tokenizer, texts: Sequence[Text], known: np.ndarray, recipe: Recipe, per_package: int
) -> tuple[list[Held], list[list[Any]]]:
    """Chooses held-out documents, and returns them, and those that were dropped as copied.

    Of each package, the documents with the lowest hashes of their paths are taken: a choice without looking.

    Args:
        known: the n-grams of the stream, sorted.
    """
    by_package: dict[str, list[Held]] = {}
    dropped: list[list[Any]] = []
    for text, ids in encoded(tokenizer, texts):
        if len(ids) < recipe.length:
            continue
        own = grams(ids[: recipe.length])
        at = np.minimum(np.searchsorted(known, own), len(known) - 1)
        copied = float((known[at] == own).mean())
        if copied > MOST_COPIED:
            dropped.append([text.package, text.path, round(copied, 3)])
            continue
        held = Held(text.package, text.path, len(ids), copied, ids[: recipe.length])
        by_package.setdefault(text.package, []).append(held)
    taken: list[Held] = []
    for documents in by_package.values():
        taken += sorted(documents, key=lambda each: sha256(each.path.encode()))[:per_package]
    return taken[: recipe.documents], dropped


def build(
    tokenizer: Tokenizer, stream: Stream, texts: Mapping[str, Sequence[Text]], recipe: Recipe, versions: dict[str, str]
) -> Corpus:
    """Makes the corpus of a training stream and the held-out texts of each role."""
    known = np.unique(grams(stream.ids))
    held, dropped = dict[str, list[Held]](), list[list[Any]]()
    for role in (MEASURED, CHOSEN_BY):
        held[role], copied = hold_out(tokenizer, texts[role], known, recipe, recipe.per_package[role])
        dropped += copied
    documents = np.stack([each.ids for each in [*held[MEASURED], *held[CHOSEN_BY]]])
    by_package: dict[str, list[int]] = {}
    for file in stream.files:
        tokens, files = by_package.get(file.package, [0, 0])
        by_package[file.package] = [tokens + file.tokens, files + 1]
    manifest = {
        "vocab": tokenizer.get_vocab_size(),
        "held_length": recipe.length,
        "train_tokens": len(stream.ids),
        "versions": versions,
        "held": {
            role: [[each.package, each.path, each.tokens, round(each.copied, 4)] for each in found]
            for role, found in held.items()
        },
        "dropped": dropped,
        "train_by_package": by_package,
        "starts": [file.start for file in stream.files],
        "in_long_files": sum(file.tokens for file in stream.files if file.tokens >= recipe.length),
        "train_sha256": sha256(stream.ids.astype("<u2").tobytes()),
        "held_sha256": sha256(documents.astype("<u2").tobytes()),
    }
    return Corpus(stream.ids, documents.astype(np.int64), tokenizer, manifest)
