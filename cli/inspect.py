"""``ropescale inspect MODEL``: the rotary geometry, before and after a schedule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..output.formatting import Page, brief, cut, definitions, grid
from .options import Sections, model_argument, option, print_result, request_sections, sectioned_command, tell

if TYPE_CHECKING:
    from ..inspecting import Geometry, Inspection, Inspections

_SECTIONS: Sections = {
    **request_sections("schedules"),
    "The model": ["revision"],
    "The result": [option("--plot", "FILE", "Draw wavelength and slowdown per pair (png, svg or pdf)."), "as_json"],
}


@sectioned_command("inspect", _SECTIONS, model_argument())
def command(model: str, schedules: tuple[str, ...], plot: str | None, as_json: bool, **options: Any) -> None:
    """Show the rotary geometry of MODEL (a folder or a Hub id; for an adapter, of its base) per layer type.

    \b
    Examples:
      ropescale inspect ./llama
      ropescale inspect ./llama --schedule yarn --schedule ntk --target-length 32k

    For every pair, the table has the wavelength in tokens, the turns inside the trained length (or the attention
    window), and with --schedule the slowdown; several schedules are shown side by side. No weights are read. The
    options of a schedule are those of `ropescale patch`; with several schedules, each takes the options that it has.
    """
    from ..inspecting import compare, inspect
    from ..inspecting.drawing import draw
    from ..output.plotting import save

    inspection = compare(model, schedules, **options) if len(schedules) > 1 else inspect(model, *schedules, **options)
    layers = inspection.layers
    tell(note=inspection.notes, warning=inspection.warnings)
    if plot is not None:
        save(draw(layers), plot)
    print_result(as_json, inspection.to_dict(), _text(inspection, layers.values()), plot)


def _text(inspection: Inspection | Inspections, layers: Iterable[Sequence[Geometry]]) -> Page:
    """Returns the model's lengths, and the page of each layer type."""
    cells = [[name, f"{each.tokens:,} tokens", each.key] for name, each in inspection.lengths.rows()]
    return [grid(["length", "tokens", "from"], cells), *chain.from_iterable(map(_page, layers))]


def _page(geometries: Sequence[Geometry]) -> Page:
    """Returns a layer type's page under one schedule or several: common values, schedules and pairs."""
    first = geometries[0]
    changed = [each for each in geometries if each.frequencies]
    page: Page = [] if first.layer_type == "all" else [f"## {first.layer_type}"]
    page.append(grid(["geometry", "value"], _summary(first)))
    names = [each.name or str(each.schedule) for each in changed]
    if changed:
        rows = []
        for name, each in zip(names, changed, strict=True):
            kinds = Counter(str(pair.kind) for pair in each.pairs())
            scale = each.frequencies.attention_scale if each.frequencies else 1.0
            pairs = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            rows.append([cut(name, 100), f"{each.target_length:,} tokens", f"{scale:.6g}", pairs])
        page.append(grid(["schedule", "target length", "attention scale", "its pairs"], rows, right=[2]))
        page.append(definitions({str(each.schedule): each.name for each in changed if each.name}))
        page.append("Slowdown of each pair:")
    header = ["pair", "wavelength", "turns", "full turn", *(cut(name, 40) for name in names)]
    columns = []
    for each in changed:
        columns.append([_number(pair.divisor or 0.0) for pair in each.pairs()])
    rows = [
        [
            str(pair.pair),
            _number(pair.wavelength),
            _number(pair.turns),
            "yes" if pair.completes_a_turn else "NEVER",
            *divisors,
        ]
        for pair, *divisors in zip(first.pairs(), *columns)
    ]
    page.append(grid(header, rows, right=[0, 1, 2, *range(4, len(header))]))
    return page


def _summary(geometry: Geometry) -> list[list[str]]:
    rope = geometry.rope
    unturned = geometry.unturned()
    scaling = "none"
    if geometry.scaling:  # the keys on one line, lists by their length
        shown = []
        for key, value in geometry.scaling.items():
            short = f"{len(value)} values" if isinstance(value, list) else brief(value)
            shown += [] if key in ("rope_type", "rope_theta") else [f"{cut(key, 60)}={short}"]
        scaling = cut(f"{geometry.scaling['rope_type']}: {', '.join(shown)}", 500)
    since = f", from pair {unturned[0]}" if unturned else ""
    return [
        ["head dim", str(rope.head_dim)],
        ["rotary dim", f"{rope.rotary_dim} ({rope.pairs} pairs)"],
        ["rope_theta", f"{rope.theta:,g}" if rope.theta < 1e6 else f"{rope.theta:g}"],
        # The model may be trained with the configuration's scaling, so the length before it is not the trained length.
        ["original length" if geometry.scaling else "trained length", f"{rope.original_length:,} tokens"],
        ["max_position_embeddings", str(rope.max_length)],
        *([["attention window", f"{geometry.window:,} tokens back"]] if geometry.window else []),
        ["config's scaling", scaling],
        ["pairs without a full turn in training", f"{len(unturned)} of {rope.pairs}{since}"],
    ]


def _number(value: float) -> str:
    """Formats a number with six significant digits and no exponent, or as a whole number from a hundred thousand on."""
    if math.isnan(value) or math.isinf(value):
        return "-" if math.isnan(value) else "inf"
    return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
