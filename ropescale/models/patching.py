"""Patches a loaded Hugging Face model with a schedule, and reverts the patch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack

import torch
from torch import nn

from ..errors import ConfigError, RopescaleError, VerificationError
from ..files import Json
from ..lengths import parse_length
from ..planning.layers import PlannedLayer
from ..planning.plan import Plan, make_plan, refuse_unused
from ..record import original_config, read_record
from ..request import Request, RequestOptions, check_keywords
from ..schedules.base import length_dependent
from .rotary_modules import (
    RTOL,
    ModuleState,
    Table,
    build_stock,
    built_table,
    difference,
    follow,
    followed,
    is_stock,
    keep_float32,
    layer_keys,
    quiet_transformers,
    rope_type_of,
    rotary_modules,
    softmax_scale,
    table_at,
    text_config,
    varies,
    whole_config,
    write_table,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_CONFIG_FIELDS = ("rope_parameters", "max_position_embeddings", "original_max_position_embeddings", "head_dim")
_ABSENT = object()
_STACK = "_ropescale_patches"


def patch(
    model: nn.Module, schedule: object, *, length: int | str | None = None, **options: Unpack[RequestOptions]
) -> Patch:
    """Patches a loaded model with a schedule; the returned :class:`Patch` reverts it.

    Afterwards the float32 tables of the rotary modules equal, bit for bit, those that stock transformers builds from
    the saved configuration. ``model.config`` agrees, so ``save_pretrained`` writes a model that reloads with the same
    tables. Weights are unchanged. Patching a patched model starts from the original. With tables that follow the
    length, all that torch.compile has compiled in the process is compiled again at its next call.

    Args:
        model: a transformers model, also PEFT-wrapped or compiled.
        schedule: a schedule, or a spec such as ``"yarn:factor=8"``.
        length: freezes length-dependent tables at this many tokens, bit for bit, and only in memory.
        options: the fields of :class:`ropescale.request.Request`; a length-dependent schedule can be saved with
            ``freeze_at``.

    Raises:
        ConfigError: the model has no RoPE or no real tables (meta device), or is already scaled, and neither
            ``replace_scaling`` nor ``on_top`` is set.
        ScheduleError: the schedule does not fit this model.
        VerificationError: a layer does not have the requested table; the model is restored.
    """
    check_keywords("patch", options)
    request = Request.of(schedule, **options)
    frozen_at = None if length is None else parse_length(length)
    plan = plan_for(model, request)
    refuse_unused(request, plan.used)
    return Patch(model, plan, frozen_at)


def plan_for(model: nn.Module, request: Request) -> Plan:
    """Plans a schedule for a loaded model; raises the errors of :func:`patch`."""
    plan = make_plan(configuration_before(model, request.on_top), request)
    if not plan.changes:  # the current state, which may differ from the original
        now = make_plan(whole_config(model).to_dict(), Request(request.spec))
        plan = dataclasses.replace(now, original=plan.original)
    return plan


class Patch:
    """A schedule applied to a model; a context manager. :meth:`revert` removes the schedule, bit for bit.

    Attributes:
        plan: the applied plan: configuration, schedules, float64 tables.
        frozen_at: the length that length-dependent tables are frozen at, if any.
        length_dependent: whether the tables follow the length of the input.
    """

    def __init__(self, model: nn.Module, plan: Plan, length: int | None = None) -> None:
        self.plan = plan
        self._model = model
        self._config = text_config(model)
        self._undo: list[Callable[[], object]] = []
        self._apply(length)

    def __repr__(self) -> str:
        labels = ", ".join(dict.fromkeys(self.plan.label(key) for key in self.plan.layers)) or "as-is"
        return f"<Patch {labels}, to {self.plan.length:,} tokens{'' if self._undo else ', reverted'}>"

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.revert()

    def revert(self) -> None:
        """Restores the original tables, configuration and methods. Safe to call twice.

        Raises:
            RopescaleError: a newer patch is still active; revert it first.
        """
        stack = patches_in(self._model)
        if self not in stack:
            return
        if stack[-1] is not self:
            raise RopescaleError("a newer patch is still in this model; revert it first")
        self._unwind()
        stack.pop()
        if not stack:
            del _owner(self._model).__dict__[_STACK]

    def _apply(self, length: int | None) -> None:
        self.frozen_at: int | None = None
        self.length_dependent = False
        try:
            self._install(length)
        except BaseException:
            self._unwind()
            raise
        _owner(self._model).__dict__.setdefault(_STACK, []).append(self)

    def _install(self, length: int | None) -> None:
        modules = dict(rotary_modules(self._model))
        if not modules:
            raise ConfigError(
                f"{type(self._model).__name__} has no rotary module that transformers builds from its configuration, "
                "so it cannot be patched"
            )
        if any(buffer.is_meta for module in modules.values() for buffer in module.buffers()):
            raise ConfigError("this model is on the meta device, so its tables have no numbers; load its weights first")
        if self.plan.changes:
            self._exchange(modules)
        for module in modules.values():
            self._settle(module, length)
        unsavable = self.plan.unsavable and str(self.plan.unsavable)
        reason = unsavable if self.frozen_at is None else _HELD.format(self.frozen_at)
        if reason or self.plan.changes:
            self._allow_saving(reason)
        if self.plan.changes:
            check_live(self._model, self.plan, length)

    def _exchange(self, modules: Mapping[str, nn.Module]) -> None:
        """Applies the plan to the modules and the configuration, as stock transformers would build them."""
        try:
            with quiet_transformers():
                whole = type(whole_config(self._model)).from_dict(copy.deepcopy(self.plan.config))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())  # transformers' message has several lines
            raise ConfigError(f"transformers refuses this schedule for {self._config.model_type}: {reason}") from error
        config = whole.get_text_config(decoder=True)
        old = self._config
        if getattr(old, "layer_rope_theta", None) and _theta(old) != _theta(config):
            raise ConfigError(  # granite_swa looks up its tables by theta in a separate list
                f"{old.model_type} keeps a theta per layer in layer_rope_theta, so rope_theta cannot be changed for "
                "all of them; use a schedule that keeps it, such as yarn"
            )
        for name, module in modules.items():
            if installed(self._model) is None:
                _refuse_unknown(name, module, old)
            fresh = build_stock(module, config)
            self._remember(module)
            ModuleState.of(fresh).put_into(module)
            keep_float32(module)
        for module in self._model.modules():  # DeepSeek's classes multiply the softmax scale by mscale^2 when built
            wanted = softmax_scale(module, config)
            present = softmax_scale(module, old)
            if wanted is not None and wanted != present:
                self._set(module, "scaling", wanted)
        targets = {id(each): each for each in (old, *map(whole_config, modules.values()))}
        for target in targets.values():
            for name in _CONFIG_FIELDS:
                field = type(target).attribute_map.get(name, name)
                value = config.__dict__.get(field, _ABSENT)
                if value is not _ABSENT and value != target.__dict__.get(field, _ABSENT):
                    self._set(target, field, copy.deepcopy(value))

    def _remember(self, module: nn.Module) -> None:
        self._undo.append(partial(ModuleState.of(module).put_into, module))

    def _settle(self, module: nn.Module, length: int | None) -> None:
        """Makes length-dependent tables a pure function of the input, or freezes them at ``length``."""
        self._remember(module)
        for key in layer_keys(module):
            layer = self.plan.layers.get(key)
            tables = followed(module).get(key)  # of an older patch
            if tables is None and varies(module, key):
                tables = partial(built_table, module, rope_type_of(module, key), key)
            elif tables is None and layer and length_dependent(layer.schedule):
                tables = partial(_own_table, layer)
            is_longrope = rope_type_of(module, key) == "longrope"
            if tables is None:
                if self.plan.changes and is_longrope:
                    # One table at every length: stock's update would only recompile a compiled model's second call.
                    _disable_stock_update(module, key)
                continue
            self.length_dependent = length is None
            self.frozen_at = length
            if length is None and is_longrope:
                continue  # stock uses only the current positions; dynamic remembers earlier ones
            _disable_stock_update(module, key)
            keep_float32(module)
            others = {k: v for k, v in followed(module).items() if k != key}
            follow(module, others if length is not None else {**others, key: tables})
            write_table(module, key, tables(length or 1))

    def _allow_saving(self, reason: str | None) -> None:
        """Allows saving the model, even if an older patch forbids it, or forbids saving if a reason is given.

        This applies to the transformers models, not to their wrappers: an adapter can always be saved separately.
        """
        from transformers import PreTrainedModel

        save = _ABSENT if reason is None else partial(_refuse_to_save, reason)
        for module in self._model.modules():
            old = module.__dict__.get("save_pretrained", _ABSENT)
            ours = old is _ABSENT or getattr(old, "func", None) is _refuse_to_save
            if isinstance(module, PreTrainedModel) and ours and old is not save:
                self._set(module, "save_pretrained", save)

    def _set(self, target: object, field: str, value: object) -> None:
        """Sets or deletes an attribute, and records how to restore it."""
        self._undo.append(partial(_put, target, field, target.__dict__.get(field, _ABSENT)))
        _put(target, field, value)

    def _unwind(self) -> None:
        while self._undo:
            self._undo.pop()()


_HELD = (
    "its tables are frozen at {} tokens, only in memory; to save such a table, patch with freeze_at instead of length, "
    "or revert and save the schedule itself"
)


def installed(model: nn.Module) -> Plan | None:
    """Returns the plan of the newest patch in a model that changes its tables, or None."""
    return next((patch.plan for patch in reversed(patches_in(model)) if patch.plan.changes), None)


def held_at(model: nn.Module) -> int | None:
    """Returns the length at which length-dependent tables are frozen, or None.

    The newest patch that changes them decides.
    """
    deciding = (patch for patch in reversed(patches_in(model)) if patch.frozen_at is not None or patch.plan.changes)
    return next((patch.frozen_at for patch in deciding), None)


def why_held(model: nn.Module) -> str | None:
    """Returns why a model with tables frozen at a length cannot be saved; None for other models."""
    length = held_at(model)
    return None if length is None else _HELD.format(length)


def patches_in(model: nn.Module) -> list[Patch]:
    """Returns a model's active patches, oldest first, through any wrapper."""
    return _owner(model).__dict__.get(_STACK, [])


