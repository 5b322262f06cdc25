"""Prints what ropescale reads in published configurations: ``python tests/tools/read_configs.py FOLDER``.

Each ``*.json`` file in the folder is a ``config.json`` under another name. The table has a row per layer type: section,
lengths with the keys that state them, geometry, scaling, and what each engine is claimed to do with the unchanged file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ropescale.configs.configuration import Configuration
from ropescale.configs.finding import sections_in
from ropescale.engines import ENGINES
from ropescale.errors import RopescaleError
from ropescale.exporting import exports
from ropescale.output.formatting import grid

HEADER = ["file", "section", "layers", "trained", "served", "pairs", "theta", "scaling", *ENGINES]


def rows(path: Path) -> Iterator[list[str]]:
    """Yields the rows of a file; a file that is refused has one, with the reason."""
    config = json.loads(path.read_text(encoding="utf-8"))
    found = Configuration.read(config)
    others = [".".join(each) or "top level" for each in sections_in(config) if each != found.path]
    section = ".".join(found.path) or "top level"
    section = f"{section} ({found.model_type})" + (f"; not {', '.join(others)}" if others else "")
    try:
        lengths, ropes = found.lengths, found.ropes
    except RopescaleError as error:
        yield [path.stem, section, f"refused: {error}", *[""] * (len(HEADER) - 3)]
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        claims = [_claim(folder, engine) for engine in ENGINES]
    for key, rope in ropes.items():
        kind, factor = rope.scaling["rope_type"], rope.scaling.get("factor")
        scaling = f"{kind} x{factor:g}" if factor else str(kind)
        geometry = [f"{rope.pairs} of head {rope.head_dim}", f"{rope.theta:g}", scaling]
        yield [path.stem, section, key, str(lengths.trained), str(lengths.served), *geometry, *claims]


def _claim(folder: str, engine: str) -> str:
    """Returns what ``exports`` claims of an engine."""
    try:
        [done] = exports(folder, [engine])
    except RopescaleError as error:
        return f"refused: {error}"[:60]
    differing = ", ".join(dict.fromkeys(row.field for row in done.rows))
    return f"{'no command' if done.refusal else f'differs: {differing}' if differing else 'honoured'} ({done.how})"


def main() -> None:
    """Prints the table of the folder that the command line names."""
    files = sorted(Path(sys.argv[1]).glob("*.json"))
    print(grid(HEADER, [row for path in files for row in rows(path)]))


if __name__ == "__main__":
    main()
