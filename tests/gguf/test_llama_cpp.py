"""A real llama.cpp, built from source by llama-cpp-python, computes what a GGUF file of ours was asked to say."""

import json
import math
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import generate_llama_cpp_models
import llama_cpp_builds
import numpy as np
import pytest
import torch
from gguf_models import write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto import modeling_auto

import ropescale
from ropescale.configs import class_defaults
from ropescale.engines.llama_cpp import PATH, load
from ropescale.errors import ScheduleError
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.gguf import architectures as known
from ropescale.gguf.files import open_gguf
from ropescale.gguf.patching import patch_gguf

pytestmark = pytest.mark.engines

LENGTH, TRAINED = 2048, 256
TOLERANCE = 2e-3
HALVED = [1.0] * 16 + [4.0] * 16

SCHEDULES: dict[str, Any] = {
    "base": "base",
    "linear": "linear:factor=8",
    "yarn": "yarn:factor=8",
    "ntk": "ntk:factor=8",
    "llama3": "llama3:factor=8",
    "ntk-by-parts": "ntk-by-parts:factor=8",
    "table with a scale": {"name": "table", "factors": HALVED, "attention_factor": 1.1},
    "yarn, another scale": "yarn:factor=8,attention_factor=1.5",
    "yarn, other betas": "yarn:factor=8,beta_fast=8,beta_slow=2",
    "yarn, not truncated": "yarn:factor=8,truncate=false",
    "yarn, searched": "yarn:factor=8,beta_fast=15.3895,beta_slow=0.5914,truncate=false,attention_factor=1.2053",
    "yarn, half extrapolated": "yarn:factor=8,extrapolation_factor=0.5",
    "longrope": {"name": "longrope", "short_factor": [1.0] * 32, "long_factor": HALVED, "factor": 8},
    "resonance": {"name": "resonance", "over": "yarn", "factor": 8},
}


@dataclass
class LlamaCpp:
    """llama.cpp in an environment of its own."""

    python: Path
    folder: Path

    def logits(self, ids: list[int], *runs: tuple[Path, dict[str, Any]], context: int = 0) -> list[torch.Tensor | None]:
        """fp64 log-probabilities [tokens, vocabulary] of each file; None where it does not load."""
        outputs = [self.folder / f"{i}.npy" for i in range(len(runs))]
        for output in outputs:
            output.unlink(missing_ok=True)
        named = [[str(path), more, str(output)] for (path, more), output in zip(runs, outputs)]
        job = json.dumps({"ids": ids, "context": context or len(ids), "runs": named})
        scorer = str(Path(__file__).parents[1] / "helpers" / "scripts" / "llama_cpp_scorer.py")
        env = os.environ | {"LLAMA_CPP_LIB_PATH": str(llama_cpp_builds.built())}
        done = subprocess.run([str(self.python), scorer], input=job, text=True, capture_output=True, env=env)
        assert done.returncode == 0, done.stderr
        return [torch.tensor(np.load(path)).double().log_softmax(-1) if path.exists() else None for path in outputs]


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory) -> LlamaCpp:
    return LlamaCpp(llama_cpp_builds.python(), tmp_path_factory.mktemp("llama.cpp"))


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return AutoTokenizer.from_pretrained(CHECKPOINT)(held_out_documents()[0])["input_ids"][:LENGTH]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """The reference model as a GGUF file: as it is, and under each schedule."""
    folder = tmp_path_factory.mktemp("files")
    made = {"as it is": write_gguf(_stock(CHECKPOINT), folder / "as it is.gguf")}
    for name, schedule in SCHEDULES.items():
        made[name] = folder / f"{name}.gguf"
        patch_gguf(made["as it is"], made[name], schedule, target_length=_target(name))
    return made


@pytest.fixture(scope="module")
def computed(llama_cpp, files, ids) -> dict[str, torch.Tensor | None]:
    """What llama.cpp computes of every file, all in one process."""
    return dict(zip(files, llama_cpp.logits(ids, *((path, {}) for path in files.values()))))


