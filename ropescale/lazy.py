"""Imports public names of a package on first use (PEP 562), so that importing the package stays fast."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def names_of(
    package: str, homes: Mapping[str, str], subpackages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns ``__getattr__``, ``__dir__`` and ``__all__`` for a package.

    Args:
        package: the package's ``__name__``.
        homes: the module of each public name, relative to the package.
        subpackages: the names of public subpackages.
    """

    def get(name: str) -> Any:
        if name in subpackages:
            return import_module(f".{name}", package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{homes[name]}", package), name)

    public = sorted({*homes, *subpackages})
    return get, lambda: sorted({*vars(sys.modules[package]), *public}), public
