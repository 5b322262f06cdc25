"""``ropescale schedules [NAME]``: what there is to choose from."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import click

from ..formatting import markdown
from .options import json_option, print_json


@click.command("schedules")
@click.argument("name", required=False)
@json_option()
def command(name: str | None, as_json: bool) -> None:
    """List the schedules with their fields, defaults and papers; with NAME, explain one.

    NAME may be one of your own: path/to/file.py::Class, or package.module::Class.
    """
    from ..schedules import lookup, names

    described = [describe_own(name)] if name and _is_own(name) else []
    described = described or [describe(lookup(each)) for each in ([name] if name else names())]
    if as_json:
        print_json(described[0] if name else described)
    elif name:
        click.echo(_page(described[0]))
    else:
        click.echo(_table(described))


def describe(cls: type[Any]) -> dict[str, Any]:
    """A schedule class as plain data: name, summary, fields, length_dependent, by_length, paper, documentation."""
    documentation = inspect.cleandoc(cls.__doc__ or "")
    return {
        "name": cls.name,
        "summary": documentation.partition("\n")[0],
        "fields": [_field(each) for each in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else [],
        "length_dependent": cls.length_dependent,
        "by_length": _by_length(cls),
        "paper": cls.paper,
        "documentation": documentation,
    }


def _is_own(name: str) -> bool:
    return "::" in name or name.endswith(".py")


def describe_own(name: str) -> dict[str, Any]:
    """A schedule of the user's own as plain data, with the keys of :func:`describe`."""
    from ..schedules import specs

    make = specs.parse(name).make
    documentation = inspect.cleandoc(getattr(make, "__doc__", None) or "")
    follows = bool(getattr(make, "length_dependent", False))
    return {
        "name": name,
        "summary": documentation.partition("\n")[0],
        "fields": [_parameter(each) for each in specs.parameters(make).values()],
        "length_dependent": follows,
        "by_length": "yes" if follows else "no",
        "paper": getattr(make, "paper", None),
        "documentation": documentation,
    }


def _parameter(parameter: Any) -> dict[str, Any]:
    kind = parameter.hint if isinstance(parameter.hint, str) else getattr(parameter.hint, "__name__", parameter.hint)
    described = {"name": parameter.name, "type": str(kind), "required": parameter.required}
    if parameter.required:
        return described
    simple = parameter.default is None or isinstance(parameter.default, (bool, int, float, str))
    return described | {"default": parameter.default if simple else str(parameter.default)}


def _by_length(cls: type[Any]) -> str:
    """Whether the frequencies follow the length: ``may`` where that depends on the fields."""
    from ..schedules.base import Varying

    return "may" if isinstance(vars(cls).get("length_dependent"), Varying) else "yes" if cls.length_dependent else "no"


def _field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """One field: its type as written, and its default where it has one."""
    described: dict[str, Any] = {"name": field.name, "type": str(field.type), "required": False}
    if field.default is not dataclasses.MISSING:
        return described | {"default": field.default}
    if field.default_factory is not dataclasses.MISSING:
        return described | {"default": field.default_factory()}
    return described | {"required": True}


def _table(described: list[dict[str, Any]]) -> str:
    rows = [
        [
            each["name"],
            ", ".join(_assignment(field) for field in each["fields"]) or "-",
            each["by_length"],
            each["paper"] or "-",
        ]
        for each in described
    ]
    return markdown(["schedule", "fields", "by length", "paper"], rows)


def _assignment(field: dict[str, Any]) -> str:
    """``factor`` where it must be given, ``beta_fast=32`` where it may."""
    return field["name"] if field["required"] else f"{field['name']}={_value(field['default'])}"


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _page(described: dict[str, Any]) -> str:
    rows = [
        [field["name"], field["type"], "required" if field["required"] else _value(field["default"])]
        for field in described["fields"]
    ]
    parts = [f"# {described['name']}", *filter(None, [described["documentation"]])]
    if rows:
        parts.append(markdown(["field", "type", "default"], rows))
    parts.append(f"By length: {described['by_length']}")
    if described["paper"]:
        parts.append(f"Paper: {described['paper']}")
    return "\n\n".join(parts)
