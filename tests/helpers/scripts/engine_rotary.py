"""Runs the rotary code of vLLM or SGLang alone: ``python engine_rotary.py ENGINE FOLDER < cases.json > rows.json``.

FOLDER holds the engine's own package of rotary layers; whatever else of the engine that package imports (kernels,
platforms, loggers) is a stand-in. Nothing that computes a frequency is replaced.

A case is ``{"head_size", "max_position", "parameters", "positions", "max_model_len", "neox", "partial",
"positions_factor"}`` (the last two: what the model's code passes to SGLang's layer as the share of a head that rotates,
and to vLLM's layer for mrope as the factor of its length). The layer turns a head by these
positions, or by three equal rows of them where the parameters have ``mrope_section``, as the engines do for a text.
What comes back is ``{"rows": cos and sin of each position, one list per position}`` or ``{"error": "KeyError: ..."}``.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

PACKAGES = {"vllm": "vllm.model_executor.layers.rotary_embedding", "sglang": "sglang.srt.layers.rotary_embedding"}


class Operation(torch.nn.Module):
    """What the engines derive their layers from: a module that may have kernels of its own; here it has none."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    @staticmethod
    def register(name: str) -> Any:
        return lambda cls: cls

    @staticmethod
    def enabled() -> bool:
        return False


SERVED = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=0))
YES, NO = (lambda *_, **__: True), (lambda *_, **__: False)
STANDS_FOR = {
    "CustomOp": Operation,
    "BaseFusedOp": Operation,
    "get_current_vllm_config": lambda: SERVED,
    "current_platform": MagicMock(is_cuda=NO, is_cpu=YES, is_rocm=NO, is_out_of_tree=NO),
    "rocm_aiter_ops": MagicMock(is_triton_rotary_embed_enabled=NO),
    "get_bool_env_var": NO,
    "cpu_has_amx_support": NO,
    "is_cpu": YES,
    **dict.fromkeys(("is_cuda", "is_hip", "is_mps", "is_musa", "is_npu", "is_xpu", "has_flashinfer"), NO),
    "publish_role": lambda: None,
    "get_device": lambda: "cpu",
}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the engine outside its rotary package, and makes an empty one."""

    def __init__(self, engine: str, folder: str) -> None:
        self.engine, self.own, self.folder = engine, PACKAGES[engine], folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == self.own:
            return importlib.machinery.PathFinder.find_spec(name, [self.folder])
        if name.startswith(f"{self.own}.") or name.partition(".")[0] != self.engine:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: STANDS_FOR[name] if name in STANDS_FOR else MagicMock(name=name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """An empty module has nothing to run."""


def rows(engine: str, package: Any, case: dict[str, Any]) -> list[list[float]]:
    """cos and sin, side by side, of each position asked for."""
    SERVED.model_config.max_model_len = case["max_model_len"]
    size, longest, parameters = case["head_size"], case["max_position"], case["parameters"]
    if engine == "vllm":
        factor = case["positions_factor"]
        layer = package.get_rope(size, longest, case["neox"], parameters, torch.float32, mrope_positions_factor=factor)
    else:
        theta, share = parameters["rope_theta"], case["partial"]
        layer = package.get_rope(size, size, longest, theta, case["neox"], parameters, torch.float32, share)
    positions = torch.tensor(case["positions"])
    if "mrope_section" in parameters:
        positions = positions.repeat(3, 1)
    half = layer.rotary_dim // 2
    first, second = (
        (slice(half), slice(half, 2 * half)) if case["neox"] else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    head = torch.zeros(len(case["positions"]), size)
    head[:, first] = 1.0  # (1, 0) in every pair, which becomes (cos, sin)
    turn = getattr(layer, "forward_native", layer.forward)
    shape = (-1, 1, size) if parameters["rope_type"] == "deepseek_yarn" else (-1, size)  # heads apart
    turned = turn(positions, head.view(shape), head.clone().view(shape))[0].view(-1, size)
    return torch.cat([turned[:, first], turned[:, second]], dim=-1).tolist()


def main(engine: str, folder: str) -> None:
    sys.meta_path.insert(0, StandIns(engine, str(Path(folder).parent)))
    package = importlib.import_module(PACKAGES[engine])
    answers = []
    for case in json.load(sys.stdin):
        try:
            answers.append({"rows": rows(engine, package, case)})
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
