"""The parts of the measurement, each a function that adds its figures to the results."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import transformers

import ropescale.evals
from ropescale.evals.backends import fingerprints
from ropescale.evals.scoring.executor import Executor
from ropescale.evals.scoring.scorer import Scorer
from ropescale.evals.searching.learner import Learner

from .measuring import Bench, bare, free, losses_of, measured, whole_logits
from .shapes import build, flops


def environment(bench: Bench) -> None:
    """The device, the versions, and the libraries that are missing."""
    names = ("datasets", "pyarrow", "click", "pydantic", "matplotlib")
    bench.say(
        "environment",
        python=sys.version.split()[0],
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=torch.cuda.get_device_name(0) if bench.on_gpu else "cpu",
        memory=torch.cuda.get_device_properties(0).total_memory / 1e9 if bench.on_gpu else 0.0,
        absent=[name for name in names if importlib.util.find_spec(name) is None],
    )


def patch_and_verify(bench: Bench) -> None:
    """Patches three families on the device and verifies them, also while decoding and under TF32."""
    part, shapes = "patch and verify", bench.shapes
    lengths = [64, 128] if bench.tiny else [4096, 16384]
    families = {"llama": shapes.llama("0.6B", 8192), "qwen3": shapes.qwen3(8192), "gemma3": shapes.gemma3(8192)}
    for name, config in families.items():
        model = build(config, bench.device, bench.dtype)
        for spec in ("yarn:factor=4", "ntk:factor=4", "dynamic:factor=4"):
            before = fingerprints.rotation_sha256(model)
            with bench.timed() as timed, ropescale.patch(model, spec):
                live = ropescale.verify(model).live
            reverted = before == fingerprints.rotation_sha256(model)
            bench.say(part, **{f"{name} {spec}": f"live={live}, reverted={reverted}, {timed.seconds:.2f} s"})
        with ropescale.patch(model, "yarn:factor=4"), bench.timed() as timed:
            decoded = ropescale.verify(model, generate=True, lengths=lengths)
        verdicts = [(each.verdict, round(each.relative, 4), round(each.tolerance, 4)) for each in decoded.generation]
        bench.say(part, **{f"{name} decoding": verdicts, f"{name} decoding s": timed.seconds})
        if bench.on_gpu:
            bench.say(part, **{f"{name} under TF32": _under_tf32(lambda model=model: _is_live(model))})
        del model
        free(bench.on_gpu)


def _is_live(model: torch.nn.Module) -> object:
    with ropescale.patch(model, "yarn:factor=4"):
        return ropescale.verify(model).live


def _under_tf32(call: Any) -> object:
    """Returns a call's answer with TF32 on, which rounds positions above 2,048; or its error."""
    torch.set_float32_matmul_precision("high")
    try:
        return call()
    except ropescale.RopescaleError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.set_float32_matmul_precision("highest")


