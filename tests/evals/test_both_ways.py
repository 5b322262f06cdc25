"""The command line and Python are one program: equal files from equal arguments, and each continues the other's run."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import tiny
from fake_engine import serving

from ropescale import evals
from ropescale.cli.main import main
from ropescale.errors import DataError
from ropescale.evals.data.prompts import PromptFields
from ropescale.evals.data.sources import ReadOptions
from ropescale.evals.store import FinishedBatches
from ropescale.planning import plan
from ropescale.schedules import specs

CHAT = [{"role": "user", "content": "Who wrote it down?"}, {"role": "assistant", "content": tiny.TEXT * 2}]
TWO = {"schedules": ["yarn", "linear"], "lengths": "32,128"}
SERVED = ["base", "yarn:factor=2.0"]
TARGET = {"target_length": 128}


@pytest.fixture
def here(tmp_path, monkeypatch, checkpoint):
    """A folder with texts, chats, and rows with answers."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    said = "{% generation %}{{ m.content }}{% endgeneration %}"
    Path("chat.jinja").write_text(f"{{% for m in messages %}}{{{{ m.role }}}}: {said}{{% endfor %}}")
    for number in range(12):
        Path("texts", f"{number:02}.txt").write_text((tiny.TEXT[number:] + tiny.TEXT[: 5 * number]) * 3)
    Path("chats.jsonl").write_text("".join(json.dumps({"messages": CHAT}) + "\n" for _ in range(2)))
    rows = [{"input": f"{tiny.TEXT[:60]} It is {number}? ", "outputs": [str(number)]} for number in (12, 34)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("qa.jsonl").write_text("".join(json.dumps({"q": tiny.TEXT * 2, "a": " it was so"}) + "\n" for _ in range(2)))
    return checkpoint


def text(path: str, **options: object) -> evals.TextSource:
    return evals.TextSource([path], ReadOptions(**options))


def words_of(options: dict[str, object]) -> list[str]:
    """The options of a command that mean these keywords."""
    words = []
    for name, value in options.items():
        flag = {"schedules": "--schedule"}.get(name, f"--{name.replace('_', '-')}")
        for each in value if isinstance(value, list) else [value]:
            words += [flag] if each is True else [flag, str(each)]
    return words


CASES = {
    "eval": ("eval", "texts", {**TWO, "windows": 1}),
    "a sweep": ("eval", "texts", {"schedules": ["yarn", "linear"], "lengths": "128", "factor": "2,4", "max_docs": 3}),
    "chats": ("eval", "chats.jsonl", {**TWO, "chat_template": "chat.jinja", "windows": 1}),
    "prompts": ("eval", "qa.jsonl", {**TWO, "prompt_field": "q", "answer_field": "a"}),
    "retrieval": ("retrieval", None, {**TWO, "depths": "0,1.0", "trials": 2, "lengths": "128"}),
    "prompts of a file": ("retrieval", None, {**TWO, "lengths": "128", "prompts": "rows.jsonl", "new_tokens": 4}),
    "recommend": ("recommend", "texts", {**TARGET, "windows": 1}),
    "search": ("search", "texts", {**TARGET, "budget_tokens": 5000}),
    "keys": ("keys", "texts", {"window": 32, "stride": 16, "alpha": 0.0, "beta": 0.0}),
}
READING = ("prompt_field", "answer_field")


OUT = {"search": "out.json", "keys": "out.json"}
RESULT = {"search": "out-search/results.json", "keys": "out.json"}


def taken(command: str) -> bytes:
    """The result of a run, whose files are removed: the next one writes to the same place, which results name."""
    content = Path(RESULT.get(command, "out/results.json")).read_bytes()
    for each in Path().glob("out*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    return content


def typed(command, data, options, checkpoint):
    given = [] if data is None else ["--data", data]
    return [command, checkpoint, *given, *words_of(options), "-o", OUT.get(command, "out")]


def called(command, data, options, checkpoint, **to):
    """Calls the function of a command with the same options."""
    reading = {name: options[name] for name in READING if name in options and command == "eval"}
    fields = {"prompt_field": PromptFields(*reading.values())} if reading else {}
    given = {name: value for name, value in options.items() if name not in (*reading, "chat_template")}
    checkpoint = evals.Checkpoint(checkpoint, chat_template=options.get("chat_template"))
    if "factor" in given:
        given["factor"] = [float(each) for each in str(given["factor"]).split(",")]
    if data is not None:
        given["documents"] = text(data, **fields)
    function = getattr(evals, {"eval": "perplexity"}.get(command, command))
    return function(checkpoint, **given, **{"out": OUT.get(command, "out"), **to})


@pytest.mark.parametrize("name", CASES)
def test_a_command_and_its_function_write_the_same_result(name, here, few_candidates, one_thread):
    case = (*CASES[name], here)
    assert main(typed(*case)) == 0
    if name == "a sweep":
        Path("again").mkdir()
        shutil.copy("out/run.yaml", "again")
    of_command = taken(case[0])
    called(*case)
    assert taken(case[0]) == of_command
    if name == "a sweep":  # a run file repeats a command
        assert main(["eval", here, "--config", "again/run.yaml", "-o", "out"]) == 0
        assert taken("eval") == of_command


def test_servers_give_both_the_same_result(here):
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(logprobs=tiny.logprobs_of(here, each))).url for each in (None, SERVED[1])]
        both = zip(urls, SERVED, strict=True)
        named = [word for url, label in both for word in ("--server", url, "--served-as", label)]
        words = ["--tokenizer", here, "--data", "texts", "--lengths", "32,128", "--windows", "1", "-o", "out"]
        assert main(["eval", *named, *words]) == 0
        of_command = taken("eval")
        servers = [evals.Server(url, label) for url, label in zip(urls, SERVED, strict=True)]
        served = evals.Checkpoint(here, weights=False)
        evals.perplexity(servers, text("texts"), "32,128", windows=1, path=served, out="out")
        assert taken("eval") == of_command
        for keyword in ({"schedules": ["yarn"]}, {"factor": 2.0}, {"on_top": True}, {"remapped": True}):
            with pytest.raises(DataError, match=f"^{next(iter(keyword))} applies to a loaded model, not to a s"):
                evals.perplexity(servers, text("texts"), "32,128", path=served, **keyword)


