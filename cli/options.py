"""Parameters that several commands share, the sections of their help, and the two ways of printing a result."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from ..errors import RopescaleError, RunError
from ..lengths import is_plain, parse_length, parse_lengths
from ..output.formatting import finite, visible
from .completion import Place, SpecText

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ..evals.running.options import Schedules
    from ..request import RequestOptions

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., object] | click.Command")
Decorator = Callable[[F], F]


DTYPES = ("auto", "float32", "bfloat16", "float16")
"""The dtypes that weights can be loaded in; ``auto`` is the checkpoint's own."""

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways in which accelerate can spread a model over several devices."""


class OneOf(click.Choice):
    """A word of a list; a misspelt one is an error that guesses which."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the word, as click does."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            near = difflib.get_close_matches(str(value), list(self.choices), n=1)
            if near:
                self.fail(f"{str(value)!r} is not known; did you mean {near[0]!r}?", param, ctx)
            raise


class Dtype(OneOf):
    """A dtype of torch; its usual short names, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns torch's name."""
        short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}
        return super().convert(short.get(str(value).lower(), value), param, ctx)


def _device(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Returns torch's name of a device: ``cuda:1`` for ``gpu:1``."""
    return name and re.sub(r"^gpu(?=:|$)", "cuda", name, flags=re.IGNORECASE)


class _Plain(click.ParamType):
    """A number in ASCII digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not is_plain(value):
            self.fail(f"{value!r} is not a number; write it in the digits 0 to 9", param, ctx)
        return super().convert(value, param, ctx)

    def _describe_range(self) -> str:
        """Returns the bounds for the help; click writes ``x<=None`` where there are none."""
        bounds = (getattr(self, "min", None), getattr(self, "max", None))
        return "" if bounds == (None, None) else super()._describe_range()  # type: ignore[misc]


class Whole(_Plain, click.IntRange):
    """A whole number."""


class Real(_Plain, click.FloatRange):
    """A number."""


class Length(click.ParamType):
    """A number of tokens: ``4096``, ``4k``, ``128k``, ``1m`` (k = 1024)."""

    name = "length"
    parse: Callable[[Any], object] = staticmethod(parse_length)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value)
        except RopescaleError as error:
            self.fail(str(error), param, ctx)


class Lengths(Length):
    """Lengths joined by commas: ``2k,4k,8k``."""

    name = "lengths"
    parse = staticmethod(parse_lengths)


def lengths_option(help: str) -> Decorator[F]:
    """Adds ``--lengths``, whose lists are joined where it is repeated."""
    return click.option(
        "--lengths", type=Lengths(), required=True, multiple=True, callback=_joined, metavar="N,...", help=help
    )


def _joined(ctx: click.Context, param: click.Parameter, lists: Iterable[list[int]]) -> list[int]:
    return [length for each in lists for length in each]


class Factor(click.ParamType):
    """A number, or several joined by commas for a command of many schedules; ``4x`` and ``128k`` get a hint."""

    name = "factor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        takes_many = ctx is not None and any(each.name == "schedules" for each in ctx.command.params)
        parts = str(value).split(",")
        try:
            if not all(map(is_plain, parts)) or (len(parts) > 1 and not takes_many):
                raise ValueError(value)
            factors = [float(part) for part in parts]
        except ValueError:
            self.fail(f"{value!r} is not one number{_what_instead(str(value), takes_many)}", param, ctx)
        return factors if len(factors) > 1 else factors[0]


def _what_instead(written: str, takes_many: bool) -> str:
    """Returns what to write instead of something that is no factor."""
    several = [part for part in re.split(r"[\s,;/]+", written) if re.fullmatch("[0-9.]+", part)]
    if len(several) > 1 and takes_many:
        return f"; write --factor {','.join(several[:4])}"
    if len(several) > 1:
        return f"; give one, such as --factor {several[0]}"
    if re.fullmatch("[xX]?[0-9.]+[xX]?", written):
        return f"; write --factor {written.strip('xX')}"
    return f"; a length is --target-length {written}" if re.fullmatch("[0-9]+[kKmM]", written) else ""


def _one_by_one(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses words for several schedules."""
    if "all" in values:
        names = "--schedule linear --schedule ntk --schedule yarn"
        raise click.BadParameter(f"there is no schedule 'all'; repeat the ones you want, as in {names}", ctx, param)
    return values


def model_argument(required: bool = True) -> Decorator[F]:
    """Adds ``MODEL``, a checkpoint's folder or a Hub id."""
    return click.argument("model", type=Place(), required=required)


def data_option(help: str, *, required: bool = True, multiple: bool = True) -> Decorator[F]:
    """Adds ``--data``, where texts come from."""
    return click.option(
        "--data", "source", type=Place(), required=required, multiple=multiple, metavar="SRC", help=help
    )


def out_option(help: str, metavar: str = "OUT", **more: Any) -> Decorator[F]:
    """Adds ``-o``, where the result goes."""
    return click.option("-o", "--out", type=Place(), metavar=metavar, help=help, **more)


def seed_option(help: str) -> Decorator[F]:
    """Adds ``--seed``, 0 where it is not given."""
    return click.option("--seed", type=Whole(0), default=0, show_default=True, metavar="N", help=help)


def force_option() -> Decorator[F]:
    """Adds ``--force`` of the commands that measure."""
    return click.option(
        "--force", is_flag=True, help="Replace results in OUT of another text or model, or more than these."
    )


def shared_options(*names: str) -> Decorator[F]:
    """Adds options that several commands have, by the names of their parameters."""
    return _together(*(_SHARED[name] for name in names))


def made(kind: Callable[..., T], options: Mapping[str, object], **more: object) -> T:
    """Makes a dataclass of those of a command's parameters that are its fields."""
    names = [each.name for each in fields(cast("type[DataclassInstance]", kind))]
    return kind(**{name: options[name] for name in names if name in options}, **more)


def _together(*options: Decorator[F]) -> Decorator[F]:
    """Makes one decorator of several; the help keeps their order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def request_options(schedules: Literal["one", "many"] = "one", required: bool = False) -> Decorator[F]:
    """Adds the options of a :class:`ropescale.request.Request`, the same for every command that takes a schedule.

    Args:
        schedules: ``one`` makes the parameter ``schedule``; ``many`` lets ``--schedule`` be repeated and makes it
            ``schedules``. The other parameters are the fields of the request.
        required: a schedule must be given.
    """
    spec = partial(click.option, "--schedule", type=SpecText(), metavar="SPEC", required=required)
    text = "A schedule: NAME[:key=value,...], FILE.py::Class, factors.json or JSON."
    many = spec("schedules", multiple=True, callback=_one_by_one, help=f"{text} May be repeated.")
    return _together(spec(help=text) if schedules == "one" else many, shared_options(*REQUEST_OPTIONS))


def schedules_of(options: Mapping[str, Any]) -> Schedules:
    """Makes the schedules of a command that takes many; several factors multiply those that take one."""
    from ..evals.running.options import Schedules
    from ..schedules.specs import parse, with_each_factor

    given, baseline = options["schedules"], options["baseline"]
    patching = {name: options[name] for name in REQUEST_OPTIONS}
    if isinstance(options["factor"], list):
        given, patching["factor"] = with_each_factor(given, options["factor"]), None
    specs = [parse(each) for each in given]
    return Schedules(specs, None if baseline is None else parse(baseline), cast("RequestOptions", patching))


REQUEST_SECTIONS = {
    "The schedule": "schedule schedules baseline factor target_length original_length overrides layers freeze_at",
    "Where the model is already scaled": "replace_scaling on_top",
}
"""The sections of the help in which these options stand."""

MODEL_SECTION = {"The model": "revision trust_remote_code dtype device"}
"""The section of the options with which a model is found and loaded."""


def _pairs(ctx: click.Context, param: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for key, sign, value in pairs:
        if not (key and sign and value):
            raise click.BadParameter(f"{key + sign + value!r} is not key=value", ctx, param)
    keys = [key for key, _, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise click.BadParameter(f"{key} is set {keys.count(key)} times; set it once", ctx, param)
    return {key: value for key, _, value in pairs}


_SHARED: Mapping[str, Decorator[Any]] = {
    "factor": click.option("--factor", type=Factor(), metavar="F", help="How many times longer; short for factor=F."),
    "target_length": click.option(
        "--target-length", type=Length(), metavar="N", help="The context wanted, such as 128k; gives the factor."
    ),
    "original_length": click.option(
        "--original-length", type=Length(), metavar="N", help="The trained length, where the config has it wrong."
    ),
    "overrides": click.option(
        "--set", "overrides", metavar="K=V", multiple=True, callback=_pairs, help="A field of the schedule; repeatable."
    ),
    "layers": click.option(
        "--layers", default="full", metavar="full|all|TYPE", show_default=True, help="The layers to change."
    ),
    "replace_scaling": click.option(
        "--replace-scaling", is_flag=True, help="Replace the scaling: compute from the original length."
    ),
    "on_top": click.option("--on-top", is_flag=True, help="Compose with the scaling that is there."),
    "freeze_at": click.option(
        "--freeze-at", type=Length(), metavar="N", help="Make a length-dependent schedule a fixed table."
    ),
    "baseline": click.option(
        "--baseline", type=SpecText(), metavar="SPEC", help="What the others are compared with (default: as-is)."
    ),
    "revision": click.option("--revision", metavar="R", help="Branch, tag or commit of a Hub model."),
    "trust_remote_code": click.option(
        "--trust-remote-code", is_flag=True, help="Run the Python code that MODEL brings, where transformers needs it."
    ),
    "dtype": click.option(
        "--dtype", type=Dtype(DTYPES), help="Default: float32 on the CPU, the checkpoint's on a GPU."
    ),
    "device": click.option(
        "--device", metavar="D", callback=_device, help="Default: the GPU where there is one, else cpu."
    ),
    "split": click.option("--split", metavar="S", help="Split of a dataset (default: test, or the only one)."),
    "text_field": click.option(
        "--text-field", metavar="F", help="Field that holds the text, the chat or the token ids."
    ),
    "prompt_field": click.option("--prompt-field", metavar="F", help="Field that holds the prompt of each row."),
    "answer_field": click.option("--answer-field", metavar="F", help="Field that holds its answer, or a list of them."),
    "chat_template": click.option(
        "--chat-template", type=Place(), metavar="FILE", help="The Jinja template of chats, for the tokenizer's own."
    ),
    "glob": click.option(
        "--glob", metavar="G", help="Files of a folder: '*.txt' in all of it, 'notes/*.md' from it on."
    ),
    "encoding": click.option("--encoding", metavar="E", help="Encoding of text files (default: UTF-8)."),
    "score": click.option(
        "--score",
        type=click.Choice(["all", "assistant"]),
        default="all",
        show_default=True,
        help="Whose tokens of chats.",
    ),
    "concat": click.option("--concat", is_flag=True, help="Join all documents into one, a blank line between two."),
    "streaming": click.option("--streaming", is_flag=True, help="Read a Hub dataset only as far as --max-docs needs."),
    "split_special_tokens": click.option(
        "--split-special-tokens", is_flag=True, help="Special tokens named in the text are text like any other."
    ),
    "min_tokens": click.option(
        "--min-tokens", type=Whole(0), default=0, metavar="N", help="Skip documents with fewer tokens."
    ),
    "max_docs": click.option("--max-docs", type=Whole(1), metavar="N", help="At most this many documents."),
    "windows": click.option(
        "--windows", metavar="N|all", help="Windows of each document; 1 is the first (default: the budget's)."
    ),
    "batch_tokens": click.option(
        "--batch-tokens", type=Whole(1), metavar="N", help="Fed at once (default: what fits into memory)."
    ),
    "truncation_stride": click.option(
        "--truncation-stride",
        type=Length(),
        metavar="N",
        help="Tokens scored by each of its windows (default: chosen).",
    ),
    "bos": click.option("--bos", default="auto", show_default=True, metavar="B", help="auto, yes, no, or a token id."),
    "server": click.option(
        "--server",
        "servers",
        metavar="URL",
        multiple=True,
        help="A vLLM or SGLang server that scores, in the place of MODEL. May be repeated.",
    ),
    "served_as": click.option(
        "--served-as",
        type=SpecText(),
        metavar="SPEC",
        multiple=True,
        help="The schedule that the server computes: base, yarn:factor=4. One for each.",
    ),
    "served_name": click.option(
        "--served-name", metavar="NAME", multiple=True, help="The model's name there (default: the first that it has)."
    ),
    "tokenizer": click.option(
        "--tokenizer", type=Place(), metavar="CKPT", help="The checkpoint that is served; no weights are read."
    ),
    "concurrency": click.option(
        "--concurrency", type=Whole(1), default=8, show_default=True, metavar="N", help="Requests under way at once."
    ),
    "timeout": click.option(
        "--timeout", type=Real(1), default=3600, show_default=True, metavar="S", help="Seconds to wait for an answer."
    ),
    "as_json": click.option("--json", "as_json", is_flag=True, help="Print JSON with every digit."),
}
"""Options of several commands, by the names of their parameters."""

REQUEST_OPTIONS = "factor target_length original_length overrides layers replace_scaling on_top freeze_at".split()
"""The fields of the request but the schedule itself."""

PATCHING = ("layers", "original_length", "replace_scaling", "on_top")
"""Those of them that say how every candidate of a search is applied."""

SERVED = ("server", "served_as", "served_name", "concurrency", "timeout")
"""How servers are asked."""

LOADING = ("revision", "trust_remote_code", "dtype", "device")
"""How weights are loaded."""

READING = ("split", "text_field", "glob", "encoding")
"""How a source of texts is read; each kind of source takes some of them."""

SOURCE = ("concat", "streaming", "split_special_tokens")
"""How its texts are joined and made tokens."""


def tell(**texts: Iterable[str]) -> None:
    """Prints notes and warnings to stderr: ``tell(note=[...], warning=[...])``."""
    for kind, each in texts.items():
        for text in each:
            say(f"{kind}: {text}")


def say(line: str) -> None:
    """Prints a line to stderr, folded to the terminal; where that cannot be written, the command goes on."""
    from ..output.wrapping import folded_to

    with suppress(OSError):
        click.echo(folded_to(sys.stderr, visible(line)), err=True)


def put(text: str, kept: object = None) -> None:
    """Prints a result to stdout.

    Args:
        kept: the file or folder that the result has been written to.

    Raises:
        RunError: it cannot be printed; says where it is kept.
    """
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        where = f"; it is kept in {kept}" if kept else ""
        raise RunError(f"the result cannot be printed: {error.strerror or error}{where}") from None


def drop_output() -> None:
    """Sends what is printed from now on, also by Python at its end, nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(page: str, kept: object = None) -> None:
    """Prints a page of Markdown as :func:`put` does, its tables and lines fitted to the terminal or to COLUMNS."""
    from ..output.wrapping import fitted_to

    put(fitted_to(sys.stdout, page), kept)


def verbose_option() -> Decorator[F]:
    """Adds ``--verbose`` of the commands that measure."""
    return click.option("--verbose", is_flag=True, help="Print all tables, as REPORT.md has them.")


def print_result(as_json: bool, plain: Callable[[], object], page: Callable[[], str], kept: object = None) -> None:
    """Prints a result as JSON with every digit, or as a page; as :func:`put` does."""
    if as_json:
        print_json(plain(), kept)
    else:
        show(page(), kept)


def print_json(value: object, kept: object = None) -> None:
    """Prints ``value`` as standard JSON, as :func:`put` does: what is not finite becomes null."""
    put(json.dumps(finite(value), indent=2, allow_nan=False), kept)


# --- sections
# The class of every command: its help groups options under titles, and an option that counts once is given once.


def in_sections(sections: Mapping[str, str]) -> type[click.Command]:
    """Returns a class of command whose help lists its options under titles; those not named come last.

    Args:
        sections: ``{title: names of parameters, separated by spaces}``, in the order of the help; names that the
            command does not have are passed over.
    """

    class InSections(click.Command):
        def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            left = {str(each.name): each for each in self.get_params(ctx) if isinstance(each, click.Option)}
            for title, names in sections.items():
                _write(ctx, formatter, title, [left.pop(name) for name in names.split() if name in left])
            _write(ctx, formatter, "Other options", left.values())

        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            _refuse_twice(ctx, self.make_parser(ctx).parse_args(list(args))[2])
            return super().parse_args(ctx, args)

    return InSections


def _refuse_twice(ctx: click.Context, order: Iterable[click.Parameter]) -> None:
    """Refuses an option whose earlier value would silently be replaced.

    Raises:
        BadParameter: names the option.
    """
    for param, count in Counter(order).items():
        if count > 1 and isinstance(param, click.Option) and not (param.multiple or param.count or param.is_flag):
            raise click.UsageError(f"{max(param.opts, key=len)} is given {count} times; give it once", ctx)


def _write(ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Iterable[click.Option]) -> None:
    records = [option.get_help_record(ctx) for option in options]
    if any(records):
        with formatter.section(title):
            formatter.write_dl([record for record in records if record])
