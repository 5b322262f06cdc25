"""The sentences that conclude, over random tables: how often they are false, and that nothing contradicts them."""

import csv
import dataclasses
import html
import io
import json
import re
from datetime import date

import numpy as np
import pytest
import torch
from tiny import checkpoint, from_ids, llama

import ropescale
from ropescale.errors import DataError
from ropescale.evals import Result
from ropescale.evals.facts import AS_IS, TRUNCATION, Pass, Truncation
from ropescale.evals.metrics.cells import digits
from ropescale.evals.statistics.intervals import average, familywise

TRAINED, LONGEST = 8, 32
# From position 19 on every token ends a repeat of 8 tokens, 12 back.
IDS = [*range(12), *range(12), *range(8)]


def draws(rng, shape, skew):
    """Draws of mean 0, and skewed either way by a lognormal of sigma 1, whose mean is 1.6 times its median."""
    if skew == "none":
        return rng.normal(0, 1, shape)
    found = rng.lognormal(0, 1, shape) - np.exp(0.5)
    return found if skew == "right" else -found


def table(rng, schedules, documents, lengths=(TRAINED, 16, LONGEST), skew="none", effect=0.0, far=False, baseline="s0"):
    """Returns a measurement of so many schedules; under the name "as-is", the baseline has the table of truncation.

    A document's tokens have a loss in common. Each schedule adds to the tokens of a document, from each length to the
    next, what is drawn for it, and an effect of its own where ``effect`` is not 0. Truncation adds nothing.
    """
    parts = np.digitize(np.arange(1, LONGEST), [TRAINED, 16])
    base = rng.lognormal(1, 0.5, (documents, 1))
    means = effect * rng.normal(0, 1, (schedules, 1, 3))
    added = (0.2 * draws(rng, (schedules, documents, 3), skew) + means)[:, :, parts]
    losses = (base + added).astype(np.float32)[:, :, : max(lengths) - 1]
    names = [baseline, *(f"s{n}" for n in range(1, schedules))]
    named = enumerate(zip(names, losses, strict=True))
    passes = [Pass(name, f"{n:064}", tuple(lengths), list(each), documents) for n, (name, each) in named]
    cut = np.repeat(base, max(lengths) - TRAINED, 1).astype(np.float32)
    model = {"path": "m", "dtype": "float32", "parameters": 1, "weights": "0" * 64}
    facts = {"source": "x", "sha256": "f" * 64, "documents": documents, "tokens": documents * (LONGEST - 1)}
    protocol = {"name": "ropescale", "interval": "document-clustered t, skewness-corrected, 95%"}
    versions, texts = {"torch": "2"}, from_ids([IDS[: max(lengths)]] * documents)
    return Result(
        *(model, facts, protocol, versions, passes, texts),
        bos=False,
        baseline=baseline,
        trained_length=TRAINED,
        options={"repeat_distance": TRAINED if far else LONGEST},
        truncation=Truncation(TRAINED, 1, "0" * 64, list(cut)) if max(lengths) > TRAINED else None,
    )


LENGTHS = [(TRAINED,), (TRAINED, 16), (TRAINED, 16, LONGEST), (16, LONGEST)]


def drawn(rng, least, skew, effect=0.0):
    """A table of 1 to 6 schedules, ``least`` to 50 documents and 1 to 3 lengths; half have the unchanged model."""
    lengths = LENGTHS[rng.integers(len(LENGTHS))]
    schedules, documents, far = int(rng.integers(1, 7)), int(rng.integers(least, 51)), bool(rng.integers(2))
    return table(rng, schedules, documents, lengths, skew, effect, far, baseline=str(rng.choice(["s0", AS_IS])))


def conclusions(result):
    """The parts of the sentences that conclude that something differs, or is best."""
    return re.findall(r"(?:gains|costs|wins|loses) \S+ \(|, use |use it if", " ".join(result.sentences()))


def false_rate(tables, skew):
    """How often a sentence concludes anything where no schedule differs from another, or from truncation."""
    rng = np.random.default_rng(5)
    return np.mean([bool(conclusions(drawn(rng, 10, skew))) for _ in range(tables)])


