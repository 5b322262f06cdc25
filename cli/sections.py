"""Help that keeps together the options which belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click


def in_sections(sections: Mapping[str, str]) -> type[click.Command]:
    """A class for a command whose help has its options under titles; what is named nowhere comes last.

    Args:
        sections: ``{title: names of parameters, separated by spaces}``, in the order of the help.
    """

    class InSections(click.Command):
        def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            left = {str(each.name): each for each in self.get_params(ctx) if isinstance(each, click.Option)}
            for title, names in sections.items():
                _write(ctx, formatter, title, [left.pop(name) for name in names.split()])
            _write(ctx, formatter, "Other options", left.values())

    return InSections


def _write(ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Iterable[click.Option]) -> None:
    records = [option.get_help_record(ctx) for option in options]
    with formatter.section(title):
        formatter.write_dl([record for record in records if record])
