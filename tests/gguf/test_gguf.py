"""``ropescale gguf``: what is written for llama.cpp, what is kept byte for byte, and what is refused."""

import json
import math
import os
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import refusing
from crashing import raising, unchanged
from gguf_models import add_key, close, write_keys

import ropescale.gguf.files
from ropescale import Rope
from ropescale.errors import CheckpointError, ConfigError, RopescaleError, ScheduleError
from ropescale.gguf.files import open_gguf
from ropescale.gguf.model import config_of, read_model
from ropescale.gguf.patching import patch_gguf
from ropescale.schedules import create

S = "rope.scaling."
PLAIN = [10000.0 ** (-2 * i / 16) for i in range(8)]
LLAMA31 = [1.0] * 4 + [2.0] + [8.0] * 3
HALVED = [1.0] * 4 + [2.0] * 4


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys_of(path: str | Path) -> dict[str, Any]:
    """Every key with its value, as gguf-py reads it; ours left out."""
    fields = gguf.GGUFReader(path).fields
    others = ("GGUF.", "ropescale.", "general.")
    return {name: field.contents() for name, field in fields.items() if not name.startswith(others)}


def tensors_of(path: str | Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor's type, shape and bytes, as gguf-py reads them."""
    tensors = gguf.GGUFReader(path).tensors
    return {t.name: (t.tensor_type.name, t.shape.tolist(), t.data.tobytes()) for t in tensors}


def factors_of(path: str | Path, name: str = "rope_freqs.weight") -> list[float]:
    kind, _, data = tensors_of(path)[name]
    assert kind == "F32"
    return np.frombuffer(data, dtype="<f4").tolist()


def patched(schedule: Any, arch: str = "llama", out: str = "out.gguf", **more: Any) -> dict[str, Any]:
    """The keys of a plain file of this architecture under a schedule, without the architecture's name."""
    patch_gguf(write_keys(Path("in.gguf"), arch), out, schedule, **more)
    return {name.removeprefix(f"{arch}."): value for name, value in keys_of(out).items()}


def stock_table(kind: str, width: int, trained: int, theta: float, **more: float) -> list[float]:
    """The frequencies that transformers' own function computes, eight times longer than trained."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": kind, "rope_theta": theta, "factor": 8.0, "original_max_position_embeddings": trained}
    config = LlamaConfig(hidden_size=width, num_attention_heads=1, rope_parameters=scaling | more)
    config.max_position_embeddings = 8 * trained
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu")[0].tolist()


# ---------------------------------------------------------------------------------------------------------
# Writing

TABLE = {"name": "table", "factors": HALVED, "attention_factor": 1.25}
TRAINED_KEYS = {"rope.dimension_count": 16, "rope.freq_base": 10000.0}
BETAS = {S + "yarn_beta_fast": 8.0, S + "yarn_beta_slow": 1.0}
NATURAL = 0.1 * math.log(8) + 1
LINEAR = {S + "type": "linear", S + "factor": 4.0}
YARN = {S + "type": "yarn", S + "factor": 8.0, S + "original_context_length": 256}


SPELLED = [
    ("llama", "yarn:factor=8", {}, 2048, YARN),
    ("llama", "yarn:factor=8,attention_factor=1.5", {}, 2048, YARN | {S + "attn_factor": 1.5 / NATURAL}),
    ("mistral3", "yarn:factor=8,beta_fast=8", {}, 2048, YARN | BETAS),  # which reads it
    ("llama", "linear:factor=4", {}, 1024, LINEAR),
    ("llama", {"name": "table", "factors": [4.0] * 8}, {"target_length": 1024}, 1024, LINEAR),
    ("qwen2", "ntk:factor=8", {}, 2048, {"rope.freq_base": 10000 * 8 ** (16 / 14), S + "type": "none"}),
    ("deepseek2", "ntk:factor=8", {}, 2048, {"rope.freq_base": 10000 * 8 ** (16 / 14), S + "type": "none"}),
    ("qwen2", "dynamic:factor=4", {"freeze_at": 1024}, 1024,
     {"rope.freq_base": 10000 * (4 * 1024 / 256 - 3) ** (16 / 14), S + "type": "none"}),
    ("llama", TABLE, {"target_length": 512}, 512, {S + "type": "none", S + "attn_factor": 1.25}),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "asked", "options", "length", "keys"), SPELLED)
def test_a_schedule_becomes_the_keys_that_llama_cpp_reads(arch, asked, options, length, keys):
    found = patched(asked, arch=arch, **options)
    for name, value in (TRAINED_KEYS | {"context_length": length} | keys).items():
        assert found.pop(name) == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)
    assert found == {}
    assert tensors_of("out.gguf").keys() == {"token_embd.weight"} | ({"rope_freqs.weight"} if asked is TABLE else set())
    assert asked is not TABLE or factors_of("out.gguf") == HALVED


def test_llama3_becomes_the_divisors_of_transformers_own_table():
    inv_freq = stock_table("llama3", 16, 256, 10000.0, low_freq_factor=1.0, high_freq_factor=4.0)
    keys = patched("llama3:factor=8")
    assert factors_of("out.gguf") == pytest.approx([b / f for b, f in zip(PLAIN, inv_freq)], rel=1e-6)
    assert keys[S + "type"] == "none"


def test_longrope_keeps_its_two_lists_and_a_table_goes_into_both_where_there_is_no_other_place():
    keys = patched({"name": "longrope", "short_factor": [1.0] * 8, "long_factor": HALVED, "factor": 4})
    assert factors_of("out.gguf", "rope_factors_long.weight") == HALVED
    assert factors_of("out.gguf", "rope_factors_short.weight") == [1.0] * 8
    assert keys[S + "attn_factor"] == pytest.approx(math.sqrt(1 + math.log(4) / math.log(256)), rel=1e-7)
    assert (keys[S + "type"], keys["context_length"]) == ("longrope", 1024)
    keys = patched({"name": "table", "factors": HALVED}, arch="phi3", out="table.gguf", target_length=512)
    assert factors_of("table.gguf", "rope_factors_long.weight") == HALVED
    assert factors_of("table.gguf", "rope_factors_short.weight") == HALVED
    assert (keys[S + "type"], keys[S + "original_context_length"]) == ("longrope", 256)


DROPPED = [{"beta_fast": 8.0}, {"beta_slow": 2.0}, {"truncate": False}, {"extrapolation_factor": 0.5}]


@pytest.mark.parametrize("fields", DROPPED)
def test_what_llama_cpp_would_drop_of_yarn_becomes_a_table(fields):
    """Its numbers are those of the schedule, not of plain yarn."""
    asked = create("yarn", factor=8.0, **fields)
    keys = patched(asked)
    table = asked(Rope(16, 10000.0, 256), 2048)
    assert factors_of("out.gguf") == pytest.approx([b / f for b, f in zip(PLAIN, table.inv_freq)], rel=1e-6)
    assert keys[S + "attn_factor"] == pytest.approx(0.1 * math.log(8) + 1)
    assert keys[S + "type"] == "none"


def test_gemma_4_keeps_the_pairs_that_do_not_turn():
    """Its proportional RoPE is a table of 1 and 1e30; another theta goes beside it, and another table over it."""
    tables = {"rope_freqs.weight": [1.0, 1.0, *[1e30] * 6]}
    source = write_keys(Path("in.gguf"), "gemma4", tables)
    patch_gguf(source, "theta.gguf", "ntk:factor=2")
    assert factors_of("theta.gguf") == pytest.approx(tables["rope_freqs.weight"])
    assert keys_of("theta.gguf")["gemma4.rope.freq_base"] == pytest.approx(10000 * 2 ** (16 / 14), rel=1e-7)
    patch_gguf(source, "table.gguf", "ntk-by-parts:factor=4")
    assert factors_of("table.gguf")[2:] == pytest.approx([1e30] * 6)


@pytest.mark.parametrize("kind", ["UINT32", "UINT64", "INT32"])
def test_the_length_keeps_the_type_it_has(kind):
    writer = gguf.GGUFWriter("in.gguf", "llama")
    writer.add_key_value("llama.context_length", 256, gguf.GGUFValueType[kind])
    writer.add_rope_dimension_count(16)
    writer.add_tensor("x", np.zeros(1, dtype=np.float32))
    close(writer, Path("in.gguf"))
    patch_gguf("in.gguf", "out.gguf", "ntk:factor=2")
    field = gguf.GGUFReader("out.gguf").fields["llama.context_length"]
    assert (field.types[0].name, field.contents()) == (kind, 512)


SAID = {"gemma2": "change as well", "gemma3": "stay unchanged", "mistral3": "queries", "novel": "no architecture"}


@pytest.mark.parametrize(("arch", "words"), SAID.items())
def test_it_says_what_becomes_of_layers_with_a_window_and_of_what_nobody_looked_at(arch, words):
    source = write_keys(Path("in.gguf"), arch, **WINDOW if arch.startswith("gemma") else {})
    done = patch_gguf(source, None, "yarn:factor=8", dry_run=True)
    assert any(words in note for note in (*done.notes, *done.warnings))
    assert any("sliding_window is 64" in warning for warning in done.warnings) == arch.startswith("gemma")


# ---------------------------------------------------------------------------------------------------------
# What is kept


def rich_file(path: Path) -> Path:
    """Every kind of key and several kinds of tensors, quantised ones among them, aligned to 64."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_context_length(256)
    writer.add_rope_dimension_count(16)
    for kind in "UINT8 INT8 UINT16 INT16 UINT32 INT32 UINT64 INT64".split():
        writer.add_key_value(f"x.{kind}", 7, gguf.GGUFValueType[kind])
    writer.add_key_value("x.double", math.pi, gguf.GGUFValueType.FLOAT64)
    writer.add_float32("x.odd", 0.1)
    writer.add_bool("x.yes", True)
    writer.add_string("x.text", "ünïcode \n {{ template }}")
    writer.add_array("tokenizer.ggml.tokens", ["a", "", "ß" * 50])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 3.0])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
    writer.add_array("x.flags", [True, False])
    random = np.random.default_rng(0)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        data = gguf.quants.quantize(random.standard_normal((3, 64), dtype=np.float32), kind)
        writer.add_tensor(f"blk.0.{kind.name}.weight", data, raw_dtype=kind)
    writer.add_tensor("half", random.standard_normal((5, 7)).astype(np.float16))
    writer.add_tensor("whole", random.standard_normal(11).astype(np.float32))
    return close(writer, path)


