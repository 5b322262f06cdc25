"""Versions of ropescale's environment for error reports: ``ropescale --version``."""

from __future__ import annotations

import platform
from importlib import metadata

from .. import __version__

LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "huggingface_hub", "numpy", "click")
EXTRAS = ("matplotlib", "gguf", "jinja2", "plotly", "peft")


def described() -> str:
    """Returns the versions of ropescale, Python, the system and the libraries, without importing these."""
    extras = [found for name in EXTRAS if (found := _version(name))]
    lines = [
        f"ropescale {__version__}",
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}",
        ", ".join(_version(name) or f"{name} is not installed" for name in LIBRARIES),
        f"extras: {', '.join(extras) or 'none'}",
    ]
    return "\n".join(lines)


def _version(name: str) -> str:
    """Returns a library's name and version; empty if it is not installed."""
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return ""
