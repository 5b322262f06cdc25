"""Prompts with their answers from files: RULER's rows and score, and the loss of the answers in place."""

import csv
import json
import math
import re

import numpy as np
import pytest
import torch
import transformers
from crashing import lasting
from fake_engine import serving
from lookup import lookup_llama
from tiny import byte_tokenizer, llama, naive_nll

from ropescale.errors import DataError
from ropescale.evals import retrieval
from ropescale.evals.backends.loaded import AnswerScorer
from ropescale.evals.data.documents import TextEncoder
from ropescale.evals.data.prompts import PromptFields, PromptRow, followed_by, prompt_row
from ropescale.evals.retrieving.prompt_set import RetrievalOptions, make_prompts
from ropescale.evals.retrieving.results import share_found

FILLER = "The ferry was late and nobody on the quay minded much. "


def row(name, code, filler=2, **more):
    """A row as RULER's generators write one: a code in a text, and the answer's beginning apart."""
    text = f"{FILLER * filler}The code of {name} is {code}. {FILLER * filler}"
    prefix = f" The code of {name} is"
    return {"index": 0, "input": f"{text}\nSay it.", "outputs": [code], "answer_prefix": prefix, **more}


def ids_of(text):
    return byte_tokenizer()(text, add_special_tokens=False)["input_ids"]


def answers_in(folder):
    with open(folder / "answers.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")


# --- rows --------------------------------------------------------------------------------------------------------


def test_rows_of_rulers_and_of_its_copies_hold_the_same_prompt():
    ruler = {"input": "A text. What is it?", "answer_prefix": " It is", "outputs": ["x", "y"], "length": 12}
    old = {"input": "A text. What is it? It is", "outputs": ["x", "y"]}
    copy = {"context": "A text.", "question": " What is it?", "answer_prefix": " It is", "answer": ["x", "y"]}
    found = [prompt_row(each, PromptFields(), "row", "vt/validation.jsonl") for each in (ruler, old, copy)]
    for each in found:
        assert (each.prompt, each.answers, each.task) == ("A text. What is it? It is", ("x", "y"), "vt")
    own = prompt_row({"q": "Why?", "a": "So."}, PromptFields("q", "a"), "row", "mine.jsonl")
    assert (own.prompt, own.answers, own.task, own.new_tokens) == ("Why?", ("So.",), "mine", None)
    assert prompt_row(copy | {"task": "qa_1", "max_new_tokens": 32}, PromptFields(), "row", "").new_tokens == 32
    assert prompt_row(old, PromptFields(), "row", "test.jsonl").task == "test"


LACKING = [
    ({"text": "x", "outputs": ["y"]}, PromptFields(), "the prompt field of row is unknown; name it: text, outputs"),
    ({"input": "q", "context": "c", "answers": ["y"]}, PromptFields(), "the prompt field of row is unknown"),
    ({"input": "x"}, PromptFields(), "row has no field 'outputs'; it has input"),
    ({"input": "x", "outputs": ["a", " "]}, PromptFields(), "row: field 'outputs' holds no answer"),
    ({"input": " ", "outputs": "y"}, PromptFields(), "row: the prompt is empty"),
    ({"input": "x \ud800", "outputs": "y"}, PromptFields(), "row has a lone surrogate at character 2"),
    ({"input": 3, "outputs": "y"}, PromptFields(), "field 'input' is missing or not text; it has input, outputs"),
    ({"input": "x", "outputs": "y"}, PromptFields("q"), "field 'q' is missing or not text; it has input, outputs"),
    ({"input": "x", "outputs": "y"}, PromptFields(None, "a"), "row has no field 'a'; it has input, outputs"),
]


@pytest.mark.parametrize(("given", "fields", "sentence"), LACKING)
def test_a_row_without_a_prompt_or_an_answer_is_refused(given, fields, sentence):
    with pytest.raises(DataError) as error:
        prompt_row(given, fields, "row", "x.jsonl")
    assert sentence in str(error.value)


JOINED = [
    ("Two of 5, they are:  AB CD\n\nMore text.\nTwo of 7, they are: ", "p q"),
    ("Words: the top are: 1. a 2. b\nOther words: the top are:", "1. p 2. q"),
    ("One line, they are: A, B\nThe other line, they are:", "p, q"),
    ("Two of 5, they are: AB\nTwo of 7, they are:", None),  # the example has another number
    ("Nothing like it before. They are:", None),
]


