"""Verifies that a model uses the intended frequencies.

For a checkpoint, builds the rotary modules with stock transformers and reads their tables, cos and sin. For a loaded
model, reads the live tables and runs a few tokens to detect modules that are never called. With ``generate``, loads
the weights, and compares cached decoding with full forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
from torch import nn

from ..adapters import Adapter, attached, disagreement, find_loadable, remarks
from ..checkpoints.contents import number, optional_json
from ..checkpoints.loading import load_model, refuse_unloadable
from ..checkpoints.locating import ModelFolder
from ..checkpoints.patching import other_limits
from ..configs.configuration import MAXIMUM_STAYS, ONLY_V5_KEYS, Configuration, read_rope
from ..configs.finding import SPECULATORS
from ..configs.section import LARGEST
from ..engines.transformers4 import is_met
from ..errors import ConfigError, DataError, RopescaleError, ScheduleError, VerificationError
from ..files import Data, Json
from ..lengths import parse_lengths
from ..models.patching import configuration_before, installed
from ..models.rotary_modules import (
    build_stock,
    evaluating,
    followed,
    layer_keys,
    live_table,
    preserved,
    quiet_transformers,
    rotary_modules,
    stock_table,
    text_config,
    whole_config,
)
from ..output.formatting import brief, first_line, listed
from ..planning.plan import lacks_factor, make_plan
from ..request import Request, check_keywords
from ..schedules.specs import parse
from .decoding import DIFFERS, EXPLAINED, UNDECIDED, Say, compare
from .verification import (
    STATED,
    Intended,
    Verification,
    asked_for,
    compare_module,
    compare_softmax,
    in_memory,
    meant_for,
    planned,
    recorded,
    stated,
)

if TYPE_CHECKING:
    from ..stored_record import Record


class ExamineOptions(TypedDict, total=False):
    """The keywords of :func:`examine`."""

    schedule: object
    like: str | Path | None
    generate: bool
    lengths: Sequence[int | str]
    revision: str | None
    trust_remote_code: bool
    dtype: str | None
    device: str | None
    say: Say


def verify(model: str | Path | nn.Module, **options: Unpack[ExamineOptions]) -> Verification:
    """Verifies that every layer uses the intended table.

    Args:
        model: the folder or Hub id of a checkpoint or an adapter (no weights are read), or a loaded model. For an
            adapter, the tables of its base are compared with those that the adapter was trained with.
        options: the keywords of :func:`examine`, such as ``generate=True``.

    Raises:
        VerificationError: a layer uses another table, or another limit is below the target length.
        ConfigError: the model has no rotary embeddings.
    """
    check_keywords("verify", options, ExamineOptions)
    report = examine(model, **options)
    if report.failure:
        raise VerificationError(report.failure)
    return report


def examine(
    model: str | Path | nn.Module,
    *,
    schedule: object = None,
    like: str | Path | None = None,
    generate: bool = False,
    lengths: Sequence[int | str] = (),
    revision: str | None = None,
    trust_remote_code: bool = False,
    dtype: str | None = None,
    device: str | None = None,
    say: Say = lambda line: None,
) -> Verification:
    """Verifies like :func:`verify`, but returns the problems instead of raising an error.

    Args:
        model: the folder or Hub id of a checkpoint or an adapter, or a loaded model.
        schedule: the schedule that the model should have, in place of its record or patch. It is computed from the
            configuration before ropescale's patch, or from that of ``like``.
        like: the folder or Hub id of a checkpoint whose frequencies the model should have.
        generate: also load the weights, and compare cached decoding with full forward passes. A difference is a
            problem if the frequencies are constant, and a warning if they change with the length.
        lengths: lengths to compare at, in tokens or as ``"2k,4k"``; see :func:`ropescale.verifying.decoding.compare`.
        revision: branch, tag or commit of a Hub id.
        trust_remote_code: run the checkpoint's own code if transformers needs it.
        dtype, device: the dtype and the device of the loaded weights.
        say: called with a note before slow steps.

    Raises:
        ConfigError: the model has no rotary embeddings, or needs custom code that it may not run.
        RunError: the model fails while it generates.
    """
    loading: Data = {"dtype": dtype, "device": device}
    if not generate:
        _refuse({"length": lengths, **loading}, "applies to generation; add generate, or leave it out")
    wanted = parse_lengths(lengths) if len(lengths) else []
    if not isinstance(model, (str, Path)):
        in_memory = "applies to a checkpoint, and this model is already loaded; leave it out"
        _refuse({**loading, "revision": revision}, in_memory)
        before = configuration_before(model)
        now: Json = whole_config(model).to_dict() if installed(model) is None else {}
        report = examine_model(model, _wanted(now, before, schedule, like, _PROBE))
        if generate and report.live:
            _examine_generation(model, report, wanted, say)
        return report
    stored, adapter = find_loadable(model, revision, weights=generate)
    asked = _wanted(stored.config, stored.original(), schedule, like)
    if adapter is None:
        report = examine_folder(str(model), stored, trust_remote_code, wanted=asked)
    else:
        report = examine_adapter(str(model), adapter, trust_remote_code, asked)
    if schedule is not None and like is None and not report.live:
        report.warnings.append(
            "the schedule was computed from this configuration; if it has changed theta there already, name the "
            "original (--like)"
        )
    if generate and report.live:
        loaded = load_model(stored.folder, dtype, device, trust_remote_code=trust_remote_code)
        loaded = loaded if adapter is None else attached(loaded, adapter.folder)
        _examine_generation(loaded, report, wanted, say)
    return report


def _wanted(
    current: Json, config: Json, schedule: object, like: str | Path | None, length: int | None = None
) -> Intended | None:
    """Returns the frequencies that the user asks for; None if the user asks for none.

    Args:
        current: the model's configuration.
        config: the model's configuration before ropescale's patch.
        length: the length of the tables in tokens; None for the target length.
    """
    if like is not None:
        stored, _ = find_loadable(like)
        if schedule is None and length is None:
            return recorded(Configuration.read(stored.config), stored.record)
        if schedule is None:
            return asked_for(read_rope(stored.config), length or 0)
        config = stored.original()
    if schedule is None:
        return None
    configuration = Configuration.read(config)
    request = Request.of(schedule, replace_scaling=configuration.is_scaled)
    if lacks_factor(parse(schedule), request):
        if configuration.meant_length <= configuration.lengths.trained.tokens:
            raise ScheduleError("the schedule needs its factor; give it, as in yarn:factor=8", "schedule")
        request = replace(request, target_length=configuration.meant_length)
    plan = make_plan(config, request)
    if not plan.changes and like is None and config == current:
        raise DataError("as-is compares the model with itself; leave schedule out, or name the original", "schedule")
    return planned(plan, length or plan.length)


def _refuse(options: Json, why: str) -> None:
    """Raises an error for an option that would have no effect."""
    for name, value in options.items():
        if value:
            raise DataError(f"{name} {why}", name, "generate")


# ---------------------------------------------------------------------------------------------------------
# Decoding with a cache


def _examine_generation(model: nn.Module, report: Verification, lengths: Sequence[int], say: Say) -> None:
    plan = installed(model)
    ropes = plan.ropes if plan else read_rope(whole_config(model).to_dict())
    trained = max(rope.original_length for rope in ropes.values())
    report.generation = compare(model, trained, report.length, lengths, say)
    fault = next((stretch for stretch in report.generation if stretch.verdict == DIFFERS), None)
    if fault is not None:
        also = ". This is below the trained length, so the schedule is not the cause" if fault.region == "below" else ""
        report.problems.append(
            f"decoding with the cache differs from a full pass by {fault.relative:.1e} of the logits' spread after "
            f"{fault.position + 1:,} tokens; rounding may cause at most {fault.tolerance:.1e}, and the frequencies are "
            f"constant{also}"
        )
    report.warnings += _remarks(report)


def _remarks(report: Verification) -> Iterator[str]:
    """Yields remarks on the comparison for the user."""
    changed = [stretch for stretch in report.generation if stretch.verdict == EXPLAINED]
    if changed:
        worst = max(changed, key=lambda stretch: stretch.relative)
        first = min(stretch.changes for stretch in changed if stretch.changes)
        other = sum(stretch.tokens_differ for stretch in changed)
        compared = sum(stretch.last - stretch.first + 1 for stretch in changed)
        yield (
            f"{report.intended} changes its frequencies with the length, here from {first:,} tokens on: generate() "
            "keeps cached keys at their old angles, so it differs from a full pass by up to "
            f"{worst.difference:.3g} in a logit ({worst.relative:.2g} of the logits' spread), and chooses a "
            f"different token at {other} of {compared} positions. transformers works this way; freeze the schedule at "
            "one length for one table at every length"
        )
    for stretch in (stretch for stretch in report.generation if stretch.verdict == UNDECIDED):
        yield (
            f"decoding cannot be judged after {stretch.position + 1:,} tokens: forward passes over longer and shorter "
            "texts differ as well; rounding may change the routing to experts or the tokens that are attended to"
        )


_PROBE = 4
"""The number of tokens in the forward pass that shows which rotary modules a loaded model calls."""

_FAR = 4095
"""The position at which a live module's cos is compared: far enough to tell schedules apart, exact in float32."""


