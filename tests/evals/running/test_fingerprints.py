"""Fingerprints tell models apart: by every byte of them, and by every switch of their adapters."""

from contextlib import contextmanager

import accelerate
import peft
import pytest
import torch
from tiny import documents, llama

import ropescale
from ropescale.evals import perplexity
from ropescale.evals.backends.fingerprints import describe, parameters_fingerprint

IDS = documents(3, 64)


def nll(model, out=None):
    [row] = perplexity(model, IDS, [48], out=out, force=out is not None).rows
    return row.nll


LORA = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False)
FOURIER = peft.FourierFTConfig(target_modules=["q_proj", "v_proj"], n_frequency=8, scaling=1.0, init_weights=False)


def with_adapters(config):
    torch.manual_seed(0)
    model = peft.get_peft_model(llama(), config)
    model.add_adapter("second", config)
    return model.eval()


@contextmanager
def another_adapter(model):
    model.set_adapter("second")
    yield


@contextmanager
def another_scaling(model):
    for layer in model.modules():
        if hasattr(layer, "_disable_adapters"):
            (getattr(layer, "fourierft_scaling", None) or layer.scaling)["default"] = 500.0
    yield


SWITCHES = {"off": lambda model: model.disable_adapter(), "another": another_adapter, "scaled": another_scaling}


@pytest.mark.parametrize(("config", "switch"), [*((LORA, each) for each in SWITCHES), (FOURIER, "scaled")])
def test_a_folder_of_before_is_not_taken_for_a_model_whose_adapters_were_switched(tmp_path, config, switch):
    model = with_adapters(config)
    before = nll(model, tmp_path)
    with SWITCHES[switch](model):
        alone = nll(model)
        assert nll(model, tmp_path) == alone != pytest.approx(before, abs=1e-3)


def places(model):
    """Of every tensor that is no rotary table: the first, a middle and the last byte, as something to flip."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not name.endswith("inv_freq"):
            flat = tensor.detach().view(-1).view(torch.uint8)
            yield from ((name, flat, at) for at in (0, len(flat) // 2, len(flat) - 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_counts(dtype, monkeypatch):
    monkeypatch.setattr("ropescale.evals.backends.fingerprints._BLOCK", 1000)  # several blocks, the last one shorter
    model = llama(num_hidden_layers=1).to(dtype)
    model.register_buffer("beside", torch.tensor(1.0))
    before = parameters_fingerprint(model)
    for name, flat, at in places(model):
        flat[at] ^= 1
        assert parameters_fingerprint(model) != before, (name, at)
        flat[at] ^= 1
    assert parameters_fingerprint(model) == before


def test_a_schedule_is_not_part_of_the_weights():
    model = llama()
    before = parameters_fingerprint(model)
    with ropescale.patch(model, "yarn:factor=4"):
        assert parameters_fingerprint(model) == before


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_what_accelerate_has_put_elsewhere_counts(tmp_path, place):
    plain, other = llama(), llama()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight[3, 4] += 1
    before = [parameters_fingerprint(model) for model in (plain, other)]
    for model, folder in ((plain, tmp_path / "a"), (other, tmp_path / "b")):
        if place == "cpu":
            accelerate.cpu_offload(model, "cpu")
        else:
            accelerate.disk_offload(model, folder, execution_device="cpu")
        assert model.lm_head.weight.is_meta
    assert [parameters_fingerprint(model) for model in (plain, other)] == before
    assert before[0] != before[1]


def test_a_save_in_one_of_several_processes_leaves_the_configuration_the_same(tmp_path):
    model = llama()
    before = describe(model, None, "sdpa")["config_sha256"]
    model.save_pretrained(tmp_path)  # sets the architecture in its configuration
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert describe(model, None, "sdpa")["config_sha256"] == before
    model.config.rms_norm_eps *= 2
    assert describe(model, None, "sdpa")["config_sha256"] != before
