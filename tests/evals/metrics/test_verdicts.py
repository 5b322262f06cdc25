"""The sentences that conclude, over random tables: how often they are false, and that nothing contradicts them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from tiny import from_ids

from ropescale.evals import Result
from ropescale.evals.metrics.against_truncation import verdict
from ropescale.evals.metrics.stored import Pass, Truncation
from ropescale.evals.reporting.page import StoredRun, headline

TRAINED, LONGEST = 8, 32
IDS = [*range(12), *range(12), *range(8)]
"""From position 19 on every token ends a repeat of 8 tokens, 12 back."""


def draws(rng: np.random.Generator, shape: tuple[int, ...], skew: str) -> np.ndarray:
    """Draws of mean 0, and skewed either way by a lognormal of sigma 1, whose mean is 1.6 times its median."""
    if skew == "none":
        return rng.normal(0, 1, shape)
    found = rng.lognormal(0, 1, shape) - np.exp(0.5)
    return found if skew == "right" else -found


def table(
    rng: np.random.Generator,
    schedules: int,
    documents: int,
    lengths: Sequence[int] = (TRAINED, 16, LONGEST),
    skew: str = "none",
    effect: float = 0.0,
    far: bool = False,
) -> Result:
    """Returns a measurement of so many schedules.

    A document's tokens have a loss in common. Each schedule adds to the tokens of a document, from each length to the
    next, what is drawn for it, and an effect of its own where ``effect`` is not 0. Truncation adds nothing.
    """
    parts = np.digitize(np.arange(1, LONGEST), [TRAINED, 16])
    base = rng.lognormal(1, 0.5, (documents, 1))
    means = effect * rng.normal(0, 1, (schedules, 1, 3))
    added = (0.2 * draws(rng, (schedules, documents, 3), skew) + means)[:, :, parts]
    losses = (base + added).astype(np.float32)[:, :, : max(lengths) - 1]
    passes = [Pass(f"s{n}", f"{n:064}", tuple(lengths), list(each), documents) for n, each in enumerate(losses)]
    cut = np.repeat(base, max(lengths) - TRAINED, 1).astype(np.float32)
    model = {"path": "m", "dtype": "float32", "parameters": 1, "weights": "0" * 64}
    facts = {"source": "x", "sha256": "f" * 64, "documents": documents, "tokens": documents * (LONGEST - 1)}
    protocol = {"name": "ropescale", "interval": "document-clustered t, skewness-corrected, 95%"}
    return Result(
        model,  # type: ignore[arg-type]
        facts,  # type: ignore[arg-type]
        protocol,
        {"torch": "2"},
        passes=passes,
        documents=from_ids([IDS[: max(lengths)]] * documents),
        bos=False,
        baseline="s0",
        trained_length=TRAINED,
        options={"repeat_distance": TRAINED if far else LONGEST},
        truncation=Truncation(TRAINED, 1, "0" * 64, list(cut)) if max(lengths) > TRAINED else None,
    )


LENGTHS = [(TRAINED,), (TRAINED, 16), (TRAINED, 16, LONGEST), (16, LONGEST)]


def drawn(rng: np.random.Generator, least: int, skew: str, effect: float = 0.0) -> Result:
    """A table of 1 to 6 schedules, ``least`` to 50 documents and 1 to 3 lengths."""
    lengths = LENGTHS[rng.integers(len(LENGTHS))]
    schedules, documents, far = int(rng.integers(1, 7)), int(rng.integers(least, 51)), bool(rng.integers(2))
    return table(rng, schedules, documents, lengths, skew, effect, far)


def false_rates(tables: int, skew: str) -> dict[str, float]:
    """How often a sentence concludes anything where no schedule differs from another, or from truncation."""
    rng, wrong, of = np.random.default_rng(5), Counter(), Counter()
    for _ in range(tables):
        result = drawn(rng, 10, skew)
        if result.against_truncation:
            of["pays off"] += 1
            wrong["pays off"] += any("pays off at" in each for each in verdict(result.against_truncation))
        if result.best:
            of["apart"] += 1
            wrong["apart"] += any(row.apart for row in result.best)
    return {name: wrong[name] / of[name] for name in of}


@pytest.mark.slow
@pytest.mark.parametrize(("skew", "share", "most"), [("none", 0.5, 0.06), ("right", 0.25, 0.08), ("left", 0.25, 0.08)])
def test_what_is_false_is_concluded_from_few_of_ten_thousand_tables(skew, share, most):
    rates = false_rates(int(10_000 * share), skew)
    print(skew, rates)
    assert max(rates.values()) <= most


@pytest.mark.parametrize(("skew", "most"), [("none", 0.06), ("right", 0.08), ("left", 0.08)])
def test_what_is_false_is_rarely_concluded(skew, most):
    assert max(false_rates(40, skew).values()) <= most


@pytest.mark.parametrize("documents", [5, 9])
def test_of_fewer_than_ten_documents_nothing_is_concluded_and_the_sentences_say_why(documents):
    result = table(np.random.default_rng(3), 3, documents, effect=5.0, far=True)
    text = result.to_markdown()
    why = f"a verdict takes 10 documents, and there are {documents}."
    assert f"Which schedule has the lowest loss is undecided: {why}" in text
    assert f"Whether reading further than the last 8 tokens pays off is undecided: {why}" in text
    assert f"Whether on far repeats reading further than the last 8 tokens pays off is undecided: {why}" in text
    assert result.best == []
    said, best = headline(as_run(result)), min(result.schedules[1:], key=lambda each: ppl_at(result, each, 32))
    change = next(row.delta_nll for row in result.paired if (row.schedule, row.length) == (best, 8))
    cut = next(row for row in result.against_truncation if (row.schedule, row.length) == (best, 32))
    truncation = f"{worse(cut.nll - cut.truncated_nll, '')} truncation (as-is on the last 8 tokens only)"
    assert said.endswith(
        f"; which is best is undecided: {why} On these {documents} documents alone, {best} is "
        f"{worse(change)} s0 at 8 tokens and {truncation} at 32."
    )


def worse(difference: float, unit: str = "nats per token ") -> str:
    """How the sentence writes a difference of losses."""
    return f"{abs(difference):.3f} {unit}{'worse' if difference > 0 else 'better'} than"


def ppl_at(result, schedule: str, length: int) -> float:
    return next(row.ppl for row in result.rows if (row.schedule, row.length) == (schedule, length))


def test_of_fewer_than_five_documents_there_is_a_dash_for_an_interval_and_the_line_says_why():
    result = table(np.random.default_rng(3), 2, 4, far=True)
    text = result.to_markdown()
    assert "± 0" not in text and " to +" not in text and text.count("± -") == 6 + 3 + 4 + 4 + 4 + 1
    assert "no interval (± -): it takes 5 documents" in text


def as_run(result: Result) -> StoredRun:
    """The run that the page has of a result."""
    results = result.to_dict()
    return StoredRun("run", None, results, result)  # type: ignore[arg-type]


CELL = re.compile(r"([+-]?\d+\.\d+) (?:± (\d+\.\d+)|\(([+-][\d.e-]+) to ([+-][\d.e-]+)\))")


def sign(cell: str) -> int:
    """-1, 0 or 1, as a reader takes it from a cell: below zero, around it or above."""
    mean, half, low, high = CELL.search(cell).groups()  # type: ignore[union-attr]
    ends = (float(low), float(high)) if half is None else (float(mean) - float(half), float(mean) + float(half))
    return (ends[0] > 0) - (ends[1] < 0)


def cells(text: str, corner: str) -> dict[tuple[str, str], str]:
    """The cells of a Markdown table, by schedule and head of column."""
    block = next(part for part in text.split("\n\n") if part.startswith(f"| {corner} "))
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    return {(line[0], name): cell for line in lines for name, cell in zip(head[1:], line[1:], strict=True)}


def check_pays_off(text: str, shown: dict[tuple[str, str], str], lengths: list[str]) -> None:
    """Compares the sentence on truncation with the table above it."""
    said = re.search(r"Reading further than the last 8 tokens (.*?)\.", text)
    assert said and len(said[0]) <= 200, text
    better = [n for n in lengths if any(at == n and name[0] == "s" and sign(cell) < 0
                                        for (name, at), cell in shown.items())]  # fmt: skip
    paid = re.match(r"pays off at (.*) tokens, under some schedule", said[1])
    assert (paid[1].split(", ") if paid else []) == better
    assert paid or said[1] == "is not shown to pay off"


def check_lowest(text: str, result: Result) -> None:
    """Compares the sentence on the lowest loss with the tables of perplexities and changes."""
    ppl = {(row.schedule, row.length): row.ppl for row in result.rows}
    changes = cells(text, "change")
    (said,) = re.findall(r"Lowest loss at (.*) \(\d+ documents", text)
    for part in said.split("; "):
        lengths, stands = part.split(": ")
        best, _, others = re.match(r"(\w+), (not )?significantly below (.*)", stands).groups()  # type: ignore[union-attr]
        for length in lengths.split(", "):
            at = int(length.replace(",", ""))
            assert ppl[best, at] == min(value for (_, n), value in ppl.items() if n == at)
            open_ = {*others.split(", ")} if "not signif" in stands else set()
            against = [each for each in result.schedules if each != best] if "every" in others or open_ else [others]
            for other in against:
                if "s0" in (best, other):
                    apart = sign(changes[other if best == "s0" else best, length]) == (1 if best == "s0" else -1)
                    assert apart == (other not in open_), (part, changes)


def check_answer(sentences: list[str], result: Result) -> None:
    """Compares the answer that a terminal begins with to the rows that it is made of."""
    assert 1 <= len(sentences) <= 3 and all(len(each) <= 200 for each in sentences)
    first, *rest = sentences
    last = result.best[-1]
    ppl = {row.schedule: row.ppl for row in result.rows if row.length == result.lengths[-1]}
    named = "as-is, the unchanged model," if last.schedule == "as-is" else last.schedule
    assert first.startswith(f"{named} has the lowest perplexity at {result.lengths[-1]} tokens: ")
    assert ppl[last.schedule] == min(ppl.values()) and ("not significantly" in first) == bool(last.not_apart)
    (cost,) = [row.change.sign for row in result.paired if (row.schedule, row.length) == (last.schedule, TRAINED)] or [
        None
    ]
    verbs = {1: "It costs ", -1: "It gains ", 0: "Its loss at "}
    assert [each.startswith(verbs[cost]) for each in rest[:1]] == [True] if cost is not None else True
    rows = [row for row in result.against_truncation if row.schedule == last.schedule]
    if rows:
        row = max(rows, key=lambda row: row.length)
        whole, *far = [change for which in ("", "far_") if (change := row.change(which)) and change.sign is not None]
        last, truncation = rest[-1], r"truncation \(as-is on the last 8 tokens only\)"
        undecided = rf"undecided: .*nats per token {'lower' if whole.mean < 0 else 'higher'}"
        said = {1: f"It loses to {truncation} by ", -1: f"It beats {truncation} by "}
        said[0] = f"Against {truncation} it is {undecided}"
        assert re.match(said[whole.sign], last), last
        assert ("; on far repeats (8 or more tokens back) " in last) == bool(far)
        for change in far:
            undecided = rf"undecided: .*{'lower' if change.mean < 0 else 'higher'}\.$"
            said = {1: "it loses by ", -1: "it wins by ", 0: undecided}
            assert re.match(said[change.sign], last.partition("back) ")[2]), last


@pytest.mark.parametrize("seed", range(24))
def test_no_sentence_contradicts_its_row_its_interval_or_another_sentence(seed):
    rng = np.random.default_rng(seed)
    skew, effect = ["none", "right", "left"][seed % 3], [0.0, 0.1, 0.3][seed // 3 % 3]
    result = drawn(rng, 5, skew, effect)
    text, said = result.to_markdown(), headline(as_run(result)) or ""
    if result.data["documents"] < 10:
        assert "pays off at" not in text + said and "significantly" not in text + said
        return
    if len(result.schedules) > 1:
        check_lowest(text, result)
        check_answer(result.sentences(), result)
        assert said.startswith(" ".join(result.sentences()))
    if result.against_truncation:
        lengths = [str(n) for n in result.lengths if n > TRAINED]
        check_pays_off(text, cells(text, "against truncation"), lengths)
        sentence = re.search(r"Reading further.*?\.", text)
        assert sentence and sentence[0] in said
