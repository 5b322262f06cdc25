"""Trainers build the model that was asked for from the lines that ``ropescale export`` prints, or export refuses.

The fast tests read the lines back; those marked ``engines`` hand them to TRL, axolotl and LLaMA-Factory, each in an
environment of its own without ropescale, and compare every pair's frequency with what was asked for.
"""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from configurations import CONFIG as LLAMA
from configurations import write_checkpoint
from engine_models import LENGTH, ROUTES, checkpoints, schedule
from environments import environment
from planning import make_plan

import ropescale
from ropescale.configs.configuration import Configuration
from ropescale.engines import engine_warnings
from ropescale.engines.base.layers import layers_of
from ropescale.engines.base.serving import Source, as_it_lies
from ropescale.engines.exporting import Export, export
from ropescale.engines.trainers import axolotl, lines, llama_factory, trl

TRAINERS = {"trl": trl.ENGINE, "axolotl": axolotl.ENGINE, "llama-factory": llama_factory.ENGINE}
MODEL = {"trl": "model_name_or_path", "axolotl": "base_model", "llama-factory": "model_name_or_path"}
LENGTHS = {"trl": "max_length", "axolotl": "sequence_len", "llama-factory": "cutoff_len"}
CHANGES = {"trl": "model_init_kwargs", "axolotl": "overrides_of_model_config"}
"""The keys under which each trainer takes the model, the length of sequences, and changes to a configuration."""

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
    "attention_factor": 1.2079441541679836,
}
GEMMA3 = {"model_type": "gemma3_text", "head_dim": 64, "max_position_embeddings": 8192, "sliding_window": 512}
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"model_type": "clip_vision_model"}}


def told(done: Export) -> dict[str, Any]:
    """The lines of a trainer's file, as it reads them."""
    assert done.commands[0].language == "yaml"
    return yaml.safe_load(done.commands[0].text)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "plain", LLAMA)


@pytest.fixture
def patched(plain: Path, tmp_path: Path) -> Path:
    ropescale.patch_checkpoint(plain, tmp_path / "patched", "yarn:factor=8")
    return tmp_path / "patched"


# ---------------------------------------------------------------------------------------------------------
# The lines


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_patched_folder_needs_its_name_and_its_length(trainer: str, patched: Path) -> None:
    done = export(patched, trainer)
    assert told(done) == {MODEL[trainer]: str(patched), LENGTHS[trainer]: 2048}
    assert {row.status for row in done.rows} == {"honoured"} and not done.warnings
    assert done.refusal is None


@pytest.mark.parametrize("trainer", CHANGES)
def test_original_weights_under_a_schedule_get_whole_rope_parameters(trainer: str, plain: Path) -> None:
    changed = told(export(plain, trainer, "yarn:factor=8"))[CHANGES[trainer]]
    # Not every class of transformers has this key of its own, and TRL passes keywords that it has to have.
    assert changed.pop("original_max_position_embeddings", None) == (256 if trainer == "axolotl" else None)
    assert changed == {"rope_parameters": YARN, "max_position_embeddings": 2048}


def test_llama_factory_makes_a_scaling_of_its_own_so_the_way_is_a_patched_folder(plain: Path) -> None:
    done = export(plain, "llama-factory", "yarn:factor=8")
    assert done.commands == []
    assert done.refusal and done.refusal.endswith("train on a patched folder, which `ropescale patch` writes")
    assert "makes a factor of its own from cutoff_len" in done.refusal


def test_the_script_for_trl_asks_for_the_same(plain: Path, patched: Path) -> None:
    for done in (export(plain, "trl", "yarn:factor=8"), export(patched, "trl")):
        compile(done.commands[1].text, "script", "exec")
        expected = told(done)
        assert f"max_length={expected['max_length']}" in done.commands[1].text
        assert str(expected.get("model_init_kwargs", "SFTConfig(max_length=2048)")) in done.commands[1].text


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_revision_and_a_checkpoints_own_code_are_told(trainer: str) -> None:
    stored = Configuration.read({**LLAMA, "auto_map": {"AutoConfig": "a.B"}, "model_type": "own-llama"})
    serving = as_it_lies("org/name", stored, 256, Source(revision="abc123"))
    found = yaml.safe_load(TRAINERS[trainer].serve(serving)[0].text)
    name = "revision_of_model" if trainer == "axolotl" else "model_revision"
    assert (found[name], found["trust_remote_code"]) == ("abc123", True)


