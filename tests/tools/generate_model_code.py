"""Reads the content of ``ropescale/engines/model_code.json`` from the engines' own sources.

``PYTHONPATH=tests/helpers/engines python tests/tools/generate_model_code.py`` writes it again, after a change of the
versions there.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

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


def generate() -> dict[str, Any]:
    """The file's content, for the versions that it names."""
    versions, named = model_code.load()["versions"], architectures()
    return {
        "versions": versions,
        "architectures": named,
        "vllm": _engine("vllm", versions, _vllm(versions["vllm"]), sorted({*named.values()})),
        "sglang": _engine("sglang", versions, _sglang(versions["sglang"]), sorted({*named.values()}))
        | {
            "unscaled": _calling(versions["sglang"], _is_unscaled),
            "whole theta": _calling(versions["sglang"], _is_whole),
        },
    }


@cache
def architectures() -> dict[str, str]:
    """Model type -> the class that loads it, in the installed transformers; a wrapper's class for its text type."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, str] = {}
    for mapping in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        for model_type, name in mapping.items():
            found.setdefault(model_type, name if isinstance(name, str) else name[0])
    for model_type, name in list(found.items()):
        inner = getattr(getattr(CONFIG_MAPPING[model_type], "sub_configs", {}).get("text_config"), "model_type", "")
        if inner:
            found.setdefault(inner, name)
    return dict(sorted(found.items()))


def _engine(engine: str, versions: dict[str, str], own: list[str], asked: list[str]) -> dict[str, list[str]]:
    """Architectures with code of the engine's own, and those that it runs with the transformers that it requires."""
    python = environment("transformers", f"transformers=={versions[f'{engine} transformers']}")
    words = [str(python), "-c", _ASK, json.dumps([name for name in asked if name not in own]), *_COMPATIBLE[engine]]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return {"own": own, "transformers": json.loads(done.stdout.splitlines()[-1])}


def _vllm(version: str) -> list[str]:
    """The keys of two dictionaries of names."""
    tree = ast.parse((sources("vllm", version) / "vllm/model_executor/models/registry.py").read_text())
    wanted = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
    tables = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in wanted]
    return sorted({key for table in tables for key in ast.literal_eval(table.value)})


def _sglang(version: str) -> list[str]:
    """What the modules beside the registry call ``EntryClass``."""
    found = {name for tree in _models(version) for name in _entries(tree)}
    return sorted(name for name in found if not name.startswith("Transformers"))


@cache
def _models(version: str) -> list[ast.Module]:
    folder = sources("sglang", version) / "sglang/srt/models"
    return [ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))]


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
    for tree in _models(version):
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
