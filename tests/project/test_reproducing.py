"""The pages of evidence: verdicts follow from intervals, differences from perplexities, tables from stored data."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from launching import TOOLS

from ropescale.evals.statistics.intervals import average, familywise

WORDS = dict(enumerate(["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]))
BOUND = r"([+-]\d\.\d{4})"
FIGURE = re.compile(rf"([+-]?\d\.\d{{4}}) (?:± <?(\d\.\d{{4}})|\({BOUND} to {BOUND}\))( (?:at|against) both)?")


@pytest.fixture(scope="module")
def reproduce():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        import reproduce
    return reproduce


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "reproducing.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows(page) -> dict[str, tuple[str, str]]:
    """By claim: the verdict and the figures."""
    lines = page[page.index("| claim |") :].splitlines()[2:]
    return {claim: (here, figures) for claim, _, here, figures in (line.strip("| ").split(" | ") for line in lines)}


def bounds(figures: str) -> list[tuple[float, float, float]]:
    found = []
    for mean, half, low, high, both in FIGURE.findall(figures):
        ends = (float(mean) - float(half), float(mean) + float(half)) if half else (float(low), float(high))
        found += [(float(mean), *ends)] * (2 if both else 1)
    return found


def test_every_verdict_follows_from_its_intervals_and_the_sentences_count_them(page, rows, reproduce, repository):
    count, intervals = Counter[str](), 0
    for claim, (here, figures) in rows.items():
        allowed = re.search(r"(0\.\d+) allowed", figures)
        verdicts = {reproduce.verdict(*each[1:], float(allowed[1]) if allowed else 0.0) for each in bounds(figures)}
        judged = next((each for each in ("does not hold", "undecided") if each in verdicts), "holds")
        assert verdicts and judged == here, (claim, figures)
        count[here] += 1
        intervals += len(bounds(figures))
    said = " ".join(page.split())
    assert intervals == reproduce.FAMILY and f"All {intervals} intervals hold together" in said
    assert f"{WORDS[count['does not hold']].title()} claims do not hold here, {WORDS[count['undecided']]} are" in said
    limits = " ".join((repository / "docs" / "limits.md").read_text(encoding="utf-8").split())
    assert f"{WORDS[count['does not hold']].title()} of the papers' claims [do not hold]" in limits
    shown = [rows[each][0] for each in rows if re.match(r"`found` stays|\.\.\. with|200 steps beat|.*found ramp", each)]
    assert shown == ["undecided", "undecided", "holds", "undecided", "undecided"]
    assert "among them every lead of `found` after training" in said and "200 steps beat truncation, under YaRN" in said
    short = bounds(rows["After 200 steps short context costs at most 3%"][1])  # under YaRN, under found
    assert [reproduce.verdict(*each[1:], 0.0296) for each in short] == ["undecided", "holds"]


def cells(page: str, name: str, corner: str) -> list[list[float]]:
    """The numbers of each cell of a row of the table that has this in its head."""
    table = page[page.index(corner) :].split("\n\n")[0]
    row = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [[float(number) for number in re.findall(r"\d+\.\d+|\b\d+\b", cell)] for cell in row.split("|")[2:-1]]


def test_the_differences_of_losses_are_those_of_the_perplexities(page, rows):
    first = {name: cells(page, name, "| schedule |") for name in ("YaRN", "`found`", "control", "PI", "NTK")}
    steps = {0: 0, 100: 1, 200: 2, 400: 3}

    def nats(name: str, step: int, short: bool = False) -> float:
        return math.log(first[name][steps[step]][0 if short else 1])

    as_is = nats("control", 0, short=True)
    wanted = {
        "Untrained, NTK and YaRN beat PI at 8 times": [nats("NTK", 0) - nats("PI", 0), nats("YaRN", 0) - nats("PI", 0)],
        "Untrained, YaRN beats NTK": [nats("YaRN", 0) - nats("NTK", 0)],
        "`found` starts better than YaRN, and costs less": [
            nats("`found`", 0) - nats("YaRN", 0), nats("`found`", 0, True) - nats("YaRN", 0, True)],
        "200 steps make a large difference at the target": [nats(n, 200) - nats(n, 0) for n in ("PI", "YaRN")],
        "PI, trained, keeps short context within 5%": [nats("PI", 400, True) - as_is],
        "Training without a schedule reaches less than PI": [nats("PI", 400) - nats("control", 400)],
        "YaRN needs 100 steps where PI needs 400": [nats("YaRN", 100) - nats("PI", 400)],
        "Trained, NTK is worse than PI": [nats("PI", 400) - nats("NTK", 400)],
        "Trained, YaRN is the best of the published ones": [nats("YaRN", 400) - nats(n, 400) for n in ("PI", "NTK")],
        "`found` stays better than YaRN": [nats("`found`", n) - nats("YaRN", n) for n in (100, 200, 400)],
    }  # fmt: skip
    second = "| | 256 | 512 | 1,024 | 2,048 |"
    after = {name: cells(page, f"{name}, 200 steps", f"{second} nats") for name in ("YaRN", "`found`")}
    original = cells(page, "truncation of the original", f"{second} nats")
    both = cells(page, "truncation of the original trained in windows of 256", f"{second} nats")
    mixed = cells(page, "YaRN, mixed windows, 200 steps", f"{second} nats")
    native = math.log(float(re.search(r"at 256, ([\d.]+) at 2,048", " ".join(page.split()))[1]))
    right = {name: cells(page, name, f"{second}\n")[3][0] for name in ("YaRN", "PI", "control")}
    wanted |= {
        "200 steps beat truncation": [each[4][0] - original[4][0] for each in after.values()],
        "... also of the original trained on as much text in short windows": [
            each[4][0] - both[4][0] for each in after.values()],
        "After 200 steps short context costs at most 3%": [math.log(each[0][0]) - as_is for each in after.values()],
        "... also against the original trained on as much text": [
            math.log(each[0][0] / both[0][0]) for each in after.values()],
        "Mixed windows keep short context better": [math.log(mixed[0][0] / after["YaRN"][0][0])],
        "Extended is nearly as good as trained at the target": [nats(n, 400) - native for n in ("YaRN", "`found`")],
        "Trained, YaRN retrieves farther than PI": [(right["PI"] - right["YaRN"]) / 50],
        "After 200 steps PI retrieves at the target, no schedule does not": [(right["control"] - right["PI"]) / 50],
    }  # fmt: skip
    for claim, differences in wanted.items():
        assert [each[0] for each in bounds(rows[claim][1])] == pytest.approx(differences, abs=1.2e-3), claim


def test_only_arms_that_the_script_has_are_named_and_a_verdict_is_rarely_false(page, reproduce):
    arms = {"untrained", *(arm.name for arm in reproduce.arms())}
    assert {"yarn", "short-windows"} < set(re.findall(r"--only\s+([a-z][\w-]+)", page)) <= arms
    assert {point.split("/")[0] for _, *points in reproduce.claims() for point in points[:2]} <= arms
    rng, wrong, level = np.random.default_rng(4), 0, familywise(reproduce.FAMILY)
    for _ in range(100):
        found = [average(each, [1.0] * 26, level) for each in rng.normal(0, 1, (43, 26)).tolist()]
        wrong += any(reproduce.verdict(each.low, each.high) != "undecided" for each in found)
    assert wrong <= 6


def test_the_page_of_a_larger_model_has_the_tables_of_its_data_and_concludes_what_they_show(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    from experiment import page as evidence

    page, data = evidence.PAGE.read_text(encoding="utf-8"), json.loads(evidence.DATA.read_text(encoding="utf-8"))
    assert evidence.with_tables(page, data) == page and evidence.unsupported(page, data) == []
    shown = re.findall(rf"{BOUND} \({BOUND} to {BOUND}\)\*?\|([a-z]+)", page)
    judged = [evidence.verdict(float(low), float(high)) for _, low, high, _ in shown]
    assert len(shown) == evidence.family(data) and judged == [word for *_, word in shown]
