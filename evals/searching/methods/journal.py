"""The answers that a search has had, kept one by one, so that it continues where it was stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ....errors import RunError
from ....files import atomic_write
from ...resuming.finished_batches import Facts, kept, key_of
from .asking import Ask, Reply


class Journal:
    """The answers in order; in memory, so they are gone with it.

    Attributes:
        kept: hashes of questions, and the answers.
        left: those of an earlier call that :meth:`replayed` has not given yet.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[str, Reply]] = []
        self.left: Iterator[tuple[str, Reply]] = iter(())

    def replayed(self, ask: Ask) -> Reply | None:
        """Returns the next answer of an earlier call, or None.

        Raises:
            RunError: it answers another question.
        """
        asked, answer = next(self.left, ("", None))
        if answer is not None and asked != digest(ask):
            raise RunError("the kept steps are not those of this search; search again with fresh=True", "fresh")
        return answer

    def add(self, ask: Ask, answer: Reply) -> None:
        """Keeps an answer."""
        self.kept.append((digest(ask), answer))


class FolderJournal(Journal):
    """The answers in ``resume/<key>/answers.jsonl``, a line each; a line that was cut off is dropped.

    Args:
        folder: ``resume/`` of a run.
        facts: all that the answers depend on; ``key`` is the beginning of their sha256, and they stand beside.

    Attributes:
        run: the run's folder.

    Raises:
        CheckpointError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path, facts: Facts) -> None:
        super().__init__()
        self.run, self.folder, self._facts = folder.parent, folder / key_of(facts)[:16], facts
        self._path = self.folder / "answers.jsonl"
        with kept(self.folder, "steps"):
            self._size = self._read() if (self.folder / "facts.json").exists() else 0

    def add(self, ask: Ask, answer: Reply) -> None:
        super().add(ask, answer)
        line = _sealed(json.dumps([digest(ask), asdict(answer)]))
        with kept(self.folder, "steps"):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / "facts.json").exists():
                atomic_write(self.folder / "facts.json", json.dumps(self._facts, indent=1))
            self._append(line.encode())

    def _append(self, line: bytes) -> None:
        with open(self._path, "r+b" if self._path.exists() else "xb") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(line)

    def _read(self) -> int:
        """Reads the lines that are whole, and returns how many bytes they take."""
        size = 0
        for line in self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []:
            opened = _opened(line.decode("utf-8", "replace"))
            if opened is None:
                break
            asked, answer = json.loads(opened)
            self.kept.append((asked, _answer(answer)))
            size += len(line)
        return size


def digest(ask: Ask) -> str:
    """Returns a hash of a question."""
    return hashlib.sha256(json.dumps(asdict(ask)).encode()).hexdigest()[:16]


def _answer(plain: dict[str, list[object]]) -> Reply:
    return Reply(**{name: _tuples(value) for name, value in plain.items()})


def _tuples(value: object) -> tuple:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value  # type: ignore[return-value]


def _sealed(text: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {text}\n"


def _opened(line: str) -> str | None:
    """Returns what a line holds; None where it is damaged or cut off."""
    text = line[17:].removesuffix("\n")
    return text if line == _sealed(text) else None
