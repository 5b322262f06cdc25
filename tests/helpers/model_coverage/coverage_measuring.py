"""Patches the tiny model of a type in memory and on disk, checks what it then computes, and says how it went."""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from coverage_models import TRAINED, build, logits, tiny_config
from coverage_oracle import (
    FACTOR,
    SCHEDULES,
    Geometry,
    Table,
    Waves,
    assert_rotates_by,
    assert_table,
    cos_and_sin,
    expected,
    geometries,
    rotary_modules,
    rotation,
)
from rotary_modules import quiet, tables_of
from torch import nn

import ropescale
from ropescale.configs.configuration import Configuration
from ropescale.errors import RopescaleError
from ropescale.models.patching import configuration_before

TOKENS = torch.tensor([[5, 17, 40, 3, 88, 60, 22, 9, 71, 30, 55, 12]])
BELOW = torch.tensor([0, 1, 2, 3, 17, 400, TRAINED // 2 - 1])
ABOVE = torch.tensor([0, 1, 2, 3, 17, 400, TRAINED - 1, TRAINED, 2000, 4 * TRAINED - 1])
"""Positions of a text within the trained length, and of one four times as long."""

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "already scaled": ("--replace-scaling", {"replace_scaling": True}),
    "do not rotate": ("--layers all", {"layers": "all"}),
    "leaves every frequency unchanged": ("--layers all", {"layers": "all"}),
    "max_position_embeddings": ("--original-length", {"original_length": TRAINED}),
}
"""Words of a refusal, and the option that it names: what a user would try next."""


_NAMED = f",truncate=true,attention_factor={0.1 * math.log(FACTOR) + 1}"
"""The fields that would otherwise be kept from the vendor's scaling."""


def measure(model_type: str, folder: Path) -> dict[str, Any]:
    """Checks everything about one type; what it was, for the support table.

    Returns:
        ``refused``: the reason, where no schedule can be had; else

        * ``tables``: per layer type (``all`` where there is one table), whether patching changes it by default;
        * ``pairs``: which coordinates turn together, ``halves`` (i and i + d/2) or ``neighbours`` (2i and 2i + 1);
        * ``linear``, ``yarn``, ``llama3``, ``table``: the rope type that carries it, and the options it needs after
          ``with``; or ``refused:`` and the reason;
        * ``softmax``: the parameter that its softmax scale follows, if any.

    Raises:
        AssertionError: cos and sin of some layer are not those asked for, or something is not undone.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    (source / "config.json").write_text(json.dumps(tiny_config(model_type)))
    model = build(source)
    if not hasattr(model.config.get_text_config(decoder=True), "rope_parameters"):
        return {"refused": assert_refused(model, source, folder / "never")}
    runs = {name: _Run(model, source, folder / name, name).outcome() for name in SCHEDULES}
    if len({run.get("refused", name) for name, run in runs.items()}) == 1:
        return {"refused": runs["linear"]["refused"]}
    changed = next((run["changed"] for run in runs.values() if "changed" in run), [])
    every = [key for _, module in rotary_modules(model) for key in tables_of(module)]
    return {
        "tables": {key: key in changed for key in dict.fromkeys(every)},
        "pairs": _pairs(model),
        **{name: run["said"] if "said" in run else f"refused: {run['refused']}" for name, run in runs.items()},
        **({"softmax": assert_softmax_follows(model, source, folder)} if _scaled_attention(model) else {}),
    }


def is_scaled(model: Any) -> bool:
    """Whether the model is scaled, without ropescale's own scaling; one that cannot be read is not."""
    try:
        return Configuration.read(configuration_before(model), TRAINED).is_scaled
    except RopescaleError:
        return False


def assert_softmax_follows(model: Any, source: Path, folder: Path) -> str:
    """DeepSeek's ``mscale_all_dim`` multiplies the softmax scale, in memory, on disk, and in a table on top of it.

    By ``(0.1 mscale_all_dim ln s + 1)^2`` (DeepSeek-V2's released code).
    """
    plain = [module.qk_head_dim**-0.5 for module in _scaled_attention(model)]
    assert [module.scaling for module in _scaled_attention(model)] == plain
    wanted = [scale * (0.1 * 0.8 * math.log(FACTOR) + 1) ** 2 for scale in plain]
    asked = f"yarn:factor={FACTOR:g},mscale=0.5,mscale_all_dim=0.8"
    with quiet(), ropescale.patch(model, asked, replace_scaling=is_scaled(model)) as patch:
        yarn = folder / "mscale"
        (yarn / "plain").mkdir(parents=True)
        config = {k: v for k, v in patch.plan.config.items() if k != "original_max_position_embeddings"}
        (yarn / "plain" / "config.json").write_text(json.dumps(config))  # as if its makers had written it
        ropescale.patch_checkpoint(yarn / "plain", yarn / "table", Waves(), on_top=True)
        assert [module.scaling for module in _scaled_attention(model)] == pytest.approx(wanted, rel=1e-12)
        for each in ("plain", "table"):
            stock = build(yarn / each)
            assert [module.scaling for module in _scaled_attention(stock)] == pytest.approx(wanted, rel=1e-12), each
        again = build(yarn / "plain")
        with ropescale.patch(again, Waves(), on_top=True):
            assert [module.scaling for module in _scaled_attention(again)] == pytest.approx(wanted, rel=1e-12)
    assert [module.scaling for module in _scaled_attention(model)] == plain
    return "mscale_all_dim"


def _scaled_attention(model: nn.Module) -> list[Any]:
    """The attention modules whose code multiplies their softmax scale by ``mscale_all_dim``."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "qk_head_dim") and hasattr(sys.modules[type(module).__module__], "yarn_apply_mscale")
        if isinstance(getattr(module, "scaling", None), float)
    ]


def assert_refused(model: Any, source: Path, target: Path) -> str:
    """The one reason for which every schedule is refused, in memory as on disk; for models that may not even run."""
    before, reasons = snapshot(model), []
    for schedule in SCHEDULES.values():
        with quiet(), pytest.raises(RopescaleError) as in_memory:
            ropescale.patch(model, schedule)
        with quiet(), pytest.raises(RopescaleError) as on_disk:
            ropescale.patch_checkpoint(source, target, schedule)
        reasons += [str(on_disk.value), str(in_memory.value)]
    tiny_models.assert_same(before, snapshot(model))
    assert not target.exists()
    assert len(set(map(_unnamed, reasons))) == 1, reasons
    return reasons[0]


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that a patch could touch, but for states that a forward pass leaves behind (RecurrentGemma's)."""
    found = tiny_models.snapshot(model)
    return {
        key: {name: each for name, each in value.items() if not isinstance(each, torch.Tensor)}
        if key.endswith(" plain")
        else value
        for key, value in found.items()
    }


class _Run:
    """One schedule on one model."""

    def __init__(self, model: Any, source: Path, target: Path, name: str) -> None:
        self.model, self.source, self.target, self.name = model, source, target, name
        self.schedule = SCHEDULES[name]
        if name == "yarn" and is_scaled(model):
            self.schedule += _NAMED
        self.ropes: dict[str, Geometry] = geometries(model, TRAINED)
        self.original = logits(model, TOKENS)  # first of all: a forward pass may leave states behind
        self.before = snapshot(model)

    def outcome(self) -> dict[str, Any]:
        """What was written and how it was asked for, everything about it checked; or the refusal."""
        ways: list[str] = []
        options: dict[str, Any] = {}
        while True:
            patch, refusal = self._patched(options)
            self._assert_disk_agrees(options, refusal)
            if refusal is None:
                break
            way = next((way for words, way in WAYS.items() if words in refusal and way[0] not in ways), None)
            if way is None:
                return {"refused": refusal}
            ways.append(way[0])
            options |= way[1]
        kinds = self._check(patch, options)
        said = ", ".join(sorted(set(kinds))) + (f" with {' '.join(ways)}" if ways else "")
        return {"said": said, "changed": sorted(patch.plan.schedules)}

    def _patched(self, options: Mapping[str, Any]) -> tuple[Any, str | None]:
        """A patch in the model, or why there is none."""
        with quiet():
            try:
                return ropescale.patch(self.model, self.schedule, **options), None
            except RopescaleError as error:
                tiny_models.assert_same(self.before, snapshot(self.model))
                return None, str(error)

    def _assert_disk_agrees(self, options: Mapping[str, Any], refusal: str | None) -> None:
        """A checkpoint is refused with the same words as a model, and then nothing is written."""
        with quiet():
            try:
                ropescale.patch_checkpoint(self.source, self.target, self.schedule, **options)
                on_disk = None
            except RopescaleError as error:
                on_disk = str(error)
        assert (refusal, on_disk) == (None, None) or _unnamed(refusal) == _unnamed(on_disk)
        assert self.target.exists() == (on_disk is None)

    def _check(self, patch: Any, options: Mapping[str, Any]) -> list[str]:
        """Everything that holds of a patched model and of a patched checkpoint; the rope types that carry it."""
        with quiet(), patch:
            stock = build(self.target)
            patched = logits(self.model, TOKENS)
            changed = patch.plan.schedules
            wanted = {key: expected(self.name if key in changed else "base", rope) for key, rope in self.ropes.items()}
            for each in (self.model, stock):
                assert_live(each, wanted)
            assert_same_rotation(self.model, stock)
            stock.load_state_dict(self.model.state_dict())
            assert torch.equal(logits(stock, TOKENS), patched), "the checkpoint's logits are not the patched model's"
        assert not torch.equal(patched, self.original), "the logits did not change"
        assert torch.equal(logits(self.model, TOKENS), self.original), "reverting did not restore the logits"
        tiny_models.assert_same(self.before, snapshot(self.model))
        self._assert_patched_again(stock)
        return [parameters["rope_type"] for parameters in _written(patch.plan)]

    def _assert_patched_again(self, stock: Any) -> None:
        """A model loaded from the patched checkpoint is patched from the original, as if it had not been."""
        base = {key: expected("base", rope) for key, rope in self.ropes.items()}
        options = {"layers": "all", "replace_scaling": is_scaled(stock), "original_length": TRAINED}
        with quiet(), ropescale.patch(stock, "base", **options):
            assert_live(stock, base)


def assert_live(model: Any, wanted: Mapping[str, Table]) -> None:
    """Every rotary module has the wanted tables and turns by them, and every layer is handed those of its type."""
    for _, module in rotary_modules(model):
        for key in tables_of(module):
            assert_table(module, key, wanted[key])
            for positions in (BELOW, ABOVE, BELOW):  # and back: a module that switches by the length must follow
                assert_rotates_by(rotation(module, key, positions), wanted[key], positions)
    handed = list(_handed_out(model))
    for key, embeddings in handed:
        first = int(model.config.model_type == "paligemma")  # which counts from 1
        assert_rotates_by(cos_and_sin(embeddings), wanted[key], torch.arange(TOKENS.shape[1]) + first)
    assert handed, "no layer was handed any position embedding"


def assert_same_rotation(model: Any, stock: Any) -> None:
    """The patched model's modules against those that stock transformers builds from the checkpoint, bit for bit."""
    theirs = dict(rotary_modules(stock))
    for name, module in rotary_modules(model):
        for key in tables_of(module):
            for positions in (BELOW, ABOVE):
                pairs = zip(rotation(module, key, positions), rotation(theirs[name], key, positions))
                assert all(torch.equal(mine, stocks) for mine, stocks in pairs), (name, key)


def _handed_out(model: Any) -> Iterator[tuple[str, Any]]:
    """What each attention layer that rotates is given in a forward pass, and the layer type it should belong to."""
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None)
    tables = {key for _, module in rotary_modules(model) for key in tables_of(module)}
    for name, given in _position_embeddings(model):
        layer = re.search(r"layers\.(\d+)\.|h\.(\d+)\.|blocks\.(\d+)\.", f"{name}.")
        if isinstance(given, dict):  # DeepSeek-V4 hands every layer all tables
            yield from given.items()
        elif tables == {"all"}:
            yield "all", given
        elif layer and kinds:
            yield kinds[int(layer[1])], given


