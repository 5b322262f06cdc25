"""The outside oracle of the configuration tests: the rotary tables that stock transformers builds."""

from __future__ import annotations

import copy
import importlib
import json
import logging
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

TEXT_MODULES = {name: name.split("_")[0] for name in "emu3_text_model mllama_text_model gemma3_text mistral4".split()}
"""Language models whose modeling file is not found through the causal-LM mapping of their own type."""


def stock_config(config: Mapping[str, Any]) -> Any:
    """What transformers makes of a config.json, after a trip through JSON; the language model's part."""
    fields = json.loads(json.dumps(config))
    with quiet():
        return CONFIG_MAPPING[fields["model_type"]].from_dict(fields).get_text_config(decoder=True)


def stock_tables(config: Mapping[str, Any]) -> dict[str, tuple[torch.Tensor, float]]:
    """``{layer type, or "all": (inv_freq in float64 [pairs], attention scaling)}`` of the real rotary module."""
    loaded = stock_config(config)
    found: Exception | None = None
    for cls in rotary_classes(loaded):
        try:
            return tables_of(cls(copy.deepcopy(loaded)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # the class of another part of the model
            found = error
    raise AssertionError(f"no rotary module of {loaded.model_type} can be built") from found


def rotary_classes(config: Any) -> list[type[torch.nn.Module]]:
    """The text rotary embeddings in the modeling file of a configuration."""
    if config.model_type in TEXT_MODULES:
        package = TEXT_MODULES[config.model_type]
        module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    else:
        module = importlib.import_module(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__module__)
    names = [
        name
        for name in dir(module)
        if name.endswith("RotaryEmbedding") and "Vision" not in name and "Audio" not in name
    ]
    return [getattr(module, name) for name in names if getattr(module, name).__module__ == module.__name__]


def tables_of(module: torch.nn.Module) -> dict[str, tuple[torch.Tensor, float]]:
    """The live tables of a rotary module, by what its buffers are called."""
    found = {}
    for name, table in module.named_buffers(recurse=False):
        if name.endswith("inv_freq") and "original" not in name:
            prefix = name.removesuffix("inv_freq")
            scale = getattr(module, f"{prefix}attention_scaling", getattr(module, "attention_scaling", 1.0))
            found[prefix.rstrip("_") or "all"] = (table.double(), float(scale))
    return found


@contextmanager
def quiet() -> Any:
    """Transformers warns about every key of the model's own, and about the longrope mscales that other engines read."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def assert_same_tables(found: Mapping[str, Any], expected: Mapping[str, tuple[torch.Tensor, float]]) -> None:
    """Frequencies (float64) against stock's float32 ones, per layer type: rtol 2e-6, the attention scale to 1e-6."""
    assert set(found) == set(expected)
    for key, (inv_freq, scale) in expected.items():
        ours = torch.tensor(found[key].inv_freq, dtype=torch.float64)
        assert ours.shape == inv_freq.shape, key
        torch.testing.assert_close(ours, inv_freq, rtol=2e-6, atol=1e-25, msg=lambda text, key=key: f"{key}: {text}")
        assert abs(found[key].attention_scale - scale) <= 1e-6, key
