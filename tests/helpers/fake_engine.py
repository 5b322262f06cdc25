"""The endpoints of engines that score, on 127.0.0.1, with answers of the recorded shapes, and faults.

The log-probabilities are a function's of the ids: a model's, or arithmetic that depends on every id before.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATHS = {"vllm": "/v1/completions", "sglang": "/generate", "lmdeploy": "/generate", "llamacpp": "/completion"}

LogProbs = Callable[[Sequence[int]], list[float]]


def arithmetic(ids: Sequence[int]) -> list[float]:
    """The log-probability of every id but the first; each depends on all before it."""
    state, found = 7 + ids[0], []
    for each in ids[1:]:
        state = (state * 1103515245 + 12345 + each) % 2**31
        found.append(-(state % 8000) / 1000)
    return found


@dataclass
class Engine:
    """What a server computes, what it is asked, and how it fails."""

    kind: str = "vllm"
    logprobs: LogProbs = arithmetic
    ranks: Callable[[Sequence[int]], list[int]] = lambda ids: [1] * (len(ids) - 1)
    writes: Callable[[Sequence[int], int], list[int]] = lambda ids, count: [0] * count
    models: tuple[str, ...] = ("tiny",)
    limit: int = 4096
    bits: float = 32.0
    incomplete: Callable[[int], bool] = lambda id: False
    """Whether an id ends within a character, for llama-server: it then has no entry."""
    tokens: Callable[[str], list[int]] | None = None
    fault: Callable[[int, Sequence[int]], str] = lambda number, ids: ""
    """What is wrong with the answer to the scoring request of this number, from 1."""
    instead: dict[str, Any] = field(default_factory=dict)
    """By path, what is answered instead of the usual."""
    error_headers: dict[str, str] = field(default_factory=dict)
    drafts: tuple[int, int] | None = None
    """Of how many draft tokens per request that generates (the second) how many are accepted (the first)."""
    seconds: float = 0.0
    url: str = ""
    scored: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    _lock: Any = field(default_factory=threading.Lock)
    _now: int = 0
    _generated: int = 0

    def answer(self, body: dict[str, Any]) -> tuple[int, Any, str]:
        """The status, the answer and the fault of a scoring request."""
        with self._lock:
            self.scored.append(body)
            number = len(self.scored)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            time.sleep(self.seconds)
            ids = body.get("prompt") or body["input_ids"]
            fault = self.fault(number, ids)
            code, _, message = fault.partition(" ")
            if code.isdecimal():
                return int(code), {"error": {"message": message or "come back later"}}, ""
            if self.kind == "llamacpp" and self._now > 1 and fault == "one cache":
                return 500, {"error": {"message": "Context size has been exceeded."}}, ""
            if self.kind == "llamacpp":
                return *self._llamacpp(body, ids, fault), fault
            return 200, (self._vllm if self.kind == "vllm" else self._sglang)(body, ids, fault), fault
        finally:
            with self._lock:
                self._now -= 1

    def _vllm(self, body: dict[str, Any], ids: list[int], fault: str) -> dict[str, Any]:
        if "prompt_logprobs" not in body:
            self._generated += 1
            return {"choices": [{"index": 0, "text": "x", "token_ids": self._written(ids, body["max_tokens"], fault)}]}
        last = body.get("allowed_token_ids", [])
        values = _faulty(self.logprobs([*ids, *last]), fault)
        shown = [each + 1 for each in ids] if fault == "other ids" else ids
        ranks = [*self.ranks(ids), 1, 1]
        rows: list[Any] = [
            {str(id): {"logprob": value, "rank": rank, "decoded_token": "x"}}
            for id, value, rank in zip([*shown[1:], 0, 0], values[: len(values) - len(last)], ranks, strict=False)
        ]
        if fault == "null":
            rows[5] = None
        if fault == "another first":
            rows = [{str(int(*row) + 1): {"logprob": -0.5, "rank": 1}, **row} for row in rows]
        choice: dict[str, Any] = {"index": 0, "text": "", "prompt_logprobs": [None, *rows]}
        if last:
            other = -17.5 if self.ranks([*ids, *last])[-1] == 1 else values[-1] / 2
            tops = [{"x": values[-1], "y": -9999.0 if fault == "processed" else other}]
            choice |= {"token_ids": last, "logprobs": {"token_logprobs": values[-1:], "top_logprobs": tops}}
        if fault == "no ids":
            choice.pop("token_ids", None)
        choices = {"no choice": [], "two choices": [choice, choice]}.get(fault, [choice])
        return {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": choices}

    def _llamacpp(self, body: dict[str, Any], ids: list[int], fault: str) -> tuple[int, Any]:
        assert not {"ignore_eos", "stop", "grammar"} & body.keys()  # with which tokens lose their entries
        if len(ids) >= self.limit or max(ids) > 10_000:
            return 400, {"error": {"message": "exceed_context_size_error", "type": "exceed_context_size_error"}}
        answer: dict[str, Any] = {"content": "x", "tokens_evaluated": len(ids) - (fault == "too few")}
        bias = {id: more for id, more in body.get("logit_bias", []) if id <= 10_000}
        if "logit_bias" in body and not bias:
            answer |= {"tokens": [7], "completion_probabilities": [{"id": 7, "logprob": -0.5}]}
        elif not bias:
            answer["tokens"] = self._written(ids, body["n_predict"], fault)
            names = ("draft_n_accepted", "draft_n")
            answer["timings"] = {"predicted_n": body["n_predict"], **dict(zip(names, self.drafts or (), strict=False))}
        elif body["temperature"] == 0 and body.get("n_probs"):
            [drawn] = bias
            best = drawn if self.ranks([*ids, drawn])[-1] == 1 else drawn + 1
            value = None if fault == "NaN" else self.logprobs([*ids, drawn])[-1]
            entry = {"id": drawn, "token": "x", "logprob": value, "top_logprobs": [{"id": best, "logprob": -0.5}]}
            drawn = entry["id"] = drawn + 1 if fault in ("NaN", "other ids") else drawn
            answer |= {"tokens": [drawn], "completion_probabilities": [] if self.incomplete(drawn) else [entry]}
        else:
            weights = {id: math.exp(self.logprobs([*ids, id])[-1] + more - 100) for id, more in bias.items()}
            tops = [{"id": id, "prob": each / sum(weights.values())} for id, each in weights.items()]
            tops.sort(key=lambda each: -each["prob"])
            entry = {**tops[0], "top_probs": tops if body.get("post_sampling_probs") else []}
            answer |= {"tokens": [entry["id"]]}
            answer |= {"completion_probabilities": [] if self.incomplete(entry["id"]) else [entry]}
        shown = {name for name in body["response_fields"] if name != "tokens" or body.get("return_tokens")}
        return 200, {name: value for name, value in answer.items() if name in shown}

    def metrics(self) -> str:
        """The counters of draft tokens, as if two processes had drafted, and tokens of others before."""
        lines = ["# TYPE vllm:spec_decode_num_accepted_tokens_total counter", "vllm:num_requests_running 1.0"]
        for name, each in zip(("accepted", "draft"), self.drafts or (), strict=False):
            metric, labels = f"vllm:spec_decode_num_{name}_tokens", 'model_name="tiny"}'
            lines += [f'{metric}_total{{engine="0",{labels} {100.0 + each * self._generated}']
            lines += [f'{metric}_total{{engine="1",{labels} 7.0', f'{metric}_created{{engine="1",{labels} 1.7e+09']
        return "\n".join(lines)

    def _written(self, ids: list[int], count: int, fault: str) -> Any:
        written = self.writes(ids, count)
        return {"null": None, "too many": [*written, *[0] * count, 0], "NaN": [-1], "huge": [2**70]}.get(fault, written)

    def _sglang(self, body: dict[str, Any], ids: list[int], fault: str) -> dict[str, Any]:
        if "return_logprob" not in body:
            count = body["max_tokens"] if self.kind == "lmdeploy" else body["sampling_params"]["max_new_tokens"]
            written = self._written(ids, count, fault)
            names = ("spec_num_correct_drafts", "spec_num_proposed_drafts")
            meta = {"prompt_tokens": len(ids), **dict(zip(names, self.drafts or (), strict=False))}
            return {"text": "x", "output_ids": written, "meta_info": meta}
        shown = [each + 1 for each in ids] if fault == "other ids" else ids
        rows: list[Any] = [
            [value, id, None] for value, id in zip(_faulty(self.logprobs(ids), fault), [*shown[1:], 0, 0], strict=False)
        ]
        if fault == "null":
            rows[5][0] = None
        best = [[[0.0, id if rank == 1 else id + 1, None]] for id, rank in zip(ids[1:], self.ranks(ids), strict=True)]
        own = [[None, ids[0], None], *rows]
        if self.kind == "lmdeploy":
            assert body["max_tokens"] == 0
            tops = [[top[:2] for top in each] for each in best] if body["top_logprobs_num"] else None
            own = {"input_token_logprobs": [each[:2] for each in rows], "input_top_logprobs": tops}
            return {"text": "", "output_ids": [], "meta_info": own}
        meta = {"prompt_tokens": len(ids), "input_token_logprobs": own, "input_top_logprobs": [None, *best]}
        return {"text": "x", "meta_info": meta}


def _faulty(values: list[float], fault: str) -> list[float]:
    if fault == "NaN":
        values = [*values[:3], float("nan"), *values[4:]]
    return values[:-1] if fault == "too few" else [*values, -1.0] if fault == "too many" else values


@contextmanager
def serving(**about: Any) -> Iterator[Engine]:
    """Runs a server with these attributes of :class:`Engine`."""
    engine = Engine(**about)
    with _Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"engine": engine})) as server:
        engine.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield engine
        finally:
            server.shutdown()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of connections that are given up."""


