"""Targets: the files that are mutated, the commands that read them, and what must hold where they succeed."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import ropescale
from ropescale.errors import RopescaleError
from ropescale.lengths import parse_length

from . import seeds
from .judging import Fault, Outcome, place
from .mutating import as_bytes, damaged, mutated, pool, scrambled, spoiled
from .seeds import Made

Commands = list[list[str]]

ENGINES = ("vllm", "sglang", "llama.cpp", "transformers4", "transformers5")
_PLAIN = [spec for spec in seeds.SPECS if "mine" not in spec and "factors.json" not in spec]


class Target(ABC):
    """Something that is mutated. The weight says how often, beside the others."""

    name = ""
    weight = 1.0
    needs_torch = False

    def __init__(self, made: Made) -> None:
        self.made = made

    @abstractmethod
    def make(self, rng: Random, folder: Path) -> Commands:
        """Fills the folder with mutated input and says what to run there."""

    def check(self, folder: Path, outcome: Outcome) -> Iterator[Fault]:
        """What more must hold after a command."""
        if outcome.code == 0 and outcome.words[0] == "patch" and "--dry-run" not in outcome.words:
            yield from read_back(outcome.words)


def _rope_like(path: tuple[Any, ...]) -> bool:
    """Places in a configuration that have to do with rotation or with lengths."""
    words = ("rope", "rotary", "head", "max_position", "layer_types", "sliding", "model_type", "partial", "hidden_size")
    return any(word in str(key) for key in path for word in (*words, "factor", "theta", "attn", "dim"))


def _reading(rng: Random, spec: str) -> list[str]:
    """A command that reads the checkpoint ``model`` under a schedule."""
    more = rng.choice(_MORE)
    asked = ["--schedule", spec, *more]
    json_too = rng.choice(([], ["--json"]))
    chance = rng.random()
    if chance < 0.45:
        return ["patch", "model", "-o", "out", *asked, *json_too]
    if chance < 0.6:
        return ["patch", "model", "--dry-run", *asked, *json_too]
    if chance < 0.65:
        return ["patch", "model", "--in-place", *asked]
    if chance < 0.8:
        return ["inspect", "model", *rng.choice(([], asked)), *json_too]
    return ["export", "model", "--for", rng.choice(ENGINES), *rng.choice(([], asked)), *json_too]


_MORE: tuple[list[str], ...] = (
    *([], [], [], [], [], []),
    *(["--target-length", "1k"], ["--layers", "all"], ["--layers", "sliding_attention"], ["--on-top"]),
    *(["--replace-scaling"], ["--replace-scaling"], ["--original-length", "64"], ["--freeze-at", "1k"]),
    *(["--layers", "all", "--replace-scaling"], ["--factor", "4"], ["--set", "beta_fast=16"]),
)


class Configurations(Target):
    """``config.json``: by its keys mostly, sometimes by its bytes."""

    name, weight = "configurations", 6.0
    _known = pool(seeds.CONFIGS.values())

    def make(self, rng: Random, folder: Path) -> Commands:
        config = seeds.CONFIGS[rng.choice([*seeds.CONFIGS])]
        seeds.write_checkpoint(folder / "model", damaged(rng, config, self._known, 0.9, _rope_like))
        return [_reading(rng, rng.choice(_PLAIN)) for _ in range(2)]


class Companions(Target):
    """The files beside a configuration: the tokenizer's, generation's, the card."""

    name, weight = "companions", 1.0
    _known = pool(seeds.COMPANIONS.values())

    def make(self, rng: Random, folder: Path) -> Commands:
        model = seeds.write_checkpoint(folder / "model", seeds.CONFIGS[rng.choice(["llama", "qwen2 yarn", "gemma3"])])
        for _ in range(rng.choice((1, 1, 2))):
            self._mutate_one(rng, model)
        return [
            ["patch", "model", *rng.choice((["-o", "out"], ["--in-place"])), *_YARN],
            _reading(rng, "linear:factor=2"),
        ]

    def _mutate_one(self, rng: Random, model: Path) -> None:
        name = rng.choice([*seeds.COMPANIONS, "README.md", "adapter_config.json", "README.md"])
        if name == "README.md":
            (model / name).write_bytes(spoiled(rng, seeds.CARD.encode(), 200))
            return
        content = seeds.COMPANIONS.get(name, {"base_model_name_or_path": "org/base", "peft_type": "LORA"})
        (model / name).write_bytes(damaged(rng, content, self._known))


_YARN = ["--schedule", "yarn:factor=4", "--replace-scaling"]


class Records(Target):
    """``ropescale.json`` of a patched checkpoint, and the manifest of a backup."""

    name, weight = "records", 3.0

    def make(self, rng: Random, folder: Path) -> Commands:
        model = folder / "model"
        shutil.copytree(self.made.get("patched", _make_patched) / rng.choice(_PATCHED), model)
        backup = model / "ropescale-backup" / "manifest.json"
        path = backup if backup.exists() and rng.random() < 0.6 else model / "ropescale.json"
        record = json.loads(path.read_bytes())
        known = pool([record, json.loads((model / "config.json").read_bytes())])
        path.write_bytes(damaged(rng, record, known, 0.85))
        return self._commands(rng, folder)

    def _commands(self, rng: Random, folder: Path) -> Commands:
        """Patched again, restored, or replaced: then a file of the user's lies in it."""
        chance = rng.random()
        if chance < 0.3:
            return [["restore", "model"], _reading(rng, "linear:factor=2")]
        if chance < 0.5:
            seeds.write_checkpoint(folder / "source", seeds.CONFIGS["llama"])
            (folder / "model" / "thesis.txt").write_text("years of work")
            return [["patch", "source", "-o", "model", "--force", "--schedule", "linear:factor=2"]]
        if chance < 0.6:
            return [["patch", "model", "--in-place", *_YARN], ["restore", "model"]]
        return [_reading(rng, rng.choice(_PLAIN)) for _ in range(2)]

    def check(self, folder: Path, outcome: Outcome) -> Iterator[Fault]:
        if "--force" in outcome.words and not (Path("model") / "thesis.txt").exists():
            yield Fault("foreign file deleted", "patch --force", "thesis.txt was in the output and is gone")
        # What a record says was there before is taken on trust, so what was planned is known from the record alone.