@pytest.mark.parametrize("tables", [30, pytest.param(3_400, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("skew", "most"), [("none", 0.06), ("right", 0.08), ("left", 0.08)])
def test_what_is_false_is_rarely_concluded(tables, skew, most):
    assert false_rate(tables, skew) <= most


@pytest.mark.parametrize("documents", [5, 9])
def test_of_fewer_than_ten_documents_nothing_is_concluded_and_the_sentences_say_why(documents):
    result = table(np.random.default_rng(3), 3, documents, effect=5.0, far=True)
    text = result.to_markdown()
    why = f"a verdict needs 10 documents, and there are {documents}."
    assert f"no interval: {why[:-1]})" in text and {row.low for row in result.verdicts} == {None}
    check_answer(result)
    assert f", but {why}" in " ".join(result.to_dict()["sentences"])


def test_of_fewer_than_five_documents_there_are_values_without_intervals_and_the_line_says_why():
    text = table(np.random.default_rng(3), 2, 4, far=True).to_markdown()
    assert re.search(r"a perplexity factor of \S+\) at 32 tokens", table(np.random.default_rng(3), 2, 1).to_markdown())
    assert "±" not in text.replace("± or (low", "") and " to +" not in text
    assert "no interval: it needs 5 documents" in text


CELL = re.compile(r"([+-]?\d+\.\d+) (?:± (\d+\.\d+)|\(([+-][\d.e-]+) to ([+-][\d.e-]+)\))")


def sign(cell):
    """-1, 0 or 1, as a reader takes it from a cell: below zero, around it or above."""
    mean, half, low, high = CELL.search(cell).groups()
    ends = (float(low), float(high)) if half is None else (float(mean) - float(half), float(mean) + float(half))
    return (ends[0] > 0) - (ends[1] < 0)


def cells(text, corner):
    """The cells of a Markdown table, by schedule and head of column."""
    block = next(part for part in text.split("\n\n") if part.startswith(f"| {corner} "))
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    if head[1] == "against":  # the table of verdicts
        return {tuple(line[:4]): line[4] for line in lines}
    return {(line[0], name): cell for line in lines for name, cell in zip(head[1:], line[1:], strict=True)}


UNIT = r"nats(?: \(a perplexity factor of (?P<factor>[\d.,]+)\))?(?: in the average document)?"
PPL = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e\+\d+)?)"
EFFECT = re.compile(
    r"(?P<verb>gains|costs|wins|loses) (?P<mean>[\d.]+)(?: \((?P<low>-?[\d.]+) to (?P<high>-?[\d.]+)\))? "
    rf"{UNIT}, in (?P<agree>\d+) of (?P<of>\d+)(?: documents)?, (?P<where>.*)"
)
UNDECIDED = re.compile(
    r"is undecided (?P<where>[^:]*): (?P<mean>\S+) \((?P<low>\S+) to (?P<high>\S+)\) "
    rf"{UNIT}, (?P<side>lower|higher) in (?P<agree>\d+) of (?P<of>\d+)(?: documents)?"
    r"(?:, but (?P<all>\S+) over all tokens)?"
)
NARROW = re.compile(rf"makes no difference larger than (?P<most>\S+) {UNIT} (?P<where>.*)")


def check_answer(result):
    """Compares the answer that a terminal begins with to the tables, and every conclusion to its interval."""
    said, decides = result.sentences(), result.data["documents"] >= 10
    assert 1 <= len(said) <= 3 and all(len(each) <= 240 for each in said), said
    assert " ".join(said).count(" in the average document") == any(" nats" in each for each in said)
    assert ("their table hold" in result.rests_on()) == (decides and "What the sentences" in result.to_markdown())
    table = cells(result.summary(), "perplexity")
    ppl = {name: number(cell) for (name, at), cell in table.items() if at == str(result.lengths[-1])}
    check_first(said.pop(0), result, ppl, decides)
    alone = "" if decides else f"On these {result.data['documents']} documents alone, "
    against = f"{alone}{'Against' if decides else 'against'} "
    if gain := next((each for each in said if each.startswith(f"{against}{result.baseline}, ")), None):
        check_gain(gain, result, ppl, decides)
        said.remove(gain)
    for sentence in said:
        assert sentence.startswith(f"{against}truncation")
        check_past(sentence, result, decides)
    assert bool(gain) == (len(result.schedules) > 1) and len(said) == bool(result.against_truncation)


