"""``--config run.yaml``: a command's options from a file, and the file that repeats a result."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from ..errors import CheckpointError, DataError
from ..files import atomic_write, local_path, read_given, set_aside, sha256
from ..output.formatting import brief, suggest
from .options import GIVEN, Place, SpecText, option

NAME = "run.yaml"
_NOT_WRITTEN = ("config", "as_json", "verbose")
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
        values = [_found(inner, each, str(path)) for inner in values]
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
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):  # a few of them repeat a text without end
                raise yaml.YAMLError("an alias, which this file may not have")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            content = super().construct_mapping(node, deep)  # refuses keys that are lists or mappings
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.YAMLError(f"key {brief(key.value)} stands twice; keep one")
                seen.add(key.value)
            return content

    text = read_given(path, "config", _LARGEST)
    try:
        content = yaml.load(text, Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}", "config") from None
    if not isinstance(content, Mapping):
        raise DataError(f"{path} contains no options; write NAME: VALUE", "config")
    return content


def _found(value: str, param: click.Parameter, file: str) -> str:
    """Returns a path that is relative to the file of options as one that this process finds."""
    if isinstance(param.type, Place | SpecText) and value and not os.path.isabs(value):
        path = os.path.join(os.path.dirname(file), value)
        if os.path.exists(path):
            return os.path.normpath(path)
    return value


def key_of(param: click.Parameter) -> str:
    """Returns a parameter's name in the file; for an option, its long name without the dashes."""
    return max(param.opts, key=len).lstrip("-")


def write_run_file(folder: Path) -> None:
    """Writes the file that repeats the running command beside its results, if there are any.

    The file contains the given options, from the command line or a file, with paths relative to the folder where they
    can be. It omits options with an address that may contain a secret (a user name or a query). A file of somebody
    else, or that was edited, is set aside.
    """
    import yaml

    ctx = click.get_current_context(silent=True)
    if ctx is None or not (folder / "results.json").exists():
        return
    given = {}
    for each in ctx.command.params:
        value = ctx.params.get(str(each.name))
        if ctx.get_parameter_source(str(each.name)) in GIVEN and each.name not in (*_NOT_WRITTEN, *_NOT_READ):
            if isinstance(value, Mapping):
                value = [f"{name}={inner}" for name, inner in value.items()]
            items = value if isinstance(value, (list, tuple)) else [value]
            values = [_portable(inner, each, folder) for inner in items]
            addresses = [urlsplit(str(inner)) for inner in values if "://" in str(inner)]
            if not any(address.username or address.query for address in addresses):
                given[key_of(each)] = values if isinstance(value, (list, tuple)) else values[0]
    body = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    content = body.encode("utf-8", "backslashreplace")
    head = f"# ropescale {ctx.command.name} --config {NAME}\n# sha256 of what follows: {sha256(content)}\n"
    path = folder / NAME
    with suppress(CheckpointError, OSError):  # the results are there, and the command can be typed again
        if os.path.lexists(path) and not _is_ours(path):
            set_aside(path)
        atomic_write(path, head.encode() + content)


def _is_ours(path: Path) -> bool:
    """Returns whether a command wrote this file, and nobody edited it."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
        return False
    command, _, rest = path.read_bytes().partition(b"\n")
    digest, _, content = rest.partition(b"\n")
    return command.startswith(b"# ropescale ") and digest == f"# sha256 of what follows: {sha256(content)}".encode()


def _portable(value: object, param: click.Parameter, folder: Path) -> object:
    """Returns the path of an existing file or folder, and any other value as text, a number or a boolean.

    A path is relative to the folder if both are in the same place (their common folder is not the root), so a project
    can be moved as a whole; else it is absolute.
    """
    if isinstance(param.type, (Place, SpecText)) and os.path.exists(local_path(str(value))):
        path = str(local_path(str(value)).absolute())
        base = str(folder.absolute())
        common = os.path.commonpath([path, base])
        return os.path.relpath(path, base) if Path(common).parent != Path(common) else path
    return value if isinstance(value, (str, int, float, bool)) else str(value)
