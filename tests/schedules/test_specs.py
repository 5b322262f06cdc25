"""The schedule spec: names, fields, files, JSON, and the options of the command line."""

import json
import sys
from pathlib import Path

import pytest

from ropescale import schedules as sch
from ropescale.errors import ScheduleError
from ropescale.rope import Rope

ROPE = Rope(8, 10_000.0, 32_768)

OWN = '''
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Optional

from ropescale import Frequencies, Rope, Schedule


@dataclass(frozen=True)
class Half:
    """Slow only the slow half of the pairs."""

    factor: float = 2.0
    mode: Literal["slow", "fast"] = "slow"
    note: str = ""
    pairs: Optional[list[list[int]]] = None
    weights: tuple[float, ...] = ()
    loud: bool = False
    source: Path = Path(".")
    count: int = 1

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq = rope.inv_freq()
        inv_freq[len(inv_freq) // 2:] = [f / self.factor for f in inv_freq[len(inv_freq) // 2:]]
        return Frequencies(inv_freq)


class Plain:
    def __init__(self, factor: float, quick: bool = False):
        self.factor, self.quick = factor, quick

    def __call__(self, rope, length):
        return Frequencies([f / self.factor for f in rope.inv_freq()])


class Around:
    def __init__(self, held: Schedule, times: float = 1):
        self.held, self.times = held, times

    def __call__(self, rope, length):
        return self.held(rope, length)


def doubled(rope, length):
    return Frequencies([2 * f for f in rope.inv_freq()])


class Broken:
    factor = 2


number = 3
'''


