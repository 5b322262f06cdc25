"""Advice about folders and files is followed as a person would, and the command succeeds then."""

import ast
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import peft
import pytest
import tiny
from configurations import LLAMA, write_checkpoint
from torch import nn
from transformers import AutoModelForCausalLM

import ropescale
from ropescale.checkpoints.saving import complete
from ropescale.cli.main import main

SHORT = {
    "CODED": "echo 'NAMES' > R/TOKENIZER; echo 'import transformers as t' > R/own.py; echo 'CLASS' >> R/own.py",
    "CLASS": "class Own(t.PreTrainedTokenizerFast): pass",
    "NAMES": '{"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", null]}}',
    "INTO": "patch M -o P YARN", "IN_PLACE": "patch M --in-place YARN", "TABLED": "gguf m.gguf -o n.gguf YARN",
    "EVAL": "eval R --data text.txt --lengths 16 --windows 1",
    "HAND": "mv M/BACKUP/config.json M; rm -r M/BACKUP", "YARN": "--schedule yarn:factor=2",
    "BACKUP": "ropescale-backup", "INDEX": "model.safetensors.index.json", "TOKENIZER": "tokenizer_config.json",
    "CONFIG": "R/config.json",
}  # fmt: skip
TABLE = Path(__file__).with_name("advice.txt").read_text()
for _short, _whole in SHORT.items():
    TABLE = TABLE.replace(_short, _whole)
# What is wrong, the command, its advice, and what is done then; unless that ends with a command, this one once more.
ROWS = [line.replace(" | tee", " |tee").split(" | ") for line in TABLE.splitlines()]
FILES, CALLS = ROWS[: ROWS.index([""])], ROWS[ROWS.index([""]) + 1 :]

# What is not followed here, by its reason.
ELSEWHERE = (
    # another command at the same moment
    *("was created meanwhile", "another command created", "became shorter while"),
    # another program, machine or file system
    *("cannot be linked or copied to", "over several processes", "is big-endian", "parts; join them first"),
    "gguf-py, which is not installed",
    # code to trust, an adapter's base, the source as output: tests/files/test_data_runs_no_code.py,
    # tests/checkpoints/test_saving.py and tests/planning/test_advice_in_words.py follow them
    *("needs custom code", "code from the Hub", "is a PEFT adapter; patch the base", "is the source itself"),
    # facts about a file that no option changes
    *("is unknown to ropescale", "is of type", "; no schedule lets", "; an engine that reads that file"),
    *("; it should be", "; it must be", "must be even", "does not extend the context", "nothing can be scaled"),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A checkpoint to patch, ``M``, the same as ``N``, one to load, ``R``, a GGUF file and a text."""
    from gguf_models import write_gguf

    folder = tmp_path_factory.mktemp("sources")
    for name in "MN":
        (write_checkpoint(folder / name, LLAMA) / "model.safetensors").write_bytes(b"weights")
    model = tiny.llama(vocab_size=258)
    tiny.checkpoint(folder / "R", model)
    write_gguf(model, folder / "m.gguf")
    (folder / "text.txt").write_text(tiny.TEXT)
    return folder


@pytest.fixture
def place(sources, tmp_path, monkeypatch) -> Path:
    """A copy of them, in the working directory."""
    monkeypatch.chdir(shutil.copytree(sources, tmp_path / "here"))
    tiny.keep_code_apart(tmp_path / "modules", monkeypatch)
    return Path.cwd()


COMMANDS = ("patch", "restore", "inspect", "gguf", "eval")


@pytest.mark.parametrize(("wrong", "command", "advice", "done"), FILES)
def test_advice_about_files_leads_out_when_it_is_followed(place, capsys, wrong, command, advice, done):
    def do(steps: str, code: int = 0) -> str:
        for step in steps.split("; "):
            if step.partition(" ")[0] not in COMMANDS:
                subprocess.run(step, shell=True, check=True, capture_output=True)
                continue
            capsys.readouterr()
            assert main(shlex.split(step)) == code
        return capsys.readouterr().err

    do(wrong)
    assert advice in do(command, code=0 if "does not belong" in advice else 2)
    do(done)
    if done.split("; ")[-1].partition(" ")[0] not in COMMANDS:
        assert advice not in do(command)


@pytest.mark.parametrize(("wrong", "call", "advice", "done"), CALLS)
def test_advice_of_python_leads_out_when_it_is_followed(place, wrong, call, advice, done):
    def patched(name: str = "") -> nn.Module:
        model = load(name) if name else tiny.llama(vocab_size=258)
        ropescale.patch(model, "yarn:factor=2")
        return model

    def adapted(model: nn.Module) -> nn.Module:
        return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))

    def changed(model: nn.Module) -> None:
        model.config.rope_parameters["factor"] = 3

    load = AutoModelForCausalLM.from_pretrained
    ours = {"save": ropescale.save, "patch": ropescale.patch, "complete": complete}
    ours |= {"patch_checkpoint": ropescale.patch_checkpoint, "s": "ntk:factor=2"}
    names = {**vars(os), **vars(shutil), **ours, **locals()}
    exec(wrong, names)
    with pytest.raises(ropescale.RopescaleError, match=re.escape(advice)):
        exec(call, names)
    exec(f"{done}; {call}", names)


def test_no_advice_about_files_is_left_out():
    """Whatever a message says after its semicolon is followed above, or listed as followed elsewhere."""
    followed = [advice.partition(" (-")[0].split(", or")[0] for _, _, advice, _ in (*FILES, *CALLS)]
    package = Path(ropescale.__file__).parent
    for path in (*(package / "checkpoints").glob("*.py"), *(package / "gguf").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Raise, ast.Yield, ast.Return)):
                said = [_plain(each) for each in ast.walk(node) if isinstance(each, (ast.JoinedStr, ast.Constant))]
                text = max(said, key=len, default="")
                assert "; " not in text or any(each in text for each in (*followed, *ELSEWHERE)), (path.name, text)


def _plain(node: ast.expr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in parts)
