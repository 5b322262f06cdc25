"""The sizes of the experiment, its schedules and stages, and what each stage costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """The shape of the model, its trained length and the length to which it is extended."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    trained: int
    target: int
    theta: float = 10000.0

    @property
    def factor(self) -> int:
        """How many times longer the target is."""
        return self.target // self.trained

    @property
    def lengths(self) -> list[int]:
        """The measured lengths, from half of the trained one to eight times as long."""
        return [self.trained // 2, *(self.trained * times for times in (1, 2, 4, 8))]

    @property
    def body(self) -> int:
        """The weights of all layers."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head(self) -> int:
        """The weights of the head, which are those of the embedding."""
        return self.vocabulary * self.hidden

    def per_token(self, length: int, heads: int = 1) -> float:
        """Returns a token's forward operations: two a weight, and causal attention (half of 4 L d a layer).

        Args:
            heads: how often the head is applied.
        """
        attention = 2.0 * self.layers * self.heads * self.head_dim * length
        return 2.0 * (self.body + heads * self.head) + attention


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is trained and measured.

    Attributes:
        seconds: of this call, counted from its start; a stage that does not fit is skipped.
        train_seconds: of the training from scratch, which ends earlier after ``train_steps``.
        rows: windows of a training step.
        tuning_steps, tuning_rows, tuning_rate: steps of an arm of fine-tuning, windows of the target a step, and the
            highest rate.
        teaching_steps, teaching_rows: steps by which the model learns to answer, and windows a step.
        documents: documents measured.
        trials: prompts of retrieval per length and depth.
        search_windows: the budget of ``search``, in windows of the target.
        stride: tokens that each window of truncation scores.
        logits_bytes: memory for one block of logits.
        compiling: whether layers are compiled where that is faster.
        mfu: the share of ``peak`` that is assumed until it is measured.
        peak: the device's dense bf16 operations per second.
    """

    sizes: Sizes
    seconds: float = 560
    train_seconds: float = 240
    train_steps: int | None = None
    rate: float = 1.5e-3
    rows: int = 32
    warm_up: int = 100
    validate_every: int = 500
    tuning_steps: int = 60
    tuning_rows: int = 16
    tuning_rate: float = 3e-4
    teaching_steps: int = 150
    teaching_rows: int = 32
    documents: int = 32
    trials: int = 10
    search_windows: int = 240
    stride: int = 64
    logits_bytes: int = 1 << 30
    compiling: bool = True
    backend: str = "inductor"
    mfu: float = 0.30
    peak: float = 989.4e12
    seed: int = 0

    @property
    def batch_tokens(self) -> int:
        """Positions that are fed together."""
        return 4 * self.sizes.target


FULL = Settings(sizes=Sizes(12, 640, 10, 5, 64, 1792, 16384, trained=2048, target=16384))
"""67 million parameters; sized for one H100."""

TINY = replace(
    FULL,
    sizes=Sizes(2, 64, 4, 2, 16, 128, 1024, trained=64, target=512),
    train_seconds=60,
    train_steps=300,
    rate=3e-3,
    rows=8,
    warm_up=20,
    validate_every=100,
    tuning_steps=12,
    tuning_rows=2,
    teaching_steps=20,
    teaching_rows=8,
    documents=6,
    trials=1,
    search_windows=30,
    stride=16,
    logits_bytes=1 << 24,
    compiling=False,
)
"""Every stage on a processor."""


class Schedules:
    """The schedules of each stage."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.default = f"yarn:factor={sizes.factor}"
        self.rule = f"{self.default},beta_fast=16,beta_slow=0.5,truncate=false"

    def main(self) -> list[str]:
        """The usual schedules at three factors, and one that has none."""
        factors = (2, 4, self._sizes.factor)
        return [*(f"{name}:factor={factor}" for factor in factors for name in ("linear", "ntk", "yarn")), "cope"]

    def wide(self) -> list[str]:
        """All other schedules that need no numbers of a model, and larger thetas."""
        factor, trained = self._sizes.factor, self._sizes.trained
        adaptive = [f"dynamic:factor={factor}", "dynamic-yarn"]
        others = [f"resonance:over=yarn,factor={factor}", f"giraffe:truncate={trained}", *adaptive]
        names = ("ntk-su", "ntk-mixed", "ntk-critical", "ntk-by-parts", "llama3")
        larger = [f"ntk:factor={times * factor}" for times in (2, 4)]
        return [*(f"{name}:factor={factor}" for name in names), *others, "abf:rope_theta=500000", *larger]

    def grid(self, factor: int) -> list[str]:
        """YaRN's ramps: where it begins and ends, in whole pairs or between them."""
        return [
            f"yarn:factor={factor},beta_fast={fast},beta_slow={slow},truncate={whole}"
            for fast in (8, 16, 32, 64)
            for slow in (0.5, 1, 2)
            for whole in ("true", "false")
        ]

    def arm(self, stage: str) -> str | None:
        """The schedule under which an arm is fine-tuned; None for the model as it is."""
        sizes = self._sizes
        theta = sizes.theta * sizes.factor ** (sizes.head_dim / (sizes.head_dim - 2))  # that of ntk
        specs = {"yarn": self.default, "linear": f"linear:factor={sizes.factor}", "abf": f"abf:rope_theta={theta:.0f}"}
        return specs.get(stage.removeprefix("ft-"))


LONG_ARMS = ("ft-yarn", "ft-linear", "ft-abf", "ft-none")
SHORT_ARM = "ft-short"
ARMS = (*LONG_ARMS, SHORT_ARM)
"""Arms of fine-tuning at the target, and one with as many tokens at the trained length."""

GROUPS = {
    "base": ["train", "main", "remapped", "grid", "recommend", "search", "transfer", "regret"],
    "tune": [*ARMS, "retrieval", "wide"],
    "ramps": ["grid-2", "grid-4", "regret"],
    "all": [
        *("train", "main", "remapped", *LONG_ARMS, "grid", "recommend", "search", "transfer"),
        *(SHORT_ARM, "retrieval", "wide", "grid-2", "grid-4", "regret"),
    ],
}


def named(words: str) -> list[str]:
    """Returns the stages of names and groups, separated by commas.

    Raises:
        ValueError: there is no such stage.
    """
    stages = [stage for word in words.split(",") for stage in GROUPS.get(word, [word])]
    for stage in stages:
        if stage not in GROUPS["all"]:
            raise ValueError(f"no stage {stage!r}; choose from {', '.join([*GROUPS, *GROUPS['all']])}")
    return stages


def work(stage: str, settings: Settings) -> tuple[float | None, float]:
    """Returns the operations of a stage, and seconds of other work (building, compiling, the host); both are guesses.

    The operations of training are None: it has seconds instead.
    """
    sizes, schedules = settings.sizes, Schedules(settings.sizes)
    target, long, short = sizes.target, sizes.per_token(sizes.target), sizes.per_token(sizes.trained)
    # every schedule reads the documents at the target, and at the trained length for the short-context cost
    schedule = settings.documents * (target * long + sizes.trained * sizes.per_token(sizes.trained, heads=2))
    truncation = settings.documents * (target - sizes.trained) // settings.stride * sizes.trained * short
    tuning = 3 * settings.tuning_steps * settings.tuning_rows * target
    taught = 3 * settings.teaching_steps * settings.teaching_rows * sizes.trained * short
    asked = 30 * settings.trials * sum(n * sizes.per_token(n, heads=0) for n in sizes.lengths[1:])
    grid = ((1 + len(schedules.grid(sizes.factor))) * schedule, 12)
    costs: dict[str, tuple[float | None, float]] = {
        "train": (None, 20),
        "main": ((1 + len(schedules.main())) * schedule + truncation, 12),
        "remapped": (8 * schedule, 6),
        "regret": (0.0, 0),
        "grid": grid,
        "grid-2": grid,
        "grid-4": grid,
        "recommend": (0.3 * 79 * 32 * target * long + 0.5 * truncation, 20),
        "search": (settings.search_windows * 0.85 * target * 4.5 * long, 12),
        "transfer": (6 * schedule, 5),
        "wide": ((1 + len(schedules.wide())) * schedule, 6),
        "retrieval": (taught + asked, 25),
        "ft-yarn": (tuning * long + 2 * schedule, 22),
        SHORT_ARM: (tuning * short + schedule + truncation, 15),
    }
    return costs.get(stage, (tuning * long + 2 * schedule, 8))


def described(stages: Sequence[str], settings: Settings) -> Iterator[str]:
    """Yields the lines of ``--plan``: the size of the model, and operations and seconds of each stage."""
    sizes, speed = settings.sizes, settings.mfu * settings.peak
    long, short = sizes.per_token(sizes.target), sizes.per_token(sizes.trained)
    yield (
        f"{(sizes.body + sizes.head) / 1e6:.1f}M parameters ({sizes.body / 1e6:.1f}M without the tied embedding); "
        f"forward {short / 1e6:.0f} MFLOP a token at {sizes.trained}, {long / 1e6:.0f} at {sizes.target}"
    )
    yield (
        f"training {settings.train_seconds:.0f} s at {settings.mfu:.0%} of {settings.peak / 1e12:.0f} TFLOP/s: "
        f"{settings.train_seconds * speed / 3 / short / 1e6:.0f}M tokens"
    )
    total = 0.0
    for stage in stages:
        flops, other = work(stage, settings)
        seconds = settings.train_seconds if flops is None else flops / speed
        total += seconds + other
        shown = "-" if flops is None else f"{flops / 1e15:8.2f} PFLOP"
        yield f"  {stage:10s} {shown}  {seconds:6.1f} s + {other:.0f} s of other work"
    yield f"  in all {total:.0f} s, after about 25 s of imports and reading"
