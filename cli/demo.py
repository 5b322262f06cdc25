"""``ropescale demo``: patches, verifies and measures the bundled model."""

from __future__ import annotations

import os
from pathlib import Path

from .options import out_option, say, sectioned_command, show

SCHEDULES = ("linear:factor=8", "yarn:factor=8")
LENGTHS = (256, 512, 1024, 2048)


@sectioned_command(
    "demo", {"The result": [out_option("The output folder.", default="ropescale-demo", show_default=True)]}
)
def command(out: str) -> None:
    """Patch the bundled model to eight times its context, verify it, and measure the effect.

    The model was trained at 256 tokens on the Python standard library; it is measured on unseen library modules. Writes
    the patched checkpoint, the results and plots into OUT. Half a minute on two cores, 41 seconds of processor time.
    """
    from ..checkpoints.loading import load_model, load_tokenizer
    from ..checkpoints.patching import patch_checkpoint
    from ..evals import perplexity
    from ..evals.data.documents import Text
    from ..evals.reference import CHECKPOINT, HELD_OUT, held_out_documents
    from ..evals.results.folder import writable_folder
    from ..verifying.examining import verify

    folder = writable_folder(out)
    patched = folder / "yarn-x8"
    _refuse_other_results(folder)
    _refuse_foreign(patched)
    say(f"1. patch: the reference model, trained at 256 tokens, to 2048 with YaRN x8 -> {patched}")
    patch_checkpoint(CHECKPOINT, patched, "yarn", factor=8, force=True)
    say("2. verify: build it as stock transformers would, and read the frequencies back")
    report = verify(patched)
    worst = max(module.difference for module in report.modules)
    say(f"   live: yes ({report.intended}; largest relative difference {worst:.1e})")
    say("3. eval: perplexity on held-out library modules, as-is, linear and YaRN, every length from one pass")
    result = perplexity(
        load_model(CHECKPOINT),
        [Text(name, text) for name, text in zip(HELD_OUT, held_out_documents(), strict=True)],
        LENGTHS,
        SCHEDULES,
        tokenizer=load_tokenizer(CHECKPOINT),
        windows=1,
        truncation_stride=128,
        source=_SOURCE,
        path=CHECKPOINT,
        progress=True,
    )
    written = result.save(folder)
    show(f"{result.summary()}\n\nAll tables: {written / 'REPORT.md'}.", written)
    say(f"written to {written}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    say(_RETRIEVAL)


_RETRIEVAL = (
    "its effect on retrieval: python -m ropescale.evals.reference --taught -o TAUGHT, and then "
    "ropescale retrieval TAUGHT --lengths 128,256,512,1k,2k --schedule yarn:factor=8"
)


_SOURCE = "held-out modules of the Python standard library"


def _refuse_other_results(folder: Path) -> None:
    """Refuses to replace another evaluation, before anything is measured.

    Raises:
        CheckpointError: the folder holds one.
    """
    from ..errors import CheckpointError
    from ..evals.results.folder import existing

    results = existing(folder)
    if results is not None and results["data"]["source"] != _SOURCE:
        raise CheckpointError(f"{folder} holds the results of another evaluation; choose another folder with -o")


def _refuse_foreign(target: Path) -> None:
    """Refuses to replace an existing checkpoint that ropescale did not write.

    Raises:
        CheckpointError: the folder has foreign files, or the record of an earlier version.
    """
    from ..checkpoints.folders import why_not_ours
    from ..errors import CheckpointError

    why = why_not_ours(target) if os.path.lexists(target) else None
    if why is not None:
        found = why.partition(", so force")[0]  # an option of `ropescale patch`, which this command lacks
        raise CheckpointError(f"{found}; check and remove {target}, or choose another folder with -o")