@pytest.fixture(params=["", "from __future__ import annotations\n"], ids=["types", "strings"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's file, written with and without postponed annotations."""
    path = tmp_path / "own.py"
    path.write_text(request.param + OWN)
    return path


# ---------------------------------------------------------------------------------------------- text and JSON


SPECS = [
    ("base", sch.Base()),
    ("as-is", sch.AsIs()),
    ("yarn:factor=8", sch.Yarn(8)),
    ("yarn:factor=8,beta_fast=16,truncate=false", sch.Yarn(8, beta_fast=16, truncate=False)),
    ("yarn: factor = 8 , truncate = TRUE", sch.Yarn(8)),
    ("yarn:factor=8,attention_factor=none", sch.Yarn(8)),
    ("table:factors=[1,1.5,2,4]", sch.Table(factors=(1, 1.5, 2, 4))),
    ("longrope:short_factor=[1, 1],long_factor=[1,4],factor=4", sch.LongRope((1, 1), (1, 4), 4)),
    ("resonance:over=yarn,factor=8,beta_fast=16", sch.Resonance(sch.Yarn(8, beta_fast=16))),
    ('{"name": "resonance", "over": {"name": "yarn", "factor": 8}}', sch.Resonance(sch.Yarn(8))),
    ('{"name": "yarn", "factor": 8}', sch.Yarn(8)),
    ('{"name": "resonance", "over": "yarn", "factor": 8}', sch.Resonance(sch.Yarn(8))),
    ('{"name": "table", "factors": [1, 2], "attention_factor": null}', sch.Table(factors=(1, 2))),
]


@pytest.mark.parametrize(("text", "schedule"), SPECS)
def test_a_spec_names_a_schedule_and_its_fields(text, schedule):
    assert sch.parse(text).build() == schedule


def test_python_objects_pass_through():
    schedule = sch.Yarn(8)
    assert sch.parse(schedule).build() is schedule
    assert sch.resolve(schedule, ROPE) is schedule
    assert sch.parse(sch.Yarn).with_text({"factor": "8"}).build() == schedule
    assert sch.parse(sch.Yarn(5)).given["factor"] == sch.parse("resonance:over=yarn,factor=5").given["factor"] == 5
    assert sch.parse(sch.Resonance(sch.Yarn(5))).with_fields(factor=8).build() == sch.Resonance(sch.Yarn(8))
    spec = sch.parse("yarn:factor=8")
    assert sch.parse(spec) is spec

    def mine(rope: Rope, length: int) -> sch.Frequencies:
        return sch.Frequencies(rope.inv_freq())

    assert sch.parse(mine).build() is mine


BAD_SYNTAX = [
    ("", "the schedule is empty; give a name, e.g. yarn:factor=8"),
    ("yran:factor=8", "no schedule named 'yran'; did you mean 'yarn'?"),
    ("YaRN factor=4, beta_fast=16", "did you mean 'yarn'?"),
    ("yarn:4", "yarn: '4' is not key=value; write yarn:factor=..."),
    ("yarn:factor=8,factor=9", "yarn: factor is given twice; remove one"),
    ("yarn:factr=8", "yarn has no field 'factr'; did you mean 'factor'?"),
    ("base:factor=8", "base has no field 'factor'; it has none"),
    ("yarn:factor=abc", "yarn: factor must be a number, not 'abc'"),
    ("yarn:factor=nan", "yarn: factor must be a number whose absolute value is below 1e+100, not nan"),
    ("giraffe:truncate=2.5", "giraffe: truncate must be a whole number, not 2.5"),
    ("table:factors=1", "table: factors must be a list of numbers, one per pair, as in [1,1.5,2], not 1"),
    ("resonance", "resonance needs over; give it as resonance:over=..."),
    ("resonance:factor=8", "resonance has no field 'factor'; it has over"),
    ("{", "the schedule is not valid JSON (line 1"),
    ('{"name": "yarn", "factor": NaN}', "the schedule contains NaN, which is not a finite number"),
    ('{"name": "yarn", "factor": "8"}', "yarn: factor must be a number, not '8'"),
    ('{"name": 8}', "a schedule's name is a string, not 8"),
    ('{"factor": 8}', 'a schedule in JSON needs a name: {"name": "yarn", "factor": 8}'),
    ('{"type": "yarn", "factor": 8, "original_max_position_embeddings": 4}', "yarn:factor=8, which leaves out orig"),
    ('{"rope_type": "default", "rope_theta": 5e5}', "not a schedule; write base, which leaves out rope_theta"),
    ('{"type": "su", "long_factor": [2], "short_factor": [1]}', "write longrope:long_factor=[2],short_factor=[1]"),
    ("resonance:over=[yarn:factor=8]", "over takes the name of a schedule, not '[yarn:factor=8]'; give its fields"),
    ('{"name": "resonance", "over": {"full_attention": "yarn"}}', "over needs one schedule, not one per layer type"),
]


@pytest.mark.parametrize(("text", "message"), BAD_SYNTAX)
def test_bad_syntax_is_one_clear_sentence(text, message):
    with pytest.raises(ScheduleError) as caught:
        sch.parse(text).build()
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("thing", [None, 8, 2.5, ["yarn"], b"yarn"])
def test_what_is_no_schedule_at_all_is_refused(thing):
    with pytest.raises(ScheduleError, match="a name, a JSON object or a callable"):
        sch.parse(thing)


# -------------------------------------------------------------------------------------------------- own files


def test_a_class_in_a_file_is_a_schedule_with_fields_cast_by_their_annotations(own):
    text = "factor=4,mode=fast,note=a b,pairs=[[1,2],[3]],weights=[0.5,1],loud=true,source=~/x,count=3.0"
    schedule = sch.parse(f"{own}::Half:{text}").build()
    assert vars(schedule) == {
        "factor": 4.0, "mode": "fast", "note": "a b", "pairs": [[1, 2], [3]], "weights": (0.5, 1.0), "loud": True,
        "source": Path("~/x").expanduser(), "count": 3,
    }  # fmt: skip
    assert isinstance(schedule.count, int)  # type: ignore[attr-defined]
    assert list(sch.compute(schedule, ROPE).inv_freq) == pytest.approx([1.0, 0.1, 0.01 / 4, 0.001 / 4], rel=1e-15)
    spec = sch.parse(f"{own}::Half:factor=4")
    assert (sch.describe(spec.build()), spec.text) == ("Half:factor=4", f"{own}::Half:factor=4")
    assert json.loads(json.dumps(sch.to_dict(spec.build())))["factor"] == 4


def test_a_class_without_dataclass_takes_what_its_constructor_takes(own):
    schedule = sch.parse(f"{own}::Plain:factor=2,quick=true").build()
    assert (schedule.factor, schedule.quick) == (2.0, True)
    assert sch.describe(schedule) == "Plain:factor=2,quick=true"
    assert sch.to_dict(schedule) == {"name": "Plain", "factor": 2.0, "quick": True}
    assert sch.resolve(f"{own}::Plain", ROPE, target_length=131_072).factor == 4.0  # type: ignore[attr-defined]
    with pytest.raises(ScheduleError, match="Plain has no field 'factr'; did you mean 'factor'"):
        sch.parse(f"{own}::Plain:factr=2")


def test_a_function_in_a_file_is_a_schedule_without_fields(own):
    schedule = sch.parse(f"{own}::doubled").build()
    assert list(sch.compute(schedule, ROPE).inv_freq) == [2 * f for f in ROPE.inv_freq()]
    assert sch.describe(schedule) == "doubled"
    with pytest.raises(ScheduleError, match="doubled has no field 'factor'; it has none"):
        sch.parse(f"{own}::doubled:factor=2")


def test_a_schedule_may_hold_another_also_one_from_a_file(own):
    around = sch.parse(f"{own}::Around:held=yarn,factor=8,times=2").build()
    assert (around.held, around.times) == (sch.Yarn(8), 2)
    schedule = sch.parse(f"resonance:over={own}::Half,factor=4").build()
    assert schedule.over.factor == 4.0
    assert [round(w, 9) for w in sch.compute(schedule, ROPE).wavelengths] == [6, 63, 2513, 25_133]


def test_a_class_in_an_installed_module_is_a_schedule(own, monkeypatch):
    monkeypatch.syspath_prepend(str(own.parent))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    assert sch.parse("own::Half:factor=4").build().factor == 4.0
    monkeypatch.delitem(sys.modules, "own")
    assert sch.parse("ropescale.schedules::Ntk:factor=4").build() == sch.Ntk(4)


UNUSABLE = [
    ("x = 1\n", "Half", "own.py has no 'Half'; it defines nothing"),
    ("class Half:\n    def __call__(self, rope, length): ...\n", "Hafl", "no 'Hafl'; did you mean 'Half'?"),
    ("def f(:\n", "f", "own.py is not valid Python: invalid syntax (line 1)"),
    ("raise RuntimeError('boom')\n", "f", "own.py raised RuntimeError when it was imported: boom"),
    ("import sys\nsys.exit(3)\n", "f", "own.py raised SystemExit when it was imported: 3"),
    ("import no_such_thing\n", "f", "cannot be imported: no module named 'no_such_thing'; install its dependency"),
    ("class Broken: ...\n", "Broken", "class Broken has no __call__(self, rope, length)"),
]


@pytest.mark.parametrize(("content", "name", "message"), UNUSABLE)
def test_a_file_that_cannot_be_used_is_one_clear_sentence(tmp_path, content, name, message):
    path = tmp_path / "own.py"
    path.write_text(content)
    with pytest.raises(ScheduleError) as caught:
        sch.parse(f"{path}::{name}").build()
    assert message in str(caught.value) and "\n" not in str(caught.value)


NOWHERE = [
    ("{tmp}/missing.py::Half", "missing.py is not a file; give the path of a Python file"),
    ("{tmp}/missing.py", "missing.py names no class; write path/to/file.py::Class"),
    ("no_such_package.module::Half", "no module named 'no_such_package'; install it, or give path/to/file.py::Cla"),
    ("ropescale.schedules::Yran", "ropescale.schedules has no 'Yran'"),
    ("{tmp}/missing.json", "missing.json; give the path of a saved schedule"),
    ("{tmp}/list.json", "list.json contains a JSON list, not an object; a schedule in JSON is {"),
    ("{tmp}/nan.json", "nan.json contains NaN, which is not a finite number"),
]


@pytest.mark.parametrize(("text", "message"), NOWHERE)
def test_a_path_that_leads_nowhere_is_named(tmp_path, text, message):
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "nan.json").write_text('{"name": "table", "factors": [NaN]}')
    with pytest.raises(ScheduleError) as caught:
        sch.parse(text.format(tmp=tmp_path))
    assert message in str(caught.value)


@pytest.mark.parametrize("folder", ["a=b", "a,b", "a b", "a:b"])
def test_a_path_may_hold_the_signs_that_separate_fields(tmp_path, folder):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "own.py").write_text(OWN)
    (tmp_path / folder / "saved.json").write_text('{"name": "yarn", "factor": 8}')
    assert sch.parse(f"{tmp_path}/{folder}/own.py::Half:factor=3").build().factor == 3
    assert sch.parse(f"{tmp_path}/{folder}/saved.json:factor=3").build() == sch.Yarn(3)


