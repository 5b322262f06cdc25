"""The result of a measurement: printing, writing and loading.

The file of per-token losses, ``losses.safetensors``, has a tensor per schedule and pass, fp32 in nats. A tensor has the
shape [windows, scored tokens], or is flat if the windows have different sizes. The file's metadata describes documents
and tensors as JSON; ``results.json`` contains the file's sha256.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import DataError
from ...files import LARGEST, local_path, parse_json, sha256
from ...output.formatting import definitions, escaped, listed
from .. import checking
from ..checking import Damaged, Parsed
from ..data.chats import ASSISTANT
from ..facts import TRUNCATION, Divergence, Pass, Truncation
from ..metrics import METRICS, against_truncation, by_position, far_repeats, key_tokens, paired, perplexity, verdicts
from ..metrics.against_truncation import TruncationRow
from ..metrics.answer import answer
from ..metrics.base import rests_on
from ..metrics.by_position import PositionRow
from ..metrics.cells import Line, digits, exp, table
from ..metrics.drawing import Curves
from ..metrics.far_repeats import RepeatsRow
from ..metrics.key_tokens import KeyTokensRow
from ..metrics.paired import PairedRow
from ..metrics.perplexity import PerplexityRow
from ..metrics.stored import Identity, Stored, parts_of
from ..metrics.verdicts import VerdictRow, between, too_few, unmet, worse_than_a_guess
from ..statistics import intervals
from ..statistics.intervals import DOCUMENTS, LEAST_DOCUMENTS, PERCENT
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
            rows, pairs = perplexity.METRIC.read(results), paired.METRIC.read(results)
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
                **losses,
            )
            made.unfinished = str(results.get("unfinished", ""))
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
    def rows(self) -> list[PerplexityRow]:
        """One row per schedule and length: schedules in the order in which they ran, lengths ascending."""
        return perplexity.METRIC.rows(self)

    @property
    def paired(self) -> list[PairedRow]:
        """The change of every schedule against the baseline, at every shared length."""
        return paired.METRIC.rows(self)

    @property
    def verdicts(self) -> list[VerdictRow]:
        """The comparisons that the sentences may draw, with intervals that hold for all of them together."""
        return verdicts.METRIC.rows(self)

    @property
    def repeats(self) -> list[RepeatsRow]:
        """The perplexity of far repeats and of all other tokens, at every length beyond the distance of far repeats."""
        return far_repeats.METRIC.rows(self)

    @property
    def key_rows(self) -> list[KeyTokensRow]:
        """The perplexity of the key tokens, for every schedule at every length."""
        return key_tokens.METRIC.rows(self)

    @property
    def against_truncation(self) -> list[TruncationRow]:
        """The comparison of every schedule with truncation, at every length beyond the trained one."""
        return against_truncation.METRIC.rows(self)

    def by_position(self, schedule: str) -> list[PositionRow]:
        """Returns the mean NLL in position bins that grow by sqrt(2), from the schedule's longest pass.

        These bins show the rise at the trained length that the perplexity of a prefix averages out.

        Raises:
            DataError: the schedule was not measured.
        """
        self.refuse_unmeasured(schedule)
        return [row for row in by_position.METRIC.rows(self) if row.schedule == schedule]

    def to_dict(self) -> dict[str, object]:
        """Returns the content of results.json."""
        model = self.model | {"trained_length": self.trained_length}
        found = {name: {"documents": part.data["documents"], **part._parts()} for name, part in self.by_source.items()}
        sources = {"sources": found} if found else {}
        return {**super().to_dict(), "model": model, **sources, "cost": self.cost, "tables": self.tables}

    def to_markdown(self) -> str:
        """Returns the conclusions, all tables, first for all sources together and then by source, and the protocol."""
        parts = ["\n".join(self.sentences()), self.rests_on()]
        if self.by_source:
            parts.append(f"All sources ({rests_on(self)}):")
        parts += self.tables_of_metrics()
        for name, part in self.by_source.items():
            parts += [f"{escaped(name)} ({part.extent}):", worse_than_a_guess(part), *part.tables_of_metrics()]
        return "\n\n".join(filter(None, [*parts, *definitions(self.short_names), self.protocol_line()]))

    def sentences(self) -> list[str]:
        """Returns sentences on the best schedule at the longest length, its cost, and truncation."""
        return answer(self)

    def minus(self, before: Result) -> list[VerdictRow]:
        """Returns this model's loss minus that of another on the same tokens, at each length that both measured.

        A schedule is compared with that of the same name, and with those of the same tables: a fine-tuned model that is
        patched, as it is, with the original under its schedule. The intervals hold together, as those of verdicts.

        Raises:
            DataError: the two did not score the same tokens.
        """
        return between(self, before)

    def unmet(self, requirements: Iterable[str]) -> list[str]:
        """Returns a line for every requirement that is not shown, such as ``"yarn:factor=8 gain>=0.5 at 32k"``.

        ``cost<=`` and ``gain>=`` are nats against ``as-is`` in the average document. The whole interval must keep them,
        which takes ten documents or more.

        Raises:
            DataError: a requirement cannot be read, or its schedule or length was not measured.
        """
        return unmet(self, requirements)

    def main_table(self) -> str:
        """Returns the table of perplexities, including those of truncation.

        Up to the trained length, truncation is the unchanged model.
        """
        ppl = {(row.schedule, row.length): row.ppl for row in self.rows}
        ppl |= {(TRUNCATION, length): exp(loss) for length, loss in self.truncated_losses.items()}
        cells = {key: digits(value, 4) for key, value in ppl.items()}
        return table(self.lengths, "perplexity", cells, dict.fromkeys(key[0] for key in ppl), self.named)

    def rests_on(self) -> str:
        """Describes the sample and the intervals in plain words; :meth:`protocol_line` describes the method."""
        number, pieces = self.data["documents"], self.data.get("windows")
        said = f"Measured on {number:,} document{'s' * (number != 1)}"
        if not self.sliding and pieces not in (None, number):
            said += f", in {pieces:,} pieces of {self.lengths[-1]:,} tokens"
        if too_few(number):
            return f"{said}; other texts may differ."
        return f"{said}; the intervals of the sentences hold together with {PERCENT} confidence."

    @property
    def _blocks(self) -> str | None:
        """The sampling unit of intervals that are not over documents; None if there are no such intervals."""
        return next((row.interval for row in reversed(self.rows) if row.interval not in (None, DOCUMENTS)), None)

    def _summary(self) -> str:
        number = self.data["documents"]
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        schedules = ", ".join(map(self.named, self.schedules))
        return f"{self._model}: {schedules}; at {lengths} tokens; {number} document{'s' * (number != 1)}"

    @property
    def cost(self) -> list[dict[str, object]]:
        """The numbers of windows and positions fed for each pass, each comparison of predictions, and truncation."""
        parts = [
            *((run.schedule, list(run.lengths), run) for run in self.passes),
            *((f"{each.schedule} against {each.baseline}", [each.length], each) for each in self.divergences),
            *((("truncation", [self.truncation.length], self.truncation),) if self.truncation else ()),
        ]
        return [
            {"schedule": name, "lengths": lengths, "forward_passes": run.forward_passes, "positions": run.positions}
            for name, lengths, run in parts
        ]

    def protocol_line(self) -> str:
        """Returns a description of the measurement's protocol and data."""
        kinds = {"chats": "chats", "pretokenized": "given as token ids", "prompts": "prompts, their answers scored"}
        only = ["only the assistant's tokens scored"] if self.protocol.get("score") == ASSISTANT else []
        skipped = [f"{n} {why.replace('_', ' ')}" for why, n in self.data.get("skipped", {}).items() if n]
        data = [rests_on(self), self.share]
        data += [f"{self.data[name]} {words}" for name, words in kinds.items() if name in self.data]
        how = f"({'BOS first' if self.bos else 'no BOS'}), every token scored once, token-weighted"
        return (
            f"protocol {self.protocol['name']}: {self.title[0].lower()}{self.title[1:]} {how}, {self.model['dtype']}; "
            f"{', '.join(filter(None, [*data, *only]))}, {self.data['tokens']:,} scored tokens; "
            f"{f'skipped: {listed(skipped)}; ' if skipped else ''}{self._interval_line()}; "
            f"text sha256 {self.data['sha256'][:12]}"
        )

    def _interval_line(self) -> str:
        number, interval = self.data["documents"], f"{self.protocol['interval']} interval"
        blocks = self._blocks
        if blocks is None and all(row.ppl_low is None for row in self.rows):
            return (
                f"no interval (± -): it needs {LEAST_DOCUMENTS} documents, or one document of "
                f"{intervals.least_text(self.sliding)}"
            )
        if blocks is None:
            few = intervals.over_documents(number) if "skewness" in interval else ""
            return f"± or (low to high) is the {interval}{f', which {few}' if few else ''}"
        return (
            f"† is the {PERCENT} interval over {blocks}, which does not generalise to other documents and "
            f"covers {intervals.over_blocks()}"
        )

    @property
    def extent(self) -> str:
        """The sample behind a source's tables, as text; with few documents, also the coverage of the interval."""
        few = "" if self._blocks else intervals.over_documents(self.data["documents"])
        return "; their interval ".join(filter(None, [rests_on(self), few]))

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
        if self.by_source:
            parts = {"all": self._own_lines(), **{name: part._own_lines() for name, part in self.by_source.items()}}
            header = ["source", *parts["all"][0]]
            return [header, *([name, *line] for name, (_, *lines) in parts.items() for line in lines)]
        return self._own_lines()

    def _own_lines(self) -> list[Line]:
        shown = [(metric, {(row.schedule, row.length): row for row in metric.rows(self)})
                 for metric in self.metrics if metric.columns]  # fmt: skip
        header = [name for metric, _ in shown for name in metric.columns]
        lines = [
            [getattr(rows.get(key), field, None) for metric, rows in shown for field in metric.columns.values()]
            for key in self.read_from
        ]
        lines += [[getattr(row, name, None) for name in header] for row in perplexity.truncated(self)]
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

    def _other_files(self) -> dict[str, bytes]:
        return {LOSSES: to_bytes(self)}


