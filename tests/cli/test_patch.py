"""``ropescale patch`` and ``ropescale restore``: what they print, and that every option reaches the checkpoint."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import own_schedules
import pytest
from configurations import GEMMA3, GPT_OSS, edit, read, write_checkpoint
from crashing import unchanged

from ropescale import files


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint at ``model`` in the working directory, with two weight files that are none."""
    monkeypatch.chdir(tmp_path)
    weights = {f"model-{number}.safetensors": "no weights" for number in (1, 2)}
    return write_checkpoint(tmp_path / "model", files={"tokenizer_config.json": '{"model_max_length": 256}'} | weights)


def config(folder: str = "out") -> dict[str, Any]:
    return read(Path(folder, "config.json"))


@pytest.fixture
def patch(ran: Any) -> Any:
    """Patches ``model`` into ``out``, or another folder."""
    return lambda *words, out="out", **code: ran("patch", "model", "-o", out, *words, **code)


def rows(page: str) -> dict[str, str]:
    """The summary's table: what -> value."""
    cells = [line.strip("| ").split("|") for line in page.splitlines() if line.startswith("|")]
    return {key.strip(): value.strip() for key, value in cells[2:]}


def test_the_summary_says_what_became_of_what(patch):
    captured = patch("--schedule", "yarn", "--factor", "4")
    assert rows(captured.out) == {
        "model": "model (llama)", "written to": "out", "layers": "all", "schedule": "yarn:factor=4",
        "length": "256 -> 1,024 tokens (x 4)", "route": "rope_type yarn", "attention scale": "1.13863",
        "max_position_embeddings": "256 -> 1024", "weights": "2 x hard link; not read",
    }  # fmt: skip
    diff, _, others = captured.out.partition("```diff\n")[2].partition("```\n")
    assert '-  "max_position_embeddings": 256\n+  "max_position_embeddings": 1024\n' in diff
    assert [line.partition(":")[0] for line in others.splitlines() if line] == ["* README.md", "* ropescale.json"]
    *warnings, last = captured.err.splitlines()
    assert all(line.startswith("warning: ") for line in warnings)
    assert last == "next: ropescale verify out"


def test_json_is_one_object_with_every_digit(patch):
    found = json.loads(patch("--schedule", "yarn", "--factor", "4", "--json").out)
    said = {"model": "model", "out": "out", "written": True, "in_place": False, "length": 1024}
    said |= {"max_position_embeddings": [256, 1024]}
    assert {key: found[key] for key in said} == said
    layer = found["layers"]["all"]
    assert (layer["fields"]["name"], layer["original_length"]) == ("yarn", 256)
    assert layer["attention_scale"] == 1.138629436111989  # 0.1 ln 4 + 1
    assert layer["rope_parameters"] == config()["rope_parameters"]
    assert found["weights"] == {"model-1.safetensors": "hard", "model-2.safetensors": "hard"}
    assert found["changes"]["config.json"].startswith("--- config.json (source)")


LENGTHS = [
    (["--schedule", "yarn", "--target-length", "2k"], "256 -> 2,048 tokens (x 8)"),
    (["--schedule", "yarn", "--target-length", "300", "--original-length", "128"], "128 -> 300 tokens (x 2.34375)"),
    (["--schedule", "yarn", "--target-length", "1000", "--original-length", "192"], "192 -> 1,000 tokens (x 5.20833)"),
]


@pytest.mark.parametrize(("words", "shown"), LENGTHS)
def test_the_arithmetic_of_the_length_is_shown(patch, words, shown):
    assert rows(patch(*words).out)["length"] == shown