def examine_model(model: nn.Module, wanted: Intended | None = None) -> Verification:
    """Compares a loaded model's tables with the wanted ones, or those of its patches, or of its configuration.

    Raises:
        ConfigError: the model has no RoPE, or no weights.
    """
    report = _begun(model)
    if report.problems:
        read_rope(whole_config(model).to_dict())
        return report
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError("this model is on the meta device, without numbers; load its weights first")
    report.length = meant_for(model)
    intended = wanted or in_memory(model, _PROBE)
    report.intended = intended.text
    plan = installed(model)
    report.compared = _compared(wanted, plan)
    if report.compared == STATED:
        report.intended = stated(read_rope(whole_config(model).to_dict()), _PROBE).text
    for where, module in rotary_modules(model):
        for key in intended.tables.keys() & {*layer_keys(module)} - {*followed(module)}:
            pairs = len(live_table(module, key)[0])
            meant = len(intended.tables[key].inv_freq)
            if pairs != meant:
                report.problems.append(f"{where} ({key} layers) has a table of {pairs} pairs instead of {meant}")
    report.problems += islice(_not_finite(model), 1)
    if report.problems:  # a forward pass would fail
        return report
    with preserved(model):
        with _calls(model) as called:
            device = next(model.parameters()).device
            ids = (torch.arange(_PROBE, device=device) % text_config(model).vocab_size).unsqueeze(0)
            with evaluating(model), torch.no_grad():
                model(input_ids=ids, use_cache=False)
        # a module's forward may have been replaced as well
        positions = {key: _FAR for key in intended.tables if not intended.sides.get(key)}
        for where, module in rotary_modules(model):
            compare_module(where, module, intended, report, live_table, positions)
            if where not in called:
                report.problems.append(f"{where} is never called, so its table has no effect")
    ropes = read_rope(plan.config if plan else whole_config(model).to_dict())
    compare_softmax(model, asked_for(ropes, _PROBE).softmax, report)
    return report