def test_axolotl_moves_the_length_that_dynamic_counts_from(plain: Path) -> None:
    ropescale.patch_checkpoint(plain, plain.parent / "dynamic", "dynamic:factor=8")
    done = export(plain.parent / "dynamic", "axolotl")
    assert done.refusal and "counts from sequence_len" in done.refusal and "freeze_at" in done.refusal
    assert export(plain, "axolotl", "dynamic:factor=8", freeze_at=2048).refusal is None


def test_patching_names_no_trainer_and_choosing_knows_what_each_loses(plain: Path) -> None:
    for spec, lost in {"dynamic:factor=8": {"axolotl"}, "yarn:factor=8": set()}.items():
        plan = make_plan(LLAMA, spec)
        [layers] = layers_of(plan)
        told = {name: [each.status for each in trainer.differences(layers)] for name, trainer in TRAINERS.items()}
        assert {name for name, statuses in told.items() if {*statuses} - {"honoured"}} == lost
        assert not [text for text in engine_warnings(plan) if "axolotl" in text or "TRL" in text]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_multimodal_model_is_trained_from_a_patched_folder(trainer: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "llava", LLAVA)
    refusal = export(folder, trainer, "yarn:factor=8").refusal
    assert refusal and "train on a patched folder" in refusal
    ropescale.patch_checkpoint(folder, tmp_path / "patched", "yarn:factor=8")
    assert told(export(tmp_path / "patched", trainer))[LENGTHS[trainer]] == 2048


@pytest.mark.parametrize(
    ("trainer", "spec", "stops"),
    [
        ("trl", "yarn:factor=2", False),
        ("axolotl", "yarn:factor=2", False),
        ("llama-factory", "yarn:factor=2", True),
        ("axolotl", {"name": "table", "factors": [1.0 + i / 31 for i in range(32)]}, True),
        ("llama-factory", "linear:factor=2", False),
    ],
)
def test_what_the_transformers_of_a_trainer_stops_at_is_refused(
    trainer: str, spec: Any, stops: bool, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "gemma", GEMMA3)
    ropescale.patch_checkpoint(folder, tmp_path / "patched", spec)
    assert (export(tmp_path / "patched", trainer).refusal is not None) == stops


@pytest.mark.parametrize("value", ["a\nb", "#x: {y}", "'\"", "\u202eabc", "ü😀", "null", "1e5", "~"])
def test_text_survives_yaml(value: str) -> None:
    printed = lines.lines("", key=value).text
    assert printed.isprintable() and yaml.safe_load(printed) == {"key": value}


@pytest.mark.parametrize("value", [1e-05, 1e16, 2.5e-07, 799999.9999999999, 8.0, 8, True, [1.5, 2e-9], {"a": None}])
def test_numbers_stay_what_they_are_in_yaml(value: Any) -> None:
    found = yaml.safe_load(lines.lines("", key=value).text)["key"]
    assert found == value and type(found) is type(value)


def test_the_command_prints_them(patched: Path, ran: Any) -> None:
    out = ran("export", str(patched), "--for", "axolotl").out
    assert out.startswith("```yaml\n# ") and "\nsequence_len: 2048\n```" in out
    words = ["export", patched.parent / "plain", "--for", "llama-factory", "--schedule", "yarn:factor=8"]
    assert "error: LLaMA-Factory cannot compute this schedule (yarn for llama): " in ran(*words, code=1).err


# ---------------------------------------------------------------------------------------------------------
# The models that trainers build from them

CLIENT = ("httpx==0.28.1", "httpcore==1.0.9", "sniffio==1.3.1")
INSTALLED = {
    "trl": ("trl==1.16.0",),
    "axolotl": (
        *("axolotl==0.19.0", "transformers==5.16.1", "trl==1.9.0", "peft==0.20.0", "accelerate==1.13.0"),
        *("datasets==4.8.4", "huggingface_hub==1.17.0", "tokenizers==0.23.1", "addict==2.4.0", "colorama==0.4.6"),
        *("python-dotenv==1.2.4", "axolotl-contribs-mit==0.0.6", "axolotl-contribs-lgpl==0.0.7", "posthog==7.91.1"),
        *("bitsandbytes==0.50.2", "distro==1.9.0", "fastcore==2.2.39", *CLIENT),
    ),
    "llama-factory": (
        *("llamafactory==0.9.5", "transformers==5.6.0", "trl==0.24.0", "peft==0.18.1", "accelerate==1.11.0"),
        *("datasets==4.0.0", "huggingface_hub==1.33.0", "tokenizers==0.22.2", "omegaconf==2.4.0"),
        *("antlr4-python3-runtime==4.9.3", *CLIENT),
    ),
}
"""What their loading code imports and this environment has not; all else that they ask for is left out."""