def number(text):
    return float(text.replace(",", ""))


def check_first(sentence, result, ppl, decides):
    """The first sentence recommends only what every interval shows; else it names the nearest that may be lower.

    It has the numbers of the table's last column.
    """
    longest = result.lengths[-1]
    name, lowest, rest = re.match(
        rf"At {longest} tokens, (?:use )?(\S+?)(?: \(.*?\))?(?: has the lowest perplexity:|: lowest perplexity,"
        rf"| has a perplexity of) {PPL}(.*)\.$", sentence
    ).groups()  # fmt: skip
    assert ppl[name] == min(ppl.values()) == number(lowest)
    for other, value in re.findall(rf"[(;] ?(\S+?)(?:, the (?:model|folder) as it is| to the last 8)?: {PPL}", rest):
        assert ppl[other] == number(value)
    of_schedules = {label: value for label, value in ppl.items() if label != "truncation"}
    signs = {row.schedule: row.change.sign for row in result.verdicts if row.tokens == "past the trained length"}
    lowest = min(of_schedules, key=of_schedules.__getitem__)
    rows = {other: row_of(result, other, lowest, longest) for other in of_schedules if other != lowest}
    open_ = {other for other, row in rows.items() if row.change.sign != 1}
    rivals = {label for label, sign in signs.items() if sign != 1}
    if name != "truncation":
        rivals = open_ | ({"truncation"} if signs.get(name, -1) != -1 else set())
    assert (", use " in sentence) == (decides and not rivals and len(ppl) > 1)
    assert ("a verdict needs 10 documents" in rest) == (not decides and len(ppl) > 1)
    undecided = re.search(r"undecided between (\S+?)(?: and|,) (\S+?)(?: and (\d+) more)?(?:[;)]|$)", rest)
    among = rivals if rivals else open_ if name == "truncation" else set()
    assert bool(undecided) == (decides and bool(among) and len(ppl) > 1)
    if undecided:
        whose, nearest, more = undecided.groups()
        assert whose in ("it", name) and nearest in among
        assert ppl.get(nearest) == min((ppl[each] for each in among & {*ppl}), default=None)
        assert int(more or 0) == len(among) - 1
        named = re.findall(r"undecided between \S+, (.*?) and (\S+?)(?:[;)]|\.$)", result.to_markdown(), re.MULTILINE)
        assert [{*several.split(", "), last} for several, last in named] == [among] * bool(more)
    best = "the best schedule" in rest or "below every schedule" in rest
    truncated = name == "truncation" and len(of_schedules) > 1
    assert best == (truncated and decides and not rivals and not open_)
    assert ("the lowest of the schedules" in rest) == (truncated and bool(rivals or not decides))


def check_effect(text, row, verbs, decides):
    """Compares an effect with its row in the table of verdicts: size, direction, interval, and what it claims."""
    if found := NARROW.fullmatch(text):
        most = float(found["most"])
        assert decides and -most <= row.low <= 0 <= row.high <= most and most in (0.01, 0.02, 0.05, 0.1)
        return
    found = EFFECT.fullmatch(text) or UNDECIDED.fullmatch(text)
    assert found, text
    if found["factor"]:  # of the mean that was measured, before the first count
        shown = 0.51 * 10.0 ** -len(found["factor"].partition(".")[2])
        assert number(found["factor"]) == pytest.approx(np.exp(abs(row.mean)), rel=1e-3, abs=shown)
    assert (int(found["agree"]), int(found["of"])) == (row.agreeing, row.documents)
    place = 10.0 ** -len(found["mean"].partition(".")[2])
    if "side" in found.groupdict():
        shown = [float(found[name]) for name in ("mean", "low", "high")]
        assert shown == pytest.approx([row.mean, row.low, row.high], abs=place) and decides
        assert (found["side"] == "lower") == (row.mean < 0) and max(abs(row.low), abs(row.high)) > 0.01
        assert row.low <= 0 <= row.high if found["all"] is None else float(found["all"]) * row.mean < 0
        return
    assert float(found["mean"]) == pytest.approx(abs(row.mean), abs=place) and found["verb"] == verbs[row.mean < 0]
    assert bool(found["low"]) == decides
    if decides:
        low, high = sorted(abs(bound) for bound in (row.low, row.high))
        assert (float(found["low"]), float(found["high"])) == pytest.approx((low, high), abs=place)
        assert row.low * row.high > 0 < float(found["low"]) and row.mean * row.delta_nll > 0