_PATCHED = ("yarn", "table", "dynamic", "layers", "in-place")


def _make_patched(folder: Path) -> None:
    specs = {
        "yarn": ("llama", "yarn:factor=4"),
        "table": ("qwen2", "table:factors=[1,1,1,2,2,3,4,4]"),
        "dynamic": ("llama", "dynamic:factor=2"),
        "layers": ("gemma3_text", "yarn:factor=4"),
    }
    for name, (config, spec) in specs.items():
        source = seeds.write_checkpoint(folder / f"{name}-source", seeds.CONFIGS[config])
        ropescale.patch_checkpoint(source, folder / name, spec, link="copy")
    source = seeds.write_checkpoint(folder / "in-place", seeds.CONFIGS["llama"])
    ropescale.patch_checkpoint(source, None, "yarn:factor=4", in_place=True)


_STARTS = (["patch", "model", "-o", "out"], ["patch", "model", "--dry-run"], ["inspect", "model"])


class Specs(Target):
    """What ``--schedule`` and the options beside it may be."""

    name, weight = "specs", 3.0

    def make(self, rng: Random, folder: Path) -> Commands:
        seeds.write_checkpoint(folder / "model", seeds.CONFIGS[rng.choice(["llama", "gemma3_text", "phi3"])])
        (folder / "mine.py").write_text(seeds.OWN)
        (folder / "factors.json").write_text(json.dumps(seeds.OBJECTS[0]))
        spec, more = rng.choice(seeds.SPECS), rng.choice(self._OPTIONS)
        if rng.random() < 0.8 or not more:
            spec = scrambled(rng, spec)
        if more:
            more = [more[0], scrambled(rng, more[1]) if rng.random() < 0.6 else more[1]]
        asked = ["--schedule", spec, *more]
        if rng.random() < 0.15 and spec:
            return [["schedules", spec, *rng.choice(([], ["--json"]))]]
        return [[*rng.choice(_STARTS), *asked]]

    _OPTIONS: tuple[list[str], ...] = (
        *([], [], []),
        *(["--factor", "4"], ["--target-length", "4k"], ["--original-length", "64"], ["--set", "beta_fast=16"]),
        *(["--layers", "full_attention"], ["--freeze-at", "1k"]),
    )