@contextmanager
def unpatched(model: nn.Module) -> Iterator[None]:
    """Reverts a model's patches inside the block, and then applies them again, bit for bit."""
    stack = list(patches_in(model))
    try:
        for patch in reversed(stack):
            patch.revert()
        yield
    finally:
        for patch in stack:
            if patch not in patches_in(model):
                patch._apply(patch.frozen_at)


def _owner(model: nn.Module) -> nn.Module:
    """Returns the module with the list of patches: the first rotary module, which all wrappers of a model share."""
    return next((module for _, module in rotary_modules(model)), model)


def configuration_before(model: nn.Module, on_top: bool = False) -> Json:
    """Returns the configuration that a schedule builds on, from memory or from the folder that the model came from.

    The configuration excludes ropescale's scaling, unless ``on_top`` is set.
    """
    now = whole_config(model)
    stack = patches_in(model)
    if stack:
        before = stack[-1].plan.config if on_top else stack[0].plan.original.raw
        if before.get("model_type") != now.model_type:
            raise ConfigError(
                f"this {now.model_type} model is a part of a patched {before.get('model_type')} model; patch the full "
                "model, or revert its patch first"
            )
        return before
    config = now.to_dict()
    name = getattr(now, "_name_or_path", "")
    return original_config(config, read_record(Path(name)), on_top) if name else config


