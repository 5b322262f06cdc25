"""``patch --push-to-hub`` against a fake of the Hub: what arrives, what is refused, and what is never said."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path

import fake_hub
import pytest
from configurations import read, write_checkpoint
from crashing import tree, unchanged
from huggingface_hub import constants
from refusing import one_error, refused

from ropescale.checkpoints import model_card, patching
from ropescale.cli.main import main

CARD = "---\nlicense: apache-2.0 # theirs\nlanguage:\n- no\n---\n\n# A model\n"
YARN = ["--schedule", "yarn:factor=4"]
FILES = {"LICENSE", "README.md", "config.json", "nested/extra.json", "ropescale.json"}
FILES |= {"model-1.safetensors", "model-2.safetensors"}


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint at ``model`` in the working directory."""
    monkeypatch.chdir(tmp_path)
    files = {"README.md": CARD, "LICENSE": "the licence", "nested/extra.json": "{}"}
    weights = {f"model-{number}.safetensors": bytes([number]) * 100_000 for number in (1, 2)}
    return write_checkpoint(tmp_path / "model", files=files | weights)


PUSH = ["patch", "model", *YARN, "--push-to-hub", "me/long"]


def push(*words: str) -> int:
    return main([*PUSH, *words])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sent(hub: fake_hub.Hub, name: str = "me/long") -> dict[str, bytes]:
    """What the repository holds but for what the Hub puts there itself."""
    return {path: content for path, content in hub.repositories[name].items() if path != ".gitattributes"}


# ---------------------------------------------------------------------------------------------------------
# What arrives


@pytest.mark.parametrize("link", ["hard", "symlink", "copy"])
def test_the_repository_holds_the_folder_byte_for_byte_and_the_weights_came_through_lfs(hub, capsys, link):
    assert push("-o", "out", "--link", link) == 0
    assert set(sent(hub)) == FILES
    assert sent(hub) == contents(Path("out"))
    assert hub.through_lfs == {"model-1.safetensors", "model-2.safetensors"}
    assert [commit["summary"] for commit in hub.commits] == ["Context extended by ropescale: yarn:factor=4"]
    assert f"{hub.url}/me/long (7 files, 20" in capsys.readouterr().out  # 200 kB of weights and a little


def test_a_token_in_the_file_of_hf_auth_login_is_used_and_stands_in_no_file_that_is_written(
    hub, everything_said, monkeypatch, tmp_path_factory
):
    monkeypatch.delenv("HF_TOKEN")
    login = tmp_path_factory.mktemp("login") / "token"
    login.write_text(f"{fake_hub.TOKEN}\n")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(login))
    assert push("-o", "out") == 0
    everything_said()
    assert set(sent(hub)) == FILES and not any(fake_hub.TOKEN.encode() in each for each in sent(hub).values())


def test_without_an_output_folder_nothing_is_left_on_this_machine(hub, ran, tmp_path):
    with unchanged(tmp_path):
        out, _ = ran(*PUSH, "--private")
    assert set(sent(hub)) == FILES
    assert b"## Context extension" in sent(hub)["README.md"]
    assert hub.private == {"me/long"}
    assert "written to" not in out
    assert f"| uploaded to             | {hub.url}/me/long (private, 7 files, 20" in out


def test_a_checkpoint_changed_in_place_is_sent_without_its_backup(hub, model):
    with unchanged(model):
        assert push("--in-place") == 0
        assert set(sent(hub)) == FILES
        assert sent(hub)["config.json"] == (model / "config.json").read_bytes()
        assert main(["restore", "model"]) == 0


# ---------------------------------------------------------------------------------------------------------
# What it is not sent over


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing(hub, ran, tmp_path):
    with unchanged(tmp_path):
        found = json.loads(ran(*PUSH, "--dry-run", "--json").out)
        page, _ = ran(*PUSH, "--dry-run", "--private")
    assert "| would be uploaded to    | me/long (private, 7 files, 20" in page
    assert hub.requests == []
    assert push("-o", "out") == 0
    told, came = found["hub"]["files"], {name: len(content) for name, content in sent(hub).items()}
    assert told.pop("ropescale.json") and came.pop("ropescale.json")  # which lists other inodes or times
    assert told == came
    assert found["hub"]["url"] is None


