"""The stages: each returns its entry of the results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from .building import BOS
from .lab import Lab
from .measuring import TRUNCATION, Measured, change, recommend, retrieval, search
from .plan import ARMS, SHORT_ARM, work
from .pretraining import Pretraining
from .training import build
from .tuning import Tuning, teach

Entry = dict[str, Any]


def run(lab: Lab, stages: list[str]) -> int:
    """Runs the stages in order, and returns how many failed; one that does not fit into the time is skipped."""
    known, failed = stages_of(stages), 0
    for stage in stages:
        skipped = why_skipped(lab, stage)
        if skipped:
            lab.say(f"{stage} skipped: {skipped}")
            lab.store(f"{stage} skipped", skipped)
            continue
        failed += not _carry_out(lab, stage, known[stage])
        lab.free()
    return failed


def stages_of(stages: list[str]) -> dict[str, Callable[[Lab], Entry]]:
    """Returns all stages by name; ``stages`` are those of this call."""
    arms = {arm: partial(fine_tune, stage=arm, stages=stages) for arm in ARMS}
    return {
        "train": lambda lab: Pretraining(lab).run(),
        "main": measure_main,
        "remapped": measure_remapped,
        "grid": partial(measure_grid, title="grid"),
        "grid-2": partial(measure_grid, title="grid-2", factor=2),
        "grid-4": partial(measure_grid, title="grid-4", factor=4),
        "wide": measure_wide,
        "recommend": run_recommend,
        "search": run_search,
        "transfer": measure_transfer,
        "regret": compare_with_grids,
        "retrieval": measure_retrieval,
        **arms,
    }


def why_skipped(lab: Lab, stage: str) -> str | None:
    """Returns why a stage cannot run now; None if it can."""
    if stage != "train" and not lab.has_weights():
        return "no trained model"
    flops, other = work(stage, lab.settings)
    need = 30.0 if flops is None else flops / (max(0.05, lab.mfu) * lab.settings.peak)
    if lab.on_gpu and flops is not None:
        need += other
    least = need / 2 if stage in ARMS else need  # an arm takes as many steps as fit
    if lab.left() < least:
        return f"needs about {need:.0f} s, {lab.left():.0f} s of {lab.settings.seconds:.0f} are left"
    return None


def _carry_out(lab: Lab, stage: str, call: Callable[[Lab], Entry]) -> bool:
    """Runs a stage, and stores its entry or its error; returns whether it did not fail."""
    start = time.perf_counter()
    try:
        entry = call(lab)
    except Exception as error:  # the other stages still run: an accelerator is rarely at hand
        traceback.print_exc()
        lab.store(f"{stage} failed", f"{type(error).__name__}: {error}"[:2000])
        lab.free("base", "tuned")
        return False
    flops, other = work(stage, lab.settings)
    predicted = None if flops is None else flops / lab.settings.mfu / lab.settings.peak + other
    for earlier in ("skipped", "failed"):
        lab.results.pop(f"{stage} {earlier}", None)
    entry |= {"stage_seconds": time.perf_counter() - start, "predicted_seconds": predicted}
    lab.store(stage, entry)
    lab.say(f"{stage} took {entry['stage_seconds']:.1f} s" + (f", predicted {predicted:.0f}" if predicted else ""))
    return True


def base_model(lab: Lab) -> Any:
    """Returns the trained model in the dtype of measurements; it is kept for the next stage."""
    if "base" not in lab.models:
        lab.models["base"] = build(lab, lab.dtype, lab.weights())
    return lab.models["base"]


def measure_main(lab: Lab) -> Entry:
    """The usual schedules and truncation, with all losses."""
    measured = Measured(lab, base_model(lab), lab.schedules.main(), truncation=True)
    measured.show("main")
    return measured.entry | {"losses_dropped": lab.store_losses("main", measured.losses)}


def measure_remapped(lab: Lab) -> Entry:
    """What any table leaves behind: positions remapped by distance, with their scale and without."""
    measured = Measured(lab, base_model(lab), [lab.schedules.default], remapped=True)
    measured.show("remapped")
    return measured.entry


def measure_grid(lab: Lab, title: str, factor: int | None = None) -> Entry:
    """The ramps of a factor, by default the target's."""
    measured = Measured(lab, base_model(lab), lab.schedules.grid(factor or lab.sizes.factor))
    measured.show(title)
    return measured.entry


def measure_wide(lab: Lab) -> Entry:
    """Further schedules and larger thetas."""
    measured = Measured(lab, base_model(lab), lab.schedules.wide())
    measured.show("wide")
    return measured.entry


