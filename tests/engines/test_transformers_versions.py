"""Results of several versions of transformers on the checkpoints that ``ropescale patch`` writes.

Each version runs in an environment of its own, without ropescale, and hands back cos and sin of its own models
(rotary_reader.py). They are compared with the frequencies asked for, in float64. Where a version computes something
else, it is known what (:func:`instead`), and ``patch`` must say so; where it does not, ``patch`` must not.
"""

import importlib.metadata
import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import rotary_reader
import tiny_models
from environments import environment

import ropescale
from ropescale import Frequencies, Rope
from ropescale.checkpoints.patching import PatchedCheckpoint
from ropescale.configs.class_defaults import ALL_LAYERS
from ropescale.configs.configuration import read_rope
from ropescale.engines import transformers4
from ropescale.schedules import LongRope, Schedule

CURRENT = importlib.metadata.version("transformers")
# What pyproject.toml asks for at least, and the newest that is tried.
LOWEST, NEWEST = "5.16.0", "5.24.0"

VERSIONS = ("4.57.1", LOWEST, CURRENT, NEWEST)

# ---------------------------------------------------------------------------------------------------------
# The checkpoints: configurations as they were published, with transformers 4's keys

TRAINED = 64
_COMMON = {
    "vocab_size": 61, "hidden_size": 128, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": TRAINED, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 2,
}  # fmt: skip
_THETA = {"rope_theta": 20000.0}
_HEAD = {"head_dim": 32}
_HALF = {"partial_rotary_factor": 0.5}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MIXED = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_FULL = {"layer_types": ["full_attention", "full_attention"]}


def _scaled(kind: str, **fields: Any) -> dict[str, Any]:
    """What makers who extended the context themselves publish; patching replaces it."""
    scaling = {"rope_type": kind, "factor": 8.0, "original_max_position_embeddings": TRAINED, **fields}
    return {"rope_scaling": scaling, "max_position_embeddings": 8 * TRAINED}


