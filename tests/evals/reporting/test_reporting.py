"""The page that compares runs: its numbers against the stored ones, and a look at it in a real browser."""

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tiny
from environments import environment
from losses import digest, reseal, rewrite, tensors
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ropescale.errors import DataError
from ropescale.evals import Result, perplexity, retrieval
from ropescale.evals.data.key_tokens import KeySpans
from ropescale.evals.metrics.cells import around
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


def test_a_runs_own_pairs_are_those_that_it_was_saved_with(folder):
    data = page_data(load([folder]))
    assert [series["schedule"] for series in data["series"]] == ["as-is", *SCHEDULES]
    saved = read(folder, "paired")
    for number, schedule in enumerate(SCHEDULES, 1):
        ours = [(d["length"], d["mean"], d["low"], d["high"]) for d in data["pairs"][f"0:{number}"]]
        theirs = [(p["length"], p["delta_nll"], p["low"], p["high"]) for p in saved if p["schedule"] == schedule]
        assert ours == theirs and len(ours) == len(LENGTHS)
    result = Result.load(folder)
    for series in data["series"]:
        assert series["bins"] == [asdict(each) for each in result.by_position(series["schedule"])]


def test_pairs_are_of_the_same_documents_and_positions_of_one_table(folder, tmp_path):
    other = tiny.documents(4, 140, seed=1)
    result = perplexity(tiny.llama(), other, [32, 64], ["dynamic:factor=4"], stride=16)
    result.save(tmp_path / "elsewhere")
    data = page_data(load([folder, tmp_path / "elsewhere"]))
    assert set(data["pairs"]) == {"0:1", "0:2", "1:2", "3:4"}
    assert [(d["length"], d["mean"]) for d in data["pairs"]["3:4"]] == [(p.length, p.delta_nll) for p in result.paired]
    perplexity(tiny.llama(), other, [64, 128], ["dynamic:factor=4"]).save(tmp_path / "dynamic")
    series = page_data(load([tmp_path / "dynamic"]))["series"]
    assert [{each["as_at"] for each in one["bins"]} for one in series] == [{None}, {128}]


def test_the_page_has_the_short_context_cost_and_the_frequencies(folder):
    data = page_data(load([folder]))
    assert [series["trained"] for series in data["series"]] == [64, 64, 64]
    base, linear, _ = data["series"]
    [pair] = [p for p in read(folder, "paired") if (p["schedule"], p["length"]) == ("linear:factor=4", 64)]
    assert pair["kl"] > 0 and pair in linear["paired"] and base["paired"] == []
    waves = [series["tables"][0]["layers"]["all"]["inv_freq"] for series in (base, linear)]
    assert waves[0] == pytest.approx([4 * f for f in waves[1]]) and waves[0][0] == 1.0


def test_the_page_has_the_far_repeats_and_the_key_tokens(folder, tmp_path):
    [linear] = [row for row in read(folder, "repeats") if row["schedule"] == "linear:factor=4"]
    assert (linear["length"], linear["far_tokens"]) == (128, 5 * (128 - 110 - 7))
    series = page_data(load([folder]))["series"]
    assert (series[1]["repeats"], series[1]["key_tokens"]) == ([linear], [])
    text = "It was a bright cold day in April, and the clocks. "
    spans = KeySpans({hashlib.sha256(text.encode()).hexdigest(): [(3, 9)]})
    model, tokenizer = tiny.llama(vocab_size=257), tiny.byte_tokenizer()
    result = perplexity(model, [text], [20], tokenizer=tokenizer, key_spans=spans, windows=1)
    result.save(tmp_path / "keys")
    [series] = page_data(load([tmp_path / "keys"]))["series"]
    assert (series["repeats"], series["key_tokens"]) == ([], [asdict(result.key_rows[0])])
    assert result.key_rows[0].tokens == 6


