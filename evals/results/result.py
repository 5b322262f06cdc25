"""The result of a measurement: printing, writing and loading.

The file of per-token losses, ``losses.safetensors``, has a tensor per schedule and pass, fp32 in nats. A tensor has the
shape [windows, scored tokens], or is flat if the windows have different sizes. The file's metadata describes documents
and tensors as JSON; ``results.json`` contains the file's sha256.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from ...errors import DataError
from ...files import LARGEST, Contents, Data, local_path, parse_json, sha256
from ...output.formatting import Page, definitions, escaped, listed
from .. import checking
from ..checking import Damaged, Parsed
from ..data.chats import ASSISTANT
from ..facts import TRUNCATION, Divergence, Key, Pass, Truncation
from ..metrics import METRICS, against_truncation, by_position, far_repeats, paired, perplexity, verdicts
from ..metrics.answer import answer
from ..metrics.base import rests_on
from ..metrics.cells import Line, digits, exp, table
from ..metrics.drawing import Curves
from ..metrics.stored import Identity, Stored, parts_of
from ..statistics import intervals
from ..statistics.intervals import DOCUMENTS, LEAST_DOCUMENTS, LEAST_WINDOWS, PERCENT
from .folder import LOSSES, RESULTS, Results, read_results, refusing_damage
from .saving import Saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(repr=False)
class Result(Stored, Saved):
    """A finished (or interrupted) measurement; :class:`.stored.Stored` documents the attributes."""

    kind: ClassVar[str] = "perplexity"
    metrics = METRICS
    about = Saved.about[1:]

    @classmethod
    def load(cls, out: str | Path) -> Result:
        """Reads the losses and the metrics from a folder that :meth:`save` wrote.

        Raises:
            DataError: the folder does not contain such results, or a file is damaged or missing.
        """
        path = local_path(out)
        return cls.of(path, read_results(path, cls.kind))

    @classmethod
    def of(cls, path: Path, results: Results) -> Result:
        """Returns the measurement in a folder, given the content of results.json.

        Raises:
            DataError: the losses are missing or damaged, or belong to different results.
        """
        losses = read_losses(path, results)
        with refusing_damage(path / RESULTS):
            rows = perplexity.METRIC.read(results)
            pairs = paired.METRIC.read(results)
            made = cls(
                results["model"],
                results["data"],
                dict(results["protocol"]),
                results["versions"],
                documents=[],
                baseline=pairs[0].baseline if pairs else rows[0].schedule,
                trained_length=results["model"].get("trained_length"),
                tables=results.get("tables", {}),
                options={name: value for each in cls.metrics for name, value in each.recalled(results).items()},
                unfinished=results.get("unfinished", ""),
                **losses,
            )
            stored = [each for each in cls.metrics if each.key in results]
            made.figures |= {each.row: each.read(results) for each in stored}
            for name, part in made.by_source.items():
                found = results.get("sources", {})[name]
                part.figures |= {each.row: each.read(found) for each in stored if each.key in found}
        return made

    @cached_property
    def by_source(self) -> dict[str, Result]:
        """The measurement of each source's documents, by source name; empty if there is a single source.

        These measurements are parts of this one and use the same losses.
        """
        return parts_of(self)

    @property
    def rows(self) -> list[perplexity.PerplexityRow]:
        """One row per schedule and length: schedules in the order in which they ran, lengths ascending."""
        return perplexity.METRIC.rows(self)

    @property
    def paired(self) -> list[paired.PairedRow]:
        """The change of every schedule against the baseline, at every shared length."""
        return paired.METRIC.rows(self)

    @property
    def verdicts(self) -> list[verdicts.VerdictRow]:
        """The comparisons that the sentences may draw, with intervals that hold for all of them together."""
        return verdicts.METRIC.rows(self)

    @property
    def repeats(self) -> list[far_repeats.RepeatsRow]:
        """The perplexity of far repeats and of all other tokens, at every length beyond the distance of far repeats."""
        return far_repeats.METRIC.rows(self)

    @property
    def against_truncation(self) -> list[against_truncation.TruncationRow]:
        """The comparison of every schedule with truncation, at every length beyond the trained one."""
        return against_truncation.METRIC.rows(self)

    def by_position(self, schedule: str) -> list[by_position.PositionRow]:
        """Returns the mean NLL in position bins that grow by sqrt(2), from the schedule's longest pass.

        These bins show the rise at the trained length that the perplexity of a prefix averages out.

        Raises:
            DataError: the schedule was not measured.
        """
        self.refuse_unmeasured(schedule)
        return [row for row in by_position.METRIC.rows(self) if row.schedule == schedule]

    def to_dict(self) -> Data:
        """Returns the content of results.json."""
        model = self.model | {"trained_length": self.trained_length}
        found = {}
        for name, part in self.by_source.items():
            found[name] = {"documents": part.data["documents"], **part._parts()}
        sources = {"sources": found} if found else {}
        return {**super().to_dict(), "model": model, **sources, "tables": self.tables}

    def body(self) -> Page:
        """Returns all tables, first for all sources together and then by source, and the protocol."""
        parts: Page = [each for each in answer(self, whole=True) if each not in answer(self)]
        parts += [f"All sources ({rests_on(self)}):"] if self.by_source else []
        parts += self.tables_of_metrics()
        for name, part in self.by_source.items():
            few = "" if part._blocks else intervals.over_documents(part.data["documents"])
            extent = f"{rests_on(part)}; their interval {few}" if few else rests_on(part)
            parts += [f"{escaped(name)} ({extent}):", verdicts.worse_than_a_guess(part), *part.tables_of_metrics()]
        return [*parts, definitions(self.short_names), self.protocol_line()]

    def sentences(self) -> list[str]:
        """Returns sentences on the best schedule at the longest length, its cost, and truncation."""
        return answer(self)

    def minus(self, before: Result) -> list[verdicts.VerdictRow]:
        """Returns this model's loss minus that of another on the same tokens, at each length that both measured.

        Schedules with the same name are compared, and those with the same tables: a model that was trained under its
        patch, as it is, with the original under that schedule. The intervals hold together, as those of verdicts.

        Raises:
            DataError: the two did not score the same tokens.
        """
        return verdicts.between(self, before)

    def unmet(self, requirements: Iterable[str]) -> list[str]:
        """Returns a line for every requirement that is not shown, such as ``"yarn:factor=8 gain>=0.5 at 32k"``.

        ``cost<=`` and ``gain>=`` are nats against ``as-is`` in the average document. The whole interval must keep them,
        which takes ten documents or more.

        Raises:
            DataError: a requirement cannot be read, or its schedule or length was not measured.
        """
        return verdicts.unmet(self, requirements)

    def main_table(self) -> Page:
        """Returns the table of perplexities, including those of truncation.

        Up to the trained length, truncation is the unchanged model.
        """
        cells = [(self.named(row.schedule), row.length, digits(row.ppl, 4)) for row in self.rows]
        cells += [(TRUNCATION, length, digits(exp(loss), 4)) for length, loss in self.truncated_losses.items()]
        return [table("perplexity", cells)]

    def rests_on(self) -> str:
        """Describes the sample and the intervals in plain words; :meth:`protocol_line` describes the method."""
        number = self.data["documents"]
        pieces = self.data.get("windows")
        said = f"Measured on {number:,} document{'s' * (number != 1)}"
        if not self.sliding and pieces not in (None, number):
            said += f", in {pieces:,} pieces of {self.lengths[-1]:,} tokens"
        if verdicts.too_few(number):
            return f"{said}; other texts may differ."
        shown = [] if verdicts.worse_than_a_guess(self) else self.verdicts
        if all(row.low is None for row in shown):
            return f"{said}; each interval holds by itself with {PERCENT} confidence."
        together = f"the intervals in these sentences and in their table hold together with {PERCENT} confidence"
        return f"{said}; {together}, all others each by itself."

    @property
    def _blocks(self) -> str | None:
        """The sampling unit of intervals that are not over documents; None if there are no such intervals."""
        return next((row.interval for row in reversed(self.rows) if row.interval not in (None, DOCUMENTS)), None)

    def protocol_line(self) -> str:
        """Returns a description of the measurement's protocol and data."""
        kinds = {"chats": "chats", "pretokenized": "given as token ids", "prompts": "prompts, their answers scored"}
        data = [rests_on(self), self.share]
        data += [f"{self.data[name]} {words}" for name, words in kinds.items() if name in self.data]
        data += self.data.get("layouts", [])
        if self.protocol.get("score") == ASSISTANT:
            data.append("only the assistant's tokens scored")
        data.append(f"{self.data['tokens']:,} scored tokens")
        skipped = [f"{n} {why.replace('_', ' ')}" for why, n in self.data.get("skipped", {}).items() if n]
        parts = [
            f"protocol {self.protocol['name']}: {self.title[0].lower()}{self.title[1:]} "
            f"({'BOS first' if self.bos else 'no BOS'}), every token scored once, token-weighted, "
            f"{self.model['dtype']}",
            ", ".join(filter(None, data)),
            f"skipped: {listed(skipped)}" if skipped else "",
            self._interval_line(),
            f"text sha256 {self.data['sha256'][:12]}",
        ]
        return "; ".join(filter(None, parts))

    def _interval_line(self) -> str:
        blocks = self._blocks
        if blocks:
            which = f"which does not generalise to other documents and {intervals.OVER_BLOCKS} (docs/intervals.md)"
            return f"† is the {PERCENT} interval over {blocks}, {which}"
        if all(row.ppl_low is None for row in self.rows):
            pieces = "pieces of 1,024 tokens" if self.sliding else "windows"
            least = f"{LEAST_DOCUMENTS} documents, or one document of {LEAST_WINDOWS} {pieces}"
            return f"no interval: it needs {least}"
        few = intervals.over_documents(self.data["documents"])
        return f"± or (low to high) is the {self.protocol['interval']} interval{f', which {few}' if few else ''}"

    @property
    def share(self) -> str:
        """The windows' share of the documents, as text; empty if unknown."""
        if "share" not in self.data:
            return ""
        return f"{100 * self.data['share']:.3g}% of {self.data['whole']:,} {self.data['unit']}"

    def _lines(self) -> list[Line]:
        """Returns the header and the lines of results.csv, with None for the values that a metric lacks.

        With several sources, the first column contains the source, or ``all``.
        """
        header, *lines = self._own_lines()
        if not self.by_source:
            return [header, *lines]
        lines = [["all", *line] for line in lines]
        for name, part in self.by_source.items():
            lines += [[name, *line] for line in part._own_lines()[1:]]
        return [["source", *header], *lines]

    def _own_lines(self) -> list[Line]:
        header = [name for metric in self.metrics for name in metric.columns]
        cells: dict[Key, Data] = {key: {} for key in self.read_from}
        for metric in self.metrics:
            for row in metric.rows(self) if metric.columns else ():
                for name, field in metric.columns.items():
                    cells[row.schedule, row.length][name] = getattr(row, field)
        lines = [[cell.get(name) for name in header] for cell in cells.values()]
        for row in perplexity.truncated(self):
            lines.append([getattr(row, name, None) for name in header])
        return [header, *lines]

    def _curves(self) -> Curves:
        return perplexity.curves_of(self)

    def plot_by_position(self) -> Figure:
        """Returns a figure of the loss by position.

        Raises:
            RopescaleError: matplotlib is not installed.
        """
        return by_position.draw(self)

    # --- files ---

    def _heading(self) -> str:
        return "Perplexity against length"

    def _other_files(self) -> Contents:
        return {LOSSES: to_bytes(self)}


