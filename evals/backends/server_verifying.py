"""`verify --server`: checks that the schedule is live in a serving engine.

Scores a fixed text, longer than the trained length, with the server, with stock transformers on the folder, and with
the same model without its schedule. The verdict depends on which of these two models agrees with the server past the
trained length, up to what rounding explains: that of a dtype, or of weights with few bits, which are imitated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ...adapters import find_loadable
from ...checkpoints.loading import load_model, load_tokenizer, usable_device
from ...configs.configuration import Configuration, read_rope
from ...errors import CheckpointError, DataError, ServerError
from ...files import Data, Json
from ...models.patching import plan_for
from ...models.rotary_modules import evaluating
from ...request import Request
from ...verifying.decoding import written
from ..scoring.memory import is_out_of_memory, total_memory
from ..scoring.scorer import Scorer
from .client import NotANumber
from .engines import Generating, PromptScoring, Scoring
from .loaded import Variant, as_trained
from .server import Server

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PAST = 512
"""The number of tokens past the trained length to compare, if the server's limit allows it."""

EXACT, ROUNDED = 1e-3, 0.05
"""The largest mean difference, in nats per token, that rounding explains in float32 and in half precision. vLLM
differed by 1e-5 in float32. A bfloat16 model of four layers differed by 0.01 from its float32 version, and deeper
models differ more."""

FEW_BITS, SCALE = 14, 0.5
"""From this number of bits on, weights are in half precision or more; and what a block's scale takes of each."""

MARGIN, GROWTH = 1.25, 1.6
"""How much larger than imitated rounding a difference may be, and how much more so past the trained length than within
it. Of the bundled model in 8 and 4 bits, it was 0.95 to 1.11 times as large (0.9 in Q4_K_M, which mixes 4 to 6), and
0.83 to 1.08 times as much more."""

DECIDED = 4.0
"""Standard errors from which the nearer of two models is the served one."""
WRITTEN, DRAFTED, REJECTED = 64, 16, 0.1
"""The number of tokens to generate, and from how many draft tokens on, and below which share of accepted ones, a draft
is called out of step. llama-server accepted 12 of 147 of the bundled model's own without its schedule, and 46 of 49
with it."""