def _position_embeddings(model: Any) -> list[tuple[str, Any]]:
    """The position embeddings that reach every module of a model, by the module's name."""
    found: list[tuple[str, Any]] = []

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if kwargs.get("position_embeddings") is not None:
                found.append((name, kwargs["position_embeddings"]))

        return hook

    def rotated(name: str) -> Callable[..., None]:
        return lambda module, args, out: found.append((name, out))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(record(name), with_kwargs=True))
        for name, module in rotary_modules(model):
            if "layers." in name and [*tables_of(module)] == ["all"]:  # Moshi's and RecurrentGemma's layers
                hooks.enter_context(module.register_forward_hook(rotated(name)))
        logits(model, TOKENS)
    return found


def _unnamed(refusal: str | None) -> str:
    """A refusal without the type at its beginning: a loaded model may be known under its class's name only."""
    assert refusal is not None, "refused in one of memory and disk, and not in the other"
    return re.sub(r"^(this )?\S+ ", "", refusal)


def _written(plan: Any) -> Iterator[Mapping[str, Any]]:
    """The rope parameters that the changed layer types are given."""
    section = plan.config.get("text_config", plan.config)["rope_parameters"]
    yield from [section] if "rope_type" in section else [section[key] for key in plan.schedules]


def _pairs(model: nn.Module) -> str:
    """Which coordinates of a head the model's attention turns together, as its code says."""
    _, module = next(rotary_modules(model))
    modeling = sys.modules[type(module).__module__]
    code = inspect.getsource(modeling)
    if voice := getattr(modeling, "deinterleave_head_dim", None):  # of Qwen 2.5 Omni, not of its language model
        code = code.replace(inspect.getsource(voice), "")
    interleaves = "apply_rotary_pos_emb_interleave" in code and getattr(module.config, "rope_interleave", True)
    return "interleaved" if interleaves or any(word in code for word in _INTERLEAVED) else "halves"


_INTERLEAVED = ("x[..., 0::2]", "view_as_complex", "x[..., ::2]")
