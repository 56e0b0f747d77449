"""Tables that studies print, and those that the ``[[table]]`` sections of a suite describe.

Each line of a table of a suite is one attack by one adversary on one training, over seeds. A column
is the name of an entry of `LABELS` or of `SCORES`, or ``HEADER = METRIC.COLUMN as FORMAT``. For
example, ``rows right = returned_right.blind as percent0`` prints the blind baseline of the metric
``returned_right``.

- ``METRIC`` is a metric of the attack, ``note:NAME`` for a diagnostic of the attack, or
  ``train:NAME`` for a metric of the training.
- ``.COLUMN`` is a column of the results (by default ``value``), ``over_blind`` for the value minus
  the blind baseline, or ``over_first`` for the value minus that of the first attack on the same
  training, paired by seed.
- ``as FORMAT`` is an entry of `FORMATS`, by default ``percent``.

A section has the keys ``columns``, ``title``, ``attacks`` (only these attacks), ``having`` (only
attacks with this metric) and ``where`` (only settings that match regular expressions, by column). A
section with ``blind_guesses = true`` lists all blind guesses instead.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, stdev
from typing import Any, NamedTuple

import pandas as pd

from fedtrees.experiments.suite import bundled_suites

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


_TRAINING = ["dataset", "partition", "protocol", "protocol_params", "defense_spec"]
_ATTACK = [*_TRAINING, "threat", "attack_spec"]


@dataclass(frozen=True, eq=False)
class AttackResult:
    """One attack by one adversary on one training, over seeds.

    Attributes
    ----------
    labels : mapping of str to str
        Setting, by column of the results.
    rows : mapping of str to DataFrame
        Results by metric, ``note:NAME`` or ``train:NAME``.
    first : AttackResult or None
        Result of the first attack on the same training, None for that attack.
    """

    labels: Mapping[str, str]
    rows: Mapping[str, Any]
    first: "AttackResult | None"

    @property
    def attack(self) -> str:
        """Name of the attack without its parameters."""
        return self.labels["attack_spec"].partition("[")[0]

    @property
    def depth(self) -> int:
        """Maximum depth of the trees."""
        return int(
            dict(p.split("=") for p in self.labels["protocol_params"].split(","))["max_depth"]
        )

    def values(self, source: str) -> list[float]:
        """Return the values of ``METRIC.COLUMN`` over seeds, without missing ones."""
        metric, _, column = source.partition(".")
        rows = self.rows.get(metric)
        if rows is None or (column == "over_first" and self.first is None):
            return []
        if column == "over_blind":
            return list((rows["value"] - rows["blind"]).dropna())
        if column == "over_first":
            values, first = (r.rows[metric].set_index("seed")["value"] for r in (self, self.first))
            return list((values - first).dropna())
        return list(rows[column or "value"].dropna())


def attack_results(rows: pd.DataFrame) -> Iterator[AttackResult]:
    """Yield the results of all attacks in the order of the suite."""
    trainings = dict(iter(rows[rows["stage"] == "train"].groupby(_TRAINING, sort=False)))
    attacked = rows[(rows["stage"] == "attack") & (rows["status"] != "skipped")]
    firsts: dict[tuple[str, ...], AttackResult] = {}
    for key, part in attacked.groupby(_ATTACK, sort=False):
        by_metric = dict(iter(part.groupby("metric")))
        notes = part[part["metric"] == "note"].groupby("part")
        by_metric |= {f"note:{name}": group for name, group in notes}
        if key[:5] in trainings:
            trained = trainings[key[:5]].groupby("metric")
            by_metric |= {f"train:{name}": group for name, group in trained}
        place = key[: len(_ATTACK) - 1]
        labels = dict(zip(_ATTACK, key, strict=True))
        result = AttackResult(labels, by_metric, firsts.get(place))
        firsts.setdefault(place, result)
        yield result


def _mean(values: list[float], form: str) -> str:
    """Format the mean of values."""
    return format(mean(values), form) if values else "-"


FORMATS: dict[str, Callable[[list[float]], str]] = {
    "percent": percent,
    "percent0": partial(percent, digits=0),
    "signed": partial(percent, signed=True),
    "mean0": partial(_mean, form=".0f"),
    "mean1": partial(_mean, form=".1f"),
    "mean3": partial(_mean, form=".3f"),
    "scientific": partial(_mean, form=".1e"),
    "each": lambda values: " ".join(f"{v:.0f}" for v in values),
    "largest": lambda values: f"{max(values, default=0.0):.3f}",
}

#: Columns that describe a setting, or that are computed from several metrics.
LABELS: dict[str, Callable[[AttackResult], str]] = {
    "table": lambda r: r.labels["dataset"],
    "partition": lambda r: r.labels["partition"],
    "protocol": lambda r: r.labels["protocol"],
    "parameters": lambda r: r.labels["protocol_params"],
    "depth": lambda r: str(r.depth),
    "defense": lambda r: f"`{r.labels['defense_spec']}`",
    "threat": lambda r: r.labels["threat"],
    "attack": lambda r: f"`{r.labels['attack_spec']}`",
    "returned": lambda r: f"{sum(r.values('returned_rows')):.0f}",
    "wrong": lambda r: str(_wrong_rows(r)),
    "returned wrong": lambda r: (
        f"{_wrong_rows(r) / total:.1%}" if (total := sum(r.values("returned_rows"))) else "-"
    ),
}

#: Columns of single metrics.
SCORES = {
    "RA": "ra",
    "blind": "ra.blind",
    "advantage": "ra.advantage as signed",
    "over blind": "ra.over_blind as signed",
    "over first attack": "ra.over_first as signed",
    "exact rows": "exact_rows",
    "exact rows, blind": "exact_rows.blind",
    "leaf counts": "leaf_counts_exact as percent0",
    "leaf counts, blind": "leaf_counts_exact.blind as percent0",
    "rows in them": "leaf_mass_exact as percent0",
    "AUC": "train:auc as mean3",
    "CPU s": "cpu_seconds as mean1",
}


def _wrong_rows(result: AttackResult) -> int:
    """Return how many of the returned rows are wrong, over all seeds."""
    if "returned_wrong" not in result.rows:
        return 0
    shares, totals = (result.rows[f"returned_{name}"]["value"] for name in ("wrong", "rows"))
    pairs = zip(shares, totals, strict=False)
    return sum(round(share * total) for share, total in pairs if share == share)


def suite_tables(
    name: str, rows: pd.DataFrame, extra: Mapping[str, Callable[[AttackResult], str]] | None = None
) -> Iterator[Table]:
    """Yield the tables that the file of a bundled suite describes.

    Parameters
    ----------
    name : str
        Name of the suite.
    rows : DataFrame
        Results of its run.
    extra : mapping of str to callable
        Further columns, in addition to `LABELS`.
    """
    columns_of_code = LABELS | dict(extra or {})
    results = list(attack_results(rows))
    for section in table_sections(name):
        if section.get("blind_guesses"):
            yield blind_table(rows)
            continue
        columns = [_column(text, columns_of_code) for text in section["columns"]]
        selected = [
            result
            for result in results
            if result.attack in section.get("attacks", [result.attack])
            and ("having" not in section or section["having"] in result.rows)
            and all(re.fullmatch(p, result.labels[c]) for c, p in section.get("where", {}).items())
        ]
        lines = [[column(result) for _, column in columns] for result in selected]
        yield Table(section.get("title", TITLE), [header for header, _ in columns], lines)


def table_sections(name: str) -> list[dict[str, Any]]:
    """Return the ``[[table]]`` sections of a bundled suite."""
    return suite_sections(name, "table")


def suite_sections(name: str, kind: str) -> list[dict[str, Any]]:
    """Return the sections of a bundled suite that describe its tables or comparisons."""
    text = bundled_suites()[name].read_text(encoding="utf-8")
    sections: list[dict[str, Any]] = tomllib.loads(text).get(kind, [])
    return sections


def _column(
    text: str, columns_of_code: Mapping[str, Callable[[AttackResult], str]]
) -> tuple[str, Callable[[AttackResult], str]]:
    """Return the header of a column, and the function that formats its entries."""
    header, _, definition = text.partition(" = ")
    if not definition and header in columns_of_code:
        return header, columns_of_code[header]
    source, _, form = (definition or SCORES[header]).partition(" as ")
    write = FORMATS[form or "percent"]
    return header, lambda result: write(result.values(source))


def blind_table(rows: pd.DataFrame) -> Table:
    """Return the reconstruction accuracy of every blind guess per table, as means over seeds."""
    blind = rows[(rows["stage"] == "blind") & (rows["metric"] == "ra")]
    lines = [
        [data, guess or "**best**", percent(part["value"])]
        for (data, guess), part in blind.groupby(["dataset", "attack_params"], sort=False)
    ]
    return Table("Blind guesses, RA:", ("table", "guess", "RA"), lines)
