"""The page that compares runs: its numbers against the stored ones, and a look at it in a real browser."""

import hashlib
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tiny
from environments import environment
from losses import digest, reseal, rewrite, tensors
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ropescale.errors import DataError
from ropescale.evals import perplexity, recommend, retrieval, search
from ropescale.evals.reporting.figures import changes_from, series_of
from ropescale.evals.reporting.page import page, page_data
from ropescale.evals.reporting.runs import load, unpaired

LENGTHS = [16, 64, 128]
SCHEDULES = ["linear:factor=4", "yarn:factor=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a tiny model over four documents."""
    out = tmp_path_factory.mktemp("runs") / "first"
    perplexity(tiny.llama(), repeating(), LENGTHS, SCHEDULES).save(out)
    return out


@pytest.fixture
def run(folder, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(folder, tmp_path / "run")


def repeating():
    """Four documents, each with 20 tokens that were there 100 tokens before."""
    return [[*ids[:110], *ids[10:30], *ids[130:]] for ids in tiny.documents(5, 140)]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another model, trained at 128 tokens, on the same documents."""
    out = tmp_path_factory.mktemp("runs") / "second"
    perplexity(tiny.llama(seed=1, max_position_embeddings=128), repeating(), LENGTHS[1:], SCHEDULES[1:]).save(out)
    return out


def stored(folder, schedule):
    """The NLLs of a schedule's only pass, found by hand."""
    [values] = [each for name, each in tensors(folder).items() if re.fullmatch(rf"{re.escape(schedule)} @ \d+", name)]
    return list(values.astype(np.float64))


def changes(folders, base):
    """The changes from a series to every other one, by label: the length with the mean and its bounds."""
    series = series_of(load(folders))
    found = changes_from(series[base], series)
    return {each.label: [(n, d.mean, d.low, d.high) for n, d in own.items()] for each, own in found.items()}


def test_a_runs_own_changes_are_those_that_it_was_saved_with(folder):
    ours, saved = changes([folder], 0), read(folder, "paired")
    assert [series.label for series in series_of(load([folder]))] == ["as-is", *SCHEDULES, "truncation"]
    for schedule in SCHEDULES:
        rows = [(p["length"], p["delta_nll"], p["low"], p["high"]) for p in saved if p["schedule"] == schedule]
        assert ours[schedule] == rows and len(rows) == len(LENGTHS)
    assert list(ours) == SCHEDULES  # the baseline is not compared with itself, nor is truncation
    cut = read(folder, "truncation")["rows"]
    rows = {t["schedule"]: [(t["length"], t["delta_nll"], t["low"], t["high"])] for t in cut}
    assert changes([folder], 3) == rows and list(rows) == ["as-is", *SCHEDULES]  # at 128 alone, past 64


def test_two_models_on_the_same_documents_are_paired_token_by_token(folder, other, tmp_path):
    perplexity(tiny.llama(), tiny.documents(4, 140, seed=1), [32, 64], SCHEDULES[:1]).save(tmp_path / "elsewhere")
    found = changes([folder, other, tmp_path / "elsewhere"], 2)
    assert list(found) == ["first: as-is", "first: linear:factor=4", "second: as-is", "second: yarn:factor=4"]
    before, after = stored(folder, "yarn:factor=4"), stored(other, "yarn:factor=4")
    for (length, mean, *_), expected in zip(found["second: yarn:factor=4"], LENGTHS[1:], strict=True):
        deltas = [b[: length - 1] - a[: length - 1] for a, b in zip(before, after, strict=True)]
        assert length == expected and mean == pytest.approx(np.concatenate(deltas).mean(), abs=1e-9)


def tables_in(text):
    """The tables of a page, as lists of lines of cells."""
    found = []
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        lines = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in table.split("<tr>")[1:]]
        found.append([[html.unescape(re.sub("<.*?>", "", cell)) for cell in line] for line in lines])
    return found


def test_the_tables_of_the_page_are_those_of_the_report(folder, other):
    text = page(load([folder, other]))
    shown, ids = tables_in(text), re.findall(r'<[^<>]* id="([^"]*)"', text)
    for run in (folder, other):
        blocks = (run / "REPORT.md").read_text().split("\n\n")
        tables = [block.splitlines() for block in blocks if block.startswith("| ")]
        for head, _, *lines in tables:
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
            assert cells in shown
        assert len(tables) >= 3
    assert len(set(ids)) == len(ids) > 20  # so that no figure takes a mark from another
    kinds = re.findall(r'<t[dh] class="([^"]*)">([^<]*)<', text)
    for kind, cell in kinds:
        assert kind == ("better" if cell.startswith("-") else "worse")
        mean, half, low, high = re.fullmatch(r"(\S+) (?:± (\S+)|\((\S+) to (\S+)\)).*", cell).groups()
        assert abs(float(mean)) > float(half) if half else float(low) * float(high) > 0
    assert {kind for kind, _ in kinds} == {"better", "worse"}


def test_the_figures_have_a_group_per_series_and_the_page_what_they_show(folder, tmp_path):
    many = [f"ntk:factor={factor}" for factor in range(2, 12)]
    perplexity(tiny.llama(), repeating(), LENGTHS, many).save(tmp_path / "many")
    for run, count, bases in ((folder, 4, 4), (tmp_path / "many", 12, 2)):
        text = page(load([run]))
        assert len(text) < 1_000_000
        figures = re.findall(r"<svg xmlns.*?</svg>", text, re.DOTALL)
        assert len(figures) == 4 + bases  # three quantities, changes from each, position
        groups = [set(re.findall(r'data-series="(\d+)"', figure)) for figure in figures]
        assert groups[0] == set(map(str, range(count))) and groups[-1] == set(map(str, range(count - 1)))
        assert all(figure.count("trained at 64") == 1 for figure in (*figures[:4], figures[-1]))
        assert re.findall(r'<option value="(\d+)"(?: selected)?>', text)[bases - 1] == str(count - 1)  # truncation
        for figure in figures[3 : 3 + bases]:
            assert ">better<" in figure and ">worse<" in figure
        data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])[run.name]
        assert data["rows"] == read(run, "rows") and data["csv"] == (run / "results.csv").read_text()
        assert data["positions"][0].keys() >= {"schedule", "start", "stop", "nll"} and "tables" in data