class FactorFiles(Target):
    """A schedule in a JSON file."""

    name, weight = "factor files", 2.0
    _known = pool(seeds.OBJECTS)

    def make(self, rng: Random, folder: Path) -> Commands:
        seeds.write_checkpoint(folder / "model", seeds.CONFIGS[rng.choice(["llama", "gemma3_text"])])
        (folder / "factors.json").write_bytes(damaged(rng, rng.choice(seeds.OBJECTS), self._known))
        more = rng.choice(([], ["--target-length", "1k"], ["--factor", "4"], ["--set", "attention_factor=1.2"]))
        return [[*rng.choice(_STARTS), "--schedule", "factors.json", *more]]


class Gguf(Target):
    """A GGUF file, by its keys and by its bytes."""

    name, weight = "gguf", 3.0

    def make(self, rng: Random, folder: Path) -> Commands:
        path = folder / "in.gguf"
        keys = rng.choice(seeds.GGUF)
        if rng.random() < 0.5:
            keys = self._mutated(rng, keys)
        self._write(path, keys)
        if keys in seeds.GGUF or rng.random() < 0.3:
            content = path.read_bytes()
            path.write_bytes(spoiled(rng, content, max(len(content) - 48, 0)))
        spec = rng.choice(self._SPECS)
        more = rng.choice(
            ([], [], ["--replace-scaling"], ["--on-top"], ["--freeze-at", "1k"], ["--original-length", "64"])
        )
        where = rng.choice((["-o", "out.gguf"], ["-o", "out.gguf"], ["--dry-run"]))
        return [["gguf", "in.gguf", *where, "--schedule", spec, *more]]

    _SPECS = ("yarn:factor=4", "linear:factor=2", "ntk:factor=4", "dynamic:factor=2", "llama3:factor=4", _PLAIN[-1])

    def _mutated(self, rng: Random, keys: dict[str, Any]) -> dict[str, Any]:
        geometry = {"context_length": 256, "rope.dimension_count": 16, "rope.freq_base": 10000.0, "block_count": 2}
        return mutated(rng, {**geometry, **keys}, pool([geometry, *seeds.GGUF]), lambda path: path != ("arch",))

    def _write(self, path: Path, keys: dict[str, Any]) -> None:
        from gguf_models import write_keys

        try:
            write_keys(path, **keys)
        except Exception:  # what gguf-py cannot write; half a file is a good seed too
            if not path.exists():
                write_keys(path)

    def check(self, folder: Path, outcome: Outcome) -> Iterator[Fault]:
        if outcome.code == 0 and "--dry-run" not in outcome.words:
            yield from _same_weights(Path("in.gguf"), Path("out.gguf"))


def _same_weights(source: Path, written: Path) -> Iterator[Fault]:
    """As gguf-py reads them: what it can read of the source, it reads in the output, with the same bytes."""
    from gguf import GGUFReader

    try:
        before = {tensor.name: bytes(tensor.data) for tensor in GGUFReader(source).tensors}
    except Exception:
        return
    after = {tensor.name: bytes(tensor.data) for tensor in GGUFReader(written).tensors}
    for name, content in before.items():
        if not name.startswith("rope_f") and after.get(name) != content:
            yield Fault("weights differ", "gguf", f"{name} is not what it was")


