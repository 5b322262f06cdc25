"""Types of parameters that a shell can complete: paths, and schedules by name and field."""

from __future__ import annotations

import re

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem


class Place(click.ParamType):
    """A file, a folder or a Hub id, completed as a path."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leaves completion to the shell."""
        return [CompletionItem(incomplete, type="file")]


class SpecText(click.ParamType):
    """A schedule's spec, completed by name, by field, or as a path."""

    name = "schedule"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the spec; refuses a class of a Python file or module if an options file names it."""
        of_file = ctx and param and ctx.get_parameter_source(str(param.name)) is ParameterSource.DEFAULT_MAP
        if of_file and re.search(r"::|\.py\b", value):
            self.fail(f"{value!r} is code, which a file cannot run; give it on the command line", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Completes schedule names; after ``NAME:`` the schedule's fields; otherwise paths."""
        from ..schedules import lookup, names
        from ..schedules.fields import parameters

        name, colon, fields = incomplete.partition(":")
        if colon and name in names():
            before, comma, last = fields.rpartition(",")
            given = [field.partition("=")[0] for field in before.split(",")]
            left = [field for field in parameters(lookup(name)) if field.startswith(last) and field not in given]
            return [CompletionItem(f"{name}:{before}{comma}{field}=") for field in left]
        known = [CompletionItem(each, help=lookup(each).does) for each in names() if each.startswith(incomplete)]
        return known or [CompletionItem(incomplete, type="file")]
