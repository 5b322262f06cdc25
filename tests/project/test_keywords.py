"""Keywords of the public functions: an editor knows them, and a wrong one is refused before anything is read."""

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ropescale

FUNCTIONS = ["patch", "patch_checkpoint", "patch_gguf", "frequencies", "verify", "plot"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_misspelt_keyword_is_refused_by_name_before_the_model_is_read(name):
    function: Any = getattr(ropescale, name)
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind in (0, 1)]
    with pytest.raises(TypeError, match=f"^{name}\\(\\) got an unexpected keyword argument 'facotr'$"):
        function(*["MODEL" for _ in required], facotr=2)


@pytest.mark.slow
def test_pyright_finds_twenty_mistakes_in_calls_of_an_installed_package(repository, tmp_path):
    """The package lies here as a wheel installs it, because an editable install has its parts in other folders."""
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("pyright is not installed")
    shutil.copytree(repository / "ropescale", tmp_path / "ropescale")
    for part in ("cli", "evals"):
        shutil.copytree(repository / part, tmp_path / "ropescale" / part)
    script = shutil.copy(repository / "tests/helpers/scripts/twenty_mistakes.py", tmp_path)
    settings = {"include": [Path(script).name], "typeCheckingMode": "standard", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    words = [pyright, "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson"]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)
    wrong = {each["range"]["start"]["line"] for each in found["generalDiagnostics"] if each["severity"] == "error"}
    lines = Path(script).read_text().splitlines()
    assert wrong == {number for number, line in enumerate(lines) if line.startswith("    ")} and len(wrong) == 20
