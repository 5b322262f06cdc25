"""A real mlx-lm on the processor computes what was patched, and what the Python that ``ropescale export`` prints loads.

What is compared is the log-probability of every token of two prompts, one inside the trained length and one past it,
with stock transformers on the patched folder.
"""

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import engine_models
import generate_mlx_models
import pytest
from engine_models import FAMILIES, PROMPTS, ROUTES, Apart, expected, kind, original, patched, schedule, wrong
from environments import environment
from planning import export

from ropescale.engines import mlx_lm
from ropescale.exporting import Export

# Nats; the table of docs/engines.md has what was measured.
TOLERANCE = 5e-4

# Attention scales other than those that mlx-lm computes by itself, and what has no route of its own.
SCALED: dict[str, Any] = {
    "yarn, scale 1.5": "yarn:factor=4,attention_factor=1.5",
    "yarn, scale 0.9": "yarn:factor=4,attention_factor=0.9",
    "yarn, weights": "yarn:factor=4,mscale=1,mscale_all_dim=0.5",
    "per pair, scale 1": {"name": "table", "factors": [1.0 + i / 4 for i in range(16)]},
    "per pair, scale 1.5": {"name": "table", "factors": [1.0 + i / 4 for i in range(16)], "attention_factor": 1.5},
    "yarn, searched for mlx-lm": engine_models.SEARCHED["mlx-lm"],
    "proportional": "proportional:partial_rotary_factor=0.5,factor=2",
}


def is_served(family: str, route: str) -> bool:
    """OLMo 1 has no code for the files of transformers, GPT-NeoX reads a theta alone."""
    return route in ("base", "ntk") if family == "gpt_neox" else family != "olmo"


EVERY = [(family, route) for family in FAMILIES for route in ROUTES if schedule(family, route) is not None]
CASES = [(family, route) for family, route in EVERY if is_served(family, route)]


def arguments(done: Export) -> dict[str, Any]:
    """The arguments of ``load`` in an exported command: Python, or a server that is given the folder alone."""
    [command, *_] = done.commands
    given: dict[str, Any] = {"path_or_hf_repo": done.model}
    for line in command.text.splitlines():
        if line.startswith("changes = "):
            given["model_config"] = eval(line.removeprefix("changes = "))
    assert ("model_config=changes" in command.text) == ("model_config" in given)
    return given


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("mlx-lm", f"mlx-lm=={mlx_lm.ENGINE.version}", f"mlx[cpu]=={generate_mlx_models.MLX}")


