"""A table for a paper: what every defense keeps and leaks, over datasets, threats and runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from fedtrees.core.columns import CPU, measure
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.rows import FORMULA
from fedtrees.report import style
from fedtrees.report.budgets import ordered
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.intervals import Estimate
from fedtrees.report.markup_tables import Cell, Grid, latex, markdown
from fedtrees.report.names import Names
from fedtrees.report.rows import UNDEFENDED, label, load_rows
from fedtrees.report.selection import Selection
from fedtrees.report.study import Study

SUFFIXES = ("tex", "csv", "md")
BELOW = "†"  # an attack that applies is missing: the leak is known only from below
FAILED = "‡"  # the strongest attack did worse than the blind baseline: nothing is shown
NO_ATTACK = "n/a"
MEAN_RANK, POPULATION = "mean rank", "population"
_FEWEST, _MOST, _ALONE = 2, 4, 3  # decimals: at least, at most, and where there is no spread
_SAME = 1e-9  # difference of two scores that are one
_CELL = (
    "stage", "dataset", "partition", "protocol", "protocol_params", "defense", "defense_params",
    "threat", "attack", "attack_params", "seed",
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Shown:
    """What a column shows: a utility, or what the worst attack under a threat scored."""

    threat: str  # "" of a utility
    metric: str


@dataclass(frozen=True)
class Entry:
    """One number of the table.

    `loss`: What ranks are of, small is better. NaN where the row takes no part: its number is
    unknown, attacks did not finish, or the strongest one scored worse than the blind baseline.
    `below`: Whether an attack that applies is missing. `failed`: Whether the strongest attack
    scored worse than the blind baseline by more than the margin.
    """

    row: tuple[str, str, str]  # partition, protocol, defense
    dataset: str
    shown: Shown
    value: Estimate
    blind: Estimate
    loss: float
    below: bool = False
    untouched: bool = False  # no attack applies
    attack: str = ""
    population: Estimate = Estimate()
    failed: bool = False


def entries_of(frontiers: Sequence[Frontier]) -> list[Entry]:
    """Return every number of some frontiers once."""
    found: dict[tuple[object, ...], Entry] = {}
    for data in frontiers:
        for point in data.points:
            for entry in _of_point(data, point):
                found.setdefault((entry.row, entry.dataset, entry.shown), entry)
    return list(found.values())


def _of_point(data: Frontier, point: Point) -> tuple[Entry, Entry]:
    setting = data.panel.setting
    row = (setting.partition, setting.protocol, point.defense)
    sign = -measure(data.utility).sign
    utility = Entry(
        row, setting.dataset, Shown("", data.utility), point.utility, Estimate(),
        sign * point.utility.mean,
    )  # fmt: skip
    untouched = not point.advantage.known and point.untouched
    # Within the margin, a score below blind is noise around the blind guess, an advantage of 0.
    failed = point.coverage.failed or point.attack_failed
    loss = 0.0 if untouched else max(0.0, point.advantage.mean) if not failed else math.nan
    leak = Entry(
        row, setting.dataset, Shown(data.panel.threat, data.metric), point.score, point.blind,
        loss if untouched or point.advantage.known else math.nan, point.incomplete, untouched,
        ", ".join(name for name, _ in point.attacks), point.population, point.attack_failed,
    )  # fmt: skip
    return utility, leak


@dataclass(frozen=True)
class PaperTable:
    """The numbers of a table, and how they are written."""

    entries: Sequence[Entry] = field(repr=False)
    names: Names = field(default_factory=Names, repr=False)

    @cached_property
    def datasets(self) -> list[str]:
        """The datasets, one group of columns each."""
        return sorted({e.dataset for e in self.entries})

    @cached_property
    def rows(self) -> list[tuple[str, str, str]]:
        """Partition, protocol and defense of every row, undefended rows before defended ones."""
        place = {d: i for i, d in enumerate(ordered({e.row[2] for e in self.entries}))}
        return sorted({e.row for e in self.entries}, key=lambda row: (*row[:2], place[row[2]]))

    def measures(self, dataset: str) -> list[Shown]:
        """Return the columns of a dataset, the utility first."""
        return sorted({e.shown for e in self.entries if e.dataset == dataset})

    @cached_property
    def _at(self) -> dict[tuple[tuple[str, str, str], str, Shown], Entry]:
        return {(e.row, e.dataset, e.shown): e for e in self.entries}

    @cached_property
    def ranks(self) -> dict[Shown, dict[tuple[str, str, str], float]]:
        """Mean ranks over datasets, 1 the best (Demšar 2006, Sec. 3.2.2; ties share theirs).

        Of the measures that every dataset has, over the rows that take part in all of them. Leaks
        are ranked by advantage, none below blind.
        """
        from scipy.stats import rankdata

        shared = set.intersection(*(set(self.measures(d)) for d in self.datasets))
        found = {}
        for shown in sorted(shared) if len(self.datasets) > 1 else ():
            losses = {
                row: [self._loss(row, dataset, shown) for dataset in self.datasets]
                for row in self.rows
            }
            kept = {row: values for row, values in losses.items() if np.isfinite(values).all()}
            if len(kept) > 1:
                table = np.round(list(kept.values()), 9)  # not the noise of the last bits
                means = rankdata(table, axis=0).mean(axis=1)
                found[shown] = dict(zip(kept, map(float, means), strict=True))
        return found

    def _loss(self, row: tuple[str, str, str], dataset: str, shown: Shown) -> float:
        entry = self._at.get((row, dataset, shown))
        return math.nan if entry is None else entry.loss

    def frame(self) -> pd.DataFrame:
        """Return the numbers, one per line, with both ends of the intervals and ranks."""
        lines = []
        for e in self.entries:
            partition, protocol, defense = e.row
            lines.append(
                {
                    "dataset": e.dataset, "partition": partition, "protocol": protocol,
                    "defense": defense, "threat": e.shown.threat, "metric": e.shown.metric,
                    "mean": e.value.mean, "low": e.value.low, "high": e.value.high,
                    "seeds": e.value.n, "blind": e.blind.mean,
                    "population": e.population.mean, "strongest_attack": e.attack,
                    "attack_missing": e.below, "attack_failed": e.failed,
                    "mean_rank": self.ranks.get(e.shown, {}).get(e.row, math.nan),
                }
            )  # fmt: skip
        return pd.DataFrame(lines)

    @cached_property
    def grid(self) -> Grid:
        """The table as text: a block of rows per dataset and protocol, then mean ranks."""
        parts = [k for k in range(3) if len({row[k] for row in self.rows}) > 1] or [2]
        *above, label = parts
        measures = sorted({e.shown for e in self.entries})
        groups: dict[tuple[str, ...], list[int]] = {}
        for at, row in enumerate(self.rows):
            groups.setdefault(tuple(row[k] for k in above), []).append(at)
        called = [self.names(_undefended(row[label])) for row in self.rows]
        blocks = []
        for dataset in self.datasets:
            columns = [self._column(dataset, shown) for shown in measures]
            for group, places in groups.items():
                measured = [any((row, dataset, m) in self._at for m in measures)
                            for row in self.rows]  # fmt: skip
                held = [at for at in places if measured[at]]
                lines = [[called[at], *(texts[at] for texts, _ in columns)] for at in held]
                if lines:
                    above = [*self._lines(held, [told for _, told in columns])]
                    blocks.append((self._title(dataset, group), [*above, *lines]))
        if self.ranks:
            ranks = [self.ranks.get(shown, {}) for shown in measures]
            for group, places in groups.items():
                lines = [
                    [called[at], *(f"{of[row]:.1f}" if row in of else "–" for of in ranks)]
                    for at, row in enumerate(self.rows)
                    if at in places
                ]
                blocks.append((self._title(MEAN_RANK, group), lines))
        head = ("partition", "protocol", "defense")[label]
        return Grid([head, *map(self._named, measures)], 1, blocks)

    def _title(self, of: str, group: Sequence[str]) -> str:
        return " · ".join(map(self.names, (of, *group)))

    def _named(self, shown: Shown) -> str:
        label = self.names(shown.metric)
        own = measure(label).short if label == shown.metric else label
        return f"{own}, {self.names(shown.threat)}" if shown.threat else own

    @staticmethod
    def _lines(
        held: Sequence[int], columns: Sequence[Mapping[str, list[str]]]
    ) -> Iterator[list[str]]:
        """Yield the rows of what is scored without an attack: blind, and by who knows others."""
        for name in ("blind", POPULATION):
            spans = [_span([told[name][at] for at in held if told[name][at]]) for told in columns]
            if name == "blind" or any(spans):
                yield [name, *spans]

    def _column(self, dataset: str, shown: Shown) -> tuple[list[str | Cell], dict[str, list[str]]]:
        """Return the cells of a column, and its lines; with as many decimals."""
        found = [self._at.get((row, dataset, shown)) for row in self.rows]
        known = [e for e in found if e is not None]
        digits = decimals([e.value for e in known])

        def line(of: Sequence[Estimate | None]) -> list[str]:
            return [style.number(x.mean, digits) if x and x.known else "" for x in of]

        told = {
            "blind": line([e and e.blind for e in found]),
            POPULATION: line([e and e.population for e in found]),
        }
        return [_text(e, digits) for e in found], told

    @property
    def notes(self) -> list[str]:
        """What a caption must say."""
        seeds = sorted({e.value.n for e in self.entries if e.value.known}) or [0]
        spread = " ± half of the 95% bootstrap interval" if seeds[-1] > 1 else ""
        counts = "–".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        several = "s" if seeds[-1] != 1 else ""
        found = [
            f"Mean of {counts} seed{several}{spread}. Leaks are of the strongest attack, by "
            "advantage; the row blind is what an adversary scores who sees nothing."
        ]
        if any(e.population.known for e in self.entries):
            found.append(f"{POPULATION}: who sees nothing and knows other rows of the population.")
        if self.ranks:
            found.append(
                "Mean rank over datasets, 1 is best; leaks by advantage over the better baseline."
            )
        if any(e.below for e in self.entries):
            found.append(f"{BELOW} an attack that applies is missing: the leak is at least this.")
        if any(e.failed for e in self.entries):
            found.append(f"{FAILED} the strongest attack did worse than a blind guess: nothing is "
                         "shown about the leak, and there is no rank.")  # fmt: skip
        if any(e.untouched for e in self.entries):
            found.append(f"{NO_ATTACK}: no attack applies.")
        return found

    def tex(self) -> str:
        """Return a LaTeX ``tabular`` with booktabs rules."""
        return latex(self.grid, self.notes)

    def md(self) -> str:
        """Return a Markdown table with its notes."""
        return markdown(self.grid, self.notes)

    def csv(self) -> str:
        """Return the numbers, one per line; no text in it is a formula to a spreadsheet."""
        return self.frame().map(_no_formula).to_csv(index=False, lineterminator="\n")


def _no_formula(value: object) -> object:
    """Return a text behind an apostrophe where a spreadsheet would compute it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in FORMULA else value


