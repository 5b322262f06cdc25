"""The model types written down for transformers 4 are those that it lists itself."""

import re
import subprocess
import sys
import zipfile

import pytest
from coverage_models import SEEING
from environments import CACHE

from ropescale.configs import class_defaults
from ropescale.engines import transformers4

# Models that version 4 knew as parts of others alone.
INSIDE_OTHERS = {f"{name}_text_model": name for name in ("emu3", "mllama")}
INSIDE_OTHERS |= {f"{name}_thinker": name for name in ("qwen2_5_omni", "qwen3_omni_moe")}


def _known_to(version: str) -> set[str]:
    """The types that a version knows, of those that ropescale knows; its wheel is downloaded once."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", CACHE, f"transformers=={version}"]
    if not list(CACHE.glob(f"transformers-{version}-*.whl")):
        subprocess.run(words, check=True)
    [wheel] = CACHE.glob(f"transformers-{version}-*.whl")
    source = zipfile.ZipFile(wheel).read("transformers/models/auto/configuration_auto.py").decode()
    found = set(re.findall(r'^    +\("([\w.-]+)", "\w+Config"\)', source, re.MULTILINE))  # CONFIG_MAPPING_NAMES
    ours = {name for name, entry in class_defaults.load().items() if entry and "text" not in entry}
    ours |= {name for name in transformers4.TYPES if name.endswith("_text")}  # parts of others have no defaults here
    return {name for name in (*ours, *SEEING) if INSIDE_OTHERS.get(name, name) in found}


@pytest.mark.engines
def test_version_4_knows_the_types_that_are_written_down() -> None:
    known = _known_to("4.57.6")
    assert transformers4.TYPES <= known <= transformers4.TYPES | set(SEEING)
    assert set(SEEING) - known == transformers4.LACKED
