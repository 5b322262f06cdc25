"""All that writes: on a full disk, onto what something else wrote, into an empty folder, and into /proc."""

import io
import itertools
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import pytest
import tiny
import torch
from configurations import write_files
from crashing import tree, unchanged
from training import trainer

import ropescale
from ropescale.cli import main as shell
from ropescale.cli.options import Place
from ropescale.errors import RopescaleError, RunError, StorageError
from ropescale.evals import perplexity

# The parameters that name something to read.
READ = set("model like source prompts chat_template key_spans config tokenizer imports runs".split())

YARN = ["--schedule", "yarn:factor=2"]
DATA = ["--data", "texts", "--dtype", "float32"]
FILES: dict[str, list[str]] = {
    "inspect --plot": ["inspect", "model", "--plot", "OUT.png"],
    "gguf": ["gguf", "model.gguf", "-o", "OUT.gguf", *YARN],
    "keys": ["keys", "model", *DATA, "--window", "8", "--alpha", "0.01", "--beta", "-7", "-o", "OUT.json"],
    "search": ["search", "model", *DATA, "--target-length", "96", "--budget-tokens", "2k", "-o", "OUT.json"],
    "report": ["report", "run", "-o", "OUT.html"],
}
FOLDERS: dict[str, list[str]] = {
    "patch": ["patch", "model", *YARN, "-o", "OUT"],
    "eval": ["eval", "model", *DATA, "--lengths", "16", "--windows", "1", *YARN, "-o", "OUT"],
    "retrieval": ["retrieval", "model", "--lengths", "128", "--trials", "2", "--depths", "2", "-o", "OUT"],
    "recommend": ["recommend", "model", *DATA, "--target-length", "96", "--max-docs", "2", "-o", "OUT"],
    "demo": ["demo", "-o", "OUT"],
}
PYTHON = {"ropescale.save": ["save", "OUT"], "Result.save": ["result", "OUT"]}
WRITERS = FILES | FOLDERS | PYTHON
# Commands that change a folder that is there, or fill it step by step.
CHANGES = {
    "patch --in-place": ["patch", "model", *YARN, "--in-place"],
    "patch --force": ["patch", "model", *YARN, "-o", "patched", "--force"],
    "TrainingCallback": ["train", "OUT"],
    "eval --force": [*FOLDERS["eval"][:-1], "run", "--schedule", "ntk:factor=2", "--force"],
}


def save(out: str) -> None:
    """Saves a patched model."""
    model = tiny.llama(vocab_size=257)
    ropescale.patch(model, "yarn:factor=2")
    ropescale.save(model, out)


def train(out: str) -> None:
    """Trains a model for a step, which is measured."""
    measured = ropescale.TrainingCallback("yarn:factor=2", [tiny.TEXT * 3], "16", windows=1, out=out)
    trainer(tiny.llama(vocab_size=258), Path("..", "trained"), measured, max_steps=1, save_strategy="no").train()


def run(words: list[str]) -> int:
    """Runs a command, or what Python writes, whose errors become a line and a code as a command's do."""
    try:
        if words[0] == "save":
            save(words[1])
        elif words[0] == "train":
            train(words[1])
        elif words[0] == "result":
            perplexity("model", Path("texts"), "32", ["yarn:factor=2"], windows=1).save(words[1])
        else:
            return shell.main(words)
    except RopescaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, (StorageError, RunError)) else 2
    return 0


def test_no_command_that_writes_is_left_out():
    """Every parameter that names a path is known to be read, or is here."""
    found = set()
    for name in shell.COMMANDS:
        command = shell.group.get_command(click.Context(shell.group), name)
        places = {param.name: param for param in command.params if isinstance(param.type, Place)}
        for each in places.keys() - READ - {"folder"} - ({"source"} if name == "gguf" else set()):
            found.add(name if each == "out" else f"{name} {places[each].opts[0]}")
    assert found == set(FILES | FOLDERS)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """All that the commands read."""
    folder = tmp_path_factory.mktemp("sources")
    model = tiny.llama(vocab_size=257)
    tiny.checkpoint(folder / "model", model)
    write_files(folder / "texts", {f"{n}.txt": tiny.TEXT[n:] * 3 for n in range(3)})
    from gguf_models import write_gguf

    write_gguf(model, folder / "model.gguf")
    here = Path.cwd()
    os.chdir(folder)
    assert shell.main([*FOLDERS["eval"][:-1], "run"]) == 0
    shutil.copytree("model", "in-place")
    assert shell.main(["patch", "in-place", *YARN, "--in-place"]) == 0
    os.chdir(here)
    return folder


def fill(sources: Path) -> None:
    """Copies them into the working directory, and patches one, because a copy of a patched folder is no patched one."""
    shutil.copytree(sources, ".", dirs_exist_ok=True)
    assert shell.main([*FOLDERS["patch"][:-1], "patched"]) == 0


