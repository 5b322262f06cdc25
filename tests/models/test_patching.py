"""Patching in memory. The oracle is stock transformers: a model that ``from_pretrained`` reads back from disk."""

import copy
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tiny_models
import torch
from crashing import raising
from every_schedule import STATIC, VARYING
from own_schedules import Half, Stretching
from planning import make_plan
from tiny_models import SHAPES, TRAINED, assert_same, build, document, logits, pairs, reloaded, stock_from, tables
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, GPT2Config, GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import ropescale
from ropescale.errors import ConfigError, RopescaleError, VerificationError
from ropescale.models import patching
from ropescale.schedules import DynamicYarn, Yarn, names

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)


# One of each way to say a schedule: by a factor, by a theta, by YaRN's parameters, and pair by pair.
SOME = ("linear", "ntk", "yarn, mscale", "table")

EVERYWHERE = [(kind, name) for kind in SHAPES for name in (STATIC if kind == "llama" else SOME)]


def spec_for(model: Any, name: str) -> Any:
    spec = (STATIC | VARYING)[name]
    return spec(pairs(model)) if callable(spec) and not isinstance(spec, Half) else spec


def test_the_schedules_of_this_file_are_all_there_are():
    assert {label.split(",")[0] for label in STATIC | VARYING} | {"as-is", "base"} == {*names(), "custom"}


# ---------------------------------------------------------------------------------------------------------
# The life of a patch


@contextmanager
def left_alone(model: Any) -> Iterator[torch.Tensor]:
    """Asserts that a model is the same after the block as before, bit for bit; yields its logits."""
    plain = logits(model)
    before = tiny_models.snapshot(model)
    yield plain
    assert_same(before, tiny_models.snapshot(model))
    assert torch.equal(plain, logits(model))


@pytest.mark.parametrize(("model_type", "name"), EVERYWHERE)
def test_a_saved_patched_model_reloads_to_the_same_model_and_revert_restores_everything(model_type, name, tmp_path):
    model = build(model_type)
    spec = spec_for(model, name)
    plan = make_plan(model.config.to_dict(), spec)
    with left_alone(model) as plain, ropescale.patch(model, spec):
        assert_same_tables(model, stock_from(plan.config, tmp_path / "plan"))  # of the configuration on disk
        patched = logits(model)
        stock = reloaded(model, tmp_path)
        assert_same_tables(model, stock)
        assert torch.equal(patched, logits(stock))
        assert not torch.equal(patched, plain)
        assert model.config.rope_parameters == stock.config.rope_parameters
        assert model.config.max_position_embeddings == stock.config.max_position_embeddings


def assert_same_tables(model: Any, stock: Any) -> None:
    ours, theirs = tables(model), tables(stock)
    assert [(name, scale) for name, _, scale in ours] == [(name, scale) for name, _, scale in theirs]
    for (name, left, _), (_, right, _) in zip(ours, theirs):
        assert left.dtype == right.dtype == torch.float32 and torch.equal(left, right), name
    assert softmax_scales(model) == softmax_scales(stock)


def softmax_scales(model: Any) -> list[float]:
    return [module.scaling for module in model.modules() if isinstance(getattr(module, "scaling", None), float)]


NESTED = [
    ("yarn:factor=4", "linear:factor=2"),
    ("dynamic:factor=4", "yarn:factor=4"),
    ("yarn:factor=4", "dynamic:factor=4"),
    ("dynamic-yarn", "dynamic:factor=4"),
    ("dynamic:factor=4", Half()),
]


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_an_inner_patch_is_computed_from_the_original(outer, inner):
    model, alone = build(), build()
    ropescale.patch(alone, inner)
    with left_alone(model), ropescale.patch(model, outer):
        under_outer = logits(model)
        with ropescale.patch(model, inner):
            assert torch.equal(logits(model), logits(alone))
            assert model.config.to_dict() == alone.config.to_dict()
        assert torch.equal(under_outer, logits(model))