@pytest.mark.parametrize(("prompt", "joined"), JOINED)
def test_answers_are_joined_as_the_example_in_the_prompt_joins_its_own(prompt, joined):
    assert PromptRow("x", prompt, ("p", "q")).joined == joined
    assert PromptRow("x", prompt, ("p",)).joined == "p"


@pytest.mark.parametrize("prompt", ["It is", "It is ", "It is\n"])
def test_the_answer_begins_after_the_prompt(prompt):
    text, found, start = followed_by(prompt, "naïve", TextEncoder(byte_tokenizer()))
    assert text.split() == ["It", "is", "naïve"] and start == len(prompt) and len(found) == len(text.encode())


# --- RULER's score -----------------------------------------------------------------------------------------------


SCORES = [
    ("It is 123.", ["123"], 1.0, 1.0),
    ("It is 12 3.", ["123"], 0.0, 0.0),
    ("ALPHA, beta", ["alpha", "Beta", "gamma"], 2 / 3, 1.0),
    ("\x00 alpha\x07beta \x1f", ["alpha\nbeta"], 1.0, 1.0),  # what cannot be printed is a line's end
    ("", ["a", "b"], 0.0, 0.0),
    ("no", ["yes", "yes"], 0.0, 0.0),
]


@pytest.mark.parametrize(("text", "answers", "every", "any_of"), SCORES)
def test_the_score_is_the_share_of_the_answers_found(text, answers, every, any_of):
    assert share_found(text, answers) == pytest.approx(every, abs=1e-15)
    assert share_found(text, answers, any_of=True) == any_of


# --- lengths -----------------------------------------------------------------------------------------------------


def prompts_of(rows, lengths, bos="auto", **options):
    rows = [{"task": "code", **row} for row in rows]
    return make_prompts(byte_tokenizer(), lengths, 5, RetrievalOptions(prompts=rows, bos=bos, **options))


def test_what_is_generated_counts_in_the_length_and_bos_takes_the_place_of_the_last_token():
    given = {"input": "x" * 50, "outputs": "abc"}
    for bos, fits in (("no", 59), ("auto", 60)):  # 50 + 10 - 1, and BOS
        (prompt,) = prompts_of([given], [fits], bos=bos, new_tokens=10, match="any").prompts[fits]
        assert (prompt.generation.new_tokens, prompt.generation.any_of) == (10, True)
        with pytest.raises(DataError, match=rf"no prompt belongs to length {fits - 1}: .* takes at least {fits} pos"):
            prompts_of([given], [fits - 1], bos=bos, new_tokens=10)


def test_each_prompt_is_asked_at_the_smallest_length_that_holds_it_and_the_others_are_counted():
    rows = [{"input": "x" * size, "outputs": "abc", "task": task} for size in (20, 80, 90, 300) for task in "ab"]
    found = prompts_of([*rows[:1], *rows], [64, 128], new_tokens=8, max_prompts=1)
    asked = {length: [(each.task, len(each.generation.ids)) for each in made] for length, made in found.prompts.items()}
    assert asked == {64: [("a", 21), ("b", 21)], 128: [("a", 81), ("b", 81)]}
    assert found.skipped == {"too_long": 2, "over_max_prompts": 2, "duplicates": 1}


GENERATED = [
    ("niah_multikey_2", {}, 128, False), ("vt", {}, 30, False), ("cwe", {}, 120, False), ("fwe", {}, 50, False),
    ("qa_1", {}, 32, True), ("mine", {}, 128, False), ("vt", {"max_new_tokens": 7}, 7, False),
]  # fmt: skip


@pytest.mark.parametrize(("task", "more", "tokens", "any_of"), GENERATED)
def test_as_many_tokens_are_generated_as_ruler_generates_for_the_task(task, more, tokens, any_of):
    (prompt,) = prompts_of([{"input": "x", "outputs": "y", "task": task, **more}], [256]).prompts[256]
    assert (prompt.generation.new_tokens, prompt.generation.any_of) == (tokens, any_of)


# --- Scoring -----------------------------------------------------------------------------------------------------


