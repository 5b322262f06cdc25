"""Chats and token ids as documents. The oracles are transformers' own rendering and its mask of the assistant."""

import json
import sys

import datasets
import numpy as np
import pytest
from tiny import byte_tokenizer, llama, naive_nll
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ropescale.errors import DataError
from ropescale.evals import Result, perplexity
from ropescale.evals.data import chats
from ropescale.evals.data.chats import Chat, rendered
from ropescale.evals.data.documents import Document, placed
from ropescale.evals.data.sources import read_texts

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        BEGIN
        {{- message.content | trim }}{{ '<|im_end|>' }}
        END
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
MARKED = CHATML.replace("BEGIN", "{%- generation -%}").replace("END", "{%- endgeneration -%}")
PLAIN = CHATML.replace("        BEGIN\n", "").replace("        END\n", "")

# Writes the last answer otherwise than those before it, as Qwen3's does.
QWEN = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA = """{{- bos_token }}{% for message in messages %}
{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% else %}{% generation %} {{ message.content }}
{%- endgeneration %}{% endif %}{% endfor %}"""

CALLS = "{%- endmacro %}{%- for message in messages %}{{- turn(message) }}{%- endfor %}"
MACRO = MARKED.replace("{%- for message in messages %}", "{%- macro turn(message) %}").replace("{%- endfor %}", CALLS)

SAID = ["Be brief.", "Où est-ce? 🐴", "  Là. é ", "Là. é?", "Oui, là."]
ROLES = ["system", "user", "assistant", "user", "assistant"]
TALK = [{"role": role, "content": said} for role, said in zip(ROLES, SAID)]


def tokenizer_with(template):
    made = byte_tokenizer(limit=4096)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = template
    return made


def stock(tokenizer, messages=TALK, **options):
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)


def stock_mask(tokenizer, messages=TALK):
    return [bool(each) for each in stock(tokenizer, messages, return_assistant_tokens_mask=True)["assistant_masks"]]


TEMPLATES = [
    (MARKED, MARKED),
    (PLAIN, MARKED),  # the same tokens are the assistant's where no mark says so
    (LLAMA, LLAMA),
    (MACRO, MARKED),  # transformers' own mask is of other tokens in a macro
    (spaced := MARKED.replace("{%- generation -%}", "{% generation %}\n"), spaced),
]


@pytest.mark.parametrize(("template", "marked"), TEMPLATES)
def test_a_chat_is_transformers_own_rendering_and_the_assistants_tokens_are_those_of_its_mask(template, marked):
    tokenizer = tokenizer_with(template)
    assert rendered(Chat("a", TALK), tokenizer).scored is None
    found = rendered(Chat("a", TALK), tokenizer, assistant=True)
    assert found.ids == stock(tokenizer)["input_ids"]
    assert found.byte_ends[-1] == len(tokenizer.apply_chat_template(TALK, tokenize=False).encode())
    assert found.scored.tolist() == stock_mask(tokenizer_with(marked)) and 0 < found.scored.sum() < len(found.ids)


def test_a_template_that_writes_the_last_answer_otherwise_is_followed():
    """What the last answer begins with is part of it: the model is not given it."""
    tokenizer = tokenizer_with(QWEN)
    found = rendered(Chat("a", TALK), tokenizer, assistant=True)
    assert found.ids == stock(tokenizer)["input_ids"]
    parts = np.split(np.array(found.ids), np.flatnonzero(np.diff(found.scored)) + 1)
    said = [tokenizer.decode(part) for part in parts[1::2]]
    assert said == ["  Là. é <|im_end|>", "<think>\n\n</think>\n\nOui, là.<|im_end|>"]


UNRENDERED = [
    ("{{ raise_exception('roles must alternate') }}", TALK, "does not fit .*: roles must alternate; repair"),
    ("{{ messages[9].content.lower() }}", TALK, "does not fit the chat template"),
    (PLAIN, TALK[2:], "begins with the assistant"),
    (PLAIN.replace("| trim", "| trim | upper if loop.last else ''"), TALK, "message 3"),
]


@pytest.mark.parametrize(("template", "messages", "said"), UNRENDERED)
def test_a_chat_that_cannot_be_rendered_or_told_apart_is_refused(template, messages, said):
    with pytest.raises(DataError, match=said) as caught:
        rendered(Chat("a.jsonl line 1", messages), tokenizer_with(template), assistant=True)
    assert str(caught.value).startswith("a.jsonl line 1") and "\n" not in str(caught.value)


