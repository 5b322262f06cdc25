"""Short names of schedules that came from a file, for tables and pictures; results.json keeps what the file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .formatting import code_span, escaped


def names_of(files: Mapping[str, str]) -> dict[str, str]:
    """Returns a name for each schedule that came from a file: the file's, with as much of its path as tells it apart.

    Args:
        files: by label, the file; one that gave several schedules names none of them.
    """
    paths = {label: Path(file) for label, file in files.items()}
    alone = {label: path for label, path in paths.items() if list(paths.values()).count(path) == 1}
    return {label: _tail(path, [each for each in alone.values() if each != path]) for label, path in alone.items()}


def _tail(path: Path, others: Sequence[Path]) -> str:
    for count in range(1, len(path.parts)):
        if not any(each.parts[-count:] == path.parts[-count:] for each in others):
            return "/".join(path.parts[-count:])
    return str(path)


def definitions(names: Mapping[str, str]) -> list[str]:
    """Returns a paragraph that says what each name stands for; nothing without any."""
    lines = [f"{escaped(name)}: {code_span(label)}" for label, name in names.items() if label != name]
    return ["\n".join(f"* {line}" for line in lines)] if lines else []


def abbreviated(labels: Sequence[str], most: int) -> list[str]:
    """Cuts labels to a length, so that no two that differ become the same."""
    short = [each if len(each) <= most else f"{each[: most - 1]}…" for each in labels]
    both = [_both_ends(each, most) if short.count(cut) > 1 else cut for each, cut in zip(labels, short, strict=True)]
    numbers = {label: place for place, label in enumerate(dict.fromkeys(labels), 1)}
    same = {cut for cut in both if len({label for label, each in zip(labels, both, strict=True) if each == cut}) > 1}
    return [f"{cut} ({numbers[label]})" if cut in same else cut for label, cut in zip(labels, both, strict=True)]


def _both_ends(label: str, most: int) -> str:
    """Keeps the beginning and the end of a label, where similar ones differ."""
    end = most * 2 // 3
    return label if len(label) <= most else f"{label[: most - 1 - end]}…{label[-end:]}"
