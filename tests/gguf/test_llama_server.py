"""``llama-server``, built from source, extends as ``ropescale export`` and ``ropescale gguf`` say, asked over HTTP.

What is compared are the log-probabilities of every next token after twenty prefixes, all past the trained length, with
those of stock transformers on the patched folder.
"""

import json
import shlex
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import llama_cpp_builds
import pytest
import tiny_models
import torch
from engine_models import LENGTH, TRAINED, original, patched
from engine_servers import running
from gguf_models import write_gguf
from planning import export
from transformers import AutoModelForCausalLM

import ropescale

pytestmark = pytest.mark.engines

TOLERANCE = 1e-3
IDS = tiny_models.document(LENGTH, seed=0)[0].tolist()
PREFIXES = [LENGTH - 1 - (LENGTH - TRAINED) // 20 * i for i in range(20)][::-1]

OPTIONS = {
    "yarn": "yarn:factor=4", "yarn, another scale": "yarn:factor=4,attention_factor=1.5",
    "yarn, other betas": "yarn:factor=4,beta_fast=8,beta_slow=2",
    "yarn, a factor that float32 cannot invert": "yarn:factor=7", "linear": "linear:factor=4", "ntk": "ntk:factor=4",
    "abf": "abf:rope_theta=50000",
}  # fmt: skip
FILES = [
    *((family, OPTIONS[name]) for family in ("llama", "qwen3") for name in ("yarn", "linear", "ntk", "abf")),
    *(("llama", spec) for spec in ("llama3:factor=4", "ntk-by-parts:factor=4")),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint per family, with the GGUF file of its name beside it."""
    made = {name: original(name, tmp_path_factory.mktemp(name) / "model") for name in ("llama", "qwen3")}
    for name, folder in made.items():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        write_gguf(model, folder.parent / "model.gguf", name)
    return made


def serving(command: str, folder: Path) -> AbstractContextManager[str]:
    """Runs a printed command in a folder, all of it in float32."""
    program, *words = shlex.split(command.replace("\\\n", ""))
    assert program == "llama-server"
    beside = "--cache-type-k f32 --cache-type-v f32 --flash-attn off --threads 1".split()
    return running([str(llama_cpp_builds.built() / program), *words, *beside], folder / "log.txt", cwd=folder)


def answered(address: str, ids: list[int]) -> list[float]:
    """The log-probability of every token after these."""
    asked = {"prompt": ids, "n_predict": 1, "n_probs": 257, "temperature": 0}
    request = urllib.request.Request(f"{address}/completion", json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=600) as response:
        [token] = json.load(response)["completion_probabilities"]
    found = {each["id"]: each["logprob"] for each in token["top_logprobs"]}
    return [found[id] for id in range(257)]


def served(command: str, folder: Path) -> tuple[torch.Tensor, int]:
    """What the server answers, [prefixes, vocabulary], and the context that it gives a request."""
    with serving(command, folder) as address:
        with urllib.request.urlopen(f"{address}/props", timeout=600) as response:
            context = json.load(response)["default_generation_settings"]["n_ctx"]
        return torch.tensor([answered(address, IDS[:n]) for n in PREFIXES], dtype=torch.float64), context


def expected(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0]
    return logits[[n - 1 for n in PREFIXES]].double().log_softmax(-1)


def assert_as_patched(found: torch.Tensor, source: Path, spec: str, folder: Path) -> None:
    apart = (found - expected(patched(source, folder, spec))).abs().max().item()
    print(f"\n{source.parent.name} {spec}: largest {apart:.1e}")
    assert apart < TOLERANCE
    assert (found - expected(source)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_printed_command_extends_an_unpatched_file(family, name, folders, tmp_path):
    spec, source = OPTIONS[name], folders[family]
    done = export(source, "llama.cpp", spec, **_target(spec))
    assert done.rows == []
    [command] = done.commands
    found, context = served(command.text, source.parent)
    assert context == done.length >= LENGTH
    assert_as_patched(found, source, spec, tmp_path / "patched")


@pytest.mark.parametrize(("family", "spec"), FILES)
def test_a_file_of_ropescale_gguf_is_served_with_no_more_than_its_length(family, spec, folders, tmp_path):
    source = folders[family]
    ropescale.patch_gguf(source.parent / "model.gguf", tmp_path / "out.gguf", spec, **_target(spec))
    found, context = served(f"llama-server -m out.gguf -c {LENGTH}", tmp_path)
    assert context == LENGTH
    assert_as_patched(found, source, spec, tmp_path / "patched")


def _target(spec: str) -> dict[str, Any]:
    return {} if "factor=" in spec else {"target_length": LENGTH}
