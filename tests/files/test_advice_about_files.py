"""Advice about folders and files is followed as a person would, and the command succeeds then."""

import ast
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import tiny
from configurations import LLAMA, write_checkpoint

import ropescale

ROWS = """\
mkfifo M/pipe | INTO | remove it from the checkpoint | rm M/pipe
ln -s gone M/more.txt | INTO | is the download complete? | touch M/gone
echo '{"weight_map": {"a": "b.bin"}}' > M/INDEX; rm M/*.safetensors | INTO | complete the download first | touch M/b.bin
echo '{"weight_map": {"a": "../b"}}' > M/INDEX | INTO | download it again | rm M/INDEX
mkdir P; touch P/mine | INTO | choose another folder | patch M -o Q YARN
INTO | INTO | or allow to replace it (--force) | INTO --force
INTO; touch P/mine | INTO --force | move it away, or choose | mv P/mine .
INTO; echo [] > P/ropescale.json | INTO --force | remove it yourself, or choose | rm -r P
INTO; patch P --in-place YARN | INTO --force | (`ropescale restore P`), or choose | restore P
IN_PLACE | patch N -o M --force YARN | is never replaced; choose another folder | patch N -o P YARN
true | patch M -o M/P YARN | overlap; choose another folder | INTO
touch f | patch M -o f/P YARN | choose another place | INTO
true | patch M -o '' YARN | name the folder to write | INTO
IN_PLACE; mv M/BACKUP away; ln -s ../away M/BACKUP | IN_PLACE | remove the link | rm M/BACKUP; cp N/config.json M
IN_PLACE; echo 1 >> M/config.json | restore M | move the file away first | mv M/config.json away
IN_PLACE; echo [] > M/BACKUP/manifest.json | restore M | back by hand, and remove | HAND; IN_PLACE
IN_PLACE; echo '{"originals": 1}' > M/BACKUP/manifest.json | restore M | back by hand, and remove | HAND; IN_PLACE
IN_PLACE; cp M/config.json M/BACKUP/README.md | restore M | or move it away | mv M/BACKUP/README.md away
IN_PLACE; echo 1 | tee M/BACKUP/config.json M/config.json | restore M | download the | cp N/config.json M
mv M/config.json M/c; ln -s c M/config.json | IN_PLACE | write to another folder instead (-o) | INTO
mv M/config.json c; ln -s ../gone M/config.json | INTO | (cp -rL) | rm M/config.json; mv c M/config.json
true | inspect M/config.json | give the checkpoint's folder (the one | inspect M
true | inspect ./O | give a checkpoint's folder or a Hub id | inspect M
true | inspect . | give the folder of a checkpoint in | inspect M
true | inspect '' | give a checkpoint's folder or a Hub id | inspect M
true | inspect M --revision main | leave revision out (--revision) | inspect M
true | IN_PLACE -o P | choose one (-o) | IN_PLACE
true | patch M --dry-run --force YARN | name one, or leave force out | patch M --dry-run YARN
true | patch org/M --in-place YARN | write to another folder instead (-o) | INTO
true | restore O | give the checkpoint that was patched in place | IN_PLACE; restore M
true | patch M --schedule as-is -o P | name a schedule | INTO
true | patch M --like R -o P | name a schedule (--schedule) | INTO
sed -i s/float32/f13/ CONFIG | EVAL | write one, such as bfloat16 | sed -i s/f13/bfloat16/ CONFIG
sed -i 's/: 64/: [64]/' R/TOKENIZER | EVAL | write a number | sed -i 's/: .64./: 64/' R/TOKENIZER
mv R/tokenizer.json t | EVAL | (copy the model's tokenizer files into it) | mv t R/tokenizer.json
sed -i 's/te_size": 48/te_size": 40/' CONFIG | EVAL | download both again | sed -i 's/te_size": 40/te_size": 48/' CONFIG
sed -i 's/layers": 2/layers": 3/' CONFIG | EVAL | complete the download | sed -i 's/layers": 3/layers": 2/' CONFIG
true | gguf M -o n.gguf YARN | give the GGUF file itself | TABLED
true | gguf o.gguf -o n.gguf YARN | give a GGUF file | TABLED
head -c 999 m.gguf > h.gguf | gguf h.gguf -o n.gguf YARN | is the download complete? | TABLED
touch n.gguf | TABLED | choose another file, or remove it first | rm n.gguf
TABLED | gguf n.gguf -o o.gguf YARN | or compose with the schedule (--on-top) | gguf n.gguf -o o.gguf YARN --on-top
true | gguf m.gguf YARN | or use a dry run (-o, --dry-run) | gguf m.gguf --dry-run YARN
true | gguf m.gguf --dry-run --schedule as-is | name a schedule | gguf m.gguf --dry-run YARN
"""
SHORT = {
    "INTO": "patch M -o P YARN", "IN_PLACE": "patch M --in-place YARN", "TABLED": "gguf m.gguf -o n.gguf YARN",
    "EVAL": "eval R --data text.txt --lengths 16 --windows 1",
    "HAND": "mv M/BACKUP/config.json M; rm -r M/BACKUP", "YARN": "--schedule yarn:factor=2",
    "BACKUP": "ropescale-backup", "INDEX": "model.safetensors.index.json", "TOKENIZER": "tokenizer_config.json",
    "CONFIG": "R/config.json",
}  # fmt: skip
for _short, _whole in SHORT.items():
    ROWS = ROWS.replace(_short, _whole)
