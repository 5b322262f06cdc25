"""The table of class defaults is what the installed transformers has, and gives the tables that it builds."""

from __future__ import annotations

import json
import warnings

import pytest
from rotary_modules import assert_same_tables, quiet, stock_tables
from transformers import CONFIG_MAPPING

from ropescale import model_defaults
from ropescale.errors import ConfigError
from ropescale.rope import read_rope
from ropescale.schedules import AsIs, compute

TYPES = sorted(key for key, entry in model_defaults.load().items() if entry and "text" not in entry)

NOT_READABLE = {
    "blt": "four sub-models",  # keeps a rotary embedding in each, and none of its own
    "recurrent_gemma": "max_position_embeddings",  # its class has no such field; --original-length gives it
    "granitemoehybrid": "position_embedding_type is null",  # which its releases with rotary embeddings set to rope
    "zamba2": "use_mem_rope is false",
    "cohere_compass_text": "no layer",  # its class's default has no rope parameters, and builds no rotary module either
}
"""Default configurations that have no geometry to read, with a word of the error."""

READABLE = [key for key in TYPES if key not in NOT_READABLE]


def default_config(model_type: str) -> dict:
    with quiet(), warnings.catch_warnings(action="ignore"):
        return json.loads(json.dumps(CONFIG_MAPPING[model_type]().to_dict(), default=str))


def test_regenerating_the_table_from_the_installed_transformers_changes_nothing():
    with warnings.catch_warnings(action="ignore"):
        generated = json.loads(json.dumps(model_defaults.generate()))
    stored = model_defaults.load()
    different = [key for key in generated.keys() | stored.keys() if generated.get(key) != stored.get(key)]
    assert not different, f"run python -m ropescale.model_defaults; these changed: {different}"


def test_the_table_covers_the_whole_mapping():
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert len(READABLE) >= 110
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) <= set(model_defaults.load())


@pytest.mark.parametrize("model_type", READABLE)
def test_a_saved_default_configuration_reads_as_the_table_that_transformers_builds(model_type):
    config = default_config(model_type)
    assert_same_tables({key: compute(AsIs(), rope) for key, rope in read_rope(config).items()}, stock_tables(config))


@pytest.mark.parametrize("model_type", READABLE)
def test_a_configuration_that_says_nothing_reads_as_the_table_that_transformers_builds(model_type):
    config = {"model_type": model_type}
    assert_same_tables({key: compute(AsIs(), rope) for key, rope in read_rope(config).items()}, stock_tables(config))


@pytest.mark.parametrize("model_type", NOT_READABLE)
def test_a_default_without_geometry_is_refused_with_the_reason(model_type):
    with pytest.raises(ConfigError, match=NOT_READABLE[model_type]):
        read_rope(default_config(model_type))


def test_recurrent_gemma_reads_once_its_trained_length_is_given():
    config = default_config("recurrent_gemma")
    found = {key: compute(AsIs(), rope) for key, rope in read_rope(config, 8192).items()}
    assert_same_tables(found, stock_tables(config))


@pytest.mark.parametrize(
    ("model_type", "switch"),
    [("granitemoehybrid", {"position_embedding_type": "rope"}), ("zamba2", {"use_mem_rope": True})],
)
def test_a_type_that_rotates_when_its_configuration_says_so_reads_as_the_table_that_transformers_builds(
    model_type, switch
):
    config = default_config(model_type) | switch
    assert_same_tables({key: compute(AsIs(), rope) for key, rope in read_rope(config).items()}, stock_tables(config))


def test_reading_the_table_imports_neither_transformers_nor_torch(python):
    code = (
        "import sys; from ropescale.rope import read_rope; read_rope({'model_type': 'llama'});"
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert python("-c", code).returncode == 0
