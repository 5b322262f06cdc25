"""Help that groups options under titles."""

from __future__ import annotations

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

    return InSections


def _write(ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Iterable[click.Option]) -> None:
    records = [option.get_help_record(ctx) for option in options]
    with formatter.section(title):
        formatter.write_dl([record for record in records if record])
