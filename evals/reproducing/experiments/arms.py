"""The arms of a reproduction: trainings, measurements, and models made from nothing."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ....errors import CheckpointError
from ....files import atomic_write, read_json
from ....models.loading import load_tokenizer
from ....request import Request
from ...finetuning.job import TrainingJob
from ...finetuning.recipes import TrainingRecipe
from ...finetuning.running import Adaptation
from ...parallel.processes import World
from ...reference.training import Recipe, train
from ...resuming import fingerprints
from ...running.perplexity import PerplexityRun
from ...running.preparing import Checkpoint
from ...running.runner import Measurement, Writable, carry_out
from ...running.selection import Corpus, PerplexityOptions
from . import durations
from .room import Room

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Arm(ABC):
    """A step of a reproduction.

    Attributes:
        name: of its files.
        about: what it is, in a few words.
        model: the arm that makes the model that this one begins with; empty for the setting's own, or none.
    """

    name: str
    about: str
    model: str = ""

    @abstractmethod
    def facts(self, room: Room) -> dict[str, object]:
        """Returns all that its figures depend on, as plain data."""

    @abstractmethod
    def place(self, room: Room) -> Path:
        """Returns the folder that is there once it is finished."""

    @abstractmethod
    def seconds(self, room: Room) -> float:
        """Estimates how long it takes on one core."""

    @abstractmethod
    def carry_out(self, room: Room) -> None:
        """Does it, or continues it."""

    def is_finished(self, room: Room) -> bool:
        """Whether its result is there."""
        return self.place(room).exists()

    def begin(self, room: Room) -> None:
        """Makes sure that what is there of it was asked for in the same way.

        Raises:
            CheckpointError: it was asked for otherwise, or something else lies where it would be kept.
        """
        path, now = room.out / "facts" / f"{self.name}.json", json.loads(json.dumps(self.facts(room)))
        if not path.exists():
            if os.path.lexists(self.place(room)):
                raise CheckpointError(
                    f"{self.place(room)} is where {self.name} would be kept, and something else is there; move it "
                    "away, or choose another out=OUT",
                    "out",
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(now, indent=1) + "\n")
        before = read_json(path)
        changed = [f"{key} {before.get(key)} became {now.get(key)}"
                   for key in {**before, **now} if before.get(key) != now.get(key)]  # fmt: skip
        if changed:
            said = ", ".join(changed[:3])
            raise CheckpointError(
                f"{room.out} holds {self.name} with other settings ({said}); choose another out=OUT", "out"
            )


@dataclass(frozen=True)
class TrainingArm(Arm):
    """A training of a model under a schedule, measured on the way.

    Attributes:
        spec: the schedule.
        steps: of the optimizer.
        length: positions of a window; a step has as many tokens as the setting's windows of the target.
        lengths: where it is measured; ``every`` so many steps, and None at the first and the last.
        seed: of the order of windows.
        mixed: positions of short windows, into which half of the batches are cut.
        text: the windows are cut from the text that windows of so many positions have; None for whole ones.
    """

    spec: str = ""
    steps: int = 1
    length: int = 0
    lengths: Sequence[int] = ()
    every: int | None = None
    seed: int = 0
    mixed: int | None = None
    text: int | None = None

    def facts(self, room: Room) -> dict[str, object]:
        """Returns the schedule, the recipe and the job."""
        setting, names = room.setting, ("spec", "steps", "length", "lengths", "seed", "mixed", "model")
        own_text = {} if self.text is None else {"text": self.text}
        own = {name: getattr(self, name) for name in names}
        recipe = {**asdict(self._recipe(room)), "bf16": setting.bf16}
        return {"kind": "trained", **own, **own_text, **recipe, **fingerprints.versions()}

    def place(self, room: Room) -> Path:
        """Returns its checkpoint, which appears at the end."""
        return room.checkpoint(self.name)

    def seconds(self, room: Room) -> float:
        """Counts its steps, and its measurements: at the first step, on the way, and at the last."""
        fed = self.steps * self._recipe(room).batch * self.length
        times = 2 + (self.steps - 1) // (self.every or self.steps)
        scored = times * len(room.setting.measured_on()) * max(self.lengths)
        return durations.training(fed, self.length) + durations.scoring(scored, max(self.lengths))

    def carry_out(self, room: Room) -> None:
        """Trains with the machinery of ``finetune``, which continues by itself."""
        setting, folder = room.setting, room.model(self.model)
        job = TrainingJob(
            self.steps,
            self._recipe(room),
            length=self.length,
            mixed=self.mixed,
            bf16=setting.bf16,
            save_every=setting.save_every,
            seed=self.seed,
            eval_lengths=self.lengths,
            eval_every=self.every or self.steps,
            eval_windows=1,
        )
        texts = room.heads(folder, self.text or self.length, None if self.text is None else self.length)
        place = self.place(room)
        place.parent.mkdir(parents=True, exist_ok=True)
        checkpoint, request = Checkpoint(str(folder)), Request(self.spec)
        Adaptation(checkpoint, request, job, texts, room.held_out, place, notes=room.notes).run()

    def _recipe(self, room: Room) -> TrainingRecipe:
        setting = room.setting
        return setting.recipe.with_changes(batch=max(1, setting.recipe.batch * setting.target // self.length))


@dataclass(frozen=True)
class RunArm(Arm):
    """A run of a model under schedules, in a folder of its own.

    Attributes:
        schedules: beside the model as it is.
    """

    schedules: Sequence[str] = ()

    def place(self, room: Room) -> Path:
        """Returns the run's folder."""
        return room.measured(self.name)

    def is_finished(self, room: Room) -> bool:
        """Whether its results are written."""
        return (self.place(room) / "results.json").exists()

    @abstractmethod
    def prepared(self, room: Room, checkpoint: Checkpoint) -> Measurement[Writable]:
        """Returns the run of a model."""

    def carry_out(self, room: Room) -> None:
        """Runs it; it continues by itself."""
        run, place = self.prepared(room, Checkpoint(str(room.model(self.model)), dtype="float32")), self.place(room)
        place.parent.mkdir(parents=True, exist_ok=True)
        carry_out(run, place)