def examine_tables(model: nn.Module) -> Verification:
    """Compares a loaded model's tables with the intended ones without a forward pass, even if its weights are sharded.

    A table that follows the length is compared at its switch, because the last pass may have changed it.

    Raises:
        ConfigError: the model has no RoPE.
    """
    intended = in_memory(model, 1)
    report = _begun(model)
    report.intended = intended.text
    fixed = {key: table for key, table in intended.tables.items() if not intended.sides.get(key)}
    intended = replace(intended, tables=fixed)
    for where, module in rotary_modules(model):
        if any(buffer.is_meta for buffer in module.buffers()):
            report.problems.append(f"{where} is on the meta device, so its table has no numbers")
            continue
        compare_module(where, module, intended, report, live_table, {})
    return report


def _begun(model: nn.Module) -> Verification:
    """Returns a report without tables; if the model has no rotary module, the report contains that problem."""
    report = Verification(str(getattr(model.config, "_name_or_path", "") or type(model).__name__), "", 0)
    if not any(rotary_modules(model)):
        report.problems.append("the model has no rotary module that transformers builds from its configuration")
    return report


def _not_finite(model: nn.Module) -> Iterator[str]:
    """Yields a problem for every weight with NaN or infinity, under which no table has a meaning."""
    for name, weight in model.named_parameters():
        # attention kernels may swallow a NaN; a sum needs no memory
        if weight.is_floating_point() and weight.element_size() > 1 and not weight.sum(dtype=torch.float32).isfinite():
            yield f"{name} contains NaN or infinity, so the model computes nothing under any table"


@contextmanager
def _calls(model: nn.Module) -> Iterator[set[str]]:
    """Yields a set that collects the names of the rotary modules called inside the ``with`` block."""
    called = set()
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


def _compared(wanted: object, made: object) -> str:
    """Names what a model is compared with."""
    if wanted is not None:
        return "the request"
    return STATED if made is None else "ropescale's record or patch"


def examine_adapter(name: str, adapter: Adapter, trusted: bool, wanted: Intended | None) -> Verification:
    """Compares the tables that transformers builds for an adapter's base with the tables of the adapter's training.

    Args:
        name, trusted, wanted: as for :func:`examine_folder`.

    Raises:
        ConfigError: as for :func:`examine_folder`.
    """
    report = examine_folder(name, adapter.base, trusted, adapter.record, wanted)
    report.base = adapter.name
    if mismatch := disagreement(adapter):
        report.problems.insert(0, mismatch)
    else:
        report.warnings += remarks(adapter)
    _check_tokenizer(adapter.folder, report, f"in the adapter's folder; write {report.length} there")
    return report


