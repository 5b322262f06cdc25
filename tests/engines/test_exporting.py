"""``ropescale export``: what it prints can be pasted, and does in the engine what the table beside it says."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import claims
import gguf
import own_schedules
import pytest
import torch
from configurations import DEEPSEEK, LLAMA, PHI3_128K, in_v5, plain, write_checkpoint, yarn
from environments import environment
from gguf_models import write_keys
from model_kinds import EXPORTED as CONFIGS
from planning import export, make_plan
from rotary_modules import assert_same_tables, quiet, rotary_classes, stock_config, stock_tables, tables_of

import ropescale
from ropescale.cli.main import main
from ropescale.configs import class_defaults
from ropescale.configs.configuration import Configuration
from ropescale.engines import ENGINES, exported as advice, llama_cpp, mlx_lm, model_code, transformers4
from ropescale.engines.base import Layers, as_it_lies, layers_in, layers_of
from ropescale.engines.exported import exported as claimed
from ropescale.errors import ConfigError, RopescaleError
from ropescale.evals.reference import CHECKPOINT
from ropescale.exporting import Export

OUTCOMES = Path(__file__).parents[1] / "helpers" / "model_coverage" / "coverage.json"
FACTORS = {"name": "table", "factors": [1.0 + i / 8 for i in range(32)], "attention_factor": 1.2}


def exported(config: str, engine: str, spec: Any, path: Path, **options: Any) -> Export:
    return export(write_checkpoint(path, CONFIGS[config]), engine, spec, **replacing(config), **options)


def replacing(config: str) -> dict[str, bool]:
    return {"replace_scaling": True} if Configuration.read(CONFIGS[config]).is_scaled else {}


def words_of(done: Export) -> list[str]:
    return shlex.split(done.commands[0].text.replace("\\\n", ""), comments=True)


def option(done: Export, name: str) -> str | None:
    words = words_of(done)
    return words[words.index(name) + 1] if name in words else None


def overridden(done: Export) -> dict[str, Any]:
    name = "--hf-overrides" if done.engine == "vLLM" else "--json-model-override-args"
    return json.loads(option(done, name) or "{}")


# ---------------------------------------------------------------------------------------------------------
# The overrides, through stock transformers


OVERRIDES = [
    *(("llama", spec) for spec in ("yarn:factor=8", "linear:factor=4", "ntk:factor=4", "llama3:factor=4", FACTORS)),
    ("llama", "yarn:factor=4,attention_factor=1.4,truncate=false"),
    ("llama", "proportional:partial_rotary_factor=0.5"),  # SGLang's llama.py reads the share at the top level
    ("llama", "yarn:factor=4.2,beta_fast=15.2646,beta_slow=0.5866,truncate=false,attention_factor=1.2017"),  # searched
    ("llama 3.1", "yarn:factor=4"),
    ("qwen3", "ntk-by-parts:factor=4"),
    ("gpt_neox", "yarn:factor=4"),
    ("phi3", FACTORS),
    ("mixtral", "yarn:factor=4"),
    ("gemma3_text", "yarn:factor=4"),
    ("gemma3_text", "ntk-su:factor=4"),
    ("gemma3", "linear:factor=4"),
    ("dbrx", "llama3:factor=4"),
    ("deepseek", "yarn:factor=4,mscale=1,mscale_all_dim=1"),
    ("gpt-oss", "yarn:factor=64,truncate=false"),
]


@pytest.mark.parametrize(("name", "spec"), OVERRIDES)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_overrides_give_stock_transformers_the_table_asked_for(name, spec, engine, tmp_path):
    done = exported(name, engine, spec, tmp_path)
    if name == "dbrx" or (engine, name) == ("sglang", "mixtral"):
        assert done.refusal and "silently leaving base RoPE" in done.refusal
        return
    told = overridden(done)
    told = told.get("text_config", told)
    assert (told.get("partial_rotary_factor") == 0.5) is (engine == "sglang" and "proportional" in str(spec))
    config = stock_config(CONFIGS[name])
    if engine == "sglang" and name == "llama 3.1":  # which merges where vLLM replaces
        told = told | {"rope_parameters": config.rope_parameters | told["rope_parameters"]}
    with quiet():
        for key, value in told.items():  # as both engines do, after the configuration's own checks
            setattr(config, key, value)
        [cls] = rotary_classes(config)
        assert_same_tables(ropescale.frequencies(CONFIGS[name], spec, **replacing(name)), tables_of(cls(config)))


MAXIMA = [
    ("llama", "linear:factor=4", None, "16384"),  # both multiply it themselves
    ("llama", "yarn:factor=4", 16384, "16384"),
    ("llama", "ntk:factor=4", 16384, "16384"),
    ("gemma3_text", "linear:factor=4", 32768, "32768"),  # not for the sliding layers, which are tabulated too
    ("phi3", FACTORS | {"attention_factor": 1.0}, None, "4096"),
]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("name", "spec", "positions", "length"), MAXIMA)
def test_the_maximum_is_what_each_engine_makes_the_length_of(engine, name, spec, positions, length, tmp_path):
    done = exported(name, engine, spec, tmp_path)
    assert overridden(done).get("max_position_embeddings") == positions
    assert option(done, "--max-model-len" if engine == "vllm" else "--context-length") == length


# ---------------------------------------------------------------------------------------------------------
# What lies in a folder


def patched(name: str, spec: Any, path: Path) -> Path:
    ropescale.patch_checkpoint(write_checkpoint(path / "source", CONFIGS[name]), path / "patched", spec)
    return path / "patched"


@pytest.mark.parametrize("stated", [{"dtype": "float32"}, {"torch_dtype": "float32"}, {"dtype": "bfloat16"}, {}])
def test_a_float32_checkpoint_is_halved_by_vllm_and_the_command_says_so(stated, tmp_path):
    folder = write_checkpoint(tmp_path, LLAMA | stated)
    assert ("--dtype float32" in export(folder, "vllm").commands[0].note) is ("float32" in stated.values())
    assert "--dtype" not in words_of(export(folder, "vllm"))


@pytest.mark.parametrize("spec", ["yarn:factor=4", "linear:factor=4", "ntk:factor=4", "llama3:factor=4", FACTORS])
def test_a_patched_folder_needs_a_length_and_nothing_else(spec, tmp_path):
    folder = patched("llama", spec, tmp_path)
    length = "4096" if spec == FACTORS else "16384"
    assert words_of(export(folder, "vllm")) == ["vllm", "serve", str(folder), "--max-model-len", length]
    served = ["python", "-m", "sglang.launch_server", "--model-path", str(folder), "--context-length", length]
    assert words_of(export(folder, "sglang")) == served
    for engine in ("transformers4", "transformers5"):
        [command] = export(folder, engine).commands
        assert command.text.splitlines()[-1] == f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})"
        assert "config" not in command.text


def test_a_model_as_its_makers_scaled_it_is_served_as_it_is_and_a_patched_one_from_its_original(tmp_path):
    folder = write_checkpoint(tmp_path / "scaled", CONFIGS["llama 3.1"])
    assert words_of(export(folder, "vllm"))[2:] == [str(folder), "--max-model-len", "131072"]
    assert export(folder, "vllm").rows == []
    told = overridden(export(patched("llama", "linear:factor=2", tmp_path), "vllm", "yarn:factor=4"))
    assert told["rope_parameters"] == make_plan(LLAMA, "yarn:factor=4").config["rope_parameters"]


def test_a_patched_dynamic_folder_is_served_as_the_table_of_its_longest_text(tmp_path):
    done = export(patched("llama", "dynamic:factor=4", tmp_path), "vllm")
    assert overridden(done)["rope_parameters"]["max_trained_positions"] == 4096
    assert overridden(done)["max_position_embeddings"] == 16384
    [switch] = [row for row in done.rows if row.field == "switch"]
    assert (switch.status, switch.computes) == ("recomputed", "one table, for 16,384 tokens")


def test_a_patched_phi3_gets_the_length_that_its_own_maximum_does_not_say(tmp_path):
    done = export(patched("phi3", "ntk-su:factor=4", tmp_path), "vllm")
    assert overridden(done)["max_position_embeddings"] == 16384
    assert overridden(done)["rope_parameters"]["short_mscale"] == 1.0
    assert option(done, "--max-model-len") == "16384"


# ---------------------------------------------------------------------------------------------------------
# Parity


ONE_TABLE = {"switch": ("recomputed", "one table, for 16,384 tokens")}
DEEPSEEKS = "deepseek_llama_scaling"
TRUNCATED = {"truncate": ("dropped", "true"), "attention factor": ("recomputed", "1.13863")}
DIFFERENT: dict[tuple[str, str, str], dict[str, tuple[str, str]]] = {
    ("llama", "yarn:factor=4", "vllm"): {},
    ("llama", "yarn:factor=4", "sglang"): {},
    ("llama", "yarn:factor=4", "llama.cpp"): {},
    ("llama", "yarn:factor=4", "transformers5"): {},
    ("llama", "yarn:factor=4", "transformers4"): {},
    ("llama", "yarn:factor=4,truncate=false", "llama.cpp"): {},  # as a table in the GGUF
    ("qwen2", "yarn:factor=4,truncate=false", "llama.cpp"): {"truncate": ("dropped", "true")},
    ("qwen2", "yarn:factor=4,attention_factor=1.5", "llama.cpp"): {},
    ("llama", "dynamic:factor=4", "sglang"): ONE_TABLE,
    ("llama", "dynamic:factor=4", "vllm"): ONE_TABLE,
    ("llama", "proportional:partial_rotary_factor=1,factor=4", "vllm"): {"factor": ("dropped", "1")},
    ("deepseek", "yarn:factor=4,attention_factor=1", "vllm"): {"attention factor": ("recomputed", DEEPSEEKS)},
    ("deepseek", "yarn:factor=4,attention_factor=1.5,truncate=false", "vllm"): TRUNCATED,
    ("deepseek", "yarn:factor=4,attention_factor=1.5", "sglang"): {},  # through attn_factor
    ("deepseek", "yarn:factor=4,mscale=1,mscale_all_dim=1", "vllm"): {},
    ("gpt-oss", "yarn:factor=64,attention_factor=1.2", "vllm"): {"attention factor": ("recomputed", "1.41589")},
}


@pytest.mark.parametrize(("name", "spec", "engine"), DIFFERENT)
def test_the_rows_that_are_not_honoured_are_these(name, spec, engine, tmp_path):
    done = exported(name, engine, spec, tmp_path)
    assert {row.field: (row.status, row.computes) for row in done.rows} == DIFFERENT[name, spec, engine]
    assert done.refusal is None


REFUSED = [
    ("llama", "dynamic:factor=4", "llama.cpp", "freeze it at a length, such as 16384, or use yarn or linear or ntk"),
    ("qwen2", FACTORS, "llama.cpp", "leaving base RoPE; serve it with transformers 5"),  # its length stays
    ("glm4", "ntk-su:factor=4", "vllm", "use yarn or linear or ntk, or serve it with transformers 5"),
    ("glm4", "ntk-su:factor=4", "sglang", "use yarn or linear or ntk, or serve it with transformers 5"),
    ("deepseek", "linear:factor=4", "vllm", "use yarn or ntk, or serve it with transformers 5"),
    ("gpt-oss", "linear:factor=64", "vllm", "use yarn, or serve it with transformers 5"),
    ("llama", "proportional:partial_rotary_factor=0", "vllm", "serve it with transformers"),
    ("llama", "proportional:partial_rotary_factor=0.5", "transformers4", "serve it with transformers 5"),
    ("mimo", "yarn:factor=2", "vllm", "layers of mimo_v2_flash; serve it with transformers 5"),
    ("minimax", "linear:factor=2", "vllm", "never scales the layers of minimax_m3_vl_text; serve it with"),
]


@pytest.mark.parametrize(("name", "spec", "engine", "way_out"), REFUSED)
def test_where_an_engine_cannot_there_is_no_command_but_a_way_out(name, spec, engine, way_out, tmp_path):
    done = exported(name, engine, spec, tmp_path)
    assert done.commands == []
    assert done.refusal and way_out in done.refusal
    assert done.rows[0].field == "frequencies" and done.rows[0].status in ("dropped", "unsupported")


SPECS = [*(f"{each}:factor=2" for each in ("yarn", "linear", "dynamic", "ntk-su", "llama3")), "dynamic-yarn"]
SPECS += ["yarn:factor=2,attention_factor=0.5", "proportional:partial_rotary_factor=0.5"]


WITHOUT_A_WAY = re.compile("no rotary pos|nothing can|whose defaults|changed through the|use a table|original length$")
"""The refusals that no schedule, option or engine leads past; the last two name a file or a number to give."""


def of_every_type() -> dict[str, dict[str, Any]]:
    """The configurations above, and those of all types of which the name alone gives the geometry."""
    found = dict(CONFIGS)
    for name in json.loads(OUTCOMES.read_text()):
        with suppress(ConfigError):
            found[f"every {name}"] = dict(Configuration.read({"model_type": name}).raw)
    return found


def error_of(folder: Path, engine: str, spec: Any, options: Mapping[str, Any]) -> RopescaleError | None:
    try:
        return export(folder, engine, spec, **options).error
    except RopescaleError as error:
        return error


@pytest.mark.parametrize("engine", ENGINES)
def test_every_piece_of_advice_leads_out_when_it_is_followed(engine, tmp_path):
    advised, followed = set(), set()
    for number, (name, config) in enumerate(of_every_type().items()):
        folder = write_checkpoint(tmp_path / name, config)
        for spec in (None, *(SPECS if name in CONFIGS else SPECS[number % 4 :: 4])):
            error = error_of(folder, engine, spec, {})
            assert error is None or error.advice or WITHOUT_A_WAY.search(str(error)), (name, spec, error)
            for way in error.advice if error else ():
                advised.add(way.text)
                for other in way.schedules or (spec,):
                    if (step := (name, way.engine, other, repr(way.options))) in followed:
                        continue
                    followed.add(step)
                    made, asked = folder, other
                    if other == "as-is":
                        made, asked = tmp_path / "as-is", None
                        ropescale.patch_checkpoint(folder, made, "as-is", force=True)
                    assert error_of(made, way.engine or engine, asked, way.options) is None, (name, spec, way)
    assert {text for text in advised if "serve it with transformers 5" in text} or engine == "transformers5"
    assert {"choose all layers to change them anyway", "compose with it"} <= advised


@pytest.mark.parametrize("name", CONFIGS)
def test_what_patch_advises_leads_out_when_it_is_followed(name, tmp_path):
    """Beside every difference, and in its refusals: the engine serves the folder that is patched as advised."""
    source, followed = write_checkpoint(tmp_path / "source", CONFIGS[name]), set()
    for spec, given in product(SPECS, ({}, replacing(name)) if replacing(name) else ({},)):
        try:
            plan = make_plan(CONFIGS[name], spec, **given)
            error = plan.unsavable
        except RopescaleError as refusal:
            error = refusal
        ways = [("transformers5", way) for way in error.advice] if error else []
        for engine in () if error else ENGINES:
            done = advice.export_of(engine, advice.patched(plan), plan)
            found = [(layers, each) for layers in layers_of(plan) for each in ENGINES[engine].differences(layers)]
            for layers, each in found:
                ways += [(engine, way) for way in advice.advice_on(each, layers, done, engine, plan) if each.warning]
        for engine, way in ways:
            for other in way.schedules or (spec,):
                options = way.options if way.schedules else {**given, **way.options}
                if (step := (way.engine or engine, other, repr(options))) not in followed:
                    followed.add(step)
                    ropescale.patch_checkpoint(source, tmp_path / "out", other, force=True, **{**given, **options})
                    assert error_of(tmp_path / "out", step[0], None, {}) is None, (spec, engine, way)


# ---------------------------------------------------------------------------------------------------------
# llama.cpp


_YARN = {"rope.scaling.type": "str:yarn", "rope.scaling.factor": "float:4"}
_YARN["rope.scaling.original_context_length"] = "int:4096"


TOLD = [
    ("qwen2", "yarn:factor=4", "", _YARN),
    ("llama", "linear:factor=2.5", "", {"rope.scaling.type": "str:linear", "rope.scaling.factor": "float:2.5"}),
    ("llama", "abf:rope_theta=500000", "", {"rope.freq_base": "float:500000"}),
    ("gemma3_text", "linear:factor=2", "", {"rope.scaling.type": "str:linear", "rope.scaling.factor": "float:2"}),
]
BETAS = "yarn:factor=4,beta_fast=16,beta_slow=2,attention_factor=2.2772588722239783"
DOUBLED = _YARN | {"rope.scaling.attn_factor": "float:2"}
TOLD.append(("qwen2", BETAS, "--yarn-beta-fast 16 --yarn-beta-slow 2 ", DOUBLED))


@pytest.mark.parametrize(("name", "spec", "betas", "keys"), TOLD)
def test_llama_cpp_is_told_the_schedule_and_the_length_in_the_keys_of_its_files(name, spec, betas, keys, tmp_path):
    """By --rope-freq-base and its like the windows of Gemma 2 keep their theta, and llama-server the trained length."""
    done = exported(name, "llama.cpp", spec, tmp_path / "made")
    keys = keys | {"context_length": f"int:{done.length}"}
    told = ",".join(f"{name.removesuffix('_text')}.{key}={value}" for key, value in keys.items())
    options = f"{betas}--override-kv {told}".split()
    assert words_of(done) == ["llama-server", "-m", "made.gguf", "-c", str(done.length), *options]


def test_what_llama_cpps_options_cannot_say_is_written_into_a_gguf(tmp_path):
    done = exported("llama", "llama.cpp", "ntk-su:factor=4", tmp_path / "made")
    write, serve = (shlex.split(command.text.replace("\\\n", "")) for command in done.commands)
    assert write == ["ropescale", "gguf", "made.gguf", "-o", "made-16384.gguf", "--schedule", "ntk-su:factor=4"]
    assert serve == ["llama-server", "-m", "made-16384.gguf", "-c", "16384"]
    done = export(patched("llama", "ntk-su:factor=4", tmp_path), "llama.cpp")
    assert done.commands[0].text.startswith("ropescale gguf source.gguf -o patched-16384.gguf --schedule ntk-su")
    table = list(ropescale.frequencies(CONFIGS["llama"], "dynamic:factor=4", length=8192)["all"].inv_freq)
    frozen = exported("llama", "llama.cpp", "dynamic:factor=4", tmp_path / "frozen", freeze_at=8192)
    written = patched("llama", {"name": "table", "inv_freq": table}, tmp_path / "tables")
    for done in (frozen, export(written, "llama.cpp")):
        assert json.loads(words_of(done)[-3])["inv_freq"] == pytest.approx(table) and str(done.length) in words_of(done)


TABLED = ["ntk-by-parts", "llama3", "yarn:truncate=false,beta_fast=4", "half.py::Half"]


@pytest.mark.parametrize("how", ["told", "patched"])
@pytest.mark.parametrize("spec", [f"{each}{',' if '=' in each else ':'}factor=4" for each in TABLED])
def test_the_gguf_command_writes_the_table_asked_for(spec, how, tmp_path, monkeypatch):
    config = LLAMA | {"hidden_size": 16, "num_attention_heads": 1, "head_dim": 16, "max_position_embeddings": 256}
    monkeypatch.chdir(tmp_path)
    shutil.copy(own_schedules.__file__, "half.py")
    folder = write_checkpoint(tmp_path / "made", config)
    table = ropescale.frequencies(folder, spec)["all"]
    if how == "patched":
        ropescale.patch_checkpoint(folder, tmp_path / "out", spec)
    done = export(tmp_path / "out", "llama.cpp") if how == "patched" else export(folder, "llama.cpp", spec)
    program, *words = shlex.split(done.commands[0].text.replace("\\\n", ""))
    write_keys(Path("made.gguf"))
    assert program == "ropescale" and main(words) == 0
    [written] = [each for each in gguf.GGUFReader(words[3]).tensors if each.name == "rope_freqs.weight"]
    plain = [10000.0 ** (-2 * i / 16) for i in range(8)]
    assert written.data.tolist() == pytest.approx([b / f for b, f in zip(plain, table.inv_freq)], rel=1e-6)


# ---------------------------------------------------------------------------------------------------------
# transformers


@pytest.mark.parametrize("spec", ["yarn:factor=8", "ntk-su:factor=4"])
def test_transformers_5s_code_runs_and_its_model_has_the_table(spec):
    names: dict[str, Any] = {}
    with quiet():
        exec(compile(export(CHECKPOINT, "transformers5", spec).commands[0].text, "export", "exec"), names)
    assert_same_tables(ropescale.frequencies(CHECKPOINT, spec), tables_of(names["model"].model.rotary_emb))


def test_transformers_5_stops_at_the_first_name_of_longrope(tmp_path):
    config = PHI3_128K | {"rope_scaling": PHI3_128K["rope_scaling"] | {"type": "su"}}
    with pytest.raises(KeyError, match="original_max_position_embeddings"):
        stock_config(config)  # renames it only after its checks
    assert "su; write longrope" in (export(write_checkpoint(tmp_path, config), "transformers5").refusal or "")


def test_transformers_4_is_told_in_its_own_keys_and_only_what_it_cannot_read(tmp_path):
    text = exported("gpt_neox", "transformers4", "yarn:factor=4", tmp_path).commands[0].text
    assert "text.rope_scaling = {'rope_type': 'yarn', 'factor': 4.0," in text and "rope_parameters" not in text
    done = export(write_checkpoint(tmp_path, in_v5(LLAMA, rope_theta=500000.0)), "transformers4")
    assert done.refusal.startswith("transformers 4 cannot compute this schedule (default for llama): does not read ")
    assert done.refusal.endswith("rope_parameters; patch it with the schedule as-is, which adds the keys of "
                                 "transformers 4, or serve it with transformers 5")  # fmt: skip


@pytest.mark.engines
@pytest.mark.parametrize("spec", ["yarn:factor=8", "ntk-su:factor=4", "llama3:factor=4"])
def test_transformers_4s_code_runs_there_and_its_model_has_the_table(spec):
    python = environment("transformers", f"transformers=={transformers4.ENGINE.version}")
    shown = "rotary = model.model.rotary_emb\nprint(json.dumps([rotary.inv_freq.tolist(), rotary.attention_scaling]))"
    code = f"import json\n{export(CHECKPOINT, 'transformers4', spec).commands[0].text}\n{shown}"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    inv_freq, scale = json.loads(done.stdout)
    table = ropescale.frequencies(CHECKPOINT, spec)
    assert_same_tables(table, {"all": (torch.tensor(inv_freq, dtype=torch.float64), scale)})


# ---------------------------------------------------------------------------------------------------------
# The command


def test_the_page_has_a_table_of_what_differs_or_says_that_nothing_does(tmp_path, ran):
    folder = write_checkpoint(tmp_path / "qwen2", CONFIGS["qwen2"])
    words = ["export", folder, "--for", "llama.cpp", "--schedule", "yarn:factor=4,truncate=false"]
    out, err = ran(*words, code=1)
    assert out.startswith("llama.cpp in llama-cpp-python 0.3.36: differs in truncate; its source was read.\n\n| field ")
    assert "| truncate | true     | dropped |\n\n```sh\n# " in out
    warned = "warning: llama.cpp: always rounds the ramp to whole pairs (truncate = true)\n"
    assert err == f"{warned}error: not the same: llama.cpp\n"

    words = ["export", write_checkpoint(tmp_path / "llama", LLAMA), "--for", "vllm", "--schedule", "yarn:factor=8"]
    done = json.loads(ran(*words, "--json").out)
    assert (done["engine"], done["version"], done["length"], done["served"]) == ("vLLM", "0.33.0", 32768, True)
    assert done["rows"] == []
    out, _ = ran(*words)
    assert out.startswith("vLLM 0.33.0: all fields honoured; served in 0.32.0.\n\n```sh") and "\n|" not in out
    [command] = done["commands"]
    assert command["text"].startswith("vllm serve ") and command["text"] in out
    assert '"factor": 8.0' in command["text"]  # the float that vLLM needs

    gemma = write_checkpoint(tmp_path / "gemma", CONFIGS["gemma3_text"])
    err = ran("export", gemma, "--for", "vllm", "--schedule", "yarn:factor=4").err
    assert err == "note: unchanged layers: sliding_attention\n"
    words = ["export", gemma, "--for", "llama.cpp", "--schedule", "yarn:factor=4,truncate=false"]
    assert "| layers " in ran(*words, code=1).out


def test_what_cannot_be_served_exits_with_1_and_prints_the_table(tmp_path, ran):
    words = ["export", write_checkpoint(tmp_path, LLAMA), "--for", "llama.cpp", "--schedule", "dynamic:factor=4"]
    out, err = ran(*words, code=1)
    assert "```" not in out and "\n\n| field" in out and ": differs in frequencies; " in out.splitlines()[0]
    assert err.startswith("error: llama.cpp cannot compute this schedule (dynamic for llama): has")
    assert err.count("\n") == 1
    assert json.loads(ran(*words, "--json", code=1).out)["served"] is False


# ---------------------------------------------------------------------------------------------------------
# All engines at a glance


def test_without_an_engine_there_is_a_line_for_each_and_the_exit_code_says_whether_all_are_the_same(tmp_path, ran):
    folder = write_checkpoint(tmp_path, CONFIGS["qwen2"])
    truncated, words = "yarn:factor=4,truncate=false", ["export", folder, "--schedule"]
    out, err = ran(*words, truncated, code=1)
    _, _, *lines, _, about = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]
    names = ["vLLM 0.33.0", "SGLang 0.5.23", "llama.cpp in llama-cpp-python 0.3.36", "mlx-lm 0.32.2"]
    assert [line[0] for line in lines] == [*names, "transformers 5.16 to 5.24", "transformers 4.57.1"]
    assert "largest relative difference from transformers of a frequency, of" in about[0]
    flag = "--max-model-len 16384 --hf-overrides"
    assert lines[0][1:] == ["yes", "yes", "0", "0", "0", "ran", flag]
    assert lines[2][1:3] == ["yes", "no"] and lines[2][-2:] == ["read", "-c 16384 --override-kv"]
    assert err == "error: not the same, or not known to be: llama.cpp; `--for` with one of them says more\n"
    both = [*words, truncated, "--for", "vllm", "--for", "mlx-lm"]
    assert [each["engine"] for each in json.loads(ran(*both, "--json").out)] == ["vLLM", "mlx-lm"]
    for engine, same in {"llama.cpp": False, "vllm": True}.items():
        assert json.loads(ran(*words, truncated, "--for", engine, "--json", code=int(not same)).out)["same"] is same
    assert ran(*words, "dynamic-yarn", code=2).out == ""


TRANSFORMERS = ("transformers5", "transformers4")


OFF = [
    ("qwen2", "yarn:factor=4,truncate=false", "llama.cpp", "yarn:factor=4", (0.0, 0.0)),
    ("qwen2", "yarn:factor=4,truncate=false,beta_fast=16", "llama.cpp", "yarn:factor=4,beta_fast=16", (0.0, 0.0)),
    ("dbrx", "yarn:factor=4", "vllm", None, (1 - 1 / 1.1386294, 0.0)),  # base RoPE; 0.1 ln 4 + 1
    ("deepseek", "yarn:factor=4,attention_factor=1.5", "vllm", "yarn:factor=4", (1 - 1.1386294 / 1.5, 0.0)),
    ("deepseek", "yarn:factor=4,mscale=1,mscale_all_dim=1", "transformers5", "yarn:factor=4", (0.0, 0.0)),
    ("minicpm3", "yarn:factor=4,mscale=1,mscale_all_dim=1", "vllm", "yarn:factor=4", (0.0, 1 - 1.1386294**-2)),
]


@pytest.mark.parametrize(("name", "spec", "engine", "computed", "scales"), OFF)
def test_how_far_an_engine_is_off_is_the_distance_of_stock_tables(name, spec, engine, computed, scales, tmp_path):
    config = CONFIGS.get(name) or dict(Configuration.read({"model_type": name}).raw)
    configs = (config if each is None else make_plan(config, each).config for each in (spec, computed))
    wanted, own = (stock_tables(each)["all"][0] for each in configs)
    away = export(write_checkpoint(tmp_path, config), engine, spec).distance
    assert away.frequencies == pytest.approx(float((own / wanted - 1).abs().max()), rel=1e-4, abs=1e-6)
    assert (away.attention_factor, away.softmax_scale) == pytest.approx(scales, rel=1e-5, abs=1e-12)


def test_a_table_that_should_change_with_the_length_is_furthest_off_at_the_trained_one(tmp_path):
    """Dynamic NTK's at four times the length, against the base (closed form); llama.cpp's base at the longest."""
    power = (4 * 4 - (4 - 1)) ** (64 / 62)  # the base of a text of 16,384 tokens, as a multiple of theta
    slowest = power ** (-62 / 64)
    for engine, off in (("vllm", 1 - slowest), ("llama.cpp", 1 / slowest - 1)):
        away = exported("llama", engine, "dynamic:factor=4", tmp_path / engine).distance
        assert away.frequencies == pytest.approx(off)


@pytest.mark.slow
def test_no_line_contradicts_the_command_for_one_engine(tmp_path, capsys):
    """Of all types and eight schedules, and of every model as it is: the same claim, code, ground and options."""
    compared = 0
    for name, config in of_every_type().items():
        folder = str(write_checkpoint(tmp_path / name, config))
        for spec in (None, *SPECS):
            words = ["export", folder, "--json", *(["--schedule", spec] if spec else [])]
            code, lines = main(words), capsys.readouterr().out
            for key, line in zip(ENGINES, json.loads(lines or "[]")):
                alone = main([*words, "--for", key])
                assert json.loads(capsys.readouterr().out) == line
                assert line["same"] is (alone == 0)
                assert not line["same"] or (line["loads"] and line["ground"] in ("ran", "read"))
                assert line["loads"] is not False or line["refusal"]
                assert line["options"].partition(" ")[0] in "".join(each["text"] for each in line["commands"])
                assert bool(line["options"]) is bool(line["commands"]) or key in ("mlx-lm", *TRANSFORMERS)
                away = line["distance"].values()  # null: not known
                assert all(number is not None and number < 1e-9 for number in away) is line["same"], (name, spec, key)
                compared += 1
            assert code == 2 or code == int(not all(line["same"] for line in json.loads(lines))), (name, spec)
    assert compared > 5000


def test_an_adapter_is_to_be_merged_before_it_is_served(tmp_path, refused):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    said = refused("export", tmp_path, "--for", "vllm")
    assert said.endswith("is a PEFT adapter; merge it into its base (merge_and_unload), and export the saved result")


WRONG = [
    (["--for", "vllm", "--factor", "4"], "factor needs a schedule; name one, such as yarn"),
    (["--for", "vllm", "--schedule", "as-is"], "as-is changes nothing; leave the schedule out"),
    (["--for", "vllm", "--schedule", "dynamic-yarn"], "no configuration file can express"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_usage_exits_with_2_and_one_line(words, message, tmp_path, ran):
    out, err = ran("export", str(write_checkpoint(tmp_path, LLAMA)), *words, code=2)
    assert out == ""
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


# ---------------------------------------------------------------------------------------------------------
# No claim without its ground


ZORBLAX = LLAMA | {"model_type": "zorblax", "architectures": ["ZorblaxForCausalLM"]}
ODD = [LLAMA | {"architectures": [name]} for name in ("HydraModel", "LlamaBidirectionalModel")]
ODD += [LLAMA | {"model_type": "zorblax", "architectures": ["LlamaForCausalLM"]}]
ODD += [ZORBLAX | {"rope_theta": None, "rope_parameters": {key: {"rope_theta": 5e5} for key in ("full", "sliding")}}]
WRAPPED = {"model_type": "zorblax", "architectures": ["ZorblaxForConditionalGeneration"], "language_config": LLAMA}


@pytest.mark.parametrize("config", [ZORBLAX, WRAPPED, {"model_type": 9999 * "z", "language_config": LLAMA}, *ODD])
@pytest.mark.parametrize("engine", ["transformers5", "transformers4"])
def test_of_a_type_or_class_that_nothing_has_it_is_not_known_what_is_computed(engine, config, tmp_path, capsys):
    folder = write_checkpoint(tmp_path, config)
    assert main(["export", str(folder), "--for", engine, "--schedule", "yarn:factor=2"]) == 1
    out, err = capsys.readouterr()
    assert "not known what it computes." in out and "from_pretrained" in out and "honoured" not in out
    assert "it is not known what the" in err
    assert main(["export", str(folder), "--for", "vllm", "--schedule", "yarn:factor=2"]) == 1
    out, of_vllm = capsys.readouterr()
    assert not any(words in out + of_vllm for words in ("served in", "serve it with", "lacks llama"))
    assert len(err + of_vllm) < 1000


def test_a_language_model_whose_type_its_wrappers_class_replaces_is_known_to_transformers(tmp_path):
    """Kimi K2.5, as it is published; its class reads kimi_k2 as deepseek_v3."""
    config = {"model_type": "kimi_k25", "text_config": DEEPSEEK | {"model_type": "kimi_k2"}}
    done = export(write_checkpoint(tmp_path, config), "transformers5", "yarn:factor=4")
    assert (done.rows, done.how, done.error) == ([], "run", None)
    planned = make_plan(config, "yarn:factor=4").config
    assert_same_tables(ropescale.frequencies(config, "yarn:factor=4"), stock_tables(planned))


CHUNKED = [
    ("llama.cpp", "llama4_text", {"attention_chunk_size": 8192}, True),
    ("llama.cpp", "llama4_text", {"attention_chunk_size": 4096}, False),  # llama4.cpp has 8192 written in
    ("vllm", "qwen2", {}, True),
    ("vllm", "qwen2", {"dual_chunk_attention_config": {"chunk_size": 1024}}, False),  # another rotary layer
    ("sglang", "qwen2", {"dual_chunk_attention_config": {"chunk_size": 1024}}, False),
]


@pytest.mark.parametrize(("engine", "name", "changed", "known"), CHUNKED)
def test_attention_in_chunks_is_claimed_only_as_the_engine_has_it(engine, name, changed, known, tmp_path):
    done = export(write_checkpoint(tmp_path, LLAMA | {"model_type": name} | changed), engine)
    assert (done.error is None, done.how != "not known") == (known, known)


OUTSIDE = [
    ("llama3", None, "llama.cpp", "its converter stops, or takes 8,192 tokens, because"),
    ("yarn", None, "llama.cpp", "its converter stops, or takes 8,192 tokens, because"),
    ("llama3", "top", "transformers4", "stops without original_max_position_embeddings in rope_scaling"),
    ("yarn", "top", "transformers4", "original length where it is stated, and takes 2,048 tokens"),
    ("longrope", "inside", "transformers4", "original length where it is stated, and takes 2,048 tokens"),
    ("yarn", None, "mlx-lm", "'original_max_position_embeddings': 2048"),
    ("llama3", "top", "mlx-lm", "'original_max_position_embeddings': 512"),
    ("llama3", "inside", "mlx-lm", "mlx_lm.server"),
]


@pytest.mark.parametrize(("kind", "original", "engine", "said"), OUTSIDE)
def test_an_original_length_where_no_engine_looks_is_given_or_named(kind, original, engine, said, tmp_path, capsys):
    lists = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    scaling = {"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **lists}
    config = LLAMA | {"max_position_embeddings": 2048, "rope_scaling": scaling}
    if original:
        (scaling if original == "inside" else config)["original_max_position_embeddings"] = 512
    folder = write_checkpoint(tmp_path, config)
    assert main(["export", str(folder), "--for", engine]) == (engine != "mlx-lm")
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "transformers5"])
def test_a_factor_that_transformers_5_alone_derives_or_takes_whole_is_written(engine, tmp_path, ran):
    null = LLAMA | {"max_position_embeddings": 16384, "rope_scaling": yarn(4.0, rope_type="yarn") | {"factor": None}}
    out, err = ran("export", write_checkpoint(tmp_path, null), "--for", engine, code=1)
    assert "was read." in out and "which is null in config.json (write 4); serve it with transformers 5" in err
    folder = write_checkpoint(tmp_path, null | {"rope_scaling": {"type": "linear", "factor": 4}})
    out = ran("export", folder, "--for", engine).out
    assert ('"factor": 4.0' in out) is (engine in ("vllm", "sglang")) and "all fields honoured" in out


NEOX = plain("gpt_neox", 256, 2, 2048)


OLDER = [
    (LLAMA, {"rope_theta": 10000.0}, "transformers4", True),
    (LLAMA, {"rope_theta": 50000.0}, "transformers4", False),
    (plain("mixtral", 128, 2, 4096), {"rope_theta": 10000.0}, "transformers4", False),  # its own default is 1e6
    (NEOX, {"partial_rotary_factor": 0.5}, "transformers4", False),
    (NEOX, {"partial_rotary_factor": 0.5}, "llama.cpp", False),
]


@pytest.mark.parametrize(("config", "stated", "engine", "reads"), OLDER)
def test_a_version_5_file_is_for_older_code_where_its_class_agrees(config, stated, engine, reads, tmp_path):
    folder = write_checkpoint(tmp_path / "M", in_v5(config, **stated))
    done = export(folder, engine)
    assert (done.refusal is None) == reads and (reads or "patch it with the schedule as-is" in done.refusal)
    if not reads:
        ropescale.patch_checkpoint(folder, tmp_path / "P", "as-is")
        assert export(tmp_path / "P", engine).is_same


@pytest.mark.parametrize(("name", "whole"), [("qwen3_vl", True), ("qwen3_vl_moe", False)])
def test_sglang_is_told_a_schedule_where_its_model_file_reads_it(name, whole, tmp_path):
    """Loading copies the inner keys to the top level before it takes overrides, and qwen3_vl.py reads those."""
    config = {"model_type": name, "text_config": LLAMA | {"model_type": f"{name}_text"}}
    done = export(write_checkpoint(tmp_path, config), "sglang", "yarn:factor=2")
    told = overridden(done)
    assert done.error is None and done.rows == []
    assert ({**told, "text_config": None} == {**told["text_config"], "text_config": None}) is whole


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_sglang_is_told_a_schedule_at_the_top_level_of_a_flat_file(name, tmp_path):
    told = overridden(export(write_checkpoint(tmp_path, LLAMA | {"model_type": name}), "sglang", "yarn:factor=2"))
    assert told["rope_parameters"]["factor"] == 2 and "factor" not in told


def test_the_length_that_patch_says_to_pass_is_the_one_of_the_command(tmp_path):
    source = write_checkpoint(tmp_path / "source", LLAMA)
    spec = FACTORS | {"attention_factor": 1.0}
    done = ropescale.patch_checkpoint(source, tmp_path / "out", spec, target_length=16384)
    [said] = [text for text in done.warnings if "--max-model-len" in text]
    assert said.split("--max-model-len ")[1] == option(export(tmp_path / "out", "vllm"), "--max-model-len") == "16384"


def test_a_wrapper_is_known_under_the_class_that_published_files_name(tmp_path):
    text = LLAMA | {"model_type": "qwen3_5_text"}
    config = {"model_type": "qwen3_5", "text_config": text, "architectures": ["Qwen3_5ForConditionalGeneration"]}
    assert export(write_checkpoint(tmp_path, config), "vllm").error is None


@pytest.mark.parametrize("name", "qwen2_vl qwen2_5_vl qwen3_vl glm4v paddleocr_vl deepseek_v4".split())
def test_a_type_of_the_page_of_models_is_not_called_unknown(name, tmp_path, ran):
    inner = {} if name == "deepseek_v4" else {"text_config": LLAMA | {"model_type": f"{name}_text"}}
    folder = write_checkpoint(tmp_path / "source", {"model_type": name, **inner})
    said = ran("patch", folder, "-o", tmp_path / "out", "--schedule", "ntk:factor=2", "--layers", "all", "--dry-run")
    assert "unknown to ropescale" not in said.err and "transformers 4: would" not in said.err


@pytest.mark.parametrize("engine", ENGINES)
def test_every_claim_of_every_type_has_its_ground(engine):
    """A table of the engine's code, or of this transformers, has the type; else nothing is claimed."""
    for name in json.loads(OUTCOMES.read_text()):
        try:
            configuration = Configuration.read({"model_type": name})
            kinds = layers_in(configuration, 4096)
        except ConfigError:  # does not rotate, or its default lacks a key
            continue
        done = claimed(ENGINES[engine], as_it_lies("MODEL", configuration, 4096), {})
        grounds = {
            **{key: partial(_is_read, key) for key in ("vllm", "sglang")},
            "mlx-lm": lambda each: mlx_lm.built(each, each.kind) is not None,
            "llama.cpp": lambda each: llama_cpp.architecture(each) is not None,
            "transformers5": lambda each: model_code.is_in_transformers(each.model_type),
            "transformers4": lambda each: bool({each.model_type, each.whole_type} & transformers4.TYPES),
        }
        if done.refusal is None and done.how != "not known":
            assert all(map(grounds[engine], kinds)), name


