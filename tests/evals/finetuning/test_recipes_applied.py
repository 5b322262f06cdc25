"""A recipe's numbers as they reach the optimizer and the batches of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import training

from ropescale.cli.main import main
from ropescale.errors import RunError
from ropescale.evals.data.texts import Text
from ropescale.evals.finetuning.job import TrainingJob
from ropescale.evals.finetuning.recipes import recipe
from ropescale.evals.finetuning.running import Adaptation, Pace
from ropescale.evals.finetuning.trainer import RecipeTrainer
from ropescale.evals.running.preparing import Checkpoint
from ropescale.request import Request

pytestmark = pytest.mark.usefixtures("no_plots", "one_thread")

TEXT = Text("text", " ".join(str(n * n % 977) for n in range(600)))


def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: TrainingJob) -> tuple[list[dict], list[int]]:
    """Trains, and returns the optimizer's settings at every step, and the windows of every step."""
    groups, windows, step = [], [0], RecipeTrainer.training_step

    def begin(self, args, state, control, **kwargs):
        [*each] = kwargs["optimizer"].param_groups
        assert all(group["lr"] == each[0]["lr"] for group in each)
        groups.append({name: each[0][name] for name in ("lr", "betas", "eps")})
        groups[-1] |= {"decay": [group["weight_decay"] for group in each], "clip": args.max_grad_norm}
        groups[-1]["kind"] = type(kwargs["optimizer"].optimizer)

    def counted(self, model, inputs, *more, **options):
        windows[0] += len(inputs["input_ids"])
        return step(self, model, inputs, *more, **options)

    monkeypatch.setattr(Pace, "on_step_begin", begin)
    monkeypatch.setattr(RecipeTrainer, "training_step", counted)
    source = training.checkpoint(tmp_path / "model")
    Adaptation(Checkpoint(str(source)), Request("yarn:factor=4"), job, [TEXT], None, tmp_path / "out").run()
    return groups, windows


@pytest.mark.parametrize(("name", "first"), [("pi", 0.1), ("yarn", 1 / 20)])
def test_rates_and_betas_at_every_step_are_the_papers(tmp_path, monkeypatch, name, first):
    """arXiv 2306.15595, 3.1, and 2309.00071, 4.1: AdamW, betas 0.9 and 0.95, no decay of weights, 2e-5 after 20 steps
    of linear warm-up, from 10% (PI); YaRN's paper does not say from where, and it is a twentieth."""
    chosen = recipe(name).with_changes(batch=1)
    groups, windows = seen(tmp_path, monkeypatch, TrainingJob(24, chosen, length=16, save_every=100))
    rates = [2e-5 * (first + (1 - first) * step / 20) if step < 20 else 2e-5 for step in range(24)]
    assert [group["lr"] for group in groups] == pytest.approx(rates, rel=1e-12)
    for group in groups:
        assert group["kind"] is torch.optim.AdamW and group["betas"] == (0.9, 0.95)
        assert {*group["decay"]} == {0.0} and group["clip"] == 1.0
    assert windows == [24]


@pytest.mark.parametrize("name", ["pi", "yarn"])
def test_a_step_has_64_windows_however_they_are_shared_out(tmp_path, monkeypatch, name):
    job = TrainingJob(2, recipe(name), length=16, micro_batch=16, save_every=100)
    _, windows = seen(tmp_path, monkeypatch, job)
    assert windows == [2 * 64]


@pytest.mark.parametrize(
    ("words", "steps"), [([], 400), (["--recipe", "pi"], 1000), (["--recipe", "pi", "--steps", "7"], 7)]
)
def test_the_steps_are_the_papers_unless_they_are_given(tmp_path, monkeypatch, words, steps):
    jobs = []

    def caught(checkpoint, request, job, *_, **__):
        jobs.append(job)
        raise RunError("that is enough")

    monkeypatch.setattr("ropescale.evals.finetuning.running.Adaptation", caught)
    source = training.checkpoint(tmp_path / "model")
    (tmp_path / "book.txt").write_text("Call me Ishmael. " * 50)
    asked = ["finetune", str(source), "--schedule", "yarn:factor=4", "--data", str(tmp_path / "book.txt")]
    assert main([*asked, *words, "-o", str(tmp_path / "out")]) == 1
    assert [job.steps for job in jobs] == [steps]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_decay_is_the_closed_form_at_every_step(tmp_path, monkeypatch, decay):
    chosen = recipe("yarn").with_changes(batch=1, warmup=2, decay=decay, learning_rate=1e-3)
    groups, _ = seen(tmp_path, monkeypatch, TrainingJob(10, chosen, length=16, save_every=100))
    left = torch.arange(9, dtype=torch.float64) / 8  # from the end of the warm-up to the last step
    wanted = 1 - left if decay == "linear" else (1 + torch.cos(torch.pi * left)) / 2
    assert [group["lr"] for group in groups[2:]] == pytest.approx((1e-3 * wanted[:8]).tolist(), rel=1e-12)
