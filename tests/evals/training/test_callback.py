"""``ropescale.TrainingCallback`` under transformers' Trainer: proved before the first step, measured, saved."""

import json
import math

import peft
import pytest
import tiny
import torch
import training
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

import ropescale
from ropescale.errors import ConfigError, DataError, RopescaleError, VerificationError
from ropescale.evals.reporting.page import page
from ropescale.evals.reporting.runs import load
from ropescale.evals.training.measuring import refuse_unmeasurable

pytestmark = pytest.mark.usefixtures("one_thread")

YARN = "yarn:factor=4"
DOCUMENTS = tiny.documents(2, 256, 256)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return training.checkpoint(tmp_path_factory.mktemp("once") / "source")


@pytest.fixture
def patched(source, tmp_path):
    ropescale.patch_checkpoint(source, tmp_path / "patched", YARN)
    return tmp_path / "patched"


def with_adapter(model):
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["embed_tokens"])
    return peft.get_peft_model(model, settings)


class At(TrainerCallback):
    """Does something to the model as the training begins (step 0) or as some steps begin, before ropescale looks."""

    def __init__(self, **acts):
        self.acts = {int(name.removeprefix("step")): act for name, act in acts.items()}

    def on_train_begin(self, args, state, control, **kwargs):
        self.acts.get(0, lambda model: None)(kwargs["model"])

    def on_step_begin(self, args, state, control, **kwargs):
        self.acts.get(state.global_step + 1, lambda model: None)(kwargs["model"])


# --- proving ---


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (lambda m: m.model.rotary_emb.inv_freq.mul_(1.5), r"model\.rotary_emb .* does not have.*5\.0e-01 relative"),
        (lambda m: setattr(m.model.rotary_emb, "attention_scaling", 1.0), r"model\.rotary_emb .*1\.2e-01 relative"),
        (lambda m: m.model.rotary_emb.to(torch.bfloat16)._buffers.update(
            inv_freq=m.model.rotary_emb.inv_freq.bfloat16()), "was rounded to bfloat16"),
        (lambda m: m.model.rotary_emb._buffers.update(
            inv_freq=torch.empty(4, device="meta")), "on the meta device"),
        (lambda m: m.model.rotary_emb._buffers.update(inv_freq=torch.full((4,), math.nan)), "inf relative"),
        (lambda m: setattr(m.model, "forward", lambda **k: 1 / 0), "ZeroDivisionError"),
    ],
    ids=["frequencies", "scale", "bfloat16", "meta", "uninitialised", "forward"],
)  # fmt: skip
def test_a_broken_table_stops_the_training_before_its_first_step(source, tmp_path, breaks, said):
    callbacks = At(step0=breaks), ropescale.TrainingCallback(YARN)
    made = training.trainer(training.loaded(source), tmp_path, *callbacks, save_strategy="no")
    with pytest.raises(VerificationError, match=said):
        made.train()
    assert made.state.global_step == 0


def test_what_cannot_be_trained_or_saved_is_refused_before_the_first_step(source, patched, tmp_path):
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=training.VOCABULARY, n_embd=16, n_layer=1, n_head=2))
    for model, given, said in (
        (training.loaded(patched), ["yarn:factor=8"], "yarn x4 of 64, but the callback has yarn:factor=8"),
        (training.loaded(source), ["dynamic-yarn"], "freeze"),
        (with_adapter(tiny.llama(vocab_size=training.VOCABULARY)), [YARN], "has no folder with weights to link"),
        (gpt2, [], "RoPE|rotary"),
    ):
        made = training.trainer(model, tmp_path / "no", ropescale.TrainingCallback(*given))
        with pytest.raises(RopescaleError, match=said):
            made.train()
        assert made.state.global_step == 0
    unsaved = ropescale.TrainingCallback("dynamic-yarn", save=False)
    training.trainer(training.loaded(source), tmp_path / "out", unsaved, save_strategy="no").train()


