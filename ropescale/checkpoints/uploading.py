"""Uploads checkpoints to the Hugging Face Hub: checked before writing, sent once complete."""

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
"""Files that the Hub creates in a new repository."""

_FORMALITIES = {*_EMPTY, ".gitignore", "LICENSE", "README.md"}
"""Files that the Hub or its web page may create."""

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Repository:
    """The target repository on the Hub.

    Attributes:
        name: ``user/name``.
        private: whether to create it as private.
        replaced: files in it that ropescale uploaded, which are deleted unless the checkpoint has them as well.
        commit: the checked commit, which must be the parent of the upload; None if the repository does not exist yet.
        token: never printed; every message goes through :meth:`hide`.
    """

    name: str
    private: bool = False
    replaced: tuple[str, ...] = ()
    commit: str | None = None
    token: str = field(default="", repr=False)

    def hide(self, text: str) -> str:
        """Removes the token from a text that may echo it."""
        return text.replace(self.token, "***") if self.token else text

    def api(self) -> HfApi:
        """Returns the client, with the token and the environment's endpoint."""
        from huggingface_hub import HfApi

        return HfApi(token=self.token)


@dataclass(frozen=True)
class Upload:
    """The uploaded files, or the files of a planned upload.

    Attributes:
        repository: ``user/name``.
        url: the repository's page; None after a dry run.
        private: whether a private repository was requested.
        files: the size in bytes of every file sent.
        weights_elsewhere: whether the weights, not downloaded by a dry run, would be uploaded in addition.
    """

    repository: str
    url: str | None
    private: bool
    files: Mapping[str, int]
    weights_elsewhere: bool = False


def repository(name: str, *, private: bool = False, force: bool = False, ask: bool = True) -> Repository:
    """Checks in advance whether a checkpoint can be uploaded to a repository.

    Args:
        name: ``user/name`` or ``organisation/name``.
        private: make it private; it must not exist as a public one.
        force: replace its contents, if ropescale wrote them.
        ask: whether to query the Hub; False checks only locally, without a token.

    Raises:
        CheckpointError: the name is invalid, the token is missing, the Hub refuses it or cannot be reached, or the
            repository is not empty.
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
            f"{name} exists on the Hub and contains {count} file(s); choose another name, or replace it with force",
            "force",
        )
    return replace(to, replaced=_sent_before(to, info, existing), commit=info.sha)


def upload(folder: Path, to: Repository, message: str, ours: Collection[str] = ()) -> Upload:
    """Uploads a checkpoint's folder, including weights and card.

    Follows links and uploads their content. Creates the repository if it does not exist.

    Args:
        folder: the checkpoint.
        to: the result of :func:`repository`.
        message: the commit's title.
        ours: links to weights that ropescale made.

    Raises:
        CheckpointError: another link leads out of the folder; nothing is uploaded.
        RunError: the upload is incomplete; the folder is unchanged, and the message has the command to repeat it.
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
            f"{url} lacks {len(missing)} of the files in {folder}, such as {missing[0]} (a .gitignore?); "
            f"{_retry(folder, to)}"
        )
    return Upload(to.name, str(url), to.private, files)


