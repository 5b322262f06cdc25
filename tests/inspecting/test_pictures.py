"""Pictures that were hard to read: short axes, a single length, the steps of a search."""

from __future__ import annotations

import pytest
from tiny import documents, llama

import ropescale
from ropescale.evals import perplexity

CONFIG = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 256, "rope_theta": 10000.0}


@pytest.fixture(scope="module")
def single():
    """A run at one length."""
    return perplexity(llama(), documents(6, 128), [128], ["yarn:factor=2", "ntk:factor=2"], truncation=True)


def test_a_short_axis_of_divisors_has_plain_numbers():
    figure = ropescale.plot(CONFIG, ["yarn:factor=1.5", "linear:factor=1.25"])
    figure.canvas.draw()
    ticks = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert len(ticks) >= 3 and all(float(tick) > 0 for tick in ticks)


def test_of_a_single_length_the_points_stand_beside_each_other_each_with_its_interval(single):
    (axes,) = single.plot().axes
    places = [each.lines[0].get_xdata()[0] for each in axes.containers]
    assert len(set(places)) == len(places) == 3 and places == sorted(places)
    low, high = axes.get_xlim()
    assert low < 128 / 1.4 and high > 128 * 1.4
