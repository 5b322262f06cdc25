"""Files are written whole or not at all, and only what a killed writer left is swept."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from crashing import failures, kills, raising

from ropescale.files import atomic, locks, renaming

exchanging = pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="needs a rename that exchanges")


def create(path: Path, content: str) -> None:
    with atomic.part(path, new=True) as beside:
        beside.write_text(content)


def test_a_file_is_replaced_in_one_step_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    atomic.write(path, "one")
    atomic.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["x.json"]
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


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
    monkeypatch.setattr(atomic.os, "link", raising(OSError(number, os.strerror(number))))
    create(tmp_path / "x", "ours")
    with pytest.raises(FileExistsError):
        create(tmp_path / "x", "again")
    assert (tmp_path / "x").read_text() == "ours"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("act", [atomic.write, create])
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


# --- replacing what a check allows to go ---


class NotOursError(Exception):
    """What a check raises."""


def ours(path: Path) -> None:
    if not path.read_text().startswith("ours"):
        raise NotOursError


def replaced(path: Path, check: Callable[[Path], None] = ours, content: str = "ours, new") -> None:
    with atomic.part(path, check=check) as beside:
        beside.write_text(content)


def edited_between(path: Path, check: Callable[[Path], None]) -> Callable[[Path], None]:
    """A check of a file that somebody replaces as soon as it was looked at for the first time."""

    def look(there: Path) -> None:
        if there != path:  # exchanged, so this is the second time
            check(there)
            return
        ours(there)
        path.unlink()
        path.write_text("years of work")

    return look


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page.html").write_text("ours, old")
    return tmp_path / "page.html"


def contents(folder: Path) -> list[str]:
    return sorted(path.read_text() for path in folder.iterdir())


def test_what_is_not_ours_is_never_moved_from_its_name(page: Path) -> None:
    page.write_text("years of work")
    number = page.stat().st_ctime_ns  # a rename would change it
    with pytest.raises(NotOursError):
        replaced(page)
    assert page.stat().st_ctime_ns == number
    assert contents(page.parent) == ["years of work"]


@exchanging
def test_what_came_after_the_look_has_its_name_back(page: Path) -> None:
    with pytest.raises(NotOursError):
        replaced(page, edited_between(page, ours))
    assert page.read_text() == "years of work"
    assert os.listdir(page.parent) == ["page.html"]


@exchanging
def test_another_writers_sweep_leaves_what_is_being_looked_at(page: Path) -> None:
    def check(there: Path) -> None:
        assert page.read_text() == "ours, new"
        assert atomic.sweep(page) == []
        ours(there)

    with pytest.raises(NotOursError):
        replaced(page, edited_between(page, check))
    assert page.read_text() == "years of work"
    assert os.listdir(page.parent) == ["page.html"]


@exchanging
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("gone", [False, True])
def test_what_a_killed_writer_had_not_looked_at_is_named_or_put_back(page: Path, caplog, gone: bool) -> None:
    child = os.fork()
    if child == 0:
        try:
            replaced(page, edited_between(page, lambda there: os.kill(os.getpid(), signal.SIGKILL)))
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert page.read_text() == "ours, new"
    if gone:
        page.unlink()
        assert atomic.sweep(page) == []
        assert (os.listdir(page.parent), page.read_text()) == (["page.html"], "years of work")
        return
    for _ in range(2):
        atomic.write(page, "ours, newer")
        assert contents(page.parent) == ["ours, newer", "years of work"]
    (left,) = set(page.parent.iterdir()) - {page}
    assert f"{left} is what was {page}; move it" in caplog.text


@exchanging
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_writer_killed_at_any_step_leaves_the_old_file_or_the_new_one_and_the_next_one_nothing_else(page) -> None:
    seen = []
    for _ in kills(page.parent, lambda: replaced(page)):
        seen.append(page.read_text())
        replaced(page, content="ours, old")
        assert contents(page.parent) == ["ours, old"]
    assert seen == sorted(seen, reverse=True) and set(seen) == {"ours, old", "ours, new"}


@exchanging
@pytest.mark.parametrize("back", [True, False])
def test_what_cannot_be_exchanged_back_is_put_back_or_named_and_never_removed(page, caplog, back) -> None:
    def check(there: Path) -> None:
        page.unlink()
        if not back:
            page.write_text("somebody's")
        ours(there)

    with pytest.raises(NotOursError):
        replaced(page, edited_between(page, check))
    assert contents(page.parent) == (["years of work"] if back else ["somebody's", "years of work"])
    assert page.read_text() == ("years of work" if back else "somebody's")
    assert ("is what was" in caplog.text) is not back


@exchanging
def test_a_signal_between_the_exchange_and_the_end_waits_until_the_file_is_replaced(page: Path) -> None:
    def check(there: Path) -> None:
        if there != page:
            signal.raise_signal(signal.SIGINT)
        ours(there)

    with pytest.raises(KeyboardInterrupt):
        replaced(page, check)
    assert contents(page.parent) == ["ours, new"]


@pytest.mark.parametrize("missing", ["exchange", "link"])
def test_where_names_cannot_be_exchanged_a_checked_file_is_still_replaced(page, monkeypatch, missing) -> None:
    if missing == "link":
        monkeypatch.setattr(atomic.os, "link", raising(OSError(errno.EPERM, "no links")))
    else:
        monkeypatch.setattr(renaming, "_renamed", lambda *_: False)
    replaced(page)
    assert contents(page.parent) == ["ours, new"]


@exchanging
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_where_there_are_no_links_a_killed_writer_leaves_no_half_of_a_new_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(atomic.os, "link", raising(OSError(errno.EPERM, "no links")))
    path = tmp_path / "x"
    for _ in kills(tmp_path, lambda: create(path, "whole")):
        assert not path.exists() or path.read_text() == "whole"
        path.unlink(missing_ok=True)
