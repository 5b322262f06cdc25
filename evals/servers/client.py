"""An HTTP client for one server: bounded responses, retries with backoff, and no secrets in files or messages.

Requests run in an event loop in a separate thread, so that many wait at once. Cancelling a request closes its
connection, and the server stops computing it.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError

from ...errors import DataError, ServerError
from ...output.formatting import cut, visible
from ..running.progress import Notes

if TYPE_CHECKING:
    import httpx2 as http
else:  # huggingface_hub depends on it, formerly under the name httpx
    try:
        import httpx2 as http
    except ImportError:
        import httpx as http

T = TypeVar("T")

KEY = "OPENAI_API_KEY"
"""The environment variable of the API key, as in OpenAI's clients."""

ATTEMPTS = 6
PAUSE = 1.0
"""Seconds before the second attempt; later pauses double."""

TIMEOUT = 3600.0
"""Default seconds to wait for a response: a million tokens take minutes, and other requests may precede them."""

SMALL = 1 << 20
"""The most bytes of a response without tokens."""

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""The status codes of requests that are sent again."""

_LONGEST_QUOTE = 300


class _NotFound(ServerError):
    """The server does not have this path."""


class _Refusal(BaseModel):
    """The message of an error response."""

    message: str = Field(validation_alias=AliasChoices(AliasPath("error", "message"), "error", "message"))


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the parser of its response.

    Attributes:
        read: parses the response; raises pydantic's ValidationError for an invalid one.
        body: the JSON to POST; None for GET.
        most: the most bytes of the response.
    """

    path: str
    read: Callable[[bytes], T]
    body: Mapping[str, object] | None = None
    most: int = SMALL