def test_as_is_changes_nothing_on_a_static_model_and_leaves_the_patch_that_it_is_inside_alone():
    model = build()
    with left_alone(model) as plain, ropescale.patch(model, "as-is") as patch:
        assert torch.equal(plain, logits(model)) and model.config.to_dict() == build().config.to_dict()
        assert not patch.length_dependent and not patch.plan.changes
    with ropescale.patch(model, "dynamic-yarn") as outer:
        patched = logits(model)
        with ropescale.patch(model, "as-is") as inner:
            assert torch.equal(patched, logits(model))
            assert inner.length_dependent and outer.length_dependent
        with ropescale.patch(model, "as-is", length=100):
            assert torch.equal(patched, logits(model))
            assert not torch.equal(logits(model, 40), logits(build(), 40))
        assert torch.equal(patched, logits(model))


def test_reverting_twice_or_out_of_order_changes_nothing():
    model = build()
    outer, inner = ropescale.patch(model, "yarn:factor=4"), ropescale.patch(model, "linear:factor=2")
    with left_alone(model), pytest.raises(RopescaleError, match="newer patch is still in this model"):
        outer.revert()
    inner.revert()
    with left_alone(model):
        inner.revert()
    outer.revert()


@pytest.mark.parametrize("stage", ["_exchange", "_settle", "_set", "_allow_saving"])
@pytest.mark.parametrize("spec", ["yarn:factor=4", "dynamic-yarn"])
def test_an_exception_while_patching_leaves_the_model_untouched(monkeypatch, stage, spec):
    model = build("gemma3_text")
    done = getattr(patching.Patch, stage)

    def fail(*args: Any) -> None:
        done(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(patching.Patch, stage, fail)
    if (stage, spec) == ("_allow_saving", "yarn:factor=4"):
        monkeypatch.setattr(patching, "check_live", raising(KeyboardInterrupt()))
    with left_alone(model), pytest.raises(KeyboardInterrupt):
        ropescale.patch(model, spec)


def test_base_takes_the_makers_scaling_out(tmp_path):
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": TRAINED}
    model = build(rope_parameters=yarn, max_position_embeddings=4 * TRAINED)
    scaled = logits(model)
    with ropescale.patch(model, "base", replace_scaling=True):
        assert torch.equal(logits(model), logits(build()))
        assert torch.equal(logits(model), logits(reloaded(model, tmp_path)))
    assert torch.equal(scaled, logits(model))


# ---------------------------------------------------------------------------------------------------------
# Where the model came from


def test_the_language_part_of_a_multimodal_model_is_patched(tmp_path):
    text = build("gemma3_text").config.to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
    torch.manual_seed(0)
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision, dtype=torch.float32)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(tmp_path)
    with left_alone(model) as plain, ropescale.patch(model, "yarn:factor=4"):
        model.save_pretrained(tmp_path)
        assert not torch.equal(logits(model), plain)
        assert torch.equal(logits(model), logits(AutoModelForImageTextToText.from_pretrained(tmp_path).eval()))
        with pytest.raises(ConfigError, match="patch the full model"):
            ropescale.patch(model.model.language_model, "linear:factor=2")


# ---------------------------------------------------------------------------------------------------------
# Layer types


# ---------------------------------------------------------------------------------------------------------
# Moving and casting


@pytest.mark.parametrize("spec", ["yarn:factor=4", "giraffe:scale_power=0.5", "dynamic:factor=4", "dynamic-yarn"])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_tables_stay_float32_when_the_model_is_cast_and_revert_restores_the_original_ones(model_type, spec):
    model = build(model_type)

    def tables_are(wanted):
        for (_, table, _), want in zip(tables(model), wanted, strict=True):
            assert table.dtype == torch.float32 and torch.equal(table, want)

    plain = [table.clone() for _, table, _ in tables(model)]
    with ropescale.patch(model, spec):
        patched = [table.clone() for _, table, _ in tables(model)]
        for cast in (torch.bfloat16, torch.float16, torch.float64):
            model.to(cast)
            assert model.dtype == cast
            tables_are(patched)
    tables_are(plain)


