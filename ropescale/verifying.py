"""Proves that the intended frequencies are the ones a model uses.

On disk: builds the model's rotary modules as stock transformers would and reads their tables and their cos and sin.
In memory: reads the live tables and runs a few tokens, to see which modules are really called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import ConfigError, RopescaleError, VerificationError
from .patching import (
    RTOL,
    build_stock,
    difference,
    evaluating,
    held_at,
    installed,
    layer_keys,
    live_table,
    quiet_transformers,
    rotary_modules,
    stock_table,
    table_at,
    text_config,
    whole_config,
)
from .plans import Plan, describe_scaling
from .records import around_switch, read_record, switch_of, tables_of
from .rope import ALL_LAYERS, Rope, read_rope, text_section
from .schedules import AsIs, Frequencies, compute, describe
from .sources import find_model, read_config, read_json

_PROBE = 4
"""Tokens of the forward pass that shows which rotary modules a loaded model calls."""

_FAR = 4096
"""The position at which a live module's cos is compared: far enough to tell schedules apart, exact in float32."""


@dataclass(frozen=True)
class Module:
    """One table of one rotary module.

    Attributes:
        name: where the module is in the model.
        layer_type: the layers the table serves; ``all`` where there is only one.
        pairs: number of frequencies.
        dtype: what the table is stored as.
        attention_scale: what cos and sin are multiplied by.
        difference: largest relative difference from the intended float64 table, scale included.
    """

    name: str
    layer_type: str
    pairs: int
    dtype: str
    attention_scale: float
    difference: float


@dataclass
class Verification:
    """What :func:`examine` found; :attr:`live` when there are no problems."""

    model: str
    intended: str
    length: int
    modules: list[Module] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {"live": self.live, **asdict(self)}


def verify(model: Any) -> Verification:
    """Proves that the intended table is live in every layer.

    Args:
        model: a checkpoint's folder or Hub id (no weights are read), or a loaded model.

    Raises:
        VerificationError: it is not; the message says where and why.
        ConfigError: the model has no rotary embeddings.
    """
    report = examine(model)
    if not report.live:
        raise VerificationError("; ".join(report.problems))
    return report


def examine(model: Any) -> Verification:
    """As :func:`verify`, but hands back the problems instead of raising them."""
    if isinstance(model, (str, Path)):
        return _examine_folder(str(model), find_model(model, weights=False))
    return _examine_model(model)


# ---------------------------------------------------------------------------------------------------------
# A checkpoint on disk


def _examine_folder(name: str, folder: Path) -> Verification:
    config = read_config(folder)
    record = read_record(folder)
    report = Verification(name, "", 0)
    with quiet_transformers():
        modules = _stock_modules(folder, config, report)
    try:
        ropes = read_rope(config)
    except ConfigError as error:
        report.problems.append(str(error))
        return report
    wanted = _intended(ropes, record, report)
    sides = _both_sides(ropes) | (switch_of(record) if record is not None else {})
    for where, module in modules:
        _compare_module(where, module, wanted, report)
        _compare_both_sides(where, module, sides, report)
    _missing_tables(modules, wanted, report)
    _check_tokenizer(folder, report)
    _check_views(config, report)
    return report


def _stock_modules(folder: Path, config: Mapping[str, Any], report: Verification) -> list[tuple[str, nn.Module]]:
    """The rotary modules that stock transformers builds from this folder, for real; the rest stays on meta."""
    try:
        skeleton = _skeleton(folder)
    except RopescaleError:
        raise
    except Exception as error:
        report.problems.append(f"transformers cannot build this model: {type(error).__name__}: {error}")
        return []
    modules = [(name, build_stock(module, module.config)) for name, module in rotary_modules(skeleton)]
    if not modules:
        read_rope(config)  # says why, where the reason is that the model has no RoPE
        report.problems.append("transformers builds no rotary module for this model")
    return modules