def test_a_json_file_holds_any_spec_and_fields_may_follow_it(tmp_path):
    path = tmp_path / "one, two.json"
    path.write_text('{"name": "yarn", "factor": 8}')
    assert sch.parse(str(path)).build() == sch.Yarn(8)
    assert sch.parse(f"{path}:beta_fast=16,factor=4").build() == sch.Yarn(4, beta_fast=16)
    path.write_text('{"full_attention": "yarn:factor=8", "sliding_attention": {"name": "base"}}')
    built = {key: spec.build() for key, spec in sch.parse(str(path)).items()}
    assert built == {"full_attention": sch.Yarn(8), "sliding_attention": sch.Base()}
    with pytest.raises(ScheduleError, match="one schedule, not one per layer type"):
        sch.parse(f"{path}:factor=8")


# ------------------------------------------------------------------------------------- what the options add


def test_the_factor_comes_from_the_spec_the_option_or_the_target_length():
    for schedule in (
        sch.resolve("yarn:factor=8", ROPE),
        sch.resolve("yarn", ROPE, factor=8),
        sch.resolve("yarn", ROPE, target_length=262_144),
        sch.resolve("yarn", ROPE, factor=8, target_length=262_144),
        sch.resolve("yarn:factor=8", ROPE, factor=8),
        sch.resolve("yarn", ROPE, overrides={"factor": "8"}),
        sch.resolve("yarn:factor=4", ROPE, overrides={"factor": "8"}),
        sch.resolve(sch.Yarn(4), ROPE, overrides={"factor": "8"}),
        sch.resolve(sch.Yarn(8), ROPE, factor=8),
    ):
        assert schedule == sch.Yarn(8)
    assert sch.resolve("yarn", ROPE, target_length=32_768) == sch.Yarn(1)
    assert sch.resolve("yarn", ROPE, target_length=40_000) == sch.Yarn(40_000 / 32_768)
    assert sch.resolve("yarn:factor=1.220703125", ROPE, target_length=40_000) == sch.Yarn(1.220703125)


