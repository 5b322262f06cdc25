"""A figure that a notebook shows. Imports matplotlib, so it is imported when something is drawn."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that belongs to no window, and that a notebook shows without matplotlib's inline backend."""

    def _repr_png_(self) -> bytes:
        """Returns the picture for IPython, which prefers its inline backend's where that is on."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()
