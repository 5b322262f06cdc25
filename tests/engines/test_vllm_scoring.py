"""``ropescale eval --server`` and ``verify --server`` of a real vLLM, against the loaded model in float32.

The bundled model reads Python's library, a random Qwen 3 random ids. The longest windows are as long as the server's
limit, so that their last token takes the way of its own.
"""

import shlex
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import SEARCHED, original
from engine_servers import running
from planning import export
from test_vllm import python, variables
from transformers import AutoModelForCausalLM

import ropescale
from ropescale.checkpoints.loading import load_model, load_tokenizer
from ropescale.evals import Server, perplexity, retrieval
from ropescale.evals.backends.server_verifying import LIVE, NEITHER, NOT_LIVE, verify_served
from ropescale.evals.reference import CHECKPOINT, held_out_documents

__all__ = ["python"]

pytestmark = pytest.mark.engines

# Nats, on any token.
TOLERANCE = 1e-4

LENGTHS = [128, 256, 512, 1024]
SPECS = {"base": "base", "searched": SEARCHED["all"]}
SPECS |= {name: f"{name}:factor=4.0" for name in ("yarn", "linear", "llama3")}


def serving(python: Path, command: str, log: Path) -> AbstractContextManager[str]:
    """Runs a printed command, with what the processor needs beside it."""
    program, *words = shlex.split(command.replace("\\\n", ""))
    assert program == "vllm"
    script = Path(__file__).parents[1] / "helpers" / "scripts" / "vllm_command.py"
    beside = "--dtype float32 --enforce-eager --max-num-seqs 2 --no-enable-prefix-caching --host 127.0.0.1".split()
    return running([str(python), str(script), *words, *beside], log, env=variables())


def checkpoint(family: str, folder: Path) -> Path:
    """The bundled model, or a random Qwen 3, unpatched."""
    return CHECKPOINT if family == "bundled" else original(family, folder)


def documents(family: str, source: Path) -> list[list[int]]:
    """A dozen texts of 2,048 tokens."""
    if family != "bundled":
        generator = torch.Generator().manual_seed(0)
        return [torch.randint(256, (2048,), generator=generator).tolist() for _ in range(12)]
    tokenizer = load_tokenizer(source)
    texts = sorted(Path(tempfile.__file__).parent.glob("[a-z]*.py"), key=lambda path: path.stat().st_size)[-12:]
    return [tokenizer(path.read_text("utf-8"), verbose=False)["input_ids"][:2048] for path in texts]


@pytest.mark.parametrize("family", ["bundled", "qwen3"])
@pytest.mark.parametrize("name", SPECS)
def test_a_served_model_is_measured_as_the_loaded_one(family, name, python, tmp_path):
    source, spec = checkpoint(family, tmp_path / "original"), SPECS[name]
    folder = tmp_path / "patched"
    length = {} if "factor=" in spec else {"target_length": LENGTHS[-1]}
    ropescale.patch_checkpoint(source, folder, spec, **length)
    texts, asked = documents(family, source), {"windows": 2, "short_context": False, "truncation": False, "bos": "no"}
    command = export(folder, "vllm").commands[0].text
    assert "--max-model-len" in command
    limit = int(command.split("--max-model-len")[1].split()[0])
    lengths = [each for each in (*LENGTHS, limit) if each <= limit]
    with serving(python, command, tmp_path / "log.txt") as address:
        served = perplexity(Server(address, spec), texts, sorted(set(lengths)), path=source, **asked)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    loaded = perplexity(model, texts, sorted(set(lengths)), [] if name == "base" else [spec], **asked)
    label = "as-is" if name == "base" else served.passes[0].schedule
    [wanted] = [each.nll for each in loaded.passes if each.schedule == label]
    gaps = np.abs(np.concatenate(served.passes[0].nll) - np.concatenate(wanted))
    print(f"\n{family}, {name}: largest {gaps.max():.0e}, mean {gaps.mean():.0e}, {len(gaps):,} tokens to {limit:,}")
    assert gaps.max() < TOLERANCE
    rows = [row for row in loaded.rows if row.schedule == label]
    for mine, row in zip(served.rows, rows, strict=True):
        assert (mine.length, f"{mine.ppl:.4g}") == (row.length, f"{row.ppl:.4g}")
        assert mine.ppl_low == pytest.approx(row.ppl_low, rel=1e-4)
        assert mine.ppl_high == pytest.approx(row.ppl_high, rel=1e-4)


def test_a_served_schedule_is_live_and_the_unchanged_model_beside_it_is_not(python, tmp_path):
    folder = tmp_path / "patched"
    ropescale.patch_checkpoint(CHECKPOINT, folder, SPECS["yarn"])
    other = tmp_path / "other"
    ropescale.patch_checkpoint(CHECKPOINT, other, "yarn:factor=8.0")
    right, unscaled = export(folder, "vllm"), export(folder, "vllm", "base", target_length=4 * 256)
    verdicts = {}
    for name, [command] in (("right", right.commands), ("unscaled", unscaled.commands)):
        with serving(python, command.text, tmp_path / f"{name}.txt") as address:
            found = {each: verify_served(str(each), Server(address), dtype="float32") for each in (folder, other)}
        print(f"\n{name}: {found[folder].stock:.1e} from the folder, {found[folder].unscaled:.1e} without its schedule")
        verdicts[name] = [report.verdict for report in found.values()]
    assert verdicts == {"right": [LIVE, NEITHER], "unscaled": [NOT_LIVE, NOT_LIVE]}


def test_a_served_model_answers_and_writes_as_the_loaded_one(python, tmp_path):
    """Passkeys up to the server's limit, whose digits rank first or not, and what it writes after texts."""
    folder = tmp_path / "patched"
    ropescale.patch_checkpoint(CHECKPOINT, folder, SPECS["yarn"])
    tokenizer = load_tokenizer(folder)
    text = held_out_documents()[0]
    parts = [text[start:] for start in range(0, 4000, 500)]
    rows = [{"input": part[:900], "outputs": [part[900:912]]} for part in parts]
    passkeys: dict[str, Any] = {"lengths": [200, 1024], "depths": [0.0, 0.5, 1.0], "trials": 2, "path": folder}
    given: dict[str, Any] = {"lengths": [512], "prompts": rows, "new_tokens": 16, "path": folder}
    with serving(python, export(folder, "vllm").commands[0].text, tmp_path / "log.txt") as address:
        server = Server(address, SPECS["yarn"])
        assert server.engine.limit == passkeys["lengths"][-1]
        served = [retrieval(server, tokenizer=tokenizer, **each).answers for each in (passkeys, given)]
    model = load_model(folder, "float32", "cpu")
    loaded = [retrieval(model, tokenizer=tokenizer, **each).answers for each in (passkeys, given)]
    for found, wanted in zip(served, loaded, strict=True):
        gaps = [abs(mine.nll - own.nll) for mine, own in zip(found, wanted, strict=True)]
        print(f"\n{len(found)} answers, {sum(each.correct for each in found)} right: largest {max(gaps):.0e}")
        assert len(set(gaps)) > 1 and max(gaps) < 10 * TOLERANCE
    assert [each.correct for each in served[0]] == [each.correct for each in loaded[0]]
    assert [each.generated for each in served[1]] == [each.generated for each in loaded[1]]
    assert [each.score for each in served[1]] == [each.score for each in loaded[1]]
