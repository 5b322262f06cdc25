"""Compares decoding with a key-value cache against forward passes over the full text.

``generate`` rotates every key once, when its token is fed, and caches it. With one table for all lengths this gives the
same logits as a forward pass over the full text, up to rounding. With a table that changes with the length, the logits
differ: a cached key keeps the angle of the table that rotated it.

This module runs transformers' own ``generate``, forced to follow a given text for a few tokens around a length, and
compares its logits with those of forward passes without a cache.
"""

from __future__ import annotations

import inspect
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ConfigError, DataError, RunError
from ..models.rotary_modules import (
    evaluating,
    layer_keys,
    one_line,
    preserved,
    quiet_transformers,
    rotary_modules,
    table_at,
    text_config,
    unset,
    unwrapped,
    whole_config,
)

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


AROUND = 4
"""The number of tokens decoded before and after each length."""

PATIENCE = 120.0
"""The longest estimated time, in seconds, with which a length is compared by default."""

MARGIN = 8
"""The largest allowed difference between cached and full passes, in units of the effect of rounding the embeddings."""

EQUAL, EXPLAINED, UNDECIDED, DIFFERS = "equal", "differs as the schedule does", "undecided", "differs"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stretch:
    """A few consecutive lengths at which a text was decoded with the cache and run in full passes.

    Attributes:
        region: ``below`` the trained length, ``across`` it, or ``above`` it.
        first: the number of tokens fed at once, before single-token decoding.
        last: the number of tokens in the text when the last logits are compared.
        changes: the first length after ``first`` whose frequencies differ from those at ``first``, if any.
        difference: the largest difference between two logits.
        relative: ``difference`` divided by the logits' spread, their standard deviation over the vocabulary.
        position: the index of the token whose logits differ the most.
        tokens_differ: the number of positions, out of ``last - first + 1``, at which the likeliest token differs.
        tolerance: the largest ``relative`` that rounding alone may cause.
        verdict: ``equal``; ``differs as the schedule does``, if the frequencies had changed; ``undecided``, if
            full passes over longer and shorter texts differ from each other as well; or ``differs``.
    """

    region: str
    first: int
    last: int
    changes: int | None
    difference: float
    relative: float
    position: int
    tokens_differ: int
    tolerance: float
    verdict: str


def compare(
    model: nn.Module, trained: int, extended: int, lengths: Sequence[int] = (), say: Say = lambda line: None
) -> list[Stretch]:
    """Decodes around each length with the cache, and compares the logits with forward passes without a cache.

    Keeps only the compared logits in memory.

    Args:
        model: a causal language model of transformers, with its weights.
        trained, extended: the model's trained length and target length, in tokens.
        lengths: the lengths to compare at. Default: half the trained length, the trained length, the last length before
            the frequencies change, and the extended length. One that takes more than two minutes is left out; the
            trained length is halved until it does not.
        say: called with the estimated cost before the passes run.

    Raises:
        ConfigError: the model cannot generate, or has no cache.
        DataError: a length is below 2.
        RunError: the model fails, or its logits are not numbers.
    """
    causal: Any = unwrapped(model)
    if not (hasattr(causal, "can_generate") and causal.can_generate()):
        raise ConfigError(f"{type(causal).__name__} cannot generate; give a causal language model")
    short = [length for length in lengths if length < 2]
    if short:
        raise DataError(f"a length of {short[0]} tokens leaves no token to decode; give 2 or more")
    silent = quiet_transformers("transformers")  # it warns of texts beyond the maximum length, which are intended here
    with evaluating(causal), preserved(causal), unset(causal), silent, torch.no_grad(), one_line():
        chosen = sorted(set(lengths)) or _usual(causal, trained, extended, say)
        where = ", ".join(f"{length:,}" for length in chosen)
        tokens = sum(2 * (length + AROUND) for length in chosen)
        say(f"decoding around {where} tokens and running the same ids in full passes: {tokens:,} tokens")
        ids = ids_of(causal, max(chosen) + AROUND)
        allowed = MARGIN * rounding(causal, ids[: chosen[0] + AROUND])
        # Sums over many keys round more: a tiny Qwen3.5 differs at 131,072 tokens by 8.1 times what rounding its
        # embeddings does, and by 5.4 times at 65,536.
        growth = {length: max(1.0, (length / 4096) ** 0.5) for length in chosen}
        return [_stretch(causal, ids, trained, length, allowed * growth[length]) for length in chosen]


# ---------------------------------------------------------------------------------------------------------
# Lengths to compare, and their cost


