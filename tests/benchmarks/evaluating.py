"""The cost of measuring perplexity: ``python tests/benchmarks/evaluating.py [NAME]...``, all of them without a name.

* ``curve``: a curve of 16 lengths from one pass, against one pass per length.
* ``overhead``: a whole ``perplexity`` call, against the bare model over the same batches.
* ``head``: peak memory of 32,768 tokens with a vocabulary of 128,256 and a tiny trunk.
* ``long``: one document of 131,072 tokens through the reference model: time and peak memory.
* ``processes``: 2 processes of one thread against 1, on many documents.

Times are ratios measured side by side in one run, interleaved, median of several. Those of one process are of its CPU
time on one thread, which is what it takes on an idle machine, nearly, whatever else runs. For ``processes`` they are
wall times, the best of each, because what else the machine does weighs on two processes more than on one. README.md
here has what they gave.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 5
LENGTHS = list(range(128, 2049, 128))


def reference_model() -> tuple[Any, list[list[int]]]:
    """The bundled model in fp32 on one thread, and its held-out documents as ids, BOS first."""
    import torch

    from ropescale.evals import read_texts, reference, tokenize
    from ropescale.models.loading import load_model, load_tokenizer

    torch.set_num_threads(1)
    tokenizer = load_tokenizer(reference.CHECKPOINT)
    texts = [text for name in reference.HELD_OUT for text in read_texts(str(reference.corpus.library_root() / name))]
    ids = [[tokenizer.bos_token_id, *document.ids] for document in tokenize(texts, tokenizer)]
    return load_model(reference.CHECKPOINT, "float32").eval(), ids


def long_enough(documents: list[list[int]], count: int = 4) -> list[list[int]]:
    """The first documents that reach the longest length."""
    return [each for each in documents if len(each) >= LENGTHS[-1]][:count]


def side_by_side(acts: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """CPU seconds of each act, once per round, in turn; after one round that does not count."""
    seen: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(rounds + 1):
        for name, act in acts.items():
            start = time.process_time()
            act()
            if number:
                seen[name].append(time.process_time() - start)
    return seen


def show(seen: dict[str, list[float]], base: str) -> None:
    """The median of each, and the median over rounds of its ratio to the base's, with the spread."""
    for name, seconds in seen.items():
        ratios = [a / b for a, b in zip(seconds, seen[base], strict=True)]
        spread = f"[{min(ratios):.3f}, {max(ratios):.3f}]"
        print(f"  {name:42} {statistics.median(seconds):7.3f} s  {statistics.median(ratios):6.3f} x {spread}")


def curve() -> None:
    """16 lengths from 128 to 2048, over four held-out modules."""
    from ropescale.evals import perplexity

    model, ids = reference_model()
    ids = long_enough(ids)
    result = perplexity(model, ids, LENGTHS)
    passes = sum(run.forward_passes for run in result.passes)
    print(f"  {passes} forward passes for {len(ids)} documents and {len(LENGTHS)} lengths")
    assert passes == len(ids)
    seen = side_by_side(
        {
            "one pass for all lengths": lambda: perplexity(model, ids, LENGTHS),
            "one pass per length": lambda: [perplexity(model, ids, [length]) for length in LENGTHS],
        },
        rounds=3,
    )
    show(seen, "one pass for all lengths")


def overhead() -> None:
    """The whole call, with planning, checks, storing and intervals, against what no measurement could do without."""
    import torch

    from ropescale.evals import perplexity

    model, ids = reference_model()
    ids = long_enough(ids)
    together = perplexity(model, ids, LENGTHS).protocol["batch_tokens"] // LENGTHS[-1]
    rows = [torch.tensor([each[: LENGTHS[-1]] for each in ids[n : n + together]]) for n in range(0, len(ids), together)]

    @torch.inference_mode()
    def bare(reduce: bool) -> None:
        for batch in rows:
            hidden = model.model(input_ids=batch, use_cache=False).last_hidden_state[:, :-1]
            logits = model.lm_head(hidden).flatten(0, 1)
            if reduce:
                torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="none")

    seen = side_by_side(
        {
            "trunk and head": lambda: bare(reduce=False),
            "trunk, head and cross-entropy, logits whole": lambda: bare(reduce=True),
            "perplexity(), 16 lengths": lambda: perplexity(model, ids, LENGTHS),
        },
        rounds=9,
    )
    show(seen, "trunk and head")


HEAD = """
import json, resource, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from ropescale.evals import perplexity
torch.manual_seed(0)
shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
model = LlamaForCausalLM(LlamaConfig(vocab_size=128256, max_position_embeddings=32768, **shape)).eval()
ids = torch.randint(128256, (32768,)).tolist()
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
(row,) = perplexity(model, [ids], [32768]).rows
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"loaded": before, "peak": after * 1024, "tokens": row.tokens}))
"""


