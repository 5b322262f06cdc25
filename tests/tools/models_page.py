"""Writes docs/models.md, the table of model types, from what the tests measured.

python tests/tools/models_page.py
python tests/tools/models_page.py --measure
                                    measures every type again first (minutes)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coverage_outcomes import PATH, ROTATING_BUT_REFUSED, THETA_ONLY, UNMEASURED, load
from coverage_reading import SWITCHES

from ropescale.configs.configuration import Configuration, read_rope
from ropescale.errors import ConfigError
from ropescale.rope import Rope

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
SCHEDULES = ("linear", "yarn", "llama3", "table")

_GEMMA4 = (
    "config.json gets `allow_global_per_layer_attribute_access` where factors per pair are written. Its own "
    "full-attention pairs all turn within 200 tokens, so yarn and llama3 leave them as they are and are refused"
)
_PHI3 = "takes `longrope` only; its attention scale is carried by `max_position_embeddings`, so it must be 1 or more"
_HEAD_DIM = "a null `head_dim` is written out, because transformers' rope functions cannot read it"
_THETAS = "refused where `layer_rope_theta` gives layers different thetas"
_TEXT = "the language model inside; the other parts are left alone"
_DRAFTER = (
    "a drafter: patch it like its main model. transformers 5.23.0 cannot build it (it refuses that all layers share "
    "keys and values), so it was checked with that refusal lifted"
)

NOTES = {
    **dict.fromkeys("dots3_note emu3 fuyu gemma3 got_ocr2 llama4 mllama moss_transcribe_diarize".split(), _TEXT),
    **dict.fromkeys(["granite_swa", "granitemoe_swa"], _THETAS),
    "bamba": "needs `attn_layer_indices`: its default has no attention layer",
    "cohere2_moe": "the v4 keys are not written: transformers 5 would take them for fields of the model",
    "cohere_compass_text": "its default states no rope parameters: the file must",
    "dbrx": "refused where `attn_config` has another theta than the top level, which is all that transformers 5 reads",
    "deepseek_v4": "tables `main` and `compress`, named in `rope_parameters`, not in `layer_types`",
    "falcon": "refused with `alibi: true`, which does not rotate",
    "gemma3n": f"{_TEXT}. Checked with an empty module for the vision tower, which needs timm",
    "gemma4": f"{_GEMMA4}; {_TEXT}",
    "gemma4_assistant": f"{_DRAFTER}. {_GEMMA4}",
    "gemma4_text": _GEMMA4,
    "gemma4_unified": f"{_GEMMA4}; {_TEXT}",
    "gemma4_unified_assistant": f"{_DRAFTER}. {_GEMMA4}",
    "gemma4_unified_text": _GEMMA4,
    "granitemoehybrid": 'rotates only with `position_embedding_type: "rope"`; refused otherwise',
    "hunyuan_v1_dense": "a fixed `alpha` counts as scaling by the vendor",
    "minimax": _HEAD_DIM,
    "ministral3": "`llama_4_scaling_beta` and the trained length beside it, which every forward pass reads, are kept",
    "mixtral": _HEAD_DIM,
    "phi3": _PHI3,
    "phi4_multimodal": _PHI3,
    "phimoe": "its code uses the short list and `short_mscale`, `long_mscale`: both lists and both are written",
    "recurrent_gemma": (
        "only another theta (`ntk`, `abf`); its configuration has no trained length (`--original-length`)"
    ),
    "zamba2": "rotates only with `use_mem_rope: true`; refused otherwise",
}
"""Remarks on single types, for the table."""


def page(outcomes: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the whole of docs/models.md."""
    rows = [
        f"| `{name}` | {_rotates(name, outcome)} | {outcome.get('pairs', '-')} | "
        + " | ".join(_cell(outcome.get(schedule), _always(outcome)) for schedule in SCHEDULES)
        + f" | {_notes(name, outcome)} |"
        for name, outcome in sorted(outcomes.items())
        if _group(name, outcome) != _NONE
    ]
    rows += [f"| `{name}` | not measured | - | - | - | - | - | {_sentence(why)} |" for name, why in UNMEASURED.items()]
    return "\n".join([_HEAD.format(len(outcomes), section(outcomes), len(UNMEASURED)), *sorted(rows), ""])


_HEAD = """# Supported models

How patching treats every model type of `AutoModelForCausalLM` and `AutoModelForImageTextToText` in transformers 5.23.0:
{} were measured; of those that see, the text alone. `python tests/tools/models_page.py` writes this page from what the
tests measure. A tiny random model of each type is patched with `linear`, `yarn`, `llama3` and a user's own table, in
memory and on disk. Its cos and sin, in every layer, within and beyond the trained length, must be the formula's in
float64; stock transformers must compute the same logits from the folder, bit for bit; reverting must restore everything
bit for bit.

{}
| not measured | {} | the table says why |

* **rotates**: how many coordinates of a head, in a default model of the type; with a table per layer type, which of
  them `--layers full` changes (`--layers all` changes all).
* **pairs**: which coordinates turn together: `halves` (i and i + d/2) or `interleaved` (2i and 2i + 1).
* **native**: saved under the schedule's own name. **per pair**: saved as one factor per pair (transformers' `longrope`
  form).

| model type | rotates | pairs | linear | yarn | llama3 | table | notes |
|---|---|---|---|---|---|---|---|"""


