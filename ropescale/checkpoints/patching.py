"""Patches a checkpoint on disk: a new folder with new configuration files and linked weights.

No weights are read. The result loads in stock engines with no ropescale installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs import class_defaults
from ..configs.reading import text_section
from ..engines import engine_warnings
from ..errors import CheckpointError, ConfigError, RunError, ScheduleError
from ..escaping import stays_below, visible
from ..files import temporary
from ..files.building import recover
from ..files.reading import local_path, open_regular, read_bytes, read_json, sha256
from ..formatting import brief, cut
from ..planning.plan import Plan, make_plan
from ..request import Request, RequestOptions
from ..schedules import describe
from . import front_matter, links, model_card, uploading
from .backups import BACKUP, can_tell, is_interrupted, put_back, refuse_links, write_in_place
from .differences import changes, diff
from .folders import (
    LINKS,
    check_target,
    files_of,
    is_weight,
    remove_ours,
    translated,
    why_not_ours,
    write_folder,
)
from .locating import bring_back, find_model, read_config
from .record import NAME as RECORD
from .record import Listing, as_json, files_in, make_record, original_config, read_record

if TYPE_CHECKING:
    from typing import Unpack


@dataclass
class PatchedCheckpoint:
    """What :func:`patch_checkpoint` did, or would do.

    Attributes:
        folder: where the patched checkpoint lies (None after a dry run, and where it lies only on the Hub).
        plan: the schedule worked out.
        before: the configuration that the source has; :attr:`Plan.before` is the makers', where ropescale had patched.
        config_diff: unified diff of ``config.json``.
        warnings: what an engine would compute differently, and which files still hold the old limit.
        links: how each weight file was brought over, ``{name: "hard" | "symlink" | "copy"}``.
        upload: what was sent to the Hub, or would be; None where that was not asked for.
        changes: every file that is written, by name: a unified diff, or a line that says what was added.
    """

    folder: Path | None
    plan: Plan
    before: Mapping[str, Any]
    config_diff: str
    warnings: list[str]
    links: dict[str, str] = field(default_factory=dict)
    upload: uploading.Upload | None = None
    changes: dict[str, str] = field(default_factory=dict)


def patch_checkpoint(
    model: str | Path,
    out: str | Path | None,
    schedule: object,
    *,
    link: str = "auto",
    revision: str | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    force: bool = False,
    push_to_hub: str | None = None,
    private: bool = False,
    **options: Unpack[RequestOptions],
) -> PatchedCheckpoint:
    """Writes a checkpoint that carries a schedule.

    Args:
        model: a checkpoint's folder, or a Hub id.
        out: the folder to make; None with ``in_place``, ``dry_run`` or ``push_to_hub``.
        schedule: a schedule or a spec such as ``"yarn"`` or ``"yarn:factor=8"``.
        link: how weights come over: ``auto`` (hard link, else absolute symlink, else copy), ``hard``,
            ``symlink`` or ``copy``.
        revision: branch, tag or commit of a Hub id.
        in_place: change ``model`` itself; :func:`restore` undoes it.
        dry_run: change nothing, only say what would be done.
        force: replace ``out``, and what is in ``push_to_hub``, if ropescale wrote it.
        push_to_hub: ``user/name`` of the repository on the Hub that the result is sent to, with the token that
            huggingface_hub finds. Without ``out`` it passes through a temporary folder of links.
        private: make that repository private.
        options: the fields of :class:`ropescale.request.Request`.

    Raises:
        RunError: the upload failed; the patched checkpoint is kept, and the message says where.
        RopescaleError: the input is wrong; nothing is written.
    """
    request = Request.of(schedule, **options)
    if link not in LINKS:
        raise CheckpointError(f"there is no way of linking called {link!r}; choose from {', '.join(LINKS)}")
    _refuse_contradiction(model, out, in_place, dry_run, push_to_hub)
    if private and push_to_hub is None:
        raise CheckpointError("--private is for --push-to-hub REPO; name the repository, or leave it out")
    resumed = _resumed(local_path(model)) if in_place and not dry_run else ()
    # First of all: the download of a model can take hours.
    to, is_local = None, local_path(model).is_dir()
    if push_to_hub is not None:
        if is_local:
            links.refuse_leaving(find_model(model, revision))
        to = uploading.repository(push_to_hub, private=private, force=force, ask=not dry_run)
    source = find_model(model, revision, weights=not dry_run)
    if to and not is_local:
        links.refuse_leaving(source)
    left = [] if out is None or dry_run else recover(local_path(out), why_not_ours, remove_ours)
    target = None if out is None else check_target(source, out, force)
    plan = make_plan(original_config(read_config(source), source), request)
    _refuse_unsavable(plan)
    plan = replace(plan, notes=(*resumed, *_undone(source), *plan.notes))
    with translated(source, "read"):
        fine = [*links.found(source)] if in_place and to else []  # one that is not has been refused
        files = _new_files(source, str(model), plan, to.name if to else None)
        record = _record(source, str(model), plan)
        before = read_config(source)
        warnings = _warnings(source, plan, weights=not dry_run or is_local)
        result = PatchedCheckpoint(None, plan, before, diff(before, plan.config), warnings)
        told = {**files, RECORD: as_json(record, RECORD)}
        result.changes = changes(source, told)
    if in_place:
        refuse_links(source, [*files, RECORD])
    if dry_run:
        result.upload = uploading.intended(source, told, to, not is_local) if to else None
        return result
    with _place(target, None if in_place else to) as place:
        result.folder, result.links = _write(source, place, files, record, link, force)
        result.upload = uploading.upload(result.folder, to, _message(plan), [*fine, *result.links]) if to else None
    if place != target:
        result.folder, result.links = None, {}  # the temporary one is gone
    result.warnings += [*_link_words(result.links, link), *map(_left_words, left)]
    return result


def restore(folder: str | Path) -> Path:
    """Undoes ``patch --in-place``, byte for byte, also where that (or an earlier restore) was interrupted.

    Raises:
        CheckpointError: there is nothing to restore.
    """
    path = local_path(folder)
    bring_back(path)
    if not path.is_dir():
        raise CheckpointError(f"there is no folder {path}; give the checkpoint that was patched in place")
    if not (path / BACKUP).is_dir():
        raise CheckpointError(f"there is nothing to restore in {path}: {_why_nothing(path / RECORD)}")
    with translated(path):
        put_back(path)
    return path


def _why_nothing(record: Path) -> str:
    """Why a folder has no backup. The record of one that was made beside its source lists its files."""
    if not record.exists():
        return "it was not patched in place"
    found = read_json(record)
    source = cut(visible(str(found.get("source"))), 100)
    if "files" in found:
        return f"it was not patched in place; it was patched from {source}, which is untouched"
    return f"it holds no {BACKUP}; its record says that it was patched from {source}"


# ---------------------------------------------------------------------------------------------------------
# What is written


def _refuse_contradiction(
    model: str | Path, out: str | Path | None, in_place: bool, dry_run: bool, push_to_hub: str | None
) -> None:
    if in_place and out is not None:
        raise CheckpointError("-o OUT and --in-place exclude each other; choose one")
    if in_place and not local_path(model).is_dir():
        raise CheckpointError(f"{model} is not a local folder, so --in-place cannot change it; use -o OUT")
    if out is None and not in_place and not dry_run and push_to_hub is None:
        raise CheckpointError("say where the patched checkpoint goes (-o OUT), or --in-place, or --dry-run")


def _resumed(folder: Path) -> tuple[str, ...]:
    """Undo what an interrupted ``--in-place`` (or restore) has done, so that this one begins from the originals."""
    with translated(folder):
        if not is_interrupted(folder):
            return ()
        if not can_tell(folder):
            raise CheckpointError(
                f"{folder} was being patched in place by an earlier version, and that was interrupted; see that you "
                f"changed nothing since, and undo it with `ropescale restore {folder}`"
            )
        put_back(folder)
    return ("an earlier change in place was interrupted; it was undone, and this begins from the originals",)


def _undone(source: Path) -> Iterator[str]:
    """What patching a checkpoint again does with the schedule that it has."""
    record = read_record(source)
    if record is not None:
        labels = ", ".join(dict.fromkeys(record.labels.values()))
        yield f"ropescale patched this checkpoint before ({labels}); that is undone, and the new schedule replaces it"


def _refuse_unsavable(plan: Plan) -> None:
    if plan.unsavable:
        raise ScheduleError(plan.unsavable)
    if not plan.changes:
        raise ScheduleError("as-is changes nothing, so there is nothing to write; name the schedule that you want")


def _write(
    source: Path, target: Path | None, files: Mapping[str, bytes], record: Mapping[str, Any], link: str, force: bool
) -> tuple[Path, dict[str, str]]:
    """Into a new folder, or where the source lies when there is no target."""
    if target is not None:
        with translated(source, "read"):
            _refuse_missing_shards(source)
        return target, write_folder(source, target, files, lambda listing: _with_files(record, listing), link, force)
    listed = files_in(source)  # the links among them are still ours
    if listed is not None:
        listed = {**listed, **{name: {"sha256": sha256(content)} for name, content in files.items()}}
    with translated(source):
        write_in_place(
            source, {**files, RECORD: as_json(record, RECORD) if listed is None else _with_files(record, listed)}
        )
    return source, {}


def _with_files(record: Mapping[str, Any], files: Listing) -> bytes:
    """The record with what was written, by which ``--force`` knows it again."""
    return as_json({**record, "files": files}, RECORD)


def _record(source: Path, name: str, plan: Plan) -> dict[str, Any]:
    return make_record(plan, _source_name(name), read_bytes(source / "config.json"), read_record(source))


def _new_files(source: Path, name: str, plan: Plan, to: str | None = None) -> dict[str, bytes]:
    """The content of every file that differs from the source's, but the record; strangers will read them in ``to``."""
    named = _source_name(name)
    files = {
        "config.json": as_json(plan.config, "config.json"),
        "README.md": _card(source / "README.md", plan, named, None if local_path(name).is_dir() else name, to),
    }
    tokenizer = _raised_tokenizer(source / "tokenizer_config.json", plan.length)
    return files | ({"tokenizer_config.json": tokenizer} if tokenizer else {})


