"""TRL, whose SFTTrainer hands ``model_init_kwargs`` to ``from_pretrained`` (trl/trainer/sft_trainer.py)."""

from __future__ import annotations

from functools import partial

from ..base.commands import Command
from ..base.serving import Serving
from . import lines


def _serve(serving: Serving) -> list[Command]:
    """Returns the lines for ``trl sft --config``, and Python with the callback that proves the schedule live."""
    changed = _accepted(serving)
    written = lines.lines(
        "add these lines to your file for `trl sft --config FILE`; max_length is 1,024 by default",
        model_name_or_path=serving.model,
        model_revision=serving.source.revision,
        trust_remote_code=lines.trusting(serving),
        max_length=serving.length,
        model_init_kwargs=changed,
    )
    return [written, Command("python", _script(serving, changed))]


def _accepted(serving: Serving) -> dict[str, object] | None:
    """Returns the changes as keywords of ``from_pretrained``, which takes those that the configuration's class has.

    The original length stands in the rope parameters as well.
    """
    longest = serving.stored.text.name_of("max_position_embeddings")
    known = {"rope_parameters", longest, *serving.stored.section}
    changed = {key: value for key, value in (lines.changes(serving) or {}).items() if key in known}
    return changed or None


def _script(serving: Serving, changed: dict[str, object] | None) -> str:
    revision = {} if serving.source.revision is None else {"revision": serving.source.revision}
    told = {**revision, **(changed or {})}
    given = f", model_init_kwargs={told!r}" if told else ""
    given += ", trust_remote_code=True" if lines.trusting(serving) else ""
    return "\n".join(
        [
            "from ropescale import TrainingCallback",
            "from trl import SFTConfig, SFTTrainer",
            "",
            f"args = SFTConfig(max_length={serving.length}{given})  # and your own",
            f"trainer = SFTTrainer({serving.model!r}, args, train_dataset=..., callbacks=[TrainingCallback()])",
        ]
    )


_NEWEST = 23
"""The minor version of transformers 5 that it was run with; it admits every one from 4.56.2 on."""

ENGINE = lines.trainer(
    "TRL", "1.16.0", _serve, partial(lines.of_transformers, minor=_NEWEST), unasked=lines.whole_folders_only
)
