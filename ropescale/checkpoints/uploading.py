"""Uploads of checkpoints to the Hugging Face Hub: checked before anything is written, sent once complete."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, RunError
from ..files import sha256_of
from ..output.formatting import argument, first_line, named, shell_word
from .folders import SKIPPED, files_of, refuse_leaving_links
from .locating import PATIENCE
from .metadata.record import NAME as RECORD
from .metadata.record import files_in

if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelInfo
    from huggingface_hub.hf_api import RepoSibling

_EMPTY = {".gitattributes"}
"""Files that the Hub puts into a new repository."""

_FORMALITIES = {*_EMPTY, ".gitignore", "LICENSE", "README.md"}
"""Those, and files that its web page may add."""

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Repository:
    """The repository on the Hub that a checkpoint goes to.

    Attributes:
        name: ``user/name``.
        private: whether to make it private, where it does not exist yet.
        replaced: the files in it that ropescale sent, which are deleted unless the checkpoint has them too.
        commit: the one that was checked, which alone may be followed by ours; None where there is no repository yet.
        token: never printed; every message goes through :meth:`hide`.
    """

    name: str
    private: bool = False
    replaced: tuple[str, ...] = ()
    commit: str | None = None
    token: str = field(default="", repr=False)

    def hide(self, text: str) -> str:
        """Removes the token from a text, in case a server echoed it."""
        return text.replace(self.token, "***") if self.token else text

    def api(self) -> HfApi:
        """Returns the client, with our token and whatever endpoint the environment names."""
        from huggingface_hub import HfApi

        return HfApi(token=self.token)


@dataclass(frozen=True)
class Upload:
    """The files sent to a repository, or that would be.

    Attributes:
        repository: ``user/name``.
        url: its page; None after a dry run.
        private: whether it was asked to be private.
        files: the size in bytes of every file sent.
        weights_elsewhere: whether the weights, left on the Hub by a dry run, would come on top of these files.
    """

    repository: str
    url: str | None
    private: bool
    files: Mapping[str, int]
    weights_elsewhere: bool = False


def repository(name: str, *, private: bool = False, force: bool = False, ask: bool = True) -> Repository:
    """Checks in advance whether a checkpoint can be sent to a repository.

    Args:
        name: ``user/name`` or ``organisation/name``.
        private: make it private; it must not exist as a public one.
        force: replace what it holds, if that was written by ropescale.
        ask: False looks only at what is known here, needs no token and sends nothing.

    Raises:
        CheckpointError: the name is invalid, there is no token, the Hub refuses it or cannot be reached, or the
            repository holds something already.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    _refuse_name(name)
    if not ask:
        return Repository(name, private)
    to = Repository(name, private, token=_token())
    info = None
    with _translated(to):
        with suppress(RepositoryNotFoundError):
            info = to.api().model_info(name, timeout=PATIENCE, files_metadata=True)
        user = to.api().whoami()
    _refuse_user(to, user)
    if info is None:
        return to
    if private and not info.private:
        raise CheckpointError(
            f"{name} exists on the Hub and is public; make it private there, or leave private out", "private"
        )
    existing = {file.rfilename: file for file in info.siblings or ()}
    if (count := len(existing.keys() - _EMPTY)) and not force:
        raise CheckpointError(
            f"{name} exists on the Hub and holds {count} file(s); choose another name, or replace it with force",
            "force",
        )
    return replace(to, replaced=_sent_before(to, info, existing), commit=info.sha)


def upload(folder: Path, to: Repository, message: str, ours: Collection[str] = ()) -> Upload:
    """Sends a checkpoint's folder, weights and card included.

    Links are followed: their content is what is sent. The repository is made if it does not exist.

    Args:
        folder: the checkpoint.
        to: what :func:`repository` gave.
        message: the commit's title.
        ours: the links to weights that were made for it.

    Raises:
        CheckpointError: another link leads out of the folder; nothing is sent.
        RunError: it could not be sent whole; the folder is untouched, and the message says how to go on.
    """
    refuse_leaving_links(folder, ours)
    with _translated(to, folder):
        files = {name.as_posix(): (folder / name).stat().st_size for name in files_of(folder)}
        api = to.api()
        url = api.create_repo(to.name, private=to.private or None, exist_ok=to.commit is not None)
        api.upload_folder(
            repo_id=to.name,
            folder_path=folder,
            commit_message=message,
            ignore_patterns=[pattern for name in sorted(SKIPPED) for pattern in (name, f"{name}/*", f"*/{name}/*")],
            delete_patterns=[glob.escape(name) for name in to.replaced] or None,
            parent_commit=to.commit,
        )
        missing = sorted(set(files) - set(api.list_repo_files(to.name)))
    if missing:
        raise RunError(
            f"{url} lacks {len(missing)} of the files in {folder}, {missing[0]} among them (a .gitignore?); "
            f"{_retry(folder, to)}"
        )
    return Upload(to.name, str(url), to.private, files)


def intended(source: Path, changed: Mapping[str, bytes], to: Repository, weights_elsewhere: bool) -> Upload:
    """Lists what would be sent: the source's files, as far as they are here, with those that change."""
    files = {name.as_posix(): (source / name).stat().st_size for name in files_of(source)}
    files |= {name: len(content) for name, content in changed.items()}
    return Upload(to.name, None, to.private, files, weights_elsewhere)


