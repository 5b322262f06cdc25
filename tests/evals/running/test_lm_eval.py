"""lm-evaluation-harness on a patched checkpoint: it needs nothing of ours, and its numbers are transformers' own.

The command that runs is the one that the README gives, in an environment that has no ropescale.
"""

import json
import math
import os
import re
import subprocess

import pytest
import torch
from environments import environment
from tiny import naive_nll
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


@pytest.fixture(scope="module")
def python():
    return environment("lm-eval", "lm-eval[hf]==0.4.13")


@pytest.fixture(scope="module")
def texts():
    """Two held-out modules: one that fits into the stretched length, one that takes two windows of it."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    [first, second, *_] = held_out_documents()
    return [tokenizer.decode(tokenizer(text)["input_ids"][1:n]) for text, n in ((first, 1500), (second, 3000))]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "rolling.yaml").write_text(ROLLING.replace("FOLDER", str(folder)))
    (folder / "rolling.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def lm_eval(python, tasks, model, *arguments):
    """Runs the command, offline; returns the length that it measured at, and its metrics."""
    out = tasks / f"of-{model.parent.name}-{len(arguments)}"
    given = ",".join([f"pretrained={model}", "add_bos_token=False", "dtype=float32", *arguments])
    words = f"-m lm_eval run --model hf --model_args {given} --tasks rolling --include_path {tasks} --device cpu"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tasks / "cache"), "PYTHONPATH": ""}
    how = {"env": os.environ | offline, "cwd": tasks, "capture_output": True, "text": True, "timeout": 3000}
    done = subprocess.run([python, *words.split(), "--batch_size", "1", "--output_path", out], **how)
    assert done.returncode == 0, done.stderr[-3000:]
    [results] = out.rglob("results_*.json")
    found = json.loads(results.read_text())
    metrics = ("word_perplexity", "byte_perplexity", "bits_per_byte")
    return found["max_length"], {name: found["results"]["rolling"][f"{name},none"] for name in metrics}


class Oracle:
    """A checkpoint in stock transformers, float32 logits, float64 log-softmax."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def log_likelihood(self, context, continuation):
        """The sum over the continuation; what stands before it is fed and not counted."""
        return -math.fsum(naive_nll(self.model, context + continuation)[-len(continuation) :])

    def rolling(self, texts, length):
        """lm-eval's documented metrics: per whitespace-separated word and per UTF-8 byte, pooled over texts."""
        total = sum(self.log_likelihood(*window) for text in texts for window in self.windows(text, length))
        words = sum(len(re.split(r"\s+", text)) for text in texts)
        size = sum(len(text.encode()) for text in texts)
        per_word, per_byte = math.exp(-total / words), math.exp(-total / size)
        return {"word_perplexity": per_word, "byte_perplexity": per_byte, "bits_per_byte": -total / size / math.log(2)}

    def windows(self, text, length):
        """Every token once: whole windows, then what is left at the end of a window that reaches back."""
        ids = [self.tokenizer.bos_token_id, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        for start in range(1, len(ids), length):
            end = min(start + length, len(ids))
            yield ids[max(end - length - 1, 0) : start], ids[start:end]


GIVEN = [("yarn:factor=8", [], LENGTH), ("linear:factor=8", [], 256), (None, [f"max_length={LENGTH}"], LENGTH)]


@pytest.mark.parametrize(("spec", "words", "length"), GIVEN)
def test_perplexity_is_that_of_transformers_at_the_stated_length(spec, words, length, python, tasks, texts, tmp_path):
    """It takes max_position_embeddings, which linear leaves at 256 for vLLM, that multiplies it."""
    folder = CHECKPOINT
    if spec:
        folder = tmp_path / "model"
        ropescale.patch_checkpoint(CHECKPOINT, folder, spec)
    found_length, found = lm_eval(python, tasks, folder, *words)
    assert found_length == length and found == pytest.approx(Oracle(folder).rolling(texts, length), rel=1e-4)