def _source_name(name: str) -> str:
    """A Hub id as it is; a folder by its last name alone, because whoever is given the result reads it too."""
    path = local_path(name)
    return path.resolve().name if path.is_dir() else name


def _card(readme: Path, plan: Plan, source: str, hub_id: str | None, to: str | None) -> bytes:
    """The makers' card with our section, and what the Hub reads of it where it has to do with the Hub."""
    card = model_card.card(readme, plan, source, to or "PATH")
    if hub_id or to:
        card = front_matter.with_metadata(card, hub_id)
    if to:
        front_matter.check(card, str(readme))
    return card


@contextmanager
def _place(target: Path | None, to: uploading.Repository | None) -> Iterator[Path | None]:
    """Where to write. What goes only to the Hub passes through a temporary folder, kept if it does not arrive."""
    if target is not None or to is None:
        yield target
        return
    with temporary.folder(keep=RunError) as above:  # that error names the folder and the way to send it again
        yield above / to.name.partition("/")[2]


def _message(plan: Plan) -> str:
    """The commit's title."""
    return visible(f"Context extended by ropescale: {', '.join(dict.fromkeys(map(describe, plan.schedules.values())))}")


def _raised_tokenizer(path: Path, length: int) -> bytes | None:
    """``tokenizer_config.json`` with ``model_max_length`` raised; None where it is high enough or absent."""
    limit = _number(_optional_json(path).get("model_max_length"))
    if limit is None or limit >= length:
        return None
    return as_json({**read_json(path), "model_max_length": length}, path.name)


