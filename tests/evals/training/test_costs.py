"""The cost of training by the formulas, against models that are built, and torch's own accounts of them."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from ropescale.evals.finetuning.lora import with_lora
from ropescale.evals.training import chunked_loss
from ropescale.evals.training.__main__ import main
from ropescale.evals.training.costs import (
    BFLOAT16,
    MIXED,
    ModelShape,
    forward_flops,
    table,
    training_flops,
    training_memory,
)

LLAMA_1B = {
    "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
"""As the config.json of Llama 3.2 1B has it."""

LLAMA_8B = {
    "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip
"""As that of Llama 3.1 8B has it."""

SMALL = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 448, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False,
}  # fmt: skip


def shape(numbers: dict, **changes: int) -> ModelShape:
    return ModelShape.of(LlamaConfig(**{**numbers, **changes}))


@pytest.mark.parametrize(("numbers", "parameters"), [(LLAMA_1B, 1_235_814_400), (LLAMA_8B, 8_030_261_248)])
def test_the_weights_are_those_of_the_models(numbers, parameters):
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**numbers))
    assert shape(numbers).parameters == parameters == sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_the_state_of_an_adapter_is_what_peft_holds(tied):
    """Every tensor by its own dtype: 2 bytes frozen; weight, gradient and two moments in its dtype where trained."""
    pytest.importorskip("peft")
    config = LlamaConfig(**{**SMALL, "tie_word_embeddings": tied})
    model = with_lora(LlamaForCausalLM._from_config(config, dtype=torch.bfloat16), 8)
    held = sum(p.numel() * p.element_size() * (4 if p.requires_grad else 1) for p in model.parameters())
    assert training_memory(ModelShape.of(config), 64, BFLOAT16, 8).state == held


def test_the_arithmetic_is_what_torch_counts():
    """torch counts attention whole, and the formula its lower half."""
    numbers, length = shape(SMALL), 96
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        model = LlamaForCausalLM(LlamaConfig(**SMALL, attn_implementation="eager"))
        model(input_ids=torch.zeros(1, length, dtype=torch.int64), use_cache=False)
    attention = 2 * numbers.layers * numbers.queries * length**2
    assert counter.get_total_flops() == forward_flops(numbers, length) + attention
    assert training_flops(numbers, length) == 4 * forward_flops(numbers, length)


def built(config: LlamaConfig, arithmetic: str) -> LlamaForCausalLM:
    return LlamaForCausalLM._from_config(config, dtype=torch.float32 if arithmetic == MIXED else torch.bfloat16)


def step(model: torch.nn.Module, ids: torch.Tensor, arithmetic: str) -> None:
    """Computes the loss of a window in blocks, and adds its gradients."""
    with chunked_loss(model):
        with torch.autocast("cpu", torch.bfloat16) if arithmetic == MIXED else nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()


def peak(config: LlamaConfig, length: int, arithmetic: str) -> int:
    """The most bytes that a step takes which adds to gradients that are there, as torch's MemTracker follows it."""
    model = built(config, arithmetic).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    ids, tracker = torch.zeros(1, length, dtype=torch.int64), MemTracker()
    tracker.track_external(model, optimizer, *(each.grad for each in model.parameters()))
    with tracker:
        step(model, ids, arithmetic)
    return next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]


class Allocated(TorchDispatchMode):
    """Follows the bytes of every tensor that is made inside, but for those of ``known``."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.known = {each.untyped_storage()._cdata for each in known}
        self.now = self.most = 0
        self.seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor):
                self._note(each.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage in self.seen or storage._cdata in self.known:
            return
        self.seen.add(storage)
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._freed, storage.nbytes())

    def _freed(self, size: int) -> None:
        self.now -= size


@pytest.mark.parametrize("hidden", [128, 256])
@pytest.mark.parametrize(("arithmetic", "rank"), [(MIXED, None), (BFLOAT16, None), (BFLOAT16, 8)])
def test_the_memory_of_a_step_is_the_measured_peak_of_a_small_model(hidden, arithmetic, rank):
    """Within 3%; real tensors on the CPU, beside weights, gradients and moments that are there."""
    config = LlamaConfig(**{**SMALL, "hidden_size": hidden, "intermediate_size": 4 * hidden})
    model = built(config, arithmetic)
    if rank is not None:
        pytest.importorskip("peft")
        model = with_lora(model, rank)
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    trained = [each for each in model.parameters() if each.requires_grad]
    for each in trained:
        each.grad = torch.zeros_like(each)
    ids = torch.zeros(1, 1024, dtype=torch.int64)
    known = [*model.parameters(), *model.buffers(), *(each.grad for each in trained), ids]
    with Allocated(known) as allocated:
        step(model, ids, arithmetic)
    found = training_memory(ModelShape.of(config), 1024, arithmetic, rank)
    assert found.checkpoints + max(found.layer, found.logits) == pytest.approx(allocated.most, rel=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arithmetic", [MIXED, BFLOAT16])
@pytest.mark.parametrize("numbers", [LLAMA_1B, LLAMA_8B])
@pytest.mark.parametrize("length", [32_768, pytest.param(131_072, marks=pytest.mark.long)])
def test_the_memory_is_the_peak_of_the_real_shapes(numbers, length, arithmetic, monkeypatch: pytest.MonkeyPatch):
    """Within 2%; four layers of tensors without data. transformers makes a mask for those, and none for real ones."""
    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", lambda *args, **kwargs: None)
    with FakeTensorMode():
        measured = peak(LlamaConfig(**{**numbers, "num_hidden_layers": 4}), length, arithmetic)
    found = training_memory(shape(numbers, num_hidden_layers=4), length, arithmetic)
    assert found.total == pytest.approx(measured, rel=0.02)


def test_the_table_of_the_page_is_what_the_formulas_give(repository: Path):
    rows = table({"Llama 3.2 1B": shape(LLAMA_1B), "Llama 3.1 8B": shape(LLAMA_8B)}, [32_768, 131_072])
    page = (repository / "docs" / "adapting.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page


def test_the_command_prints_the_table_of_a_folder(tmp_path: Path):
    LlamaConfig(**LLAMA_1B).save_pretrained(tmp_path / "small")
    done = CliRunner().invoke(main, [str(tmp_path / "small"), "--lengths", "32k"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == table({"small": shape(LLAMA_1B)}, [32_768])
    assert re.search(r"\| small \| 32,768 \| all \| 19\.8 GB ", done.output)
    done = CliRunner().invoke(main, [str(tmp_path / "none"), "--lengths", "32k"])
    assert done.exit_code == 2 and "none" in done.output
