"""The windows of texts: how many, where they begin, and what is read for them."""

import hashlib
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from tiny import byte_tokenizer, from_ids

from ropescale.errors import DataError
from ropescale.evals.data.documents import Text, TextEncoder
from ropescale.evals.data.sources import texts_of
from ropescale.evals.data.windows import Cutter, Limits
from ropescale.evals.metrics.key_tokens import KeySpans
from ropescale.evals.progress import Notes
from ropescale.evals.retrieving.prompt_set import RetrievalOptions
from ropescale.evals.running.corpus import Corpus, PerplexityOptions
from ropescale.evals.searching.options import SearchOptions

LINES = "".join(f"{'x' * (number % 17)} line {number}\n" for number in range(2500))


FILE = Text("a.txt", LINES)


def cut(texts, size, windows=None, total=None, most=None):
    return Cutter(Limits(size, size, windows, total), TextEncoder(byte_tokenizer())).cuts(texts, most)


def ids_of(cuts):
    return [[bytes(window.ids).decode() for window in each.windows] for each in cuts]


@pytest.fixture(autouse=True)
def bytes_as_ids(monkeypatch):
    """Ids that are the bytes themselves, so that a window can be read."""
    tokenizer = byte_tokenizer()
    table = {tokenizer(chr(code), add_special_tokens=False).input_ids[0]: code for code in range(128)}
    real = TextEncoder.whole

    def whole(self, text):
        found = real(self, text)
        return replace(found, ids=np.array([table[each] for each in found.ids], np.int64))

    monkeypatch.setattr(TextEncoder, "whole", whole)


def test_a_text_that_fits_its_share_is_cut_from_the_beginning_and_the_rest_is_left():
    for text, size, limits in ((FILE, 1000, {}), (Text("a", LINES[:1050]), 100, {"total": 10})):
        whole = text.text
        (found,) = ids_of(cut([text], size, **limits))
        assert "".join(found) == whole[: len(found) * size] and len(whole) - len(found) * size < size


