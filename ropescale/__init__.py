"""ropescale: extend the context of RoPE language models, and measure the effect.

::

    import ropescale

    with ropescale.patch(model, "yarn:factor=8"):  # a loaded Hugging Face model; reverts bit for bit
        ...
    ropescale.save(model, "OUT")  # writes a patched model, or an adapter and its patched base
    ropescale.patch_checkpoint("CKPT", "OUT", "yarn", target_length="32k")  # writes a patched folder; reads no weights
    ropescale.verify("OUT")  # raises if the intended table is not live
    ropescale.frequencies("CKPT", "yarn:factor=8")  # only the numbers; needs no torch
    ropescale.plot("CKPT", "yarn:factor=8")  # plots the numbers
    ropescale.evals.perplexity(model, documents, lengths=[2048, 8192], schedules=["base", "yarn:factor=8"])
    ropescale.TrainingCallback("yarn:factor=8")  # for Trainer: verifies the schedule in every process, saves it

Names are imported on first use, so ``import ropescale`` imports neither torch nor transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .lazy import names_of

if TYPE_CHECKING:
    from . import evals as evals, schedules as schedules
    from .checkpoints.patching import patch_checkpoint as patch_checkpoint, restore as restore
    from .checkpoints.saving import save as save
    from .errors import RopescaleError as RopescaleError
    from .evals.training.callback import TrainingCallback as TrainingCallback
    from .gguf.patching import patch_gguf as patch_gguf
    from .inspecting.drawing import plot as plot
    from .models.patching import Patch as Patch, patch as patch
    from .rope import Rope as Rope
    from .schedules import Frequencies as Frequencies, Schedule as Schedule
    from .tables import frequencies as frequencies
    from .verifying.examining import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "Frequencies": "schedules",
    "Patch": "models.patching",
    "Rope": "rope",
    "RopescaleError": "errors",
    "Schedule": "schedules",
    "TrainingCallback": "evals.training.callback",
    "frequencies": "tables",
    "patch": "models.patching",
    "patch_checkpoint": "checkpoints.patching",
    "patch_gguf": "gguf.patching",
    "plot": "inspecting.drawing",
    "restore": "checkpoints.patching",
    "save": "checkpoints.saving",
    "verify": "verifying.examining",
}

__getattr__, __dir__, __all__ = names_of(__name__, _HOMES, subpackages=("evals", "schedules"))


def _checkout() -> list[str]:
    """Returns the repository's root if this file is in a clone, with ``cli`` and ``evals`` as sibling folders.

    An installed copy has these folders inside the package. In a clone, the root makes them importable without
    installation. The project's pyproject.toml distinguishes a clone from another folder with a ``cli``.
    """
    root = Path(__file__).resolve().parent.parent
    project = root / "pyproject.toml"
    if (Path(__file__).parent / "cli").exists() or not project.is_file():
        return []
    return [str(root)] if 'name = "ropescale"' in project.read_text(encoding="utf-8") else []


__path__ += _checkout()