_LATENT = {
    "head_dim": 16, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "qk_head_dim": 32, "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}  # fmt: skip
_DBRX = {
    "vocab_size": 61, "d_model": 128, "n_layers": 2, "n_heads": 4, "max_seq_len": TRAINED,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip
_LONGCAT = {"num_layers": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "zero_expert_num": 2, "moe_topk": 2}
# Phi-3's attention scale is computed from a whole number of positions: the more there are, the nearer it comes.
_PHI3_LENGTH = 512

# Types that are tried with every schedule, published with v4's keys and saved by transformers 5, with weights.
NAMED: dict[str, dict[str, Any]] = {
    "llama": _THETA,
    "qwen2": _THETA | _FULL,
    "qwen3": _THETA | _HEAD | _FULL,
    "mistral": _THETA | {"sliding_window": 16},
    "gemma2": _THETA | _HEAD | _MIXED,
    "phi3": _THETA | {"max_position_embeddings": _PHI3_LENGTH, "original_max_position_embeddings": _PHI3_LENGTH},
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 20000},
    "deepseek_v2": _THETA | _LATENT,
}

# Types with ways of their own, tried with every schedule.
OTHERS: dict[str, dict[str, Any]] = {
    "deepseek_v3": _THETA | _LATENT,
    "gemma3_text": _HEAD | _MIXED,
    "gpt_oss": _THETA | _HEAD | _EXPERTS | _MIXED | _scaled("yarn", beta_fast=32.0, beta_slow=1.0, truncate=False),
    **dict.fromkeys("cohere olmo2".split(), _THETA),
    "gpt_neox_japanese": {"rotary_emb_base": 20000},
    "olmo3": _MIXED,
    "mixtral": _THETA | _EXPERTS,
    "nemotron": _THETA | _HEAD | _HALF,
    "dbrx": _DBRX,
    "hunyuan_v1_dense": _THETA | _HEAD,
    "zamba2": {
        **_THETA, "layers_block_type": ["mamba", "hybrid"], "use_mem_rope": True, "attention_hidden_size": 256,
        "attention_head_dim": 64, "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 32,
    },
}  # fmt: skip

# Types that are tried with five schedules.
USUAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys("arcee bitnet diffllama granite olmo starcoder2".split(), _THETA),
    **dict.fromkeys("ernie4_5 gemma helium seed_oss".split(), _THETA | _HEAD),
    **dict.fromkeys("glm glm4".split(), _THETA | _HEAD | _HALF),
    **dict.fromkeys("persimmon phi stablelm".split(), _THETA | _HALF),
    **dict.fromkeys("granitemoe olmoe phimoe qwen3_moe".split(), _THETA | _EXPERTS),
    **dict.fromkeys("cohere2 vaultgemma".split(), _THETA | _HEAD | _MIXED),
    "apertus": _THETA | _scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
    "dots1": _THETA | _EXPERTS | _FULL | {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "exaone4": _THETA | _MIXED,
    "falcon": _THETA | {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    "granitemoehybrid": _THETA | _EXPERTS | {"layer_types": 2 * ["attention"], "position_embedding_type": "rope"},
    "hunyuan_v1_moe": _THETA | _HEAD | {"num_experts": 4, "moe_topk": 2},
    "jetmoe": _THETA | _EXPERTS | {"kv_channels": 32},
    "longcat_flash": _THETA | _LATENT | _LONGCAT,
    "minimax": _THETA | _EXPERTS | _FULL,
    "modernbert-decoder": _MIXED | {"global_rope_theta": 160000.0, "local_rope_theta": 160000.0},
    "qwen2_moe": _THETA | _EXPERTS | _FULL | {"shared_expert_intermediate_size": 16},
    "smollm3": _THETA | _FULL,
}


@dataclass(frozen=True)
class Bent:
    """A schedule of a user's own: every pair its own divisor, and a scale."""

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies([f / (1 + 0.4 * i) for i, f in enumerate(rope.inv_freq())], 1.2345)


def _two_lists(rope: Rope) -> LongRope:
    short, long = (tuple(1 + step * i for i in range(rope.pairs)) for step in (0.1, 0.5))
    return LongRope(short_factor=short, long_factor=long, factor=4.0)


SCHEDULES: dict[str, str | Schedule | None] = {
    "theta": "abf:rope_theta=700000",
    "ntk": "ntk:factor=4",
    "linear": "linear:factor=4",
    "yarn": "yarn:factor=4",
    "yarn, whole pairs or not": "yarn:factor=4,truncate=false",
    "yarn, attention factor": "yarn:factor=4,attention_factor=1.5",
    "yarn, mscale pair": "yarn:factor=4,mscale=1,mscale_all_dim=0.5",
    "yarn, equal mscales": "yarn:factor=4,mscale=1,mscale_all_dim=1",
    "yarn, other betas": "yarn:factor=4,beta_fast=4,beta_slow=0.25",
    "yarn, odd factor": "yarn:factor=3.3",
    "llama3": "llama3:factor=4",
    "two lists": None,  # one number per pair: _two_lists
    "per pair": Bent(),
    "dynamic": "dynamic:factor=4",
    "proportional": "proportional:partial_rotary_factor=0.5",
}
_FEW = ("theta", "linear", "yarn", "two lists", "per pair")
_NESTED = ("gemma3_text", "olmo3", "modernbert-decoder")
# Types whose full-attention layers do not rotate.
_SLIDING_ONLY = ("cohere2", "exaone4")


class Case(NamedTuple):
    """One checkpoint: a model type, a schedule, and for which layers."""

    model_type: str
    schedule: str
    layers: str = "full"
    saved_by_5: bool = False

    @property
    def name(self) -> str:
        words = re.sub(r"\W+", "_", self.schedule)
        return f"{self.model_type}-{words}-{self.layers}{'-v5' if self.saved_by_5 else ''}"


def cases() -> Iterator[Case]:
    for model_type in NAMED | OTHERS | USUAL:
        layers = "all" if model_type in _SLIDING_ONLY else "full"
        for schedule in _FEW if model_type in USUAL else SCHEDULES:
            yield Case(model_type, schedule, layers)
            if model_type in NAMED:
                yield Case(model_type, schedule, saved_by_5=True)
        if model_type in _NESTED:
            yield from (Case(model_type, schedule, "all") for schedule in _FEW)


@dataclass(frozen=True)
class Written:
    """A checkpoint that ``patch`` wrote, and what it should make a model compute."""

    case: Case
    source: Mapping[str, Any]
    asked: Schedule | str
    patched: PatchedCheckpoint

    @cached_property
    def lengths(self) -> list[int]:
        """One below the trained length and two above it: what stays from one call must not change the next."""
        trained = next(iter(self.ropes.values())).original_length
        return [trained * 5 // 8, trained * 25 // 16, trained * 25 // 16]

    @cached_property
    def ropes(self) -> dict[str, Rope]:
        return read_rope(self.source)

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """The v5 rope parameters that were written, per layer type."""
        found = self.patched.plan.config["rope_parameters"]
        return {ALL_LAYERS: found} if ALL_LAYERS in self.ropes else found

    def has(self, kind: str) -> bool:
        return any(self.parameters[key]["rope_type"] == kind for key in self.patched.plan.schedules)

    def right(self, length: int) -> dict[str, Frequencies]:
        """What was asked, in float64, for every kind of layer."""
        options = _options(self.case, self.source)
        return ropescale.frequencies(self.source, self.asked, length=length, **options)

    def plain(self, length: int) -> dict[str, Frequencies]:
        return {key: Frequencies(rope.inv_freq()) for key, rope in self.ropes.items()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Written]]:
    """Every case, patched into a folder of its own; those that cannot be saved are left out."""
    sources, root = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("patched")
    for model_type in NAMED | OTHERS | USUAL:
        _publish(model_type, sources / model_type)
    for model_type in NAMED:
        _save_by_5(sources / model_type, sources / f"{model_type}-v5")
    return root, list(_written(sources, root, cases()))


def _publish(model_type: str, folder: Path) -> None:
    common = {} if model_type == "dbrx" else _COMMON
    fields = {"model_type": model_type} | common | (NAMED | OTHERS | USUAL)[model_type]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))


