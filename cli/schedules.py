"""``ropescale schedules [NAME]``: the schedules and their fields."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NotRequired, TypedDict

import click

from ..formatting import markdown, value_text
from .options import json_option, print_json

if TYPE_CHECKING:
    from ..schedules.fields import Parameter


class Field(TypedDict):
    """A field: its type, whether it is required, and its default, if any."""

    name: str
    type: str
    required: bool
    default: NotRequired[object]


class Described(TypedDict):
    """A schedule as plain data."""

    name: str
    summary: str
    fields: list[Field]
    length_dependent: bool
    by_length: str
    paper: str | None
    documentation: str


@click.command("schedules")
@click.argument("name", required=False)
@json_option()
def command(name: str | None, as_json: bool) -> None:
    """List the schedules with their fields, defaults and papers; with NAME, explain one.

    NAME may be one of your own: path/to/file.py::Class, or package.module::Class.
    """
    from ..schedules import lookup, names, specs

    if name and ("::" in name or name.endswith(".py")):
        described = [describe(name, specs.one(specs.parse(name), name).make)]
    else:
        described = [describe(each, lookup(each)) for each in ([name] if name else names())]
    if as_json:
        print_json(described[0] if name else described)
    elif name:
        click.echo(_page(described[0]))
    else:
        click.echo(_table(described))


def describe(name: str, make: object) -> Described:
    """Describes a schedule: a class, or a user's object or function."""
    from ..schedules.base import length_dependent
    from ..schedules.fields import parameters

    documentation = inspect.cleandoc(getattr(make, "__doc__", None) or "")
    return {
        "name": name,
        "summary": documentation.partition("\n")[0],
        "fields": [_field(each) for each in parameters(make).values()],
        "length_dependent": length_dependent(make),
        "by_length": _by_length(make),
        "paper": getattr(make, "paper", None),
        "documentation": documentation,
    }


def _field(parameter: Parameter) -> Field:
    kind = parameter.hint.__name__ if isinstance(parameter.hint, type) else str(parameter.hint)
    described: Field = {"name": parameter.name, "type": kind, "required": parameter.required}
    if parameter.required:
        return described
    simple = parameter.default is None or isinstance(parameter.default, (bool, int, float, str))
    return {**described, "default": parameter.default if simple else str(parameter.default)}


def _by_length(make: object) -> str:
    """Returns whether the frequencies depend on the length: ``may`` if the fields decide."""
    from ..schedules.base import Varying, length_dependent

    if isinstance(getattr(make, "__dict__", {}).get("length_dependent"), Varying):
        return "may"
    return "yes" if length_dependent(make) else "no"


def _table(described: list[Described]) -> str:
    rows = [
        [each["name"], ", ".join(map(_assignment, each["fields"])) or "-", each["by_length"], each["paper"] or "-"]
        for each in described
    ]
    return markdown(["schedule", "fields", "by length", "paper"], rows)


def _assignment(field: Field) -> str:
    """Returns ``factor`` for a required field, ``beta_fast=32`` for an optional one."""
    return f"{field['name']}={value_text(field['default'])}" if "default" in field else field["name"]


def _page(described: Described) -> str:
    rows = [
        [field["name"], field["type"], value_text(field["default"]) if "default" in field else "required"]
        for field in described["fields"]
    ]
    parts = [f"# {described['name']}", *filter(None, [described["documentation"]])]
    if rows:
        parts.append(markdown(["field", "type", "default"], rows))
    parts.append(f"By length: {described['by_length']}")
    if described["paper"]:
        parts.append(f"Paper: {described['paper']}")
    return "\n\n".join(parts)
