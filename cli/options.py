"""Parameters that several commands share, the sections of their help, and the two ways of printing a result."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click import Option

from ..errors import RopescaleError, RunError
from ..lengths import is_plain, parse_length, parse_lengths
from ..output.formatting import finite, visible
from ..schedules.base import suggest
from .completion import Place, SpecText

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ..evals.running.options import Schedules
    from ..request import RequestOptions

T = TypeVar("T")

DTYPES = ("auto", "float32", "bfloat16", "float16")
"""The dtypes that weights can be loaded in; ``auto`` is the checkpoint's own."""


# --- types


class OneOf(click.Choice):
    """A word of a list; a misspelt one is an error that guesses which."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Returns the word, as click does."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            advice = suggest(str(value), list(self.choices), "")
            if advice:
                self.fail(f"{str(value)!r} is not known; {advice}", param, ctx)
            raise


class Dtype(OneOf):
    """A dtype of torch; its usual short names, too."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Returns torch's name."""
        short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}
        return super().convert(short.get(str(value).lower(), value), param, ctx)


class _Plain(click.ParamType):
    """A number in ASCII digits."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
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

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self.parse(value)
        except RopescaleError as error:
            self.fail(str(error), param, ctx)


class Lengths(Length):
    """Lengths joined by commas: ``2k,4k,8k``."""

    name = "lengths"
    parse = staticmethod(parse_lengths)


class Factor(click.ParamType):
    """A number, or several joined by commas for a command of many schedules; ``4x`` and ``128k`` get a hint."""

    name = "factor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        takes_many = ctx is not None and any(each.name == "schedules" for each in ctx.command.params)
        written = str(value)
        parts = written.split(",")
        with suppress(ValueError):
            if all(map(is_plain, parts)) and (takes_many or len(parts) == 1):
                factors = [float(part) for part in parts]
                return factors if len(factors) > 1 else factors[0]
        return self.fail(f"{value!r} is not one number{self._hint(written, takes_many)}", param, ctx)

    @staticmethod
    def _hint(written: str, takes_many: bool) -> str:
        """Returns what to write instead of something that is no factor."""
        several = [part for part in re.split(r"[\s,;/]+", written) if re.fullmatch("[0-9.]+", part)]
        if len(several) > 1:
            return (
                f"; write --factor {','.join(several[:4])}"
                if takes_many
                else f"; give one, such as --factor {several[0]}"
            )
        if re.fullmatch("[xX]?[0-9.]+[xX]?", written):
            return f"; write --factor {written.strip('xX')}"
        return f"; a length is --target-length {written}" if re.fullmatch("[0-9]+[kKmM]", written) else ""


# --- options of several commands


def option(words: str, metavar: str | None, help: str, type: click.ParamType | None = None, **more: Any) -> Option:
    """Makes an option: ``option("--data source", "SRC", "Where texts come from.", Place())``."""
    return Option(words.split(), type=type, metavar=metavar, help=help, **more)


def flag(words: str, help: str) -> Option:
    """Makes an option that is given or not."""
    return Option(words.split(), is_flag=True, help=help)


def model_argument(required: bool = True) -> click.Argument:
    """Makes ``MODEL``, a checkpoint's folder or a Hub id."""
    return click.Argument(["model"], type=Place(), required=required)


def data_option(help: str, *, required: bool = True, multiple: bool = True) -> Option:
    """Makes ``--data``, where texts come from."""
    return option("--data source", "SRC", help, Place(), required=required, multiple=multiple)


def lengths_option(help: str) -> Option:
    """Makes ``--lengths``, whose lists are joined where it is repeated."""
    join = lambda ctx, param, lists: list(chain.from_iterable(lists))  # noqa: E731
    return option("--lengths", "N,...", help, Lengths(), required=True, multiple=True, callback=join)


def out_option(help: str, metavar: str = "OUT", **more: Any) -> Option:
    """Makes ``-o``, where the result goes."""
    return option("-o --out", metavar, help, Place(), **more)