TEXT = "It was a bright cold day in April, and the clocks were striking thirteen, though the thaw was there. " * 2


def pair_tokenizer():
    """One token per byte, but one for each "th"; id 257 is BOS."""
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory):
    """Two models with one tokenizer and one with another, all on the same text."""
    out = tmp_path_factory.mktemp("tokenized")
    made = {"bytes": tiny.byte_tokenizer(), "again": tiny.byte_tokenizer(), "pairs": pair_tokenizer()}
    for number, (name, tokenizer) in enumerate(made.items()):
        model = tiny.llama(seed=number, vocab_size=258)
        perplexity(model, [TEXT], [16, 64], ["linear:factor=2"], tokenizer=tokenizer, windows=1).save(out / name)
    return [out / name for name in made]


def test_the_same_text_in_the_tokens_of_another_tokenizer_is_not_paired_and_that_is_said(tokenized):
    runs = load(tokenized)
    found = [hashlib.sha256(np.array(t(TEXT, add_special_tokens=False).input_ids, "<i8").tobytes()).hexdigest()
             for t in (tiny.byte_tokenizer(), pair_tokenizer())]  # fmt: skip
    assert [run.result.ids for run in runs] == [[found[0]], [found[0]], [found[1]]] and found[0] != found[1]
    pairs = {
        (base, int(each)) for base in range(6) for each in range(6)
        if series_of(runs)[each].label in changes(tokenized, base)
    }  # fmt: skip
    assert pairs == {(a, b) for group in ((0, 1, 2, 3), (4, 5)) for a in group for b in group if a != b}
    sentences = unpaired(runs)
    assert [each.split(" scored")[0] for each in sentences] == ["bytes and pairs", "again and pairs"]
    assert all("same text" in each and "not compared" in each and "bits per byte" in each for each in sentences)
    assert unpaired(runs[:2]) == []


def test_the_page_is_one_file_that_asks_for_nothing_whatever_a_run_is_called(folder, run, tmp_path):
    text = page(load([folder]), title="Tags <b>&amp;")
    assert "<h1>Tags &lt;b&gt;&amp;amp;</h1>" in text
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert embedded and json.loads(embedded[1]) == json.loads(json.dumps(page_data(load([folder]))))
    rewrite(run, lambda found, index: index["documents"][0].update(ids_sha256="\ud800"))
    reseal(run, lambda results: results["model"].update(trained_length=None))
    text = page(load([folder, run.rename(tmp_path / os.fsdecode(b"<script>alert(1)<\xff"))]))
    assert "<script>alert(1)" not in text and "\\u003cscript\\u003ealert(1)" in text
    for where in ("a", "b"):
        shutil.copytree(folder, tmp_path / where / "run")
    assert [each.name for each in load([tmp_path / "a" / "run", tmp_path / "b" / "run"])] == ["a/run", "b/run"]
    with pytest.raises(DataError, match="is given twice"):
        load([folder, folder.parent / "." / folder.name])


def damaged(run, tmp_path, ran):
    """The one line that a report of a damaged run ends with."""
    _, said = ran("report", run, "-o", tmp_path / "report.html", code=2)
    assert said.startswith("error: ") and said.count("\n") == 1 and len(said) < 700 and "unexpected" not in said
    assert "run the evaluation again" in said and not (tmp_path / "report.html").exists()
    return said


