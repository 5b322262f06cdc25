"""``ropescale``: the command group, and the translation of errors into a line and an exit code."""

import difflib
import io
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from .. import __version__
from ..errors import RopescaleError, RunError, StorageError, VerificationError
from ..files import Terminated, failed, terminable
from ..output.formatting import cut, suggest, visible
from .options import drop_output, say

COMMANDS = {
    "demo": "Patch, verify and measure the bundled model in half a minute.",
    "schedules": "List the schedules, their fields, defaults and papers.",
    "inspect": "Show a model's rotary geometry, before and after a schedule.",
    "patch": "Write a checkpoint that carries a schedule; no weights are read.",
    "restore": "Undo `patch --in-place`.",
    "gguf": "Write a GGUF file that carries a schedule, for stock llama.cpp.",
    "verify": "Verify that a model uses the intended frequencies.",
    "export": "Show the commands that serve a model in an engine, and the values that the engine computes.",
    "eval": "Measure perplexity against length, under one schedule or several.",
    "recommend": "Recommend a schedule for a model, a length and a text, with evidence.",
    "keys": "Find tokens that need long context with a key model, for `eval --key-spans`.",
    "retrieval": "Measure the retrieval of numbers hidden in long texts, by length and depth.",
    "datasets": "List well-known long texts that --data takes by name.",
    "search": "Learn a schedule on a text, with frozen weights.",
    "report": "Compare runs in one self-contained page.",
}
"""The commands, in the order of ``ropescale --help``. The module of a command defines it as ``command``."""

_NOT_HERE = {
    "serve": "nothing is served here, but `ropescale export MODEL --for vllm` prints the command that serves it",
    "merge": "nothing is merged here, but `ropescale patch MODEL -o OUT --schedule SPEC` writes a patched model",
}
"""Advice on commands of other programs."""

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


class LazyGroup(click.Group):
    """A group that imports a command's module only if the command is called or its help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            advice = _NOT_HERE.get(cmd_name) or suggest(cmd_name, COMMANDS, f"see `{ctx.command_path} -h`")
            raise click.UsageError(f"no such command {cmd_name!r}; {advice}")
        return import_module(f".{cmd_name}", __package__).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, message="ropescale %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Extend the context of RoPE language models, and measure the effect."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    The exit code is 0 on success, 1 if a check or a run failed, 2 if the input or the usage is wrong, and 130 after an
    interruption (143 after SIGTERM). Results are printed to stdout. An error is printed to stderr as one line,
    ``error: ...``, after its traceback with ``--debug``.
    """
    words = list(sys.argv[1:] if args is None else args)
    for stream in (sys.stdout, sys.stderr):  # a result may contain characters that the terminal's encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with terminable():
            group.main([word for word in words if word != "--debug"], prog_name="ropescale", standalone_mode=False)
        if sys.stdout:  # None if the caller closed it
            sys.stdout.flush()
        return DONE
    except BrokenPipeError:
        drop_output()  # the reader closed the pipe (``| head``); also silences Python's flush at exit
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, RopescaleError):
            cause = cause.__cause__  # click, and Python in the creation of a class, wrap an interruption
        if isinstance(cause, Terminated):
            say(f"terminated ({signal.Signals(cause.number).name})")
            return 128 + cause.number
        if isinstance(cause, KeyboardInterrupt):
            say("interrupted")
            return INTERRUPTED
        if "--debug" in words:
            traceback.print_exc()
        code, sentence = translate(error, next((word for word in words if word in COMMANDS), None))
        say(f"error: {sentence}")
        return code


def translate(error: BaseException, command: str | None = None) -> tuple[int, str]:
    """Returns an error's exit code and message, followed by the command's options that set the error's fields."""
    if isinstance(error, RopescaleError):
        code = FAILED if isinstance(error, (RunError, StorageError, VerificationError)) else WRONG_INPUT
        return code, _one_line(_with_options(str(error), error.fields, command))
    if isinstance(error, click.ClickException):
        return WRONG_INPUT, _usage_sentence(error)
    if isinstance(error, OSError) and error.strerror:
        return translate(failed(f"{error.filename2 or error.filename or 'a file'} cannot be used", error))
    if isinstance(error, MemoryError):
        return FAILED, "not enough memory; provide more, or reduce the task"
    return FAILED, _one_line(f"unexpected {type(error).__name__}: {error}; run with --debug to see where")


_MEANT = {"schedule": "schedules", "documents": "source", "length": "lengths", "server": "servers"}
"""The parameters of commands that set function parameters with other names."""