def row_of(result, schedule, against, length, tokens="all"):
    """The row of a comparison, whichever of the two comes first in it."""
    for row in result.verdicts:
        if (row.length, row.tokens) == (length, tokens) and {row.schedule, row.against} == {schedule, against}:
            if row.schedule == schedule:
                return row
            low, high = (None if bound is None else -bound for bound in (row.high, row.low))
            return dataclasses.replace(row, mean=-row.mean, low=low, high=high, delta_nll=-row.delta_nll)
    return None


def check_gain(sentence, result, ppl, decides):
    """The best changed schedule's gain and cost are those of their rows."""
    name, effects = re.match(rf".*gainst {result.baseline}, (\S+) (.*)\.$", sentence).groups()
    changed = {each: value for each, value in ppl.items() if each not in (result.baseline, "truncation")}
    assert changed[name] == min(changed.values())
    lengths = [result.lengths[-1], *({TRAINED} & {*result.lengths} - {result.lengths[-1]})]
    for part, length in zip(effects.split("; it "), lengths, strict=True):
        assert f"at {length} tokens" in part
        check_effect(part, row_of(result, name, result.baseline, length), ("costs", "gains"), decides)


def check_past(sentence, result, decides):
    """The difference from truncation is that of its row, on the tokens that the sentence names.

    A schedule is recommended for far repeats alone only if it is better on them, and not elsewhere.
    """
    name, effects = re.match(r".*gainst truncation(?: to 8)?, (\S+) (.*)\.$", sentence).groups()
    whole, *far = effects.split("; it ")
    row = row_of(result, name, "truncation", result.lengths[-1], "past the trained length")
    assert " at positions past 8" in whole
    check_effect(whole, row, ("loses", "wins"), decides)
    repeats = row_of(result, name, "truncation", result.lengths[-1], "far repeats")
    assert bool(far) == (decides and repeats is not None and repeats.low is not None)
    if far:
        text, use, _ = far[0].partition(": use it if those matter")
        assert " on far repeats (of text 8+ tokens back)" in text
        check_effect(text, repeats, ("loses", "wins"), decides)
        assert bool(use) == (repeats.change.sign == -1 != row.change.sign)


