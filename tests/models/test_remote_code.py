"""Checkpoints that bring Python code: it runs where --trust-remote-code is given, and nowhere else."""

import json
import shutil
from pathlib import Path
from statistics import mean

import pytest
from configurations import edit, read, write_files
from refusing import one_error
from tiny import byte_tokenizer, checkpoint, keep_code_apart, llama, naive_nll
from transformers import AutoModelForCausalLM

import ropescale
from ropescale.cli.main import main

CONFIGURATION = """
from pathlib import Path

from transformers import LlamaConfig

Path({marker!r}).touch()


class OwnConfig(LlamaConfig):
    model_type = "own_llama"
"""

MODELING = """
from transformers import LlamaForCausalLM

from .configuration_own import OwnConfig


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers puts the code that it runs."""
    keep_code_apart(tmp_path / "modules", monkeypatch)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that the checkpoint's code makes when it runs."""
    return tmp_path / "the code ran"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A stock Llama with a tokenizer."""
    return checkpoint(tmp_path / "plain", llama(vocab_size=257))


@pytest.fixture
def folder(plain: Path, tmp_path: Path, marker: Path) -> Path:
    """The same weights under a model type of its own."""
    own = Path(shutil.copytree(plain, tmp_path / "own"))
    named = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    edit(own, model_type="own_llama", architectures=["OwnForCausalLM"], auto_map=named)
    code = {"configuration_own.py": CONFIGURATION.format(marker=str(marker)), "modeling_own.py": MODELING}
    return write_files(own, code)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(32 + 7 * i * i % 90) for i in range(300)))
    return path


def test_patching_and_inspecting_run_no_code_and_carry_it_along(folder: Path, tmp_path: Path, marker: Path) -> None:
    out = ropescale.patch_checkpoint(folder, tmp_path / "out", "yarn:factor=4").folder
    assert main(["inspect", str(out)]) == 0
    assert not marker.exists()
    for name in ("configuration_own.py", "modeling_own.py"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
        assert not (out / name).samefile(folder / name)
    assert read(out / "config.json")["auto_map"]["AutoConfig"] == "configuration_own.OwnConfig"


@pytest.mark.parametrize("words", [["verify"], ["verify", "--generate"], ["eval", "--lengths", "64", "--data"]])
def test_without_the_option_nothing_runs_and_the_error_names_it(folder, text, marker, words, ran):
    command, *rest = words
    said = ran(command, folder, *rest, *([text] if command == "eval" else []), code=2).err
    one_error(said, "custom code (modeling_own.OwnForCausalLM)", "--trust-remote-code")
    assert not marker.exists()


def test_with_the_option_it_is_verified_generated_from_and_evaluated(folder, plain, tmp_path, text, marker, ran):
    out = ropescale.patch_checkpoint(folder, tmp_path / "out", "yarn:factor=4").folder
    ran("verify", out, "--trust-remote-code")
    assert marker.exists()
    said = ran("verify", out, "--trust-remote-code", "--generate").out
    assert "live: yes (all: yarn:factor=4, at 256 tokens)" in said
    words = ["--data", text, "--lengths", "64,256", "--json"]
    own = json.loads(ran("eval", out, *words, "--trust-remote-code").out)["rows"]
    wanted = read(out / "config.json")  # the stock checkpoint gets the rope parameters of the patched one
    edit(plain, **{key: wanted[key] for key in ("rope_parameters", "max_position_embeddings")})
    ids = [256, *byte_tokenizer()(text.read_text(), add_special_tokens=False)["input_ids"]][:256]
    losses = naive_nll(AutoModelForCausalLM.from_pretrained(plain), ids)
    assert {row["length"]: row["nll"] for row in own}[256] == pytest.approx(mean(losses), abs=1e-5)


def test_a_type_that_transformers_knows_is_loaded_by_its_own_class_whatever_lies_beside_it(folder, marker):
    edit(folder, model_type="llama")
    assert ropescale.verify(folder, generate=True).live
    assert not marker.exists()


def test_a_tokenizer_with_code_is_refused_by_name_without_the_option(plain, text, marker, ran):
    named = {"AutoTokenizer": ["own.OwnTokenizer", None]}
    edit(plain, "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=named)
    (plain / "own.py").write_text(f"from pathlib import Path\n\nPath({str(marker)!r}).touch()\n")
    said = ran("eval", plain, "--data", text, "--lengths", "64", code=2).err
    assert "allow it if you trust it (--trust-remote-code)" in said
    assert not marker.exists()
