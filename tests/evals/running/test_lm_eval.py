"""lm-evaluation-harness on a patched checkpoint: it needs nothing of ours, and its numbers are transformers' own.

The command that runs is the one that the README gives, in an environment that has no ropescale.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from environments import environment
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.evals.reference import CHECKPOINT, held_out_documents

pytestmark = pytest.mark.engines

LENGTH = 2048
ROLLING = """
task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/rolling.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""
CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choice.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


@dataclass
class Run:
    """What lm-eval said about one checkpoint."""

    rolling: dict[str, float]
    accuracy: float
    choices: list[list[float]]
    max_length: int


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("lm-eval", "lm-eval[hf]==0.4.13")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Two held-out modules: one that fits into the stretched length, one that takes two windows of it."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    [first, second, *_] = held_out_documents()
    return [tokenizer.decode(tokenizer(text)["input_ids"][1:n]) for text, n in ((first, 1500), (second, 3000))]


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    """About 1,500 tokens of a module, and which of four lines comes next: its own or one of other modules."""
    documents = [document.splitlines(keepends=True) for document in held_out_documents()[2:7]]
    found = []
    for i, lines in enumerate(documents[:2]):
        choices = ["".join(other[120:122]) for other in documents[i : i + 4]]
        found.append({"context": "".join(lines[:120])[-4500:], "choices": choices[1:] + choices[:1], "label": 3})
    return found


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, texts: list[str], questions: list[dict[str, Any]]) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, task, rows in (("rolling", ROLLING, [{"text": text} for text in texts]), ("choice", CHOICE, questions)):
        (folder / f"{name}.yaml").write_text(task.replace("FOLDER", str(folder)))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("yarn") / "model"
    ropescale.patch_checkpoint(CHECKPOINT, out, "yarn:factor=8")
    return out


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("linear") / "model"
    ropescale.patch_checkpoint(CHECKPOINT, out, "linear:factor=8")
    return out


