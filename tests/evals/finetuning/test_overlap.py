"""The share of the measured text that was trained on, against plain searches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ropescale.evals.finetuning.overlap import BLOCK, rolling, seen_share


def stands_in(part: list[int], text: list[int]) -> bool:
    """An independent search: as strings of words."""
    return f" {' '.join(map(str, part))} " in f" {' '.join(map(str, text))} "


def test_the_share_is_that_of_a_plain_search_however_the_text_is_cut():
    drawn = random.Random(3)
    text = [drawn.randrange(50) for _ in range(5000)]
    fresh = [drawn.randrange(50) for _ in range(1500)]
    measured = [text[100:740], fresh[:640], [*fresh[:320], *text[2007:2327]], text[4999 - 639 :]]
    blocks = [part for each in measured for part in (each[n : n + BLOCK] for n in range(0, len(each) - 63, BLOCK))]
    wanted = sum(stands_in(part, text) for part in blocks) / len(blocks)
    assert 0 < wanted < 1
    assert seen_share(measured, np.array(text, np.int32)) == pytest.approx(wanted, abs=1e-12)


def test_special_tokens_that_packing_puts_in_hide_nothing():
    text = list(range(2, 1002))
    packed = [x for start in range(0, 1000, 50) for x in [0, *text[start : start + 50], 1]]
    assert seen_share([text[:640]], np.array(packed), (0, 1)) == 1.0
    assert seen_share([text[:640]], np.array(packed), (0, None)) == 0.0


def test_windows_of_few_tokens_and_no_text_at_all_have_nothing_in_common():
    assert seen_share([[1, 2, 3]], np.arange(100)) == 0.0
    assert seen_share([list(range(40))], np.arange(10)) == 0.0
    assert seen_share([list(range(40))], np.arange(60)) == 1.0  # blocks of 32


def test_the_hash_of_a_run_is_its_own_wherever_it_stands():
    ids = np.array([5, 7, 7, 9, 5, 7, 7, 9, 7, 5, 9, 7])
    hashes = rolling(ids, 4)
    assert len(hashes) == 9 and hashes[0] == hashes[4] and len({*hashes.tolist()}) == 8
    assert len(rolling(ids, 16)) == 0


def test_a_text_longer_than_a_slice_is_searched_across_its_edges(monkeypatch):
    from ropescale.evals.finetuning import overlap

    monkeypatch.setattr(overlap, "_SLICE", 100)
    text = np.random.default_rng(1).integers(0, 999, 1000)
    assert all(seen_share([text[at : at + 64]], text) == 1.0 for at in range(937))
