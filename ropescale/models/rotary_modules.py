"""Finds a loaded model's rotary modules and reads their tables; builds stock modules for comparison."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..configs.class_defaults import ALL_LAYERS
from ..errors import ConfigError, RopescaleError, RunError
from ..files import Json
from ..output.formatting import first_line
from ..schedules import Frequencies

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


Table = tuple[torch.Tensor, float]
"""The frequencies and the attention scale of a module."""

RTOL = 2e-6
"""The largest relative difference allowed between a float32 table and the float64 table (transformers: 5.2e-7)."""

SCALE_RTOL = 1e-5
"""The tolerance for attention scales: Phi-3 derives its scale from an integer maximum length. An error in the scale,
unlike an error in a frequency, does not grow with the position."""


def whole_config(model: nn.Module) -> PreTrainedConfig:
    """Returns a model's full configuration.

    Raises:
        ConfigError: the object has no transformers configuration.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise ConfigError(f"{type(model).__name__} has no transformers configuration; give a transformers model")
    return config


def text_config(model: nn.Module) -> PreTrainedConfig:
    """Returns the configuration of a model's language part; raises the errors of :func:`whole_config`."""
    return whole_config(model).get_text_config(decoder=True)


def unwrapped(model: Any) -> Any:
    """Returns the causal language model inside a compiled or PEFT-wrapped model, with its adapters active.

    Raises:
        ConfigError: the adapter is a learned prompt, which is not part of the model inside.
    """
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):
            kind = getattr(model, "active_peft_config", None)
            if getattr(kind, "is_prompt_learning", False):
                raise ConfigError(
                    f"the adapter ({type(kind).__name__}) is a learned prompt, which is not part of the inner model; "
                    "measure the model without it, or with an adapter such as LoRA, which changes weights"
                )
            model = model.get_base_model()
        else:
            return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switches a model to evaluation mode; restores the mode of every module afterwards."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def quiet_transformers(part: str = "transformers.modeling_rope_utils") -> Iterator[None]:
    """Silences the warnings of a part of transformers, by default those on rope parameters."""
    logger = logging.getLogger(part)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# ---------------------------------------------------------------------------------------------------------
# Live tables


def rotary_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the name and the module of every module with frequency tables in the language model."""
    config = text_config(model)
    for name, module in model.named_modules():
        if layer_keys(module) and getattr(getattr(module, "config", None), "model_type", None) == config.model_type:
            yield name, module


def layer_keys(module: nn.Module) -> list[str]:
    """Returns the layer types of a module's tables: ``all`` for ``inv_freq``, ``T`` for ``T_inv_freq``."""
    names = [name for name in module._buffers if name.endswith("inv_freq") and "original" not in name]
    return [name.removesuffix("inv_freq").rstrip("_") or ALL_LAYERS for name in names]


def prefix(key: str) -> str:
    """Returns the prefix of a layer type's buffer names."""
    return "" if key == ALL_LAYERS else f"{key}_"


def live_table(module: nn.Module, key: str) -> Table:
    """Returns a module's current frequencies and attention scale for a layer type."""
    table = module._buffers[prefix(key) + "inv_freq"]
    assert table is not None
    scale = getattr(module, prefix(key) + "attention_scaling", getattr(module, "attention_scaling", 1.0))
    return table, float(scale)


def rope_type_of(module: nn.Module, key: str) -> str:
    """Returns the rope type that a module's own update code reads."""
    kind = getattr(module, "rope_type", "default")
    return str(kind.get(key, "default") if isinstance(kind, Mapping) else kind)


def varies(module: nn.Module, key: str) -> bool:
    """Whether stock transformers changes this table with the length."""
    kind = rope_type_of(module, key)
    if kind != "longrope":
        return "dynamic" in kind
    config: Any = module.config
    parameters = config.rope_parameters if key == ALL_LAYERS else config.rope_parameters[key]
    return list(parameters["short_factor"]) != list(parameters["long_factor"])


