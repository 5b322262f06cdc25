"""Draws plots with matplotlib (the ``plot`` extra), without a display or global state; data frames of pandas."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, RopescaleError
from ..files import read_bytes, write_checked
from .formatting import first_line, visible_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

COLOURS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
}
"""Okabe and Ito's palette, distinguishable with every kind of colour vision (jfly.uni-koeln.de/color)."""

FORMATS = (".png", ".svg", ".pdf")
_METADATA = {"Creator": "ropescale"}
"""The mark in ropescale's image files, supported by all three formats."""

_MARKS = (
    (b"\x89PNG\r\n\x1a\n", re.compile(rb"\0\0\0\x11tEXtCreator\0ropescale")),
    (b"%PDF-", re.compile(rb"/Creator \(ropescale\)")),
    (b"<?xml", re.compile(rb"<dc:creator>\s*<cc:Agent>\s*<dc:title>ropescale</dc:title>")),
)
"""The first bytes of each image format, and ropescale's mark."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "ropescale",
}


@contextmanager
def in_style(width: float, height: float, **other: object) -> Iterator[Figure]:
    """Yields an empty figure of this size in inches; drawing inside the block uses ropescale's style.

    The figure has no window, and notebooks display it without matplotlib's inline backend.

    Args:
        other: additional matplotlib settings.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    with _loading():
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.text import Text

        figure: Any = Figure(figsize=(width, height), layout="constrained")
        figure._repr_png_ = partial(_preview, figure)
    style: dict[Any, Any] = {**STYLE, **other}
    with rc_context(style):
        yield figure
    for text in figure.findobj(Text):
        text.set_text(plain(text.get_text()))


def plain(text: str) -> str:
    """Escapes a text for a figure: control characters, and dollars, which would start a formula."""
    return re.sub(r"(?<!\\)\$", r"\\$", visible_lines(text))


def _preview(figure: Figure) -> bytes:
    """Returns the image for IPython, which prefers its inline backend if active."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


@contextmanager
def _loading(what: str = "plots", library: str = "matplotlib", install: str = "'ropescale[plot]'") -> Iterator[None]:
    """Converts a failure to load a library to an error of one sentence; some parts of it load only when saving."""
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = "which is not installed" if missing else f"which fails to load ({first_line(error)})"
        raise RopescaleError(f"{what} need {library}, {why}; pip install {install}") from None


def data_frame(header: Sequence[str], lines: Sequence[Sequence[object]]) -> DataFrame:
    """Returns a table as a data frame.

    Raises:
        RopescaleError: pandas is not installed.
    """
    with _loading("data frames", "pandas", "pandas"):
        import pandas

    return pandas.DataFrame(lines, columns=list(header))


def add_caption(draw: Callable[[], Figure], paragraphs: Iterable[str]) -> Figure:
    """Returns a new figure with paragraphs below it, in lines that fit its width."""
    figure = draw()
    wrapper = textwrap.TextWrapper(round(16 * figure.get_figwidth()), break_on_hyphens=False)
    lines = [line for paragraph in paragraphs for line in wrapper.wrap(paragraph)]
    figure.set_figheight(figure.get_figheight() + 0.13 * len(lines))
    figure.supxlabel(plain("\n".join(lines)), x=0.01, ha="left", fontsize=7)
    return figure


def drawn(draw: Callable[[], Figure]) -> bytes:
    """Returns a figure as the content of a PNG file.

    Args:
        draw: a function that makes the figure.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    with _loading():
        file = io.BytesIO()
        draw().savefig(file, format="png", dpi=160, metadata=_METADATA)
        return file.getvalue()


def save(figure: Figure, path: str | Path) -> None:
    """Writes the figure to a file atomically; replaces an existing file only if it has ropescale's mark.

    Raises:
        CheckpointError: the folder is missing or cannot be written, the extension is not png, svg or pdf, or the file
            exists and ropescale did not write it.
    """
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise CheckpointError(f"cannot write a plot to {path}; its name must end in {', '.join(FORMATS)}")
    file = io.BytesIO()
    with _loading():
        figure.savefig(file, dpi=160, format=kind[1:], metadata=_METADATA)
    write_checked(file.getvalue(), path, _check_ours)


def _check_ours(path: Path) -> None:
    """Raises an error for an existing file that is neither an image with ropescale's mark nor empty."""
    content = read_bytes(path, path.stat().st_size)
    if content and not any(content.startswith(kind) and mark.search(content) for kind, mark in _MARKS):
        raise CheckpointError(
            f"cannot write a plot to {path}: the existing file was not written by ropescale; choose another name"
        )
