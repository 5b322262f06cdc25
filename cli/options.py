"""Parameters that several commands share, and the two ways of printing a result."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from ..errors import RopescaleError

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]


DTYPES = ("auto", "float32", "bfloat16", "float16")
"""What weights can be loaded as; ``auto`` is the checkpoint's own."""

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""How accelerate can spread a model over several devices."""


class Length(click.ParamType):
    """A number of tokens: ``4096``, ``4k``, ``128k``, ``1m`` (k = 1024)."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from ..lengths import parse_length

        try:
            return parse_length(value)
        except RopescaleError as error:
            self.fail(str(error), param, ctx)


class Lengths(click.ParamType):
    """Lengths joined by commas: ``2k,4k,8k``."""

    name = "lengths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ..lengths import parse_lengths

        try:
            return parse_lengths(value)
        except RopescaleError as error:
            self.fail(str(error), param, ctx)


def model_argument() -> Decorator[F]:
    """``MODEL``, a checkpoint's folder or a Hub id."""
    return click.argument("model")


def revision_option() -> Decorator[F]:
    return click.option("--revision", metavar="R", help="Branch, tag or commit of a Hub model.")


def trust_option() -> Decorator[F]:
    return click.option(
        "--trust-remote-code", is_flag=True, help="Run the Python code that MODEL brings, where transformers needs it."
    )


def loading_options() -> Decorator[F]:
    """How weights are loaded: ``dtype``, ``device``, ``revision`` and ``trust_remote_code``."""
    return _together(
        click.option(
            "--dtype", type=click.Choice(DTYPES), help="Default: float32 on the CPU, the checkpoint's on a GPU."
        ),
        click.option("--device", metavar="D", help="Default: the GPU where there is one, else cpu."),
        revision_option(),
        trust_option(),
    )


def bos_option() -> Decorator[F]:
    return click.option("--bos", default="auto", show_default=True, metavar="B", help="auto, yes, no, or a token id.")


def patching_options() -> Decorator[F]:
    """Where measured schedules go: ``layers``, ``replace_scaling`` and ``on_top``."""
    return _together(
        click.option("--layers", default="full", show_default=True, metavar="L", help="full, all, or a layer type."),
        click.option("--replace-scaling", is_flag=True, help="Replace the scaling that the makers put in."),
        click.option("--on-top", is_flag=True, help="Compose with the scaling that the makers put in."),
    )


def _together(*options: Decorator[Any]) -> Decorator[Any]:
    """One decorator for several, whose help keeps their order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def schedule_option(required: bool = False) -> Decorator[F]:
    """``--schedule SPEC``, once."""
    return click.option("--schedule", metavar="SPEC", required=required, help=_SCHEDULE_HELP)


def schedules_option() -> Decorator[F]:
    """``--schedule SPEC``, any number of times; the parameter is called ``schedules``."""
    return click.option(
        "--schedule", "schedules", metavar="SPEC", multiple=True, help=f"{_SCHEDULE_HELP} May be repeated."
    )


_SCHEDULE_HELP = "A schedule: NAME[:key=value,...], FILE.py::Class, factors.json or JSON."


def factor_option() -> Decorator[F]:
    return click.option("--factor", type=float, metavar="F", help="How many times longer; short for factor=F.")


def target_length_option() -> Decorator[F]:
    return click.option(
        "--target-length", type=Length(), metavar="N", help="The context wanted, such as 128k; gives the factor."
    )


def set_option() -> Decorator[F]:
    """``--set key=value``, any number of times; the parameter ``overrides`` is a dict of strings."""
    return click.option(
        "--set", "overrides", metavar="K=V", multiple=True, callback=_pairs, help="A field of the schedule; repeatable."
    )


def _pairs(ctx: click.Context, param: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for key, sign, value in pairs:
        if not (key and sign and value):
            raise click.BadParameter(f"{key + sign + value!r} is not key=value", ctx, param)
    keys = [key for key, _, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise click.BadParameter(f"{key} is set {keys.count(key)} times; set it once", ctx, param)
    return {key: value for key, _, value in pairs}


def json_option() -> Decorator[F]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with every digit.")


def print_json(value: Any) -> None:
    """Prints ``value`` as standard JSON: what is not finite becomes null."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