def _refuse_all(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses the word for every schedule."""
    if "all" in values:
        names = "--schedule linear --schedule ntk --schedule yarn"
        raise click.BadParameter(f"there is no schedule 'all'; repeat the ones you want, as in {names}", ctx, param)
    return values


def _pairs(ctx: click.Context, param: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Returns ``key=value`` words as a dictionary."""
    pairs = [value.partition("=") for value in values]
    counts = Counter(key for key, _, _ in pairs)
    for key, sign, value in pairs:
        if not (key and sign and value):
            raise click.BadParameter(f"{key + sign + value!r} is not key=value", ctx, param)
        if counts[key] > 1:
            raise click.BadParameter(f"{key} is set {counts[key]} times; set it once", ctx, param)
    return {key: value for key, _, value in pairs}


def _device(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Returns torch's name of a device: ``cuda:1`` for ``gpu:1``."""
    return name and re.sub(r"^gpu(?=:|$)", "cuda", name, flags=re.IGNORECASE)


SCHEDULE = "A schedule: NAME[:key=value,...], FILE.py::Class, factors.json or JSON."
"""The help of ``--schedule``."""


_OPTIONS = [
    option("--schedule", "SPEC", SCHEDULE, SpecText(), required=True),
    option(
        "--schedule schedules", "SPEC", f"{SCHEDULE} May be repeated.", SpecText(), multiple=True, callback=_refuse_all
    ),
    option("--factor", "F", "How many times longer; short for factor=F.", Factor()),
    option("--target-length", "N", "The context wanted, such as 128k; gives the factor.", Length()),
    option("--original-length", "N", "The trained length, where the config has it wrong.", Length()),
    option("--set overrides", "K=V", "A field of the schedule; repeatable.", multiple=True, callback=_pairs),
    option("--layers", "full|all|TYPE", "The layers to change.", default="full", show_default=True),
    flag("--replace-scaling", "Replace the scaling: compute from the original length."),
    flag("--on-top", "Compose with the scaling that is there."),
    option("--freeze-at", "N", "Make a length-dependent schedule a fixed table.", Length()),
    option("--baseline", "SPEC", "What the others are compared with (default: as-is).", SpecText()),
    option("--revision", "R", "Branch, tag or commit of a Hub model."),
    flag("--trust-remote-code", "Run the Python code that MODEL brings, where transformers needs it."),
    option("--dtype", None, "Default: float32 on the CPU, the checkpoint's on a GPU.", Dtype(DTYPES)),
    option("--device", "D", "Default: the GPU where there is one, else cpu.", callback=_device),
    option("--split", "S", "Split of a dataset (default: test, or the only one)."),
    option("--text-field", "F", "Field that holds the text, the chat or the token ids."),
    option("--prompt-field", "F", "Field that holds the prompt of each row."),
    option("--answer-field", "F", "Field that holds its answer, or a list of them."),
    option("--chat-template", "FILE", "The Jinja template of chats, for the tokenizer's own.", Place()),
    option("--glob", "G", "Files of a folder: '*.txt' in all of it, 'notes/*.md' from it on."),
    option("--encoding", "E", "Encoding of text files (default: UTF-8)."),
    option(
        "--score", None, "Whose tokens of chats.", click.Choice(["all", "assistant"]), default="all", show_default=True
    ),
    flag("--concat", "Join all documents into one, a blank line between two."),
    flag("--streaming", "Read a Hub dataset only as far as --max-docs needs."),
    flag("--split-special-tokens", "Special tokens named in the text are text like any other."),
    option("--min-tokens", "N", "Skip documents with fewer tokens.", Whole(0), default=0),
    option("--max-docs", "N", "At most this many documents.", Whole(1)),
    option("--windows", "N|all", "Windows of each document; 1 is the first (default: the budget's)."),
    option("--batch-tokens", "N", "Fed at once (default: what fits into memory).", Whole(1)),
    option("--truncation-stride", "N", "Tokens scored by each of its windows (default: chosen).", Length()),
    option("--bos", "B", "auto, yes, no, or a token id.", default="auto", show_default=True),
    option(
        "--server servers",
        "URL",
        "A vLLM or SGLang server that scores, in the place of MODEL. May be repeated.",
        multiple=True,
    ),
    option(
        "--served-as",
        "SPEC",
        "The schedule that the server computes: base, yarn:factor=4. One for each.",
        SpecText(),
        multiple=True,
    ),
    option("--served-name", "NAME", "The model's name there (default: the first that it has).", multiple=True),
    option("--tokenizer", "CKPT", "The checkpoint that is served; no weights are read.", Place()),
    option("--concurrency", "N", "Requests under way at once.", Whole(1), default=8, show_default=True),
    option("--timeout", "S", "Seconds to wait for an answer.", Real(1), default=3600, show_default=True),
    flag("--json as_json", "Print JSON with every digit."),
    flag("--fresh", "Measure again what is stored in OUT, instead of continuing."),
    flag("--force", "Replace results in OUT of another text or model, or more than these."),
    flag("--verbose", "Print all tables, as REPORT.md has them."),
]
_SHARED = {str(each.name): each for each in _OPTIONS}
"""Options of several commands, by the names of their parameters."""

REQUEST_OPTIONS = "factor target_length original_length overrides layers replace_scaling on_top freeze_at".split()
"""The fields of a :class:`ropescale.request.Request` but the schedule itself."""

PATCHING = ("layers", "original_length", "replace_scaling", "on_top")
"""Those of them that say how every candidate of a search is applied."""

READING = ("split", "text_field", "glob", "encoding")
"""How a source of texts is read; each kind of source takes some of them."""

SOURCE = ("concat", "streaming", "split_special_tokens")
"""How its texts are joined and made tokens."""

Sections = Mapping[str, Sequence[str | Option]]
"""The options of a command by the titles of its help: its own, and names of shared ones, separated by spaces."""

MODEL_SECTION: Sections = {"The model": ["revision trust_remote_code dtype device"]}
"""How a model is found and loaded."""

SERVER_SECTION: Sections = {
    "A server in the place of MODEL": ["servers served_as served_name tokenizer concurrency timeout"]
}
"""How servers are asked."""


def request_sections(*schedules: str | Option) -> Sections:
    """Returns the sections of a request's options; the options of its schedules come first."""
    return {
        "The schedule": [*schedules, "factor target_length original_length overrides layers freeze_at"],
        "Where the model is already scaled": ["replace_scaling on_top"],
    }


def made(kind: Callable[..., T], options: Mapping[str, object], **more: object) -> T:
    """Makes a dataclass of those of a command's parameters that are its fields."""
    names = [each.name for each in fields(cast("type[DataclassInstance]", kind))]
    return kind(**{name: options[name] for name in names if name in options}, **more)


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


# --- printing


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


class SectionedCommand(click.Command):
    """A command whose help lists its options under titles; one that counts once is given once."""

    sections: dict[str, list[Option]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections; options that none of them has come last."""
        titled = set(chain.from_iterable(self.sections.values()))
        others = [each for each in self.get_params(ctx) if isinstance(each, Option) and each not in titled]
        for title, options in [*self.sections.items(), ("Other options", others)]:
            with formatter.section(title):
                formatter.write_dl([record for each in options if (record := each.get_help_record(ctx))])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses an option whose earlier value would silently be replaced."""
        for param, count in Counter(self.make_parser(ctx).parse_args(list(args))[2]).items():
            if count > 1 and isinstance(param, Option) and not (param.multiple or param.count or param.is_flag):
                raise click.UsageError(f"{max(param.opts, key=len)} is given {count} times; give it once", ctx)
        return super().parse_args(ctx, args)


def sectioned_command(
    name: str, sections: Sections, *arguments: click.Argument
) -> Callable[[Callable[..., None]], SectionedCommand]:
    """Makes a function a command with these arguments and options."""

    def make(function: Callable[..., None]) -> SectionedCommand:
        command = click.command(name, cls=SectionedCommand)(function)
        command.sections = {title: [] for title in sections}
        for title, entries in sections.items():
            for entry in entries:
                named = [_SHARED[name] for name in entry.split()] if isinstance(entry, str) else [entry]
                command.sections[title] += named
        command.params = [*arguments, *chain.from_iterable(command.sections.values())]
        return command

    return make
