"""What README and guides show holds: Python compiles, commands are understood, every block runs on a tiny model."""

import dataclasses
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import tiny
import torch
from gguf_models import write_gguf
from readme_blocks import FENCED, blocks_in, blocks_of, furnish, run_python, run_shell
from training_parts import pack
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3TextConfig, LlamaConfig, Trainer, TrainingArguments

from ropescale import TrainingCallback
from ropescale.cli.main import COMMANDS, group, main
from ropescale.evals.reference import held_out_documents
from ropescale.schedules import lookup, names, parse

ROOT = Path(__file__).parents[2]
PAGES = {page.stem: page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
Names = dict[str, object]

# --- the command lines that the pages show ---

INDENTED = re.compile(r"^ {4,}(?:ropescale|python) (?:.*\\\n)*.*$", re.MULTILINE)
SHELLS = {"sh", "bash", "console"}

# Scripts of llama.cpp, which are not ours to look into.
THEIRS = {"convert_hf_to_gguf.py"}


def command_lines(page: str) -> Iterator[str]:
    """The lines of every block for a shell, continued ones joined; of a console those after a ``$``."""
    for language, text in blocks_in(page):
        if language in SHELLS:
            lines = text.replace("\\\n", " ").splitlines()
            yield from (line.removeprefix("$ ") for line in lines if language != "console" or line.startswith("$ "))
    for text in INDENTED.findall(FENCED.sub("", page)):
        yield text.replace("\\\n", " ").strip()


def sessions(page: str) -> Iterator[tuple[list[str], str]]:
    """The words of each command in a console, and what is printed below it, on one line."""
    for language, text in blocks_in(page):
        if language == "console":
            for part in text.replace("\\\n", " ").split("$ ")[1:]:
                command, _, printed = part.partition("\n")
                yield shlex.split(command), " ".join(printed.split())


def understand(line: str) -> None:
    """Raises where a line names a command, an option, a value, a target, a file or an extra that there is not."""
    words = shlex.split(line, comments=True)
    while words and re.match(r"\w+=", words[0]):  # variables of the environment
        del words[0]
    if words:
        program, *rest = words
        if program in READERS:
            READERS[program](rest)


def of_ropescale(words: list[str]) -> None:
    """Parses the words after ``ropescale`` as the command would, and every schedule that needs no file."""
    words = list(itertools.takewhile(lambda word: word not in (">", "|"), words))
    context = group.make_context("ropescale", [])
    if words:
        name, command, rest = group.resolve_command(context, words)
        assert command is not None
        given = command.make_context(name, rest, parent=context).params
        for spec in [given.get("schedule"), given.get("baseline"), *(given.get("schedules") or ())]:
            if spec and not re.search(r"\.py\b|\.json\b|\bSPEC\b", spec):
                parse(spec)


def of_python(words: list[str]) -> None:
    """A module that there is, ropescale's options where it is ropescale, or a file of the repository."""
    if words[0] == "-m":
        assert find_spec(words[1]), words[1]
        if words[1] == "ropescale":
            of_ropescale(words[2:])
    elif words[0] == "-c":
        for module, name in re.findall(r"from (\S+) import (\w+)", words[1]):
            assert hasattr(import_module(module), name), words[1]
    else:
        assert words[0] in THEIRS or (ROOT / words[0]).is_file(), words[0]


# What reads the words after each program; those of others are not looked into.
READERS = {"ropescale": of_ropescale, "python": of_python}

# How a command of ropescale may begin in a sentence.
LAUNCHED = r"(?:torchrun [^`]*?-m |python -m )?"


def mentioned(page: str) -> Iterator[tuple[str, list[str]]]:
    """The commands that the sentences of a page mention, and the options that stand with them."""
    for span in re.findall(rf"`{LAUNCHED}ropescale\s([^`]*)`", FENCED.sub("", page)):
        name, *rest = span.split()
        if not name.startswith("-") and name != "COMMAND":
            yield name, [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]


def options_of(name: str) -> set[str]:
    """Every option of a command of ropescale."""
    assert name in COMMANDS, name
    context = group.make_context("ropescale", [])
    _, command, _ = group.resolve_command(context, [name])
    assert command is not None
    help_names = set(group.context_settings.get("help_option_names", ()))
    found = (param for param in command.get_params(context) if isinstance(param, click.Option))
    return help_names | {word for param in found for word in (*param.opts, *param.secondary_opts)}


# --- the pages ---

# Blocks that are only compiled or parsed: what stands in them, and why they are not run.
NOT_RUN = {
    "index": {"pip install": "installs libraries"},
    "engines": {"make engines": "installs engines of some GB"},
    "intervals": {"intervals.py documents": "takes minutes", "intervals.py windows": "takes minutes"},
    "measuring": {"against_truncation.py": "takes minutes"},
    "training": {"--steps 400": "takes hours; adapting.md has the same with 2 steps"},
    "versions": {"pip install": "installs libraries"},
}


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_is_understood(page, capsys):
    refused = [words for words, printed in sessions(text_of(page)) if printed.startswith("error:")]
    for line in command_lines(text_of(page)):
        if shlex.split(line, comments=True) not in refused:  # what is said of these is compared below
            understand(line)
    for name, options in mentioned(text_of(page)):
        assert set(options) <= options_of(name), f"`ropescale {name}` has not all of {options}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_in_the_help_is_understood(name, ran):
    shown = ran(name, "-h").out.partition("Example")[2]
    examples = re.findall(r"^ {4}(ropescale (?:.*\\\n)*.*)$", shown, re.MULTILINE)
    assert ("ropescale" in shown) == bool(examples)
    for line in examples:
        understand(line.replace("\\\n", " "))


# --- the guides that run ---


@dataclass(frozen=True)
class Guide:
    """What a page's blocks need, write and print.

    Attributes:
        prepare: makes what the page takes for granted, and returns the names that it leaves to the reader, if any;
            ``dict`` where nothing is needed.
        made: files that there are afterwards.
        said: what is printed among other things.
    """

    prepare: Callable[[], Names | None]
    made: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def a_patched_folder() -> None:
    assert main(["patch", "CKPT", "-o", "CKPT-2k", "--schedule", "yarn", "--target-length", "2k"]) == 0


def texts_in_a_folder(size: int = 1100) -> None:
    Path("texts").mkdir()
    for number, text in enumerate(texts()):
        (Path("texts") / f"{number}.txt").write_text(text[:size], encoding="utf-8")


def a_configuration() -> None:
    LlamaConfig(hidden_size=4096, num_attention_heads=32, max_position_embeddings=4096).save_pretrained("llama")


def a_gguf_file() -> None:
    write_gguf(AutoModelForCausalLM.from_pretrained("CKPT"), Path("llama.gguf"))


def models_of_a_reader() -> None:
    """A chat model with long conversations, a fine-tuned model, and a GGUF file."""
    a_gguf_file()
    assert main(["patch", "CKPT", "-o", "TUNED", "--schedule", "yarn", "--target-length", "2k"]) == 0
    shutil.copytree("CKPT", "CHAT")
    tokenizer = AutoTokenizer.from_pretrained("CHAT")
    theirs = "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    others = "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    tokenizer.chat_template = "{% for m in messages %}" + theirs + others
    tokenizer.save_pretrained("CHAT")
    turns = [{"role": role, "content": texts()[0][:200]} for role in ("user", "assistant") * 2]
    Path("chats.jsonl").write_text(f"{json.dumps({'messages': turns})}\n", encoding="utf-8")


def models_to_compare() -> None:
    """Two models, one with a table per layer type, and texts."""
    texts_in_a_folder(2200)
    shutil.copytree("CKPT", "TUNED")
    rotary = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
    shape = {"num_attention_heads": 1, "num_key_value_heads": 1, "layer_types": list(rotary), "sliding_window": 64}
    lengths = {"vocab_size": 257, "max_position_embeddings": 256, "rope_parameters": rotary}
    Gemma3TextConfig(**shape, **lengths, num_hidden_layers=2, hidden_size=32, head_dim=32).save_pretrained("GEMMA")


def a_trainer() -> Names:
    """What a reader has who trains already, and the patched folder of another page."""
    assert main(["patch", "CKPT", "-o", "CKPT-2k", "--schedule", "yarn", "--target-length", "2k", "--force"]) == 0
    tokenizer = AutoTokenizer.from_pretrained("CKPT")
    documents = [tokenizer(text)["input_ids"] for text in texts()]
    settings = {"max_steps": 2, "per_device_train_batch_size": 1}
    settings |= {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    return {
        "Trainer": Trainer, "args": TrainingArguments("RUN", **settings),
        "callback": TrainingCallback("yarn:factor=8"), "documents": documents,
        "model": AutoModelForCausalLM.from_pretrained("CKPT"), "texts": texts(), "tokenizer": tokenizer,
        "windows": pack(documents, 256, tokenizer.bos_token_id, None),
    }  # fmt: skip


def codes() -> None:
    """A prompt and its answer, as the page shows them."""
    rows = re.findall(r"^\{.*\}$", (ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8"), re.MULTILINE)
    Path("codes.jsonl").write_text("\n".join(rows), encoding="utf-8")


def texts() -> list[str]:
    return [text[:2200] for text in held_out_documents()[:3]]


RUN = {
    "README": Guide(
        dict,
        ("CKPT-2k/ropescale.json", "Qwen3-8B-128k/ropescale.json", "CKPT-8x/ropescale.json", "report.html"),
        ("vllm serve CKPT-2k",),
    ),
    "patching": Guide(dict, ("CKPT-2k/ropescale.json",), ("live: yes",)),
    "serving": Guide(a_patched_folder, (), ("--context-length 2048",)),
    "retrieval": Guide(codes, ("KEYS/results.json", "CODES/results.json"), ("| accuracy", "| score")),
    "adapting": Guide(dict, ("CKPT-1k/ropescale.json", "ADAPTER/base", "MERGED/ropescale.json"), ("live: yes",)),
    "searching": Guide(dict, ("factors.json", "factors-search/REPORT.md", "mine.json"), ("ropescale patch CKPT",)),
    "choosing": Guide(texts_in_a_folder, ("OUT/results.json",), ("as-is",)),
    "command-line": Guide(a_configuration, ("compared.png",), ("21 kept, 25 blended, 18 divided",)),
    "qwen": Guide(
        dict,
        ("Qwen3-8B-128k/ropescale.json", "Qwen3.5-9B-1m/ropescale.json", "COST/results.json", "FOUND/results.json"),
        (
            "32,768 tokens",
            "vllm serve Qwen3-8B-128k",
            "live: yes (all: yarn:factor=4, at 1,048,576 tokens)",
            "mlx_lm.server --model Qwen3.5-9B-1m",
        ),
    ),
    "recipes": Guide(models_of_a_reader, ("lost.html", "CHATS/results.json"), ("| yarn:factor=16",)),
    "own-schedules": Guide(
        models_to_compare,
        (
            "by_length.png", "CKPT-frozen/ropescale.json", "CKPT-RUN/REPORT.md", "TUNED-RUN/REPORT.md", "paper.pdf",
            "paper.tex",
        ),
        ("live: yes (full_attention: ByLayer:window=2; sliding_attention: ByLayer:window=2", "| ByLength"),
    ),
    "index": Guide(lambda: texts_in_a_folder(2200), ("RUN/REPORT.md",), ("live: yes", "vllm serve CKPT-2k")),
    "saving": Guide(dict, ("OUT/ropescale.json", "ADAPTER/base/ropescale.json")),
    "training": Guide(a_trainer, ("OUT/ropescale.json",), ()),
}  # fmt: skip


def test_every_block_runs_or_is_listed():
    languages = {page: {language for language, _ in blocks_of(PAGES[page])} for page in PAGES}
    assert {page for page in PAGES if languages[page] & (SHELLS | {"python"})} == {*RUN, *NOT_RUN}
    for page, reasons in NOT_RUN.items():
        found = [listed(page, text) for _, text in blocks_of(PAGES[page])]
        assert set(reasons) <= set(found), "a reason without a block"
        assert page in RUN or None not in found, f"{page}.md has a block that is neither run nor listed"


def listed(page: str, text: str) -> str | None:
    """The key of NOT_RUN by which a block is not run, or None."""
    return next((key for key in NOT_RUN.get(page, {}) if key in text), None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the bundled one's rotary geometry, which takes every byte for equally likely."""
    folder = tmp_path_factory.mktemp("tiny")
    shape = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = tiny.llama(vocab_size=257, max_position_embeddings=256, **shape)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(folder)
    tiny.byte_tokenizer(limit=256).save_pretrained(folder)
    return folder


@pytest.fixture
def workplace(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of, in which the tiny model and short texts stand for the bundled ones."""
    furnish(tmp_path, checkpoint)
    for name, text in zip(("book.txt", "test.txt"), texts()):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ropescale.evals.reference.CHECKPOINT", checkpoint)
    monkeypatch.setattr("ropescale.evals.reference.held_out_documents", texts)

    def saved(figure: object, file: Any, **given: object) -> None:  # nothing is drawn
        if given.get("format") == "svg":
            file.write("<svg></svg>")
        elif isinstance(file, (str, Path)):
            Path(file).write_bytes(b"")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", saved)
    return tmp_path


# Guides that take more than a second.
LONG = ("adapting", "choosing", "qwen", "recipes")


@pytest.mark.usefixtures("few_candidates")
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow if page in LONG else ()) for page in RUN])
def test_the_blocks_of_a_guide_run(page, workplace, capsys):
    guide = RUN[page]
    given = guide.prepare() or {}
    for language, text in blocks_of(PAGES[page]):
        if listed(page, text) is None and language == "python":
            run_python(text, dict(given))
        elif listed(page, text) is None and language in SHELLS - {"console"}:
            run_shell(text)
    printed = capsys.readouterr()
    for words, expected in sessions(text_of(page)):
        main(words[1:])
        assert " ".join(capsys.readouterr().err.split()) == expected
    assert all((workplace / name).exists() for name in guide.made)
    assert all(said in printed.out for said in guide.said), printed.out


def test_the_notebook_runs_and_shows_its_plots(workplace):
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    names_so_far: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), names_so_far)
    shown = [kind for cell in cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert shown.count("image/png") == 3 and shown.count("text/html") == 1
    stored = next(output["text"] for cell in cells for output in cell.get("outputs", []) if "text" in output)
    assert [line.split()[-1] for line in stored] == ["False", "True"]


def test_the_table_of_schedules_is_what_there_is():
    section = text_of("schedules").split("# The schedules")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([^|]*) \|", section, re.MULTILINE)
    assert [name for name, _ in rows] == names()
    for name, fields in rows:
        listed = {} if fields == "-" else dict(re.findall(r"`(\w+)=?([\w.]*)`", fields))
        assert re.sub(r"`[\w=.]+`|, |-", "", fields) == "", name
        given = [field for field in dataclasses.fields(lookup(name)) if field.init]
        assert listed == {field.name: shown(field.default) for field in given}, name


def shown(default: object) -> str:
    if default is None or default is dataclasses.MISSING:
        return ""
    return str(default).lower() if isinstance(default, bool) else f"{default:g}"