def test_a_model_cast_before_patching_gets_exact_float32_tables_and_its_own_back():
    model = build().to(torch.bfloat16)
    with left_alone(model), ropescale.patch(model, "yarn:factor=4"), ropescale.patch(build(), "yarn:factor=4") as other:
        assert torch.equal(tables(model)[0][1], tables(other._model)[0][1])


def test_a_patched_model_survives_a_trip_over_the_meta_device():
    model = build()
    plain = tables(model)[0][1].clone()
    with ropescale.patch(model, "yarn:factor=4"):
        wanted = tables(model)[0][1].clone()
        model.to("meta")
        assert tables(model)[0][1].device.type == "meta"
        model.to_empty(device="cpu")
        assert torch.equal(tables(model)[0][1], wanted)
    assert torch.equal(tables(model)[0][1], plain)
    with ropescale.patch(model, "yarn:factor=4"):
        model.to("meta")
    assert tables(model)[0][1].device.type == "meta"
    with pytest.raises(ConfigError, match="meta device"):
        ropescale.patch(model, "yarn:factor=4")


# ---------------------------------------------------------------------------------------------------------
# Training and compiling


@pytest.mark.parametrize("spec", ["yarn:factor=4", "dynamic-yarn"])
def test_gradient_checkpointing_gives_the_same_loss_and_gradients(spec):
    model = build().train()
    plain, _ = step(model)
    with ropescale.patch(model, spec):
        loss, gradients = step(model)
        assert not torch.equal(loss, plain) or "dynamic" in spec  # which is base up to the trained length
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        assert model.is_gradient_checkpointing
        again, others = step(model)
    assert torch.equal(loss, again)
    assert len(gradients) > 10 and all(torch.equal(left, right) for left, right in zip(gradients, others))


