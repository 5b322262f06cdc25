"""Per-token losses: ``losses.safetensors``, a tensor per schedule and pass, fp32 in nats.

A tensor is [windows, scored tokens], or flat if the windows have different sizes. The file's metadata describe
documents and tensors as JSON; ``results.json`` has the file's sha256.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, NotRequired, get_type_hints

import numpy as np
from annotated_types import Interval, Len
from pydantic import FailFast
from typing_extensions import TypedDict

from ...files import parse_json, sha256
from .. import checking
from ..checking import Count, Length, Shape, Wrong
from ..metrics.stored import Divergence, Identity, Pass, Stored, Truncation
from ..scoring.batches import Cost
from .folder import LOSSES, ROWS, Results, damaged

_LARGEST = 2**36
_KEY = "index"

_COST = tuple(Cost.__dataclass_fields__)

# --- the index


_IDENTITY = get_type_hints(Identity, include_extras=True)
_REQUIRED = {"name", "sha256", "ids_sha256"}
StoredDocument = TypedDict(  # type: ignore[misc]
    "StoredDocument",
    {name: hint if name in _REQUIRED else NotRequired[hint] for name, hint in _IDENTITY.items()}
    | {"windows": NotRequired[Annotated[int, Interval(ge=1, le=2**32)]]},
)
"""A document in the index: its identity and number of windows."""

_One = Annotated[list[str], Len(1, 1)]
_Two = Annotated[list[str], Len(2, 2)]


class _Entry(TypedDict):
    """An entry of the index, without tensor names: the number of tokens of each window."""

    sizes: NotRequired[Annotated[list[Count], FailFast()]]


class StoredPass(_Entry):
    """A pass."""

    schedule: str
    table_sha256: str
    lengths: Annotated[list[Length], FailFast(), Len(1, 10_000)]
    tensors: _One


class StoredComparison(_Entry):
    """A comparison of predictions."""

    schedule: str
    baseline: str
    length: Length
    tensors: _Two


class StoredTruncation(_Entry):
    """Truncation."""

    length: Length
    stride: Length
    table_sha256: str
    tensors: _One


class Index(TypedDict):
    """The index of ``losses.safetensors``, JSON in its metadata."""

    bos: bool
    documents: Annotated[list[StoredDocument], FailFast()]
    passes: Annotated[list[StoredPass], FailFast(), Len(0, ROWS)]
    divergences: NotRequired[Annotated[list[StoredComparison], FailFast(), Len(0, ROWS)]]
    truncation: NotRequired[Annotated[list[StoredTruncation], Len(0, 1)]]


INDEX: Shape[Index] = Shape(Index)

Entry = StoredPass | StoredComparison | StoredTruncation


@dataclass(frozen=True)
class Losses:
    """The content of the file; without passes if the file is missing."""

    bos: bool = False
    identities: list[Identity] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    truncation: Truncation | None = None


# --- writing ---


def to_bytes(stored: Stored) -> bytes:
    """Returns the content of the file."""
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}

    def entry(names: Sequence[str], *values: Sequence[np.ndarray], **about: object) -> dict[str, object]:
        sizes = [len(each) for each in values[0]]
        same = len(set(sizes)) == 1
        for name, windows in zip(names, values, strict=True):
            arrays = [np.asarray(window, np.float32) for window in windows]
            tensors[name] = np.stack(arrays) if same else np.concatenate(arrays)
        return {**about, "tensors": list(names), **({} if same else {"sizes": sizes})}

    cut = stored.truncation
    counted = zip(stored.identified(), stored.windows or [1] * stored.texts, strict=True)
    documents = [asdict(each) | {"windows": count} for each, count in counted]
    index = {
        "bos": stored.bos,
        "documents": [{key: value for key, value in facts.items() if value not in (None, "")} for facts in documents],
        "passes": [
            entry([f"{run.schedule} @ {run.lengths[-1]}"], run.nll, schedule=run.schedule,
                  table_sha256=run.table_sha256, lengths=list(run.lengths))
            for run in stored.passes
        ],
        "divergences": [
            entry([f"{each.schedule} @ {each.length} {what}" for what in ("kl", "same top")], each.kl, each.same,
                  schedule=each.schedule, baseline=each.baseline, length=each.length)
            for each in stored.divergences
        ],
        "truncation": []
        if cut is None
        else [entry([f"truncation @ {cut.length}"], cut.nll, length=cut.length, stride=cut.stride,
                    table_sha256=cut.table_sha256)],
    }  # fmt: skip
    return save(tensors, {_KEY: json.dumps(index)})


# --- reading ---


def read_losses(folder: Path, results: Results) -> Losses:
    """Reads the losses that belong to these results.

    Raises:
        DataError: the file is damaged, or belongs to other results.
    """
    path = folder / LOSSES
    if LOSSES not in results.get("files", {}) or not path.exists():
        return Losses()
    try:
        content = checking.content(path, _LARGEST)
        if sha256(content) not in results["files"][LOSSES]:
            raise Wrong("is not as it was written (its checksum differs)")
        return _parsed(content, results)
    except (Wrong, OSError) as error:
        raise damaged(path, error) from None


def _parsed(content: bytes, results: Results) -> Losses:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        index = INDEX(parse_json(str(header["__metadata__"][_KEY]).encode()))  # type: ignore[index, call-overload]
        tensors = load(content)
    except (SafetensorError, KeyError, TypeError) as error:
        raise Wrong(f"does not hold the losses of a run ({error})") from None
    scored = {(one["schedule"], n): one["table_sha256"] for one in index["passes"] for n in one["lengths"]}
    if scored != {(row["schedule"], row["length"]): row["table_sha256"] for row in results["rows"]}:
        raise Wrong("does not have the schedules and lengths of the results beside it")
    windows = [each.get("windows", 1) for each in index["documents"]]
    ran = iter(results.get("cost", []))
    read = partial(_windows, tensors, sum(windows))
    passes = []
    for one in index["passes"]:
        spent, (nll,) = next(ran, {}), read(one)
        cost = Cost(*(spent[name] for name in _COST)) if spent.keys() >= set(_COST) else None
        fed, split = spent.get("forward_passes", 0), spent.get("split_batches", 0)
        passes.append(Pass(one["schedule"], one["table_sha256"], tuple(one["lengths"]), nll, fed, cost, split))
    compared = []
    for one in index.get("divergences", []):
        spent = next(ran, {})
        kl, same = read(one)
        fed = spent.get("forward_passes", 0), spent.get("positions", 0)
        compared.append(Divergence(one["schedule"], one["baseline"], one["length"], kl, same, *fed))
    cut = None
    for one in index.get("truncation", []):
        spent, (nll,) = next(ran, {}), read(one)
        split = spent.get("split_batches", 0)
        cut = Truncation(one["length"], one["stride"], one["table_sha256"], nll, split)
    identities = [Identity(**{name: each[name] for name in _IDENTITY if name in each}) for each in index["documents"]]
    return Losses(index["bos"], identities, passes, compared, windows, cut)


def _windows(tensors: Mapping[str, np.ndarray], count: int, one: Entry) -> Iterator[list[np.ndarray]]:
    """Yields, per tensor of an entry, the values of each of ``count`` windows."""
    for name in one["tensors"]:
        values = tensors.get(name)
        if values is None or values.dtype != np.float32 or not np.isfinite(values).all():
            raise Wrong(f"does not hold finite losses of {name}")
        if "sizes" not in one:
            found = list(values)
        elif sum(one["sizes"]) == values.size:
            found = np.split(values, np.cumsum(one["sizes"])[:-1])
        else:
            found = []
        if len(found) != count:
            raise Wrong(f"does not hold {count:,} windows of {name}")
        yield found
