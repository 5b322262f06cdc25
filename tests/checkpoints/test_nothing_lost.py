"""No file of a user's is ever deleted or overwritten, whatever is forced, interrupted, killed or appears meanwhile."""

import hashlib
import json
import os
import re
import shutil
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import filelock
import pytest
from configurations import edit, read, write_checkpoint, write_files
from crashing import raising, tree, unchanged
from refusing import untouched

from ropescale import files
from ropescale.checkpoints import backups, folders
from ropescale.checkpoints.patching import patch_checkpoint, restore
from ropescale.errors import CheckpointError, ConfigError

WEIGHTS = "model.safetensors"


def checkpoint(folder: Path) -> Path:
    weights = {WEIGHTS: b"these are no weights " * 9}
    return write_checkpoint(folder, files={**weights, "LICENSE": "the licence", "nested/extra.json": "{}"})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "source")


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    """An earlier result."""
    patch_checkpoint(source, tmp_path / "out", "linear:factor=2")
    return tmp_path / "out"


force = partial(patch_checkpoint, schedule="yarn:factor=4", force=True)
in_place = partial(patch_checkpoint, out=None, schedule="yarn:factor=4", in_place=True)


def rope_type(folder: Path) -> str:
    return read(folder / "config.json")["rope_parameters"]["rope_type"]


# ---------------------------------------------------------------------------------------------------------
# What --force replaces


@pytest.mark.parametrize("link", ["hard", "symlink", "copy"])
def test_force_replaces_what_the_record_says_we_wrote(source, tmp_path, link):
    patch_checkpoint(source, tmp_path / "out", "linear:factor=2", link=link)
    for _ in range(2):
        force(source, tmp_path / "out", link=link)
        assert rope_type(tmp_path / "out") == "yarn"
        assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def plant(path: Path) -> None:
    write_files(path.parent, {path.name: "years of work"})


def fine_tune(path: Path) -> None:
    """As `save_pretrained` does: a new file takes the link's name."""
    path.unlink()
    path.write_bytes(b"these were trained for a week")


FOREIGN = {
    "notes/": lambda out: plant(out / "notes" / "thesis.txt"),
    "empty/": lambda out: (out / "empty").mkdir(),
    ".git/": lambda out: plant(out / ".git" / "HEAD"),
    WEIGHTS: lambda out: fine_tune(out / WEIGHTS),
}
NAMES = ("thesis.txt", "nested/thesis.txt", ".hidden", "LICENSE", "config.json", "README.md")


HARD = [(name, "hard") for name in (*FOREIGN, *NAMES)]


@pytest.mark.parametrize(("name", "link"), [*HARD, (WEIGHTS, "symlink"), (WEIGHTS, "copy")])
def test_force_leaves_a_folder_that_holds_anything_else_and_names_it(source, tmp_path, name, link):
    out = patch_checkpoint(source, tmp_path / "out", "linear:factor=2", link=link).folder
    FOREIGN.get(name, lambda out: plant(out / name))(out)
    for dry_run in (False, True):
        with untouched(tmp_path, rf"{re.escape(str(out / name))}.*so {re.escape(str(out))} is never replaced"):
            force(source, out, dry_run=dry_run)


@pytest.mark.parametrize("names", [[], ["model-2.safetensors"]])
def test_the_last_link_to_weights_is_left_and_a_second_name_in_the_folder_is_no_copy(source, tmp_path, names):
    for name in names:
        os.link(source / WEIGHTS, source / name)
    patch_checkpoint(source, tmp_path / "out", "linear:factor=2")
    other = checkpoint(tmp_path / "other")
    shutil.rmtree(source)
    with untouched(tmp_path, "the only copy left of these weights"):
        force(other, tmp_path / "out")


def test_a_checkpoint_that_was_patched_in_place_is_left_with_its_backup(source, tmp_path):
    patch_checkpoint(source, None, "yarn:factor=2", in_place=True)
    (source / WEIGHTS).write_bytes(b"changed since")
    other = checkpoint(tmp_path / "other")
    for forced in (True, False):
        with untouched(tmp_path, r"ropescale-backup.*never replaced; choose"):
            patch_checkpoint(other, source, "yarn:factor=4", force=forced)


