"""``ropescale eval MODEL --data SRC --lengths ...``: perplexity against length, for several schedules."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import CheckpointError, DataError, RopescaleError, RunError, ScheduleError
from ..models.loading import load_model, load_tokenizer
from .options import (
    DEVICE_MAPS,
    Length,
    Lengths,
    bos_option,
    factor_option,
    json_option,
    loading_options,
    model_argument,
    patching_options,
    print_json,
    schedules_option,
    target_length_option,
)
from .sections import in_sections
from .spelling import spelled

if TYPE_CHECKING:
    from ..evals.data.documents import Text
    from ..evals.parallel.processes import Group, World
    from ..evals.results.result import Result
    from ..evals.running.perplexity import PerplexityRun as Run
    from ..evals.running.resuming import Store
    from ..schedules import Schedule
    from ..schedules.specs import Spec


_SECTIONS = {
    "What is measured": "source lengths schedules factor target_length baseline layers replace_scaling on_top",
    "The text": "split text_field concat min_tokens max_docs streaming split_special_tokens bos",
    "How": "protocol stride short_context repeat_distance key_spans seed",
    "The result": "out fresh as_json",
    "Memory and devices": "dtype device batch_tokens sequence_parallel tp device_map",
}


@click.command("eval", cls=in_sections(_SECTIONS))
@model_argument()
@click.option(
    "--data", "source", required=True, metavar="SRC", help="File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -."
)
@click.option("--lengths", type=Lengths(), required=True, metavar="N,...", help="Positions, BOS included: 2k,4k,8k.")
@schedules_option()
@factor_option()
@target_length_option()
@click.option("--baseline", metavar="SPEC", help="What the others are compared with (default: as-is).")
@click.option("--split", metavar="S", help="Split of a dataset (default: test, or the only one).")
@click.option("--text-field", metavar="F", help="Field that holds the text.")
@click.option("--concat", is_flag=True, help="Join all documents into one, a blank line between two.")
@click.option("--min-tokens", type=click.IntRange(0), default=0, metavar="N", help="Skip documents with fewer tokens.")
@click.option("--max-docs", type=click.IntRange(1), metavar="N", help="At most this many documents.")
@click.option("--streaming", is_flag=True, help="Read a Hub dataset only as far as --max-docs needs.")
@click.option("--split-special-tokens", is_flag=True, help="Special tokens named in the text are text like any other.")
@click.option(
    "--protocol",
    type=click.Choice(["ropescale", "yarn-paper", "hf-docs"]),
    default="ropescale",
    show_default=True,
    help="How windows become a number; the others reproduce published scripts, with their bugs.",
)
@click.option(
    "--stride", type=Length(), metavar="N", help="Whole documents, in sliding windows N tokens apart (slower)."
)
@click.option(
    "--batch-tokens", type=click.IntRange(1), metavar="N", help="Fed at once (default: what fits into memory)."
)
@click.option(
    "--sequence-parallel", type=click.IntRange(1), metavar="N", help="Each window by N processes, where it is too long."
)
@click.option("--tp", is_flag=True, help="The model over all processes, where it is too large for one device.")
@click.option(
    "--device-map", type=click.Choice(DEVICE_MAPS), help="The model over this machine's devices, by one process."
)
@click.option(
    "--short-context/--no-short-context",
    default=True,
    help="Compare predictions with the baseline's at the largest length up to the trained one (on by default).",
)
@click.option(
    "--repeat-distance", type=Length(), metavar="N", help="How far back a far repeat is (default: the trained length)."
)
@click.option("--key-spans", metavar="FILE", help="Perplexity of the key tokens too, that `ropescale keys` found.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of the bootstrap intervals."
)
@bos_option()
@patching_options()
@loading_options()
@json_option()
@click.option("-o", "--out", metavar="OUT", help="Write results, per-token NLLs, plots and REPORT.md into this folder.")
@click.option("--fresh", is_flag=True, help="Measure anew what is stored in OUT, instead of continuing.")
def command(
    model: str, source: str, lengths: list[int], as_json: bool, out: str | None, fresh: bool, **options: Any
) -> None:
    """Measure perplexity against length, under each schedule, on the same tokens.

    The model as it is always runs, and is what the others are compared with unless --baseline says otherwise.
    --factor and --target-length give the factor to every schedule that takes one and does not say it itself; one
    that says another is an error, as in `ropescale patch`. With -o, every finished batch is kept in OUT/resume: the
    same command again continues where it was, whatever stopped it.

    Many processes share the work, each with a whole model on its device: `torchrun --nproc_per_node 8 -m ropescale
    eval ...`, or `accelerate launch -m ropescale eval ...`. The numbers do not depend on how many there are. Windows
    that are too long for one device are shared by --sequence-parallel N of them. A model that is too large for one
    device is shared out by --tp over the processes, or by --device-map auto over the devices of one (and its memory and
    disk, where they do not suffice; slower, because they work one after the other).
    """
    from ..evals.parallel.processes import joined, world

    if out is None and fresh:
        raise DataError("--fresh is given, and no folder to start anew in; name it with -o")
    here = world()
    with one_voice(here), joined(teamed(here, options)) as group:
        run, folder = _prepared(model, source, lengths, out, options, group)
        if folder is None:
            run.run(group=group)
            _conclude(run, None, as_json, group)
            return
        _measure_into(folder, run, fresh, as_json, group)


_MEASURED = (
    *("protocol", "stride", "min_tokens", "max_docs", "batch_tokens", "short_context"),
    *("seed", "repeat_distance", "key_spans"),
)
"""Options of the command that are fields of a measurement's options."""