def test_a_repository_that_holds_something_is_left_alone(hub, capsys):
    held = {".gitattributes": b"", "model.safetensors": b"theirs"}
    hub.repositories["me/long"] = dict(held)
    refused(capsys, [*PUSH, "-o", "out", "--force"], "me/long exists on the Hub", "1 file(s)", "another name")
    assert hub.repositories["me/long"] == held


@pytest.mark.parametrize("there", [False, True])
def test_what_somebody_sends_while_the_checkpoint_is_made_is_not_replaced(hub, ran, monkeypatch, there):
    def meanwhile(*args: object) -> object:
        hub.repositories["me/long"] = {"config.json": b"theirs"}
        hub.commits.append({"summary": "theirs"})
        return write(*args)

    if there:
        hub.repositories["me/long"] = {".gitattributes": b""}
    write = patching.build_folder
    monkeypatch.setattr(patching, "build_folder", meanwhile)
    said = ran(*PUSH, "-o", "out", code=1).err
    words = "me/long on the Hub was changed meanwhile" if there else "the Hub refused me/long (409: You already created"
    assert words in said
    assert hub.repositories["me/long"] == {"config.json": b"theirs"}


def test_private_does_not_go_into_a_public_repository(hub, ran):
    hub.repositories["me/long"] = {".gitattributes": b"x"}
    assert "me/long exists on the Hub and is public" in ran(*PUSH, "--private", code=2).err
    hub.private.add("me/long")
    assert push("--private") == 0


# ---------------------------------------------------------------------------------------------------------
# Refused before anything is written


@pytest.mark.parametrize("name", ["long", ""])
def test_a_name_that_is_none_is_refused_before_anything_is_sent(hub, capsys, name):
    said = f"'{name}' is not a repository's name on the Hub; give it as user/name"
    refused(capsys, [*PUSH[:-1], name, "-o", "out"], said)
    assert hub.requests == []


def test_without_a_token_or_a_network_nothing_is_sent(hub, capsys, monkeypatch, tmp_path):
    with monkeypatch.context() as patched, unchanged(tmp_path):
        patched.delenv("HF_TOKEN")
        refused(capsys, [*PUSH, "-o", "out"], "token for the Hub is missing", "`hf auth login`", "HF_TOKEN")
        assert push("--dry-run") == 0
        capsys.readouterr()
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        refused(capsys, [*PUSH, "-o", "out"], "HF_HUB_OFFLINE", "unset it")
    assert hub.requests == []


# ---------------------------------------------------------------------------------------------------------
# The token is never said

ECHO = f"you sent Bearer {fake_hub.TOKEN}, which is wrong"
NO_LEAVE = "the token may not write to me/long"
REFUSALS = {
    "a token that nobody has": (2, "GET /api", 401, "the Hub does not accept the token; log in"),
    "a Hub out of order": (2, "GET /api/models", 500, "refused me/long (500: you sent Bearer ***, which is wrong)"),
    "no right to commit": (1, "POST /api/models/me/long/commit", 403, NO_LEAVE),
    "weights refused": (1, "PUT /lfs", 403, NO_LEAVE),
}


@pytest.fixture
def everything_said(capfd, caplog, tmp_path):
    """Asserts that the token is in nothing printed, logged or written, and returns stderr."""
    caplog.set_level(logging.DEBUG, "huggingface_hub")

    def said() -> str:
        out, err = capfd.readouterr()
        assert fake_hub.TOKEN not in out + err + caplog.text
        for name, content in contents(tmp_path).items():
            assert fake_hub.TOKEN.encode() not in content, name
        # At this level the client may print each request, as another test's handlers let it.
        return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("Request "))

    return said


