"""Published values next to ours.

``published/PAPER.csv`` contains one line per published value: the table or figure (`item`), the
row of it (`setting`), and the `score`. A suite names the results that correspond to these values
in ``[[compare]]`` sections of its TOML file, for example:

    [[compare]]
    paper = "timberstrike"
    item = "Table 6"
    metric = "ra_union|ra_owner"
    scores = {"RA" = "timberstrike-published"}
    strongest = "timberstrike\\\\[.*"

- ``scores`` names the attack of each score. If it is empty, the setting names the attack.
- ``metric`` and ``strongest`` are regular expressions. ``strongest`` names further attacks, of
  which the best one is reported next to the first. If the scores are of different metrics,
  ``metric`` is a table of them, for example ``metric = {"seconds" = "cpu_seconds"}``.
- ``stage`` is ``attack`` (default) or ``train``, and ``column`` is ``value`` (default) or
  ``blind``.
- ``where`` restricts results by regular expressions, for example
  ``where = {defense_spec = "none"}``.

- ``setting`` restricts the published values to the settings of a pattern such as ``iris, *``, whose
  results ``where`` selects. ``item`` may be a pattern, too.

Otherwise, a setting is a list of values and parameters, for example ``pima, fedtree-hist, depth 3,
epsilon 200, 5 clients``. It selects the results with the same data set, protocol, attack and
parameters.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from math import isnan, nan, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import pandas as pd

from fedtrees.benchmarks.papers.tables import Table, suite_sections
from fedtrees.core.registry import register

#: Papers by the name of their file in ``published``.
PAPERS = {
    "timberstrike": "TimberStrike (Di Gennaro et al. 2025)",
    "id2graph": "ID2Graph (Takahashi et al. 2023)",
    "draft_dp": "DRAFT-DP (Gorgé et al. 2026)",
    "tableak": "TabLeak (Vero et al. 2023)",
    "regression": "Privacy threats to secure federated learning (Li et al. 2022)",
}
#: Number of repetitions behind a published standard deviation, in all papers that print one.
PUBLISHED_SEEDS = 5


class Kind(NamedTuple):
    """How the values of a score are compared.

    Attributes
    ----------
    margin : float
        Difference up to which a value counts as reproduced, if its standard error is smaller. NaN
        if a value is only better or differs, for example an error that varies by powers of ten.
    direction : int
        1 if a larger value is better than the published one, -1 if a smaller one is, and 0 if no
        value is better, for example for the utility of a model.
    digits : int
        Number of decimal places.
    scale : float
        Factor of our values. 100 if the score is printed in percent.
    """

    margin: float
    direction: int
    digits: int
    scale: float = 1


#: Three percentage points, or the same as a share.
KINDS = {
    "RA": Kind(3, 1, 1, 100),
    "RA (F-TP)": Kind(3, 0, 1, 100),
    "V-measure": Kind(3, 1, 1, 100),
    "V-measure of CL": Kind(3, 0, 1, 100),
    "error": Kind(0.03, -1, 3),
    "exact rows": Kind(0.03, 1, 3),
    "worst row": Kind(0.03, -1, 3),
    "CDF": Kind(0.03, -1, 0),
    "batch accuracy": Kind(3, 1, 1, 100),
    "known data ratio": Kind(0.003, 0, 3),
    "queries": Kind(0, 0, 0),
    "relative error": Kind(nan, -1, 0),
    "seconds": Kind(0, -1, 1),
}
SHARE = Kind(0.03, 0, 3)


@dataclass(frozen=True)
class Comparison:
    """A published value next to ours.

    Attributes
    ----------
    paper, item, setting, score : str
        Paper, its table or figure, the row of that table, and the score.
    published, published_deviation : float
        Published mean and standard deviation, NaN if neither the paper nor the published results by
        seed (DRAFT-DP, Tables I, II and IV, Adult and COMPAS) contain it.
    measured, deviation : float
        Mean over the seeds of a run here, and the standard deviation. NaN if there is none.
    seeds : int
        Number of seeds.
    blind : float
        Mean of the blind baseline.
    strongest : float
        Mean of our strongest attack. NaN if only the published one was run.
    """

    paper: str
    item: str
    setting: str
    score: str
    published: float
    published_deviation: float = nan
    measured: float = nan
    deviation: float = nan
    seeds: int = 0
    blind: float = nan
    strongest: float = nan

    @property
    def kind(self) -> Kind:
        """How values of this score are compared."""
        return KINDS.get(self.score, KINDS.get(self.score.partition(",")[0], SHARE))

    @property
    def status(self) -> str:
        """Status of the value.

        ``reproduced``
            Ours is within the margin of the score, or within three standard errors of the
            difference.
        ``better``
            The strongest of our attacks exceeds the published value, or their attack had no result.
        ``differs by`` the difference
            Neither of the two.
        ``not run``
            There is no result.
        """
        difference, (margin, direction, *_) = self.measured - self.published, self.kind
        if isnan(self.measured):
            return "not run"
        if isnan(self.published):
            return "better"
        errors = ((self.deviation, self.seeds), (self.published_deviation, PUBLISHED_SEEDS))
        variance = sum(d * d / n for d, n in errors if d == d and n > 1)
        if abs(difference) <= max(margin, 3 * sqrt(variance)):
            return "reproduced"
        gains = [direction * (v - self.published) for v in (self.measured, self.strongest)]
        return "better" if any(gain > 0 for gain in gains) else f"differs by {difference:+.3g}"

    def with_values(self, values: Sequence[float], **more: float) -> "Comparison":
        """Return the comparison with the mean and the standard deviation of values by seed."""
        deviation = stdev(values) if len(values) > 1 else nan
        return replace(self, measured=mean(values), deviation=deviation, seeds=len(values), **more)

    def format(self, value: float) -> str:
        """Format a value with the decimal places of the score, ``-`` if it is missing."""
        form = ".2g" if self.score in ("relative error", "CDF") else f".{self.kind.digits}f"
        return "-" if isnan(value) else format(value, form)


def published_lines(name: str) -> Iterator[dict[str, str]]:
    """Yield the lines of a file in ``published``."""
    with (resources.files(__package__) / "published" / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


@cache
def read_published(paper: str) -> tuple[Comparison, ...]:
    """Return all published values of a paper, without ours.

    Where the authors' code counts a column that does not exist (Pima in TimberStrike), the value is
    that over the existing columns, and the column ``printed`` of the file has the printed one.
    """
    return tuple(
        Comparison(paper, line["item"], line["setting"], line["score"],
                   *(float(line[name] or nan) for name in ("published", "deviation")))
        for line in published_lines(f"{paper}.csv")
    )  # fmt: skip


def compare_suite(name: str, rows: pd.DataFrame) -> Iterator[Comparison]:
    """Yield the published values that the ``[[compare]]`` sections of a suite name, next to ours.

    Parameters
    ----------
    name : str
        Name of a bundled suite.
    rows : DataFrame
        Results of a run. The run may be incomplete.
    """
    for section in suite_sections(name, "compare"):
        part = rows[rows["stage"] == section.get("stage", "attack")]
        for column, pattern in section.get("where", {}).items():
            part = part[part[column].astype(str).str.fullmatch(pattern)]
        for cell in read_published(section["paper"]):
            patterns = (section["item"], section.get("setting", "*"))
            matches = all(map(fnmatchcase, (cell.item, cell.setting), patterns))
            if matches and cell.score in section["scores"]:
                metric = section["metric"]
                pattern = metric if isinstance(metric, str) else metric[cell.score]
                yield _compare(cell, section, part[part["metric"].str.fullmatch(pattern)])


def _compare(cell: Comparison, section: Mapping[str, Any], rows: pd.DataFrame) -> Comparison:
    """Add our values to a published one."""
    attack, column = section["scores"][cell.score], section.get("column", "value")
    scale, direction = cell.kind.scale, cell.kind.direction
    setting = "" if "setting" in section else cell.setting
    selected = _select(rows, setting, keep_attacks=False)
    pattern = section.get("strongest", "") if direction else ""
    matches = selected["attack_spec"].astype(str).str.fullmatch(pattern)
    other_attacks = selected[matches] if pattern else selected[:0]
    means = [scale * part["value"].mean() for _, part in other_attacks.groupby("attack_spec")]
    if attack:
        our_rows = selected[selected["attack_spec"] == attack]
    else:
        our_rows = _select(rows, setting, keep_attacks=column == "value")
    values, blind = (scale * our_rows.groupby("seed")[c].first() for c in (column, "blind"))
    return Comparison(
        cell.paper, cell.item, cell.setting, cell.score, cell.published, cell.published_deviation,
        values.mean(), values.std(), len(values), blind.mean(),
        max(means, key=lambda v: direction * v, default=nan),
    )  # fmt: skip


def _select(rows: pd.DataFrame, setting: str, keep_attacks: bool) -> pd.DataFrame:
    """Return the results of a setting.

    With `keep_attacks`, only those of the attack that the setting names.
    """
    text = rows["protocol_params"] + " " + rows["defense_spec"] + " " + rows["partition"]
    keep = pd.Series(True, index=rows.index)
    for token in filter(None, setting.split(", ")):
        words = token.split(" ")
        if len(words) == 2:
            value, name = words if words[0].isdigit() else reversed(words)
            keep &= text.astype(str).str.contains(rf"\b(?:max_)?{name}={re.escape(value)}(?![\d.])")
        else:
            columns = ("dataset", "protocol", "attack")
            column = next((c for c in columns[1:] if token in register.names(c)), columns[0])
            keep &= (rows[column] == token) | (column == "attack" and not keep_attacks)
    return rows[keep]


_COLUMNS = tuple(field.name for field in fields(Comparison))


def write_comparisons(study: str, comparisons: Iterable[Comparison], path: Path) -> None:
    """Write comparisons to a CSV file, with the command that computes ours."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("command", *_COLUMNS, "status"))
        for c in comparisons:
            values = (getattr(c, column) for column in _COLUMNS)
            texts = (f"{v:.6g}" if isinstance(v, float) else v for v in values)
            writer.writerow((f"python -m fedtrees.benchmarks.papers {study}", *texts, c.status))