def test_without_a_schedule_the_configuration_is_what_must_be_live(source, patched, tmp_path):
    breaking = At(step0=lambda model: model.model.rotary_emb.inv_freq.mul_(1.5))
    made = training.trainer(training.loaded(patched), tmp_path / "no", breaking, ropescale.TrainingCallback())
    with pytest.raises(VerificationError, match="does not have"):
        made.train()
    for model, intended in ((source, "all: default of 64, theta 10,000"), (patched, "all: yarn:factor=4")):
        training.trainer(training.loaded(model), tmp_path / model.name, ropescale.TrainingCallback()).train()
        assert ropescale.verify(tmp_path / model.name / "checkpoint-4").intended == intended
    assert not (tmp_path / source.name / "checkpoint-4" / "ropescale.json").exists()


COMPILED = pytest.param({"torch_compile": True, "torch_compile_backend": "eager"}, marks=pytest.mark.slow)
WAYS = [{"gradient_checkpointing": True}, COMPILED, {"model_init": True}]


@pytest.mark.parametrize("settings", WAYS, ids=lambda settings: next(iter(settings)))
def test_the_schedule_is_live_under_the_ways_in_which_people_train(source, tmp_path, settings):
    model = training.loaded(source)
    if settings.pop("model_init", None):
        settings, model = {"model_init": lambda: training.loaded(source)}, None
    callback = ropescale.TrainingCallback(YARN, DOCUMENTS, "64,256")
    made = training.trainer(model, tmp_path, callback, **settings)
    made.train()
    assert ropescale.verify(made.model).live and ropescale.verify(tmp_path / "checkpoint-4").live
    assert sorted(callback.measured) == [0, 4]


# --- Measuring ---


def test_the_figures_are_those_of_evaluating_what_was_saved(source, tmp_path):
    callback = ropescale.TrainingCallback(YARN, DOCUMENTS, "64,256")
    made = training.trainer(training.loaded(source), tmp_path, callback, evaluate=True, bf16=True)
    callback.log = made.log
    assert made.evaluate()["eval_ppl_256"] == callback.measured[0]["eval_ppl_256"]
    made.train()
    assert not made.model._forward_hooks
    for step in (2, 4):
        saved = training.loaded(tmp_path / f"checkpoint-{step}")
        oracle = ropescale.evals.perplexity(saved, DOCUMENTS, "64,256", tokenizer=tiny.byte_tokenizer())
        assert all(callback.measured[step][f"eval_ppl_{row.length}"] == row.ppl for row in oracle.rows)
    original = ropescale.evals.perplexity(training.loaded(source), DOCUMENTS, "64,256", tokenizer=tiny.byte_tokenizer())
    cost = math.log(callback.measured[4]["eval_ppl_64"] / original.rows[0].ppl)
    assert callback.measured[4]["eval_short_context_cost"] == pytest.approx(cost, abs=1e-9)
    logged = {line["step"]: line for line in made.state.log_history if "eval_ppl_256" in line}
    assert sorted(logged) == sorted(callback.measured) == [0, 2, 4]
    assert all(line["eval_ppl_256"] == callback.measured[step]["eval_ppl_256"] for step, line in logged.items())


def test_every_measurement_is_a_run_that_report_shows(source, tmp_path):
    callback = ropescale.TrainingCallback(YARN, DOCUMENTS, "64,256", every=2, out=tmp_path / "runs")
    training.trainer(training.loaded(source), tmp_path / "out", callback).train()
    runs = sorted((tmp_path / "runs").iterdir())
    assert [run.name for run in runs] == [f"step-{step:06d}" for step in (0, 2, 4)]
    first = ropescale.evals.Result.load(runs[0])
    assert (first.schedules, first.baseline) == (["yarn:factor=4, before", "base"], "base")
    assert "step-000002" in page(load(runs))
    assert ropescale.evals.Result.load(runs[-1]).rows[-1].ppl == callback.measured[4]["eval_ppl_256"]


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "lora"])
def test_training_is_bit_for_bit_the_same_with_and_without_measuring(source, tmp_path, adapted):
    measuring = {"eval_documents": DOCUMENTS, "lengths": "64,256", "every": 1}
    for name, options in (("with", measuring), ("without", {})):
        model = training.loaded(source)
        model.config.attention_dropout = 0.3  # which draws from the random state
        model = with_adapter(model) if adapted else model
        training.trainer(model, tmp_path / name, ropescale.TrainingCallback(YARN, **options)).train()
    assert training.same(tmp_path / "with" / "checkpoint-4", tmp_path / "without" / "checkpoint-4")