class _Handler(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        """Not onto the tests' stderr, in which they look for what ropescale says."""

    def do_GET(self) -> None:
        engine = self.engine
        engine.headers.append(dict(self.headers))
        if self.path in engine.instead:
            self._send(200, engine.instead[self.path])
        elif self.path == "/v1/models" and engine.kind == "llamacpp":
            meta = {"n_ctx": engine.limit, "n_params": 1000, "size": int(engine.bits * 125)}
            self._send(200, {"data": [{"id": name, "owned_by": "llamacpp", "meta": meta} for name in engine.models]})
        elif self.path == "/props" and engine.kind == "llamacpp":
            self._send(200, {"build_info": "b1-0", "total_slots": 4})
        elif self.path == "/v1/models":
            limit = {} if engine.kind == "lmdeploy" else {"max_model_len": engine.limit}
            cards = [{"id": name, "owned_by": engine.kind, **limit} for name in engine.models]
            self._send(200, {"object": "list", "data": cards})
        elif self.path == "/metrics" and engine.kind == "vllm":
            self._send(200, engine.metrics().encode())
        elif self.path == {"vllm": "/version", "sglang": "/get_server_info"}.get(engine.kind):
            self._send(200, {"version": "0.0.1"})
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        engine = self.engine
        engine.headers.append(dict(self.headers))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in engine.instead:
            self._send(200, engine.instead[self.path])
        elif self.path == "/v1/encode" and engine.kind == "lmdeploy" and engine.tokens is not None:
            self._send(200, {"input_ids": engine.tokens(body["input"])})
        elif self.path == "/tokenize" and engine.tokens is not None and body["model"] in engine.models:
            text = body.get("content", "") if engine.kind == "llamacpp" else body["prompt"]
            self._send(200, {"tokens": engine.tokens(text)})
        elif self.path == PATHS.get(engine.kind):
            status, answer, fault = engine.answer(body)
            if fault == "redirect":
                self._send(307, {}, Location="http://127.0.0.1:9/elsewhere")
            elif fault == "breaks off":
                content = json.dumps(answer).encode()
                self._head(200, len(content))
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
            elif fault == "drips":
                self._head(200, 1000)
                for _ in range(20):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.05)
            elif fault == "rubbish":
                self._head(200, 20_000_000)
                self.wfile.write(b"x" * 20_000_000)
            else:
                self._send(status, answer, **({} if status == 200 else engine.error_headers))
        else:
            self._send(404, {"detail": "Not Found"})

    def _send(self, status: int, answer: Any, **headers: str) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._head(status, len(content), **headers)
        self.wfile.write(content)

    def _head(self, status: int, size: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(size), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