def test_two_models_on_the_same_documents_are_paired_token_by_token(folder, other):
    data = page_data(load([folder, other]))
    labels = [series["label"] for series in data["series"]]
    assert labels[:3] == ["first: as-is", "first: linear:factor=4", "first: yarn:factor=4"]
    assert labels[3:] == ["second: as-is", "second: yarn:factor=4"]
    before, after = stored(folder, "yarn:factor=4"), stored(other, "yarn:factor=4")
    for pair, length in zip(data["pairs"]["2:4"], LENGTHS[1:], strict=True):
        deltas = [b[: length - 1] - a[: length - 1] for a, b in zip(before, after, strict=True)]
        assert pair["length"] == length
        assert pair["mean"] == pytest.approx(np.concatenate(deltas).mean(), abs=1e-9)


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
    assert [run.result.ids for run in runs] == [(found[0],), (found[0],), (found[1],)] and found[0] != found[1]
    assert set(page_data(runs)["pairs"]) == {"0:1", "2:3", "4:5", "0:2", "0:3", "1:2", "1:3"}
    sentences = unpaired(runs)
    assert [each.split(" scored")[0] for each in sentences] == ["bytes and pairs", "again and pairs"]
    assert all("same text" in each and "not compared" in each and "bits per byte" in each for each in sentences)
    assert unpaired(runs[:2]) == []


def test_the_page_is_one_file_that_asks_for_nothing_whatever_a_run_is_called(folder, run, tmp_path):
    text = page(load([folder]), title="Tags <b>&amp;")
    assert "<h1>Tags &lt;b&gt;&amp;amp;</h1>" in text
    outside_plotly = re.sub(r"<script>/\*\*\s*\n\* plotly.*?</script>", "", text, flags=re.DOTALL)
    assert len(outside_plotly) < len(text) / 10
    assert not re.search(r'(?:src|href)="(?!data:|#)', outside_plotly)
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert embedded and json.loads(embedded[1]) == json.loads(json.dumps(page_data(load([folder]))))
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles.index("Loss by position") < titles.index("Tokens that need distant context")
    rewrite(run, lambda found, index: index["documents"][0].update(ids_sha256="\ud800"))
    reseal(run, lambda results: results["model"].update(trained_length=None))
    odd = run.rename(tmp_path / os.fsdecode(b"<script>alert(1)<\xff"))
    text = page(load([folder, odd]))
    assert "<script>alert(1)" not in text and "\\u003cscript>alert(1)" in text
    assert len(re.findall(r"The trained length of (.*?) is unknown", text)) == 1
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
    "no seal": (lambda run: (run / "results.json").write_text(
        json.dumps({key: it for key, it in json.loads((run / "results.json").read_text()).items() if key != "sha256"})),
        "its checksum differs"),
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


def test_a_retrieval_runs_page_has_accuracy_and_the_answers_nll_at_every_length_and_depth(asked):
    out, result = asked
    maps = page_data(load([out]))["retrieval"]
    assert [each["schedule"] for each in maps] == ["as-is", "linear:factor=4"]
    for each in maps:
        for rows, depths in ((each["rows"], [0, 0.5, 1]), (each["overall"], [None])):
            assert [(row["length"], row["depth"]) for row in rows] == [(n, d) for n in (200, 300) for d in depths]
            for row in rows:
                mine = [a for a in result.answers if (a.schedule, a.length) == (each["schedule"], row["length"])]
                mine = [answer for answer in mine if row["depth"] in (None, answer.depth)]
                assert row["answer_nll"] == pytest.approx(np.mean([answer.nll for answer in mine]))
                assert row["accuracy"] == np.mean([answer.correct for answer in mine])


CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium; CHROMIUM=/path/to/chrome names one")