def _span(texts: Sequence[str]) -> str:
    """Return one number, or the least and the largest of several."""
    found = sorted(set(texts), key=float)
    return "–".join(found[:1] + found[1:][-1:])


def _undefended(name: str) -> str:
    return "undefended" if name == UNDEFENDED else name


def decimals(values: Sequence[Estimate]) -> int:
    """Return how many decimals show the first digit of a column's median half interval."""
    halves = [(e.high - e.low) / 2 for e in values if math.isfinite(e.high - e.low)]
    half = float(np.median(halves)) if halves else 0.0
    if half <= 0:
        return _ALONE
    return min(_MOST, max(_FEWEST, math.ceil(-math.log10(half) - 1e-9)))


def _text(entry: Entry | None, digits: int) -> str | Cell:
    if entry is None:
        return "–"
    if entry.untouched:
        return NO_ATTACK
    half = (entry.value.high - entry.value.low) / 2
    spread = f"{half:.{digits}f}" if math.isfinite(half) else ""
    return Cell(
        style.number(entry.value.mean, digits), spread, BELOW * entry.below + FAILED * entry.failed
    )


def table_of(
    runs: Sequence[str | Path],
    metric: str | None = None,
    utility: str | None = None,
    *,
    chosen: Selection | None = None,
    labels: Mapping[str, str] | None = None,
) -> PaperTable:
    """Make the table of one run or more.

    Parameters
    ----------
    runs : sequence of path
        Run folders. A cell that several hold is taken once.
    metric, utility : str, optional
        As in `frontiers`.
    chosen : Selection, optional
        Datasets, threats and protocols to show.
    labels : mapping of str to str, optional
        What datasets, partitions, protocols, defenses, threats and metrics are called.

    Raises
    ------
    UsageError
        Runs that contradict one another or hold no attack, or a name of something to show or to
        label that is nothing in them.
    StoreError
        As `load_rows`.
    """
    rows = together([(str(run), load_rows(run)) for run in runs])
    study = Study(Path(runs[0]), (chosen or Selection()).of(rows), metric, utility)
    if not study.panels:
        raise UsageError("there is no attack in what is shown of these runs, so no table")
    made = PaperTable(entries_of(study.frontiers), Names(labels))
    _ = made.grid
    made.names.check()
    return made