def read_comparisons(path: Path) -> list[Comparison]:
    """Return the comparisons in a CSV file that `write_comparisons` wrote."""
    with path.open(encoding="utf-8") as file:
        return [
            Comparison(*(line[c] for c in _COLUMNS[:4]), *(float(line[c]) for c in _COLUMNS[4:8]),
                       int(line["seeds"]), *(float(line[c]) for c in _COLUMNS[9:]))
            for line in csv.DictReader(file)
        ]  # fmt: skip


HEADER = ("setting", "score", "published", "measured", "deviation", "seeds", "strongest", "blind",
          "status")  # fmt: skip


def comparison_line(c: Comparison, status: str = "") -> list[str]:
    """Return the cells of a line of a table with `HEADER`."""
    numbers = (c.published, c.measured, c.deviation)
    seeds, rest = (str(c.seeds) if c.seeds else "-"), (c.strongest, c.blind)
    return [c.setting, c.score, *map(c.format, numbers), seeds, *map(c.format, rest),
            status or c.status]  # fmt: skip


def comparison_tables(comparisons: Iterable[Comparison]) -> Iterator[Table]:
    """Yield one table for each published table or figure."""
    by_item: dict[str, list[list[str]]] = {}
    for c in comparisons:
        by_item.setdefault(c.item, []).append(comparison_line(c))
    for item, lines in by_item.items():
        yield Table(item, HEADER, lines)