def test_the_factor_reaches_the_schedule_that_another_holds():
    assert sch.resolve("resonance:over=yarn", ROPE, factor=8) == sch.Resonance(sch.Yarn(8))
    assert sch.resolve("resonance:over=yarn", ROPE, target_length=65_536) == sch.Resonance(sch.Yarn(2))
    overridden = sch.resolve("resonance:over=yarn", ROPE, factor=8, overrides={"beta_fast": "16"})
    assert overridden == sch.Resonance(sch.Yarn(8, beta_fast=16))
    with pytest.raises(ScheduleError, match="resonance needs a factor; give it as resonance:over=yarn,factor=8"):
        sch.resolve("resonance:over=yarn", ROPE)
    assert sch.resolve("resonance:over=base", ROPE) == sch.Resonance(sch.Base())


@pytest.mark.parametrize("spec", ["base", "as-is", "abf:rope_theta=1e6", "giraffe:scale_power=0.1", "dynamic-yarn"])
def test_a_target_length_is_fine_where_no_factor_is_asked_for(spec):
    assert sch.resolve(spec, ROPE, target_length=65_536) == sch.parse(spec).build()


def test_a_target_length_fills_a_factor_unless_its_default_asks_for_none():
    longrope = sch.resolve("longrope:short_factor=[1,1,1,1],long_factor=[1,1,2,2]", ROPE, target_length=65_536)
    assert longrope == sch.LongRope((1, 1, 1, 1), (1, 1, 2, 2), factor=2)
    assert sch.resolve("proportional:partial_rotary_factor=0.5", ROPE, target_length=65_536) == sch.Proportional(0.5)