def naive_greedy(model, ids, count):
    """The oracle: a whole forward pass for every token."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]


ROWS = [
    row("amber", "48213"), row("maple", "77120", filler=1), row("onyx", "90417"),
    {"input": "Here they are: a, b\nNow they are:", "outputs": ["xy", "z"]},
    {"input": "Several answers without an example are", "outputs": ["one", "two", "three"]},
]  # fmt: skip


BASE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = BASE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


STOCK = {"as-is": BASE, "yarn:factor=4": YARN, "dynamic:factor=4": BASE | {"rope_type": "dynamic", "factor": 4.0}}


@pytest.mark.parametrize(("schedule", "stock"), STOCK.items())
def test_scores_and_losses_are_those_of_a_naive_loop_over_stock_transformers(schedule, stock):
    tokenizer, model, loaded = byte_tokenizer(), llama(vocab_size=257, rope_parameters=stock), llama(vocab_size=257)
    loaded.generation_config.update(num_beams=3, no_repeat_ngram_size=1, suppress_tokens=[*range(64)])
    found = retrieval(loaded, [512], [schedule], tokenizer=tokenizer, prompts=ROWS, new_tokens=6)
    answers = [each for each in found.answers if each.schedule == schedule]
    if stock["rope_type"] == "dynamic":
        hold(model, 512)
    for answer, asked in zip(answers, ROWS, strict=True):
        one = prompt_row(asked, PromptFields(), "", "")
        ids = [256, *ids_of(one.prompt)]
        assert answer.generated == tokenizer.decode(naive_greedy(model, ids, 6), skip_special_tokens=True)
        assert answer.score == share_found(answer.generated, one.answers)
        texts = [one.joined] if one.joined else one.answers
        wanted = [naive_nll(model, [*ids, *ids_of(f" {text}")])[len(ids) - 1 :] for text in texts]
        assert answer.nll == pytest.approx(sum(map(sum, wanted)), abs=2e-4)
        assert answer.tokens == sum(map(len, wanted))
    assert [each.answer for each in answers[3:]] == ["xy, z", "one; two; three"]


def hold(model, length):
    """Freezes a dynamic table as stock transformers computes it at a length."""
    with torch.no_grad():
        model(input_ids=torch.zeros(1, length, dtype=torch.long))
    model.model.rotary_emb.rope_type = "default"  # stays as that forward left it


def test_prompts_fed_together_are_scored_as_alone_and_stop_at_the_end_of_the_text():
    model, rows = llama(vocab_size=257), [row(name, code) for name, code in (("amber", "48213"), ("ebony", "10992"))]
    ids = prompts_of(rows, [512]).prompts[512][0].generation.ids
    model.generation_config.eos_token_id = naive_greedy(model, ids, 3)[2]
    given = {"tokenizer": byte_tokenizer(), "prompts": rows, "new_tokens": 9}
    one, many = (retrieval(model, [512], batch_tokens=size, **given).answers for size in (1, 10_000))
    assert [each.generated for each in one] == [each.generated for each in many]
    assert [each.nll for each in one] == pytest.approx([each.nll for each in many], abs=2e-5)
    assert len(one[0].generated) <= 2


@pytest.fixture(scope="module")
def codes():
    """A model that copies from 300 positions back, and 4 times as far under linear:factor=4: known scores."""
    rows = [row("amber", "48213", 1, task="near"), row("maple", "77120", 1, task="near"),
            row("onyx", "90417", 6, task="far"), row("olive", "20741", 1, task="far")]  # fmt: skip
    given = {"schedules": ["linear:factor=4"], "prompts": rows, "new_tokens": 8}
    return retrieval(lookup_llama(), [1024], tokenizer=byte_tokenizer(), **given)


def test_the_scores_of_a_model_that_copies_are_the_known_ones(codes):
    cells = {(each.schedule, each.task): (each.accuracy, each.tasks, each.prompts) for each in codes.rows}
    assert cells["as-is", "near"] == (1.0, 1, 2) and cells["as-is", "far"] == (0.5, 1, 2)
    assert cells["as-is", None] == (0.75, 2, 4) and cells["linear:factor=4", None] == (1.0, 2, 4)
    assert [(each.schedule, each.length) for each in codes.effective] == [("as-is", 1024), ("linear:factor=4", 1024)]
    assert codes.sentences()[0] == "At 1,024 tokens linear:factor=4 answers 100%, as-is answers 75% (mean of 2 tasks)."
    assert "Effective length: as-is 1,024, linear:factor=4 1,024." in codes.to_markdown()


def test_a_mean_over_tasks_weighs_each_alike_and_has_the_interval_of_its_variance():
    """Two prompts of one task and six of another: 2^2 / (1/2 + 1/6) = 6 answers' worth."""
    rows = [row("amber", "48213", 1, task="few", max_new_tokens=8 + number) for number in range(2)]
    rows += [row("onyx", "90417", 6, task="many", max_new_tokens=8 + number) for number in range(6)]
    (one, *parts) = retrieval(lookup_llama(), [1024], tokenizer=byte_tokenizer(), prompts=rows).rows
    assert [(each.task, each.accuracy) for each in parts] == [("few", 1.0), ("many", 0.0)] and one.accuracy == 0.5
    z = 1.959963984540054
    half = z * math.sqrt(0.25 / 6 + z * z / 144) / (1 + z * z / 6)
    assert (one.accuracy_low, one.accuracy_high) == pytest.approx((0.5 - half, 0.5 + half))


