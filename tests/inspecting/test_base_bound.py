"""The least theta for a length: the paper's own numbers, a plain sum, and what `inspect` says of it."""

from __future__ import annotations

import numpy as np
import pytest
from configurations import CONFIG as LLAMA
from configurations import write_checkpoint

from ropescale import Rope
from ropescale.inspecting import inspect
from ropescale.inspecting.geometry import Reversals, reversals
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
    assert said(WIDE) == said(WIDE, "as-is") == []


def test_the_first_distance_is_where_the_sum_changes_its_sign(said):
    (warning,) = said(WIDE, target_length=4096)
    table = 10000 ** (-np.arange(64) / 64)
    negative = np.cos(np.outer(np.arange(4096), table)).sum(axis=1) < 0
    share = f"{100 * negative.mean():.2g}"
    assert f"at {share}% of the distances, first at {negative.argmax():,}, similar tokens" in warning


@pytest.mark.parametrize("schedule", ["ntk:factor=8", "yarn:factor=8"])
def test_a_schedule_is_judged_by_its_own_frequencies(said, schedule):
    (warning,) = said(WIDE, schedule, target_length="32k")
    assert warning.startswith(f"theta 10,000 is too small, under {schedule} too, for 32,768 tokens")
    assert len(said({**WIDE, "max_position_embeddings": 256}, target_length="8k")) == 1
    assert said({**WIDE, "max_position_embeddings": 256}, "ntk:factor=32", target_length="8k") == []


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
