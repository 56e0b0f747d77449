"""Tables that studies print."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

TITLE = "Percent, mean ± standard deviation over seeds."


class Table(NamedTuple):
    """A table that a study prints: title, header and lines."""

    title: str
    header: Sequence[str]
    lines: list[list[str]]

    def __str__(self) -> str:
        return f"{self.title}\n\n{markdown(self.header, self.lines)}\n"


def percent(values: Iterable[float], *, signed: bool = False, digits: int = 1) -> str:
    """Format the mean of shares in percent, with the standard deviation if there are several.

    Parameters
    ----------
    values : iterable of float
        Shares. NaN is ignored.
    signed : bool
        Whether to print a plus sign.
    digits : int
        Number of decimal places.
    """
    present = [v for v in values if v == v]
    if not present:
        return "-"
    text = f"{100 * mean(present):{'+' if signed else ''}.{digits}f}"
    return f"{text} ± {100 * stdev(present):.{digits}f}" if len(present) > 1 else text


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [list(header), ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
