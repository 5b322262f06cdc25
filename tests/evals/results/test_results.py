"""The tables, files and pictures of a measurement."""

import csv
import dataclasses
import hashlib
import html
import io
import json
import math
import re
import sys
from collections import Counter
from datetime import date

import numpy as np
import pytest
import tiny_models
from configurations import write_files
from refusing import untouched
from tiny import byte_tokenizer, documents, from_ids, llama

from ropescale.errors import DataError, RopescaleError
from ropescale.evals import Result, metrics, perplexity, recommend, retrieval, search
from ropescale.evals.facts import TRUNCATION, Divergence, Pass
from ropescale.evals.metrics.key_tokens import KeySpans
from ropescale.evals.results import saving
from ropescale.evals.results.folder import writable_folder
from ropescale.evals.statistics.intervals import FEW, consecutive


@pytest.fixture(scope="module")
def result():
    """A real one: five documents, two schedules, one of them length-dependent."""
    ids = [*documents(5, 130), [1, 2, 3]]
    return perplexity(llama(), ids, [16, 64, 130], ["dynamic:factor=4"], source="some ids")


def made_up(*losses):
    """Two schedules over ``len(losses[0])`` documents of two scored tokens, whose losses are given."""
    tokens = [[np.full(2, value, np.float32) for value in values] for values in losses]
    runs = [Pass(name, "0" * 64, (3,), nll, len(nll)) for name, nll in zip(["as-is", "other", "third"], tokens)]
    scored = from_ids([[1, 2, 3]] * len(losses[0]))
    facts = {"source": "x", "sha256": "f" * 64, "documents": len(scored), "tokens": 6, "skipped": {"too_short": 0}}
    model = {"path": "m", "dtype": "float32", "parameters": 1}
    protocol = {"name": "ropescale", "interval": "document-clustered t, 95%"}
    return Result(model, facts, protocol, {"torch": "2"}, runs, scored, bos=False, baseline="as-is")


def test_rows_and_intervals_by_hand():
    # Five documents with mean NLL 0, 3, 0, 3 and 1.5: r = 1.5, SE = 1.5 / sqrt(5), t(4) = 2.776445.
    (row,) = made_up([0.0, 3.0, 0.0, 3.0, 1.5]).rows
    assert (row.nll, row.documents, row.tokens) == (1.5, 5, 10)
    assert row.ppl == pytest.approx(math.exp(1.5))
    assert row.ppl_high == pytest.approx(math.exp(1.5 + 2.776445 * 1.5 / math.sqrt(5)), rel=1e-5)
    assert row.ppl_low == 1  # a loss is never below zero
    # The documents differ by 1 nat, the schedules by exactly 0.25 on each: no spread is left.
    (pair,) = made_up([1.0, 2.0] * 3, [1.25, 2.25] * 3).paired
    assert (pair.schedule, pair.baseline, pair.delta_nll, pair.low, pair.high) == ("other", "as-is", 0.25, 0.25, 0.25)


def test_the_best_schedule_is_used_if_intervals_that_hold_together_show_it():
    # Three schedules make three comparisons, at 0.95 ** (1 / 3) each: t(11) is 2.8105 there, and 2.2010 at 0.95.
    base, spread = np.arange(1.0, 13.0), np.array([-1.0, 1.0] * 6) / math.sqrt(12 / 11)  # a standard deviation of 1
    result = made_up(list(base), list(base + 0.2 + 0.28 * spread), list(base + 0.2 + 0.2 * spread))
    rows = {(row.schedule, row.against): row for row in result.verdicts}
    assert {row.comparisons for row in rows.values()} == {3} == {len(rows)}
    low = 0.2 - 2.8105 * 0.28 / math.sqrt(12)
    assert low < 0 < 0.2 - 2.2010 * 0.28 / math.sqrt(12)  # on its own it would be apart
    open_, apart = rows["other", "as-is"], rows["third", "as-is"]
    assert (open_.mean, open_.low, open_.high) == pytest.approx((0.2, low, 0.4 - low), abs=1e-4)
    assert (open_.agreeing, open_.documents) == (6, 12) and apart.low > 0
    assert result.sentences()[0].endswith("undecided between as-is and other.")
    assert made_up([1.0, 2.0] * 4).verdicts == [] and made_up([1.0], [2.0]).verdicts[0].low is None