CASES = [(family, route) for family in lines.RUN for route in ROUTES]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Original and patched models of every family."""
    room = tmp_path_factory.mktemp("trainers")
    for family in lines.RUN:
        checkpoints(family, room / family)
    return room


@functools.cache
def built(trainer: str, room: Path) -> dict[str, dict[str, Any]]:
    """What a trainer builds from the patched folders, and from the original ones under each schedule."""
    cases = {}
    for family, route in CASES:
        original = room / family / "original"
        exports = {
            "patched": export(room / family / route, trainer),
            "asked": export(original, trainer, schedule(family, route), **_length(route)),
        }
        for way, done in exports.items():
            # Where export refuses, the lines of another trainer's kind show that it has to.
            text = done.commands[0].text if done.commands else _refused(trainer, way, room / family / route, original)
            cases[f"{family}, {route}, {way}"] = {"lines": text, "length": LENGTH}
    files = room / f"{trainer}-cases.json", room / f"{trainer}-found.json"
    files[0].write_text(json.dumps(cases))
    python = environment(trainer, *INSTALLED[trainer], options=("--no-deps",))
    helper = Path(__file__).parents[2] / "helpers" / "scripts" / "trainer_loading.py"
    done = subprocess.run([python, helper, trainer, *files], capture_output=True, text=True, cwd=room)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(files[1].read_text())


def _length(route: str) -> dict[str, Any]:
    return {"target_length": LENGTH} if route in ("base", "per pair") else {}


def _refused(trainer: str, way: str, folder: Path, original: Path) -> str:
    """The lines that would have been printed without the refusal."""
    model = folder if way == "patched" else original
    told: dict[str, Any] = {MODEL[trainer]: str(model), LENGTHS[trainer]: LENGTH}
    if way == "asked" and trainer == "llama-factory":
        told["rope_scaling"] = "yarn"
    if way == "asked" and trainer in CHANGES:
        config = json.loads((folder / "config.json").read_text())
        told[CHANGES[trainer]] = {"rope_parameters": config["rope_parameters"]}
    return yaml.safe_dump(told)


@pytest.mark.engines
@pytest.mark.parametrize(("family", "route"), CASES)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_patched_folder_is_trained_as_patched(trainer: str, family: str, route: str, models: Path) -> None:
    found = built(trainer, models)[f"{family}, {route}, patched"]
    refused = export(models / family / route, trainer).refusal is not None
    assert found["length"] == LENGTH
    assert has_table(found, models / family / "original", schedule(family, route)) != refused


@pytest.mark.engines
@pytest.mark.parametrize(("family", "route"), CASES)
@pytest.mark.parametrize("trainer", CHANGES)
def test_original_weights_are_trained_under_the_schedule(trainer: str, family: str, route: str, models: Path) -> None:
    found = built(trainer, models)[f"{family}, {route}, asked"]
    original = models / family / "original"
    refused = export(original, trainer, schedule(family, route), **_length(route)).refusal is not None
    assert has_table(found, original, schedule(family, route)) != refused


@pytest.mark.engines
@pytest.mark.parametrize(("family", "route"), CASES)
def test_llama_factorys_own_scaling_stops(family: str, route: str, models: Path) -> None:
    found = built("llama-factory", models)[f"{family}, {route}, asked"]
    if route == "base":  # nothing to ask for
        assert has_table(found, models / family / "original", "base")
        return
    assert "max_position_embeddings" in found["stopped"]


def has_table(found: dict[str, Any], original: Path, spec: Any) -> bool:
    """Whether every rotary module has the frequencies asked for, after a text of the length."""
    wanted = ropescale.frequencies(original, spec, LENGTH)["all"]
    wrong = ropescale.frequencies(original, "abf:rope_theta=12000")["all"]
    assert found["after"]
    tables = [pytest.approx(inv_freq, rel=2e-6) == wanted.inv_freq for inv_freq, _ in found["after"]]
    scales = [scale == pytest.approx(wanted.attention_scale, rel=1e-6) for _, scale in found["after"]]
    assert not any(pytest.approx(inv_freq, rel=1e-3) == wrong.inv_freq for inv_freq, _ in found["after"])
    return all(tables) and all(scales)
