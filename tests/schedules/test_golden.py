"""Frequencies against what other projects computed when their own code was run.

``golden.json`` holds facts: inputs, and the float32 numbers that came out, of transformers (four versions), vLLM,
llama.cpp, mlx-lm, jquesnelle/yarn, microsoft/LongRoPE, openai/gpt-oss, deepseek-ai/DeepSeek-V3,
meta-llama/llama-models, abacusai/Long-Context, bojone/rerope, lucidrains/rotary-embedding-torch,
sheryc/resonance_rope and DAMO-NLP-SG/CLEX.
Each entry is either matched by a schedule, or listed below with the reason why ours differs; then the test asserts
that it does differ, and where a misreading explains the peer's numbers, that the misreading reproduces them.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropescale import schedules as sch
from ropescale.rope import Rope

Entry = dict[str, Any]
ENTRIES: list[Entry] = json.loads((Path(__file__).parent / "golden.json").read_text())["entries"]
BY_ID = {entry["id"]: entry for entry in ENTRIES}


def rope_of(entry: Entry) -> Rope:
    """The geometry of an entry, its trained length, and the maximum its configuration stated."""
    trained = entry["original_max_position_embeddings"] or entry["max_position_embeddings"] or 4096
    maximum = entry["max_position_embeddings"] or trained
    return Rope(entry["rotary_dim"], entry["theta"], trained, head_dim=entry["head_dim"], max_length=maximum)


def tolerance(entry: Entry) -> float:
    """ggml multiplies theta pair after pair in float32; the others take powers."""
    return 1e-5 if "llama.cpp" in entry["peer"] else 2e-6


def of_params(cls: Callable[..., Any], **names: str) -> Callable[[Entry], sch.Schedule]:
    """The schedule whose fields are the entry's parameters under these names."""
    return lambda entry: cls(**{field: entry["params"][key] for field, key in names.items() if key in entry["params"]})


def temper(factor: float) -> float:
    """YaRN's temperature, for peers that take its product with something else."""
    return 0.1 * math.log(factor) + 1


def yarn(entry: Entry) -> sch.Schedule:
    """YaRN under every peer's names for its parameters; ``attn_factor`` multiplies the temperature."""
    p = entry["params"]
    first = {"factor": ("factor", "scale", "scaling_factor", "rope.scaling.factor")}
    first |= {"beta_fast": ("beta_fast", "yarn_beta_fast", "ntk_beta"), "truncate": ("truncate",)}
    first |= {"beta_slow": ("beta_slow", "yarn_beta_slow", "ntk_alpha")}
    first |= {"extrapolation_factor": ("extrapolation_factor", "yarn_ext_factor"), "mscale": ("mscale",)}
    first |= {"mscale_all_dim": ("mscale_all_dim",), "attention_factor": ("attention_factor",)}
    fields = {field: p[key] for field, keys in first.items() for key in keys if key in p}
    if "attn_factor" in p:
        fields["attention_factor"] = p["attn_factor"] * temper(fields["factor"])
    return sch.Yarn(**fields)


def longrope(entry: Entry) -> sch.Schedule:
    """LongRoPE under transformers' and vLLM's keys; vLLM's ``long_mscale`` is our attention factor."""
    p = entry["params"]
    if "rescale_factors" in p:
        return longrope_release(entry)
    attention = p.get("attention_factor", p.get("long_mscale"))
    return sch.LongRope(p["short_factor"], p["long_factor"], factor=p.get("factor"), attention_factor=attention)


def longrope_release(entry: Entry) -> sch.Schedule:
    """microsoft/LongRoPE: one list at every length, and a policy for the attention scale."""
    factors, policy = entry["params"]["rescale_factors"], entry["params"]["magnitude_scaling_policy"]
    stretched = entry["max_position_embeddings"] / entry["original_max_position_embeddings"]
    explicit = {"su": None, "yarn": temper(stretched)}
    return sch.LongRope(factors, factors, stretched, explicit[policy] if policy in explicit else float(policy))


def resonance(entry: Entry) -> sch.Schedule:
    over = {"default": "base", "yarn": f"yarn:factor={entry['params'].get('scale')}"}[entry["params"]["over"]]
    return sch.Resonance(over)  # type: ignore[arg-type]  # a spec is accepted


def freq_factors(entry: Entry) -> sch.Schedule:
    p = entry["params"]
    return sch.Table(factors=p["factors"], attention_factor=p["rope.scaling.attn_factor"])


