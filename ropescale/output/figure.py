"""A figure for notebooks. Imports matplotlib, so it is imported only for drawing."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure without a window, which notebooks display without matplotlib's inline backend."""

    def _repr_png_(self) -> bytes:
        """Returns the image for IPython, which prefers its inline backend if active."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()
