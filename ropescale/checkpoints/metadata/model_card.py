"""The model card of a patched checkpoint: the source's, with a section of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...engines import ENGINES, engine_warnings
from ...engines.base.commands import needs_remote_code
from ...engines.base.engine import Engine
from ...engines.base.serving import Source, as_it_lies
from ...engines.exporting import exported, scaling_option, words
from ...files.reading import read_bytes
from ...output.escaping import argument, cell, code_span, sentence, uncommented
from ...planning.plan import Plan
from ...schedules import describe

BEGIN, END = "<!-- ropescale: begin -->", "<!-- ropescale: end -->"


def card(readme: Path, plan: Plan, source: str, name: str = "PATH") -> bytes:
    """Returns the source's card with one section of ours at its end, which replaces an earlier one.

    The section says what was done, and how to load the result in each engine. Names, specs and values of the
    configuration may be hostile; all of them are escaped. ``name`` is what the commands call the checkpoint: the
    repository that it goes to, where that is known.
    """
    remote = needs_remote_code(plan.config)
    trusting, flag = (", trust_remote_code=True", " --trust-remote-code") if remote else ("", "")
    labels = {key: plan.label(key) for key in plan.schedules}
    trained = {key: rope.original_length for key, rope in plan.ropes.items()}
    body = f"""## Context extension

ropescale changed the rotary frequencies of {code_span(Path(source).name)}, and left the weights as they were.
`ropescale.json` holds the frequencies.

{_table(labels, trained, plan.length)}

Stock transformers loads it as it is:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}"{trusting})
tokenizer = AutoTokenizer.from_pretrained("{name}"{trusting})
```

{_serving(plan, source, name)}

`ropescale verify {name}{flag}` proves that transformers uses these frequencies."""
    return _with_section(readme, body)


def adapter_card(readme: Path, record: Mapping[str, Any]) -> bytes:
    """Returns an adapter's card with a section on the schedule that its base carries.

    Args:
        readme: the card that PEFT wrote.
        record: what ropescale records beside the adapter.
    """
    labels = {**record["spec"], **record["frozen"]}
    body = f"""## Context extension

This adapter was saved under other rotary frequencies than those of {code_span(Path(str(record["source"])).name)}. The
folder `base` holds that model with them (`ropescale.json` lists them), and `adapter_config.json` names it by its path:
write the new one there when you move this folder.

{_table(labels, record["original_length"], record["length"])}

```python
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("PATH")
```"""
    return _with_section(readme, body)


def _with_section(readme: Path, body: str) -> bytes:
    """Returns a card that ends in this section, which replaces an earlier one."""
    text = read_bytes(readme).decode("utf-8", "surrogateescape") if readme.exists() else ""  # keeps every byte
    kept = _without_section(text).rstrip()
    ours = f"{BEGIN}\n\n{uncommented(body)}\n\n{END}\n"
    return ((kept + "\n\n" if kept else "") + ours).encode("utf-8", "surrogateescape")


def _without_section(text: str) -> str:
    """Removes our sections from a card; step by step, because a pattern would need hours for a hostile one."""
    parts, at = [], 0
    while (begin := text.find(BEGIN, at)) >= 0 and (end := text.find(END, begin)) >= 0:
        parts.append(text[at:begin].rstrip() if at == 0 else text[at:begin].strip())
        at = end + len(END)
    return "\n\n".join([*parts, text[at:].lstrip() if at else text])


def _table(labels: Mapping[str, str], trained: Mapping[str, int], length: int) -> str:
    """Returns the table of the layer types: schedule, trained length, and the length that they are meant for."""
    rows = [
        f"| {cell(sentence(key))} | {cell(code_span(label))} | {trained.get(key, '-')} | {length} |"
        for key, label in labels.items()
    ]
    return "\n".join(["| layers | schedule | trained at | meant for |", "|---|---|---|---|", *rows])


def _serving(plan: Plan, source: str, name: str) -> str:
    """Returns the engines' commands, and right below them what each would compute differently."""
    caveats = "\n".join(f"* {sentence(warning)}" for warning in engine_warnings(plan))
    shown = [engine for engine in ENGINES.values() if engine.in_card]
    blocks = "\n\n".join(_commands(engine, plan, source, name) for engine in shown)
    return blocks + (
        f"\n\nBefore you serve it, know what these engines do differently:\n\n{caveats}" if caveats else ""
    )


def _commands(engine: Engine, plan: Plan, source: str, name: str) -> str:
    """Returns what to paste for one engine, or why there is nothing."""
    specs = {key: describe(schedule) for key, schedule in plan.schedules.items()}
    given = plan.request if plan.original.is_scaled else replace(plan.request, replace_scaling=False, on_top=False)
    told = Source(words(specs, given), argument(source), scaled=scaling_option(given))
    done = exported(engine, as_it_lies(name, plan.planned, plan.length, told), specs)
    return f"{sentence(done.refusal)}." if done.refusal else "\n\n".join(command.fenced() for command in done.commands)