def flipped(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def piped(path):
    path.unlink()
    os.mkfifo(path)


def sealed(path, content):
    path.write_bytes(content)
    reseal(path.parent, lambda results: results["files"].update({path.name: [digest(path)]}))


CHANGED = "does not belong to the results beside it, or was changed (its checksum differs); move it away"
FILES = {
    "another length": (lambda run: reseal(run, lambda found: found["paired"][0].update(length=17)), "lacks fig"),
    **{f"byte {at}": (lambda run, at=at: flipped(run / "losses.safetensors", at), CHANGED) for at in (0, 60, 1000, -1)},
    "no losses": (lambda run: (run / "losses.safetensors").write_bytes(b""), "losses.safetensors does not belong"),
    "other losses": (lambda run: sealed(run / "losses.safetensors", b"\x02" + bytes(7) + b"{}"), "losses.safetensors "),
    "losses of eight gigabytes": (lambda run: os.truncate(run / "losses.safetensors", 2**33), "is larger than 67"),
    "a pipe": (lambda run: piped(run / "losses.safetensors"), "is a pipe or a device"),
    "results of two gigabytes": (lambda run: os.truncate(run / "results.json", 2**31), "larger than 67.1 MB"),
    **{
        f"results {text[:8]!r}": (lambda run, text=text: (run / "results.json").write_text(text), "results.json ")
        for text in ("{", "[]", "null", '{"schema": 99}', '{"schema": true}', "[" * 10**5, "NaN", "\ufeff{}")
    },
    "a figure": (lambda run: (run / "results.json").write_text(
        (run / "results.json").read_text().replace('"length": 16', '"length": 17', 1)), "was changed or damaged"),
    **{str(found): (lambda run, found=found: reseal(run, lambda results: results.update(found)), "results.json ")
       for found in ({"sentences": [5]}, {"sentences": "abc"}, {"rests_on": ["x"]}, {"unfinished": 5},
                     {"report": [{"header": ["a", "b"], "rows": [["x"]], "right": []}]})},
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), FILES.values(), ids=FILES)
def test_a_file_that_was_damaged_is_one_line(run, tmp_path, ran, change, said):
    change(run)
    assert said in damaged(run, tmp_path, ran)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A retrieval run, below and above the trained length, of a model that was never taught to answer; its result."""
    out = tmp_path_factory.mktemp("runs") / "asked"
    model, tokenizer = tiny.llama(vocab_size=257, max_position_embeddings=256), tiny.byte_tokenizer(limit=400)
    result = retrieval(model, [200, 300], ["linear:factor=4"], tokenizer=tokenizer, depths=[0, 0.5, 1], trials=3)
    result.save(out)
    return out, result


def test_a_retrieval_runs_page_has_its_heat_maps_and_tables(asked):
    out, result = asked
    text = page(load([out]))
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", re.search(r"<svg xmlns.*?</svg>", text, re.DOTALL)[0])
    for row in (row for row in result.rows if row.depth is not None):
        mine = [a for a in result.answers if (a.schedule, a.length, a.depth) == (row.schedule, row.length, row.depth)]
        assert f"{np.mean([each.nll for each in mine]):.1f}" in texts
    assert "dashed line: trained at 256" in " ".join(texts) and '<form id="controls"' not in text
    assert any("answer NLL" in table[0] for table in tables_in(text))
    said = text.replace("<wbr>", "")
    assert f"<span>{result.sentences()[0]}</span>" in said and f"<span>{result.rests_on()}</span>" in said


def test_the_pages_of_a_search_and_of_a_recommendation_have_their_figures(tmp_path):
    search(tiny.llama(), tiny.documents(12, 300), 128, budget_tokens=128 * 24).save(tmp_path / "search")
    recommend(tiny.llama(), tiny.documents(8, 132), 128, batch_tokens=256).save(tmp_path / "recommended")
    figures = re.findall(r"<svg xmlns.*?</svg>", page(load([tmp_path / "search", tmp_path / "recommended"])), re.DOTALL)
    assert ">perplexity<" in figures[0] and "lower left is better<" in figures[-1]


CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.engines
@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium; CHROMIUM=/path/to/chrome names one")
def test_in_a_browser_the_switches_work_by_keyboard_and_no_window_is_too_narrow(folder, other, tmp_path):
    (tmp_path / "page.html").write_text(page(load([folder, other])), encoding="utf-8")
    python = environment("browser", "playwright==1.55.0")
    script = Path(__file__).parents[2] / "helpers" / "scripts" / "browsing.py"
    words = [python, script, tmp_path / "page.html", CHROMIUM, tmp_path / "narrow.png"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["errors"] == [] and [url for url in seen["requests"] if not url.startswith(("file:", "data:"))] == []
    before, after = seen["hidden"].values()  # in figures, in tables of changes, in tables of its run
    assert before == [0, 0, 0] and min(after) > 0
    assert seen["bases"] == [["0"], ["2"]] and max(seen["overflow"]) <= 0


def read(folder, part):
    """A table of results.json."""
    return json.loads((folder / "results.json").read_text())[part]
