"""The rules of a recommendation: candidates, and on losses whose truth is known the objective, race and decision."""

import math
from itertools import pairwise

import numpy as np
import pytest
from tiny import llama

import ropescale
from ropescale.errors import ConfigError, DataError, ScheduleError
from ropescale.evals.data.windows import windows_by_document
from ropescale.evals.facts import AS_IS, Pass
from ropescale.evals.metrics.stored import Identity, Stored, part_of
from ropescale.evals.recommending import race
from ropescale.evals.recommending.candidates import find_candidates, grid
from ropescale.evals.recommending.options import objective_of
from ropescale.evals.recommending.race import decide, estimate, expected, run_race, share_kept, split_windows
from ropescale.models.patching import configuration_before

CONFIG = configuration_before(llama())

LENGTHS = (64, 256)

TARGET = {256: 1.0}


def losses(windows, true, spread, seed=0):
    """Losses of candidates whose mean is known, with noise of each window that all share, and noise of their own."""
    number = sum(windows)
    generator = np.random.default_rng(seed)
    shared = generator.normal(3, 0.5, size=(number, 1))
    passes = []
    for name, mean in true.items():
        own = generator.normal(mean, spread, size=(number, 1))
        passes.append(Pass(name, "", LENGTHS, list(np.tile((shared + own).astype(np.float32), 255)), number))
    identities = [Identity("", "", "")] * len(windows)
    return Stored({}, {}, {}, {}, passes, [], False, "", windows=windows, identities=identities)


def means(made, name, length=256):
    """The mean of each window, fp64."""
    return np.array([each.mean(dtype=np.float64) for each in made.losses(name, length)])


# --- the candidates ---


@pytest.fixture(scope="module")
def everything():
    return find_candidates(CONFIG, 256, {})


def test_every_fixed_schedule_is_a_candidate_and_the_others_have_a_reason(everything):
    names = {each.spec.partition(":")[0] for each in everything.candidates}
    assert {AS_IS, "linear", "ntk", "ntk-su", "ntk-mixed", "ntk-by-parts", "yarn", "llama3", "dynamic"} <= names
    assert "resonance" in names and "ntk-critical" in names
    assert set(everything.left_out) == set(ropescale.schedules.names()) - names - {"base"}
    assert all(everything.left_out.values())
    assert (everything.factor, everything.usual, everything.specs[0]) == (4, "yarn:factor=4", AS_IS)


def test_yarn_is_tried_at_three_factors_with_ramps_that_end_at_whole_pairs_and_between_them(everything):
    specs = grid("yarn", 4.0)
    assert len(set(specs)) == len(specs) == 3 * 13
    some = ("yarn:factor=4", "yarn:factor=5,beta_slow=0.5", "yarn:factor=6,beta_fast=16,beta_slow=0.5,truncate=false")
    assert set(some) <= set(specs)
    assert grid("linear", 4.0) == [f"linear:factor={factor}" for factor in (4, 5, 6)]
    assert grid("ntk", 4.0) == [f"ntk:factor={factor}" for factor in (4, 6, 8, 12, 16)]
    assert {len(find_candidates(CONFIG, length, {}).specs) for length in (128, 256, 512)} <= {*range(60, 80)}


def test_candidates_compute_different_things_and_the_simplest_speaks_for_the_others(everything):
    tables = {}
    for spec in everything.specs:
        found = ropescale.frequencies(CONFIG, spec, length=256)["all"]
        key = (tuple(found.inv_freq), found.attention_scale)
        assert key not in tables or spec.startswith("dynamic"), (spec, tables.get(key))
        tables.setdefault(key, spec)
    assert everything.same
    for kept, others in everything.same.items():
        found = [ropescale.frequencies(CONFIG, spec, length=256) for spec in (kept, *others)]
        assert found == [found[0]] * len(found)


def test_an_engine_leaves_out_what_it_would_not_compute(everything):
    found = find_candidates(CONFIG, 256, {}, "llama.cpp")
    assert {AS_IS, "linear:factor=4"} <= set(found.specs) < set(everything.specs)
    assert any("llama.cpp computes" in why for why in found.left_out.values())
    with pytest.raises(DataError, match="engine 'ollama' is not known; did you mean"):
        find_candidates(CONFIG, 256, {}, "ollama")


