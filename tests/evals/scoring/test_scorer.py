"""One NLL per token, equal to a naive loop over the model's full logits."""

import itertools
import logging
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from tiny import documents, llama, naive_nll
from torch.nn.attention.bias import CausalVariant
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ropescale.evals.backends.loaded import LoadedModel
from ropescale.evals.scoring import attention, tiles
from ropescale.evals.scoring.scorer import Scorer, agree, broken_weight


def ids_of(count, length):
    """Random documents of one length, int64 [count, length]."""
    return torch.tensor([each[:length] for each in documents(count, length)])


def checked(model, ids, logits_bytes):
    """A scorer after its check at start-up, and its NLLs."""
    scorer = Scorer(model, logits_bytes)
    with torch.inference_mode():
        scorer.check(ids[0])
        return scorer, scorer.score(ids)


def assert_close_to_naive(model, ids, nll):
    naive = torch.tensor([naive_nll(model, each) for each in ids.tolist()])
    assert (nll - naive).abs().mean() < 1e-6 * max(1, naive.mean())
    assert (nll - naive).abs().max() < 1e-4


@pytest.mark.parametrize("logits_bytes", [1, 4 * 61 * 7, 2**26])
def test_nll_equals_the_naive_loop_whatever_the_block(logits_bytes):
    model, ids = llama(), ids_of(3, 50)
    scorer, nll = checked(model, ids, logits_bytes)
    assert scorer.split and nll.shape == (3, 49) and nll.dtype == torch.float32
    assert_close_to_naive(model, ids, nll)


SCALED = [
    ("gemma2", {"final_logit_softcapping": 2.0}), ("cohere", {"tie_word_embeddings": False, "logit_scale": 0.25}),
    ("granite", {"logits_scaling": 8.0}), ("gpt_neox", {}), ("gpt2", {}),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "changes"), SCALED)
def test_softcap_and_logit_scale_are_honoured_without_a_fallback(model_type, changes):
    model, ids = tiny_models.build(model_type, **changes), ids_of(2, 40)
    scorer, nll = checked(model, ids, logits_bytes=4 * 61 * 7)
    assert scorer.split
    assert_close_to_naive(model, ids, nll)


CHUNKS = [("llama", chunk) for chunk in (1, 7, 99, 100, 1000)]
CHUNKS += [(name, 23) for name in ("gemma2", "gemma3_text", "gpt_oss", "deepseek_v3", "gpt_neox")]


@pytest.mark.parametrize(("model_type", "chunk"), CHUNKS)
def test_chunks_with_a_cache_give_what_one_forward_gives(model_type, chunk):
    # Also where layers look back only 16 positions, and with softcap, sinks and MLA.
    model, ids = tiny_models.build(model_type), ids_of(2, 100)
    scorer = Scorer(model, logits_bytes=4 * 61 * 7)
    with torch.inference_mode():
        assert scorer.chunks_agree(ids[0])
        difference = (scorer.score(ids, chunk) - scorer.score(ids)).abs()
    assert difference.max() < 2e-5  # nats; rounding gave 1.0e-5 with two threads, and a wrong chunk gives whole nats


def halve(module, _):
    module.inv_freq.mul_(0.5)


def test_a_model_whose_chunks_do_not_agree_is_noticed():
    model, ids = llama(), torch.tensor(documents(1, 100)[0])
    scorer = Scorer(model)
    with torch.inference_mode():
        assert scorer.chunks_agree(ids)
        # Tables that follow what is fed: the keys in the cache keep the rotation that they were given.
        model.model.rotary_emb.register_forward_pre_hook(halve)
        assert not scorer.chunks_agree(ids)


def unsplit():
    """A model whose logits depend on more than the trunk's last hidden state."""

    class Odd(type(llama())):
        def forward(self, input_ids, **kwargs):
            output = super().forward(input_ids=input_ids, **kwargs)
            output.logits = output.logits * (1 + torch.arange(input_ids.shape[1])[:, None] / 10)
            return output

    model = llama()
    model.__class__ = Odd
    return model


def test_a_model_that_the_split_would_change_is_scored_whole(caplog):
    model, ids = unsplit(), ids_of(2, 40)
    with caplog.at_level(logging.WARNING):
        scorer, nll = checked(model, ids, logits_bytes=4 * 61 * 7)
    assert not scorer.split and "scoring needs its full logits" in caplog.text
    assert_close_to_naive(model, ids, nll)


