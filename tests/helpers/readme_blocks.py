"""The blocks of code of the README and the guides, and a folder that holds what they speak of."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM

from ropescale.evals.reference import CHECKPOINT, held_out_documents

MAKE = {"make demo", "make test"}
"""Run by the continuous integration itself, which starts with them."""

QWEN3_ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0}
"""As Qwen3-8B's configuration has it, like its max_position_embeddings."""


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each block of code; none where there is no such page."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def furnish(folder: Path, checkpoint: Path = CHECKPOINT) -> None:
    """Writes what the blocks speak of; no hub is asked for Qwen's model, a tiny one lies in its place."""
    (folder / "CKPT").symlink_to(checkpoint)
    for name, text in zip(("book.txt", "test.txt"), held_out_documents()):
        (folder / name).write_text(text[:12_000], encoding="utf-8")
    config = Qwen3Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, vocab_size=2048, max_position_embeddings=40_960, rope_parameters=QWEN3_ROPE,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder / "Qwen" / "Qwen3-8B")
