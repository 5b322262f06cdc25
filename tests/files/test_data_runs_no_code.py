"""Data runs no code and fetches none: schedules in JSON, records, results, configurations, adapters."""

import builtins
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny
import torch
from configurations import edit, read
from fuzzing.mutating import at, paths
from refusing import refused
from safetensors.torch import load_file
from transformers import dynamic_module_utils
from transformers.integrations import hub_kernels

import ropescale
from ropescale.cli.main import main
from ropescale.errors import ScheduleError

SENTINEL = """
from pathlib import Path
Path("ran").touch()
from ropescale import Frequencies

class Half:
    def __call__(self, rope, length):
        return Frequencies([f / 2 for f in rope.inv_freq()])
"""
HALF = "sentinel.py::Half"
DRY = ["patch", "model", "--dry-run", "--schedule"]


@pytest.fixture(autouse=True)
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that tells when it is run, and calls that fetch code, which tell when they are made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("sentinel.py").write_text(SENTINEL)
    fetched: list[object] = []

    def fetch(*given: object, **_: object) -> Any:
        fetched.append(given)
        raise OSError("nothing is fetched here")

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", fetch)
    monkeypatch.setattr(dynamic_module_utils, "get_cached_module_file", fetch)
    monkeypatch.setattr(builtins, "input", fetch)  # transformers asks there whether code may run
    yield
    assert not fetched
    assert not Path("ran").exists()


# ---------------------------------------------------------------------------------------------------------
# Schedules

SCHEDULES: dict[str, dict[str, Any]] = {"a file's class": {"name": HALF}, "by layer type": {"full_attention": HALF}}
SCHEDULES |= {"a module's class": {"name": "sentinel::Half"}, "nested": {"name": "resonance", "over": HALF}}


