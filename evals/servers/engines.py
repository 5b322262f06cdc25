"""How engines score a prompt over HTTP: the request, and the log-probabilities in the answer.

vLLM was run (0.32.0, float32, against stock transformers). SGLang is written from its source and was not run.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...errors import DataError, ServerError
from ...output.formatting import listed, named
from .client import Client

_LOWEST, _HIGHEST = -9000.0, 0.01
"""The range of log-probabilities: vLLM writes -9999 for minus infinity, and rounding may pass zero."""

ROW = 640
"""Bytes that the answer for one token has at most: a number of 20 digits, an id, a rank, and the token's text."""


class PromptScoring(ABC):
    """How the model of an engine is asked.

    Attributes:
        model: the name that it is served under.
        limit: the positions that it takes, prompt and answer together; None where it does not say.
    """

    name: ClassVar[str]
    version_path: ClassVar[str]

    def __init__(self, model: str, limit: int | None) -> None:
        self.model, self.limit = model, limit

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The positions of the longest window that it can score."""

    @abstractmethod
    def request(self, ids: Sequence[int], ranked: bool = False) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body that ask for the log-probability of every id but the first.

        Args:
            ranked: ask whether it is the most likely one, too.
        """

    @abstractmethod
    def ranks(self, answer: Mapping[str, Any]) -> list[bool]:
        """Returns whether each token but the first is the most likely one there."""

    @abstractmethod
    def rows(self, answer: Mapping[str, Any], ids: Sequence[int]) -> list[tuple[int, Any]]:
        """Returns the id and the log-probability of every position but the first, as they stand in an answer."""

    @abstractmethod
    def continuation(self, ids: Sequence[int], new_tokens: int) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body that ask for what greedy decoding writes after these ids."""

    @abstractmethod
    def written(self, answer: Mapping[str, Any]) -> list[int]:
        """Returns the ids that were generated, as they stand in an answer."""

    def generated(self, answer: Mapping[str, Any], most: int) -> np.ndarray:
        """Returns the ids that were generated, int64 [tokens].

        Raises:
            ServerError: the answer does not hold ids, or more than were asked for.
        """
        try:
            ids = self.written(answer)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ServerError(
                f"{self.name} answers without the ids of generated tokens ({type(error).__name__})"
            ) from None
        if not isinstance(ids, list) or len(ids) > most or not all(type(each) is int and each >= 0 for each in ids):
            raise ServerError(f"{self.name} answers what is no list of at most {most:,} generated ids")
        return np.array(ids, np.int64)

    def ranked(self, answer: Mapping[str, Any], ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the NLL as :meth:`nll`, and whether each token is the most likely one, bool [ids - 1].

        Raises:
            ServerError: the answer does not say.
        """
        nll = self.nll(answer, ids)
        try:
            ranks = np.array(self.ranks(answer), bool)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
            raise ServerError(f"{self.name} answers without ranks ({type(error).__name__})") from None
        if len(ranks) != len(nll):
            raise ServerError(f"{self.name} answers {len(ranks):,} ranks for {len(nll):,} tokens")
        return nll, ranks

    def nll(self, answer: Mapping[str, Any], ids: Sequence[int]) -> np.ndarray:
        """Returns the NLL in nats of every id but the first, fp32 [ids - 1].

        Raises:
            ServerError: the answer does not hold one finite log-probability for each of these ids.
        """
        try:
            rows = self.rows(answer, ids)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            what = type(error).__name__
            raise ServerError(f"{self.name} answers without log-probabilities of the prompt ({what})") from None
        if len(rows) != len(ids) - 1:
            raise ServerError(f"{self.name} answers {len(rows):,} log-probabilities for {len(ids) - 1:,} tokens")
        for position, ((found, value), asked) in enumerate(zip(rows, ids[1:], strict=True), 1):
            if found != asked:
                there = named(str(found))
                raise ServerError(f"{self.name} answers for token {there} at position {position:,}, not for {asked}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not _LOWEST < value < _HIGHEST:
                shown = named(str(value))
                hint = "; serve without prefix caching" if value is None else ""
                raise ServerError(f"{self.name} answers {shown} for the token at position {position:,}{hint}")
        return -np.array([value for _, value in rows], np.float32)


class VLLM(PromptScoring):
    """vLLM's ``/v1/completions`` with ``prompt_logprobs``.

    It generates at least one token, so a prompt as long as its limit is refused. The last token of such a window is
    that one generated token: no other is allowed, and its raw log-probability is the one that a longer prompt gives.
    """

    name, version_path = "vLLM", "/version"

    @property
    def longest(self) -> int | None:
        return self.limit

    def request(self, ids: Sequence[int], ranked: bool = False) -> tuple[str, dict[str, Any]]:
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        body |= {"cache_salt": uuid.uuid4().hex}  # no prefix of another request is taken for this one's
        if len(ids) == self.limit:
            body |= {"prompt": list(ids[:-1]), "logprobs": 0, "allowed_token_ids": [ids[-1]], "return_token_ids": True}
        return "/v1/completions", body

    def rows(self, answer: Mapping[str, Any], ids: Sequence[int]) -> list[tuple[int, Any]]:
        [choice] = answer["choices"]
        rows = [_of_one(row, id) for row, id in zip(choice["prompt_logprobs"][1:], ids[1:])]
        rows += [(-1, None)] * (len(choice["prompt_logprobs"]) - 1 - len(rows))
        if len(ids) == self.limit:
            ([last], [value]) = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            if value == 0:
                raise ServerError("vLLM answers processed log-probabilities; serve with --logprobs-mode raw_logprobs")
            rows.append((last, value))
        return rows

    def continuation(self, ids: Sequence[int], new_tokens: int) -> tuple[str, dict[str, Any]]:
        body = {"model": self.model, "prompt": list(ids), "max_tokens": new_tokens, "temperature": 0}
        return "/v1/completions", {**body, "repetition_penalty": 1.0, "return_token_ids": True}

    def written(self, answer: Mapping[str, Any]) -> list[int]:
        [choice] = answer["choices"]
        return choice["token_ids"]

    def ranks(self, answer: Mapping[str, Any]) -> list[bool]:
        return [next(iter(row.values()))["rank"] == 1 for row in answer["choices"][0]["prompt_logprobs"][1:]]


def _of_one(row: Mapping[str, Any] | None, id: int) -> tuple[int, Any]:
    """Returns a row's id and log-probability: those of the id that was asked for, or of another that is there."""
    if row is None:
        return id, None
    found = str(id) if str(id) in row else next(iter(row))
    return int(found), row[found]["logprob"]


class SGLang(PromptScoring):
    """SGLang's ``/generate`` with ``return_logprob`` from the first position on."""

    name, version_path = "SGLang", "/get_server_info"

    @property
    def longest(self) -> int | None:
        return None if self.limit is None else self.limit - 1  # one token is generated

    def request(self, ids: Sequence[int], ranked: bool = False) -> tuple[str, dict[str, Any]]:
        sampling = {"max_new_tokens": 1, "temperature": 0}
        return "/generate", {
            "input_ids": list(ids),
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
            **({"top_logprobs_num": 1} if ranked else {}),
        }

    def continuation(self, ids: Sequence[int], new_tokens: int) -> tuple[str, dict[str, Any]]:
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "repetition_penalty": 1.0}
        return "/generate", {"input_ids": list(ids), "sampling_params": sampling}

    def written(self, answer: Mapping[str, Any]) -> list[int]:
        return answer["output_ids"]

    def ranks(self, answer: Mapping[str, Any]) -> list[bool]:
        about = answer["meta_info"]
        best = about["input_top_logprobs"][1:]
        return [top[0][1] == own[1] for top, own in zip(best, about["input_token_logprobs"][1:], strict=True)]

    def rows(self, answer: Mapping[str, Any], ids: Sequence[int]) -> list[tuple[int, Any]]:
        return [(id, value) for value, id, *_ in answer["meta_info"]["input_token_logprobs"][1:]]


