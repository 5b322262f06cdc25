"""The class of every command: its help groups options under titles, and an option that counts once is given once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import click


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
