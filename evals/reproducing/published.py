"""The claims: what the papers say, and the comparisons that stand for it at this scale."""

from __future__ import annotations

from .claims import Claim, Contrast, Missed, share
from .comparisons import TRUNCATION, Point
from .experiments.plan import BEYOND, MIXED, NATIVE, RETRIEVAL, SECOND, SHORT, UNTRAINED, answering, seeded
from .experiments.setting import Setting

PI = "Chen et al., arXiv 2306.15595"
YARN = "Peng et al., arXiv 2309.00071"
NTK = "bloc97, NTK-aware scaled RoPE (2023)"
OURS = "ropescale search"
NEAR = 0.01
"""Nats that count as unchanged."""


def claims(setting: Setting) -> list[Claim]:
    """Returns all claims."""
    parts = (_untrained, _trained, _kinds, _retrieval, _beyond, _others)
    return [claim for part in parts for claim in part(setting)]


def _untrained(setting: Setting) -> list[Claim]:
    target, trained, specs = setting.target, setting.trained, setting.schedules
    zero = {name: Point(UNTRAINED, schedule=spec) for name, spec in specs.items() if name != "control"}
    zero["dynamic"] = Point(UNTRAINED, schedule="dynamic-yarn")
    original, short = Point(UNTRAINED), f"at {trained:,}"

    def less(one: str, other: str) -> Contrast:
        return Contrast(f"{NAMES[one]} minus {NAMES[other]} at {target:,}", zero[one], zero[other], target)

    dynamic = Contrast(f"dynamic YaRN minus the original {short}", zero["dynamic"], original, trained, most=NEAR)
    static = Contrast(f"dynamic YaRN minus YaRN at {target:,}", zero["dynamic"], zero["yarn"], target, most=NEAR)
    return [
        Claim("untrained", f"Without training, NTK-aware scaling and YaRN beat linear interpolation at "
              f"{setting.factor:g} times the context", f"{NTK}; {YARN}, section 3.1",
              [less("ntk", "linear"), less("yarn", "linear")]),
        Claim("yarn untrained", "Without training, YaRN beats NTK-aware scaling", f"{YARN}, sections 3.2 to 3.4",
              [less("yarn", "ntk")]),
        Claim("found untrained", "The found schedule starts better than YaRN, and costs less in short context", OURS,
              [less("found", "yarn"),
               Contrast(f"the same {short}", zero["found"], zero["yarn"], trained)]),
        Claim("dynamic", "Dynamic scaling leaves short context as it was, and is as good as the static schedule at the "
              "target", f"{YARN}, section 3.3", [dynamic, static]),
    ]  # fmt: skip


NAMES = {
    "yarn": "YaRN",
    "found": "found",
    "linear": "PI",
    "ntk": "NTK",
    "control": "the unscaled model",
    "dynamic": "dynamic YaRN",
}
"""The schedules in words."""


class _Said:
    """Makes comparisons of trained points."""

    def __init__(self, setting: Setting) -> None:
        self.target, self.steps = setting.target, setting.short_steps

    def minus(self, one: str, step: int, other: str, other_step: int) -> Contrast:
        """Compares two schedules after so many steps, at the target."""
        said = f"{NAMES[one]}, {step} steps, minus {NAMES[other]}, {other_step} steps, at {self.target:,}"
        return Contrast(said, Point(one, step), Point(other, other_step), self.target)

    def truncation(self, name: str, arm: str, truncated: str = UNTRAINED) -> Contrast:
        """Compares a schedule after a few steps with truncation, on the second half of the positions."""
        half = self.target // 2
        said = f"{NAMES[name]}, {self.steps} steps, minus truncation, positions {half:,} to {self.target - 1:,}"
        other = Point(truncated, schedule=TRUNCATION)
        return Contrast(said, Point(arm, self.steps), other, self.target, half, self.target)


def _trained(setting: Setting) -> list[Claim]:
    say, target, original = _Said(setting), setting.target, Point(UNTRAINED)
    first, short, last = setting.every, setting.short_steps, setting.steps
    gain = [Contrast(f"{NAMES[name]}, {short} steps, minus before its training, at {target:,}", Point(name, short),
                       Point(name, 0), target) for name in ("linear", "yarn")]  # fmt: skip
    cost = Contrast(f"PI, {last} steps, minus the original, at {setting.trained:,}", Point("linear", last), original,
                      setting.trained, most=share(5))  # fmt: skip
    return [
        Claim("few steps", f"{short} steps make a large difference at the target", f"{PI}, section 3.2, table 3",
              gain),
        Claim("pi early", f"After {short} steps of linear interpolation, longer context is better than the original's "
              "own window", f"{PI}, section 3.2, table 3", [say.truncation("linear", "linear")]),
        Claim("pi short", "Linear interpolation, trained, keeps short context nearly as it was (5% of perplexity)",
              f"{PI}, section 3.4", [cost]),
        Claim("direct", "Training without a schedule reaches less than with linear interpolation",
              f"{PI}, section 3.3", [say.minus("linear", last, "control", last)]),
        Claim("fewer steps", f"YaRN needs fewer steps than linear interpolation: {first} against {last}",
              f"{YARN}, abstract and section 4.1", [say.minus("yarn", first, "linear", last)]),
        Claim("ntk trained", "Trained, NTK-aware scaling is worse than linear interpolation",
              f"{YARN}, section 3.1", [say.minus("linear", last, "ntk", last)]),
        Claim("yarn trained", "Trained, YaRN is the best of the published ones", f"{YARN}, section 4.3",
              [say.minus("yarn", last, each, last) for each in ("linear", "ntk")]),
        Claim("found trained", "The found schedule stays better than YaRN", OURS,
              [say.minus("found", step, "yarn", step) for step in (first, short, last)]),
    ]  # fmt: skip


