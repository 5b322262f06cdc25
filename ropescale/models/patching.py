"""Puts a schedule into a loaded Hugging Face model, and takes it out again."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..checkpoints.record import original_config
from ..configs.reading import ALL_LAYERS
from ..errors import ConfigError, RopescaleError, VerificationError
from ..lengths import parse_length
from ..planning.layer import length_dependent
from ..planning.plan import Plan, make_plan
from ..request import Request, RequestOptions
from ..rope import Rope
from ..schedules import Frequencies, Schedule, compute

if TYPE_CHECKING:
    from typing import Unpack

RTOL = 2e-6
"""How far float32 tables may be from the float64 ones, relatively (transformers stays within 5.2e-7)."""

SCALE_RTOL = 1e-5
"""The same for attention scales: Phi-3 derives its own from a maximum length that is a whole number. Unlike an error
in a frequency, one in the scale does not grow with the position."""

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
    request = Request.of(schedule, **options)
    held = None if length is None else parse_length(length)
    before = configuration_before(model)
    plan = make_plan(before, request)
    if not plan.changes:  # as it is now, which need not be as it was before
        plan = dataclasses.replace(make_plan(whole_config(model).to_dict(), Request(schedule)), original=plan.original)
    return Patch(model, plan, held)


class Patch:
    """A schedule in a model. A context manager; :meth:`revert` takes it out, bit for bit.

    Attributes:
        plan: the schedule worked out: configuration, schedules, float64 tables.
        frozen_at: the length that length-dependent tables are held at, if they are.
        length_dependent: whether the tables follow the length of what is processed.
    """

    def __init__(self, model: nn.Module, plan: Plan, length: int | None = None) -> None:
        self.plan = plan
        self.frozen_at: int | None = None
        self.length_dependent = False
        self._model = model
        self._config = text_config(model)
        self._undo: list[Callable[[], None]] = []
        try:
            self._install(length)
        except BaseException:
            self._unwind()
            raise
        _owner(model).__dict__.setdefault(_STACK, []).append(self)

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
        modules = _patchable_modules(self._model)
        if self.plan.changes:
            self._exchange(modules)
        for module in modules.values():
            self._settle(module, length)
        reason = self.plan.unsavable if self.frozen_at is None else _FROZEN.format(self.frozen_at)
        if reason or self.plan.changes:
            self._allow_saving(reason)
        if self.plan.changes:
            check_live(self._model, self.plan, length)

    def _exchange(self, modules: Mapping[str, nn.Module]) -> None:
        """Puts the plan into the modules and the configuration, as stock transformers would build them."""
        config = self._new_config()
        _refuse_theta_per_layer(self._config, config)
        for name, module in modules.items():
            self._replace(name, module, config)
        self._rescale_mla(config)
        for target in {id(c): c for c in (self._config, *(module.config for module in modules.values()))}.values():
            self._update_config(target, config)

    def _new_config(self) -> Any:
        """The text configuration that stock transformers would read back from the one we would save."""
        try:
            with quiet_transformers():
                whole = type(whole_config(self._model)).from_dict(copy.deepcopy(self.plan.config))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())  # its own message has several lines
            raise ConfigError(f"transformers refuses this schedule for {self._config.model_type}: {reason}") from error
        return whole.get_text_config(decoder=True)

    def _replace(self, name: str, module: nn.Module, config: Any) -> None:
        """Gives a module the state that a stock one built from ``config`` would have."""
        if not any(patch.plan.changes for patch in patches_in(self._model)):
            _refuse_unknown(name, module, self._config)
        fresh = build_stock(module, config)
        device = next(iter(module.buffers())).device
        self._remember(module)
        _overwrite(module, _state(fresh), device)
        _keep_float32(module)

    def _remember(self, module: nn.Module) -> None:
        self._undo.append(functools.partial(_restore, module, _state(module)))

    def _settle(self, module: nn.Module, length: int | None) -> None:
        """Makes length-dependent tables a pure function of what is processed, or holds them at ``length``."""
        self._remember(module)
        for key in layer_keys(module):
            tables = self._tables_by_length(module, key)
            if tables is not None:
                self._settle_varying(module, key, tables, length)
            elif self.plan.changes and rope_type_of(module, key) == "longrope":
                # One table at every length: stock's update would only recompile a compiled model's second call.
                _disable_stock_update(module, key)

    def _settle_varying(self, module: nn.Module, key: str, tables: Tables, length: int | None) -> None:
        self.length_dependent = length is None
        self.frozen_at = length
        if length is None and rope_type_of(module, key) == "longrope":
            return  # stock looks at nothing but the positions at hand; dynamic remembers
        _disable_stock_update(module, key)
        _keep_float32(module)
        followed = {k: v for k, v in _followed(module).items() if k != key}
        _follow(module, followed if length is not None else {**followed, key: tables})
        _write(module, key, tables(length or 1))

    def _tables_by_length(self, module: nn.Module, key: str) -> Tables | None:
        """``length -> (inv_freq, attention scale)`` of a module's length-dependent layer type, else None."""
        kind = rope_type_of(module, key)
        if key in _followed(module):  # by the patch below one that leaves everything as it is
            return _followed(module)[key]
        if "dynamic" in kind or (kind == "longrope" and _lists_differ(module, key)):
            return functools.partial(_stock_table, module, kind, key)
        schedule = self.plan.schedules.get(key)
        if schedule is not None and length_dependent(schedule):
            return functools.partial(_own_table, schedule, self.plan.ropes[key])
        return None

    def _rescale_mla(self, config: Any) -> None:
        """DeepSeek's classes multiply the softmax scale by mscale^2 when they are built; do the same."""
        for module in self._model.modules():
            wanted, present = _softmax_scale(module, config), _softmax_scale(module, self._config)
            if wanted is not None and wanted != present:
                self._undo.append(functools.partial(setattr, module, "scaling", module.scaling))
                module.scaling = wanted  # type: ignore[assignment]

    def _update_config(self, config: Any, new: Any) -> None:
        for name in _CONFIG_FIELDS:
            field = type(config).attribute_map.get(name, name)
            old, value = config.__dict__.get(field, _ABSENT), new.__dict__.get(field, _ABSENT)
            if value is not _ABSENT and value != old:
                self._undo.append(functools.partial(_put, config, field, old))
                setattr(config, field, copy.deepcopy(value))

    def _allow_saving(self, reason: str | None) -> None:
        """Lets the model be saved, also where an older patch forbids it; or forbids it, for this reason.

        On the transformers models themselves, not on what wraps them: an adapter alone can be saved at any time.
        """
        from transformers import PreTrainedModel

        save = _ABSENT if reason is None else functools.partial(_refuse_to_save, reason)
        for module in self._model.modules():
            old = module.__dict__.get("save_pretrained", _ABSENT)
            if isinstance(module, PreTrainedModel) and (old is _ABSENT or _refuses(old)) and old is not save:
                self._undo.append(functools.partial(_put, module, "save_pretrained", old))
                _put(module, "save_pretrained", save)

    def _unwind(self) -> None:
        while self._undo:
            self._undo.pop()()


