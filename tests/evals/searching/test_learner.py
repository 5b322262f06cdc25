"""The gradient of the loss in a schedule's numbers, against differences of independently computed losses."""

import pytest
import tiny_models
import torch
from crashing import raising
from searching import check_slopes
from tiny import VOCABULARY, llama, naive_nll
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

import ropescale
from ropescale.evals.scoring import attention
from ropescale.evals.searching import learner
from ropescale.evals.searching.learner import Learner, LiveTables, gradient
from ropescale.evals.searching.search_space import space_of
from ropescale.evals.searching.windows import WeightedWindow
from ropescale.models import patching
from ropescale.models.rotary_modules import evaluating
from ropescale.planning.plan import make_plan
from ropescale.request import Request

IDS = torch.randint(VOCABULARY, (96,), generator=torch.Generator().manual_seed(3))
WINDOW = WeightedWindow(IDS, torch.tensor([2 / 158] * 63 + [1 / 158] * 32, dtype=torch.float64))


def prepared(model, layers="full"):
    plan = make_plan(patching.configuration_before(model), Request("yarn", target_length=256, layers=layers))
    return LiveTables(model, plan), space_of(plan, 256)


def loss(model, space, point, weights):
    """The weighted loss under the schedule as it is patched in, by plain transformers in fp64."""
    with ropescale.patch(model, space.schedule(point)):
        nll = torch.tensor(naive_nll(model, IDS.tolist()), dtype=torch.float64)
    return float((nll * weights).sum())


def gemma():
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}
    return tiny_models.build("gemma3_text", head_dim=16, sliding_window=24, **kinds)


MODELS = [(llama, "full"), (gemma, "full"), (gemma, "all"), (lambda: tiny_models.build("cohere"), "full")]


@pytest.mark.parametrize(("make", "layers"), MODELS)  # Cohere's pairs lie beside each other, not half a head apart
def test_the_gradient_is_that_of_plain_transformers(make, layers, monkeypatch):
    monkeypatch.setattr(attention, "QUERIES", 16)
    model = make().double()
    live, space = prepared(model, layers)
    point = space.nearest([value + 0.15 for value in space.start])
    with live.patched(), evaluating(model):
        nll, slope = gradient(Learner(model, logits_bytes=4 * VOCABULARY * 7), live, space, point, WINDOW)
    weights = WINDOW.weights
    assert float((nll.double() * weights).sum()) == pytest.approx(loss(model, space, point, weights), abs=1e-6)
    check_slopes(lambda point: loss(model, space, point, weights), point, slope, space.names)


def test_a_search_leaves_the_model_as_it_was_bit_for_bit():
    model = llama()
    before = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
    asked = [parameter.requires_grad for parameter in model.parameters()]
    live, space = prepared(model)
    with live.patched():
        gradient(Learner(model), live, space, space.start, WINDOW)
    assert [parameter.requires_grad for parameter in model.parameters()] == asked
    found = dict((*model.named_parameters(), *model.named_buffers()))
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())
    for name, module in model.named_modules():
        assert module.__dict__.keys() == attributes[name].keys(), name
        assert module.__dict__.get("attention_scaling") == attributes[name].get("attention_scaling")


def test_recomputing_the_blocks_changes_no_bit_and_builds_no_mask_of_all_positions(monkeypatch, one_thread):
    found = []
    monkeypatch.setattr(attention, "QUERIES", 16)
    for kept in (learner.MOST_KEPT, 0):
        monkeypatch.setattr(learner, "MOST_KEPT", kept)
        model = gemma()
        live, space = prepared(model)
        learning = Learner(model)
        assert learning.unmasked
        with monkeypatch.context() as patched, live.patched():
            patched.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sdpa", raising(AssertionError("a mask")))
            found.append(gradient(learning, live, space, space.start, WINDOW))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
