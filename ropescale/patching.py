"""Puts a schedule into a loaded Hugging Face model, and takes it out again."""

from __future__ import annotations

import copy
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn

from .errors import ConfigError, RopescaleError, VerificationError
from .plans import Plan, Spec, length_dependent, make_plan
from .records import original_config
from .rope import ALL_LAYERS, Rope, read_rope
from .schedules import Frequencies, Schedule, compute
from .schedules.as_is import from_rope_parameters

RTOL = 2e-6
"""How far float32 tables may be from the float64 ones, relatively (transformers stays within 5.2e-7)."""

_CONFIG_FIELDS = ("rope_parameters", "max_position_embeddings", "original_max_position_embeddings", "head_dim")
_ABSENT = object()
_STACK = "_ropescale_patches"


def patch(
    model: nn.Module,
    schedule: Spec,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    original_length: int | None = None,
    layers: str = "full",
    replace_scaling: bool = False,
    on_top: bool = False,
    length: int | None = None,
) -> Patch:
    """Puts a schedule into a loaded model; the returned :class:`Patch` is the undo.

    The rotary modules then carry bit for bit the float32 tables that stock transformers would build from the
    configuration that is saved; ``model.config`` says the same, so ``save_pretrained`` writes a model that
    reloads to this one. Weights are not touched. Patching a patched model computes from the original.

    Args:
        model: a transformers model; PEFT-wrapped and compiled ones work alike.
        schedule: a schedule, or a spec such as ``"yarn:factor=8"``.
        factor, target_length: fill in the schedule's factor.
        original_length: the trained length in tokens, where the configuration does not know it.
        layers: ``full``, ``all`` or a layer type, for models that keep one table per layer type.
        replace_scaling, on_top: what to do with scaling that the makers put in.
        length: freezes a length-dependent schedule at this many tokens.

    Raises:
        ConfigError: no RoPE found, already scaled and not told what to do.
        ScheduleError: the schedule does not fit this model.
        VerificationError: a layer does not carry what was asked; the model is left as it was.
    """
    plan = make_plan(
        _configuration_before(model),
        schedule,
        factor=factor,
        target_length=target_length,
        original_length=original_length,
        layers=layers,
        replace_scaling=replace_scaling,
        on_top=on_top,
    )
    return Patch(model, plan, length)