# What is wrong, the command, the advice, and what is done then; unless that ends with one, the command once more.
FILES = [line.replace(" | tee", " |tee").split(" | ") for line in ROWS.splitlines()]

# Of messages whose advice other tests follow, or nobody can here: another command at the same moment, the Hub, other
# programs and machines, trust. The last ones are facts without a way out.
ELSEWHERE = (
    *("was created meanwhile", "another command created", "became shorter while", "needs custom code"),
    *("and the Hub cannot be reached", "nor a model that the Hub supplies", "cannot be linked or copied to"),
    *("is a PEFT adapter; patch the base", "the base of this adapter", "without custom code; read it"),
    *("its pickled weights are damaged", "is on the meta device", "over several processes", "which would be destroyed"),
    *("contains the working directory", "is the source itself", "has an interrupted or running patch"),
    *("unknown link type", "vLLM {} ({}); remove", "is unknown to ropescale", "this model carries no schedule"),
    *("were changed without ropescale", "is not a folder; let the trainer", "remove it yourself", "is big-endian"),
    *("is of type", "parts; join them first", "gguf-py, which is not installed", "has no general.architecture"),
    *("; no schedule lets", "; an engine that reads that file", "; it should be", "; it must be", "must be even"),
    *("does not extend the context", "nothing can be scaled", "code from the Hub"),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A checkpoint to patch, ``M``, the same as ``N``, one to load, ``R``, a GGUF file and a text."""
    from gguf_models import write_gguf

    folder = tmp_path_factory.mktemp("sources")
    for name in "MN":
        (write_checkpoint(folder / name, LLAMA) / "model.safetensors").write_bytes(b"weights")
    model = tiny.llama(vocab_size=258)
    tiny.checkpoint(folder / "R", model)
    write_gguf(model, folder / "m.gguf")
    (folder / "text.txt").write_text(tiny.TEXT)
    return folder


@pytest.fixture
def place(sources, tmp_path, monkeypatch) -> Path:
    """A copy of them, in the working directory."""
    monkeypatch.chdir(shutil.copytree(sources, tmp_path / "here"))
    return Path.cwd()


COMMANDS = ("patch", "restore", "inspect", "gguf", "eval")


@pytest.mark.parametrize(("wrong", "command", "advice", "done"), FILES)
def test_advice_about_files_leads_out_when_it_is_followed(place, ran, refused, wrong, command, advice, done):
    def do(steps: str) -> str:
        for step in steps.split("; "):
            name = step.partition(" ")[0]
            if name in COMMANDS:
                ran(*shlex.split(step))
            else:
                subprocess.run(step, shell=True, check=True, capture_output=True)
        return name

    do(wrong)
    assert advice in refused(*shlex.split(command))
    if do(done) not in COMMANDS:
        do(command)


def test_no_advice_about_files_is_left_out():
    """Whatever a message says after its semicolon is followed above, or listed as followed elsewhere."""
    followed = [advice.partition(" (-")[0].split(", or")[0] for _, _, advice, _ in FILES]
    package = Path(ropescale.__file__).parent
    for path in (*(package / "checkpoints").glob("*.py"), *(package / "gguf").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Raise, ast.Yield, ast.Return)):
                said = [_plain(each) for each in ast.walk(node) if isinstance(each, (ast.JoinedStr, ast.Constant))]
                text = max(said, key=len, default="")
                assert "; " not in text or any(each in text for each in (*followed, *ELSEWHERE)), (path.name, text)


def _plain(node: ast.expr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in parts)