def _refuse_missing_shards(source: Path) -> None:
    """Half a download would become a checkpoint that no engine loads."""
    for index in sorted(source.glob("*.index.json")):
        shards = _shards(index) if is_weight(index.name.removesuffix(".index.json")) else set()
        missing = sorted(name for name in shards if not os.path.exists(source / name))
        if missing:
            first = cut(missing[0], 100)
            raise CheckpointError(
                f"{source} lacks {len(missing)} of the {len(shards)} files in {index.name}, {first} among them; "
                "complete the download first"
            )


_LARGEST_INDEX = 128 * 2**20
"""Bytes; that of a model with a million tensors has a hundred million."""


def _shards(index: Path) -> set[str]:
    """The files that an index names; all of them lie in its folder.

    Raises:
        ConfigError: it is no index, or names something that is no file of the folder.
    """
    weights = read_json(index, _LARGEST_INDEX).get("weight_map")
    names: Iterable[Any] = weights.values() if isinstance(weights, Mapping) else [weights]
    for name in names:
        if not isinstance(name, str) or not stays_below(name.removeprefix("./")):
            raise ConfigError(
                f"{index} has {brief(name)} where the name of a file in its folder should stand; restore it from where "
                "it was downloaded"
            )
    return set(names)


# ---------------------------------------------------------------------------------------------------------
# What the user should know