def test_a_list_of_files_that_fails_after_the_commit_is_a_warning(hub, everything_said, caplog):
    hub.refusals = {"GET /api/models/me/long/tree": (400, ECHO)}
    assert push() == 0
    everything_said()
    assert f"the upload to {hub.url}/me/long is complete, but its list of files was not checked" in caplog.text
    assert len(hub.commits) == 1 and sent(hub).keys() == FILES


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_before_the_patch_writes_nothing_a_later_one_keeps_it_and_neither_says_the_token(
    hub, everything_said, tmp_path, case, debug
):
    code, request, status, words = REFUSALS[case]
    hub.refusals = {request: (status, ECHO)}
    before = tree(tmp_path)
    assert push("-o", "out", *debug) == code
    lines = everything_said().splitlines()
    assert words in lines[-1]
    assert len(lines) == 1 or debug or (code == 1 and any("Upload" in line for line in lines))  # a progress bar
    if code == 2:
        assert tree(tmp_path) == before and "me/long" not in hub.repositories
    else:
        assert "upload it again with `hf upload me/long out .`" in lines[-1]
        assert read(Path("out", "config.json"))["rope_parameters"]["factor"] == 4.0


def test_a_hub_that_cannot_be_reached_is_one_sentence(hub, everything_said, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with unchanged(tmp_path):
        assert push("-o", "out") == 2
    one_error(everything_said(), "me/long", "Connection refused")


def test_the_folder_of_a_failed_upload_is_kept_and_the_command_given_sends_it(hub, everything_said, monkeypatch):
    hub.refusals = {"POST /api/models/me/long/commit": (400, ECHO)}
    assert push("-o", "out", "--private") == 1
    words = shlex.split(everything_said().splitlines()[-1].split("`")[-2])
    assert words[:4] == ["hf", "upload", "me/long", "out"]
    hub.refusals = {}
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub.cli.hf import app

    app(words[1:], standalone_mode=False)
    assert sent(hub) == contents(Path("out"))
    assert hub.private == {"me/long"}


def test_a_failed_upload_without_a_folder_is_repeated_by_the_same_command(hub, everything_said, tmp_path):
    hub.refusals = {"POST /api/models/me/long/commit": (400, ECHO)}
    with unchanged(tmp_path):
        assert push() == 1
        assert everything_said().endswith("nothing was written on this machine; repeat the command\n")
        hub.refusals = {}
        assert push() == 0
    assert set(sent(hub)) == FILES


# ---------------------------------------------------------------------------------------------------------
# Front matter


@pytest.mark.parametrize(
    ("card", "wanted"),
    [
        ("", "---\nbase_model: org/base\ntags:\n- ropescale\n---\n\n"),
        ("# W\n\n---\n\nx\n", "---\nbase_model: org/base\ntags:\n- ropescale\n---\n\n# W\n\n---\n\nx\n"),
        ("---\nx: [b,\n a]\ntags:\n---\n", "---\nx:\n- b\n- a\ntags:\n- ropescale\nbase_model: org/base\n---\n"),
        (
            "---\r\nlicense: mit # a comment\r\nbase_model:\r\n- a/b\r\ntags:\r\n  - x\r\nlanguage: no\r\n---\r\nW",
            "---\r\nlicense: mit\r\nbase_model: org/base\r\ntags:\r\n- x\r\n- ropescale\r\nlanguage: 'no'\r\n---\r\nW",
        ),
    ],
)
def test_front_matter_gains_its_fields_and_loses_nothing_but_comments(card, wanted):
    found = model_card.with_metadata(card.encode(), "org/base")
    assert found.decode() == wanted
    assert model_card.with_metadata(found, "org/base") == found


def test_the_token_is_not_in_what_a_debugger_shows(hub):
    from ropescale.checkpoints.uploading import repository

    assert fake_hub.TOKEN not in repr(repository("me/long"))
