"""``ropescale demo``: the main job on the model and the text that every installation has."""

from __future__ import annotations

from pathlib import Path

import click

SCHEDULES = ("base", "linear:factor=8", "ntk:factor=8", "yarn:factor=8")
LENGTHS = (256, 512, 1024, 2048)


@click.command("demo")
@click.option("-o", "--out", default="ropescale-demo", show_default=True, metavar="OUT", help="The folder to write.")
def command(out: str) -> None:
    """Patch the bundled model to eight times its context, verify it, and measure what that did.

    The model was trained at 256 tokens on the Python standard library; it is measured on library modules that it
    has never seen. Writes the patched checkpoint, the results and two plots into OUT. Under a minute on two cores.
    """
    from ..evals.reference import CHECKPOINT
    from ..evals.results import writable_folder

    folder = writable_folder(out)
    patched = folder / "yarn-x8"
    _say(f"1. patch: the reference model, trained at 256 tokens, to 2048 with YaRN x8 -> {patched}")
    _patch(CHECKPOINT, patched)
    _say("2. verify: build it as stock transformers would, and read the frequencies back")
    _verify(patched)
    _say("3. eval: perplexity on held-out library modules, four schedules, every length from one pass")
    _evaluate(CHECKPOINT, folder)


def _patch(source: Path, target: Path) -> None:
    from ..checkpoints import patch_checkpoint
    from ..errors import CheckpointError
    from ..records import NAME

    if target.exists() and not (target / NAME).exists():
        raise CheckpointError(f"{target} exists and is not a patched checkpoint; choose another folder with -o")
    patch_checkpoint(source, target, "yarn", factor=8, force=True)


def _verify(folder: Path) -> None:
    from ..verifying import verify

    report = verify(folder)
    worst = max(module.difference for module in report.modules)
    _say(f"   live: yes ({report.intended}; largest relative difference {worst:.1e})")


def _evaluate(source: Path, out: Path) -> None:
    from ..evals.data import Text
    from ..evals.measuring import AS_IS, Options, Run
    from ..evals.reference import HELD_OUT, held_out_documents
    from .eval import load_model, load_tokenizer

    texts = [Text(name, text) for name, text in zip(HELD_OUT, held_out_documents(), strict=True)]
    options = Options(source="held-out modules of the Python standard library", path=source, progress=True)
    run = Run(load_model(source), texts, LENGTHS, SCHEDULES, load_tokenizer(source), "base", "auto", options)
    # The model comes unscaled, so as-is would only repeat base.
    run.treatments = [treatment for treatment in run.treatments if treatment.label != AS_IS]
    run.run()
    result = run.result()
    click.echo(result.to_markdown())
    _say(f"written to {result.save(out)}: {', '.join(sorted(path.name for path in out.iterdir()))}")


def _say(line: str) -> None:
    click.echo(line, err=True)
