"""The commands that are killed, with what lies on the disk before each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

Run = Callable[[list[str], Path], None]
"""Runs a command to its end in a folder, and raises where it fails."""

DECOYS = (".out.notes", ".out.ropescale", ".model.notes", "thesis.txt", "letters/home.txt", "out.old", "out-2/x")
"""Files of the user's, beside the output; some are called almost like our own."""

TEMPORARY = "tmp"
"""The system's folder for temporary files, for the commands of a scene."""


@dataclass(frozen=True)
class Scene:
    """A command, and what it may change.

    Attributes:
        prepare: fills the folder, with the help of commands.
        first: a command that is run after the folder was copied, where its result knows the very files that it made.
        output: what it writes, a name in the folder.
        in_place: the model itself is the output.
        repeated: the exit code of the same command once it has completed, and its sentence.
    """

    name: str
    words: list[str]
    prepare: Callable[[Path, Run], None]
    output: str = "out"
    in_place: bool = False
    repeated: tuple[int, str] = (0, "")
    first: tuple[str, ...] = ()


def _user(folder: Path) -> None:
    for name in DECOYS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"the user's {name}")
    (folder / TEMPORARY).mkdir()


def _checkpoint(folder: Path, run: Run) -> None:
    """Two shards of a megabyte, everything that patching reads, and files that it copies; no command is run."""
    _user(folder)
    model = folder / "model"
    (model / "original").mkdir(parents=True)
    config: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
    config |= {"max_position_embeddings": 256, "rope_theta": 10000.0, "architectures": ["LlamaForCausalLM"]}
    shards = {f"model-0000{n}-of-00002.safetensors": Random(n).randbytes(1 << 20) for n in (1, 2)}
    files = {
        "config.json": json.dumps(config),
        "tokenizer_config.json": '{"model_max_length": 256}',
        "generation_config.json": '{"max_length": 200}',
        "README.md": "---\nlicense: apache-2.0\n---\n# A model\n",
        "original/params.json": "{}",
        "my notes.txt": "the user's, in the model's folder",
        "model.safetensors.index.json": json.dumps({"weight_map": {name[:9]: name for name in shards}}),
    }
    for name, content in (files | shards).items():
        (model / name).write_bytes(content if isinstance(content, bytes) else content.encode())


_PATCH, _FORCED, _COPIED = ["patch", "model"], ["-o", "out", "--force"], ["--link", "copy"]
_LINEAR, _YARN = ["--schedule", "linear:factor=2"], ["--schedule", "yarn:factor=4"]
_EXISTS = (2, "exists already")
_NOTHING = (2, "nothing to restore")


def _empty(folder: Path, run: Run) -> None:
    _checkpoint(folder, run)
    (folder / "out").mkdir()


def _patched(folder: Path, run: Run) -> None:
    _checkpoint(folder, run)
    run([*_PATCH, "--in-place", *_LINEAR], folder)


def _gguf(folder: Path, run: Run) -> None:
    from gguf_models import write_gguf
    from tiny import llama

    _user(folder)
    write_gguf(llama(vocab_size=257), folder / "model.gguf")


def _measurable(folder: Path, run: Run) -> None:
    """A tiny model with a tokenizer, two texts, and a file of the user's in the output."""
    from tiny import checkpoint

    _user(folder)
    checkpoint(folder / "model")
    (folder / "texts").mkdir()
    text = "It was a bright cold day in April, and the clocks were striking thirteen. "
    for number in range(12):
        (folder / "texts" / f"{number:02}.txt").write_text((text[number:] + text[:number][::-1]) * 4)
    (folder / "out").mkdir()
    (folder / "out" / "notes.txt").write_text("the user's, in the output")


_EVAL = "eval model --data texts --lengths 64,128,192,256 --schedule yarn:factor=4 --schedule linear:factor=4".split()
_PASSKEY = "retrieval model --lengths 480,600 --depths 0,0.5,1 --trials 8 --bos no --schedule yarn:factor=8".split()
_RECOMMEND = "recommend model --target-length 128 --data texts --windows 1 --max-docs 4".split()
_SEARCH = "search model --target-length 256 --data texts --budget-windows 14 --bos no -o out.json".split()
_KEYS = "keys model --data texts --window 64 --stride 32 --max-length 192 --alpha 0 --beta -9 -o out.json".split()

SCENES: dict[str, tuple[Scene, ...]] = {
    "patch -o": (
        Scene("empty", [*_PATCH, "-o", "out", *_YARN], _empty, repeated=_EXISTS),
        Scene("linked", [*_PATCH, "-o", "out", *_YARN], _checkpoint, repeated=_EXISTS),
        Scene("copied", [*_PATCH, "-o", "out", *_COPIED, *_YARN], _checkpoint, repeated=_EXISTS),
    ),
    "patch --force": (
        Scene("linked", [*_PATCH, *_FORCED, *_YARN], _checkpoint, first=(*_PATCH, "-o", "out", *_LINEAR)),
        Scene(
            "copied",
            [*_PATCH, *_FORCED, *_COPIED, *_YARN],
            _checkpoint,
            first=(*_PATCH, "-o", "out", *_COPIED, *_LINEAR),
        ),
    ),
    "patch --in-place": (
        Scene("first", [*_PATCH, "--in-place", *_YARN], _checkpoint, "model", True),
        Scene("second", [*_PATCH, "--in-place", *_YARN], _patched, "model", True),
    ),
    "gguf -o": (Scene("tiny", ["gguf", "model.gguf", "-o", "out.gguf", *_YARN], _gguf, "out.gguf", repeated=_EXISTS),),
    "restore": (Scene("patched", ["restore", "model"], _patched, "model", True, repeated=_NOTHING),),
    "eval -o": (Scene("tiny", [*_EVAL, "--batch-tokens", "256", "-o", "out"], _measurable),),
    "recommend -o": (Scene("tiny", [*_RECOMMEND, "--batch-tokens", "256", "-o", "out"], _measurable),),
    "search -o": (Scene("tiny", _SEARCH, _measurable, "out.json"),),
    "keys -o": (Scene("tiny", _KEYS, _measurable, "out.json"),),
    "retrieval -o": (Scene("tiny", [*_PASSKEY, "--batch-tokens", "1200", "-o", "out"], _measurable),),
}


def copied(source: Path, to: Path) -> None:
    """The same tree once more: times, links of every kind, and files that are one under two names."""
    seen: dict[tuple[int, int], Path] = {}
    shutil.rmtree(to, ignore_errors=True)

    def bring(path: str, destination: str) -> None:
        found = os.lstat(path)
        first = seen.setdefault((found.st_dev, found.st_ino), Path(destination))
        shutil.copy2(path, destination) if first == Path(destination) else os.link(first, destination)

    shutil.copytree(source, to, symlinks=True, copy_function=bring)
