"""``ropescale demo``: patches, verifies and measures the bundled model."""

import json

import click

from .eval import command as evaluate
from .options import out_option, say, sectioned_command

SCHEDULES = ("linear:factor=8", "yarn:factor=8")
LENGTHS = (256, 512, 1024, 2048)


@sectioned_command("demo", {"The result": [out_option("The output folder.", default="ropescale-demo")]})
@click.pass_context
def command(ctx: click.Context, out: str) -> None:
    """Patch the bundled model to eight times its context, verify it, and measure the effect.

    \b
    Examples:
      ropescale demo
      ropescale demo -o OUT

    The model was trained at 256 tokens on the Python standard library; it is measured on unseen library modules. Writes
    the patched checkpoint, the text, the results and plots into OUT. Takes half a minute on two cores (42 seconds
    of processor time).
    """
    from ..checkpoints.patching import patch_checkpoint
    from ..errors import CheckpointError
    from ..evals.reference import CHECKPOINT, held_out_documents
    from ..evals.results.folder import writable_folder
    from ..files import atomic_write, translated

    folder = writable_folder(out)
    patched = folder / "yarn-x8"
    text = folder / "text.jsonl"
    rows = "".join(f"{json.dumps({'text': each})}\n" for each in held_out_documents()).encode()
    begun = text.exists() or (folder / "results.json").exists()
    if begun and not (text.exists() and text.read_bytes() == rows):
        raise CheckpointError(f"{folder} holds the results of another text; choose another folder with -o")
    say(f"1. patch: the reference model, trained at 256 tokens, to 2048 with YaRN x8 -> {patched}")
    patch_checkpoint(CHECKPOINT, patched, "yarn", factor=8, force=True)
    from ..verifying.examining import verify  # late: it imports torch

    say("2. verify: build it as stock transformers would, and read the frequencies back")
    report = verify(patched)
    worst = max(module.difference for module in report.modules)
    say(f"   live: yes ({report.intended}; largest relative difference {worst:.1e})")
    say("3. eval: perplexity on held-out library modules, as-is, linear and YaRN, every length from one pass")
    with translated(text):
        atomic_write(text, rows)
    words = [CHECKPOINT, "--data", text, "--lengths", ",".join(map(str, LENGTHS))]
    words += [word for schedule in SCHEDULES for word in ("--schedule", schedule)]
    words += ["--windows", 1, "--truncation-stride", 128, "--no-short-context", "-o", folder]
    with evaluate.make_context("eval", list(map(str, words)), parent=ctx.parent) as context:
        evaluate.invoke(context)
    say(
        """its effect on retrieval: python -c "from ropescale.evals.reference import save_taught; """
        """save_taught('TAUGHT')", and then """
        "ropescale retrieval TAUGHT --lengths 128,256,512,1k,2k --schedule yarn:factor=8"
    )
