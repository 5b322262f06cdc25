"""the digest of weight files, beside loading them and one forward pass."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import models
import sides


def measure(seconds: float) -> list[sides.Row]:
    """Returns ratios of CPU time, with the file in the page cache: of the first run, and of those after it."""
    import torch
    from transformers import AutoModelForCausalLM

    from ropescale.evals.backends.fingerprints import files_fingerprint

    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place, "model"), Path(place, "cache")
        os.environ["XDG_CACHE_HOME"] = str(cache)
        shape = {"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 8}
        models.llama(vocab_size=32768, hidden_size=2048, intermediate_size=5632, **shape).save_pretrained(folder)
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        ids = torch.arange(128)[None]

        def load() -> None:
            with torch.inference_mode():
                AutoModelForCausalLM.from_pretrained(folder)(ids)

        def first() -> None:
            shutil.rmtree(cache, ignore_errors=True)
            files_fingerprint(folder)

        acts = {"loading and a forward pass": load, "the first digest": first}
        again = "the digest that is remembered"
        seen = sides.in_turn(acts | {again: lambda: files_fingerprint(folder)}, seconds, taken=sides.cpu)
    rows = sides.ratios(seen, "loading and a forward pass")
    return [*rows, sides.Row("weights", size / 1e9, unit="GB", note="in float32; 128 tokens in the forward pass")]
