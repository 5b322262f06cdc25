"""The Hub's HTTP endpoints for uploading a model, on 127.0.0.1, with everything that arrives kept for a look.

What huggingface_hub sends is decoded as the Hub does: small files come base64 in the commit's NDJSON, weights go
through Git LFS (batch, PUT, verify), and a commit that names an object nobody sent is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants
from huggingface_hub.utils import close_session

TOKEN = "hf_RecognisableFakeTokenXyzzy0123456789"


@dataclass
class Hub:
    """What the server knows and what has been sent to it."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    commits: list[dict[str, Any]] = field(default_factory=list)
    through_lfs: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    """``{"POST /api/repos/create": (403, "message")}``: the requests, by the start of their line, that fail."""
    objects: dict[str, bytes] = field(default_factory=dict)


_CONTEXT = ssl.create_default_context()


def share_ssl_context(monkeypatch: Any) -> None:
    """Gives every HTTP client one SSL context, because reading all certificates takes longer than any request here."""
    if find_spec("httpcore2"):
        monkeypatch.setattr("httpcore2.default_ssl_context", lambda **_: _CONTEXT)


@contextmanager
def connected(monkeypatch: Any) -> Iterator[Hub]:
    """A Hub that huggingface_hub takes for the real one, with a token that it accepts, until the block is left."""
    hub = Hub()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub})) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        files = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        share_ssl_context(monkeypatch)
        close_session()
        try:
            yield hub
        finally:
            close_session()
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece, or the client's delayed acknowledgement costs 40 ms

    def log_message(self, format: str, *args: Any) -> None:
        """Not onto the tests' stderr, in which they look for what ropescale says."""

    def handle_any(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self._body()
        line = f"{self.command} {path}"
        self.hub.requests.append(line)
        refusal = next((why for start, why in self.hub.refusals.items() if line.startswith(start)), None)
        if refusal is not None:
            self._answer(*refusal)
        elif path != "/lfs" and not path.startswith("/lfs/") and self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, "Invalid credentials in Authorization header")
        else:
            self._answer(*self._act(self.command, path.strip("/").split("/"), body))

    do_GET = do_POST = do_PUT = do_HEAD = handle_any

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, status: int, value: Any) -> None:
        said = value if isinstance(value, str) else value["error"] if status >= 400 else ""
        value = {"error": value} if isinstance(value, str) else value
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        if status >= 400:
            self.send_header("X-Error-Message", said)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
        if isinstance(value, bytes):  # a file
            self.send_header("ETag", f'"{_blob(value)}"')
            self.send_header("X-Repo-Commit", self._sha())
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _act(self, method: str, words: list[str], body: bytes) -> tuple[int, Any]:
        hub = self.hub
        match [method, *words]:
            case ["POST", "api", "validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case ["POST", "api", "repos", "create"]:
                return self._create(json.loads(body))
            case ["PUT", "lfs", oid]:
                hub.objects[oid] = body
                return 200, {}
            case ["POST", "lfs", "verify"]:
                asked = json.loads(body)
                right = hashlib.sha256(hub.objects[asked["oid"]]).hexdigest() == asked["oid"]
                return (200, {}) if right else (400, "the object is not what was announced")
        name = "/".join(words[2:4] if words[0] == "api" else words[:2]).removesuffix(".git")
        if name not in hub.repositories:
            return 404, "Repository not found"
        return self._inside(name, method, words[4:] if words[0] == "api" else words[2:], body)

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        url = {"url": f"{self.hub.url}/{name}"}
        if name in self.hub.repositories:
            return 409, {"error": "You already created this model repo", **url}
        self.hub.repositories[name] = {".gitattributes": b"*.safetensors filter=lfs\n"}
        if asked.get("visibility") == "private" or asked.get("private"):
            self.hub.private.add(name)
        return 200, url

    def _inside(self, name: str, method: str, words: list[str], body: bytes) -> tuple[int, Any]:
        files = self.hub.repositories[name]
        match [method, *words]:
            case ["GET"] | ["GET", "revision", _]:
                siblings = [{"rfilename": each, **self._metadata(each, files[each])} for each in files]
                return 200, {"id": name, "private": name in self.hub.private, "sha": self._sha(), "siblings": siblings}
            case ["GET" | "HEAD", "resolve", _, *path] if "/".join(path) in files:
                return 200, files["/".join(path)]
            case ["GET", "tree", *_]:
                entries = [{"type": "file", "path": p, "size": len(c), "oid": _blob(c)} for p, c in files.items()]
                return 200, entries
            case ["POST", "preupload", _]:
                return 200, {"files": [self._mode(each) for each in json.loads(body)["files"]]}
            case ["POST", "info", "lfs", "objects", "batch"]:
                return 200, {"transfer": "basic", "objects": [self._way(each) for each in json.loads(body)["objects"]]}
            case ["POST", "commit", _]:
                return self._commit(name, [json.loads(line) for line in body.splitlines()])
        return 404, f"no such endpoint: {method} {words}"

    def _sha(self) -> str:
        return f"{len(self.hub.commits):040x}"

    def _metadata(self, path: str, content: bytes) -> dict[str, Any]:
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return {
            "size": len(content),
            "blobId": _blob(content),
            **({"lfs": lfs} if path in self.hub.through_lfs else {}),
        }

    def _mode(self, asked: dict[str, Any]) -> dict[str, Any]:
        mode = "lfs" if asked["path"].endswith(".safetensors") else "regular"
        return {"path": asked["path"], "uploadMode": mode, "shouldIgnore": False}

    def _way(self, asked: dict[str, Any]) -> dict[str, Any]:
        actions = {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}"}}
        return {**asked, "actions": {**actions, "verify": {"href": f"{self.hub.url}/lfs/verify"}}}

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        files = self.hub.repositories[name]
        if lines[0]["value"].get("parentCommit", self._sha()) != self._sha():
            return 412, "A commit has happened since. Please refresh and try again."
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    self.hub.commits.append(value)
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in self.hub.objects:
                        return 400, f"LFS object {value['oid']} was never uploaded"
                    files[value["path"]] = self.hub.objects[value["oid"]]
                    self.hub.through_lfs.add(value["path"])
                case "deletedFile":
                    del files[value["path"]]
        return 200, {"commitUrl": f"{self.hub.url}/{name}/commit/{self._sha()}", "commitOid": self._sha()}


def _blob(content: bytes) -> str:
    """Git's name for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
