"""An HTTP client for one server: bounded answers, retries with backoff, and no secret in any file or message.

Requests run in an event loop in a thread of its own, so that many wait at once, and whoever waits for one can give it
up at any time: then its connection is closed, and the server stops computing it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ...errors import DataError, ServerError
from ...output.formatting import cut, visible
from ..running.progress import Notes

if TYPE_CHECKING:
    import httpx2 as httpx

T = TypeVar("T")

KEY = "OPENAI_API_KEY"
"""The environment variable of the key, as OpenAI's clients have it."""

ATTEMPTS = 6
PAUSE = 1.0
"""Seconds before the second attempt; each later pause is twice as long, and at most a minute."""

TIMEOUT = 3600.0
"""Default seconds to wait for an answer: a million tokens take minutes, and others may be before them."""

SMALL = 1 << 20
"""Bytes that an answer has at most that holds no tokens."""

_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_SAID = 300


class Client:
    """A kept connection pool to one server. It opens at the first request, and again after :meth:`close`.

    Args:
        url: its address, such as ``http://localhost:8000``; a ``/v1`` at the end may be left out.
        timeout: seconds to wait for an answer to go on.
        notes: tells the user about requests that are sent again.

    Raises:
        DataError: no address, or one with a user's name, a password or a query in it.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT, notes: Notes | None = None) -> None:
        self.url, self._is_local, self._is_safe = _checked(url)
        self.timeout, self.notes = timeout, notes or Notes()
        key = os.environ.get(KEY, "").strip()
        if not key.isascii() or not key.isprintable():
            raise DataError(f"{KEY} holds what no key does; set it again", "server")
        self._key = key if self._is_safe else ""
        self._answered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: httpx.AsyncClient | None = None

    def ask(self, path: str, body: Mapping[str, object] | None = None, missing: bool = False) -> dict[str, Any]:
        """Returns a small answer: of GET, or of POST where there is a body.

        Args:
            missing: return nothing where the server does not have this path.

        Raises:
            ServerError: it cannot be reached, refuses, or answers what cannot be read.
        """
        waiting = self.start(path, body, SMALL, lambda answer: answer, missing)
        try:
            return waiting.result()
        finally:
            waiting.cancel()

    def start(
        self,
        path: str,
        body: Mapping[str, object] | None,
        most: int,
        read: Callable[[dict[str, Any]], T],
        missing: bool = False,
    ) -> Future[T]:
        """Sends a request, and returns what will hold its answer; cancelling that gives the request up.

        Args:
            most: bytes of the answer.
            read: makes of the answer what is kept of it.
        """
        return asyncio.run_coroutine_threadsafe(self._asked(path, body, most, read, missing), self._running())

    def close(self) -> None:
        """Closes the connections, and gives up what is still being asked for."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._http = self._opened()
            threading.Thread(target=_run, args=(loop, self._http), daemon=True).start()
        return self._loop

    def _opened(self) -> httpx.AsyncClient:
        http = _library()
        headers = {"Accept-Encoding": "identity", "Accept": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return http.AsyncClient(
            headers=headers,
            follow_redirects=False,
            timeout=http.Timeout(connect=10.0, read=self.timeout, write=self.timeout, pool=None),
            limits=http.Limits(max_connections=None),
            trust_env=not self._is_local,  # a proxy has no part in what stays on this machine
        )

    async def _asked(
        self,
        path: str,
        body: Mapping[str, object] | None,
        most: int,
        read: Callable[[dict[str, Any]], T],
        missing: bool,
    ) -> T:
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                pause = min(60.0, PAUSE * 2 ** (attempt - 1))
                self.notes.tell(f"{self.url}: {why}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
            try:
                status, content = await self._once(path, body, most)
            except _library().RequestError as error:
                if not self._answered and isinstance(error, _library().ConnectError):
                    said = self._said(str(error))
                    raise ServerError(f"{self.url} cannot be reached ({said}); is it running?") from None
                why = self._said(str(error)) or type(error).__name__
                continue
            self._answered = True
            if status in _AGAIN:
                why = f"it answers {status}{self._reason(content)}"
            elif status == 404 and missing:
                return read({})
            elif status != 200:
                raise ServerError(self._refusal(status, content))
            else:
                answer = _parsed(content)
                if answer is not None:
                    return read(answer)
                why = "its answer is no JSON object"
        raise ServerError(f"{self.url} failed {ATTEMPTS} times, the last time because {why}")

    async def _once(self, path: str, body: Mapping[str, object] | None, most: int) -> tuple[int, bytes]:
        assert self._http is not None
        method = "GET" if body is None else "POST"
        found = bytearray()
        async with self._http.stream(method, self.url + path, json=body) as answer:
            async for piece in answer.aiter_raw():
                found += piece
                if len(found) > most:
                    raise ServerError(f"{self.url}{path} answers more than {most:,} bytes, too many for what was asked")
            return answer.status_code, bytes(found)

    def _refusal(self, status: int, content: bytes) -> str:
        if status in (401, 403):
            told = "refuses the key" if self._key else "asks for a key"
            where = "" if self._is_safe else "; over plain http it is sent to this machine alone"
            return f"{self.url} {told} ({status}); it is read from {KEY}{where}"
        if 300 <= status < 400:
            return f"{self.url} answers with a redirect ({status}), which is not followed; give the address behind it"
        return f"{self.url} refuses the request ({status}){self._reason(content)}"

    def _reason(self, content: bytes) -> str:
        answer = _parsed(content) or {}
        error = answer.get("error", answer)
        said = error.get("message") if isinstance(error, dict) else error
        return f": {self._said(said)}" if isinstance(said, str) and said else ""

    def _said(self, text: str) -> str:
        """Returns the beginning of what a server or a library says, without the key."""
        text = text.replace(self._key, "...") if self._key else text
        return visible(cut(" ".join(text.split()), _LONGEST_SAID))


def _run(loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> None:
    """Runs a loop until it is stopped, then gives up its requests and closes the connections."""

    async def ended() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await http.aclose()

    loop.run_forever()
    loop.run_until_complete(ended())
    loop.close()


def _library() -> Any:
    """Returns the HTTP library that comes with huggingface_hub, which was httpx before it was httpx2."""
    try:
        import httpx2 as found
    except ImportError:
        import httpx as found  # type: ignore[import-not-found, no-redef]
    return found


def _checked(url: str) -> tuple[str, bool, bool]:
    """Returns an address without what follows the server's own, whether it is this machine, and whether a key may go
    there."""
    try:
        parts = urlsplit(url.strip())
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        parts, is_address = urlsplit(""), False
    if not is_address:
        raise DataError("the server's address is none; give one such as http://localhost:8000", "server")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise DataError(
            f"the address of a server has a user's name, a password or a query in it; leave it out, and give a key by "
            f"{KEY}",
            "server",
        )
    is_local = _is_loopback(parts.hostname or "")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}", is_local, is_local or parts.scheme == "https"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, dict) else None