def _refuse_name(name: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    if name.count("/") != 1:
        raise CheckpointError(f"{name!r} is not a repository's name on the Hub; give it as user/name")
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise CheckpointError(
            f"{name!r} cannot be a repository's name on the Hub; use letters, digits, - _ and . in user/name, at most "
            "96 of them, with no - or . at an end, no -- or .. and no .git"
        ) from None


def _token() -> str:
    """Returns the token that huggingface_hub would use."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise CheckpointError("HF_HUB_OFFLINE is set, so nothing can be sent to the Hub; unset it")
    token = get_token()
    if not token:
        raise CheckpointError(f"there is no token for the Hub; {_LOGIN}")
    if not (token.isascii() and token.isprintable()) or " " in token:  # a client's error would quote it in disguise
        raise CheckpointError("the token for the Hub holds characters that no token has; copy it again")
    return token


def _refuse_user(to: Repository, user: Mapping[str, Any]) -> None:
    """Refuses a token that can only read, or that cannot write to this repository."""
    role, name = user.get("auth", {}).get("accessToken", {}).get("role"), user["name"]
    if role == "read":
        raise CheckpointError(
            f"the token of {name} can only read; make one that can write at https://huggingface.co/settings/tokens"
        )
    owners = [name, *(org["name"] for org in user.get("orgs", ()))]
    owner = to.name.partition("/")[0]
    if role == "write" and owner not in owners:  # the rights of a fine-grained token are not listed
        raise CheckpointError(f"{name} cannot write to {owner}; give {' or '.join(f'{o}/NAME' for o in owners)}")


def _sent_before(to: Repository, info: ModelInfo, existing: Mapping[str, RepoSibling]) -> tuple[str, ...]:
    """Returns the repository's files that its own record lists, sorted.

    Their old content stays in the repository's history in any case.

    Raises:
        CheckpointError: it holds files that the record does not list, or that were changed since they were sent, so
            that replacing it would delete somebody's work.
    """
    if existing.keys() <= _FORMALITIES:
        return ()
    if RECORD not in existing:
        raise _refusal(f"{to.name} was not written by ropescale (no {RECORD})")
    with tempfile.TemporaryDirectory(prefix="ropescale-") as cache:
        listed = files_in(_download(to, info, RECORD, cache).parent)
        if listed is None:
            raise _refusal(f"{to.name} on the Hub has a {RECORD} that cannot be read")
        foreign = sorted(existing.keys() - _FORMALITIES - {RECORD, *listed})
        if foreign:
            more = f" and {len(foreign) - 1} more file(s)" if foreign[1:] else ""
            raise _refusal(f"{to.name} on the Hub holds {named(foreign[0])}{more} that ropescale did not send")
        for name in sorted(existing.keys() & listed.keys()):
            file, entry = existing[name], listed[name]
            if "how" in entry:  # weights, which were not read: their size counts where they were copied
                changed = "size" in entry and entry["size"] != file.size
            else:
                digest = file.lfs.sha256 if file.lfs else sha256_of(_download(to, info, name, cache))
                changed = digest != entry.get("sha256")
            if changed:
                raise _refusal(f"{to.name} on the Hub holds {named(name)} that was changed since ropescale sent it")
    return tuple(sorted(existing.keys() & {RECORD, *listed}))


def _refusal(why: str) -> CheckpointError:
    what = "delete what you do not need there, or choose another name"
    return CheckpointError(f"{why}, so force leaves it; {what}", "force")


def _download(to: Repository, info: ModelInfo, name: str, cache: str) -> Path:
    """Downloads a file of a repository into a folder; large files are in Git LFS and need no download."""
    from huggingface_hub.utils import tqdm

    bar: Any = partial(tqdm, disable=True)  # stderr is for notes and warnings
    with _translated(to):
        return Path(
            to.api().hf_hub_download(
                to.name, name, revision=info.sha, cache_dir=cache, etag_timeout=PATIENCE, tqdm_class=bar
            )
        )


@contextmanager
def _translated(to: Repository, folder: Path | None = None) -> Iterator[None]:
    """Turns an error of the client into one sentence; drops the cause: it may hold the token.

    Args:
        folder: what is sent, once it is written; the sentence names it.
    """
    try:
        yield
    except Exception as error:  # the client has a dozen ways to say no, and they differ between its versions
        said = to.hide(_reason(error, to))
        raise (RunError(f"{said}; {_retry(folder, to)}") if folder else CheckpointError(said)) from None


def _retry(folder: Path, to: Repository) -> str:
    words = ["hf", "upload", to.name, argument(folder), ".", *(["--private"] if to.private else [])]
    return f"the patched checkpoint is kept in {folder}: send it again with `{' '.join(map(shell_word, words))}`"


def _reason(error: Exception, to: Repository) -> str:
    root: BaseException = error
    while getattr(root, "response", None) is None and root.__cause__ is not None:  # upload threads wrap it
        root = root.__cause__
    status = getattr(getattr(root, "response", None), "status_code", None)
    if status == 401:
        return f"the Hub does not accept the token; {_LOGIN}"
    if status == 412:
        return f"{to.name} on the Hub was changed meanwhile; look at what was sent there"
    if status == 403:
        return f"the token may not write to {to.name} on the Hub; give it the right to, or choose another name"
    if status is not None:
        said = " ".join(str(getattr(root, "server_message", None) or "").split())
        return f"the Hub refused {to.name} ({status}: {said or first_line(root)})"
    return f"{to.name} did not reach the Hub ({first_line(root)})"