MADE_BY: dict[str, Callable[[Entry], sch.Schedule]] = {
    "default": lambda entry: sch.Base(),
    "linear": lambda entry: sch.Linear(factor_of(entry)),
    "ntk_aware": lambda entry: sch.Ntk(factor_of(entry)),
    "ntk_alpha": of_params(sch.Ntk, factor="alpha"),
    "clex_prior": lambda entry: sch.Ntk(2 * entry["params"]["t"] - 1),  # the untrained prior: alpha = 2t - 1
    "ntk_fixed_su": of_params(sch.NtkSu, factor="factor"),
    "ntk_mixed": lambda entry: sch.NtkMixed(factor_of(entry), entry["params"].get("b", entry["params"].get("mixed_b"))),
    "dynamic_ntk": of_params(sch.Dynamic, factor="factor"),
    "dynamic_ntk_by_parts": lambda entry: sch.NtkByParts(stretch(entry)),
    "ntk_by_parts": of_params(sch.NtkByParts, factor="scale"),
    "yarn": yarn,
    "yarn_deepseek": lambda entry: (
        sch.Base()
    ),  # its code turns YaRN on beyond the trained length only, which this is not
    "dynamic_yarn": lambda entry: sch.DynamicYarn(),
    "longrope": longrope,
    "dynamic_longrope": longrope_release,
    "llama3": of_params(sch.Llama3, **{each: each for each in ("factor", "low_freq_factor", "high_freq_factor")}),
    "proportional": of_params(sch.Proportional, partial_rotary_factor="partial_rotary_factor", factor="factor"),
    "giraffe_power": of_params(sch.Giraffe, scale_power="scale_power"),
    "giraffe_truncate": of_params(sch.Giraffe, scale_power="scale_power", truncate="truncate"),
    "resonance": resonance,
    "freq_factors": freq_factors,
}


def factor_of(entry: Entry) -> float:
    keys = ("factor", "scale", "alpha", "theta_rescale_factor", "interpolate_factor", "rope.scaling.factor", "k")
    return next(entry["params"][key] for key in keys if key in entry["params"])


def stretch(entry: Entry) -> float:
    return max(entry["seq_len"] / entry["original_max_position_embeddings"], 1)


def length_of(entry: Entry, rope: Rope) -> int:
    """The context that was processed; vLLM's dynamic table is fixed at its maximum."""
    if entry["quirk"] == "dynamic-static-at-max":
        return rope.max_length
    return entry["seq_len"] or rope.original_length


def ours(entry: Entry) -> sch.Frequencies:
    """What ropescale computes for an entry."""
    rope = rope_of(entry)
    if entry["id"] in SPECIAL:
        return SPECIAL[entry["id"]](entry, rope)
    return sch.compute(MADE_BY[entry["schedule"]](entry), rope, length_of(entry, rope))


def linear_below(entry: Entry, rope: Rope) -> sch.Frequencies:
    """Giraffe's code scales linearly first: ours on top of linear."""
    below = sch.Linear(entry["params"]["scale"])(rope, 1).inv_freq
    return sch.compute(MADE_BY["giraffe_truncate"](entry), replace(rope, table=tuple(below)))


def read_from_nested(entry: Entry, rope: Rope) -> sch.Frequencies:
    """What ``as-is`` reads where a model keeps parameters per layer type: transformers overlooks ``truncate`` there."""
    nested = replace(rope, layer_type="full_attention", scaling=entry["params"])
    schedule, there = sch.from_rope_parameters(nested)
    return sch.compute(schedule, there)


SPECIAL: dict[str, Callable[[Entry, Rope], sch.Frequencies]] = {
    "5555bf3e1e40": linear_below,
    "52db026d4a3c": linear_below,
    "33568683d8e7": read_from_nested,
    # ntk_factor 0 takes the third table out of the "part NTK" blend: what is left is YaRN's, without its temperature.
    "7d61fb074f61": lambda entry, rope: sch.compute(sch.Yarn(4, beta_fast=16, beta_slow=2, attention_factor=1.0), rope),
}

Misreading = Callable[[Entry, Rope], sch.Frequencies] | None
THREE_WAY = "the released class blends linear, NTK and base by pair index; ours is the paper's definition 2"
TOP_LEVEL = "reads the switch from the top level only, so max_position_embeddings is the trained length"


def of_the_maximum(entry: Entry, rope: Rope) -> sch.Frequencies:
    return sch.compute(longrope(entry), replace(rope, original_length=rope.max_length), 8192)


def unscaled(entry: Entry, rope: Rope) -> sch.Frequencies:
    return sch.compute(sch.Proportional(entry["params"]["partial_rotary_factor"]), rope)


