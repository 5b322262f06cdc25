"""Reads the content of ``ropescale/engines/model_code.json`` from the engines' own sources.

Run with tests/helpers and its folders engines and model_coverage in PYTHONPATH, it writes the file again, after a
change of the versions there. ``types`` compares the tables for which the engines' model files ask, run without their
kernels and weights (engine_models_worker.py), with those of built_tables.py's cases.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from built_tables import Case, ask, cases, summary
from engine_sources import sources
from environments import environment

from ropescale.engines import model_code, sglang, vllm

_ASK = """
import json, sys, transformers

def usable(name):
    cls = getattr(transformers, name, None)
    asked = [getattr(cls, each, None) for each in sys.argv[2:]]
    return cls is not None and any(each() for each in asked if each)

print(json.dumps([name for name in json.loads(sys.argv[1]) if usable(name)]))
"""
_COMPATIBLE = {
    "vllm": ("is_backend_compatible", "_can_set_attn_implementation"),  # models/registry.py, _try_resolve_transformers
    "sglang": ("is_backend_compatible",),  # model_loader/utils.py, resolve_transformers_arch
}


@dataclass(frozen=True)
class Named(Case):
    """A case whose configuration names the class that loads the model; the engines drop proportional's factor."""

    @property
    def config(self) -> dict[str, Any]:
        config = super().config
        return {**config, "architectures": [architectures().get(config["model_type"])]}

    @property
    def asked(self) -> dict[str, Sequence[float]]:
        factors = {key: rope.scaling.get("factor", 1.0) for key, rope in self.read.ropes.items()}
        kept = {key for key, rope in self.read.ropes.items() if rope.scaling["rope_type"] != "proportional"}
        return {key: [f * (1 if key in kept else factors[key]) for f in row] for key, row in super().asked.items()}


def generate() -> dict[str, Any]:
    """The file's content, for the versions that it names."""
    versions, named = model_code.load()["versions"], architectures()
    every = [Named(each.name, each.kind, each.dialect, each.read, each.length) for each in cases()]
    unscaled = _calling(versions["sglang"], _is_unscaled)
    return {
        "versions": versions,
        "architectures": named,
        "vllm": _engine("vllm", versions, _vllm(versions["vllm"]), every),
        "sglang": _engine("sglang", versions, _sglang(versions["sglang"]), every)
        | {"unscaled": unscaled, "whole theta": _calling(versions["sglang"], _is_whole)},
    }


@cache
def architectures() -> dict[str, str]:
    """Model type -> the class that loads it, in the installed transformers; a wrapper's own, as on the Hub.

    A text type without a class has its wrapper's, for text alone if there is one.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    causal, seeing = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    found: dict[str, str] = {}
    for model_type, name in {**causal, **seeing}.items():
        found[model_type] = name if isinstance(name, str) else name[0]
    for model_type, name in list(found.items()):
        inner = getattr(getattr(CONFIG_MAPPING[model_type], "sub_configs", {}).get("text_config"), "model_type", "")
        if inner:
            found.setdefault(inner, causal.get(model_type, name))
    return dict(sorted(found.items()))


def _engine(
    engine: Literal["vllm", "sglang"], versions: dict[str, str], own: dict[str, tuple[str, str]], every: list[Named]
) -> dict[str, Any]:
    """Architectures with code of the engine's own, and those that it runs with the transformers that it requires."""
    python = environment("transformers", f"transformers=={versions[f'{engine} transformers']}")
    asked = sorted({*architectures().values()} - own.keys())
    words = [str(python), "-c", _ASK, json.dumps(asked), *_COMPATIBLE[engine]]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    mine = [case for case in every if case.config["architectures"][0] in own]
    told = (str(sources(engine, versions[engine])), json.dumps(own), json.dumps(architectures()))
    types = summary(mine, ask(python, "engine_models_worker.py", mine, engine, *told))
    return {"own": sorted(own), "transformers": json.loads(done.stdout.splitlines()[-1]), "types": types}


def _vllm(version: str) -> dict[str, tuple[str, str]]:
    """Module and class of each architecture, out of two dictionaries."""
    tree = ast.parse((sources("vllm", version) / "vllm/model_executor/models/registry.py").read_text())
    wanted = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
    nodes = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in wanted]
    found: dict[str, tuple[str, str]] = {}
    for node in nodes:
        for name, (module, cls) in ast.literal_eval(node.value).items():
            whole = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
            found[name] = whole, cls
    return found


def _sglang(version: str) -> dict[str, tuple[str, str]]:
    """Module and class of what the modules beside the registry call ``EntryClass``."""
    found = {name: (module, name) for module, tree in _models(version).items() for name in _entries(tree)}
    return {name: where for name, where in found.items() if not name.startswith("Transformers")}


@cache
def _models(version: str) -> dict[str, ast.Module]:
    folder = sources("sglang", version) / "sglang/srt/models"
    return {f"sglang.srt.models.{path.stem}": ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))}


def _entries(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
            classes = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
            found |= {ast.unparse(each) for each in classes}
    return found


def _calling(version: str, is_such: Callable[[dict[str, str]], bool]) -> list[str]:
    """The models of the modules in which every rotary layer of the language model is asked for in such a way."""
    found: set[str] = set()
    for tree in _models(version).values():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "get_rope"]
        given = [{str(each.arg): ast.unparse(each.value) for each in call.keywords} for call in calls]
        language = [words for words in given if words.get("base") != "10000.0"]  # which is an image encoder's
        if language and all(map(is_such, language)):
            found |= _entries(tree)
    return sorted(found)


def _is_unscaled(words: dict[str, str]) -> bool:
    return "rope_scaling" not in words and "base" in words


def _is_whole(words: dict[str, str]) -> bool:
    return words.get("base", "").startswith("int(")


if __name__ == "__main__":
    assert model_code.load()["versions"]["vllm"] == vllm.ENGINE.version
    assert model_code.load()["versions"]["sglang"] == sglang.ENGINE.version
    Path(model_code.PATH).write_text(json.dumps(generate(), indent=1) + "\n")
