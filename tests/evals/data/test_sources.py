"""Every source of text, and every way it can be wrong."""

import gzip
import io
import json
import sys
import time
import types
import warnings

import datasets
import huggingface_hub
import pandas
import pyarrow
import pytest
from configurations import write_files
from huggingface_hub import constants
from tiny import byte_tokenizer, llama
from tokenizers import Tokenizer, models
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from ropescale.errors import DataError
from ropescale.evals import perplexity
from ropescale.evals.data import rows
from ropescale.evals.data.documents import TextEncoder, bos_id, special_tokens, tokenize
from ropescale.evals.data.named_datasets import DATASETS
from ropescale.evals.data.prompts import PromptFields, PromptRow
from ropescale.evals.data.sources import ReadOptions, TextSource, read_prompts, read_texts, texts_of
from ropescale.evals.running.corpus import Corpus, PerplexityOptions


def contents(texts):
    return [text.text for text in texts]


FOLDER = {"b.txt": "second", "a.txt": "first", "c/d.txt": "third", ".hidden": b"\0"}


FILES = [
    ({"a.txt": "one\r\n\n two é\r \n".encode()}, "a.txt", {}, ["one\n\n two é\n \n"]),
    ({"a.txt": b"\xef\xbb\xbfhello"}, "a.txt", {}, ["hello"]),  # a byte-order mark is not text
    (FOLDER, "", {}, ["first", "second", "third"]),  # in order of path
    (FOLDER, "", {"concat": True}, ["first\n\nsecond\n\nthird"]),
    ({"a.jsonl": '{"text": "one", "id": "x"}\n\n{"text": "two"}\n'}, "a.jsonl", {}, ["one", "two"]),
    ({"a.jsonl": b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}'}, "a.jsonl", {}, ["one", "two"]),
    ({"a.json": '{\n "n": [1, 2],\n "text": "one"\n}'}, "a.json", {}, ["one"]),  # an object of several lines
    ({"a.json": '{\n "text": "one"\n}', "b.json": '{"name": "x"}'}, "", {}, ["one", '{"name": "x"}']),
    ({"a.jsonl.gz": '{"text": "one"}\n', "b.txt.zst": "two"}, "a.jsonl.gz", {}, ["one"]),  # by its bytes
    ({"a.jsonl": gzip.compress(b'{"text": "one"}\n')}, "a.jsonl", {}, ["one"]),
    ({"a.txt.gz": gzip.compress("one é\r\n".encode())}, "", {}, ["one é\n"]),  # in a folder as by its name
]


@pytest.mark.parametrize(("files", "name", "options", "expected"), FILES)
def test_files_and_folders_are_documents(tmp_path, files, name, options, expected):
    assert contents(read_texts(write_files(tmp_path, files) / name, **options)) == expected


ASKED = [{"role": "user", "content": "Say hi.\nTo Ann."}, {"role": "assistant", "content": "Hi, Ann."}]
SYSTEM = {"role": "system", "content": "Be brief."}
TURNS = [{"from": "human", "value": "Say hi.\nTo Ann."}, {"from": "gpt", "value": "Hi, Ann."}]
NAMED = [{**turn, "from": "Ann"} for turn in ASKED]
WHY = "as the tokenizer has no chat template (--chat-template names one)"
LINES = f"chats are written as lines that begin with User: and Assistant:, {WHY}"
HEADINGS = f"chats are written below ### Instruction: and ### Response:, {WHY}"
TRAINING = [
    ([{"messages": ASKED}], [ASKED], ["messages, read as chats", LINES]),
    ([{"messages": [TURNS[0], {**TURNS[1], "from": "ChatGPT"}]}], [ASKED], ["messages, read as chats", LINES]),
    ([{"messages": NAMED}], [NAMED], ["messages, read as chats", LINES]),
    ([{"messages": "x", "instruction": ASKED[0]["content"], "output": "Hi, Ann."}], [ASKED], ["Alpaca", HEADINGS]),
    ([{"id": 1, "conversations": TURNS, "system": "Be brief."}], [[SYSTEM, *ASKED]], ["ShareGPT", LINES]),
    ([{"conversations": ASKED}], [ASKED], ["ShareGPT conversations, read as chats", LINES]),
    ([{"instruction": "Say hi.", "input": "To Ann.", "output": "Hi, Ann."}], [ASKED], ["Alpaca instr", HEADINGS]),
    ([{"instruction": "Again.", "input": "", "output": "Hi.", "history": [["Say hi.\nTo Ann.", "Hi, Ann."]]}],
     [[*ASKED, {"role": "user", "content": "Again."}, {"role": "assistant", "content": "Hi."}]], [HEADINGS]),
    ([{"prompt": ASKED[:1], "completion": ASKED[1:]}], [ASKED], ["prompts followed by completions", LINES]),
    ([{"prompt": "one ", "completion": "two"}], ["one two"], ["prompts followed by completions"]),
    ([{"text": "one"}, {"text": "two"}], ["one", "two"], []),
]  # fmt: skip


def written_by_json(rows, path):
    (path / "rows.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (path / "rows.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    for number, row in enumerate(rows):
        write_files(path, {f"folder/{number}.json": json.dumps(row, indent=number or None)})


def written_by_datasets(rows, path):
    made = datasets.Dataset.from_list(rows)
    made.to_json(path / "lines.jsonl")
    made.to_json(path / "lines.json.gz", compression="gzip")
    made.to_parquet(path / "lines.parquet")
    made.save_to_disk(path / "saved")


def written_by_pandas(rows, path):
    frame = pandas.DataFrame(rows)
    frame.to_json(path / "frame.json", orient="records")
    frame.to_parquet(path / "frame.parquet")
    frame.to_json(path / "frame.jsonl.gz", orient="records", lines=True)
    lines = frame.to_json(orient="records", lines=True).encode()
    pyarrow.output_stream(str(path / "frame.jsonl.zst"), compression="zstd").write(lines)


@pytest.mark.parametrize("number", range(len(TRAINING)))
def test_training_data_is_read_by_its_fields_whoever_wrote_it_and_measured(tmp_path, ran, checkpoint, number):
    rows, expected, said = TRAINING[number]
    for write in (written_by_json, written_by_datasets, written_by_pandas):
        write(2 * rows, tmp_path)
    written = sorted(tmp_path.iterdir())
    for file in written:
        read = [each.text if hasattr(each, "text") else list(each.messages) for each in read_texts(file)]
        assert read == 2 * expected, file.name
    printed = ran("eval", checkpoint, "--lengths", "4", "--data", written[number])
    assert "| as-is" in printed.out and [printed.err.count(line) for line in said] == [1] * len(said)


def test_a_field_that_was_taken_for_its_strings_is_said_in_one_line(tmp_path, ran, checkpoint):
    (tmp_path / "r.json").write_text('[{"prompt": "one", "n": 1, "meta": {"by": "a"}}]', encoding="utf-8")
    printed = ran("eval", checkpoint, "--lengths", "4", "--data", tmp_path / "r.json")
    assert printed.err.count("r.json: texts, read from the field 'prompt', the only one of strings") == 1


@pytest.mark.parametrize("row", [{"text": {"a": 1}}, {"messages": []}, {"prompt": "x", "completion": 4}])
def test_a_file_of_other_contents_with_a_documents_field_is_text(tmp_path, row):
    write_files(tmp_path, {"a.txt": "first", "b.json": json.dumps(row)})
    assert contents(read_texts(tmp_path)) == ["first", json.dumps(row)]


@pytest.mark.parametrize("row", [{"text": "a" * 2**27}, {"input_ids": [0] * 2**23}])
def test_a_small_parquet_file_does_not_expand_to_gigabytes(tmp_path, row):
    path = tmp_path / "a.parquet"
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(datasets.Dataset.from_list([row]).data.table, path, compression="zstd")
    assert path.stat().st_size < 2**16
    with pytest.raises(DataError, match=r"a.parquet has 0.* GB in one row group, over 100 times the file"):
        read_texts(path)
    parquet.write_table(datasets.Dataset.from_dict({"text": [None] * 200_000}).data.table, path)
    with pytest.raises(DataError, match=r"a.parquet has 200,000 rows, too many for its size; write it as .jsonl"):
        read_texts(path)


def test_a_saved_dataset_is_one_document_per_row(tmp_path):
    part = datasets.Dataset.from_dict({"text": ["one", "two"]})
    part.save_to_disk(str(tmp_path / "single"))
    datasets.DatasetDict({"train": part, "test": part.select([1])}).save_to_disk(str(tmp_path / "many"))
    datasets.DatasetDict({"a": part, "b": part}).save_to_disk(str(tmp_path / "unclear"))
    assert contents(read_texts(tmp_path / "many")) == ["two"]
    assert [text.name for text in read_texts(tmp_path / "many")] == [f"{tmp_path / 'many'} test row 0"]
    assert contents(read_texts(tmp_path / "many", split="train")) == ["one", "two"]
    with pytest.raises(DataError, match="choose one: a, b"):
        read_texts(tmp_path / "unclear")
    with pytest.raises(DataError, match="leave it out"):
        read_texts(tmp_path / "single", split="train")
    with pytest.raises(DataError, match="no split 'dev'"):
        read_texts(tmp_path / "many", split="dev")
    listings = {"unclear/dataset_dict.json": ('"b"', '"../single"'), "many/test/state.json": ('"d', '"../../single/d')}
    for listing, (name, elsewhere) in listings.items():
        (tmp_path / listing).write_text((tmp_path / listing).read_text().replace(name, elsewhere))
        with pytest.raises(DataError, match="is not a readable datasets folder: it lists a file outside of it"):
            read_texts(tmp_path / listing.split("/")[0], split="a")


def test_a_dash_reads_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("piped é".encode())))
    assert contents(read_texts("-")) == ["piped é"]
    monkeypatch.setattr("ropescale.evals.data.sources.LARGEST", 5)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"endless")))
    with pytest.raises(DataError, match="standard input is longer than 5 bytes; write it to a file"):
        read_texts("-")


