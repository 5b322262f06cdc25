"""The card of a patched checkpoint when names, specs and configurations are hostile: nothing gets out of its place."""

import re
import subprocess
from pathlib import Path

import pytest
from configurations import LLAMA, write_checkpoint
from planning import export, make_plan

from ropescale.checkpoints.contents import BEGIN, END, card

SPEC = "ntk-su:factor=4"  # its card has a note, a command for every engine, and the name in both
NAMES = {
    "newline": "a\ntouch pwned\nb",
    "end of a fence": "a\n```\n# A heading of theirs\n```sh\ntouch pwned",
    "line separators": "a\u2028touch pwned\u2029b\x85c",
    "backtick": "a`touch pwned`b",
    "substitution": "$(touch pwned)",
    "bars": "a|b\\|c||d",
    "our mark": "a <!-- ropescale: end --> b",
    "tag": "<img src=x onerror=alert(1)>",
    "dash": "-rf",
    "quotes": "it's \"so\" \\'",
    "other direction": "a\u202egpj.exe\u2066",
    "invisible": "a\u200b\u00ad\x1b[31mb\x7f",
    "not utf-8": "caf\udce9",
}


def blocks(text: str) -> tuple[list[str], str]:
    """The code blocks of a Markdown text, and what is left of it, as CommonMark has them."""
    code, rest, inside, fence = [], [], [], ""
    for line in text.split("\n"):
        found = re.match(r" {0,3}(`{3,})([^`]*)$", line)
        if not fence and found:
            fence, inside = found[1], []
        elif fence and found and len(found[1]) >= len(fence) and not found[2].strip():
            code.append("\n".join(inside))
            fence = ""
        else:
            (inside if fence else rest).append(line)
    assert not fence
    return code, "\n".join(rest)


def section_of(text: str) -> str:
    assert text.count(BEGIN) == text.count(END) == 1
    return text.partition(BEGIN)[2].partition(END)[0]


def checked(text: str) -> str:
    """Asserts that a card is built as that of a harmless model is, and gives its text without code blocks."""
    section = section_of(text)
    assert all(char.isprintable() or char == "\n" for char in section)
    assert "<!--" not in section and "-->" not in section
    code, rest = blocks(section)
    assert [line for line in rest.splitlines() if line.startswith("#")] == ["## Context extension"]
    rows = [line for line in rest.splitlines() if line.startswith("|")]
    assert [len(re.split(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows] == [6] * 3
    assert not re.search(r"<[a-zA-Z/!]", re.sub(r"(`+).*?[^`]\1(?!`)", "", rest))
    for block in code:
        for line in block.splitlines():
            assert not line or line.startswith(STARTS), line
    return rest


STARTS = ("vllm ", "python -m ", "ropescale gguf ", "llama-server ", "  --", "# ", "from transformers", "model =")
STARTS += ("tokenizer =", "export ", "mlx_lm.")


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_stays_in_its_place(name, tmp_path):
    plan = make_plan(LLAMA, SPEC)
    text = card(tmp_path / "none.md", plan, NAMES[name])
    checked(text.decode("utf-8", "surrogateescape"))
    (tmp_path / "README.md").write_bytes(text)
    assert card(tmp_path / "README.md", plan, NAMES[name]) == text


@pytest.mark.parametrize("name", [name for name in NAMES if "mark" not in name and "comment" not in name])
def test_no_command_of_a_card_runs_anything_and_each_has_the_name(name, tmp_path):
    """Every line is given to a real shell in which our commands only say what they were given."""
    text = card(tmp_path / "none.md", make_plan(LLAMA, SPEC), NAMES[name])
    code, _ = blocks(section_of(text.decode("utf-8", "surrogateescape")))
    script = "\n".join(block for block in code if "import" not in block)
    stand_in = 'said() { for word in "$@"; do printf "%s\\0" "$word"; done; }\n'
    stand_in += "".join(f'{command}() {{ said {command} "$@"; }}\n' for command in ("vllm", "python", "ropescale"))
    stand_in += 'function llama-server { said llama-server "$@"; }\n'
    words = ["bash", "-c", (stand_in + script).encode("utf-8", "surrogateescape")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True)
    assert done.stderr == b""
    words = done.stdout.split(b"\0")
    assert [path.name for path in tmp_path.iterdir()] == []
    gguf = f"{NAMES[name]}.gguf".encode("utf-8", "surrogateescape")
    assert words[words.index(b"gguf") + 1].removeprefix(b"./") == gguf
    assert not words[words.index(b"gguf") + 1].startswith(b"-")


HOSTILE = "my`x`\n\n# Theirs\n\n<!-- ropescale: end -->|\u202e<b>[a](x) {s} {x} {0}"


TYPE, CLASS, CODE = {"model_type": HOSTILE}, {"architectures": [HOSTILE]}, {"auto_map": {"AutoModel": HOSTILE}}


@pytest.mark.parametrize("said", [TYPE, CLASS, TYPE | CLASS | CODE])
def test_what_a_hostile_configuration_says_stays_in_its_place(said, tmp_path):
    rest = checked(card(tmp_path / "none.md", make_plan(LLAMA | said, "yarn:factor=4"), "org/name").decode())
    assert "{x} {0}" in rest or "my" not in rest
    assert "](" not in rest


def test_a_folder_that_begins_with_a_dash_is_no_option(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(Path("-x"), LLAMA)
    assert "vllm serve ./-x " in export("./-x", "vllm", "yarn:factor=4").commands[0].text
    said = ran("patch", "./-x", "-o", "./-y", "--schedule", "yarn:factor=4").err
    assert said.endswith("next: ropescale verify ./-y\n")
    assert "llama-server -m ./-x.gguf" in Path("-y", "README.md").read_text()
    assert "for ./-x" in Path("-y", "README.md").read_text()


# ---------------------------------------------------------------------------------------------------------
# Cards of other people


CARDS = [
    ("", ""),
    ("# A\n", "# A\n\n"),
    (f"# A\n\n{BEGIN}\nx\n{END}\n\n# B\n", "# A\n\n# B\n\n"),
    (f"{BEGIN}x{END}", ""),
    (f"a{BEGIN}x{END}b{BEGIN}y{END} c ", "a\n\nb\n\nc\n\n"),
    (f"a {END} {BEGIN} b", f"a {END} {BEGIN} b\n\n"),
]


@pytest.mark.parametrize(("text", "kept"), CARDS)
def test_only_what_lies_between_our_marks_is_replaced(tmp_path, text, kept):
    (tmp_path / "README.md").write_text(text)
    assert card(tmp_path / "README.md", make_plan(LLAMA, "yarn:factor=4"), "a").decode().startswith(kept + BEGIN)