def difference(table: torch.Tensor, scale: float, wanted: Frequencies) -> float:
    """Returns the largest relative difference of a live table and its scale from the wanted float64 values.

    The result is infinite for different numbers of pairs, and for NaN or infinity. Ignores differences of the scale
    below :data:`SCALE_RTOL`.
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


# ---------------------------------------------------------------------------------------------------------
# Stock tables


def build_stock(module: nn.Module, config: PreTrainedConfig) -> nn.Module:
    """Builds a new module of the same class from ``config`` with transformers, with real tables on the CPU."""
    with torch.device("cpu"):
        return type(module)(config)


def stock_table(module: nn.Module, key: str, length: int) -> Table:
    """Returns the table that a stock module uses for a forward pass over ``length`` tokens."""
    kind = rope_type_of(module, key)
    changes = "dynamic" in kind or kind == "longrope"
    return built_table(module, kind, key, length) if changes else live_table(module, key)


def built_table(module: nn.Module, kind: str, key: str, length: int) -> Table:
    """Returns the table that transformers builds for a rope type and a length, even if the module's table differs."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config: Any = module.config
    layer = {} if key == ALL_LAYERS else {"layer_type": key}
    build = functools.partial(ROPE_INIT_FUNCTIONS[kind], config, torch.device("cpu"), **layer)
    if kind == "longrope":
        return build(seq_len=length)
    if length <= config.max_position_embeddings:
        return _at_rest(module, key), live_table(module, key)[1]
    return build(seq_len=torch.tensor(length))  # a tensor, as in stock's forward: the powers are then float32


def is_stock(module: nn.Module, stock: nn.Module) -> bool:
    """Whether a module's tables equal a stock module's, up to rounding by a cast or another device."""
    for key in layer_keys(module):
        ours = _at_rest(module, key)
        theirs = _at_rest(stock, key)
        if ours.shape != theirs.shape or live_table(module, key)[1] != live_table(stock, key)[1]:
            return False
        roundings = (theirs.to(dtype).float() for dtype in (torch.float32, torch.bfloat16, torch.float16))
        if not any(torch.allclose(ours, rounded, rtol=RTOL, atol=0) for rounded in roundings):
            return False
    return True


def _at_rest(module: nn.Module, key: str) -> torch.Tensor:
    """Returns the table before any length-dependent update."""
    table = module._buffers.get(prefix(key) + "original_inv_freq")
    return (live_table(module, key)[0] if table is None else table).detach().to("cpu", torch.float32)


def softmax_scale(module: nn.Module, config: PreTrainedConfig) -> float | None:
    """Returns the softmax scale of a newly built MLA attention module; None for other modules.

    Calls transformers' own ``yarn_apply_mscale``, in the Python module of classes that read ``mscale_all_dim``.

    Raises:
        ConfigError: the class reads ``mscale_all_dim`` without that function.
    """
    head_dim: Any = getattr(module, "qk_head_dim", None)
    if head_dim is None or not isinstance(getattr(module, "scaling", None), float):
        return None
    parameters = config.rope_parameters
    beside = (getattr(sys.modules[cls.__module__], "yarn_apply_mscale", None) for cls in type(module).__mro__)
    apply = next(filter(None, beside), None)
    if apply is not None:
        return apply(parameters, head_dim**-0.5)
    if (parameters or {}).get("mscale_all_dim") and reads_mscale(type(module)):
        raise ConfigError(
            f"{type(module).__name__} scales its softmax by mscale_all_dim without the function that ropescale needs; "
            "install a transformers that has yarn_apply_mscale"
        )
    return None


def reads_mscale(cls: type) -> bool:
    """Whether the Python module that defines a class mentions ``mscale_all_dim``; True if the source is missing."""
    try:
        return "mscale_all_dim" in inspect.getsource(sys.modules[cls.__module__])
    except (OSError, TypeError):
        return True


Tables = Callable[[int], Table]
"""A function from a length to ``(inv_freq, attention scale)``."""

_STATE_WORDS = ("inv_freq", "attention_scaling", "rope_type", "rope_init_fn", "max_seq_len")
_HOOK = "_ropescale_length_hook"


@dataclass(frozen=True)
class ModuleState:
    """The tables of a rotary module, its plain attributes, and ropescale's additions."""

    buffers: Mapping[str, torch.Tensor | None]
    plain: Json

    @classmethod
    def of(cls, module: nn.Module) -> ModuleState:
        """Captures the state of a module."""
        return cls(dict(module._buffers), {k: v for k, v in module.__dict__.items() if _is_state(k)})

    def put_into(self, module: nn.Module) -> None:
        """Restores the state into a module; tables move to the module's device and keep their dtype."""
        device = next(iter(module.buffers())).device
        follow(module, {})
        for name in filter(_is_state, list(module.__dict__)):
            del module.__dict__[name]
        module.__dict__.update(self.plain)
        for name, buffer in self.buffers.items():
            module._buffers[name] = buffer if buffer is None else buffer.to(device)
        hook = self.plain.get(_HOOK)
        if isinstance(hook, LengthHook):
            follow(module, hook.tables)