# ---------------------------------------------------------------------------------------------------------
# Finding and reading rotary modules (shared with verifying)


def whole_config(model: nn.Module) -> Any:
    """A model's configuration.

    Raises:
        ConfigError: the object has no transformers configuration.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise ConfigError(f"{type(model).__name__} has no transformers configuration; give a transformers model")
    return config


def text_config(model: nn.Module) -> Any:
    """The configuration of a model's language part; raises as :func:`whole_config`."""
    return whole_config(model).get_text_config(decoder=True)


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
        return type(module)(config)


def stock_table(module: nn.Module, key: str, length: int) -> tuple[torch.Tensor, float]:
    """The table that a stock module uses for a forward of ``length`` tokens."""
    kind = rope_type_of(module, key)
    if "dynamic" in kind or kind == "longrope":
        return _stock_table(module, kind, key, length)
    return live_table(module, key)


def table_at(module: nn.Module, key: str, length: int) -> tuple[torch.Tensor, float]:
    """The table that a module, stock or ours, uses for a forward of ``length`` tokens."""
    followed = _followed(module).get(key)
    return followed(length) if followed is not None else stock_table(module, key, length)


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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """``model.eval()`` inside; afterwards every module is in training mode again if it was."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def unwrapped(model: Any) -> Any:
    """The causal language model inside a compiled or PEFT-wrapped one; its adapters stay in.

    Raises:
        ConfigError: what the adapter adds is not inside (learned prompts), so the model alone would be another one.
    """
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):
            kind = getattr(model, "active_peft_config", None)
            if getattr(kind, "is_prompt_learning", False):
                raise ConfigError(
                    f"the adapter ({type(kind).__name__}) is a learned prompt, which is no part of the model inside; "
                    "measure the model without it, or an adapter that changes weights, such as LoRA"
                )
            model = model.get_base_model()
        else:
            return model


def installed(model: nn.Module) -> Plan | None:
    """The plan of the newest patch in a model that changes its tables, or None."""
    return next((patch.plan for patch in reversed(patches_in(model)) if patch.plan.changes), None)


def held_at(model: nn.Module) -> int | None:
    """The length at which length-dependent tables are held, or None: the newest patch that changes them decides."""
    for patch in reversed(patches_in(model)):
        if patch.frozen_at is not None or patch.plan.changes:
            return patch.frozen_at
    return None


def patches_in(model: nn.Module) -> list[Patch]:
    """The patches in a model that are not reverted yet, oldest first; the same through any wrapper."""
    owner = _owner(model)
    return [] if owner is None else owner.__dict__.get(_STACK, [])


def _owner(model: nn.Module) -> Any:
    """The module that keeps the list of patches: the first rotary one, which all wrappers of a model share."""
    return next((module for _, module in rotary_modules(model)), None)


def difference(table: torch.Tensor, scale: float, wanted: Frequencies) -> float:
    """Largest relative difference of a live table and its scale from the float64 ones; infinite for NaN on either side.

    Of the scale, less than :data:`SCALE_RTOL` counts as none.
    """
    live = table.detach().to("cpu", torch.float64)
    exact = torch.tensor(list(wanted.inv_freq), dtype=torch.float64)
    scales = torch.tensor([scale, wanted.attention_scale], dtype=torch.float64)
    if live.shape != exact.shape or not torch.cat([live, exact, scales]).isfinite().all():
        return math.inf
    still = exact == 0
    moved = (live - exact).abs() / exact.where(~still, torch.ones(()).double())
    moved = torch.where(still, (live.abs() > 1e-20).double(), moved)
    scaled = abs(scale / wanted.attention_scale - 1)
    return max(float(moved.max()), scaled if scaled > SCALE_RTOL else 0.0)


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
            if not off <= RTOL:
                raise VerificationError(
                    f"the schedule is not live: {name} ({key} layers) differs from what was asked by {off:.1e} relative"
                )
    _check_every_layer_type(model, plan)


def _softmax_scale(module: Any, config: Any) -> float | None:
    """The scale an MLA attention module would be built with; None for other modules.

    By transformers' own function, which stands beside those of its classes that look at ``mscale_all_dim``.

    Raises:
        ConfigError: the class looks at ``mscale_all_dim``, but not through that function.
    """
    if not (hasattr(module, "qk_head_dim") and isinstance(getattr(module, "scaling", None), float)):
        return None
    beside = (getattr(sys.modules[cls.__module__], "yarn_apply_mscale", None) for cls in type(module).__mro__)
    apply = next(filter(None, beside), None)
    if apply is not None:
        return apply(config.rope_parameters, module.qk_head_dim**-0.5)
    if (config.rope_parameters or {}).get("mscale_all_dim") and reads_mscale(type(module)):
        raise ConfigError(
            f"{type(module).__name__} scales its softmax by mscale_all_dim, and not through a function that ropescale "
            "knows; install transformers 5.20.2 or a later one that has yarn_apply_mscale"
        )
    return None


def reads_mscale(cls: type) -> bool:
    """Whether the module that defines a class mentions ``mscale_all_dim``; taken for granted where it has no source."""
    try:
        return "mscale_all_dim" in inspect.getsource(sys.modules[cls.__module__])
    except (OSError, TypeError):
        return True


def _check_every_layer_type(model: nn.Module, plan: Plan) -> None:
    carried = {key for _, module in rotary_modules(model) for key in layer_keys(module)}
    missing = [key for key in plan.schedules if key not in carried]
    if missing:
        raise VerificationError(f"no rotary module of this model has a table for its {missing[0]} layers")


# ---------------------------------------------------------------------------------------------------------
# A module's state


_STATE_WORDS = ("inv_freq", "attention_scaling", "rope_type", "rope_init_fn", "max_seq_len")
_FOLLOWED = "_ropescale_followed"
_OURS = ("_apply", _FOLLOWED)


def _state(module: nn.Module) -> dict[str, Any]:
    """What a rotary class keeps: tables (buffers), the plain attributes beside them, and what we added."""
    return {"buffers": dict(module._buffers), "plain": {k: v for k, v in module.__dict__.items() if _is_state(k)}}


def _is_state(name: str) -> bool:
    return name in _OURS or any(word in name for word in _STATE_WORDS)


def _overwrite(module: nn.Module, state: dict[str, Any], device: torch.device) -> None:
    """Replaces a module's state; tables go to ``device`` and keep their dtype."""
    _follow(module, {})
    for name in [k for k in module.__dict__ if _is_state(k)]:
        del module.__dict__[name]
    module.__dict__.update(state["plain"])
    for name, buffer in state["buffers"].items():
        module._buffers[name] = buffer if buffer is None else buffer.to(device)
    if _FOLLOWED in state["plain"]:
        _follow(module, state["plain"][_FOLLOWED].tables)