def test_the_page_counts_the_claims(repository):
    assert claims.table() in (repository / "docs" / "engines.md").read_text()


def _is_read(engine: str, layers: Layers) -> bool:
    """Whether the engine's model file was run for the type, and asked for the table of transformers."""
    if (whose := model_code.code(engine, layers)) != "own":
        return whose == "transformers"
    return model_code.built(engine, layers) == ""


ASKED = [
    ("vllm", "qwen3", "yarn:factor=2", ""),
    ("vllm", "dbrx", "yarn:factor=2", "base"),  # dbrx.py passes a theta alone
    ("sglang", "gemma2", "linear:factor=2", "base"),  # gemma2.py, too
    ("vllm", "llama4_text", "linear:factor=2", None),  # its file does not run without the rest of vLLM
    ("sglang", "glm4", "yarn:factor=2", ""),  # half of a head
]


@pytest.mark.parametrize(("engine", "name", "spec", "table"), ASKED)
def test_what_an_engines_model_file_asks_for_is_the_claim(engine, name, spec, table, tmp_path):
    layers = "all" if name == "llama4_text" else "full"
    done = export(write_checkpoint(tmp_path, {"model_type": name}), engine, spec, layers=layers)
    assert (done.refusal is None, done.how == "not known") == (table != "base", table is None)
    assert not done.rows or table != ""