def _kinds(setting: Setting) -> list[Claim]:
    say, short, seed = _Said(setting), setting.short_steps, setting.seeds[0]
    plain, mixed, original = Point(seeded("yarn", seed), short), Point(MIXED, short), Point(UNTRAINED)
    at = f"at {setting.trained:,}"
    seeds = [Contrast(f"found minus YaRN, seed {each}, at {setting.target:,}", Point(seeded("found", each), short),
                        Point(seeded("yarn", each), short), setting.target) for each in setting.seeds]  # fmt: skip
    return [
        Claim("truncation", f"{short} steps make reading all of the context better than reading its end",
              "truncation: the original, given the last tokens", [
                  say.truncation(name, seeded(name, seed)) for name in ("yarn", "found")]),
        Claim("truncation trained", "This is so also where the original is trained on as much of the same text, in "
              "windows of its own length, and given the last tokens", "ropescale", [
                  say.truncation(name, seeded(name, seed), SHORT) for name in ("yarn", "found")]),
        Claim("short cost", f"After {short} steps short context costs at most 3% of perplexity", "ropescale", [
            Contrast(f"{NAMES[name]} minus the original {at}", Point(seeded(name, seed), short), original,
                       setting.trained, most=share(3)) for name in ("yarn", "found")]),
        Claim("short cost trained", "Short context costs at most 3% also against the original trained on as much of "
              "the same text, in windows of its own length", "ropescale", [
                  Contrast(f"{NAMES[name]} minus that {at}", Point(seeded(name, seed), short), Point(f"{SHORT}-windows",
                           short), setting.trained, most=share(3)) for name in ("yarn", "found")]),
        Claim("mixed", "Mixed windows keep short context better than long ones alone",
              "Shang et al., arXiv 2502.20082 (LongRoPE2), abstract; there short windows have the original table",
              [Contrast(f"mixed minus plain {at}", mixed, plain, setting.trained)]),
        Claim("seeds", f"With every seed, the found schedule is better than YaRN after {short} steps", OURS, seeds),
    ]  # fmt: skip


def _retrieval(setting: Setting) -> list[Claim]:
    target, step = setting.asked[-1], setting.short_steps
    before = {name: Point(RETRIEVAL, schedule=spec) for name, spec in setting.schedules.items() if name != "control"}
    after = {name: Point(answering(name)) for name in setting.schedules if name != "ntk"}

    def fewer(one: str, other: str) -> Missed:
        said = f"questions missed, {NAMES[one]} minus {NAMES[other]}, at {target:,}"
        return Missed(said, before[one], before[other], target)

    def fewer_trained(one: str, other: str) -> Missed:
        said = f"questions missed, {NAMES[one]} minus {NAMES[other]}, {step} steps each, at {target:,}"
        return Missed(said, after[one], after[other], target)

    better = [Missed(f"questions missed, {NAMES[name]}, {step} steps, minus before its training, at {target:,}",
                     after[name], before[name], target) for name in ("yarn", "found")]  # fmt: skip
    return [
        Claim("retrieval untrained", "Without training, YaRN retrieves farther than linear interpolation and NTK-aware "
              "scaling", f"{YARN}, section 4.3.2", [fewer("yarn", "linear"), fewer("yarn", "ntk")]),
        Claim("retrieval found", "Without training, the found schedule retrieves farther than YaRN", OURS,
              [fewer("found", "yarn")]),
        Claim("retrieval pi", f"After {step} steps, linear interpolation retrieves at the target, and training without "
              "a schedule does not", f"{PI}, section 3.3, table 4", [fewer_trained("linear", "control")]),
        Claim("retrieval yarn", "Trained, YaRN retrieves farther than linear interpolation", f"{YARN}, section 4.3.2",
              [fewer_trained("yarn", "linear")]),
        Claim("retrieval trained", f"{step} steps on text improve retrieval at the target", "ropescale", better),
    ]  # fmt: skip


def _beyond(setting: Setting) -> list[Claim]:
    target, beyond, step = setting.target, setting.beyond, setting.short_steps
    far, near = f"positions {target:,} to {beyond - 1:,}", Point(BEYOND, step)
    yarn, found = (Point(f"{name}-{beyond}", step) for name in ("yarn", "found"))
    return [
        Claim("extrapolation", f"YaRN for {beyond:,}, trained in windows of {target:,}, works at {beyond:,}: nearly as "
              f"well as trained there (0.05 nats), {far}", f"{YARN}, section 4.2",
              [Contrast("trained short minus trained long", near, yarn, beyond, target, beyond, most=0.05)]),
        Claim("longer", f"At {beyond:,} the found ramp, carried over, is better than YaRN", OURS,
              [Contrast(f"found minus YaRN at {beyond:,}", found, yarn, beyond)]),
    ]  # fmt: skip


def _others(setting: Setting) -> list[Claim]:
    target, step, last = setting.target, setting.short_steps, setting.steps
    found, yarn = (Point(f"{SECOND}-{name}", step) for name in ("found", "yarn"))
    return [
        Claim("second model", "The found ramp, carried over to another model, is better than YaRN", OURS,
              [Contrast(f"found minus YaRN at {target:,}", found, yarn, target)]),
        Claim("native", "The extended model is nearly as good as one trained at the target from the start, on as many "
              "tokens (0.05 nats)", "ropescale",
              [Contrast(f"{NAMES[name]}, {last} steps, minus native at {target:,}", Point(name, last), Point(NATIVE),
                          target, most=0.05) for name in ("yarn", "found")]),
    ]  # fmt: skip