def test_a_token_across_the_mark_is_named_and_what_is_advised_helps():
    words = Tokenizer(models.WordLevel({"?": 0, "A": 1, ":": 2, "\u0120yes": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # a space belongs to the word behind it
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    chat = Chat("a.jsonl line 1", [{"role": "assistant", "content": "yes"}])
    tokenizer.chat_template = "A: {% generation %}{{ messages[0].content }}{% endgeneration %}"
    with pytest.raises(DataError) as caught:
        rendered(chat, tokenizer, assistant=True)
    assert str(caught.value) == (
        "a.jsonl line 1: the assistant's tokens cannot be identified exactly, because the token ' yes' holds some of "
        "the assistant's text and some of the template's; mark the assistant's text where a token begins and ends "
        "(`A:{% generation %} ` instead of `A: {% generation %}`), or score all tokens"
    )
    tokenizer.chat_template = tokenizer.chat_template.replace(" {% generation %}", "{% generation %} ")
    found = rendered(chat, tokenizer, assistant=True)
    assert (found.ids, found.scored.tolist()) == ([1, 2, 3], [False, False, True])


# --- BOS -----------------------------------------------------------------------------------------------------------


def test_bos_is_put_in_front_once():
    tokenizer = tokenizer_with(LLAMA)
    chat = rendered(Chat("a", TALK), tokenizer, assistant=True)
    bare, bos = placed(chat, "auto", tokenizer)
    assert [bos, *bare.ids] == stock(tokenizer)["input_ids"] and bare.scored.tolist() == stock_mask(tokenizer)[1:]
    assert bare.byte_ends[-1] == len(tokenizer.apply_chat_template(TALK, tokenize=False).encode()) - len("<s>")
    assert placed(chat, "no", tokenizer) == (chat, None)


def test_chats_whose_template_writes_no_bos_have_none_unless_it_is_asked_for():
    tokenizer = tokenizer_with(PLAIN)
    chat, ids = rendered(Chat("a", TALK), tokenizer), Document("b", [256, 1, 2], None, "", "ids")
    assert placed(chat, "auto", tokenizer) == (chat, None)
    assert placed(chat, "yes", tokenizer) == (chat, 256)
    stripped, bos = placed(ids, "auto", tokenizer)
    assert (stripped.ids, bos) == ([1, 2], 256)
    with pytest.raises(DataError, match="no BOS in front of document 1, and other documents begin with one; put a BOS"):
        perplexity(llama(vocab_size=259), [[1] * 9, TALK], [8], tokenizer=tokenizer)


# --- rows ----------------------------------------------------------------------------------------------------------

IDS = [[5, 0, 7], [256, 1]]


def saved(folder, kind, rows):
    """The rows in a file or folder of a kind."""
    folder.mkdir(exist_ok=True)
    path = folder / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        datasets.Dataset.from_list(rows).with_format("numpy").save_to_disk(str(path))
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_rows_of_token_ids_are_taken_as_they_are(tmp_path, kind):
    source = saved(tmp_path, kind, [{"id": "x", "input_ids": ids, "attention_mask": [1] * len(ids)} for ids in IDS])
    for found in (read_texts(source), read_texts(source, text_field="input_ids")):
        assert [(each.ids, each.kind, each.byte_ends) for each in found] == [(ids, "ids", None) for ids in IDS]


def test_a_text_beside_a_chat_is_the_document_unless_the_field_is_said(tmp_path):
    source = saved(tmp_path, "jsonl", [{"text": "hello", "messages": TALK, "input_ids": [1]}])
    assert read_texts(source)[0].text == "hello"
    assert read_texts(source, text_field="messages")[0].messages == TALK
    assert read_texts(source, text_field="input_ids")[0].ids == [1]
    with pytest.raises(DataError, match="line 1 is not text, and cannot be joined with others"):
        read_texts(source, text_field="messages", concat=True)


def test_tools_are_given_to_the_template(tmp_path):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    source = saved(tmp_path, "jsonl", [{"messages": TALK, "tools": given} for given in (tools, json.dumps(tools), [])])
    assert [each.tools for each in read_texts(source)] == [tools, tools, None]
    tokenizer = tokenizer_with("{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}")
    assert [tokenizer.decode(rendered(each, tokenizer).ids) for each in read_texts(source)] == ["look", "look", ""]


ROWS = [
    ({"input_ids": [1, 2.5]}, r"'input_ids' has 2\.5 at 1, which is neither a token id nor a message"),
    ({"input_ids": [3, -1]}, "'input_ids' has -1 at 1"),
    ({"input_ids": [[1, 2], [3]]}, r"has \[1, 2\] at 0"),
    ({"messages": [{"by": "human", "value": "hi"}]}, "message 1 of 'messages' has no role; give objects"),
    ({"messages": [TALK[0], {"role": "user", "content": 3}]}, "content of message 2 of 'messages' is not text"),
    ({"messages": TALK, "tools": "{"}, "'tools' is not readable JSON"),
]


@pytest.mark.parametrize(("row", "said"), ROWS)
def test_what_is_neither_text_nor_tokens_nor_a_chat_is_named(tmp_path, row, said):
    with pytest.raises(DataError, match=said) as caught:
        read_texts(saved(tmp_path, "jsonl", [row]))
    assert "a.jsonl line 1" in str(caught.value)


# --- measured ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny Llama with a tokenizer of bytes and a template that writes BOS."""
    folder = tmp_path_factory.mktemp("checkpoint")
    llama(vocab_size=259).save_pretrained(folder)
    tokenizer_with(LLAMA).save_pretrained(folder)
    return str(folder)


def measured(ran, checkpoint, source, *words):
    return json.loads(ran("eval", checkpoint, "--data", source, "--json", *words)[0])


def expected(talks, length):
    """The mean loss of the assistant's tokens by a plain loop, over those that transformers' mask has."""
    model, tokenizer = llama(vocab_size=259), tokenizer_with(LLAMA)
    found = []
    for talk in talks:
        losses = np.array(naive_nll(model, stock(tokenizer, talk)["input_ids"][:length]))
        found += losses[np.array(stock_mask(tokenizer, talk)[1:length])].tolist()
    return np.mean(found), len(found)


def test_the_assistants_tokens_alone_are_scored(ran, checkpoint, tmp_path):
    talks = [TALK, TALK[1:3] * 2, TALK[1:2] * 6]  # the last has no assistant
    source, out = saved(tmp_path, "jsonl", [{"messages": talk} for talk in talks]), tmp_path / "out"
    words = ["--lengths", "48,64", "--schedule", "yarn:factor=2", "-o", str(out), "--score"]
    found = measured(ran, checkpoint, source, *words, "assistant")
    for row in found["rows"][:2]:
        assert (row["nll"], row["tokens"]) == pytest.approx(expected(talks[:2], row["length"]), abs=2e-6)
        assert row["documents"] == 2 and row["tail_nll"] is not None
        covered = row["nll"] * row["tokens"] / np.log(2) / row["bits_per_byte"]
        assert covered == pytest.approx(row["tokens"], abs=1e-4)  # a byte each
    assert found["data"]["skipped"]["without_assistant"] == 1 and found["protocol"]["score"] == "assistant"
    loaded = Result.load(out)
    loaded.figures.clear()
    pair, stored = loaded.paired[0], found["paired"][0]
    assert (pair.delta_nll, pair.kl) == pytest.approx((stored["delta_nll"], stored["kl"]), abs=1e-7)
    assert "2 chats, only the assistant's tokens scored" in (out / "REPORT.md").read_text()


def test_whose_tokens_are_scored_is_no_reason_to_measure_again(ran, checkpoint, tmp_path, monkeypatch):
    source, out = saved(tmp_path, "jsonl", [{"messages": TALK}]), ["-o", str(tmp_path / "out"), "--lengths", "64"]
    measured(ran, checkpoint, source, *out)
    monkeypatch.setattr("ropescale.evals.scoring.scorer.Scorer.score", None)
    found = measured(ran, checkpoint, source, *out, "--score", "assistant")
    assert found["rows"][0]["nll"] == pytest.approx(expected([TALK], 64)[0], abs=2e-6)


def test_chats_cost_what_a_plain_loop_says_under_either_template(ran, refused, checkpoint, tmp_path):
    talks = TALK, TALK[1:]
    source = saved(tmp_path, "jsonl", [{"messages": talk} for talk in talks])
    out = ["-o", str(tmp_path / "out"), "--lengths", "48", "--windows", "1"]
    own, template = measured(ran, checkpoint, source, *out), tmp_path / "other.jinja"
    template.write_text(QWEN)
    found = measured(ran, checkpoint, source, *out, "--force", "--chat-template", template)
    for result, used in ((own, LLAMA), (found, QWEN)):
        ids = [stock(tokenizer_with(used), talk)["input_ids"][:48] for talk in talks]
        losses = [naive_nll(llama(vocab_size=259), each) for each in ids]
        assert result["rows"][0]["nll"] == pytest.approx(np.mean(losses), abs=2e-6)
        assert (result["rows"][0]["tokens"], result["data"]["chats"]) == (94, 2)
    words = ["eval", checkpoint, "--data", source, "--lengths", "48", "--chat-template"]
    assert "nowhere.jinja" in refused(*words, tmp_path / "nowhere.jinja")
    template.write_bytes(b"\xff\xfe")
    assert "other.jinja is not UTF-8 text; name another file (--chat-template)" in refused(*words, template)


def test_token_ids_cost_what_a_plain_loop_says_and_have_no_bytes(ran, checkpoint, tmp_path):
    ids = [[int(n) for n in np.random.default_rng(k).integers(0, 256, 40 + k)] for k in range(2)]
    source = saved(tmp_path, "jsonl", [{"input_ids": each} for each in ids])
    found = json.loads(ran("eval", checkpoint, "--data", source, "--json", "--lengths", "32")[0])
    losses = [naive_nll(llama(vocab_size=259), [256, *each][:32]) for each in ids]
    assert found["rows"][0]["nll"] == pytest.approx(np.mean(losses), abs=2e-6)
    assert found["rows"][0]["bits_per_byte"] is None and found["data"]["pretokenized"] == 2
    assert "2 given as token ids" in ran("eval", checkpoint, "--data", source, "--lengths", "32", "--verbose")[0]


def test_chats_without_a_token_of_the_assistant_in_reach_are_refused(ran, refused, checkpoint, tmp_path):
    source = saved(tmp_path, "jsonl", [{"messages": TALK[1:]}])
    words = ["--score", "assistant", "--lengths", "20", "--windows", "1"]
    said = "no chat has a token of the assistant within its first 20 positions; use longer lengths (--lengths)"
    assert said in refused("eval", checkpoint, "--data", source, *words)
    early = saved(tmp_path / "early", "jsonl", [{"messages": TALK}])
    parts = measured(ran, checkpoint, source, "--data", early, *words[:2], "--lengths", "20,48")["sources"]
    assert [[row["length"] for row in parts[name]["rows"]] for name in (source, early)] == [[48], [20, 48]]
    source = saved(tmp_path, "jsonl", [{"messages": TALK[1:2]}, {"messages": TALK}])  # only the first has no answer
    words = ["--score", "assistant", "--lengths", "20,4k"]
    assert "no document has the 4,095 tokens needed" in refused("eval", checkpoint, "--data", source, *words)


ENDLESS = [
    ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "takes more than 1 seconds"),
    ("{{ 9 ** (9 ** 9) }}", "takes more than 1 seconds"),
    ("{{ 'a' * 10 ** 10 }}", "takes more than 1.1 GB of memory"),
    ("{{ '%9999999999d' | format(1) }}", "takes more than 1.1 GB of memory"),
    ("{{ 'a' * 1001 }}", "writes more than 1,000 characters"),
    ("{{ raise_exception('no system') }}", "does not fit the chat template: no system"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")
@pytest.mark.parametrize(("template", "fact"), ENDLESS)
def test_a_template_that_never_ends_or_takes_memory_is_said(template, fact, refused, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(chats, "SECONDS", 1)
    monkeypatch.setattr(chats, "LONGEST", 1000)
    source, file = saved(tmp_path, "jsonl", [{"messages": TALK}]), tmp_path / "t.jinja"
    file.write_text(template)
    said = refused("eval", checkpoint, "--data", source, "--lengths", "48", "--chat-template", file)
    assert fact in said and "line 1 does not fit" in said
