"""``inspect``: numbers against closed forms and transformers' own table, warnings, the command."""

import json
import math
from functools import partial

import pytest
from configurations import CONFIG as LLAMA, GEMMA3, in_v5, write_checkpoint
from refusing import one_error

import ropescale
from ropescale import Frequencies, Rope, patch_checkpoint
from ropescale.configs.configuration import Configuration
from ropescale.errors import ScheduleError
from ropescale.inspecting import Geometry, compare, inspect, traps
from ropescale.schedules import Yarn


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a checkpoint folder: ``checkpoint(config, **files)``; file names lose their ``.json``."""

    def write(config=LLAMA, **files):
        return str(write_checkpoint(tmp_path, config, {f"{name}.json": json.dumps(files[name]) for name in files}))

    return write


def test_pairs_carry_the_closed_form():
    pairs = Geometry("all", Rope(64, 10000.0, 256)).pairs()
    assert len(pairs) == 32
    assert pairs[0].wavelength == pytest.approx(2 * math.pi, rel=1e-15)
    assert pairs[16].wavelength == pytest.approx(2 * math.pi * 100, rel=1e-14)  # 10000^(32/64) = 100
    assert pairs[16].turns == pytest.approx(256 / (200 * math.pi), rel=1e-14)
    # 2 pi 10000^(2i/64) > 256  <=>  i > 32 log10(256 / 2 pi) / 4 = 12.88
    assert Geometry("all", Rope(64, 10000.0, 256)).unturned() == list(range(13, 32))


def test_yarn_keeps_blends_and_divides():
    rope = Rope(128, 1e6, 32768)
    pairs = Geometry("all", rope, "yarn:factor=4", Yarn(factor=4)(rope, 131072), 131072).pairs()
    # 128 ln(32768 / 2 pi 32) / 2 ln 1e6 = 23.6, rounded down; 128 ln(32768 / 2 pi) / 2 ln 1e6 = 39.7, rounded up
    assert [p.kind for p in pairs] == ["kept"] * 24 + ["blended"] * 16 + ["divided"] * 24
    assert pairs[63].divisor == pytest.approx(4, rel=1e-14)
    assert pairs[63].new_turns == pytest.approx(pairs[63].turns, rel=1e-14), "x4 slower in x4 more tokens"


def test_stopped_and_faster_pairs_are_called_so():
    rope = Rope(8, 10000.0, 256, rotated_pairs=3)
    table = Frequencies([1.1, 0.1, 0.0, 0.0])
    kinds = [pair.kind for pair in Geometry("all", rope, "table", table, 256).pairs()]
    assert kinds == ["faster", "kept", "stopped", "still"]


LINEAR = {"rope_type": "linear", "factor": 2.0}


TRAPS = [
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {}, "dynamic changes the frequencies with the le"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, {}, "yarn without original_max_position_embeddings"),
    *(({"rope_scaling": LINEAR}, each, said) for each, said in (({}, "already scaled"), ({"ropescale": {}}, ""))),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attn_factor": 1.1}}, {}, "it reads attention_factor"),
    *(({}, {"tokenizer_config": {"model_max_length": limit}}, f"model_max_length is {limit}, below max_position_em")
      for limit in (128, -math.inf)),
    *(({}, {"tokenizer_config": {"model_max_length": limit}}, "") for limit in (True, math.inf, 10**30)),
    *(({}, {"generation_config": {"max_length": n}}, words) for n, words in ((256, "stops generation"), (20, ""))),
    ({"model_type": "llava", "text_config": LLAMA, "rope_scaling": LINEAR}, {}, "top level differs from text_config"),
    ({"sliding_window": 64}, {}, "never attend further back"),
    ({"sliding_window": 128, "use_sliding_window": False}, {}, ""),
    (in_v5(LLAMA, rope_theta=5e5), {}, "transformers 4 ignores"),
    *((in_v5(LLAMA | {"model_type": name}, rope_theta=5e5), {}, "")  # 4 lacks them
      for name in ("qwen3_5_text", "glm_moe_dsa", "flint")),
]  # fmt: skip


@pytest.mark.parametrize(("config", "files", "words"), TRAPS)
def test_a_trap_is_named_and_nothing_else(config, files, words):
    config = config if "rope_parameters" in config else LLAMA | config
    found = " | ".join(traps(Configuration.read(config), {f"{name}.json": it for name, it in files.items()}))
    assert words in found if words else "already scaled" not in found and ("rope_scaling" in config or not found)


def test_what_patching_mends_is_no_trap_under_a_schedule(tmp_path):
    model = write_checkpoint(tmp_path / "model", in_v5(LLAMA, rope_theta=5e5), {"model.safetensors": b""})
    out = patch_checkpoint(model, tmp_path / "out", "yarn:factor=2").folder
    for given, trap in ((inspect(str(model)), 1), (inspect(str(model), "yarn:factor=2"), 0), (inspect(str(out)), 0)):
        assert sum("only rope_parameters" in each for each in given.warnings) == trap


def test_the_command_prints_one_row_per_pair(checkpoint, ran):
    lines = ran("inspect", checkpoint(LLAMA), "--schedule", "yarn:factor=8").out.splitlines()
    assert "| pairs without a full turn in training | 19 of 32, from pair 13 |" in lines
    rows = [line.split() for line in lines if line.startswith("|   ")]
    assert len(rows) == 32
    assert rows[31][1::2] == ["31", "47117.2", "0.00543326", "NEVER", "8"]


ON_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
NTK_AT_512 = 10000 * (4 * 512 / 256 - 3) ** (64 / 62)


DIGITS = [
    (None, ["--schedule", "linear", "--target-length", "1k"], 256, 1024, 10000 ** (-62 / 64) / 4),
    (None, ["--schedule", "dynamic:factor=4", "--freeze-at", "512"], 256, 512, NTK_AT_512 ** (-62 / 64)),
    (None, ["--schedule", "yarn", "--set", "factor=4"], 256, 1024, 10000 ** (-62 / 64) / 4),
    (ON_YARN, [], 256, None, 10000 ** (-62 / 64) / 4),  # as it is
    (ON_YARN, ["--schedule", "linear:factor=8"], 256, 2048, 10000 ** (-62 / 64) / 8),
    (ON_YARN, ["--schedule", "linear:factor=8", "--replace-scaling"], 256, 2048, 10000 ** (-62 / 64) / 8),
    (ON_YARN, ["--schedule", "linear:factor=2", "--on-top"], 1024, 2048, 10000 ** (-62 / 64) / 8),
]


@pytest.mark.parametrize(("scaling", "words", "length", "target", "slowest"), DIGITS)
def test_the_json_has_every_digit_of_what_patch_would_write(checkpoint, ran, scaling, words, length, target, slowest):
    config = LLAMA | ({"max_position_embeddings": 1024, "rope_scaling": scaling} if scaling else {})
    said = ran("inspect", checkpoint(config, tokenizer_config={"model_max_length": 128}), *words, "--json")
    found = json.loads(said.out)
    layer = found["layers"]["all"]
    assert (layer["original_length"], layer["pairs"]) == (length, 32)
    assert layer["table"][31]["new_inv_freq"] == pytest.approx(slowest, rel=1e-9)
    assert target is None or layer["target_length"] == target
    assert (layer["scaling"] or {}).get("rope_type") == (scaling or {}).get("rope_type")
    assert all(warning in said.err for warning in found["warnings"]) and "model_max_length is 128" in said.err


WRONG = [
    *(([*words], words[0]) for words in (["--factor", "4"], ["--set", "factor=4"], ["--on-top"])),
    (["--freeze-at", "512"], "--freeze-at needs a schedule; name one, such as yarn, or leave it out"),
    (["--schedule", "yarn"], "factor"),
    (["--schedule", "yarn:factor=4", "--target-length", "512"], "factor"),
    (["--schedule", "linear:factor=2", "--replace-scaling", "--on-top"], "mutually exclusive"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_input_is_one_line(words, sentence, checkpoint, ran):
    one_error(ran("inspect", checkpoint(LLAMA), *words, code=2).err, sentence)


@pytest.mark.parametrize(("stated", "window"), [(512, 512), (1, 1), (0, None), (True, None), (None, None)])
def test_a_window_is_a_whole_number_of_tokens_or_none(checkpoint, stated, window):
    geometries = inspect(checkpoint(GEMMA3 | {"sliding_window": stated})).geometries
    assert [each.window for each in geometries] == [None, window]


def test_the_turns_of_sliding_layers_are_those_inside_their_window(checkpoint, ran):
    full, sliding = inspect(checkpoint(GEMMA3), "linear", factor=2.0).geometries
    assert (full.layer_type, full.rope.theta, full.schedule is None) == ("full_attention", 1e6, False)
    assert (sliding.layer_type, sliding.rope.theta, sliding.schedule) == ("sliding_attention", 1e4, None)
    assert full.pairs()[1].turns == pytest.approx(8192 * 1e6 ** (-2 / 16) / (2 * math.pi), rel=1e-14)
    turns = [512 * 10000 ** (-i / 8) / (2 * math.pi) for i in range(8)]
    assert [pair.turns for pair in sliding.pairs()] == pytest.approx(turns, rel=1e-14)
    # 10000^(-i/8) 512 / 2 pi < 1  <=>  i > 8 log10(512 / 2 pi) / 4 = 3.82; within 8192 tokens it would be 6.23
    assert (sliding.window, sliding.unturned()) == (512, [4, 5, 6, 7])
    scaled = inspect(checkpoint(GEMMA3), "linear", factor=2.0, layers="all").geometries[1].pairs()[0]
    assert scaled.new_turns == pytest.approx(512 / 2 / (2 * math.pi), rel=1e-14), "no more than the window"
    page = ran("inspect", checkpoint(GEMMA3)).out
    assert "| attention window" in page and "512 tokens back" in page


# --- several schedules beside each other ---


SCHEDULES = ["yarn:factor=8", "ntk:factor=4", "cope"]


@pytest.fixture
def shown(ran):
    return partial(ran, "inspect")


def asked(schedules):
    return [word for schedule in schedules for word in ("--schedule", schedule)]


def cells(page, first):
    """The row of a Markdown table that begins with a cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    return next(row for row in rows if row[0] == first)


