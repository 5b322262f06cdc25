"""The reference model that was taught to answer: what it answers, what it was taught, and that it stays small."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropescale
from ropescale.errors import CheckpointError
from ropescale.evals.passkey.filler import Generated
from ropescale.evals.passkey.tasks import prompts
from ropescale.evals.reference import CHECKPOINT, PASSKEY, held_out_documents
from ropescale.evals.reference.__main__ import main
from ropescale.evals.reference.lessons import IGNORED, SHORTEST, UNTAUGHT, Lessons
from ropescale.evals.reference.taught import load_taught, save_taught
from ropescale.evals.reference.teaching import TeachingRecipe, teach
from ropescale.evals.reference.training import learning_rate

TEXT = 'def f(x):\n    """Returns x."""\n    return x\n\n\nclass Cat:\n    name = "Tom"\n' * 60
"""Python without a digit, to hide keys in."""


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def asked(tokenizer):
    """``{(schedule, length): accuracy}`` over three depths, four keys each."""
    result = ropescale.evals.retrieval(
        load_taught(), tokenizer, [128, 256, 512, 1024], depths=3, schedules=["yarn:factor=8"], trials=4
    )
    return {(row.schedule, row.length): row.accuracy for row in result.rows if row.depth is None}


def test_it_answers_within_its_trained_length_and_not_beyond(asked):
    assert asked["as-is", 128] >= 0.9 and asked["as-is", 256] >= 0.9
    assert asked["as-is", 512] == asked["as-is", 1024] == 0


def test_yarn_lets_it_answer_beyond_its_trained_length(asked):
    assert asked["yarn:factor=8", 512] >= 0.9
    assert asked["yarn:factor=8", 1024] >= 0.9


def test_it_predicts_python_nearly_as_well_as_before(tokenizer):
    """Within 4% of the perplexity of the first 256 tokens of the 26 held-out modules, by transformers' loss."""
    ids = torch.stack([tokenizer(text, return_tensors="pt")["input_ids"][0, :256] for text in held_out_documents()])
    before = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    with torch.inference_mode():
        old, new = (float(model(input_ids=ids, labels=ids).loss.exp()) for model in (before, load_taught()))
    assert old == pytest.approx(19.19, abs=0.01)
    assert new == pytest.approx(19.84, abs=0.01) and new < 1.04 * old


def test_both_models_are_below_ten_megabytes():
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in (CHECKPOINT, PASSKEY)]
    assert sum(sizes) < 10_000_000 and sizes[1] < 2_000_000


def test_merging_is_what_peft_does():
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(base, str(PASSKEY)).merge_and_unload().state_dict()
    found, plain = load_taught().state_dict(), AutoModelForCausalLM.from_pretrained(CHECKPOINT).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-7)
        assert torch.equal(weight, plain[name].float()) == (".self_attn." not in name), name


def test_the_adapter_names_its_base_and_no_path_of_a_machine():
    settings = json.loads((PASSKEY / "adapter_config.json").read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == CHECKPOINT.name
    assert (settings["r"], settings["lora_alpha"]) == (TeachingRecipe.rank, TeachingRecipe.alpha)


@pytest.mark.parametrize("task", SHORTEST)
def test_a_lesson_asks_for_a_key_that_its_text_holds(tokenizer, task):
    lesson = Lessons(tokenizer, [TEXT]).lesson(7, task, 256, 6)
    assert SHORTEST[task] <= lesson.ids.shape[1] <= 256 and lesson.ids.shape == lesson.labels.shape
    for ids, labels in zip(lesson.ids, lesson.labels):
        counted = labels != IGNORED
        keys = re.findall(r"\d{5}", tokenizer.decode(labels[counted]))
        assert torch.equal(ids[counted], labels[counted]) and keys
        first = int(counted.nonzero()[0])
        for key in keys:
            assert tokenizer.decode(ids[:first]).count(key) == 1 and int(key) % UNTAUGHT


def test_no_lesson_is_a_question_of_a_run(tokenizer):
    """Of sixty lessons of the recipe and five runs at lengths up to 256, by the text around the keys."""
    recipe, lessons = TeachingRecipe(), Lessons(tokenizer, [TEXT])
    taught, tested = set(), set()
    for step in range(60):
        lesson = lessons.lesson(step, recipe.tasks[step % len(recipe.tasks)], recipe.longest(step), recipe.prompts)
        taught |= {_filler(tokenizer.decode(ids)) for ids in lesson.ids}
    for seed in range(5):
        for length in (128, 256):
            made = prompts("passkey", tokenizer, length, [0, 0.5, 1], 2, seed=seed, filler=Generated(), bos=0)
            tested |= {_filler(tokenizer.decode(prompt.context)) for prompt in made}
    assert len(taught) > 250 and len(tested) == 60 and taught.isdisjoint(tested)


def _filler(text: str) -> str:
    """The text without its keys and questions."""
    return re.sub(r" The pass key( of \w+)? is \d+\.?", "", text)


def test_the_length_of_lessons_grows_to_the_trained_one():
    recipe = TeachingRecipe()
    lengths = [recipe.longest(step) for step in range(recipe.steps)]
    assert lengths[0] == recipe.first and lengths == sorted(lengths)
    assert set(lengths[recipe.growing :]) == {256}
    rates = [learning_rate(step, recipe.pace) for step in range(recipe.steps)]
    assert max(rates) == rates[recipe.warmup] == recipe.learning_rate
    assert rates[-1] < 0.02 * recipe.learning_rate


def test_teaching_is_reproducible_from_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft")
    monkeypatch.setattr("ropescale.evals.reference.teaching.training_documents", lambda: [TEXT * 3] * 8)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        teach(tmp_path / name, TeachingRecipe(steps=2, seed=seed, prompts=2, windows=1, warmup=1))
    weights = {name: (tmp_path / name / "adapter_model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    assert {file.name for file in (tmp_path / "a").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert not torch.equal(load_taught(tmp_path / "a").model.layers[0].self_attn.o_proj.weight,
                           load_taught(tmp_path / "c").model.layers[0].self_attn.o_proj.weight)  # fmt: skip


def test_the_taught_model_is_a_checkpoint_that_stock_transformers_loads(tmp_path: Path, tokenizer):
    save_taught(tmp_path / "TAUGHT")
    ids = tokenizer("import os\n", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "TAUGHT", dtype=torch.float32)(ids).logits
        assert torch.equal(found, load_taught()(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "TAUGHT")("import os\n")["input_ids"] == ids[0].tolist()
    with pytest.raises(CheckpointError, match="there already"):
        save_taught(tmp_path / "TAUGHT")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--taught", "--teach"], "give one of them"),
        (["--taught", "--steps", "3"], "--steps has no effect with --taught"),
        (["--teach", "--head-dim", "32"], "--head-dim has no effect with --teach"),
        (["--taught", "-o", "."], "there already"),
    ],
)
def test_what_has_no_effect_is_refused(given: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    done = CliRunner().invoke(main, ["-o", "OUT", *given])
    assert done.exit_code == 2 and said in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