@pytest.mark.parametrize("name", SCHEDULES)
def test_llama_cpp_gives_the_log_probabilities_of_stock_transformers(name, computed, ids, tmp_path):
    if SCHEDULES[name] == "base":
        folder = CHECKPOINT
    else:
        folder = tmp_path / "patched"
        ropescale.patch_checkpoint(CHECKPOINT, folder, SCHEDULES[name], target_length=_target(name))
    assert _difference(computed[name], _transformers(_stock(folder), ids), ids) < TOLERANCE


def test_a_wrong_schedule_would_be_seen(computed, ids):
    """The tolerance is far below what distinguishes any two of the schedules."""
    found = {name: computed[name] for name in SCHEDULES}
    names = list(found)
    apart = [_difference(found[one], found[other], ids) for i, one in enumerate(names) for other in names[i + 1 :]]
    assert min(apart) > 20 * TOLERANCE


def test_the_lists_switch_with_the_size_of_the_context(llama_cpp, files, ids):
    """Up to the trained length the short list is used, in one token more the long one: per context, not per text."""
    scale, found = math.sqrt(1 + math.log(8) / math.log(TRAINED)), []
    for context, factors in ((TRAINED, [1.0] * 32), (2 * TRAINED, HALVED)):
        found += llama_cpp.logits(ids[:200], (files["longrope"], {}), context=context)
        expected = _patched({"name": "table", "factors": factors, "attention_factor": scale}, ids[:200])
        assert _difference(found[-1], expected, ids[:200]) < TOLERANCE
    assert _difference(*found, ids[:200]) > 20 * TOLERANCE


