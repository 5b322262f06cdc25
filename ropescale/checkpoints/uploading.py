"""Uploads checkpoints to the Hugging Face Hub. The target is checked before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, RunError
from ..output.formatting import argument, first_line, shell_word
from .locating import PATIENCE

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LOG = logging.getLogger(__name__)
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Repository:
    """The target repository on the Hub.

    Attributes:
        name: ``user/name``.
        private: whether to create the repository as private.
        commit: the checked commit, which must be the parent of the upload; None if the repository does not exist yet.
        token: the access token, which is never printed; every message goes through :meth:`hide`.
    """

    name: str
    private: bool = False
    commit: str | None = None
    token: str = field(default="", repr=False)

    def hide(self, text: str) -> str:
        """Replaces the token in a text that may contain it."""
        return text.replace(self.token, "***") if self.token else text

    def api(self) -> HfApi:
        """Returns a client with the token and the endpoint from the environment."""
        from huggingface_hub import HfApi

        return HfApi(token=self.token)


@dataclass(frozen=True)
class Upload:
    """A finished or planned upload.

    Attributes:
        repository: ``user/name``.
        url: the repository's page; None after a dry run.
        private: whether a private repository was requested.
        files: the size in bytes of every file of the upload, by name.
    """

    repository: str
    url: str | None
    private: bool
    files: Mapping[str, int]


def repository(name: str, *, private: bool = False, ask: bool = True) -> Repository:
    """Checks in advance whether a checkpoint can be uploaded to a repository.

    Args:
        name: ``user/name`` or ``organisation/name``.
        private: create a private repository; a public repository of this name must not exist.
        ask: whether to query the Hub; False checks only locally, without a token.

    Raises:
        CheckpointError: the name is invalid, the token is missing or rejected, the Hub cannot be reached, or the
            repository is not empty or public despite ``private``.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    _refuse_name(name)
    if not ask:
        return Repository(name, private)
    to = Repository(name, private, token=_token())
    info = None
    with _translated(to):
        try:
            info = to.api().model_info(name, timeout=PATIENCE)
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:  # a rejected token, whatever the client makes of it
                raise
    if info is None:
        return to
    if private and not info.private:
        raise CheckpointError(
            f"{name} exists on the Hub and is public; make it private there, or leave private out", "private"
        )
    count = len({file.rfilename for file in info.siblings or ()} - {".gitattributes"})  # created by the Hub itself
    if count:
        raise CheckpointError(
            f"{name} exists on the Hub and contains {count} file(s); choose another name, or delete it there"
        )
    return Repository(name, private, info.sha, to.token)


Contents = Mapping[str, Path | bytes]
"""The path or the content of every file to upload, by name."""


def intended(contents: Contents, to: Repository, url: str | None = None) -> Upload:
    """Describes an upload of these files."""
    sizes = {name: len(file) if isinstance(file, bytes) else file.stat().st_size for name, file in contents.items()}
    return Upload(to.name, url, to.private, sizes)


def upload(contents: Contents, to: Repository, message: str, folder: Path | None) -> Upload:
    """Uploads a checkpoint in one commit. Creates the repository if it does not exist.

    Args:
        contents: the files; the targets of links are uploaded.
        to: the result of :func:`repository`.
        message: the commit's title.
        folder: the folder with the files, which remains after a failed upload; None if nothing was written.

    Raises:
        RunError: the upload failed or is incomplete; after a failure the message tells how to repeat it.
    """
    from huggingface_hub import CommitOperationAdd

    with _translated(to, _retry(folder, to)):
        api = to.api()
        url = api.create_repo(to.name, private=to.private or None, exist_ok=to.commit is not None)
        added = [CommitOperationAdd(name, file) for name, file in contents.items()]
        api.create_commit(to.name, added, commit_message=message, parent_commit=to.commit)
    try:
        missing = sorted(contents.keys() - set(api.list_repo_files(to.name)))
    except Exception as error:  # the commit is there, so repeating the upload would not help
        reason = to.hide(_reason(error, to))
        LOG.warning("the upload to %s is complete, but its list of files was not checked: %s", url, reason)
        missing = []
    if missing:
        raise RunError(
            f"{url} lacks {len(missing)} of the files, such as {missing[0]}; does a .gitignore exclude them?"
        )
    return intended(contents, to, str(url))


def _refuse_name(name: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    if name.count("/") != 1:
        raise CheckpointError(f"{name!r} is not a repository's name on the Hub; give it as user/name")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise CheckpointError(f"{name!r} cannot be a repository's name on the Hub: {first_line(error)}") from None


def _token() -> str:
    """Returns huggingface_hub's token.

    Raises:
        CheckpointError: the token is missing or malformed, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise CheckpointError("HF_HUB_OFFLINE is set, which prevents uploads to the Hub; unset it")
    token = get_token()
    # the client's error for a malformed token would quote the token
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CheckpointError(f"the token for the Hub is missing, or has invalid characters; {_LOGIN}")
    return token


@contextmanager
def _translated(to: Repository, retry: str | None = None) -> Iterator[None]:
    """Turns the client's error into one sentence. Drops the cause, which may contain the token.

    Args:
        retry: how to repeat a failed upload; None before the upload starts.
    """
    try:
        yield
    except Exception as error:  # the client raises a dozen types of errors, which differ between versions
        reason = to.hide(_reason(error, to))
        raise (RunError(f"{reason}; {retry}") if retry else CheckpointError(reason)) from None


def _retry(folder: Path | None, to: Repository) -> str:
    if folder is None:
        return "nothing was written on this machine; repeat the command"
    words = ["hf", "upload", to.name, argument(folder), ".", *(["--private"] if to.private else [])]
    return f"the patched checkpoint stays in {folder}; upload it again with `{' '.join(map(shell_word, words))}`"


def _reason(error: Exception, to: Repository) -> str:
    root: BaseException = error
    while getattr(root, "response", None) is None and root.__cause__ is not None:  # upload threads wrap errors
        root = root.__cause__
    status = getattr(getattr(root, "response", None), "status_code", None)
    if status == 401:
        return f"the Hub does not accept the token; {_LOGIN}"
    if status == 412:
        return f"{to.name} on the Hub was changed meanwhile; check its latest commit"
    if status == 403:
        return f"the token may not write to {to.name} on the Hub; give it write access, or choose another name"
    if status is not None:
        message = " ".join(str(getattr(root, "server_message", None) or "").split())
        return f"the Hub refused {to.name} ({status}: {message or first_line(root)})"
    return f"a request to the Hub for {to.name} failed ({first_line(root)})"
