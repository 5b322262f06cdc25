"""Files are written whole or not at all, and only what a killed writer left is swept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from crashing import failures

from ropescale import atomic, locks


def test_a_file_is_replaced_in_one_step_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    atomic.write(path, "one")
    atomic.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["x.json"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~atomic.umask()


def test_a_new_file_never_replaces_one_that_appeared_while_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"

    def overtaken() -> None:
        with atomic.part(path, new=True) as beside:
            beside.write_text("ours")
            path.write_text("theirs")

    with pytest.raises(FileExistsError):
        overtaken()
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_where_there_are_no_links_a_new_file_is_still_new(tmp_path, monkeypatch, number) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic.os, "link", refuse)
    atomic.create(tmp_path / "x", "ours")
    with pytest.raises(FileExistsError):
        atomic.create(tmp_path / "x", "again")
    assert (tmp_path / "x").read_text() == "ours"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("act", [atomic.write, atomic.create])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failure_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path, act, error) -> None:
    path, steps = tmp_path / "x", 0
    for _ in failures(tmp_path, lambda: act(path, "new"), error):
        steps += 1
        assert not path.exists() or path.read_text() == "new"
        assert set(os.listdir(tmp_path)) <= {"x"}
        path.unlink(missing_ok=True)
    assert steps > 2


def left_over(path: Path) -> Path:
    beside = path.with_name(atomic.hidden_name(path.name))
    beside.write_text("half")
    return beside


def test_the_next_writer_sweeps_what_a_killed_one_left_and_nothing_that_looks_alike(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    ours, others = left_over(path), left_over(tmp_path / "y.json")
    alike = tmp_path / ".x.json.deadbeefcafe.ropescale"
    folder, link = (tmp_path / atomic.hidden_name("x.json") for _ in range(2))
    alike.write_text("somebody's")
    folder.mkdir()
    link.symlink_to(alike)
    atomic.write(path, "new")
    assert not ours.exists()
    assert {others, alike, folder, link, path} == set(tmp_path.iterdir())
    assert alike.read_text() == "somebody's"


def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with atomic.part(path) as beside:
        beside.write_text("first")
        atomic.write(path, "second")
        assert path.read_text() == "second"
        assert beside.exists()
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["x.json"]


def test_where_locks_are_unreliable_leftovers_are_named_and_left(tmp_path, monkeypatch, caplog) -> None:
    path = tmp_path / "x.json"
    beside = left_over(path)
    monkeypatch.setattr(locks, "_kind_of", lambda folder: "nfs4")
    atomic.write(path, "new")
    assert beside.exists()
    assert str(beside) in caplog.text


def test_a_name_of_255_bytes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    atomic.write(path, "new")
    assert path.read_text() == "new"


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="reads /proc")
def test_the_file_system_of_a_folder_is_the_one_that_holds_it() -> None:
    assert locks._kind_of(Path("/proc/self")) == "proc"
    assert not locks.are_reliable(Path("/proc/self"))


def test_the_file_systems_of_macos_are_read_from_what_mount_prints() -> None:
    told = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        "/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)\n"
        "//me@server/home on /Volumes/my home (smbfs, nodev, nosuid, mounted by me)\n"
    )
    found = [("", *match.groups()) for match in locks._MOUNT.finditer(told)]
    assert found[2] == ("", "/Volumes/my home", "smbfs")
    mounts = [(place, kind) for _, place, kind in found]
    assert locks._longest(Path("/Volumes/my home/x"), mounts) == "smbfs"
    assert locks._longest(Path("/Users/me"), mounts) == "apfs"
