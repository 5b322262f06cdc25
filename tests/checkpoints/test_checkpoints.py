"""A checkpoint on disk: what is written, what is linked, what is left alone, and what a crash leaves behind."""

import errno
import hashlib
import json
import os
import shutil
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import configurations
import pytest
import tiny
import torch
from configurations import as_cached, edit, read, write_checkpoint, write_files
from crashing import failures, kills, raising, tree, unchanged
from huggingface_hub import constants
from own_schedules import Half
from refusing import one_error, untouched
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.checkpoints import backups, folders, locating
from ropescale.checkpoints.folders import RECORD
from ropescale.checkpoints.patching import patch_checkpoint, restore
from ropescale.errors import CheckpointError, RopescaleError

CONFIG = configurations.CONFIG | {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 61, "num_key_value_heads": 1, "torch_dtype": "bfloat16",
    "eos_token_id": [2, 3], "house_key": {"kept": [1, None, "ü"]},
}  # fmt: skip
CARD = "---\nlicense: apache-2.0\nbase_model: org/base\n---\r\n\r\n# Base\n\nWords of the makers.\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint in two shards that are not weights at all: whoever reads them fails."""
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    files: dict[str, str | bytes] = dict.fromkeys(names, b"these are no weights " * 9)
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {f"w{i}": n for i, n in enumerate(names)}})
    files["tokenizer_config.json"] = '{"model_max_length": 256, "bos_token": "<s>"}'
    files |= {"README.md": CARD, "LICENSE": "the licence of the makers", "nested/deeper/extra.json": '{"a": 1}'}
    return write_checkpoint(tmp_path / "source", CONFIG, files)


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A tiny Llama with its tokenizer, as transformers saves them."""
    return tiny.checkpoint(tmp_path / "real", tiny.llama())


FULL = OSError(errno.ENOSPC, "No space left on device")
YARN = ["--schedule", "yarn:factor=4"]


def logits(model: torch.nn.Module, length: int = 150) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(length)[None] * 7 % tiny.VOCABULARY).logits


# ---------------------------------------------------------------------------------------------------------
# Writing


def test_both_key_sets_say_the_same_and_every_other_key_is_kept_as_it_is(source, tmp_path):
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_to_not_convert": None}
    theirs = CONFIG | {"quantization_config": quantised, "time_step_limit": [0.0, float("inf")], "surrogate": "\ud800"}
    edit(source, **theirs)
    patch_checkpoint(source, tmp_path / "out", "yarn", target_length="2k")
    config = read(tmp_path / "out" / "config.json")
    asked = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}
    asked["attention_factor"] = pytest.approx(1.2079441541679836)  # 0.1 ln 8 + 1
    for parameters in (config["rope_parameters"], config["rope_scaling"]):
        assert {key: parameters[key] for key in asked} == asked
    assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == 10000.0
    assert config["original_max_position_embeddings"] == 256
    assert {key: config[key] for key in theirs} == theirs | {"max_position_embeddings": 2048}


@pytest.mark.parametrize("limit", [256, 1023, 1024, 131072, int(1e30), 1e30, -5, "long", None])
def test_a_tokenizers_limit_is_raised_to_the_length_and_never_lowered_nor_invented(source, tmp_path, limit):
    raised = limit in (256, 1023)
    edit(source, "tokenizer_config.json", model_max_length=limit)
    patch_checkpoint(source, tmp_path / "out", "yarn:factor=4")
    before, after = (folder / "tokenizer_config.json" for folder in (source, tmp_path / "out"))
    assert read(after) == read(before) | ({"model_max_length": 1024} if raised else {})
    assert raised or after.read_bytes() == before.read_bytes()


def test_the_record_says_what_was_done_and_to_what(source, tmp_path):
    patch_checkpoint(source, tmp_path / "out", "yarn:factor=4,beta_fast=16")
    record = read(tmp_path / "out" / "ropescale.json")
    said = {"schema": 1, "source": source.name, "spec": {"all": "yarn:factor=4,beta_fast=16"}, "length": 1024}
    said |= {"original_length": {"all": 256}}
    said |= {"original_config_sha256": hashlib.sha256((source / "config.json").read_bytes()).hexdigest()}
    assert {key: record[key] for key in said} == said
    assert (record["schedule"]["all"]["factor"], record["versions"]["ropescale"]) == (4, ropescale.__version__)
    table = record["tables"]["all"]
    assert (len(table["inv_freq"]), table["inv_freq"][0]) == (32, 1.0)  # the fastest pair keeps its frequency
    assert table["inv_freq"][31] == pytest.approx(10000 ** (-62 / 64) / 4)  # the slowest is divided by the factor
    assert table["attention_scale"] == pytest.approx(1.138629436111989)  # 0.1 ln 4 + 1


@pytest.mark.parametrize("card", [CARD.encode(), b"caf\xe9\n", None])
def test_the_card_keeps_the_makers_words_and_has_one_section_however_often_it_is_patched(source, tmp_path, card):
    (source / "README.md").unlink()
    if card is not None:
        (source / "README.md").write_bytes(card)
    patch_checkpoint(source, tmp_path / "a", "yarn:factor=4")
    patch_checkpoint(tmp_path / "a", tmp_path / "b", "linear:factor=2")
    a, b = ((tmp_path / name / "README.md").read_bytes() for name in "ab")
    for text in (a, b):
        assert text.startswith((card or b"<!--").rstrip())
        assert text.count(b"## Context extension") == 1
    assert b"linear:factor=2" in b and b"yarn:factor=4" not in b


def test_no_file_that_is_written_holds_the_path_of_the_source(source, tmp_path):
    patch_checkpoint(source, tmp_path / "out", "ntk-su:factor=4")
    patch_checkpoint(tmp_path / "out", tmp_path / "again", "linear:factor=2")
    patch_checkpoint(source, None, "ntk-su:factor=4", in_place=True)
    for folder in (tmp_path / "out", tmp_path / "again", source):
        for name in ("README.md", "ropescale.json", "config.json"):
            assert str(tmp_path) not in (folder / name).read_text(), (folder, name)


# ---------------------------------------------------------------------------------------------------------
# What still holds the old limit


LIMITS = [
    ("generation_config.json", {"max_length": 256}, "max_length is still 256"),
    ("generation_config.json", {"max_length": 20}, None),
    ("generation_config.json", {"max_length": "256"}, None),
    ("config.json", CONFIG | {"sliding_window": 128}, "sliding_window is 128"),
    ("config.json", CONFIG | {"sliding_window": 128, "use_sliding_window": False}, None),
    ("params.json", {"rope_theta": 1e6}, "params.json: still describes the original"),
    ("params.json", {"learning_rate": 1}, None),
    ("tokenizer.json", {"truncation": {"strategy": "x", "max_length": 512}}, "truncates texts at 512"),
    ("tokenizer.json", {"truncation": None, "padding": {"max_length": 5}}, None),
    ("model-00001-of-00002.safetensors", None, "has no weight files"),
]


@pytest.mark.parametrize(("name", "content", "word"), LIMITS)
def test_what_still_holds_the_old_limit_is_named_and_nothing_else(source, tmp_path, name, content, word):
    usual = patch_checkpoint(source, None, "linear:factor=4", dry_run=True).warnings
    if content is None:
        for path in source.glob("*.safetensors*"):
            path.unlink()
    else:
        (source / name).write_text(json.dumps(content))
    done = patch_checkpoint(source, tmp_path / "out", "linear:factor=4", target_length=1024)
    new = [warning for warning in done.warnings if warning not in usual]
    assert [word in warning for warning in new] == ([True] if word else [])


# ---------------------------------------------------------------------------------------------------------
# What is linked and what is copied


def test_weights_are_linked_everything_else_is_copied_and_caches_stay_behind(source, tmp_path):
    weights = {"pytorch_model.bin", "original/consolidated.00.pth", "nested/model.gguf"}
    caches = {".git/HEAD", ".cache/huggingface/x", "nested/__pycache__/x.pyc", ".gitattributes"}
    write_files(source, dict.fromkeys((*weights, *caches, ".hidden.json"), "x"))
    done = patch_checkpoint(source, tmp_path / "out", "yarn:factor=4")
    linked = weights | {f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    assert done.links == dict.fromkeys(linked, "hard")
    for path in source.rglob("*"):
        name = path.relative_to(source).as_posix()
        if path.is_file() and name not in caches:
            assert path.samefile(tmp_path / "out" / name) == (name in linked), name
    assert not [name for name in tree(tmp_path / "out") if ".git" in name or "cache" in name]


@pytest.fixture
def hub_like(source: Path, tmp_path: Path) -> Path:
    """The same checkpoint in the Hub's cache."""
    return as_cached(source, tmp_path / "cache")