def test_a_users_schedule_gets_the_factor_is_known_however_it_is_written_and_must_fit(everything):
    others = ["giraffe:scale_power=0.3", "yarn:truncate=false,beta_slow=3", "dynamic:factor=2.0"]
    made = find_candidates(CONFIG, 256, {}, others=others)
    assert made.wanted == ("giraffe:scale_power=0.3", "yarn:truncate=false,beta_slow=3,factor=4", "dynamic:factor=2")
    assert set(made.specs) == {*everything.specs, *made.wanted[:2]}
    assert set(made.always) == {AS_IS, "yarn:factor=4", *made.wanted}
    with pytest.raises(ScheduleError):
        find_candidates(CONFIG, 256, {}, others=["yarn:beta_fast=0.5"])


def test_a_model_that_is_scaled_already_asks_what_to_do():
    parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    scaled = configuration_before(llama(rope_parameters=parameters, max_position_embeddings=128))
    with pytest.raises(ConfigError, match="already"):
        find_candidates(scaled, 512, {})
    assert find_candidates(scaled, 512, {"replace_scaling": True}).factor == 8


# --- the objective ---


def test_the_target_weighs_nine_times_as_much_as_the_trained_length_by_default():
    assert objective_of(2048, 256).weights == {256: 0.1, 2048: 0.9}
    assert objective_of(2048, 256, short_weight=0).weights == {2048: 1.0}
    assert objective_of(2048, 256).lengths == (128, 256, 2048)
    within = objective_of(256, 512)
    assert (within.trained, within.short, within.weights) == (512, 256, {256: 1.0})


@pytest.mark.parametrize("weight", [1.0, -0.1])
def test_a_weight_that_is_no_share_is_refused(weight):
    with pytest.raises(DataError, match="share from 0 to below 1"):
        objective_of(2048, 256, weight)


# --- the losses ---


def test_the_objective_is_the_weighted_mean_of_the_means_at_each_length():
    made = losses([1] * 6, {"a": 0.0}, 0.3)
    for nll in made.passes[0].nll:
        nll[:63] *= 1.5
    short, long = (means(made, "a", length) for length in LENGTHS)
    found = estimate(made, {64: 0.25, 256: 0.75}, "a")
    assert found.mean == pytest.approx(0.25 * short.mean() + 0.75 * long.mean(), rel=1e-14)
    assert estimate(part_of(made, [1, 2]), {64: 1.0}, "a").mean == pytest.approx(short[1:3].mean(), rel=1e-14)


def test_windows_without_a_token_that_counts_have_no_mean():
    made = losses([1] * 6, {"a": 0.0}, 0.3)
    made.passes[0].nll[2:4] = [np.empty(0, np.float32)] * 2
    assert math.isnan(estimate(part_of(made, [2, 3]), TARGET, "a").mean)


def test_a_paired_difference_has_students_interval():
    made = losses([1] * 12, {"a": 0.02, "b": 0.0}, 0.05)
    found = estimate(made, TARGET, "a", "b", 0.99)
    each = means(made, "a") - means(made, "b")
    half = 3.105806514 * each.std(ddof=1) / math.sqrt(12)  # 11 degrees of freedom, from a table
    assert found.mean == pytest.approx(each.mean(), rel=1e-12)
    below, above = found.mean - found.low, found.high - found.mean
    assert min(below, above) == pytest.approx(half, rel=1e-6)
    assert half <= max(below, above) < 2 * half  # one side is longer by the skewness


def test_windows_of_a_document_count_together():
    assert windows_by_document([3, 1, 2], [0, 2, 4, 5]) == [2, 2]


# --- the race ---


@pytest.mark.parametrize("windows", [[1] * 26, [3] * 4, [2, 3, 1, 4, 2], [40], [3, 5], [1] * 7])
def test_race_and_decision_share_no_window_and_leave_none_out(windows):
    first, second = split_windows(windows, search=False)
    assert sorted([*first, *second]) == list(range(sum(windows)))
    if len(windows) >= 4:
        documents = [number for number, count in enumerate(windows) for _ in range(count)]
        assert not {documents[n] for n in first} & {documents[n] for n in second}


SPLITS = [(9, False, 4, 5), (10, False, 10, 10), (19, False, 19, 19), (20, False, 10, 10), (21, False, 10, 11)]
SPLITS += [(10, True, 5, 5), (14, True, 6, 8), (16, True, 6, 10), (19, True, 9, 10), (20, True, 10, 10)]


