"""Draft heads and MTP layers: they are named, a head gets its target's table, and `export` says what keeps them."""

import json
import shlex
from typing import Any

import pytest
from configurations import DEEPSEEK, LLAMA, LLAMA31, write_checkpoint
from planning import export
from rotary_modules import assert_same_tables, stock_tables

import ropescale
from ropescale.configs.configuration import Configuration
from ropescale.engines import ENGINES
from ropescale.exporting import exports

EAGLE3 = LLAMA31 | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 256}
EAGLE3["max_position_embeddings"] = 2048
MTP = DEEPSEEK | {"num_nextn_predict_layers": 1}
SPECULATORS = {"speculators_model_type": "eagle3", "transformer_layer_config": LLAMA | {"rope_scaling": None}}
INSIDE = {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1}


DRAFTING = [
    (EAGLE3, "eagle3 head"),
    (LLAMA | {"draft_vocab_size": 256}, "eagle3 head"),
    (LLAMA | {"architectures": ["LlamaForCausalLMEagle"]}, "eagle head"),
    (LLAMA | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, "dflash head"),
    (LLAMA | {"architectures": ["DeepseekV3ForCausalLMNextN"]}, "mtp head"),
    (SPECULATORS, "eagle3 head"),
    (LLAMA | {"speculators_model_type": None}, ""),
    (MTP, "1 MTP layer"),
    (LLAMA | {"model_type": "minimax_m2", "num_mtp_modules": 3}, "3 MTP layers"),
    ({"model_type": "qwen3_5", "text_config": INSIDE}, "1 MTP layer"),
    (LLAMA | {"num_nextn_predict_layers": 0}, ""),
    (LLAMA | {"architectures": ["Eagle2_5_VLForConditionalGeneration"]}, ""),
    (LLAMA | {"num_nextn_predict_layers": "1", "architectures": None}, ""),
]


@pytest.mark.parametrize(("config", "named"), DRAFTING)
def test_inspect_names_what_drafts(config, named, tmp_path, ran):
    err = ran("inspect", write_checkpoint(tmp_path, config)).err
    assert (f"warning: {named}: drafts must rotate like their target" in err) is bool(named), err
    assert "drafts" not in err or named


@pytest.mark.parametrize("config", [{"model_type": "medusa", "hidden_size": 64}, {"speculators_model_type": "mlp"}])
def test_a_head_without_attention_needs_no_change(config, tmp_path, refused):
    folder = write_checkpoint(tmp_path, config)
    for words in (["inspect"], ["patch", "--schedule", "yarn:factor=2", "--dry-run"], ["export"]):
        assert f"a {next(iter(config.values()))} head does not rotate, and needs no" in refused(*words, folder)


@pytest.mark.parametrize("spec", [None, "yarn:factor=4", "ntk:factor=4", "linear:factor=4"])
def test_a_head_gets_the_table_and_the_window_of_its_target(spec, tmp_path, ran):
    """Llama 3.1's head, published with 2,048 positions, and heads of a Llama that is extended by each schedule."""
    target = write_checkpoint(tmp_path / "target", LLAMA31 if spec is None else LLAMA)
    made = EAGLE3 if spec is None else LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "rope_scaling": None}
    source = write_checkpoint(tmp_path / "head", made, files={"model.safetensors": b"weights"})
    if spec is not None:
        ropescale.patch_checkpoint(target, tmp_path / "patched", spec)
        target = tmp_path / "patched"
    out, err = ran("patch", source, "-o", tmp_path / "out", "--like", target)
    assert "config.json (patched)" in out and "of its target" not in err and "vLLM" not in err
    head, wanted = (json.loads((each / "config.json").read_text()) for each in (tmp_path / "out", target))
    assert_same_tables(ropescale.frequencies(tmp_path / "out", "as-is"), stock_tables(wanted))
    assert_same_tables(ropescale.frequencies(target, "as-is"), stock_tables(head))
    assert head["max_position_embeddings"] == wanted["max_position_embeddings"]
    assert {key: value for key, value in made.items() if not key.startswith(("rope", "max"))}.items() <= head.items()
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"weights"
    again = ropescale.patch_checkpoint(tmp_path / "out", None, like=target, dry_run=True)
    assert "config.json" not in again.changes
    assert Configuration.read(head).meant_length == Configuration.read(wanted).meant_length


