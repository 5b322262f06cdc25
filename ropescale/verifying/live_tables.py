"""Verifies a loaded model: reads its live tables, and runs a few tokens to see which modules are really called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from ..configs.configuration import read_rope
from ..errors import ConfigError
from ..models.patching import installed
from ..models.preserving import preserved
from ..models.rotary_modules import RTOL, evaluating, layer_keys, live_table, rotary_modules, text_config, whole_config
from ..schedules import Frequencies
from .intended import asked_for, in_memory, meant_for
from .verification import Verification, compare_rotation, compare_sides, compare_softmax, not_live

_PROBE = 4
"""Tokens of the forward pass that shows which rotary modules a loaded model calls."""

_FAR = 4096
"""The position at which a live module's cos is compared: far enough to tell schedules apart, exact in float32."""


def examine_model(model: nn.Module) -> Verification:
    """Compares a loaded model's tables with its patches, or with what its configuration asks for.

    Raises:
        ConfigError: it has no RoPE, or no weights.
    """
    report = _begun(model)
    if report.problems:
        read_rope(whole_config(model).to_dict())
        return report
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError("this model is on the meta device, where nothing has numbers; load its weights first")
    report.length = meant_for(model)
    with preserved(model):
        _compare(model, report)
    plan = installed(model)
    ropes = read_rope(plan.config if plan else whole_config(model).to_dict())
    compare_softmax(model, asked_for(ropes, _PROBE).softmax, report)
    return report


def examine_tables(model: nn.Module) -> Verification:
    """Compares a loaded model's tables as they lie, without a forward pass; its weights may be in several processes.

    A table that follows the length is compared where it should change, and not as the last pass left it.

    Raises:
        ConfigError: it has no RoPE.
    """
    intended, report = in_memory(model, 1), _begun(model)
    report.intended = intended.text
    fixed = {key: table for key, table in intended.tables.items() if not intended.sides.get(key)}
    for where, module in rotary_modules(model):
        if any(buffer.is_meta for buffer in module.buffers()):
            report.problems.append(f"{where} is on the meta device, where its table has no numbers")
            continue
        _compare_tables(where, module, fixed, report)
        compare_sides(where, module, intended.sides, report)
    return report


def _begun(model: nn.Module) -> Verification:
    """Returns an empty report; its one problem is that nothing rotates, where that is so."""
    report = Verification(str(getattr(model.config, "_name_or_path", "") or type(model).__name__), "", 0)
    if not any(rotary_modules(model)):
        report.problems.append("the model has no rotary module that transformers builds from its configuration")
    return report


def _compare(model: nn.Module, report: Verification) -> None:
    intended = in_memory(model, _PROBE)
    report.intended = intended.text
    with _calls(model) as called:
        _probe(model)
    for where, module in rotary_modules(model):
        _compare_tables(where, module, intended.tables, report)
        if where not in called:
            report.problems.append(f"{where} is never called, so its table has no effect")
        compare_sides(where, module, intended.sides, report)
        # The module's forward may have been replaced as well.
        for key in layer_keys(module):
            known = any(where in problem for problem in report.problems)
            if key in intended.tables and not intended.sides.get(key) and not known:
                compare_rotation(where, module, key, intended.tables[key], _FAR, report)
    _uncalled_tables(model, called, report)


def _compare_tables(where: str, module: nn.Module, wanted: Mapping[str, Frequencies], report: Verification) -> None:
    for key in layer_keys(module):
        if key not in wanted:
            continue
        table, scale = live_table(module, key)
        off = report.add(where, key, (table, scale), wanted[key])
        if not off <= RTOL and table.dtype != torch.float32:
            report.problems.append(
                f"{where}: the table was rounded to {report.modules[-1].dtype} (it differs by {off:.1e} relative), by "
                "model.to() or .half(); load with from_pretrained(dtype=...) instead, or patch again"
            )
        elif not off <= RTOL:
            report.problems.append(not_live(where, key, off))


def _uncalled_tables(model: nn.Module, called: set[str], report: Verification) -> None:
    """Reports tables in modules that are never called, where much old research code patches."""
    known = dict(rotary_modules(model))
    said = f"carries frequencies but is never called; the model rotates with {', '.join(known)}"
    for name, module in model.named_modules():
        if "inv_freq" in module._buffers and name not in {*called, *known} and _is_language(model, name):
            report.problems.append(f"{name} {said}")


def _is_language(model: nn.Module, name: str) -> bool:
    """Whether the nearest module around ``name`` that has a configuration belongs to the language model."""
    parents = [name.rsplit(".", cut)[0] for cut in range(1, name.count(".") + 1)]
    configs = (getattr(model.get_submodule(parent), "config", None) for parent in [*parents, ""])
    nearest = next((config for config in configs if hasattr(config, "model_type")), None)
    return nearest is None or nearest.get_text_config(decoder=True).model_type == text_config(model).model_type


@contextmanager
def _calls(model: nn.Module) -> Iterator[set[str]]:
    """Collects the names of the modules with tables that run inside the block."""
    called: set[str] = set()
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        for name, module in model.named_modules()
        if layer_keys(module)
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def _probe(model: nn.Module) -> None:
    device = next(model.parameters()).device
    ids = (torch.arange(_PROBE, device=device) % text_config(model).vocab_size).unsqueeze(0)
    with evaluating(model), torch.no_grad():
        model(input_ids=ids, use_cache=False)