def browsed(folders, where):
    """What a browser makes of the page of these runs; see browsing.py."""
    (where / "page.html").write_text(page(load(folders)), encoding="utf-8")
    python, script = (
        environment("browser", "playwright==1.55.0"),
        Path(__file__).parents[2] / "helpers" / "scripts" / "browsing.py",
    )
    words = [python, script, where / "page.html", CHROMIUM, where / "narrow.png"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def number(cell):
    """The estimate before its interval."""
    return float(re.split(r" ± | \(", cell)[0].replace(",", "").removesuffix("%"))


def interval_is_shown(cell, low, mean, high):
    """Half of it up to 30% of the value and where neither side is 1.4 times as long as the other, else both ends."""
    below, above = mean - low, high - mean
    if (high - low) / 2 <= 0.3 * mean and max(below, above) <= 1.4 * min(below, above):
        return math.isclose(float(cell.split(" ± ")[1].replace(",", "")), (high - low) / 2, rel_tol=0.05)
    ends = re.fullmatch(r".* \((.*) to (.*)\)", cell.replace(",", ""))
    return ends is not None and [float(end) for end in ends.groups()] == pytest.approx([low, high], rel=0.005)


def read(folder, part):
    """A table of results.json."""
    return json.loads((folder / "results.json").read_text())[part]


@pytest.fixture(scope="module")
def seen(folder, other, tmp_path_factory):
    """What a browser makes of two models' runs."""
    return browsed([folder, other], tmp_path_factory.mktemp("page"))


@pytest.mark.engines
@in_a_browser
def test_in_a_browser_the_page_shows_its_plots_and_works_by_keyboard_and_in_a_narrow_window(folder, seen):
    assert seen["errors"] == []
    assert [url for url in seen["requests"] if not url.startswith(("file:", "data:", "blob:"))] == []
    assert seen["plots"] == 5  # perplexity, change, truncation, position, frequencies
    assert seen["points"] == 3 * len(LENGTHS) + 2 * len(LENGTHS[1:])
    assert seen["overflow"] <= 0 and seen["narrowest label"] >= 90  # a label is words, not a column of letters
    assert seen["titles in the way"] == []
    assert len(set(seen["legend"])) == 5  # every series has its marker
    assert all(max(widths) == widths[0] > max(widths[1:]) for widths in seen["thick"])  # the baseline, in every plot
    assert [line[0] for line in seen["after hiding"][1:]] == [
        line[0] for line in seen["curve-table"][1:] if line[0] != "first: linear:factor=4"
    ]
    first, third = stored(folder, "as-is"), stored(folder, "yarn:factor=4")
    flipped = {line[0]: line[1:] for line in seen["compared with the third"][1:]}["first: as-is"]
    for cell, length in zip(flipped, LENGTHS, strict=True):
        assert math.isclose(number(cell), rise(first, third, length), abs_tol=6e-5)


def rise(nll, base, length):
    """Mean of the differences over all tokens of a length, found by hand."""
    return float(np.concatenate([a[: length - 1] - b[: length - 1] for a, b in zip(nll, base, strict=True)]).mean())


@pytest.mark.engines
@in_a_browser
def test_in_a_browser_the_tables_hold_the_stored_figures_and_a_gain_is_what_the_loss_falls_by(folder, other, seen):
    saved = {(r["schedule"], r["length"]): r for r in read(folder, "rows")}
    assert seen["curve-table"][0] == ["perplexity", "16", "64", "128"]
    for line, schedule in zip(seen["curve-table"][1:4], ["as-is", *SCHEDULES], strict=True):
        for cell, row in zip(line[1:], (saved[schedule, n] for n in LENGTHS), strict=True):
            assert number(cell) == pytest.approx(row["ppl"], rel=1e-3)
            assert interval_is_shown(cell, row["ppl_low"], row["ppl"], row["ppl_high"]), cell
    assert {"±" in cell for line in seen["curve-table"][1:] for cell in line[1:] if cell} == {True, False}
    far = {r["schedule"]: r for r in read(folder, "repeats")}
    assert seen["subsets-table"][0] == ["perplexity", "length", "far repeats", "others"]  # nobody asked for key tokens
    for line, row in zip(seen["subsets-table"][1:4], (far[s] for s in ["as-is", *SCHEDULES]), strict=True):
        assert number(line[2]) == pytest.approx(row["far_ppl"], rel=1e-3)
        assert interval_is_shown(line[2], row["far_low"], row["far_ppl"], row["far_high"]), line[2]

    assert seen["cost-table"][0][3:5] == ["mean KL (nats)", "same top-1"]
    pairs = {p["schedule"]: p for p in read(folder, "paired") if p["length"] == 64}
    base = stored(folder, "as-is")
    for line, schedule in zip(seen["cost-table"][1:3], SCHEDULES, strict=True):
        nll, pair = stored(folder, schedule), pairs[schedule]
        assert [line[0], line[1], line[5]] == [f"first: {schedule}", "64", "128"]
        assert number(line[2]) == pytest.approx(rise(nll, base, 64), abs=6e-5)
        assert line[3] == f"{pair['kl']:.4f}{around(pair['kl'], pair['kl_low'], pair['kl_high'])}"
        assert line[4] == f"{pair['top1']:.2%}{around(pair['top1'], pair['top1_low'], pair['top1_high'], '.2%')}"
        assert number(line[6]) == pytest.approx(-rise(nll, base, 128), abs=6e-5) and number(line[6]) != 0
    for line, schedule in zip(seen["cost-table"][3:], ["as-is", SCHEDULES[1]], strict=True):
        assert line[1] == "128" and number(line[2]) == pytest.approx(rise(stored(other, schedule), base, 128), abs=6e-5)
        assert line[3:] == ["-"] * 4  # another model's tokens were not compared; trained at 128, nothing is beyond


@pytest.mark.engines
@in_a_browser
def test_in_a_browser_a_dozen_series_can_be_hidden_and_shown_and_rounding_is_no_difference(folder, asked, tmp_path):
    moved = {"rounded": -2e-6, "better": -0.01, "worse": 0.01}  # every token alike: no interval has zero in it
    for name, nats in moved.items():
        shutil.copytree(folder, tmp_path / name)
        rewrite(
            tmp_path / name, lambda found, _, by=nats: found.update({n: v + np.float32(by) for n, v in found.items()})
        )
    seen = browsed([folder, *(tmp_path / name for name in moved), asked[0]], tmp_path)
    assert seen["errors"] == [] and seen["titles in the way"] == [] and seen["cut off"] == 0
    series = 4 * 3
    points = [[n, len(LENGTHS) * n] for n in (series, series - 1, 0, series)]
    assert seen["points by how many are shown"] == points

    cost = {line[0]: line for line in seen["cost-table"][1:]}
    assert [cost["rounded: as-is"][n] for n in (2, 6)] == ["0.0000 ± 0.0000"] * 2
    assert [cost["better: as-is"][n] for n in (2, 6)] == ["-0.0100 ± 0.0000", "+0.0100 ± 0.0000"]
    assert [cost["worse: as-is"][n] for n in (2, 6)] == ["+0.0100 ± 0.0000", "-0.0100 ± 0.0000"]
    coloured = [(label, kind) for label, _, kind in seen["coloured"] if label.endswith("as-is")]
    assert coloured == 2 * [("better: as-is", "better")] + 2 * [("worse: as-is", "worse")]

    assert seen["buttons on maps"] == []
    assert seen["trained on maps"] == [[2, "dashed: trained at 256"]] * 4  # a dashed line on a white one
    result, heat = asked[1], dict(seen["heat"])
    for place, schedule in enumerate(["as-is", "linear:factor=4"]):
        cells = [r for r in result.rows if r.schedule == schedule and r.depth is not None]
        cells.sort(key=lambda row: (row.depth, row.length))
        assert heat[f"accuracy-{place}"] == [f"{row.accuracy:.0%}" for row in cells]
        assert [float(text) for text in heat[f"answer-nll-{place}"]] == pytest.approx(
            [row.answer_nll for row in cells], abs=0.051
        )
    overall = [row for row in result.rows if row.depth is None]
    for line, row in zip(seen["retrieval-table"][1:], overall, strict=True):
        assert line[:2] == [f"asked: {row.schedule}", str(row.length)]
        assert number(line[2]) == round(100 * row.accuracy)
        assert number(line[3]) == pytest.approx(row.answer_nll, rel=1e-3)
