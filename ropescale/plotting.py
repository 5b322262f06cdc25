"""Pictures, with matplotlib (the ``plot`` extra). No display, no global state."""

from __future__ import annotations

import errno
import io
import math
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError, RopescaleError
from .files import atomic
from .formatting import first_line
from .keywords import refuse_unknown
from .request import Request, RequestOptions

if TYPE_CHECKING:
    from typing import Unpack

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .inspecting import Geometry, Pair

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
"""Okabe and Ito's palette, told apart by every kind of colour vision (jfly.uni-koeln.de/color)."""

FORMATS = (".png", ".svg", ".pdf")
_METADATA = {"Creator": "ropescale"}
"""The mark in every picture of ours. All three formats have it."""

_MARKS = (
    (b"\x89PNG\r\n\x1a\n", re.compile(rb"\0\0\0\x11tEXtCreator\0ropescale")),
    (b"%PDF-", re.compile(rb"/Creator \(ropescale\)")),
    (b"<?xml", re.compile(rb"<dc:creator>\s*<cc:Agent>\s*<dc:title>ropescale</dc:title>")),
)
"""The first bytes of each kind of picture, and our mark: near its beginning, in a PDF near its end."""

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


def new_figure(width: float, height: float) -> Figure:
    """Makes an empty figure of this many inches.

    Raises:
        RopescaleError: matplotlib is not installed, or there is not the memory for it.
    """
    with _loading():
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


@contextmanager
def _loading() -> Iterator[None]:
    """Turns a failure to load matplotlib into one sentence; some parts load only when a figure is saved."""
    try:
        yield
    except (ImportError, MemoryError) as error:
        raise RopescaleError(_why_missing(error)) from None


def is_want_of_memory(error: BaseException) -> bool:
    """Whether an import failed for lack of memory; the dynamic linker words this differently."""
    return isinstance(error, MemoryError) or any(each in str(error) for each in ("memory", "failed to map segment"))


def _why_missing(error: BaseException) -> str:
    """Says why a library does not load: it is not installed, or memory is short."""
    if is_want_of_memory(error):
        return "there is not enough memory to draw plots; give it more, or do without"
    missing = isinstance(error, ModuleNotFoundError)
    what = "which is not installed" if missing else f"which does not load ({first_line(error)})"
    return f"plots need matplotlib, {what}; pip install 'ropescale[plot]'"


def drawn(draw: Callable[[], Figure]) -> bytes:
    """Returns a picture as the content of a PNG file.

    Args:
        draw: makes the figure.

    Raises:
        RopescaleError: matplotlib is not installed, or there is not the memory for it.
    """
    with _loading():
        file = io.BytesIO()
        draw().savefig(file, format="png", dpi=160, metadata=_METADATA)
        return file.getvalue()


def save(figure: Figure, path: str | Path) -> None:
    """Writes the figure beside ``path`` and renames it, so that no half of a picture is ever left.

    An existing picture is replaced only if our mark is in it.

    Raises:
        CheckpointError: the folder is missing or cannot be written, the ending is none of png, svg, pdf, or something
            else than a picture of ours has the name.
    """
    path = _expanded(path)
    if path.suffix.lower() not in FORMATS:
        raise CheckpointError(f"cannot write a plot to {path}; its name must end in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot write a plot to {path}; there is no folder {path.parent}")
    try:
        path = path.resolve() if path.is_symlink() else path  # what a link leads to is replaced, and not the link
        _check_ours(path)
        with _loading(), atomic.part(path, check=_check_ours) as beside:
            figure.savefig(beside, dpi=160, format=path.suffix[1:].lower(), metadata=_METADATA)
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:  # a null byte in the name is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot write a plot to {path}: {reason}") from error