def raw_keys(path: str | Path) -> dict[str, bytes]:
    fields = gguf.GGUFReader(path).fields
    return {name: b"".join(part.tobytes() for part in fields[name].parts) for name in list(fields)[3:]}


@pytest.mark.parametrize("schedule", ["yarn:factor=8", "llama3:factor=8", "ntk:factor=2"])
def test_every_other_key_and_every_tensor_is_kept_byte_for_byte(schedule, monkeypatch):
    monkeypatch.setattr(ropescale.gguf.files, "BLOCK", 13)  # many blocks, none of which fits
    source = rich_file(Path("in.gguf"))
    content = source.read_bytes()
    open_gguf(source).rewrite(Path("same.gguf"), {}, {})
    assert Path("same.gguf").read_bytes() == content
    done = patch_gguf(source, "out.gguf", schedule)
    assert source.read_bytes() == content
    before, after = ([*raw_keys(path).items()] for path in (source, "out.gguf"))
    assert [each for each in after if each[0] not in done.keys] == [each for each in before if each[0] not in done.keys]
    tensors = tensors_of("out.gguf")
    tensors.pop("rope_freqs.weight", None)
    assert tensors == tensors_of(source)
    assert gguf.GGUFReader("out.gguf").alignment == 64


def test_a_file_of_ours_is_patched_again_only_on_top():
    patch_gguf(write_keys(Path("in.gguf")), "first.gguf", "yarn:factor=8")
    with pytest.raises(ConfigError, match="already carries a schedule of ropescale, 'yarn:factor=8'; patch"):
        patch_gguf("first.gguf", "second.gguf", "ntk:factor=2")


