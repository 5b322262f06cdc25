"""``ropescale verify MODEL``: verifies that transformers uses the intended frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from ..output.formatting import Page, grid
from .options import Sections, flag, model_argument, option, print_json, refuse_given, sectioned_command, show, tell

if TYPE_CHECKING:
    from ..evals.backends.server_verifying import ServedVerification
    from ..verifying.decoding import Stretch
    from ..verifying.verification import Verification

_SECTIONS: Sections = {
    "What it should be": [
        option("--schedule", "SPEC", "Compare with this schedule, in place of the record."),
        option("--like", "CHECKPOINT", "Compare with the frequencies of this folder or Hub id (or --schedule on it)."),
    ],
    "Decoding": [
        flag("--generate", "Load the weights, and compare cached decoding with full passes."),
        option("--length lengths", "N", "A length to compare at; may be repeated.", multiple=True),
    ],
    "A server": ["servers served_name timeout"],
    "The model": ["revision trust_remote_code dtype device"],
    "The result": ["as_json"],
}


@sectioned_command("verify", _SECTIONS, model_argument())
def command(model: str, generate: bool, lengths: tuple[int, ...], as_json: bool, **options: Any) -> None:
    """Verify that every layer of MODEL (a folder or a Hub id) uses the intended table.

    \b
    Examples:
      ropescale verify qwen3-128k --generate
      ropescale verify qwen3-128k --server http://localhost:8000

    For an adapter (PEFT), the command compares its base with the schedule that the adapter was trained with.

    Builds the model's rotary modules as stock transformers would, without reading weights, and compares their
    frequencies, cos and sin, and the softmax scale of MLA models, with ropescale.json. Without this record, it compares
    them with config.json, which does not show that a schedule was lost: --schedule or --like does. Exits with 1 and the
    reason if they differ.

    "live" refers only to the frequencies. A separate line reports limits below the target length of MODEL (the
    tokenizer's model_max_length, max_position_embeddings), also with exit code 1; to raise them, run
    `ropescale patch MODEL --schedule as-is [--target-length N]`. Known or minor limits are warnings.

    With --generate, it also loads the weights, lets transformers' generate() follow random tokens around half the
    trained length, the trained length, and the extended length (or each --length), and compares the logits with those
    of forward passes over the full text. With fixed frequencies the logits must be equal up to rounding, or the
    command exits with 1. With frequencies that change with the length (dynamic, longrope with two lists), the logits
    differ in stock transformers: the command prints a warning with numbers and exits with 0; see "verdict" in the JSON.

    With --server URL, it compares the server's log-probabilities of a text beyond the trained length (--length N) with
    stock transformers on MODEL, with and without its schedule. --dtype float32 declares a float32 server; by default
    half-precision rounding is tolerated, unless only one of the two models agrees up to float32 rounding. For a GGUF
    file of few bits, MODEL is rounded, too, to see what that explains. A draft whose tokens the server rejects there is
    warned of.
    """
    from ..adapters import find_loadable
    from ..errors import DataError, VerificationError
    from ..schedules.specs import parse

    urls = options.pop("servers")
    names = options.pop("served_name")
    timeout = options.pop("timeout")
    find_loadable(model, options["revision"], weights=False)  # what is mistyped is told before torch is imported
    if options["like"]:
        find_loadable(options["like"], weights=False)
    if options["schedule"]:
        parse(options["schedule"])
    if urls:
        from ..evals.backends.server import Server
        from ..evals.backends.server_verifying import verify_served
        from ..evals.progress import Notes

        refuse_given("does not apply to a server; leave it out", "server", "schedule", "like")
        del options["schedule"], options["like"]
        if generate or max(map(len, (urls, names, lengths))) > 1:
            raise DataError(
                "verify one server at a time, at one length, without generate", "server", "lengths", "generate"
            )
        server = Server(urls[0], name=names[0] if names else None, timeout=timeout)
        server.client.report_to(Notes(shown=True))
        report = verify_served(model, server, length=lengths[0] if lengths else None, **options)
        page = _served_page(report)
    else:
        from ..verifying.examining import examine

        report = examine(model, generate=generate, lengths=lengths, say=lambda text: tell(note=[text]), **options)
        tell(warning=report.warnings)
        page = _page(report)
    if as_json:
        print_json(report.to_dict())
    elif page:
        show(page)
    if report.failure:
        raise VerificationError(report.failure)


def _served_page(report: ServedVerification) -> Page:
    if isnan(report.beyond):
        return []
    where = f"{report.length - report.trained:,} tokens past the trained {report.trained:,}"
    within = f"{report.within:.3f} nats per token within the trained length"
    beyond = f"{report.beyond:.3f} beyond"
    levels = f"the server's loss is {within}, and {beyond}"
    if report.stock is None or report.unscaled is None:
        weaker = "This does not prove that the schedule is live; without one, the loss would rise steeply there."
        return [f"{levels} ({where}). {weaker}"]
    rows = [
        ["stock transformers on the folder", f"{report.stock:.2g}", f"{report.tolerance:.2g}"],
        ["the folder without its schedule", f"{report.unscaled:.2g}", f"{report.unscaled_tolerance:.2g}"],
    ]
    table = grid(["the server against", "mean difference in nats", "rounding explains"], rows, right=(1, 2))
    weights = "" if report.bits is None else f", weights of {report.bits:.1f} bits"
    scope = f"Over {where} ({report.dtype}{weights}); {levels}."
    return [f"{report.verdict} ({report.url})", table, scope]


def _page(report: Verification) -> Page:
    """Returns the verdict and a table, of decoding if it was compared, else of the modules; empty without modules."""
    if not report.modules:
        return []
    page: Page = [report.verdict]
    if report.generation:
        page = [f"{report.verdict}.\n{_decoded(report)}", *_decoding(report.generation)]
    else:
        rows = [
            [m.name, m.layer_type, str(m.pairs), m.dtype, f"{m.attention_scale:.6g}", f"{m.difference:.1e}"]
            for m in report.modules
        ]
        header = ["module", "layers", "pairs", "dtype", "attention scale", "difference"]
        page.append(grid(header, rows, right=(2, 4, 5)))
        if report.live:
            page.append("These tables were compared; no weights were read (--generate does).")
    if report.limits:
        page.insert(1, f"limits below this length: {'; '.join(report.limits)}")
    if report.softmax_factor is not None:
        page.append(f"softmax scale: x{report.softmax_factor:.6g} (MLA)")
    if report.base:
        page.append(f"base: {report.base}")
    return page


def _decoded(report: Verification) -> str:
    """Describes the lengths at which decoding was compared."""
    groups: dict[str, list[str]] = {}
    for stretch in report.generation:
        groups.setdefault(stretch.verdict, []).append(f"{(stretch.first + stretch.last) // 2:,}")
    compared = "; ".join(f"{verdict} around {', '.join(lengths)} tokens" for verdict, lengths in groups.items())
    return f"Decoding with the cache, against full passes: {compared}."


def _decoding(stretches: Sequence[Stretch]) -> Page:
    """Returns a table that compares decoding with the cache with full passes, one row per stretch."""
    rows = [
        [
            f"{each.first:,} to {each.last:,}",
            f"{each.relative:.1e}",
            f"{each.tolerance:.1e}",
            f"{each.tokens_differ} of {each.last - each.first + 1}",
            each.verdict,
        ]
        for each in stretches
    ]
    header = ["positions", "difference", "allowed", "tokens differ", "verdict"]
    about = "The difference is the largest difference of a logit, divided by the logits' standard deviation."
    return [grid(header, rows, right=(1, 2, 3)), about]
