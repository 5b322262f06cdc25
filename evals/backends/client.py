"""An HTTP client for one server: bounded responses and waits, and no secrets in files or messages."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from anyio.from_thread import start_blocking_portal
from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError

from ...errors import DataError, RunError, ServerError
from ...files import Json
from ...output.formatting import cut, visible
from ..progress import Notes

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2 as http
else:  # huggingface_hub depends on it, formerly under the name httpx
    try:
        import httpx2 as http
    except ImportError:
        import httpx as http

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class NotANumber(ServerError, RunError):
    """A server that computes NaN."""


KEY = "OPENAI_API_KEY"
"""The environment variable of the API key, as in OpenAI's clients."""

ATTEMPTS = 6
UNREACHABLE = 3
"""The number of attempts after a lost connection: whoever starts a server again needs minutes."""

PAUSE = 1.0
"""Seconds before the second attempt. Each later pause is twice as long as the one before."""

LONGEST_PAUSE = 300.0
"""The longest pause in seconds that a server may ask for (Retry-After)."""

TIMEOUT = 3600.0
"""Default seconds to wait for a response: a million tokens take minutes, and other requests may precede them."""

SMALL = 1 << 20
"""The size limit of a response without tokens, in bytes."""

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""The status codes after which a request is sent again."""

_NAN = b"Out of range float values"
"""The error of Python's JSON encoder about NaN, with which vLLM responds."""

_UNREACHED = http.ConnectError, http.ConnectTimeout

_LONGEST_QUOTE = 300


class _Refusal(BaseModel):
    """The message of an error response."""

    message: str = Field(validation_alias=AliasChoices(AliasPath("error", "message"), "error", "message"))


@dataclass(frozen=True)
class Call:
    """A request.

    Attributes:
        path: the path of the URL.
        body: the JSON to POST; None for GET.
        most: the size limit of the response, in bytes.
        is_optional: whether the path may be missing on the server; the response is then an empty JSON object.
        advice: if not empty, a response 500 is final, and this says what to do.
    """

    path: str
    body: Json | None = None
    most: int = SMALL
    is_optional: bool = False
    advice: str = ""


@cache
def _certificates(trust_env: bool) -> SSLContext:
    """Returns the context that verifies certificates, which is cached because building it is slow."""
    return http.create_ssl_context(trust_env=trust_env)


Send = Callable[[Call], Awaitable[bytes]]
"""A function that sends a request, and returns its response."""


class Start(Protocol):
    """A function that starts tasks, each of which sends requests, and returns a future of their results."""

    def __call__(self, tasks: Sequence[Callable[[Send], Awaitable[T]]]) -> Future[list[T]]: ...


