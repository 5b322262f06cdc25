"""The tables of docs/evidence.md: what the experiment found, beside what the bundled model says.

    python -m experiment.page [--results RESULTS.json --toy TOY.json]

Given the results of ``python -m experiment`` and ``python -m experiment.toy``, it first keeps what the page needs of
both in docs/evidence.json: perplexities, and the mean loss of each document for the differences of the page. Then it
replaces the tables of the page, each known by its head.

All intervals hold together, by the rule for sentences (``average`` at the level of ``familywise``); documents of one
package are not independent, so an interval is widened where the standard error over packages is larger.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ropescale.evals.statistics.intervals import average, familywise

DOCS = Path(__file__).resolve().parents[3] / "docs"
DATA, PAGE = DOCS / "evidence.json", DOCS / "evidence.md"
SMALL = 0.01
"""Nats; a difference within them is called none."""

REMAPPED = "remapped positions (reference, not exportable)"
SHORT_NAMES = {REMAPPED: "remapped", f"{REMAPPED}, no scale": "remapped, no scale", "found-2048.json": "search"}
FACTORS, BETAS = (2, 4, 8), [(fast, slow) for fast in (8, 16, 32, 64) for slow in ("0.5", "1", "2")]
MODELS = ("toy", "larger")
STAGES = ("main", "wide", "remapped", "transfer")

YARN, NTK, LINEAR = "yarn:factor={}", "ntk:factor=8", "linear:factor=8"
RULE = f"{YARN},beta_fast=16,beta_slow=0.5,truncate=false"


class Claim(NamedTuple):
    """A difference of losses: two schedules, and the tokens: times the trained length, "beyond" it, or far repeats."""

    title: str
    one: str
    two: str
    where: str


def claims() -> list[Claim]:
    """Returns the differences of the page, as its rows."""
    yarn = YARN.format(8)
    return [
        Claim("YaRN - as-is", yarn, "as-is", "x8"),
        Claim("YaRN - as-is", yarn, "as-is", "x1"),
        Claim("YaRN - truncation", yarn, "truncation", "beyond"),
        Claim("YaRN - truncation", yarn, "truncation", "far"),
        Claim("linear - as-is", LINEAR, "as-is", "x8"),
        Claim("NTK - YaRN", NTK, yarn, "x4"),
        Claim("NTK - YaRN", NTK, yarn, "x8"),
        Claim("dynamic YaRN - as-is", "dynamic-yarn", "as-is", "x1"),
        Claim("dynamic YaRN - YaRN", "dynamic-yarn", yarn, "x8"),
        *[Claim(f"16, 0.5 - YaRN, factor {n}", RULE.format(n), YARN.format(n), f"x{n}") for n in FACTORS],
        Claim("16, 0.5 - YaRN, factor 8", RULE.format(8), yarn, "x1"),
        Claim("search - YaRN", "search", yarn, "x8"),
        Claim("search - YaRN", "search", yarn, "x1"),
        Claim("remapped - YaRN", "remapped", yarn, "x8"),
        Claim("remapped - YaRN", "remapped", yarn, "far"),
        Claim("remapped - truncation", "remapped", "truncation", "beyond"),
        Claim("remapped, no scale - truncation", "remapped, no scale", "truncation", "beyond"),
    ]


# --- what is kept ---


def kept(results: Mapping[str, Any], toy: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the page needs of both."""
    setup = results["setup"]
    trained = setup["settings"]["sizes"]["trained"]
    larger = {
        "trained": trained,
        "lengths": setup["lengths"],
        "far": setup["far"],
        "packages": [package for package, *_ in setup["documents"]],
        "schedules": _measured(results),
    }
    larger["schedules"]["search"] = larger["schedules"].pop(results["search"]["spec"])
    larger["schedules"]["recommend"] = larger["schedules"][results["recommend"]["schedule"]]
    toy = {**toy, "schedules": {SHORT_NAMES.get(name, name): each for name, each in toy["schedules"].items()}}
    found = {"toy": _needed(toy), "larger": _needed(larger) | {"ppl": _perplexities(larger), "ramps": _ramps(larger)}}
    best = results["regret"]["best"]
    above = {name: each["mean"] for name, each in results["regret"]["above"].items()}
    answers = results["retrieval"]["result"]["rows"]
    return found | {
        "best": {
            "schedule": best,
            "of": results["regret"]["schedules"],
            "above": {"search": above[results["search"]["spec"]], "recommend": above[results["recommend"]["schedule"]]},
        },
        "chosen": {"search": results["search"]["spec"], "recommend": results["recommend"]["schedule"]},
        "retrieval": _answered(answers, {results["search"]["spec"]: "search"}),
    }


