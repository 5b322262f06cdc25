"""Several schedules beside each other: each as it is alone, in the table, in JSON and over each other in a picture."""

import json
from functools import partial

import pytest
from configurations import CONFIG as LLAMA, GEMMA3, write_checkpoint
from refusing import one_error

import ropescale
from ropescale.errors import ScheduleError
from ropescale.inspecting import compare

SCHEDULES = ["yarn:factor=8", "ntk:factor=4", "cope"]


@pytest.fixture
def checkpoint(tmp_path):
    return lambda config=LLAMA: str(write_checkpoint(tmp_path, config))


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


WRONG = [
    (["--factor", "4"], "factor is given, but no schedule takes a factor"),
    (["--set", "beta_fast=4"], "none of the given schedules has the field 'beta_fast'"),
    (["--schedule", "yran"], "no schedule named 'yran'; did you mean 'yarn'?"),
    (["--schedule", "yarn"], "factor"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_input_is_one_line(words, sentence, checkpoint, shown):
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
