"""Several sources: a table of each and one over all, from one measurement."""

import csv
import json
import re

import numpy as np
import pytest
from configurations import write_files
from tiny import byte_tokenizer, documents, llama, naive_nll

from ropescale.errors import DataError
from ropescale.evals import Result, perplexity
from ropescale.evals.reporting.runs import load

BOOKS, CODE = documents(3, 40), documents(2, 44, seed=9)


@pytest.fixture(scope="module")
def run():
    """Two sources, under two schedules."""
    return perplexity(llama(), {"books": BOOKS, "code": CODE}, [16, 32], ["yarn:factor=2"])


def figures(result):
    return [(row.schedule, row.length, row.documents, row.tokens, row.nll, row.ppl_low) for row in result.rows]


def test_each_source_has_the_figures_of_a_measurement_of_it_alone_and_all_those_of_both(run):
    assert list(run.by_source) == ["books", "code"]
    for name, alone in (("books", BOOKS), ("code", CODE)):
        found, other = run.by_source[name], perplexity(llama(), alone, [16, 32], ["yarn:factor=2"])
        assert figures(found) == figures(other) and found.paired == other.paired
        assert found.by_position("as-is") == other.by_position("as-is")
    losses = [loss for ids in (*BOOKS, *CODE) for loss in naive_nll(llama(), ids[:32])]
    assert run.rows[1].nll == pytest.approx(np.mean(losses), abs=2e-6) and run.rows[1].documents == 5


def test_verdicts_hold_for_all_the_sources_together():
    # Two schedules are one pair and one cost, over both sources and in each.
    books, code = documents(12, 40), documents(10, 40, seed=9)
    run = perplexity(llama(), {"books": books, "code": code}, [16, 32], ["yarn:factor=2"])
    for result in (run, *run.by_source.values()):
        assert [row.comparisons for row in result.verdicts] == [3]
    alone = perplexity(llama(), {"books": books}, [16, 32], ["yarn:factor=2"])
    assert [row.comparisons for row in alone.verdicts] == [1] and alone.by_source == {}
    assert "sources" not in alone.to_dict() and "source" not in alone.to_csv().split("\n")[0]


def test_every_file_has_each_source_and_loads_again(run, tmp_path):
    loaded = Result.load(run.save(tmp_path / "out"))
    assert loaded.to_markdown() == run.to_markdown() and loaded.to_csv() == run.to_csv()
    assert all(figures(part) == figures(run.by_source[name]) for name, part in loaded.by_source.items())
    stored = json.loads((tmp_path / "out" / "results.json").read_text())["sources"]
    assert stored["code"]["documents"] == 2 and stored["code"]["rows"][0]["nll"] == run.by_source["code"].rows[0].nll
    lines = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    assert [line["source"] for line in lines] == ["all"] * 4 + ["books"] * 4 + ["code"] * 4
    assert float(lines[4]["nll"]) == run.by_source["books"].rows[0].nll
    report = (tmp_path / "out" / "REPORT.md").read_text()
    books = "books (3 documents, 3 windows; their interval needs 5 documents):"  # and not that of all five
    places = [report.index(title) for title in ("All sources (5 documents, 5 windows):", books, "code (2 doc")]
    assert places == sorted(places)


def test_the_page_has_a_table_of_each_source(run, tmp_path):
    pytest.importorskip("matplotlib")
    from ropescale.evals.reporting.page import page

    text = page(load([run.save(tmp_path / "out")]))
    assert all(f"<p>{each} windows; their" in text for each in ("books (3 documents, 3", "code (2 documents, 2"))
    assert run.share and run.share in text
    (shown,) = re.findall(r"<td[^>]*>([\d.,]+)</td>", text.split("<p>code (2")[1])[:1]
    assert shown == f"{run.by_source['code'].rows[0].ppl:#.4g}"


def test_sources_of_all_kinds_are_measured_together():
    tokenizer = byte_tokenizer()
    texts = {"text": ["a text " * 5], "ids": [[256, *range(40)]], "chat": [[{"role": "user", "content": "x" * 40}]]}
    tokenizer.chat_template = "{{ bos_token }}{% for each in messages %}{{ each.content }}{% endfor %}"
    found = perplexity(llama(vocab_size=257), texts, [16], tokenizer=tokenizer)
    assert {name: part.rows[0].documents for name, part in found.by_source.items()} == dict.fromkeys(texts, 1)
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ bos_token }}", "")
    for names in (("text", "chat"), ("chat", "text"), ("ids", "chat")):
        with pytest.raises(DataError, match=r"no BOS in front of chat document 0.*put a BOS"):
            perplexity(llama(vocab_size=257), {name: texts[name] for name in names}, [16], tokenizer=tokenizer)


def test_a_source_of_which_nothing_is_measured_is_named():
    tiny = {"books": BOOKS, "tiny": [[1, 2, 3]]}, "no document of tiny is measured: all are too short"
    for given, message in (tiny, ({}, "no document; give at"), ([], "at least one"), (5, "document 0 is not a list")):
        with pytest.raises(DataError, match=message):
            perplexity(llama(), given, [16])


def test_data_may_be_repeated(checkpoint, tmp_path, ran, refused):
    lines = "\n".join(json.dumps({"body": f"row {n}, and the clocks were striking"}) for n in range(3))
    write_files(tmp_path, {"a.txt": "It was a bright cold day in April. ", "b.jsonl": lines})
    sources = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]
    words = ["eval", checkpoint, "--lengths", "16", *(word for each in sources for word in ("--data", each))]
    found = json.loads(ran(*words, "--text-field", "body", "--json")[0])
    assert {name: part["rows"][0]["documents"] for name, part in found["sources"].items()} == dict(zip(sources, (1, 3)))
    assert (found["data"]["source"], found["rows"][0]["documents"]) == (", ".join(sources), 4)
    assert ran(*words, "--text-field", "body")[0].count("| perplexity") == 1
    out, _ = ran(*words, "--text-field", "body", "--verbose")
    assert out.count("| perplexity") == 3 and f"{sources[1]} (3 documents, 6 windows; their" in out
    assert "leave it out (--split)" in refused(*words, "--split", "test")  # neither has a use for it
    assert f"{sources[0]} is given twice" in refused(*words, "--data", sources[0])
