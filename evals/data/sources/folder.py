"""A folder of text files, one document per file, ordered by path; or of prompt files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ....errors import DataError
from ....files import local_path
from ... import checking
from ..texts import NoText, TextFile
from . import row_file
from .base import ReadOptions, RowDocument
from .text_file import JSON_LINES, text_of


def takes(source: str) -> bool:
    """Whether this is a folder."""
    return bool(source) and local_path(source).is_dir()


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument | TextFile]:
    """Reads all files except hidden ones, also in subfolders. Skips and names files that are not text.

    For prompts, reads every JSON lines file, as RULER's generators write them, one folder per task.

    Raises:
        DataError: there is no text, or a file cannot be read.
    """
    asked.only(source, "a folder of text files", "glob", "prompt_field", "encoding")
    files = _files(source, asked.glob)
    if asked.prompt_field is not None:
        rows = [path for path in files if path.suffix.lower() in JSON_LINES]
        if not rows:
            raise DataError(f"no .jsonl file in {source}; give files of rows, each a prompt and its answers")
        for path in rows:
            yield from row_file.read(str(path), replace(asked, glob=None))
        return
    found, of_runs = 0, _of_runs(files)
    for path in files:
        name = str(path.relative_to(local_path(source)))
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


def _files(source: str, glob: str | None) -> list[Path]:
    """Returns the matching files, ordered by path.

    Raises:
        DataError: no file matches, or the pattern leaves the folder.
    """
    root, pattern = local_path(source), "*" if glob is None else glob
    try:
        paths = list(root.glob(pattern) if "/" in pattern else root.rglob(pattern) if pattern else [])
        below = [path.relative_to(root) for path in paths if path != root]
    except (ValueError, NotImplementedError):  # absolute, or out of the folder
        raise DataError(f"glob {glob!r} is not a pattern of files in {root}; write it like *.txt", "glob") from None
    visible = [path for path in below if not any(part[0] == "." for part in path.parts)]
    files = sorted(root / path for path in visible if (root / path).is_file())
    if not files:
        what = "files" if glob is None else f"file that fits {glob!r}"
        raise DataError(f"no {what} in {source}; give a folder of text files (hidden ones are not read)")
    return files


def _of_runs(files: Sequence[Path]) -> set[Path]:
    """Returns the files of runs whose folders are among the texts, identified by ``results.json``."""
    found: set[Path] = set()
    for path in files:
        if path.name != "results.json":
            continue
        with suppress(checking.Wrong):
            content, folder = checking.parsed(path), path.parent
            if {"schema", "versions", "rows"} <= content.keys():
                listed = content.get("files")
                written = {path, *(folder / name for name in (listed if isinstance(listed, dict) else ()))}
                found |= {file for file in files if file in written or folder / "resume" in file.parents}
    return found


def no_texts(files: list[str]) -> str:
    """Describes the number and first names of files that are not text."""
    more = f" and {len(files) - 3:,} more" if len(files) > 3 else ""
    what = "1 file is not text" if len(files) == 1 else f"{len(files):,} files are not text"
    return f"{what} ({', '.join(files[:3])}{more})"
