"""Searches for an engine, and with the model's own table kept for short text."""

import pytest
import torch
from configurations import CONFIG
from tiny import documents, llama
from transformers import AutoModelForCausalLM

import ropescale
from ropescale.engines.base import layers_of
from ropescale.engines.registry import ENGINES
from ropescale.errors import ConfigError
from ropescale.evals import search
from ropescale.evals.searching.options import SearchOptions, plan_of_start
from ropescale.evals.searching.results import commands
from ropescale.evals.searching.search_space import space_of
from ropescale.planning.plan import make_plan
from ropescale.request import Request

BUDGET = {"budget_tokens": 128 * 30}


def shape(engine, config=CONFIG):
    options = SearchOptions(engine=engine)
    plan = plan_of_start(config, 2048, options.patching)
    space = space_of(plan, 2048, options)
    return next(iter(space.families.values())).shape, space


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "llama.cpp"])
def test_an_engine_computes_what_is_searched_for_it(engine):
    found, space = shape(engine)
    point = space.nearest([value + away for value, away in zip(space.start, (1.3, 1.9, 0.04, 0.03), strict=False)])
    plan = make_plan(CONFIG, Request(space.schedule(point)))
    differences = [each for layers in layers_of(plan) for each in ENGINES[engine].differences(layers)]
    assert all(each.status == "honoured" for each in differences), (found, differences)


def test_most_freedom_is_kept_and_llama_cpp_is_told_by_its_flags():
    engines = ("transformers5", "mlx-lm", "sglang", "llama.cpp")
    found = {engine: (shape(engine)[0].scale, shape(engine)[0].whole) for engine in engines}
    assert found == dict(zip(engines, [("free", False), ("rule", True), ("rule", False), ("free", True)], strict=True))


@pytest.mark.parametrize(("engine", "by_folder"), [("vllm", True), ("mlx-lm", True), ("llama.cpp", False)])
def test_what_comes_next_is_the_engines_own_command(engine, by_folder):
    _, space = shape(engine)
    point = space.nearest([value + away for value, away in zip(space.start, (1.3, 1.9, 0.04, 0.03), strict=False)])
    plan = make_plan(CONFIG, Request(space.schedule(point), layers="all"))
    patched = "ropescale patch MODEL -o OUT --schedule f.json --layers all"
    assert commands("MODEL", "f.json", plan, None) == [patched]
    exported = f"ropescale export OUT --for {engine}"
    alone = f"ropescale export MODEL --for {engine} --schedule f.json --layers all"
    assert commands("MODEL", "f.json", plan, engine) == ([alone] if engine == "llama.cpp" else [patched, exported])


def test_an_engine_that_computes_none_of_them_is_named():
    options = SearchOptions(engine="mlx-lm", keep_short=True)
    with pytest.raises(ConfigError, match=r"mlx-lm computes no such schedule .* \(switch: dropped\)"):
        space_of(plan_of_start(CONFIG, 2048, options.patching), 2048, options)


def test_short_text_is_bit_equal_where_the_models_own_table_is_kept(tmp_path, one_thread):
    result = search(llama(), documents(12, 300), 128, keep_short=True, **BUDGET)
    model, ids = llama(), torch.tensor([documents(1, 64)[0][:64]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        with ropescale.patch(model, result.schedule):
            assert torch.equal(model(input_ids=ids).logits, before)
            long = model(input_ids=torch.tensor([documents(1, 128)[0][:128]])).logits
            model.save_pretrained(tmp_path)
        assert not torch.equal(model(input_ids=torch.tensor([documents(1, 128)[0][:128]])).logits, long)
        stock = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(stock(input_ids=ids).logits, before)
        assert torch.equal(stock(input_ids=torch.tensor([documents(1, 128)[0][:128]])).logits, long)
    assert result.schedule.attention_factor == 1.0
    assert any("decoding past it" in remark for remark in result.remarks)


def test_with_the_models_own_table_kept_the_short_figure_is_the_models_own(one_thread):
    text = documents(12, 300)
    result = search(llama(), text, 128, keep_short=True, **BUDGET)
    windows = [text[int(name.split()[-1])][:64] for name in result.protocol["held_out"]]
    alone = ropescale.evals.perplexity(llama(), windows, [64], short_context=False).rows[0]
    assert result.perplexity("found")[64] == pytest.approx(alone.ppl, rel=1e-6)
    assert result.spent <= BUDGET["budget_tokens"]


def test_stock_transformers_loads_what_was_found(tmp_path, one_thread):
    result = search(llama(), documents(12, 300), 128, **BUDGET)
    model, ids = llama(), torch.tensor([documents(1, 128)[0][:128]])
    with torch.no_grad(), ropescale.patch(model, str(result.save(tmp_path / "factors.json"))):
        live = model(input_ids=ids).logits
        model.save_pretrained(tmp_path / "out")
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "out")(input_ids=ids).logits, live)
