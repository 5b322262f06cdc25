"""Proves that the intended frequencies are the ones a model uses.

On disk: builds the model's rotary modules as stock transformers would and reads their tables and their cos and sin.
In memory: reads the live tables and runs a few tokens, to see which modules are really called.
With ``generate``: loads the weights, and compares decoding with a cache with whole forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..checkpoints.locating import find_model, read_config
from ..checkpoints.record import around_switch, read_record, softmax_factor
from ..configs.reading import ALL_LAYERS, LARGEST, read_rope, text_section
from ..errors import CheckpointError, ConfigError, DataError, RopescaleError, VerificationError
from ..files.reading import read_json
from ..formatting import brief, first_line
from ..lengths import parse_length
from ..planning.grounds import describe_scaling
from ..planning.plan import Plan
from ..rope import Rope
from ..schedules import AsIs, Frequencies, compute, describe
from .decoding import DIFFERS, EXPLAINED, UNDECIDED, Say, Stretch, Text, compare, preserved, written
from .loading import load_model, load_tokenizer, refuse_code, refuse_unloadable
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
    reads_mscale,
    rotary_modules,
    stock_table,
    table_at,
    text_config,
    whole_config,
)

if TYPE_CHECKING:
    from ..checkpoints.stored_record import Record

_PROBE = 4
"""Tokens of the forward pass that shows which rotary modules a loaded model calls."""

_SOFTMAX_RTOL = 1e-9
"""How far two float64 computations of one softmax scale may be apart, relatively."""

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
    """What :func:`examine` found; :attr:`live` when there are no problems.

    Attributes:
        model: what was verified.
        intended: the schedule of each layer type, as text.
        length: the context that the model is meant for (on disk), or the length of the probe (in memory).
        modules: every table of every rotary module.
        softmax_factor: what an MLA model's softmax scale is multiplied by (``mscale_all_dim``); None for others.
        generation: where decoding with the cache was compared with whole forward passes.
        problems: why the model is not live, or does not decode as it should; a sentence each.
        warnings: what is as intended, and should be known.
    """

    model: str
    intended: str
    length: int
    modules: list[Module] = field(default_factory=list)
    softmax_factor: float | None = None
    generation: list[Stretch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {"live": self.live, **asdict(self)}


def verify(model: Any, **options: Any) -> Verification:
    """Proves that the intended table is live in every layer.

    Args:
        model: a checkpoint's folder or Hub id (no weights are read), or a loaded model.
        options: those of :func:`examine`, such as ``generate=True``.

    Raises:
        VerificationError: it is not; the message says where and why.
        ConfigError: the model has no rotary embeddings.
    """
    report = examine(model, **options)
    if not report.live:
        raise VerificationError("; ".join(report.problems))
    return report


def examine(
    model: Any,
    *,
    generate: bool = False,
    lengths: Sequence[int | str] = (),
    revision: str | None = None,
    trust_remote_code: bool = False,
    dtype: str | None = None,
    device: str | None = None,
    say: Say | None = None,
) -> Verification:
    """As :func:`verify`, but hands back the problems instead of raising them.

    Args:
        model: a checkpoint's folder or Hub id, or a loaded model.
        generate: load the weights too, and compare decoding with a cache with whole forward passes. A difference
            under frequencies that do not change is a problem; one where they change with the length is a warning.
        lengths: where to compare, in tokens (``"4k"`` is one too); see :func:`ropescale.models.decoding.compare`.
        revision: branch, tag or commit of a Hub id.
        trust_remote_code: run the code that a checkpoint brings, where transformers needs it.
        dtype, device: what to load the weights as, and where to.
        say: is told what takes long before it is begun.

    Raises:
        ConfigError: no rotary embeddings, or code of its own that may not run.
        RunError: the model fails while it generates.
    """
    _refuse_unused(model, generate, lengths, dtype, device, revision)
    wanted = [parse_length(length) for length in lengths]
    if not isinstance(model, (str, Path)):
        report = _examine_model(model)
        if generate and report.live:
            _examine_generation(model, report, _meant_for(model), wanted, None, say)
        return report
    folder = find_model(model, revision, weights=generate)
    report = _examine_folder(str(model), folder, trust_remote_code)
    if generate and report.live:
        loaded = load_model(folder, dtype, device, trust_remote_code=trust_remote_code)
        text = partial(_own_text, folder, trust_remote_code)
        _examine_generation(loaded, report, report.length, wanted, text, say)
    return report


def _refuse_unused(
    model: Any, generate: bool, lengths: Sequence[Any], dtype: str | None, device: str | None, revision: str | None
) -> None:
    """An option that nothing would look at."""
    loading = {"dtype": dtype, "device": device}
    unused = {} if generate else {"length": lengths, **loading}
    in_memory = {} if isinstance(model, (str, Path)) else {**loading, "revision": revision}
    for name in (name for name, value in unused.items() if value):
        raise DataError(f"--{name} says how to generate; add --generate (generate=True), or leave it out")
    for name in (name for name, value in in_memory.items() if value):
        raise DataError(f"{name} is for a checkpoint, and this model is loaded already; leave it out")


# ---------------------------------------------------------------------------------------------------------
# A checkpoint on disk


def _examine_folder(name: str, folder: Path, trusted: bool) -> Verification:
    config = read_config(folder)
    record = read_record(folder)
    report = Verification(name, "", 0)
    refuse_unloadable(folder)
    refuse_code(folder, trusted)
    with quiet_transformers():
        skeleton = _built(folder, trusted, report)
        modules = _stock_modules(skeleton, config, report)
    try:
        ropes = read_rope(config)
    except ConfigError as error:
        report.problems.append(str(error))
        return report
    wanted = _intended(ropes, record, report)
    sides = _both_sides(ropes) | (record.sides if record is not None else {})
    for where, module in modules:
        try:
            _compare_module(where, module, wanted, report)
            _compare_both_sides(where, module, sides, report)
        except RopescaleError:
            raise
        except Exception as error:
            report.problems.append(f"{where} cannot compute its table: {type(error).__name__}: {first_line(error)}")
    _missing_tables(modules, wanted, report)
    _compare_softmax(skeleton, _intended_softmax(ropes, record), report)
    _check_tokenizer(folder, report)
    _check_views(config, report)
    return report


def _built(folder: Path, trusted: bool, report: Verification) -> nn.Module:
    """The model as stock transformers builds it, without weights; an empty one where it cannot."""
    try:
        return _skeleton(folder, trusted)
    except RopescaleError:
        raise
    except Exception as error:
        report.problems.append(_unbuilt(error))
        return nn.Module()


def _unbuilt(error: Exception) -> str:
    return f"transformers cannot build this model: {type(error).__name__}: {first_line(error)}"


def _stock_modules(skeleton: nn.Module, config: Mapping[str, Any], report: Verification) -> list[tuple[str, nn.Module]]:
    """The rotary modules of a model on the meta device, for real."""
    if report.problems:
        return []
    try:
        modules = [(name, build_stock(module, module.config)) for name, module in rotary_modules(skeleton)]
    except RopescaleError:
        raise
    except Exception as error:
        report.problems.append(_unbuilt(error))
        return []
    if not modules:
        read_rope(config)  # says why, where the reason is that the model has no RoPE
        report.problems.append(
            "transformers builds no rotary module for this model (one that has inv_freq and a configuration)"
        )
    return modules


def _skeleton(folder: Path, trusted: bool) -> nn.Module:
    """The whole model without weights or memory."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
        except ValueError:  # not a causal language model's configuration: a multimodal one, say
            return AutoModel.from_config(config, trust_remote_code=trusted)


