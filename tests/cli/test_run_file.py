"""``--config run.yaml``: options from a file, and the file with which a result repeats itself."""

import json
import os
import shutil

import own_schedules
import pytest
import yaml
from crashing import tree
from tiny import TEXT


@pytest.fixture
def evaluate(ran, tmp_path):
    """Runs ``ropescale eval --config`` on a file of this content."""

    def run(content, *words, code=0):
        file = tmp_path / "given.yaml"
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return ran("eval", "--config", file, *words, code=code)

    return run


REPEATED = [
    "eval --data TEXT --lengths 32,0.125k --schedule yarn --factor 2,4 --no-truncation",
    "eval --data TEXT --lengths 32,96 --bos yes --set factor=2 --schedule ntk",
    "retrieval --lengths 200 --depths 0,0.5 --trials 2 --schedule linear:factor=4",
]


@pytest.mark.parametrize("words", REPEATED)
def test_a_result_repeats_itself_from_the_file_beside_it(words, ran, checkpoint, texts, tmp_path):
    words = [texts / "a.txt" if word == "TEXT" else word for word in words.split()]
    ran(words[0], checkpoint, *words[1:], "-o", tmp_path / "one")
    again = ran(words[0], "--config", tmp_path / "one" / "run.yaml", "-o", tmp_path / "two")
    assert "written to" in again.err
    ran(words[0], "--config", tmp_path / "one" / "run.yaml", "-o", tmp_path / "one")
    for name in ("one", "two"):
        shutil.rmtree(tmp_path / name / "resume")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_the_command_line_goes_before_the_file(evaluate, checkpoint, texts):
    given = {"model": checkpoint, "data": f"{texts}/a.txt", "lengths": [32], "truncation": False}
    given["schedule"] = ["yarn:factor=2"]
    out, _ = evaluate(given, "--schedule", "linear:factor=2", "--lengths", "64")
    assert "linear:factor=2" in out and "yarn" not in out
    assert "| perplexity " in out and " 64 |" in out and " 32 |" not in out


UNTAKEN = [
    ("lenghts: 32", "eval has no option 'lenghts'; did you mean 'lengths'?"),
    ("trust-remote-code: true", "a file cannot set trust-remote-code, because it runs code; set it on the command"),
    ("out: mine", "a file cannot set out, because it chooses what is written; set it on the command line"),
    ("server: [https://example.com]", "a file cannot set server, because the text and your key are sent there"),
    ("model: &a xx\ndata: [*a, *a]", "cannot be read as YAML: an alias, which this file may not have"),
    (f"# {'x' * 2**18}", "is larger than 0.262 MB"),
    ("schedule: mine.py::Mine", "'mine.py::Mine' is code, which a file cannot run; give it on the command line"),
    ("- 1", "contains no options; write NAME: VALUE"),
    ("lengths: 32\nwindows: 1\nlengths: 64", "cannot be read as YAML: key 'lengths' stands twice; keep one"),
    ("{1: 32, '1': 64}", "cannot be read as YAML: key '1' stands twice; keep one"),  # every key is read as text
    ("? [a, b]\n: 1\n? [a, b]\n: 2", "cannot be read as YAML: while constructing a mapping"),
    ("lengths: [[32]]", "lengths is neither text nor a number, nor a list of them"),
    (f"windows: {9:09000}", "is neither 'all' nor a number of 1 or more"),
    (f"stride: 0x{15:x}{0:06000}", "is not a length"),
    ("truncation:", "truncation has no value; give one, or leave the line out"),
    ("schedule: !!python/object/apply:os.system ['false']", "no schedule named 'false'"),
]


@pytest.mark.parametrize(("content", "fact"), UNTAKEN)
def test_a_file_that_cannot_be_taken_is_one_sentence(content, fact, evaluate):
    out, err = evaluate(content, "MODEL", "--data", "x", "--lengths", "32", code=2)
    assert out == "" and fact in err and err.count("\n") == 1
    assert err.count("as YAML") == fact.count("as YAML")


READING = [
    "eval MODEL --config FILE --data TEXT --lengths 32",
    "eval MODEL --chat-template FILE --data TEXT --lengths 32",
    "eval MODEL --key-spans FILE --data TEXT --lengths 32",
    "eval MODEL --schedule FILE --data TEXT --lengths 32",
    "eval MODEL --data FILE --lengths 32",
    "retrieval MODEL --prompts FILE --lengths 256",
]


@pytest.mark.parametrize("words", READING)
def test_a_text_file_that_is_missing_or_never_ends_is_one_sentence(words, refused, checkpoint, texts, tmp_path):
    path = tmp_path / "f.json"
    words = words.replace("FILE", str(path)).replace("MODEL", str(checkpoint)).replace("TEXT", f"{texts}/a.txt").split()
    said = [refused(*words)]
    os.mkfifo(path)
    said.append(refused(*words))
    path.unlink()
    path.symlink_to("/dev/zero")
    said.append(refused(*words))
    assert all("f.json" in each for each in said)
    assert "no file" in said[0] or "does not exist" in said[0]
    assert all("is a pipe or a device" in each or "no file" in each for each in said[1:])


def test_the_file_of_a_run_finds_its_data_from_another_working_directory(ran, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 4)
    (tmp_path / "factors.json").write_text('{"name": "yarn", "factor": 2}')
    one = ran("eval", checkpoint, "--data", "text.txt", "--lengths", "32", "--schedule", "factors.json", "-o", "out")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "run.yaml").rename(tmp_path / "elsewhere" / "moved.yaml")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ran("eval", "--config", "moved.yaml").out.split("All tables")[0] == one.out.split("All tables")[0]


def test_a_schedule_of_ones_own_is_asked_for_on_the_command_line(ran, refused, checkpoint, texts, tmp_path):
    own = f"{own_schedules.__file__}::Half"
    words = ("eval", checkpoint, "--data", texts / "a.txt", "--lengths", "32", "--trust-remote-code")
    ran(*words, "--schedule", own, "-o", tmp_path / "out")
    made = tmp_path / "out" / "run.yaml"
    assert "is code, which a file cannot run" in refused("eval", "--config", made, "--trust-remote-code")
    assert "trust" not in made.read_text()
    again = ran("eval", "--config", made, "--schedule", own, "--trust-remote-code", "--json").out
    assert [row["schedule"] for row in json.loads(again)["rows"]][1].endswith("own_schedules.py::Half")
