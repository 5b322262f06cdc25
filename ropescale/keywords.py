"""Keywords that a public function passes on: one that does not exist is refused in that function's name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .schedules.base import suggest


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuses a keyword that a function does not have, as Python itself would.

    Args:
        function: the public name, such as ``ropescale.patch``.
        given: the keywords of the call.
        known: those that there are.

    Raises:
        TypeError: names the function, the keyword and the nearest that there is.
    """
    for name in given:
        if name not in known:
            advice = suggest(name, known, f"it takes {', '.join(known)}")
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; {advice}")
