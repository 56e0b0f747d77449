"""Tables of studies, published values, and comparisons of the two."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import mean, stdev
from typing import NamedTuple

import pandas as pd

TITLE = "Percent, mean ± standard deviation over seeds."


class Table(NamedTuple):
    """A table that a study prints: title, header and lines."""

    title: str
    header: Sequence[str]
    lines: list[list[str]]

    def __str__(self) -> str:
        return f"{self.title}\n\n{markdown(self.header, self.lines)}\n"


@dataclass(frozen=True)
class Comparison:
    """A published value next to ours and to the blind baseline.

    Attributes
    ----------
    item : str
        Published table or figure.
    setting : str
        Row of the published table.
    score : str
        Score with its unit.
    published, ours, blind : float
        The values. Ours and that of the blind baseline are NaN if they were not measured.
    tolerance : float
        Largest difference at which the published value counts as reproduced.
    """

    item: str
    setting: str
    score: str
    published: float
    ours: float
    blind: float
    tolerance: float

    @property
    def status(self) -> str:
        """``reproduced``, ``differs by`` the difference, or ``not run here``."""
        difference = self.ours - self.published
        if difference != difference:
            return "not run here"
        return (
            "reproduced" if abs(difference) <= self.tolerance else f"differs by {difference:+.3g}"
        )


def read_published(name: str) -> pd.DataFrame:
    """Return the published values in ``published/NAME.csv`` of this folder."""
    path = resources.files(__package__) / "published" / f"{name}.csv"
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file)


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
