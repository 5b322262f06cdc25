"""The folder of a training while it runs, beside its result, so that a kill at any moment loses no more than steps.

``OUT`` is written once, whole, at the end. Until then ``OUT-training`` holds::

    settings.json     all that the weights depend on; a training with other settings is not continued
    checkpoint-50/    Trainer's, complete once it holds ropescale's record, which is written last
    measured/         runs that ``ropescale report`` shows; these stay
    lock              held while a process trains here
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ...checkpoints.metadata.record import NAME as RECORD
from ...errors import CheckpointError, RunError
from ...files import SUFFIX, atomic_write, read_json

Settings = Mapping[str, object]
"""All that the weights of a training depend on, as plain data."""

SETTINGS = "settings.json"
_FULL = ("No space left", "PytorchStreamWriter failed")
"""What Python and safetensors say of a full disk, and what torch says."""

_CHECKPOINT = re.compile("checkpoint-([0-9]+)")


class Workspace:
    """The folder of a training that may be continued.

    Args:
        target: the folder of the result.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f"{target.name}-training")
        self.measured = self.folder / "measured"

    def refuse_foreign(self) -> None:
        """Refuses a folder of that name that no training wrote.

        Raises:
            CheckpointError: names it.
        """
        if os.path.lexists(self.folder) and not (self.folder / SETTINGS).is_file() and self._content():
            raise CheckpointError(
                f"{self.folder} is where this training would be kept, and something else is there; move it away, or "
                "choose another out=OUT",
                "out",
            )

    def _content(self) -> bool:
        """Whether there is more than a training that has only begun, or was killed then, has written."""
        if not self.folder.is_dir():
            return True
        ours = ("lock", SUFFIX, f"{SUFFIX}-lock")
        return not all(each.name.endswith(ours) for each in self.folder.iterdir())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes out, inside; leaves nothing of a training that failed before anything could be kept.

        Raises:
            CheckpointError: another one trains here, or the folder cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be made: {error.strerror or error}") from None
        lock = FileLock(self.folder / "lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise CheckpointError(f"another training is writing into {self.folder}; wait for it") from None
        try:
            yield
        except BaseException:
            if not (self.measured.exists() or any(self._checkpoints())):  # there is nothing to keep
                (self.folder / SETTINGS).unlink(missing_ok=True)
            raise
        finally:
            lock.release()
            with suppress(OSError):
                if [each.name for each in self.folder.iterdir()] == ["lock"]:
                    (self.folder / "lock").unlink()
                    self.folder.rmdir()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Says in one line that the disk is full, whichever library met it.

        Raises:
            RunError: there is no room left.
        """
        try:
            yield
        except Exception as error:
            if any(said in str(error) for said in _FULL):
                raise RunError(
                    f"{self.folder} cannot be written: the disk is full; make room (a checkpoint takes four times the "
                    "weights, and two are kept), and give the same command again, which continues"
                ) from error
            raise

    def begin(self, settings: Settings, fresh: bool) -> None:
        """Makes sure that what is there was trained with these settings; ``fresh`` begins again.

        Raises:
            CheckpointError: it was trained with others; names them.
        """
        path = self.folder / SETTINGS
        if fresh and path.exists():
            self.clear()
            shutil.rmtree(self.measured, ignore_errors=True)
            path.unlink()
        now = json.loads(json.dumps(settings))
        before = read_json(path) if path.exists() else now
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if changed:
            said = ", ".join(f"{name} {before.get(name)} became {now.get(name)}" for name in changed[:3])
            raise CheckpointError(
                f"{self.folder} holds a training with other settings ({said}); give the same again, begin anew with "
                "fresh=True, or choose another out=OUT",
                "fresh",
                "out",
            )
        atomic_write(path, json.dumps(now, indent=2).encode() + b"\n")

    @property
    def reached(self) -> int:
        """The steps of the last complete checkpoint; 0 without one."""
        return max((step for step, each in self._checkpoints() if (each / RECORD).exists()), default=0)

    def last(self, steps: int) -> Path | None:
        """Returns the last complete checkpoint before the final step, and removes those that a kill left incomplete.

        The step after it is the same again, whichever checkpoint is taken.
        """
        found = sorted(self._checkpoints())
        for _, folder in found:
            if not (folder / RECORD).exists():
                shutil.rmtree(folder)
        return next((each for step, each in reversed(found) if step < steps and each.exists()), None)

    def clear(self) -> None:
        """Removes the checkpoints."""
        for _, folder in self._checkpoints():
            (folder / RECORD).unlink(missing_ok=True)  # first, so that half a removal is not taken for a checkpoint
            shutil.rmtree(folder)

    def _checkpoints(self) -> Iterator[tuple[int, Path]]:
        for each in self.folder.iterdir() if self.folder.is_dir() else ():
            if match := _CHECKPOINT.fullmatch(each.name):
                yield int(match[1]), each
