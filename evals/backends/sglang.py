"""SGLang, which returns the log-probabilities of a prompt. Written from its source code, and not run."""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from pydantic import AliasPath, BaseModel, FailFast, Field

from .client import Call, Send, parsed
from .engines import Asked, Body, Generating, Position, PromptScoring, TokenId

_Logprob = tuple[float | None, int] | tuple[float | None, int, object]
"""A log-probability, the token's id and, from SGLang, its text."""


class _Generation(BaseModel):
    """The log-probabilities of a prompt, the most likely tokens of its positions, and the generated ids."""

    prompt: Annotated[
        list[_Logprob] | None, FailFast(), Field(validation_alias=AliasPath("meta_info", "input_token_logprobs"))
    ] = None
    tops: Annotated[
        list[list[_Logprob] | None] | None, Field(validation_alias=AliasPath("meta_info", "input_top_logprobs"))
    ] = None
    output_ids: Annotated[list[TokenId] | None, FailFast()] = None
    accepted: Annotated[int, Field(validation_alias=AliasPath("meta_info", "spec_num_correct_drafts"))] = 0
    proposed: Annotated[int, Field(validation_alias=AliasPath("meta_info", "spec_num_proposed_drafts"))] = 0


class SGLang(PromptScoring):
    """SGLang's ``/generate`` with ``return_logprob`` from the first position.

    Attributes:
        unscored: the number of entries before that of the second token.
    """

    name, path, version_path = "SGLang", "/generate", "/get_server_info"
    limit_option = "--context-length, one more than the window"
    reserved = 1  # for the generated token
    unscored: ClassVar[int] = 1

    def body(self, asked: Asked) -> Body:
        sampling = {"max_new_tokens": 1, "temperature": 0}
        if isinstance(asked, Generating):
            sampling |= {"max_new_tokens": asked.count, "repetition_penalty": 1.0}
            return {"input_ids": list(asked.ids), "sampling_params": sampling}
        body: Body = {"input_ids": list(asked.ids), "sampling_params": sampling, "return_logprob": True}
        return {**body, "logprob_start_len": 0, "top_logprobs_num": int(asked.ranked)}

    def parts(self, content: bytes, ids: Sequence[int]) -> tuple[Sequence[Position], list[int] | None]:
        answer = parsed(_Generation, content, self.url)
        positions: list[Position] = [{id: {"logprob": value}} for value, id, *_ in answer.prompt or []]
        for position, tops in zip(positions, answer.tops or [], strict=False):
            for id, token in (position or {}).items():
                if tops:
                    token["rank"] = 1 if tops[0][1] == id else 2
        return positions[self.unscored :], answer.output_ids

    async def drafted(self, send: Send, asked: Generating) -> Iterable[float]:
        answer = parsed(_Generation, await send(Call(self.path, self.body(asked))), self.url)
        return answer.accepted, answer.proposed


ENGINE = SGLang