def _measured(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of every schedule of the experiment, in the form of :mod:`.toy`."""
    found, far = dict[str, Any](), np.asarray(results["setup"]["far"])
    grids = [stage for stage in ("grid-2", "grid-4", "grid") if stage in results]
    for stage in (*STAGES, *grids):
        for name, each in results[stage]["schedules"].items():
            means = {length: np.asarray(sums) / (int(length) - 1) for length, sums in each["sums"].items()}
            figures = {"means": means, "beyond": each["beyond"], "far": np.asarray(each["far_sums"]) / far}
            found.setdefault(SHORT_NAMES.get(name, name), figures)
    return found


def _needed(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the perplexities of a model's schedules, and each document's losses for the differences."""
    schedules, losses = model["schedules"], dict[str, dict[str, list[float]]]()
    for claim in claims():
        for name in (claim.one, claim.two):
            if {claim.one, claim.two} <= set(schedules):
                values = _values(model, schedules[name], claim.where)
                losses.setdefault(name, {})[claim.where] = np.round(values, 5).tolist()
    about = {name: model[name] for name in ("trained", "lengths", "far", "packages") if name in model}
    return about | {"losses": losses}


def _perplexities(model: Mapping[str, Any]) -> dict[str, list[float]]:
    """Returns the perplexities of all schedules but ramps, at every length, and of far repeats."""
    shown = {name: each for name, each in model["schedules"].items() if ",beta" not in name and name != "recommend"}
    return {name: _row(model, each) for name, each in shown.items()}


def _ramps(model: Mapping[str, Any]) -> dict[str, list[float]]:
    """Returns the perplexities of ramps in whole pairs and between them, at their factor's own length."""
    found = dict[str, list[float]]()
    for factor in FACTORS:
        for fast, slow in BETAS:
            ramp = f"yarn:factor={factor},beta_fast={fast},beta_slow={slow},truncate="
            means = [model["schedules"][ramp + whole]["means"] for whole in ("true", "false")]
            found[f"{factor} {fast} {slow}"] = [_ppl(each[str(model["trained"] * factor)]) for each in means]
    return found


def _values(model: Mapping[str, Any], figures: Mapping[str, Any], where: str) -> Any:
    if where in ("beyond", "far"):
        return figures[where]
    return figures["means"][str(model["trained"] * int(where[1:]))]


def _row(model: Mapping[str, Any], figures: Mapping[str, Any]) -> list[float]:
    far = math.exp(np.average(figures["far"], weights=model["far"]))
    return [*(_ppl(each) for each in figures["means"].values()), round(far, 2)]


def _ppl(means: Sequence[float]) -> float:
    return round(math.exp(np.mean(means)), 2)


def _answered(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, list[int]]:
    """Returns the right answers of each schedule at every length, over all depths."""
    found = dict[str, list[int]]()
    for row in rows:
        if row["depth"] is None:
            right = round(row["accuracy"] * row["prompts"])
            found.setdefault(names.get(row["schedule"], row["schedule"]), []).append(right)
    return found


# --- the tables ---


@dataclass(frozen=True)
class Difference:
    """A difference in the average document, in nats, and its interval; ``widened`` where packages differ more."""

    mean: float
    low: float
    high: float
    widened: bool

    @property
    def word(self) -> str:
        """What the interval shows."""
        return verdict(self.low, self.high)

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def verdict(low: float, high: float) -> str:
    """Returns what an interval shows of the first of two: a lower or higher loss, the same within 0.01, or nothing."""
    if low >= -SMALL and high <= SMALL:
        return "same"
    if low <= 0 <= high:
        return "undecided"
    return "lower" if high < 0 else "higher"


def family(data: Mapping[str, Any]) -> int:
    """Returns the number of intervals on the page."""
    return sum(_has(data[model], claim) for model in MODELS for claim in claims())


def _has(model: Mapping[str, Any], claim: Claim) -> bool:
    return {claim.one, claim.two} <= set(model["losses"])


def difference(model: Mapping[str, Any], claim: Claim, comparisons: int) -> Difference | None:
    """Returns a difference of a model; None where it was not measured."""
    if not _has(model, claim):
        return None
    one, two = (np.asarray(model["losses"][name][claim.where]) for name in (claim.one, claim.two))
    counts = model["far"] if claim.where == "far" else [1] * len(one)
    apart = one - two
    found = average((apart * counts).tolist(), counts, familywise(comparisons))
    if found.low is None or found.high is None:
        raise ValueError(f"{claim.title}: too few documents")
    times = max(1.0, _packages_over_documents(apart, model.get("packages", ())))
    low, high = (found.mean + times * (bound - found.mean) for bound in (found.low, found.high))
    return Difference(found.mean, low, high, times > 1)


def _packages_over_documents(apart: np.ndarray, packages: Sequence[str]) -> float:
    """Returns the standard error over the means of packages, over that of documents; 0 without packages."""
    names = list(dict.fromkeys(packages))
    if len(names) < 2 or not apart.std():
        return 0.0
    means = [apart[np.asarray(packages) == name].mean() for name in names]
    return float(np.std(means, ddof=1) / len(names) ** 0.5 / (apart.std(ddof=1) / len(apart) ** 0.5))


WHERE = {"beyond": "past it", "far": "far repeats"}


def table_of_differences(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the main table."""
    yield "|nats|at|bundled model||larger model||"
    yield "|---|---|---:|---|---:|---|"
    comparisons = family(data)
    for claim in claims():
        cells = [claim.title, WHERE.get(claim.where, claim.where)]
        for model in MODELS:
            found = difference(data[model], claim, comparisons)
            cells += ["", "-"] if found is None else [f"{found}{'*' if found.widened else ''}", found.word]
        yield _line(cells)


def table_of_lengths(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields the perplexities of the larger model at every length, and of far repeats at the longest."""
    model = data["larger"]
    yield _line(["perplexity", *(f"{length:,}" for length in model["lengths"]), "far repeats"])
    yield "|---|" + "---:|" * (len(model["lengths"]) + 1)
    for name, row in model["ppl"].items():
        yield _line([name, *(f"{each:.2f}" for each in row)])


def table_of_ramps(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields the larger model's perplexities under YaRN's ramps at each factor's own length, rounded and between."""
    model = data["larger"]
    yield _line(["betas", *(f"x{factor}, at {model['trained'] * factor:,}" for factor in FACTORS)])
    yield "|---|" + "---:|" * len(FACTORS)
    for fast, slow in BETAS:
        cells = (model["ramps"][f"{factor} {fast} {slow}"] for factor in FACTORS)
        yield _line([f"{fast}, {slow}", *("/".join(f"{each:.2f}" for each in cell) for cell in cells)])


def table_of_answers(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields the right answers of 50 at every length from the trained one on."""
    yield _line(["right answers", *(f"{length:,}" for length in data["larger"]["lengths"][1:])])
    yield "|---|" + "---:|" * (len(data["larger"]["lengths"]) - 1)
    for name, row in data["retrieval"].items():
        yield _line([name, *map(str, row)])


def _line(cells: Sequence[str]) -> str:
    return f"|{'|'.join(cells)}|"


TABLES = (table_of_differences, table_of_lengths, table_of_ramps, table_of_answers)


def with_tables(page: str, data: Mapping[str, Any]) -> str:
    """Returns the page with its tables made again; each reaches from its head to the next empty line.

    Raises:
        ValueError: the page lacks the head of a table.
    """
    for table in TABLES:
        lines = list(table(data))
        before, head, rest = f"{page}\n".partition(f"\n{lines[0]}\n")
        if not head:
            raise ValueError(f"no table begins with {lines[0]}")
        _, blank, after = f"\n{rest}".partition("\n\n")
        page = (before + "\n" + "\n".join(lines) + blank + after).removesuffix("\n")
    return page


SENTENCES = {
    "beats YaRN past the trained length on the bundled model; on the larger one that is undecided": [
        ("YaRN - truncation", "beyond", "higher", "undecided")
    ],
    "on far repeats YaRN beats it on both": [("YaRN - truncation", "far", "lower", "lower")],
    "are better than YaRN's default on the bundled model, and worse on the larger one at eight times": [
        ("16, 0.5 - YaRN, factor 8", "x8", "lower", "higher")
    ],
    "undecided there at two and four": [
        ("16, 0.5 - YaRN, factor 2", "x2", "", "undecided"),
        ("16, 0.5 - YaRN, factor 4", "x4", "", "undecided"),
    ],
    "is better than no schedule at eight times on the bundled model, and worse on the larger one": [
        ("linear - as-is", "x8", "lower", "higher")
    ],
    "gains at eight times on the bundled model; on the larger one that is undecided": [
        ("search - YaRN", "x8", "lower", "undecided")
    ],
    "it costs less short text than YaRN on both": [("search - YaRN", "x1", "lower", "lower")],
    "are better than YaRN on the bundled model; undecided on the larger one, and worse there on far repeats": [
        ("remapped - YaRN", "x8", "lower", "undecided"),
        ("remapped - YaRN", "far", "", "higher"),
    ],
    "YaRN is better than as-is at eight times, and costs short text": [
        ("YaRN - as-is", "x8", "lower", "lower"),
        ("YaRN - as-is", "x1", "higher", "higher"),
    ],
    "NTK is behind it": [("NTK - YaRN", "x4", "higher", "higher"), ("NTK - YaRN", "x8", "higher", "higher")],
    "dynamic YaRN differs from neither": [
        ("dynamic YaRN - as-is", "x1", "same", "same"),
        ("dynamic YaRN - YaRN", "x8", "same", "same"),
    ],
}
"""What the page concludes, and what each conclusion rests on: a row, and what it must show of both models ("": any)."""


def unsupported(page: str, data: Mapping[str, Any]) -> list[str]:
    """Returns the conclusions that the page lacks, or that its intervals do not show."""
    said, comparisons = " ".join(page.split()), family(data)
    rows = {(claim.title, claim.where): claim for claim in claims()}
    wrong = [words for words in (*SENTENCES, f"All {comparisons} intervals hold together") if words not in said]
    for words, rests_on in SENTENCES.items():
        for title, where, *wanted in rests_on:
            for model, word in zip(MODELS, wanted, strict=True):
                found = difference(data[model], rows[title, where], comparisons)
                if word and (found is None or found.word != word):
                    wrong.append(f"{words}: {model} {found}")
    return wrong


def main() -> None:
    """Keeps the results, if given, and writes the tables."""
    parser = argparse.ArgumentParser("experiment.page", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--results", type=Path, help="results.json of `python -m experiment`")
    parser.add_argument("--toy", type=Path, help="what `python -m experiment.toy` wrote")
    given = parser.parse_args()
    if given.results and given.toy:
        found = kept(json.loads(given.results.read_text()), json.loads(given.toy.read_text()))
        DATA.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), json.loads(DATA.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
