"""The table of class defaults is what the installed transformers has, and gives the tables that it builds."""

import json
import warnings
from collections import Counter

import pytest
import transformers
from coverage_reading import REFUSALS, ways
from generate_class_defaults import generate, generate_sections
from planning import make_plan, read_back
from refusing import one_error
from rotary_modules import assert_same_tables, quiet, stock_config, stock_tables
from transformers import CONFIG_MAPPING

from ropescale.cli.main import main
from ropescale.configs import class_defaults
from ropescale.configs.class_defaults import EARLIER, LOWEST, release, table_of
from ropescale.configs.configuration import read_rope
from ropescale.errors import ConfigError, RopescaleError

LOADED = class_defaults.load().items()
TYPES = sorted(key for key, entry in LOADED if entry and "text" not in entry and key in CONFIG_MAPPING)

# Default configurations that have no geometry to read, with a word of the error.
NOT_READABLE = {
    "blt": "four sub-models",  # keeps a rotary embedding in each, and none of its own
    "recurrent_gemma": "max_position_embeddings",  # its class has no such field; --original-length gives it
    "granitemoehybrid": "position_embedding_type is null",  # which its releases with rotary embeddings set to rope
    "zamba2": "use_mem_rope is false",
    "cohere_compass_text": "no layer",  # its class's default has no rope parameters, and builds no rotary module either
}

READABLE = [key for key in TYPES if key not in NOT_READABLE]

# Types of transformers 5.24, which the table lacks: `patch` calls them unknown.
CAME_LATER = {"apertus1p5_text", "dory", "exaone", "inkling2_loop_text", "lara_mini", "sarvam_mla", "sarvam_moe"}


def default_config(model_type: str) -> dict:
    with quiet(), warnings.catch_warnings(action="ignore"):
        return json.loads(json.dumps(CONFIG_MAPPING[model_type]().to_dict(), default=str))


def test_regenerating_the_table_from_the_installed_transformers_changes_nothing():
    with warnings.catch_warnings(action="ignore"):
        generated = json.loads(json.dumps(generate()))
    stored = class_defaults.load()
    is_newest = release(transformers.__version__) > max(map(release, json.loads(EARLIER.read_text())))
    looked_at = generated.keys() | stored.keys() if is_newest else {*generated}  # the table has types of later versions
    different = [key for key in looked_at - CAME_LATER if generated.get(key) != stored.get(key)]
    assert not different, f"run tests/tools/generate_class_defaults.py; these changed: {different}"


@pytest.mark.slow
def test_keys_are_changed_only_in_a_section_that_the_class_of_the_type_reads():
    with warnings.catch_warnings(action="ignore"):
        found = generate_sections(class_defaults.load())
        stored = class_defaults.sections()
        assert {key: stored.get(key, paths) for key, paths in found.items()} == found
        flat = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9, "max_position_embeddings": 128}
        flat["rope_parameters"] = {"rope_type": "default", "rope_theta": 5000.0}
        lost, refused = [], Counter()
        for model_type in found:
            for config in ({"model_type": model_type, **flat}, {"model_type": model_type, "llm_config": flat}):
                try:
                    plan = make_plan(config, "linear:factor=4")
                except RopescaleError as error:
                    refused["llm_config" in config, "transformers reads" in str(error)] += 1
                    continue
                try:
                    built = CONFIG_MAPPING[model_type].from_dict(plan.config)
                except Exception:  # the class takes no model of this size
                    continue
                theirs = built.get_text_config(decoder=True).rope_parameters
                if class_defaults.is_nested(theirs):
                    theirs = next(iter(theirs.values()))
                if (theirs.get("factor"), theirs.get("rope_theta")) != (4.0, 5000.0):
                    lost.append((model_type, theirs))
    assert not lost
    assert refused[True, True] > 500 and refused[False, True] > 400


def test_a_version_has_the_entries_of_the_last_one_before_they_changed():
    earlier = {"5.17.0": {"llama": {"head_dim": 1}, "phi": None}, "5.9.1": {"phi": {"head_dim": 2}}}
    newest = table_of(earlier, "5.17.1")
    assert newest == table_of(earlier, "") == json.loads(class_defaults.PATH.read_text())
    between, oldest = table_of(earlier, "5.17.0.dev0"), table_of(earlier, "5.9")
    assert between == newest | {"llama": {"head_dim": 1}, "phi": None}
    assert oldest == between | {"phi": {"head_dim": 2}}