def _intended(ropes: Mapping[str, Rope], record: Record | None, report: Verification) -> dict[str, Frequencies]:
    """What every layer type should have: the record's tables over what the configuration asks for."""
    report.length = max(rope.max_length for rope in ropes.values())
    report.intended = "; ".join(f"{key}: {describe_scaling(rope)}" for key, rope in ropes.items())
    if record is not None:
        report.length = record.length
        report.intended = "; ".join(f"{key}: {spec}" for key, spec in record.labels.items())
    wanted = {key: compute(AsIs(), rope, report.length) for key, rope in ropes.items()}
    return wanted | (record.frequencies if record is not None else {})


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


def _intended_softmax(ropes: Mapping[str, Rope], record: Record | None) -> Mapping[str, float]:
    """The factor of the softmax scale that every layer type should have: the record's, else the configuration's."""
    return {key: softmax_factor(rope) for key, rope in ropes.items()} | (record.softmax_factor if record else {})


def _compare_softmax(model: nn.Module, wanted: Mapping[str, float], report: Verification) -> None:
    """MLA models carry a part of their schedule in the scale of the softmax."""
    found = dict(_softmax_factors(model))
    if not found or ALL_LAYERS not in wanted:
        return
    report.softmax_factor = wanted[ALL_LAYERS]
    asked = wanted[ALL_LAYERS]
    wrong = {name: own for name, own in found.items() if not abs(own - asked) <= _SOFTMAX_RTOL * abs(asked)}
    for name, own in list(wrong.items())[:1]:
        others = f" (and {len(wrong) - 1} more layers)" if len(wrong) > 1 else ""
        report.problems.append(
            f"{name}{others} multiplies its softmax scale by {own:.6g} where {wanted[ALL_LAYERS]:.6g} is intended"
        )


