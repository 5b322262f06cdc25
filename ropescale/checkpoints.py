"""Patches a checkpoint on disk: a new folder with new configuration files and linked weights.

No weights are read. The result loads in stock engines with no ropescale installed.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import cards
from .engines import engine_warnings
from .errors import CheckpointError, ConfigError, ScheduleError
from .lengths import parse_length
from .plans import Plan, Spec, make_plan
from .records import NAME as RECORD
from .records import as_json, make_record, original_config
from .rope import text_section
from .sources import find_model, read_config, read_json

BACKUP = "ropescale-backup"
"""The folder in which ``--in-place`` keeps what it replaced."""

LINKS = ("auto", "hard", "symlink", "copy")
_WEIGHTS = (
    "*.safetensors pytorch_model*.bin model*.bin consolidated*.pth consolidated*.pt *.gguf tf_model*.h5 "
    "flax_model*.msgpack *.onnx *.onnx_data"
).split()
_SKIPPED = {".git", ".gitattributes", ".cache", ".huggingface", "__pycache__", ".DS_Store", BACKUP}
_OLD_LIMIT_FILES = {"params.json": ("rope_theta", "max_seq_len", "max_position_embeddings", "yarn")}


@dataclass
class PatchedCheckpoint:
    """What :func:`patch_checkpoint` did, or would do.

    Attributes:
        folder: where the patched checkpoint lies (None after a dry run).
        plan: the schedule worked out.
        config_diff: unified diff of ``config.json``.
        warnings: what an engine would compute differently, and which files still hold the old limit.
        links: how each weight file was brought over, ``{name: "hard" | "symlink" | "copy"}``.
    """

    folder: Path | None
    plan: Plan
    config_diff: str
    warnings: list[str]
    links: dict[str, str] = field(default_factory=dict)


def patch_checkpoint(
    model: str | Path,
    out: str | Path | None,
    schedule: Spec,
    *,
    factor: float | None = None,
    target_length: int | str | None = None,
    original_length: int | str | None = None,
    overrides: Mapping[str, str] | None = None,
    layers: str = "full",
    replace_scaling: bool = False,
    on_top: bool = False,
    freeze_at: int | str | None = None,
    link: str = "auto",
    revision: str | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    force: bool = False,
) -> PatchedCheckpoint:
    """Writes a checkpoint that carries a schedule.

    Args:
        model: a checkpoint's folder, or a Hub id.
        out: the folder to make; None with ``in_place`` or ``dry_run``.
        schedule: a schedule or a spec such as ``"yarn"`` or ``"yarn:factor=8"``.
        factor, target_length, overrides: fill in the schedule's fields. Lengths may be ``"128k"``.
        original_length: the trained length, where the configuration does not know it.
        layers, replace_scaling, on_top: as for :func:`ropescale.patch`.
        freeze_at: turn a length-dependent schedule into the fixed table it has at this length.
        link: how weights come over: ``auto`` (hard link, else absolute symlink, else copy), ``hard``,
            ``symlink`` or ``copy``.
        revision: branch, tag or commit of a Hub id.
        in_place: change ``model`` itself; :func:`restore` undoes it.
        dry_run: change nothing, only say what would be done.
        force: replace ``out`` if it exists.

    Raises:
        RopescaleError: the input is wrong; nothing is written.
    """
    if link not in LINKS:
        raise CheckpointError(f"there is no way of linking called {link!r}; choose from {', '.join(LINKS)}")
    source = find_model(model, revision, weights=not dry_run)
    current = read_config(source)
    before = original_config(current, source)
    plan = make_plan(
        before,
        schedule,
        factor=factor,
        target_length=None if target_length is None else parse_length(target_length),
        original_length=None if original_length is None else parse_length(original_length),
        overrides=overrides,
        layers=layers,
        replace_scaling=replace_scaling,
        on_top=on_top,
        freeze_at=None if freeze_at is None else parse_length(freeze_at),
    )
    _refuse_unsavable(plan)
    files = _new_files(source, str(model), plan, before)
    result = PatchedCheckpoint(None, plan, _diff(current, plan.config), _warnings(source, plan))
    if in_place:
        result.folder = None if dry_run else _write_in_place(source, model, files)
    else:
        target = _checked_target(source, out, force, dry_run)
        if target is not None:
            result.links = _write_folder(source, target, files, link)
            result.folder = target
    result.warnings += _link_words(result.links)
    return result


def restore(folder: str | Path) -> Path:
    """Undoes ``patch --in-place``.

    Raises:
        CheckpointError: there is nothing to restore.
    """
    path = Path(folder).expanduser()
    backup = path / BACKUP
    if not backup.is_dir():
        record = path / RECORD
        hint = f"; it was patched from {read_json(record).get('source')}, which is untouched" if record.exists() else ""
        raise CheckpointError(f"there is nothing to restore in {path}: it was not patched in place{hint}")
    manifest = read_json(backup / "manifest.json")
    for name in manifest["replaced"]:
        _replace_file(path / name, (backup / name).read_bytes())
    for name in manifest["added"]:
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(backup)
    return path


# ---------------------------------------------------------------------------------------------------------
# What is written


def _refuse_unsavable(plan: Plan) -> None:
    if plan.unsavable:
        raise ScheduleError(plan.unsavable)
    if not plan.changes:
        raise ScheduleError("as-is changes nothing, so there is nothing to write; name the schedule that you want")


def _new_files(source: Path, name: str, plan: Plan, before: Mapping[str, Any]) -> dict[str, str]:
    """The text of every file that differs from the source's."""
    original = (source / "config.json").read_bytes()
    files = {
        "config.json": _json(plan.config, "config.json"),
        RECORD: as_json(make_record(plan, _source_name(name), original, before)),
        "README.md": cards.card(source / "README.md", plan, _source_name(name)),
    }
    tokenizer = _raised_tokenizer(source / "tokenizer_config.json", plan.length)
    return files | ({"tokenizer_config.json": tokenizer} if tokenizer else {})


