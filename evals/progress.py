"""Progress on stderr: notes, and a bar on a terminal or one line per minute elsewhere."""

from __future__ import annotations

import io
import logging
import math
import sys
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from tqdm import tqdm

from ..output.formatting import cut, visible
from ..output.wrapping import folded_to
from .metrics.cells import digits

LOG = logging.getLogger(__name__)

EVERY = 60.0
"""Seconds between two lines, if stderr is a file or a pipe."""

_LINE = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
"""A line of progress where there is no terminal, in tqdm's fields."""

_TITLE = 48
"""The maximum length of a title, which leaves space for the bar."""


@dataclass(frozen=True)
class Notes:
    """Notes to the user, printed on stderr above the progress bar if ``shown``, else logged."""

    shown: bool = False

    def tell(self, line: str, level: int = logging.INFO) -> None:
        """Prints or logs a note on the run."""
        if self.shown:
            with suppress(OSError):  # a note that cannot be written must not end the run
                tqdm.write(folded_to(sys.stderr, visible(line)), file=sys.stderr)
        else:
            LOG.log(level, line)

    def warn(self, line: str) -> None:
        """Prints or logs a warning."""
        self.tell(line, logging.WARNING)


class _Bar(tqdm):
    """A progress bar on a terminal, and elsewhere a line every :data:`EVERY` seconds."""

    def __init__(self, title: str, total: int, shown: bool, line: int = 0) -> None:
        self._on_terminal = sys.stderr.isatty()
        how: dict[str, Any] = {"unit": "tok", "unit_scale": True, "dynamic_ncols": True}
        how |= {"position": line, "leave": False} if line else {}
        if not self._on_terminal:
            how |= {"mininterval": EVERY, "miniters": 1, "bar_format": _LINE, "file": io.StringIO()}
        super().__init__(desc=title, total=total, disable=not shown, **how)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Shows the bar, or prints a line if stderr is no terminal and the pass has started and is not complete."""
        if self._on_terminal:
            super().display(msg, pos)
        elif 0 < self.n < self.total:
            with suppress(OSError):
                print(folded_to(sys.stderr, str(self)), file=sys.stderr, flush=True)


class Progress:
    """The progress of one pass: tokens fed, tokens per second, the time left, and the perplexity so far.

    The perplexity is over the tokens that this process has scored, and only for display.

    Args:
        title: the title of the pass.
        total: the number of tokens to feed.
        shown: whether this process shows progress.
        whole: the progress of the run that the pass is a part of. Where there is no terminal, it has the only lines.
        line: the line below the pass's bar on which the bar is drawn, and removed at its end; 0 for a pass.
    """

    def __init__(self, title: str, total: int, shown: bool, whole: Progress | None = None, line: int = 0) -> None:
        self._nll = 0.0
        self._scored = 0
        self.shown = shown
        self._title = cut(title, _TITLE)
        self._whole = whole
        alone = whole is None or not whole.shown or sys.stderr.isatty()
        self._bar = _Bar(self._title, total, shown and alone, line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._whole is not None:
            self._whole._bar.clear()  # else its text stays on the line that comes next
        self._bar.pos = 0  # where it is now
        self._bar.close()

    def expect(self, tokens: int) -> None:
        """Sets the number of tokens that are still to be fed."""
        self._bar.total = self._bar.n + tokens

    def say(self, state: str) -> None:
        """Sets the text that follows the number of tokens, such as a loss."""
        self._bar.set_postfix_str(state, refresh=False)
        if self._whole is not None and self._bar.disable:
            self._whole.say(f"{self._title}, {state}")

    def add(self, fed: int, nll: np.ndarray | None = None) -> None:
        """Adds a finished batch.

        Args:
            fed: the number of tokens fed.
            nll: the NLLs of the scored tokens, in nats; None does not change the perplexity.
        """
        if nll is not None:
            self._nll += float(nll.sum(dtype=np.float64))
            self._scored += len(nll)
            ppl = math.exp(min(self._nll / self._scored, 709.0))
            self.say(f"ppl {digits(ppl, 4)}")
        self._bar.update(fed)
