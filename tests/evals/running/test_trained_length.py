"""At what length a model counts as trained: scaling of its makers was trained, scaling of ours was not."""

import pytest
from configurations import LLAMA31_SCALING
from tiny import documents, llama
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

import ropescale
from ropescale.evals import perplexity
from ropescale.evals.backends.loaded import trained_length

# As in the config.json of meta-llama/Llama-3.1-8B.
LLAMA_3_1 = {"rope_parameters": LLAMA31_SCALING | {"rope_theta": 500000.0}, "max_position_embeddings": 131072}

SCALING = LLAMA_3_1["rope_parameters"] | {"original_max_position_embeddings": 16}
SMALL = {"rope_parameters": SCALING, "max_position_embeddings": 128}


@pytest.mark.parametrize("spec", ["linear:factor=4", "yarn:factor=4", "dynamic:factor=4"])
@pytest.mark.parametrize(("changes", "trained"), [({}, 64), (LLAMA_3_1, 131072)])
def test_a_model_patched_in_memory_or_on_disk_was_trained_as_it_was_before(tmp_path, spec, changes, trained):
    model = llama(**changes)
    assert trained_length(model) == trained
    for scaled in ({"on_top": True}, {"replace_scaling": True}) if changes else ({},):
        with ropescale.patch(model, spec, **scaled):
            assert trained_length(model) == trained
    model.save_pretrained(tmp_path / "source")
    ropescale.patch_checkpoint(tmp_path / "source", tmp_path / "patched", spec, **scaled)
    for name in ("source", "patched"):
        assert trained_length(LlamaForCausalLM.from_pretrained(tmp_path / name)) == trained


def test_scaling_that_the_makers_trained_costs_nothing_at_lengths_up_to_theirs():
    """Of a model scaled from 16 to 128 tokens: the short-context cost is that at 100, and nothing is far below 128."""
    result = perplexity(llama(**SMALL), documents(2, 140), [16, 100, 140], ["linear:factor=2"], replace_scaling=True)
    assert result.trained_length == 128 and result.repeats[0].distance == 128
    assert [each.length for each in result.divergences] == [100]
    assert {row.length for row in result.repeats} == {140} and "trained at 128 tokens" in result.to_markdown()


def test_learned_positions_are_trained_up_to_their_number():
    model = GPT2LMHeadModel(GPT2Config(n_positions=48, n_embd=8, n_layer=1, n_head=1, vocab_size=20))
    assert trained_length(model) == 48