def _usual(model: PreTrainedModel, trained: int, extended: int, say: Say) -> list[int]:
    seconds = _pace(model)
    reach = trained
    while reach > _SHORTEST and seconds(reach) > PATIENCE:
        reach //= 2
    wanted = {max(2, reach // 2), max(2, reach)}
    longest = max(trained, extended) + AROUND
    start = _tables(model, 1)
    same = bisect_left(range(1, longest + 1), True, key=lambda length: _tables(model, length) != start)
    if same < longest and seconds(same) <= PATIENCE:  # the last length with the frequencies of the shortest
        wanted.add(max(2, same))
    whole = extended - AROUND  # the stretch around it ends at the extended length
    if whole > max(*wanted, trained) + AROUND and seconds(whole) <= PATIENCE:
        wanted.add(whole)
    for length in sorted({trained, extended}):
        if length > max(wanted) + AROUND:
            say(f"leaving out {length:,} tokens, about {seconds(length):,.0f} s; give that length to include it")
    return sorted(wanted)


_SHORTEST = 64
"""The length in tokens up to which no comparison is left out."""


def _tables(model: PreTrainedModel, length: int) -> list[tuple[list[float], float]]:
    """Returns every table that a forward pass over ``length`` tokens uses."""
    tables = [table_at(module, key, length) for _, module in rotary_modules(model) for key in layer_keys(module)]
    return [(table.tolist(), scale) for table, scale in tables]


def _pace(model: PreTrainedModel) -> Callable[[int], float]:
    """Returns an estimate of the seconds around a length, from the speed of a short pass.

    The work grows with the tokens, and with weights and attention over the previous tokens.
    """
    config = text_config(model)
    kinds = getattr(config, "layer_types", None)  # only full attention attends to all previous tokens
    layers = kinds.count("full_attention") if kinds else int(getattr(config, "num_hidden_layers", 0) or 0)
    width = layers * int(getattr(config, "hidden_size", 0) or 0)
    weights = sum(parameter.numel() for parameter in model.parameters())
    _forget(model)
    started = time.perf_counter()
    _whole(model, ids_of(model, _SHORTEST), 1)
    unit = (time.perf_counter() - started) / _SHORTEST / (weights + width * _SHORTEST)
    return lambda length: 2 * unit * (length + AROUND) * (weights + width * (length + AROUND))


# ---------------------------------------------------------------------------------------------------------
# The two kinds of passes


def _stretch(model: PreTrainedModel, ids: torch.Tensor, trained: int, length: int, allowed: float) -> Stretch:
    first = max(1, length - AROUND)
    last = length + AROUND
    # Lengths that share their tables need one forward pass.
    groups = [list(same) for _, same in groupby(range(first, last + 1), lambda each: _tables(model, each))]
    decoded = _decoded(model, ids, first, last)
    whole = _run_whole(model, ids, groups)
    judge = partial(_judged, first, trained, constant=len(groups[0]), allowed=allowed)
    found = judge(decoded, whole)
    if found.verdict != DIFFERS:
        return found
    # Later tokens may have changed which expert the model chose, or which tokens it attends to.
    each = _run_whole(model, ids, [[length] for group in groups for length in group])
    alone = judge(decoded, each)
    undecided = alone.verdict == DIFFERS and judge(whole, each).verdict == DIFFERS
    return replace(alone, verdict=UNDECIDED) if undecided else alone


def _decoded(model: PreTrainedModel, ids: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Returns the logits of ``generate`` after ``first`` to ``last`` tokens, [n, vocabulary]."""
    from transformers import LogitsProcessorList

    _forget(model)
    prompt = ids[None, :first].to(_device(model))

    def follow(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Masks every token except the text's next one."""
        following = min(input_ids.shape[1], len(ids) - 1)  # nothing is fed after the last token
        forced = torch.full_like(scores, -torch.inf)
        forced[:, ids[following]] = 0.0
        return forced

    generating: Any = model  # a mixin of its class adds generate
    out = generating.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        logits_processor=LogitsProcessorList([follow]),
        max_new_tokens=last - first + 1,
        return_dict_in_generate=True,
        output_logits=True,
    )
    if getattr(out, "past_key_values", None) is None:
        raise ConfigError(f"{type(model).__name__} has no cache, so it generates by full forward passes")
    return torch.stack([logits[0].float().cpu() for logits in out.logits])


def _run_whole(model: PreTrainedModel, ids: torch.Tensor, groups: list[list[int]]) -> torch.Tensor:
    """Returns the logits after each length from forward passes without a cache, [n, vocabulary]."""
    _forget(model)
    return torch.cat([_whole(model, ids[: group[-1]], len(group)) for group in groups])


def _whole(model: PreTrainedModel, ids: torch.Tensor, keep: int) -> torch.Tensor:
    """Returns the last ``keep`` rows of logits of one forward pass, fp32 on the CPU."""
    fewer = {"logits_to_keep": keep} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    logits = model(input_ids=ids[None].to(_device(model)), use_cache=False, **fewer).logits
    return logits[0, -keep:].float().cpu()


def _forget(model: PreTrainedModel) -> None:
    """Runs one token, because stock ``dynamic`` scaling remembers the longest text until it runs a short one."""
    _whole(model, ids_of(model, 1), 1)


def rounding(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """Measures the effect of random rounding of the embeddings on the logits, relative to the logits' spread.

    Cached and full passes add the same numbers in different orders, so they differ by rounding, which some models
    amplify. This figure reflects both the dtype and the model: for every architecture of transformers 5.23 in float32,
    and a dozen models of 2 to 40 layers in bfloat16 and float16, the passes differ by 0 to 3.2 times this figure.
    """

    def nudge(module: nn.Module, args: object, out: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(2, out.shape, generator=torch.Generator().manual_seed(0)).to(out) * 2 - 1
        return out + out * signs * _epsilon(out.dtype)

    _forget(model)
    plain = _whole(model, ids, AROUND)
    handle = model.get_input_embeddings().register_forward_hook(nudge)
    try:
        _, relative = _apart(_whole(model, ids, AROUND), plain)
    finally:
        handle.remove()
    return max(float(relative.max()), _epsilon(model.dtype))


def _epsilon(dtype: torch.dtype) -> float:
    """Returns the dtype's epsilon, or float32's for float64, because transformers' norms and rotary embeddings use
    float32."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _judged(
    first: int, trained: int, decoded: torch.Tensor, whole: torch.Tensor, *, constant: int, allowed: float
) -> Stretch:
    """Compares decoded logits with those of full passes; in the first ``constant`` rows only one table is in use."""
    apart, relative = _apart(decoded, whole)
    faulty = bool((relative[:constant] > allowed).any())
    worst = int(relative[:constant].argmax() if faulty else relative.argmax())
    changed = bool((relative > allowed).any())
    last = first + len(apart) - 1
    return Stretch(
        region="below" if last <= trained else "across" if first <= trained else "above",
        first=first,
        last=last,
        changes=first + constant if constant < len(apart) else None,
        difference=float(apart[worst]),
        relative=float(relative[worst]),
        position=first + worst - 1,
        tokens_differ=int((decoded.argmax(1) != whole.argmax(1)).sum()),
        tolerance=allowed,
        verdict=DIFFERS if faulty else EXPLAINED if changed else EQUAL,
    )


_MASKED = 1e30
"""Logits of larger magnitude are masks: minus infinity, or nearly so, for tokens that a model never emits."""


def _apart(decoded: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest difference per row, fp64 [n], and that difference divided by the logits' standard deviation.

    Raises:
        RunError: the logits are NaN.
    """
    if decoded.isnan().any() or whole.isnan().any():
        if decoded.dtype == torch.float32:
            raise RunError("the model's logits are NaN in float32; its weights are at fault")
        raise RunError("the model's logits are NaN; try float32", "dtype")
    left = decoded.double()
    right = whole.double()
    real = left.abs() < _MASKED
    also = right.abs() < _MASKED
    of_masks = torch.where(real == also, 0.0, torch.inf)
    apart = torch.where(real & also, (left - right).abs(), of_masks).max(1).values
    rows = [row[kept] for row, kept in zip(right, also)]
    variance = torch.stack([row.var(correction=0) for row in rows]).mean()
    return apart, torch.where(apart > 0, apart / variance.sqrt(), apart)


def _device(model: PreTrainedModel) -> torch.device:
    return model.get_input_embeddings().get_parameter("weight").device


def ids_of(model: PreTrainedModel, tokens: int) -> torch.Tensor:
    """Returns random token ids from a fixed seed, int64 [tokens]."""
    rows = model.get_input_embeddings().get_parameter("weight").shape[0]
    vocabulary = min(rows, int(getattr(text_config(model), "vocab_size", None) or rows))
    special = _special(whole_config(model).to_dict())
    usable = [i for i in range(vocabulary) if i not in special] or list(range(vocabulary))
    chosen = torch.randint(len(usable), (tokens,), generator=torch.Generator().manual_seed(0))
    return torch.tensor(usable)[chosen]


def _special(config: object) -> set[int]:
    """Collects every id that a configuration names, such as ends of text and image placeholders without embeddings."""
    found = set()
    for key, value in config.items() if isinstance(config, dict) else ():
        found |= _special(value)
        if str(key).endswith(("_token_id", "_token_index")):
            values = value if isinstance(value, list) else [value]
            found |= {each for each in values if isinstance(each, int)}
    return found


def written(tokenizer: PreTrainedTokenizerBase, tokens: int) -> list[int]:
    """Returns the token ids of numbered sentences, at least ``tokens`` unless the tokenizer returns almost none."""
    count = max(8, tokens // 8)
    while True:
        text = " ".join(f"This is sentence {i} of a text that says nothing else." for i in range(1, count))
        ids = tokenizer(text, verbose=False)["input_ids"]
        if len(ids) >= tokens or count > 8 * tokens:
            return list(ids)
        count *= 2