@pytest.mark.parametrize(("documents", "search", "race", "held"), SPLITS)
def test_ten_documents_are_enough_to_test_on_and_a_search_keeps_six_to_itself(documents, search, race, held):
    found = split_windows([2] * documents, search)
    assert [len(part) for part in found] == [2 * race, 2 * held]
    assert {*found[0], *found[1]} == {*range(2 * documents)}


@pytest.mark.parametrize("number", [1, 2, 3, 6, 13, 100])
def test_rounds_measure_every_window_once_and_at_most_triple(number):
    found = race.slices(list(range(7, 7 + number)))
    assert sorted(window for part in found for window in part) == list(range(7, 7 + number))
    assert all(later <= 3 * earlier for earlier, later in pairwise(np.cumsum([len(part) for part in found])))
    assert len(found[0]) <= max(1, round(number / 8))


def test_the_race_finds_the_best_of_eighty_with_a_quarter_of_the_tokens():
    names = [f"c{n}" for n in range(80)]
    true = {name: 0.02 * number for number, name in enumerate(reversed(names))}
    made = losses([1] * 26, true, 0.01)
    first, second = split_windows([1] * 26, search=False)
    most = share_kept(80, 1, first, second)
    fed = []

    def measure(candidates, part):
        fed.extend((name, window) for name in candidates for window in part)
        return made

    rounds = run_race(names, TARGET, first, ["c0"], most, measure)
    assert rounds[-1].kept == ["c79", "c78", "c77", "c76"]
    assert len(set(fed)) == len(fed) <= expected(80, 1, first, [], most)
    assert len(fed) + 5 * len(second) <= 80 * 26 / 4
    assert all("c0" in each.candidates for each in rounds)


@pytest.mark.parametrize("candidates", [60, 80, 120])
@pytest.mark.parametrize("documents", [8, *range(10, 20), 26, 200])
def test_no_more_than_a_quarter_of_the_grid_is_fed(candidates, documents):
    for search in (False, True):
        first, second = split_windows([1] * documents, search)
        most = share_kept(candidates, 2, first, second)
        assert expected(candidates, 2, first, second, most) <= candidates * documents / 4


def test_a_round_keeps_two_thirds_of_its_share_and_of_the_rest_what_is_not_told_apart():
    true = {f"c{n}": 0.0 if n < 5 else 1.0 for n in range(12)}
    kept = race.survivors(losses([1] * 10, true, 1e-3), TARGET, list(true), 1 / 2)
    assert set(kept) == {"c0", "c1", "c2", "c3", "c4"}  # four for certain, the fifth is like them, the sixth is not
    # one window tells nothing apart
    assert len(race.survivors(losses([1], true, 1e-3), TARGET, list(true), 1 / 2)) == 6


# --- the decision ---


def judged(made, finalists):
    return decide(made, made, TARGET, finalists, 0.01, 0.95 ** (1 / 3))


def test_the_simplest_of_those_that_are_as_good_is_chosen():
    made = losses([1] * 40, {"simple": 0.001, "best": 0.0, "worse": 0.1}, 0.002)
    found = judged(made, ["simple", "best", "worse"])
    assert (found.chosen, found.open, found.equal) == ("simple", [], ["best"])


def test_what_may_be_better_by_more_than_the_tolerance_is_left_open():
    made = losses([1] * 40, {"simple": 0.02, "best": 0.0, "worse": 0.5}, 0.1, seed=3)
    found = judged(made, ["simple", "best", "worse"])
    assert found.chosen == min(("simple", "best"), key=lambda name: means(made, name).sum())
    assert found.open == [name for name in ("simple", "best") if name != found.chosen]
    assert not found.equal


@pytest.mark.slow
def test_what_is_recommended_is_worse_than_the_tolerance_in_at_most_one_of_twenty_texts():
    wrong, decided = 0, 0
    true = {"a": 0.012, "b": 0.006, "c": 0.0, "d": 0.02}
    for seed in range(2000):
        made = losses([1] * 12, true, 0.01, seed=seed)
        found = decide(made, made, TARGET, list(true), 0.01, 0.95 ** (1 / 6))
        decided += not found.open
        wrong += not found.open and true[found.chosen] > 0.01
    assert decided > 200
    assert wrong <= 0.05 * 2000
