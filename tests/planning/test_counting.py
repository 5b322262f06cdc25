"""One patch reads the geometry twice, and computes each table once."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cached_property
from pathlib import Path

import pytest
from configurations import CONFIG as LLAMA
from configurations import write_checkpoint

import ropescale
from ropescale.configs.configuration import Configuration
from ropescale.rope import Rope
from ropescale.schedules import Frequencies, Schedule, base, describe
from ropescale.schedules.as_is import stock_table

GEMMA3 = {"model_type": "gemma3_text", "max_position_embeddings": 256, "sliding_window": 64}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Configuration]:
    """Every configuration whose geometry was read."""
    found: list[Configuration] = []
    real = Configuration.__dict__["ropes"].func

    def ropes(self: Configuration) -> dict[str, Rope]:
        found.append(self)
        return real(self)

    counted = cached_property(ropes)
    counted.__set_name__(Configuration, "ropes")
    monkeypatch.setattr(Configuration, "ropes", counted)
    return found


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str | None, str, int | None]]:
    """How often each table was computed: layer type, schedule and length."""
    found: Counter[tuple[str | None, str, int | None]] = Counter()
    real = base.compute

    def compute(schedule: Schedule, rope: Rope, length: int | None = None) -> Frequencies:
        found[rope.layer_type, describe(schedule), length] += 1
        return real(schedule, rope, length)

    for name, module in list(sys.modules.items()):
        if name.startswith("ropescale.") and getattr(module, "compute", None) is real:
            monkeypatch.setattr(module, "compute", compute)
    stock_table.cache_clear()
    return found


@pytest.mark.parametrize("config", [LLAMA, GEMMA3], ids=["llama", "gemma3"])
@pytest.mark.parametrize(("spec", "most"), [("yarn:factor=4", 1), ("ntk-su:factor=4", 1), ("dynamic:factor=4", 3)])
def test_a_patch_reads_the_geometry_twice_and_computes_each_table_once(
    config: dict[str, object], spec: str, most: int, tmp_path: Path, read: list[object], computed: Counter[object]
) -> None:
    # What follows the length is computed as asked, as transformers reads it back, and as llama.cpp would take it.
    source = write_checkpoint(tmp_path / "source", config, {"model.safetensors": b"weights"})
    ropescale.patch_checkpoint(source, tmp_path / "out", spec)
    assert len(read) == 2
    assert computed and max(computed.values()) <= most, computed
