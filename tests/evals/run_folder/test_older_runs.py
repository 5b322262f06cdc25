"""Runs from before 0.1.0 are read, reported and continued without checksums; see the fixtures' README."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tiny import byte_tokenizer, llama

from ropescale.cli.main import main
from ropescale.errors import CheckpointError
from ropescale.evals import Result, perplexity, retrieval
from ropescale.evals.data.documents import Text
from ropescale.evals.data.key_tokens import load as load_keys
from ropescale.evals.passkey.answering import Answerer
from ropescale.evals.resuming import fingerprints
from ropescale.evals.run_folder.folder import writable_folder
from ropescale.evals.scoring.executor import Executor

pytestmark = pytest.mark.usefixtures("no_plots")

OLDER = Path(__file__).parents[2] / "fixtures" / "runs_without_checksums"
ADDED = {"files", "sha256"}
OTHERS = {"best", "versions"}
INTERVAL = re.compile(r"^(.+_)?(low|high|interval)$|^(bootstrap|resamples)$")


@pytest.fixture
def older(tmp_path):
    shutil.copytree(OLDER, tmp_path / "older")
    return tmp_path / "older"


def test_scored_tokens_of_an_older_run_are_those_of_its_rows():
    run = Result.load(OLDER / "eval")
    assert run.data["tokens"] == 192 and run.scored_tokens == 190
    assert "190 scored tokens" in run.to_markdown()


@pytest.fixture
def counted(monkeypatch):
    """Every batch that is run from here on."""
    ran = []

    def counting(real):
        return lambda *given: ran.append(given) or real(*given)

    for kind, name in ((Executor, "score"), (Executor, "compare"), (Answerer, "answers")):
        monkeypatch.setattr(kind, name, counting(getattr(kind, name)))
    return ran


def same_machine(monkeypatch, out):
    """As far as the facts of a run go: the same model file, the same libraries."""
    about = json.loads((out / "results.json").read_text())["model"]
    about.pop("trained_length")
    facts = json.loads((out / "resume" / "run.json").read_text())["facts"]
    arithmetic = {name: facts[name] for name in ("device", "attention", "torch", "transformers")}
    monkeypatch.setattr(fingerprints, "describe", lambda model, path=None: dict(about))
    monkeypatch.setattr(fingerprints, "arithmetic", lambda model: dict(arithmetic))


def figures(out):
    """What the results say, without what is new in them, the versions of this machine, and intervals.

    Intervals have been computed in another way since, and there were some by resampling.
    """
    content = json.loads((out / "results.json").read_text())
    content["data"].pop("tokens", None)  # counted BOS
    return {name: _without_intervals(value) for name, value in content.items() if name not in ADDED | OTHERS}


def _without_intervals(value):
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if not INTERVAL.search(name)}
        return {name: _without_intervals(each) for name, each in kept.items()}
    return [_without_intervals(each) for each in value] if isinstance(value, list) else value


def leaves(value, where=""):
    """Every value of a tree by its place."""
    if isinstance(value, (dict, list)):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: leaf for key, each in inside for name, leaf in leaves(each, f"{where}/{key}").items()}
    return {where: value}


def evaluated(out, truncation=False):
    texts = [Text(f"texts/{name}.txt", (OLDER / "texts" / f"{name}.txt").read_text()) for name in "ab"]
    given = {
        "tokenizer": byte_tokenizer(),
        "batch_tokens": 96,
        "source": "texts",
        "windows": 1,
        "truncation": truncation,
    }
    return perplexity(llama(vocab_size=257), texts, [16, 96], ["yarn:factor=2"], out=out, **given)


def asked(out):
    given = {"trials": 2, "batch_tokens": 300}
    return retrieval(llama(vocab_size=257), byte_tokenizer(), [150], [0, 1], ["linear:factor=2"], out=out, **given)


@pytest.mark.parametrize(
    ("name", "act", "left"), [("eval", evaluated, 0), ("eval-stopped", evaluated, 2), ("passkey", asked, 0),
                              ("passkey-stopped", asked, 1)]
)  # fmt: skip
def test_an_older_run_is_continued_where_it_was_and_has_the_same_figures(older, monkeypatch, counted, name, act, left):
    same_machine(monkeypatch, older / name)
    act(older / name)
    assert len(counted) == left
    whole = OLDER / name.removesuffix("-stopped")
    now, then = leaves(figures(older / name)), leaves(figures(whole))
    floats = {name for name, value in then.items() if isinstance(value, float)}  # another processor rounds otherwise
    assert {name: now[name] for name in floats} == pytest.approx({name: then[name] for name in floats}, rel=1e-4)
    assert {name: now[name] for name in then.keys() - floats} == {name: then[name] for name in then.keys() - floats}
    assert json.loads((older / name / "results.json").read_text()).keys() >= ADDED
    counted.clear()
    act(older / name)  # and from then on it is one of this version
    assert counted == []


def test_an_older_run_takes_truncation_alone(older, monkeypatch, counted):
    """32 tokens of two documents at stride 4 are eight windows of 64 each, in batches of 96 positions."""
    before = Result.load(older / "eval")
    assert before.truncation is None and before.against_truncation == []
    same_machine(monkeypatch, older / "eval")
    result = evaluated(older / "eval", truncation=True)
    assert len(counted) == result.truncation.forward_passes
    assert result.against_truncation == Result.load(older / "eval").against_truncation != []


def test_older_runs_are_reported_and_it_is_said_that_they_have_no_checksums(older, tmp_path, capsys):
    pytest.importorskip("plotly")
    names = ["eval", "eval-stopped", "passkey", "passkey-stopped"]
    assert main(["report", *(str(older / name) for name in names), "-o", str(tmp_path / "report.html")]) == 0
    said = capsys.readouterr().err
    assert all(f"note: {older / name}: no checksum stored, so damage" in said for name in names)
    assert (tmp_path / "report.html").read_text().count("<td>no checksum stored</td>") == 4


@pytest.mark.parametrize(
    "name", ["results.csv", "REPORT.md", "answers.csv", "nll/as-is/96/00000.npy", "ppl_vs_length.png", "nll/notes.txt"]
)
def test_what_that_version_cannot_have_written_is_not_replaced(older, name):
    kind = "retrieval" if name == "answers.csv" else "perplexity"
    run = older / ("passkey" if kind == "retrieval" else "eval")
    path = run / name
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b"years of work")
    with pytest.raises(CheckpointError, match=name):
        writable_folder(run, kind)


def test_a_report_of_that_version_with_a_line_of_somebody_elses_is_not_replaced(older):
    path = older / "eval" / "REPORT.md"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:6], "We should try a larger factor.", *lines[6:]]))
    with pytest.raises(CheckpointError, match=r"REPORT\.md is not what a version before 0\.1\.0 wrote for the results"):
        writable_folder(older / "eval")


def test_the_pictures_of_that_version_are_known_by_their_maker_and_size(older):
    figures = pytest.importorskip("matplotlib.figure")
    for size, ours in (((7, 4.4), True), ((5, 5), False)):
        figures.Figure(figsize=size, layout="constrained").savefig(older / "eval" / "ppl_vs_length.png", dpi=160)
        if ours:
            writable_folder(older / "eval")
        else:
            with pytest.raises(CheckpointError, match="ppl_vs_length"):
                writable_folder(older / "eval")


def test_the_key_spans_of_that_version_are_read(older):
    spans = load_keys(older / "keys.json")
    assert spans.made["key_tokens"] == 102 and len(spans.spans) == 2
    spans.save(older / "keys.json")
