"""Verdicts on a claim, with made-up losses: for it, against it, and where they decide nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropescale.evals.reproducing.claims import Claim, Contrast, Missed, judge, share, together, verdict
from ropescale.evals.reproducing.comparisons import TRUNCATION, Point, Records
from ropescale.evals.reproducing.experiments.arms import MeasuringArm, TrainingArm
from ropescale.evals.reproducing.experiments.plan import arms, chosen
from ropescale.evals.reproducing.experiments.retrieval_arms import AskingArm
from ropescale.evals.reproducing.experiments.room import Room
from ropescale.evals.reproducing.experiments.setting import Setting
from ropescale.evals.reproducing.metrics import summary
from ropescale.evals.reproducing.published import claims
from ropescale.evals.reproducing.rows import FAILS, HOLDS, NOT_RUN, UNDECIDED
from ropescale.evals.running.variants import AS_IS
from ropescale.evals.statistics.intervals import Estimate, ratio

SETTING = Setting()
CLAIMS = claims(SETTING)
NAMES = [each.name for each in CLAIMS]


class MadeUp(Records):
    """Records whose differences are drawn around a mean, one for each of 26 texts."""

    def __init__(self, means: dict[tuple[Point, Point, int], float], noise: float) -> None:
        super().__init__(Room(Path("nowhere"), SETTING))
        self.means, self.noise = means, noise

    def difference(self, one, other, length, start=1, stop=None) -> Estimate | None:
        mean = self.means.get((one, other, length))
        if mean is None:
            return None
        drawn = np.random.default_rng(3).normal(0, self.noise, 26)
        tokens = (stop or length) - start
        return ratio([(mean + each - drawn.mean()) * tokens for each in drawn], [tokens] * 26)

    def missed(self, one, other, length) -> Estimate | None:
        return self.difference(one, other, length)


def made_up(claim: Claim, aside: float, noise: float = 0.001) -> MadeUp:
    """Differences that lie so far from what the claim allows."""
    return MadeUp({(part.one, part.other, part.length): part.most + aside for part in claim.parts}, noise)


@pytest.mark.parametrize("claim", CLAIMS, ids=NAMES)
def test_a_claim_holds_or_does_not_by_its_losses(claim: Claim):
    assert judge(claim, made_up(claim, -0.1)).verdict == HOLDS
    assert judge(claim, made_up(claim, 0.1)).verdict == FAILS
    assert judge(claim, made_up(claim, 0.001, noise=0.5)).verdict == UNDECIDED
    assert judge(claim, MadeUp({}, 1)).verdict == NOT_RUN


@pytest.mark.parametrize("claim", CLAIMS, ids=NAMES)
def test_one_difference_of_several_is_enough_to_refute_or_to_leave_open(claim: Claim):
    for number, part in enumerate(claim.parts):
        records = made_up(claim, -0.1)
        key = part.one, part.other, part.length
        records.means[key] = part.most + 0.1
        row = judge(claim, records)
        assert row.verdict == FAILS and row.estimates[number][0] == pytest.approx(part.most + 0.1)
        del records.means[key]
        assert judge(claim, records).verdict == NOT_RUN


@pytest.mark.parametrize("claim", CLAIMS, ids=NAMES)
def test_every_point_of_a_claim_is_one_that_an_arm_measures(claim: Claim):
    known = {arm.name: arm for arm in arms(SETTING)}
    for part in claim.parts:
        for point in (part.one, part.other):
            arm = known[point.arm]
            if isinstance(part, Missed):
                assert isinstance(arm, AskingArm) and part.length in SETTING.asked
                assert point.schedule in {AS_IS, *arm.schedules}
                continue
            assert isinstance(arm, (MeasuringArm, TrainingArm)) and part.length in arm.lengths
            if isinstance(arm, TrainingArm):
                assert point.step in {0, arm.steps, *range(0, arm.steps, arm.every or arm.steps)}
            else:
                assert point.schedule in {AS_IS, *arm.schedules} or (arm.truncated and point.schedule == TRUNCATION)


def test_the_figures_say_the_difference_its_half_interval_and_what_is_allowed():
    part = Contrast("a minus b", Point("a"), Point("b"), 64, most=share(3))
    claim = Claim("some", "a is as good as b", "nowhere", [part])
    row = judge(claim, MadeUp({(part.one, part.other, 64): -0.25}, 0))
    assert row.figures == "a minus b: -0.2500 ± 0.0000, where up to 0.0296 is allowed"
    assert row.estimates == [[pytest.approx(-0.25)] * 3 + [pytest.approx(0.0295588)]]


def test_verdicts():
    assert verdict(Estimate(-1, -2, -0.1)) == HOLDS and verdict(Estimate(-1, -2, 0.1)) == UNDECIDED
    assert verdict(Estimate(1, 0.1, 2)) == FAILS and verdict(Estimate(-1, None, None)) == UNDECIDED
    assert verdict(Estimate(0.5, 0.4, 0.6), most=0.7) == HOLDS and verdict(None) == NOT_RUN
    assert together([HOLDS, UNDECIDED]) == UNDECIDED and together([NOT_RUN, FAILS]) == FAILS
    assert together([UNDECIDED, NOT_RUN]) == NOT_RUN and together([HOLDS, HOLDS]) == HOLDS


def test_the_summary_counts():
    rows = [judge(claim, made_up(claim, aside)) for claim, aside in zip(CLAIMS, [-0.1, -0.1, 0.1])]
    assert summary(rows) == "2 of 3 claims hold, 1 does not hold"
    assert summary([rows[2], rows[2]]) == "0 of 2 claims hold, 2 do not hold"


def test_arms_are_chosen_with_what_they_need_in_order():
    found = [arm.name for arm in chosen(arms(SETTING), ["native", "second-found", "yarn"])]
    assert found == ["yarn", "second-model", "second-found", "native-model", "native"]
    assert len({arm.name for arm in arms(SETTING)}) == len(arms(SETTING)) == 33


def test_the_found_ramp_is_the_one_of_the_file_and_carries_over():
    spec = SETTING.schedules["found"]
    assert spec == ("yarn:factor=8,beta_fast=15.38948098623697,beta_slow=0.5913673169794221,"
                    "attention_factor=1.2052644397131427,truncate=false")  # fmt: skip
    assert SETTING.ramp(16) == "yarn:factor=16,beta_fast=15.38948098623697,beta_slow=0.5913673169794221,truncate=false"


def test_the_model_made_at_the_target_sees_as_many_tokens_as_the_bundled_one_and_its_longest_arm():
    recipe = SETTING.native
    assert recipe.steps * recipe.batch_tokens == 3000 * 8192 + SETTING.steps * SETTING.recipe.batch * SETTING.target


def test_nobody_trains_on_what_is_measured():
    assert set(SETTING.trained_on()).isdisjoint(text for _, text in SETTING.measured_on())