def test_the_tail_is_the_mean_over_the_second_half_of_the_positions():
    # Position p is the token with p before it, so nll[p - 1]: of L = 8 the tail is p = 4 to 7. Documents of 8 and 9.
    result, losses = made_up([0.0] * 10), [np.arange(7) + 1.0, 10 * np.arange(8) + 1.0] * 5
    result.passes[:] = [Pass("as-is", "0", (8,), [each.astype(np.float32)[:7] for each in losses], 10)]
    (row,) = result.rows
    means = [np.mean([4, 5, 6, 7]), np.mean([31, 41, 51, 61])]
    assert row.tail_nll == pytest.approx(np.mean(means))
    assert row.tail_high - row.tail_nll == pytest.approx(2.262157 * abs(means[1] - means[0]) / 6, rel=1e-5)


def test_one_long_document_has_an_interval_over_blocks_and_the_table_says_so():
    result, tokens = made_up([0.0], [0.0]), 20_000
    noise = np.random.default_rng(1).normal(2.0, 1.0, tokens).astype(np.float32)
    result.passes[:] = [Pass(n, "0", (tokens + 1,), [noise + d], 1) for n, d in [("as-is", 0), ("other", 0.25)]]
    row, _ = result.rows
    pieces = [noise[start : start + 1024] for start in range(0, tokens, 1024)]  # 20 of them, in blocks of 6, 7 and 7
    expected = consecutive([each.sum(dtype=float) for each in pieces], list(map(len, pieces)))
    assert (row.ppl_low, row.ppl_high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert row.interval == "its 20 pieces of 1,024 tokens in 3 blocks"
    (pair,) = result.paired
    assert (pair.low, pair.high) == (pytest.approx(0.25, abs=1e-6), pytest.approx(0.25, abs=1e-6))
    said = "† is the 95% interval over its 20 pieces of 1,024 tokens in 3 blocks, which does not generalise to other"
    assert " † |" in result.to_markdown() and said in result.to_markdown()


def test_intervals_over_few_documents_say_how_often_they_hold(repository):
    """The lowest of all simulated cells, as the page has it: at five documents 85.7%."""
    ids = documents(9, 40)
    said = [perplexity(llama(), ids[:count], [32]).protocol_line() for count in (5, 8, 9)]
    assert "which covers 85% or more in our simulations of 5 documents (docs/intervals.md)" in said[0]
    assert "covers 92% or more in our simulations of 8 documents" in said[1] and "covers" not in said[2]
    page = (repository / "docs" / "intervals.md").read_text(encoding="utf-8")
    assert f"\n{', '.join(f'{share:.1%}' for _, share in sorted(FEW.items()))}; nine" in page


def test_a_few_documents_of_too_few_windows_have_no_interval_and_copies_are_one_document():
    ids = [*documents(3, 40), documents(1, 130, seed=7)[0]]
    few, more = perplexity(llama(), ids[1:], [32]), perplexity(llama(), [*ids, documents(1, 70, seed=5)[0]], [32])
    assert (few.data["windows"], few.rows[0].interval) == (6, None)
    assert "no interval: it needs 5 documents, or one document of 8 windows" in few.protocol_line()
    assert (more.data["windows"], more.rows[0].interval) == (9, "9 windows in 3 blocks")
    assert "† is the 95% interval over 9 windows in 3 blocks" in more.protocol_line()
    copied = perplexity(llama(), [ids[0]] * 6, [32])
    assert copied.data["documents"] == 1 and copied.data["skipped"]["duplicates"] == 5
    assert copied.rows[0].ppl_low is None and "5 duplicates" in copied.protocol_line()


def test_one_evaluation_computes_the_rows_of_each_metric_once(tmp_path, monkeypatch):
    computed = Counter()
    for metric in metrics.METRICS:
        counted = lambda stored, real=metric.reduce, row=metric.row: computed.update([row]) or real(stored)  # noqa: E731
        monkeypatch.setattr(metric, "reduce", counted)
    found = perplexity(llama(), documents(3, 130), [16, 128], ["dynamic:factor=4"], out=tmp_path / "run")
    assert found.to_markdown() and found.to_dict() and found.to_csv() and found.by_position("as-is")
    assert computed == {metric.row: 1 for metric in metrics.METRICS}


def test_the_dictionary_has_the_published_keys(result):
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["schema"] == 2
    for found, keys in (
        (plain, "schema model data protocol versions sentences rests_on rows paired verdicts truncation "
         "repeats tables"),
        (plain["model"], "path config_sha256 weights dtype device attention parameters vocabulary as_is "
         "trained_length"),
        (plain["data"], "source sha256 documents windows tokens skipped measured whole unit share"),
        (plain["protocol"], "name mode bos stride windows budget_tokens truncation_context truncation_stride "
                            "seed repeat_distance interval batch_tokens"),
        (plain["truncation"], "context stride fed rows"),
        (plain["versions"], "ropescale torch transformers"),
        (plain["rows"][0], "schedule table_sha256 length documents tokens nll ppl ppl_low ppl_high bits_per_byte "
                           "forward_passes mode documents_at_length tail_nll tail_low tail_high interval protocol "
                           "windows"),
        (plain["paired"][0], "schedule baseline length delta_nll low high kl kl_low kl_high top1 top1_low top1_high "
                             "interval"),
    ):  # fmt: skip
        assert list(found) == keys.split()
    assert plain["data"]["skipped"] == {"too_short": 1, "empty": 0}
    assert plain["model"]["dtype"] == "float32"
    assert plain["model"]["parameters"] == sum(p.numel() for p in llama().parameters())


def test_the_tables_are_those_that_transformers_would_compute(result):
    plain = result.to_dict()
    assert plain["model"]["trained_length"] == 64
    base = [10000.0 ** (-2 * i / 8) for i in range(4)]
    shas = {(row["schedule"], row["length"]): row["table_sha256"] for row in plain["rows"]}
    assert plain["tables"][shas["as-is", 130]]["all"]["inv_freq"] == pytest.approx(base, rel=1e-6)
    # transformers' dynamic NTK at 130 tokens: theta grows by (4 * 130 / 64 - 3) ^ (8 / 6)
    theta = 10000.0 * (4 * 130 / 64 - 3) ** (8 / 6)
    live = plain["tables"][shas["dynamic:factor=4", 130]]["all"]
    assert live["inv_freq"] == pytest.approx([theta ** (-2 * i / 8) for i in range(4)], rel=1e-6)
    assert live["attention_scale"] == 1.0 and set(plain["tables"]) == set(shas.values())
    (tables,) = perplexity(tiny_models.build("gemma3_text"), documents(2, 40), [32]).tables.values()
    for layer, theta in (("full_attention", 1e6), ("sliding_attention", 1e4)):
        assert tables[layer]["inv_freq"] == pytest.approx([theta ** (-i / 4) for i in range(4)], rel=1e-6)


def test_the_csv_has_one_line_per_row_with_the_change_beside_it(result):
    table = result.summary()
    *lines, _, _, last = csv.DictReader(io.StringIO(result.to_csv()))
    assert (last["schedule"], last["length"]) == ("truncation", "130") and f"| {float(last['ppl']):.1f} |" in table
    rows = [(row.schedule, str(row.length), row.ppl) for row in result.rows]
    assert [(line["schedule"], line["length"], float(line["ppl"])) for line in lines] == rows
    assert lines[0]["delta_nll"] == "" and float(lines[-1]["delta_nll"]) == result.paired[-1].delta_nll


def test_a_notebook_has_a_line_and_the_tables_of_the_markdown(result):
    assert repr(result) == "<Result of LlamaForCausalLM: Perplexity against length, some ids>"
    answer, page = result._repr_html_().replace("<wbr>", "").split("<details><summary>All tables</summary>")
    assert answer.count("<table>") == 1 and all(html.escape(each) in answer for each in result.sentences())
    tables = [block.splitlines() for block in result.to_markdown().split("\n\n") if block.startswith("|")]
    cells = [cell.strip() for lines in tables for line in lines[2:] for cell in line.strip("|").split("|")]
    assert page.count("<table>") == len(tables) and re.findall(r"<td[^>]*>(.*?)</td>", page) == cells


def test_markdown_has_a_row_per_schedule_and_a_column_per_length(result):
    known = dataclasses.replace(result, model={**result.model, "vocabulary": None})
    first, sample, lines = known.to_markdown().split("\n\n", 2)
    assert first.splitlines() == known.sentences() and sample == known.rests_on()
    header, rule, as_is, dynamic, cut_off = (lines := lines.splitlines())[:5]
    assert [cell.strip() for cell in header.strip("|").split("|")] == ["perplexity", "16", "64", "130"]
    assert set(rule) <= set("|-: ")
    assert as_is.startswith("| as-is ") and dynamic.startswith("| dynamic:factor=4 ")
    assert cut_off.startswith("| truncation ") and len({len(line) for line in lines[:5]}) == 1  # aligned
    row = result.rows[0]
    shown = as_is.split("|")[2].strip().replace(",", "")
    number, low, high = re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", shown).groups()
    assert float(number) == pytest.approx(row.ppl, rel=5e-4)
    assert (float(low), float(high)) == pytest.approx((row.ppl_low, row.ppl_high), rel=0.005)
    facts = ["no BOS", "token-weighted", "float32", "5 documents, 5 windows", "1 too short", "645 scored tokens"]
    assert all(each in lines[-1] for each in [*facts, result.data["sha256"][:12]])
    unknown = made_up([1.0, 2.0], [0.75, 1.75])
    assert "short-context cost is unknown, and far repeats cannot be identified: the model" in unknown.to_markdown()


def test_the_windows_of_an_interrupted_run_keep_their_size_and_sources_count_scored_tokens():
    marks = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 1, 1], [0, 1, 0, 1, 0]], bool)
    given = zip(from_ids([[1, 2, 3, 4, 5]] * 3), marks, ["a", "a", "b"])
    texts = [dataclasses.replace(each, scored=mark, source=source) for each, mark, source in given]
    result = made_up([1.0])
    result.documents, result.windows = texts, [2, 1]
    result.passes[:] = [Pass("as-is", "0", (4,), [np.ones(3, np.float32)] * 3, 1)]  # 5 was not finished
    assert result.rows[0].tokens == 2 + 1 + 2
    assert [part.data["tokens"] for part in result.by_source.values()] == [3, 2]
    stored = dataclasses.replace(result, documents=[], identities=result.identified)
    assert stored.identities[0].size == 5 and sum(result.totals("as-is", 4).counts) == 5
    assert stored.totals("as-is", 4) == result.totals("as-is", 4)