@pytest.mark.parametrize(("first", "direct"), [("linear:factor=2", "linear:factor=4"), ("yarn:factor=2", None)])
def test_on_top_builds_on_what_was_patched_before(first, direct):
    patch_gguf(write_keys(Path("in.gguf")), "first.gguf", first)
    done = patch_gguf("first.gguf", "second.gguf", "linear:factor=2", on_top=True)
    below = patch_gguf("in.gguf", None, first, dry_run=True).plan
    assert done.plan.tables["all"].inv_freq == pytest.approx([f / 2 for f in below.tables["all"].inv_freq], rel=1e-6)
    assert done.plan.length == 4 * below.ropes["all"].original_length
    if direct:
        patch_gguf("in.gguf", "direct.gguf", direct)
        assert keys_of("second.gguf") == keys_of("direct.gguf")


# ---------------------------------------------------------------------------------------------------------
# What is there already


HEADS = {"rope.dimension_count": None, "embedding_length": 64, "attention.head_count": 4}


def parameters(arch: str, tables: dict[str, list[float]] | None = None, **keys: Any) -> dict[str, Any]:
    return config_of(read_model(open_gguf(write_keys(Path("in.gguf"), arch, tables, **keys))))["rope_parameters"]


def test_scaling_in_the_file_is_read_as_llama_cpp_computes_it():
    theta = {"rope_theta": 10000.0}
    assert parameters("llama") == theta | {"rope_type": "default"}
    assert parameters("llama", **{S + "factor": 4.0}) == theta | {"rope_type": "linear", "factor": 4.0}
    assert parameters("llama", **{"rope.scale_linear": 4.0}) == theta | {"rope_type": "linear", "factor": 4.0}
    assert parameters("llama", **{S + "type": "none", S + "factor": 4.0}) == theta | {"rope_type": "default"}
    keys = {S + "type": "yarn", S + "factor": 4.0, S + "attn_factor": 2.0, S + "yarn_beta_fast": 8.0}
    yarn = parameters("llama", **keys)
    assert yarn["attention_factor"] == pytest.approx(2 * (0.1 * math.log(4) + 1))
    assert yarn["beta_fast"] == 32.0  # the key is there, and not read
    read = read_model(open_gguf(write_keys(Path("heads.gguf"), **HEADS)))
    assert config_of(read)["head_dim"] == 16  # of a file without a rotary width
    assert parameters("grok", **keys)["beta_fast"] == 8.0


