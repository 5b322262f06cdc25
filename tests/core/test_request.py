"""A request is made once, and everything that takes one takes the same fields."""

from dataclasses import fields
from itertools import chain

import click
import pytest
from configurations import LLAMA

import ropescale
from ropescale.cli import options
from ropescale.cli.main import COMMANDS, LazyGroup
from ropescale.errors import ConfigError, DataError, ScheduleError
from ropescale.evals.backends.schedules import Schedules, requested
from ropescale.planning.plan import refuse_unused
from ropescale.request import Request, RequestOptions

FIELDS = [field.name for field in fields(Request) if field.name != "spec"]
LAZY = LazyGroup()


def test_each_field_has_one_option_of_the_command_line() -> None:
    assert [*RequestOptions.__annotations__] == FIELDS
    named = " ".join(chain.from_iterable(options.request_sections().values())).split()
    assert sorted(FIELDS) == sorted(named)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_takes_a_schedule_takes_all_of_them(name: str) -> None:
    command = LAZY.get_command(click.Context(LAZY), name)
    assert command is not None
    parameters = {str(parameter.name): parameter for parameter in command.params}
    others = {"recommend", "verify"}  # further candidates for one target; the one spec that a model should have
    if parameters.keys() & {"schedule", "schedules"} and name not in others:
        assert set(FIELDS) <= parameters.keys()
        assert len({parameters[name].help for name in FIELDS}) == len(FIELDS)  # type: ignore[attr-defined]


def test_a_command_gives_its_options_as_a_request() -> None:
    given: list[Schedules] = []

    @options.sectioned_command("measure", options.request_sections("schedules baseline"))
    def command(**values: object) -> None:
        patching = {name: values[name] for name in FIELDS if name != "factor"}
        given.append(requested(values["schedules"], values["baseline"], values["factor"], patching))

    words = "--schedule yarn --target-length 128k --set beta_fast=16 --layers all --on-top --baseline linear".split()
    command.main(words, standalone_mode=False)
    asked = Request.of("yarn", target_length="128k", overrides={"beta_fast": "16"}, layers="all", on_top=True)
    assert Request.of("yarn", **given[0].patching) == asked
    assert [*given[0].given, given[0].baseline] == ["yarn", "linear"]
    assert asked.given() == ["target_length", "overrides", "layers", "on_top"]


def test_lengths_are_read_where_the_request_is_made() -> None:
    request = Request.of("yarn", target_length="128k", original_length="1.5k", freeze_at=4096)
    assert (request.target_length, request.original_length, request.freeze_at) == (131072, 1536, 4096)
    for field in ("target_length", "original_length", "freeze_at"):
        with pytest.raises(DataError, match="'long' is not a length"):
            Request.of("yarn", **{field: "long"})


def test_what_contradicts_itself_or_has_no_meaning_names_its_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        Request("yarn", replace_scaling=True, on_top=True)
    assert caught.value.fields == ("replace_scaling", "on_top")
    refuse_unused(Request(None, layers="all"), ["layers"])
    with pytest.raises(ScheduleError, match="freeze_at needs a schedule") as refused:
        refuse_unused(Request(None, freeze_at=4), ["layers"])
    assert refused.value.fields == ("freeze_at",)


def test_fields_may_be_numbers_in_python_and_anything_but_a_mapping_is_refused() -> None:
    asked = {"beta_fast": 16, "truncate": False}
    texts = {"beta_fast": "16", "truncate": "false"}
    tables = [ropescale.frequencies(LLAMA, "yarn:factor=4", overrides=each) for each in (asked, texts)]  # type: ignore[arg-type]
    assert tables[0] == tables[1] != ropescale.frequencies(LLAMA, "yarn:factor=4")
    with pytest.raises(ConfigError, match="overrides must be a mapping"):
        ropescale.frequencies(LLAMA, "yarn:factor=4", overrides=["beta_fast=16"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="layers must be a name such as full or all"):
        Request.of("yarn", layers=["all"])  # type: ignore[typeddict-item]
