"""Twenty calls with a misspelled keyword or a value of a wrong type, which a type checker finds."""

from transformers import PreTrainedModel

from ropescale import TrainingCallback, frequencies, patch, patch_checkpoint, verify
from ropescale.evals import Server, keys, perplexity, recommend, retrieval, search


def calls(model: PreTrainedModel, server: Server) -> None:
    perplexity(model, ["text"], "2k", tokeniser=None)
    perplexity(model, ["text"], "2k", budget_token=1)
    perplexity(model, ["text"], "2k", stride="512")
    perplexity(model, ["text"], 2.5)
    perplexity(server, ["text"], "2k", short_context="no")
    perplexity(model, 7, "2k")
    retrieval(model, "2k", depth=5)
    retrieval(model, "2k", trials="10")
    recommend(model, ["text"], "32k", schedule=["yarn"])
    recommend(model, ["text"], "32k", tolerance="0.1")
    search(model, ["text"], "32k", budget=5)
    search(model, ["text"], "32k", seed="2")
    keys(model, ["text"], windows=4096)
    keys(model, ["text"], alpha="2")
    TrainingCallback("yarn:factor=8", eval_document=["text"])
    TrainingCallback("yarn:factor=8", every="50")
    patch(model, "yarn", facotr=2)
    patch_checkpoint("CKPT", "OUT", "yarn", target_lenght="32k")
    frequencies("CKPT", "yarn", original_length=2.5)
    verify("CKPT", generated=True)