class Indexes(Target):
    """``model.safetensors.index.json``, beside its shards."""

    name, weight = "indexes", 1.0

    def make(self, rng: Random, folder: Path) -> Commands:
        model = seeds.write_checkpoint(folder / "model", seeds.CONFIGS["llama"])
        (model / "model.safetensors").unlink()
        index, renamed = self._renamed(rng)
        for name in renamed:
            (model / name).write_bytes(b"weights")
        if rng.random() < 0.3:
            (model / rng.choice(renamed)).unlink()
        chance, content = rng.random(), as_bytes(index)
        if chance < 0.3:
            content = json.dumps(index).encode()  # escaped, as transformers writes it
        elif chance < 0.8:
            content = as_bytes(mutated(rng, index, pool([index])))
        elif chance < 0.95:
            content = spoiled(rng, content)
        (model / rng.choice(_INDEXES)).write_bytes(content)
        return [["patch", "model", "-o", "out", *_YARN], ["inspect", "model"]]

    def _renamed(self, rng: Random) -> tuple[dict[str, Any], list[str]]:
        """The index with its shards under other names, sometimes unusual ones."""
        names = {name: rng.choice((name, name, name, *_SHARD_NAMES)) for name in seeds.ALL_SHARDS}
        weights = {tensor: names[name] for tensor, name in seeds.INDEX["weight_map"].items()}
        return {**seeds.INDEX, "weight_map": weights}, sorted(set(names.values()))

    def check(self, folder: Path, outcome: Outcome) -> Iterator[Fault]:
        """Of an index that is whole: patched where every shard is there, refused where one is not."""
        if outcome.words[0] != "patch":
            return
        [shards] = [*map(_shards, sorted(Path("model").glob("*.index.json")))] or [None]
        if shards is None:
            return
        missing = [
            name for name in shards if not os.path.isfile(f"model/{name}")
        ]  # False, too, of a name that is too long
        if outcome.code == 0 and missing:
            yield Fault(
                "a shard is missing", "patch succeeded", f"{missing[0]!r} is in the index and not in the folder"
            )
        if outcome.code == 2 and not missing and " lacks " in outcome.err:
            yield Fault("no shard is missing", "patch refused", outcome.err[:400])


_SHARD_NAMES = ("a b.safetensors", *'é.safetensors weights.safetensors 模型.safetensors q"q.safetensors w.bin'.split())
_INDEXES = ("model.safetensors.index.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")


def _shards(index: Path) -> list[str] | None:
    """The shards that a healthy index names; None of one that is not, or that names other places."""
    try:
        names = list(json.loads(index.read_bytes())["weight_map"].values())
        return names if all(map(_is_shard, names)) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_shard(name: str) -> bool:
    """A plain name of a kind of weights."""
    return name == os.path.basename(name) and name.endswith((".safetensors", ".bin")) and "\0" not in name