# --- The file of losses


_LARGEST = 2**34
_KEY = "index"


def to_bytes(stored: Stored) -> bytes:
    """Returns the content of the file of losses."""
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}

    def entry(about: Pass | Divergence | Truncation, values: Mapping[str, Sequence[np.ndarray]]) -> dict[str, object]:
        sizes = [len(each) for each in next(iter(values.values()))]
        same = len(set(sizes)) == 1
        for name, windows in values.items():
            arrays = [np.asarray(window, np.float32) for window in windows]
            tensors[name] = np.stack(arrays) if same else np.concatenate(arrays)
        plain = {each.name: getattr(about, each.name) for each in fields(about) if each.name not in _ARRAYS}
        return {**plain, "tensors": list(values), **({} if same else {"sizes": sizes})}

    cut = stored.truncation
    counted = zip(stored.identified, stored.windows or [1] * stored.texts, strict=True)
    index = {
        "bos": stored.bos,
        "documents": [asdict(each) | {"windows": count} for each, count in counted],
        "passes": [entry(run, {f"{run.schedule} @ {run.lengths[-1]}": run.nll}) for run in stored.passes],
        "divergences": [
            entry(each, {f"{each.schedule} @ {each.length} kl": each.kl,
                         f"{each.schedule} @ {each.length} same top": each.same})
            for each in stored.divergences
        ],
        "truncation": [entry(cut, {f"truncation @ {cut.length}": cut.nll})] if cut else [],
    }  # fmt: skip
    return save(tensors, {_KEY: json.dumps(index)})