def _is_state(name: str) -> bool:
    return name in ("_apply", _HOOK) or any(word in name for word in _STATE_WORDS)


def keep_float32(module: nn.Module) -> None:
    """Makes ``model.to(bfloat16)`` only move the tables instead of rounding them (relative error 3.7e-3)."""
    real = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}

    def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        before = dict(self._buffers)
        type(self)._apply(self, fn, recurse)
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None:
                # The meta device has no numbers, so restore the saved table.
                self._buffers[name] = (real[name] if buffer.is_meta else buffer).to(moved.device)
        return self

    module.__dict__["_apply"] = MethodType(_apply, module)


class LengthHook:
    """A forward pre-hook that writes the tables for the current positions into the module."""

    def __init__(self, tables: Mapping[str, Tables]) -> None:
        self.tables = dict(tables)

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Json) -> None:
        positions = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if not isinstance(positions, torch.Tensor):
            raise RopescaleError(f"{type(module).__name__} was called without position_ids, which its tables depend on")
        length = int(positions.max()) + 1
        for key, tables in self.tables.items():
            write_table(module, key, tables(length))


def followed(module: nn.Module) -> Mapping[str, Tables]:
    """Returns the functions that compute a module's tables from the positions, by layer type; empty without any."""
    hook = module.__dict__.get(_HOOK)
    return {} if hook is None else hook.tables


def follow(module: nn.Module, tables: Mapping[str, Tables]) -> None:
    """Makes a module compute its tables from the positions by these functions, which replace older functions.

    Resets torch.compile in the whole process, because compiled code does not notice a new hook.
    """
    old = [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, LengthHook)]
    for key in old:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    module.__dict__.pop(_HOOK, None)
    if tables:
        module.__dict__[_HOOK] = hook = LengthHook(tables)
        module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        torch.compiler.reset()


def write_table(module: nn.Module, key: str, table: Table) -> None:
    """Writes a table into a module, on the device of the module's current table."""
    live, _ = live_table(module, key)
    module._buffers[prefix(key) + "inv_freq"] = table[0].to(live.device)
    setattr(module, prefix(key) + "attention_scaling", table[1])


def table_at(module: nn.Module, key: str, length: int) -> Table:
    """Returns the table of a stock or patched module for a forward pass over ``length`` tokens."""
    tables = followed(module).get(key)
    return stock_table(module, key, length) if tables is None else tables(length)


@contextmanager
def full_precision() -> Iterator[None]:
    """Computes float32 products in float32 inside the block, whatever the caller allowed: TF32 keeps 10 bits, and would
    round the positions; a processor's bfloat16 keeps 7."""
    matmuls = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    name, exact = ("fp32_precision", "ieee") if all(matmuls) else ("allow_tf32", False)
    with ExitStack() as stack:
        for each in filter(None, matmuls):
            stack.callback(setattr, each, name, getattr(each, name))
            setattr(each, name, exact)
        yield


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restores the rotary tables and their modules' attributes after the block, in the same tensors."""
    kept = []
    for _, module in rotary_modules(model):
        numbers = {name: buffer.clone() for name, buffer in module._buffers.items() if buffer is not None}
        kept.append((module, dict(module.__dict__), dict(module._buffers), numbers))
    try:
        yield
    finally:
        for module, attributes, buffers, numbers in kept:
            # Every intermediate state is complete, because this may be interrupted.
            for name in module.__dict__.keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            module._buffers.clear()
            for name, buffer in buffers.items():
                module._buffers[name] = buffer
                if buffer is not None:
                    buffer.copy_(numbers[name])


@contextmanager
def unset(model: PreTrainedModel) -> Iterator[None]:
    """Clears the generation settings inside the block, such as end-of-text tokens and penalties."""
    from transformers import GenerationConfig

    settings = model.generation_config
    model.generation_config = GenerationConfig(cache_implementation=getattr(settings, "cache_implementation", None))
    try:
        yield
    finally:
        model.generation_config = settings


@contextmanager
def one_line() -> Iterator[None]:
    """Converts an error of the model's code to a one-line RunError."""
    try:
        yield
    except RopescaleError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise RunError(f"out of memory ({first_line(error)}); give a smaller length", "length") from error
    except Exception as error:
        raise RunError(f"the model fails while it generates: {type(error).__name__}: {first_line(error)}") from error
