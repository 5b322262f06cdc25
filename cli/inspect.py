"""``ropescale inspect MODEL``: the rotary geometry, before and after a schedule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..output.formatting import abbreviated, brief, cut, definitions, markdown
from .completion import Place
from .options import Sections, model_argument, option, print_result, request_sections, sectioned_command, tell

if TYPE_CHECKING:
    from ..inspecting import Geometry, Pair

_SECTIONS: Sections = {
    **request_sections("schedules"),
    "The model": ["revision"],
    "The result": [
        option("--plot", "FILE", "Draw wavelength and turns per pair (png, svg or pdf).", Place()),
        "as_json",
    ],
}


@sectioned_command("inspect", _SECTIONS, model_argument())
def command(model: str, schedules: tuple[str, ...], plot: str | None, as_json: bool, **options: Any) -> None:
    """Show the rotary geometry of MODEL (a folder or a Hub id; for an adapter, of its base) per layer type.

    For every pair: the wavelength in tokens, the turns inside the trained length (or the attention window), and with
    --schedule the new values; several schedules are shown side by side. No weights are read. The options of a schedule
    are those of `ropescale patch`; each of several schedules takes the options that it has.
    """
    from ..inspecting import compare, inspect
    from ..inspecting.drawing import by_layer, draw
    from ..output.plotting import save

    if len(schedules) > 1:
        inspection = compare(model, schedules, **options)
        layers = inspection.layers
        pages = map(_compared, layers.values())
    else:
        inspection = inspect(model, *schedules, **options)
        layers, pages = by_layer(inspection.geometries), map(_page, inspection.geometries)
    tell(note=inspection.notes, warning=inspection.warnings)
    if plot is not None:
        save(draw(layers), plot)
    print_result(as_json, inspection.to_dict, lambda: "\n\n".join(pages), plot)


def _page(geometry: Geometry) -> str:
    rows = _summary(geometry)
    if geometry.frequencies:
        rows += [
            ["schedule", str(geometry.schedule)],
            ["target length", f"{geometry.target_length} tokens"],
            ["attention scale", f"{geometry.frequencies.attention_scale:.6g}"],
        ]
    return f"{_heading(geometry)}{markdown(['geometry', 'value'], rows)}\n\n{_pairs(geometry)}"


def _compared(geometries: Sequence[Geometry]) -> str:
    """Returns a layer type's page under several schedules: common values, schedules and pairs."""
    first, changed = geometries[0], [each for each in geometries if each.schedule]
    common = f"{_heading(first)}{markdown(['geometry', 'value'], _summary(first))}"
    if not changed:
        return f"{common}\n\n{_pairs(first)}"
    rows = []
    for each in changed:
        kinds = Counter(str(pair.kind) for pair in each.pairs())
        scale = each.frequencies.attention_scale if each.frequencies else 1.0
        pairs = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        name = cut(each.name or str(each.schedule), 100)
        rows.append([name, f"{each.target_length} tokens", f"{scale:.6g}", pairs])
    schedules = markdown(["schedule", "target length", "attention scale", "its pairs"], rows, right=[2])
    named = definitions({str(each.schedule): each.name for each in changed if each.name})
    header = ["pair", "wavelength", "turns", "full turn"]
    header += abbreviated([each.name or str(each.schedule) for each in changed], 40)
    columns = [[_number(pair.divisor or 0.0) for pair in each.pairs()] for each in changed]
    rows = [[*_before(pair), *divisors] for pair, *divisors in zip(first.pairs(), *columns)]
    divisors = markdown(header, rows, right=[0, 1, 2, *range(4, len(header))])
    return "\n\n".join([common, schedules, *named, "Slowdown of each pair:", divisors])


def _heading(geometry: Geometry) -> str:
    return "" if geometry.layer_type == "all" else f"## {geometry.layer_type}\n\n"


def _summary(geometry: Geometry) -> list[list[str]]:
    rope, unturned, scaling = geometry.rope, geometry.unturned(), "none"
    if geometry.scaling:  # the keys on one line, lists by their length
        shown = []
        for key, value in geometry.scaling.items():
            short = cut(value, 60) if isinstance(value, str) else brief(value)
            short = f"{len(value)} values" if isinstance(value, list) else short
            shown += [] if key in ("rope_type", "rope_theta") else [f"{cut(key, 60)}={short}"]
        scaling = cut(f"{geometry.scaling['rope_type']}: {', '.join(shown)}", 500)
    since = f", from pair {unturned[0]}" if unturned else ""
    return [
        ["head dim", str(rope.head_dim)],
        ["rotary dim", f"{rope.rotary_dim} ({rope.pairs} pairs)"],
        ["rope_theta", f"{rope.theta:,g}" if rope.theta < 1e6 else f"{rope.theta:g}"],
        # The model may be trained with the configuration's scaling, so the length before it is not the trained length.
        ["original length" if geometry.scaling else "trained length", f"{rope.original_length} tokens"],
        ["max_position_embeddings", str(rope.max_length)],
        *([["attention window", f"{geometry.window} tokens back"]] if geometry.window else []),
        ["config's scaling", scaling],
        ["pairs without a full turn in training", f"{len(unturned)} of {rope.pairs}{since}"],
    ]


def _pairs(geometry: Geometry) -> str:
    header, rows = ["pair", "wavelength", "turns", "full turn"], []
    header += ["new wavelength", "divisor", "class"] if geometry.frequencies else []
    for pair in geometry.pairs():
        new = [] if pair.new_wavelength is None else [_number(pair.new_wavelength), _number(pair.divisor or 0.0)]
        rows.append([*_before(pair), *new, *([str(pair.kind)] if new else [])])
    return markdown(header, rows, right=[0, 1, 2, 4, 5])


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