def test_the_intervals_of_changes_hold_for_the_schedules_of_a_length_together():
    rows = [row("amber", f"4821{number}", 1, task=task) for task in ("one", "two") for number in range(6)]
    model, schedules = lookup_llama(), ["linear:factor=4", "linear:factor=2"]
    found = retrieval(model, [1024], schedules, tokenizer=byte_tokenizer(), prompts=rows, new_tokens=8)
    assert [(each.prompts, each.comparisons) for each in found.paired] == 2 * [(12, 2)]


# --- the command -------------------------------------------------------------------------------------------------


def test_a_folder_of_files_is_asked_task_by_task_and_continues_byte_for_byte(ran, checkpoint, tmp_path, monkeypatch):
    for task in ("code", "qa_own"):
        rows = [row(each, "48213", 1) for each in ("amber", "fig", "onyx")]
        write(tmp_path / "data" / task / "validation.jsonl", rows)
    (tmp_path / "data" / "readme.txt").write_text("not a prompt")
    words = ["retrieval", checkpoint, "--prompts", tmp_path / "data", "--lengths", "384", "--new-tokens", "4",
             "--schedule", "linear:factor=8", "--batch-tokens", "1", "-o"]  # fmt: skip
    out, _ = ran(*words, tmp_path / "whole")
    assert "(mean of 2 tasks)" in out or "No answer is right" in out
    with monkeypatch.context() as patched:
        patched.setattr(AnswerScorer, "generated", lasting(7, KeyboardInterrupt())(AnswerScorer.generated))
        ran(*words, tmp_path / "again", code=130)
    ran(*words, tmp_path / "again")
    for name in ("results.json", "answers.csv", "results.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    lines = answers_in(tmp_path / "whole")
    assert {line["task"] for line in lines} == {"code", "qa_own"} and len(lines) == 12
    report = (tmp_path / "whole" / "REPORT.md").read_text()
    assert report.count("## By task") == 1 and "(generated tokens: code 4, qa_own 4)" in report
    ran("report", tmp_path / "whole", "-o", tmp_path / "page.html")


WRONG = [
    (["--prompts", "rows.jsonl", "--lengths", "512", "--trials", "3"], "trials applies to generated prompts"),
    (["--prompts", "nothing.jsonl", "--lengths", "512"], "no file or folder at 'nothing.jsonl'"),
    (["--prompts", "tale.txt", "--lengths", "512"], "tale.txt is a text file without rows of prompts; give"),
    (["--prompts", "empty", "--lengths", "512"], "no .jsonl file in empty"),
    (["--prompts", "rows.jsonl", "--lengths", "512", "--answer-field", "reply"], "line 1 has no field 'reply'"),
    (["--lengths", "512", "--match", "any"], "match needs prompts from a file"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_input_is_refused_before_the_model_is_read(refused, checkpoint, words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", [row("amber", "48213")])
    (tmp_path / "tale.txt").write_text("Once.")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("Once.")
    monkeypatch.setattr("ropescale.evals.backends.opening.load_model", lambda *a, **k: pytest.fail("the model is read"))
    assert sentence in refused("retrieval", checkpoint, *words)


def test_nothing_is_written_into_the_folder_of_the_prompts(refused, checkpoint, tmp_path):
    write(tmp_path / "code.jsonl", [row("amber", "48213")])
    words = ["retrieval", checkpoint, "--prompts", tmp_path, "--lengths", "512", "-o", tmp_path]
    assert "contains the measured text" in refused(*words)
    assert [each.name for each in tmp_path.iterdir()] == ["code.jsonl"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_servers_give_the_scores_of_a_loaded_model(kind, checkpoint, tmp_path, ran, refused):
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    write(tmp_path / "code.jsonl", ROWS)
    asked = ["--prompts", tmp_path / "code.jsonl", "--lengths", "512", "--new-tokens", "5"]
    about = {"kind": kind, "writes": lambda ids, count: naive_greedy(model, ids, count)}
    about["logprobs"] = lambda ids: [-each for each in naive_nll(model, list(ids))]
    with serving(**about) as engine:
        words = ["retrieval", "--server", engine.url, "--served-as", "base", "--tokenizer", checkpoint, *asked]
        ran(*words, "-o", tmp_path / "served")
        prompts = [[256, *ids_of(prompt_row(each, PromptFields(), "", "").prompt)] for each in ROWS]
        for fault in ("too many", "null", "NaN", "huge"):
            engine.fault = lambda number, ids, fault=fault: fault if list(ids) in prompts else ""
            assert re.search("generated ids|token_ids|output_ids", refused(*words))
    ran("retrieval", checkpoint, *asked, "-o", tmp_path / "loaded")
    served, loaded = (answers_in(tmp_path / name) for name in ("served", "loaded"))
    for mine, theirs in zip(served, loaded, strict=True):
        assert (mine["generated"], mine["score"]) == (theirs["generated"], theirs["score"])
        assert float(mine["nll"]) == pytest.approx(float(theirs["nll"]), abs=1e-4)


# --- the losses of answers, by eval ------------------------------------------------------------------------------


def test_eval_scores_the_answers_alone_after_as_much_of_the_prompt_as_a_window_holds(ran, checkpoint, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    given = [(f"{FILLER * n}The code is", str(48213 + n)) for n in range(1, 12)]
    write(tmp_path / "own.jsonl", [{"q": prompt, "a": code} for prompt, code in given])
    words = ["--prompt-field", "q", "--answer-field", "a", "--lengths", "64,512", "--no-short-context", "--json"]
    found = json.loads(ran("eval", checkpoint, "--data", tmp_path / "own.jsonl", *words)[0])
    assert found["protocol"]["stride"] == 32 and found["data"]["prompts"] == 11 and found["data"]["tokens"] == 11 * 6
    wanted = []
    for prompt, code in given:
        wanted += naive_nll(model, [256, *ids_of(f"{prompt} {code}")[-511:]])[-6:]
    rows = {each["length"]: each for each in found["rows"]}
    assert rows[512]["nll"] == pytest.approx(np.mean(wanted), abs=1e-5) and rows[512]["tokens"] == 66


def test_text_of_a_file_is_no_formula_no_escape_and_no_markup_in_any_file(ran, checkpoint, tmp_path):
    tasks = ('=HYPERLINK("x")', "\x1b[31mRED", "a; +1", "@SUM(1)", "\t-2+3", "\u202e<img src=x>", "$\\frac{1}$")
    spec, out = tmp_path / "=\x1b[1m$<b>.json", tmp_path / "out"
    spec.write_text('{"name": "linear", "factor": 2}')
    rows = [{"input": "The code is 48213. What is it?", "outputs": ["=48213"], "task": task} for task in tasks]
    write(tmp_path / "p.jsonl", rows)
    words = ("--lengths", "128", "--new-tokens", "2", "--schedule", spec, "-o", out, "--verbose")
    said = ran("retrieval", checkpoint, "--prompts", tmp_path / "p.jsonl", *words)
    ran("report", out, "-o", tmp_path / "page.html")
    cells = {row["task"] for row in answers_in(out)} | {row["answer"] for row in answers_in(out)}
    assert {'\'=HYPERLINK("x")', "\\x1b[31mRED", "a;' +1", "'@SUM(1)", "'=48213"} < cells
    page = (tmp_path / "page.html").read_text()
    shown = [said.out, page[: page.index("<script")], (out / "REPORT.md").read_text()]
    assert not any("<img src" in text.replace("\\<", "") for text in shown)
    for text in (*shown, *(path.read_text() for path in out.glob("*.csv"))):
        assert all(char.isprintable() or char == "\n" for char in text)
