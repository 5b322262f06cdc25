"""Remapped positions, against a definition that turns every pair of tokens by itself, in float64."""

import copy
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tiny import documents, llama, naive_nll as losses_of
from tiny_models import build
from transformers import AttentionInterface, AttentionMaskInterface

import ropescale
from ropescale.errors import ConfigError, DataError, RopescaleError
from ropescale.evals import perplexity, recommend, remapped
from ropescale.evals.facts import AS_IS, REFERENCE
from ropescale.evals.reference import CHECKPOINT, held_out_documents

LENGTH, TRAINED, WINDOW, GROUP = 150, 64, 32, 4  # (149 - 32) // 4 + 32 = 61, and a group of 3 would give 71

INTERLEAVED = {"glm4"}


def naive_nll(model, ids):
    return np.array(losses_of(model, ids))


def distance(query, key):
    """The distance that the model sees: its own below the window, beyond it that of grouped positions."""
    own = query - key
    return own if own < WINDOW else (query - WINDOW) // GROUP + WINDOW - key // GROUP


SEEN = torch.tensor([[distance(i, j) if j <= i else 0 for j in range(LENGTH)] for i in range(LENGTH)])


@contextmanager
def naive(model, scale):
    """Replaces the rotation by none, and attention by a sum over pairs of coordinates at every distance."""
    config, rotary = model.config, model.base_model.rotary_emb

    def attend(module, query, key, value, mask, scaling, softcap=None, sliding_window=None, **others):
        kind = config.layer_types[module.layer_idx] if getattr(config, "layer_types", None) else "all"
        parameters = config.rope_parameters
        theta = parameters.get(kind, parameters)["rope_theta"]
        turning = int(query.shape[-1] * parameters.get("partial_rotary_factor", 1.0))
        half = turning // 2
        pairs = [(2 * p, 2 * p + 1) if config.model_type in INTERLEAVED else (p, p + half) for p in range(half)]
        far = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        seen = far if sliding_window else SEEN
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
        logits = query[..., turning:] @ key[..., turning:].transpose(2, 3)
        for number, (one, two) in enumerate(pairs):
            q, k = (torch.complex(each[..., one], each[..., two]) for each in (query, key))
            turned = torch.polar(torch.ones(()).double(), seen.double() * theta ** (-2 * number / turning))
            logits = logits + (q[..., :, None] * k[..., None, :].conj() * turned).real
        logits = logits * scaling
        if scale:
            growth = [(1 + 0.1 * math.log(max(1.0, (n + 1) / TRAINED))) ** 2 for n in range(LENGTH)]
            logits = logits * torch.tensor(growth, dtype=torch.float64)[:, None]
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        hidden = (far < 0) | (far >= (sliding_window or LENGTH))
        return (logits.masked_fill(hidden, -math.inf).softmax(-1) @ value).transpose(1, 2), None

    def still(*given, **named):
        cos, sin = type(rotary).forward(rotary, *given, **named)
        return torch.ones_like(cos), torch.zeros_like(sin)

    AttentionInterface.register("naive", attend)
    AttentionMaskInterface.register("naive", AttentionMaskInterface()["sdpa"])
    before, config._attn_implementation, rotary.forward = config._attn_implementation, "naive", still
    yield
    config._attn_implementation = before
    del rotary.forward


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "gemma3_text", "gpt_neox", "glm4"])
def test_losses_are_those_of_every_pair_turned_by_itself(model_type):
    model = build(model_type)
    ids = documents(1, LENGTH)[0]
    plain = naive_nll(model, ids)
    exact = copy.deepcopy(model).double()
    for scale in (True, False):
        with remapped(model, LENGTH, scale=scale):
            found = naive_nll(model, ids)
        with naive(exact, scale):
            wanted = naive_nll(exact, ids)
        assert np.abs(found - wanted).max() < 1e-4
        assert np.abs(found - plain).max() > 1e-2
    assert np.array_equal(naive_nll(model, ids), plain)