UNUSED = [
    ({"eval_documents": DOCUMENTS}, "eval_documents and lengths need each other"),
    ({"lengths": "64"}, "eval_documents and lengths need each other"),
    ({"every": 2}, "every needs eval_documents"),
    ({"windows": 1}, "windows needs eval_documents"),
    ({"eval_documents": DOCUMENTS, "lengths": "64", "every": 0}, "every 0"),
    ({"check_every": 0}, "check_every 0"),
    ({"eval_documents": DOCUMENTS, "lengths": "64,256", "budget_tokens": 511}, "each document, which takes 512 tokens"),
    ({"eval_documents": ropescale.evals.TextSource([__file__]), "lengths": "1m"}, "the longest, .*test_callback.py"),
]


@pytest.mark.parametrize(("options", "said"), UNUSED)
def test_options_that_cannot_be_followed_are_refused(options, said, source, tmp_path):
    with pytest.raises(DataError, match=said):
        training.trainer(training.loaded(source), tmp_path, ropescale.TrainingCallback(YARN, **options)).train()


# --- saving and resuming ---


def kept(folder):
    """What ``ropescale.save`` writes beside the weights: bytes by name, and the record without its list of files."""
    trainers = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin")
    found: dict[str, bytes | dict[str, object]] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.name == "ropescale.json":
            found[name] = {key: value for key, value in json.loads(path.read_text()).items() if key != "files"}
        elif path.is_file() and path.name not in trainers and path.suffix != ".safetensors":
            found[name] = path.read_bytes()
    return found


def test_a_checkpoint_holds_what_save_writes(source, tmp_path):
    made = training.trainer(training.loaded(source), tmp_path / "out", ropescale.TrainingCallback(YARN))
    made.train()
    ropescale.save(made.model, tmp_path / "saved", tokenizer=tiny.byte_tokenizer())
    found, wanted = kept(tmp_path / "out" / "checkpoint-4"), kept(tmp_path / "saved")
    config, both = (json.loads(each.pop("config.json")) for each in (found, wanted))
    assert found == wanted
    scaling = both.pop("rope_scaling")  # with which Trainer could not resume
    assert config == both and scaling.items() <= both["rope_parameters"].items()
    assert ropescale.verify(tmp_path / "out" / "checkpoint-4").intended == "all: yarn:factor=4"
    assert training.same(tmp_path / "out" / "checkpoint-4", tmp_path / "saved")
    ropescale.patch_checkpoint(tmp_path / "out" / "checkpoint-4", tmp_path / "whole", "as-is")  # which adds it
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["rope_scaling"] == scaling
    # the record lists what is ours, so that it can be told from what is not
    files = json.loads((tmp_path / "out" / "checkpoint-4" / "ropescale.json").read_text())["files"]
    assert "model.safetensors" in files and "optimizer.pt" not in files


def test_an_adapters_checkpoint_holds_its_base_and_loads_in_stock_peft(source, tmp_path):
    made = training.trainer(with_adapter(training.loaded(source)), tmp_path / "out", ropescale.TrainingCallback(YARN))
    made.train()
    folder = tmp_path / "out" / "checkpoint-4"
    ropescale.save(made.model, tmp_path / "saved", tokenizer=tiny.byte_tokenizer())
    assert kept(folder).keys() == kept(tmp_path / "saved").keys()
    stock = peft.AutoPeftModelForCausalLM.from_pretrained(folder).eval()
    assert ropescale.verify(stock).intended == "all: yarn x4 of 64, theta 10,000"
    ids = torch.arange(200)[None] % 250
    with torch.no_grad():
        assert torch.equal(stock(ids).logits, made.model.eval()(ids).logits)
    assert training.same(folder / "base", source)


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "lora"])
def test_trainer_resumes_from_a_completed_checkpoint_bit_for_bit(source, tmp_path, adapted):
    def made():
        model = training.loaded(source)
        model = with_adapter(model) if adapted else model
        callback = ropescale.TrainingCallback(YARN, DOCUMENTS, "64,256")
        return callback, training.trainer(model, tmp_path / "whole", callback, evaluate=True)

    whole, first = made()
    first.train()
    (tmp_path / "whole" / "checkpoint-4").rename(tmp_path / "first")
    again, second = made()
    second.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert again.measured == {4: whole.measured[4]}  # the short-context cost from what was kept, too
    assert training.same(tmp_path / "whole" / "checkpoint-4", tmp_path / "first")
    assert ropescale.verify(tmp_path / "whole" / "checkpoint-4").live