@pytest.mark.parametrize("content", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_in_json_names_no_code(model, capsys, content):
    Path("factors.json").write_text(json.dumps(content))
    said = "is code, which JSON must not name; pass it as the schedule itself"
    for spec in ("factors.json", json.dumps(content), "resonance:over=factors.json"):
        refused(capsys, [*DRY, spec], "Half", said)
    with pytest.raises(ScheduleError, match=f"Half.*' {said}"):
        ropescale.patch_checkpoint(model, "out", content)


@pytest.mark.parametrize("spec", ["sentinel.py::Half", "sentinel::Half", "resonance:over=sentinel.py::Half"])
def test_a_class_typed_as_the_schedule_itself_runs(model, ran, spec):
    assert "Half" in ran(*DRY, spec).out
    Path("ran").unlink(missing_ok=True)  # a module runs once


# ---------------------------------------------------------------------------------------------------------
# Configurations

KERNELS: dict[str, dict[str, Any]] = {
    "attention": {"_attn_implementation": "org/kernel"},
    "without a dash": {"attn_implementation": "org/kernel@main:forward"},
    "by section": {"_attn_implementation": {"": "eager", "text_config": "org/kernel"}},
    "in a section": {"text_config": {"_attn_implementation": "org/kernel"}},
    "experts": {"experts_implementation": "org/kernel"},
}


@pytest.fixture
def loadable(trap: None) -> Path:
    """A model that loads, and a text to measure it on."""
    Path("text.txt").write_text(tiny.TEXT * 4)
    return tiny.checkpoint(Path("model"), tiny.llama(vocab_size=258))


EVAL = ["eval", "model", "--data", "text.txt", "--lengths", "64", "--no-truncation"]


@pytest.mark.parametrize("changes", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("words", [["verify", "model"], ["verify", "model", "--generate"], EVAL], ids=" ".join)
def test_a_configuration_fetches_no_kernel(loadable, capsys, words, changes):
    edit(loadable, **changes)
    said = refused(capsys, words, "config.json requires code from the Hub", "org/kernel", "--trust-remote-code")
    assert next(iter(changes)) in said


def test_a_section_of_a_type_that_nobody_knows_runs_no_code(loadable, capsys):
    edit(loadable, text_config={"model_type": "stranger", "auto_map": {"AutoModel": "sentinel.Half"}})
    refused(capsys, ["verify", "model"], "needs custom code (sentinel.Half)", "no model type 'stranger'")


# ---------------------------------------------------------------------------------------------------------
# Adapters


class Hostile:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


@pytest.fixture
def adapter(loadable: Path) -> Path:
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(tiny.llama(vocab_size=258), lora).save_pretrained("adapter")
    edit(Path("adapter"), "adapter_config.json", base_model_name_or_path=str(loadable))
    return Path("adapter")


OF_ADAPTER = ["eval", "adapter", *EVAL[2:]]


def test_an_adapters_pickle_is_measured_but_where_it_would_run_code(adapter, ran):
    edit(Path("model"), _attn_implementation="eager")  # which is transformers' own
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").rename("adapter.safetensors")
    ran(*OF_ADAPTER)
    torch.save({"x": Hostile()}, adapter / "adapter_model.bin", pickle_module=pickle)
    [told] = [line for line in ran(*OF_ADAPTER, code=2).err.splitlines() if line.startswith("error: ")]
    assert told.endswith("contain more than tensors, which would run code; get them as safetensors")


def test_what_an_adapters_configuration_names_is_not_imported(adapter):
    named = {"base_model_class": "Half", "parent_library": "sentinel"}
    edit(adapter, "adapter_config.json", auto_mapping=named)
    assert main(OF_ADAPTER) in (0, 2)
    edit(adapter, "adapter_config.json", auto_mapping=None, megatron_config={}, megatron_core="sentinel")
    assert main(OF_ADAPTER) in (0, 2)


# ---------------------------------------------------------------------------------------------------------
# Every place of every file

HOSTILE = (HALF, "sentinel::Half", "org/kernel", {"name": HALF}, {"AutoModelForCausalLM": "sentinel.Half"})


def placed(value: Any, path: tuple[Any, ...], hostile: object) -> Any:
    """A copy of a JSON value with something else at the end of a path."""
    copied = json.loads(json.dumps(value))
    at(copied, path[:-1])[path[-1]] = hostile
    return copied


def walked(file: Path) -> Iterator[None]:
    """Puts a hostile name into one place of each kind of a file after the other, the seal taken off."""
    content = {key: value for key, value in read(file).items() if key != "sha256"}
    kinds = {tuple(key for key in path if isinstance(key, str)): path for path in filter(None, paths(content))}
    for number, path in enumerate(kinds.values()):
        file.write_text(json.dumps(placed(content, path, HOSTILE[number % len(HOSTILE)])))
        yield
    for key in ("name", "schedule", "spec", "auto_map", "_attn_implementation", "use_kernels"):
        file.write_text(json.dumps(content | {key: HALF}))
        yield


NAMES = [f"{each}.json" for each in ("config", "ropescale", "generation_config", "tokenizer_config", "manifest")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_place_in_a_model_folder_is_run(name):
    tiny.checkpoint(Path("source"), tiny.llama(vocab_size=258))
    ropescale.patch_checkpoint("source", "model", "yarn:factor=2", link="copy")
    if name == "manifest.json":
        ropescale.patch_checkpoint("model", None, "yarn:factor=4", in_place=True)
    file = Path("model", "ropescale-backup" if name == "manifest.json" else "", name)
    Path("text.txt").write_text("text " * 40)
    shutil.copytree("model", "kept")
    for _ in walked(file):
        for words in (["inspect", "model"], ["verify", "model"], EVAL, [*DRY, "linear:factor=2"]):
            main(words)  # the trap looks at what it did
        main(["restore", "model"])
        shutil.rmtree("model")
        shutil.copytree("kept", "model")


@pytest.mark.slow
def test_no_place_in_a_run_is_run(loadable):
    kept = [*EVAL, "--schedule", "yarn:factor=2", "-o", "run"]
    assert main(kept) == 0
    shutil.copytree("run", "kept")
    for _ in walked(Path("run", "results.json")):
        for words in (["report", "run", "-o", "page.html", "--force"], kept):
            main(words)
        shutil.rmtree("run")
        shutil.copytree("kept", "run")


def test_a_record_that_names_a_class_is_dealt_with_from_its_tables(loadable, ran):
    ropescale.patch_checkpoint(loadable, "half", "sentinel.py::Half", link="copy")
    Path("ran").unlink()
    Path("sentinel.py").unlink()
    edit(Path("half"), "ropescale.json", spec={"all": HALF}, schedule={"all": {"name": HALF}})
    assert f"live: yes (all: {HALF}" in ran("verify", "half").out
    ran("inspect", "half")
    ran("patch", "half", "-o", "again", "--schedule", "yarn:factor=2")
    ran("patch", "half", "--in-place", "--schedule", "yarn:factor=2")
    ran("restore", "half")
    ran("eval", "half", *EVAL[2:], "-o", "run")
    ran("report", "run", "-o", "page.html")


def test_a_models_pickle_that_would_run_code_is_refused_without_advice_to_run_it(loadable, capsys):
    (loadable / "model.safetensors").unlink()
    torch.save({"x": Hostile()}, loadable / "pytorch_model.bin", pickle_module=pickle)
    said = "contain more than tensors, which would run code; get them as safetensors"
    refused(capsys, ["verify", "model", "--generate", "--length", "8"], said)