def score(python: Path, jobs: list[list[Any]]) -> None:
    script = Path(__file__).parents[1] / "helpers" / "scripts" / "mlx_lm_scorer.py"
    done = subprocess.run([str(python), str(script)], input=json.dumps(jobs), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def found(python, folders, request, tmp_path_factory) -> Mapping[tuple[str, ...], Any]:
    """What mlx-lm computes of patched folders, and of originals under the same schedule."""
    told: dict[tuple[str, ...], Export] = {}
    for family, route in engine_models.selected(request, CASES):
        told[family, route] = export(folders[family] / route, "mlx-lm")
        told[family, "base"] = export(folders[family] / "base", "mlx-lm")
        if route != "base":
            told[family, route, "told"] = export(folders[family] / "original", "mlx-lm", schedule(family, route))
    outputs = {case: tmp_path_factory.mktemp("answers") / "found.json" for case in told}
    score(python, [[str(outputs[case]), arguments(done), PROMPTS] for case, done in told.items()])
    return {case: json.loads(output.read_text()) for case, output in outputs.items()}


def computed(python: Path, folder: Path, beside: Path, **more: Any) -> Any:
    """What mlx-lm computes of one folder."""
    score(python, [[str(beside / "found.json"), {"path_or_hf_repo": str(folder), **more}, PROMPTS]])
    return json.loads((beside / "found.json").read_text())


@pytest.mark.engines
def test_what_mlx_lm_builds_of_every_type_is_what_the_file_says():
    assert generate_mlx_models.generate() == mlx_lm.load(mlx_lm.PATH)


@pytest.mark.engines
@pytest.mark.parametrize(("family", "route"), CASES)
def test_mlx_lm_gives_the_log_probabilities_of_stock_transformers(family, route, found, folders, table, tmp_path):
    wanted = expected(folders[family] / route)
    assert isinstance(found[family, route], list), found[family, route]
    apart = table[family, route] = Apart.between(found[family, route], wanted)
    assert apart.largest < TOLERANCE
    other = patched(folders[family] / "original", tmp_path / "wrong", wrong(family, route))
    assert Apart.between(found[family, route], expected(other)).largest > 100 * TOLERANCE
    if route != "base":
        assert Apart.between(found[family, route, "told"], wanted).largest < TOLERANCE
        for length, (mine, plain) in enumerate(zip(wanted, found[family, "base"])):
            if route != "dynamic" or length:  # which is base RoPE inside the trained length
                assert Apart.between([plain], [mine]).largest > 100 * TOLERANCE


@pytest.mark.engines
@pytest.mark.parametrize("name", SCALED)
def test_a_scale_and_a_share_are_carried_by_the_keys_that_mlx_lm_reads(name, python, folders, tmp_path):
    folder = patched(folders["llama"] / "original", tmp_path / "patched", SCALED[name])
    told = arguments(export(folder, "mlx-lm"))
    answer = computed(python, told.pop("path_or_hf_repo"), tmp_path, **told)
    assert Apart.between(answer, expected(folder)).largest < TOLERANCE


@pytest.mark.engines
def test_a_schedule_searched_for_every_engine_is_carried_by_factors_per_pair(python, folders, tmp_path):
    """mlx-lm would round the ends of the ramp."""
    source = folders["llama"] / "original"
    done = export(patched(source, tmp_path / "patched", engine_models.SEARCHED["all"]), "mlx-lm")
    assert done.rows == []
    told = arguments(done)
    answer = computed(python, told.pop("path_or_hf_repo"), tmp_path, **told)
    assert Apart.between(answer, expected(tmp_path / "patched")).largest < TOLERANCE
    whole = engine_models.SEARCHED["all"].replace("truncate=false", "truncate=true")
    rounded = patched(source, tmp_path / "rounded", whole)
    assert Apart.between(answer, expected(rounded)).largest > 100 * TOLERANCE


@pytest.mark.engines
def test_without_those_keys_the_scale_is_the_one_that_the_warning_says(python, folders, tmp_path):
    """The folder as it lies, against a table whose scale is the number in the warning."""
    plain = computed(python, folders["llama"] / "per pair", tmp_path)
    assert Apart.between(plain, expected(folders["llama"] / "per pair")).largest > 100 * TOLERANCE
    said = ROUTES["per pair"] | {"attention_factor": (1 + math.log(4) / math.log(128)) ** 0.5}
    folder = patched(folders["llama"] / "original", tmp_path / "said", said)
    assert Apart.between(plain, expected(folder)).largest < TOLERANCE


@pytest.mark.engines
def test_gpt_neox_whose_scaling_is_not_read_is_refused(python, tmp_path):
    source = original("gpt_neox", tmp_path / "original")
    folder = patched(source, tmp_path / "patched", ROUTES["yarn"])
    done = export(folder, "mlx-lm")
    assert done.refusal is not None and not done.commands
    assert Apart.between(computed(python, folder, tmp_path), expected(source)).largest < TOLERANCE


@pytest.mark.engines
def test_olmo_1_which_does_not_load_is_refused(python, tmp_path):
    source = original("olmo", tmp_path / "original")
    assert export(source, "mlx-lm").refusal is not None
    assert "error" in computed(python, source, tmp_path)


def test_what_export_says_was_run_ran():
    ran: dict[str, set[str]] = {}
    for family, route in CASES:
        ran.setdefault(family, set()).add(kind(family, route))
    ran["llama"].add("proportional")  # test_a_scale_and_a_share_are_carried_by_the_keys_that_mlx_lm_reads
    assert ran == {family: set(kinds) for family, kinds in mlx_lm.ENGINE.run.items()}
