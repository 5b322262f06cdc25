"""The file of per-token losses, ``losses.safetensors``, with a tensor per schedule and pass, fp32 in nats.

A tensor has the shape [windows, scored tokens], or is flat if the windows have different sizes. The file's metadata
describes documents and tensors as JSON; ``results.json`` contains the file's sha256.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...files import LARGEST, parse_json, sha256
from .. import checking
from ..checking import Damaged
from ..facts import Divergence, Pass, Truncation
from ..metrics.stored import Identity, Stored
from .folder import LOSSES, RESULTS, Results, refusing_damage

_LARGEST = 2**34
_KEY = "index"


def to_bytes(stored: Stored) -> bytes:
    """Returns the content of the file of losses."""
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}

    def entry(about: Pass | Divergence | Truncation, values: Mapping[str, Sequence[np.ndarray]]) -> dict[str, object]:
        sizes = [len(each) for each in next(iter(values.values()))]
        same = len(set(sizes)) == 1
        for name, windows in values.items():
            arrays = [np.asarray(window, np.float32) for window in windows]
            tensors[name] = np.stack(arrays) if same else np.concatenate(arrays)
        plain = {each.name: getattr(about, each.name) for each in fields(about) if each.name not in _ARRAYS}
        return {**plain, "tensors": list(values), **({} if same else {"sizes": sizes})}

    cut = stored.truncation
    counted = zip(stored.identified(), stored.windows or [1] * stored.texts, strict=True)
    index = {
        "bos": stored.bos,
        "documents": [asdict(each) | {"windows": count} for each, count in counted],
        "passes": [entry(run, {f"{run.schedule} @ {run.lengths[-1]}": run.nll}) for run in stored.passes],
        "divergences": [
            entry(each, {f"{each.schedule} @ {each.length} kl": each.kl,
                         f"{each.schedule} @ {each.length} same top": each.same})
            for each in stored.divergences
        ],
        "truncation": [entry(cut, {f"truncation @ {cut.length}": cut.nll})] if cut else [],
    }  # fmt: skip
    return save(tensors, {_KEY: json.dumps(index)})


_ARRAYS = ("nll", "kl", "same", "key")
"""The fields that are not stored in the metadata: they are tensors, or only needed while a measurement runs."""


def read_losses(folder: Path, results: Results) -> dict[str, Any]:
    """Reads the losses that belong to these results, as values for fields of :class:`.metrics.stored.Stored`.

    Raises:
        DataError: the file is missing or damaged, or belongs to different results.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / LOSSES
    if not path.exists():
        raise DataError(f"{folder} has {RESULTS} and no {LOSSES}; run the evaluation again")
    with refusing_damage(path):
        numbers = results["data"]["tokens"] * (3 * len(results["rows"]) + 1)  # losses, KL, agreement; truncation
        content = checking.content(path, min(_LARGEST, LARGEST + 4 * numbers))
        if sha256(content) != results["files"][LOSSES][0]:  # a second hash is of the replaced results
            raise Damaged("does not belong to the results beside it, or was changed (its checksum differs)")
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise Damaged(f"does not hold the losses of a run ({error})") from None
        header: Any = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return _read(json.loads(header["__metadata__"][_KEY]), tensors)


def _read(index: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    def split(one: dict[str, Any]) -> list[list[np.ndarray]]:
        """Removes an entry's tensor names and sizes, and returns each tensor as a list by window."""
        sizes, found = one.pop("sizes", None), [tensors[name] for name in one.pop("tensors")]
        return [list(each) if sizes is None else np.split(each, np.cumsum(sizes)[:-1]) for each in found]

    windows = [each.pop("windows") for each in index["documents"]]
    passes, compared, cut = [], [], None
    for one in index["passes"]:
        (nll,), lengths = split(one), tuple(one.pop("lengths"))
        passes.append(Pass(**one, lengths=lengths, nll=nll))
    for one in index["divergences"]:
        kl, same = split(one)
        compared.append(Divergence(**one, kl=kl, same=same))
    for one in index["truncation"]:
        (nll,) = split(one)
        cut = Truncation(**one, nll=nll)
    return {
        "bos": index["bos"],
        "identities": [Identity(**each) for each in index["documents"]],
        "passes": passes,
        "divergences": compared,
        "windows": windows,
        "truncation": cut,
    }