@pytest.mark.parametrize(("version", "partial"), [("5.16.1", 0.5), ("5.17.0", 0.4)])
def test_before_5_17_a_scaled_phi_turned_its_class_s_own_part_of_a_head(monkeypatch, version, partial):
    monkeypatch.setattr(class_defaults, "load", lambda: table_of(json.loads(EARLIER.read_text()), version))
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.4}
    phi, plain = {"model_type": "phi", "rope_parameters": scaled}, scaled | {"rope_type": "default"}
    others = ({"rope_parameters": plain}, {"partial_rotary_factor": 0.4})
    for config, share in ((phi, partial), *((phi | other, 0.4) for other in others)):
        assert read_rope(config)["all"].rotary_dim == int(64 * share)


def test_a_transformers_that_is_too_old_is_said_in_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.57.6")
    class_defaults.load.cache_clear()
    try:
        assert main(["patch", str(tmp_path), "--schedule", "yarn:factor=2", "--dry-run"]) == 2
    finally:
        class_defaults.load.cache_clear()
    one_error(capsys.readouterr().err, "transformers 4.57.6", f"needs {LOWEST} or newer", "pip install")


def test_the_table_covers_the_whole_mapping():
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert len(READABLE) >= 100
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - CAME_LATER <= set(class_defaults.load())


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "unstated"])
@pytest.mark.parametrize("model_type", READABLE)
def test_a_default_configuration_reads_as_the_table_that_transformers_builds(model_type, saved):
    config = default_config(model_type) if saved else {"model_type": model_type}
    assert_same_tables(read_back(config), stock_tables(config))


# What makes three of them readable, in the configuration or as the trained length.
SAID = {"zamba2": ({"use_mem_rope": True}, None), "recurrent_gemma": ({}, 8192)}
SAID["granitemoehybrid"] = {"position_embedding_type": "rope"}, None


@pytest.mark.parametrize("model_type", NOT_READABLE)
def test_a_default_without_geometry_is_refused_with_the_reason_until_what_it_lacks_is_said(model_type):
    config = default_config(model_type)
    with pytest.raises(ConfigError, match=NOT_READABLE[model_type]):
        read_rope(config)
    if model_type in SAID:
        switch, trained = SAID[model_type]
        assert_same_tables(read_back(config | switch, original_length=trained), stock_tables(config | switch))


# Types that read transformers 4's keys in ways of their own, and some that do not.
A_FEW = (
    "llama",  # turns whole heads
    "stablelm",  # part of them
    "gpt_neox",  # under names of its own
    "deepseek_v3",
    "apertus",  # scaled by its makers
    "cohere2_moe",  # looks at rope_theta when there are no rope_parameters
    "gemma3_text",
    "olmo3",
    "deepseek_v4",
    "dots3_note_text",
)


MOST = [pytest.param(key, marks=pytest.mark.slow) for key in TYPES if key not in ("blt", *A_FEW)]


@pytest.mark.parametrize("model_type", [*(key for key in A_FEW if key in TYPES), *MOST])
def test_every_way_of_writing_reads_as_the_table_that_transformers_builds_or_is_refused(model_type):
    """With each key of transformers 4, without rope_parameters, beside them and beside rope_scaling."""
    outcomes = Counter(outcome(config) for config in ways(model_type))
    assert outcomes["the same"] >= 16, outcomes


def outcome(config: dict) -> str:
    """What becomes of one configuration; raises an AssertionError where it reads otherwise than stock's."""
    try:
        expected = stock_tables(config)
    except Exception:
        return "stock transformers cannot"
    if config["model_type"] == "mistral4" and (config.get("rope_parameters") or {}).get("rope_type") == "default":
        return "stock transformers cannot"  # its table is of whole heads, and attention turns a slice
    try:
        found = read_back(config, original_length=8192 if config["model_type"] == "recurrent_gemma" else None)
    except ConfigError as error:
        return next(words for words in REFUSALS if words in str(error))
    assert_same_tables(found, expected)
    return "the same"