def test_the_schedule_that_is_live_gives_table_and_scale():
    model, ids = llama(), documents(1, LENGTH)[0]
    with ropescale.patch(model, "yarn:factor=2,attention_factor=1.3"), remapped(model, LENGTH, scale=False):
        found = naive_nll(model, ids)
    with ropescale.patch(model, "yarn:factor=2,attention_factor=1"), remapped(model, LENGTH, scale=False):
        for layer in model.model.layers:
            layer.self_attn.scaling *= 1.3**2
        assert np.abs(naive_nll(model, ids) - found).max() < 1e-4


FAMILIES = [
    ("deepseek_v3", "DeepseekV3Attention does not turn whole queries and keys"),
    ("smollm3", "SmolLM3Attention does not turn whole queries and keys"),
    ("gpt_oss", "its attention has sinks"),
    ("falcon", "no layer that looks further than the trained length asks transformers for its attention"),
    ("gemma4_text", "argument 'dim'"),
]


@pytest.mark.parametrize(("model_type", "why"), FAMILIES)
def test_families_that_cannot_be_remapped_are_refused_and_stay_as_they_are(model_type, why):
    model = build(model_type, **({"no_rope_layers": [1, 0]} if model_type == "smollm3" else {}))
    before = model.config._attn_implementation
    with (
        pytest.raises(ConfigError, match=f"^the positions of {model_type} cannot be remapped: .*{why}"),
        remapped(model, LENGTH),
    ):
        pass
    assert model.config._attn_implementation == before and "save_pretrained" not in model.__dict__


def test_a_remapped_model_is_not_saved_changed_copied_decoded_or_measured_as_it_is(tmp_path):
    model, ids = llama(), torch.tensor([documents(1, LENGTH)[0][:LENGTH]])
    with remapped(model, LENGTH):
        for part in (model, model.model):
            for act, given in ((part.save_pretrained, tmp_path), (part.set_attn_implementation, "sdpa")):
                with pytest.raises(RopescaleError, match="the positions of this model are remapped, which no file"):
                    act(given)
        with pytest.raises(ConfigError, match="remapped already"), remapped(model, LENGTH):
            pass
        with pytest.raises(DataError, match=r"leave the block, or give remapped=True"):
            perplexity(model, ids.tolist(), 64)
        for act in (
            lambda: model.generate(ids[:, :100], max_new_tokens=2),
            lambda: copy.deepcopy(model)(ids),
            lambda: model(torch.cat([ids, ids], dim=1)),
            lambda: model(ids, attention_mask=(torch.arange(LENGTH) > 3).long()[None]),
        ):
            with pytest.raises(ConfigError, match=r"^remapped positions are for one model and whole windows of at mos"):
                act()
    model.save_pretrained(tmp_path / "out")
    model.set_attn_implementation("eager")
    assert not {"save_pretrained", "set_attn_implementation"} & model.__dict__.keys()


def test_rows_beside_the_schedules_that_no_sentence_names(tmp_path):
    model, texts = llama(), documents(12, LENGTH)
    found = perplexity(model, texts, [48, 128], ["yarn"], remapped=True, out=tmp_path, windows=1)
    losses = {(row.schedule, row.length): row.nll for row in found.rows}
    assert [label for label, length in losses if length == 128] == [
        AS_IS, "yarn:factor=2", REFERENCE, f"{REFERENCE}, no scale",
    ]  # fmt: skip
    for label, scale in ((REFERENCE, True), (f"{REFERENCE}, no scale", False)):
        with remapped(model, 128, scale=scale):
            wanted = [naive_nll(model, ids[:128]).mean() for ids in texts]
        assert losses[label, 128] == pytest.approx(np.mean(wanted), abs=2e-6)
        assert losses[label, 48] == pytest.approx(losses[AS_IS, 48], abs=2e-6)
    assert REFERENCE in found.to_markdown() and "remapped" not in found.summary().partition("|")[0]
    assert not any("remapped" in row.schedule for row in recommend(model, texts, 128, windows=1).rows)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "change", "half"), [(512, -0.036, 0.008), (1024, -0.107, 0.012)])
def test_on_the_bundled_model_it_gains_what_it_did_when_it_was_first_measured(length, change, half):
    found = perplexity(CHECKPOINT, held_out_documents(), length, ["yarn"], windows=1, remapped=True, truncation=False)
    losses = {row.schedule: row.nll for row in found.rows}
    assert losses[REFERENCE] - losses[f"yarn:factor={length // 256}"] == pytest.approx(change, abs=half)
