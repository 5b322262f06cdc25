"""Imports come late: the command line answers before torch could have been loaded."""

import json

import pytest

import ropescale
from ropescale.evals.reference import CHECKPOINT

HEAVY = {"torch", "transformers", "numpy", "datasets", "accelerate", "matplotlib", "huggingface_hub"}


REPORT = "import sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"


def modules_after(python, code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after ``code``."""
    done = python("-c", f"{code}\n{REPORT}")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def modules_after_all(python, commands: list[list[str]]) -> set[str]:
    """The same after several commands, which succeed."""
    asked = [[word.format(checkpoint=CHECKPOINT) for word in words] for words in commands]
    run = "import sys\nfrom ropescale.cli.main import main\n"
    return modules_after(python, run + "".join(f"assert main({words}) == 0, {words}\n" for words in asked))


def test_the_command_line_answers_without_torch(python):
    words = ["--help"], ["--version"], ["schedules"], ["schedules", "yarn", "--json"], INSPECT, PATCH
    assert not modules_after_all(python, words) & (HEAVY | {"pydantic"})


_MODEL = {"folder": "nowhere/at/all"}
_SPEC = {"schedule": "{checkpoint} --schedule yran:factor=8", "field": "{checkpoint} --schedule yarn:factr=8"}
_DATA = {"data": "{checkpoint} --data none.txt", "option": "{checkpoint} --dta none.txt"}
_MEASURED = {"folder": "nowhere/at/all --data none.txt", **_DATA}
_PLANNED = {**_MEASURED, **{name: f"{words} --data none.txt" for name, words in _SPEC.items()}}
# Mistakes, by command.
MISTAKES = {
    "schedules": {"schedule": "yran", "option": "--jsn"},
    "inspect": {**_MODEL, **_SPEC, "option": "{checkpoint} --schedul yarn"},
    "patch -o out": {**_MODEL, **_SPEC, "file": "{checkpoint} --schedule none.json", "option": "{checkpoint} --fac 8"},
    "restore": {**_MODEL, "unpatched": "{checkpoint}", "option": "{checkpoint} --forc"},
    "verify": {**_MODEL, **_SPEC, "like": "{checkpoint} --like nowhere/at/all", "option": "{checkpoint} --generat"},
    "export": {**_MODEL, **_SPEC, "engine": "{checkpoint} --for vlm"},
    "eval --lengths 256": {**_PLANNED, "file": "{checkpoint} --config none.yaml --data none.txt"},
    "retrieval --lengths 256": {**_MODEL, **_SPEC, "data": "{checkpoint} --prompts none.jsonl"},
    "keys -o keys.json": _MEASURED,
    "gguf -o out.gguf --schedule yarn:factor=8": {"data": "none.gguf", "option": "none.gguf --factr 8"},
    "recommend --target-length 2k": {**_PLANNED, "engine": "{checkpoint} --for vlm --data none.txt"},
    "search --target-length 2k": {**_MEASURED, "engine": "{checkpoint} --for vlm --data none.txt"},
    "search --target-length 256 --data none.txt": {"length": "{checkpoint}", "seed": "{checkpoint} --seed -1"},
    "search --target-length 2k -o factors --data none.txt": {"name": "{checkpoint}"},
    "recommend --target-length 2k --short-weight 2 --data none.txt": {"number": "{checkpoint}"},
    "report": {"folder": "nowhere/at/all", "run": "{checkpoint}", "option": "nowhere --titl x"},
    "demo": {"folder": "-o {checkpoint}", "option": "--outt x"},
}

# The commands that may import numpy for a message, which takes a tenth of the time of torch.
_WITH_NUMPY = ("eval", "retrieval", "keys", "recommend", "search", "report", "demo")

_BLOCKED = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name in {names}:
            raise AssertionError(f"{{name}} is imported")

sys.meta_path.insert(0, Refused())
from ropescale.cli.main import main
for words in {commands}:
    assert main(words) == 2, words
"""


@pytest.mark.parametrize("with_numpy", [False, True])
def test_a_mistake_in_any_command_is_told_before_anything_heavy_is_imported(python, tmp_path, with_numpy):
    commands = [
        f"{command} {words.format(checkpoint=CHECKPOINT)}".split()
        for command, mistakes in MISTAKES.items()
        if (command.split()[0] in _WITH_NUMPY) == with_numpy
        for words in mistakes.values()
    ]
    names = sorted(HEAVY - {"numpy"} if with_numpy else HEAVY)
    done = python("-c", _BLOCKED.format(names=names, commands=commands), cwd=tmp_path)
    assert done.returncode == 0 and done.stderr.count("error: ") == len(commands), done.stderr
    assert not list(tmp_path.iterdir())


HUB = """
import os, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

class Without(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

server = HTTPServer(("127.0.0.1", 0), Without)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
"""


@pytest.mark.parametrize("hub", ["", HUB], ids=["offline", "without it"])
def test_a_name_of_no_dataset_is_told_without_the_library_of_datasets(python, hub):
    words = ["eval", str(CHECKPOINT), "--data", "not/there", "--lengths", "256"]
    loaded = modules_after(python, f"{hub}from ropescale.cli.main import main\nassert main({words}) == 2")
    assert "huggingface_hub" in loaded and not loaded & {"datasets", "pyarrow", "torch", "transformers"}


INSPECT = ["inspect", "{checkpoint}", "--schedule", "yarn", "--factor", "8"]
PATCH = ["patch", "{checkpoint}", "-o", "out", "--schedule", "yarn", "--factor", "8"]


def test_a_report_needs_neither_torch_nor_transformers(python):
    loaded = modules_after(python, "from ropescale.evals.reporting import page, runs, summary")
    assert "numpy" in loaded and not loaded & {"torch", "transformers", "datasets"}


def test_ropescale_and_its_schedules_and_geometry_are_pure_python(python):
    code = "import ropescale, ropescale.lengths, ropescale.schedules\n"
    code += "print(ropescale.schedules.create('yarn', factor=8)(ropescale.Rope(64, 10000.0, 256), 256))\n"
    code += f"print(ropescale.frequencies({str(CHECKPOINT)!r}, 'yarn:factor=8'))"
    loaded = modules_after(python, code)
    assert "ropescale" in loaded and not loaded & (HEAVY | {"click"})


def test_every_public_name_resolves_and_is_listed_and_an_unknown_one_is_an_attribute_error():
    assert all(getattr(ropescale, name) is not None for name in ropescale.__all__)
    assert {*ropescale.__all__} <= {*dir(ropescale)}
    with pytest.raises(AttributeError, match="has no attribute 'pach'"):
        _ = ropescale.pach
