"""The arms, in the order in which they are run: those that most claims rest on come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ....errors import DataError
from ....schedules.base import suggest
from .arms import Arm, MakingArm, MeasuringArm, TrainingArm
from .retrieval_arms import AskingArm, TaughtArm
from .setting import Setting

UNTRAINED, MIXED, BEYOND, NATIVE, SECOND = "untrained", "mixed", "beyond", "native", "second"
SHORT = "short"
TAUGHT, RETRIEVAL = "taught", "retrieval"


def arms(setting: Setting) -> list[Arm]:
    """Returns all arms."""
    parts = (_main, _seeds, _shortened, _retrieval, _longer, _others)
    return [_untrained(setting), *(arm for part in parts for arm in part(setting))]


def seeded(name: str, seed: int) -> str:
    """Returns the name of a short training of a schedule with one of the seeds."""
    return f"{name}-seed-{seed}"


def answering(name: str) -> str:
    """Returns the name of the arm that asks the taught model after its training under a schedule."""
    return f"{RETRIEVAL}-{name}"


def _untrained(setting: Setting) -> Arm:
    specs = [spec for name, spec in setting.schedules.items() if name != "control"]
    dynamic = [f"{name}:factor={setting.factor:g}" if name == "dynamic" else name for name in DYNAMIC]
    lengths = setting.lengths(setting.trained, setting.target)
    about = "every schedule without training, and truncation"
    return MeasuringArm(UNTRAINED, about, schedules=[*specs, *dynamic], lengths=lengths, truncated=True)


DYNAMIC = ("dynamic", "dynamic-yarn")


def _main(setting: Setting) -> Iterable[Arm]:
    for name, spec in setting.schedules.items():
        about = f"{setting.steps} steps under {'its own table' if name == 'control' else name}"
        yield replace(_short(setting, name, about, spec), steps=setting.steps, every=setting.every)


def _short(setting: Setting, name: str, about: str, spec: str, model: str = "") -> TrainingArm:
    """Returns a training of a few steps at the target."""
    lengths = setting.lengths(setting.trained, setting.target)
    return TrainingArm(name, about, model, spec, setting.short_steps, setting.target, lengths)


def _seeds(setting: Setting) -> Iterable[Arm]:
    steps, yarn = setting.short_steps, setting.schedules["yarn"]
    for seed in setting.seeds:
        for name in ("yarn", "found"):
            about = f"{steps} steps under {name}, seed {seed}"
            yield replace(_short(setting, seeded(name, seed), about, setting.schedules[name]), seed=seed)
        if seed == setting.seeds[0]:
            about = f"as {seeded('yarn', seed)}, half of the batches in windows of {setting.trained}"
            yield replace(_short(setting, MIXED, about, yarn), seed=seed, mixed=setting.trained)


def _shortened(setting: Setting) -> Iterable[Arm]:
    """Yields the model as it is, trained on the same text within its own length, and its truncation."""
    windows, trained = f"{SHORT}-windows", setting.trained
    about = f"{setting.short_steps} steps of the unscaled model on the same text, in windows of {trained}"
    arm = _short(setting, windows, about, setting.schedules["control"])
    yield replace(arm, length=trained, lengths=(trained,), text=setting.target)
    yield MeasuringArm(SHORT, "truncation of that model", windows, lengths=arm.lengths, truncated=True)


def _retrieval(setting: Setting) -> Iterable[Arm]:
    """Yields the taught model, its answers under every schedule, its trainings, and its answers after each."""
    model, specs = f"{TAUGHT}-model", setting.schedules
    scaled = [spec for name, spec in specs.items() if name != "control"]
    yield TaughtArm(model, "the model that was taught to answer")
    yield AskingArm(RETRIEVAL, "its answers under every schedule without training", model, scaled)
    for name in ASKED:
        trained, steps = f"{TAUGHT}-{name}", setting.short_steps
        yield _short(setting, trained, f"{steps} steps of it under {name}", specs[name], model)
        yield AskingArm(answering(name), f"its answers after {steps} steps under {name}", trained)


ASKED = ("yarn", "found", "linear", "control")
"""The schedules under which the taught model is trained."""


def _longer(setting: Setting) -> Iterable[Arm]:
    factor = setting.beyond / setting.trained
    lengths, steps = setting.lengths(setting.trained, setting.beyond), setting.short_steps
    yarn = f"yarn:factor={factor:g}"
    for name, spec, length in (
        (BEYOND, yarn, setting.target),
        (f"yarn-{setting.beyond}", yarn, setting.beyond),
        (f"found-{setting.beyond}", setting.ramp(factor), setting.beyond),
    ):
        about = f"{steps} steps for {setting.beyond:,} in windows of {length:,}"
        yield replace(_short(setting, name, about, spec), length=length, lengths=lengths)


def _others(setting: Setting) -> Iterable[Arm]:
    second, native = f"{SECOND}-model", f"{NATIVE}-model"
    lengths = setting.lengths(setting.second.length, setting.target)
    factor = setting.target / setting.second.length
    specs = {"yarn": f"yarn:factor={factor:g}", "found": setting.ramp(factor)}
    yield MakingArm(
        second, f"a model of other heads and theta, trained at {setting.second.length}", recipe=setting.second
    )
    for name, spec in specs.items():
        about = f"{setting.short_steps} steps of it under {name}"
        yield replace(_short(setting, f"{SECOND}-{name}", about, spec, second), lengths=lengths)
    tokens = setting.native.steps * setting.native.batch_tokens
    yield MakingArm(
        native, f"a model trained at {setting.target:,} from the start, {tokens:,} tokens", recipe=setting.native
    )
    lengths = setting.lengths(setting.trained, setting.target)
    yield MeasuringArm(NATIVE, "the same, measured", native, lengths=lengths)


def chosen(found: Sequence[Arm], only: Sequence[str]) -> list[Arm]:
    """Returns the arms of these names, after those that they need; all for none.

    Raises:
        DataError: there is no arm of a name.
    """
    known = {arm.name: arm for arm in found}
    for name in only:
        if name not in known:
            instead = suggest(name, known, f"there are {', '.join(known)}")
            raise DataError(f"no arm named {name!r}; {instead}", "only")
    wanted = set(only)
    while needed := {known[name].model for name in wanted} - {"", *wanted}:
        wanted |= needed
    return [arm for arm in found if not only or arm.name in wanted]