@pytest.mark.parametrize("link", ["hard", "symlink", "copy"])
def test_a_tree_of_symlinks_becomes_a_folder_of_its_own(hub_like, source, tmp_path, link):
    with unchanged(tmp_path / "cache"):
        patch_checkpoint(hub_like, tmp_path / "out", "yarn:factor=4", link=link)
    name = "model-00001-of-00002.safetensors"
    result, blob = tmp_path / "out" / name, (hub_like / name).resolve()
    assert result.is_symlink() == (link == "symlink")
    assert result.read_bytes() == blob.read_bytes()
    assert result.samefile(blob) == (link != "copy")
    if link == "symlink":
        assert os.readlink(result) == str(blob)
    assert not (tmp_path / "out" / "LICENSE").is_symlink()


def refuse(number: int):
    return raising(OSError(number, os.strerror(number)))


@pytest.mark.parametrize("way", ["symlink", "copy"])
def test_auto_takes_what_is_possible_and_says_so(source, tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders.os, "link", refuse(errno.EXDEV))
    if way == "copy":
        monkeypatch.setattr(folders.os, "symlink", refuse(errno.EPERM))
    done = patch_checkpoint("source", "out", "yarn:factor=4")
    weights = Path("out/model-00001-of-00002.safetensors")
    assert set(done.links.values()) == {way}
    assert weights.is_symlink() == weights.samefile(source / weights.name) == (way == "symlink")
    assert way == "copy" or os.readlink(weights) == str(source / weights.name)
    words = {"symlink": "weights are absolute symlinks to the source (2 of 2)", "copy": "were copied"}[way]
    assert any(words in warning for warning in done.warnings)


