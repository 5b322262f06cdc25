"""the same curve by lm-evaluation-harness, one command for each length.

It needs ``pip install 'lm-eval[hf]'``, or ``LM_EVAL_PYTHON=/path/to/python`` of another environment.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import tempfile
from pathlib import Path

import models
import sides

LENGTHS = list(range(128, 2049, 128))
SHORT = 140
"""Tokens of a text that costs next to nothing beside loading, and has one window of the shortest length."""

TASK = """
task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}]
"""


def measure(seconds: float) -> list[sides.Row]:
    """Returns the ratios of CPU time of whole commands, and how far its figure is from ours where both have one window.

    One round, whatever the time: its 16 commands take minutes.
    """
    python = interpreter()
    if python is None:
        print("harness: left out; install lm-eval here, or say where it is with LM_EVAL_PYTHON")
        return []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = _texts(folder)
        theirs = sum(_ran(python, folder, "whole", length) for length in LENGTHS)
        loading = len(LENGTHS) * _ran(python, folder, "short", LENGTHS[0])
        ours, least = _own(folder / "whole.txt", LENGTHS), _own(folder / "short.txt", LENGTHS[:1])
        off = _off(folder, text)
    name = "lm-eval's command, once for each length"
    return [
        sides.Row(f"{name}, over one ropescale eval", theirs / ours, note=f"{theirs:.3g} s over {ours:.3g} s"),
        sides.Row(
            f"the same without loading (the same commands on a text of {SHORT} tokens)",
            (theirs - loading) / (ours - least),
            note=f"{theirs - loading:.3g} s over {ours - least:.3g} s",
        ),
        sides.Row(
            f"its perplexity at {LENGTHS[-1]:,}, off by", 100 * off, unit="%", note="one window of the same tokens"
        ),
    ]


def interpreter() -> str | None:
    """Returns the Python that has lm-eval; None where there is none."""
    named = os.environ.get("LM_EVAL_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("lm_eval") else None)


def _texts(folder: Path) -> str:
    """Writes a text of one window of the longest length, and a short one, as both tools read them."""
    from ropescale.checkpoints.loading import load_tokenizer
    from ropescale.evals import reference

    tokenizer = load_tokenizer(reference.CHECKPOINT)
    _, documents = models.reference()
    found = {name: tokenizer.decode(documents[0][1:stop]) for name, stop in (("whole", LENGTHS[-1]), ("short", SHORT))}
    for name, text in found.items():
        (folder / f"{name}.txt").write_text(text)
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n")
        tasks = folder / f"tasks-{name}"
        tasks.mkdir()
        (tasks / "rolling.yaml").write_text(TASK.replace("FILE", str(folder / f"{name}.jsonl")))
    return found["whole"]


def _ran(python: str, folder: Path, name: str, length: int) -> float:
    from ropescale.evals import reference

    given = f"pretrained={reference.CHECKPOINT},add_bos_token=False,dtype=float32,max_length={length}"
    words = f"-m lm_eval run --model hf --model_args {given} --tasks rolling --device cpu --batch_size 1".split()
    words += ["--include_path", str(folder / f"tasks-{name}"), "--output_path", str(folder / f"of-{name}-{length}")]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "PYTHONPATH": ""}
    return sides.command(*words, python=python, environment=offline)


def _own(text: Path, lengths: list[int]) -> float:
    from ropescale.evals import reference

    asked = ",".join(map(str, lengths))
    return sides.command(
        "-m", "ropescale", "eval", reference.CHECKPOINT, "--data", text, "--lengths", asked, "--windows", 1
    )


def _off(folder: Path, text: str) -> float:
    """Returns how far lm-eval's perplexity of a token at the longest length, from that of a byte, is from ours."""
    from ropescale.checkpoints.loading import load_tokenizer
    from ropescale.evals import perplexity, reference

    [file] = (folder / f"of-whole-{LENGTHS[-1]}").rglob("results_*.json")
    per_byte = json.loads(file.read_text())["results"]["rolling"]["byte_perplexity,none"]
    (model, _), tokenizer = models.reference(), load_tokenizer(reference.CHECKPOINT)
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    exact = perplexity(model, [text], LENGTHS[-1:], tokenizer=tokenizer).rows[0].ppl
    return math.exp(math.log(per_byte) * len(text.encode()) / tokens) / exact - 1