def _restore(module: nn.Module, state: dict[str, Any]) -> None:
    _overwrite(module, state, next(iter(module.buffers())).device)


def _keep_float32(module: nn.Module) -> None:
    """``model.to(bfloat16)`` would round the tables (relative error 3.7e-3): let it move them only."""
    real = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}

    def _apply(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        before = dict(self._buffers)
        type(self)._apply(self, fn, recurse)
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None:
                # The meta device forgets the numbers; a table that comes back from there is the one it had here.
                self._buffers[name] = (real[name] if buffer.is_meta else buffer).to(moved.device)
        return self

    module.__dict__["_apply"] = MethodType(_apply, module)


def _patchable_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The rotary modules by name.

    Raises:
        ConfigError: there are none, or they have no numbers.
    """
    modules = dict(rotary_modules(model))
    if not modules:
        raise ConfigError(
            f"{type(model).__name__} has no rotary module that transformers builds from its configuration; "
            "there is nothing to patch"
        )
    if any(buffer.is_meta for module in modules.values() for buffer in module.buffers()):
        raise ConfigError("this model is on the meta device, where tables have no numbers; load its weights first")
    return modules


def _refuse_unknown(name: str, module: Any, config: Any) -> None:
    """A module whose tables its configuration does not explain cannot be rebuilt from a new one."""
    try:
        stock = build_stock(module, config)
    except Exception as error:
        raise ConfigError(
            f"{name} ({type(module).__name__}) cannot be built from the model's configuration: {error}"
        ) from error
    if all(_same_table(module, stock, key) for key in layer_keys(module)):
        return
    if module.config.rope_parameters != config.rope_parameters:
        raise ConfigError(
            f"{name} ({type(module).__name__}) has a configuration of its own, whose rope parameters are not "
            "the model's (a theta per layer, for one); ropescale cannot patch such a model in memory"
        )
    raise ConfigError(
        f"{name} ({type(module).__name__}) does not carry the table its configuration describes, so ropescale cannot "
        "tell how to rebuild it; was the configuration or the module changed by hand after loading?"
    )


def _refuse_theta_per_layer(old: Any, new: Any) -> None:
    """granite_swa looks its tables up by theta, in a list beside the rope parameters."""
    if (
        getattr(old, "layer_rope_theta", None)
        and old.rope_parameters["rope_theta"] != new.rope_parameters["rope_theta"]
    ):
        raise ConfigError(
            f"{old.model_type} keeps a theta per layer in layer_rope_theta, so rope_theta cannot be changed for all of "
            "them; use a schedule that keeps it, such as yarn"
        )


def _same_table(module: nn.Module, stock: nn.Module, key: str) -> bool:
    """Whether a module carries the stock table, up to the rounding of a cast or of another device."""
    ours, theirs = _resting_table(module, key), _resting_table(stock, key)
    if ours.shape != theirs.shape or live_table(module, key)[1] != live_table(stock, key)[1]:
        return False
    roundings = (theirs.to(dtype).float() for dtype in (torch.float32, torch.bfloat16, torch.float16))
    return any(torch.allclose(ours, rounded, rtol=RTOL, atol=0) for rounded in roundings)


def _resting_table(module: nn.Module, key: str) -> torch.Tensor:
    """The table before any length-dependent update."""
    table = module._buffers.get(_prefix(key) + "original_inv_freq")
    return (live_table(module, key)[0] if table is None else table).detach().to("cpu", torch.float32)


def _prefix(key: str) -> str:
    return "" if key == ALL_LAYERS else f"{key}_"


# ---------------------------------------------------------------------------------------------------------
# Length-dependent tables


Tables = Callable[[int], tuple[torch.Tensor, float]]
"""``length -> (inv_freq, attention scale)``."""

_FROZEN = (
    "its tables are held at {} tokens, in memory only; to save such a table patch with freeze_at instead of length, "
    "or revert and save the schedule itself"
)


def _lists_differ(module: nn.Module, key: str) -> bool:
    parameters = _rope_parameters(module.config, key)
    return list(parameters["short_factor"]) != list(parameters["long_factor"])


def _rope_parameters(config: Any, key: str) -> Mapping[str, Any]:
    return config.rope_parameters if key == ALL_LAYERS else config.rope_parameters[key]


def _disable_stock_update(module: Any, key: str) -> None:
    """Under the type ``default`` the class's forward uses the table as it finds it."""
    kind = module.rope_type
    module.rope_type = {**kind, key: "default"} if isinstance(kind, Mapping) else "default"


def _stock_table(module: Any, kind: str, key: str, length: int) -> tuple[torch.Tensor, float]:
    """The table a freshly loaded stock module of this type uses for a forward of ``length`` tokens."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    layer = {} if key == ALL_LAYERS else {"layer_type": key}
    build = functools.partial(ROPE_INIT_FUNCTIONS[kind], module.config, torch.device("cpu"), **layer)
    if kind == "longrope":
        return build(seq_len=length)
    if length <= module.config.max_position_embeddings:
        return _resting_table(module, key), live_table(module, key)[1]
    return build(seq_len=torch.tensor(length))  # a tensor, as in stock's forward: the powers are then float32


def _own_table(schedule: Schedule, rope: Rope, length: int) -> tuple[torch.Tensor, float]:
    table = compute(schedule, rope, length)
    return torch.tensor(list(table.inv_freq), dtype=torch.float32), table.attention_scale


class _Follower:
    """Forward pre-hook: writes the tables for the positions at hand into the module."""

    def __init__(self, tables: Mapping[str, Tables]) -> None:
        self.tables = dict(tables)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if positions is None:
            raise RopescaleError(f"{type(module).__name__} was called without position_ids; its tables follow them")
        length = int(positions.max()) + 1
        for key, tables in self.tables.items():
            _write(module, key, tables(length))


def _followed(module: nn.Module) -> Mapping[str, Tables]:
    """The layer types whose tables follow the positions, and how."""
    follower = module.__dict__.get(_FOLLOWED)
    return {} if follower is None else follower.tables


def _follow(module: nn.Module, tables: Mapping[str, Tables]) -> None:
    """Makes a module's tables follow the positions by these functions, and by no older ones."""
    old = [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, _Follower)]
    for key in old:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    module.__dict__.pop(_FOLLOWED, None)
    if tables:
        module.__dict__[_FOLLOWED] = follower = _Follower(tables)
        module.register_forward_pre_hook(follower, with_kwargs=True, prepend=True)


