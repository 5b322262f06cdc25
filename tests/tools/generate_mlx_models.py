"""Writes ``ropescale/engines/mlx_lm.json``: what mlx-lm's own code builds from the configurations of built_tables.py.

Run with tests/helpers and its folders engines and model_coverage in PYTHONPATH, it writes the file again, after a
change of the version there.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from built_tables import ask, cases, summary
from environments import environment

from ropescale.engines import mlx_lm

MLX = "0.32.4"


def generate() -> dict[str, Any]:
    """Returns the file's content, for the version that mlx_lm.py names."""
    version = mlx_lm.ENGINE.version
    python = environment("mlx-lm", f"mlx-lm=={version}", f"mlx[cpu]=={MLX}")
    asked = list(cases())
    [package] = python.parent.parent.glob("lib/python*/site-packages/mlx_lm")
    found = summary(asked, ask(python, "mlx_worker.py", asked))
    modules = sorted(path.stem for path in (package / "models").glob("*.py"))
    return {"version": version, "modules": modules, "renamed": _renamed(package / "utils.py"), "types": found}


def _renamed(path: Path) -> dict[str, str]:
    """Returns the model types that run with the code of another type."""
    tree = ast.parse(path.read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.Assign)]
    [table] = [node.value for node in nodes if ast.unparse(node.targets[0]) == "MODEL_REMAPPING"]
    return ast.literal_eval(table)


if __name__ == "__main__":
    mlx_lm.PATH.write_text(json.dumps(generate(), indent=1) + "\n")
