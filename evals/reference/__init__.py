"""The reference model: a small real Llama that comes with the package, and the text it is measured on.

``python -m ropescale.evals.reference --taught -o OUT`` writes the model with the small adapter that teaches it to
answer ``ropescale retrieval``.
"""

from __future__ import annotations

from pathlib import Path

from .corpus import HELD_OUT, held_out_documents

CHECKPOINT = Path(__file__).parent / "llama-3.5m-stdlib"
"""The folder of the trained checkpoint: bf16 safetensors, configuration, tokenizer, model card."""

PASSKEY = Path(__file__).parent / "llama-3.5m-stdlib-passkey"
"""The folder of the adapter that teaches it to answer: PEFT's configuration, float32 safetensors, card."""

FOUND = Path(__file__).parent / "found-2048.json"
"""What ``ropescale search`` found for 2,048 tokens (by gradient, seed 0, 500,000 tokens): a file for ``--schedule``."""

__all__ = ["CHECKPOINT", "FOUND", "HELD_OUT", "PASSKEY", "held_out_documents"]