def _json(config: Mapping[str, Any], name: str) -> str:
    try:
        return as_json(config)
    except ValueError:
        raise ConfigError(f"{name} holds NaN or Infinity, which is not JSON; mend it first") from None


def _source_name(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else name


def _raised_tokenizer(path: Path, length: int) -> str | None:
    """``tokenizer_config.json`` with ``model_max_length`` raised; None where it is high enough or absent."""
    if not path.exists():
        return None
    settings = read_json(path)
    limit = settings.get("model_max_length")
    if not isinstance(limit, (int, float)) or limit >= length:
        return None
    return as_json({**settings, "model_max_length": length})


def _diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Unified diff of two configurations; long lists on one line so that a table does not fill the screen."""
    return "".join(
        difflib.unified_diff(_lines(old), _lines(new), "config.json (source)", "config.json (patched)", n=1)
    )


def _lines(config: Mapping[str, Any]) -> list[str]:
    return [line + "\n" for line in _readable(config, 0)]


def _readable(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    pad = "  " * (depth + 1)
    yield "  " * depth + "{" if depth == 0 else "{"
    for key in sorted(value):
        inner = value[key]
        if isinstance(inner, Mapping):
            first, *rest = _readable(inner, depth + 1)
            yield f"{pad}{json.dumps(key)}: {first}"
            yield from rest
        else:
            yield f"{pad}{json.dumps(key)}: {_short(inner)}"
    yield "  " * depth + "}"


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 6 and all(isinstance(v, (int, float)) for v in value):
        ends = ", ".join(f"{v:.6g}" for v in value[:3]), ", ".join(f"{v:.6g}" for v in value[-2:])
        return f"[{ends[0]}, ... {len(value)} numbers ..., {ends[1]}]"
    return json.dumps(value)


# ---------------------------------------------------------------------------------------------------------
# What the user should know


def _warnings(source: Path, plan: Plan) -> list[str]:
    return [*_old_limits(source, plan), *engine_warnings(plan)]


def _old_limits(source: Path, plan: Plan) -> Iterator[str]:
    """Files and fields of the source that still say the old length."""
    generation = _optional_json(source / "generation_config.json")
    if 20 < (generation.get("max_length") or 0) < plan.length:  # 20 is transformers' own default, which nobody chose
        yield f"generation_config.json: max_length is still {generation['max_length']}, which stops generation there"
    section = text_section(plan.config)
    window = section.get("sliding_window")
    if window and window < plan.length and section.get("use_sliding_window", True):
        yield f"config.json: sliding_window is {window}; the layers that use it see no further, whatever the schedule"
    for name, keys in _OLD_LIMIT_FILES.items():
        if any(key in _optional_json(source / name) for key in keys):
            yield f"{name}: still describes the original model; an engine that reads it instead of config.json sees no scaling"
    truncation = _optional_json(source / "tokenizer.json").get("truncation") or {}
    if 0 < truncation.get("max_length", 0) < plan.length:
        yield f"tokenizer.json: cuts texts at {truncation['max_length']} tokens"


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _link_words(links: Mapping[str, str]) -> list[str]:
    symlinks = [name for name, how in links.items() if how == "symlink"]
    if not symlinks:
        return []
    return [
        f"{len(symlinks)} weight file(s) are absolute symlinks to the source (hard links do not cross file systems): "
        "keep the source where it is, or use --link copy"
    ]


# ---------------------------------------------------------------------------------------------------------
# Writing a folder


def _checked_target(source: Path, out: str | Path | None, force: bool, dry_run: bool) -> Path | None:
    if out is None:
        if dry_run:
            return None
        raise CheckpointError("say where the patched checkpoint goes (-o OUT), or --in-place, or --dry-run")
    target = Path(out).expanduser()
    here, there = source.resolve(), target.resolve()
    if here == there:
        raise CheckpointError(f"{target} is the source itself; choose another folder, or use --in-place")
    if here in there.parents or there in here.parents:
        raise CheckpointError(f"{target} and the source {source} lie inside one another; choose another folder")
    if os.path.lexists(target) and not force:
        raise CheckpointError(f"{target} exists already; choose another folder, or replace it with --force")
    return None if dry_run else target


def _write_folder(source: Path, target: Path, files: Mapping[str, str], link: str) -> dict[str, str]:
    """Builds the folder beside its final place and renames it: it is there whole, or not at all."""
    with _translated(target), _building_beside(target) as building:
        links = {}
        for path in _source_files(source):
            name = path.relative_to(source)
            if name.as_posix() in files or name.as_posix() == RECORD:
                continue
            destination = building / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            if _is_weight(path):
                links[name.as_posix()] = _link(path, destination, link)
            else:
                shutil.copyfile(path, destination)
        for name, text in files.items():
            (building / name).write_text(text, encoding="utf-8")
        _swap_in(building, target)
    return links


def _source_files(source: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(source, followlinks=False):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        yield from (Path(root) / name for name in sorted(names) if name not in _SKIPPED)


def _is_weight(path: Path) -> bool:
    return any(fnmatch.fnmatch(path.name, pattern) for pattern in _WEIGHTS)


def _link(path: Path, destination: Path, how: str) -> str:
    """Brings a weight file over. The real file, because hub caches are made of symlinks."""
    real = Path(os.path.realpath(path))
    ways: dict[str, Callable[[], Any]] = {
        "hard": lambda: os.link(real, destination),
        "symlink": lambda: os.symlink(real, destination),
        "copy": lambda: shutil.copyfile(real, destination),
    }
    if not real.exists():
        raise CheckpointError(f"{path} is a link to {real}, which does not exist; is the download complete?")
    for way in ways if how == "auto" else (how,):
        try:
            ways[way]()
            return way
        except OSError as error:
            destination.unlink(missing_ok=True)
            if how != "auto" or way == "copy":
                raise CheckpointError(f"{path.name} could not be brought over ({way}): {error.strerror}") from error
    raise AssertionError("unreachable: copy either works or raises")


@contextmanager
def _translated(target: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error.strerror or error}") from error


@contextmanager
def _building_beside(target: Path) -> Iterator[Path]:
    """A new hidden folder next to ``target``; gone afterwards, unless it was renamed away."""
    made = [parent for parent in target.absolute().parents if not parent.exists()]
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".ropescale", dir=target.absolute().parent))
    try:
        building.chmod(0o777 & ~_umask())
        yield building
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        for parent in made:
            parent.rmdir()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _swap_in(building: Path, target: Path) -> None:
    if not os.path.lexists(target):
        building.rename(target)
        return
    aside = building.with_name(building.name + ".old")
    target.rename(aside)
    try:
        building.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside) if aside.is_dir() and not aside.is_symlink() else aside.unlink()


# ---------------------------------------------------------------------------------------------------------
# Writing in place


def _write_in_place(source: Path, model: str | Path, files: Mapping[str, str]) -> Path:
    """Keeps what is there, then replaces file by file; a crash at any point leaves :func:`restore` able to undo."""
    if not Path(model).expanduser().is_dir():
        raise CheckpointError(f"{model} lies in the Hub's cache, which is shared; use -o OUT instead of --in-place")
    with _translated(source):
        _keep_originals(source, files)
        for name, text in files.items():
            _replace_file(source / name, text.encode())
    return source


def _keep_originals(source: Path, files: Mapping[str, str]) -> None:
    if (source / BACKUP).is_dir():
        return
    replaced = [name for name in files if (source / name).exists()]
    building = Path(tempfile.mkdtemp(prefix=f".{BACKUP}.", dir=source))
    try:
        for name in replaced:
            shutil.copyfile(source / name, building / name)
        manifest = {"replaced": replaced, "added": [name for name in files if name not in replaced]}
        (building / "manifest.json").write_text(as_json(manifest), encoding="utf-8")
        building.rename(source / BACKUP)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _replace_file(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