WRONG = [
    ("a.txt", b"", "a.txt is empty; give a file with text in it"),
    ("a.txt", b"ab\0c", "a.txt is not text: it has a zero byte at 2"),
    ("a.txt", b"ab\xff", "a.txt is not UTF-8 text: byte 2"),
    ("a.jsonl", b"", "no documents in .*; give text"),
    ("a.jsonl", b"[" * 100_000, "a.jsonl line 1 is not readable JSON; write one object per line"),
    ("a.jsonl", b'{"text": "ok"}\n{"text": ', "a.jsonl line 2 is not JSON"),
    ("a.jsonl", b'"text"\n', "a.jsonl line 1 is not a JSON object; write one per line, like"),
    ("a.jsonl", b'{"text": "ok"}\n{"other": "x"}\n', "a.jsonl line 2 has no field 'text'; it has other"),
    ("a.jsonl", b'{"text": 3}\n', "field 'text' holds int, not text"),
    ("a.jsonl", b'{"text": "ok"}\n' * 50 + b'{"text": "caf\xe9"}\n', "a.jsonl line 51 is not UTF-8; convert it"),
    ("a.parquet", b"not parquet", "not a readable parquet file"),
    ("rows.json", b'[{"text": "one"}', "rows.json is not readable JSON: "),
    ("rows.json", b'[{"text": "one"}, 3]', "rows.json row 1 is not an object, a text or a list of messages"),
    ("rows.jsonl", b'{"conversations": [{"from": "narrator", "value": "x"}]}', "message 1 is from 'narrator', whi"),
    ("rows.jsonl", b'{"conversations": [{"from": "human"}, {"value": "x"}]}', "message 2 of .* has no role"),
    ("rows.jsonl", b'{"instruction": "x", "output": "y", "history": ["z"]}', "is not a list of pairs"),
    ("rows.jsonl", b'{"prompt": "x", "completion": ["y"]}', "neither two texts nor two lists of messages"),
    ("rows.jsonl", b'{"instruction": "x", "output": "y"}\n{"instruction": "z"}', "line 2 has no field 'output'"),
    ("rows.csv", b"text\none\n", "is a table; make it JSONL or parquet, or rename it to .txt if it is plain text"),
    ("rows.jsonl.bz2", b"", "is compressed; unpack it first"),
    ("rows.txt.gz", b"\x1f\x8bno gzip", "rows.txt.gz cannot be read"),
    ("rows.jsonl.gz", b"no JSON", "rows.jsonl.gz line 1 is not JSON"),
    ("rows.jsonl.gz", gzip.compress(b" " * 2**22 + b"\n") * 17, "rows.jsonl.gz unpacks to over 100 times its size"),
    ("rows.json", b"{}" + b"\n" * 65_000 + b"x", "rows.json is not readable JSON: Extra data"),  # in no quadratic time
    ("row.json", b'{"name": "x", "version": "2"}', "no field 'text'; choose one: name, version"),
    ("row.json", b'[{"id": "0", "data": ["a", "b"]}]', "no field 'text'; choose one: id, data"),
    ("row.json", json.dumps({"x" * 2**20 + f"{at}": 1 for at in range(9)}).encode(), "choose one: xxx"),
    ("rows.jsonl", b'{"conversations": [{"from": "%s"}]}' % (b"f" * 2**22), "message 1 is from 'fff"),
]