@pytest.mark.parametrize("seed", range(24))
def test_no_sentence_contradicts_its_row_its_interval_or_another_sentence(seed):
    rng = np.random.default_rng(seed)
    result = drawn(rng, 5, ["none", "right", "left"][seed % 3], [0.0, 0.1, 0.3][seed // 3 % 3])
    text, said = result.to_markdown(), " ".join(result.to_dict()["sentences"])
    check_answer(result)
    assert not re.search("significant|no evidence", text + said)
    if result.data["documents"] < 10:
        assert " use " not in said and not re.search(r"undecided between|larger than", said)
    if len(result.schedules) > 1:
        assert said.startswith(" ".join(result.sentences()))
        shown = cells(text, "schedule")
        for row in result.verdicts:
            cell = shown.get((row.schedule, row.against, str(row.length), row.tokens))
            assert cell is None or row.low is None or sign(cell) == (row.low > 0) - (row.high < 0)


@pytest.mark.parametrize(("effect", "tokens"), [(-1.39, 1.0), (-1.39, 1.8), (-3.0, 1.0)])
def test_an_effect_in_every_document_is_found_however_unequal_their_counts_are(effect, tokens):
    """24 documents of a lognormal number of tokens, of which one has a tenth to a third: the effect is 1.39 sd."""
    rng, found = np.random.default_rng(7), 0
    for _ in range(100):
        counts = np.ceil(30 * rng.lognormal(0, tokens, 24))
        means = effect + rng.normal(0, 1, 24)
        found += average(list(means * counts), list(counts), familywise(11)).sign == -1
    assert found >= 95


def moved(documents=12, **rest):
    """A measurement in which s1 gains a nat at the longest length, give or take, and changes nothing at 8 tokens."""
    found = table(np.random.default_rng(7), 3, documents, baseline=AS_IS, **rest)
    as_is, s1, _ = found.passes
    steps = np.where(np.arange(LONGEST - 1) < TRAINED - 1, 0.0, -1.25) * np.linspace(0.9, 1.1, documents)[:, None]
    lower = [(nll + each).astype(np.float32) for nll, each in zip(as_is.nll, steps, strict=True)]
    return dataclasses.replace(found, passes=[as_is, dataclasses.replace(s1, nll=lower), found.passes[2]])


def test_what_a_run_does_not_show_is_a_line_each_and_exit_code_1(tmp_path, ran):
    result = moved()
    result.save(tmp_path / "run")
    asked = [("s1", LONGEST), ("s1", 16), ("s1", TRAINED), ("s2", 16)]  # at 16 tokens nothing is a verdict
    level = familywise(len(result.verdicts) + 2)
    bounds = {}
    for label, length in asked:
        ours, theirs = (result.totals(name, length) for name in (label, AS_IS))
        bounds[label, length] = average(*ours.minus(theirs), level).high
    gains = {length: -bounds["s1", length] - 1e-6 for length in (LONGEST, 16)}
    keeps = [f"s1 gain>={gains[LONGEST]:.9f} at {LONGEST}", f"s1 gain >= {gains[16]:.9f} at 16", "s1 cost<=0 at 8"]
    keeps.append(f"s2 cost <= {bounds['s2', 16] + 1e-6:.9f} at 16")
    given = [word for each in keeps for word in ("--require", each)]
    out, _ = ran("report", tmp_path / "run", "-o", tmp_path / "page.html", *given)
    assert "not shown" not in out and f"shown: {', '.join(keeps)}" in out
    assert "\n".join(result.sentences()) in out and bounds["s1", TRAINED] == 0
    tighter = [f"s1 gain>={-bounds['s1', LONGEST] + 0.05:.6f} at {LONGEST}", "s1 cost<=-0.01 at 8"]
    given = ["--require", keeps[0], *(word for each in tighter for word in ("--require", each))]
    out, err = ran("report", tmp_path / "run", "-o", tmp_path / "page.html", *given, code=1)
    lines = [line for line in out.splitlines() if line.startswith("not shown: ")]
    assert [line.split(": it ")[0] for line in lines] == [f"not shown: {each}" for each in tighter]
    assert f", in 12 of 12 documents, at {LONGEST} tokens" in lines[0]
    assert "it makes no difference larger than 0.01" in lines[1]
    assert err.endswith("error: requirements that are not shown: 2 of 3\n")
    assert Result.load(tmp_path / "run").unmet([keeps[0], *tighter]) == lines


def test_nothing_is_shown_by_nine_documents_or_by_a_run_that_stopped():
    wanted = [f"s1 gain>=0.01 at {LONGEST}"]
    few, result = moved(9), moved()
    assert few.unmet(wanted)[0].endswith("a verdict needs 10 documents, and there are 9") and not result.unmet(wanted)
    result.unfinished = "This run is not whole."
    assert result.unmet(wanted) == [f"not shown: {wanted[0]}: This run is not whole."]


REFUSED = {
    "yarn:factor=8 cost<0.05 at 4k": "cannot be read; write it like 'yarn:factor=8 cost<=0.05 at 4k'",
    "s1 gain<=0.5 at 32": "cannot be read; write it like",
    "s1 cost<=much at 32": "cannot be read; write it like",
    "s1 cost<=0.1": "cannot be read; write it like",
    "s1 cost<=0.1 at 4q": "'4q' is not a length",
    "s9 cost<=0.1 at 32": "no schedule 's9' was measured; choose from as-is, s1, s2",
    "s1 cost<=0.1 at 64": "s1 was not measured at 64 tokens; choose from [8, 16, 32]",
    "": "cannot be read",
}


@pytest.mark.parametrize(("text", "why"), REFUSED.items(), ids=REFUSED)
def test_a_requirement_that_cannot_be_read_or_was_not_measured_is_exit_code_2(tmp_path, ran, text, why):
    moved().save(tmp_path / "run")
    _, err = ran("report", tmp_path / "run", "-o", tmp_path / "page.html", "--require", text, code=2)
    assert err.count("\n") == 1 and why in err and not (tmp_path / "page.html").exists()
    moved(9).save(tmp_path / "other")
    _, err = ran("report", tmp_path / "run", tmp_path / "other", "--require", text, code=2)
    assert err.startswith("error: run: ") and err.count("\n") == 1 and why in err


def tuned(before, documents):
    """The same model under s1's tables, as it is, after a training that changed each document's losses by what is
    returned beside it: up to 8 tokens, and beyond."""
    steps = np.linspace(0.8, 1.2, documents)[:, None] * np.where(np.arange(LONGEST - 1) < TRAINED - 1, 0.2, -0.4)
    s1 = before.passes[1]
    nll = [(each + step).astype(np.float32) for each, step in zip(s1.nll, steps, strict=True)]
    passes = [dataclasses.replace(s1, schedule=AS_IS, nll=nll)]
    return dataclasses.replace(before, model={**before.model, "weights": "1" * 64}, passes=passes), steps


@pytest.mark.parametrize("documents", [9, 12])
def test_the_report_of_two_models_opens_with_one_minus_the_other_at_each_length(tmp_path, ran, documents):
    before = moved(documents)
    after, steps = tuned(before, documents)
    before.save(tmp_path / "before")
    after.save(tmp_path / "after")
    shown = ran("report", tmp_path / "before", tmp_path / "after", "-o", tmp_path / "page.html")[0]
    rows = {(row.against, row.length): row for row in after.minus(before)}
    assert list(rows) == [(name, n) for name in (AS_IS, "s1") for n in (TRAINED, 16, LONGEST)]
    table = next(part for part in shown.split("\n\n") if part.startswith("| after"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert lines[0] == ["after", "before", "8", "16", "32"] and lines[3][:2] == [AS_IS, "s1"]
    for cell, length in zip(lines[3][2:], (TRAINED, 16, LONGEST), strict=True):
        means = steps[:, : length - 1].mean(1)
        wanted = average(list(means), [1] * documents, familywise(6))  # two schedules at three lengths
        row = rows["s1", length]
        assert row.mean == pytest.approx(wanted.mean, abs=1e-6) and cell.split()[0] == f"{row.mean:+.4f}"
        if documents >= 10:
            assert (row.low, row.high) == pytest.approx((wanted.low, wanted.high), abs=1e-5)
    said = [line for line in shown.splitlines() if line.startswith("Against before (s1), after (as-is) gains 0.")]
    why = " (a verdict needs 10 documents, and there are 9)." if documents < 10 else f" at {TRAINED} tokens."
    assert shown.startswith("Against before (as-is), after (as-is) gains ") and said[0].endswith(why)
    assert f"nats, in {documents} of {documents}, at 32 tokens; it costs 0.2" in said[0]
    assert " nats (a perplexity factor of " in shown.splitlines()[0]
    assert said[0] in (tmp_path / "page.html").read_text()


def test_more_models_are_a_table_by_length_and_another_text_is_only_named(tmp_path, ran):
    before = moved()
    runs = {"a": before, "b": tuned(before, 12)[0], "c": tuned(before, 12)[0], "d": moved(11)}
    for name, result in runs.items():
        result.save(tmp_path / name)
    out, err = ran("report", *(tmp_path / name for name in runs), "-o", tmp_path / "page.html")
    found = cells(out, "perplexity")
    assert {label for label, _ in found} == {"a: as-is", "a: s1", "a: s2", "b: as-is", "c: as-is"}
    for row in runs["b"].rows:
        assert float(found["b: as-is", str(row.length)]) == pytest.approx(row.ppl, rel=1e-3)
    assert "note: d scored other texts or windows than a, so they are not compared\n" in err
    with pytest.raises(DataError, match="did not score the same tokens; measure both"):
        before.minus(runs["d"])


@pytest.mark.parametrize("seed", range(3))
def test_the_printed_winner_and_truncation_are_in_every_artefact_of_a_run(tmp_path, ran, monkeypatch, seed):
    """Random models, lengths, schedules and numbers of documents, which a model under a schedule has written."""
    rng = np.random.default_rng(seed)
    model, run = llama(seed, vocab_size=257), tmp_path / "run"
    folder = checkpoint(tmp_path, model)
    known = ["yarn:factor=2", "ntk:factor=2", "yarn:factor=4", "linear:factor=2", "dynamic:factor=2"]
    schedules = [str(each) for each in rng.permutation(known)[: 3 * seed]]
    first = torch.full((int(rng.integers(2, 15)), 1), 256)
    with ropescale.patch(model, known[seed]):
        texts = model.generate(first, do_sample=True, top_k=0, max_new_tokens=127, pad_token_id=0, eos_token_id=None)
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in texts.tolist()))
    words = ["-o", run, "--lengths", f"{rng.integers(20, 90)},128", *(f"--schedule={each}" for each in schedules)]
    pictures = []
    monkeypatch.setattr("ropescale.evals.results.saving.drawn", lambda draw: pictures.append(draw()) or b"")
    printed = ran("eval", folder, "--data", tmp_path / "d.jsonl", *words)[0].partition("\n\n|")[0]
    ran("report", run, "-o", tmp_path / "page.html")
    page, report = (tmp_path / "page.html").read_text().replace("<wbr>", ""), (run / "REPORT.md").read_text()
    named = r"At 128 tokens, (?:use )?(\S+?)(?: \(.*?\))?(?: has the lowest .*?:|: lowest perplexity,| has .* of) "
    winner, figure = re.match(named + PPL, printed).groups()
    truncated = re.search(rf"truncation(?: to the last 64)?: {PPL}", printed)
    wanted = {winner: figure, **({TRUNCATION: truncated[1]} if truncated else {})}
    assert {winner, TRUNCATION} == wanted.keys() | {winner} and all(line in report for line in printed.splitlines())
    assert all(f"<span>{html.escape(line)}</span>" in page for line in printed.splitlines())
    embedded = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["run"]
    csvs = [(run / "results.csv").read_text(), embedded["csv"]]
    lines = {line.get_label(): line.lines[0] for line in pictures[0].axes[0].containers}
    curves = {label: line.get_ydata()[-1] for label, line in lines.items()}
    assert [label for label, line in lines.items() if line.get_color() == "#777777"] == [TRUNCATION] * bool(truncated)
    about = f"{folder.name} on {tmp_path / 'd.jsonl'}, {date.today()}. {Result.load(run).rests_on()}"
    assert " ".join(pictures[0].get_supxlabel().split()) == " ".join([*printed.splitlines(), about])
    for label, value in wanted.items():
        rows = [row for text in csvs for row in csv.DictReader(io.StringIO(text))]
        values = [float(row["ppl"]) for row in rows if (row["schedule"], row["length"]) == (label, "128")]
        assert [digits(each, 4) for each in (*values, curves[label])] == 3 * [value]
        assert cells(report, "perplexity")[label, "128"].split()[0] == value
        assert re.search(rf">{label}</td>(?:<td[^>]*>[^<]*</td>)+?<td[^>]*>{re.escape(value)}\b[^<]*</td></tr>", page)
        assert f">{label}</span></label>" in page  # and its line can be hidden