_SILENCE = 5.0
"""Seconds until a process that has nothing to say gives up: its end makes the launcher end the one that speaks."""


def teamed(here: World, options: dict[str, Any]) -> World:
    """The processes in the teams that the options ask for.

    Raises:
        DataError: that many processes cannot be cut into such teams, or options that exclude each other.
    """
    _check_sharing(here, options)
    if options["tp"]:
        return here.in_teams(here.size, "--tp")
    size = options["sequence_parallel"]
    return here if size is None else here.in_teams(size, f"--sequence-parallel {size}")


def _check_sharing(here: World, options: dict[str, Any]) -> None:
    """Of the ways to share a model or a window there can be one, and it says itself where things go."""
    given = [name for name in ("sequence_parallel", "tp", "device_map") if options[name]]
    names = [f"--{name.replace('_', '-')}" for name in given]
    if len(given) > 1:
        raise DataError(f"{' and '.join(names)} are given, and share the work out in different ways; choose one")
    if given and given[0] != "sequence_parallel" and options["device"]:
        raise DataError(f"{names[0]} says itself what goes where; leave --device {options['device']} out")
    if options["device_map"] and here.size > 1:
        raise DataError(f"--device-map is for one process, and there are {here.size}; leave torchrun out, or use --tp")
    if options["tp"] and here.size == 1:
        raise DataError(
            "--tp shares the model out over several processes, and there is one; start them with "
            "torchrun --nproc_per_node N -m ropescale eval ..."
        )


@contextmanager
def one_voice(here: World) -> Iterator[None]:
    """Of an error that every process meets, the first one alone speaks; one that stops a run is told by its process."""
    try:
        yield
    except (RopescaleError, click.ClickException) as error:
        if here.leads or isinstance(error, RunError):
            raise
        time.sleep(_SILENCE)
        raise SystemExit(2) from None  # as main does for wrong input


def _prepared(
    model: str, source: str, lengths: list[int], out: str | None, options: dict[str, Any], group: Group
) -> tuple[Run, Path | None]:
    """The measurement, and the folder that it is written into."""
    from ..evals.results.folder import writable_folder
    from ..evals.running.resuming import refuse_if_busy

    here = group.world
    folder = None if out is None else writable_folder(out)
    if folder is not None and here.leads:
        refuse_if_busy(folder)
    if here.launched and here.leads:
        click.echo(f"{here} measuring{here.hint}", err=True)
    return prepare(model, source, lengths, options, here), folder


def _measure_into(folder: Path, run: Run, fresh: bool, as_json: bool, group: Group) -> None:
    from ..evals.running.resuming import opened

    with opened(folder, fresh, group) as kept:
        try:
            run.run(kept, group)
        except BaseException:  # Ctrl-C, logits that are not finite, memory that is full: hours may lie in what is done
            if group.world.leads:
                keep(run.result, f"{len(run.passes)} finished passes" if run.passes else "", kept, folder)
            raise
        _conclude(run, folder, as_json, group)


def _conclude(run: Run, folder: Path | None, as_json: bool, group: Group) -> None:
    """Prints the numbers and then writes them, so that a disk that is full takes nothing away."""
    if not group.world.leads:
        return
    result = run.result()
    _print(result, as_json)
    if folder is not None:
        click.echo(f"written to {result.save(folder)}", err=True)