def _warnings(source: Path, plan: Plan, weights: bool) -> list[str]:
    """``weights`` says whether those of the source should be there: a dry run leaves them on the Hub."""
    return [
        *(_no_weights(source) if weights else ()),
        *links.warning(links.leaving(source)),
        *_old_limits(source, plan),
        *_unknown_type(plan),
        *engine_warnings(plan),
    ]


def _no_weights(source: Path) -> Iterator[str]:
    if not any(is_weight(name.name) for name in files_of(source)):
        yield f"{source} holds no weight files that ropescale knows, so only its configuration is patched"


def _unknown_type(plan: Plan) -> Iterator[str]:
    model_type = text_section(plan.config).get("model_type")
    if model_type not in class_defaults.load():
        yield (
            f"model type {brief(model_type)} is not one that ropescale knows: whether its code reads these keys is for "
            "`ropescale verify` to show"
        )


def _old_limits(source: Path, plan: Plan) -> Iterator[str]:
    """Files and fields of the source that still say the old length."""
    generation = _number(_optional_json(source / "generation_config.json").get("max_length")) or 0
    if _UNCHOSEN < generation < plan.length:
        yield f"generation_config.json: max_length is still {generation:g}, which stops generation there"
    section = text_section(plan.config)
    window = _number(section.get("sliding_window"))
    if window and 0 < window < plan.length and section.get("use_sliding_window", True):
        yield f"config.json: sliding_window is {window:g}; the layers that use it see no further, whatever the schedule"
    for name in ("params.json", "original/params.json"):
        if any(key in _optional_json(source / name) for key in _PARAMS_KEYS):
            yield f"{name}: still describes the original model; an engine that reads that file sees no scaling"
    limit = _truncation(source / "tokenizer.json")
    if limit is not None and limit < plan.length:
        yield f"tokenizer.json: cuts texts at {limit} tokens"


_UNCHOSEN = 20
"""transformers' default for ``max_length``, which nobody chose."""

_PARAMS_KEYS = ("rope_theta", "use_scaled_rope", "max_seq_len", "max_position_embeddings", "yarn")
"""What Mistral's and Meta's own engines read from ``params.json``."""

_TRUNCATION = re.compile(r'"truncation"\s*:\s*\{[^{}]*?"max_length"\s*:\s*(\d+)')


def _truncation(path: Path) -> int | None:
    """Where ``tokenizer.json`` cuts; the file can be tens of megabytes, and this stands in its first lines."""
    if not path.exists():
        return None
    with open_regular(path) as file:
        match = _TRUNCATION.search(file.read(4096).decode("utf-8", "replace"))
    return int(match[1]) if match and len(match[1]) < 20 else None


def _number(value: Any) -> float | None:
    """A number that a file holds where one is expected; None for anything else."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _left_words(path: Path) -> str:
    """A word about what a command that was stopped left, and that cannot be told from what a living one writes."""
    return f"{path} was left by a command that was stopped; remove it yourself once no other is writing there"


def _link_words(links: Mapping[str, str], asked: str) -> list[str]:
    """A word about weights that did not come over as hard links."""
    symlinks = sum(how == "symlink" for how in links.values())
    copies = sum(how == "copy" for how in links.values())
    because = " (no hard links here: another file system?)" if asked == "auto" else ""
    words = []
    if symlinks:
        words.append(
            f"{symlinks} weight file(s) are absolute symlinks to the source{because}: keep the source where it is, "
            "or use --link copy"
        )
    if copies and asked == "auto":
        words.append(f"{copies} weight file(s) were copied: neither hard links nor symlinks are possible here")
    return words