@pytest.mark.parametrize("record", ["", "{}", '{"schema": 1}', "[]", "\0", '{"schema": 1, "files": {"thesis.txt":{}}}'])
def test_a_file_of_the_records_name_gives_no_leave_to_delete(source, tmp_path, record):
    fake = write_files(tmp_path / "fake", {"thesis.txt": "years of work", "ropescale.json": record})
    with untouched(tmp_path, r"fake/ropescale.json.*yours.*remove"):
        force(source, fake)


@pytest.mark.parametrize("name", ["../thesis.txt", "/etc/passwd", "a/../../x", "..\\a", "C:\\a", "", ".", "\0"])
def test_a_record_reaches_nothing_outside_its_folder(source, out, tmp_path, name):
    plant(tmp_path / "thesis.txt")
    files = read(out / "ropescale.json")["files"]
    edit(out, "ropescale.json", files=files | {name: {"sha256": hashlib.sha256(b"years of work").hexdigest()}})
    with untouched(tmp_path, "does not list the files"):
        force(source, out)


def test_a_link_to_an_earlier_result_is_left(source, out, tmp_path):
    (tmp_path / "link").symlink_to("out")
    with untouched(tmp_path, "a symbolic link"):
        force(source, tmp_path / "link")


# ---------------------------------------------------------------------------------------------------------
# What appears meanwhile


def during(monkeypatch: pytest.MonkeyPatch, act: object) -> None:
    """Calls ``act`` when the new folder is whole and has not its name yet."""
    whole = folders.write_synced

    def written(path: Path, content: bytes) -> None:
        whole(path, content)
        if path.name == "ropescale.json":
            act()

    monkeypatch.setattr(folders, "write_synced", written)


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "link"])
def test_an_output_that_appears_meanwhile_is_left(source, tmp_path, monkeypatch, kind):
    out = tmp_path / "out"
    make = {"folder": lambda: plant(out / "thesis.txt"), "empty folder": out.mkdir}
    make |= {"file": lambda: plant(out), "link": lambda: out.symlink_to(source)}
    during(monkeypatch, make[kind])
    with pytest.raises(CheckpointError, match="was created meanwhile"):
        patch_checkpoint(source, out, "yarn:factor=4")
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]
    assert (out / "thesis.txt").exists() == (kind == "folder")
    assert set(os.listdir(source)) == {"config.json", WEIGHTS, "LICENSE", "nested"}