@pytest.mark.parametrize(("link", "number"), [("hard", errno.EXDEV), ("symlink", errno.EPERM)])
def test_a_way_of_linking_that_was_asked_for_is_not_replaced_silently(source, tmp_path, monkeypatch, link, number):
    monkeypatch.setattr(folders.os, {"hard": "link", "symlink": "symlink"}[link], refuse(number))
    with pytest.raises(CheckpointError, match="let ropescale choose the link type"):
        patch_checkpoint(source, tmp_path / "out", "yarn:factor=4", link=link)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("link", ["hard", "symlink"])
def test_saving_a_tokenizer_and_a_model_into_the_result_leaves_the_source_alone(real, tmp_path, link):
    with unchanged(real):
        out = patch_checkpoint(real, tmp_path / "out", "yarn:factor=4", link=link).folder
        tokenizer = AutoTokenizer.from_pretrained(out)
        assert tokenizer.model_max_length == 256
        tokenizer.add_special_tokens({"pad_token": "<pad>"})
        tokenizer.save_pretrained(out)
        model = AutoModelForCausalLM.from_pretrained(out)
        with torch.no_grad():
            model.lm_head.weight.add_(1)
        model.save_pretrained(out)
        assert "<pad>" in (out / "tokenizer.json").read_text()
        assert (out / "model.safetensors").read_bytes() != (real / "model.safetensors").read_bytes()


# ---------------------------------------------------------------------------------------------------------
# Stock transformers loads it


LOADER = """
import sys
sys.modules["ropescale"] = None  # importing it now fails
import torch
from transformers import AutoModelForCausalLM
ids = torch.arange(150)[None] * 7 % 61
for folder in sys.argv[1:]:
    with torch.no_grad():
        torch.save(AutoModelForCausalLM.from_pretrained(folder).eval()(input_ids=ids).logits, folder + ".pt")
"""