def test_bounds_stay_within_what_is_possible_and_changes_are_free():
    result = made_up([0.1, 3.0] * 3, [0.05, 4.0] * 3)
    kl, same = ([np.full(2, value, np.float32) for value in values] * 3 for values in ([0.0, 1.0], [1.0, 0.0]))
    result.divergences = [Divergence("other", "as-is", 3, kl, same)]
    (pair,) = result.paired
    assert pair.low < 0 < pair.delta_nll and pair.kl_low == 0 and (pair.top1_low, pair.top1_high) == (0, 1)
    assert pair.kl_high > 1 and [row.ppl_low for row in result.rows] == [1, 1]
    assert [row.tail_low for row in result.rows] == [0, 0]


def test_loss_by_position_averages_to_the_whole(result):
    for asked in (result.by_position, lambda name: result.losses(name, result.lengths[0])):
        with pytest.raises(DataError, match="no schedule 'as_is' was measured; did you mean 'as-is'"):
            asked("as_is")
    bins = result.by_position("as-is")
    assert bins[0].start == 1 and bins[-1].stop == 130
    whole = sum(each.nll * (each.stop - each.start) for each in bins) / 129
    assert whole == pytest.approx(result.rows[2].nll, abs=1e-9)
    third = bins[3]
    expected = np.mean([nll[third.start - 1 : third.stop - 1] for nll in result.passes[0].nll])
    assert third.nll == pytest.approx(float(expected), rel=1e-6)