@pytest.mark.parametrize(("model", "chunk"), [(unsplit(), None), (llama(), 5)], ids=["unsplit", "chunks"])
def test_logits_without_a_split_and_states_of_chunks_do_not_pile_up(model, chunk):
    name, made, most = "logits" if chunk is None else "last_hidden_state", [], []

    def count(module, arguments, output):
        most.append(sum(each() is not None for each in made))
        array = output[name].numpy().copy()  # lives as long as any view of the tensor
        made.append(weakref.ref(array))
        output[name] = torch.from_numpy(array)

    with torch.inference_mode():
        scorer, _ = checked(model, ids_of(8, 40), logits_bytes=2**20)
        with (model if chunk is None else model.model).register_forward_hook(count):
            scorer.score(ids_of(8, 40), chunk)
    assert len(made) >= 8 and max(most) <= 1


def test_a_compiled_model_is_scored_as_the_model_inside_and_left_as_it_was():
    model, ids = llama(), ids_of(1, 30)
    before = model(ids).logits
    with torch.inference_mode():
        assert torch.equal(Scorer(torch.compile(model)).score(ids), Scorer(model, logits_bytes=1000).score(ids))
    assert torch.equal(model(ids).logits, before) and "forward" not in vars(model.model)


def test_bf16_logits_are_reduced_in_fp32():
    model = llama().to(torch.bfloat16)
    ids = ids_of(2, 50)
    with torch.inference_mode():
        nll = Scorer(model).score(ids)
    assert (nll - torch.tensor([naive_nll(model, each) for each in ids.tolist()])).abs().max() < 1e-5
    model.lm_head.weight.data[0, 0] = torch.nan
    assert broken_weight(model) == "lm_head.weight"


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 64 * 2**-23), (torch.bfloat16, 0.05), (None, 64 * 2**-23)])
def test_numbers_agree_up_to_64_units_of_rounding_or_a_twentieth_of_the_largest(dtype, most):
    own = torch.tensor([0.0, -1.0])
    assert agree(own + 0.99 * most, own, dtype) and not agree(own + 1.01 * most, own, dtype)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mixtral", "deepseek_v3", "gpt_neox"])
def test_mlps_run_in_tiles_of_rows_with_the_same_numbers(kind, monkeypatch):
    model, ids = tiny_models.build(kind), ids_of(3, 50)
    with torch.inference_mode():
        whole = Scorer(model).score(ids)
    monkeypatch.setattr(tiles, "ROWS", 16)
    scorer, rows = Scorer(model), []
    scorer.tiled = tiles.mlps(model, agree)  # so few rows may round differently
    assert len(scorer.tiled) == model.config.num_hidden_layers
    for each in [each for part in scorer.tiled for each in part.children() if list(each.parameters())]:
        each.register_forward_pre_hook(lambda module, args: rows.append(args[0].shape[-2]))
    with torch.inference_mode():
        scorer.score(ids[:1, :32])
        assert max(rows) == 32  # two tiles are fed at once
        rows.clear()
        assert torch.allclose(scorer.score(ids), whole, atol=1e-5)
    assert rows and max(rows) <= 16 + 150 % 16
    hooks = [each.register_forward_pre_hook(lambda _, args: args[0] / args[0].abs().amax()) for each in scorer.tiled]
    assert tiles.mlps(model, agree) == []  # a scale of all rows
    for part, hook in zip(scorer.tiled, hooks):
        hook.remove()
        part._hf_hook = SimpleNamespace(offload=True)  # accelerate's, whose weights are loaded for each call
    assert tiles.mlps(model, agree) == []


def test_tiles_on_a_processor_are_those_that_change_no_bit(monkeypatch):
    model, ids = llama(), ids_of(1, 100)
    monkeypatch.setattr(tiles, "ROWS", 40)
    assert len(Scorer(model).tiled) == 2
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    assert Scorer(model).tiled == []
    with torch.inference_mode():
        assert_close_to_naive(model, ids, Scorer(model).score(ids))