# --- The file of losses


T = TypeVar("T")

_LARGEST = 2**34
_KEY = "index"


_ENDS = {"nll": "", "kl": " kl", "same": " same top"}
"""The ends of the names of tensors, by the field that has the array."""


def to_bytes(stored: Stored) -> bytes:
    """Returns the content of the file of losses."""
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}

    def entry(about: Pass | Divergence | Truncation, schedule: str, length: int) -> Data:
        name = f"{schedule} @ {length}"
        found: Data = {"name": name}
        for field in fields(about):
            value = getattr(about, field.name)
            if field.name in _ENDS:
                arrays = [np.asarray(window, np.float32) for window in value]
                sizes = [len(each) for each in arrays]
                same = len(set(sizes)) == 1
                tensors[name + _ENDS[field.name]] = np.stack(arrays) if same else np.concatenate(arrays)
                found["sizes"] = None if same else sizes
            elif field.name != "key":  # only needed while a measurement runs
                found[field.name] = value
        return found

    cut = stored.truncation
    counted = zip(stored.identified, stored.windows_per_text, strict=True)
    index = {
        "bos": stored.bos,
        "documents": [vars(each) | {"windows": count} for each, count in counted],
        "passes": [entry(run, run.schedule, run.lengths[-1]) for run in stored.passes],
        "divergences": [entry(each, each.schedule, each.length) for each in stored.divergences],
        "truncation": cut and entry(cut, TRUNCATION, cut.length),
    }
    return save(tensors, {_KEY: json.dumps(index)})