def test_llama_reads_neither_betas_nor_factors_of_yarn_from_the_file(llama_cpp, computed, ids, tmp_path):
    keys = {"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0, "yarn_ext_factor": 0.5, "yarn_attn_factor": 2.0}
    [ignored] = llama_cpp.logits(ids, (_yarn_file(tmp_path, keys), {}))
    assert torch.equal(ignored, computed["yarn"])


def test_llama_cpp_multiplies_by_attn_factor_last(llama_cpp, ids, tmp_path):
    [scaled] = llama_cpp.logits(ids, (_yarn_file(tmp_path, {"attn_factor": 1.5}), {}))
    usual = 0.1 * torch.tensor(8.0).log().item() + 1
    expected = _patched(f"yarn:factor=8,attention_factor={1.5 * usual}", ids)
    assert _difference(scaled, expected, ids) < TOLERANCE


FLAGS = [
    ({}, "yarn:factor=8"),
    ({"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0}, "yarn:factor=8,beta_fast=8,beta_slow=2"),
    ({"yarn_ext_factor": 0.5}, "yarn:factor=8,extrapolation_factor=0.5"),
    ({"yarn_attn_factor": 2.0}, "yarn:factor=8"),  # recomputed from the factor
    ({"yarn_ext_factor": 0.0}, "linear:factor=8"),  # 0 switches yarn off, its scale included
]


@pytest.mark.parametrize(("arguments", "computes"), FLAGS, ids=str)
def test_the_flags_of_yarn_compute(llama_cpp, files, ids, arguments, computes):
    """What ``--rope-scaling yarn --rope-scale 8 --yarn-orig-ctx 256`` and the flags beside it make of a plain file."""
    flags = {"rope_scaling_type": 2, "rope_freq_scale": 1 / 8, "yarn_orig_ctx": TRAINED}
    [found] = llama_cpp.logits(ids, (files["as it is"], flags | arguments))
    assert _difference(found, _patched(computes, ids), ids) < TOLERANCE


_YARN = {"type": "yarn", "factor": 8.0, "original_context_length": TRAINED}

# A random model of any of the families below; its logits are far from flat.
SMALL: dict[str, Any] = {
    "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": TRAINED,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "initializer_range": 0.1,
}  # fmt: skip


def _random(model_type: str, **more: Any) -> Any:
    """A random model of a type, of these sizes."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SMALL | more)).eval()


def _gemma3() -> Any:
    """Five layers that see 64 tokens and turn by a theta of their own, and one that sees everything."""
    thetas = {"full_attention": 10000.0, "sliding_attention": 1000.0}
    rope = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    more = {"rope_parameters": rope, "num_hidden_layers": 6, "layer_types": kinds, "sliding_window": 64}
    return _random("gemma3_text", **more, head_dim=32, query_pre_attn_scalar=32)


_WINDOW = {"attention.sliding_window": 64, "rope.freq_base_swa": 1000.0}
PHI3 = {"original_max_position_embeddings": TRAINED, "pad_token_id": 0}


CARRIED = [
    *(("qwen2", {}, spec) for spec in ("yarn:factor=8", "yarn:factor=8,attention_factor=1.5", "ntk:factor=8")),
    *(("phi3", PHI3, spec) for spec in ("ntk:factor=8", "llama3:factor=8", "yarn:factor=8,truncate=false")),
]


@pytest.mark.parametrize(("model_type", "more", "schedule"), CARRIED)
def test_qwen2_carries_yarn_and_theta_and_phi3_any_table_in_lists(llama_cpp, ids, tmp_path, model_type, more, schedule):
    model = _random(model_type, **more)
    patch_gguf(write_gguf(model, tmp_path / "made.gguf", model_type), tmp_path / "out.gguf", schedule)
    [found] = llama_cpp.logits(ids, (tmp_path / "out.gguf", {}))
    with ropescale.patch(model, schedule):
        assert _difference(found, _transformers(model, ids), ids) < TOLERANCE


def test_qwen2_does_not_load_with_a_table_and_so_is_refused_one(llama_cpp, ids, tmp_path):
    made = write_gguf(_random("qwen2"), tmp_path / "qwen2.gguf", "qwen2")
    with pytest.raises(ScheduleError, match="does not apply them in qwen2"):
        patch_gguf(made, tmp_path / "out.gguf", "llama3:factor=8")
    as_llama = patch_gguf(made, None, "ntk:factor=8", dry_run=True)
    with_table = tmp_path / "table.gguf"
    as_llama.file.rewrite(with_table, {}, {"rope_freqs.weight": [1.0] * 16})
    assert llama_cpp.logits(ids, (with_table, {})) == [None]


AS_IN_THE_FILE = {"yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0}


@pytest.mark.parametrize("arguments", [AS_IN_THE_FILE, {}], ids=["as in the file", "by default"])
def test_mistral3_reads_betas_and_llama_cpp_python_passes_others_by_default(llama_cpp, ids, tmp_path, arguments):
    """The reference model's weights under that architecture's name, whose graph is the same."""
    schedule = "yarn:factor=8,beta_fast=8,beta_slow=2"
    made = write_gguf(_stock(CHECKPOINT), tmp_path / "mistral3.gguf", "mistral3")
    assert patch_gguf(made, tmp_path / "out.gguf", schedule).warnings
    [found] = llama_cpp.logits(ids, (tmp_path / "out.gguf", arguments))
    assert _difference(found, _patched(schedule if arguments else "yarn:factor=8", ids), ids) < TOLERANCE


def test_pangu_embedded_loads_a_table_in_vain(llama_cpp, ids, tmp_path):
    model = _random("llama", attention_bias=True)
    made = write_gguf(model, tmp_path / "pangu.gguf", "pangu-embedded")
    with pytest.raises(ScheduleError, match="does not apply them in pangu-embedded"):
        patch_gguf(made, tmp_path / "out.gguf", "llama3:factor=8")
    open_gguf(made).rewrite(tmp_path / "table.gguf", {}, {"rope_freqs.weight": [1.0] * 8 + [4.0] * 8})
    plain, table = llama_cpp.logits(ids, (made, {}), (tmp_path / "table.gguf", {}))
    assert _difference(plain, _transformers(model, ids), ids) < TOLERANCE
    assert torch.equal(plain, table)


@pytest.mark.parametrize("schedule", ["linear:factor=8", "yarn:factor=8", "ntk:factor=8"])
def test_gemma3_is_scaled_in_its_full_layers_alone(llama_cpp, ids, tmp_path, schedule):
    """As it is in transformers, where the sliding layers have a table of their own."""
    model = _gemma3()
    made = write_gguf(model, tmp_path / "gemma3.gguf", "gemma3", **_WINDOW)
    patch_gguf(made, tmp_path / "out.gguf", schedule)
    plain, found = llama_cpp.logits(ids, (made, {}), (tmp_path / "out.gguf", {}))
    assert _difference(plain, _transformers(model, ids), ids) < TOLERANCE
    with ropescale.patch(model, schedule):
        assert _difference(found, _transformers(model, ids), ids) < TOLERANCE
    assert _difference(found, plain, ids) > 20 * TOLERANCE


def test_an_attention_scale_reaches_gemma3s_sliding_layers_and_so_is_refused(llama_cpp, ids, tmp_path):
    model, schedule = _gemma3(), "yarn:factor=8,attention_factor=1.5"
    scaling = {**_YARN, "attn_factor": 1.5 / 1.2079441541679836}
    made = write_gguf(model, tmp_path / "gemma3.gguf", "gemma3", **_WINDOW)
    with pytest.raises(ScheduleError, match="would also affect the sliding-window layers"):
        patch_gguf(made, tmp_path / "out.gguf", schedule)
    keys = _WINDOW | {f"rope.scaling.{name}": value for name, value in scaling.items()}
    [found] = llama_cpp.logits(ids, (write_gguf(model, tmp_path / "scaled.gguf", "gemma3", **keys), {}))
    with ropescale.patch(model, schedule):
        assert _difference(found, _transformers(model, ids), ids) > 20 * TOLERANCE
    everywhere = {"full_attention": schedule, "sliding_attention": {"name": "table", "factors": [1.0] * 16}}
    everywhere["sliding_attention"] |= {"attention_factor": scaling["attn_factor"]}
    with ropescale.patch(model, everywhere):
        assert _difference(found, _transformers(model, ids), ids) < TOLERANCE


# ---------------------------------------------------------------------------------------------------------
# What is said of architectures is what their source says


@pytest.fixture(scope="module")
def source() -> Path:
    """llama.cpp's ``src``; the converter lies beside it."""
    return llama_cpp_builds.source() / "src"


def test_what_the_converter_writes_of_every_type_is_what_the_file_says():
    assert generate_llama_cpp_models.generate(llama_cpp_builds.source()) == load(PATH)


class Source:
    """Which file holds what for which architecture."""

    def __init__(self, folder: Path) -> None:
        text = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("models/*.cpp")}
        self.text = {stem.replace("-", "_"): re.sub(r"//.*", "", body) for stem, body in text.items()}
        self.model = (folder / "llama-model.cpp").read_text(encoding="utf-8")
        self.arch = (folder / "llama-arch.cpp").read_text(encoding="utf-8")
        self.header = (folder / "models" / "models.h").read_text(encoding="utf-8")
        self.names = dict(re.findall(r'\{ LLM_ARCH_(\w+),\s*"([^"]+)"', self.arch))
        cases = re.findall(r"case LLM_ARCH_(\w+):\s*return new llama_model_(\w+)\(", self.model)
        self.bodies = {self.names[enum]: stem for enum, stem in cases}

    def loader(self, architecture: str) -> str:
        """The code that loads its tensors: its own, or that of the class it extends."""
        stem = self.bodies.get(architecture, "")
        if f"llama_model_{stem}::load_arch_tensors" in self.text.get(stem, ""):
            return self.text[stem]
        extends = re.search(rf"struct llama_model_{stem} : public llama_model_(\w+)", self.header)
        return self.text.get(extends[1], "") if extends else ""

    def graph(self, architecture: str) -> str:
        """The code that builds its graph, which may be another's."""
        stem = self.bodies.get(architecture, "")
        own = re.search(rf"struct llama_model_{stem} : .*?\n\}};", self.header, re.DOTALL)
        borrowed = re.search(r"using graph = llama_model_(\w+)::graph", own[0]) if own else None
        return self.text.get(borrowed[1] if borrowed else stem, "")


@pytest.fixture(scope="module")
def read(source) -> Source:
    return Source(source)


ROTATES_BY_FACTORS = re.compile(r"ggml_rope_(?:ext|multi)\(\s*ctx0,\s*\w+,\s*\w+,\s*(?:rope_factors|freq_factors)\b")


def _rotate_by(read: Source, tensor: str) -> set[str]:
    loading = {name for name in read.bodies if f"LLM_TENSOR_{tensor}" in read.loader(name)}
    return {name for name in loading if ROTATES_BY_FACTORS.search(read.graph(name))} - known.NO_ROPE


def test_architectures_are_those_of_the_source(read):
    switch = read.model[read.model.index("llama_rope_type llama_model_rope_type(") :]
    without, having = switch[: switch.index("LLM_ARCH_UNKNOWN")].split("return LLAMA_ROPE_TYPE_NONE;")[:2]
    assert {read.names[enum] for enum in re.findall(r"case LLM_ARCH_(\w+)", without)} == known.NO_ROPE
    assert {read.names[enum] for enum in re.findall(r"case LLM_ARCH_(\w+)", having)} == known.ROPE


def test_tables_are_written_for_those_that_rotate_by_them(read):
    drafts = {"dflash"}  # passes the first layer's table by another name
    assert _rotate_by(read, "ROPE_FREQS") | drafts == known.TAKES_FREQS | known.LEFT_OUT
    assert _rotate_by(read, "ROPE_FACTORS_LONG") - known.LEFT_OUT == known.TAKES_LISTS


def test_lists_are_loaded_under_every_type_by_three(read):
    conditional = "rope_scaling_type_train == LLAMA_ROPE_SCALING_TYPE_LONGROPE"
    assert {name for name in known.TAKES_LISTS if conditional not in read.loader(name)} == known.LISTS_OF_ANY_TYPE


def test_betas_are_read_by_two(read):
    assert {name for name, stem in read.bodies.items() if "YARN_BETA_FAST" in read.text[stem]} == known.READS_BETAS


def test_softmax_scales_of_their_own_hang_on_the_factor(read):
    derived = {name for name in read.bodies if "logf(1.0f / freq_scale)" in read.graph(name)}
    assert derived - known.OUT_OF_REACH == known.OWN_SOFTMAX_SCALE


def test_log_multipliers_are_read_by_four(read):
    """Mistral 4 reads its keys as DeepSeek 2 does."""
    found = {name for name in read.bodies if "ROPE_SCALING_YARN_LOG_MUL" in read.text[read.bodies[name]]}
    assert "struct llama_model_mistral4 : public llama_model_deepseek2" in read.header
    assert found | {"mistral4"} == known.READS_LOG_MULTIPLIER


def test_a_window_with_a_theta_of_its_own_is_scaled_all_the_same(read):
    graph = read.graph("dots3note")
    assert "get_rope_freq_base(cparams, il)" in graph and "get_rope_freq_scale" not in graph


def test_architectures_of_model_types_are_those_that_the_converter_writes(source):
    written, expected = load(PATH)["architectures"], {}
    for model_type, entry in class_defaults.load().items():
        classes = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
        if entry and "text" not in entry and isinstance(classes, str) and classes in written:
            expected[model_type] = written[classes]
    unified = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES["gemma4_unified"]
    elsewhere = {"minicpm": "MiniCPMForCausalLM", "phimoe": "PhiMoEForCausalLM", "gemma4_unified_text": unified}
    assert expected | {name: written[cls] for name, cls in elsewhere.items()} == known.OF_MODEL_TYPES
    assert written["Mistral3ForConditionalGeneration"] == "mistral3"
    assert not any("max_position" in (source / f"../conversion/{name}.py").read_text() for name in known.OWN_LENGTH)


# ---------------------------------------------------------------------------------------------------------


def _target(name: str) -> int | None:
    """A table and a list say nothing of a length."""
    return LENGTH if "table" in name or name == "longrope" else None


def _stock(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _patched(schedule: Any, ids: list[int]) -> torch.Tensor:
    model = _stock(CHECKPOINT)
    ropescale.patch(model, schedule, target_length=LENGTH if isinstance(schedule, dict) else None)
    return _transformers(model, ids)


def _transformers(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def _difference(found: Any, expected: Any, ids: list[int]) -> float:
    """The largest absolute difference of the log-probabilities of the tokens that are there, in nats."""
    return (found - expected)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).abs().max().item()


def _yarn_file(folder: Path, more: dict[str, float]) -> Path:
    scaling = {f"rope.scaling.{name}": value for name, value in (_YARN | more).items()}
    return write_gguf(_stock(CHECKPOINT), folder / "yarn.gguf", **scaling)
