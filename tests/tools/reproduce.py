"""The papers' claims on the bundled model, trained and measured: the figures of docs/reproducing.md.

``python tests/tools/reproduce.py OUT`` takes hours on two cores; each arm is a folder of its own, and what is finished
is not run again. ``--only ARM`` (repeatable) runs some, ``--list`` shows them. Each claim is a difference of losses
on the same tokens of held-out modules of the standard library, judged by the rule for sentences: by an interval over
the modules that holds together with all others of the page.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.evals import Result
from ropescale.evals.reference import CHECKPOINT, FOUND, held_out_documents, save_taught
from ropescale.evals.statistics.intervals import Average, average, familywise

TRAINED, TARGET, BEYOND = 256, 2048, 4096
STEPS, SHORT = 400, 200
SPECS = {
    "yarn": "yarn:factor=8",
    "found": str(FOUND),
    "linear": "linear:factor=8",
    "ntk": "ntk:factor=8",
    "control": "linear:factor=1",
}
FAMILY = 43
"""The intervals of the page, which hold together."""


@dataclass(frozen=True)
class Arm:
    """A training and its measurements, every hundred steps."""

    name: str
    spec: str
    steps: int = SHORT
    seed: int = 0
    length: int = TARGET
    longest: int = TARGET
    mixed: bool = False
    taught: bool = False


def arms() -> Iterator[Arm]:
    """All trainings, those that most claims rest on first."""
    for name, spec in SPECS.items():
        yield Arm(name, spec, STEPS)
    for seed in (0, 1, 2):
        for name in ("yarn", "found"):
            yield Arm(f"{name}-seed-{seed}", SPECS[name], seed=seed)
    yield Arm("mixed", SPECS["yarn"], mixed=True)
    yield Arm("short-windows", SPECS["control"], length=TRAINED, longest=TRAINED)
    for name in ("yarn", "found", "linear", "control"):
        yield Arm(f"taught-{name}", SPECS[name], taught=True)
    yield Arm("beyond", "yarn:factor=16", longest=BEYOND)
    yield Arm("yarn-4096", "yarn:factor=16", length=BEYOND, longest=BEYOND)


def run(arm: Arm, out: Path, steps: int | None = None, texts: list[str] | None = None) -> None:
    """Trains, with a measurement before, every hundred steps and after; of a taught model, asks it as well."""
    sys.path.append(str(Path(__file__).parents[2] / "docs" / "examples"))
    from reference_model import training_documents
    from training_parts import MixedWindows, chunked_loss
    from transformers import Trainer, TrainingArguments, default_data_collator

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "taught" if arm.taught else CHECKPOINT
        if arm.taught:
            save_taught(source)
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        bos = tokenizer.bos_token_id
        data = beginnings(texts or training_documents(), tokenizer, arm.length)
        lengths = [TRAINED * 2**n for n in range(5) if TRAINED * 2**n <= arm.longest]
        callback = ropescale.TrainingCallback(
            arm.spec, held_out_documents(), lengths, tokenizer=tokenizer, every=100, out=out / "measured", windows=1
        )
        count = steps or arm.steps
        arguments = TrainingArguments(
            output_dir=str(Path(folder) / "trained"),
            max_steps=count,
            learning_rate=2e-4,
            warmup_steps=10,
            lr_scheduler_type="cosine",
            adam_beta2=0.95,
            per_device_train_batch_size=2 * TARGET // arm.length,
            bf16=True,
            save_strategy="no",
            report_to=[],
            seed=arm.seed,
            data_seed=arm.seed,
            use_cpu=True,
        )
        collator: Any = MixedWindows(short=TRAINED, bos=bos) if arm.mixed else default_data_collator
        trainer = Trainer(model, arguments, train_dataset=data, data_collator=collator, callbacks=[callback])
        with chunked_loss(model):
            trainer.train()
        if arm.taught:
            ask(model, tokenizer, out / "answers")
        ropescale.save(model, out / "model")


def beginnings(texts: list[str], tokenizer: Any, length: int) -> list[dict[str, list[int]]]:
    """Cuts the beginning of every text that fills the longer of the target and ``length`` into windows after a BOS.

    So a window of the target begins where a module does, as what is measured does.
    """
    whole, windows = max(TARGET, length) - 1, []
    for document in ropescale.evals.tokenize(texts, tokenizer):
        starts = range(0, whole - length + 2, length - 1) if len(document.ids) >= whole else ()
        for start in starts:
            ids = [tokenizer.bos_token_id, *document.ids[start : start + length - 1]]
            windows.append({"input_ids": ids, "labels": ids})
    return windows


def ask(model: Any, tokenizer: Any, out: Path, **options: Any) -> None:
    """Hides numbers in texts of up to the target's length, and asks for them."""
    lengths = [256, 512, 1024, 2048]
    ropescale.evals.retrieval(model.eval(), lengths, tokenizer=tokenizer, trials=10, **options).save(out)


