"""starting, patching, and the shortest run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import sides

EDIT = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model.config.rope_parameters = {
    "rope_type": "yarn", "rope_theta": model.config.rope_parameters["rope_theta"], "factor": 8.0,
    "original_max_position_embeddings": model.config.max_position_embeddings,
}
model.config.max_position_embeddings *= 8
model.save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
"""


def measure(seconds: float) -> list[sides.Row]:
    """Returns ratios of CPU time of whole processes."""
    from ropescale.evals import reference

    source = reference.CHECKPOINT
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "text.txt").write_text(reference.held_out_documents()[0][:6000])
        ours = ("-m", "ropescale")
        to = ["--schedule", "yarn:factor=8", "--force"]
        large = folder / "100 GB"
        large.mkdir()
        shutil.copy(source / "config.json", large)
        with open(large / "model.safetensors", "wb") as weights:
            weights.truncate(10**11)  # which holds none of them
        shortest = ["--data", folder / "text.txt", "--lengths", "256", "--windows", "1"]
        commands = {
            "import torch": ("-c", "import torch"),
            "ropescale --help": (*ours, "--help"),
            "ropescale inspect": (*ours, "inspect", source),
            "ropescale patch": (*ours, "patch", source, "-o", folder / "patched", *to),
            "ropescale patch, 100 GB": (*ours, "patch", large, "-o", folder / "patched 100 GB", *to),
            "load, edit the configuration, save": ("-c", EDIT, source, folder / "edited"),
            "import transformers' Llama": ("-c", "from transformers import LlamaForCausalLM"),
            "the shortest ropescale eval": (*ours, "eval", source, *shortest),
        }
        seen = sides.in_turn(commands, seconds, taken=lambda words: sides.command(*words), warm=False)
    short = {name: seen[name] for name in commands if name.startswith("ropescale") or name == "import torch"}
    patched = {name: seen[name] for name in ("ropescale patch", "load, edit the configuration, save")}
    shortest = {name: seen[name] for name in ("import transformers' Llama", "the shortest ropescale eval")}
    rows = sides.ratios(short, "import torch")
    return rows + sides.ratios(patched, "ropescale patch") + sides.ratios(shortest, "import transformers' Llama")
