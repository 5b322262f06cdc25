"""The Hub's endpoints for uploading a model, in memory, with everything that arrives kept for a look.

huggingface_hub's own client runs; only its transport is replaced. What it sends is decoded as the Hub does: small files
come base64 in the commit's NDJSON, weights go through Git LFS (batch, PUT, verify), and a commit that names an object
nobody sent is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils import _http, close_session

httpx = vars(_http).get("httpx2") or vars(_http)["httpx"]  # which of the two depends on huggingface_hub's version

TOKEN = "hf_RecognisableFakeTokenXyzzy0123456789"
URL = "https://hub.test"


@dataclass
class Hub:
    """What the Hub knows and what has been sent to it."""

    url: str = URL
    user: dict[str, Any] = field(
        default_factory=lambda: {
            "type": "user",
            "name": "me",
            "orgs": [{"name": "ours"}],
            "auth": {"type": "access_token", "accessToken": {"displayName": "x", "role": "write"}},
        }
    )
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    commits: list[dict[str, Any]] = field(default_factory=list)
    through_lfs: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    """``{"POST /api/repos/create": (403, "message")}``: the requests, by the start of their line, that fail."""
    objects: dict[str, bytes] = field(default_factory=dict)

    def respond(self, request: Any) -> Any:
        """Answers a request; any other host refuses the connection."""
        if request.url.host != httpx.URL(self.url).host:
            raise httpx.ConnectError("[Errno 111] Connection refused", request=request)
        line = f"{request.method} {request.url.path}"
        self.requests.append(line)
        refusal = next((why for start, why in self.refusals.items() if line.startswith(start)), None)
        if refusal is not None:
            status, value = refusal
        elif not request.url.path.startswith("/lfs") and request.headers["Authorization"] != f"Bearer {TOKEN}":
            status, value = 401, "Invalid credentials in Authorization header"
        else:
            status, value = self._act(request.method, request.url.path.strip("/").split("/"), request.read())
        said = {"error": value} if isinstance(value, str) else value
        headers = {"X-Error-Message": said["error"]} if status >= 400 else {}
        if status == 404:
            headers["X-Error-Code"] = "RepoNotFound"
        return httpx.Response(status, json=said, headers=headers)

    def _act(self, method: str, words: list[str], body: bytes) -> tuple[int, Any]:
        match [method, *words]:
            case ["GET", "api", "whoami-v2"]:
                return 200, self.user
            case ["POST", "api", "validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case ["POST", "api", "repos", "create"]:
                return self._create(json.loads(body))
            case ["PUT", "lfs", oid]:
                self.objects[oid] = body
                return 200, {}
            case ["POST", "lfs", "verify"]:
                asked = json.loads(body)
                right = hashlib.sha256(self.objects[asked["oid"]]).hexdigest() == asked["oid"]
                return (200, {}) if right else (400, "the object is not what was announced")
        name = "/".join(words[2:4] if words[0] == "api" else words[:2]).removesuffix(".git")
        if name not in self.repositories:
            return 404, "Repository not found"
        return self._inside(name, method, words[4:] if words[0] == "api" else words[2:], body)

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked['organization'] or self.user['name']}/{asked['name']}"
        url = {"url": f"{self.url}/{name}"}
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", **url}
        self.repositories[name] = {".gitattributes": b"*.safetensors filter=lfs\n"}
        if asked.get("visibility") == "private" or asked.get("private"):
            self.private.add(name)
        return 200, url

    def _inside(self, name: str, method: str, words: list[str], body: bytes) -> tuple[int, Any]:
        files = self.repositories[name]
        match [method, *words]:
            case ["GET"] | ["GET", "revision", _]:
                siblings = [{"rfilename": each} for each in files]
                return 200, {"id": name, "private": name in self.private, "sha": self._sha(), "siblings": siblings}
            case ["GET", "tree", *_]:
                return 200, [{"type": "file", "path": p, "size": len(c), "oid": ""} for p, c in files.items()]
            case ["POST", "preupload", _]:
                return 200, {"files": [_mode(each["path"]) for each in json.loads(body)["files"]]}
            case ["POST", "info", "lfs", "objects", "batch"]:
                return 200, {"transfer": "basic", "objects": [self._way(each) for each in json.loads(body)["objects"]]}
            case ["POST", "commit", _]:
                return self._commit(name, [json.loads(line) for line in body.splitlines()])
        return 404, f"no such endpoint: {method} {words}"

    def _sha(self) -> str:
        return f"{len(self.commits):040x}"

    def _way(self, asked: dict[str, Any]) -> dict[str, Any]:
        upload, verify = ({"href": f"{self.url}/lfs/{where}"} for where in (asked["oid"], "verify"))
        return {**asked, "actions": {"upload": upload, "verify": verify}}

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        files = self.repositories[name]
        if lines[0]["value"].get("parentCommit", self._sha()) != self._sha():
            return 412, "A commit has happened since. Please refresh and try again."
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    self.commits.append(value)
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in self.objects:
                        return 400, f"LFS object {value['oid']} was never uploaded"
                    files[value["path"]] = self.objects[value["oid"]]
                    self.through_lfs.add(value["path"])
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{self._sha()}", "commitOid": self._sha()}


def _mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(".safetensors") else "regular", "shouldIgnore": False}


@contextmanager
def connected(monkeypatch: Any) -> Iterator[Hub]:
    """A Hub that huggingface_hub takes for the real one, with a token that it accepts, until the block is left."""
    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hooks, transport = {"request": [_http.hf_request_event_hook]}, httpx.MockTransport(hub.respond)
    set_client_factory(lambda: httpx.Client(event_hooks=hooks, transport=transport))
    try:
        yield hub
    finally:
        set_client_factory(_http.default_client_factory)
        close_session()