def kernels(bench: Bench) -> None:
    """Names the attention kernels that ran, in whole windows and in chunks."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if bench.on_gpu else [])
    length, chunk = (256, 64) if bench.tiny else (8192, 1024)
    shapes = bench.shapes
    cases = (
        ("llama", shapes.llama("0.6B", 8192), None),
        ("llama in chunks", shapes.llama("0.6B", 8192), chunk),
        ("qwen3", shapes.qwen3(8192), None),
        ("gemma3", shapes.gemma3(8192), None),
    )
    for name, config, size in cases:
        model = build(config, bench.device, bench.dtype)
        scorer, ids = Scorer(model), torch.tensor(bench.windows(model, length, 1))
        with torch.inference_mode():
            scorer.score(ids, size)
            with profile(activities=activities) as seen:
                scorer.score(ids, size)
        rows = [
            (each.key, getattr(each, "device_time_total", 0) or each.cpu_time_total) for each in seen.key_averages()
        ]
        words = ("flash", "fmha", "attention", "cudnn", "mem_eff", "efficient")
        named = [row for row in rows if any(word in row[0].lower() for word in words)]
        longest = sorted(named, key=lambda row: -row[1])[:4]
        bench.say("kernels", **{name: [(key[:90], round(time / 1e3, 2)) for key, time in longest]})
        del model, scorer
        free(bench.on_gpu)


def equality(bench: Bench) -> None:
    """Compares losses with a naive loop, with other batches and chunks, and with float32."""
    part, length = "equality", 256 if bench.tiny else 8192
    model = build(bench.shapes.llama("0.6B", length), bench.device, bench.dtype, head_gain=4.0)
    windows = bench.windows(model, length, 2)
    own = losses_of(measured(model, windows, [length], batch_tokens=length))
    naive = whole_logits(model, windows)
    bench.say(part, **{"largest difference to the naive loop": float(np.abs(own - naive).max())})
    bench.say(part, **{"mean difference to the naive loop": float((own.astype(float) - naive).mean())})
    bench.say(part, **{"largest difference to the bare forward": float(np.abs(own - bare(model, windows)).max())})
    both = losses_of(measured(model, windows, [length], batch_tokens=2 * length))
    bench.say(part, **{"batches of 1 and 2 equal bit for bit": own.tobytes() == both.tobytes()})
    bench.say(part, **{"largest difference between them": float(np.abs(own - both).max())})
    with torch.inference_mode():
        chunked = Scorer(model).score(torch.tensor(windows[:1]), 64 if bench.tiny else 1024).numpy()[0]
    bench.say(part, **{"largest difference in chunks": float(np.abs(chunked - own[: length - 1]).max())})
    wide = model.float()
    exact = losses_of(measured(wide, windows, [length], batch_tokens=length))
    _say_rounding(bench, part, "the model's dtype", own, exact)
    if bench.on_gpu:
        loose = _under_tf32(lambda: losses_of(measured(wide, windows, [length], batch_tokens=length)))
        _say_rounding(bench, part, "TF32", np.asarray(loose), exact)


def _say_rounding(bench: Bench, part: str, name: str, rounded: np.ndarray, exact: np.ndarray) -> None:
    apart = rounded.astype(float) - exact
    bench.say(
        part,
        **{
            f"{name} against float32: perplexity ratio - 1": float(np.exp(apart.mean()) - 1),
            f"{name}: sd of a token, nats": float(apart.std()),
            f"{name}: largest token": float(np.abs(apart).max()),
        },
    )


def resuming(bench: Bench) -> None:
    """Repeats a run, and continues one that was stopped after three batches; counts what differs in a bit."""
    part, length = "resuming", 256 if bench.tiny else 8192
    model = build(bench.shapes.llama("0.6B", length // 4), bench.device, bench.dtype, head_gain=4.0)
    windows, lengths = bench.windows(model, length, 6), [length // 4, length]
    options: dict[str, Any] = {"batch_tokens": 2 * length, "short_context": True, "truncation": None}

    def run(**more: Any) -> bytes:
        return _bytes_of(measured(model, windows, lengths, ["yarn:factor=4", "dynamic:factor=4"], **options, **more))

    one, two = run(), run()
    bench.say(part, **{"two runs equal": one == two})
    own, scored = Executor.score, itertools.count(1)

    def stopping(self: Executor, batch: Any) -> Any:
        if next(scored) == 4:
            raise KeyboardInterrupt
        return own(self, batch)

    with tempfile.TemporaryDirectory() as folder:
        Executor.score = stopping  # type: ignore[method-assign]
        try:
            run(out=f"{folder}/run")
        except KeyboardInterrupt:
            bench.say(part, stopped="after 3 batches")
        finally:
            Executor.score = own  # type: ignore[method-assign]
        bench.say(part, **{"stopped and continued equal": one == run(out=f"{folder}/run")})


def _bytes_of(result: ropescale.evals.Result) -> bytes:
    """Returns all numbers of a result."""
    arrays = [each for run in result.passes for each in run.nll]
    arrays += [each for run in result.divergences for each in run.kl]
    arrays += result.truncation.nll if result.truncation else []
    return b"".join(np.asarray(each).tobytes() for each in arrays)


def llama_at_length(bench: Bench, length: int) -> None:
    """16 lengths of an 8B in one pass, against the bare forward."""
    _curve(bench, "Llama-3.1-8B", bench.shapes.llama("8B", length), length)


def qwen_at_length(bench: Bench, length: int) -> None:
    """16 lengths of a 0.6B in one pass, against the bare forward."""
    _curve(bench, "Qwen3-0.6B", bench.shapes.qwen3(length), length)


def _curve(bench: Bench, part: str, config: Any, length: int) -> None:
    short = 64 if bench.tiny else 4096
    with bench.timed() as timed:
        model = build(config, bench.device, bench.dtype)
    bench.say(part, **{"build s": timed.seconds, "length": length, "PFLOP a window": flops(model, length) / 1e15})
    estimate = Scorer(model).estimate(length)
    bench.say(
        part,
        **{
            "estimated GB": estimate.whole(length, length) / 1e9,
            "chunk": str(estimate.chunk(length)),
            "batch_tokens": estimate.batch_tokens(length),
        },
    )
    warm = bench.windows(model, short, 2)
    bare(model, warm)
    measured(model, warm, [short])
    count = 4 if bench.tiny else 65536 // short
    many = bench.windows(model, short, count)
    with bench.timed() as timed:
        bare(model, many, max(1, (256 if bench.tiny else 32768) // short))
    bench.say_speed(part, f"bare {count}x{short}", model, short, count, timed)
    for blocks in (2**26, 2**30):
        with bench.timed() as timed:
            measured(model, many, [short], logits_bytes=blocks)
        bench.say_speed(part, f"{count}x{short}, blocks of {blocks >> 20} MiB", model, short, count, timed)
    windows = bench.windows(model, length, 1)
    with bench.timed() as floor:
        expected = bare(model, windows)
    bench.say_speed(part, "bare", model, length, 1, floor)
    with bench.timed() as timed:
        result = measured(model, windows, [length * part // 16 for part in range(1, 17)])
    bench.say_speed(part, "16 lengths", model, length, 1, timed)
    apart = float(np.abs(losses_of(result) - expected).max())
    bench.say(part, **{"over the bare forward": timed.seconds / floor.seconds, "largest difference": apart})
    del model
    free(bench.on_gpu)


def sliding_windows(bench: Bench) -> None:
    """The time and memory of sliding layers past their window, and the estimate."""
    model = build(bench.shapes.gemma3(131072), bench.device, bench.dtype)
    scorer = Scorer(model)
    for length in (256, 512) if bench.tiny else (8192, 16384, 32768):
        ids = torch.tensor(bench.windows(model, length, 1))
        with torch.inference_mode(), bench.timed() as timed:
            scorer.score(ids)
        estimate = scorer.estimate(length).whole(length, length) / 1e9
        figures = {"s": timed.seconds, "peak GB above weights": timed.above, "estimated GB": estimate}
        bench.say("sliding windows", **{f"{length} {name}": value for name, value in figures.items()})


def default_eval(bench: Bench) -> None:
    """The default options: two schedules, truncation and the short-context cost."""
    length = 512 if bench.tiny else 32768
    model = build(bench.shapes.llama("1B", length // 4), bench.device, bench.dtype, head_gain=4.0)
    windows = bench.windows(model, length, 2 if bench.tiny else 4)
    measured(model, windows[:1], [length])
    with bench.timed() as floor:
        bare(model, windows)
        bare(model, windows)
    with bench.timed() as timed:
        result = ropescale.evals.perplexity(
            model, windows, [length // 4, length], ["yarn:factor=4"], budget_tokens=10**9
        )
    stride = result.truncation.stride if result.truncation else None
    bench.say("default eval", **{"s": timed.seconds, "over two bare passes": timed.seconds / floor.seconds})
    bench.say("default eval", **{"stride of truncation": stride, "peak GB": timed.peak})


def searching(bench: Bench) -> None:
    """20 windows of ``search``, and its gradient against a bare forward."""
    part, length = "search", 256 if bench.tiny else 32768
    model = build(bench.shapes.llama("1B", length // 4), bench.device, bench.dtype, head_gain=4.0)
    windows, seconds = bench.windows(model, length, 18), list[float]()
    own = Learner.backward

    def timing(self: Learner, *args: Any) -> Any:
        with bench.timed() as timed:
            answer = own(self, *args)
        seconds.append(timed.seconds)
        return answer

    Learner.backward = timing  # type: ignore[method-assign]
    try:
        with bench.timed() as timed:
            ropescale.evals.search(model, windows, length, budget_tokens=20 * length)
    finally:
        Learner.backward = own  # type: ignore[method-assign]
    bench.say(part, **{"s": timed.seconds, "peak GB above weights": timed.above, "gradients": len(seconds)})
    with bench.timed() as floor:
        bare(model, windows[:1])
    if seconds:
        bench.say(part, **{"gradient over forward": float(np.median(seconds)) / floor.seconds})


def recommending(bench: Bench) -> None:
    """``recommend`` on twelve documents."""
    length = 128 if bench.tiny else 8192
    model = build(bench.shapes.llama("1B", length // 4), bench.device, bench.dtype, head_gain=4.0)
    windows = bench.windows(model, length, 12)
    with bench.timed() as timed:
        found = ropescale.evals.recommend(model, windows, length)
    figures = {"s": timed.seconds, "peak GB above weights": timed.above, "answer": found.schedule}
    bench.say("recommend", **figures)


def out_of_memory(bench: Bench) -> None:
    """Memory that runs out: a batch must be halved, then chunked, and give the same losses."""
    length = 512 if bench.tiny else 16384
    model = build(bench.shapes.llama("0.6B", length), bench.device, bench.dtype)
    windows = bench.windows(model, length, 4)
    whole = losses_of(measured(model, windows, [length], batch_tokens=4 * length))
    if not bench.on_gpu:
        bench.say("out of memory", skipped="needs an accelerator")
        return
    need = Scorer(model).estimate(length).whole(length, length)
    spare = int(torch.cuda.mem_get_info()[0] - 2.2 * need)
    held = torch.empty(max(0, spare), dtype=torch.uint8, device=bench.device)
    with bench.timed() as timed:
        again = losses_of(measured(model, windows, [length], batch_tokens=4 * length))
    del held
    figures = {"s": timed.seconds, "largest difference": float(np.abs(whole - again).max())}
    bench.say("out of memory", **figures)