def test_save_writes_every_file_and_the_figures_come_back(result, tmp_path, pictures):
    pytest.importorskip("matplotlib")
    out = result.save(tmp_path / "new" / "out")
    drawn = ("ppl_vs_length.png", "loss_by_position.png")
    names = {"results.json", "results.csv", "losses.safetensors", *drawn, "REPORT.md"}
    assert {path.name for path in out.iterdir()} == names
    saved = json.loads((out / "results.json").read_text())
    beside = {name: [hashlib.sha256((out / name).read_bytes()).hexdigest()] for name in names - {"results.json"}}
    assert saved.pop("files") == beside and saved.pop("sha256")
    assert saved.pop("report")[0]["header"] == ["perplexity", "16", "64", "130"]
    assert saved == json.loads(json.dumps(result.to_dict()))
    report = (out / "REPORT.md").read_text()
    model, versions = result.model, ", ".join(f"{name} {version}" for name, version in result.versions.items())
    assert result.to_markdown() in report and f"{model['dtype']}, {model['attention']} on {model['device']})" in report
    assert f"Written on {date.today()} by {versions}." in report
    for name in drawn:
        assert (out / name).stat().st_size > 10_000 and (out / name).read_bytes().startswith(b"\x89PNG")


def test_what_a_dtype_rounds_is_what_the_page_says(repository):
    page = " ".join((repository / "docs" / "measuring.md").read_text(encoding="utf-8").split())
    figures = re.findall(r"\d+\.\d+%?", "".join(saving._ROUNDING.values()))
    assert len(figures) == 6 and all(f" {each}" in page for each in figures)