_ARRAYS = ("nll", "kl", "same", "key")
"""The fields that are not stored in the metadata: they are tensors, or only needed while a measurement runs."""


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
        return _read(json.loads(header["__metadata__"][_KEY]), tensors)


def _read(index: Parsed, tensors: Mapping[str, np.ndarray]) -> Parsed:
    def split(one: dict[str, Any]) -> list[list[np.ndarray]]:
        """Removes an entry's tensor names and sizes, and returns each tensor as a list by window."""
        sizes, found = one.pop("sizes", None), [tensors[name] for name in one.pop("tensors")]
        return [list(each) if sizes is None else np.split(each, np.cumsum(sizes)[:-1]) for each in found]

    windows = [each.pop("windows") for each in index["documents"]]
    passes, compared, cut = [], [], None
    for one in index["passes"]:
        (nll,), lengths = split(one), tuple(one.pop("lengths"))
        passes.append(Pass(**one, lengths=lengths, nll=nll))
    for one in index["divergences"]:
        kl, same = split(one)
        compared.append(Divergence(**one, kl=kl, same=same))
    for one in index["truncation"]:
        (nll,) = split(one)
        cut = Truncation(**one, nll=nll)
    return {
        "bos": index["bos"],
        "identities": [Identity(**each) for each in index["documents"]],
        "passes": passes,
        "divergences": compared,
        "windows": windows,
        "truncation": cut,
    }