class Largest(TorchDispatchMode):
    """Notes the most numbers of one tensor that is computed."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor):
                self.most = max(self.most, each.untyped_storage().nbytes() // each.element_size())
        return found


@pytest.mark.parametrize("kind", ["gemma3_text", "olmo3", "llama", "deepseek_v3", "llama4_text"])
@pytest.mark.parametrize("chunk", [None, 150])
def test_no_mask_of_all_positions_is_built_and_the_losses_are_those_with_it(kind, chunk, monkeypatch):
    monkeypatch.setattr(attention, "QUERIES", 32)
    changes = {"attention_chunk_size": 128, "num_local_experts": 1, "head_dim": 16} if kind == "llama4_text" else {}
    model, ids = tiny_models.build(kind, **changes), ids_of(1, 600)
    stock, own, largest = Scorer(model, 2**14), Scorer(model, 2**14), Largest()
    stock.unmasked = False
    with torch.no_grad():
        expected = stock.score(ids, chunk)
        assert own.unmasked
        with largest:
            found = own.score(ids, chunk)
    assert (found - expected).abs().max() < 2e-5
    assert largest.most < (40_000 if chunk else 90_000)  # masks: 600 * (chunk or 600); in chunks of 128, 150 * 277
    assert not ALL_ATTENTION_FUNCTIONS._local_mapping and not ALL_MASK_ATTENTION_FUNCTIONS._local_mapping


def test_a_chunk_on_an_accelerator_goes_to_a_fused_kernel_without_a_mask():
    tensors = [SimpleNamespace(shape=(1, 4, count, 16), device=torch.device("cuda")) for count in (70, 300, 300)]
    chunk = torch.empty(1, 1, 0, 0, dtype=torch.bool)
    bias = attention._attention({}, False, None, lambda *given, **named: given[4], None, *tensors, chunk)
    assert repr(bias.variant) == repr(CausalVariant.LOWER_RIGHT) and (bias.seq_len_q, bias.seq_len_kv) == (70, 300)


def varlen_attn(q, k, v, starts_q, starts_k, most_q, most_k, *, scale, window_size, enable_gqa):
    """What torch documents, in float32; there is no such kernel on a processor."""
    assert enable_gqa and torch.equal(starts_q, starts_k) and starts_q.dtype == torch.int32 and most_q == most_k
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    found = []
    for start, stop in itertools.pairwise(starts_q.tolist()):
        one, two, three = (each[start:stop].transpose(0, 1).float() for each in (q, k, v))
        back = torch.arange(stop - start)[:, None] - torch.arange(stop - start)
        seen = (back >= -window_size[1]) & (back <= window_size[0])
        found.append(scaled_dot_product_attention(one, two, three, seen, scale=scale).transpose(0, 1).to(q))
    return torch.cat(found)


def test_windows_past_a_sliding_window_run_in_one_kernel_where_it_gives_what_blocks_give(monkeypatch):
    model, ids, fed = tiny_models.build("gemma3_text").bfloat16(), ids_of(2, 600), []
    monkeypatch.setattr(attention, "FUSED_ON", ("cpu",))

    def ran(off=0, scale=1.0):
        fed.clear()

        def kernel(*rows, window_size, **named):
            fed.append(rows[-1])
            return scale * varlen_attn(*rows, window_size=(window_size[0] + off, window_size[1]), **named)

        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", SimpleNamespace(varlen_attn=kernel))
        backend = LoadedModel(model)
        with torch.no_grad():
            losses = backend.scorer.score(ids)
        name = backend.facts["attention"]
        assert backend.arithmetic["attention"] == name
        return losses, name

    wrong = [ran(off=1), ran(off=-1), ran(scale=1.2)]
    assert {name for _, name in wrong} == {"sdpa"} and max(fed) == 32  # only while checked
    losses, name = ran()
    assert name == "sdpa, varlen_attn past sliding windows" and fed == [32, 600]  # in one of two layers
    assert 0 < (losses - wrong[0][0]).abs().mean() < 0.02


PEAK = """
import re, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
from ropescale.evals.scoring.scorer import Scorer
more = {"sliding_window": 512} if sys.argv[1] == "mistral" else {}
config = AutoConfig.for_model(sys.argv[1], vocab_size=61, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                              num_attention_heads=8, num_key_value_heads=2, **more)
scorer = Scorer(AutoModelForCausalLM.from_config(config).eval())
ids = torch.randint(61, (1, 16384))
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])  # its own alone
with torch.inference_mode():
    scorer.score(ids[:, :1024])
    before = peak()
    scorer.score(ids)
print(peak() - before)
"""


@pytest.mark.slow
def test_a_sliding_window_takes_little_more_memory_than_full_attention(python):
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's peak of one process")
    full, sliding = (int(python("-c", PEAK, kind).stdout) for kind in ("llama", "mistral"))
    assert sliding < 1.5 * full  # a mask would take 1.3 GB more