class Patch:
    """A schedule in a model. A context manager; :meth:`revert` takes it out, bit for bit.

    Attributes:
        plan: the schedule worked out: configuration, schedules, float64 tables.
        length_dependent: whether the tables follow the length of what is processed.
    """

    def __init__(self, model: nn.Module, plan: Plan, length: int | None = None) -> None:
        self.plan = plan
        self._model = model
        self._config = text_config(model)
        self._undo: list[Callable[[], None]] = []
        self.length_dependent = length is None and self._follows_length()
        try:
            self._install(length)
        except BaseException:
            self._unwind()
            raise
        _stack(model).append(self)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.revert()

    def revert(self) -> None:
        """Restores the tables, the configuration and the methods that were there. Safe to call twice.

        Raises:
            RopescaleError: a newer patch is still in the model; revert that one first.
        """
        stack = _stack(self._model)
        if self not in stack:
            return
        if stack[-1] is not self:
            raise RopescaleError("a newer patch is still in this model; revert that one first")
        self._unwind()
        stack.pop()

    def _follows_length(self) -> bool:
        if self.plan.changes:
            return any(length_dependent(schedule) for schedule in self.plan.schedules.values())
        return any(length_dependent(from_rope_parameters(rope)[0]) for rope in read_rope(self.plan.config).values())

    def _install(self, length: int | None) -> None:
        modules = dict(rotary_modules(self._model))
        if not modules:
            raise ConfigError(
                f"{type(self._model).__name__} has no rotary module that transformers builds from its configuration; "
                "there is nothing to patch"
            )
        config = self._new_config()
        if self.plan.changes:
            for name, module in modules.items():
                self._replace(name, module, config)
            self._rescale_mla(config)
            self._update_config(config)
        for module in modules.values():
            self._follow(module, length)
        if self.plan.unsavable:
            self._forbid_saving(self.plan.unsavable)
        if self.plan.changes:
            check_live(self._model, self.plan, length)

    def _new_config(self) -> Any:
        """The text configuration that stock transformers would read back from the one we would save."""
        if not self.plan.changes:
            return self._config
        try:
            with quiet_transformers():
                whole = type(self._model.config).from_dict(copy.deepcopy(self.plan.config))
        except Exception as error:
            raise ConfigError(
                f"transformers refuses this schedule for {self._config.model_type}: {type(error).__name__}: {error}"
            ) from error
        return whole.get_text_config(decoder=True)

    def _replace(self, name: str, module: nn.Module, config: Any) -> None:
        """Gives a module the state that a stock one built from ``config`` would have."""
        _refuse_unknown(name, module, self._config)
        fresh = build_stock(module, config)
        device = next(iter(module.buffers())).device
        saved = _state(module)
        self._undo.append(functools.partial(_restore, module, saved))
        _overwrite(module, _state(fresh), device)
        _keep_float32(module)

    def _follow(self, module: nn.Module, length: int | None) -> None:
        """Makes length-dependent tables a pure function of what is processed, or of ``length`` when frozen."""
        for key in layer_keys(module):
            tables = self._tables_by_length(module, key)
            if tables is not None and (length is not None or not _stock_is_stateless(module, key)):
                saved = _state(module)
                self._undo.append(functools.partial(_restore, module, saved))
                _disable_stock_update(module, key)
                _keep_float32(module)
                hook = functools.partial(_set_for_length, key, tables, length)
                handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
                self._undo.append(handle.remove)
                hook(module, (), {"position_ids": torch.zeros(1, 1, dtype=torch.long)})

    def _tables_by_length(self, module: nn.Module, key: str) -> Callable[[int], tuple[torch.Tensor, float]] | None:
        """``length -> (inv_freq, attention scale)`` of a module's length-dependent layer type, else None."""
        kind = rope_type_of(module, key)
        if "dynamic" in kind or (kind == "longrope" and _lists_differ(module, key)):
            return functools.partial(_stock_table, module.config, kind, key)
        schedule = self.plan.schedules.get(key)
        if schedule is not None and length_dependent(schedule) and self.plan.unsavable:
            return functools.partial(_own_table, schedule, self.plan.ropes[key])
        return None

    def _rescale_mla(self, config: Any) -> None:
        """DeepSeek's classes multiply the softmax scale by mscale^2 when they are built; do the same."""
        ratio = mla_scale(config) / mla_scale(self._config)
        for module in self._model.modules():
            if ratio != 1 and hasattr(module, "qk_rope_head_dim") and isinstance(getattr(module, "scaling", None), float):
                self._undo.append(functools.partial(setattr, module, "scaling", module.scaling))
                module.scaling = module.scaling * ratio

    def _update_config(self, new: Any) -> None:
        for field in _CONFIG_FIELDS:
            old, value = self._config.__dict__.get(field, _ABSENT), new.__dict__.get(field, _ABSENT)
            if value is not _ABSENT and value != old:
                self._undo.append(functools.partial(_put, self._config, field, old))
                setattr(self._config, field, value)

    def _forbid_saving(self, reason: str) -> None:
        def save_pretrained(*args: Any, **kwargs: Any) -> None:
            raise RopescaleError(f"this model cannot be saved as it is: {reason}")

        setattr(self._model, "save_pretrained", save_pretrained)
        self._undo.append(functools.partial(delattr, self._model, "save_pretrained"))

    def _unwind(self) -> None:
        while self._undo:
            self._undo.pop()()


# ---------------------------------------------------------------------------------------------------------
# Finding and reading rotary modules (shared with verifying)


def text_config(model: nn.Module) -> Any:
    """The configuration of a model's language part.

    Raises:
        ConfigError: the object has no transformers configuration.
    """
    config = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise ConfigError(f"{type(model).__name__} has no transformers configuration; give a transformers model")
    return config.get_text_config(decoder=True)


def rotary_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with frequency tables that belongs to the language model, by name."""
    config = text_config(model)
    for name, module in model.named_modules():
        if layer_keys(module) and getattr(getattr(module, "config", None), "model_type", None) == config.model_type:
            yield name, module


def layer_keys(module: nn.Module) -> list[str]:
    """The layer types a module has tables for: ``all`` for ``inv_freq``, ``T`` for ``T_inv_freq``."""
    names = [name for name in module._buffers if name.endswith("inv_freq") and "original" not in name]
    return [name.removesuffix("inv_freq").rstrip("_") or ALL_LAYERS for name in names]


def live_table(module: nn.Module, key: str) -> tuple[torch.Tensor, float]:
    """The frequencies and the attention scale that a module carries for a layer type now."""
    table = module._buffers[_prefix(key) + "inv_freq"]
    assert table is not None
    scale = getattr(module, _prefix(key) + "attention_scaling", getattr(module, "attention_scaling", 1.0))
    return table, float(scale)


def rope_type_of(module: nn.Module, key: str) -> str:
    """The rope type that a module's own update code looks at."""
    kind = getattr(module, "rope_type", "default")
    return str(kind.get(key, "default") if isinstance(kind, Mapping) else kind)