def head() -> None:
    """Peak of the process from its start, against what it holds once the model is there."""
    found = json.loads(child(HEAD))
    above = (found["peak"] - found["loaded"]) / 1e6
    loaded, whole = found["loaded"] / 1e6, 32768 * 128256 * 4 / 1e6
    print(
        f"  {found['tokens']:,} tokens scored; {above:,.0f} MB above the {loaded:,.0f} MB of the process with the model"
    )
    print(f"  full fp32 logits alone: {whole:,.0f} MB")


def long() -> None:
    """All the text there is, again and again; the whole process counts, Python and libraries included."""
    import torch

    from ropescale.evals import perplexity

    model, ids = reference_model()
    torch.set_num_threads(os.cpu_count() or 1)
    joined = [token for each in ids for token in each[1:]]
    document = (joined * (131072 // len(joined) + 1))[:131072]
    start, before = time.perf_counter(), time.process_time()
    result = perplexity(model, [document], [2048, 131072])
    seconds, cpu = time.perf_counter() - start, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for row in result.rows:
        print(f"  {row.length:,} positions: perplexity {row.ppl:,.2f}")
    print(f"  131,072 tokens in {seconds:,.0f} s ({cpu:,.0f} s of CPU time over {os.cpu_count()} threads); ", end="")
    print(f"peak of the process {peak / 1e9:.2f} GB; load {os.getloadavg()[0]:.1f}")
    print("  in one forward" if not result.cost[0]["split_batches"] else "  in chunks with a key-value cache")


def processes(rounds: int = 3) -> None:
    """What ``resume/timing.jsonl`` says of the work itself, and the whole commands with all that a process loads."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        print(f"  {many_documents(folder / 'texts')} documents of 1,024 positions; load {os.getloadavg()[0]:.1f}")
        seen: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for _ in range(rounds):
            for size, found in seen.items():
                found.append(launched(size, folder))
                work, whole = found[-1]
                load = os.getloadavg()[0]
                print(f"  {size} x 1 thread: {work:.1f} s of work, {whole:.1f} s in all; load {load:.1f}", flush=True)
    for which, name in enumerate(("the work", "the whole command")):
        best = {size: min(times[which] for times in found) for size, found in seen.items()}
        print(f"  {name}: {best[1] / best[2]:.2f} times as fast with 2 processes ({best[1]:.1f} s, {best[2]:.1f} s)")


def many_documents(folder: Path, count: int = 200, characters: int = 8000) -> int:
    """Pieces of the held-out modules, a file each, all of them longer than is measured."""
    from ropescale.evals import reference

    folder.mkdir()
    texts = reference.held_out_documents()
    pieces = [text[n : n + characters] for text in texts for n in range(0, len(text) - characters, characters)]
    for number, piece in enumerate(pieces[:count]):
        (folder / f"{number:03d}.txt").write_text(piece)
    return len(pieces[:count])


def launched(size: int, folder: Path) -> tuple[float, float]:
    """Seconds from the first batch to the last of the slowest process, and of the whole command."""
    from ropescale.evals import reference

    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = ["eval", reference.CHECKPOINT, "--data", folder / "texts", "--lengths", "1k", "-o", out]
    start = time.perf_counter()
    child(None, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", size, "-m", "ropescale", *words)
    whole = time.perf_counter() - start
    lines = (out / "resume" / "timing.jsonl").read_text().splitlines()
    return max(json.loads(line)["seconds"] for line in lines), whole


def child(program: str | None, *words: object) -> str:
    """What a Python process of one thread prints."""
    given = [sys.executable, *(["-c", program] if program is not None else []), *map(str, words)]
    done = subprocess.run(given, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


MEASUREMENTS = {each.__name__: each for each in (curve, overhead, head, long, processes)}


def main() -> None:
    """All the measurements, or those that are named, each in a process of its own."""
    asked = sys.argv[1:] or list(MEASUREMENTS)
    if wrong := [name for name in asked if name not in MEASUREMENTS]:
        raise SystemExit(f"no measurement is called {wrong[0]!r}; there are {', '.join(MEASUREMENTS)}")
    for name in asked:
        print(f"{name}: {(MEASUREMENTS[name].__doc__ or '').splitlines()[0]}", flush=True)
        if len(asked) > 1:
            subprocess.run([sys.executable, __file__, name], check=True)
        else:
            MEASUREMENTS[name]()


if __name__ == "__main__":
    main()