def _rotates(name: str, outcome: Mapping[str, Any]) -> str:
    tables = outcome.get("tables")
    if tables is None:
        return "not by its configuration"
    dims = _dims(name)
    if list(tables) == ["all"]:
        return _of(dims.get("all"))
    return "; ".join(
        f"`{key}`{_colon(dims.get(key))}{'' if changes else ' (left alone)'}" for key, changes in sorted(tables.items())
    )


def _dims(name: str) -> dict[str, Rope]:
    """Returns the geometry of a default model, without transformers; nothing where its default has none."""
    try:
        return read_rope({"model_type": name, **SWITCHES.get(name, {})}, 8192 if name in THETA_ONLY else None)
    except ConfigError:
        return {}


def _colon(rope: Rope | None) -> str:
    return f": {_of(rope)}" if rope else ""


def _of(rope: Rope | None) -> str:
    if rope is None:
        return "yes"
    turning = rope.rotary_dim if rope.rotated_pairs is None else 2 * rope.rotated_pairs
    return f"{turning} of {rope.head_dim}"


def _cell(said: str | None, always: set[str]) -> str:
    if said is None or said.startswith("refused"):
        return "-" if said is None else "refused"
    kinds = said.split(" with ")[0].split(", ")
    form = "per pair" if kinds == ["longrope"] else "native" if "longrope" not in kinds else "native, per pair"
    only = [way for way in _ways(said) if way in _WAYS and way not in always]
    return f"{form}, with `{' '.join(only)}`" if only else form


def _always(outcome: Mapping[str, Any]) -> set[str]:
    """Returns the options that every schedule needs."""
    return set.intersection(*(set(_ways(outcome.get(schedule, ""))) for schedule in SCHEDULES)) & _WAYS.keys()


def _notes(name: str, outcome: Mapping[str, Any]) -> str:
    if "refused" in outcome:
        return _sentence(outcome["refused"].split(" ", 1)[1].split(";")[0])
    found = [_WAYS[way] for way in sorted(_always(outcome))]
    if _is_mixed(name, outcome):
        found.append("one table, so the layers that see a window change as well")
    if outcome.get("softmax"):
        found.append("MLA: the softmax scale follows `mscale_all_dim`")
    found += [NOTES[name]] if name in NOTES else []
    return ". ".join(map(_sentence, found))


def _is_mixed(name: str, outcome: Mapping[str, Any]) -> bool:
    """Whether full-attention layers and layers with a window turn by the same table."""
    kinds = set(Configuration.read({"model_type": name}).default_of("layer_types") or ())
    return (
        list(outcome["tables"]) == ["all"]
        and {"full_attention", "sliding_attention"} <= kinds
        and "--layers all" not in _always(outcome)
    )


_WAYS = {
    "--replace-scaling": "already scaled: `--replace-scaling` or `--on-top`",
    "--layers all": "its full-attention layers do not rotate, so it is refused without `--layers all`",
}


def _ways(said: str) -> list[str]:
    options = said.split(" with ")[1] if " with " in said and not said.startswith("refused") else ""
    return [f"--{option.strip()}" for option in options.split("--") if option.strip()]


def _sentence(text: str) -> str:
    return text if text.startswith("config.json") else text[:1].upper() + text[1:]


# ---------------------------------------------------------------------------------------------------------
# The groups of types


def section(outcomes: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the table of the groups."""
    groups: dict[str, list[str]] = {what: [] for what in (*_WITH.values(), _THETA, _FIXED, _NONE)}
    for name, outcome in sorted(outcomes.items()):
        groups[_group(name, outcome)].append(name)
    rows = [f"| {what} | {len(names)} | {_named(names)} |" for what, names in groups.items()]
    return "\n".join(["| model types | count | |", "|---|---:|---|", *rows])


_WITH = {
    "": "every schedule, in memory and on disk",
    "--replace-scaling": "already scaled: with `--replace-scaling` or `--on-top`",
    "--layers all": "full-attention layers do not rotate: with `--layers all`",
}
"""By the options that all four schedules need."""

_THETA = "another theta only (`ntk`, `abf`)"
_FIXED, _NONE = "rotate, but not by their configuration: refused", "no rotary embeddings: refused"


def _group(name: str, outcome: Mapping[str, Any]) -> str:
    if name in THETA_ONLY:
        return _THETA
    if "refused" in outcome:
        return _FIXED if name in ROTATING_BUT_REFUSED else _NONE
    return _WITH[" ".join(sorted(_always(outcome)))]


def _named(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 100 else f"{', '.join(names[:4])}, ..., {names[-1]}"


# ---------------------------------------------------------------------------------------------------------


def measured() -> dict[str, dict[str, Any]]:
    """Measures every type."""
    from coverage_measuring import measure
    from coverage_models import TYPES

    found = {}
    for name in TYPES:
        print(name, file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(name, Path(folder))
    return found


def main() -> None:
    """Writes the page, and measures first if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure every type again first (minutes)")
    if parser.parse_args().measure:
        PATH.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(load()), encoding="utf-8")


if __name__ == "__main__":
    main()