def test_a_schedule_of_ones_own_takes_the_per_pair_route(patch, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    shutil.copy(own_schedules.__file__, "mine.py")
    found = rows(patch("--schedule", "mine.py::Half", "--set", "factor=4").out)
    assert found["schedule"] == "Half:factor=4"
    assert found["route"] == "one factor per pair (32 pairs, rope_type longrope)"
    assert config()["rope_parameters"]["long_factor"] == pytest.approx([1.0] * 16 + [4.0] * 16)


def test_a_dry_run_says_the_same_and_writes_nothing(patch, ran):
    real = patch("--schedule", "yarn:factor=4")
    words = ["patch", "model", "--schedule", "yarn:factor=4", "--dry-run"]
    with unchanged(Path.cwd()):
        dry = ran(*words)
        found = json.loads(ran(*words, "-o", "new/out", "--json").out)
    assert dry.out.partition("```")[2] == real.out.partition("```")[2]
    assert dry.err + "next: ropescale verify out\n" == real.err
    assert rows(dry.out)["would be written to"] == "-"
    assert (found["written"], found["out"], found["weights"]) == (False, "new/out", {})


def test_force_replaces_and_in_place_is_undone_by_restore(patch, ran, model):
    patch("--schedule", "linear:factor=2")
    patch("--schedule", "yarn:factor=4", code=2)
    patch("--schedule", "yarn:factor=4", "--force")
    assert config()["rope_parameters"]["rope_type"] == "yarn"
    with unchanged(model):
        found = rows(ran("patch", "model", "--schedule", "yarn:factor=4", "--in-place").out)
        assert (found["changed in place"], found["weights"]) == ("model", "untouched")
        assert config("model")["max_position_embeddings"] == 1024
        assert ran("restore", "model").out == "model is restored to its state before it was patched in place\n"


def test_layers_and_words_about_scaling_reach_the_plan(patch, model):
    write_checkpoint(model, GEMMA3)
    captured = patch("--schedule", "linear:factor=8")
    assert rows(captured.out)["layers"] == "full_attention"
    assert "note: unchanged layers: sliding_attention" in captured.err
    assert config()["rope_parameters"]["full_attention"]["factor"] == 8.0
    assert config()["rope_parameters"]["sliding_attention"]["rope_type"] == "default"
    patch("--schedule", "linear:factor=8", "--layers", "all", out="every")
    assert config("every")["rope_parameters"]["sliding_attention"]["factor"] == 8.0
    words = "did you mean 'sliding_attention'? It has full_attention, sliding_attention (or full, or all)"
    assert words in patch("--schedule", "linear:factor=8", "--layers", "sliding", code=2).err


def test_patching_again_says_what_is_undone(patch, ran):
    assert "patched this checkpoint before" not in patch("--schedule", "yarn:factor=4").err
    captured = ran("patch", "out", "-o", "again", "--schedule", "linear:factor=2")
    note = "note: ropescale patched this checkpoint before (yarn:factor=4); the new schedule replaces that one\n"
    assert captured.err.startswith(note)
    assert rows(captured.out)["length"] == "256 -> 512 tokens (x 2)"
    said = ran("patch", "out", "-o", "top", "--schedule", "linear:factor=2", "--on-top").err
    assert "before (yarn:factor=4); the new schedule goes on top" in said
    assert rows(patch("--schedule", "linear:factor=2", out="fresh").out)["max_position_embeddings"] == "256"
    assert config("again") == config("fresh")


def test_layers_that_see_a_window_do_not_lengthen_the_context(patch, model):
    write_checkpoint(model, GEMMA3)
    found = json.loads(patch("--schedule", "linear:factor=8", "--layers", "sliding_attention", "--json").out)
    assert found["max_position_embeddings"] == [8192, 8192]
    assert found["length"] == config()["max_position_embeddings"] == 8192
    assert "only sliding-window layers change, so the context stays 8,192 tokens" in found["notes"]
    slowest = read(Path("out", "ropescale.json"))["tables"]["sliding_attention"]["inv_freq"][-1]
    assert slowest == pytest.approx(10000 ** (-14 / 16) / 8)  # the table changes all the same


def test_fields_of_the_makers_that_replacing_drops_are_named(patch, model):
    edit(model, **GPT_OSS)
    note = "kept from the vendor's yarn: truncate=false"
    assert patch("--replace-scaling", "--schedule", "yarn:factor=64").err.startswith(f"note: {note}; give a field")
    assert config()["rope_parameters"]["truncate"] is False
    words = ["--schedule", "yarn", "--set", "factor=64", "--set", "truncate=true"]
    assert note not in patch("--replace-scaling", *words, out="named").err
    named = config("named")["rope_parameters"]
    assert (named["factor"], named["truncate"]) == (64.0, True)
    lost = patch("--replace-scaling", "--schedule", "linear:factor=64", out="other").err
    assert lost.startswith("note: not kept from the vendor's yarn: truncate=false\n")


def test_phi3s_maximum_is_explained_and_inspect_shows_the_length_that_is_meant(patch, ran, model):
    """L^(scale^2) with scale = 0.1 ln 32 + 1; vLLM's cos and sin are that many rows of 64 numbers of 16 bits."""
    edit(model, model_type="phi3", max_position_embeddings=4096, original_max_position_embeddings=4096)
    maximum = round(4096 ** ((0.1 * math.log(32) + 1) ** 2))
    assert maximum == 3549354
    err = patch("--schedule", "yarn:factor=32").err
    assert f"therefore becomes {maximum}; the intended context is 131072" in err
    assert f"vLLM: --max-model-len 131072; its cos and sin for {maximum:,} positions take 454 MB at 16 bits" in err
    found = json.loads(ran("inspect", "out", "--json").out)
    assert found["layers"]["all"]["target_length"] == 131072
    warning = "this checkpoint was extended to 131,072 tokens (ropescale.json), but max_position_embeddings is "
    assert f"{warning}{maximum:,}" in found["warnings"]
    found = json.loads(ran("inspect", "out", "--target-length", "8k", "--json").out)
    assert found["layers"]["all"]["target_length"] == 8192


@pytest.mark.parametrize("words", ["patch {} -o out --schedule yarn:factor=2", "inspect {}", "export {}", "verify {}"])
def test_a_command_reads_config_json_once(words, model, ran, monkeypatch):
    opened, read = list[str](), files.open_regular
    monkeypatch.setattr(files, "open_regular", lambda path: opened.append(path.name) or read(path))
    ran(*words.format("model").split())
    assert opened.count("config.json") == 1
