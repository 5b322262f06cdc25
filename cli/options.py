"""Parameters of several commands, the sections of their help, and printing of results."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TextIO

import click
from click import IntRange, Option
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ..errors import DataError, RopescaleError, RunError
from ..lengths import parse_length, parse_lengths
from ..output.formatting import Page, finite, suggest, visible, visible_lines

# --- Types


class Place(click.ParamType):
    """A file, a folder or a Hub id, completed as a path."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leaves completion to the shell."""
        return [CompletionItem(incomplete, type="file")]


class SpecText(click.ParamType):
    """A schedule's spec, completed by name or as a path."""

    name = "schedule"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the spec; fails if it is several, or if an options file names a class of a Python file or module."""
        from ..schedules import names

        if {part.partition(":")[0] for part in value.split(",")[1:]} & {*names()}:
            advice = "repeat the option for each" if param and param.multiple else "give one"
            self.fail(f"{value!r} names several schedules; {advice}", param, ctx)
        of_file = ctx and param and ctx.get_parameter_source(str(param.name)) is ParameterSource.DEFAULT_MAP
        if of_file and re.search(r"::|\.py\b", value):
            self.fail(f"{value!r} is code, which a file cannot run; give it on the command line", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Completes the name of a schedule, or a path."""
        from ..schedules import lookup, names

        known = [CompletionItem(each, help=lookup(each).does) for each in names() if each.startswith(incomplete)]
        return known or [CompletionItem(incomplete, type="file")]


class OneOf(click.Choice):
    """A word from a list, or a short name of one."""

    def __init__(self, choices: Iterable[str], **short: str) -> None:
        super().__init__(list(choices))
        self._short = short

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Returns the validated word; of another one, the error names one that is close."""
        word = self._short.get(str(value).lower(), value)
        try:
            return super().convert(word, param, ctx)
        except click.BadParameter as error:
            advice = suggest(str(word), self.choices, "")
            self.fail(f"{error.message.rstrip('.')}; {advice}" if advice else error.message, param, ctx)


DTYPE = OneOf(
    ("auto", "float32", "bfloat16", "float16"), bf16="bfloat16", fp16="float16", half="float16", fp32="float32"
)
"""The dtypes to load weights in; ``auto`` is the checkpoint's own."""


class Length(click.ParamType):
    """A number of tokens: ``4096``, ``4k``, ``128k``, ``1m`` (k = 1024). With ``parse_lengths``, several: ``2k,4k``."""

    name = "length"

    def __init__(self, parse: Callable[..., object] = parse_length) -> None:
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self._parse(value)
        except RopescaleError as error:
            self.fail(str(error), param, ctx)


class Factor(click.ParamType):
    """A factor, or several joined by commas if the command takes several schedules."""

    name = "factor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        several = ctx is not None and any(each.name == "schedules" for each in ctx.command.params)
        with suppress(ValueError):
            factors = [float(part) for part in str(value).split(",")]
            if several or len(factors) == 1:
                return factors if len(factors) > 1 else factors[0]
        example = "4, or several like 2,4,8" if several else "4"
        return self.fail(f"{value!r} is not a factor; write {example} (a length is --target-length)", param, ctx)


# --- Options of several commands


_KINDS: dict[str | None, click.ParamType] = {
    "N": Length(),
    "F": Factor(),
    "X": click.FLOAT,
    "SPEC": SpecText(),
    **dict.fromkeys("SRC FILE OUT CKPT OUT.gguf FILE.json".split(), Place()),
}
"""The default types of options, by the placeholder in the help."""


def option(words: str, metavar: str | None, help: str, type: click.ParamType | None = None, **more: Any) -> Option:
    """Makes an option whose help shows the default: ``option("--data source", "SRC", "Where texts come from.")``."""
    more.setdefault("show_default", more.get("default") is not None)
    return Option(words.split(), type=type or _KINDS.get(metavar), metavar=metavar, help=help, **more)


def flag(words: str, help: str) -> Option:
    """Makes a boolean flag."""
    return Option(words.split(), is_flag=True, help=help)


def switch(words: str, help: str, default: bool | None = True) -> Option:
    """Makes a pair of flags: ``--name/--no-name``."""
    return option(f"{words}/--no-{words[2:]}", None, help, default=default)


