"""The model card of a patched checkpoint: the source's card with a section of ropescale and metadata for the Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engines import ENGINES, engine_warnings
from ..engines.base import Source, as_it_lies, needs_remote_code
from ..engines.exported import exported, scaling_option, words
from ..errors import ConfigError
from ..files import read_bytes
from ..output.formatting import argument, cell, code_span, sentence, uncommented
from ..planning.plan import Plan
from ..schedules import describe

if TYPE_CHECKING:
    from yaml import MappingNode

BEGIN, END = "<!-- ropescale: begin -->", "<!-- ropescale: end -->"


def card(readme: Path, plan: Plan, source: str, name: str = "PATH") -> bytes:
    """Returns the source's card with ropescale's section at its end, which replaces an earlier one.

    The section describes the schedule, and how to load the result in each engine. Names, specs and values of the
    configuration may be hostile, so all are escaped. ``name`` is the checkpoint's name in the commands: the target
    repository, if known.
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
    """Returns an adapter's card with a section on its base's schedule.

    Args:
        readme: the card that PEFT wrote.
        record: the adapter's ``ropescale.json``.
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
    """Returns a card with this section at its end, which replaces an earlier one."""
    text = read_bytes(readme).decode("utf-8", "surrogateescape") if readme.exists() else ""  # keeps every byte
    parts, at = [], 0  # step by step, because a regular expression would take hours on a hostile card
    while (begin := text.find(BEGIN, at)) >= 0 and (end := text.find(END, begin)) >= 0:
        parts.append(text[at:begin].rstrip() if at == 0 else text[at:begin].strip())
        at = end + len(END)
    kept = "\n\n".join([*parts, text[at:].lstrip() if at else text]).rstrip()
    ours = f"{BEGIN}\n\n{uncommented(body)}\n\n{END}\n"
    return ((kept + "\n\n" if kept else "") + ours).encode("utf-8", "surrogateescape")


def _table(labels: Mapping[str, str], trained: Mapping[str, int], length: int) -> str:
    """Returns the table of the layer types: schedule, trained length and target length."""
    rows = [
        f"| {cell(sentence(key))} | {cell(code_span(label))} | {trained.get(key, '-')} | {length} |"
        for key, label in labels.items()
    ]
    return "\n".join(["| layers | schedule | trained at | meant for |", "|---|---|---|---|", *rows])


def _serving(plan: Plan, source: str, name: str) -> str:
    """Returns the commands for each engine, or why it has none, and each engine's differences."""
    specs = {key: describe(schedule) for key, schedule in plan.schedules.items()}
    given = plan.request if plan.original.is_scaled else replace(plan.request, replace_scaling=False, on_top=False)
    told = Source(words(specs, given), argument(source), scaled=scaling_option(given))
    blocks = []
    for engine in ENGINES.values():
        if engine.in_card:
            done = exported(engine, as_it_lies(name, plan.planned, plan.length, told), specs)
            commands = (command.fenced() for command in done.commands)
            blocks.append(f"{sentence(done.refusal)}." if done.refusal else "\n\n".join(commands))
    caveats = "\n".join(f"* {sentence(warning)}" for warning in engine_warnings(plan))
    if caveats:
        blocks.append(f"Differences of these engines, to know before you serve it:\n\n{caveats}")
    return "\n\n".join(blocks)


# ---------------------------------------------------------------------------------------------------------
# The front matter: the YAML block at the top of a card, which the Hub reads

TAG = "ropescale"
_STRING, _LIST, _MAPPING = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_LARGEST, _DEEPEST = 1_000_000, 50
"""The most characters and levels of a block: libyaml crashes at some thousand levels."""

_BLOCK = re.compile(
    r"\A---[ \t]*(?P<end>\r?\n)(?P<yaml>.*?)(?P<close>^---[ \t]*(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE
)


def with_metadata(card: bytes, base_model: str | None) -> bytes:
    """Returns a card whose front matter has the tag ``ropescale`` and names the base model.

    Works on YAML's nodes, which preserve every value as written: ``ModelCard`` of huggingface_hub would turn
    ``language: no`` into ``false``, and drop unknown keys of a ``model-index``. Comments are lost. A block that is not
    a YAML mapping stays unchanged.

    Args:
        card: the file's content.
        base_model: a Hub id for ``base_model``; None keeps the current one.
    """
    import yaml

    text = card.decode("utf-8", "surrogateescape")  # keeps every byte
    found = _BLOCK.match(text)
    root = _mapping(found["yaml"] if found else "")
    if root is None:
        return card
    new: dict[str, yaml.Node] = {}
    if base_model is not None:
        new["base_model"] = yaml.ScalarNode(_STRING, base_model)
    tags = next((value for key, value in root.value if key.value == "tags"), yaml.SequenceNode(_LIST, []))
    listed = tags.value if isinstance(tags, yaml.SequenceNode) else []
    if TAG not in [item.value for item in listed] and (listed or tags.value in ([], "", "null", "~")):
        style = tags.flow_style if listed else False
        new["tags"] = yaml.SequenceNode(_LIST, [*listed, yaml.ScalarNode(_STRING, TAG)], flow_style=style)
    for name, value in new.items():
        at = next((at for at, (key, _) in enumerate(root.value) if key.value == name), len(root.value))
        root.value[at : at + 1] = [(yaml.ScalarNode(_STRING, name), value)]
    kind, end = getattr(yaml, "CSafeDumper", yaml.SafeDumper), found["end"] if found else "\n"
    block = yaml.serialize(root, Dumper=kind, allow_unicode=True, width=_LARGEST, line_break=end)
    if found is None:
        return f"---\n{block}---\n\n".encode() + card
    return (text[: found.start("yaml")] + block + text[found.start("close") :]).encode("utf-8", "surrogateescape")


def front_matter(card: bytes) -> str:
    """Returns a card's front matter as written; empty if it has none."""
    found = _BLOCK.match(card.decode("utf-8", "surrogateescape"))
    return found["yaml"] if found else ""


def refuse_unsendable(card: bytes, where: str) -> None:
    """Refuses a card that the Hub would reject at the end of the upload.

    Raises:
        ConfigError: the card is not UTF-8, or its front matter is not a YAML mapping.
    """
    try:
        card.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not UTF-8 (byte {error.start}), which the Hub requires; save it as UTF-8"
        ) from None
    if _mapping(front_matter(card)) is None:
        raise ConfigError(
            f"the front matter of {where} is not valid YAML, and the Hub would refuse it; correct it first"
        )


def _mapping(text: str) -> MappingNode | None:
    """Parses a YAML block without building its values; None if it is not a mapping, or too large or deep."""
    import yaml

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if available
    depth = 0
    try:
        for event in yaml.parse(text[: _LARGEST + 1], kind):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                return None
        root = None if len(text) > _LARGEST else yaml.compose(text, kind) or yaml.MappingNode(_MAPPING, [])
    except (yaml.YAMLError, ValueError):
        return None
    return root if isinstance(root, yaml.MappingNode) else None
