"""The state of a rotary module: saves and replaces it, and lets its tables follow the positions at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType

import torch
from torch import nn

from ..errors import RopescaleError
from .rotary_modules import Table, live_table, prefix, stock_table

Tables = Callable[[int], Table]
"""``length -> (inv_freq, attention scale)``."""

_STATE_WORDS = ("inv_freq", "attention_scaling", "rope_type", "rope_init_fn", "max_seq_len")
_FOLLOWED = "_ropescale_followed"


@dataclass(frozen=True)
class ModuleState:
    """The tables of a rotary module, the plain attributes beside them, and what ropescale added."""

    buffers: Mapping[str, torch.Tensor | None]
    plain: Mapping[str, object]

    @classmethod
    def of(cls, module: nn.Module) -> ModuleState:
        """Takes the state of a module."""
        return cls(dict(module._buffers), {k: v for k, v in module.__dict__.items() if _is_state(k)})

    def put_into(self, module: nn.Module) -> None:
        """Replaces a module's state; tables go to its device and keep their dtype."""
        device = next(iter(module.buffers())).device
        follow(module, {})
        for name in filter(_is_state, list(module.__dict__)):
            del module.__dict__[name]
        module.__dict__.update(self.plain)
        for name, buffer in self.buffers.items():
            module._buffers[name] = buffer if buffer is None else buffer.to(device)
        follower = self.plain.get(_FOLLOWED)
        if isinstance(follower, _Follower):
            follow(module, follower.tables)


def _is_state(name: str) -> bool:
    return name in ("_apply", _FOLLOWED) or any(word in name for word in _STATE_WORDS)


def keep_float32(module: nn.Module) -> None:
    """Lets ``model.to(bfloat16)`` only move the tables: it would round them (relative error 3.7e-3)."""
    real = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}

    def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        before = dict(self._buffers)
        type(self)._apply(self, fn, recurse)
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None:
                # The meta device forgets the numbers; a table that comes back from there is the one it had here.
                self._buffers[name] = (real[name] if buffer.is_meta else buffer).to(moved.device)
        return self

    module.__dict__["_apply"] = MethodType(_apply, module)


class _Follower:
    """Forward pre-hook that writes the tables for the positions at hand into the module."""

    def __init__(self, tables: Mapping[str, Tables]) -> None:
        self.tables = dict(tables)

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        positions = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if not isinstance(positions, torch.Tensor):
            raise RopescaleError(f"{type(module).__name__} was called without position_ids; its tables follow them")
        length = int(positions.max()) + 1
        for key, tables in self.tables.items():
            write_table(module, key, tables(length))


def followed(module: nn.Module) -> Mapping[str, Tables]:
    """Returns the layer types whose tables follow the positions, and how."""
    follower = module.__dict__.get(_FOLLOWED)
    return {} if follower is None else follower.tables


def follow(module: nn.Module, tables: Mapping[str, Tables]) -> None:
    """Makes a module's tables follow the positions by these functions, and by no older ones."""
    old = [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, _Follower)]
    for key in old:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    module.__dict__.pop(_FOLLOWED, None)
    if tables:
        module.__dict__[_FOLLOWED] = follower = _Follower(tables)
        module.register_forward_pre_hook(follower, with_kwargs=True, prepend=True)


def write_table(module: nn.Module, key: str, table: Table) -> None:
    """Writes a table into a module, on the device of the one it carries."""
    live, _ = live_table(module, key)
    module._buffers[prefix(key) + "inv_freq"] = table[0].to(live.device)
    setattr(module, prefix(key) + "attention_scaling", table[1])


def table_at(module: nn.Module, key: str, length: int) -> Table:
    """Returns the table that a module, stock or patched, uses for a forward pass over ``length`` tokens."""
    tables = followed(module).get(key)
    return stock_table(module, key, length) if tables is None else tables(length)