def _skeleton(folder: Path) -> nn.Module:
    """The whole model without weights or memory."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config)
        except ValueError:  # not a causal language model's configuration: a multimodal one, say
            return AutoModel.from_config(config)


def _intended(
    ropes: Mapping[str, Rope], record: Mapping[str, Any] | None, report: Verification
) -> dict[str, Frequencies]:
    """What every layer type should have: the record's tables over what the configuration asks for."""
    report.length = max(rope.max_length for rope in ropes.values())
    report.intended = "; ".join(f"{key}: {describe_scaling(rope)}" for key, rope in ropes.items())
    if record is not None:
        report.length = record["length"]
        report.intended = "; ".join(f"{key}: {spec}" for key, spec in record["spec"].items())
    wanted = {key: compute(AsIs(), rope, report.length) for key, rope in ropes.items()}
    return wanted | (tables_of(record) if record is not None else {})


def _compare_module(where: str, module: nn.Module, wanted: Mapping[str, Frequencies], report: Verification) -> None:
    for key in layer_keys(module):
        if key not in wanted:
            continue
        table, scale = stock_table(module, key, report.length)
        off = difference(table, scale, wanted[key])
        report.modules.append(Module(where, key, len(table), _dtype(table), scale, off))
        if not off <= RTOL:
            report.problems.append(_not_live(where, key, off))
        elif not _rotates_by(module, key, wanted[key], report.length):
            report.problems.append(f"{where} ({key} layers) has the intended table, but its cos does not follow it")


Sides = Mapping[str, Mapping[int, Frequencies]]
"""Per layer type, the tables at the trained length and one token past it; nothing where all lengths share one."""


def _both_sides(ropes: Mapping[str, Rope]) -> dict[str, dict[int, Frequencies]]:
    """What the configuration asks for at the trained length and one token past it."""
    return {key: around_switch(AsIs().bound(rope), rope) for key, rope in ropes.items()}


def _compare_both_sides(where: str, module: nn.Module, sides: Sides, report: Verification) -> None:
    for key in layer_keys(module):
        for length, wanted in sides.get(key, {}).items():
            off = difference(*table_at(module, key, length), wanted)
            if not off <= RTOL:
                report.problems.append(f"{_not_live(where, key, off)} at {length} tokens")


def _not_live(where: str, key: str, off: float) -> str:
    layers = "" if key == ALL_LAYERS else f" ({key} layers)"
    return f"{where}{layers} does not carry the intended table: it differs by {off:.1e} relative"


def _missing_tables(
    modules: list[tuple[str, nn.Module]], wanted: Mapping[str, Frequencies], report: Verification
) -> None:
    carried = {key for _, module in modules for key in layer_keys(module)}
    if modules:
        lacking = [key for key in wanted if key not in carried]
        report.problems += [f"no rotary module has a table for the {key} layers" for key in lacking]


def _rotates_by(module: nn.Module, key: str, wanted: Frequencies, length: int) -> bool:
    """Whether the module's own cos at the last position is that of the table, in any of the usual layouts."""
    device = live_table(module, key)[0].device
    position = torch.tensor([[length - 1]], device=device)
    layer = {} if key == ALL_LAYERS else {"layer_type": key}
    with torch.no_grad():
        out = module(torch.zeros(1, 1, 1, device=device), position, **layer)
    cos = (out[0] if isinstance(out, tuple) else out.real).flatten().cpu()
    expected = torch.tensor([(length - 1) * f for f in wanted.inv_freq], dtype=torch.float64).cos()
    expected = expected * wanted.attention_scale
    layouts = (expected, torch.cat([expected, expected]), expected.repeat_interleave(2))
    # float32 angles are good to length * 2^-24 radians and the tables to 2e-6 of each angle
    tolerance = 1e-5 + length * max(wanted.inv_freq) * (2**-23 + RTOL)
    return any(len(cos) == len(want) and (cos.double() - want).abs().max() < tolerance for want in layouts)


def _check_tokenizer(folder: Path, report: Verification) -> None:
    path = folder / "tokenizer_config.json"
    limit = read_json(path).get("model_max_length") if path.exists() else None
    if isinstance(limit, (int, float)) and limit < report.length:
        report.problems.append(
            f"tokenizer_config.json: model_max_length is {limit:g}, below the {report.length} tokens the model is for"
        )


def _check_views(config: Mapping[str, Any], report: Verification) -> None:
    section = text_section(config)
    if section.get("rope_parameters") and section.get("rope_scaling") is None and "rope_theta" not in section:
        report.warnings.append(
            "only transformers 5's rope_parameters are there: transformers 4 would use base RoPE with theta 10000"
        )


# ---------------------------------------------------------------------------------------------------------
# A loaded model


