"""Teaches the reference model to answer: ``python -m ropescale.evals.reference --teach -o OUT``.

A LoRA adapter of its attention, trained within its 256 tokens on generated retrieval texts
(:mod:`ropescale.evals.reference.lessons`), with the loss on the answers. On windows of its own training text, beside
them, it is held to what it predicted before, so that its perplexity stays. A few minutes of one CPU core; the same seed
gives the same adapter for the same Python, torch, processor and number of threads.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from ...errors import ConfigError
from ...output.formatting import first_line
from . import CHECKPOINT
from .corpus import training_documents
from .lessons import Lesson, Lessons
from .taught import refuse_full
from .training import Recipe, learning_rate, tokenize, windows

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(frozen=True)
class TeachingRecipe:
    """Everything that decides the adapter, given the model and its text.

    Attributes:
        steps, seed: of the training.
        tasks: kinds of retrieval, in turns.
        prompts: of a step.
        windows: of 256 tokens of the training text, of a step, on which it is held to what it predicted.
        first, growing: the longest prompt at first, and how many steps until prompts have all lengths up to 256.
        rank, alpha: of the adapter.
        hold: how much a nat of divergence on the training text counts, against one of the answers.
        learning_rate, warmup: AdamW's peak, and the steps until it; then a cosine down to a hundredth.
    """

    steps: int = 240
    seed: int = 0
    tasks: tuple[str, ...] = ("passkey", "multi-key")
    prompts: int = 6
    windows: int = 4
    first: int = 64
    growing: int = 80
    rank: int = 8
    alpha: int = 16
    hold: float = 1.0
    learning_rate: float = 2e-3
    warmup: int = 20

    @property
    def length(self) -> int:
        """The longest text, which is the length that the model was trained at."""
        return Recipe.length

    def longest(self, step: int) -> int:
        """Returns the longest prompt of a step."""
        return min(self.length, self.first + (self.length - self.first) * step // max(1, self.growing))

    @property
    def pace(self) -> Recipe:
        """The rates of the steps, and the windows of the training text, as of a training from scratch."""
        fed = self.windows * self.length
        return Recipe(self.steps, self.seed, batch_tokens=fed, learning_rate=self.learning_rate, warmup=self.warmup)


EVERY_NTH = 8
"""Of the training modules, every so many are enough for so few steps."""

HAYSTACKS, LONG = 24, 8_000
"""So many modules, of at least so many characters, have keys hidden in them."""


def teach(out: Path, recipe: TeachingRecipe) -> None:
    """Trains the adapter and saves it into ``out``.

    Raises:
        ConfigError: peft is not installed.
        CheckpointError: ``out`` is there and is not an empty folder.
    """
    from ...models.loading import load_tokenizer

    refuse_full(out)
    model = _adapted(recipe)
    tokenizer, texts = load_tokenizer(CHECKPOINT), training_documents()[::EVERY_NTH]
    lessons = Lessons(tokenizer, [text for text in texts if len(text) >= LONG][:HAYSTACKS], recipe.seed)
    fit(model, lessons, tokenize(texts, tokenizer), recipe)  # type: ignore[arg-type]
    _save(model, out)


def _save(model: PeftModel, out: Path) -> None:
    """Writes the adapter, which names its base by the name alone, and leaves the card to whoever measures."""
    model.save_pretrained(str(out))
    (out / "README.md").unlink(missing_ok=True)
    settings = out / "adapter_config.json"
    named = {**json.loads(settings.read_text(encoding="utf-8")), "base_model_name_or_path": CHECKPOINT.name}
    settings.write_text(json.dumps(named, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"written to {out}", flush=True)


def _adapted(recipe: TeachingRecipe) -> PeftModel:
    """Returns the reference model in float32 with a fresh adapter on its attention."""
    from ...models.loading import load_model

    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError(
            f"teaching needs peft, which cannot be imported ({first_line(error)}); pip install 'ropescale[adapters]'"
        ) from None
    torch.manual_seed(recipe.seed)
    settings = LoraConfig(
        r=recipe.rank, lora_alpha=recipe.alpha, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )  # fmt: skip
    return get_peft_model(load_model(CHECKPOINT, "float32", "cpu"), settings)


def fit(model: PeftModel, lessons: Lessons, ids: torch.Tensor, recipe: TeachingRecipe) -> None:
    """Trains in place; prints both losses every ten steps.

    Args:
        ids: the training text, int64 [tokens].
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    pace, started = recipe.pace, time.monotonic()
    model.train()
    for step, batch in zip(range(recipe.steps), windows(ids, pace)):
        task = recipe.tasks[step % len(recipe.tasks)]
        lesson = lessons.lesson(step, task, recipe.longest(step), recipe.prompts)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, pace)
        optimizer.zero_grad()
        answer = _learn(model, lesson)
        apart = _stay(model, batch, recipe.hold)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if step % 10 == 0 or step == recipe.steps - 1:
            spent = time.monotonic() - started
            print(f"step {step:4d}  answers {answer:.4f}  text {apart:.4f}  {spent:.0f} s", flush=True)
    model.eval()


def _learn(model: PeftModel, lesson: Lesson) -> float:
    """Adds the gradient of the answers' mean loss, and returns that loss in nats."""
    loss = model(input_ids=lesson.ids, labels=lesson.labels, use_cache=False).loss
    loss.backward()
    return float(loss.detach())


def _stay(model: PeftModel, ids: torch.Tensor, hold: float) -> float:
    """Adds ``hold`` times the gradient of the mean divergence from the model without the adapter; returns it in nats.

    The divergence is Kullback and Leibler's, ``sum p (log p - log q)``, where ``p`` is what the model predicted before.
    """
    with torch.no_grad(), model.disable_adapter():
        before = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
    after = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
    divergence = functional.kl_div(after, before, reduction="sum", log_target=True) / ids.numel()
    (hold * divergence).backward()
    return float(divergence.detach())
