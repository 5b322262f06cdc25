"""``ropescale verify MODEL``: proof that the intended frequencies are the ones transformers uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import json_option, markdown, model_argument, print_json

if TYPE_CHECKING:
    from ..verifying import Verification


@click.command("verify")
@model_argument()
@json_option()
def command(model: str, as_json: bool) -> None:
    """Prove that the intended table is live in every layer of MODEL (a folder or a Hub id).

    Builds the model's rotary modules as stock transformers would, without reading weights, and compares their
    frequencies, and the cos and sin they produce, with ropescale.json, or with what config.json asks for.
    Exits with 1 and the reason when they differ.
    """
    from ..errors import VerificationError
    from ..verifying import examine

    report = examine(model)
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json(report.to_dict())
    elif report.modules:
        click.echo(_page(report))
    if not report.live:
        raise VerificationError("; ".join(report.problems))


def _page(report: Verification) -> str:
    rows = [
        [m.name, m.layer_type, str(m.pairs), m.dtype, f"{m.attention_scale:.6g}", f"{m.difference:.1e}"]
        for m in report.modules
    ]
    table = markdown(["module", "layers", "pairs", "dtype", "attention scale", "difference"], rows, right=(2, 4, 5))
    verdict = f"live: {'yes' if report.live else 'NO'} ({report.intended}, at {report.length} tokens)"
    return f"{table}\n\n{verdict}"
