"""The model card of a patched checkpoint: the source's card with a section on the schedule."""

from __future__ import annotations

from pathlib import Path

from ..engines import ENGINES
from ..engines.advice import engine_warnings, export_of, patched
from ..engines.base import needs_remote_code
from ..files import read_bytes
from ..output.formatting import cell, code_span, sentence, uncommented
from ..planning.plan import Plan

BEGIN, END = "<!-- ropescale: begin -->", "<!-- ropescale: end -->"


def card(readme: Path, plan: Plan, source: str) -> bytes:
    """Returns the source's card with ropescale's section at its end; replaces an earlier such section.

    The section describes the schedule and how to load the result in each engine. Names, specs and values of the
    configuration may be hostile, so all of them are escaped.

    Args:
        readme: the source's card, which may not exist.
        plan: the plan of the schedule.
        source: the source's name.
    """
    remote = needs_remote_code(plan.config)
    trusting, flag = (", trust_remote_code=True", " --trust-remote-code") if remote else ("", "")
    rows = "\n".join(
        f"| {cell(sentence(key))} | {cell(code_span(plan.label(key)))} | {rope.original_length} | {plan.length} |"
        for key, rope in plan.ropes.items()
    )
    body = f"""## Context extension

ropescale changed the rotary frequencies of {code_span(Path(source).name)}, but not its weights.
`ropescale.json` contains the frequencies.

| layers | schedule | trained length | target length |
|---|---|---|---|
{rows}

Stock transformers loads this checkpoint:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH"{trusting})
tokenizer = AutoTokenizer.from_pretrained("PATH"{trusting})
```

{_serving(plan, source)}

`ropescale verify PATH{flag}` proves that transformers uses these frequencies."""
    text = read_bytes(readme).decode("utf-8", "surrogateescape") if readme.exists() else ""  # keeps every byte
    parts, at = [], 0  # no regular expression, which could take hours on a hostile card
    while (begin := text.find(BEGIN, at)) >= 0 and (end := text.find(END, begin)) >= 0:
        parts.append(text[at:begin].rstrip() if at == 0 else text[at:begin].strip())
        at = end + len(END)
    kept = "\n\n".join([*parts, text[at:].lstrip() if at else text]).rstrip()
    ours = f"{BEGIN}\n\n{uncommented(body)}\n\n{END}\n"
    return ((kept + "\n\n" if kept else "") + ours).encode("utf-8", "surrogateescape")


def _serving(plan: Plan, source: str) -> str:
    """Returns the commands for each engine, or why an engine has none, and the engines' differences."""
    blocks = []
    for key, engine in ENGINES.items():
        if engine.in_card:
            done = export_of(key, patched(plan, "PATH", source), plan)
            commands = (command.fenced() for command in done.commands)
            blocks.append(f"{sentence(done.refusal)}." if done.refusal else "\n\n".join(commands))
    caveats = "\n".join(f"* {sentence(warning)}" for warning in engine_warnings(plan))
    if caveats:
        blocks.append(f"Some engines differ from the requested schedule:\n\n{caveats}")
    return "\n\n".join(blocks)