def untrained(out: Path) -> None:
    """Measures every schedule without training, and truncation; and asks the taught model under each."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    specs = [spec for name, spec in SPECS.items() if name != "control"]
    options: Any = {"tokenizer": tokenizer, "windows": 1, "truncation_stride": 16}
    lengths = [256, 512, 1024, 2048]
    ropescale.evals.perplexity(
        model, held_out_documents(), lengths, [*specs, "dynamic:factor=8", "dynamic-yarn"], **options
    ).save(out / "measured" / "step-000000")
    with tempfile.TemporaryDirectory() as folder:
        save_taught(Path(folder) / "taught")
        taught = AutoModelForCausalLM.from_pretrained(Path(folder) / "taught", dtype=torch.float32)
        ask(taught, tokenizer, out / "answers", schedules=specs)


def change(out: Path, one: str, two: str, length: int, first: int = 0) -> Average | None:
    """The loss of one point minus another's in the average module, on the same tokens; None where one was not run.

    A point is ``ARM/STEP`` or ``untrained/0/SCHEDULE``; ``first`` leaves out the tokens before that position.
    """
    ours, theirs = (losses(out, point, length) for point in (one, two))
    if ours is None or theirs is None:
        return None
    if "truncation" in (one.split("/")[-1], two.split("/")[-1]):
        first = max(first, TRAINED)
    rows = [(a[-(length - first) :] - b[-(length - first) :]).astype(float) for a, b in zip(ours, theirs)]
    return average([each.sum() for each in rows], [len(each) for each in rows], familywise(FAMILY))


def verdict(low: float | None, high: float | None, allowed: float = 0.0) -> str:
    """Whether a difference is shown to be below what is allowed."""
    if low is None or high is None or low <= allowed <= high:
        return "undecided"
    return "holds" if high < allowed else "does not hold"


def losses(out: Path, point: str, length: int) -> list[np.ndarray] | None:
    """The losses of each module's tokens up to a length, those of truncation beyond the trained one alone."""
    arm, step, *schedule = point.split("/", 2)
    folder = next((f for f in (out / arm / "measured").glob("step-*") if int(f.name[5:]) == int(step)), None)
    if folder is None:
        return None
    found = Result.load(folder)
    if schedule == ["truncation"]:
        return None if found.truncation is None else found.truncation.losses(length)
    arms_own = next(name for name in reversed(found.schedules) if name != "base")  # before training both are measured
    wanted = Path(schedule[0]).name if schedule else arms_own
    label = next((each for each in found.schedules if wanted in (each, Path(found.named(each)).name)), wanted)
    return found.losses(label, length)


def claims() -> list[tuple[str, str, str, int, int, float]]:
    """What each claim compares: words, two points, the length, the first position that counts, what is allowed."""
    zero = {name: f"untrained/0/{spec}" for name, spec in SPECS.items()}
    cut, half = "untrained/0/truncation", TARGET // 2
    return [
        *[(f"untrained: {n} minus PI", zero[n], zero["linear"], TARGET, 0, 0.0) for n in ("ntk", "yarn")],
        ("untrained: YaRN minus NTK", zero["yarn"], zero["ntk"], TARGET, 0, 0.0),
        *[("untrained: found minus YaRN", zero["found"], zero["yarn"], n, 0, 0.0) for n in (TARGET, TRAINED)],
        ("dynamic YaRN minus the original", "untrained/0/dynamic-yarn", "untrained/0/as-is", TRAINED, 0, 0.01),
        ("dynamic YaRN minus YaRN", "untrained/0/dynamic-yarn", zero["yarn"], TARGET, 0, 0.01),
        *[(f"{n}: 200 steps minus none", f"{n}/200", f"{n}/0", TARGET, 0, 0.0) for n in ("linear", "yarn")],
        ("linear: 200 steps minus truncation", "linear/200", cut, TARGET, half, 0.0),
        *[(f"{n}: 200 steps minus truncation", f"{n}-seed-0/200", cut, TARGET, half, 0.0) for n in ("yarn", "found")],
        ("PI, 400 steps, minus the original", "linear/400", "untrained/0/as-is", TRAINED, 0, 0.0488),
        ("PI minus no schedule, 400 steps", "linear/400", "control/400", TARGET, 0, 0.0),
        ("YaRN, 100 steps, minus PI, 400", "yarn/100", "linear/400", TARGET, 0, 0.0),
        ("PI minus NTK, 400 steps", "linear/400", "ntk/400", TARGET, 0, 0.0),
        *[(f"YaRN minus {n}, 400 steps", "yarn/400", f"{n}/400", TARGET, 0, 0.0) for n in ("linear", "ntk")],
        *[(f"found minus YaRN, {n} steps", f"found/{n}", f"yarn/{n}", TARGET, 0, 0.0) for n in (100, 200, 400)],
        *[(f"found minus YaRN, seed {n}", f"found-seed-{n}/200", f"yarn-seed-{n}/200", TARGET, 0, 0.0)
          for n in range(3)],
        *[(f"{n}, 200 steps, minus the original", f"{n}-seed-0/200", "untrained/0/as-is", TRAINED, 0, 0.0296)
          for n in ("yarn", "found")],
        *[(f"{n} minus the original trained within its length", f"{n}-seed-0/200", "short-windows/200", TRAINED, 0,
           0.0296) for n in ("yarn", "found")],
        ("mixed minus plain", "mixed/200", "yarn-seed-0/200", TRAINED, 0, 0.0),
        ("windows of 2,048 minus of 4,096", "beyond/200", "yarn-4096/200", BEYOND, half * 2, 0.05),
    ]  # fmt: skip


def main() -> None:
    """Runs the arms that are asked for and are not finished, and prints the claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="ARM")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--steps", type=int, help="fewer steps, to try it")
    given = parser.parse_args()
    for arm in [None, *arms()]:
        name = arm.name if arm else "untrained"
        done = given.out / name / "done"
        if given.list:
            print(name, "finished" if done.exists() else "")
        elif not done.exists() and (not given.only or name in given.only):
            run(arm, given.out / name, given.steps) if arm else untrained(given.out / name)
            done.write_text(json.dumps(vars(arm) if arm else {}))
    for words, one, two, length, first, allowed in claims() if not given.list else ():
        found = change(given.out, one, two, length, first)
        if found is None or found.low is None or found.high is None:
            print(f"| {words}, at {length:,} | not run |")
            continue
        judged = verdict(found.low, found.high, allowed)
        print(f"| {words}, at {length:,} | {judged} | {found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f}) |")


if __name__ == "__main__":
    main()