def _save_by_5(published: Path, folder: Path) -> None:
    import torch

    torch.manual_seed(0)
    tiny_models.stock_from(json.loads((published / "config.json").read_text()), published).save_pretrained(folder)


def _written(sources: Path, root: Path, wanted: Iterable[Case]) -> Iterator[Written]:
    for case in wanted:
        folder = sources / f"{case.model_type}{'-v5' if case.saved_by_5 else ''}"
        source = json.loads((folder / "config.json").read_text())
        asked = SCHEDULES[case.schedule] or _two_lists(next(iter(read_rope(source).values())))
        if not is_refused(case):
            done = ropescale.patch_checkpoint(folder, root / case.name, asked, **_options(case, source))
            written = Written(case, source, asked, done)
            (root / case.name / "lengths.json").write_text(json.dumps(written.lengths))
            yield written


def _options(case: Case, source: Mapping[str, Any]) -> dict[str, Any]:
    """Where the makers extended the context themselves, their scaling is replaced."""
    return {"layers": case.layers} | ({"replace_scaling": True} if "rope_scaling" in source else {})


def is_refused(case: Case) -> bool:
    """What ``patch`` does not write: schedules that no configuration of this type can carry."""
    rotates_in_part = case.model_type in ("gpt_neox", "nemotron")
    return (
        (case.schedule == "proportional" and rotates_in_part)
        or (case.schedule == "dynamic" and case.model_type == "phi3")
        or (case.schedule == "two lists" and case.model_type == "phimoe")
    )


# ---------------------------------------------------------------------------------------------------------
# What a version computes instead

Tables = Callable[[int], Mapping[str, Frequencies]]


class Stops(NamedTuple):
    """The version raises this, after so many texts."""

    errors: tuple[str, ...]
    calls: int = 0


def instead(version: str, written: Written) -> Stops | Tables | None:
    """What a version makes of a checkpoint, where that is not what was asked."""
    number = _number(version)
    if number < (5, 0):
        return _in_4(written)
    if number < (5, 21) and ALL_LAYERS not in written.ropes and written.has("longrope"):
        return Stops(("UnboundLocalError",), calls=2)
    return None


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _in_4(written: Written) -> Stops | Tables | None:
    model_type, scaled = written.case.model_type, not written.has("default")
    if model_type in ("dbrx", "nemotron", "modernbert-decoder") and scaled:  # which read no rope_scaling
        return written.plain
    if model_type in ("olmo", "olmo2") and scaled and not (written.has("linear") or written.has("dynamic")):
        return Stops(("ValueError",))
    if written.has("proportional") or (model_type.startswith("hunyuan") and written.has("dynamic")):
        return Stops(("KeyError",))
    return _layer_types_in_4(written)


