"""The reference model: a small real Llama in the package, and the text to measure it on.

``python -m ropescale.evals.reference --taught -o OUT`` writes the model with the small adapter that was trained to
answer ``ropescale retrieval``.

The text is the source of the running Python's own standard library. Every Python installation has it, so no text is
committed. A fixed list of modules is held out of training for evaluation; each is long, lies outside ``test/`` (many
distributions leave that out) and is present in every supported Python. The text differs a little between Python
versions, so results carry its hash.
"""

from __future__ import annotations

import json
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHECKPOINT = Path(__file__).parent / "llama-3.5m-stdlib"
"""The folder of the trained checkpoint: bf16 safetensors, configuration, tokenizer, model card."""

PASSKEY = Path(__file__).parent / "llama-3.5m-stdlib-passkey"
"""The folder of the adapter that was trained to answer: PEFT's configuration, float32 safetensors, card."""

FOUND = Path(__file__).parent / "found-2048.json"
"""The result of ``ropescale search`` for 2,048 tokens (by gradient, seed 0, 500,000 tokens): a file for
``--schedule``."""

HELD_OUT = (
    "argparse.py",
    "bdb.py",
    "configparser.py",
    "dataclasses.py",
    "difflib.py",
    "doctest.py",
    "fractions.py",
    "ftplib.py",
    "functools.py",
    "http/client.py",
    "http/cookiejar.py",
    "imaplib.py",
    "inspect.py",
    "ipaddress.py",
    "logging/handlers.py",
    "mailbox.py",
    "optparse.py",
    "pickletools.py",
    "plistlib.py",
    "shutil.py",
    "smtplib.py",
    "statistics.py",
    "subprocess.py",
    "tarfile.py",
    "unittest/mock.py",
    "xml/dom/minidom.py",
)
"""Paths inside the standard library that are never trained on."""


def held_out_documents() -> list[str]:
    """Reads the held-out modules, one document each, in :data:`HELD_OUT`'s order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [(root / name).read_text(encoding="utf-8") for name in HELD_OUT]


def load_taught(adapter: Path = PASSKEY) -> PreTrainedModel:
    """Loads the reference model in float32, on the CPU, with the adapter merged: ``W + alpha / r * B A``.

    (Hu et al., arXiv 2106.09685, equation 3.)
    """
    import torch
    from safetensors.torch import load_file

    from ...checkpoints.loading import load_model

    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale = settings["lora_alpha"] / settings["r"]
    model = load_model(CHECKPOINT, "float32", "cpu")
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in tensors.items():
            if module := re.fullmatch(r"base_model\.model\.(.+)\.lora_A\.weight", name):
                up = tensors[name.replace("lora_A", "lora_B")]
                model.get_submodule(module[1]).weight += scale * (up @ down)
    return model


def save_taught(out: Path) -> None:
    """Writes the merged model as a float32 checkpoint, which needs neither peft nor ropescale.

    Raises:
        CheckpointError: ``out`` exists and is not an empty folder.
    """
    from ...checkpoints.loading import load_tokenizer

    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise CheckpointError(f"{out} exists already; choose another folder")
    load_taught().save_pretrained(out)
    load_tokenizer(CHECKPOINT).save_pretrained(out)
    (out / "README.md").write_bytes((PASSKEY / "README.md").read_bytes())