def read_losses(folder: Path, results: Results) -> Parsed:
    """Reads the losses that belong to these results, as values for fields of :class:`.metrics.stored.Stored`.

    Raises:
        DataError: the file is missing or damaged, or belongs to different results.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / LOSSES
    if not path.exists():
        raise DataError(f"{folder} has {RESULTS} and no {LOSSES}; run the evaluation again")
    with refusing_damage(path):
        numbers = results["data"]["tokens"] * (3 * len(results["rows"]) + 1)  # losses, KL, agreement; truncation
        content = checking.content(path, min(_LARGEST, LARGEST + 4 * numbers))
        if sha256(content) != results["files"][LOSSES][0]:  # a second hash is of the replaced results
            raise Damaged("does not belong to the results beside it, or was changed (its checksum differs)")
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise Damaged(f"does not hold the losses of a run ({error})") from None
        header: Any = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return _read(parse_json(header["__metadata__"][_KEY].encode()), tensors)


def _read(index: Parsed, tensors: Mapping[str, np.ndarray]) -> Parsed:
    def read(kind: type[T], entry: dict[str, Any]) -> T:
        """Returns an entry with its tensors, each as a list by window."""
        name = entry.pop("name")
        sizes = entry.pop("sizes")
        for field in _ENDS.keys() & kind.__annotations__.keys():
            whole = tensors[name + _ENDS[field]]
            entry[field] = list(whole) if sizes is None else np.split(whole, np.cumsum(sizes)[:-1])
        return kind(**entry)

    windows = [each.pop("windows") for each in index["documents"]]
    passes = [read(Pass, each) for each in index["passes"]]
    cut = index["truncation"]
    return {
        "bos": index["bos"],
        "identities": [Identity(**each) for each in index["documents"]],
        "passes": [replace(run, lengths=tuple(run.lengths)) for run in passes],
        "divergences": [read(Divergence, each) for each in index["divergences"]],
        "windows": windows,
        "truncation": cut and read(Truncation, cut),
    }