class Client:
    """An HTTP client of one server.

    Args:
        url: the server's address, such as ``http://localhost:8000``, with or without ``/v1``.
        timeout: seconds to wait for a response.

    Attributes:
        headers: the headers of every request.
        notes: receives a message whenever a request is sent again.

    Raises:
        DataError: the address is invalid, or contains a user name, a password or a query.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self.notes = Notes()
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

    def report_to(self, notes: Notes) -> None:
        """Lets these notes receive the messages from now on."""
        self.notes = notes

    def ask(self, call: Call, model: type[M]) -> M:
        """Sends a request and returns the parsed response.

        Raises:
            ServerError: the server cannot be reached, rejects the request, or sends an invalid response.
        """
        with self.connected() as start:
            [content] = start([lambda send: send(call)]).result()
        return parsed(model, content, self.url + call.path)

    @contextmanager
    def connected(self, concurrency: int = 1) -> Iterator[Start]:
        """Opens a connection pool, and yields the function that starts tasks, of which ``concurrency`` run at once.

        Requests run in an event loop in a separate thread, so that many can wait at the same time. An error inside the
        block closes the connections of pending requests, so that the server stops computing them.
        """
        try:
            pool = http.AsyncClient(
                headers=self.headers,
                timeout=http.Timeout(None, connect=10.0),
                limits=http.Limits(max_connections=None),
                trust_env=not self._is_local,  # requests to this machine bypass a proxy
                verify=_certificates(not self._is_local),
            )
        except (ImportError, ValueError, OSError) as error:  # an unknown kind of proxy, or no such file
            raise DataError(
                f"no connection can be made to {self.url}: {self._quoted(str(error))}; correct the proxy "
                "(ALL_PROXY, HTTP_PROXY, HTTPS_PROXY) or the certificates (SSL_CERT_FILE, SSL_CERT_DIR)"
            ) from None
        free = asyncio.Semaphore(concurrency)

        async def one(task: Callable[[Send], Awaitable[T]]) -> T:
            async with free:
                return await task(partial(self._answer, pool))

        async def results(tasks: Sequence[Callable[[Send], Awaitable[T]]]) -> list[T]:
            return await asyncio.gather(*map(one, tasks))

        with start_blocking_portal() as portal, portal.wrap_async_context_manager(pool):
            yield lambda tasks: portal.start_task_soon(results, tasks)

    async def _answer(self, pool: http.AsyncClient, call: Call) -> bytes:
        """Returns the body of a response. All attempts together wait at most ``timeout`` seconds for the server."""
        clock = asyncio.get_running_loop().time
        left = self.timeout
        pause = PAUSE
        lost = 0
        problems: list[str] = []
        while len(problems) < ATTEMPTS and lost < UNREACHABLE and left > 0:
            if problems:
                self.notes.tell(f"{self.url}: {problems[-1]}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
            pause = PAUSE * 2 ** len(problems)
            began = clock()
            try:
                async with asyncio.timeout(left):
                    response, content = await self._once(pool, call)
            except TimeoutError:
                problems.append(f"no complete response within {self.timeout:g} s")
                break
            except http.RequestError as error:
                if pool.is_closed:
                    raise
                problems.append(self._broken(error))
                lost += isinstance(error, _UNREACHED)
                continue
            finally:
                left -= clock() - began
            self._has_answered = True
            status = response.status_code
            if status != 200 and _NAN in content:
                raise NotANumber(f"{self.url} computes NaN: it responds with {status}{self._reason(content)}")
            if status == 200:
                return content
            if status == 404 and call.is_optional:
                return b"{}"
            if status not in _TRANSIENT or (status == 500 and call.advice):
                advice = f"; {call.advice}" if status == 500 else ""
                raise ServerError(self._refusal(status, content) + advice)
            problems.append(f"the server responds with {status}{self._reason(content)}")
            with suppress(ValueError):  # the header is missing, or a date
                pause = max(pause, min(float(response.headers.get("Retry-After", "")), LONGEST_PAUSE))
        times = f"{len(problems)} times, the last time " if len(problems) > 1 else ""
        first = f"; the first time, because {problems[0]}" if problems[0] != problems[-1] else ""
        hint = "; is it still running?" if lost else ""
        raise ServerError(f"{self.url} failed {times}because {problems[-1]}{first}{hint}")

    def _broken(self, error: http.RequestError) -> str:
        """Returns why a connection failed.

        Raises:
            ServerError: further attempts are useless.
        """
        problem = self._quoted(str(error)) or type(error).__name__
        if "[SSL" in problem:
            raise ServerError(
                f"{self.url} has no secure connection ({problem}); correct the address or the certificate, or name the "
                "certificates to trust in SSL_CERT_FILE"
            ) from None
        if isinstance(error, _UNREACHED) and not self._has_answered:
            raise ServerError(f"{self.url} cannot be reached ({problem}); is it running?") from None
        return problem

    async def _once(self, pool: http.AsyncClient, call: Call) -> tuple[http.Response, bytes]:
        """Returns one response and its body."""
        content = bytearray()
        method = "GET" if call.body is None else "POST"
        async with pool.stream(method, self.url + call.path, json=call.body) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > call.most:
                    raise ServerError(
                        f"{self.url}{call.path} sent more than {call.most:,} bytes, too many for this request"
                    )
        return response, bytes(content)

    def _refusal(self, status: int, content: bytes) -> str:
        if status in (401, 403):
            verb = "refuses the key" if self._key else "requires a key"
            where = "" if self._is_safe else "; over plain http it is sent only to this machine"
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
        """Returns the start of a message of a server or library, without the API key."""
        text = text.replace(self._key, "...") if self._key else text
        return visible(cut(" ".join(text.split()), _LONGEST_QUOTE))


def parsed(model: type[M], content: bytes, sender: str) -> M:
    """Parses a response.

    Raises:
        ServerError: the response is invalid.
    """
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        [first, *_] = error.errors()
    where = ".".join(map(str, first["loc"][:3])) or "the body"  # deeper names come from the server
    raise ServerError(f"{sender} sent an invalid response ({where}: {first['msg']})")
