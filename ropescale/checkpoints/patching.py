"""Patches a checkpoint on disk: writes a folder with changed configuration files and linked weights.

No weights are read. Stock engines load the result without ropescale.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from ..configs import class_defaults
from ..configs.finding import SPECULATORS, dotted
from ..engines.exported import engine_warnings
from ..engines.model_code import is_in_transformers
from ..errors import CheckpointError, ScheduleError
from ..files import local_path, open_regular, sha256, sweep_leftovers, translated
from ..output.formatting import brief, cut
from ..planning.plan import Plan, make_plan, refuse_unused
from ..record import RECORD, as_json, files_in, with_files
from ..request import Request, RequestOptions, check_keywords
from ..schedules import specs
from .backups import BACKUP, is_interrupted, put_back, refuse_links, write_in_place
from .contents import changes, completed, following, new_files, number, optional_json, record_of, source_name
from .folders import (
    LINKS,
    build_folder,
    check_target,
    files_of,
    is_weight,
    link_or_copy,
    refuse_missing_shards,
    two_sets,
)
from .locating import ModelFolder, find_model

LOG = logging.getLogger(__name__)


@dataclass
class PatchedCheckpoint:
    """The result of :func:`patch_checkpoint`, written or planned.

    Attributes:
        folder: the patched checkpoint's folder; None after a dry run.
        plan: the applied plan.
        warnings: differences between engines, and files that still contain the old limit.
        links: the link type of each weight file, ``{name: "hard" | "symlink" | "copy"}``.
        changes: the change of every written file, by name, as a unified diff or one line of description.
    """

    folder: Path | None
    plan: Plan
    warnings: list[str]
    links: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)


def patch_checkpoint(
    model: str | Path,
    out: str | Path | None,
    schedule: object = None,
    *,
    like: str | Path | None = None,
    link: str | None = None,
    revision: str | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    force: bool = False,
    **options: Unpack[RequestOptions],
) -> PatchedCheckpoint:
    """Writes a checkpoint that carries a schedule.

    Args:
        model: a checkpoint's folder, or a Hub id.
        out: the folder to write; None with ``in_place``, optional with ``dry_run``.
        schedule: a schedule or a spec such as ``"yarn"`` or ``"yarn:factor=8"``. ``"as-is"`` keeps the frequencies and
            adds what ``save_pretrained`` does not write: the keys of transformers 4, and the tokenizer's new limit.
        like: instead of a schedule, the target of a draft head, whose tables and window the head gets.
        link: how to link weights: ``hard``, ``symlink`` (absolute), ``copy``, or ``auto`` (the default) for the
            first of these that works.
        revision: branch, tag or commit of a Hub id.
        in_place: change ``model`` itself; :func:`restore` undoes the change.
        dry_run: only plan, without changing anything.
        force: replace ``out`` if ropescale wrote all of it.
        options: the fields of :class:`ropescale.request.Request`.

    Raises:
        RopescaleError: the input is invalid, or a file cannot be written; no partial result remains.
    """
    check_keywords("patch_checkpoint", options)
    request = Request.of("as-is" if schedule is None else schedule, **options)
    if (schedule is None) is (like is None):
        raise ScheduleError("name either a schedule or the target of a draft head", "schedule", "like")
    specs.parse(request.spec)  # reject a misspelt schedule before checking folders
    _refuse_contradiction(model, out, link, in_place, dry_run, force)
    folder = local_path(model)
    if in_place and not dry_run:
        with translated(folder):
            if is_interrupted(folder) and put_back(folder):
                LOG.warning("note: an interrupted change in place of %s was undone; its originals are restored", folder)
    stored = find_model(model, revision, weights=not dry_run)
    source = stored.folder
    how = link or "auto"
    if like is None:
        plan = _planned(stored, request)
    else:
        if unused := request.given():
            why = f"{unused[0]} has no effect: a draft head gets its target's table; leave it out"
            raise ScheduleError(why, unused[0])
        plan = following(stored, find_model(like, weights=False), request)
    target = None
    refused = []
    try:
        if out is not None:
            target = check_target(source, out, force)
    except CheckpointError as error:
        if force or not dry_run or not {"out", "force"} & {*error.fields}:
            raise
        refused = [f"the command would write nothing: {error}"]
    with translated(source, "read"):
        files = new_files(source, source_name(str(model)), plan, stored.record)
        record = record_of(stored, plan, str(model))
        warnings = [*refused, *warnings_of(source, plan, weights=not dry_run or folder.is_dir())]
        result = PatchedCheckpoint(None, plan, warnings)
        result.changes = changes(stored, {**files, RECORD: as_json(record)})
    if in_place:
        refuse_links(source, [*files, RECORD])
    if dry_run:
        return result
    if target is None:
        listed = files_in(source)  # of a folder that ropescale built before
        with translated(source):
            digests = {name: {"sha256": sha256(content)} for name, content in files.items()}
            kept = as_json(record)
            written = kept if listed is None else with_files(record, {**listed, **digests})
            write_in_place(source, {**files, RECORD: written})
        result.folder = source
        return result
    with translated(source, "read"):
        refuse_missing_shards(source)
    result.links = build_folder(target, lambda new: link_or_copy(source, new, files, how), record, force)
    result.folder = target
    result.warnings += on_links(result.links, how)
    return result


def restore(folder: str | Path) -> Path:
    """Undoes ``patch --in-place`` byte for byte, even if the patch or an earlier restore was interrupted.

    Returns:
        The folder.

    Raises:
        CheckpointError: the folder was not patched in place, or a file was changed since then.
    """
    path = local_path(folder)
    if not path.is_dir():
        raise CheckpointError(f"folder {path} does not exist; give the checkpoint that was patched in place")
    if not (path / BACKUP).is_dir():
        sweep_leftovers(path / BACKUP)  # of a restore that was killed at its end
        raise CheckpointError(f"nothing to restore in {path}: it was not patched in place (it has no {BACKUP})")
    with translated(path):
        put_back(path)
    return path


# ---------------------------------------------------------------------------------------------------------
# Writing


def _refuse_contradiction(
    model: str | Path, out: str | Path | None, link: str | None, in_place: bool, dry_run: bool, force: bool
) -> None:
    if link not in (None, *LINKS):
        raise CheckpointError(f"unknown link type {link!r}; choose from {', '.join(LINKS)}", "link")
    if in_place and out is not None:
        raise CheckpointError(
            "in_place changes the model itself and writes no other folder; choose one", "out", "in_place"
        )
    if in_place and not local_path(model).is_dir():
        raise CheckpointError(
            f"{model} is not a local folder, so it cannot be changed in place; write to another folder instead", "out"
        )
    if out is None and not in_place and not dry_run:
        raise CheckpointError("name the output folder, or use a dry run", "out", "dry_run")
    for name, given in (("force", force), ("link", link is not None)):
        if given and out is None:
            raise CheckpointError(f"{name} applies to an output folder; name one, or leave {name} out", name, "out")


def _planned(source: ModelFolder, request: Request) -> Plan:
    """Plans a schedule on the source's configuration, without ropescale's earlier scaling unless ``on_top`` is set.

    Raises:
        ScheduleError: no configuration can express the schedule, or nothing would change.
    """
    plan = make_plan(source.original(request.on_top), request)
    if plan.unsavable:
        raise plan.unsavable
    refuse_unused(request, plan.used if plan.changes else {"target_length"})
    if not plan.changes:
        return completed(source, request)
    if record := source.record:
        labels = cut(", ".join(dict.fromkeys(record.labels.values())), 500) or "as-is"
        what = "the new schedule replaces that one"
        if request.on_top:
            what = "the new schedule goes on top; patching the result again builds on both"
        plan = replace(plan, notes=(*plan.notes, f"ropescale patched this checkpoint before ({labels}); {what}"))
    return plan


# ---------------------------------------------------------------------------------------------------------
# Warnings: differences between engines, and files that still contain the old limit


def warnings_of(source: Path, plan: Plan, weights: bool) -> Iterator[str]:
    """Yields all warnings about a plan.

    Args:
        weights: whether the source's weights should exist; a dry run does not download them.
    """
    if weights and not any(is_weight(name.name) for name in files_of(source)):
        yield f"{source} has no weight files that ropescale recognises, so only its configuration is patched"
    yield from two_sets(source)
    yield from other_limits(source, plan.length)
    section = plan.planned.section
    model_type = plan.planned.model_type
    window = number(section.get("sliding_window"))
    if window and 0 < window < plan.length and section.get("use_sliding_window", True):
        yield f"config.json: sliding_window is {window:g}; no schedule lets the layers that use it attend further"
    for name in ("params.json", "original/params.json"):
        if any(key in optional_json(source / name) for key in _PARAMS_KEYS):
            yield f"{name}: still describes the original model; an engine that reads that file applies no scaling"
    where = dotted(plan.planned.path)
    for unknown in dict.fromkeys([plan.planned.whole_type, model_type]):
        if is_in_transformers(unknown) or unknown in class_defaults.sections() or SPECULATORS in plan.planned.raw:
            continue
        yield (
            f"model type {brief(unknown)} is unknown to ropescale; whether its code reads what is written in {where} "
            "is not known, and `ropescale verify` shows it"
        )
    yield from engine_warnings(plan)


def other_limits(folder: Path, length: int) -> Iterator[str]:
    """Yields a warning for every file of a checkpoint that sets a limit below ``length`` tokens.

    Skips ``config.json`` and ``tokenizer_config.json``, because patching raises their limits.
    """
    generation = number(optional_json(folder / "generation_config.json").get("max_length")) or 0
    if _UNCHOSEN < generation < length:
        yield f"generation_config.json: max_length is still {generation:g}, which stops generation there"
    if (folder / "tokenizer.json").exists():
        with open_regular(folder / "tokenizer.json") as file:  # the first lines contain the limit
            match = _TRUNCATION.search(file.read(4096).decode("utf-8", "replace"))
        if match and int(match[1]) < length:
            yield f"tokenizer.json: truncates texts at {match[1]} tokens"


_UNCHOSEN = 20
"""transformers' default for ``max_length``; only a larger value is a limit that somebody chose."""

_PARAMS_KEYS = ("rope_theta", "use_scaled_rope", "max_seq_len", "max_position_embeddings", "yarn")
"""The keys of ``params.json`` that Mistral's and Meta's own engines read."""

_TRUNCATION = re.compile(r'"truncation"\s*:\s*\{[^{}]*?"max_length"\s*:\s*(\d{1,19})\b')


def on_links(links: Mapping[str, str], asked: str) -> Iterator[str]:
    """Yields warnings about weights that are symbolic links or unintended copies.

    Args:
        links: the link type of each weight file.
        asked: the requested link type.
    """
    count = Counter(links.values())
    if count["symlink"]:
        yield (
            f"weights are absolute symlinks to the source ({count['symlink']} of {len(links)}): keep the source where "
            "it is, or copy them"
        )
    if count["copy"] and asked == "auto":
        yield f"weights were copied ({count['copy']} of {len(links)}), because no kind of link is possible here"