def test_a_head_of_the_speculators_library_gets_the_table_where_vllm_reads_it(tmp_path, ran):
    ropescale.patch_checkpoint(write_checkpoint(tmp_path / "source", LLAMA), tmp_path / "target", "yarn:factor=4")
    head, out = write_checkpoint(tmp_path / "head", SPECULATORS), tmp_path / "out"
    said = ran("patch", head, "-o", out, "--like", tmp_path / "target").err
    assert f"next: ropescale inspect {out}" in said and "unknown" not in said
    written = json.loads((out / "config.json").read_text())
    assert written.keys() == SPECULATORS.keys()
    served = ropescale.frequencies(tmp_path / "target", "as-is")
    assert_same_tables(served, stock_tables(written["transformer_layer_config"]))
    assert "cannot build a head of the speculators library" in ran("verify", out, code=1).err
    said = ran("patch", tmp_path / "source", "--like", tmp_path / "target", "--dry-run").err
    assert "config.json does not say that this is a draft head" in said


def test_a_target_whose_class_states_its_table_gives_it_all_the_same(tmp_path):
    qwen2 = {"model_type": "qwen2", "hidden_size": 128, "num_attention_heads": 2}
    target = write_checkpoint(tmp_path / "target", qwen2)
    made = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 512}
    ropescale.patch_checkpoint(write_checkpoint(tmp_path / "head", made), tmp_path / "out", like=target)
    head = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (head["max_position_embeddings"], head["rope_theta"]) == (32768, 10000.0)


NO_WAYS = [
    ([], "name either a schedule or the target of a draft head (--schedule, --like)"),
    (["--schedule", "yarn:factor=2", "--like", "TARGET"], "name either a schedule or the target of a draft head"),
    (["--like", "TARGET"], "differ in theta or in the number of rotating coordinates, so the head was"),
    (["--like", "HEAD", "--factor", "2"], "factor has no effect: a draft head gets its target's table;"),
    (["--like", "nowhere"], "nowhere"),
]


@pytest.mark.parametrize(("words", "message"), NO_WAYS)
def test_what_is_no_way_to_patch_a_head_is_refused(words, message, tmp_path, refused):
    places = {"HEAD": write_checkpoint(tmp_path / "head", EAGLE3)}
    places["TARGET"] = write_checkpoint(tmp_path / "other", LLAMA)
    words = [places.get(word, word) for word in words]
    assert message in refused("patch", places["HEAD"], "-o", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def noted(config: dict[str, Any], engine: str, path: Any, *spec: str) -> str:
    """What `export` notes on drafts."""
    [note] = [text for text in export(write_checkpoint(path, config), engine, *spec).notes if "MTP" in text]
    return note


def test_export_says_which_way_keeps_a_models_mtp_layers_in_step(tmp_path):
    schedule = "yarn:factor=4"
    note = noted(MTP, "vllm", tmp_path / "model", schedule)
    assert "--hf-overrides does not reach the draft" in note and note.endswith("patch it")
    assert "--json-model-override-args reaches the draft as well" in noted(MTP, "sglang", tmp_path / "model", schedule)
    ropescale.patch_checkpoint(tmp_path / "model", tmp_path / "patched", schedule)
    own = json.loads((tmp_path / "patched" / "config.json").read_text())
    note = noted(own, "vllm", tmp_path / "again")
    told = shlex.split(note.partition(": ")[2])
    assert told[0] == "--speculative-config" and "overrides" not in note
    assert json.loads(told[1]) == {"method": "mtp", "num_speculative_tokens": 1}
    assert noted(own, "sglang", tmp_path / "again").endswith(": --speculative-algorithm NEXTN")


def test_of_a_head_nothing_is_claimed_and_no_engine_is_advised(tmp_path, ran):
    folder = write_checkpoint(tmp_path, EAGLE3)
    for done in exports(folder):
        assert (done.how, done.commands, done.is_same, done.advice) == ("not known", [], False, ()), done.engine
    for engine in ENGINES:
        out, err = ran("export", folder, "--for", engine, code=1)
        assert "honoured" not in out and "draft heads, which run only beside their target" in err
        assert "lacks" not in err and "serve it with" not in err
    _, err = ran("export", folder, code=1)
    flags = '--speculative-config \'{"method": "eagle3", "model": "HEAD", "num_speculative_tokens": 3}\''
    assert f"note: vLLM, eagle3 head: {flags}\n" in err
    assert "note: SGLang, eagle3 head: --speculative-algorithm eagle3 --speculative-draft-model-path HEAD\n" in err
