"""An option that has no effect is an error that names it and the reason."""

import shlex
import sys

import pytest

from ropescale.evals.store import opened

EVAL = "eval MODEL --data TEXT --lengths 32"
ASKED = "retrieval MODEL --lengths 200"


UNUSED = [
    (f"{EVAL} --served-as base", "--served-as", "needs a server"),
    (f"{EVAL} --factor 2", "--factor", "no schedule takes a factor"),
    (f"{EVAL} --set beta_fast=2", "--set", "none of the given schedules has the field"),
    (f"{EVAL} --layers all", "--layers", "needs a schedule"),
    (f"{EVAL} --on-top", "--on-top", "needs a schedule"),
    (f"{EVAL} --schedule yarn:factor=2 --freeze-at 64", "--freeze-at", "the same table at every length"),
    (f"{EVAL} --schedule yarn:factor=2 --on-top", "--on-top", "no scaling to build on"),
    (f"{EVAL} --revision main", "--revision", "is a folder"),
    (f"{EVAL} --split test", "--split", "does not use it"),
    (f"{EVAL} --streaming --max-docs 1", "--streaming", "does not use it"),
    (f"{EVAL} --score assistant", "--score", "applies to chats"),
    (f"{EVAL} --chat-template TEMPLATE", "--chat-template", "no document is a chat"),
    (f"{EVAL} --stride 8 --windows 2", "--windows", "a stride measures whole documents"),
    (f"{EVAL} --no-truncation --truncation-stride 8", "--truncation-stride", "truncation is False"),
    (f"{EVAL} --fresh", "--fresh", "needs an output folder"),
    (f"{EVAL} --json --verbose", "--verbose", "no effect on JSON"),
    (f"{ASKED} --match any", "--match", "needs prompts"),
    (f"{ASKED} --answer-field a", "--answer-field", "needs prompts"),
    (f"{ASKED} --prompts p.jsonl --depths 0,1", "--depths", "applies to generated prompts"),
    ("recommend MODEL --target-length 2k --data TEXT --search-tokens 1k", "--search-tokens", "needs a search"),
    ("recommend MODEL --target-length 2k --data TEXT --on-top", "--on-top", "no scaling to build on"),
    ("search MODEL --target-length 2k --data TEXT --replace-scaling", "--replace-scaling", "to replace"),
    ("verify MODEL --served-name a", "--served-name", "needs a server"),
    *((f"verify MODEL {each}", each.split()[0], "applies to generation") for each in ("--dtype float32", "--length 9")),
    ("verify MODEL --generate --length 1", "1", "a length of 1 tokens leaves"),
    ("verify MODEL --generate --device nowhere", "--device", "device 'nowhere' cannot be used"),
]


@pytest.mark.parametrize(("words", "option", "why"), UNUSED)
def test_an_option_without_effect_is_named_with_the_reason(words, option, why, refused, checkpoint, texts, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    places = {"MODEL": checkpoint, "TEXT": texts / "a.txt", "TEMPLATE": tmp_path / "t.jinja"}
    said = refused(*(places.get(word, word) for word in words.split()))
    assert why in said and option in said


UNKNOWN = [
    ("eval --model X", "the model is an argument: `ropescale eval MODEL`"),
    ("eval X --tasks wikitext", "no tasks here, only texts: --data names one"),
    ("verify X --cuda", "no such option '--cuda'; write --device cuda"),
    ("eval X --num_fewshot 5", "texts are measured without examples before them; leave it out"),
    ("eval X --schedule yarn,linear:factor=2", "'yarn,linear:factor=2' names several schedules; repeat the option"),
    ("patch X --schedule yarn,ntk", "names several schedules; give one"),
    ("export X --for vlm", "'transformers5', 'transformers4'; did you mean 'vllm'?"),
    ("eval X --batch_size 8", "did you mean '--batch-tokens'?"),
    ("eval X --max-model-len 4k", "did you mean '--lengths'?"),
    ("eval X --limit 4", "did you mean '--max-docs'?"),
    ("serve X", "nothing is served here, but `ropescale export MODEL --for vllm` prints the command"),
    ("merge x.yml X", "nothing is merged here, but `ropescale patch MODEL -o OUT --schedule SPEC` writes"),
    ("patch X --lazy-unpickle", "files are linked or copied, and no weights or code are loaded; leave it out"),
    ("eval X --gpu-memory-utilization 0.9", "memory is planned without it; leave it out"),
    ("eval X --tensor-parallel-size 2", "did you mean '--tp'?"),
    ("eval X --gpus 2", "write --device cuda"),
    ("patch X --out-path Y", "did you mean '-o'?"),
    ("eval X --lenghts 4", "did you mean '--lengths'?"),
    ("eval X --home 4", "no such option '--home'; see `ropescale eval -h`"),
    ("patch X --rope-scaling yarn", "did you mean '--schedule'?"),
    ("patch X --max-model-len 128k", "did you mean '--target-length'?"),
    ("report --schedule ntk", "no such option '--schedule'; see `ropescale report -h`"),
]


@pytest.mark.parametrize(("words", "advice"), UNKNOWN)
def test_an_unknown_option_is_answered_with_the_one_that_is_meant_or_with_none(words, advice, refused):
    assert advice in refused(*words.split())


UNFINISHED = [
    ("/bin/ropescale eval MODEL --data 'a b' -o run", "to continue: ropescale eval MODEL --data 'a b' -o run"),
    ("/bin/ropescale eval --server http://me:secret@host -o run", "to continue with `-o run`"),
    ("notebook.py", "to continue with `-o run`"),
]


@pytest.mark.parametrize(("argv", "advice"), UNFINISHED)
def test_the_report_of_an_unfinished_run_says_how_to_finish_it(refused, tmp_path, monkeypatch, argv, advice):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as started, opened(tmp_path / "run") as store:
        started.setattr(sys, "argv", shlex.split(argv))
        store.begin({})
    assert f"run holds a run that is not finished; repeat its command {advice}" in refused("report", "run")