def test_stock_transformers_computes_the_same_logits_without_ropescale(real, tmp_path, python):
    schedules = {"custom": Half(4.0, 1.1), "yarn": "yarn:factor=4", "frozen": "dynamic:factor=4"}
    freeze = {"frozen": {"freeze_at": 256}}
    for name, schedule in schedules.items():
        patch_checkpoint(real, tmp_path / name, schedule, **freeze.get(name, {}))
    done = python("-P", "-c", LOADER, *(str(tmp_path / name) for name in schedules), env={"PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(real).eval()
    plain = logits(model)
    for name, schedule in schedules.items():
        found = torch.load(tmp_path / f"{name}.pt")
        with ropescale.patch(model, schedule, **freeze.get(name, {})):
            assert (logits(model) - found).abs().max() <= 1e-5, name
        assert (plain - found).abs().max() > 1e-2, name


# ---------------------------------------------------------------------------------------------------------
# Weights are never read


COST = """
import sys
from ropescale.cli.main import main
assert main(["patch", sys.argv[1], "-o", sys.argv[2], "--schedule", "yarn:factor=4"]) == 0
# Not ru_maxrss, which starts at what the parent had.
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_patching_costs_the_same_whatever_the_size(source, tmp_path, python):
    with open(source / "model-00001-of-00002.safetensors", "wb") as file:
        file.truncate(100 * 10**9)  # sparse
    with open(source / "tokenizer.json", "w") as file:
        file.write('{"version": "1.0", "truncation": null, "model": {"vocab": {')
        file.write(",".join(f'"token{i}": {i}' for i in range(1_000_000)) + "}}}")
    shards = {f"model.layers.{i}.mlp.experts.weight": "model-00001-of-00002.safetensors" for i in range(100_000)}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    done = python("-c", COST, str(source), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 100 * 1024  # kilobytes
    assert (tmp_path / "out" / "model-00001-of-00002.safetensors").stat().st_size == 100 * 10**9


# ---------------------------------------------------------------------------------------------------------
# Whole or not at all


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FULL])
def test_a_failure_at_any_step_leaves_no_trace(source, tmp_path, error):
    before, out, steps = tree(tmp_path), tmp_path / "new" / "deep" / "out", 0
    for raised in failures(tmp_path, partial(patch_checkpoint, source, out, "yarn:factor=4"), error):
        steps += 1
        # Where nothing is raised, a link that failed was made in another way.
        assert raised is None or isinstance(raised, (KeyboardInterrupt, RopescaleError)), repr(raised)
        if raised is None or out.exists():  # it has its place, and only the journal had to go
            assert (out / "ropescale.json").exists()
            assert raised is None or not list(out.parent.glob(".out.*"))
            shutil.rmtree(tmp_path / "new")
        assert tree(tmp_path) == before
    assert steps > 20 and (out / "ropescale.json").exists()


# ---------------------------------------------------------------------------------------------------------
# Where it may go


def test_force_never_replaces_what_ropescale_did_not_write(source, tmp_path):
    write_files(tmp_path, {"home/thesis.tex": "years", "file": "x"})
    shutil.copytree(source, tmp_path / "other")
    for out in (tmp_path / "home", tmp_path / "other", tmp_path / "file"):
        with untouched(tmp_path, "was not written by ropescale"):
            patch_checkpoint(source, out, "yarn:factor=4", force=True)
    (tmp_path / "empty").mkdir()
    patch_checkpoint(source, tmp_path / "empty", "yarn:factor=4", force=True)
    assert (tmp_path / "empty" / "config.json").exists()


def test_force_never_destroys_the_weights_it_is_about_to_link(source, tmp_path):
    patch_checkpoint(source, tmp_path / "a", "yarn:factor=2", link="copy")
    patch_checkpoint(tmp_path / "a", tmp_path / "b", "yarn:factor=4", link="symlink")
    with untouched(tmp_path, "which would be destroyed"):
        patch_checkpoint(tmp_path / "b", tmp_path / "a", "linear:factor=2", force=True, link="symlink")


OUTS = {"source": "is the source itself", "link": "is the source itself", "source/inside": "overlap", ".": "overlap"}


@pytest.mark.parametrize(("out", "words"), OUTS.items())
@pytest.mark.parametrize("force", [False, True])
def test_an_output_that_cannot_be_is_refused(source, tmp_path, monkeypatch, out, words, force):
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("source")
    for dry_run in (False, True):
        with untouched(tmp_path, words):
            patch_checkpoint("source", out, "yarn:factor=4", force=force, dry_run=dry_run)


# ---------------------------------------------------------------------------------------------------------
# In place and back


def test_restoring_gives_back_every_byte_however_often_it_was_patched(source):
    """The first length leaves the tokenizer's limit alone, the second raises it: both must be undone."""
    edit(source, "tokenizer_config.json", model_max_length=512)
    (source / "config.json").chmod(0o600)
    before = tree(source)
    for spec, limit in (("yarn:factor=2", 512), ("yarn:factor=8", 2048), ("linear:factor=2", 4096)):
        assert patch_checkpoint(source, None, spec, in_place=True, on_top="linear" in spec).folder == source
        assert read(source / "tokenizer_config.json")["model_max_length"] == limit
    assert read(source / "ropescale.json")["beneath"] == {"all": "yarn x8 of 256"}
    after = tree(source)
    changed = {name for name in after if after[name] != before.get(name) and not name.startswith(backups.BACKUP)}
    assert changed == {"config.json", "ropescale.json", "README.md", "tokenizer_config.json"}
    assert restore(source) == source and tree(source) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FULL])
