"""Reads checkpoints with another version of transformers, whose interpreter runs this without ropescale.

``python rotary_reader.py FOLDER OUT`` loads every checkpoint in FOLDER (only built, with random weights, where there
are none), feeds it texts of the lengths that its ``lengths.json`` holds, and catches what its rotary modules return.
OUT gets ``index.json``, which has for every checkpoint

* ``outcome``: ``absent`` (this version has no such model type), ``stopped`` (with ``error``, the exception's name, and
  ``calls``, how many texts went through before it) or ``read``;
* ``scales``: what the latent attention layers multiply their logits by, one number per layer;

and ``arrays.npz``: ``CHECKPOINT|call|MODULE|layer type`` is float32 [2, positions, width], cos above sin, at
:func:`positions`, and ``CHECKPOINT|call|logits`` what a model with weights says about the last position.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def positions(length: int) -> list[int]:
    """Where cos and sin are looked at: near the beginning, in the middle and at the end."""
    return [0, 1, 2, 5, length // 2, length - 1]


def main(root: Path, out: Path) -> None:
    import numpy as np
    import torch

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    index: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        index[folder.name] = _read(folder, arrays)
    np.savez(out / "arrays.npz", **arrays)
    (out / "index.json").write_text(json.dumps(index))


def _read(folder: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if json.loads((folder / "config.json").read_text())["model_type"] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return {"outcome": "absent"}
    calls = 0
    try:
        model = _model(folder)
        for length in json.loads((folder / "lengths.json").read_text()):
            arrays.update(_call(model, f"{folder.name}|{calls}", length))
            calls += 1
    except Exception as error:
        return {"outcome": "stopped", "error": type(error).__name__, "calls": calls}
    return {"outcome": "read", "scales": _softmax_scales(model)}


def _model(folder: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if list(folder.glob("*.safetensors")):
        return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()


def _call(model: Any, prefix: str, length: int) -> dict[str, Any]:
    """What the rotary modules return while the model reads a text of this length, and the last logits."""
    import torch

    caught: dict[str, Any] = {}
    ids = (torch.arange(length) * 7 % model.config.vocab_size)[None]
    with torch.no_grad(), ExitStack() as hooks:
        for name, module in model.named_modules():
            if "RotaryEmbedding" in type(module).__name__ and "vision" not in name and "audio" not in name:

                def catch(module: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                    kind = next((value for value in (*args, *kwargs.values()) if isinstance(value, str)), "")
                    caught[f"{prefix}|{name}|{kind}"] = _rows(output, length)

                hooks.enter_context(module.register_forward_hook(catch, with_kwargs=True))
        logits = model(input_ids=ids, use_cache=False).logits
    return {**caught, f"{prefix}|logits": logits[0, -1].float().numpy()}


def _rows(output: Any, length: int) -> Any:
    """cos above sin, [2, positions, width]; some models return them as one complex number."""
    import torch

    cos, sin = output if isinstance(output, tuple) else (output.real, output.imag)
    both = torch.stack([cos.float().reshape(length, -1), sin.float().reshape(length, -1)])
    return both[:, positions(length)].numpy()


def _softmax_scales(model: Any) -> list[float]:
    latent = [module for module in model.modules() if hasattr(module, "kv_a_proj_with_mqa")]
    return [float(module.scaling) for module in latent]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
