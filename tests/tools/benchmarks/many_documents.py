"""Many short documents: what ``eval`` adds to tokenizing and scoring, and its memory.

``python many_documents.py [DOCUMENTS]``: documents of 200 tokens in a JSONL file, by a model of one layer and few
words, so that little hides behind its forward passes, or with ``--model`` by that in a folder. Every act is a process
of its own on one thread; the figures are its CPU seconds, and the largest memory that it had.

* loop: reads, tokenizes and scores the same windows in batches of the same size, in float32 with stock transformers;
* eval: the command, with ``-o``, its metrics and pictures;
* report: the page of the finished run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

LENGTH, WORDS, BATCH = 200, 60, 8192
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="?", type=int, default=100_000)
    parser.add_argument("--model", type=Path, help="a folder (default: a model of one layer)")
    parser.add_argument("--loop", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.loop:
        loop(asked.loop)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make(folder, asked.documents)
        if asked.model:
            shutil.copytree(asked.model, folder, dirs_exist_ok=True)
        measure = ["eval", folder, "--data", folder / "texts.jsonl", "--lengths", LENGTH, "--batch-tokens", BATCH]
        measure += ["--windows", 1]
        spent("loop", [__file__, "--loop", folder])
        spent("eval", ["-m", "ropescale", *measure, "-o", folder / "run"])
        spent("report", ["-m", "ropescale", "report", folder / "run", "-o", folder / "page.html"])


def make(folder: Path, count: int) -> None:
    """Writes a model, its tokenizer of whole words, and random texts."""
    import numpy as np
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [f"w{number}" for number in range(WORDS)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    random = np.random.default_rng(0)
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as file:
        for _ in range(count):
            text = " ".join(words[number] for number in random.integers(0, WORDS, LENGTH))
            file.write(json.dumps({"text": text}) + "\n")


def spent(name: str, words: list[object]) -> None:
    """Runs a process, and prints its CPU seconds, its wall time and its largest memory."""
    start = time.monotonic()
    process = os.posix_spawn(sys.executable, [sys.executable, *map(str, words)], os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{name} failed")
    seconds = usage.ru_utime + usage.ru_stime
    print(f"{name}: {seconds:.1f} s of CPU time, {time.monotonic() - start:.1f} s, {usage.ru_maxrss / 1e6:.2f} GB")


def loop(folder: Path) -> None:
    """Reads, tokenizes and scores the windows that ``eval`` scores, and keeps the losses."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()  # as eval does
    with open(folder / "texts.jsonl", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    ids = tokenizer(texts, return_attention_mask=False)["input_ids"]
    losses, size = [], BATCH // LENGTH
    with torch.inference_mode():
        for start in range(0, len(ids), size):
            batch = torch.tensor([each[:LENGTH] for each in ids[start : start + size]])
            logits = model(input_ids=batch, use_cache=False).logits[:, :-1].flatten(0, 1)
            losses.append(torch.nn.functional.cross_entropy(logits, batch[:, 1:].reshape(-1), reduction="none"))


if __name__ == "__main__":
    main()
