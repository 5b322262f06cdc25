"""`verify --server`: checks that the schedule is live in a serving engine.

Scores a fixed text, longer than the trained length, with the server, with stock transformers on the folder, and with
the same model without its schedule. The verdict depends on which of these two models agrees with the server past the
trained length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...adapters import find_loadable
from ...checkpoints.loading import load_model, load_tokenizer, usable_device
from ...checkpoints.locating import read_config
from ...configs.configuration import Configuration, read_rope
from ...errors import CheckpointError, DataError
from ...models.patching import plan_for
from ...models.rotary_modules import evaluating
from ...request import Request
from ...verifying.decoding import written
from ..scoring.memory import is_out_of_memory, total_memory
from ..scoring.scorer import Scorer
from .client import NotANumber
from .engines import Scoring
from .server import Server
from .variants import Variant, as_trained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAST = 512
"""The number of tokens past the trained length to compare, if the server's limit allows it."""

EXACT, ROUNDED = 1e-3, 0.05
"""The largest mean difference, in nats per token, that rounding explains in float32 and in half precision. vLLM
differed by 1e-5 in float32. A bfloat16 model of four layers differed by 0.01 from its float32 version, and deeper
models differ more."""

LIVE = "live"
NOT_LIVE = "not live: the server computes the unscaled model"
NEITHER = "neither: the server computes neither this schedule nor the unscaled model"
CANNOT_TELL = "cannot tell: the server agrees with both models up to rounding"
NAN = "not this schedule: NaN; the table is probably shorter than "
"""The verdict on a server that computes NaN, without the engine's option for its limit."""
NOT_PROVED = "not proved: the model does not fit into this machine's memory"
_VERDICTS = {(True, False): LIVE, (False, True): NOT_LIVE, (False, False): NEITHER, (True, True): CANNOT_TELL}
"""Verdicts by whether stock transformers agrees up to rounding, with the folder's schedule and without it."""


@dataclass(frozen=True)
class ServedVerification:
    """The comparison of a server with a folder.

    Attributes:
        model, url: the folder, and the server's address.
        trained, length: the trained length, and the number of tokens of the text.
        stock, unscaled: the mean absolute difference, in nats, of the server's log-probabilities past the trained
            length from those of stock transformers on the folder, and without its schedule; None if the model does not
            fit into memory.
        tolerance: the largest difference that rounding explains in ``dtype``.
        within, beyond: the server's mean loss of the tokens up to the trained length, and past it, in nats;
            NaN if the server computes NaN.
        verdict: one of the six verdicts, such as :data:`LIVE`.
    """

    model: str
    url: str
    trained: int
    length: int
    stock: float | None
    unscaled: float | None
    tolerance: float
    dtype: str
    within: float
    beyond: float
    verdict: str

    def to_dict(self) -> dict[str, object]:
        """Returns the comparison as plain data."""
        return asdict(self)

    @property
    def failure(self) -> str | None:
        """The verdict if the schedule was not verified to be live, else None."""
        return None if self.verdict == LIVE else self.verdict


def verify_served(
    model: str,
    server: Server,
    *,
    length: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> ServedVerification:
    """Compares a server's log-probabilities with those of a folder's model, token by token.

    Args:
        model: the served folder, with its schedule in ``config.json``.
        length: the number of tokens of the text, above the trained length and within the server's limit.
        dtype: the server's dtype, which determines the tolerance (default: half precision) and stock transformers'
            dtype (default: float32 on a CPU). If exactly one of the two models agrees with the server within the
            float32 tolerance, that decides for every dtype.

    Raises:
        DataError: the folder has no schedule, the text is not longer than the trained length or exceeds the server's
            limit, or the server's tokenizer differs.
        ServerError: the server cannot be reached, or cannot score.
    """
    place = usable_device(device)
    folder, _ = find_loadable(model, revision, weights=True)
    config = read_config(folder)
    trained = max(rope.original_length for rope in read_rope(config).values())
    longest = server.engine.longest
    size = length or min(trained + PAST, longest or trained + PAST)
    if size <= trained:
        raise DataError(
            f"a text of {size:,} tokens ends within the trained length of {trained:,}, where its schedule may have no "
            f"effect; take a longer one, or serve the model with a higher limit",
            "lengths",
        )
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    server.refuse(size, tokenizer)
    ids = written(tokenizer, size)[:size]
    if len(ids) < size:
        raise CheckpointError(
            f"{folder} has a tokenizer that cannot build a text of {size:,} tokens; give a shorter length"
        )
    verdict, tolerance = NOT_PROVED, EXACT if dtype == "float32" else ROUNDED
    try:
        nll = server.answers([Scoring(ids, size - 1)])[0]["nll"]
    except NotANumber:
        nll, verdict = np.full(size - 1, np.nan), NAN + server.engine.limit_option.partition(",")[0]
    past = slice(max(trained - 1, 0), None)  # row 0 belongs to the token at position 1
    stock = unscaled = None
    if verdict == NOT_PROVED and _fits(folder, dtype, place):
        try:
            loaded = load_model(folder, dtype, device, trust_remote_code=trust_remote_code)
            both = _scored(loaded, config, ids, max(server.engine.limit or 0, size))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            stock, unscaled = (float(np.abs(nll[past] - own[past]).mean()) for own in both)
            if (stock <= EXACT) != (unscaled <= EXACT):
                tolerance = EXACT
            verdict = _VERDICTS[stock <= tolerance, unscaled <= tolerance]
    return ServedVerification(
        model=str(model),
        url=server.client.url,
        trained=trained,
        length=size,
        stock=stock,
        unscaled=unscaled,
        tolerance=tolerance,
        dtype="float32" if tolerance == EXACT else dtype or "half precision",
        within=float(nll[: past.start].mean()),
        beyond=float(nll[past].mean()),
        verdict=verdict,
    )


def _fits(folder: Path, dtype: str | None, place: torch.device) -> bool:
    """Returns whether the weights, in the dtype they are loaded in, take less than 90% of the memory."""
    stored, config = sum(file.stat().st_size for file in folder.glob("*.safetensors")), read_config(folder)
    is_half = "16" in str(config.get("dtype") or config.get("torch_dtype"))
    is_widened = is_half and (dtype == "float32" or (dtype is None and place.type == "cpu"))
    return (2 if is_widened else 1) * stored < 0.9 * total_memory(place)


def _scored(
    model: PreTrainedModel, config: dict[str, object], ids: Sequence[int], limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores a text twice: with the folder's tables fixed at ``limit``, as an engine does, and without the schedule.

    Raises:
        DataError: the folder has no schedule.
    """
    others = [as_trained(model)]
    if Configuration.read(config).is_scaled:  # for scaling that ropescale did not write
        others.append(Variant(model, plan=plan_for(model, Request("base", replace_scaling=True))))
    own = Variant(model).tables([limit])[limit]
    made = (variant.tables([limit])[limit] for variant in others)
    without = next((tables for tables in made if tables.rotation != own.rotation), None)
    if without is None:
        raise DataError(f"{model.name_or_path} has no schedule to verify; name the patched folder")
    scorer, nll = Scorer(model), []
    with evaluating(model), torch.inference_mode():
        for tables in (own, without):
            with tables.live():
                nll.append(scorer.score(torch.tensor([ids]))[0].numpy())
    return nll[0], nll[1]
