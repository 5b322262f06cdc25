"""vLLM, which returns the log-probabilities of a prompt. Its scores were compared with stock transformers (float32,
vLLM 0.32.0)."""

import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
from pydantic import AliasPath, BaseModel, FailFast, Field

from ...errors import ServerError
from .client import Call, Send, parsed
from .engines import LOWEST, Asked, Body, Generating, Position, PromptScoring, TokenId

_DRAFTS = b"accepted", b"draft"


class _Choice(BaseModel):
    """The log-probabilities of a prompt, and the log-probabilities and ids of the generated text."""

    prompt: Annotated[list[Position] | None, FailFast(), Field(validation_alias="prompt_logprobs")] = None
    logprobs: Annotated[list[float | None] | None, Field(validation_alias=AliasPath("logprobs", "token_logprobs"))] = (
        None
    )
    tops: Annotated[list[dict[str, float] | None], Field(validation_alias=AliasPath("logprobs", "top_logprobs"))] = []
    token_ids: Annotated[list[TokenId] | None, FailFast()] = None


class _Completion(BaseModel):
    choices: tuple[_Choice]


class VLLM(PromptScoring):
    """vLLM's ``/v1/completions`` with ``prompt_logprobs``.

    vLLM generates at least one token, so it rejects a prompt that is as long as its limit. For such a window, the
    prompt omits the last token, and vLLM may generate only this token; its raw log-probability is the same as in a
    prompt.
    """

    name, path, version_path, limit_option = "vLLM", "/v1/completions", "/version", "--max-model-len"

    def body(self, asked: Asked) -> Body:
        body: Body = {"model": self.model, "prompt": list(asked.ids), "temperature": 0}
        if isinstance(asked, Generating):
            return {**body, "max_tokens": asked.count, "repetition_penalty": 1.0, "return_token_ids": True}
        # A salt prevents reuse of the cached prefix of another request.
        body |= {"max_tokens": 1, "prompt_logprobs": 0, "cache_salt": uuid.uuid4().hex}
        if len(asked.ids) == self.limit:
            [*before, last] = asked.ids
            body |= {"prompt": before, "logprobs": 2, "allowed_token_ids": [last], "return_token_ids": True}
        return body

    def parts(self, content: bytes, ids: Sequence[int]) -> tuple[Sequence[Position], list[int] | None]:
        [choice] = parsed(_Completion, content, self.url).choices
        positions: list[Position] = (choice.prompt or [])[1:]
        if len(ids) == self.limit:
            # Processed log-probabilities are minus infinity for all but the allowed token. (Its own proves nothing,
            # because a raw probability may round to 1, too.)
            if any(value <= LOWEST for tokens in choice.tops for value in (tokens or {}).values()):
                raise ServerError(
                    f"{self.url} sent processed log-probabilities; serve with --logprobs-mode raw_logprobs"
                )
            for id, value, tops in zip(choice.token_ids or [], choice.logprobs or [], choice.tops, strict=False):
                above = sum(other >= (value or 0) for other in (tops or {}).values())  # itself, if it is the first
                positions.append({id: {"logprob": value, "rank": max(above, 1)}})
        return positions, choice.token_ids

    async def drafted(self, send: Send, asked: Generating) -> Iterable[float]:
        before = await _counted(send)
        await self.score(send, asked)
        return await _counted(send) - before


async def _counted(send: Send) -> np.ndarray:
    """Returns the numbers of accepted and of all draft tokens since the server's start; 0 without a draft."""
    text = await send(Call("/metrics", is_optional=True))
    lines = (re.findall(rb"^vllm:spec_decode_num_%s_tokens_total\{.*\} (\S+)" % name, text, re.M) for name in _DRAFTS)
    return np.array([sum(map(float, numbers)) for numbers in lines])


ENGINE = VLLM