@pytest.mark.parametrize("name", ["eval", "retrieval", "recommend", "search", "keys"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["command first", "python first"])
def test_a_run_that_one_began_is_continued_by_the_other(name, order, here, few_candidates, one_thread, monkeypatch):
    case = (*CASES[name], here)

    def command():
        if main(typed(*case)) == 130:
            raise KeyboardInterrupt

    ways = [command, lambda: called(*case)]
    first, second = (ways[number] for number in order)
    stored, put = [], FinishedBatches.put

    def store(self, *numbers):
        if len(stored) == limit:
            raise KeyboardInterrupt
        stored.append(put(self, *numbers))

    monkeypatch.setattr(FinishedBatches, "put", store)
    limit = None
    second()
    whole, batches, limit = taken(case[0]), len(stored), len(stored) + 2
    with pytest.raises(KeyboardInterrupt):
        first()
    limit = None
    second()
    assert taken(case[0]) == whole and len(stored) == 2 * batches


def test_two_schedules_are_parsed_twice_and_planned_twice(here, monkeypatch):
    texts, plans = [], []
    parse, planned = specs._from_text, plan._planned
    monkeypatch.setattr(specs, "_from_text", lambda text: (texts.append(text), parse(text))[1])
    monkeypatch.setattr(plan, "_planned", lambda config, request: (plans.append(request), planned(config, request))[1])
    called("eval", "texts", {**TWO, "windows": 1}, here, out=None)
    assert texts == ["yarn", "linear"] and len(plans) == 2
