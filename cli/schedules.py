"""``ropescale schedules [NAME]``: lists the schedules and their fields."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import click

from ..files import Data
from ..output.formatting import Page, cut, grid, value_text
from .options import SpecText, print_json, sectioned_command, show

if TYPE_CHECKING:
    from ..schedules.fields import Parameter


@sectioned_command("schedules", {"The result": ["as_json"]}, click.Argument(["name"], required=False, type=SpecText()))
def command(name: str | None, as_json: bool) -> None:
    """List the schedules with their effect, required fields and paper. With NAME, explain that schedule and its fields.

    \b
    Examples:
      ropescale schedules
      ropescale schedules yarn

    NAME may be your own schedule: path/to/file.py::Class, or package.module::Class.
    """
    from ..schedules import lookup, names, specs

    if name and ("::" in name or name.endswith(".py")):
        described = [describe(name, specs.one(specs.parse(name), name).make)]
    else:
        known = [name] if name else names()
        described = [describe(each, lookup(each)) for each in known]
    if as_json:
        print_json(described[0] if name else described)
    elif name:
        show(_page(described[0]))
    else:
        rows = []
        for each in described:
            needed = ", ".join(field["name"] for field in each["fields"] if field["required"])
            cited = re.search(r"arXiv:[\d.]+|^\w+ \d{4}(?=,|$)", each["paper"])  # or author and year
            rows.append([each["name"], each["does"], needed or "-", cited[0] if cited else "-"])
        show([grid(["schedule", "effect", "needs", "paper"], rows)])


def describe(name: str, make: object) -> dict[str, Any]:
    """Describes a schedule: a class, or a user's object or function."""
    from ..schedules.base import length_dependent
    from ..schedules.fields import parameters

    documentation = inspect.cleandoc(getattr(make, "__doc__", None) or "")
    summary = documentation.partition("\n")[0]
    return {
        "name": name,
        "does": getattr(make, "does", "") or cut(summary, 34),
        "summary": summary,
        "fields": [_field(each) for each in parameters(make).values()],
        "length_dependent": length_dependent(make),
        "paper": getattr(make, "paper", None),
        "documentation": documentation,
    }


def _field(parameter: Parameter) -> Data:
    kind = parameter.hint.__name__ if isinstance(parameter.hint, type) else str(parameter.hint)
    described = {"name": parameter.name, "type": kind, "required": parameter.required}
    if parameter.required:
        return described
    simple = parameter.default is None or isinstance(parameter.default, (bool, int, float, str))
    return {**described, "default": parameter.default if simple else str(parameter.default)}


def _page(described: dict[str, Any]) -> Page:
    rows = [
        [field["name"], field["type"], value_text(field["default"]) if "default" in field else "required"]
        for field in described["fields"]
    ]
    table = grid(["field", "type", "default"], rows) if rows else ""
    paper = f"Paper: {described['paper']}" if described["paper"] else ""
    length = "The frequencies may change with the length." if described["length_dependent"] else ""
    return [f"# {described['name']}", *described["documentation"].split("\n\n"), table, length, paper]