@pytest.mark.parametrize("earlier", [True, False])
def test_a_file_that_appears_meanwhile_in_an_earlier_result_or_folder_stays(source, tmp_path, monkeypatch, earlier):
    out = tmp_path / "out"
    patch_checkpoint(source, out, "linear:factor=2") if earlier else out.mkdir()
    before = tree(out)
    during(monkeypatch, lambda: plant(out / "thesis.txt"))
    with pytest.raises(CheckpointError, match=r"thesis.txt was (not written by ropescale|created meanwhile)"):
        force(source, out)
    found = tree(out)
    assert found.pop("thesis.txt") and found == before
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_what_cannot_be_removed_is_named_and_the_new_result_stands(source, out, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(folders, "remove_ours", raising(PermissionError(13, "Permission denied")))
    before = tree(out)
    force(source, out)
    monkeypatch.undo()
    assert rope_type(out) == "yarn"
    assert tree(tmp_path / "out~") == before
    assert f"{out}~ is the earlier version of {out}" in caplog.text
    force(source, out)  # which takes no notice of what was set aside
    assert tree(tmp_path / "out~") == before
    assert sorted(os.listdir(tmp_path)) == ["out", "out~", "source"]


@pytest.mark.parametrize("taken", [True, False])
def test_what_is_added_to_the_earlier_result_while_it_is_replaced_is_named_and_left(source, out, monkeypatch, taken):
    """After the check, before it has its other name."""
    if taken:
        plant(Path(f"{out}~"))
    aside = folders.set_aside
    monkeypatch.setattr(folders, "set_aside", lambda path, *note: plant(path / "thesis.txt") or aside(path, *note))
    force(source, out)
    left = Path(f"{out}~2" if taken else f"{out}~")
    assert (left / "thesis.txt").read_text() == "years of work"
    assert rope_type(left) == "linear" and rope_type(out) == "yarn"


# ---------------------------------------------------------------------------------------------------------
# Interrupted and killed


# ---------------------------------------------------------------------------------------------------------
# In place


@pytest.mark.parametrize("originals", [{}, {"README.md": "0"}])
def test_a_manifest_that_came_with_a_checkpoint_takes_nothing_of_the_users(source, originals):
    (source / "README.md").write_text("my own notes")
    with suppress(CheckpointError, ConfigError), unchanged(source):
        restore(source)
    content = {"originals": originals, "written": {"README.md": []}}
    write_files(source / backups.BACKUP, {"README.md": "planted", "manifest.json": json.dumps(content)})
    before = tree(source)
    with suppress(CheckpointError, ConfigError):
        in_place(source)
    assert (source / "README.md").read_text().startswith("my own notes")
    assert tree(source) == before
    with unchanged(source), pytest.raises((CheckpointError, ConfigError)):
        restore(source)


@pytest.mark.parametrize("key", ["written", "originals"])
@pytest.mark.parametrize("name", ["../thesis.txt", "{thesis}", WEIGHTS, "", "\0"])
def test_a_manifest_reaches_nothing_but_what_patching_writes(source, tmp_path, key, name):
    plant(tmp_path / "thesis.txt")
    in_place(source)
    added = {name.format(thesis=tmp_path / "thesis.txt"): ["0"] if key == "written" else "0"}
    manifest = source / backups.BACKUP / "manifest.json"
    edit(manifest.parent, manifest.name, **{key: read(manifest)[key] | added})
    for act in (restore, in_place):
        with untouched(tmp_path, "manifest.json is damaged", ConfigError):
            act(source)


def test_a_backup_that_is_a_link_is_not_followed(source, tmp_path):
    content = {"originals": {"config.json": "0"}, "written": {"config.json": []}}
    write_files(tmp_path / "other", {"config.json": "of another model", "manifest.json": json.dumps(content)})
    (source / backups.BACKUP).symlink_to(tmp_path / "other")
    for act in (restore, in_place):
        with untouched(tmp_path, "ropescale-backup is a symbolic link"):
            act(source)


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
def test_links_in_a_backup_that_came_with_a_checkpoint_lead_nowhere(source, tmp_path, name):
    plant(tmp_path / "thesis.txt")
    (source / backups.BACKUP).mkdir()
    (source / backups.BACKUP / name).symlink_to(tmp_path / "thesis.txt")
    original = (source / "config.json").read_bytes()
    for act in (in_place, restore):
        with pytest.raises((CheckpointError, ConfigError)):
            act(source)
    assert (source / "config.json").read_bytes() == original
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["README.md", "config.json"])
def test_a_file_that_is_edited_while_it_is_patched_in_place_is_left(source, monkeypatch, name):
    (source / "README.md").write_text("the card")
    store = backups._store

    def edited_meanwhile(*given: object) -> None:
        store(*given)
        (source / name).write_text("an afternoon later")

    monkeypatch.setattr(backups, "_store", edited_meanwhile)
    with pytest.raises(CheckpointError, match=f"{name} was changed"):
        in_place(source)
    assert (source / name).read_text() == "an afternoon later"


@pytest.mark.parametrize("name", ["config.json", "README.md", "ropescale.json"])
def test_restoring_never_overwrites_what_was_changed_since(source, tmp_path, name):
    in_place(source)
    (source / name).write_text("an afternoon's work")
    with untouched(source, rf"{name} was changed since .* restoring would lose the changes"):
        restore(source)
    (source / name).rename(tmp_path / "kept")
    restore(source)
    assert not (source / backups.BACKUP).exists()


