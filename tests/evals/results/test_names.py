"""Schedules that came from files keep their names in tables, pictures and on the page, and their specs in the data."""

import json
import re

import pytest
from configurations import write_files
from tiny import documents, llama

from ropescale.evals import Result, perplexity
from ropescale.evals.reporting.figures import series_of
from ropescale.evals.reporting.page import page
from ropescale.evals.reporting.runs import load

FIELDS = {"name": "yarn", "factor": 2, "beta_fast": 15.264612345678, "beta_slow": 0.586612345678, "truncate": False}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run with two files of the same name, and one of their contents typed out."""
    out = tmp_path_factory.mktemp("names")
    for number in (1, 2):
        fields = {**FIELDS, "attention_factor": 1 + number / 7}
        write_files(out, {f"{number}/factors.json": json.dumps(fields)})
    files = [str(out / str(number) / "factors.json") for number in (1, 2)]
    run = perplexity(llama(), documents(6, 128), [64, 128], schedules=[*files, "yarn:factor=2", "yarn:factor=2.0"])
    run.save(out / "run")
    return run, out / "run"


def test_tables_have_the_name_and_say_once_what_it_stands_for(measured):
    for run in (measured[0], Result.load(measured[1])):
        text = run.to_markdown()
        assert text.count("beta_fast=15.26") == 2  # one definition for each file
        assert "| 1/factors.json |" in text and "* 1/factors.json: `yarn:factor=2,beta_fast=15.26" in text
        assert all(len(line.split("|")[1].strip()) <= 30 for line in text.splitlines() if line.startswith("| "))


def test_legends_have_the_names_and_no_two_alike(measured):
    for figure in (measured[0].plot(), measured[0].plot_by_position()):
        labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert {"1/factors.json", "2/factors.json"} <= set(labels) and len(labels) == len(set(labels))


def test_the_page_has_the_names(measured):
    stored = json.loads((measured[1] / "results.json").read_text())
    [exact] = {row["schedule"] for row in stored["rows"] if "attention_factor=1.1428571428571428" in row["schedule"]}
    name = stored["protocol"]["named"][exact]
    runs = load([measured[1]])
    labels = [each.label for each in series_of(runs)]
    assert name.endswith("1/factors.json")
    assert (labels[:2], labels[3:]) == (["as-is", name], ["yarn:factor=2", "truncation"])
    shown = page(runs)
    header = shown[shown.index("<header>") : shown.index("</header>")]
    assert "factors.json" in shown and "beta_fast" not in header, header
    assert re.search(r"\* \S*2/factors.json: <code>", shown)


def test_one_schedule_in_two_spellings_is_measured_once_with_a_note(capsys):
    asked = ["yarn:factor=2", "yarn:factor=2.0", "yarn:factor=2,extrapolation_factor=1"]
    run = perplexity(llama(), documents(2, 128), [128], schedules=asked, baseline=asked[2], progress=True)
    assert run.schedules == ["as-is", "yarn:factor=2"] and run.baseline == "yarn:factor=2"
    err = capsys.readouterr().err
    assert "note: yarn:factor=2 is given twice; it is measured once" in err
    assert "note: yarn:factor=2,extrapolation_factor=1 is the same schedule as yarn:factor=2; it is measured" in err