def _softmax_factors(model: nn.Module) -> Iterator[tuple[str, float]]:
    """What each MLA layer's softmax scale is in units of the plain one, where its class looks at mscale_all_dim."""
    for name, module in model.named_modules():
        scale, width = getattr(module, "scaling", None), getattr(module, "qk_head_dim", None)
        if isinstance(scale, float) and isinstance(width, int) and reads_mscale(type(module)):
            yield name, scale * width**0.5


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
    if isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit < report.length:
        shown = f"{limit:g}" if abs(limit) < LARGEST else brief(limit)
        report.problems.append(
            f"tokenizer_config.json: model_max_length is {shown}, below the {report.length} tokens the model is for"
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
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError("this model is on the meta device, where nothing has numbers; load its weights first")
    plan = installed(model)
    with preserved(model):
        _compare_in_memory(model, plan, config, report)
    ropes = read_rope(plan.config if plan else whole_config(model).to_dict())
    _compare_softmax(model, _intended_softmax(ropes, None), report)
    return report


def _compare_in_memory(model: nn.Module, plan: Plan | None, config: Any, report: Verification) -> None:
    wanted = _intended_in_memory(model, plan, report)
    with _calls(model) as called:
        _probe(model, config)
    sides = _sides_in_memory(model, plan)
    for where, module in rotary_modules(model):
        _compare_live(where, module, wanted, called, report)
        _compare_both_sides(where, module, sides, report)
        _compare_rotation(where, module, {key: wanted[key] for key in wanted if not sides.get(key)}, report)
    _uncalled_tables(model, called, report)


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
    with evaluating(model), torch.no_grad():
        model(input_ids=ids, use_cache=False)


# ---------------------------------------------------------------------------------------------------------
# Decoding with a cache


def _own_text(folder: Path, trusted: bool, tokens: int) -> list[int]:
    """Ids of a text in the checkpoint's own tokens; none where it has no tokenizer that loads."""
    try:
        return written(load_tokenizer(folder, trust_remote_code=trusted), tokens)
    except CheckpointError:
        return []


def _meant_for(model: nn.Module) -> int:
    """The context, in tokens, that a loaded model is for."""
    plan = installed(model)
    return plan.length if plan else max(rope.max_length for rope in read_rope(whole_config(model).to_dict()).values())


def _examine_generation(
    model: Any, report: Verification, extended: int, lengths: Sequence[int], text: Text | None, say: Say | None
) -> None:
    plan = installed(model)
    ropes = plan.ropes if plan else read_rope(whole_config(model).to_dict())
    trained = max(rope.original_length for rope in ropes.values())
    report.generation = compare(model, trained, extended, lengths, text, say)
    faults = [stretch for stretch in report.generation if stretch.verdict == DIFFERS]
    report.problems += [_fault(stretch) for stretch in faults[:1]]
    report.warnings += list(_remarks(report, str(model.dtype).removeprefix("torch.")))


def _fault(stretch: Stretch) -> str:
    """About the shortest stretch that is wrong: what is wrong below the trained length is not the schedule's doing."""
    also = " Below the trained length, so the schedule is not the cause" if stretch.region == "below" else ""
    return (
        f"decoding with the cache differs from the whole text by {stretch.relative:.1e} of the logits' spread after "
        f"{stretch.position + 1} tokens, where rounding makes {stretch.tolerance:.1e} at most and the frequencies are "
        f"the same throughout.{also}"
    ).rstrip(".")


_COARSE = 0.1
"""A tolerance above which a fault that matters could hide, in units of the logits' spread."""


def _remarks(report: Verification, dtype: str) -> Iterator[str]:
    """What a reader of the comparison should know."""
    changed = [stretch for stretch in report.generation if stretch.verdict == EXPLAINED]
    if changed:
        yield _explanation(changed, report)
    for stretch in (stretch for stretch in report.generation if stretch.verdict == UNDECIDED):
        yield (
            f"decoding cannot be judged after {stretch.position + 1} tokens: whole passes over more and less text "
            "differ among themselves, as they do where rounding decides on an expert or on what is attended to"
        )
    coarse = max(stretch.tolerance for stretch in report.generation)
    if coarse > _COARSE:
        yield (
            f"rounding alone may move this model's logits by {coarse:.2g} of their spread in {dtype}, so only larger "
            "faults show; --dtype float32 is sharper"
        )


def _explanation(changed: Sequence[Stretch], report: Verification) -> str:
    worst = max(changed, key=lambda stretch: stretch.relative)
    first = min(stretch.changes for stretch in changed if stretch.changes)
    other = sum(stretch.tokens_differ for stretch in changed)
    compared = sum(stretch.last - stretch.first + 1 for stretch in changed)
    return (
        f"{report.intended} changes its frequencies with the length, here from {first} tokens on: generate() keeps the "
        f"keys it has cached at their old angles, so it differs from the whole text by up to {worst.difference:.3g} in "
        f"a logit ({worst.relative:.2g} of their spread) and in {other} of {compared} tokens chosen. That is how "
        "transformers does it; `ropescale patch --freeze-at LENGTH` makes one table for every length"
    )


def _dtype(table: torch.Tensor) -> str:
    return str(table.dtype).removeprefix("torch.")
