"""Loads users' schedules: Python code (``path/to/file.py::Class``, ``package.module::Class``) or saved JSON."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ..errors import CheckpointError, ScheduleError
from ..files import Damaged, Data, local_path, parse_json, read_bytes, sha256
from ..output.formatting import brief, cut, listed, suggest

T = TypeVar("T")


def load(name: str) -> object:
    """Returns the class, function or object that ``where::attribute`` names.

    Raises:
        ScheduleError: the file or module does not exist, its import fails, or the attribute is missing.
    """
    where, _, attribute = name.rpartition("::")
    if not where or not attribute:
        raise ScheduleError(f"{name} names no class; write path/to/file.py::Class or package.module::Class")
    is_file = where.endswith(".py") or "/" in where or "\\" in where
    module = _from_file(local_path(where)) if is_file else _guarded(where, lambda: importlib.import_module(where))
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        otherwise = f"it defines {listed(public)}" if public else "it defines nothing"
        raise ScheduleError(f"{where} has no {brief(attribute)}; {suggest(attribute, public, otherwise)}") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ScheduleError(f"{path} is not a file; give the path of a Python file, as in path/to/file.py::Class")
    unique = f"{path.stem}_{sha256(str(path.resolve()).encode())[:8]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise ScheduleError(f"{path} is not a Python file; its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module here if annotations are strings.
    sys.modules[unique] = module
    try:
        _guarded(str(path), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    except ScheduleError:
        del sys.modules[unique]
        raise
    return module


def _guarded(where: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except ModuleNotFoundError as error:
        itself = error.name is not None and f"{where}.".startswith(f"{error.name}.")
        hint = "install it, or give path/to/file.py::Class" if itself else "install its dependency"
        raise ScheduleError(f"{where} cannot be imported: no module named {error.name!r}; {hint}") from error
    except SyntaxError as error:
        raise ScheduleError(f"{where} is not valid Python: {error.msg} (line {error.lineno})") from error
    except (Exception, SystemExit) as error:
        raise ScheduleError(
            f"{where} raised {type(error).__name__} when it was imported: {cut(str(error), 300)}"
        ) from error


def load_json(path: Path) -> Data:
    """Reads the JSON object in a file.

    Raises:
        ScheduleError: the file is missing, unreadable, not JSON, or not an object.
    """
    if not os.path.lexists(path):
        raise ScheduleError(f"no file {path}; give the path of a saved schedule, or a name")
    try:
        return read_json_object(read_bytes(path), str(path))
    except CheckpointError as error:
        raise ScheduleError(str(error)) from None


def read_json_object(content: bytes, where: str) -> Data:
    """Parses a user's JSON object; ``where`` is its name in messages."""
    try:
        return parse_json(content, finite=True)
    except Damaged as error:
        raise ScheduleError(f'{where} {error}; a schedule in JSON is {{"name": "yarn", "factor": 8}}') from None
