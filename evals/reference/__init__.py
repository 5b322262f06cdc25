"""The reference model: a small real Llama in the package, and the text to measure it on.

:func:`save_taught` writes the model merged with a small adapter that was trained on the questions of ``ropescale
retrieval``.

The text is the source code of the running Python's standard library. Every Python installation has this text, so the
package does not contain it. A fixed list of modules was held out of training for evaluation. Each of these modules is
long, is not in ``test/`` (which many distributions omit), and is present in every supported Python version. The text
differs slightly between Python versions, so results contain its hash.
"""

from __future__ import annotations

import json
import os
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
"""The folder of the adapter trained on retrieval questions: PEFT configuration, float32 safetensors, model card."""

FOUND = Path(__file__).parent / "found-2048.json"
"""A schedule file for ``--schedule``, found by ``ropescale search`` for 2,048 tokens (by gradient, with seed 0 and
500,000 tokens)."""

HELD_OUT = """
argparse.py bdb.py configparser.py dataclasses.py difflib.py doctest.py fractions.py ftplib.py functools.py
http/client.py http/cookiejar.py imaplib.py inspect.py ipaddress.py logging/handlers.py mailbox.py optparse.py
pickletools.py plistlib.py shutil.py smtplib.py statistics.py subprocess.py tarfile.py unittest/mock.py
xml/dom/minidom.py
""".split()
"""The held-out modules, as paths inside the standard library."""


def held_out_documents() -> list[str]:
    """Returns the source of each held-out module, in the order of :data:`HELD_OUT`."""
    root = Path(sysconfig.get_path("stdlib"))
    return [(root / name).read_text(encoding="utf-8") for name in HELD_OUT]


def load_taught() -> PreTrainedModel:
    """Loads the reference model in float32 on the CPU, with the adapter merged into its weights.

    A merged weight is ``W + alpha / r * B A`` (Hu et al., arXiv 2106.09685, equation 3).
    """
    import torch
    from safetensors.torch import load_file

    from ...checkpoints.loading import load_model

    settings = json.loads((PASSKEY / "adapter_config.json").read_text(encoding="utf-8"))
    scale = settings["lora_alpha"] / settings["r"]
    model = load_model(CHECKPOINT, "float32", "cpu")
    tensors = load_file(PASSKEY / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in tensors.items():
            if module := re.fullmatch(r"base_model\.model\.(.+)\.lora_A\.weight", name):
                up = tensors[name.replace("lora_A", "lora_B")]
                model.get_submodule(module[1]).weight += scale * (up @ down)
    return model


def save_taught(out: str | Path) -> None:
    """Writes the merged model as a float32 checkpoint, which needs neither peft nor ropescale.

    Raises:
        CheckpointError: ``out`` exists and is not an empty folder.
    """
    from ...checkpoints.folders import is_empty
    from ...checkpoints.loading import load_tokenizer

    out = Path(out)
    if os.path.lexists(out) and not is_empty(out):
        raise CheckpointError(f"{out} exists already; choose another folder")
    load_taught().save_pretrained(out)
    load_tokenizer(CHECKPOINT).save_pretrained(out)
    (out / "README.md").write_bytes((PASSKEY / "README.md").read_bytes())