UNFITTING = [
    ("yarn", {}, "yarn needs a factor; give it as yarn:factor=8, or give the target length"),
    ("yarn:beta_fast=16", {}, "give it as yarn:beta_fast=16,factor=8"),
    ("yarn:factor=4", {"target_length": 262_144}, "but the target length is 262144; use the factor 8, or leave one"),
    (sch.Yarn(4), {"target_length": 262_144}, "factor 4 x trained length 32768 = 131072"),
    ("resonance:over=yarn,factor=4", {"target_length": 262_144}, "factor 4 x trained length 32768"),
    ("yarn:factor=4", {"factor": 8}, "yarn:factor=4 has factor 4, but factor 8 is given"),
    ("yarn", {"target_length": 4096}, "the target length 4096 is shorter than the trained length 32768"),
    ("abf:rope_theta=1e6", {"factor": 8}, "abf has no field 'factor'; it has rope_theta"),
    ("yarn", {"factor": 0.5}, "yarn: factor must be 1 or more, not 0.5"),
    ("yarn", {"factor": 8, "overrides": {"beta_fst": "2"}}, "no field 'beta_fst'; did you mean 'beta_fast'?"),
]


@pytest.mark.parametrize(("spec", "options", "message"), UNFITTING)
def test_options_that_do_not_fit_together_say_so(spec, options, message):
    with pytest.raises(ScheduleError) as caught:
        sch.resolve(spec, ROPE, **options)
    assert message in str(caught.value)


# ------------------------------------------------------------------------------------------------ describing


DESCRIBED = [
    (sch.Base(), "base"),
    (sch.Yarn(8), "yarn:factor=8"),
    (sch.Yarn(2.5, truncate=False), "yarn:factor=2.5,truncate=false"),
    (sch.Abf(5e5), "abf:rope_theta=500000"),
    (sch.Table(factors=(1.0, 2.5)), "table:factors=[1,2.5]"),
    (sch.Resonance(sch.Yarn(8)), "resonance:over=yarn,factor=8"),
    (sch.Resonance(sch.Yarn(8, beta_fast=16)), "resonance:over=yarn,factor=8,beta_fast=16"),
]


@pytest.mark.parametrize(("schedule", "line"), DESCRIBED)
def test_a_description_shows_what_is_not_default_and_reads_back(schedule, line):
    assert sch.describe(schedule) == line
    assert sch.parse(line).build() == schedule
    assert sch.parse(line).text == line


def test_long_lists_are_described_by_count_and_fingerprint():
    one, other = (sch.describe(sch.Table(factors=(1.0,) * 31 + (last,))) for last in (2.0, 3.0))
    assert one.startswith("table:factors=[32 numbers, sha256 ")
    assert one != other
    assert len(one) < 60


def test_a_schedule_as_json_lists_what_decides_its_numbers():
    defaults = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "extrapolation_factor": 1.0}
    assert sch.to_dict(sch.Yarn(8)) == {"name": "yarn", "factor": 8} | defaults
    assert sch.to_dict(sch.Resonance(sch.Linear(2))) == {"name": "resonance", "over": "linear", "factor": 2}
    assert sch.to_dict(sch.Table(factors=(1.0, 2.0))) == {"name": "table", "factors": [1.0, 2.0]}