def _with_options(text: str, fields: Sequence[str], command: str | None) -> str:
    """Returns a message in which the names of parameters are the command's options, such as ``--target-length``.

    Those whose name is also a word follow it: `` (--layers)``.
    """
    known = group.get_command(click.Context(group), command) if command else None
    params = {param.name: param for param in known.params if isinstance(param, click.Option)} if known else {}
    others = []
    for field in fields:
        param = params.get(field) or params.get(_MEANT.get(field, ""))
        if param is None:
            continue
        flag = param.opts[0] if not param.secondary_opts else f"--[no-]{param.opts[0][2:]}"
        alone = rf"(?<![\w/.'-]){field}(?![\w/'-]|\.\w)"  # not a part of a path or of a name in quotes
        written = re.sub(alone, flag, text) if "_" in field else text
        if written == text:
            others.append(flag)
        text = written
    return f"{text} ({', '.join(dict.fromkeys(others))})" if others else text


def _usage_sentence(error: click.ClickException) -> str:
    """Rewrites click's message in ropescale's style: no capital, no full stop, and advice after a semicolon."""
    if isinstance(error, click.NoSuchOption):
        message = f"no such option {_one_line(error.option_name)!r}"
        if error.ctx and (advice := _meant(error.option_name.replace("_", "-"), error.ctx)):
            return f"{message}; {advice}"
    else:
        message = _one_line(error.format_message()).rstrip(".")
        message = message.replace("a valid float", "a number").replace("a valid integer range", "a whole number")
        message = message.replace("not in the range x>=", "less than ")
        message = message[:1].lower() + message[1:]
    ctx = None if message.endswith("?") else getattr(error, "ctx", None)
    return f"{message}; see `{ctx.command_path} -h`" if ctx else message


_ELSEWHERE = {
    "-o": "--output --output-path --output-dir --out-path --save",
    "--data": "--dataset --datasets --text --texts --input --corpus",
    "--lengths": "--length --max-length --max-model-len --max-seq-len --max-seq-length --context-length --ctx-size",
    "--target-length": "--length --max-length --max-model-len --max-seq-length --context-length --ctx-size",
    "--batch-tokens": "--batch-size --batch --max-num-batched-tokens",
    "--max-docs": "--limit --num-samples --max-samples",
    "--max-prompts": "--limit --num-samples --max-samples",
    "--schedule": "--method --rope-scaling --rope-type --hf-overrides --merge-method --config-overrides",
    "--factor": "--scale --rope-scale --rope-scaling-factor",
    "--server": "--base-url --url --host --api-base",
    "--tp": "--tensor-parallel-size --num-gpus",
}
"""The words of lm-eval, vLLM, llama.cpp and mergekit for ropescale's options."""

_OTHERWISE = {
    "MODEL": (
        "--model --model-args --model-path --model-name-or-path --pretrained --checkpoint -m",
        "the model is an argument: `{} MODEL`",
    ),
    "--data": (
        "--tasks",
        "there are no tasks here, only texts: --data names one, such as a file (`ropescale datasets`)",
    ),
    "--device": ("--cuda --gpu --gpus", "write --device cuda"),
    "--link": (
        "--lazy-unpickle --trust-remote-code --copy-tokenizer --dtype --device --cuda --low-cpu-memory",
        "files are linked or copied, and no weights or code are loaded; leave it out",
    ),
    "--dtype": (
        "--lazy-unpickle --low-cpu-memory --gpu-memory-utilization --enforce-eager",
        "memory is planned without it; leave it out",
    ),
    "--lengths": ("--num-fewshot --fewshot", "texts are measured without examples before them; leave it out"),
}
"""The words of the same programs for what ropescale does otherwise, by the parameter that a command must have for this
advice."""


def _meant(word: str, ctx: click.Context) -> str:
    """Returns advice for an unknown option: the command's option that is meant, or close; else ""."""
    params = ctx.command.params
    known = [name for param in params for name in param.opts if name.startswith("-")]
    for name, (words, advice) in _OTHERWISE.items():
        if word in words.split() and any(name in (*param.opts, param.human_readable_name) for param in params):
            return advice.format(ctx.command_path)
    named = [name for name, words in _ELSEWHERE.items() if name in known and word in words.split()]
    close = [word] if word in known else named or difflib.get_close_matches(word, known, 1, 0.75)
    return f"did you mean {close[0]!r}?" if close else ""


_LONGEST = 1900
"""The largest number of characters in an error message; longer messages only repeat a file."""


def _one_line(text: str) -> str:
    """Returns a message as one line of bounded length, without control characters."""
    return cut(visible(" ".join(text.split())), _LONGEST)
