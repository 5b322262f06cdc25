"""Files are written whole or not at all, and only what a killed writer left on this host is swept."""

import errno
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crashing import failures, kills, raising

from ropescale import files
from ropescale.files import atomic_path, atomic_write


class NotOursError(Exception):
    """What a check raises."""


def ours(path: Path) -> None:
    if not path.read_text().startswith("ours"):
        raise NotOursError


def written(path: Path, content: str, meanwhile: str = "", **options: Any) -> None:
    """Writes a file beside another; what appears there meanwhile has its own content."""
    with atomic_path(path, **options) as beside:
        beside.write_text(content)
        if meanwhile:
            path.write_text(meanwhile)


create = partial(written, new=True)
replaced = partial(written, content="ours, new")

linux = pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="needs the boot's id")


def test_a_file_is_replaced_in_one_step_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    atomic_write(path, "one")
    atomic_write(path, b"two")
    assert path.read_bytes() == b"two" and os.listdir(tmp_path) == ["x.json"]
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_never_replaces_one_that_appeared_while_it_was_written(tmp_path, monkeypatch, links) -> None:
    if not links:
        monkeypatch.setattr(files.os, "link", raising(OSError(errno.EPERM, "no links")))
    path = tmp_path / "x.json"
    create(tmp_path / "y", "new")
    with pytest.raises(FileExistsError):
        create(path, "ours", meanwhile="theirs")
    assert (path.read_text(), (tmp_path / "y").read_text()) == ("theirs", "new")
    assert sorted(os.listdir(tmp_path)) == ["x.json", "y"]


@pytest.mark.parametrize("act", [atomic_write, create])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failure_at_any_step_leaves_nothing_or_a_whole_file_once_another_was_written(tmp_path, act, error) -> None:
    path, steps = tmp_path / "x", 0
    for _ in failures(tmp_path, lambda: act(path, "new"), error):
        steps += 1
        assert not path.exists() or path.read_text() == "new"
        atomic_write(path, "swept")
        assert os.listdir(tmp_path) == ["x"]
        path.unlink()
    assert steps > 2


def left_over(path: Path, name: str = "") -> list[Path]:
    """What a killed writer leaves: a part and its lock, which nobody holds."""
    beside = path.with_name(name or files.hidden_name(path.name))
    lock = beside.with_name(f"{beside.name}-lock")
    beside.write_text("half")
    lock.touch()
    return [beside, lock]


@linux
def test_the_next_writer_sweeps_what_a_killed_one_left_and_nothing_that_looks_alike(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    ours, others = left_over(path), left_over(tmp_path / "y.json")
    alike = tmp_path / f".x.json.{16 * '0'}.ropescale"
    alike.write_text("somebody's")
    link = tmp_path / f"{files.hidden_name('x.json')}-lock"
    link.symlink_to(alike)
    atomic_write(path, "new")
    assert not any(each.exists() for each in ours)
    ours = left_over(path)  # after the file had its name
    with pytest.raises(ZeroDivisionError):
        files.writable_file(path, raising(ZeroDivisionError()))
    assert not any(each.exists() for each in ours)
    assert {*others, alike, link, path} == set(tmp_path.iterdir())
    assert alike.read_text() == "somebody's"


def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with atomic_path(path) as beside:
        beside.write_text("first")
        atomic_write(path, "second")
        assert path.read_text() == "second"
        assert beside.exists()
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["x.json"]


def test_what_a_writer_on_another_host_or_before_a_restart_left_is_named_and_left(tmp_path, caplog) -> None:
    path = tmp_path / "x.json"
    beside, lock = left_over(path, ".x.json.0123456789abcdef.ropescale")
    atomic_write(path, "new")
    assert {path, beside, lock} == set(tmp_path.iterdir())
    assert str(beside) in caplog.text


@linux
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("act", [atomic_write, create])
def test_a_writer_killed_at_any_step_leaves_a_whole_file_and_the_next_one_nothing_else(tmp_path, act) -> None:
    path, seen = tmp_path / "x", []
    for _ in kills(tmp_path, lambda: act(path, "new")):
        seen.append(path.exists())
        assert not path.exists() or path.read_text() == "new"
        atomic_write(path, "old")
        assert os.listdir(tmp_path) == ["x"]
        path.unlink()
    assert seen == sorted(seen) and set(seen) == {False, True}


# --- replacing what a check allows to go ---


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page.html").write_text("ours, old")
    return tmp_path / "page.html"


def contents(folder: Path) -> list[str]:
    return sorted(path.read_text() for path in folder.iterdir())


def test_what_is_ours_is_replaced_and_what_is_not_is_never_touched(page: Path) -> None:
    replaced(page, check=ours)
    assert contents(page.parent) == ["ours, new"]
    page.write_text("years of work")
    changed = page.stat().st_ctime_ns  # a rename would change it
    with pytest.raises(NotOursError):
        replaced(page, check=ours)
    assert page.stat().st_ctime_ns == changed
    assert contents(page.parent) == ["years of work"]


def test_what_appears_where_nothing_was_is_not_replaced(page: Path) -> None:
    page.unlink()
    with pytest.raises(NotOursError):
        replaced(page, check=ours, meanwhile="years of work")
    assert contents(page.parent) == ["years of work"]


def test_a_signal_between_the_check_and_the_end_waits_until_the_file_is_replaced(page: Path) -> None:
    def check(path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        ours(path)

    with pytest.raises(KeyboardInterrupt):
        replaced(page, check=check)
    assert contents(page.parent) == ["ours, new"]
