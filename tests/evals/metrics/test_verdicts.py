"""The sentences that conclude, over random tables: how often they are false, and that nothing contradicts them."""

import re
from collections import Counter

import numpy as np
import pytest
from tiny import from_ids

from ropescale.evals import Result
from ropescale.evals.metrics.against_truncation import verdict
from ropescale.evals.metrics.stored import AS_IS, Pass, Truncation
from ropescale.evals.reporting.page import StoredRun, headline

TRAINED, LONGEST = 8, 32
IDS = [*range(12), *range(12), *range(8)]
"""From position 19 on every token ends a repeat of 8 tokens, 12 back."""


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
    passes = [
        Pass(name, f"{n:064}", tuple(lengths), list(each), documents)
        for n, (name, each) in enumerate(zip(names, losses, strict=True))
    ]
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


def false_rates(tables, skew):
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


@pytest.mark.parametrize("tables", [30, pytest.param(3_400, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("skew", "most"), [("none", 0.06), ("right", 0.08), ("left", 0.08)])
def test_what_is_false_is_rarely_concluded(tables, skew, most):
    assert max(false_rates(tables, skew).values()) <= most


@pytest.mark.parametrize("documents", [5, 9])
def test_of_fewer_than_ten_documents_nothing_is_concluded_and_the_sentences_say_why(documents):
    result = table(np.random.default_rng(3), 3, documents, effect=5.0, far=True)
    text = result.to_markdown()
    why = f"a verdict needs 10 documents, and there are {documents}."
    assert f"The schedule with the lowest loss is undecided: {why}" in text
    assert f"Whether reading further back than the last 8 tokens pays off is undecided: {why}" in text
    assert f"Whether reading further back than the last 8 tokens pays off on far repeats is undecided: {why}" in text
    assert result.best == []
    check_answer(result)
    assert f", but {why}" in headline(as_run(result))


def test_of_fewer_than_five_documents_there_is_a_dash_for_an_interval_and_the_line_says_why():
    result = table(np.random.default_rng(3), 2, 4, far=True)
    text = result.to_markdown()
    assert "± 0" not in text and " to +" not in text and text.count("± -") == 6 + 3 + 4 + 4 + 4 + 1
    assert "no interval (± -): it needs 5 documents" in text


def as_run(result):
    """The run that the page has of a result."""
    results = result.to_dict()
    return StoredRun("run", None, results, result)


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
    return {(line[0], name): cell for line in lines for name, cell in zip(head[1:], line[1:], strict=True)}


def check_pays_off(text, shown, lengths):
    """Compares the sentence on truncation with the table above it."""
    said = re.search(r"[Rr]eading further back than the last 8 tokens (.*?)\.", text)
    assert said and len(said[0]) <= 200, text
    better = [n for n in lengths if any(at == n and name[0] != "(" and sign(cell) < 0
                                        for (name, at), cell in shown.items())]  # fmt: skip
    paid = re.match(r"pays off at (.*) tokens, with at least one schedule", said[1])
    assert (paid[1].split(", ") if paid else []) == better
    assert paid or text[: said.end()].endswith("There is no evidence that " + said[0])


def check_lowest(text, result):
    """Compares the sentence on the lowest loss with the tables of perplexities and changes."""
    ppl = {(row.schedule, row.length): row.ppl for row in result.rows}
    changes = cells(text, "change")
    (said,) = re.findall(r"Lowest loss at (.*) \(\d+ documents", text)
    for part in said.split("; "):
        lengths, stands = part.split(": ")
        best, _, others = re.match(r"(\S+), (not )?significantly below (.*)", stands).groups()
        for length in lengths.split(", "):
            at = int(length.replace(",", ""))
            assert ppl[best, at] == min(value for (_, n), value in ppl.items() if n == at)
            open_ = {*others.split(", ")} if "not signif" in stands else set()
            against = [each for each in result.schedules if each != best] if "every" in others or open_ else [others]
            for other in against:
                if result.baseline in (best, other):
                    of, wanted = (other, 1) if best == result.baseline else (best, -1)
                    apart = sign(changes[of, length]) == wanted
                    assert apart == (other not in open_), (part, changes)


PPL = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e\+\d+)?)"
UNIT = r"(?: nats(?: \(of log perplexity\))?)"
EFFECT = rf"(\d+\.\d{{3}})( ± [<\d.]+| \(\S+ to \S+\))?{UNIT}"