def run_recommend(lab: Lab) -> Entry:
    """What ``recommend`` chooses."""
    start = time.perf_counter()
    found = recommend(lab, base_model(lab))
    spent = time.perf_counter() - start
    lab.say(f"recommend ({spent:.1f} s):", found.answer.answer)
    deployable = [row for row in found.finalists if row.schedule != TRUNCATION]
    return {
        "seconds": spent,
        "schedule": found.schedule,
        "decided": found.answer.decided,
        "answer": found.answer.answer,
        "rows": found.rows,
        "finalists": found.finalists,
        "protocol": found.protocol,
        "lowest": min(deployable, key=lambda row: row.delta).schedule,
    }


def run_search(lab: Lab) -> Entry:
    """What ``search`` finds."""
    start = time.perf_counter()
    found = search(lab, base_model(lab))
    spent, made = time.perf_counter() - start, found.search
    lab.say(f"search ({spent:.1f} s): {len(made.steps)} trials, {made.spent:,} tokens; {made.spec}")
    return {
        "seconds": spent,
        "spec": made.spec,
        "trials": len(made.steps),
        "checks": [[each.spent, each.loss] for each in made.checks],
        "spent": made.spent,
        "trace": [[each.spent, list(each.point), each.loss] for each in made.steps],
        "report": found.to_markdown(),
    }


def chosen(lab: Lab) -> list[str]:
    """Returns the schedules that were found without the measured documents, and a rule of thumb."""
    advice = lab.results.get("recommend", {})
    found = [
        lab.schedules.default,
        lab.schedules.rule,
        lab.results.get("search", {}).get("spec"),
        advice.get("lowest"),
        advice.get("schedule"),
    ]
    return [each for each in dict.fromkeys(found) if each not in (None, "as-is", TRUNCATION)]


def measure_transfer(lab: Lab) -> Entry:
    """What was chosen by some documents, on others."""
    measured = Measured(lab, base_model(lab), chosen(lab))
    known = ("as-is", lab.schedules.default)
    lab.store_losses("transfer", {name: each for name, each in measured.losses.items() if name not in known})
    measured.show("transfer")
    return measured.entry


def compare_with_grids(lab: Lab) -> Entry:
    """How far what was chosen by some documents is above the best of all that was measured on the others."""
    target, sums = str(lab.sizes.target), dict[str, np.ndarray]()
    for stage in ("main", "wide", "grid", "grid-2", "grid-4", "transfer"):
        for name, each in lab.results.get(stage, {}).get("schedules", {}).items():
            if name != TRUNCATION:
                sums[name] = np.asarray(each["sums"][target])
    best, above = min(sums, key=lambda name: sums[name].sum()), {}
    for name in lab.results.get("transfer", {}).get("schedules", {}):
        above[name] = change(lab, (sums[name] - sums[best]) / (lab.sizes.target - 1))
        lab.say(f"{name} above {best}, the best of {len(sums)}: {above[name]}")
    return {"best": best, "schedules": len(sums), "above": above}


def fine_tune(lab: Lab, stage: str, stages: list[str]) -> Entry:
    """An arm of fine-tuning, measured beside the model that it began with."""
    tuning = Tuning(lab, stage, stages)
    name, model = tuning.spec or "as-is", tuning.run()
    measured = Measured(lab, model, [tuning.spec] if tuning.spec else [], truncation=stage in ("ft-none", SHORT_ARM))
    kept = {each: losses for each, losses in measured.losses.items() if each in (name, TRUNCATION)}
    lab.tuned_losses |= {f"{stage} {each}": losses for each, losses in kept.items()}
    measured.show(stage)
    main = lab.results.get("main", {}).get("schedules", {})
    for base in [each for each in (TRUNCATION, name) if each in main]:
        against = measured.against(name, main[base]["beyond"])
        measured.entry["paired"][f"base model: {base}"] = {"beyond": against}
        lab.say(f"  against the base model's {base}, positions past {lab.sizes.trained}: {against}")
    return measured.entry | {
        "spec": tuning.spec,
        "steps": tuning.steps,
        "tokens": tuning.tokens,
        "train_seconds": tuning.seconds,
        "share_of_peak": tuning.share_of_peak,
        "curve": tuning.curve,
        "verified": tuning.live,
        "losses_dropped": lab.store_losses("ft", lab.tuned_losses),
    }


def measure_retrieval(lab: Lab) -> Entry:
    """Whether the model finds numbers, after it has learned to answer within its trained length."""
    model, curve = teach(lab)
    factor, start = lab.sizes.factor, time.perf_counter()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=lab.corpus.tokenizer, bos_token=BOS, eos_token=BOS)
    schedules = [f"linear:factor={factor}", f"ntk:factor={factor}", *chosen(lab)]
    found = retrieval(lab, model, tokenizer, schedules)
    spent = time.perf_counter() - start
    lab.say(f"retrieval ({spent:.1f} s)")
    print(found.to_markdown()[:4000], flush=True)
    return {"curve": curve, "seconds": spent, "result": found.to_dict(), "report": found.to_markdown()}