def _check_ours(path: Path) -> None:
    """Refuses to replace anything but a picture of ours.

    Raises:
        CheckpointError: what is there is neither a picture with our mark nor an empty file.
        OSError: it is no file at all.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory" if path.is_dir() else "Not a regular file")
        with open(path, "rb") as file:
            start = file.read(2**12)
            file.seek(max(0, path.stat().st_size - 2**18))
            end = file.read(2**18)
    except FileNotFoundError:
        return
    if start and not any(start.startswith(kind) and mark.search(start + end) for kind, mark in _MARKS):
        raise CheckpointError(
            f"cannot write a plot to {path}: what is there is no picture of ropescale; choose another name"
        )


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise CheckpointError(f"cannot write a plot to {path}; there is no such home folder") from None


def plot(
    model: Any, schedule: object = None, path: str | Path | None = None, **options: Unpack[RequestOptions]
) -> Figure:
    """Draws a model's wavelength and turns per pair, and what a schedule makes of them.

    Args:
        model: a checkpoint's folder or Hub id (no weights are read), a configuration, or a loaded model.
        schedule: a schedule or a spec such as ``"yarn:factor=8"``; without one, the scaling that it has is shown.
        path: also write the picture to this file (png, svg or pdf).
        options: the fields of :class:`ropescale.request.Request`.

    Returns:
        A matplotlib ``Figure`` that belongs to no window; a notebook shows it. See :func:`draw_geometry`.

    Raises:
        RopescaleError: matplotlib is not installed, or the model or the schedule cannot be read.
    """
    from .inspecting import geometries_of, inspect
    from .tables import configuration_of

    refuse_unknown("ropescale.plot", options, RequestOptions.__annotations__)
    if isinstance(model, (str, Path)):
        geometries = inspect(str(model), schedule, **options).geometries
    else:
        config = configuration_of(model, "as-is" if schedule is None else schedule)
        geometries = geometries_of(config, Request.of(schedule, **options))
    figure = draw_geometry(geometries)
    if path is not None:
        save(figure, path)
    return figure


def plot_geometry(geometries: Sequence[Geometry], path: str | Path) -> None:
    """Writes the picture of :func:`draw_geometry`."""
    save(draw_geometry(geometries), path)


def draw_geometry(geometries: Sequence[Geometry]) -> Figure:
    """Draws wavelength and turns per pair, before and after a schedule: one row of two panels per layer type.

    Left: tokens per full turn, with the trained and the target length as lines, or the window of layers that see no
    more. A pair above the trained length's line never completed a turn in training. Right: turns inside the trained
    length before the schedule, inside the target length after it, and inside the target length had nothing been done.
    """
    figure = new_figure(9.6, 3.9 * len(geometries))
    from matplotlib import rc_context

    with rc_context(STYLE):
        panels = figure.subplots(len(geometries), 2, squeeze=False)
        for row, geometry in zip(panels, geometries):
            _wavelength_panel(row[0], geometry)
            _turns_panel(row[1], geometry)
    return figure


# Open circles under small squares: where the two curves coincide, both are seen.
BEFORE: dict[str, Any] = {
    "color": COLOURS["blue"], "marker": "o", "markersize": 5.5, "markerfacecolor": "none", "linewidth": 1.2
}  # fmt: skip
AFTER: dict[str, Any] = {"color": COLOURS["vermilion"], "marker": "s", "markersize": 2.6, "linewidth": 1.2}
UNDONE: dict[str, Any] = {"color": COLOURS["sky"], "linestyle": (0, (4, 2)), "linewidth": 1.4}


def _wavelength_panel(axes: Axes, geometry: Geometry) -> None:
    pairs = geometry.pairs()
    _title(axes, geometry, "Wavelength per pair", "tokens per full turn")
    _curve(axes, pairs, "wavelength", label="as trained", **BEFORE)
    if geometry.schedule:
        _curve(axes, pairs, "new_wavelength", label=geometry.label, **AFTER)
    if geometry.window and geometry.window < geometry.rope.original_length:
        _level(axes, geometry.window, f"window {geometry.window:,}", "--")
    else:
        _level(axes, geometry.rope.original_length, f"trained length {geometry.rope.original_length:,}", "--")
    if geometry.target_length and geometry.target_length not in (geometry.rope.original_length, geometry.window):
        _level(axes, geometry.target_length, f"target length {geometry.target_length:,}", ":")
    _shade_unturned(axes, geometry)
    axes.legend(loc="lower right")


def _turns_panel(axes: Axes, geometry: Geometry) -> None:
    pairs, trained = geometry.pairs(), geometry.seen(geometry.rope.original_length)
    target = geometry.seen(geometry.target_length) if geometry.target_length else None
    _title(axes, geometry, "Turns per pair", "full turns")
    _curve(axes, pairs, "turns", label=f"as trained, in {trained:,} tokens", **BEFORE)
    if geometry.schedule and target:
        if target != trained:
            undone = [pair.turns * target / trained for pair in pairs]
            axes.plot(range(len(undone)), [_positive(v) for v in undone], label=f"unchanged, in {target:,}", **UNDONE)
        _curve(axes, pairs, "new_turns", label=f"{geometry.label}, in {target:,}", **AFTER)
    _level(axes, 1, "one full turn", "--")
    _shade_unturned(axes, geometry)
    axes.legend(loc="lower left")


def _title(axes: Axes, geometry: Geometry, title: str, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    layers = "" if geometry.layer_type == "all" else f" ({geometry.layer_type})"
    axes.set_title(f"{title}{layers}", fontsize=10, loc="left")
    axes.set_xlabel("pair (0 turns fastest)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(quantity)
    axes.set_yscale("log")
    axes.set_xlim(-0.5, geometry.rope.pairs - 0.5)


def _curve(axes: Axes, pairs: Sequence[Pair], field: str, **style: Any) -> None:
    """Draws a line through the pairs; those that never turn have no place on a log axis and are left out."""
    axes.plot([pair.pair for pair in pairs], [_positive(getattr(pair, field)) for pair in pairs], **style)


def _positive(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else math.nan


def _level(axes: Axes, height: float, text: str, style: str) -> None:
    """Draws a horizontal line with its name written on it."""
    axes.axhline(height, color=COLOURS["black"], linestyle=style, linewidth=1)
    axes.annotate(
        text, (0.01, height), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points", fontsize=8
    )


def _shade_unturned(axes: Axes, geometry: Geometry) -> None:
    """Shades the pairs that never completed a turn in training."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.12)  # room for the words above the highest point
    unturned = geometry.unturned()
    if unturned:
        axes.axvspan(unturned[0] - 0.5, geometry.rope.pairs - 0.5, color="#000000", alpha=0.06, linewidth=0)
        axes.annotate(
            "no full turn\nin training", (unturned[0] - 0.3, 0.98), xycoords=("data", "axes fraction"),
            va="top", fontsize=8, color="#444444",
        )  # fmt: skip