def test_tables_in_the_file_are_read_where_llama_cpp_rotates_by_them():
    freqs = {"rope_freqs.weight": LLAMA31}
    lists = {"rope_factors_long.weight": HALVED, "rope_factors_short.weight": LLAMA31}
    assert parameters("llama", freqs)["long_factor"] == LLAMA31
    assert parameters("falcon-h1", freqs)["rope_type"] == "default"  # loads it in vain
    assert parameters("llama", lists)["rope_type"] == "default"
    read = parameters("llama", lists, **{S + "type": "longrope", S + "original_context_length": 64})
    assert (read["long_factor"], read["short_factor"]) == (HALVED, LLAMA31)
    assert read["original_max_position_embeddings"] == 64
    assert parameters("phi3", lists)["long_factor"] == HALVED


def test_qwen3_is_computed_from_what_it_was_trained_at():
    patch_gguf(write_keys(Path("in.gguf"), "qwen3", context_length=40960), "out.gguf", "yarn:factor=4")
    found = keys_of("out.gguf")
    assert (found[f"qwen3.{S}original_context_length"], found["qwen3.context_length"]) == (32768, 131072)


# ---------------------------------------------------------------------------------------------------------
# What is refused

WINDOW = {"attention.sliding_window": 64}


REFUSED = [
    ("qwen2", {}, "llama3:factor=8", ScheduleError, "needs per-pair factors.*does not apply them in qwen2"),
    ("qwen2", {}, "yarn:factor=8,beta_fast=4", ScheduleError, "start llama.cpp with --yarn-beta-fast 4"),
    ("qwen2", {}, "dynamic:factor=8", ScheduleError, "freeze it at a length, such as 2048"),
    ("llama", {}, "as-is", ScheduleError, "as-is changes nothing"),
    ("gpt2", {}, "ntk:factor=8", ConfigError, "gpt2 has no rotary position embeddings"),
    ("deepseek2", {}, "yarn:factor=8", ScheduleError, "softmax scale of its own"),
    ("cohere2", WINDOW, "yarn:factor=8", ConfigError, "full-attention layers of cohere2 do not rotate"),
    ("llama4", {}, "yarn:factor=8", ConfigError, "full-attention layers of llama4 do not rotate"),
    ("gemma3", WINDOW, "yarn:factor=8,attention_factor=2", ScheduleError, "attention_factor=1.20794"),
    ("llama", {"general.type": "adapter"}, "ntk:factor=8", ConfigError, "is of type adapter, not a model"),
    ("llama", {"split.count": 3}, "ntk:factor=8", ConfigError, "one of 3 parts; join them first"),
    ("llama", {"rope.dimension_count": [16, 8]}, "ntk:factor=8", ConfigError, "differs from layer to layer"),
    ("llama", {"rope.dimension_count": 15}, "llama3:factor=8", ConfigError, "rotate 15 coordinates.*rotates pairs"),
    ("llama", {"context_length": None}, "ntk:factor=8", ConfigError, "lacks llama.context_length"),
    ("llama", {S + "type": "yarn", S + "factor": 4.0}, "yarn:factor=8", ConfigError, r"already scaled \(yarn x4"),
    ("llama", {"rope.freq_base": math.nan}, "ntk:factor=8", ConfigError, "rope.freq_base is nan in in.gguf; it"),
    ("llama", {"rope.dimension_count": 2**31}, "yarn:factor=4", ConfigError, "would rotate 2147483648 coordinates"),
    ("llama", {}, "abf:rope_theta=1e60", ScheduleError, "float32"),
    ("llama", {}, "ntk:factor=1e8", ScheduleError, "positions in llama.cpp go up to"),
]