DOCUMENTED: dict[str, tuple[str, Misreading]] = {
    "c77bc4f46db4": (THREE_WAY, None),
    "c30ccbee8108": (THREE_WAY, None),
    "96bb236f039d": (THREE_WAY + ", with the factor from the length", None),
    "6d79f31a9cc6": (THREE_WAY + ", over max_position_embeddings instead of the trained length", None),
    "cd041d02b28c": (THREE_WAY + ", with the factor from the length", None),
    "0b242ff575f2": (
        "this file's dynamic YaRN takes length / max_position_embeddings for the factor; ours length / trained length",
        lambda entry, rope: sch.compute(sch.Yarn(entry["seq_len"] / rope.max_length), rope),
    ),
    "c0f9d09fe793": ("the released dynamic LongRoPE interpolates its list with the length; ours switches lists", None),
    "c4c2217c8bc5": (
        "the released dynamic LongRoPE is base at the trained length; ours of one list is that list at every length",
        lambda entry, rope: sch.compute(sch.LongRope((1.0,) * 32, (2.0,) * 32, 8), rope, entry["seq_len"]),
    ),
    "c60efa950ea5": (
        "llama.cpp's Llama converter overlooks partial_rotary_factor and rotates the whole head",
        lambda entry, rope: sch.compute(MADE_BY["llama3"](entry), rope),
    ),
    # transformers 4.57 and 4.51
    **dict.fromkeys(("f6a53b876b1c", "a820bc44a3eb"), (TOP_LEVEL, of_the_maximum)),
    "bd96d5cc2355": (
        "transformers 4.45 puts max_position_embeddings into YaRN's ramp instead of the trained length",
        lambda entry, rope: sch.compute(yarn(entry), replace(rope, original_length=rope.max_length)),
    ),
    "c817605e4787": (
        "vLLM ignores longrope's attention_factor",
        lambda entry, rope: sch.compute(replace(longrope(entry), attention_factor=None), rope, 8192),  # type: ignore[type-var]
    ),
    "235416fc9519": ("vLLM ignores proportional's factor", unscaled),
}


def agrees(entry: Entry, result: sch.Frequencies) -> bool:
    """Whether the numbers are the peer's."""
    rtol = tolerance(entry)
    return len(result.inv_freq) == len(entry["inv_freq"]) and all(
        math.isclose(a, b, rel_tol=rtol, abs_tol=0)
        for a, b in zip([*result.inv_freq, result.attention_scale], [*entry["inv_freq"], entry["attention_factor"]])
    )


def listed(entries: list[Entry]) -> list[Any]:
    return [pytest.param(e, id=f"{e['peer'].split('/')[-1]}-{e['schedule']}-{e['id'][:6]}") for e in entries]


@pytest.mark.parametrize("entry", listed([e for e in ENTRIES if e["id"] not in DOCUMENTED]))
def test_frequencies_and_attention_scale_are_the_peers(entry):
    result, rtol = ours(entry), tolerance(entry)
    assert list(result.inv_freq) == pytest.approx(entry["inv_freq"], rel=rtol, abs=0)
    assert result.attention_scale == pytest.approx(entry["attention_factor"], rel=rtol)


@pytest.mark.parametrize("entry", listed([BY_ID[key] for key in DOCUMENTED]))
def test_a_documented_difference_exists_and_is_the_misreading_that_it_names(entry):
    rope, result = rope_of(entry), ours(entry)
    if entry["quirk"] == "partial-ignored":
        half = replace(rope, rotary_dim=int(rope.head_dim * entry["params"]["partial_rotary_factor"]))
        result = sch.compute(MADE_BY["llama3"](entry), half)
    assert not agrees(entry, result)
    if misread := DOCUMENTED[entry["id"]][1]:
        assert agrees(entry, misread(entry, rope))


def test_every_entry_is_matched_or_documented():
    assert len(ENTRIES) == len(BY_ID) == 123
    assert {entry["schedule"] for entry in ENTRIES} == set(MADE_BY)
    assert set(DOCUMENTED) | set(SPECIAL) <= set(BY_ID)
    assert all(len(reason) > 20 for reason, _ in DOCUMENTED.values())
    assert len(DOCUMENTED) == 14


def test_nested_truncate_false_as_asked_differs_from_what_transformers_reads():
    entry = BY_ID["33568683d8e7"]
    assert not agrees(entry, sch.compute(sch.Yarn(8, truncate=False), rope_of(entry)))
