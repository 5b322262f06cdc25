"""The parts of the measurement, each a function that adds its figures to the results."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers

import ropescale.evals
from ropescale.evals.backends import fingerprints
from ropescale.evals.scoring.memory import LEAST_CHUNK
from ropescale.evals.scoring.scorer import Scorer
from ropescale.evals.searching.learner import Learner

from .measuring import FIRST, Bench, bare, free, kernels_of, losses_of, measured, preferring, whole_logits
from .shapes import build, flops


def environment(bench: Bench) -> None:
    """The device, the versions, and the libraries that are missing."""
    names = ("datasets", "pyarrow", "click", "pydantic", "matplotlib")
    bench.say(
        "environment",
        python=sys.version.split()[0],
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=bench.name,
        date=time.strftime("%Y-%m-%d"),
        memory=torch.cuda.get_device_properties(0).total_memory / 1e9 if bench.on_gpu else 0.0,
        absent=[name for name in names if importlib.util.find_spec(name) is None],
    )


def patch_and_verify(bench: Bench) -> None:
    """Patches three families on the device and verifies them, also while decoding and under TF32."""
    part, shapes = "patch and verify", bench.shapes
    lengths = [64, 128] if bench.tiny else [4096, 16384]
    families = {"Llama": shapes.llama("0.6B", 8192), "Qwen3": shapes.qwen3(8192), "Gemma 3": shapes.gemma3(8192)}
    for name, config in families.items():
        model = build(config, bench.device, bench.dtype)
        before = fingerprints.rotation_sha256(model)
        proved = 0
        for spec in ("yarn:factor=4", "ntk:factor=4", "dynamic:factor=4"):
            for precision in ("highest", "high"):  # "high" rounds positions above 2,048, as TF32 does
                proved += _is_live(model, spec, precision) and before == fingerprints.rotation_sha256(model)
        bench.say(part, **{f"{name}, live and reverted, in float32 and TF32": f"{proved} of 6"})
        try:
            with ropescale.patch(model, "yarn:factor=4"), bench.timed() as timed:
                decoded = ropescale.verify(model, generate=True, lengths=lengths).generation
        except ropescale.RopescaleError as error:
            bench.say(part, **{f"{name}, decoding": str(error)})
            continue
        verdicts = [(each.verdict, round(each.relative, 4), round(each.tolerance, 4)) for each in decoded]
        bench.say(part, **{f"{name} decoding": verdicts, f"{name} decoding s": timed.seconds})
        equal = sum(verdict == "equal" for verdict, *_ in verdicts)
        bench.say(part, **{f"{name}, decoding equals full passes": f"{equal} of {len(verdicts)}"})
        del model
        free(bench.on_gpu)


def _is_live(model: torch.nn.Module, spec: str, precision: str) -> bool:
    """Returns whether a patch is live, with float32 products in this precision."""
    with _precision(precision):
        try:
            with ropescale.patch(model, spec):
                return ropescale.verify(model).live
        except ropescale.RopescaleError as error:
            print(f"{spec} with precision {precision}: {error}", flush=True)
            return False


@contextmanager
def _precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def kernels(bench: Bench) -> None:
    """Names the attention kernels that ran, in whole windows and in chunks."""
    length, chunk = (256, 64) if bench.tiny else (8192, 2048)
    shapes = bench.shapes
    cases = (
        ("Llama", shapes.llama("0.6B", 8192), None, None),
        *((f"Llama, {kernel} first", shapes.llama("0.6B", 8192), None, kernel) for kernel in FIRST),
        ("Llama in chunks", shapes.llama("0.6B", 8192), chunk, None),
        ("Qwen3", shapes.qwen3(8192), None, None),
        ("Gemma 3", shapes.gemma3(8192), None, None),
    )
    for name, config, size, kernel in cases:
        model = build(config, bench.device, bench.dtype)
        scorer, ids = Scorer(model), torch.tensor(bench.windows(model, length, 1))
        with torch.inference_mode(), preferring(kernel):
            found = kernels_of(lambda scorer=scorer, ids=ids, size=size: scorer.score(ids, size), bench.on_gpu)
        bench.say("kernels", **{name: [(key[:90], round(time, 2)) for key, time in found]})
        bench.say("the kernel that ran", **{name: f"`{found[0][0][:60]}`" if found else "none is known by its name"})
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
        chunked = Scorer(model).score(torch.tensor(windows[:1]), 64 if bench.tiny else 2048).numpy()[0]
    bench.say(part, **{"largest difference in chunks": float(np.abs(chunked - own[: length - 1]).max())})
    wide = model.float()
    exact = losses_of(measured(wide, windows, [length], batch_tokens=length))
    _say_rounding(bench, part, "the model's dtype", own, exact)
    with _precision("high"):
        loose = losses_of(measured(wide, windows, [length], batch_tokens=length))
    _say_rounding(bench, part, "TF32", loose, exact)


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
    options: dict[str, Any] = {"batch_tokens": 2 * length, "short_context": True, "truncation": None, "path": None}

    def run(**more: Any) -> bytes:
        return _bytes_of(measured(model, windows, lengths, ["yarn:factor=4", "dynamic:factor=4"], **options, **more))

    one, two = run(), run()
    bench.say(part, **{"two runs equal": one == two})
    seen = list[int]()

    def stop(tokens: int) -> None:
        if tokens >= length:
            seen.append(tokens)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        try:
            with _watched(model, stop):
                run(out=f"{folder}/run")
        except KeyboardInterrupt:
            bench.say(part, stopped=f"after {len(seen) - 1} passes")
        bench.say(part, **{"stopped and continued equal": one == run(out=f"{folder}/run")})


@contextmanager
def _watched(model: torch.nn.Module, act: Callable[[int], None]) -> Iterator[None]:
    """Calls a function with the number of tokens before each forward pass through the layers."""

    def before(module: object, args: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        hidden = args[0] if args else named["hidden_states"]
        act(hidden.shape[0] * hidden.shape[1])

    handle = model.model.layers[0].register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _bytes_of(result: ropescale.evals.Result) -> bytes:
    """Returns all numbers of a result."""
    arrays = [each for run in result.passes for each in run.nll]
    arrays += [each for run in result.divergences for each in run.kl]
    arrays += result.truncation.nll if result.truncation else []
    return b"".join(np.asarray(each).tobytes() for each in arrays)


def llama_at_length(bench: Bench) -> None:
    """16 lengths of an 8B in one pass, with each kernel, against the bare forward."""
    _curve(bench, "Llama-3.1-8B", bench.shapes.llama("8B", bench.lengths[0]), bench.lengths[0], tuple(FIRST))


def qwen_at_length(bench: Bench) -> None:
    """16 lengths of a 0.6B in one pass, against the bare forward."""
    _curve(bench, "Qwen3-0.6B", bench.shapes.qwen3(bench.lengths[1]), bench.lengths[1], (None,))


def _curve(bench: Bench, part: str, config: Any, length: int, order: tuple[str | None, ...]) -> None:
    short = 64 if bench.tiny else 4096
    with bench.timed() as timed:
        model = build(config, bench.device, bench.dtype)
    bench.say(part, **{"build s": timed.seconds, "length": length, "PFLOP a window": flops(model, length) / 1e15})
    estimate = Scorer(model).estimate(length)
    expected = estimate.whole(length, length) / 1e9
    chunk, together = str(estimate.chunk(length)), estimate.batch_tokens(length)
    bench.say(part, **{"estimated GB": expected, "chunk": chunk, "batch_tokens": together})
    warm = bench.windows(model, short, 2)
    bare(model, warm)
    measured(model, warm, [short])
    with bench.timed() as timed:
        measured(model, warm, [short], path=None)
    bench.say(part, **{"two short windows and the digest of the weights s": timed.seconds})
    count = 4 if bench.tiny else 65536 // short
    many = bench.windows(model, short, count)
    with bench.timed() as floor:
        bare(model, many, max(1, (256 if bench.tiny else 32768) // short))
    with bench.timed() as timed:
        measured(model, many, [short])
    bench.say_speed(part, f"bare {count}x{short}", model, short, count, floor)
    bench.say_speed(part, f"{count}x{short}", model, short, count, timed)
    bench.say(part, **{f"{count} windows of {short:,}, over the bare forward": timed.seconds / floor.seconds})
    for kernel in order:
        with preferring(kernel):
            _compare(bench, part, model, length, expected, f", {kernel} first" if kernel else "")
    del model
    free(bench.on_gpu)


def _compare(bench: Bench, part: str, model: torch.nn.Module, length: int, expected: float, name: str) -> None:
    """Compares 16 lengths in one pass with a bare forward pass, and the peak with the estimate (GB)."""
    windows = bench.windows(model, length, 1)
    with bench.timed() as floor:
        found = bare(model, windows)
    losses, seconds = _sixteen(bench, part, model, windows, expected, name)
    bench.say_speed(part, f"bare{name}", model, length, 1, floor)
    bench.say(part, **{f"largest difference to the bare forward{name}": float(np.abs(losses - found).max())})
    bench.say(part, **{f"16 lengths to {length:,}{name}: over the bare forward": seconds / floor.seconds})


def _sixteen(
    bench: Bench, part: str, model: torch.nn.Module, windows: list[list[int]], expected: float, name: str
) -> tuple[np.ndarray, float]:
    """Measures 16 lengths in one pass; returns its losses and seconds."""
    length = len(windows[0])
    with bench.timed() as timed:
        result = measured(model, windows, [length * part // 16 for part in range(1, 17)])
    which = f"16 lengths to {length:,}{name}"
    bench.say_speed(part, which, model, length, 1, timed)
    bench.say(part, **{f"{which}: s": timed.seconds, f"{which}: MFU": bench.used(model, length, timed)})
    bench.say(part, **{f"{which}: peak over estimate": timed.above / expected})
    return losses_of(result), timed.seconds


def longest_window(bench: Bench) -> None:
    """The longest window of an 8B that is estimated to fit, with as many of its layers as there is time for.

    All weights are there. A layer's peak is that of the whole model, so fewer layers show the same peak. They are taken
    out of the list, because tiles are for the modules of a list that is as long as the configuration says. A bare
    forward pass would not fit.
    """
    part, config = "the longest that fits", bench.shapes.llama("8B", 2**20)
    model = build(config, bench.device, bench.dtype)
    scorer, step = Scorer(model), 512 if bench.tiny else 16384
    most = 1024 if bench.tiny else 2**20
    length = max((n for n in range(step, most + 1, step) if scorer.estimate(n).chunk(n) is None), default=step)
    layers, seconds = config.num_hidden_layers, flops(model, length) / (0.35 * bench.peak)
    model.config.num_hidden_layers = running = max(1, min(layers, int(30 * layers / seconds)))
    resting, model.model.layers = model.model.layers[running:], model.model.layers[:running]  # they keep their memory
    expected, passes = Scorer(model).estimate(length).whole(length, length) / 1e9, list[int]()
    bench.say(part, tokens=f"{length:,}", layers=f"{running} of {layers} layers", resting=len(resting))
    with _watched(model, lambda tokens: passes.append(tokens)):
        _sixteen(bench, part, model, bench.windows(model, length, 1), expected, "")
    bench.say(part, passes="whole" if max(passes) >= length - 1 else f"in parts of {max(passes):,}")


def sliding_windows(bench: Bench) -> None:
    """The time and memory of sliding layers past their window, and the estimate; the kernel that ran, and blocks."""
    model = build(bench.shapes.gemma3(131072), bench.device, bench.dtype)
    own, blocks = Scorer(model), Scorer(model)
    blocks.fused = False
    bench.say("Gemma-3-1B", attention=own.kernel)
    ids = torch.tensor(bench.windows(model, 256 if bench.tiny else 8192, 1))
    with torch.inference_mode():
        found = own.score(ids)
        with bench.timed() as timed:
            apart = (blocks.score(ids) - found).abs()
    bench.say("Gemma-3-1B", **{"largest difference to blocks": float(apart.max()), "blocks: s": timed.seconds})
    for length in (256, 512) if bench.tiny else (8192, 16384, 32768):
        windows = bench.windows(model, length, 1)
        measured(model, windows, [length])
        with bench.timed() as timed:
            measured(model, windows, [length])
        estimate = Scorer(model).estimate(length).whole(length, length) / 1e9
        bench.say("Gemma-3-1B", **{f"{length} peak GB above weights": timed.above, f"{length} estimated GB": estimate})
        bench.say("Gemma-3-1B", **{f"{length:,}: s": timed.seconds})
        bench.say("Gemma-3-1B", **{f"{length:,}: peak over estimate": timed.above / estimate})


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
    bench.say("default eval", **{"s": timed.seconds, "stride of truncation": stride, "peak GB": timed.peak})
    bench.say("default eval", **{f"{length:,}, over two bare passes": timed.seconds / floor.seconds})


def searching(bench: Bench) -> None:
    """20 steps of ``search``, and its gradient against a bare forward."""
    part, length = "search", 256 if bench.tiny else 32768
    model = build(bench.shapes.llama("1B", length // 4), bench.device, bench.dtype, head_gain=4.0)
    windows, seconds, peaks = bench.windows(model, length, 18), list[float](), list[float]()
    own, expected = Learner.backward, Learner(model).step_bytes(length) / 1e9

    def timing(self: Learner, *args: Any) -> Any:
        with bench.timed() as timed:
            answer = own(self, *args)
        seconds.append(timed.seconds)
        peaks.append(timed.above)
        return answer

    Learner.backward = timing  # type: ignore[method-assign]
    try:
        with bench.timed() as timed:
            found = ropescale.evals.search(model, windows, length, budget_windows=56)
    finally:
        Learner.backward = own  # type: ignore[method-assign]
    with bench.timed() as floor:
        bare(model, windows[:1])
    bench.say(part, **{"peak GB above weights": max(peaks), "gradients": len(seconds), "found": found.search.spec})
    bench.say(part, **{f"{len(found.search.steps)} steps of windows of {length:,}: s": timed.seconds})
    bench.say(part, **{"a gradient over a bare forward": float(np.median(seconds)) / floor.seconds})
    bench.say(part, **{"peak over estimate": max(peaks) / expected})


def recommending(bench: Bench) -> None:
    """``recommend`` on twelve documents."""
    length = 128 if bench.tiny else 8192
    model = build(bench.shapes.llama("1B", length // 4), bench.device, bench.dtype, head_gain=4.0)
    windows = bench.windows(model, length, 12)
    with bench.timed() as timed:
        found = ropescale.evals.recommend(model, windows, length)
    bench.say("recommend", **{"peak GB above weights": timed.above, "answer": found.schedule})
    bench.say("recommend", **{f"to {length:,}, twelve documents: s": timed.seconds})


def out_of_memory(bench: Bench) -> None:
    """Memory that runs out: a batch must be halved, or a window fed in chunks, and give the same losses.

    An accelerator is filled up to a share of what is needed; a processor's memory is said to end there. A window in
    chunks needs a cache of all layers, so two layers of many positions show it: what is left is between the estimates
    of a whole window and of chunks.
    """
    length = 4096 if bench.tiny else 65536
    config = bench.shapes.llama("1B", length)
    config.num_hidden_layers = 2
    model = build(config, bench.device, bench.dtype)
    windows, small = bench.windows(model, length, 4), 2**26  # the trunk, and not the head, decides what fits
    options: dict[str, Any] = {"batch_tokens": 4 * length, "logits_bytes": small}
    whole = losses_of(measured(model, windows, [length], **options))
    estimate = Scorer(model, small).estimate(length)
    need = estimate.whole(length, length)
    within = (1 + estimate.in_chunks(length, LEAST_CHUNK) / need) / 2 if bench.on_gpu else 0.6
    bench.say("out of memory", **{"estimated GB of a window": need / 1e9, "share for chunks": within})
    for name, share in (("half of a batch fits", 2.2), ("half of a window fits", within)):
        sizes, held = list[int](), None

        def note(tokens: int, sizes: list[int] = sizes, most: float = share * length) -> None:
            if not bench.on_gpu and tokens > most:
                raise torch.OutOfMemoryError
            sizes.append(tokens)

        free(bench.on_gpu)
        if bench.on_gpu:
            spare = int(torch.cuda.mem_get_info()[0] - share * need)
            held = torch.empty(max(0, spare), dtype=torch.uint8, device=bench.device)
        with bench.timed() as timed, _watched(model, note):
            again = losses_of(measured(model, windows, [length], **options))
        del held
        figures = {"s": timed.seconds, "passes": len(sizes)}
        bench.say("out of memory", **{f"{name}: {figure}": value for figure, value in figures.items()})
        bench.say("out of memory", **{f"{name}: largest difference": float(np.abs(whole - again).max())})
