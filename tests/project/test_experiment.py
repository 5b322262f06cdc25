"""Every stage of the experiment, on a processor, with a tiny model and the standard library."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from launching import TOOLS, environment

# Libraries that a machine with an accelerator may lack.
ABSENT = ("click", "datasets", "pyarrow", "matplotlib")

SCRIPT = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # None: importing it is an error
module, *words = sys.argv[1:]
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__")
"""


def losses_fall(curve: list[list[float]], column: int = 1) -> bool:
    return curve[-1][column] < curve[0][column] - 0.1


@pytest.mark.slow
def test_every_stage_runs_in_two_calls_on_a_processor_where_only_torch_and_transformers_are_installed(python, tmp_path):
    out, data, state = tmp_path / "out", tmp_path / "data", tmp_path / "state"

    def run(module, *words):
        done = python("-c", SCRIPT, module, "--tiny", "--out", *map(str, words), env=environment(TOOLS))
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return json.loads((out / "results.json").read_text()) if module == "experiment" else {}

    first = run("experiment", out, "--state", state, "--stages", "base")
    weights = (state / "base.pt").read_bytes()
    run("experiment.make_corpus", data)
    found = run("experiment", out, "--state", state, "--data", data, "--stages", "tune,ramps")
    assert weights == (state / "base.pt").read_bytes()
    assert first | found == found | {"setup": first["setup"]} and not [name for name in found if " " in name]
    assert found["setup"]["corpus"] == first["setup"]["corpus"], "the corpus made in memory, and read from files"
    shapes = {name: each.numel() for name, each in torch.load(state / "base.pt").items() if each.dim() == 2}
    assert found["setup"]["parameters"] == sum(shapes.values()) - shapes["lm_head.weight"]

    curve, main = found["train"]["curve"], found["main"]["schedules"]
    assert curve[0][3] == pytest.approx(math.log(1024), abs=0.1) and losses_fall(curve, 3)
    assert found["train"]["held_out_nll"] < curve[0][3] - 0.3
    specs = [f"{name}:factor={factor}" for factor in (2, 4, 8) for name in ("linear", "ntk", "yarn")]
    assert list(main) == ["as-is", *specs, "cope", "truncation"]
    losses = np.load(out / "losses_main.npz")
    for name, each in main.items():
        assert list(each["ppl"]) == ["32", "64", "128", "256", "512"]
        assert each["ppl"]["512"] == pytest.approx(np.exp(losses[name].astype(float).mean()), rel=1e-3)
    assert found["main"]["paired"]["as-is"]["truncation"]["short"]["mean"] == 0.0
    for grid, factor in (("grid", 8), ("grid-2", 2), ("grid-4", 4)):
        ramps = found[grid]["schedules"]
        default = ramps[f"yarn:factor={factor},beta_fast=32,beta_slow=1,truncate=true"]["ppl"]["512"]
        assert len(ramps) == 25 and default == pytest.approx(main[f"yarn:factor={factor}"]["ppl"]["512"], rel=1e-6)
    ours, reference = found["remapped"]["schedules"], "remapped positions (reference, not exportable)"
    assert list(ours) == ["as-is", "yarn:factor=8", reference, f"{reference}, no scale"]
    assert ours["yarn:factor=8"]["ppl"] == pytest.approx(main["yarn:factor=8"]["ppl"], rel=1e-6)
    assert found["remapped"]["paired"]["as-is"][reference]["short"]["mean"] == pytest.approx(0, abs=1e-5)
    wide = found["wide"]
    assert len(wide["schedules"]) == 13 and wide["paired"]["as-is"]["dynamic-yarn"]["short"]["mean"] == 0.0
    tried = {name: each["ppl"]["512"] for part in ("main", "wide", "grid", "grid-2", "grid-4", "transfer")
             for name, each in found[part]["schedules"].items() if name != "truncation"}  # fmt: skip
    regret = found["regret"]
    assert (regret["best"], regret["schedules"]) == (min(tried, key=tried.get), len(tried))
    assert {found["recommend"]["schedule"], found["search"]["spec"], "yarn:factor=8"} <= set(regret["above"])
    for name, above in regret["above"].items():
        assert above["mean"] == pytest.approx(math.log(tried[name] / tried[regret["best"]]), abs=2e-5)

    advice, search = found["recommend"], found["search"]
    candidates = {row["schedule"] for row in advice["rows"]}
    assert {advice["schedule"], advice["lowest"]} <= candidates and len(candidates) > 20
    assert search["spec"].startswith("yarn:factor=") and search["spent"] <= 30 * 512
    assert search["checks"][-1][1] < search["checks"][0][1] and all(a[0] < b[0] for a, b in pairwise(search["checks"]))
    assert {"as-is", "yarn:factor=8", search["spec"]} <= set(found["transfer"]["schedules"])

    arms = {"yarn": "yarn:factor=8", "linear": "linear:factor=8", "abf": f"abf:rope_theta={1e4 * 8 ** (16 / 14):.0f}"}
    for arm in ("yarn", "linear", "abf", "none", "short"):
        each, spec = found[f"ft-{arm}"], arms.get(arm)
        assert (each["spec"], each["verified"]) == (spec, True if spec else None) and losses_fall(each["curve"])
        assert each["tokens"] == found["ft_steps"] * 2 * 512 and 1 < each["steps"] <= 12
        assert spec in (None, list(each["schedules"])[-1]) and not each["losses_dropped"]
    assert set(np.load(out / "losses_ft.npz")) >= {"ft-yarn yarn:factor=8", "ft-none as-is", "ft-short truncation"}
    assert losses_fall(found["retrieval"]["curve"])
    asked = {(row["schedule"], row["length"]) for row in found["retrieval"]["result"]["rows"]}
    assert asked >= {(spec, n) for spec in ("as-is", "ntk:factor=8", search["spec"]) for n in (64, 128, 256, 512)}