class Places(Target):
    """Files that are something else, links that lead anywhere, outputs that cannot be."""

    name, weight = "places", 1.5

    def make(self, rng: Random, folder: Path) -> Commands:
        model = seeds.write_checkpoint(folder / "model", seeds.CONFIGS[rng.choice(["llama", "llama linear"])])
        (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
        (folder / "thesis").mkdir()
        (folder / "thesis" / "chapter.tex").write_text("years")
        (folder / "file").write_text("a file")
        if rng.random() < 0.75:
            self._spoil(rng, model)
        out = rng.choice(_OUTPUTS) if rng.random() < 0.4 else "out"
        more = rng.choice(([], [], ["--force"], ["--link", "symlink"], ["--link", "copy"], ["--link", "hard"]))
        first = ["patch", "model", *rng.choice((["-o", out], ["-o", out], ["-o", out], ["--in-place"])), *_YARN, *more]
        return [first, rng.choice((["restore", "model"], ["inspect", "model"], ["export", "model", "--for", "vllm"]))]

    def _spoil(self, rng: Random, model: Path) -> None:
        names = ["config.json", "model.safetensors", "README.md", "ropescale.json", "ropescale-backup", "é\n`x`", "sub"]
        path = model / rng.choice([*names, *seeds.COMPANIONS, "model.safetensors.index.json", "x.index.json"])
        path.unlink(missing_ok=True)
        kind = rng.choice(("fifo", "folder", "full folder", "link", "link", "link", "empty", "text"))
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(rng.choice(_LEADS))
        elif kind.endswith("folder"):
            path.mkdir()
            (path / "inside").symlink_to("..") if kind != "folder" else None
        else:
            path.write_text("" if kind == "empty" else "5")

    def check(self, folder: Path, outcome: Outcome) -> Iterator[Fault]:
        if not (Path("thesis") / "chapter.tex").exists() or Path("file").read_text() != "a file":
            yield Fault("foreign file deleted", outcome.words[0], "thesis/chapter.tex or file is gone or changed")


_LEADS = "nowhere self . .. ../thesis ../file /dev/zero /dev/null /etc/passwd config.json /".split()
_OUTPUTS = (
    *". .. model ./model model/x model/config.json model/config.json/x file file/x thesis deep/er/out é -".split(),
    *("", "/dev/null", "/dev/null/x", "/proc/x", "~nobody-here/x", "o" * 300, "o" * 200, "a\0b", "a\nb"),
)


class Runs(Target):
    """A folder that ``eval -o`` or ``retrieval -o`` wrote, with something damaged; reported, and continued."""

    name, weight, needs_torch = "runs", 2.0, True
    share = 0.75
    """How often it is reported, which takes a fraction of what continuing takes."""

    def make(self, rng: Random, folder: Path) -> Commands:
        kind = rng.choice(("eval", "eval", "retrieval"))
        shutil.copytree(self.made.get("measured", _make_measured), folder, dirs_exist_ok=True)
        shutil.rmtree(folder / ("retrieval-run" if kind == "eval" else "eval-run"))
        for _ in range(rng.choice((1, 1, 1, 2))):
            self._damage(rng, folder / f"{kind}-run")
        if rng.random() < self.share:
            return [["report", f"{kind}-run", "-o", "page.html"]]
        return [_measuring(kind)]

    def _damage(self, rng: Random, run: Path) -> None:
        found = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "lock")
        rare = [path for path in found if path.suffix in (".png", ".csv", ".md")]
        path = rng.choice([*found, *[each for each in found if each not in rare] * 3])
        chance, value = rng.random(), _healthy(path)
        if value is not None and chance < 0.75:
            path.write_bytes(as_bytes(mutated(rng, value, pool([value]))))
        elif chance < 0.92:
            content = path.read_bytes()
            path.write_bytes(spoiled(rng, content, rng.choice((128, None)) if path.suffix == ".npy" else None))
        else:
            self._remove(rng, path, run)

    def _remove(self, rng: Random, path: Path, run: Path) -> None:
        path.unlink()
        what = rng.choice(("gone", "folder", "fifo", "link", "its folder"))
        if what == "folder":
            path.mkdir()
        elif what == "fifo":
            os.mkfifo(path)
        elif what == "link":
            path.symlink_to(rng.choice(("nowhere", path.name, "/dev/zero", "..")))
        elif what == "its folder" and path.parent != run:
            shutil.rmtree(path.parent)

    def check(self, folder: Path, outcome: Outcome) -> Iterator[Fault]:
        """What succeeds over a damaged run has the figures of one that was not."""
        kind = "eval" if Path("eval-run").exists() else "retrieval"
        expected, found = Path("expected") / kind, Path(f"{kind}-run")
        if outcome.code == 0 and outcome.words[0] in ("eval", "retrieval"):
            yield from _same_figures(expected, found)
        if outcome.code == 0 and outcome.words[0] == "report" and _same_index(expected, found):
            yield from _same_nll(expected, found)


def _healthy(path: Path) -> Any:
    """A JSON file's content; None of another, and of one that is damaged already."""
    try:
        return json.loads(path.read_bytes()) if path.suffix == ".json" else None
    except (ValueError, RecursionError):
        return None


def _make_measured(folder: Path) -> None:
    from tiny import checkpoint

    from ropescale.cli.main import main

    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        checkpoint(folder / "model")
    (folder / "texts").mkdir()
    for name, text in (("a", seeds.TEXT * 3), ("b", seeds.TEXT[::-1] * 3)):
        (folder / "texts" / f"{name}.txt").write_text(text)
    with chdir(folder), redirect_stdout(said), redirect_stderr(said):
        for kind in ("eval", "retrieval"):
            if main(_measuring(kind)) != 0:
                raise RuntimeError(f"the tiny {kind} does not run: {said.getvalue()[-500:]}")
            _keep_figures(folder / f"{kind}-run", folder / "expected" / kind)


def _measuring(kind: str) -> list[str]:
    data = ["--data", "texts", *seeds.EVAL] if kind == "eval" else seeds.PASSKEY
    return [kind, "model", *data, "-o", f"{kind}-run"]