@pytest.fixture
def place(sources, tmp_path, monkeypatch) -> Path:
    """A copy of them, in the working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fill(sources)
    return tmp_path / "here"


@contextmanager
def mounted(place: Path, kind: str = "disk") -> Iterator[None]:
    """An empty disk of two megabytes in a new folder, or another folder; skips where nothing may be mounted."""
    place.mkdir()
    how = ["-t", "tmpfs", "-o", "size=2m", "tmpfs"]
    if kind == "bind":
        (place.parent / "mounted here").mkdir()
        how = ["--bind", str(place.parent / "mounted here")]
    if subprocess.run(["mount", *how, str(place)], capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def full(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of them on a disk that has no room for more, as working directory."""
    place = tmp_path / "disk"
    with mounted(place):
        monkeypatch.chdir(place)
        fill(sources)
        with suppress(OSError), open(place / "fill", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield place
        monkeypatch.chdir(tmp_path)


def forked(words: list[str], largest: int = resource.RLIM_INFINITY) -> tuple[int, str]:
    """Runs the command line in a child whose files have at most so many bytes; returns its code and stderr."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for number in (1, 2):
            os.dup2(writer, number)
        sys.stdout, sys.stderr = io.StringIO(), os.fdopen(2, "w")
        sys.dont_write_bytecode = True  # it would be cut off, without an error
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        code = run(words)
        sys.stderr.flush()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as said:
        err = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), err


def last_error(err: str) -> str:
    """The one line of error, which is the last."""
    lines = err.strip().splitlines()
    assert [line for line in lines if "error:" in line] == lines[-1:] and "unexpected" not in err, err
    return lines[-1]


@pytest.mark.parametrize("name", [*WRITERS, *CHANGES])
def test_with_no_room_every_command_says_where_and_what_to_do_and_leaves_nothing(place, name, few_candidates):
    with unchanged(place):
        code, err = forked((WRITERS | CHANGES)[name], 400)
    assert code == 1, err
    assert re.search(r"(File too large|disk I/O error|No space).*(ulimit -f|free some space)", last_error(err))


@pytest.mark.parametrize("name", [*WRITERS, *CHANGES])
def test_on_a_full_disk_every_command_says_so_and_leaves_nothing(sources, tmp_path, monkeypatch, name, few_candidates):
    with full(sources, tmp_path, monkeypatch) as place, unchanged(place):
        code, err = forked((WRITERS | CHANGES)[name])
    assert code == 1, err
    assert re.search(r"(No space left|disk is full).*free some space", last_error(err))


def test_restore_needs_no_room(sources, tmp_path, monkeypatch, place):
    assert forked(["restore", "in-place"], 0) == (0, "")
    assert tree(place / "in-place") == tree(place / "model")
    with full(sources, tmp_path, monkeypatch) as disk:
        assert forked(["restore", "in-place"]) == (0, "")
        assert tree(disk / "in-place") == tree(disk / "model")


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_replaces_what_something_else_wrote_or_writes_where_it_may_not(place, capsys, name):
    taken = {"eval": "model"}.get(name, "run") if WRITERS[name][-1] == "OUT" else None
    words = WRITERS[name]
    suffix = next(word for word in words if word.startswith("OUT"))[3:]
    write_files(place, {f"taken{suffix}": "years of work"} if taken is None else {})
    for out in (taken or f"taken{suffix}", "texts" if taken is None else "texts/0.txt", f"/proc/out{suffix}"):
        if out == "texts" and name == "inspect --plot":
            continue
        with unchanged(place):
            assert run([out if word.startswith("OUT") else word for word in words]) == 2
        said = last_error(capsys.readouterr().err)
        assert out in said and ";" in said


@pytest.mark.parametrize("name", ["patch", "eval", "retrieval", "recommend", "ropescale.save"])
def test_whatever_writes_a_folder_takes_an_empty_one(place, name, few_candidates):
    (place / "OUT").mkdir(mode=0o711)
    assert run(WRITERS[name]) == 0
    assert len(os.listdir("OUT")) > 2 and stat.S_IMODE(os.stat("OUT").st_mode) == 0o711


MOUNTED = [*itertools.product(["patch", "eval", "ropescale.save"], ["disk", "bind"])]
MOUNTED += [(name, "disk") for name in ("retrieval", "recommend", "Result.save")]


@pytest.mark.parametrize(("name", "kind"), MOUNTED)
def test_whatever_writes_a_folder_takes_a_mount_point(place, ran, refused, name, kind, few_candidates):
    with mounted(place / "OUT", kind):
        (place / "OUT" / "lost+found").mkdir(mode=0)  # of ext4
        assert run([*WRITERS[name], *["--force"] * (name == "patch")]) == 0
        assert len(os.listdir("OUT")) > 2 and not [path for path in os.listdir("OUT") if path.startswith(".")]
        if name == "patch":
            ran("verify", "OUT")
            for forced in ([], ["--force"]):
                assert "OUT is never replaced" in refused(*FOLDERS[name], *forced)