def test_in_place_can_be_undone_after_a_failure_at_any_step(source, tmp_path, error):
    edit(source, "tokenizer_config.json", model_max_length=512)
    for path in (source / "nested", *source.glob("model-*")):  # which it does not touch
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = tree(source)
    patch_checkpoint(source, None, "yarn:factor=2", in_place=True)
    arranged = shutil.copytree(source, tmp_path / "arranged")
    for raised in failures(tmp_path, partial(patch_checkpoint, source, None, "yarn:factor=8", in_place=True), error):
        if raised is not None:  # an mkdir of what is there already may fail unnoticed
            assert isinstance(raised, (KeyboardInterrupt, RopescaleError)), repr(raised)
        if (source / backups.BACKUP).exists():
            restore(source)
        assert tree(source) == before
        shutil.rmtree(source)
        shutil.copytree(arranged, source)
    restore(source)
    assert tree(source) == before


PATCH = partial(patch_checkpoint, "source", schedule="yarn:factor=8")
FORCED, IN_PLACE = partial(PATCH, out="out", force=True), partial(PATCH, out=None, in_place=True)


KILLED = [
    pytest.param(dict, partial(PATCH, out="out"), id="patch"),
    pytest.param(partial(os.mkdir, "out"), partial(PATCH, out="out"), id="patch into an empty folder"),
    pytest.param(partial(FORCED, schedule="yarn:factor=2"), FORCED, id="force"),
    pytest.param(partial(IN_PLACE, schedule="yarn:factor=2"), IN_PLACE, id="in place twice"),
    pytest.param(IN_PLACE, partial(restore, "source"), id="restore"),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("first", "act"), KILLED)
def test_a_killed_command_is_completed_when_it_is_given_again(source, tmp_path, monkeypatch, first, act):
    """No file of the user's changes; an output folder is the earlier or the new one, or the earlier one lies aside."""
    monkeypatch.chdir(write_files(tmp_path / "work", {"notes.txt": "the user's", "out.txt": "the user's too"}))
    write_files(source, {"notes.txt": "the user's, in the model's folder"})

    def arrange():
        for folder in ("source", "out", "out~"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, "source")
        first()

    def seen(folder="."):
        return (found := tree(Path(folder))) | dict.fromkeys(found.keys() & {RECORD, f"out/{RECORD}"}, "with inodes")

    arrange()
    earlier = seen("out")
    act()
    after, new, steps = seen(), seen("out"), 0
    if act is IN_PLACE:  # it ends as on the original
        shutil.rmtree("source")
        shutil.copytree(source, "source")
        act()
        assert seen() == after
    arrange()
    for step in kills(tmp_path, act, every=11):
        steps = step
        there = {name: each for name, each in seen("out").items() if not name.startswith(".out.")}
        is_aside = (there, seen("out~")) == ({}, earlier)
        is_moving = earlier == {} and RECORD not in there
        assert there in (earlier, new) or is_aside or is_moving
        if seen() != after:
            with suppress(CheckpointError):  # a complete folder, beside a lock
                act()
        assert seen() == after
        arrange()
    assert steps > 20