@pytest.mark.parametrize("act", [in_place, restore])
def test_an_interruption_of_what_changes_in_place_waits_for_its_end_and_leaves_no_lock(source, monkeypatch, act):
    before, acquire = tree(source), filelock.FileLock.acquire

    def interrupted(*given, **named):
        acquired = acquire(*given, **named)
        signal.raise_signal(signal.SIGINT)
        return acquired

    if act is restore:
        in_place(source)
    with monkeypatch.context() as patched:
        patched.setattr(filelock.FileLock, "acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            act(source)
    assert not [name for name in os.listdir(source) if "lock" in name]
    if act is in_place:
        assert rope_type(source) == "yarn"
        restore(source)
    assert tree(source) == before


def test_two_commands_do_not_change_one_checkpoint_at_once(source):
    in_place(source)
    with files.hidden_path(source / backups.BACKUP):
        for act in (in_place, restore):
            with pytest.raises(CheckpointError, match="another command is writing"):
                act(source)


# ---------------------------------------------------------------------------------------------------------
# Signals


@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_signal_leaves_nothing_behind_and_says_so(source, tmp_path, monkeypatch, ran, number, word, options):
    out = tmp_path / "out"
    if options:
        patch_checkpoint(source, out, "linear:factor=2")
    during(monkeypatch, lambda: os.kill(os.getpid(), number))
    handler = signal.getsignal(number)
    with unchanged(tmp_path):
        said = ran("patch", source, "-o", out, "--schedule", "yarn:factor=4", *options, code=128 + number).err
    assert said.strip().startswith(word)
    assert signal.getsignal(number) == handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_old_result_is_removed_waits_until_it_is(source, out, tmp_path, monkeypatch, ran, number):
    remove = folders.remove_ours

    def interrupted(*arguments: object) -> bool:
        signal.raise_signal(number)
        return remove(*arguments)

    monkeypatch.setattr(folders, "remove_ours", interrupted)
    ran("patch", source, "-o", out, "--schedule", "yarn:factor=4", "--force", code=128 + number)
    assert rope_type(out) == "yarn"
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_one_of_many_processes_dies_of_sigterm_as_before(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with files.terminable():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    monkeypatch.delenv("WORLD_SIZE")
    with files.terminable():
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL


# ---------------------------------------------------------------------------------------------------------
# What is no place for a result, and what is no original


@pytest.mark.parametrize("out", [".", "", "sub/.."])
def test_the_folder_that_one_is_in_is_never_replaced_nor_the_one_above(source, tmp_path, monkeypatch, out):
    here = tmp_path / "above" / "here"
    patch_checkpoint(source, here, "linear:factor=2")
    plant(tmp_path / "above" / "thesis.txt")
    monkeypatch.chdir(here)
    for forced in (True, False):
        with untouched(tmp_path, "contains the working directory" if out else "the output's name is empty"):
            patch_checkpoint(source, out, "yarn:factor=4", force=forced)


DAMAGES = [
    (lambda backup: (backup / "config.json").write_text("{}"), "ropescale-backup/config.json is"),
    (lambda backup: (backup / "config.json").unlink(), "ropescale-backup/config.json is"),
    (lambda backup: (backup / "manifest.json").unlink(), "manifest.json does not list the copy of config.json"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_a_backup_without_its_originals_or_its_manifest_restores_nothing_and_says_so(source, damage, words):
    in_place(source)
    damage(source / backups.BACKUP)
    with untouched(source, words, (CheckpointError, ConfigError)):
        restore(source)


def test_what_somebody_put_where_the_backup_is_stays(source):
    plant(source / backups.BACKUP / "config.json")
    with untouched(source, "manifest.json does not list the copy of config.json"):
        in_place(source)
    shutil.rmtree(source / backups.BACKUP)
    before = tree(source)
    in_place(source)
    plant(source / backups.BACKUP / "thesis.txt")
    restore(source)
    assert os.listdir(source / backups.BACKUP) == ["thesis.txt"]
    shutil.rmtree(source / backups.BACKUP)
    assert tree(source) == before