def test_without_matplotlib_everything_but_the_plots_is_written(result, tmp_path, monkeypatch, capsys, pictures):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = result.save(tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {"results.json", "results.csv", "losses.safetensors", "REPORT.md"}
    assert "no plots written; plots need matplotlib" in capsys.readouterr().err
    assert ".png" not in (out / "REPORT.md").read_text()


@pytest.mark.parametrize("lengths", [[64], [16, 17], [16, 128], [16, 32, 64, 100]])
def test_the_axes_of_a_plot_have_four_ticks_or_more_among_them_the_lengths(result, lengths):
    pytest.importorskip("matplotlib")
    short = perplexity(llama(), documents(3, 140), lengths, ["linear:factor=4"], truncation=False)
    (axes,) = short.plot().axes
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        ticks = [text for text in axis.get_ticklabels() if low <= text.get_position()[axis is axes.yaxis] <= high]
        assert 4 <= len(ticks) <= 12 and all(re.fullmatch(r"[\d,.]+k?|\de[+]\d+", text.get_text()) for text in ticks)
    assert set(map(str, lengths)) <= {text.get_text() for text in axes.get_xticklabels()}


def test_plots_show_every_schedule_and_mark_the_trained_length(result):
    pytest.importorskip("matplotlib")
    (axes,), (by_position,) = result.plot().axes, result.plot_by_position().axes
    assert "trained at 64" in [text.get_text() for text in axes.texts]
    # Every point of the one is that of its length's own pass; the other is of the longest pass alone.
    labels = [each.get_legend_handles_labels()[1] for each in (axes, by_position)]
    assert labels == [["as-is", "dynamic:factor=4", "truncation"], ["as-is", "dynamic:factor=4, table for 130"]]
    curve, _, (bars,) = axes.containers[1].lines
    rows = [row for row in result.rows if row.schedule == "dynamic:factor=4"]
    assert curve.get_ydata().tolist() == [row.ppl for row in rows]
    drawn = [segment[:, 1].tolist() for segment in bars.get_segments()]
    assert drawn == [pytest.approx([row.ppl_low, row.ppl_high]) for row in rows]


MODELS = ["config.json", "adapter_config.json", "model-00001-of-00002.safetensors", "llama-q8.gguf"]


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_that_holds_a_model_is_refused(result, tmp_path, name):
    model = write_files(tmp_path / "model", {name: "{}"})
    (model / "resume").mkdir()  # somebody's, and empty
    with untouched(model, re.escape(f"it holds a model ({name}) and no run; choose another folder")):
        result.save(model)


def test_a_model_may_lie_beside_a_run(result, tmp_path):
    models = dict.fromkeys(MODELS, "{}")
    result.save(tmp_path / "saved")
    for run in ("saved", "stopped"):
        folder = write_files(tmp_path / run, models | ({"resume/lock": ""} if run == "stopped" else {}))
        assert writable_folder(folder) == folder
        result.save(folder)
        assert all((folder / name).read_text() == "{}" for name in MODELS)


HOSTILE = "m|o`del\n\n# Mine\n<script>alert(1)</script> ![x](http://x/y) \\` \u202e"


def test_names_cannot_break_out_of_the_report(tmp_path):
    """Nothing that a name holds is code, a tag, a link, a cell, or a line of its own."""
    result = made_up([1.0, 2.0], [2.0, 3.0])
    result.model["path"] = result.data["source"] = HOSTILE
    for run in result.passes:
        object.__setattr__(run, "schedule", f"{run.schedule}{HOSTILE}")
    result.baseline += HOSTILE
    report = (result.save(tmp_path / "out") / "REPORT.md").read_text()
    assert not re.search(r"(?<!\\)<script|(?<![\\])\]\(http|^# Mine", report, re.MULTILINE)
    assert "\u202e" not in report and "\\u202e" in report
    tables = [line for line in report.splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in tables}
    assert len(tables) == 10 and cells <= {3, 4, 5, 6, 8}
    assert all(not re.search(r"(?<!\\)(?:\\\\)*`", line) for line in tables)


PASSKEYS = {"tokenizer": byte_tokenizer(), "depths": [0.5], "trials": 2}
RUNS = {
    "perplexity": lambda: perplexity(llama(), documents(3, 130), [64, 130], ["linear:factor=4"]),
    "retrieval": lambda: retrieval(llama(vocab_size=257), [256, 512], ["linear:factor=4"], **PASSKEYS),
    "recommendation": lambda: recommend(llama(), documents(8, 132), 128, batch_tokens=256),
    "search": lambda: search(llama(), documents(12, 300), 128, budget_tokens=128 * 24),
    "keys": lambda: KeySpans({"a": [(0, 2), (5, 9)], "b": []}, {"key_model": {"path": "x/m\u2028"}}),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_result_is_a_data_frame_and_several_share_a_figure(kind, few_candidates, monkeypatch):
    pytest.importorskip("pandas")
    result, axes = RUNS[kind](), pytest.importorskip("matplotlib.figure").Figure().subplots()
    frame = result.to_pandas()
    assert [*frame.columns[:2]] == ["model", "data"] and frame.model.nunique() == 1
    assert result.plot(axes) is result.plot(axes) is axes.figure
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(labels) % 2 == 0 and labels[: len(labels) // 2] == labels[len(labels) // 2 :]
    x = {int(each) for line in axes.lines for each in line.get_xdata()}
    if kind == "keys":
        assert frame.to_dict("list")["end"] == [2, 9] and result.summary() in result.to_markdown()
        assert result.summary().endswith(": 2 spans of key tokens, 6 bytes, in 2 texts.") and x == {0, 5}
        assert [*axes.lines[0].get_ydata()] == [1, 2]
    else:
        assert frame.iloc[:, 2:].to_csv(index=False).count("\n") == result.to_csv().count("\n")
        assert axes.get_ylabel() == ("score" if kind == "retrieval" else "perplexity")
        assert x == ({256, 512} if kind == "retrieval" else {64, 130 if kind == "perplexity" else 128})
    if kind not in ("keys", "retrieval"):
        assert frame.schedule.tolist()[-1] == TRUNCATION
    for library, draw in {"pandas": result.to_pandas, "matplotlib": result.plot}.items():
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(RopescaleError, match=rf"need {library}, which .*; pip install ('ropescale.plot.'|pandas)"):
            draw()