@pytest.mark.parametrize(("name", "raw", "message"), WRONG)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    began = time.process_time()
    with pytest.raises(DataError, match=message) as caught:
        read_texts(tmp_path / name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000 and time.process_time() - began < 10


@pytest.mark.parametrize("source", ["./nowhere", "/no/such/place", "nowhere.txt", "~/no-such-file", "~nobody-x/x", ""])
def test_a_missing_file_is_not_looked_for_on_the_hub(source):
    with pytest.raises(DataError, match="no file or folder at"):
        read_texts(source)


IGNORED = [
    ("a.txt", {"split": "test"}, "split is given, and .*a.txt is a text file, which does not use .*it out"),
    ("a.txt", {"text_field": "body"}, "text_field is given, .*leave it out"),
    ("a.jsonl", {"text_field": "body"}, "line 1 has no field 'body'; it has text, id"),
    ("-", {"split": "test"}, "standard input.*leave it out"),
    ("empty", {}, "no files in .*; give a folder of text files"),
]


@pytest.mark.parametrize(("name", "option", "message"), IGNORED)
def test_an_option_that_would_be_ignored_or_a_field_that_is_missing_is_refused(tmp_path, name, option, message):
    write_files(tmp_path, {"a.txt": "hello", "a.jsonl": '{"text": "hello", "id": "x"}'})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        read_texts(name if name == "-" else tmp_path / name, **option)


# --- what lies in a folder beside its texts --------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@pytest.fixture
def mixed(tmp_path):
    """Two texts among files that are none, one of them large."""
    files = {
        "a.txt": "first", "notes/b.md": "second", "c.png": PNG, "d.txt": "caf\u00e9".encode("latin-1"),
        "e.txt.bz2": b"BZh9", "f.jsonl": b'{"text": "x"}', "g.bin": PNG + b"a" * 2**23,
        "h.pdf": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", "i.dat": b"\x1f\x8b", "i.json": '["one", "two"]',
        "j.csv": "text\none\n",
    }  # fmt: skip
    return write_files(tmp_path / "mixed", files)


GLOBS = {"*.p*": r"no text in .*mixed: 2 files are not text \(c\.png, h\.pdf\); give text files"}
GLOBS |= {"/etc/*": "is not a pattern", "../*": r"no file that fits '\.\./\*'"}


@pytest.mark.parametrize(("glob", "said"), GLOBS.items())
def test_a_glob_chooses_files_and_one_that_finds_no_text_or_leaves_the_folder_is_an_error(mixed, glob, said):
    assert contents(read_texts(mixed)) == ["first", "second"]
    assert contents(read_texts(mixed, glob="*.md")) == contents(read_texts(mixed, glob="notes/*")) == ["second"]
    with pytest.raises(DataError, match=said):
        read_texts(mixed, glob=glob)


def test_a_link_to_nothing_among_the_texts_is_named_and_not_left_out(mixed):
    (mixed / "notes" / "c.md").symlink_to("nothing")
    with pytest.raises(DataError, match=r"notes/c\.md cannot be read: No such file"):
        read_texts(mixed)


def test_a_run_among_the_texts_is_no_text(tmp_path, caplog):
    listed = {"schema": 1, "versions": {}, "rows": [], "files": {"REPORT.md": "0" * 64}}
    files = {
        "a.txt": "first", "results.json": '{"text": "of the user"}', "run/results.json": json.dumps(listed),
        "run/REPORT.md": "of the run", "run/notes.md": "of the user", "run/resume/0.sqlite": "{}",
    }  # fmt: skip
    write_files(tmp_path, files)
    assert contents(read_texts(tmp_path)) == ["first", "of the user"]
    assert "4 files are not text (run/REPORT.md of a run, run/notes.md of a run" in caplog.text


def test_the_command_line_says_what_it_left_out_and_counts_it(mixed, checkpoint, ran, refused):
    words = ["eval", checkpoint, "--lengths", "4", "--json", "--data"]
    out, err = ran(*words, mixed)
    assert json.loads(out)["data"]["skipped"]["no_text"] == 9
    assert len([line for line in err.splitlines() if "9 files are not text (c.png, d.txt" in line]) == 1
    assert "is not UTF-8 text: byte 3 does not decode; convert it" in refused(*words, mixed / "d.txt")


def test_tokenizing_adds_no_special_token_and_says_nothing(capfd):
    """BOS is put in front once, by whoever feeds the ids, also if the tokenizer would add it by itself."""
    tokenizer = byte_tokenizer(limit=64)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (document,) = tokenize(["a" * 500], tokenizer)
    assert len(document.ids) == 500 and 256 not in document.ids
    assert capfd.readouterr() == ("", "")


def test_byte_offsets_count_utf8_bytes():
    # "aé€😀": 1, 2, 3 and 4 bytes. A token inside a character counts the whole character.
    (document,) = tokenize(["aé€😀"], byte_tokenizer())
    assert document.byte_ends.tolist() == [1, 3, 3, 6, 6, 6, 10, 10, 10, 10]
    assert document.sizes.tolist() == [1, 2, 0, 3, 0, 0, 4, 0, 0, 0]


def test_bos_is_the_tokenizers_unless_told_otherwise():
    with_bos, without = byte_tokenizer(), byte_tokenizer(bos=False)
    assert bos_id("auto", with_bos) == with_bos.bos_token_id == 256
    assert [bos_id("auto", without), bos_id("auto", None), bos_id("no", with_bos)] == [None] * 3
    assert bos_id(7, None) == bos_id("7", None) == 7
    with pytest.raises(DataError, match=r"needs a BOS token.*bos=no"):
        bos_id("yes", without)
    for wrong in ("9" * 5000, "maybe", True, False):
        with pytest.raises(DataError, match="bos must be auto, yes, no"):
            bos_id(wrong, with_bos)


@pytest.mark.parametrize("stride", [None, 2])
def test_documents_that_are_left_out_are_counted_and_the_longest_is_named(stride):
    def corpus(ids, length, **options):
        options = PerplexityOptions(stride=stride, windows=None if stride else 1, **options)
        return Corpus(texts_of(ids)[0], [length], None, "no", options)

    ids = [[1] * 5, [], [2] * 3, [3] * 6, [1] * 5, [4] * 7]
    found = corpus(ids, 5, min_tokens=5)
    assert [len(document.ids) for document in found.documents] == [5, 6, 7]
    assert found.skipped == {"too_short": 1, "empty": 1, "duplicates": 1}
    found = corpus(ids, 5, min_tokens=5, max_docs=2)
    assert [len(document.ids) for document in found.documents] == [5, 6]
    assert found.skipped == {"too_short": 1, "empty": 1}
    found = corpus([ids[3], ids[3], [5] * 6], 5, max_docs=2)  # the same again does not count towards max_docs
    assert [document.ids[0] for document in found.documents] == [3, 5] and found.skipped["duplicates"] == 1
    found = corpus([[1, 2, 3, 4, 5, 6, last] for last in range(3)], 5)  # equal up to the fed tokens
    assert (len(found.windows), found.skipped.get("duplicates")) == ((3, None) if stride else (1, 2))
    with pytest.raises(DataError, match=r"2,048 tokens.*document 1, has 1,200: use shorter lengths, longer"):
        corpus([[1] * 5, [1] * 1200], 2048)
    with pytest.raises(DataError, match=r"no document has the 9 tokens needed.*use a smaller min_tokens, longer"):
        corpus([[1] * 5], 3, min_tokens=9)
    with pytest.raises(DataError, match="every document is empty"):
        corpus([[], []], 10)


# --- the Hub, without a network ---


@pytest.fixture
def hub(monkeypatch):
    """A Hub that answers and has ``org/books``, with two splits; what it was asked is in the list."""
    rows = {"text": [f"row {i} " + "x" * 10 * i for i in range(6)], "id": list("abcdef")}
    parts = {"train": datasets.Dataset.from_dict(rows), "test": datasets.Dataset.from_dict(rows).select([1])}
    asked = []

    def load_dataset(name, config=None, streaming=False, revision=None):
        asked.append((name, config, streaming, datasets.config.HF_HUB_OFFLINE))
        if name != "org/books":
            raise FileNotFoundError(f"Dataset {name!r} doesn't exist on the Hub\nand more")
        streams = {key: part.to_iterable_dataset() for key, part in parts.items()}
        return datasets.IterableDatasetDict(streams) if streaming else datasets.DatasetDict(parts)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    return asked


def test_a_name_on_the_hub_may_have_a_configuration_after_a_colon(hub):
    assert contents(read_texts("org/books:en", split="test")) == ["row 1 " + "x" * 10]
    assert contents(read_texts("org/books", split="train"))[0] == "row 0 "
    assert hub == [("org/books", "en", False, False), ("org/books", None, False, False)]


def test_a_name_that_the_hub_does_not_have_is_one_sentence(hub):
    with pytest.raises(DataError, match=r"'org/boks'.* Hub: Dataset 'org/boks' doesn't exist on the Hub$"):
        read_texts("org/boks")


def test_a_hub_that_is_silent_is_asked_once_and_the_cache_is_read(hub, monkeypatch, tmp_path):
    """The client by itself retries for 24 s (datasets 5.2)."""
    (tmp_path / "org___books").mkdir()
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    infos = []

    def dataset_info(self, name, revision=None, timeout=None):
        infos.append((name, timeout))
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    assert len(read_texts("org/books", split="train")) == 6
    with pytest.raises(DataError, match=r"cannot be reached \(no route\), and the dataset is not in the cache"):
        read_texts("org/other")
    assert infos == [("org/books", 10.0), ("org/other", 10.0)]
    assert [offline for *_, offline in hub] == [True] and datasets.config.HF_HUB_OFFLINE is False


def test_a_stream_is_read_until_enough_documents_are_long_enough(hub):
    seen = []
    source = TextSource(["org/books"], ReadOptions(split="train", streaming=True))
    texts = (seen.append(text.name) or text for text in source.texts()["org/books"])
    found = Corpus({"": texts}, [26], byte_tokenizer(), "no", PerplexityOptions(max_docs=2, windows=1))
    assert [len(document.ids) for document in found.documents] == [26, 36]
    assert seen == [f"org/books train row {i}" for i in range(4)] and hub[0][2] is True
    assert found.skipped == {"too_short": 2, "empty": 0}


# --- datasets by a short name, from a Hub that is not there ---


@pytest.fixture
def shelf(monkeypatch):
    """A Hub with every dataset of the table: 150 rows in their split and field; what it was asked is in the list."""
    asked = []

    def dataset_info(self, name, revision=None, timeout=None):
        return types.SimpleNamespace(sha=f"{len(name):040x}" if revision is None else f"{len(revision):040x}")

    def load_dataset(name, config=None, streaming=False, revision=None):
        asked.append((name, config, streaming, revision))
        (named,) = [n for n in DATASETS.values() if n.source == (f"{name}:{config}" if config else name)]
        rows = {"other": ["no"] * 150, named.field: [f"text {i}" for i in range(150)]}
        return datasets.IterableDatasetDict({named.split: datasets.Dataset.from_dict(rows).to_iterable_dataset()})

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize("name", DATASETS)
def test_a_short_name_is_its_dataset_at_one_commit_up_to_its_cap(shelf, name):
    source, named = TextSource([name]), DATASETS[name]
    assert contents(source.texts()[name]) == [f"text {i}" for i in range(100)]
    hub_id, _, config = named.source.partition(":")
    commit = f"{len(named.revision or hub_id):040x}"
    assert shelf == [(hub_id, config or None, True, commit)]
    assert source.name == f"{name} ({named.source}@{commit}, {named.split}, {named.field}, at most 100 documents)"


def test_prompts_of_a_short_name_are_all_read_because_they_are_sorted_by_task(shelf):
    rows, name = read_prompts("ruler-16k", PromptFields("context", "other"))
    found = list(rows)
    assert len(found) == 150 and (found[149].prompt, found[149].answers) == ("text 149", ("no",))
    assert name == f"ruler-16k (simonjegou/ruler:16384@{16:040x}, test)"


def test_a_path_goes_before_a_short_name_and_options_go_before_the_table(shelf, tmp_path, monkeypatch):
    source = TextSource(["govreport"], ReadOptions(text_field="other", streaming=True))
    assert contents(source.texts()["govreport"])[0] == "no" and ", test, other, " in source.name
    with pytest.raises(DataError, match=r"'dev'.*choose one: test"):
        read_texts("govreport", split="dev")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pg19").write_text("my own")
    here = TextSource(["pg19"])
    assert contents(here.texts()["pg19"]) == ["my own"] and here.name == "pg19" and len(shelf) == 2


def test_a_short_name_without_a_hub_is_one_sentence(monkeypatch):
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: 1 / 0)
    with pytest.raises(DataError, match=r"^'pg19' is emozilla/pg19-test on the Hub, which .*give a file or folder$"):
        read_texts("pg19")


