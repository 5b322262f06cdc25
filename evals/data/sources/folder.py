"""A folder of text files, each one a document, in order of path; or of files of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ....errors import DataError
from ....files import local_path
from ..texts import TextFile
from . import json_lines
from .read_options import ReadOptions
from .rows import RowDocument
from .text_file import NoText, text_of

_LARGEST = 2**28
"""Bytes of a ``results.json`` that is looked into."""


def takes(source: str) -> bool:
    """Whether this is a folder."""
    return bool(source) and local_path(source).is_dir()


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument | TextFile]:
    """Reads all files but hidden ones, those in folders below included. What is no text is left out and named.

    Raises:
        DataError: there is no text, or a file cannot be read.
    """
    asked.only(source, "a folder of text files", "glob", "prompt_field", "encoding")
    root = local_path(source)
    visible = (path for path in _chosen(root, asked.glob) if not any(part[0] == "." for part in path.parts))
    files = sorted(root / path for path in visible if (root / path).is_file())
    if not files:
        what = "files" if asked.glob is None else f"file that fits {asked.glob!r}"
        raise DataError(f"no {what} in {source}; give a folder of text files (hidden ones are not read)")
    if asked.prompt_field is not None:
        yield from _prompts(source, files, asked)
        return
    found, of_runs = 0, _of_runs(files)
    for path in files:
        name = str(path.relative_to(root))
        if path in of_runs:
            asked.left_out.append(f"{name} of a run")
            continue
        try:
            text = text_of(path, asked.encoding, rows=False)
        except NoText:
            asked.left_out.append(name)
        else:
            found += 1
            yield text
    if not found:
        raise DataError(
            f"no text in {source}: {no_texts(asked.left_out)}; give text files, or name their encoding", "encoding"
        )


def _prompts(source: str, files: Iterable[Path], asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads the rows of every file of JSON lines, such as RULER's generators write, a folder for each task.

    Raises:
        DataError: there is none, or one cannot be read.
    """
    names = [str(path) for path in files if json_lines.takes(str(path))]
    if not names:
        raise DataError(f"no .jsonl file in {source}; give files of rows, each a prompt and its answers")
    for name in names:
        yield from json_lines.read(name, replace(asked, glob=None))


def _chosen(root: Path, glob: str | None) -> Iterable[Path]:
    """Returns the paths that fit, from the folder on.

    Raises:
        DataError: not a pattern of paths below the folder.
    """
    pattern = "*" if glob is None else glob
    try:
        found = list(root.glob(pattern) if "/" in pattern else root.rglob(pattern) if pattern else [])
        return [path.relative_to(root) for path in found if path != root]
    except (ValueError, NotImplementedError):  # absolute, or out of the folder
        raise DataError(f"glob {glob!r} is no pattern of files in {root}; write it like *.txt", "glob") from None


def _of_runs(files: Sequence[Path]) -> set[Path]:
    """Returns the files that runs wrote, where their folders lie among the texts: their ``results.json`` tells."""
    found: set[Path] = set()
    for folder, written in _runs(files):
        beside = {folder / name for name in ("results.json", *written)}
        found |= {path for path in files if path in beside or folder / "resume" in path.parents}
    return found


def _runs(files: Iterable[Path]) -> Iterator[tuple[Path, Iterable[str]]]:
    """Yields the folders of runs, and the files that each lists."""
    for path in files:
        if path.name == "results.json" and path.stat().st_size < _LARGEST:
            with suppress(OSError, ValueError, RecursionError):
                content = json.loads(path.read_bytes())
                if isinstance(content, dict) and {"schema", "versions", "rows"} <= content.keys():
                    listed = content.get("files")
                    yield path.parent, listed if isinstance(listed, dict) else ()


def no_texts(files: list[str]) -> str:
    """Says how many files are no text, with the names of the first ones."""
    more = f" and {len(files) - 3:,} more" if len(files) > 3 else ""
    what = "1 file is no text" if len(files) == 1 else f"{len(files):,} files are no text"
    return f"{what} ({', '.join(files[:3])}{more})"