def check_answer(result):
    """Compares the answer that a terminal begins with to the tables, and every conclusion to its interval."""
    said, decides = result.sentences(), result.data["documents"] >= 10
    assert 1 <= len(said) <= 3 and all(len(each) <= 200 for each in said), said
    assert " ".join(said).count("(of log perplexity)") == any(" nats" in each for each in said)
    longest = result.lengths[-1]
    table = cells(result.main_table(), "perplexity")
    ppl = {name: number(cell) for (name, at), cell in table.items() if at == str(longest)}
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
    signs = {row.schedule: row.change().sign for row in result.against_truncation if row.length == longest}
    open_ = {*result.best[-1].not_apart} if result.best and len(of_schedules) > 1 else set()
    rivals = {label for label, sign in signs.items() if sign != 1}
    if name != "truncation":
        rivals = open_ | ({"truncation"} if signs.get(name, -1) != -1 else set())
    assert (", use " in sentence) == (decides and not rivals and len(ppl) > 1)
    assert ("a verdict needs 10 documents" in rest) == (not decides and len(ppl) > 1)
    undecided = re.search(r"undecided between it(?: and|,) (\S+?)(?: and (\d+) more)?(?:[;)]|$)", rest)
    among = rivals if rivals else open_ if name == "truncation" else set()
    assert bool(undecided) == (decides and bool(among) and len(ppl) > 1)
    if undecided:
        nearest, more = undecided.groups()
        assert nearest in among and ppl.get(nearest) == min((ppl[each] for each in among & {*ppl}), default=None)
        assert int(more or 0) == len(among) - 1
    best = "the best schedule" in rest or "below every schedule" in rest
    assert best == (name == "truncation" and decides and not rivals and not open_ and len(of_schedules) > 1)


def whole_effect(text, first):
    """Repeats the verb of the effect before it, which the sentence says once."""
    return text if re.match("gains|costs|loses|wins|has", text) else f"{first.split()[0]} {text}"


def check_effect(text, cell, verbs, decides):
    """Compares a gain or cost with its cell: the size, the direction, and whether it is significant."""
    change = CELL.search(cell)[1]
    if "has no measurable effect" in text:
        assert abs(float(change)) < 6e-4
    elif "has no significant effect" in text:
        assert decides and sign(cell) == 0
    else:
        verb, by, interval = re.match(rf"(\w+) {EFFECT}", text).groups()
        assert float(by) == pytest.approx(abs(float(change)), abs=6e-4) and bool(interval) == decides
        assert verb == verbs[change.startswith("-")] and not (decides and sign(cell) == 0)


def check_gain(sentence, result, ppl, decides):
    """The best changed schedule's gain and cost are those of the table of changes, and of the perplexities."""
    name, effects = re.match(rf".*gainst {result.baseline}, (\S+) (.*)\.$", sentence).groups()
    changed = {each: value for each, value in ppl.items() if each not in (result.baseline, "truncation")}
    assert changed[name] == min(changed.values())
    shown = cells(result.to_markdown(), "change")
    first, *rest = effects.split(" and ")
    rest = [whole_effect(each, first) for each in rest]
    lengths = [result.lengths[-1], *({TRAINED} & {*result.lengths} - {result.lengths[-1]})]
    for part, length in zip([first, *rest], lengths, strict=True):
        assert f" at {length} tokens" in part
        check_effect(part, shown[name, str(length)], ("costs", "gains"), decides)


def check_past(sentence, result, decides):
    """The difference from truncation is that of its table, on the tokens that the sentence names.

    A schedule is recommended for far repeats alone only if it is better on them, and not elsewhere.
    """
    name, whole, link, far, use = re.match(
        r".*gainst truncation(?: to 8)?, (\S+) (.* at positions past 8)"
        r"(?:(, but | and )(.*on far repeats \(of text 8\+ tokens back\))"
        r"(: use it if those matter)?)?\.$", sentence
    ).groups()  # fmt: skip
    longest = str(result.lengths[-1])
    shown = cells(result.to_markdown(), "against truncation")[name, longest]
    check_effect(whole, shown, ("loses", "wins"), decides)
    row = next(row for row in result.against_truncation if (row.schedule, row.length) == (name, result.lengths[-1]))
    repeats = row.change("far_")
    assert bool(far) == (decides and repeats is not None and repeats.sign is not None)
    assert bool(use) == (link == ", but ")
    if far:
        last = cells(result.to_markdown(), f"at {longest}").items()
        repeated = {label: cell for (label, column), cell in last if column.startswith("far repeats")}
        far = whole_effect(far, whole)
        check_effect(far, repeated[name], ("loses", "wins"), decides)
        assert bool(use) == (repeats.sign == -1 and row.change().sign != -1)


@pytest.mark.parametrize("seed", range(24))
def test_no_sentence_contradicts_its_row_its_interval_or_another_sentence(seed):
    rng = np.random.default_rng(seed)
    skew, effect = ["none", "right", "left"][seed % 3], [0.0, 0.1, 0.3][seed // 3 % 3]
    result = drawn(rng, 5, skew, effect)
    text, said = result.to_markdown(), headline(as_run(result)) or ""
    check_answer(result)
    if result.data["documents"] < 10:
        assert "pays off at" not in text + said and " use " not in text + said
        return
    if len(result.schedules) > 1:
        check_lowest(text, result)
        assert said.startswith(" ".join(result.sentences()))
    if result.against_truncation:
        lengths = [str(n) for n in result.lengths if n > TRAINED]
        check_pays_off(text, cells(text, "against truncation"), lengths)
        sentence = re.search(r"(There is no evidence that r|R)eading further.*?\.", text)
        assert sentence and sentence[0] in said
