"""The model card of a patched checkpoint: the source's, with a section of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .engines import engine_warnings
from .plans import Plan
from .rope import text_section
from .schedules import describe

BEGIN, END = "<!-- ropescale: begin -->", "<!-- ropescale: end -->"


def card(readme: Path, plan: Plan, source: str) -> bytes:
    """The source's card, front matter, licence and all, with one section of ours at the end (replaced if there)."""
    text = readme.read_bytes().decode("utf-8", "surrogateescape") if readme.exists() else ""  # keeps every byte
    kept = re.sub(rf"\s*{re.escape(BEGIN)}.*?{re.escape(END)}\s*", "\n\n", text, flags=re.DOTALL).rstrip()
    return ((kept + "\n\n" if kept else "") + section(plan, source)).encode("utf-8", "surrogateescape")


def section(plan: Plan, source: str) -> str:
    """What was done, and how to load the result in each engine."""
    rows = "\n".join(
        f"| {key} | `{describe(schedule)}` | {plan.ropes[key].original_length} | {plan.length} |"
        for key, schedule in plan.schedules.items()
    )
    return f"""{BEGIN}

## Context extension

The rotary frequencies of `{Path(source).name}` were changed by ropescale; the weights were not. `ropescale.json`
holds the frequencies.

| layers | schedule | trained at | meant for |
|---|---|---|---|
{rows}

Stock transformers loads it as it is:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
```

{_serving(plan)}

`ropescale verify PATH` proves that transformers uses these frequencies.

{END}
"""


def _serving(plan: Plan) -> str:
    """The engines' commands, and right below them what each would compute otherwise."""
    caveats = "\n".join(f"* {warning}" for warning in engine_warnings(plan))
    commands = f"```sh\nvllm serve PATH --max-model-len {plan.length}\n```\n\n{_llama_cpp(plan)}"
    return commands + (f"\n\nMind before serving it so:\n\n{caveats}" if caveats else "")


def _llama_cpp(plan: Plan) -> str:
    parameters = text_section(plan.config)["rope_parameters"]
    kind = parameters.get("rope_type")
    original = next(iter(plan.ropes.values())).original_length
    if kind == "yarn":
        flags = (
            f"--rope-scaling yarn --rope-scale {parameters['factor']:g} --yarn-orig-ctx {original}{_betas(parameters)}"
        )
    elif kind == "linear":
        flags = f"--rope-scaling linear --rope-scale {parameters['factor']:g}"
    elif kind == "default":
        flags = f"--rope-freq-base {parameters['rope_theta']:.10g}"
    else:
        return "llama.cpp has no flags for this schedule."
    return f"```sh\nllama-server -m PATH.gguf -c {plan.length} {flags}\n```"


def _betas(parameters: Mapping[str, Any]) -> str:
    """llama.cpp's flags for a ramp that is not its own, 32 to 1."""
    flags = {"--yarn-beta-fast": ("beta_fast", 32), "--yarn-beta-slow": ("beta_slow", 1)}
    given = {flag: parameters.get(key, usual) for flag, (key, usual) in flags.items()}
    return "".join(f" {flag} {value:g}" for flag, value in given.items() if value != flags[flag][1])
