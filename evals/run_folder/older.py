"""Recognises the files from before 0.1.0, which have no checksums, by comparing them with the results beside them."""

from __future__ import annotations

import csv
import io
import re
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..metrics.cells import csv_text


def is_ours(name: str, content: bytes, results: Mapping[str, Any]) -> bool:
    """Whether a version before 0.1.0 wrote a file beside ``results.json`` for these results.

    Tables must have every figure of the results, pictures their usual size, and the report no other lines.
    """
    try:
        if name.endswith(".png"):
            return _is_picture(name, content)
        text = content.decode()
        if name == "answers.csv":
            return _are_answers(text, results)
        return text == _csv(results) if name == "results.csv" else _is_report(text, results)
    except (ValueError, KeyError, csv.Error):
        return False


_SIZES = {"ppl_vs_length.png": (1120, 704), "loss_by_position.png": (1120, 704)}


def _is_picture(name: str, content: bytes) -> bool:
    """Whether this is a PNG by matplotlib, of 160 dots per inch."""
    if not content.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") or b"tEXtSoftware\0Matplotlib" not in content[:200]:
        return False
    return b"pHYs\0\0\x18\x9b\0\0\x18\x9b\x01" in content[:300] and _SIZES.get(name) in (
        None,
        struct.unpack(">II", content[16:24]),
    )


_PAIRED = ("baseline", "delta_nll", "low", "high")
_COMPARED = ("kl", "kl_low", "kl_high", "top1", "top1_low", "top1_high")
_EVAL = (
    "schedule table_sha256 length documents tokens nll ppl ppl_low ppl_high bits_per_byte forward_passes mode "
    "documents_at_length tail_nll tail_low tail_high ppl_boot_low ppl_boot_high bootstrap protocol"
).split()
_ASKED = (
    "schedule table_sha256 length depth answers correct accuracy accuracy_low accuracy_high answer_nll answer_nll_low "
    "answer_nll_high"
).split()
_ANSWER = "schedule length depth actual_depth trial prompt position answer tokens correct nll".split()


def _csv(results: Mapping[str, Any]) -> str:
    """Returns the ``results.csv`` of these results; every figure of it is in ``results.json``."""
    if results.get("kind") == "retrieval":
        return csv_text([_ASKED, *([row[name] for name in _ASKED] for row in results["rows"])])
    pairs = {(pair["schedule"], pair["length"]): pair for pair in results["paired"]}
    header = [*_EVAL, "baseline", "delta_nll", "delta_low", "delta_high", *_COMPARED]
    found = ((row, pairs.get((row["schedule"], row["length"]), {})) for row in results["rows"])
    lines = ([*(row[name] for name in _EVAL), *map(pair.get, (*_PAIRED, *_COMPARED))] for row, pair in found)
    return csv_text([header, *lines])


def _are_answers(text: str, results: Mapping[str, Any]) -> bool:
    """Whether a table has the number of answers, and of correct ones, that the results give for each part."""
    reader = csv.DictReader(io.StringIO(text))
    if reader.fieldnames != _ANSWER:
        return False
    asked: Counter[Any] = Counter()
    right: Counter[Any] = Counter()
    for line in reader:
        if None in line or None in line.values():
            return False
        for depth in (None, float(line["depth"])):
            part = (line["schedule"], int(line["length"]), depth)
            asked[part] += 1
            right[part] += line["correct"] == "True"
    rows = {(row["schedule"], row["length"], row["depth"]): row for row in results["rows"]}
    return asked == {part: row["answers"] for part, row in rows.items()} and all(
        right[part] == row["correct"] for part, row in rows.items()
    )


_REPORT = re.compile(
    r"""|\|[^`<>]*\||!\[[A-Za-z ]+\]\([a-z_]+\.png\)
    |Change\ in\ NLL\ against\ .*\ on\ the\ same\ tokens\ \(nats\ per\ token\):
    |Short-context\ cost\ against\ .*,\ trained\ at\ [\d,]+\ tokens:
    |The\ short-context\ cost\ is\ not\ known.*
    |Tokens\ that\ repeat\ something\ [\d,]+\ or\ more\ tokens\ back\ .*,\ and\ the\ others:
    |Key\ tokens\ \([\d,]+,\ .*\ positions\ against\ [\d,]+:
    |NLL\ of\ the\ whole\ answer\ \(nats\):
    |Questions\ gained\ and\ lost\ against\ .*\ \(exact\ McNemar\ p\):
    |Change\ in\ answer\ NLL\ against\ .*\ on\ the\ same\ questions\ \(nats\):
    |\#\#\ By\ depth|Accuracy\ with\ its\ Wilson\ 95%\ interval,\ and\ the\ answer's\ NLL\.
    |(Every\ prompt\ tokenizes\ alike|\d+\ of\ \d+\ prompts\ tokenize\ otherwise)
    \ when\ its\ text\ is\ tokenized\ in\ one\ piece;\ the\ ids\ of\ the\ pieces\ were\ used\.""",
    re.VERBOSE,
)
"""The lines of a report that do not depend on the measurement."""


def _is_report(text: str, results: Mapping[str, Any]) -> bool:
    """Whether ``REPORT.md`` has this run's heading and end, and only known lines between them."""
    model, data, protocol = results["model"], results["data"], results["protocol"]
    asked = results.get("kind") == "retrieval"
    title = f"Retrieval ({protocol['task']})" if asked else "Perplexity against length"
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    source = "" if asked else f"Data: {data['source']}, text sha256 `{data['sha256']}`.\n"
    head = f"# {title}: {Path(model['path']).name}\n\n"
    end = f"\n\nModel: {model['path']} ({model['parameters']:,} parameters).\n{source}{versions}.\n"
    if not (text.startswith(head) and text.endswith(end)):
        return False
    said = f"protocol {protocol['task' if asked else 'name']}: "
    parts = {f"### {row['schedule']}" for row in results["rows"]} if asked else set()
    lines = text[len(head) : -len(end)].split("\n")
    known = [_REPORT.fullmatch(line) or line in parts or line.startswith(said) for line in lines]
    return all(known) and sum(line.startswith(said) for line in lines) == 1