@dataclass(frozen=True)
class MeasuringArm(RunArm):
    """A measurement of perplexity, by the machinery of ``eval``.

    Attributes:
        lengths: where it is measured.
        truncated: measure truncation, too.
    """

    lengths: Sequence[int] = ()
    truncated: bool = False

    def facts(self, room: Room) -> dict[str, object]:
        """Returns the schedules and the lengths; the run's own folder knows the rest."""
        names = ("schedules", "lengths", "truncated", "model")
        return {"kind": "measured", **{name: getattr(self, name) for name in names}, "stride": room.setting.stride}

    def seconds(self, room: Room) -> float:
        """Counts a pass for each schedule, and one for each length where the tables depend on it."""
        documents, last = len(room.setting.measured_on()), max(self.lengths)
        fed = sum(documents * (sum(self.lengths) if "dynamic" in spec else last) for spec in ("", *self.schedules))
        trained = min(self.lengths)
        windows = documents * (last - trained) // room.setting.stride if self.truncated else 0
        return durations.scoring(fed, last) + durations.scoring(windows * trained, trained)

    def prepared(self, room: Room, checkpoint: Checkpoint) -> PerplexityRun:
        """Returns the measurement on the held-out texts."""
        options = PerplexityOptions(
            windows=1,
            short_context=False,
            truncation=self.truncated,
            truncation_stride=room.setting.stride if self.truncated else None,
            source="held-out texts",
            path=room.model(self.model),
            progress=room.notes,
        )
        corpus = Corpus(room.held_out, list(self.lengths), checkpoint.tokenizer(), "auto", options)
        return PerplexityRun(checkpoint.model(World()), corpus, self.schedules, None, options)


@dataclass(frozen=True)
class MakingArm(Arm):
    """A model trained from nothing, as the bundled one was."""

    recipe: Recipe = field(default_factory=Recipe)

    def facts(self, room: Room) -> dict[str, object]:
        """Returns its recipe."""
        return {"kind": "made", **asdict(self.recipe), **fingerprints.versions()}

    def place(self, room: Room) -> Path:
        """Returns its checkpoint."""
        return room.made(self.name)

    def seconds(self, room: Room) -> float:
        """Counts its steps."""
        return durations.training(self.recipe.steps * self.recipe.batch_tokens, self.recipe.length)

    def carry_out(self, room: Room) -> None:
        """Trains, and goes on from what an earlier run kept."""
        place = self.place(room)
        beside = place.with_name(f"{place.name}-training")
        beside.mkdir(parents=True, exist_ok=True)
        tokenizer = cast("PreTrainedTokenizerFast", load_tokenizer(room.setting.folder))  # so that tokens can be paired
        tokenizer.model_max_length = self.recipe.length
        text = room.setting.trained_on(), tokenizer
        train(beside / "model", self.recipe, beside / "state", room.notes.tell, text)
        os.replace(beside / "model", place)
        shutil.rmtree(beside)