def test_windows_of_a_longer_text_begin_at_evenly_spaced_lines():
    (found,) = cut([FILE], 1000, total=10)
    starts = [window.offset for window in found.windows]
    at = [len(LINES) * number // 10 for number in range(10)]
    assert starts == [LINES.rindex("\n", 0, a) + 1 if LINES[a - 1 : a] == "\n" else LINES.find("\n", a) + 1 if a else 0
                      for a in at]  # fmt: skip
    assert ids_of([found]) == [[LINES[start : start + 1000] for start in starts]]
    assert (found.measured, found.whole) == (10_000, len(LINES))


def test_a_budget_is_shared_out_and_what_short_texts_leave_goes_to_the_others():
    texts = [Text(str(n), LINES[n : n + size]) for n, size in enumerate((150, 5000, 350, 9000))]
    assert [len(each.windows) for each in cut(texts, 100, total=14)] == [1, 5, 3, 5]
    assert [len(each.windows) for each in cut(texts, 100, total=2)] == [1, 1, 1, 1]
    assert [len(each.windows) for each in cut(texts, 100, windows=4)] == [1, 4, 3, 4]


@pytest.mark.parametrize("limits", [{"windows": 1}, {"windows": 3}, {"total": 7}, {}])
def test_windows_know_the_hash_of_their_text_and_their_places_in_it(limits):
    whole = hashlib.sha256(LINES.encode()).hexdigest()
    (found,) = cut([FILE], 100, **limits)
    assert {each.sha256 for each in found.windows} == {whole}
    for each in found.windows:
        assert bytes(each.ids[:100]).decode() == LINES[each.offset : each.offset + 100]
        assert KeySpans({whole: [(each.offset, each.offset + 9)]}).marks(each).sum() == 9


def test_ids_are_cut_like_texts():
    (found,) = Cutter(Limits(10, 10, 3), None).cuts(from_ids([range(95)]))
    assert [window.ids[0] for window in found.windows] == [0, 31, 63]
    assert (found.measured, found.whole, found.in_bytes) == (30, 95, False)


WRONG = [
    (PerplexityOptions, {"windows": 0}, "windows 0 is neither 'all' nor"),
    (PerplexityOptions, {"windows": True}, "windows True is neither 'all' nor"),
    (PerplexityOptions, {"windows": "all", "stride": 8}, "windows is given, but a stride measures whole.*drop one"),
    (PerplexityOptions, {"budget_tokens": 0}, "budget_tokens must be 1 or more, not 0"),
    (PerplexityOptions, {"max_docs": 0}, "max_docs must be 1 or more"),
    (SearchOptions, {"max_docs": 0}, "max_docs must be 1 or more"),
    (RetrievalOptions, {"trials": 0}, "trials must be 1 or more"),
]


@pytest.mark.parametrize(("kind", "options", "message"), WRONG)
def test_options_that_cannot_be_are_refused_by_every_run(kind, options, message):
    with pytest.raises(DataError, match=message):
        kind(**options)


def test_a_corpus_says_how_much_of_the_text_it_holds():
    corpus = Corpus(texts_of([LINES])[0], [101], byte_tokenizer(), "auto", PerplexityOptions(budget_tokens=1010))
    assert (len(corpus.documents), corpus.windows, corpus.scored) == (10, [10], 1000)
    assert corpus.share == {"measured": 1000, "whole": len(LINES), "unit": "bytes", "share": 1000 / len(LINES)}


@pytest.mark.parametrize(("documents", "said"), [(3, "3 documents takes 303 tokens per schedule, more"), (2, "")])
def test_documents_that_take_more_than_the_budget_are_said(documents, said, capsys):
    options = PerplexityOptions(budget_tokens=202, notes=Notes(True))
    Corpus(texts_of([f"{number}{LINES}" for number in range(documents)])[0], [101], byte_tokenizer(), "auto", options)
    err = capsys.readouterr().err
    assert said in " ".join(err.split()) if said else not err


@pytest.mark.parametrize("limits", [{"windows": 30}, {"total": 30}, {}])
def test_without_the_places_of_tokens_windows_do_not_overlap(limits):
    encoder = TextEncoder(byte_tokenizer())
    encoder.fast = False
    (found,) = Cutter(Limits(1000, 1000, **limits), encoder).cuts([FILE])
    count = min(30, len(LINES) // 1000) if limits else len(LINES) // 1000
    starts = [int(number * (len(LINES) / count if limits else 1000)) for number in range(count)]
    assert ids_of([found]) == [[LINES[start : start + 1000] for start in starts]]
    assert (found.measured, found.whole, found.in_bytes) == (count * 1000, len(LINES), False)


def test_a_text_that_was_there_already_is_left_out():
    cutter = Cutter(Limits(100, 100, windows=1), TextEncoder(byte_tokenizer()))
    texts = [Text(name, LINES[:5000] + end) for name, end in (("b", "0"), ("c", "1"), ("d", "0"))]
    assert [each.windows[0].name for each in cutter.cuts(texts)] == ["b", "c"]
    assert cutter.skipped["duplicates"] == 1


def vast(folder):
    """Writes 30 kB of text, and 20 GB of JSON lines that take no room on the disk."""
    small, rows = (folder / name for name in ("small.txt", "rows.jsonl"))
    small.write_text(LINES[:30_000])
    rows.write_text(json.dumps({"text": LINES}) + "\n")
    os.truncate(rows, 20 * 2**30)
    return small, rows


COMMAND = """
import resource, sys, time
from ropescale.cli.main import main
from ropescale.evals.scoring.scorer import Scorer

begun, score = [], Scorer.score
def scored(*given, **more):
    begun.append(time.process_time())
    return score(*given, **more)
Scorer.score = scored
words = ["--lengths", "128", "--budget-tokens", "8192", "--max-docs", "1", "--no-short-context", "--no-truncation"]
code = main(["eval", sys.argv[1], "--data", sys.argv[2], "-o", sys.argv[3], *words])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, begun[0])
"""


@pytest.mark.slow
def test_the_command_reads_a_vast_text_in_no_more_memory_and_begins_at_once(python, checkpoint, tmp_path):
    """20 GB of JSON lines: within 120 MB and three seconds of CPU time of 30 kB."""
    taken = []
    for path in vast(tmp_path):
        done = python("-c", COMMAND, checkpoint, str(path), str(tmp_path / f"{path.stem}-out"))
        code, megabytes, begun = done.stdout.splitlines()[-1].split()
        assert code == "0" and "64 pieces" in done.stdout, done.stderr
        taken.append((int(megabytes), float(begun)))
    (least, first), *others = taken
    assert all(megabytes < least + 120 and begun < first + 3 for megabytes, begun in others), taken