def test_the_commit_of_a_short_name_is_in_the_result(shelf, checkpoint, ran):
    words = ["eval", checkpoint, "--data", "pg19", "--max-docs", "3", "--lengths", "6", "--json"]
    data = json.loads(ran(*words)[0])["data"]
    assert data["source"].startswith(f"pg19 (emozilla/pg19-test@{18:040x}, test, text")
    listed = ran("datasets")[0].splitlines()[2:]
    assert [line.split()[1] for line in listed] == list(DATASETS)
    assert " emozilla/pg19-test " in listed[0] and listed[0].endswith(" 100 |")


# --- tokenizers ---


def test_an_unknown_word_is_no_special_token_of_the_text():
    made = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    found = tokenize(["what"], tokenizer)
    assert found[0].ids == [0] and special_tokens(found, tokenizer) == 0


def test_a_stream_gives_the_rows_of_the_same_documents_in_a_file(hub, checkpoint, tmp_path, ran):
    """And the report counts what was read and was too short."""
    words = ["eval", checkpoint, "--lengths", "20", "--json", "--data"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": f"row {i} " + "x" * 10 * i}) for i in (2, 3)))
    file = json.loads(ran(*words, tmp_path / "a.jsonl")[0])
    stream = json.loads(ran(*words, "org/books", "--split", "train", "--streaming", "--max-docs", "2")[0])
    assert stream["rows"] == file["rows"] and stream["rows"][0]["documents"] == 2
    assert stream["data"]["skipped"] == {"too_short": 2, "empty": 0}


def test_a_stream_without_an_end_or_joined_is_refused(refused, checkpoint):
    words = ["eval", checkpoint, "--lengths", "20", "--data", "org/books", "--streaming"]
    assert "a stream may be endless; limit its documents with --max-docs (--streaming)" in refused(*words)
    said = refused(*words, "--max-docs", "2", "--concat")
    assert "one document at a time, and concat joins all of them; leave concat out" in said


def test_the_results_count_special_tokens_of_the_text(capsys):
    model, texts = llama(vocab_size=258), ["abc<s>" * 5, "plain text"]
    found = perplexity(model, texts, [8], tokenizer=byte_tokenizer(), windows=1, progress=True).to_dict()
    assert found["data"]["special_tokens"] == 5
    assert "5 tokens of the text are special tokens" in capsys.readouterr().err
    assert "special_tokens" not in perplexity(model, texts[1:], [8], tokenizer=byte_tokenizer()).to_dict()["data"]


def test_a_line_is_bounded_before_it_is_read_and_a_prompt_costs_its_length(refused, checkpoint, tmp_path, monkeypatch):
    path, long = tmp_path / "p.jsonl", f"{'ab ' * 2**21}What are they? 1, 2 What are they?"
    path.write_text(json.dumps({"input": long, "outputs": ["1", "2"]}))
    words = ("retrieval", checkpoint, "--prompts", path, "--lengths", "64")
    whole = TextEncoder.whole
    monkeypatch.setattr(TextEncoder, "whole", lambda self, text: len(text) < 2**20 and whole(self, text))
    assert "no prompt belongs to length 64" in refused(*words)
    assert PromptRow("p", long, ("1", "2")).joined == "1, 2"
    monkeypatch.setattr(rows, "LARGEST", 2**20)
    assert "line 1 is longer than 1,048,576 bytes; write such a text as a .txt file" in refused(*words)
