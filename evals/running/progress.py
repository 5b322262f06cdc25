"""Progress on stderr: notes, and a bar on a terminal or one line per minute elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from tqdm import tqdm

from ...output.formatting import visible
from ...output.wrapping import folded_to

LOG = logging.getLogger(__name__)

EVERY = 60.0
"""Seconds between two lines, if stderr is a file or a pipe."""

_TITLE = 48
"""The most characters of a title, to leave space for the bar."""


@dataclass(frozen=True)
class Notes:
    """Notes to the user: on stderr, above the progress bar, or else in Python's log."""

    shown: bool = False

    @staticmethod
    def of(progress: bool | Notes) -> Notes:
        """Returns the notes of an option ``progress``, which may be a boolean."""
        return progress if isinstance(progress, Notes) else Notes(progress)

    def tell(self, line: str, level: int = logging.INFO) -> None:
        """Prints or logs a note on the run."""
        if self.shown:
            with suppress(OSError):  # an unwritable log must not end the run
                tqdm.write(folded_to(sys.stderr, visible(line)), file=sys.stderr)
        else:
            LOG.log(level, line)

    def warn(self, line: str) -> None:
        """Prints or logs a warning that concerns the numbers."""
        self.tell(line, logging.WARNING)


class Progress:
    """The progress of one pass: tokens fed, their rate, the time left, and the perplexity so far.

    The perplexity is token-weighted over all scored tokens, and only for display.

    Args:
        title: the title of the pass.
        total: tokens to feed.
        shown: whether this process shows progress.
        before: stored NLLs in nats of a resumed run.
    """

    def __init__(self, title: str, total: int, shown: bool, before: Iterable[np.ndarray] = ()) -> None:
        self.title = title if len(title) <= _TITLE else f"{title[: _TITLE - 1]}…"
        self.total, self._fed = total, 0
        self._nll, self._scored, self._state = 0.0, 0, ""
        self._start = self._said = time.monotonic()
        # disable=None: tqdm shows itself only on a terminal.
        hidden = None if shown else True
        self._bar = tqdm(desc=self.title, total=total, unit="tok", unit_scale=True, disable=hidden, dynamic_ncols=True)
        self._lines = shown and self._bar.disable
        for nll in before:
            self._weigh(nll)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.close()

    @property
    def perplexity(self) -> float | None:
        """The perplexity of the tokens scored so far."""
        return math.exp(min(self._nll / self._scored, 709.0)) if self._scored else None

    def say(self, state: str) -> None:
        """Sets the text after the tokens, such as a loss."""
        self._state = state
        self._bar.set_postfix_str(state, refresh=False)

    def add(self, fed: int, nll: np.ndarray | None = None) -> None:
        """Counts a finished batch.

        Args:
            fed: its tokens.
            nll: the NLLs of its scored tokens, in nats.
        """
        self._fed += fed
        if nll is not None:
            self._weigh(nll)
            self._bar.set_postfix_str(f"ppl {_figure(self.perplexity)}", refresh=False)
        self._bar.update(fed)
        if self._lines and time.monotonic() - self._said >= EVERY and self._fed < self.total:
            self._said = time.monotonic()
            speed = self._fed / max(time.monotonic() - self._start, 1e-9)
            so_far = f", perplexity {_figure(self.perplexity)} so far" if self._scored else ""
            so_far += f", {self._state}" if self._state else ""
            line = (
                f"{self.title}: {self._fed:,} of {self.total:,} tokens ({self._fed / self.total:.0%}){so_far}, "
                f"{speed:,.0f} tokens/s, {duration((self.total - self._fed) / speed)} to go"
            )
            with suppress(OSError):
                print(folded_to(sys.stderr, line), file=sys.stderr, flush=True)

    def _weigh(self, nll: np.ndarray) -> None:
        self._nll += float(nll.sum(dtype=np.float64))
        self._scored += len(nll)


def duration(seconds: float) -> str:
    """Returns a duration as text, to the minute."""
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"about {hours} h {minutes} min"
    return f"about {minutes} min" if minutes else "less than a minute"


def _figure(value: float | None) -> str:
    """Formats four significant digits; huge numbers as powers of ten."""
    if value is None:
        return "-"
    return f"{value:#.4g}".rstrip(".") if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