def intended(source: Path, changed: Mapping[str, bytes], to: Repository, weights_elsewhere: bool) -> Upload:
    """Lists the files that would be uploaded: the source's local files, and the changed ones."""
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
    """Returns huggingface_hub's token."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise CheckpointError("HF_HUB_OFFLINE is set, which prevents uploads to the Hub; unset it")
    token = get_token()
    if not token:
        raise CheckpointError(f"the token for the Hub is missing; {_LOGIN}")
    if not (token.isascii() and token.isprintable()) or " " in token:  # the client's error would quote it encoded
        raise CheckpointError("the token for the Hub contains invalid characters; copy it again")
    return token


def _refuse_user(to: Repository, user: Mapping[str, Any]) -> None:
    """Refuses a read-only token, or one without write access to this repository."""
    role, name = user.get("auth", {}).get("accessToken", {}).get("role"), user["name"]
    if role == "read":
        raise CheckpointError(
            f"the token of {name} is read-only; create one with write access at https://huggingface.co/settings/tokens"
        )
    owners = [name, *(org["name"] for org in user.get("orgs", ()))]
    owner = to.name.partition("/")[0]
    if role == "write" and owner not in owners:  # the Hub does not list the rights of a fine-grained token
        raise CheckpointError(f"{name} cannot write to {owner}; give {' or '.join(f'{o}/NAME' for o in owners)}")


def _sent_before(to: Repository, info: ModelInfo, existing: Mapping[str, RepoSibling]) -> tuple[str, ...]:
    """Returns the repository's files that its record lists, sorted.

    Their old content stays in the repository's history.

    Raises:
        CheckpointError: it contains unlisted or changed files, so that replacing it would delete somebody's work.
    """
    if existing.keys() <= _FORMALITIES:
        return ()
    if RECORD not in existing:
        raise _refusal(f"{to.name} was not written by ropescale (no {RECORD})")
    with tempfile.TemporaryDirectory(prefix="ropescale-") as cache:
        listed = files_in(_download(to, info, RECORD, cache).parent)
        if listed is None:
            raise _refusal(f"{to.name} on the Hub has an unreadable {RECORD}")
        foreign = sorted(existing.keys() - _FORMALITIES - {RECORD, *listed})
        if foreign:
            more = f" and {len(foreign) - 1} more file(s)" if foreign[1:] else ""
            raise _refusal(f"{to.name} on the Hub contains {named(foreign[0])}{more} that ropescale did not upload")
        for name in sorted(existing.keys() & listed.keys()):
            file, entry = existing[name], listed[name]
            if "how" in entry:  # weights are not read: copied ones are compared by size
                changed = "size" in entry and entry["size"] != file.size
            else:
                digest = file.lfs.sha256 if file.lfs else sha256_of(_download(to, info, name, cache))
                changed = digest != entry.get("sha256")
            if changed:
                raise _refusal(
                    f"{to.name} on the Hub contains {named(name)}, which was changed since ropescale uploaded it"
                )
    return tuple(sorted(existing.keys() & {RECORD, *listed}))


def _refusal(why: str) -> CheckpointError:
    what = "delete unneeded files there, or choose another name"
    return CheckpointError(f"{why}, so force leaves it; {what}", "force")


def _download(to: Repository, info: ModelInfo, name: str, cache: str) -> Path:
    """Downloads a file of a repository into a folder; large files in Git LFS need no download."""
    from huggingface_hub.utils import tqdm

    bar: Any = partial(tqdm, disable=True)  # keep stderr for notes and warnings
    with _translated(to):
        return Path(
            to.api().hf_hub_download(
                to.name, name, revision=info.sha, cache_dir=cache, etag_timeout=PATIENCE, tqdm_class=bar
            )
        )


@contextmanager
def _translated(to: Repository, folder: Path | None = None) -> Iterator[None]:
    """Turns the client's error into one sentence; drops the cause, which may contain the token.

    Args:
        folder: the written folder, which the sentence names; None before writing.
    """
    try:
        yield
    except Exception as error:  # the client raises a dozen types of errors, which differ between versions
        said = to.hide(_reason(error, to))
        raise (RunError(f"{said}; {_retry(folder, to)}") if folder else CheckpointError(said)) from None


def _retry(folder: Path, to: Repository) -> str:
    words = ["hf", "upload", to.name, argument(folder), ".", *(["--private"] if to.private else [])]
    return f"the patched checkpoint stays in {folder}; upload it again with `{' '.join(map(shell_word, words))}`"


def _reason(error: Exception, to: Repository) -> str:
    root: BaseException = error
    while getattr(root, "response", None) is None and root.__cause__ is not None:  # upload threads wrap it
        root = root.__cause__
    status = getattr(getattr(root, "response", None), "status_code", None)
    if status == 401:
        return f"the Hub does not accept the token; {_LOGIN}"
    if status == 412:
        return f"{to.name} on the Hub was changed meanwhile; check its latest commit"
    if status == 403:
        return f"the token may not write to {to.name} on the Hub; give it write access, or choose another name"
    if status is not None:
        said = " ".join(str(getattr(root, "server_message", None) or "").split())
        return f"the Hub refused {to.name} ({status}: {said or first_line(root)})"
    return f"{to.name} could not be uploaded to the Hub ({first_line(root)})"