def model_argument(required: bool = True) -> click.Argument:
    """Makes ``MODEL``, a checkpoint's folder or a Hub id."""
    return click.Argument(["model"], type=Place(), required=required)


def data_option(help: str, multiple: bool = True) -> Option:
    """Makes ``--data``, the source of texts."""
    return option("--data source", "SRC", help, required=True, multiple=multiple)


def lengths_option(help: str) -> Option:
    """Makes ``--lengths``, whose repeated lists are joined."""
    join = lambda ctx, param, lists: list(chain.from_iterable(lists))  # noqa: E731
    return option("--lengths", "N,...", help, Length(parse_lengths), required=True, multiple=True, callback=join)


def out_option(help: str, metavar: str = "OUT", **more: Any) -> Option:
    """Makes ``-o``, the output."""
    return option("-o --out", metavar, help, **more)


def _pairs(ctx: click.Context, param: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Returns ``key=value`` words as a dictionary."""
    found = {}
    for pair in values:
        key, _, value = pair.partition("=")
        if not (key and value):
            raise click.BadParameter(f"{pair!r} is not key=value", ctx, param)
        if key in found:
            raise click.BadParameter(f"{key} is set twice; set it once", ctx, param)
        found[key] = value
    return found


SCHEDULE = "A schedule: NAME[:key=value,...], FILE.py::Class, factors.json or JSON."
"""The help of ``--schedule``."""


ATTENTIONS = "eager sdpa flex_attention flash_attention_2 flash_attention_3".split()
"""transformers' implementations of attention."""

_OPTIONS = [
    option("--schedule", "SPEC", SCHEDULE, required=True),
    option("--schedule schedules", "SPEC", f"{SCHEDULE} May be repeated.", multiple=True),
    option("--factor", "F", "The extension factor; short for factor=F."),
    option("--target-length", "N", "The target context, such as 128k; determines the factor."),
    option("--original-length", "N", "The trained length, if the config's is wrong."),
    option("--set overrides", "K=V", "A field of the schedule; repeatable.", multiple=True, callback=_pairs),
    option("--layers", "full|all|TYPE", "The layers to change (default: full)."),
    flag("--replace-scaling", "Replace the existing scaling, and compute from the original length."),
    flag("--on-top", "Compose with the existing scaling."),
    option("--freeze-at", "N", "Freeze a length-dependent schedule into a fixed table."),
    option("--baseline", "SPEC", "The schedule to compare the others with (default: as-is)."),
    option("--revision", "R", "Branch, tag or commit of a Hub model."),
    flag("--trust-remote-code", "Run MODEL's own Python code, if needed."),
    option("--dtype", None, "The dtype (default: float32 on the CPU, the checkpoint's on a GPU).", DTYPE),
    option("--device", "D", "The device (default: the GPU if available, else cpu)."),
    option(
        "--attn-implementation",
        None,
        "The kernel of attention (default: the model's, usually sdpa).",
        OneOf(ATTENTIONS),
    ),
    option("--split", "S", "Split of a dataset (default: test, or the only one)."),
    option("--text-field", "FIELD", "Field with the text, the chat or the token ids."),
    option("--prompt-field", "FIELD", "Field with the prompt."),
    option("--answer-field", "FIELD", "Field with the answer, or a list of answers."),
    option("--chat-template", "FILE", "The Jinja template of chats, instead of the tokenizer's."),
    option("--glob", "G", "Files of a folder: '*.txt' at any depth, 'notes/*.md' relative to the folder."),
    option("--score", None, "The roles in a chat whose tokens are scored.", OneOf(["all", "assistant"]), default="all"),
    flag("--concat", "Join all documents into one, with blank lines between them."),
    flag("--streaming", "Read a Hub dataset only as far as --max-docs needs."),
    option("--min-tokens", "N", "Skip documents with fewer tokens.", IntRange(0), default=0),
    option("--max-docs", "N", "At most this many documents."),
    option("--windows", "N|all", "Windows per document; 1 is the first (default: by budget)."),
    option("--batch-tokens", "N", "Tokens to feed at once (default: as many as fit into memory)."),
    option("--truncation-stride", "N", "Tokens that every truncation window scores (default: automatic)."),
    option("--bos", "B", "Prepend BOS: auto, yes, no, or a token id.", default="auto"),
    option("--server servers", "URL", "A server that scores instead of MODEL; repeatable.", multiple=True),
    option(
        "--served-as", "SPEC", "The server's schedule, such as base or yarn:factor=4. One per server.", multiple=True
    ),
    option("--served-name", "NAME", "The served model's name (default: the server's first).", multiple=True),
    option("--tokenizer", "CKPT", "The served checkpoint; no weights are read."),
    option("--concurrency", "N", "Windows to ask for at once (default: 8; llama-server: 1).", IntRange(1)),
    option("--timeout", "S", "Seconds to wait for a response.", IntRange(1), default=3600),
    flag("--json as_json", "Print JSON in full precision."),
    flag("--fresh", "Measure again instead of resuming from OUT."),
    flag("--force", "Replace results in OUT of another text or model, or of a larger run."),
    flag("--verbose", "Print all tables of REPORT.md."),
    flag("--quiet", "Print no progress and no notes, only warnings and errors."),
]
_SHARED = {str(each.name): each for each in _OPTIONS}
"""Options that several commands share, by the names of their parameters."""

_RARE = (
    "original_length freeze_at answer_field chat_template glob concat min_tokens streaming bos truncation_stride "
    "repeat_distance seed trust_remote_code served_name timeout batch_tokens tp device_map split prompt_field "
    "score short_context fresh revision overrides layers baseline tolerance attn_implementation"
).split()
"""Parameters that only ``--help-all`` lists, where a command has so many that they do not fit on two screens."""

_TWO_SCREENS = 28
"""The number of options from which on a command lists the rare ones apart."""

Sections = Mapping[str, Sequence[str | Option]]
"""A command's options by help section: its own options, and space-separated names of shared ones."""

MODEL_SECTION: Sections = {"The model": ["revision trust_remote_code dtype device attn_implementation"]}
"""Options for locating and loading a model."""

SERVER_SECTION: Sections = {"Server instead of MODEL": ["servers served_as served_name tokenizer concurrency timeout"]}
"""Options for servers."""


def request_sections(*schedules: str | Option) -> Sections:
    """Returns the help sections for the options of a request; the options for its schedules come first."""
    return {
        "The schedule": [*schedules, "factor target_length original_length overrides layers freeze_at"],
        "Already scaled models": ["replace_scaling on_top"],
    }


# --- Printing


def tell(**texts: Iterable[str]) -> None:
    """Prints notes and warnings to stderr: ``tell(note=[...], warning=[...])``."""
    for kind, each in texts.items():
        for text in each:
            say(f"{kind}: {text}")


def say(line: str) -> None:
    """Prints a line to stderr, folded to the terminal; ignores write errors."""
    from ..output.wrapping import folded_to

    text = folded_to(sys.stderr, visible(line))
    if _has_colour(sys.stderr) and text.startswith("error:"):
        text = click.style("error:", fg="red", bold=True) + text.removeprefix("error:")
    with suppress(OSError):
        click.echo(text, err=True)


def _has_colour(stream: TextIO | None) -> bool:
    """Returns whether a stream is a terminal with colours that the user has not turned off (https://no-color.org)."""
    return bool(stream and stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")


_NUMBER = re.compile(r"(?<![\w.:=])[-+]?\d[\d,]*(?:\.\d+)?%?(?![\w.=]*[:=])")


def _coloured(text: str) -> str:
    """Colours the numbers above the first table, which are those of the answer."""
    answer, line, rest = text.partition("\n|")
    return _NUMBER.sub(lambda found: click.style(found[0], fg="cyan", bold=True), answer) + line + rest


def put(text: str, kept: object = None, is_answer: bool = False) -> None:
    """Prints a result to stdout.

    Args:
        kept: the file or folder that the result was written to.
        is_answer: whether the text begins with an answer, whose numbers are coloured on a terminal.

    Raises:
        RunError: printing failed; the message names the stored result.
    """
    lines = visible_lines(text)
    if is_answer and _has_colour(sys.stdout):
        lines = _coloured(lines)
    try:
        click.echo(lines)
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        where = f"; it is stored in {kept}" if kept else ""
        raise RunError(f"the result cannot be printed: {error.strerror or error}{where}") from None


def drop_output() -> None:
    """Discards all further output, including Python's final flush."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(page: Page, kept: object = None, is_answer: bool = False) -> None:
    """Prints a page like :func:`put`, fitted to the terminal or to COLUMNS."""
    from ..output.wrapping import fitted_to

    put(fitted_to(sys.stdout, page), kept, is_answer)


def print_result(as_json: bool, plain: object, page: Page, kept: object = None) -> None:
    """Prints a result like :func:`put`, as JSON in full precision or as a page."""
    if as_json:
        print_json(plain, kept)
    else:
        show(page, kept)


def print_json(value: object, kept: object = None) -> None:
    """Prints ``value`` as standard JSON, like :func:`put`, with null for non-finite numbers."""
    put(json.dumps(finite(value), indent=2, allow_nan=False), kept)


# --- Sections


GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
"""The sources of parameters that the user gave."""

_OF_SERVERS = "served_as served_name tokenizer concurrency timeout"
_NEEDED = (
    (_OF_SERVERS, "servers", True, "needs a server; leave it out, or name one"),
    ("prompt_field answer_field max_prompts new_tokens match", "prompts", True, "needs prompts from a file; name one"),
    ("depths trials seed", "prompts", False, "applies to generated prompts, not to prompts from a file; drop it"),
    ("search_tokens", "search", True, "needs a search; leave it out, or ask for one"),
    ("verbose", "as_json", False, "has no effect on JSON, which has all figures; leave it out"),
)
"""Options that have an effect only with, or only without, another option of the same command: the options, the other
one, whether they need it, and the error."""


def refuse_given(why: str, instead: str, *names: str) -> None:
    """Raises an error if one of these parameters of the running command was given.

    Args:
        why: the message after the parameter's name.
        instead: the parameter that these parameters require or conflict with, or "".
        names: the parameters.

    Raises:
        DataError: a parameter is given; the message names the first.
    """
    ctx = click.get_current_context()
    for name in names:
        if ctx.get_parameter_source(name) in GIVEN:
            raise DataError(f"{name} {why}", name, instead)


class SectionedCommand(click.Command):
    """A command whose help lists options in sections, and that rejects options without effect."""

    sections: dict[str, list[Option]]
    lists_rare_apart = False

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the description; without ``--help-all`` of a command with many options, its first two paragraphs and
        the examples."""
        whole = self.help
        if self._is_short(ctx) and whole:
            self.help = "\n\n".join(whole.split("\n\n")[:3])
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections; options outside the sections come last."""
        titled = set(chain.from_iterable(self.sections.values()))
        others = [each for each in self.get_params(ctx) if isinstance(each, Option) and each not in titled]
        for title, options in [*self.sections.items(), ("Other options", others)]:
            shown = [each for each in options if not (self._is_short(ctx) and each.name in _RARE)]
            if shown:
                with formatter.section(title):
                    formatter.write_dl([record for each in shown if (record := each.get_help_record(ctx))])

    def _is_short(self, ctx: click.Context) -> bool:
        return self.lists_rare_apart and "help_all" not in ctx.meta

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; raises an error for an option that another one deprives of its effect, and for a
        repeated one, whose first value would be replaced silently."""
        for param, count in Counter(self.make_parser(ctx).parse_args(list(args))[2]).items():
            if count > 1 and isinstance(param, Option) and not (param.multiple or param.count or param.is_flag):
                raise click.UsageError(f"{max(param.opts, key=len)} is given {count} times; give it once", ctx)
        rest = super().parse_args(ctx, args)
        for names, other, needed, why in _NEEDED:
            if not ctx.resilient_parsing and other in ctx.params and bool(ctx.params[other]) is not needed:
                refuse_given(why, other, *names.split())
        return rest


def _help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["help_all"] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_help_all,
    help="Show all options and notes, and exit.",
)


def sectioned_command(
    name: str, sections: Sections, *arguments: click.Argument
) -> Callable[[Callable[..., None]], SectionedCommand]:
    """Turns the decorated function into a command with these arguments and options."""

    def make(function: Callable[..., None]) -> SectionedCommand:
        command = click.command(name, cls=SectionedCommand)(function)
        command.sections = {title: [] for title in sections}
        for title, entries in sections.items():
            for entry in entries:
                named = [_SHARED[name] for name in entry.split()] if isinstance(entry, str) else [entry]
                command.sections[title] += named
        command.params = [*arguments, *chain.from_iterable(command.sections.values())]
        if len(command.params) > _TWO_SCREENS:
            command.lists_rare_apart = True
            command.params.append(_HELP_ALL)
        return command

    return make