class Client:
    """A connection pool for one server. It opens at the first request, and again after :meth:`close`.

    Args:
        url: the server's address, such as ``http://localhost:8000``, with or without ``/v1``.
        timeout: seconds to wait for a response.
        concurrency: the most requests at once.

    Attributes:
        headers: the headers of every request.
        notes: receives a message for every repeated request.

    Raises:
        DataError: the address is invalid, or contains a user name, a password or a query.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT, concurrency: int = 8) -> None:
        self.timeout, self.concurrency, self.notes = timeout, concurrency, Notes()
        try:
            parts = http.URL(url.strip())
        except http.InvalidURL:
            parts = http.URL("")
        if parts.scheme not in ("http", "https") or not parts.host or not 0 < (parts.port or 1) < 2**16:
            raise DataError("the server's address is invalid; give one such as http://localhost:8000", "server")
        if parts.userinfo or parts.query or parts.fragment:
            raise DataError(
                f"the address of a server contains a user name, a password or a query; remove it, and set a key in "
                f"{KEY}",
                "server",
            )
        self.url = str(parts).rstrip("/").removesuffix("/v1").rstrip("/")
        self._is_local = re.fullmatch(r"localhost|127(\.\d+){3}|::1", parts.host) is not None
        self._is_safe = self._is_local or parts.scheme == "https"
        key = os.environ.get(KEY, "").strip()
        if not key.isascii() or not key.isprintable():
            raise DataError(f"{KEY} contains invalid characters; set it again", "server")
        self._key = key if self._is_safe else ""
        self.headers = {"Accept-Encoding": "identity", "Accept": "application/json"}
        self.headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._has_answered = False
        self._running: tuple[asyncio.AbstractEventLoop, http.AsyncClient] | None = None

    def ask(self, request: Call[T]) -> T | None:
        """Returns the response to a request; None if the server lacks the path.

        Raises:
            ServerError: the server cannot be reached, refuses, or sends an invalid response.
        """
        try:
            return self.start([request]).result()[0]
        except _NotFound:
            return None

    def start(self, requests: Sequence[Call[T]]) -> Future[list[T]]:
        """Sends requests, and returns a future of their responses; cancelling the future aborts them."""
        if self._running is None:
            try:
                pool = http.AsyncClient(
                    headers=self.headers,
                    timeout=http.Timeout(None, connect=10.0),
                    limits=http.Limits(max_connections=None),
                    trust_env=not self._is_local,  # requests to this machine bypass a proxy
                )
            except (ImportError, ValueError, OSError) as error:  # an unknown kind of proxy, or no such file
                raise DataError(
                    f"no connection can be made to {self.url}: {self._quoted(str(error))}; correct the proxy "
                    "(ALL_PROXY, HTTP_PROXY, HTTPS_PROXY) or the certificates (SSL_CERT_FILE, SSL_CERT_DIR)"
                ) from None
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._running, self._free = (runner.get_loop(), pool), asyncio.Semaphore(self.concurrency)
            threading.Thread(target=_run, args=(runner,), daemon=True).start()
        loop, pool = self._running

        async def answers() -> list[T]:
            return await asyncio.gather(*(self._answer(pool, request) for request in requests))

        return asyncio.run_coroutine_threadsafe(answers(), loop)

    def close(self) -> None:
        """Closes the connections, and aborts pending requests."""
        if self._running is not None:
            (loop, pool), self._running = self._running, None
            closed = asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
            closed.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))

    async def _answer(self, pool: http.AsyncClient, request: Call[T]) -> T:
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                pause = PAUSE * 2 ** (attempt - 1)
                self.notes.tell(f"{self.url}: {problem}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
            try:
                async with self._free, asyncio.timeout(self.timeout):
                    status, content = await self._once(pool, request)
            except (http.RequestError, TimeoutError) as error:
                late = f"no whole response within {self.timeout:g} s"
                problem = late if isinstance(error, TimeoutError) else self._quoted(str(error)) or type(error).__name__
                if isinstance(error, (http.ConnectError, http.ConnectTimeout)) and not self._has_answered:
                    raise ServerError(f"{self.url} cannot be reached ({problem}); is it running?") from None
                continue
            self._has_answered = True
            if status == 200:
                try:
                    return request.read(content)
                except ValidationError as error:
                    first = error.errors()[0]
                where = self._quoted(".".join(map(str, first["loc"])) or "the body")
                raise ServerError(f"{self.url}{request.path} sent an invalid response ({where}: {first['msg']})")
            if status not in _TRANSIENT:
                raise (_NotFound if status == 404 else ServerError)(self._refusal(status, content))
            problem = f"the server responds with {status}{self._reason(content)}"
        raise ServerError(f"{self.url} failed {ATTEMPTS} times, the last time because {problem}")

    async def _once(self, pool: http.AsyncClient, request: Call[T]) -> tuple[int, bytes]:
        """Returns the status and the body of one response."""
        content, method = bytearray(), "GET" if request.body is None else "POST"
        async with pool.stream(method, self.url + request.path, json=request.body) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > request.most:
                    raise ServerError(
                        f"{self.url}{request.path} sent more than {request.most:,} bytes, too many for this request"
                    )
        return response.status_code, bytes(content)

    def _refusal(self, status: int, content: bytes) -> str:
        if status in (401, 403):
            verb = "refuses the key" if self._key else "requires a key"
            where = "" if self._is_safe else "; plain http sends it only to this machine"
            return f"{self.url} {verb} ({status}); it is read from {KEY}{where}"
        if 300 <= status < 400:
            return f"{self.url} responds with a redirect ({status}), which is not followed; give the redirect's target"
        return f"{self.url} refuses the request ({status}){self._reason(content)}"

    def _reason(self, content: bytes) -> str:
        try:
            return f": {self._quoted(_Refusal.model_validate_json(content).message)}"
        except ValidationError:
            return ""

    def _quoted(self, text: str) -> str:
        """Returns the start of a server's or library's text, without the key."""
        text = text.replace(self._key, "...") if self._key else text
        return visible(cut(" ".join(text.split()), _LONGEST_QUOTE))


def _run(runner: asyncio.Runner) -> None:
    """Runs an event loop until it is stopped, then cancels its tasks."""
    with runner:
        runner.get_loop().run_forever()