def test_export_says_the_same_of_a_patched_folder_and_of_its_source_under_the_schedule(tmp_path):
    """Of every type with a table of its own, in the older keys of its class where there are several tables."""
    measured = 0
    for model_type, entry in class_defaults.load().items():
        if not entry or "text" in entry or (layers := _rotating(model_type)) is None:
            continue
        thetas = entry["default_theta"] if isinstance(entry.get("default_theta"), dict) else {}
        keys = {name: kinds[0] for name, kinds in entry.get("v4", {}).items() if name in class_defaults.THETA_NAMES}
        older = {name: thetas[kind] for name, kind in keys.items() if kind in thetas}
        source, out = (tmp_path / f"{model_type}-{name}" for name in ("source", "out"))
        write_checkpoint(source, {"model_type": model_type, **older})
        ropescale.patch_checkpoint(source, out, "yarn:factor=2", **layers)
        for engine in ENGINES:
            patched, asked = export(out, engine), export(source, engine, "yarn:factor=2", **layers)
            assert (patched.refusal is None, patched.rows) == (asked.refusal is None, asked.rows), (model_type, engine)
        measured += 1
    assert measured >= 110


def _rotating(model_type: str) -> dict[str, Any] | None:
    """Returns the options with which a default model of a type is patched, or None if it is refused."""
    for options in ({}, {"replace_scaling": True}, {"layers": "all"}):
        with suppress(ropescale.RopescaleError):
            make_plan({"model_type": model_type}, "yarn:factor=2", **options)
            return options
    return None


@pytest.mark.parametrize(("scale", "rows"), [(1.0, []), (1.2, ["attention factor"])])
def test_vllms_amplitude_of_deepseek_v4_is_always_1(scale, rows, tmp_path):
    spec = f"yarn:factor=4,attention_factor={scale}"
    done = export(write_checkpoint(tmp_path, {"model_type": "deepseek_v4"}), "vllm", spec, layers="compress")
    assert [row.field for row in done.rows if row.layers == "compress" and row.status != "not known"] == rows