def lm_eval(python: Path, tasks: Path, model: Path, *arguments: str, only: str = "rolling choice") -> Run:
    """Runs the command, offline, and reads the results that it writes."""
    out = tasks / f"of-{model.parent.name}-{len(arguments)}"
    given = ",".join([f"pretrained={model}", "add_bos_token=False", "dtype=float32", *arguments])
    words = f"-m lm_eval run --model hf --model_args {given} --tasks {only} --include_path {tasks} --device cpu"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tasks / "cache"), "PYTHONPATH": ""}
    done = subprocess.run(
        [python, *words.split(), "--batch_size", "1", "--output_path", out, "--log_samples"],
        env=os.environ | offline,
        cwd=tasks,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [results] = out.rglob("results_*.json")
    found = json.loads(results.read_text())
    choice = found["results"].get("choice", {})
    return Run(_metrics(found["results"]["rolling"]), choice.get("acc,none"), _choices(out), found["max_length"])


def _metrics(found: dict[str, Any]) -> dict[str, float]:
    return {name: found[f"{name},none"] for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")}


def _choices(out: Path) -> list[list[float]]:
    """The log-likelihood of every choice of every question, in the questions' order."""
    rows = [json.loads(line) for path in out.rglob("samples_choice_*.jsonl") for line in path.read_text().splitlines()]
    return [[float(answer[0]) for answer in row["filtered_resps"]] for row in sorted(rows, key=lambda r: r["doc_id"])]


# ---------------------------------------------------------------------------------------------------------
# The same numbers from transformers alone


class Oracle:
    """A checkpoint in stock transformers, float32 logits, float64 log-softmax."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def log_likelihood(self, context: list[int], continuation: list[int]) -> float:
        """The sum over the continuation; what stands before it is fed and not counted."""
        ids = torch.tensor([context + continuation])
        with torch.no_grad():
            logits = self.model(input_ids=ids[:, :-1]).logits[0, -len(continuation) :].double()
        return float(logits.log_softmax(-1).gather(1, ids[0, -len(continuation) :, None]).sum())

    def rolling(self, texts: list[str], length: int) -> dict[str, float]:
        """lm-eval's documented metrics: per whitespace-separated word and per UTF-8 byte, pooled over texts."""
        total = sum(self.log_likelihood(*window) for text in texts for window in self.windows(text, length))
        words = sum(len(re.split(r"\s+", text)) for text in texts)
        size = sum(len(text.encode()) for text in texts)
        return {
            "word_perplexity": math.exp(-total / words),
            "byte_perplexity": math.exp(-total / size),
            "bits_per_byte": -total / size / math.log(2),
        }

    def windows(self, text: str, length: int) -> Iterator[tuple[list[int], list[int]]]:
        """Every token once: whole windows, then what is left at the end of a window that reaches back."""
        ids = [self.tokenizer.bos_token_id, *self.ids(text)]
        for start in range(1, len(ids), length):
            end = min(start + length, len(ids))
            yield ids[max(end - length - 1, 0) : start], ids[start:end]


@pytest.fixture(scope="module")
def stretched(python: Path, tasks: Path, yarn: Path) -> Run:
    return lm_eval(python, tasks, yarn)


@pytest.fixture(scope="module")
def original(python: Path, tasks: Path) -> Run:
    return lm_eval(python, tasks, CHECKPOINT, f"max_length={LENGTH}")


def test_the_environment_has_no_ropescale(python):
    done = subprocess.run([python, "-c", "import ropescale"], cwd="/", capture_output=True, text=True)
    assert "No module named 'ropescale'" in done.stderr


def test_perplexity_of_the_patched_checkpoint_is_that_of_transformers(stretched, yarn, texts):
    """Without max_length, because the patched configuration says the length."""
    assert stretched.max_length == LENGTH
    assert stretched.rolling == pytest.approx(Oracle(yarn).rolling(texts, LENGTH), rel=1e-4)


def test_perplexity_of_the_original_is_that_of_transformers(original, texts):
    assert original.rolling == pytest.approx(Oracle(CHECKPOINT).rolling(texts, LENGTH), rel=1e-4)


def test_patching_is_what_makes_the_difference(stretched, original):
    """With Python 3.11's library 2.05 bits per byte become 1.12; other versions have other texts."""
    assert stretched.rolling["bits_per_byte"] < original.rolling["bits_per_byte"] - 0.5
    assert stretched.rolling["word_perplexity"] < original.rolling["word_perplexity"]


@pytest.mark.parametrize("which", ["stretched", "original"])
def test_the_choices_log_likelihoods_are_those_of_transformers(request, which, yarn, questions):
    run = request.getfixturevalue(which)
    oracle = Oracle(yarn if which == "stretched" else CHECKPOINT)
    wanted = [_wanted(oracle, question) for question in questions]
    assert run.choices == [pytest.approx(each, rel=1e-4) for each in wanted]
    right = [max(range(4), key=each.__getitem__) == q["label"] for each, q in zip(wanted, questions)]
    assert run.accuracy == sum(right) / len(right)


def _wanted(oracle: Oracle, question: dict[str, Any]) -> list[float]:
    """lm-eval moves the context's last whitespace to the choice, and cuts by the whole text's tokens."""
    stem = question["context"].rstrip()
    space = question["context"][len(stem) :]
    before = oracle.ids(stem)
    assert len(before) > 1024
    return [
        oracle.log_likelihood(before, oracle.ids(stem + space + choice)[len(before) :])
        for choice in question["choices"]
    ]


def test_a_linear_patch_is_measured_at_the_old_length_unless_max_length_is_given(python, tasks, linear, texts):
    """lm-eval takes max_position_embeddings, which linear leaves at 256 for vLLM, that multiplies it."""
    unasked = lm_eval(python, tasks, linear, only="rolling")
    assert unasked.max_length == 256
    assert unasked.rolling == pytest.approx(Oracle(linear).rolling(texts, 256), rel=1e-4)