@pytest.mark.parametrize(("arch", "keys", "schedule", "error", "words"), REFUSED)
def test_what_llama_cpp_cannot_carry_is_refused_and_nothing_is_written(arch, keys, schedule, error, words, here):
    write_keys(Path("in.gguf"), arch, **keys)
    with refusing.untouched(here, words, error):
        try:
            patch_gguf("in.gguf", "out.gguf", schedule, target_length=1024 if schedule.startswith("abf") else None)
        except RopescaleError as refused:
            for way in refused.advice:
                for other in way.schedules or (schedule,):
                    assert patch_gguf("in.gguf", None, other, dry_run=True, **way.options).route
            raise


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that an error is; the folder stays as it is."""
    return refusing.refused(capsys, ["gguf", *words])


def test_files_that_are_none_or_cut_off_anywhere_are_one_line(capsys):
    big = gguf.GGUFWriter("big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    add_key(big, "llama.context_length", 256)
    big.add_tensor("x", np.zeros(4, dtype=np.float32))
    close(big, Path("big.gguf"))
    Path("folder").mkdir()
    ask = ["--schedule", "ntk:factor=2", "-o", "out.gguf"]
    assert "big.gguf is big-endian" in refused(capsys, "big.gguf", *ask)
    assert "folder is a folder" in refused(capsys, "folder", *ask)
    assert "none.gguf does not exist" in refused(capsys, "none.gguf", *ask)
    data = rich_file(Path("whole.gguf")).read_bytes()
    cuts = [data[:size] for size in (0, 3, 6, 10, 30, 100, 400, 700, len(data) - 700, len(data) - 70)]
    bare = gguf.GGUFWriter("bare.gguf", "llama")
    keys = {"general.alignment": 64, "llama.context_length": 256, "llama.rope.dimension_count": 16, "x": "a text"}
    for key, value in keys.items():
        add_key(bare, key, value)
    bare = close(bare, Path("bare.gguf")).read_bytes()
    cuts += [bare[: bare.index(b"a text") + 5], bare.replace(struct.pack("<I", 64), struct.pack("<I", 2**20))]
    first, second = (struct.pack("<QsIQIQ", 1, b"b", 1, 1024, 0, at) for at in (64, 4160))
    apart = write_keys(Path("b.gguf"), tables={"a": [1.0] * 1024, "b": [1.0] * 1024}).read_bytes()
    cuts += [apart[:-4096].replace(second, first), data[:16] + struct.pack("<Q", 2**17) + data[24:]]
    for content in (b"not weights", *cuts):
        Path("cut.gguf").write_bytes(content)
        error = refused(capsys, "cut.gguf", *ask)
        assert "cut.gguf is not a GGUF file" in error or "cut.gguf cannot be read as GGUF" in error
    assert "too many tensors or keys" in error


def test_nothing_is_overwritten_that_ropescale_did_not_write(capsys):
    write_keys(Path("in.gguf"))
    write_keys(Path("other.gguf"))
    Path("folder").mkdir()
    os.symlink("in.gguf", "link.gguf")
    os.symlink("nothing.gguf", "dangling.gguf")
    ask = ["in.gguf", "--schedule", "ntk:factor=2"]
    assert "name the output file, or use a dry run" in refused(capsys, *ask)
    for existing in ("in.gguf", "link.gguf", "other.gguf"):
        assert "exists already" in refused(capsys, *ask, "-o", existing)
    assert "cannot write dangling.gguf: it is a link to nothing" in refused(capsys, *ask, "-o", "dangling.gguf")
    assert "cannot write folder, which is a folder" in refused(capsys, *ask, "-o", "folder")
    assert "cannot write none/out.gguf: its folder does not exist" in refused(capsys, *ask, "-o", "none/out.gguf")


def test_an_interrupted_write_leaves_nothing(monkeypatch, here):
    write_keys(Path("in.gguf"))
    with unchanged(here), pytest.raises(KeyboardInterrupt):
        patch_gguf("in.gguf", "out.gguf", "llama3:factor=8", progress=raising(KeyboardInterrupt()))
    monkeypatch.setattr(os, "fsync", raising(OSError(28, "No space left on device")))
    with refusing.untouched(here, r"out\.gguf cannot be written: No space left on device"):
        patch_gguf("in.gguf", "out.gguf", "llama3:factor=8")


def test_without_gguf_py_the_error_names_the_extra(monkeypatch, ran):
    write_keys(Path("in.gguf"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    said = ran("gguf", "in.gguf", "--schedule", "ntk:factor=2", "--dry-run", code=2).err
    assert "pip install 'ropescale[gguf]'" in said


# ---------------------------------------------------------------------------------------------------------
# The command


def test_the_page_says_what_becomes_of_what(ran):
    write_keys(Path("in.gguf"), "llama")
    found = json.loads(ran("gguf", "in.gguf", "--schedule", "llama3:factor=8", "--dry-run", "--json").out)
    assert (found["written"], found["out"], found["length"], found["architecture"]) == (False, None, 2048, "llama")
    assert found["keys"]["llama.context_length"] == [256, 2048] and os.listdir() == ["in.gguf"]
    before, after = found["tensors"]["rope_freqs.weight"]
    assert before is None and after[-1] == 8.0
    captured = ran("gguf", "in.gguf", "-o", "my out.gguf", "--schedule", "yarn", "--factor", "8")
    assert captured.err == ""
    table, _, difference = captured.out.partition("\n\n")
    rows = dict(tuple(map(str.strip, line.strip("| ").split(" | "))) for line in table.splitlines()[2:])
    said = {"file": "in.gguf (llama)", "written to": "my out.gguf", "length": "256 -> 2,048 tokens (x 8)"}
    said |= {"route": "rope.scaling.type yarn", "serve it with": "llama-server -m 'my out.gguf' -c 2048"}
    assert {key: rows[key] for key in said} == said
    assert "+ llama.rope.scaling.factor: 8\n" in difference
    assert "- llama.context_length: 256\n+ llama.context_length: 2048\n" in difference


def test_a_gguf_file_that_appears_meanwhile_is_left(monkeypatch):
    source = write_keys(Path("in.gguf"))
    copy = ropescale.gguf.files.GgufFile._header

    def appearing(*arguments):
        Path("out.gguf").write_text("a thesis")
        return copy(*arguments)

    monkeypatch.setattr(ropescale.gguf.files.GgufFile, "_header", appearing)
    with pytest.raises(CheckpointError, match="File exists"):
        patch_gguf(source, "out.gguf", "ntk:factor=2")
    assert Path("out.gguf").read_text() == "a thesis"
    assert sorted(os.listdir()) == ["in.gguf", "out.gguf"]
