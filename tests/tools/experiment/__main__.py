"""A Llama of 67M parameters, trained at 2,048 tokens of Python source, extended to 16,384, measured and fine-tuned.

For one accelerator without a network, in two calls on one machine:

    PYTHONPATH=.:tests/tools python3 -m experiment --data DATA --out OUT --state STATE --stages base --seconds 420
    PYTHONPATH=.:tests/tools python3 -m experiment --data DATA --out OUT --state STATE --stages tune --seconds 400

Needs torch, transformers, numpy, tokenizers and pydantic. DATA is made by ``experiment.make_corpus``.
``--tiny`` runs every stage on a processor, on the standard library. Stages run in the order given, and one that does
not fit into ``--seconds`` is skipped. OUT/results.json is complete after every stage, and STATE has what a later call
needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .plan import ARMS, FULL, GROUPS, TINY, Settings, described, named

if TYPE_CHECKING:
    from .lab import Lab


def main() -> int:
    """Runs the stages; returns 1 if one of them failed."""
    began = time.perf_counter()
    parser = _parser()
    given = parser.parse_args()
    settings = _settings(given)
    try:
        stages = named(given.stages)
        print(*described(stages, settings), sep="\n", flush=True)
        if given.plan:
            return 0
        lab = _lab(given, settings, began)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return _run(lab, stages)


def _lab(given: argparse.Namespace, settings: Settings, began: float) -> Lab:
    """Reads the corpus or makes the tiny one, and prepares the device and the folders.

    Raises:
        OSError, ValueError: a folder is missing or is not what the settings need.
    """
    import torch

    from . import corpus, make_corpus  # what is heavy is imported once the command line is known to be right
    from .lab import Lab

    if given.out is None:
        raise ValueError("give --out, a folder for the results")
    if given.data is None and not given.tiny:
        raise ValueError("give --data, a folder that `python -m experiment.make_corpus` wrote; or --tiny")
    if given.tiny:
        torch.set_num_threads(1)  # more only wait for each other, where others compute, too
    found = corpus.read(given.data) if given.data else make_corpus.tiny_corpus()
    return Lab(settings, found, given.out, given.state or given.out.parent / "experiment-state", began)


def _run(lab: Lab, stages: list[str]) -> int:
    import transformers

    from .stages import run
    from .training import allow_many_graphs

    transformers.logging.set_verbosity_error()
    allow_many_graphs()
    lab.say(
        f"{len(lab.corpus.stream) / 1e6:.1f}M training tokens, {len(lab.documents)} documents of "
        f"{sorted(set(lab.packages))} to measure, {len(lab.corpus.choosing)} to choose by; "
        f"{lab.far.mean():.1%} far repeats"
    )
    lab.store_setup()
    failed = run(lab, stages)
    lab.say(f"finished; {failed} failed" if failed else "finished")
    return min(1, failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("experiment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, help="the folder of the corpus")
    parser.add_argument("--out", type=Path, help="the folder for results.json and losses")
    parser.add_argument("--state", type=Path, help="the folder of what later calls need (default: beside OUT)")
    parser.add_argument(
        "--stages", default="all", help=f"{', '.join(GROUPS)} (default), or stages; separated by commas"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model, and the standard library if DATA is not given"
    )
    parser.add_argument("--plan", action="store_true", help="only print operations and seconds of each stage")
    choice = argparse.BooleanOptionalAction
    parser.add_argument("--compiling", action=choice, help="try compiled layers (default: unless --tiny)")
    parser.add_argument("--seconds", type=float, help="of this call, counted from its start")
    parser.add_argument("--train-seconds", type=float, help="of the training from scratch")
    parser.add_argument("--train-steps", type=int, help="the steps after which it ends earlier")
    parser.add_argument("--rows", type=int, help="windows of a training step")
    parser.add_argument("--rate", type=float, help="the highest learning rate of the training")
    parser.add_argument("--tuning-steps", type=int, help=f"steps of each of {', '.join(ARMS)}")
    parser.add_argument("--tuning-rows", type=int, help="windows of the target a step")
    parser.add_argument("--tuning-rate", type=float, help="the highest learning rate of fine-tuning")
    parser.add_argument("--documents", type=int, help="documents measured")
    parser.add_argument("--search-windows", type=int, help="the budget of search, in windows of the target")
    parser.add_argument("--backend", help="of torch.compile")
    parser.add_argument("--mfu", type=float, help="the assumed share of --peak, until it is measured")
    parser.add_argument("--peak", type=float, help="dense bf16 operations per second (default: H100)")
    parser.add_argument("--seed", type=int, help="of weights, windows and lessons")
    return parser


def _settings(given: argparse.Namespace) -> Settings:
    """Returns the settings of a size, with those that were given."""
    changed = {name: value for name, value in vars(given).items() if hasattr(FULL, name) and value is not None}
    return replace(TINY if given.tiny else FULL, **changed)


if __name__ == "__main__":
    sys.exit(main())
