"""LMDeploy's PyTorch engine, which returns the log-probabilities of a prompt with ``--logprobs-mode raw_logprobs``.
Written from the source code of LMDeploy 0.18.0, and not run."""

from .client import Call
from .engines import Asked, Body, Generating
from .sglang import SGLang


class LMDeploy(SGLang):
    """LMDeploy's ``/generate``, which differs from SGLang's in the request, and states neither limit nor version."""

    name, version_path, limit_option = "LMDeploy", "/version", "--session-len, one more than the window"
    unscored = 0

    def body(self, asked: Asked) -> Body:
        body: Body = {"input_ids": list(asked.ids), "temperature": 0, "top_k": 1, "repetition_penalty": 1.0}
        if isinstance(asked, Generating):
            return {**body, "max_tokens": asked.count}
        scoring = {"max_tokens": 0, "return_logprob": True, "logprob_start_len": 0}
        return {**body, **scoring, "top_logprobs_num": int(asked.ranked)}

    def tokenizing(self, text: str) -> Call:
        return Call("/v1/encode", {"input": text, "add_bos": False}, is_optional=True)


ENGINE = LMDeploy
