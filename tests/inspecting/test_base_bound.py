"""The least theta for a length: the paper's own numbers, a plain sum, and what `inspect` says of it."""

from __future__ import annotations

import numpy as np
import pytest
from configurations import CONFIG as LLAMA
from configurations import write_checkpoint

from ropescale import Rope
from ropescale.inspecting import inspect
from ropescale.inspecting.geometry import Reversals, least_theta, reversals
from ropescale.schedules import create

WIDE = {**LLAMA, "head_dim": 128, "max_position_embeddings": 4096}


def holds(theta: float, length: int) -> bool:
    return reversals(Rope(128, theta, length).inv_freq(), length) is None


# Table 2 of the paper, by its authors: 1k 4.3e3, 4k 2.7e4. Su Jianlin's finer search has 2k at 1.2e4 (they 1.6e4).
@pytest.mark.parametrize(("length", "theta"), [(1024, 4.3e3), (2048, 1.2e4), (4096, 2.7e4)])
def test_the_smallest_theta_is_the_papers_to_its_two_digits(length, theta):
    within = [float(each) for each in np.linspace(0.96 * theta, 1.04 * theta, 161)]
    assert any(holds(each, length) for each in within)
    assert not any(holds(each, length) for each in np.linspace(0.5 * theta, 0.9 * theta, 21))


def test_the_papers_fit_is_near_its_table():
    table = {1024: 4.3e3, 4096: 2.7e4, 8192: 8.4e4, 32768: 6.4e5, 131072: 7.8e6, 524288: 6.4e7, 1048576: 5.1e8}
    ratios = [least_theta(length) / theta for length, theta in table.items()]
    assert min(ratios) > 0.5 and max(ratios) < 1.6
    assert np.exp(np.mean(np.log(ratios))) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("schedule", "length", "still"),
    [(None, 4096, 0.0), ("yarn:factor=4", 9000, 0.0), ("linear:factor=2", 4097, 1.5), (None, 300_000, 0.0)],
)
def test_reversals_are_those_of_the_plain_sum(schedule, length, still):
    rope = Rope(64, 10000.0, 1024)
    name, _, factor = (schedule or "base:factor=").partition(":factor=")
    table = list(create(name, **({"factor": float(factor)} if factor else {}))(rope, length).inv_freq)
    distances = np.arange(0, length, 1 if length < 2**18 else 3)
    negative = still + np.cos(np.outer(distances, table)).sum(axis=1) < 0
    assert negative.any()
    expected = Reversals(int(distances[negative.argmax()]), float(negative.mean()))
    assert reversals(table, length, still) == expected


def test_half_a_head_that_does_not_rotate_is_enough_for_any_length():
    assert reversals(Rope(64, 10000.0, 1024).inv_freq(), 10**6, still=32) is None


@pytest.fixture
def said(tmp_path):
    """The warnings of theta for a configuration."""

    def inspected(config, schedule=None, **options):
        folder = str(write_checkpoint(tmp_path, config))
        return [text for text in inspect(folder, schedule, **options).warnings if "2405.14591" in text]

    return inspected


def test_theta_is_compared_with_the_target_and_nothing_is_said_without_one(said):
    (warning,) = said(WIDE, target_length="32k")
    assert warning.startswith("theta 10,000 is too small for 32,768 tokens: at ")
    assert warning.endswith("; heads of 128 need about 952,000")  # 0.0424 x 32768^1.628
    assert said(WIDE) == said(WIDE, "as-is") == []


def test_the_first_distance_is_where_the_sum_changes_its_sign(said):
    (warning,) = said(WIDE, target_length=4096)
    table = 10000 ** (-np.arange(64) / 64)
    negative = np.cos(np.outer(np.arange(4096), table)).sum(axis=1) < 0
    share = f"{100 * negative.mean():.2g}"
    assert f"at {share}% of the distances, first at {negative.argmax():,}, similar tokens" in warning


def test_a_theta_that_the_paper_finds_large_enough_is_not_warned_of(said):
    assert said({**WIDE, "rope_theta": 1e6}, target_length="32k") == []  # the fit: 951,887
    assert len(said({**WIDE, "rope_theta": 9e5}, target_length="32k")) == 1


@pytest.mark.parametrize(
    ("schedule", "begins"),
    [
        ("ntk:factor=8", "ntk:factor=8 makes theta 82,685, too small for 32,768 tokens"),  # 10000 x 8^(128/126)
        ("abf:rope_theta=500000", "abf:rope_theta=500000 makes theta 500,000, too small for 32,768 tokens"),
        ("yarn:factor=8", "theta 10,000 is too small, under yarn:factor=8 too, for 32,768 tokens"),
        ("linear:factor=8", "theta 10,000 is too small, under linear:factor=8 too, for 32,768 tokens"),
    ],
)
def test_a_schedule_is_judged_by_the_theta_that_it_makes_or_by_its_own_frequencies(said, schedule, begins):
    (warning,) = said(WIDE, schedule, target_length="32k")
    assert warning.startswith(begins)


@pytest.mark.parametrize(
    ("schedule", "length"), [("abf:rope_theta=1e6", "32k"), ("linear:factor=32", "8k"), ("ntk:factor=32", "8k")]
)
def test_a_schedule_that_suffices_is_not_warned_of(said, schedule, length):
    assert len(said({**WIDE, "max_position_embeddings": 256}, target_length=length)) == 1
    assert said({**WIDE, "max_position_embeddings": 256}, schedule, target_length=length) == []


def test_layers_that_see_a_window_are_judged_by_it(said):
    types = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    types["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    config = {"model_type": "gemma3_text", "head_dim": 128, "sliding_window": 512, "rope_parameters": types}
    assert said({**config, "max_position_embeddings": 8192}, target_length="32k") == []
    (warning,) = said({**config, "max_position_embeddings": 8192, "sliding_window": 4096}, target_length="32k")
    assert warning.startswith("theta 10,000 is too small for 4,096 tokens (sliding_attention): ")


def test_latent_attention_has_coordinates_that_do_not_rotate(said):
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "rope_theta": 10000.0}
    assert said({**config, "max_position_embeddings": 4096, "num_attention_heads": 4}, target_length="128k") == []
