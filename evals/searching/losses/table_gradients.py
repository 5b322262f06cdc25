"""Tables in a model's rotary modules that gradients flow through.

transformers computes cos and sin under ``torch.no_grad``, and its modules may change their own tables. Inside
:meth:`LiveTables.differentiable` they compute with their innermost ``forward`` instead, so every family's own layout
of cos and sin is kept. The schedule that the search starts at is patched in meanwhile, so that configuration, softmax
scales and everything else besides the numbers are what they will be under the schedule that is found.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType

import torch
from torch import nn

from ....models import patching
from ....models.rotary_modules import layer_keys, prefix, rotary_modules
from ....planning.plan import Plan
from ...scoring.scorer import answering
from ..families.space import DiffTables


class LiveTables:
    """The places in a model where the tables of a plan's layers are.

    Args:
        model: the causal language model itself, without wrappers.
        plan: the schedule that the search starts at.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model, self.plan = model, plan

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Puts the starting schedule in, and freezes the weights; afterwards everything is as it was, bit for bit."""
        asked = {each: each.requires_grad for each in self.model.parameters()}
        with patching.Patch(self.model, self.plan):
            kept = [(module, dict(module._buffers), dict(module.__dict__)) for module in self._modules()]
            try:
                self.model.requires_grad_(False)
                yield
            finally:
                for parameter, wanted in asked.items():
                    parameter.requires_grad_(wanted)
                for module, buffers, plain in kept:
                    module.__dict__.update(plain)
                    module._buffers.update(buffers)

    @contextmanager
    def differentiable(self) -> Iterator[None]:
        """Lets gradients flow through cos and sin inside."""
        with ExitStack() as stack:
            for module in self._modules():
                innermost = inspect.unwrap(type(module).forward)
                stack.enter_context(answering(module, MethodType(innermost, module)))
            yield

    def write(self, tables: DiffTables) -> None:
        """Writes tables into the modules, in float32 as transformers has them; gradients stay attached."""
        for module in self._modules():
            for key in set(layer_keys(module)) & tables.keys():
                inv_freq, scale = tables[key]
                name = prefix(key) + "inv_freq"
                there = module._buffers[name]
                assert there is not None
                module._buffers[name] = inv_freq.to(there.device, torch.float32)
                wanted = scale.to(there.device, torch.float32) if scale.requires_grad else float(scale)
                module.__dict__[prefix(key) + "attention_scaling"] = wanted

    def _modules(self) -> list[nn.Module]:
        changed = self.plan.layers.keys()
        return [module for _, module in rotary_modules(self.model) if changed & set(layer_keys(module))]