def _layer_types_in_4(written: Written) -> Tables | None:
    """One ``rope_scaling``, for the layers with full attention; and some types have one theta."""
    if ALL_LAYERS in written.ropes:
        return None
    theta = written.parameters["full_attention"]["rope_theta"]
    one_theta = written.case.model_type in ("olmo3", "modernbert-decoder")
    in_sliding = written.parameters["sliding_attention"]
    if in_sliding["rope_type"] == "default" and not (one_theta and in_sliding["rope_theta"] != theta):
        return None
    rope = written.ropes["sliding_attention"]
    plain = Frequencies(rope.geometric(theta if one_theta else rope.theta))
    return lambda length: {**written.right(length), "sliding_attention": plain}


# ---------------------------------------------------------------------------------------------------------
# What the versions do compute


@dataclass(frozen=True)
class Reading:
    """What a version's models returned: ``tables[checkpoint, call]`` is {(module, layer type): array}."""

    index: Mapping[str, Mapping[str, Any]]
    tables: Mapping[tuple[str, int], Mapping[tuple[str, str], np.ndarray]]
    logits: Mapping[tuple[str, int], np.ndarray]

    def has(self, case: Case) -> bool:
        """Whether the version has this model type at all."""
        return self.index[case.name]["outcome"] != "absent"


def _sorted_out(folder: Path) -> Reading:
    tables: dict[tuple[str, int], dict[tuple[str, str], np.ndarray]] = defaultdict(dict)
    logits: dict[tuple[str, int], np.ndarray] = {}
    for key, array in np.load(folder / "arrays.npz").items():
        name, call, *what = key.split("|")
        if what == ["logits"]:
            logits[name, int(call)] = array
        else:
            tables[name, int(call)][what[0], what[1]] = array
    return Reading(json.loads((folder / "index.json").read_text()), tables, logits)


_READINGS: dict[str, Reading] = {}


def read(version: str, root: Path, folder: Path) -> Reading:
    """One process reads all checkpoints, once."""
    if version not in _READINGS:
        is_this = version == CURRENT
        python = sys.executable if is_this else environment("transformers", f"transformers=={version}")
        words = [str(python), rotary_reader.__file__, str(root), str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=3600)
        assert done.returncode == 0, done.stderr[-3000:]
        _READINGS[version] = _sorted_out(folder)
    return _READINGS[version]


def layer_type(module: str, said: str, keys: Mapping[str, Any]) -> str:
    """Which kind of layer a rotary module serves; before version 5 each kind had a module of its own."""
    if ALL_LAYERS in keys:
        return ALL_LAYERS
    return said or ("sliding_attention" if "local" in module or "sliding" in module else "full_attention")


def by_pair(array: np.ndarray, pairs: int) -> np.ndarray:
    """[2, positions, pairs], out of halves or neighbours that repeat each other."""
    if array.shape[-1] == pairs:
        return array
    assert array.shape[-1] == 2 * pairs
    halves, neighbours = (array[..., :pairs], array[..., pairs:]), (array[..., ::2], array[..., 1::2])
    [same] = [one for one, other in (halves, neighbours) if np.array_equal(one, other)][:1]
    return same


def agrees(array: np.ndarray, table: Frequencies, length: int, scale_error: float) -> bool:
    """cos and sin to float32: 2e-6 of the angle, and the error of the scale."""
    angles = np.outer(rotary_reader.positions(length), np.array(table.inv_freq))
    wanted = table.attention_scale * np.stack([np.cos(angles), np.sin(angles)])
    error = table.attention_scale * (2e-6 * angles + 1e-6) + scale_error
    pairs = len(table.inv_freq)
    return array.shape[-1] in (pairs, 2 * pairs) and bool((np.abs(by_pair(array, pairs) - wanted) <= error).all())


def disagreements(reading: Reading, written: Written, tables: Tables) -> list[str]:
    """The calls and modules that return something else than these tables."""
    scale_error = 2e-5 if written.case.model_type == "phi3" else 0.0  # see _PHI3_LENGTH
    found, seen = [], 0
    for call, length in enumerate(written.lengths):
        for (module, said), array in reading.tables[written.case.name, call].items():
            key = layer_type(module, said, written.ropes)
            if not agrees(array, tables(length)[key], length, scale_error):
                found.append(f"{module} {said} at {length}")
            seen += 1
    assert seen >= len(written.lengths), "its rotary modules were not called"
    return found


