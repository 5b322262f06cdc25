"""Proves that the intended frequencies are the ones a model uses.

On disk: builds the model's rotary modules as stock transformers would and reads their tables and their cos and sin.
In memory: reads the live tables and runs a few tokens, to see which modules are really called.
With ``generate``: loads the weights, and compares decoding with a cache with whole forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from ..adapters import attached, find_loadable
from ..checkpoints.loading import load_model, load_tokenizer
from ..configs.configuration import read_rope
from ..errors import CheckpointError, DataError, VerificationError
from ..keywords import refuse_unknown
from ..lengths import parse_length
from ..models.patching import installed
from ..models.rotary_modules import whole_config
from .decoding import DIFFERS, EXPLAINED, UNDECIDED, Say, Stretch, compare
from .live_tables import examine_model
from .on_disk import examine_adapter, examine_folder
from .sample_text import Text, written
from .verification import Verification

if TYPE_CHECKING:
    from torch import nn


class ExamineOptions(TypedDict, total=False):
    """The keywords of :func:`examine`."""

    generate: bool
    lengths: Sequence[int | str]
    revision: str | None
    trust_remote_code: bool
    dtype: str | None
    device: str | None
    say: Say | None


def verify(model: str | Path | nn.Module, **options: Unpack[ExamineOptions]) -> Verification:
    """Proves that the intended table is live in every layer.

    Args:
        model: a checkpoint's folder or Hub id (no weights are read), an adapter's, or a loaded model. Of an adapter
            it is the base that is built, and compared with the table that the adapter was trained under.
        options: those of :func:`examine`, such as ``generate=True``.

    Raises:
        VerificationError: it is not, or another limit stops before the length that it is for; the message says which.
        ConfigError: the model has no rotary embeddings.
    """
    refuse_unknown("ropescale.verify", options, ExamineOptions.__annotations__)
    report = examine(model, **options)
    if report.failure:
        raise VerificationError(report.failure)
    return report


def examine(
    model: str | Path | nn.Module,
    *,
    generate: bool = False,
    lengths: Sequence[int | str] = (),
    revision: str | None = None,
    trust_remote_code: bool = False,
    dtype: str | None = None,
    device: str | None = None,
    say: Say | None = None,
) -> Verification:
    """Verifies as :func:`verify` does, but returns the problems instead of raising them.

    Args:
        model: a checkpoint's folder or Hub id, an adapter's, or a loaded model.
        generate: load the weights too, and compare decoding with a cache with whole forward passes. A difference
            under frequencies that do not change is a problem; one where they change with the length is a warning.
        lengths: where to compare, in tokens (``"4k"`` is one too); see :func:`ropescale.verifying.decoding.compare`.
        revision: branch, tag or commit of a Hub id.
        trust_remote_code: run the code that a checkpoint brings, where transformers needs it.
        dtype, device: the dtype to load the weights in, and the device to load them on.
        say: receives a note before anything that takes long.

    Raises:
        ConfigError: no rotary embeddings, or custom code that may not run.
        RunError: the model fails while it generates.
    """
    loading: dict[str, object] = {"dtype": dtype, "device": device}
    if not generate:
        _refuse({"length": lengths, **loading}, "says how to generate; add generate, or leave it out")
    wanted = [parse_length(length) for length in lengths]
    if not isinstance(model, (str, Path)):
        in_memory = "is for a checkpoint, and this model is loaded already; leave it out"
        _refuse({**loading, "revision": revision}, in_memory)
        report = examine_model(model)
        if generate and report.live:
            _examine_generation(model, report, wanted, None, say)
        return report
    folder, adapter = find_loadable(model, revision, weights=generate)
    if adapter is None:
        report = examine_folder(str(model), folder, trust_remote_code)
    else:
        report = examine_adapter(str(model), adapter, trust_remote_code)
    if generate and report.live:
        loaded = load_model(folder, dtype, device, trust_remote_code=trust_remote_code)
        loaded = loaded if adapter is None else attached(loaded, adapter.folder)
        text = partial(_own_text, folder, trust_remote_code)
        _examine_generation(loaded, report, wanted, text, say)
    return report


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Refuses an option that would have no effect."""
    for name in (name for name, value in options.items() if value):
        raise DataError(f"{name} {why}", name, "generate")


# ---------------------------------------------------------------------------------------------------------
# Decoding with a cache


def _own_text(folder: Path, trusted: bool, tokens: int) -> list[int]:
    """Returns ids of a text in the checkpoint's own tokens; none where it has no tokenizer that loads."""
    try:
        return written(load_tokenizer(folder, trust_remote_code=trusted), tokens)
    except CheckpointError:
        return []


def _examine_generation(
    model: nn.Module, report: Verification, lengths: Sequence[int], text: Text | None, say: Say | None
) -> None:
    plan = installed(model)
    ropes = plan.ropes if plan else read_rope(whole_config(model).to_dict())
    trained = max(rope.original_length for rope in ropes.values())
    report.generation = compare(model, trained, report.length, lengths, text, say)
    faults = (_fault(stretch) for stretch in report.generation if stretch.verdict == DIFFERS)
    report.problems += islice(faults, 1)
    report.warnings += list(_remarks(report, str(next(model.parameters()).dtype).removeprefix("torch.")))


def _fault(stretch: Stretch) -> str:
    """Describes the shortest faulty stretch; a fault below the trained length is not the schedule's."""
    also = " Below the trained length, so the schedule is not the cause" if stretch.region == "below" else ""
    return (
        f"decoding with the cache differs from the whole text by {stretch.relative:.1e} of the logits' spread after "
        f"{stretch.position + 1} tokens, where rounding explains {stretch.tolerance:.1e} at most and the frequencies "
        f"are the same throughout.{also}"
    ).rstrip(".")


_COARSE = 0.1
"""A tolerance above which a fault that matters could hide, in units of the logits' spread."""


def _remarks(report: Verification, dtype: str) -> Iterator[str]:
    """Yields remarks for the reader of the comparison."""
    changed = [stretch for stretch in report.generation if stretch.verdict == EXPLAINED]
    if changed:
        yield _explanation(changed, report)
    for stretch in (stretch for stretch in report.generation if stretch.verdict == UNDECIDED):
        yield (
            f"decoding cannot be judged after {stretch.position + 1} tokens: forward passes over longer and shorter "
            "texts differ too, as happens where rounding decides which expert is chosen or which tokens are attended to"
        )
    coarse = max(stretch.tolerance for stretch in report.generation)
    if coarse > _COARSE:
        yield (
            f"rounding alone may move this model's logits by {coarse:.2g} of their spread in {dtype}, so only larger "
            "faults show; float32 is sharper"
        )


def _explanation(changed: Sequence[Stretch], report: Verification) -> str:
    worst = max(changed, key=lambda stretch: stretch.relative)
    first = min(stretch.changes for stretch in changed if stretch.changes)
    other = sum(stretch.tokens_differ for stretch in changed)
    compared = sum(stretch.last - stretch.first + 1 for stretch in changed)
    return (
        f"{report.intended} changes its frequencies with the length, here from {first} tokens on: generate() keeps the "
        f"keys it has cached at their old angles, so it differs from the whole text by up to {worst.difference:.3g} in "
        f"a logit ({worst.relative:.2g} of their spread) and in {other} of {compared} tokens chosen. That is how "
        "transformers does it; freezing it at one length makes one table for every length"
    )
