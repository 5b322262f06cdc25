"""``--config run.yaml``: a command's options from a file, and the file that repeats a result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from ..errors import DataError
from ..schedules.base import suggest
from .completion import Place, SpecText
from .options import option

NAME = "run.yaml"
_CODE = "a file cannot run code; give it on the command line"
_ELSEWHERE = "only-on-the-command-line"
"""The key in a file that lists the options that only the command line may give."""
_LARGEST = 1 << 20
_NOT_WRITTEN = ("config", "out", "fresh", "force", "as_json", "verbose", "dry_run", "trust_remote_code")
"""Parameters that do not affect the measurement, or that a file may not contain."""


def _take(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Uses a file's options as defaults of the command, as text like on the command line.

    Raises:
        DataError: the file is invalid, names an unknown option, or would run code.
    """
    known = {key_of(each): each for each in ctx.command.params if each.name not in ("config", "debug")}
    defaults: dict[str, object] = {}
    for key, value in {} if path is None else _read(path).items():
        if key == _ELSEWHERE and isinstance(value, list):
            ctx.meta[_ELSEWHERE] = {path: [known[name] for name in map(str, value) if name in known]}
            continue
        each = known.get(str(key))
        if each is None:
            advice = suggest(str(key), known, f"see `{ctx.command_path} -h`")
            raise DataError(f"{path}: {ctx.command.name} has no option {str(key)!r}; {advice}", "config")
        if each.name == "trust_remote_code":
            raise DataError(f"{path} sets {key}; {_CODE}", "config")
        if value is None:
            continue
        if isinstance(value, Mapping):
            value = [f"{name}={_text(path, key, inner)}" for name, inner in value.items()]
        texts = [_text(path, key, inner) for inner in (value if isinstance(value, list) else [value])]
        if isinstance(each.type, SpecText) and any(map(_names_code, texts)):
            raise DataError(f"{path} names a schedule by its class ({', '.join(texts)}); {_CODE}", "config")
        if (isinstance(each, click.Option) and each.multiple) or each.nargs == -1:
            defaults[str(each.name)] = texts
        else:
            is_set = isinstance(value, bool) and isinstance(each, click.Option) and each.is_flag
            defaults[str(each.name)] = value if is_set else ",".join(texts)
    ctx.default_map = defaults or ctx.default_map


def refuse_incomplete(ctx: click.Context) -> None:
    """Refuses a file of a run if the command line lacks an option that only it may give.

    Raises:
        DataError: an option is missing; names all missing ones.
    """
    for path, params in ctx.meta.get(_ELSEWHERE, {}).items():
        missing = [each for each in params if ctx.get_parameter_source(each.name) is not ParameterSource.COMMANDLINE]
        if missing:
            flags = ", ".join(f"--{key_of(each)}" for each in missing)
            raise DataError(f"the run of {path} had {flags}, which only the command line may give; add them", "config")


def _text(path: str | None, key: object, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"  # YAML parses these words as values
    if not isinstance(value, (str, int, float)):
        raise DataError(f"{path}: {key} is neither text nor a number, nor a list of them", "config")
    return str(value)


CONFIG = option(
    "--config",
    "FILE",
    f"Options from a YAML file, such as a result's {NAME}; the command line takes precedence.",
    Place(),
    is_eager=True,
    expose_value=False,
    callback=_take,
)
"""Defaults of the other options, from a YAML file."""


def _read(path: str) -> Mapping[object, object]:
    import yaml

    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise DataError(f"{path} is too large for an options file", "config")
        found = yaml.safe_load(content)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", "config") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not YAML: {' '.join(str(error).split())}", "config") from None
    if not isinstance(found, Mapping):
        raise DataError(f"{path} contains no options; write NAME: VALUE", "config")
    return found


def key_of(param: click.Parameter) -> str:
    """Returns the name of a parameter in the file: an option's own without its dashes."""
    return max(param.opts, key=len).lstrip("-")


def _names_code(spec: str) -> bool:
    """Whether a schedule is a class of a Python file or module."""
    return re.search(r"::|\.py\b", spec) is not None


def run_file() -> dict[str, bytes]:
    """Returns the file that repeats the running command, by name; nothing if no command runs.

    It contains the given options, from the command line or a file, and the names of those that only the command line
    may give.
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
    head = f"# ropescale {ctx.command.name} --config {NAME}, in the folder where it ran\n"
    if left_out:
        given[_ELSEWHERE] = left_out
    body = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    return {NAME: (head + body).encode("utf-8", "backslashreplace")}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def _is_secret(value: object) -> bool:
    """Whether a value, or one of several, is an address with a user name, a password or a query."""
    texts = value if isinstance(value, (list, tuple)) else [value]
    return any("://" in str(text) and (urlsplit(str(text)).username or urlsplit(str(text)).query) for text in texts)
