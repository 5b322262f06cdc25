"""The arms of retrieval: the model that was taught to answer, and what it answers under a schedule."""

from __future__ import annotations

import csv
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ....errors import DataError
from ...parallel.processes import World
from ...passkey.quiz import Quiz, RetrievalOptions
from ...passkey.running import RetrievalRun
from ...results.losses import read_results
from ...results.stored import Measured
from ...running.preparing import Checkpoint
from . import durations
from .arms import Arm, RunArm
from .room import Room

DEPTHS = 5
"""Places of the key in each text, from the beginning to the end."""


@dataclass(frozen=True)
class TaughtArm(Arm):
    """The model that was taught to answer, written as a checkpoint of its own."""

    def facts(self, room: Room) -> dict[str, object]:
        """Returns what it is; there is nothing to choose."""
        return {"kind": "taught"}

    def place(self, room: Room) -> Path:
        """Returns its checkpoint."""
        return room.made(self.name)

    def seconds(self, room: Room) -> float:
        """Returns about how long loading and writing take."""
        return 1.0

    def carry_out(self, room: Room) -> None:
        """Writes it beside its place, then puts it there."""
        place = self.place(room)
        beside = place.with_name(f"{place.name}-writing")
        shutil.rmtree(beside, ignore_errors=True)  # what a kill has left
        beside.mkdir(parents=True)
        room.setting.taught(beside)
        os.replace(beside, place)


@dataclass(frozen=True)
class AskingArm(RunArm):
    """Questions to a model under schedules, by the machinery of ``passkey``."""

    def facts(self, room: Room) -> dict[str, object]:
        """Returns the schedules and the questions."""
        own = {name: getattr(self, name) for name in ("schedules", "model")}
        return {"kind": "asked", **own, "lengths": room.setting.asked, "trials": room.setting.trials, "depths": DEPTHS}

    def seconds(self, room: Room) -> float:
        """Counts the prompts' tokens, once for each schedule."""
        asked, times = room.setting.asked, (1 + len(self.schedules)) * DEPTHS * room.setting.trials
        return sum(durations.scoring(times * length, length) for length in asked)

    def prepared(self, room: Room, checkpoint: Checkpoint) -> RetrievalRun:
        """Returns the questions to a model."""
        setting = room.setting
        options = RetrievalOptions(trials=setting.trials, path=room.model(self.model), progress=room.notes)
        quiz = Quiz(checkpoint.tokenizer(), list(setting.asked), DEPTHS, "passkey", "auto", options)
        return RetrievalRun(checkpoint.model(World()), quiz, self.schedules, None, options)


@dataclass(frozen=True)
class Answered:
    """The answers of one run.

    Attributes:
        run: the run that asked.
        right: by schedule and length, whether each question was answered; the questions are in the same order.
    """

    run: Measured
    right: dict[tuple[str, int], list[bool]]

    @property
    def prompts(self) -> str:
        """The SHA-256 of all prompts."""
        return str(self.run.data["sha256"])


def read_answers(folder: Path) -> Answered | None:
    """Reads a run of questions; None where there is none yet.

    Raises:
        DataError: a file of it is damaged or missing.
    """
    if not (folder / "results.json").exists():
        return None
    results, right = read_results(folder, "retrieval"), {}
    try:
        with (folder / "answers.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                key = line["schedule"], int(line["length"])
                right.setdefault(key, []).append(line["correct"] == "True")
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{folder / 'answers.csv'} is damaged or missing ({error}); remove the folder {folder}, and "
                        "run the same command again") from error  # fmt: skip
    run = Measured(results["model"], results["data"], dict(results["protocol"]), results["versions"])
    return Answered(run, right)