def together(runs: Sequence[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Return the rows of several runs; of a cell that several hold, those of the first.

    Raises `UsageError` if two runs scored the same model differently: they are not of one version,
    or of different tables under one name.
    """
    kept: list[pd.DataFrame] = []
    first: dict[tuple[object, ...], int] = {}  # which run a cell is taken from
    scores: dict[tuple[object, ...], float] = {}
    for at, (name, rows) in enumerate(runs):
        keys = list(rows[list(_CELL)].fillna(-1).itertuples(index=False, name=None))
        mine = [first.setdefault(key, at) == at for key in keys]
        columns = (rows[c].tolist() for c in ("stage", "metric", "part", "value", "unit"))
        for key, stage, metric, part, value, unit in zip(keys, *columns, strict=True):
            if stage != "train" or unit == CPU.unit:
                continue  # an attack may end by the clock
            before = scores.setdefault((*key, metric, part), value)
            if abs(before - value) > _SAME:
                where = " ".join(filter(None, key[1:7]))
                raise UsageError(
                    f"{runs[first[key]][0]} and {name} both hold {where}, seed {key[-1]:g}: "
                    f"{metric} is {before:g} there and {value:g} here; give runs of one version "
                    "and one table, or leave one out"
                )
        kept.append(rows[mine])
    # The categories of `setting` differ between runs.
    return label(pd.concat(kept, ignore_index=True)) if len(kept) > 1 else kept[0]


def write_table(table: PaperTable, out: str | Path) -> Path:
    """Write a table as the suffix says: .tex, .csv or .md.

    Raises `UsageError`: an unknown suffix. Raises `StoreError`: the file cannot be written.
    """
    from fedtrees.core.files import write_text

    path = Path(out)
    suffix = path.suffix[1:].lower()
    if suffix not in SUFFIXES:
        hint = did_you_mean(suffix, SUFFIXES) if suffix else ""
        raise UsageError(f"cannot write {path.name!r}: end the name in .tex, .csv or .md{hint}")
    return write_text(path, getattr(table, suffix)())