def test_there_must_be_something_to_restore(source, tmp_path):
    with pytest.raises(CheckpointError, match="was not patched in place"):
        restore(source)
    with pytest.raises(CheckpointError, match="does not exist"):
        restore(tmp_path / "none")


def test_in_place_never_splits_a_shared_file(hub_like, tmp_path):
    with untouched(tmp_path / "cache", "is a symbolic link, as in the Hub's shared cache"):
        patch_checkpoint(hub_like, None, "yarn:factor=4", in_place=True)


# ---------------------------------------------------------------------------------------------------------
# What is refused


CONTRADICTIONS = [
    ({"out": None, "dry_run": True, "force": True}, "force applies to an output folder; name one"),
    ({"out": None, "in_place": True, "link": "copy"}, "link applies to an output folder; name one"),
    ({"schedule": "dynamic-yarn"}, r"with the length.*freeze it at a length"),
    ({"link": "soft"}, "unknown link type 'soft'; choose from auto, hard, symlink, copy"),
    ({"model": "nobody/none", "out": None, "in_place": True}, "is not a local folder"),
]


@pytest.mark.parametrize(("given", "words"), CONTRADICTIONS)
def test_options_that_contradict_are_refused(source, tmp_path, given, words):
    with pytest.raises(RopescaleError, match=words):
        patch_checkpoint(**{"model": source, "out": tmp_path / "out", "schedule": "yarn:factor=4"} | given)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------------------
# A Hub id


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of someone who downloaded ``org/name`` and then lost the network."""
    cache = tmp_path / "home" / "hub"
    as_cached(source, write_files(cache / "models--org--name", {"refs/main": COMMIT}), COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


def ask(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Lets the client ask a Hub at this address."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)


def test_a_hub_id_works_like_a_folder_without_a_network(hub, tmp_path, ran):
    before = tree(hub)
    ran("patch", "org/name", "-o", tmp_path / "out", *YARN)
    weights = tmp_path / "out" / "model-00001-of-00002.safetensors"
    assert not weights.is_symlink()
    assert weights.read_bytes().startswith(b"these are no weights")
    assert read(tmp_path / "out" / "ropescale.json")["source"] == "org/name"
    assert {name: each for name, each in tree(hub).items() if "CACHEDIR" not in name} == before
    for more in (["--revision", COMMIT], ["--dry-run"]):
        ran("patch", "org/name", "-o", tmp_path / more[0], *YARN, *more)


@pytest.mark.parametrize("words", [["org/other"], ["org/name", "--revision", "v2"], ["nofolder"]])
def test_what_the_cache_lacks_is_one_line(hub, tmp_path, ran, words):
    _, err = ran("patch", *words, "-o", tmp_path / "out", *YARN, code=2)
    one_error(err, f"error: {words[0]} ", "the Hub's cache", "HF_HUB_OFFLINE is set")
    assert not (tmp_path / "out").exists()


def test_a_hub_that_refuses_connections_is_the_cache_or_one_line(hub, tmp_path, monkeypatch, ran):
    ask(monkeypatch, "http://127.0.0.1:9")
    words = [*YARN, "-o", tmp_path / "out"]
    ran("patch", "org/name", *words)
    one_error(ran("patch", "org/other", *words, code=2).err, "the Hub cannot be reached")


def test_a_hub_that_never_answers_is_given_up(hub, tmp_path, monkeypatch, ran):
    """The client by itself waits for ever: seen for 200 s with huggingface_hub 2.4.0."""
    monkeypatch.setattr(locating, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ask(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        ran("patch", "org/name", "-o", tmp_path / "out", *YARN)
    assert (tmp_path / "out" / "ropescale.json").exists()