def examine_folder(
    name: str, stored: ModelFolder, trusted: bool, record: Record | None = None, wanted: Intended | None = None
) -> Verification:
    """Compares the tables that transformers builds for a checkpoint with its record or configuration.

    Args:
        name: the checkpoint's name, for the report.
        stored: the checkpoint.
        trusted: whether the checkpoint's own code may run.
        record: the intended frequencies, in place of the checkpoint's own record.
        wanted: the frequencies that the user asks for, in place of both.

    Raises:
        ConfigError: the checkpoint has no RoPE, or needs custom code that it may not run.
    """
    folder = stored.folder
    config = stored.config
    record = record or stored.record
    report = Verification(name, "", 0)
    refuse_unloadable(folder, config, trusted)
    with quiet_transformers():
        skeleton, modules = _stock_modules(folder, trusted, config, report)
    configuration = Configuration.read(config)
    try:
        intended = wanted or recorded(configuration, record)
    except ConfigError as error:
        report.problems.append(str(error))
        return report
    report.intended = intended.text
    report.length = intended.length
    report.compared = _compared(wanted, record)
    stock = partial(stock_table, length=report.length)
    positions = dict.fromkeys(intended.tables, report.length - 1)
    for where, module in modules:
        try:
            compare_module(where, module, intended, report, stock, positions)
        except RopescaleError:
            raise
        except Exception as error:
            report.problems.append(f"{where} cannot compute its table: {type(error).__name__}: {first_line(error)}")
    if modules:
        carried = {key for _, module in modules for key in layer_keys(module)}
        lacking = [key for key in intended.tables if key not in carried]
        report.problems += [f"no rotary module has a table for the {key} layers" for key in lacking]
    compare_softmax(skeleton, intended.softmax, report)
    _check_limits(stored, configuration, report)
    if is_met(configuration):
        report.warnings.append(ONLY_V5_KEYS)
    return report


def _stock_modules(
    folder: Path, trusted: bool, config: Json, report: Verification
) -> tuple[nn.Module, list[tuple[str, nn.Module]]]:
    """Builds the model without weights, but with real rotary modules; returns no modules if this fails."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig

    skeleton = nn.Module()
    if SPECULATORS in config:
        report.problems.append(
            "transformers cannot build a head of the speculators library; `ropescale inspect` shows what vLLM reads"
        )
        return skeleton, []
    try:
        loaded = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
        with torch.device("meta"):
            try:
                skeleton = AutoModelForCausalLM.from_config(loaded, trust_remote_code=trusted)
            except ValueError:  # not a causal language model's configuration, but for example a multimodal one's
                skeleton = AutoModel.from_config(loaded, trust_remote_code=trusted)
        rotary = [(name, module, module.config) for name, module in rotary_modules(skeleton)]
        modules = [
            (name, build_stock(module, own)) for name, module, own in rotary if isinstance(own, PreTrainedConfig)
        ]
    except RopescaleError:
        raise
    except Exception as error:
        report.problems.append(f"transformers cannot build this model: {type(error).__name__}: {first_line(error)}")
        return skeleton, []
    if not modules:
        read_rope(config)  # raises an error with the reason if the model has no RoPE
        report.problems.append(
            "transformers builds no rotary module for this model (one that has inv_freq and a configuration)"
        )
    return skeleton, modules


def _check_tokenizer(folder: Path, report: Verification, workaround: str) -> float | None:
    """Reports a tokenizer's limit below the target length; returns the limit."""
    limit = number(optional_json(folder / "tokenizer_config.json").get("model_max_length"))
    if limit is not None and limit < report.length:
        shown = f"{limit:,g}" if abs(limit) < LARGEST else brief(limit)
        report.limits.append(
            f"tokenizer_config.json: model_max_length is {shown}, below the target length of {report.length:,} tokens "
            f"({workaround})"
        )
    return limit


def _check_limits(stored: ModelFolder, configuration: Configuration, report: Verification) -> None:
    """Finds limits below the target length: those that patching raises, and others."""
    length = report.length
    maximum = configuration.max_length
    limit = _check_tokenizer(stored.folder, report, "patching with the schedule as-is raises it")
    kinds = sorted({rope.kind for rope in configuration.ropes.values()} - {"default"})
    if maximum < length and ({*kinds} & {*MAXIMUM_STAYS} or configuration.family.derives_attention_scale):
        report.warnings.append(
            f"max_position_embeddings stays {maximum:,} under {listed(kinds)}; an engine with this limit needs its own "
            f"option for {length:,} tokens, which `ropescale export` prints"
        )
    elif maximum < length:
        report.limits.append(
            f"config.json: max_position_embeddings is {maximum:,}, below the target length of {length:,} tokens "
            "(patching with the schedule as-is and this target length raises it)"
        )
    if stored.record is not None and limit is not None and max(length, maximum) < limit <= LARGEST:
        report.warnings.append(
            f"tokenizer_config.json: model_max_length is {limit:,g}, above the {length:,} tokens of the schedule; the "
            "tokenizer does not cut texts there"
        )
    report.warnings += other_limits(stored.folder, length)
