"""Puts a schedule into a loaded Hugging Face model, and takes it out again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack

import torch
from torch import nn

from ..checkpoints.metadata.record import original_config
from ..errors import ConfigError, RopescaleError, VerificationError
from ..lengths import parse_length
from ..planning.layers import PlannedLayer
from ..planning.plan import Plan, make_plan
from ..request import Request, RequestOptions, refuse_unknown
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
    live_table,
    quiet_transformers,
    rope_type_of,
    rotary_modules,
    softmax_scale,
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
    model: nn.Module,
    schedule: object,
    *,
    length: int | str | None = None,
    **options: Unpack[RequestOptions],
) -> Patch:
    """Puts a schedule into a loaded model; the returned :class:`Patch` is the undo.

    The rotary modules then carry bit for bit the float32 tables that stock transformers would build from the
    configuration that is saved; ``model.config`` says the same, so ``save_pretrained`` writes a model that
    reloads to this one. Weights are not touched. Patching a patched model computes from the original.

    Args:
        model: a transformers model; PEFT-wrapped and compiled ones work alike.
        schedule: a schedule, or a spec such as ``"yarn:factor=8"``.
        length: holds length-dependent tables at what they are for this many tokens, bit for bit; in memory only.
        options: the fields of :class:`ropescale.request.Request`; a length-dependent schedule can be saved with
            ``freeze_at``.

    Raises:
        ConfigError: no RoPE found, already scaled and not told what to do, or no real tables (the meta device).
        ScheduleError: the schedule does not fit this model.
        VerificationError: a layer does not carry what was asked; the model is left as it was.
    """
    refuse_unknown("ropescale.patch", options, ("length", *RequestOptions.__annotations__))
    request = Request.of(schedule, **options)
    frozen_at = None if length is None else parse_length(length)
    plan = make_plan(configuration_before(model, request.on_top), request)
    if not plan.changes:  # as it is now, which need not be as it was before
        now = make_plan(whole_config(model).to_dict(), Request(schedule))
        plan = dataclasses.replace(now, original=plan.original)
    return Patch(model, plan, frozen_at)


class Patch:
    """A schedule in a model. A context manager; :meth:`revert` takes it out, bit for bit.

    Attributes:
        plan: the plan behind it: configuration, schedules, float64 tables.
        frozen_at: the length that length-dependent tables are held at, if they are.
        length_dependent: whether the tables follow the length of what is processed.
    """

    def __init__(self, model: nn.Module, plan: Plan, length: int | None = None) -> None:
        self.plan = plan
        self.frozen_at: int | None = None
        self.length_dependent = False
        self._model = model
        self._config = text_config(model)
        self._undo: list[Callable[[], object]] = []
        try:
            self._install(length)
        except BaseException:
            self._unwind()
            raise
        _owner(model).__dict__.setdefault(_STACK, []).append(self)

    def __repr__(self) -> str:
        labels = ", ".join(dict.fromkeys(self.plan.label(key) for key in self.plan.layers)) or "as-is"
        held = f", held at {self.frozen_at} tokens" if self.frozen_at else ""
        return f"<Patch {labels}, to {self.plan.length} tokens{held}{'' if self._undo else ', reverted'}>"

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.revert()

    def revert(self) -> None:
        """Restores the tables, the configuration and the methods that were there. Safe to call twice.

        Raises:
            RopescaleError: a newer patch is still in the model; revert that one first.
        """
        stack = patches_in(self._model)
        if self not in stack:
            return
        if stack[-1] is not self:
            raise RopescaleError("a newer patch is still in this model; revert that one first")
        self._unwind()
        stack.pop()
        if not stack:
            del _owner(self._model).__dict__[_STACK]

    def _install(self, length: int | None) -> None:
        modules = dict(rotary_modules(self._model))
        if not modules:
            raise ConfigError(
                f"{type(self._model).__name__} has no rotary module that transformers builds from its configuration; "
                "there is nothing to patch"
            )
        if any(buffer.is_meta for module in modules.values() for buffer in module.buffers()):
            raise ConfigError("this model is on the meta device, where tables have no numbers; load its weights first")
        if self.plan.changes:
            self._exchange(modules)
        for module in modules.values():
            self._settle(module, length)
        reason = self.plan.unsavable if self.frozen_at is None else _HELD.format(self.frozen_at)
        if reason or self.plan.changes:
            self._allow_saving(reason)
        if self.plan.changes:
            check_live(self._model, self.plan, length)

    def _exchange(self, modules: Mapping[str, nn.Module]) -> None:
        """Puts the plan into the modules and the configuration, as stock transformers would build them."""
        try:
            with quiet_transformers():
                whole = type(whole_config(self._model)).from_dict(copy.deepcopy(self.plan.config))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())  # its own message has several lines
            raise ConfigError(f"transformers refuses this schedule for {self._config.model_type}: {reason}") from error
        config, old = whole.get_text_config(decoder=True), self._config
        if getattr(old, "layer_rope_theta", None) and _theta(old) != _theta(config):
            raise ConfigError(  # granite_swa looks its tables up by theta, in a list beside it
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
            wanted, present = softmax_scale(module, config), softmax_scale(module, old)
            if wanted is not None and wanted != present:
                self._set(module, "scaling", wanted)
        for target in {id(c): c for c in (old, *map(whole_config, modules.values()))}.values():
            for name in _CONFIG_FIELDS:
                field = type(target).attribute_map.get(name, name)
                value = config.__dict__.get(field, _ABSENT)
                if value is not _ABSENT and value != target.__dict__.get(field, _ABSENT):
                    self._set(target, field, copy.deepcopy(value))

    def _remember(self, module: nn.Module) -> None:
        self._undo.append(partial(ModuleState.of(module).put_into, module))

    def _settle(self, module: nn.Module, length: int | None) -> None:
        """Makes length-dependent tables a pure function of what is processed, or holds them at ``length``."""
        self._remember(module)
        for key in layer_keys(module):
            layer, tables = self.plan.layers.get(key), followed(module).get(key)  # by the patch below an as-is one
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
            self.length_dependent, self.frozen_at = length is None, length
            if length is None and is_longrope:
                continue  # stock looks at nothing but the positions at hand; dynamic remembers
            _disable_stock_update(module, key)
            keep_float32(module)
            others = {k: v for k, v in followed(module).items() if k != key}
            follow(module, others if length is not None else {**others, key: tables})
            write_table(module, key, tables(length or 1))

    def _allow_saving(self, reason: str | None) -> None:
        """Lets the model be saved, also where an older patch forbids it; or forbids it, for this reason.

        On the transformers models themselves, not on what wraps them: an adapter alone can be saved at any time.
        """
        from transformers import PreTrainedModel

        save = _ABSENT if reason is None else partial(_refuse_to_save, reason)
        for module in self._model.modules():
            old = module.__dict__.get("save_pretrained", _ABSENT)
            ours = old is _ABSENT or getattr(old, "func", None) is _refuse_to_save
            if isinstance(module, PreTrainedModel) and ours and old is not save:
                self._set(module, "save_pretrained", save)

    def _set(self, target: object, field: str, value: object) -> None:
        """Sets or deletes an attribute, and remembers how to put it back."""
        self._undo.append(partial(_put, target, field, target.__dict__.get(field, _ABSENT)))
        _put(target, field, value)

    def _unwind(self) -> None:
        while self._undo:
            self._undo.pop()()


_HELD = (
    "its tables are held at {} tokens, in memory only; to save such a table patch with freeze_at instead of length, "
    "or revert and save the schedule itself"
)


def installed(model: nn.Module) -> Plan | None:
    """Returns the plan of the newest patch in a model that changes its tables, or None."""
    return next((patch.plan for patch in reversed(patches_in(model)) if patch.plan.changes), None)


def held_at(model: nn.Module) -> int | None:
    """Returns the length at which length-dependent tables are held, or None.

    The newest patch that changes them decides.
    """
    deciding = (patch for patch in reversed(patches_in(model)) if patch.frozen_at is not None or patch.plan.changes)
    return next((patch.frozen_at for patch in deciding), None)


def why_held(model: nn.Module) -> str | None:
    """Returns why a model whose tables are held at a length cannot be saved; None where they are not held."""
    length = held_at(model)
    return None if length is None else _HELD.format(length)


def patches_in(model: nn.Module) -> list[Patch]:
    """Returns the patches in a model that are not reverted yet, oldest first; the same through any wrapper."""
    return _owner(model).__dict__.get(_STACK, [])


def _owner(model: nn.Module) -> nn.Module:
    """Returns the module that keeps the list of patches: the first rotary one, which all wrappers of a model share."""
    return next((module for _, module in rotary_modules(model)), model)


def configuration_before(model: nn.Module, on_top: bool = False) -> Mapping[str, object]:
    """Returns the configuration that a schedule builds on, from memory or from the folder it was loaded from.

    It is without our scaling, unless the schedule goes ``on_top`` of that.
    """
    now = whole_config(model)
    stack = patches_in(model)
    if stack:
        before = stack[-1].plan.config if on_top else stack[0].plan.original.raw
        if before.get("model_type") != now.model_type:
            raise ConfigError(
                f"a patch of a {before.get('model_type')} model is in this {now.model_type}, which is a part "
                "of it; patch the whole model, or revert that patch first"
            )
        return before
    config = now.to_dict()
    name = getattr(now, "_name_or_path", "")
    return original_config(config, Path(name), on_top) if name and Path(name).is_dir() else config


def check_live(model: nn.Module, plan: Plan, frozen_at: int | None = None) -> None:
    """Reads the tables back.

    Args:
        frozen_at: the length at which a length-dependent schedule was frozen, if it was.

    Raises:
        VerificationError: a module lacks a layer type, or its table is not the plan's.
    """
    carried = [(name, module, key) for name, module in rotary_modules(model) for key in layer_keys(module)]
    for name, module, key in carried:
        layer = plan.layers.get(key)
        if layer is None:
            continue
        length = (frozen_at or 1) if length_dependent(layer.schedule) else plan.length
        off = difference(*live_table(module, key), layer.table(length))
        if not off <= RTOL:
            raise VerificationError(
                f"the schedule is not live: {name} ({key} layers) differs from what was asked by {off:.1e} relative"
            )
    missing = plan.layers.keys() - {key for _, _, key in carried}
    if missing:
        raise VerificationError(f"no rotary module of this model has a table for its {min(missing)} layers")


def _own_table(layer: PlannedLayer, length: int) -> Table:
    table = layer.table(length)
    return torch.tensor(list(table.inv_freq), dtype=torch.float32), table.attention_scale


def _refuse_unknown(name: str, module: nn.Module, config: PreTrainedConfig) -> None:
    """Refuses a module whose tables its configuration does not explain: it cannot be rebuilt from a new one."""
    where = f"{name} ({type(module).__name__})"
    try:
        stock = build_stock(module, config)
    except Exception as error:
        raise ConfigError(f"{where} cannot be built from the model's configuration: {error}") from error
    if is_stock(module, stock):
        return
    if getattr(module.config, "rope_parameters", None) != config.rope_parameters:
        raise ConfigError(
            f"{where} has a separate configuration, whose rope parameters are not the model's (a theta per layer, "
            "for one); ropescale cannot patch such a model in memory"
        )
    raise ConfigError(
        f"{where} does not carry the table its configuration describes, so ropescale cannot tell how to rebuild it; "
        "was the configuration or the module changed by hand after loading?"
    )


def _theta(config: PreTrainedConfig) -> object:
    return config.rope_parameters["rope_theta"]


def _disable_stock_update(module: nn.Module, key: str) -> None:
    """Sets the type ``default``, under which the class's forward uses the table as it finds it."""
    kind = module.rope_type
    module.__dict__["rope_type"] = {**kind, key: "default"} if isinstance(kind, Mapping) else "default"


def _put(target: object, field: str, value: object) -> None:
    if value is _ABSENT:
        del target.__dict__[field]
    else:
        setattr(target, field, value)


def _refuse_to_save(reason: str, *args: object, **kwargs: object) -> NoReturn:
    raise RopescaleError(f"this model cannot be saved as it is: {reason}")