def test_weights_spread_by_the_first_fsdp_or_zero_3_are_refused_for_measuring():
    wrapped, parted = torch.nn.Module(), torch.nn.Linear(2, 2)
    wrapped._fsdp_wrapped_module = torch.nn.Linear(2, 2)
    parted.weight.ds_id = 1
    for model in (wrapped, parted):
        with pytest.raises(ConfigError, match="fsdp_version 2") as refused:
            refuse_unmeasurable(model)
        assert refused.value.fields == ("eval_documents",)
    refuse_unmeasurable(torch.nn.Linear(2, 2))


# --- numbers ---


STOPS = [({}, 99, 50), ({"check_every": 4}, 99, 8), ({"check_every": None}, 99, None), ({"check_every": None}, 7, 7)]


@pytest.mark.parametrize(("every", "save_steps", "stopped"), STOPS)
def test_a_table_that_is_lost_for_a_while_is_found_and_not_saved(source, tmp_path, every, save_steps, stopped):
    at = At(step5=lambda m: m.model.rotary_emb.inv_freq.mul_(2), step52=lambda m: m.model.rotary_emb.inv_freq.div_(2))
    callback, settings = ropescale.TrainingCallback(YARN, **every), {"max_steps": 56, "save_steps": save_steps}
    made = training.trainer(training.loaded(source), tmp_path, at, callback, **settings)
    if stopped is None:
        made.train()
        return
    with pytest.raises(VerificationError, match="does not have the intended table"):
        made.train()
    assert made.state.global_step == stopped and not list(tmp_path.glob("checkpoint-*"))


EPOCH = {"save_strategy": "epoch", "num_train_epochs": 1, "max_steps": -1, "learning_rate": 1e30}


LARGE, BEST = {"learning_rate": 1e30}, {"save_strategy": "best", "metric_for_best_model": "loss", "evaluate": True}
INFINITE = [LARGE, EPOCH | {"per_device_train_batch_size": 32}, BEST | LARGE, {"save_strategy": "no"} | LARGE]


@pytest.mark.parametrize("settings", INFINITE, ids=["steps", "epoch", "best", "end"])
def test_weights_that_are_not_finite_are_not_saved(source, tmp_path, settings):
    made = training.trainer(training.loaded(source), tmp_path, ropescale.TrainingCallback(YARN), **settings)
    with pytest.raises(VerificationError, match=r"loss is nan|trained tensors are not finite") as stopped:
        made.train()
    assert "this step is not saved" in str(stopped.value) and "\n" not in str(stopped.value)
    assert not list(tmp_path.glob("checkpoint-*"))
    assert all(math.isfinite(each.get("loss", 0)) for each in made.state.log_history)  # Trainer logs none of it


def test_one_weight_that_is_not_finite_is_named(source, tmp_path):
    def spoils(model):
        model.lm_head.weight.data[0, 0] = math.inf  # a token that no text has: its row alone is lost
        model.lm_head.forward = lambda hidden: hidden @ model.lm_head.weight.nan_to_num(posinf=0.0).T

    made = training.trainer(training.loaded(source), tmp_path, At(step2=spoils), ropescale.TrainingCallback(YARN))
    with pytest.raises(VerificationError, match=r"1 of \d+ trained tensors are not finite, such as lm_head\.weight"):
        made.train()
    assert made.state.global_step == 2 and not list(tmp_path.glob("checkpoint-*"))


def test_a_loss_that_is_not_finite_stops_a_training_whose_weights_are(source, tmp_path):
    class Masked(training.Windows):
        def __getitem__(self, number):
            return {**super().__getitem__(number), "labels": torch.full((48,), -100)}

    made = training.trainer(training.loaded(source), tmp_path, ropescale.TrainingCallback(YARN), max_grad_norm=0)
    made.model_accepts_loss_kwargs = False  # the mean over no token is NaN, and its gradient 0
    made.train_dataset = Masked()
    with pytest.raises(VerificationError, match="the last loss is nan"):
        made.train()
    assert all(each.isfinite().all() for each in made.model.parameters())
    assert not list(tmp_path.glob("checkpoint-*"))
