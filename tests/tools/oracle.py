"""What the product answers, recorded and compared: ``python tests/tools/oracle.py record DIR`` and ``compare A B``.

``record`` runs every command and the public API of the ropescale that Python imports, on configurations of its own, on
the bundled model and on a checkpoint given with ``--checkpoint``. ``compare`` lists every difference: losses, answers,
key tokens, tables and patched files are compared bit for bit, figures of recommend and search within 1e-5.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from safetensors.numpy import load_file

sys.path.append(str(Path(__file__).resolve().parent.parent / "helpers"))

import ropescale
from ropescale.cli.main import group, main as command_line

ENGINES = ("vllm", "sglang", "llama.cpp", "mlx-lm", "transformers5", "transformers4")
SCHEDULES = (
    "base linear:factor=4 ntk:factor=4 ntk-su:factor=4 ntk-mixed:factor=4 ntk-critical:factor=4 abf:rope_theta=500000 "
    "dynamic:factor=4 ntk-by-parts:factor=4 yarn:factor=4 dynamic-yarn llama3:factor=4 giraffe:scale_power=0.5 cope "
    "proportional:partial_rotary_factor=0.5 resonance:over=yarn,factor=4"
).split()
TINY = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_LISTS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 2.5, 4.0]}
_VISION = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 10000.0},
    "qwen2": {"rope_theta": 1000000.0},
    "qwen3": {"head_dim": 16, "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1000000.0}},
    "mistral": {"sliding_window": None},
    "gemma3_text": {"head_dim": 8, "sliding_window": 16, "num_hidden_layers": 6},
    "phi3": {
        "max_position_embeddings": 1024,
        "original_max_position_embeddings": 256,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **_LISTS},
    },
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 16,
        "num_local_experts": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    },
    "deepseek_v3": {"num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, **_MLA},
    "qwen2_vl": {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}, "vision_config": _VISION},
    "glm4": {"head_dim": 8, "pad_token_id": 0, "partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.5},
}


class Recording:
    """Answers by name, with the folders of this run and everything that is new in each run taken out."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.answers, self.losses = folder, {}, {}

    def add(self, name: str, answer: Any) -> None:
        """Keeps plain data."""
        self.answers[name] = json.loads(self.normal(json.dumps(answer, default=vars)))

    def run(self, name: str, *words: object, keep: bool = True) -> str:
        """Runs a command; keeps its exit code, and its output unless its results are kept another way."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command_line([str(word) for word in words])
        parts = {"code": code, "out": out.getvalue()} | ({"err": err.getvalue()} if keep or code else {})
        self.add(name, parts if keep or code else {"code": code})
        return out.getvalue()

    def normal(self, text: str) -> str:
        """Takes out paths, versions and times."""
        root = str(Path(ropescale.__file__).parent.parent)
        for path, sign in ((str(self.folder), "<DIR>"), (root, "<ROOT>"), (tempfile.gettempdir(), "<TMP>")):
            text = text.replace(path, sign)
        for name in ("ropescale", "torch", "transformers"):
            text = re.sub(rf'((?:"|\\")?{name}(?:"|\\")?:? (?:"|\\")?)\d+\.\d+[\w.+]*', r"\1<VERSION>", text)
        return re.sub(r"\b[\d.,]+ (s|ms|min|minutes|hours|tokens/s)\b", r"<TIME> \1", text)


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Writes a configuration per model type, with a stand-in for weights: nothing here reads them."""
    from transformers import AutoConfig

    for name, changes in MODELS.items():
        path = folder / name
        path.mkdir(parents=True)
        config = AutoConfig.for_model(name, **(TINY | changes)).to_dict() | {"transformers_version": "5.0.0"}
        (path / "config.json").write_text(json.dumps(config, indent=1))
        (path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        yield name, path


def on_disk(kept: Recording) -> None:
    """Records what happens to configurations: inspect, patch, verify, export and frequencies."""
    for name, model in models(kept.folder / "models"):
        kept.run(f"inspect/{name}", "inspect", model, "--json")
        for engine in ENGINES:
            kept.run(f"export/{name}/as-is/{engine}", "export", model, "--for", engine, "--json")
        for spec in (*SCHEDULES, *_lists(name)):
            where, out = f"{name}/{spec}", kept.folder / "patched"
            asked = ("--schedule", spec, *(["--replace-scaling"] if name == "qwen3" else []))
            frequencies(kept, where, model, spec, replace_scaling=name == "qwen3")
            kept.run(f"inspect/{where}", "inspect", model, *asked, "--json")
            kept.run(f"patch/{where}", "patch", model, "-o", out, *asked)
            if out.exists():
                patched(kept, where, out)
                kept.run(f"verify/{where}", "verify", out, "--json")
                shutil.rmtree(out)
            for engine in ENGINES:
                kept.run(f"export/{where}/{engine}", "export", model, "--for", engine, *asked)


def _lists(name: str) -> tuple[str, ...]:
    pairs = 8 if name == "qwen3" else 2 if name in ("glm4", "gpt_neox") else 4
    longer, numbers = (json.dumps([1 + step * pair for pair in range(pairs)]) for step in (0.5, 1))
    return f"longrope:factor=4,short_factor={longer},long_factor={numbers}", f"table:factors={numbers}"


def frequencies(kept: Recording, where: str, model: Path, spec: str, **options: Any) -> None:
    """Records the tables, with every digit, at two lengths; or the refusal."""
    for length in (None, 700):
        try:
            tables = ropescale.frequencies(model, spec, length, **options)
            answer: Any = {key: [list(map(float.hex, map(float, t.inv_freq))), vars(t)] for key, t in tables.items()}
        except ropescale.RopescaleError as error:
            answer = str(error)
        kept.add(f"frequencies/{where}/{length}", answer)


def patched(kept: Recording, where: str, out: Path) -> None:
    """Records every file that a patch wrote: its hash without versions, and JSON in full."""
    for file in sorted(path for path in out.rglob("*") if path.is_file() and path.name != "README.md"):
        text = kept.normal(file.read_text(encoding="utf-8", errors="surrogateescape"))
        text = re.sub(r'("inode": )\d+|("README.md": \{\s*"sha256": )"\w+"', r"\1\2null", text)
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        answer = [digest, json.loads(text)] if file.suffix == ".json" else digest
        kept.add(f"patched/{where}/{file.relative_to(out)}", answer)


def measured(kept: Recording, name: str, model: Path, data: Path, trained: int) -> None:
    """Records eval, retrieval, recommend and search on real weights."""
    short, long, out = str(trained // 2), str(trained * 2), kept.folder / "runs" / name
    text = ("--data", data)
    kept.run(f"run/{name}/inspect", "inspect", model)
    kept.run(f"run/{name}/verify", "verify", model)
    schedules = ("--schedule", "yarn:factor=2", "--schedule", "ntk:factor=2", "--schedule", "dynamic:factor=2")
    lengths = ("--lengths", f"{short},{trained},{long}")
    out.mkdir(parents=True)
    keys = out / "keys.json"
    thresholds = ("--window", trained // 8, "--stride", trained // 16, "--max-length", trained, "--alpha", 0.5)
    kept.run(f"run/{name}/keys", "keys", model, "--data", data, *thresholds, "-o", keys, keep=False)
    kept.add(f"run/{name}/keys/spans", json.loads(keys.read_bytes()))
    runs = {
        "eval": ("eval", model, *text, *lengths, *schedules, "--windows", "2", "--key-spans", keys),
        "sliding": (
            "eval",
            model,
            *text,
            "--lengths",
            short,
            *schedules[:2],
            "--stride",
            trained // 4,
            "--max-docs",
            1,
        ),
        "passkey": ("retrieval", model, *lengths, *schedules, "--trials", "2", "--depths", "3"),
        "recommend": ("recommend", model, *text, "--target-length", long, "--budget-tokens", "6k"),
    }
    for kind, words in runs.items():
        printed = kept.run(f"run/{name}/{kind}", *words, "-o", out / kind, keep=False)
        kept.add(f"run/{name}/{kind}/printed", printed)
        results(kept, f"run/{name}/{kind}", out / kind)
    for kind in ("eval", "sliding"):
        losses(kept, f"{name}/{kind}", ropescale.evals.Result.load(out / kind))
    kept.run(f"run/{name}/report", "report", out / "eval", out / "recommend", "-o", out / "report.html", keep=False)
    kept.add(
        f"run/{name}/report/page", re.sub(r"<script.*?</script>", "", (out / "report.html").read_text(), flags=re.S)
    )
    kept.add(f"run/{name}/passkey/answers", (out / "passkey" / "answers.csv").read_text())
    words = ("--target-length", long, "--budget-tokens", trained * 50, "-o", out / "found.json")
    kept.run(f"run/{name}/search", "search", model, *text, *words, keep=False)
    results(kept, f"run/{name}/search", out / "found-search")


def results(kept: Recording, name: str, out: Path) -> None:
    """Records results.json without what the layout of a folder decides, and every stored array of losses."""
    if (out / "losses.safetensors").exists():
        stored = load_file(out / "losses.safetensors")
        kept.losses |= {f"stored/{name}/{key}": array for key, array in stored.items()}
    if (out / "results.json").exists():
        found = json.loads((out / "results.json").read_bytes())
        gone = ("files", "sha256", "versions", "schema")
        kept.add(f"{name}/results", {key: value for key, value in found.items() if key not in gone})


def losses(kept: Recording, name: str, result: Any) -> None:
    """Records the loss of every token, those of truncation and the divergences, as arrays."""
    found = {f"{row.schedule}/{row.length}": result.losses(row.schedule, row.length) for row in result.rows}
    if result.truncation:
        found["truncation"] = result.truncation.nll
    for each in result.divergences:
        found[f"{each.schedule}/divergence"] = [np.asarray(value) for value in each.kl]
    for key, arrays in found.items():
        kept.losses |= {f"{name}/{key}/{index}": np.asarray(array) for index, array in enumerate(arrays)}


def written_and_undone(kept: Recording) -> None:
    """Records the commands that need a folder or a file of their own: patch in place, restore, gguf, demo."""
    name, model = next(models(kept.folder / "in-place"))
    kept.run("in-place/patch", "patch", model, "--in-place", "--schedule", "yarn:factor=4")
    patched(kept, f"in-place/{name}", model)
    kept.run("in-place/restore", "restore", model)
    patched(kept, f"restored/{name}", model)
    import torch
    from gguf_models import write_gguf
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    loaded = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TINY | MODELS["llama"]))
    source, out = write_gguf(loaded, kept.folder / "in-place" / "model.gguf"), kept.folder / "in-place" / "out.gguf"
    for spec in SCHEDULES:
        kept.run(f"gguf/{spec}", "gguf", source, "-o", out, "--schedule", spec)
        if out.exists():
            kept.add(f"gguf/{spec}/file", hashlib.sha256(out.read_bytes()).hexdigest())
            out.unlink()
    kept.run("demo", "demo", "-o", kept.folder / "in-place" / "demo", keep=False)
    for run in sorted((kept.folder / "in-place" / "demo").rglob("results.json")):
        results(kept, "run/demo", run.parent)


def record(folder: Path, checkpoint: Path | None) -> None:
    """Records everything into an empty folder."""
    os.environ["COLUMNS"] = "80"
    folder.mkdir(parents=True)
    kept, began = Recording(folder.resolve()), time.monotonic()
    for command in ("", *group.list_commands(click.Context(group))):
        kept.run(f"help/{command}", *filter(None, [command]), "--help")
    kept.run("schedules", "schedules", "--json")
    for name in ropescale.schedules.names():
        kept.run(f"schedules/{name}", "schedules", name)
    kept.run("datasets", "datasets")
    on_disk(kept)
    written_and_undone(kept)
    library = folder / "text"
    library.mkdir()
    for module in ("bdb", "fractions", "plistlib", "shutil"):
        source = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text(encoding="utf-8")
        (library / f"{module}.txt").write_text(source[:9000], encoding="utf-8")
    from ropescale.evals.reference import CHECKPOINT

    measured(kept, "bundled", CHECKPOINT, library, 256)
    if checkpoint and checkpoint.is_dir():
        measured(kept, checkpoint.name, checkpoint, library, 512)
    for part in ("models", "runs", "text", "in-place"):
        shutil.rmtree(folder / part)
    (folder / "answers.json").write_text(json.dumps(kept.answers, indent=1))
    np.savez_compressed(folder / "losses.npz", **kept.losses)
    print(f"{len(kept.answers)} answers, {len(kept.losses)} arrays of losses, {time.monotonic() - began:.0f} s")


def compare(one: Path, two: Path) -> int:
    """Prints every difference; returns how many there are."""
    answers = [json.loads((folder / "answers.json").read_bytes()) for folder in (one, two)]
    lines = []
    for name in sorted(answers[0].keys() | answers[1].keys()):
        near = 1e-5 if re.match(r"run/[^/]+/(recommend|search)", name) else 0.0
        lines += differences(name, answers[0].get(name), answers[1].get(name), near)
    arrays = [np.load(folder / "losses.npz") for folder in (one, two)]
    for name in sorted({*arrays[0].files, *arrays[1].files}):
        a, b = (each[name] if name in each.files else None for each in arrays)
        if a is None or b is None or a.dtype != b.dtype or a.tobytes() != b.tobytes():
            lines.append(f"losses/{name}: {'only in one' if a is None or b is None else 'not bit-equal'}")
    print("\n".join([*lines, f"{len(lines)} differences"]))
    return min(len(lines), 1)


def differences(name: str, one: Any, two: Any, near: float) -> Iterator[str]:
    """Yields a line for every value that differs, down through mappings and lists."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            yield from differences(f"{name} > {key}", one.get(key), two.get(key), near)
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for index, (a, b) in enumerate(zip(one, two)):
            yield from differences(f"{name} > {index}", a, b, near)
    elif one != two and not (near and isinstance(one, float) and isinstance(two, float) and abs(one - two) <= near):
        yield f"{name}: {str(one)[:300]!r} -> {str(two)[:300]!r}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folders", nargs="+", type=Path, help="the folder to write, or the two to compare")
    parser.add_argument("--checkpoint", type=Path, help="a second model to measure; left out where it is absent")
    given = parser.parse_args()
    if given.action == "record":
        record(given.folders[0], given.checkpoint)
    else:
        sys.exit(compare(*given.folders))