def _keep_figures(run: Path, to: Path) -> None:
    to.mkdir(parents=True)
    shutil.copy(run / "results.json", to)
    if (run / "losses.safetensors").exists():
        shutil.copy(run / "losses.safetensors", to)


def _same_figures(expected: Path, run: Path) -> Iterator[Fault]:
    before, after = (json.loads((folder / "results.json").read_bytes()) for folder in (expected, run))
    for found in (before, after):  # run.yaml has the paths of this folder
        del found["sha256"]
        found["files"].pop("run.yaml", None)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield Fault("other figures", f"results.json {key}", f"{before.get(key)} became {after.get(key)}"[:400])
    yield from _same_nll(expected, run)


def _same_nll(expected: Path, run: Path) -> Iterator[Fault]:
    """The file of losses, if there is one, has the bytes that were measured."""
    for path in expected.glob("losses.safetensors"):
        there = run / path.name
        if not there.is_file() or there.read_bytes() != path.read_bytes():
            yield Fault("damaged NLLs pass", "evals", f"{there} is not what was measured, and nothing is said")


def _same_index(expected: Path, run: Path) -> bool:
    """Whether a run still asks for every file of NLLs."""
    names = [path.relative_to(expected) for path in expected.rglob("*.json")]
    return all((run / n).is_file() and (run / n).read_bytes() == (expected / n).read_bytes() for n in names)


# ---------------------------------------------------------------------------------------------------------
# Read back


def read_back(words: list[str]) -> Iterator[Fault]:
    """The configuration that was written gives, read again, the frequencies that were planned for the source.

    The plan is made here from what was the source; its record in the output is not looked at.
    """
    source, out = (Path("model"), Path(words[words.index("-o") + 1])) if "-o" in words else (None, Path("model"))
    if source is None or (source / "ropescale.json").exists():
        return  # in place there is no source any more
    config = json.loads((source / "config.json").read_bytes())
    options = _options(words)
    spec = options.pop("schedule")
    if spec == "as-is":
        options.pop("target_length", None)  # it widens the window, and no table depends on it
    length = json.loads((out / "ropescale.json").read_bytes())["length"]
    try:
        planned = ropescale.frequencies(config, spec, **options)
        read = ropescale.frequencies(json.loads((out / "config.json").read_bytes()), "as-is", length)
    except RopescaleError as error:
        yield Fault("patched, and cannot be read back", place(error), str(error)[:400])
        return
    for layer, wanted in planned.items():
        if layer not in read:
            yield Fault("a layer type is lost", "patch", f"{layer} is planned, and the output has {list(read)}")
        elif not _same_table(wanted, read[layer]):
            yield Fault(
                "other frequencies", "patch", f"{layer}: {str(wanted)[:150]} is read as {str(read[layer])[:150]}"
            )


def _options(words: list[str]) -> dict[str, Any]:
    """The keywords of Python's functions for the options of a command line."""
    names = {"--schedule": str, "--layers": str, "--factor": float}
    names |= dict.fromkeys(("--target-length", "--original-length", "--freeze-at"), parse_length)
    given = list(pairwise(words))
    found: dict[str, Any] = {k[2:].replace("-", "_"): names[k](v) for k, v in given if k in names}
    found |= {word[2:].replace("-", "_"): True for word in words if word in ("--on-top", "--replace-scaling")}
    pairs = [value.partition("=") for key, value in given if key == "--set"]
    return found | ({"overrides": {key: value for key, _, value in pairs}} if pairs else {})


def _same_table(one: Any, other: Any) -> bool:
    """Phi-3's classes derive the scale from a whole number of positions, so of a short context it is rounded."""
    same_scale = math.isclose(one.attention_scale, other.attention_scale, rel_tol=1e-3)
    pairs = zip(one.inv_freq, other.inv_freq)
    same_pairs = all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-25) for a, b in pairs)
    return same_scale and len(one.inv_freq) == len(other.inv_freq) and same_pairs


ALL: tuple[type[Target], ...] = (
    *(Configurations, Companions, Records, Specs, FactorFiles, Gguf, Indexes, Places, Runs),
)


def chosen(rng: Random, targets: list[Target]) -> Target:
    """One of the targets, by their weights."""
    return rng.choices(targets, [each.weight for each in targets])[0]