def step(model: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    loss = model(input_ids=document(100), labels=document(100), use_cache=False).loss
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.fixture
def _dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


COMPILED = [("llama", name, None) for name in ("linear", "yarn", "longrope", "custom")]
COMPILED += [("gemma3_text", "giraffe", None), ("llama", "dynamic", 100)]


@pytest.mark.slow
@pytest.mark.usefixtures("_dynamo")
@pytest.mark.parametrize(("model_type", "spec", "length"), COMPILED)
def test_a_static_or_frozen_patch_compiles_without_a_graph_break_and_once(model_type, spec, length):
    model = build(model_type)
    with ropescale.patch(model, spec_for(model, spec), length=length):
        wanted = logits(model)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        first = logits(compiled)
        with torch._dynamo.config.patch(error_on_recompile=True):
            assert torch.equal(first, logits(compiled))
            assert torch.equal(logits(compiled, seed=1), logits(model, seed=1))
    torch.testing.assert_close(first, wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("_dynamo")
def test_a_compiled_model_can_be_patched_and_reverted():
    model = build()
    compiled = torch.compile(model, backend="eager")
    plain = logits(compiled)
    with ropescale.patch(compiled, "yarn:factor=4"):
        torch.testing.assert_close(logits(compiled), logits(model))
        assert not torch.allclose(logits(compiled), plain)
        with ropescale.patch(model, "linear:factor=2"):  # the same stack of patches from inside the wrapper
            torch.testing.assert_close(logits(compiled), logits(model))
    assert torch.equal(plain, logits(compiled))


@pytest.mark.usefixtures("_dynamo")
def test_compiled_code_that_has_run_follows_the_tables_of_a_later_patch():
    model = build()
    rotary, states, positions = model.model.rotary_emb, torch.zeros(1), torch.arange(2 * TRAINED)[None]
    compiled = torch.compile(lambda: rotary(states, position_ids=positions)[0], backend="eager")
    plain = compiled().clone()
    for spec in ("dynamic:factor=4", "dynamic-yarn"):
        with ropescale.patch(model, spec):
            assert not torch.equal(patched := compiled().clone(), plain)
            assert torch.equal(patched, rotary(states, position_ids=positions)[0])
        assert torch.equal(compiled(), plain)


# ---------------------------------------------------------------------------------------------------------
# Tables that follow the length

LENGTHS = (100, 40, 200, TRAINED, TRAINED + 1, 40, 300)


@pytest.mark.parametrize("name", ["dynamic", "longrope, two lists"])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt_neox"])
def test_a_document_gets_what_a_freshly_loaded_stock_model_gives_it_whatever_ran_before(model_type, name, tmp_path):
    model = build(model_type)
    with left_alone(model), ropescale.patch(model, spec_for(model, name)) as patch:
        assert_stateless(patch, reloaded(model, tmp_path))


def assert_stateless(patch: patching.Patch, stock: Any) -> None:
    """Asserts that whatever ran before, every document gets what a fresh copy of a stock model gives it."""
    assert patch.length_dependent
    for length in LENGTHS:
        assert torch.equal(logits(patch._model, length), logits(copy.deepcopy(stock), length)), length


def test_dynamic_yarn_is_yarn_of_the_length_at_hand_and_base_up_to_the_trained_length():
    model, plain = build(), build()
    with ropescale.patch(model, DynamicYarn()) as patch:
        assert patch.length_dependent
        for length in LENGTHS:
            if length <= TRAINED:
                assert torch.equal(logits(model, length), logits(plain, length))
            else:
                with ropescale.patch(plain, Yarn(factor=length / TRAINED)):
                    torch.testing.assert_close(logits(model, length), logits(plain, length), rtol=0, atol=2e-4)


def test_a_custom_schedule_that_follows_the_length_does_so():
    model = build()
    with ropescale.patch(model, Stretching()):
        for length in LENGTHS:
            angles = [10000.0 ** (-2 * i / 8) / max(1.0, length / TRAINED) for i in range(4)]
            want = naive_llama(model, document(length), angles)
            torch.testing.assert_close(logits(model, length).double(), want, rtol=0, atol=1e-4)


def test_stock_dynamic_depends_on_what_ran_before_and_as_is_makes_it_stateless():
    model = build(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
    stateful, before = copy.deepcopy(model), tiny_models.snapshot(model)
    logits(stateful, 300)
    assert not torch.equal(logits(stateful, 100), logits(copy.deepcopy(model), 100))  # what there is to mend
    stock = copy.deepcopy(model)
    with ropescale.patch(model, "as-is") as patch:
        assert_stateless(patch, stock)
    assert_same(before, tiny_models.snapshot(model))


@pytest.mark.parametrize("name", VARYING)
def test_frozen_at_a_length_every_document_gets_the_table_of_that_length_and_freeze_at_saves_it(name, tmp_path):
    model = build()
    spec = spec_for(model, name)
    with ropescale.patch(model, spec):
        at_100, at_40 = logits(model, 100), logits(model, 40)
    with ropescale.patch(model, spec, length=100) as patch:
        assert not patch.length_dependent and patch.frozen_at == 100
        held = tables(model)[0][1].clone()
        assert not torch.equal(logits(model, 40), at_40)
        assert torch.equal(logits(model, 100), at_100)
        assert torch.equal(tables(model)[0][1], held)
    with ropescale.patch(model, spec, length=TRAINED):
        assert torch.equal(logits(model, 40), at_40)
    with ropescale.patch(model, spec, freeze_at=100) as patch:
        assert not patch.length_dependent
        frozen = logits(model, 100)
        torch.testing.assert_close(frozen, at_100, rtol=0, atol=2e-4)
        assert torch.equal(frozen, logits(reloaded(model, tmp_path), 100))


def test_phi3_may_round_the_attention_scale_to_what_a_whole_maximum_can_say(tmp_path):
    model = build("phi3")
    for length in (5000, 6001, 20_011):
        with ropescale.patch(model, "dynamic-yarn", freeze_at=length):
            scale = tables(model)[0][2]
            assert scale == pytest.approx(0.1 * math.log(length / 4096) + 1, rel=1e-5)
            assert scale == tables(reloaded(model, tmp_path))[0][2]


def test_what_no_configuration_can_say_is_not_saved_and_the_newest_patch_decides(tmp_path):
    model = build()

    def refused(reason: str) -> None:
        for part in (model, model.model):
            with pytest.raises(RopescaleError, match=reason):
                part.save_pretrained(tmp_path / "out")
        assert not (tmp_path / "out").exists()

    with ropescale.patch(model, "dynamic-yarn", length=100):
        refused("frozen at 100 tokens")
    with ropescale.patch(model, "dynamic-yarn"):
        refused("freeze it at a length")
        with ropescale.patch(model, "yarn:factor=4"):
            assert torch.equal(logits(reloaded(model, tmp_path / "inner")), logits(model))
        with ropescale.patch(model, "as-is"):
            refused("cannot be saved")
    with ropescale.patch(model, "yarn:factor=4"):
        with ropescale.patch(model, "dynamic-yarn"):
            refused("cannot be saved")
        assert torch.equal(logits(reloaded(model, tmp_path / "outer")), logits(model))
    assert torch.equal(logits(reloaded(model, tmp_path / "plain")), logits(model))


# ---------------------------------------------------------------------------------------------------------
# A custom schedule against a rotation written from nothing


def test_a_custom_schedule_agrees_in_memory_and_from_disk_with_an_independent_rotation(tmp_path):
    model = build(initializer_range=0.2)
    theta = [10000.0 ** (-2 * i / 8) for i in range(4)]
    plain = naive_llama(model, document(100), theta)
    independent = naive_llama(model, document(100), [*theta[:2], theta[2] / 2, theta[3] / 2])
    assert (plain - independent).abs().max() > 0.01  # a thousand times what is tolerated
    model.save_pretrained(tmp_path / "plain")
    ropescale.patch_checkpoint(tmp_path / "plain", tmp_path / "half", Half())
    on_disk = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "half"))
    with ropescale.patch(model, Half()):
        in_memory = logits(model)
    torch.testing.assert_close(in_memory.double(), independent, rtol=0, atol=1e-5)
    assert torch.equal(in_memory, on_disk)


@torch.no_grad()
def naive_llama(model: Any, ids: torch.Tensor, angles: list[float]) -> torch.Tensor:
    """A Llama written from the papers in float64: pairs are complex numbers, turned by ``exp(i m angle)``.

    Args:
        ids: [1, positions].
        angles: radians per token, one per pair (Su et al. 2021, equation 34; coordinate i goes with i + d/2).
    """
    state = {name: weight.double() for name, weight in model.state_dict().items()}
    x = state["model.embed_tokens.weight"][ids[0]]
    turn = torch.outer(torch.arange(len(x)).double(), torch.tensor(angles).double())
    rotor = torch.polar(torch.ones_like(turn), turn)
    for layer in range(model.config.num_hidden_layers):
        here = {name.split(".", 3)[3]: w for name, w in state.items() if name.startswith(f"model.layers.{layer}.")}
        x = x + naive_attention(rms_norm(x, here["input_layernorm.weight"]), here, rotor)
        h = rms_norm(x, here["post_attention_layernorm.weight"])
        gated = nn.functional.silu(h @ here["mlp.gate_proj.weight"].T) * (h @ here["mlp.up_proj.weight"].T)
        x = x + gated @ here["mlp.down_proj.weight"].T
    return rms_norm(x, state["model.norm.weight"]) @ state["lm_head.weight"].T


def naive_attention(x: torch.Tensor, here: dict[str, torch.Tensor], rotor: torch.Tensor) -> torch.Tensor:
    """Causal attention, 4 heads of 8 over 2 KV heads, one head after the other."""
    q, k, v = ((x @ here[f"self_attn.{n}_proj.weight"].T).unflatten(-1, (-1, 8)).transpose(0, 1) for n in "qkv")
    mixed = []
    for head in range(4):
        query, key = rotated(q[head], rotor), rotated(k[head // 2], rotor)
        scores = (query @ key.conj().T).real / math.sqrt(8)
        allowed = torch.ones_like(scores, dtype=torch.bool).tril()
        mixed.append(scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v[head // 2])
    return torch.cat(mixed, -1) @ here["self_attn.o_proj.weight"].T


def rotated(x: torch.Tensor, rotor: torch.Tensor) -> torch.Tensor:
    return torch.complex(x[..., :4], x[..., 4:]) * rotor


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


# ---------------------------------------------------------------------------------------------------------
# MLA


DEEPSEEK_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}


def test_taking_deepseeks_own_scaling_out_takes_the_softmax_scale_with_it():
    model = build("deepseek_v3", rope_parameters={**DEEPSEEK_YARN, "original_max_position_embeddings": TRAINED})
    scaled = softmax_scales(model)
    with ropescale.patch(model, "base", replace_scaling=True):
        assert softmax_scales(model) == [16**-0.5] * 2
    assert softmax_scales(model) == scaled and scaled[0] > 1.8 * 16**-0.5


# ---------------------------------------------------------------------------------------------------------
# Wrappers and copies


@pytest.mark.parametrize("spec", ["yarn:factor=4", "dynamic-yarn"])
def test_a_deep_copy_of_a_patched_model_is_patched_and_independent(spec):
    model = build()
    plain = logits(model)
    with ropescale.patch(model, spec):
        twin = copy.deepcopy(model)
        patched, short = logits(model), logits(model, 40)
    assert torch.equal(logits(twin), patched) and torch.equal(logits(twin, 40), short)
    assert torch.equal(logits(model), plain)
    with ropescale.patch(twin, "linear:factor=2"), ropescale.patch(model, "linear:factor=2"):
        assert torch.equal(logits(twin), logits(model))
    kept = tables(twin)[0][1].clone()
    twin.to(torch.bfloat16)
    assert tables(twin)[0][1].dtype == torch.float32 and torch.equal(tables(twin)[0][1], kept)


# ---------------------------------------------------------------------------------------------------------
# What cannot be patched


def test_what_is_no_transformers_model_or_has_no_rope_or_does_not_fit_is_refused():
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11))
    scaled = build(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    for model, spec, message in (
        (nn.Linear(2, 2), "yarn:factor=4", "Linear has no transformers configuration"),
        (gpt2, "yarn:factor=4", r"gpt2 .*no rotary position embeddings"),
        (build("glm4"), "proportional:partial_rotary_factor=0.5", "rotates 4 of 8 coordinates"),
        (scaled, "yarn:factor=4", "already scaled"),
        (build("granite_swa"), "ntk:factor=4", "theta per layer"),
    ):
        with pytest.raises(RopescaleError, match=message):
            ropescale.patch(model, spec)


class Stubborn(LlamaRotaryEmbedding):
    """A rotary module that does as its configuration says for plain RoPE, and ignores everything else."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.inv_freq, self.attention_scaling = self.compute_default_rope_parameters(config)


def test_a_layer_that_does_not_carry_what_was_asked_is_reported_and_the_model_left_alone():
    model = build()
    model.model.rotary_emb = Stubborn(model.config)
    with left_alone(model), pytest.raises(VerificationError, match=r"the schedule is not live: model\.rotary_emb"):
        ropescale.patch(model, "yarn:factor=4")


def halve_the_table(model: Any) -> None:
    for buffer in model.model.rotary_emb.buffers():
        buffer.mul_(0.5)


BY_HAND = {
    "theta": lambda model: model.config.rope_parameters.update(rope_theta=10001.0),
    "rope type": lambda model: model.config.rope_parameters.update(rope_type="linear", factor=2.0),
    "table": halve_the_table,
    "attention scale": lambda model: setattr(model.model.rotary_emb, "attention_scaling", 1.1),
}


@pytest.mark.parametrize("changed", BY_HAND)
def test_a_model_changed_by_hand_after_loading_is_reported(changed):
    model = build()
    BY_HAND[changed](model)
    with left_alone(model), pytest.raises(ConfigError, match="changed by hand after loading"):
        ropescale.patch(model, "yarn:factor=4", replace_scaling=changed == "rope type", original_length=TRAINED)