def test_the_json_has_every_schedule_with_the_layers_that_it_has_alone(checkpoint, shown):
    folder = checkpoint()
    assert list(compare(folder, SCHEDULES).inspections) == SCHEDULES
    found = json.loads(shown(folder, "--json", *asked(SCHEDULES)).out)
    assert [each["schedule"] for each in found["schedules"]] == SCHEDULES
    for each in found["schedules"]:
        alone = json.loads(shown(folder, "--json", "--schedule", each["schedule"]).out)
        assert (each["layers"], each["warnings"]) == (alone["layers"], alone["warnings"])
        assert set(alone["warnings"]) <= set(found["warnings"])


def test_the_table_has_a_column_of_divisors_per_schedule(checkpoint, shown):
    page = shown(checkpoint(), *asked(SCHEDULES)).out
    assert cells(page, "pair") == ["pair", "wavelength", "turns", "full turn", *SCHEDULES]
    # ntk divides pair i by 4^(2i/(d-2)); cope keeps the first of the 19 pairs that it fades
    assert cells(page, "16")[5] == f"{4 ** (32 / 62):.6g}"
    assert cells(page, "31")[4:] == ["8", "4", "inf"]
    assert cells(page, "13")[6] == "1"
    assert cells(page, "cope")[3] == "14 kept, 16 blended, 1 divided, 1 stopped"
    assert [cells(page, each)[1] for each in SCHEDULES] == ["2,048 tokens", "1,024 tokens", "256 tokens"]


