"""``ropescale inspect MODEL``: the rotary geometry, and what a schedule would do to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..formatting import brief, cut, markdown
from .completion import Place
from .options import (
    MODEL_SECTION,
    REQUEST_SECTIONS,
    json_option,
    model_argument,
    print_json,
    request_options,
    revision_option,
    show,
    tell,
)
from .sections import in_sections

if TYPE_CHECKING:
    from ..inspecting import Geometry, Pair

_SECTIONS = {**REQUEST_SECTIONS, **MODEL_SECTION, "The result": "plot as_json"}


@click.command("inspect", cls=in_sections(_SECTIONS))
@model_argument()
@request_options()
@click.option("--plot", type=Place(), metavar="FILE", help="Draw wavelength and turns per pair (png, svg or pdf).")
@revision_option()
@json_option()
def command(model: str, schedule: str | None, plot: str | None, as_json: bool, **options: Any) -> None:
    """Show the rotary geometry of MODEL (a folder or a Hub id; of an adapter, its base) per layer type.

    For every pair: the wavelength in tokens, the turns inside the trained length (of layers that see a window, inside
    the window), and with --schedule what it would become. No weights are read. The options of a schedule are those of
    `ropescale patch`.
    """
    from ..inspecting import inspect

    found = inspect(model, schedule, **options)
    tell(warning=found.warnings)
    if plot is not None:
        from ..plotting import plot_geometry

        plot_geometry(found.geometries, plot)
    if as_json:
        print_json(found.to_dict())
    else:
        show("\n\n".join(_page(each) for each in found.geometries))


def _page(geometry: Geometry) -> str:
    heading = "" if geometry.layer_type == "all" else f"## {geometry.layer_type}\n\n"
    return f"{heading}{markdown(['geometry', 'value'], _summary(geometry))}\n\n{_pairs(geometry)}"


def _summary(geometry: Geometry) -> list[list[str]]:
    rope = geometry.rope
    rows = [
        ["head dim", str(rope.head_dim)],
        ["rotary dim", f"{rope.rotary_dim} ({rope.pairs} pairs)"],
        ["rope_theta", f"{rope.theta:,g}" if rope.theta < 1e6 else f"{rope.theta:g}"],
        # Scaling that is in the configuration may have been trained, so the length before it is not the trained one.
        ["original length" if geometry.scaling else "trained length", f"{rope.original_length} tokens"],
        ["max_position_embeddings", str(rope.max_length)],
        *([["these layers see", f"{geometry.window} tokens back"]] if geometry.window else []),
        ["scaling in the config", _scaling(geometry.scaling)],
        ["pairs without a full turn in training", _unturned(geometry)],
    ]
    if geometry.frequencies:
        rows += [
            ["schedule", str(geometry.schedule)],
            ["length it is shown for", f"{geometry.target_length} tokens"],
            ["attention scale", f"{geometry.frequencies.attention_scale:.6g}"],
        ]
    return rows


def _scaling(scaling: Mapping[str, object] | None) -> str:
    """Returns the scaling's keys on one line; a list by its length."""
    if not scaling:
        return "none"
    fields = {key: value for key, value in scaling.items() if key not in ("rope_type", "rope_theta")}
    shown = [f"{cut(k, 60)}={_value(v)}" for k, v in fields.items()]
    return cut(f"{scaling['rope_type']}: {', '.join(shown)}", 500)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values"
    return cut(value, 60) if isinstance(value, str) else brief(value)


def _unturned(geometry: Geometry) -> str:
    pairs = geometry.unturned()
    return f"{len(pairs)} of {geometry.rope.pairs}" + (f", from pair {pairs[0]}" if pairs else "")


def _pairs(geometry: Geometry) -> str:
    header = ["pair", "wavelength", "turns", "full turn"]
    if geometry.frequencies:
        header += ["new wavelength", "divisor", "class"]
    return markdown(header, [_row(pair) for pair in geometry.pairs()], right=[0, 1, 2, 4, 5])


def _row(pair: Pair) -> list[str]:
    row = [str(pair.pair), _number(pair.wavelength), _number(pair.turns), "yes" if pair.completes_a_turn else "NEVER"]
    if pair.new_wavelength is None or pair.divisor is None:
        return row
    return [*row, _number(pair.new_wavelength), _number(pair.divisor), str(pair.kind)]


def _number(value: float) -> str:
    """Returns six significant digits, whole above a hundred thousand, without an exponent."""
    if math.isnan(value) or math.isinf(value):
        return "-" if math.isnan(value) else "inf"
    return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