LIVE = "live"
NOT_LIVE = "not live: the server computes the unscaled model"
NEITHER = "neither: the server computes neither this schedule nor the unscaled model"
CANNOT_TELL = "cannot tell: the server agrees with both models up to rounding"
NAN = "not this schedule: NaN"
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
        tolerance, unscaled_tolerance: the largest differences that rounding explains in ``dtype``.
        bits: the mean number of bits of a weight; None if unknown.
        within, beyond: the server's mean loss of the tokens up to the trained length, and past it, in nats;
            NaN if the server computes NaN.
        verdict: one of the six verdicts, such as :data:`LIVE`, with more about it.
    """

    model: str
    url: str
    trained: int
    length: int
    stock: float | None
    unscaled: float | None
    tolerance: float
    unscaled_tolerance: float
    bits: float | None
    dtype: str
    within: float
    beyond: float
    verdict: str

    def to_dict(self) -> Data:
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
    stored, _ = find_loadable(model, revision, weights=True)
    folder = stored.folder
    config = stored.config
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
    count = min(size - 1, size - trained + PAST)
    verdict = NOT_PROVED
    engine = server.engine
    few = engine.bits if engine.bits and engine.bits < FEW_BITS else None
    if engine.cost:
        server.client.notes.tell(f"{count:,} tokens to score: {engine.cost}")
    try:
        nll = server.answers([Scoring(ids, count)])[0]["nll"]
    except NotANumber:
        nll = np.full(count, np.nan)
        verdict = NAN
        if isinstance(engine, PromptScoring):
            verdict += f"; the table is probably shorter than {engine.limit_option.partition(',')[0]}"
    else:
        start = max(trained, size - WRITTEN)
        with suppress(ServerError):
            _warn_of_rejected(server, Generating(ids[:start], size - start), model)
    past = trained - (size - count)  # the row of the token at the position of the trained length
    stock = unscaled = None
    floor = EXACT if dtype == "float32" and few is None else ROUNDED
    tolerances = np.full(2, floor)
    if verdict == NOT_PROVED and _fits(folder, config, dtype, place):
        try:
            loaded = load_model(folder, dtype, device, trust_remote_code=trust_remote_code)
            both, spreads = _scored(loaded, config, ids, max(engine.limit or 0, size), few)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            apart = np.abs(nll - both[:, -count:])
            stock, unscaled = map(float, apart[:, past:].mean(axis=1))
            if (stock <= EXACT) != (unscaled <= EXACT):
                floor = EXACT
            tolerances = np.maximum(floor, _explained(apart, spreads[:, -count:], past))
            verdict = _VERDICTS[bool(stock <= tolerances[0]), bool(unscaled <= tolerances[1])]
            if verdict == CANNOT_TELL:
                verdict = _nearer(apart[:, past:], trained)
    return ServedVerification(
        model=str(model),
        url=server.client.url,
        trained=trained,
        length=size,
        stock=stock,
        unscaled=unscaled,
        tolerance=float(tolerances[0]),
        unscaled_tolerance=float(tolerances[1]),
        bits=engine.bits,
        dtype="float32" if floor == EXACT else dtype or "half precision",
        within=float(nll[:past].mean()),
        beyond=float(nll[past:].mean()),
        verdict=verdict,
    )


def _warn_of_rejected(server: Server, asked: Generating, model: str) -> None:
    """Warns if the server accepts next to no draft tokens while it generates.

    Raises:
        ServerError: the server fails, or a response is invalid.
    """
    with server.client.connected() as start:
        [(accepted, drafted)] = start([partial(server.engine.drafted, asked=asked)]).result()
    if drafted >= DRAFTED and accepted < REJECTED * drafted:
        server.client.notes.warn(
            f"warning: {server.client.url} accepts {accepted:.0f} of {drafted:.0f} draft tokens past the trained "
            f"length; the draft may lack the schedule: ropescale export {model}"
        )


def _explained(apart: np.ndarray, spreads: np.ndarray, past: int) -> np.ndarray:
    """Returns the mean differences that rounded weights explain past the trained length, of both models.

    Formats with fewer errors than the imitated rounding show it within the trained length, too.

    Args:
        apart: the server's absolute differences from both models, [2, tokens].
        spreads: the same for imitated rounding.
        past: the first token past the trained length.
    """
    explained = spreads[:, past:].mean(axis=1)
    within = spreads[:, :past].mean(axis=1)
    seen = apart[:, :past].mean(axis=1) / np.maximum(within, EXACT)
    return np.minimum(MARGIN, GROWTH * seen) * explained


def _nearer(apart: np.ndarray, trained: int) -> str:
    """Returns the verdict of two models that both agree with the server: the nearer one, if it is significantly so."""
    closer = apart[1] - apart[0]
    ratio = closer.mean() / max(closer.std(), 1e-9) * np.sqrt(closer.size)
    if abs(ratio) >= DECIDED:
        return LIVE if ratio > 0 else NOT_LIVE
    if abs(ratio) < 0.1:
        return CANNOT_TELL
    needed = trained + round(closer.size * (DECIDED / ratio) ** 2, -2)
    return (
        f"{CANNOT_TELL}; a text of some {needed:,.0f} tokens would decide (--length, and a server that takes as many)"
    )


def _fits(folder: Path, config: Json, dtype: str | None, place: torch.device) -> bool:
    """Returns whether the weights, in the dtype they are loaded in, take less than 90% of the memory."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    is_half = "16" in str(config.get("dtype") or config.get("torch_dtype"))
    is_widened = is_half and (dtype == "float32" or (dtype is None and place.type == "cpu"))
    return (2 if is_widened else 1) * stored < 0.9 * total_memory(place)


def _scored(
    model: PreTrainedModel, config: Data, ids: Sequence[int], limit: int, bits: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores a text twice: with the folder's tables fixed at ``limit``, as an engine does, and without the schedule.

    Args:
        bits: the number of bits to which the model's weights are rounded afterwards, in place; None leaves them.

    Returns:
        The NLLs, [2, tokens], and their absolute changes by the rounding.

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
    scorer = Scorer(model)

    def nll() -> np.ndarray:
        found = []
        for tables in (own, without):
            with tables.live():
                found.append(scorer.score(torch.tensor([ids]))[0].numpy())
        return np.stack(found).astype(np.float64)

    with evaluating(model), torch.inference_mode():
        exact = nll()
        if bits is None:
            return exact, np.zeros_like(exact)
        round_weights(model, round(bits - SCALE, 1))
        return exact, np.abs(nll() - exact)


# --- Formats of few bits, imitated


BLOCK = 32
"""Numbers that share a scale, as in llama.cpp's Q4_0 and Q8_0."""


@torch.no_grad()
def round_weights(model: PreTrainedModel, bits: float) -> None:
    """Rounds the matrices of a model in place, and lets its linear layers round their input to 8 bits, as llama.cpp
    does."""
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.copy_(_rounded(weights, bits))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, inputs: (_rounded(inputs[0], 8),))


def _rounded(values: torch.Tensor, bits: float) -> torch.Tensor:
    """Rounds numbers to multiples of a scale per block, whose largest number has the largest multiple."""
    if values.shape[-1] % BLOCK:
        return values
    blocks = values.unflatten(-1, (-1, BLOCK))
    most = 2 ** (bits - 1) - (bits > 4)
    scale = blocks.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny) / most
    return (blocks / scale).round().mul(scale).flatten(-2)
