"""The sentences of a recommendation are what the rows of its table say, whatever the losses are."""

import json
import re
from functools import cache

import numpy as np
import pytest
from tiny import llama

import ropescale
from ropescale.evals import Checkpoint
from ropescale.evals.data.documents import Document
from ropescale.evals.facts import AS_IS, TRUNCATION, Pass, Truncation
from ropescale.evals.metrics.cells import percent
from ropescale.evals.metrics.stored import Stored, part_of
from ropescale.evals.recommending.candidates import find_candidates
from ropescale.evals.recommending.evidence import Evidence
from ropescale.evals.recommending.options import RecommendOptions, objective_of
from ropescale.evals.recommending.race import split_windows
from ropescale.evals.recommending.results import ANSWER, FINALISTS, Recommendation
from ropescale.evals.running.corpus import PerplexityOptions
from ropescale.evals.statistics.intervals import Estimate
from ropescale.models.patching import configuration_before

SIMPLE = [AS_IS, "yarn:factor=4", "linear:factor=5", "ntk:factor=8"]
CONFIG = configuration_before(llama())


@cache
def candidates():
    return find_candidates(CONFIG, 256, {})


def table(documents, shifts, seed=0, skewed=False, noise=0.02):
    """A recommendation by so many documents that decide, whose schedules differ by shifts and by noise, in nats."""
    generator = np.random.default_rng(seed)
    windows = [1] * 2 * documents
    goal = objective_of(256, 64, short_weight=0)
    shared = generator.normal(3, 0.5, (len(windows), 1))
    means = {}
    for name, shift in shifts.items():
        drawn = generator.exponential(1, shared.shape) - 1 if skewed else generator.normal(0, 1, shared.shape)
        means[name] = shared + shift + noise * drawn
    # Up to the trained length, truncation has the losses of the unchanged model.
    beyond = np.tile((255 * means.pop(TRUNCATION) - 63 * means[AS_IS]) / 192, 192).astype(np.float32)
    losses = {name: list(np.tile(mean, 255).astype(np.float32)) for name, mean in means.items()}
    passes = [Pass(name, "", goal.lengths, each, 0) for name, each in losses.items()]
    ids = np.arange(256)
    ids[200:227] = ids[100:127]  # 20 far repeats
    losses = Stored(
        model={}, data={}, protocol={}, versions={}, passes=passes, windows=windows, bos=False, baseline="",
        documents=[Document("", ids, None, "")] * len(windows), truncation=Truncation(64, 8, "", list(beyond)),
    )  # fmt: skip
    held = split_windows(windows, search=False)[1]
    options = RecommendOptions(PerplexityOptions(), checkpoint=Checkpoint("m"))
    evidence = Evidence(losses, candidates(), goal, [], list(means), part_of(losses, held), options)
    protocol = {"target_length": 256, "trained_length": 64, "held_out_windows": documents}
    assert len(held) == (len(windows) if 10 <= len(windows) < 20 else documents)
    return Recommendation(model={}, data={}, protocol=protocol, versions={}, evidence=evidence)


def check_table(stored):
    """Compares the sentences of a recommendation with its rows; returns what they conclude of truncation."""
    (answer,), rows = ANSWER.rows(stored), {row.schedule: row for row in FINALISTS.rows(stored)}
    text, last, documents = answer.answer, rows[TRUNCATION], stored.measured.comparison.texts
    assert answer.decided == text.startswith(("Of the schedules, use ", "Leave the model"))
    assert answer.decided != text.startswith("Undecided")
    sentences = stored.sentences()
    assert " ".join(sentences) == text and all(len(sentence) <= 200 for sentence in sentences), text
    claims = re.findall(r"runcating the input to its last 64 tokens is (better is undecided|better|worse): ", text)
    if documents < 10:
        assert claims == ["better is undecided"] and not answer.decided
        assert f"a verdict needs 10 documents to test on, and there are {documents}" in text
        return ""
    (found,) = claims
    assert percent(Estimate(last.delta, last.low, last.high)) in text
    apart = last.low is not None and (last.low > 0 or last.high < 0)
    assert found == ("better is undecided" if not apart else "worse" if last.low > 0 else "better"), text
    open_ = {name for name, row in rows.items() if name not in (TRUNCATION, answer.schedule) and row.low < -0.005}
    assert set(answer.open) == open_ and answer.decided == (not open_)
    assert not open_ or answer.open[0] in text.partition(", but ")[2].partition(" may be better")[0]
    return found


@pytest.mark.parametrize("documents", [4, 5, 10, 30])
def test_no_sentence_contradicts_its_row(documents):
    draw = np.random.default_rng(documents)
    for seed in range(12):
        gain = 0.02 * (seed % 4)
        shifts = {name: draw.uniform(-gain, gain) for name in [*SIMPLE[: 2 + seed % 3], TRUNCATION]}
        check_table(table(documents, shifts, seed, skewed=seed % 2 == 0))


@pytest.mark.slow
@pytest.mark.parametrize(("skewed", "most"), [(False, 0.06), (True, 0.08)])
def test_where_nothing_differs_few_tables_tell_truncation_apart(skewed, most):
    draw, apart, number = np.random.default_rng(3), 0, 1000
    for seed in range(number):
        documents = int(draw.integers(10, 51))
        shifts = dict.fromkeys([*SIMPLE[: 2 + seed % 3], TRUNCATION], 0.0)
        apart += check_table(table(documents, shifts, seed, skewed)) != "better is undecided"
    assert apart <= most * number


TRUNCATED = [
    (0.0, "Whether truncating the input to its last 64 tokens is better is undecided: "),
    (-0.5, "Truncating the input to its last 64 tokens is better: -39."),
    (0.5, "Truncating the input to its last 64 tokens is worse: +6"),
]


@pytest.mark.parametrize(("truncation", "said"), TRUNCATED)
def test_what_truncation_does_is_said_after_the_schedule(truncation, said):
    shifts = {AS_IS: 1.0, "yarn:factor=4": 0.0, TRUNCATION: truncation}
    text = ANSWER.rows(table(20, shifts, noise=0.002))[0].answer
    assert text.startswith("Of the schedules, use yarn:factor=4: no other is better by more than 0.5% of perplexity.")
    assert ". At 256 tokens (factor 4; measure again for another) its perplexity is " in text
    assert said in text


def test_a_schedule_that_follows_the_length_says_what_its_folder_does_and_which_fixed_one_is_the_same(tmp_path):
    shifts = {AS_IS: 1.0, "yarn:factor=4": 0.5, "dynamic:factor=1": 0.0, TRUNCATION: 1.0}
    assert ANSWER.rows(table(20, shifts))[0].note == (
        "The table of dynamic:factor=1 depends on the length: the measurement used the table at 256, the folder keeps "
        "max_position_embeddings 64, and cached decoding and most engines differ; ntk:factor=4 is that table at any "
        "length."
    )
    llama().save_pretrained(tmp_path / "model")
    ropescale.patch_checkpoint(tmp_path / "model", tmp_path / "out", "dynamic:factor=1")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"] == 64
    for length in (100, 256):
        specs = ("ntk:factor=4", "dynamic:factor=1")
        fixed, follows = (ropescale.frequencies(CONFIG, spec, length=length)["all"].inv_freq for spec in specs)
        assert (fixed == follows) == (length == 256)
