"""``--config run.yaml``: the options of a command from a file, and the file with which a result repeats itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from ..errors import DataError
from .completion import Place, SpecText

NAME = "run.yaml"
_CODE = "a file starts no code; give it on the command line"
_LARGEST = 1 << 20
_NOT_WRITTEN = ("config", "out", "fresh", "force", "as_json", "verbose", "dry_run", "trust_remote_code")
"""Parameters that do not change what is measured, or that a file may not hold."""


def config_option(command: Any) -> Any:
    """Adds ``--config``: defaults of the other options, from a YAML file."""
    return click.option(
        "--config",
        type=Place(),
        is_eager=True,
        expose_value=False,
        callback=_take,
        metavar="FILE",
        help=f"Options from a YAML file, such as a result's {NAME}; those given here go first.",
    )(command)


def _take(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    if path is not None:
        ctx.default_map = dict(_values(ctx, path))


def _values(ctx: click.Context, path: str) -> Iterator[tuple[str, object]]:
    """Reads a file; yields parameters by name, with the text that the command line would have.

    Raises:
        DataError: it is no such file, names an option that the command does not have, or would run code.
    """
    known = {key_of(each): each for each in ctx.command.params if each.name not in ("config", "debug")}
    for key, value in _read(path).items():
        each = known.get(str(key))
        if each is None:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{path}: {ctx.command.name} has no option {str(key)!r}{hint}", "config")
        if each.name == "trust_remote_code":
            raise DataError(f"{path} says {key}; {_CODE}", "config")
        if value is None:
            continue
        texts = _texts(path, str(key), value)
        if isinstance(each.type, SpecText) and any(map(_names_code, texts)):
            raise DataError(f"{path} names a schedule by its class ({', '.join(texts)}); {_CODE}", "config")
        many = (isinstance(each, click.Option) and each.multiple) or each.nargs == -1
        one = value if isinstance(value, bool) and _is_flag(each) else ",".join(texts)
        yield str(each.name), texts if many else one


def _read(path: str) -> Mapping[object, object]:
    import yaml

    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise DataError(f"{path} is too large for a file of options", "config")
        found = yaml.safe_load(content)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", "config") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not YAML: {' '.join(str(error).split())}", "config") from None
    if not isinstance(found, Mapping):
        raise DataError(f"{path} holds no options; write each as NAME: VALUE", "config")
    return found


def _texts(path: str, key: str, value: object) -> list[str]:
    """Returns the values of an option as the command line would have them; ``{k: v}`` as ``k=v``."""
    if isinstance(value, Mapping):
        value = [f"{name}={_text(path, key, each)}" for name, each in value.items()]
    return [_text(path, key, each) for each in (value if isinstance(value, list) else [value])]


def _text(path: str, key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"  # YAML reads these words so
    if not isinstance(value, (str, int, float)):
        raise DataError(f"{path}: {key} is neither text nor a number, nor a list of them", "config")
    return str(value)


def key_of(param: click.Parameter) -> str:
    """Returns the name of a parameter in the file: an option's own without its dashes."""
    return max(param.opts, key=len).lstrip("-")


def _names_code(spec: str) -> bool:
    """Whether a schedule is a class of a Python file or module."""
    return re.search(r"::|\.py\b", spec) is not None


def _is_flag(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and param.is_flag


def run_file() -> dict[str, bytes]:
    """Returns the file that repeats the command at work, by its name; nothing where none is at work.

    It holds what was given, by the command line or a file, but for what only the command line may hold; a comment says
    what that was.
    """
    import yaml

    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return {}
    given, left_out = {}, []
    for each in ctx.command.params:
        name = str(each.name)
        source = ctx.get_parameter_source(name)
        if source not in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP):
            continue
        value = ctx.params.get(name)
        is_code = isinstance(each.type, SpecText) and _names_code(str(value))
        if name == "trust_remote_code" or is_code or _is_secret(value):
            left_out.append(key_of(each))
        elif name not in _NOT_WRITTEN:
            given[key_of(each)] = _plain(value)
    head = f"# ropescale {ctx.command.name} --config {NAME}\n"
    if left_out:
        head += f"# and, which only the command line may hold: {', '.join(f'--{each}' for each in left_out)}\n"
    body = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    return {NAME: (head + body).encode("utf-8", "backslashreplace")}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def _is_secret(value: object) -> bool:
    """Whether a value, or one of several, is an address with a user's name, a password or a query in it."""
    texts = value if isinstance(value, (list, tuple)) else [value]
    return any("://" in str(text) and (urlsplit(str(text)).username or urlsplit(str(text)).query) for text in texts)