def mentions(sentence: str, version: str) -> bool:
    """Whether a warning is about this version: its subject names it, or a later version before which it applies."""
    number, found = _number(version), re.match(r"transformers (\d)(?:: before (\d+\.\d+),)?", sentence)
    if found is None or "state between calls" in sentence or number[0] != int(found[1]):
        return False
    return not found[2] or number < _number(found[2])


def softmax_scale(written: Written) -> float:
    """DeepSeek's: ``(0.1 mscale_all_dim ln s + 1)^2 / sqrt(head dim)``, where the scaling has such a key."""
    [parameters] = written.parameters.values()
    weight, factor = parameters.get("mscale_all_dim") or 0.0, parameters.get("factor", 1.0)
    return (0.1 * weight * math.log(factor) + 1) ** 2 / math.sqrt(_LATENT["qk_head_dim"])


def loses_softmax_scale(version: str, written: Written) -> bool:
    """DeepSeek-V2 had no such scale before version 5."""
    is_v2 = written.case.model_type == "deepseek_v2"
    return is_v2 and int(version[0]) < 5 and softmax_scale(written) != 1 / math.sqrt(_LATENT["qk_head_dim"])


def forgets(version: str, written: Written) -> bool:
    """Phi-3 drops its cache where generation passes its first length, and before 5.20 fed one token without it."""
    return written.case.model_type == "phi3" and (5, 0) <= _number(version) < (5, 20)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def reading(version: str, checkpoints: tuple[Path, list[Written]], tmp_path: Path) -> Reading:
    return read(version, checkpoints[0], tmp_path)


@pytest.fixture
def present(reading: Reading, checkpoints: tuple[Path, list[Written]]) -> list[Written]:
    """The checkpoints whose model type this version has."""
    return [written for written in checkpoints[1] if reading.has(written.case)]


@pytest.mark.engines
def test_every_version_computes_what_was_asked_or_what_is_known_of_it(version, reading, present):
    faults = {written.case.name: _fault(version, reading, written) for written in present}
    assert {name: fault for name, fault in faults.items() if fault} == {}


def _fault(version: str, reading: Reading, written: Written) -> str:
    said, other = reading.index[written.case.name], instead(version, written)
    if isinstance(other, Stops):
        return "" if said.get("error") in other.errors and said["calls"] == other.calls else f"{said}, not {other}"
    if said["outcome"] != "read":
        return f"{said}"
    if other is not None and not disagreements(reading, written, written.right):
        return "is right after all"
    return "; ".join(disagreements(reading, written, other or written.right))


@pytest.mark.engines
def test_latent_attention_scales_its_logits_as_the_mscales_say(version, reading, present):
    latent = [written for written in present if reading.index[written.case.name].get("scales")]
    assert latent
    for written in latent:
        lost = loses_softmax_scale(version, written)
        wanted = 1 / math.sqrt(_LATENT["qk_head_dim"]) if lost else softmax_scale(written)
        for scale in reading.index[written.case.name]["scales"]:
            assert scale == pytest.approx(wanted, rel=1e-6), written.case


@pytest.mark.engines
def test_patch_warns_of_a_version_exactly_where_it_computes_something_else(version, present):
    silent, needless = [], []
    for written in present:
        warned = any(mentions(sentence, version) for sentence in written.patched.warnings)
        differs = instead(version, written) is not None or loses_softmax_scale(version, written)
        differs = differs or forgets(version, written)
        if warned != differs:
            (silent if differs else needless).append(written.case.name)
    assert (silent, needless) == ([], [])


@pytest.mark.engines
def test_weights_give_the_same_logits_in_every_version_that_is_right(version, reading, present, checkpoints, tmp_path):
    current = read(CURRENT, checkpoints[0], tmp_path)
    right = (each for each in present if instead(version, each) is None and not loses_softmax_scale(version, each))
    same = [each for each in right if each.case.saved_by_5]
    assert {written.case.model_type for written in same} == set(NAMED)
    for written in same:
        for call in range(3):
            key = written.case.name, call
            np.testing.assert_allclose(reading.logits[key], current.logits[key], atol=1e-5, err_msg=str(key))


def test_what_is_said_to_be_run_in_version_4_is_what_is_read_here():
    assert set(NAMED | OTHERS | USUAL) == transformers4.RUN


def test_the_lowest_version_tried_is_the_lowest_that_the_package_accepts(repository):
    assert f'"transformers>={LOWEST.removesuffix(".0")},<' in (repository / "pyproject.toml").read_text()
    assert LOWEST in VERSIONS
