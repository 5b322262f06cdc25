"""Truncation in the table of the answer."""

import numpy as np
import pytest
from tiny import documents, llama

from ropescale.evals import perplexity


def test_the_table_of_the_answer_has_the_perplexity_of_truncation():
    """Up to the trained 64 tokens it is as-is; beyond them it has the losses there and those of its windows."""
    result = perplexity(llama(), documents(12, 128), [32, 64, 128], ["linear:factor=2"], truncation_stride=16)
    line = next(each for each in result.main_table().splitlines() if each.startswith("| truncation"))
    *within, shown = [float(cell) for cell in line.split("|")[2:5]]
    losses = np.array(result.losses("as-is", 128))
    whole = np.hstack([losses[:, :63], np.array(result.truncation.nll)])
    assert within == pytest.approx([row.ppl for row in result.rows[:2]], rel=1e-3) and whole.shape == (12, 127)
    assert shown == pytest.approx(np.exp(whole.mean(dtype=float)), rel=1e-3)
    assert "truncation" not in perplexity(llama(), documents(12, 128), [32, 64], ["linear:factor=2"]).main_table()
