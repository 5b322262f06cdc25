"""Names of schedules that came from files, and schedules that are the same in other words."""

import json
from dataclasses import dataclass

import pytest
from configurations import write_checkpoint, write_files

from ropescale import Frequencies
from ropescale.errors import ScheduleError
from ropescale.inspecting import compare
from ropescale.output.formatting import definitions, names_of
from ropescale.schedules.specs import file_of, is_same, parse, repeated

CONFIG = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64, "rope_theta": 10000.0}
LONG = "yarn:factor=7.59891234567,beta_fast=15.26461234567,beta_slow=0.58661234567,truncate=false"


@pytest.fixture
def model(tmp_path):
    return str(write_checkpoint(tmp_path, CONFIG))


def test_a_file_gives_its_name_and_as_much_of_its_path_as_is_needed():
    assert names_of({"a": "runs/x/factors.json", "b": "other.json"}) == {"a": "factors.json", "b": "other.json"}
    assert names_of({"a": "x/f.json", "b": "y/f.json"}) == {"a": "x/f.json", "b": "y/f.json"}
    assert names_of({"a": "f.json", "b": "/p/q/f.json"}) == {"a": "f.json", "b": "q/f.json"}
    assert names_of({"a": "f.json", "b": "f.json"}) == {}  # one file with other fields: neither is its schedule
    assert definitions({"yarn:factor=2": "f.json"}) == "* f.json: `yarn:factor=2`"
    assert definitions({}) == ""


SPELLINGS = [
    ("yarn:factor=2.0", "yarn:factor=2", True),
    ("yarn:factor=2,extrapolation_factor=1", "yarn:factor=2", True),
    ("yarn:beta_slow=1,factor=2", "yarn:factor=2", True),
    ('{"name": "yarn", "factor": 2}', "yarn:factor=2", True),
    ("resonance:over=yarn,factor=2,beta_fast=32", "resonance:over=yarn,factor=2", True),
    ("yarn:factor=2,beta_fast=16", "yarn:factor=2", False),
    ("linear:factor=2", "ntk:factor=2", False),
    ('{"full_attention": "yarn:factor=2"}', "yarn:factor=2", False),
]


@pytest.mark.parametrize(("one", "other", "same"), SPELLINGS)
def test_spellings_of_one_schedule_are_one(one, other, same):
    assert is_same(parse(one), parse(other)) is same
    assert bool(repeated([parse(one), parse(other)])) is same


def test_two_classes_of_one_name_are_two_schedules():
    one, other = (dataclass(type("Mine", (), {"__call__": lambda self, rope, length: None})) for _ in range(2))
    assert is_same(parse(one), parse(one()))
    assert not is_same(parse(one), parse(other))


def test_a_spec_knows_the_file_that_it_came_from(tmp_path):
    file = tmp_path / "f.json"
    file.write_text('{"name": "yarn", "factor": 2}')
    assert file_of(parse(str(file))) == file_of(parse(f"{file}:beta_fast=16")) == str(file)
    assert file_of(parse("yarn:factor=2")) == ""
    assert repeated([parse("yarn:factor=2"), parse(str(file))]) == [f"{file} is the same schedule as yarn:factor=2"]


def test_inspect_says_which_schedules_are_the_same_and_shows_one(model):
    found = compare(model, ["yarn:factor=2", "yarn:factor=2.0", "ntk:factor=2", "yarn:factor=2,extrapolation_factor=1"])
    assert list(found.inspections) == ["yarn:factor=2", "ntk:factor=2"]
    twice, same = found.notes
    assert twice == "yarn:factor=2 is given twice; it is shown once"
    assert same == "yarn:factor=2,extrapolation_factor=1 is the same schedule as yarn:factor=2; it is shown once"


def test_inspect_says_which_of_several_schedules_contradicts_the_target_length(model):
    with pytest.raises(ScheduleError, match=r"^yarn:factor=8: factor 8 x trained length 64 = 512, but"):
        compare(model, ["ntk:factor=2", "yarn:factor=8"], target_length=128)
    with pytest.raises(ScheduleError, match=r"^factor 8 x trained length"):
        compare(model, ["yarn:factor=8"], target_length=128)


def test_inspect_calls_schedules_of_files_by_their_names(model, tmp_path, ran):
    contents = {f"{n}.json": json.dumps({"name": "yarn", "factor": 2, "beta_fast": 30 + n / 7}) for n in (1, 2)}
    files = [str(write_files(tmp_path, contents) / name) for name in contents]
    out = ran("inspect", model, "--schedule", files[0], "--schedule", files[1]).out
    header = next(line for line in out.splitlines() if line.startswith("| pair "))
    assert [cell.strip() for cell in header.split("|")[5:7]] == [*contents]
    assert out.count("* 1.json: `yarn:factor=2,beta_fast=30.14") == 1
    assert [each.label for each in compare(model, files).layers["all"]] == [*contents]


class Slowed:
    """A schedule whose fields are unknown."""

    def __init__(self, factor, called):
        self._factor, self.name = factor, called

    def __call__(self, rope, length):
        return Frequencies([f / self._factor for f in rope.inv_freq()])


def test_two_objects_of_one_class_are_two_schedules(model):
    assert list(compare(model, [Slowed(2, "half"), Slowed(4, "quarter")]).inspections) == ["half", "quarter"]
    with pytest.raises(ScheduleError, match=r"slow: another schedule has the same name"):
        compare(model, [Slowed(2, "slow"), Slowed(4, "slow")])
