"""``--config run.yaml``: a command's options from a file, and the file that repeats a result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import click

from ..errors import DataError
from ..files import local_path, read_given
from ..schedules.base import suggest
from .options import GIVEN, Place, SpecText, option

NAME = "run.yaml"
_NOT_WRITTEN = ("config", "as_json", "verbose", "dry_run")
"""Parameters that do not affect the measurement."""

_NOT_READ = {
    "out": "it chooses what is written",
    "force": "it replaces results",
    "fresh": "it discards stored results",
    "servers": "the text and your key are sent there",
    "trust_remote_code": "it runs code",
}
"""Parameters that a file from somebody else must not set, and why; they are not written either."""

_LARGEST = 2**18
"""The size limit of a file of options, in bytes; the parser takes seconds for that."""


def _take(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Makes the options in a file the command's defaults; their values are text, as on the command line.

    Raises:
        DataError: the file is invalid, or names an unknown option.
    """
    known = {key_of(each): each for each in ctx.command.params if each.name != "config"}
    for key, value in {} if path is None else _read(path).items():
        each = known.get(str(key))
        if each is None:
            advice = suggest(str(key), known, f"see `{ctx.command_path} -h`")
            raise DataError(f"{path}: {ctx.command.name} has no option {str(key)!r}; {advice}", "config")
        if why := _NOT_READ.get(str(each.name)):
            raise DataError(f"{path}: a file cannot set {key}, because {why}; set it on the command line", "config")
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(inner, str) for inner in values):
            raise DataError(f"{path}: {key} is neither text nor a number, nor a list of them", "config")
        if {"", "~", "null"} & {value.lower() for value in values}:
            raise DataError(f"{path}: {key} has no value; give one, or leave the line out", "config")
        several = isinstance(each, click.Option) and each.multiple
        ctx.default_map = {**(ctx.default_map or {}), str(each.name): values if several else ",".join(values)}


CONFIG = option(
    "--config",
    "FILE",
    f"Options from a YAML file, such as a result's {NAME}; the command line takes precedence.",
    Place(),
    is_eager=True,
    expose_value=False,
    callback=_take,
)
"""The option that reads defaults of the other options from a YAML file."""


def _read(path: str) -> Mapping[object, object]:
    import yaml

    class Plain(yaml.BaseLoader):
        def compose_node(self, *place: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few of them repeat a text without end
                raise yaml.YAMLError("an alias, which this file may not have")
            return super().compose_node(*place)

    try:
        content = yaml.load(read_given(path, "config", _LARGEST), Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not YAML: {' '.join(str(error).split())}", "config") from None
    if not isinstance(content, Mapping):
        raise DataError(f"{path} contains no options; write NAME: VALUE", "config")
    return content


def key_of(param: click.Parameter) -> str:
    """Returns a parameter's name in the file; for an option, its long name without the dashes."""
    return max(param.opts, key=len).lstrip("-")


def run_file() -> dict[str, bytes]:
    """Returns a dict from file name to content, with the file that repeats the running command.

    The dict is empty if no command is running. The file contains the given options, from the command line or a file,
    with absolute paths. It omits options with an address that may contain a secret (a user name or a query).
    """
    import yaml

    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return {}
    given = {}
    for each in ctx.command.params:
        source, value = ctx.get_parameter_source(str(each.name)), ctx.params.get(str(each.name))
        if source in GIVEN and each.name not in (*_NOT_WRITTEN, *_NOT_READ):
            if isinstance(value, Mapping):
                value = [f"{name}={inner}" for name, inner in value.items()]
            values = [_absolute(inner, each) for inner in (value if isinstance(value, (list, tuple)) else [value])]
            addresses = [urlsplit(str(inner)) for inner in values if "://" in str(inner)]
            if not any(address.username or address.query for address in addresses):
                given[key_of(each)] = values if isinstance(value, (list, tuple)) else values[0]
    head = f"# ropescale {ctx.command.name} --config {NAME}\n"
    body = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    return {NAME: (head + body).encode("utf-8", "backslashreplace")}


def _absolute(value: object, param: click.Parameter) -> object:
    """Returns the absolute path of an existing file or folder, and any other value as text, a number or a boolean."""
    if isinstance(param.type, (Place, SpecText)) and os.path.exists(local_path(str(value))):
        return str(local_path(str(value)).absolute())
    return value if isinstance(value, (str, int, float, bool)) else str(value)
