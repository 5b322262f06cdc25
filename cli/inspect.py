"""``ropescale inspect MODEL``: the rotary geometry, and what a schedule would do to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..output.formatting import abbreviated, brief, cut, definitions, markdown
from .completion import Place
from .options import (
    MODEL_SECTION,
    REQUEST_SECTIONS,
    in_sections,
    model_argument,
    print_result,
    request_options,
    shared_options,
    tell,
)

if TYPE_CHECKING:
    from ..inspecting import Geometry, Inspection, Inspections, Pair

_SECTIONS = {**REQUEST_SECTIONS, **MODEL_SECTION, "The result": "plot as_json"}


@click.command("inspect", cls=in_sections(_SECTIONS))
@model_argument()
@request_options("many")
@click.option("--plot", type=Place(), metavar="FILE", help="Draw wavelength and turns per pair (png, svg or pdf).")
@shared_options("revision", "as_json")
def command(model: str, schedules: tuple[str, ...], plot: str | None, as_json: bool, **options: Any) -> None:
    """Show the rotary geometry of MODEL (a folder or a Hub id; of an adapter, its base) per layer type.

    For every pair: the wavelength in tokens, the turns inside the trained length (of layers that see a window, inside
    the window), and with --schedule what it would become; several schedules stand side by side. No weights are read.
    The options of a schedule are those of `ropescale patch`; of several schedules each takes those that it has.
    """
    from ..inspecting import compare, inspect

    many = len(schedules) > 1
    found = compare(model, schedules, **options) if many else inspect(model, *schedules, **options)
    tell(note=found.notes, warning=found.warnings)
    if plot is not None:
        _draw(found, plot)
    print_result(as_json, found.to_dict, lambda: "\n\n".join(_pages(found)), plot)


def _draw(found: Inspection | Inspections, path: str) -> None:
    from ..inspecting import Inspections
    from ..inspecting.drawing import draw_comparison, draw_geometry
    from ..output.plotting import save

    compared = isinstance(found, Inspections)
    save(draw_comparison(found.layers) if compared else draw_geometry(found.geometries), path)


def _pages(found: Inspection | Inspections) -> list[str]:
    from ..inspecting import Inspections

    if isinstance(found, Inspections):
        return [_compared(each) for each in found.layers.values()]
    return [_page(each) for each in found.geometries]


def _page(geometry: Geometry) -> str:
    rows = _summary(geometry)
    if geometry.frequencies:
        rows += [
            ["schedule", str(geometry.schedule)],
            ["length it is shown for", f"{geometry.target_length} tokens"],
            ["attention scale", f"{geometry.frequencies.attention_scale:.6g}"],
        ]
    return f"{_heading(geometry)}{markdown(['geometry', 'value'], rows)}\n\n{_pairs(geometry)}"


def _compared(geometries: Sequence[Geometry]) -> str:
    """Returns the page of a layer type under several schedules: what is common, each schedule, each pair."""
    first, changed = geometries[0], [each for each in geometries if each.schedule]
    common = f"{_heading(first)}{markdown(['geometry', 'value'], _summary(first))}"
    if not changed:
        return f"{common}\n\n{_pairs(first)}"
    header = ["schedule", "length it is shown for", "attention scale", "its pairs"]
    schedules = markdown(header, [_of_schedule(each) for each in changed], right=[2])
    named = definitions({str(each.schedule): each.name for each in changed if each.name})
    schedules = "\n\n".join([schedules, *named])
    return f"{common}\n\n{schedules}\n\nHow many times slower each pair turns:\n\n{_divisors(first, changed)}"


def _of_schedule(geometry: Geometry) -> list[str]:
    scale = geometry.frequencies.attention_scale if geometry.frequencies else 1.0
    kinds = Counter(str(pair.kind) for pair in geometry.pairs())
    pairs = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return [
        cut(geometry.name or str(geometry.schedule), 100),
        f"{geometry.target_length} tokens",
        f"{scale:.6g}",
        pairs,
    ]


def _divisors(first: Geometry, changed: Sequence[Geometry]) -> str:
    """Returns a row per pair with its divisor under each schedule."""
    named = abbreviated([each.name or str(each.schedule) for each in changed], 40)
    header = ["pair", "wavelength", "turns", "full turn", *named]
    columns = [[_number(pair.divisor or 0.0) for pair in each.pairs()] for each in changed]
    rows = [[*_before(pair), *divisors] for pair, *divisors in zip(first.pairs(), *columns)]
    return markdown(header, rows, right=[0, 1, 2, *range(4, len(header))])


def _heading(geometry: Geometry) -> str:
    return "" if geometry.layer_type == "all" else f"## {geometry.layer_type}\n\n"


def _summary(geometry: Geometry) -> list[list[str]]:
    rope = geometry.rope
    return [
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
    if pair.new_wavelength is None or pair.divisor is None:
        return _before(pair)
    return [*_before(pair), _number(pair.new_wavelength), _number(pair.divisor), str(pair.kind)]


def _before(pair: Pair) -> list[str]:
    return [
        str(pair.pair),
        _number(pair.wavelength),
        _number(pair.turns),
        "yes" if pair.completes_a_turn else "NEVER",
    ]


def _number(value: float) -> str:
    """Returns six significant digits, whole above a hundred thousand, without an exponent."""
    if math.isnan(value) or math.isinf(value):
        return "-" if math.isnan(value) else "inf"
    return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