def _write(module: nn.Module, key: str, table: tuple[torch.Tensor, float]) -> None:
    live, _ = live_table(module, key)
    module._buffers[_prefix(key) + "inv_freq"] = table[0].to(live.device)
    setattr(module, _prefix(key) + "attention_scaling", table[1])


# ---------------------------------------------------------------------------------------------------------
# What the model was before


def configuration_before(model: nn.Module) -> Mapping[str, Any]:
    """A loaded model's configuration without any scaling of ours, from memory or from the folder it was loaded from."""
    now = whole_config(model)
    stack = patches_in(model)
    if stack:
        before = stack[0].plan.before
        if before.get("model_type") != now.model_type:
            raise ConfigError(
                f"a patch of a {before.get('model_type')} model is in this {now.model_type}, which is a part "
                "of it; patch the whole model, or revert that patch first"
            )
        return before
    config = now.to_dict()
    name = getattr(now, "_name_or_path", "")
    return original_config(config, Path(name)) if name and Path(name).is_dir() else config


def _put(target: Any, field: str, value: Any) -> None:
    if value is _ABSENT:
        del target.__dict__[field]
    else:
        setattr(target, field, value)


def _refuse_to_save(reason: str, *args: Any, **kwargs: Any) -> None:
    raise RopescaleError(f"this model cannot be saved as it is: {reason}")


def _refuses(method: Any) -> bool:
    return isinstance(method, functools.partial) and method.func is _refuse_to_save
