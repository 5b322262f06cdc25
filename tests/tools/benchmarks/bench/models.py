"""Models and texts that the benchmarks share."""

from __future__ import annotations

from typing import Any


def one_thread() -> None:
    """Has torch use one thread, whatever the environment says."""
    import torch

    torch.set_num_threads(1)


def reference(least: int = 2048) -> tuple[Any, list[list[int]]]:
    """Returns the bundled model in fp32 on one thread, and its held-out documents of ``least`` ids or more."""
    from ropescale.checkpoints.loading import load_model, load_tokenizer
    from ropescale.evals import reference, tokenize

    one_thread()
    tokenizer = load_tokenizer(reference.CHECKPOINT)
    ids = [[tokenizer.bos_token_id, *each.ids] for each in tokenize(reference.held_out_documents(), tokenizer)]
    return load_model(reference.CHECKPOINT, "float32").eval(), [each for each in ids if len(each) >= least]


def llama(**shape: Any) -> Any:
    """Returns a Llama with random weights, on one thread."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    one_thread()
    torch.manual_seed(0)
    usual = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**(usual | shape))).eval()