def _print(result: Result, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(result.to_markdown())


def prepare(model: str, source: str, lengths: list[int], options: dict[str, Any], here: World) -> Run:
    """Reads and checks everything cheap first, and the weights last."""
    from ..checkpoints.locating import find_model
    from ..evals.data import documents as data_documents
    from ..evals.data import windows
    from ..evals.parallel.processes import team_of
    from ..evals.running import corpus as corpus_module
    from ..evals.running import perplexity
    from ..evals.running.progress import Notes

    lengths = list(windows.check_lengths(lengths))
    if options["protocol"] == "ropescale":
        windows.check_stride(options["stride"], lengths)
    texts = _texts(source, options)
    patching = {key: options[key] for key in ("layers", "replace_scaling", "on_top")}
    chosen = perplexity.PerplexityOptions(
        **{key: options[key] for key in _MEASURED},
        patching=patching,
        source=source,
        progress=Notes(here.leads, spelled),
    )
    schedules, baseline = plan_schedules(find_model(model, options["revision"], weights=False), options, patching)
    folder = find_model(model, options["revision"])
    trusted = options["trust_remote_code"]
    tokenizer = load_tokenizer(folder, trust_remote_code=trusted)
    bos = data_documents.bos_id(options["bos"], tokenizer)
    how = {"split_special_tokens": options["split_special_tokens"]}
    if options["streaming"]:
        needed = corpus_module.tokens_needed(lengths, bos is not None, chosen)
        documents = data_documents.tokenize_until(texts, tokenizer, needed, options["max_docs"], **how)
    else:
        documents = data_documents.tokenize(texts, tokenizer, **how)
    corpus = perplexity.Corpus(documents, lengths, tokenizer, options["bos"], chosen)
    loaded = load_model(
        folder,
        options["dtype"],
        here.device(options["device"]),
        trust_remote_code=trusted,
        device_map=options["device_map"],
        tensor_parallel=options["tp"],
    )
    team = team_of(here) if (options["sequence_parallel"] or 1) > 1 else None
    chosen = dataclasses.replace(chosen, path=folder, team=team)
    return perplexity.PerplexityRun(loaded, corpus, schedules, baseline, chosen)


def _texts(source: str, options: dict[str, Any]) -> Iterable[Text]:
    """The documents; of a stream, as they are asked for."""
    from ..evals.data import sources

    how = {"split": options["split"], "text_field": options["text_field"]}
    if not options["streaming"]:
        return sources.read_texts(source, concat=options["concat"], **how)
    if options["max_docs"] is None:
        raise DataError("--streaming is given, and a stream may have no end; say how many documents with --max-docs")
    if options["concat"]:
        raise DataError("--streaming reads one document after the other; leave --concat out")
    return sources.stream_texts(source, **how)


def plan_schedules(folder: Path, options: dict[str, Any], patching: dict[str, Any]) -> tuple[list[Any], Any]:
    """The schedules and the baseline with their factors filled in, each known to fit the configuration.

    Raises:
        ScheduleError, ConfigError: one that does not exist, does not fit, or contradicts --factor or
            --target-length; scaling that is there already and no word on what to do. Before any weight is read.
    """
    from ..checkpoints.locating import read_config
    from ..checkpoints.record import original_config
    from ..schedules import specs

    config = original_config(read_config(folder), folder)
    named = [*options["schedules"], *([options["baseline"]] if options["baseline"] is not None else [])]
    parsed = [specs.parse(spec) for spec in named]
    _check_taken(parsed, options)
    filled = [_resolved(config, spec, options, patching) for spec in parsed]
    return filled[: len(options["schedules"])], filled[-1] if options["baseline"] is not None else None


def _check_taken(parsed: list[Any], options: dict[str, Any]) -> None:
    """A factor that no schedule takes would be measured nowhere, and nobody would know."""
    given = [name for name in ("factor", "target_length") if options[name] is not None]
    if given and not any(map(_takes_factor, parsed)):
        name = given[0].replace("_", "-")
        raise ScheduleError(
            f"--{name} is given, and no schedule that takes a factor; name one, such as --schedule yarn, "
            f"or leave --{name} out"
        )


def _takes_factor(spec: Any) -> bool:
    parts = spec.values() if isinstance(spec, Mapping) else [spec]
    return any(part.accepts("factor") for part in parts)


def _resolved(config: dict[str, Any], spec: Any, options: dict[str, Any], patching: dict[str, Any]) -> Any:
    """The spec with the factor that `ropescale patch` would give it; per layer type where they differ."""
    from ..planning.plan import make_plan
    from ..request import Request

    factor = options["factor"] if _takes_factor(spec) else None
    plan = make_plan(config, Request.of(spec, factor=factor, target_length=options["target_length"], **patching))
    if isinstance(spec, Mapping):
        return {key: _filled(part, plan.schedules.get(key)) for key, part in spec.items()}
    parts = {key: _filled(spec, schedule) for key, schedule in plan.schedules.items()}
    texts = {part.text for part in parts.values()}
    return parts if len(texts) > 1 else next(iter(parts.values()), spec)


def _filled(spec: Spec, schedule: Schedule | None) -> Spec:
    """The spec with the factor of the schedule that it was resolved to; it keeps its name, a path for instance."""
    factor = None if schedule is None else type(spec)(schedule).get("factor")
    return spec if factor is None or factor == spec.get("factor") else spec.with_fields(factor=factor)


def keep(result: Callable[[], Any], finished: str, kept: Store, folder: Path) -> None:
    """Saves what was complete when a run stopped, and says what is kept.

    Args:
        result: gives the result of what is complete.
        finished: what that is, such as ``2 finished passes``; nothing where it is nothing.
    """
    if not kept.finished:
        return
    tables = ""
    if finished:
        with suppress(CheckpointError):  # a full disk may be what stopped it, and that is said already
            result().save(folder)
            tables = f", and the tables of the {finished}"
    click.echo(
        f"the run stopped; {kept.finished} finished batches are kept in {folder}{tables}; the same command continues",
        err=True,
    )