@pytest.mark.parametrize("said", [{}, {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}, {"rope_theta": 5e5}])
def test_deepseek_v4_turns_the_slice_of_a_head_that_its_older_key_states(said):
    config = {"model_type": "deepseek_v4", "head_dim": 256, "qk_rope_head_dim": 128, **said}
    assert {rope.rotary_dim for rope in read_rope(config).values()} == {128}
    assert_same_tables(read_back(config), stock_tables(config))


YARN = {"factor": 4, "original_max_position_embeddings": 65536, "type": "yarn"}
PUBLISHED = [
    ("deepseek_v4", {"rope_theta": 10000, "compress_rope_theta": 160000, "rope_scaling": YARN, "qk_rope_head_dim": 64}),
    ("mimo_v2_flash", {"rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.334}),
    ("gemma3_text", {"rope_theta": 1000000, "rope_local_base_freq": 10000}),
    ("gpt_neox", {"rotary_emb_base": 10000, "rotary_pct": 0.25}),
    ("cohere", {"rope_theta": 500000, "rotary_pct": 1.0, "logit_scale": 0.25}),
]


@pytest.mark.parametrize("schedule", ["yarn:factor=2", "abf:rope_theta=123456"])
@pytest.mark.parametrize(("model_type", "published"), PUBLISHED)
def test_the_keys_that_a_vendor_publishes_stay_in_step_with_those_of_transformers_5(model_type, published, schedule):
    plan = make_plan({"model_type": model_type, **published}, schedule, replace_scaling=True)
    changed = {"rope_theta", "compress_rope_theta", "rotary_emb_base"} if schedule.startswith("abf") else set()
    changed -= {"rope_theta"} if model_type == "deepseek_v4" else set()  # the theta of its unscaled layers
    expected = published | dict.fromkeys(changed & published.keys(), 123456)
    if "rope_scaling" in published:
        expected["rope_scaling"] = None if changed else plan.config["rope_parameters"]["compress"] | {"type": "yarn"}
        for key in ("rope_theta", "partial_rotary_factor"):
            (expected["rope_scaling"] or {}).pop(key, None)
    assert expected.items() <= plan.config.items()
    for key, value in stock_config(plan.config).rope_parameters.items():
        assert value == plan.config["rope_parameters"][key] or "type" in value
    assert_same_tables(read_back(plan.config), stock_tables(plan.config))


def test_a_theta_that_the_class_does_not_read_is_refused_and_a_section_receives_no_type_of_its_own():
    mimo = {"model_type": "mimo_v2_flash", "rope_theta": 640000, "swa_rope_theta": 10000}
    with pytest.raises(ConfigError, match="rope_theta is 640000 at the top level, which mimo_v2_flash does not read"):
        make_plan(mimo, "yarn:factor=2")
    text = {"max_position_embeddings": 4096, "rope_theta": 1e4, "head_dim": 64}
    written = make_plan({"model_type": "minimax_m3_vl", "text_config": text}, "yarn:factor=2").config
    assert written["model_type"] == "minimax_m3_vl" and "model_type" not in written["text_config"]
    unread = {"model_type": "gpt_neox", "rotary_pct": 0.25, "partial_rotary_factor": [[]]}
    assert "partial_rotary_factor" not in make_plan(unread, "yarn:factor=2").config


NAMED = [
    (key, ours, theirs)
    for key in TYPES
    for ours, theirs in class_defaults.load()[key].get("names", {}).items()
    if key != "recurrent_gemma"  # whose name is that of a window
]


@pytest.mark.parametrize(("model_type", "ours", "theirs"), NAMED)
@pytest.mark.parametrize("stated", [(1, 2), (2, 1), (1, None), (None, 1)])
def test_a_field_with_two_names_is_read_and_written_as_the_one_transformers_prefers(model_type, ours, theirs, stated):
    size = class_defaults.load()[model_type].get(ours) or 64
    switch = {"use_mem_rope": True} if model_type == "zamba2" else {}
    both = {name: size * times for name, times in zip((ours, theirs), stated) if times}
    config = {"model_type": model_type, **switch, **both}
    stock = stock_config(config)
    assert {rope.max_length for rope in read_rope(config).values()} == {stock.max_position_embeddings}
    assert_same_tables(read_back(config), stock_tables(config))
    plan = make_plan(config, "ntk:factor=2")
    assert stock_config(plan.config).max_position_embeddings == plan.length == 2 * stock.max_position_embeddings
    assert_same_tables(plan.tables, stock_tables(plan.config))