def _examine_model(model: nn.Module) -> Verification:
    config = text_config(model)
    report = Verification(str(getattr(model.config, "_name_or_path", "") or type(model).__name__), "", _PROBE)
    if not list(rotary_modules(model)):
        read_rope(whole_config(model).to_dict())
        report.problems.append("the model has no rotary module that transformers builds from its configuration")
        return report
    plan = installed(model)
    wanted = _intended_in_memory(model, plan, report)
    with _calls(model) as called:
        _probe(model, config)
    sides = _sides_in_memory(model, plan)
    for where, module in rotary_modules(model):
        _compare_live(where, module, wanted, called, report)
        _compare_both_sides(where, module, sides, report)
        _compare_rotation(where, module, {key: wanted[key] for key in wanted if not sides.get(key)}, report)
    _uncalled_tables(model, called, report)
    return report


def _intended_in_memory(model: nn.Module, plan: Plan | None, report: Verification) -> dict[str, Frequencies]:
    """The installed schedule's tables, over what ``model.config`` asks for, at the probe's length or where held."""
    ropes = read_rope(whole_config(model).to_dict())
    length = held_at(model) or _PROBE
    asked = {key: compute(AsIs(), rope, length) for key, rope in ropes.items()}
    if plan is None:
        report.intended = "; ".join(f"{key}: {describe_scaling(rope)}" for key, rope in ropes.items())
        return asked
    report.intended = "; ".join(f"{key}: {describe(schedule)}" for key, schedule in plan.schedules.items())
    return asked | {key: compute(schedule, plan.ropes[key], length) for key, schedule in plan.schedules.items()}


def _sides_in_memory(model: nn.Module, plan: Plan | None) -> Sides:
    """As :func:`_both_sides`, with the installed schedule's tables; nothing where one length's tables are held."""
    if held_at(model) is not None:
        return {}
    asked = _both_sides(read_rope(whole_config(model).to_dict()))
    schedules = {} if plan is None else plan.schedules
    return asked | {key: around_switch(schedule, plan.ropes[key]) for key, schedule in schedules.items() if plan}


def _compare_live(
    where: str, module: nn.Module, wanted: Mapping[str, Frequencies], called: set[str], report: Verification
) -> None:
    for key in layer_keys(module):
        if key not in wanted:
            continue
        table, scale = live_table(module, key)
        off = difference(table, scale, wanted[key])
        report.modules.append(Module(where, key, len(table), _dtype(table), scale, off))
        if not off <= RTOL and table.dtype != torch.float32:
            report.problems.append(
                f"{where}: the table was rounded to {_dtype(table)} (it differs by {off:.1e} relative), by "
                "model.to() or .half(); load with from_pretrained(dtype=...) instead, or patch again"
            )
        elif not off <= RTOL:
            report.problems.append(_not_live(where, key, off))
    if where not in called:
        report.problems.append(f"{where} is never called, so its table has no effect")


def _compare_rotation(where: str, module: nn.Module, wanted: Mapping[str, Frequencies], report: Verification) -> None:
    """What the module really hands to the layers, far out: its forward may have been replaced as well."""
    for key in set(layer_keys(module)) & wanted.keys():
        known = any(where in problem for problem in report.problems)
        if not known and not _rotates_by(module, key, wanted[key], _FAR):
            report.problems.append(f"{where} ({key} layers) has the intended table, but its cos does not follow it")


def _uncalled_tables(model: nn.Module, called: set[str], report: Verification) -> None:
    """A table that was put where nobody looks: the patch point of much old research code."""
    known = {name for name, _ in rotary_modules(model)}
    for name, module in model.named_modules():
        if name in called or name in known or "inv_freq" not in module._buffers or not _is_language(model, name):
            continue
        used = ", ".join(known)
        report.problems.append(f"{name} carries frequencies but is never called; the model rotates with {used}")


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


def _probe(model: nn.Module, config: Any) -> None:
    device = next(model.parameters()).device
    ids = (torch.arange(_PROBE, device=device) % config.vocab_size).unsqueeze(0)
    with evaluating(model), torch.inference_mode():
        model(input_ids=ids, use_cache=False)


def _dtype(table: torch.Tensor) -> str:
    return str(table.dtype).removeprefix("torch.")
