"""An HTTP client for one server: bounded responses, retries with backoff, and no secrets in files or messages.

Requests run in an event loop in a separate thread, so that many wait at once. Cancelling a request closes its
connection, and the server stops computing it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

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
"""Seconds before the second attempt; later pauses double, up to a minute."""

TIMEOUT = 3600.0
"""Default seconds to wait for a response: a million tokens take minutes, and other requests may precede them."""

SMALL = 1 << 20
"""The most bytes of a response without tokens."""

_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_SAID = 300


class _NotFound(ServerError):
    """The server does not have this path."""


class Client:
    """A connection pool for one server. It opens at the first request, and again after :meth:`close`.

    Args:
        url: the server's address, such as ``http://localhost:8000``, with or without ``/v1``.
        timeout: seconds to wait for the next bytes of a response.
        notes: called with a message for every repeated request.

    Raises:
        DataError: the address is invalid, or contains a user name, a password or a query.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT, notes: Notes | None = None) -> None:
        self.timeout, self.notes = timeout, notes or Notes()
        try:
            parts = urlsplit(url.strip())
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            parts, is_address = urlsplit(""), False
        if not is_address:
            raise DataError("the server's address is invalid; give one such as http://localhost:8000", "server")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise DataError(
                f"the address of a server contains a user name, a password or a query; remove it, and set a key in "
                f"{KEY}",
                "server",
            )
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"
        self._is_local = _is_loopback(parts.hostname or "")
        self._is_safe = self._is_local or parts.scheme == "https"
        key = os.environ.get(KEY, "").strip()
        if not key.isascii() or not key.isprintable():
            raise DataError(f"{KEY} contains invalid characters; set it again", "server")
        self._key = key if self._is_safe else ""
        self._has_answered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: http.AsyncClient | None = None

    def ask(self, path: str, read: Callable[[bytes], T], body: Mapping[str, object] | None = None) -> T | None:
        """Returns a small response to GET, or to POST with a body; None if the server lacks the path.

        Raises:
            ServerError: the server cannot be reached, refuses, or sends an invalid response.
        """
        waiting = self.start(path, body, SMALL, read)
        try:
            return waiting.result()
        except _NotFound:
            return None
        finally:
            waiting.cancel()

    def start(self, path: str, body: Mapping[str, object] | None, most: int, read: Callable[[bytes], T]) -> Future[T]:
        """Sends a request, and returns a future of its response; cancelling the future aborts the request.

        Args:
            most: the most bytes of the response.
            read: parses the response; raises pydantic's ValidationError for an invalid one.
        """
        if self._loop is None:
            self._loop, self._http = asyncio.new_event_loop(), self._opened()
            threading.Thread(target=_run, args=(self._loop, self._http), daemon=True).start()
        return asyncio.run_coroutine_threadsafe(self._answer(path, body, most, read), self._loop)

    def close(self) -> None:
        """Closes the connections, and aborts pending requests."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _opened(self) -> http.AsyncClient:
        headers = {"Accept-Encoding": "identity", "Accept": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return http.AsyncClient(
            headers=headers,
            follow_redirects=False,
            timeout=http.Timeout(connect=10.0, read=self.timeout, write=self.timeout, pool=None),
            limits=http.Limits(max_connections=None),
            trust_env=not self._is_local,  # requests to this machine bypass a proxy
        )

    async def _answer(self, path: str, body: Mapping[str, object] | None, most: int, read: Callable[[bytes], T]) -> T:
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                pause = min(60.0, PAUSE * 2 ** (attempt - 1))
                self.notes.tell(f"{self.url}: {why}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
            try:
                status, content = await self._once(path, body, most)
            except http.RequestError as error:
                why = self._shown(str(error)) or type(error).__name__
                if isinstance(error, http.ConnectError) and not self._has_answered:
                    raise ServerError(f"{self.url} cannot be reached ({why}); is it running?") from None
                continue
            self._has_answered = True
            if status in _AGAIN:
                why = f"the server responds with {status}{self._reason(content)}"
            elif status != 200:
                raise (_NotFound if status == 404 else ServerError)(self._refusal(status, content))
            else:
                try:
                    return read(content)
                except ValidationError as error:
                    first = error.errors()[0]
                if first["type"] != "json_invalid":
                    where = self._shown(".".join(map(str, first["loc"])) or "the answer")
                    raise ServerError(f"{self.url}{path} sent an invalid response ({where}: {first['msg']})")
                why = "its response is not JSON"
        raise ServerError(f"{self.url} failed {ATTEMPTS} times, the last time because {why}")

    async def _once(self, path: str, body: Mapping[str, object] | None, most: int) -> tuple[int, bytes]:
        assert self._http is not None
        content = bytearray()
        async with self._http.stream("GET" if body is None else "POST", self.url + path, json=body) as answer:
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > most:
                    raise ServerError(f"{self.url}{path} sent more than {most:,} bytes, too many for this request")
            return answer.status_code, bytes(content)

    def _refusal(self, status: int, content: bytes) -> str:
        if status in (401, 403):
            told = "refuses the key" if self._key else "requires a key"
            where = "" if self._is_safe else "; plain http sends it only to this machine"
            return f"{self.url} {told} ({status}); it is read from {KEY}{where}"
        if 300 <= status < 400:
            return f"{self.url} responds with a redirect ({status}), which is not followed; give the redirect's target"
        return f"{self.url} refuses the request ({status}){self._reason(content)}"

    def _reason(self, content: bytes) -> str:
        """Returns the message of an error response; "" without one."""
        error = None
        with suppress(ValueError, RecursionError):
            error = json.loads(content)
        for name in ("error", "message"):
            error = error.get(name, error) if isinstance(error, dict) else error
        return f": {self._shown(error)}" if isinstance(error, str) and error else ""

    def _shown(self, text: str) -> str:
        """Returns the start of a server's or library's text, without the key."""
        text = text.replace(self._key, "...") if self._key else text
        return visible(cut(" ".join(text.split()), _LONGEST_SAID))


def _run(loop: asyncio.AbstractEventLoop, client: http.AsyncClient) -> None:
    """Runs an event loop until it is stopped, then aborts its requests and closes the connections."""

    async def end() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await client.aclose()

    loop.run_forever()
    loop.run_until_complete(end())
    loop.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