def build_stock(module: nn.Module, config: Any) -> nn.Module:
    """A new module of the same class, built by transformers from ``config``, for real and on the CPU."""
    with torch.device("cpu"):
        return _stock_class(module)(config)


def stock_table(module: nn.Module, key: str, length: int) -> tuple[torch.Tensor, float]:
    """The table that a stock module uses for a forward of ``length`` tokens."""
    kind = rope_type_of(module, key)
    if "dynamic" in kind or kind == "longrope":
        return _stock_table(module.config, kind, key, length)
    return live_table(module, key)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences transformers' remarks about our keys while we build its configurations ourselves."""
    logger = logging.getLogger("transformers.modeling_rope_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def installed(model: nn.Module) -> Plan | None:
    """The plan of the newest patch in a model, or None."""
    stack = _stack(model)
    return stack[-1].plan if stack else None


def difference(table: torch.Tensor, scale: float, wanted: Frequencies) -> float:
    """Largest relative difference of a live table and its scale from the float64 ones."""
    live = table.detach().to("cpu", torch.float64)
    exact = torch.tensor(list(wanted.inv_freq), dtype=torch.float64)
    if live.shape != exact.shape:
        return math.inf
    still = exact == 0
    moved = (live - exact).abs() / exact.where(~still, torch.ones(()).double())
    moved = torch.where(still, (live.abs() > 1e-20).double(), moved)
    return max(float(moved.max()), abs(scale / wanted.attention_scale - 1))


def check_live(model: nn.Module, plan: Plan, frozen_at: int | None = None) -> None:
    """Reads the tables back.

    Args:
        frozen_at: the length at which a length-dependent schedule was frozen, if it was.

    Raises:
        VerificationError: a module lacks a layer type, or its table is not the plan's.
    """
    for name, module in rotary_modules(model):
        keys = layer_keys(module)
        for key in keys:
            schedule = plan.schedules.get(key)
            if schedule is None:
                continue
            length = (frozen_at or 1) if length_dependent(schedule) else plan.length
            off = difference(*live_table(module, key), compute(schedule, plan.ropes[key], length))
            if off > RTOL:
                raise VerificationError(
                    f"the schedule is not live: {name} ({key} layers) differs from what was asked by {off:.1e} relative"
                )
    _check_every_layer_type(model, plan)


def mla_scale(config: Any) -> float:
    """What DeepSeek's MLA classes multiply the softmax scale by: ``(0.1 mscale_all_dim ln factor + 1)^2``."""
    parameters = getattr(config, "rope_parameters", None) or {}
    weight, factor = parameters.get("mscale_all_dim"), parameters.get("factor", 1.0)
    if not weight or parameters.get("rope_type", "default") == "default" or not factor or factor <= 1:
        return 1.0
    return (0.1 * weight * math.log(factor) + 1.0) ** 2


def _check_every_layer_type(model: nn.Module, plan: Plan) -> None:
    carried = {key for _, module in rotary_modules(model) for key in layer_keys(module)}
    missing = [key for key in plan.schedules if key not in carried]
    if missing:
        raise VerificationError(f"no rotary module of this model has a table for its {missing[0]} layers")


# ---------------------------------------------------------------------------------------------------------
# A module's state


_STATE_WORDS = ("inv_freq", "attention_scaling", "rope_type", "max_seq_len")


def _state(module: nn.Module) -> dict[str, Any]:
    """What a rotary class keeps: tables (buffers) and the plain attributes beside them."""
    plain = {k: v for k, v in module.__dict__.items() if any(word in k for word in _STATE_WORDS)}
    own = {"_apply": module.__dict__["_apply"]} if "_apply" in module.__dict__ else {}
    return {"buffers": dict(module._buffers), "plain": copy.copy(plain) | own}


def _overwrite(module: nn.Module, state: dict[str, Any], device: torch.device) -> None:
    """Replaces a module's state; tables go to ``device`` and keep their dtype."""
    for name in [k for k in module.__dict__ if k == "_apply" or any(word in k for word in _STATE_WORDS)]:
        del module.__dict__[name]
    module.__dict__.update(state["plain"])
    for name, buffer in state["buffers"].items():
        module._buffers[name] = buffer if buffer is None else buffer.to(device)


def _restore(module: nn.Module, state: dict[str, Any]) -> None:
    _overwrite(module, state, next(iter(module.buffers())).device)


def _keep_float32(module: nn.Module) -> None:
    """``model.to(bfloat16)`` would round the tables (relative error 3.7e-3): let it move them only."""

    def _apply(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        before = dict(self._buffers)
        type(self)._apply(self, fn, recurse)
        for name, buffer in before.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(self._buffers[name].device)  # type: ignore[union-attr]
        return self

    module.__dict__["_apply"] = MethodType(_apply, module)


def _refuse_unknown(name: str, module: nn.Module, config: Any) -> None:
    """A module whose tables its configuration does not explain cannot be rebuilt from a new one."""
    try:
        stock = build_stock(module, config)
    except Exception as error:
        raise ConfigError(
            f"{name} ({_stock_class(module).__name__}) cannot be built from the model's configuration: {error}"
        ) from error
    for key in layer_keys(module):
        ours, theirs = _resting_table(module, key), _resting_table(stock, key)
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-2, atol=0):
            raise ConfigError(
                f"{name} ({type(module).__name__}) does not carry the table its configuration describes, so ropescale "
                "cannot tell how to rebuild it; was the configuration or the module changed by hand after loading?"
            )


def _resting_table(module: nn.Module, key: str) -> torch.Tensor:
    """The table before any length-dependent update."""
    table = module._buffers.get(_prefix(key) + "original_inv_freq")
    return (live_table(module, key)[0] if table is None else table).detach().to("cpu", torch.float32)


def _stock_class(module: nn.Module) -> type[nn.Module]:
    return type(module)


def _prefix(key: str) -> str:
    return "" if key == ALL_LAYERS else f"{key}_"


# ---------------------------------------------------------------------------------------------------------
# Length-dependent tables


def _stock_is_stateless(module: nn.Module, key: str) -> bool:
    """longrope's own update looks at nothing but the positions at hand; dynamic's remembers."""
    return rope_type_of(module, key) == "longrope"


def _lists_differ(module: nn.Module, key: str) -> bool:
    parameters = _rope_parameters(module.config, key)
    return list(parameters["short_factor"]) != list(parameters["long_factor"])


def _rope_parameters(config: Any, key: str) -> Mapping[str, Any]:
    return config.rope_parameters if key == ALL_LAYERS else config.rope_parameters[key]


def _disable_stock_update(module: nn.Module, key: str) -> None:
    """Under the type ``default`` the class's forward uses the table as it finds it."""
    kind = module.rope_type
    module.rope_type = {**kind, key: "default"} if isinstance(kind, Mapping) else "default"


def _stock_table(config: Any, kind: str, key: str, length: int) -> tuple[torch.Tensor, float]:
    """The table a freshly loaded stock model uses for a forward of ``length`` tokens."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    layer = {} if key == ALL_LAYERS else {"layer_type": key}
    if kind == "longrope":
        return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length, **layer)
    longer = length > config.max_position_embeddings
    seq_len = torch.tensor(length) if longer else None
    return ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=seq_len, **layer)


def _own_table(schedule: Schedule, rope: Rope, length: int) -> tuple[torch.Tensor, float]:
    table = compute(schedule, rope, length)
    return torch.tensor(list(table.inv_freq), dtype=torch.float32), table.attention_scale


def _set_for_length(
    key: str,
    tables: Callable[[int], tuple[torch.Tensor, float]],
    length: int | None,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Forward pre-hook: writes the tables for the positions at hand into the module."""
    positions = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
    if length is None and positions is None:
        return
    n = length if length is not None else int(positions.max()) + 1  # type: ignore[union-attr]
    inv_freq, scale = tables(n)
    live = module._buffers[_prefix(key) + "inv_freq"]
    assert live is not None
    module._buffers[_prefix(key) + "inv_freq"] = inv_freq.to(live.device)
    setattr(module, _prefix(key) + "attention_scaling", scale)


# ---------------------------------------------------------------------------------------------------------
# What the model was before


def _stack(model: nn.Module) -> list[Patch]:
    """The patches in a model, oldest first; kept on the configuration's owner so that wrappers share it."""
    owner = getattr(model, "_orig_mod", model)
    if _STACK not in owner.__dict__:
        owner.__dict__[_STACK] = []
    return owner.__dict__[_STACK]


def _configuration_before(model: nn.Module) -> Mapping[str, Any]:
    """The configuration without any of our scaling."""
    stack = _stack(model)
    if stack:
        return stack[0].plan.before
    text_config(model)
    config = model.config.to_dict()
    name = getattr(model.config, "_name_or_path", "")
    return original_config(config, Path(name)) if name and Path(name).is_dir() else config


def _put(target: Any, field: str, value: Any) -> None:
    if value is _ABSENT:
        del target.__dict__[field]
    else:
        setattr(target, field, value)
