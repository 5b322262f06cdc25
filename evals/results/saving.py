"""Writes the results of every kind of run into a folder."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from ...errors import RopescaleError
from ...files import Contents, Data
from ...output.formatting import Grid, Page, code_span, definitions, escaped, markdown, named, visible_lines
from ...output.plotting import add_caption, data_frame, drawn
from ...output.wrapping import to_html
from ..metrics.base import Metric, Picture
from ..metrics.cells import Line, csv_text, lines_of
from ..metrics.drawing import Curves, add_curves
from ..metrics.stored import Measured
from . import folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


class Writable(Protocol):
    """A result that can be written."""

    def save(self, out: str | Path, force: bool = False) -> object:
        """Writes the result into a folder or a file; replaces a different one only with ``force``."""


_ROUNDING = {
    "bfloat16": " bfloat16 rounds: on the bundled model it moved a token's loss by 0.027 nats (one standard "
    "deviation), the perplexity by at most 0.1%, and a change between schedules by about 0.001 nats.",
    "float16": " float16 rounds: on the bundled model it moved a token's loss by 0.003 nats (one standard "
    "deviation), the perplexity by less than 0.01%, and a change between schedules by less than 0.0001 nats.",
}
"""What a dtype adds to the figures (docs/measuring.md has the command)."""


class Saved(Measured, ABC):
    """Results that can be written into a folder; see :mod:`ropescale.evals.results.folder`."""

    kind: ClassVar[str]
    metrics: ClassVar[tuple[Metric[Any, Any], ...]]
    about: ClassVar[tuple[str, ...]] = ("kind", "model", "data", "protocol", "versions")
    """The names of the attributes that precede the metrics in results.json."""

    def to_dict(self) -> Data:
        """Returns the content of results.json, without the tables of REPORT.md and the hashes of files."""
        about = {name: getattr(self, name) for name in self.about}
        stopped = {"unfinished": self.unfinished} if self.unfinished else {}
        said = {"sentences": self.sentences(), "rests_on": self.rests_on()}
        return {"schema": folder.SCHEMA, **about, **stopped, **said, **self._parts()}

    @abstractmethod
    def protocol_line(self) -> str:
        """Returns a description of how the numbers were measured."""

    def to_markdown(self) -> str:
        """Returns the conclusions, and the tables of all metrics, followed by the protocol, as Markdown."""
        return markdown(self.page())

    def page(self) -> Page:
        """Returns the parts of :meth:`to_markdown`."""
        return ["\n".join(self.sentences()), self.rests_on(), *self.body()]

    def body(self) -> Page:
        """Returns all tables and the protocol, without the conclusions."""
        return [*self.tables_of_metrics(), definitions(self.short_names), self.protocol_line()]

    def tables_of_metrics(self) -> Page:
        """Returns the paragraphs and tables of all metrics."""
        return [part for metric, stored in self._computed for part in metric.to_markdown(stored)]

    @abstractmethod
    def sentences(self) -> list[str]:
        """Returns the conclusions, in one to three sentences of at most 200 characters."""

    @abstractmethod
    def main_table(self) -> Page:
        """Returns the main table behind the conclusions."""

    def summary(self) -> str:
        """Returns the conclusions, the main table, and a description of the sample behind it, as Markdown."""
        return markdown(self.summary_page())

    def summary_page(self) -> Page:
        """Returns the parts of :meth:`summary`."""
        said = "\n".join(self.sentences())
        return [self.unfinished, said, *self.main_table(), definitions(self.short_names), self.rests_on()]

    @abstractmethod
    def rests_on(self) -> str:
        """Describes the sample in a line."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._model}: {self._heading()}, {named(self.data['source'])}>"

    def _repr_html_(self) -> str:
        """Returns the conclusions and the main table for a notebook, with all tables in a collapsed section."""
        others = to_html(self.page())
        return f"{to_html(self.summary_page())}\n<details><summary>All tables</summary>\n{others}\n</details>"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Returns the main figure as a matplotlib ``Figure``, without opening a window.

        The figure shows perplexity against length. For a retrieval it shows heat maps by length and depth or task, and
        for a recommendation every candidate. The page of ``ropescale report`` has more.

        Args:
            ax: axes to draw into, which several results can share; then the figure shows perplexity, or for a
                retrieval the score, against length.

        Raises:
            RopescaleError: matplotlib is not installed.
        """
        if ax is None:
            picture, stored = self._pictures()[0]
            return picture.draw(stored)
        curves = {self.named(label): points for label, points in self._curves().items()}
        add_curves(ax, self._model, curves, self.y)
        return cast("Figure", ax.get_figure(root=True))

    y: ClassVar[str] = "perplexity"
    """The name of the numbers of :meth:`_curves`."""

    @abstractmethod
    def _curves(self) -> Curves:
        """Returns the main numbers with their bounds by length, for each schedule."""

    @property
    def _model(self) -> str:
        """The model's name."""
        return Path(self.model["path"]).name

    def to_pandas(self) -> DataFrame:
        """Returns the table of results.csv as a pandas ``DataFrame``, after columns for the model and the data.

        Raises:
            RopescaleError: pandas is not installed.
        """
        header, *lines = self._lines()
        about = self._model, self.data["source"]
        return data_frame(["model", "data", *header], [[*about, *line] for line in lines])

    def _lines(self) -> list[Line]:
        """Returns the header and the lines of results.csv; missing values are None."""
        (rows,) = (metric for metric in self.metrics if metric.key == "rows")
        return lines_of(rows.row, rows.rows(self))

    def to_csv(self) -> str:
        """Returns the content of results.csv."""
        return csv_text(self._lines())

    @property
    def _computed(self) -> list[tuple[Metric[Any, Any], Measured]]:
        """The metrics, each with the measurement that it is computed from."""
        return [(metric, self) for metric in self.metrics]

    def _parts(self) -> Data:
        """Returns every metric's part of results.json."""
        return {name: part for metric, stored in self._computed for name, part in metric.to_json(stored).items()}

    def _other_files(self) -> Contents:
        """Returns the content of further files, in addition to results.csv, REPORT.md and the plots, by name."""
        return {}

    def _pictures(self) -> list[tuple[Picture[Any], Measured]]:
        return [(each.picture, stored) for each, stored in self._computed if each.picture and each.has_picture(stored)]

    @abstractmethod
    def _heading(self) -> str:
        """Returns the first part of REPORT.md's title, which the model's name follows."""

    def _source(self) -> str:
        """Returns a line about the data, which follows that about the model in REPORT.md."""
        return f"\nData: {escaped(self.data['source'])}, text sha256 `{self.data['sha256']}`."

    def save(self, out: str | Path, force: bool = False) -> Path:
        """Writes results.json, the tables, the losses, the pictures and REPORT.md, and returns the folder's path.

        Without matplotlib, no pictures are written, and a note is printed on stderr.

        Args:
            force: whether to replace results of a different text or model, or with more schedules, lengths or metrics.

        Raises:
            CheckpointError: the folder cannot be written, or contains different results or more results.
        """
        path = folder.writable_folder(out, self.kind)
        plots = self._plots()
        report = []
        for part in [*self.body(), self._about()]:
            report.append(asdict(part) if isinstance(part, Grid) else part)
        files = {
            "results.csv": _encoded(self.to_csv()),
            **self._other_files(),
            "REPORT.md": _encoded(visible_lines(self._report(plots))),
            **plots,
        }
        folder.write(path, {**self.to_dict(), "report": report}, files, force)
        return path

    def _plots(self) -> Contents:
        """Returns the pictures by file name; prints a note and returns an empty dict if they cannot be drawn."""
        try:
            plots = {picture.file: partial(picture.draw, stored) for picture, stored in self._pictures()}
            for main in list(plots)[:1]:
                about = f"{self._model} on {self.data['source']}, {date.today()}. {self.rests_on()}"
                plots[main] = partial(add_caption, plots[main], [*self.sentences(), about])
            return {file: drawn(draw) for file, draw in plots.items()}
        except RopescaleError as error:
            if not self.unfinished:  # those are written once a minute
                print(f"note: no plots written; {error}", file=sys.stderr)
            return {}

    def _report(self, plots: Contents) -> str:
        images = [f"![{each.caption}]({each.file})" for each, _ in self._pictures() if each.file in plots]
        heading = f"# {self._heading()}: {escaped(self._model)}"
        return markdown([heading, self.unfinished, *self.page(), *images, f"{self._about()}\n{self._written()}"])

    def _about(self) -> str:
        """Returns the lines of REPORT.md on the model and the data."""
        model = self.model
        device = f" on {escaped(model['device'])}" if "device" in model else ""
        kernel = f", {escaped(model['attention'])}" if "attention" in model else ""
        how = f"{model['parameters']:,} parameters, {model['dtype']}{kernel}{device}"
        return f"Model: {escaped(model['path'])} ({how}).{_ROUNDING.get(model['dtype'], '')}{self._source()}"

    def _written(self) -> str:
        """Returns the lines of REPORT.md on how and when the results were made."""
        command = folder.store.own_command()
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        words = f"Command: {code_span(command)}\n" if command else ""
        return f"Written on {date.today()} by {versions}.\n{words}"


def csv_file(kind: type, rows: Iterable[object]) -> bytes:
    """Returns rows of a dataclass as the content of a CSV file."""
    return _encoded(csv_text(lines_of(kind, rows)))


def _encoded(text: str) -> bytes:
    """Returns a text as the content of a file; names in the text may contain characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace")