ENGINES: dict[str, type[PromptScoring]] = {"vllm": VLLM, "sglang": SGLang}
"""The engines that can score, by the ``owned_by`` of their models."""


@dataclass(frozen=True)
class Served:
    """An engine and its model, as a server describes itself."""

    engine: PromptScoring
    version: str

    @property
    def about(self) -> str:
        """The engine and its version."""
        return f"{self.engine.name} {self.version}"


def served_by(client: Client, wanted: str | None = None) -> Served:
    """Asks a server which engine it is, and which model it serves.

    Args:
        wanted: the name of the model; None takes the first, of which the others are adapters.

    Raises:
        ServerError: it cannot be reached, or is no engine that can score a prompt.
        DataError: it does not serve that model.
    """
    there = client.ask("/v1/models", missing=True).get("data")
    cards = [each for each in there if isinstance(each, dict)] if isinstance(there, list) else []
    cards = [card for card in cards if isinstance(card.get("id"), str)]
    owner = str(cards[0].get("owned_by")) if cards else ""
    kind = ENGINES.get(owner)
    if kind is None:
        raise ServerError(_cannot(client.url, owner))
    found = [card for card in cards if wanted in (None, card["id"])]
    if not found:
        names = listed([named(card["id"]) for card in cards])
        raise DataError(f"{client.url} does not serve {named(str(wanted))}; it serves {names}", "served_name")
    limits = [card.get("max_model_len") for card in (*found, *cards)]  # an adapter has its base's
    limit = next((each for each in limits if isinstance(each, int)), None)
    version = client.ask(kind.version_path, missing=True).get("version")
    return Served(kind(found[0]["id"], limit), version if isinstance(version, str) else "of an unknown version")


def _cannot(url: str, owner: str) -> str:
    if owner == "llamacpp":
        return (
            f"{url} is llama-server, which gives no log-probabilities of a prompt; measure the file with "
            "llama-perplexity -m model.gguf -f text, or with llama-cpp-python (logits_all=True)"
        )
    what = f"a server of {named(owner)}" if owner and owner != "None" else "no server that says which engine it is"
    return (
        f"{url} is {what}; vLLM (vllm serve) and SGLang can score a prompt, and so can the checkpoint itself: "
        "ropescale eval MODEL"
    )