SCALED = LLAMA | {"max_position_embeddings": 512, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
FIELDS = ["--factor", "8", "--set", "beta_fast=16", "--target-length", "2k"]


COLUMNS = [
    (LLAMA, ["yarn:factor=8", "cope", "yarn:factor=8"], [], "pair", ["yarn:factor=8", "cope"]),
    (LLAMA, ["yarn", "linear", "cope"], FIELDS, "pair", ["yarn:factor=8,beta_fast=16", "linear:factor=8", "cope"]),
    (SCALED, ["as-is", "linear:factor=4"], ["--on-top"], "16", ["1", "4"]),
    (GEMMA3, ["yarn:factor=4", "linear:factor=2"], [], "pair", ["yarn:factor=4", "linear:factor=2"]),
]


@pytest.mark.parametrize(("config", "schedules", "words", "row", "wanted"), COLUMNS)
def test_the_columns_are_those_of_the_schedules_as_asked_for(checkpoint, shown, config, schedules, words, row, wanted):
    page, _, sliding = shown(checkpoint(config), *asked(schedules), *words).out.partition("## sliding_attention")
    assert cells(page, row)[4:] == wanted
    assert not sliding or cells(sliding, "pair") == ["pair", "wavelength", "turns", "full turn"]


WRONG_TOGETHER = [
    (["--factor", "4"], "factor is given, but no schedule takes a factor"),
    (["--set", "beta_fast=4"], "none of the given schedules has the field 'beta_fast'"),
    (["--schedule", "yran"], "no schedule named 'yran'; did you mean 'yarn'?"),
    (["--schedule", "yarn"], "factor"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG_TOGETHER)
def test_wrong_input_about_several_is_one_line(words, sentence, checkpoint, shown):
    one_error(shown(checkpoint(), *asked(["cope", "base"]), *words, code=2).err, sentence)
    for function in (compare, ropescale.plot):
        with pytest.raises(ScheduleError, match="no schedule is given"):
            function(checkpoint(), [])


def test_a_scaling_that_is_there_is_one_more_curve_over_the_original_geometry(checkpoint, tmp_path, shown):
    folder = checkpoint()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    ropescale.patch_checkpoint(folder, out := tmp_path.parent / f"{tmp_path.name}-ntk", "ntk:factor=8")
    page = shown(str(out), *asked(["as-is", "linear:factor=8"])).out
    assert cells(page, "pair")[4:] == ["as-is", "linear:factor=8"]
    assert cells(page, "16")[1:6] == ["628.319", "0.407437", "NEVER", f"{8 ** (32 / 62):.6g}", "8"]