def check_live(model: nn.Module, plan: Plan, frozen_at: int | None = None) -> None:
    """Verifies that a model's live tables equal the plan's.

    Args:
        frozen_at: the length at which length-dependent schedules were frozen, if any.

    Raises:
        VerificationError: a module lacks a layer type, or its table differs from the plan's.
    """
    carried = [(name, module, key) for name, module in rotary_modules(model) for key in layer_keys(module)]
    for name, module, key in carried:
        layer = plan.layers.get(key)
        if layer is None:
            continue
        length = frozen_at or plan.length
        off = difference(*table_at(module, key, length), layer.table(length))
        if not off <= RTOL:
            raise VerificationError(
                f"the schedule is not live: {name} ({key} layers) differs from the request by {off:.1e} relative; load "
                "the model again, and patch it"
            )
    missing = plan.layers.keys() - {key for _, _, key in carried}
    if missing:
        raise VerificationError(f"no rotary module of this model has a table for its {min(missing)} layers")


def _own_table(layer: PlannedLayer, length: int) -> Table:
    table = layer.table(length)
    return torch.tensor(list(table.inv_freq), dtype=torch.float32), table.attention_scale


def _refuse_unknown(name: str, module: nn.Module, config: PreTrainedConfig) -> None:
    """Raises an error if a module's tables differ from its configuration, so that it cannot be rebuilt."""
    where = f"{name} ({type(module).__name__})"
    try:
        stock = build_stock(module, config)
    except Exception as error:
        raise ConfigError(f"{where} cannot be built from the model's configuration: {error}") from error
    if is_stock(module, stock):
        return
    raise ConfigError(
        f"{where} does not have the table of its configuration, so ropescale cannot rebuild it; "
        "was it changed by hand after loading, or does it have rope parameters of its own (such as a theta per layer)?"
    )


def _theta(config: PreTrainedConfig) -> object:
    return config.rope_parameters["rope_theta"]


def _disable_stock_update(module: nn.Module, key: str) -> None:
    """Sets a module's rope type to ``default``, with which its forward keeps the current table."""
    kind = module.rope_type
    module.__dict__["rope_type"] = {**kind, key: "default"} if isinstance(kind, Mapping) else "default"


def _put(target: object, field: str, value: object) -> None:
    if value is _ABSENT:
        del target.__dict__[field]
    else:
        setattr(target, field, value)


def _refuse_to_save(reason: str, *args: object, **kwargs: object) -> NoReturn:
    raise RopescaleError(f"this model cannot be saved: {reason}")
