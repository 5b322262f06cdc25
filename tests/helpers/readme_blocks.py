"""The blocks of code of the README and the guides, how they are run, and a folder that holds what they speak of."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import sys
from pathlib import Path
from textwrap import dedent
from unittest.mock import patch

import torch
from tiny import byte_tokenizer
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3Config, Qwen3ForCausalLM

from ropescale.cli.main import main
from ropescale.evals.reference import held_out_documents

FENCED = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
"""A block: its indentation, its language, its text."""

MAKE = {"make demo", "make test"}
"""Run by the continuous integration itself, which starts with them."""

QWEN3_ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0}
QWEN3_5_ROPE = {
    "rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
}  # fmt: skip
"""As Qwen3-8B's configuration has it, like its max_position_embeddings."""


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each block of code; none where there is no such page."""
    return blocks_in(page.read_text(encoding="utf-8")) if page.exists() else []


def blocks_in(text: str) -> list[tuple[str, str]]:
    """The same for the text of a page; a block in a list is brought to the margin."""
    return [(language, dedent(block)) for _, language, block in FENCED.findall(text) if language.isidentifier()]


def furnish(folder: Path, checkpoint: Path) -> None:
    """Writes what the blocks speak of; no hub is asked for Qwen's model, a tiny one lies in its place."""
    (folder / "CKPT").symlink_to(checkpoint)
    for name, text in zip(("book.txt", "test.txt"), held_out_documents()):
        (folder / name).write_text(text[:12_000], encoding="utf-8")
    config = Qwen3Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, vocab_size=2048, max_position_embeddings=40_960, rope_parameters=QWEN3_ROPE,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder / "Qwen" / "Qwen3-8B")
    write_qwen3_5(folder / "Qwen" / "Qwen3.5-9B")


def write_qwen3_5(folder: Path) -> None:
    """Writes a tiny model that sees, with Qwen3.5's rotary geometry but for its width, and a tokenizer of bytes."""
    attention = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    linear = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
    text = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        **attention,
        **linear,
        "linear_value_head_dim": 16,
        "max_position_embeddings": 262_144,
        "rope_parameters": {**QWEN3_5_ROPE, "mrope_section": [4, 2, 2]},
    }
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    ids = {"image_token_id": 250, "video_token_id": 251, "vision_start_token_id": 252, "vision_end_token_id": 253}
    torch.manual_seed(0)
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision, **ids))
    model.save_pretrained(folder)
    byte_tokenizer(limit=262_144).save_pretrained(folder)


def run_python(text: str, names_so_far: dict[str, object]) -> None:
    """A block whose first line names a file is saved; any other is executed after those before it.

    The value of every line that is an expression is shown, as at a prompt.
    """
    named = re.match(r"# (\w+\.py)\n", text)
    if named:
        Path(named[1]).write_text(text, encoding="utf-8")
    else:
        lines = ast.Interactive(ast.parse(text).body)
        with patch.object(sys, "displayhook", lambda value: None if value is None else print(repr(value))):
            exec(compile(lines, "README.md", "single"), names_so_far)


def run_shell(text: str) -> None:
    """Each line is a command of ropescale that ends well, an example of the docs, or one of :data:`MAKE`."""
    for line in text.strip().replace("\\\n", " ").splitlines():
        command = shlex.split(line, comments=True)
        if command[:1] == ["python"] and command[1].startswith("docs/examples/"):
            example = runpy.run_path(str(Path(__file__).parents[2] / command[1]))
            example["train"](example["parsed"](command[2:]))
        elif " ".join(command) not in MAKE:
            assert command[0] == "ropescale", f"a line that no test runs: {line}"
            assert main(command[1:]) == 0, line
