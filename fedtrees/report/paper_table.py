"""Build a table for a paper: utility and leaks of defenses, over datasets, threats and runs.

`MarkupTable` is a grid of texts, which `latex` and `markdown` write.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd

from fedtrees.core.errors import UsageError
from fedtrees.core.results import FORMULA, measure
from fedtrees.report import wording
from fedtrees.report.findings import VERDICT, RunAnalysis
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.results import UNDEFENDED, Selection, load_rows, merge_runs, ordered
from fedtrees.report.statistics import Estimate
from fedtrees.report.wording import Names

_WIDEST = 31  # characters of a label in LaTeX; a longer label takes several lines
_TITLE = 46  # characters of a block's name that fit in one line of a column

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "_": r"\_", "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    # LaTeX would read a bracket after the end of a line as the argument of that line end.
    "[": "{[}", "]": "{]}",
    "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "–": "--", "²": "$^2$",
    "ε": r"$\varepsilon$", "ξ": r"$\xi$", "·": r"$\cdot$", "\n": " ", "\t": " ", "\r": " ",
    "†": r"$^\dagger$", "‡": r"$^\ddagger$", "§": r"\S{}",
}  # fmt: skip
_MARKS = {"†": r"\dagger", "‡": r"\ddagger", "§": r"\S"}


def escape_latex(text: str) -> str:
    """Return LaTeX code that prints exactly this text."""
    return "".join(_LATEX.get(character, character) for character in text)


@dataclass(frozen=True)
class TableCell:
    """A number, half the length of its interval and a mark, as texts. Each may be empty."""

    mean: str
    half: str = ""
    mark: str = ""

    def __str__(self) -> str:
        """Write the cell in one line, for example ``0.81 ± 0.02†``."""
        return self.mean + (f" ± {self.half}" if self.half else "") + self.mark


#: The cells of one line.
Line = Sequence[str | TableCell]


@dataclass(frozen=True)
class MarkupTable:
    """Cells with a header.

    Attributes
    ----------
    head : sequence of str
        Names of the columns.
    labels : int
        Number of leading columns that name a line.
    blocks : sequence of (str, sequence of lines)
        Lines by the name of their block.
    """

    head: Sequence[str]
    labels: int
    blocks: Sequence[tuple[str, Sequence[Line]]]


def latex(table: MarkupTable, notes: Sequence[str] = ()) -> str:
    """Return a ``tabular`` that fits in one column of a paper.

    Blocks are placed below one another, so that its width does not grow with their number. The
    notes follow below the table.
    """

    def titles(name: str) -> list[str]:
        if len(table.blocks) == 1:
            return []
        return name.split(" · ") if len(name) > _TITLE else [name]

    def rows(line: Line) -> Iterator[list[str]]:
        labels = [_broken(str(cell)) for cell in line[: table.labels]]
        for at in range(max(map(len, labels))):
            parts = [part[at] if at < len(part) else "" for part in labels]
            parts = [(r"\enspace " if at and part else "") + escape_latex(part) for part in parts]
            yield [*parts, *("" if at else _number(c) for c in line[table.labels :])]

    template = _environment().get_template("table.tex.j2")
    return template.render(table=table, wide=len(table.head), notes=notes, titles=titles, rows=rows)


@cache
def _environment() -> jinja2.Environment:
    """Return a template engine whose marks do not occur in LaTeX."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("fedtrees.report", "page_files"),
        autoescape=False,  # every text is escaped for LaTeX by the filter `tex`
        block_start_string="<%", block_end_string="%>",
        variable_start_string="<<", variable_end_string=">>",
        comment_start_string="<#", comment_end_string="#>",
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    env.filters["tex"] = escape_latex
    return env


def _number(cell: str | TableCell) -> str:
    """Return a number with half the length of its interval as a subscript.

    For example, ``0.81 ± 0.02†`` becomes 0.81 with a subscript ±.02 and a superscript †.
    """
    if isinstance(cell, str) or not cell.half:
        return escape_latex(str(cell))
    marks = "".join(_MARKS[mark] for mark in cell.mark)
    mark = f"$^{{{marks}}}$" if marks else ""
    return rf"{escape_latex(cell.mean)}$_{{\pm{cell.half.lstrip('0')}}}${mark}"


def _broken(label: str) -> list[str]:
    """Break a label that is too wide into lines, after its plus signs."""
    lines = [""]
    for part in label.replace("+", "+\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > _WIDEST:
            lines.append("")
        lines[-1] += part
    return lines


def markdown(table: MarkupTable, notes: Sequence[str] = ()) -> str:
    """Return a Markdown table. If there are several blocks, its first column names the block."""
    several = len(table.blocks) > 1
    head = ["dataset", *table.head] if several else list(table.head)
    rule = ["---"] * (table.labels + several) + ["---:"] * (len(table.head) - table.labels)
    lines = [[name, *line] if several else line for name, lines in table.blocks for line in lines]
    every = [head, rule, *lines]
    text = ["| " + " | ".join(_in_one_line(str(c)) for c in line) + " |" for line in every]
    return "\n".join([*text, "", *(" ".join(note.splitlines()) for note in notes)]) + "\n"


def _in_one_line(cell: str) -> str:
    """Return a text that can be a cell of a Markdown table: a line break would end the table."""
    return " ".join(cell.splitlines()).replace("|", r"\|")


SUFFIXES = ("tex", "csv", "md")
BELOW = "†"  # an applicable attack is missing, so that the leak is at least this large
FAILED = "‡"  # the strongest attack scored worse than its baseline, which shows nothing
NO_CLAIM = "§"  # an attack returned no claim, so that a small score is not settled
NO_ATTACK = "n/a"
MEAN_RANK, POPULATION = "mean rank", "population"
_FEWEST, _MOST, _ALONE = 2, 4, 3  # decimals: fewest, most, and without intervals


@dataclass(frozen=True, order=True)
class Shown:
    """Content of a column: a utility, or the score of the strongest attack under a threat.

    Attributes
    ----------
    threat : str
        The threat, "" for a utility.
    metric : str
        Key of the metric.
    """

    threat: str
    metric: str


@dataclass(frozen=True)
class Entry:
    """One number of the table: the utility or the leak of a point of a frontier.

    Attributes
    ----------
    frontier : Frontier
        The frontier of the point.
    point : Point
        The defense under one threat.
    is_leak : bool
        Whether the number is the score of the strongest attack, and not the utility.
    """

    frontier: Frontier
    point: Point
    is_leak: bool

    @property
    def row(self) -> tuple[str, str, str]:
        """Partition, protocol and defense."""
        setting = self.frontier.panel.setting
        return setting.partition, setting.protocol, self.point.defense

    @property
    def dataset(self) -> str:
        """The data set."""
        return self.frontier.panel.setting.dataset

    @property
    def shown(self) -> Shown:
        """The column."""
        data = self.frontier
        return Shown(data.panel.threat, data.metric) if self.is_leak else Shown("", data.utility)

    @property
    def value(self) -> Estimate:
        """The number with its interval."""
        return self.point.score if self.is_leak else self.point.utility

    @property
    def blind(self) -> Estimate:
        """The blind baseline of a leak."""
        return self.point.blind if self.is_leak else Estimate()

    @property
    def population(self) -> Estimate:
        """The population baseline of a leak."""
        return self.point.population if self.is_leak else Estimate()

    @property
    def untouched(self) -> bool:
        """Whether no attack applies."""
        return self.is_leak and not self.point.advantage.known and self.point.untouched

    @property
    def below(self) -> bool:
        """Whether an applicable attack is missing."""
        return self.is_leak and self.point.incomplete

    @property
    def failed(self) -> bool:
        """Whether the strongest attack scored worse than its baseline by more than the margin."""
        return self.is_leak and self.point.attack_failed

    @property
    def no_claim(self) -> bool:
        """Whether an attack returned no claim, and no other attack shows that the result leaks."""
        leakage = self.point.leakage
        return self.is_leak and bool(leakage.no_claim) and leakage.state != "leaking"

    @property
    def attack(self) -> str:
        """The strongest attacks."""
        return ", ".join(name for name, _ in self.point.attacks) if self.is_leak else ""

    @property
    def loss(self) -> float:
        """Value for ranks, smaller is better.

        NaN excludes the row from ranks: the number is not known, an attack failed, or the strongest
        attack scored worse than its baseline.
        """
        if not self.is_leak:
            return -measure(self.frontier.utility).sign * self.point.utility.mean
        if self.untouched:
            return 0.0
        if self.point.coverage.failed or self.failed:
            return math.nan
        # A score slightly below the baseline, within the margin, is noise: an advantage of 0.
        return max(0.0, self.point.advantage.mean) if self.point.advantage.known else math.nan


def entries_of(frontiers: Sequence[Frontier]) -> list[Entry]:
    """Return every number of some frontiers once.

    The utility of a setting occurs in the frontier of each of its threats.
    """
    entries: dict[tuple[object, ...], Entry] = {}
    for data in frontiers:
        for point in data.points:
            for entry in (Entry(data, point, False), Entry(data, point, True)):
                entries.setdefault((entry.row, entry.dataset, entry.shown), entry)
    return list(entries.values())


@dataclass(frozen=True)
class PaperTable:
    """The numbers of a table, and the functions that format them.

    Attributes
    ----------
    entries : sequence of Entry
        The numbers.
    names : Names
        Labels of names.
    """

    entries: Sequence[Entry] = field(repr=False)
    names: Names = field(default_factory=Names, repr=False)

    @cached_property
    def datasets(self) -> list[str]:
        """The datasets, sorted."""
        return sorted({e.dataset for e in self.entries})

    @cached_property
    def rows(self) -> list[tuple[str, str, str]]:
        """Partition, protocol and defense of every row, undefended rows first."""
        place = {d: i for i, d in enumerate(ordered({e.row[2] for e in self.entries}))}
        return sorted({e.row for e in self.entries}, key=lambda row: (*row[:2], place[row[2]]))

    def measures(self, dataset: str) -> list[Shown]:
        """Return the columns of a dataset, the utility first."""
        return sorted({e.shown for e in self.entries if e.dataset == dataset})

    @cached_property
    def _at(self) -> dict[tuple[tuple[str, str, str], str, Shown], Entry]:
        """The entries by row, dataset and column."""
        return {(e.row, e.dataset, e.shown): e for e in self.entries}

    @cached_property
    def ranks(self) -> dict[Shown, dict[tuple[str, str, str], float]]:
        """Mean ranks over datasets by column and row, 1 is the best (Demšar 2006, Sec. 3.2.2).

        Ties share the mean of their ranks. There are ranks for columns that every dataset has. Only
        rows with a loss on all datasets are ranked. Leaks are ranked by advantage, and an advantage
        below zero counts as zero.
        """
        from scipy.stats import rankdata

        # A mean rank over datasets needs a rank on each of them.
        shared = set.intersection(*(set(self.measures(d)) for d in self.datasets))
        mean_ranks = {}
        for shown in sorted(shared) if len(self.datasets) > 1 else ():
            losses = {
                row: [self._loss(row, dataset, shown) for dataset in self.datasets]
                for row in self.rows
            }
            complete = {row: values for row, values in losses.items() if np.isfinite(values).all()}
            if len(complete) > 1:
                table = np.round(list(complete.values()), 9)  # rounding errors must not break ties
                means = rankdata(table, axis=0).mean(axis=1)
                mean_ranks[shown] = dict(zip(complete, map(float, means), strict=True))
        return mean_ranks

    def _loss(self, row: tuple[str, str, str], dataset: str, shown: Shown) -> float:
        """Return the loss of a cell, NaN if the cell does not exist."""
        entry = self._at.get((row, dataset, shown))
        return math.nan if entry is None else entry.loss

    def frame(self) -> pd.DataFrame:
        """Return the numbers, one per line, with both ends of the intervals and mean ranks."""
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
                    "no_claim": e.no_claim,
                    "mean_rank": self.ranks.get(e.shown, {}).get(e.row, math.nan),
                }
            )  # fmt: skip
        return pd.DataFrame(lines)

    @cached_property
    def grid(self) -> MarkupTable:
        """The table as text: a block of lines per dataset and protocol, then the mean ranks."""
        # Only those of partition, protocol and defense are shown in which rows differ. The last one
        # labels the lines, and the other ones are in the titles of the blocks.
        parts = [k for k in range(3) if len({row[k] for row in self.rows}) > 1] or [2]
        *above, label = parts
        measures = sorted({e.shown for e in self.entries})
        groups: dict[tuple[str, ...], list[int]] = {}
        for at, row in enumerate(self.rows):
            groups.setdefault(tuple(row[k] for k in above), []).append(at)
        row_labels = [self.names(_defense_name(row[label])) for row in self.rows]
        blocks: list[tuple[str, list[Line]]] = []
        for dataset in self.datasets:
            columns = [self._column(dataset, shown) for shown in measures]
            for group, places in groups.items():
                measured = [any((row, dataset, m) in self._at for m in measures)
                            for row in self.rows]  # fmt: skip
                present = [at for at in places if measured[at]]
                if present:
                    lines: list[Line] = [*self._lines(present, [lines for _, lines in columns])]
                    lines += [
                        [row_labels[at], *(texts[at] for texts, _ in columns)] for at in present
                    ]
                    blocks.append((self._title(dataset, group), lines))
        if self.ranks:
            ranks = [self.ranks.get(shown, {}) for shown in measures]
            for group, places in groups.items():
                lines = []
                for at in places:
                    row = self.rows[at]
                    texts = [f"{r[row]:.1f}" if row in r else "–" for r in ranks]
                    lines.append([row_labels[at], *texts])
                blocks.append((self._title(MEAN_RANK, group), lines))
        head = ("partition", "protocol", "defense")[label]
        return MarkupTable([head, *map(self._named, measures)], 1, blocks)

    def _title(self, of: str, group: Sequence[str]) -> str:
        """Return the title of a block."""
        return " · ".join(map(self.names, (of, *group)))

    def _named(self, shown: Shown) -> str:
        """Return the header of a column."""
        label = self.names(shown.metric)
        metric_label = measure(label).short if label == shown.metric else label
        return f"{metric_label}, {self.names(shown.threat)}" if shown.threat else metric_label

    @staticmethod
    def _lines(
        block_rows: Sequence[int], columns: Sequence[Mapping[str, list[str]]]
    ) -> Iterator[list[str]]:
        """Yield the lines of the two baselines, the population baseline only if it exists.

        `block_rows` are the indices of the rows in the block.
        """
        for name in ("blind", POPULATION):
            spans = [
                _span([column[name][at] for at in block_rows if column[name][at]])
                for column in columns
            ]
            if name == "blind" or any(spans):
                yield [name, *spans]

    def _column(
        self, dataset: str, shown: Shown
    ) -> tuple[list[str | TableCell], dict[str, list[str]]]:
        """Return the cells of a column and its baselines, with the same number of decimals."""
        entries = [self._at.get((row, dataset, shown)) for row in self.rows]
        present = [e for e in entries if e is not None]
        digits = decimals([e.value for e in present])

        def line(of: Sequence[Estimate | None]) -> list[str]:
            return [wording.number(x.mean, digits) if x and x.known else "" for x in of]

        baselines = {
            "blind": line([e.blind if e else None for e in entries]),
            POPULATION: line([e.population if e else None for e in entries]),
        }
        return [_text(e, digits) for e in entries], baselines

    @property
    def notes(self) -> list[str]:
        """Sentences that the caption of the table must contain."""
        seeds = sorted({e.value.n for e in self.entries if e.value.known}) or [0]
        spread = " ± half of the 95% t interval" if seeds[-1] > 1 else ""
        counts = "–".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        several = "s" if seeds[-1] != 1 else ""
        notes = [
            f"Mean of {counts} seed{several}{spread}. The score of a leak is that of the strongest "
            "attack, by advantage. The row blind is the score of an adversary without any message."
        ]
        if any(e.population.known for e in self.entries):
            notes.append(
                f"The row {POPULATION} is the score of an adversary without any message that knows "
                "other rows of the population."
            )
        if self.ranks:
            notes.append(
                "Mean rank over datasets, 1 is best; leaks by advantage over the better baseline."
            )
        if any(e.below for e in self.entries):
            notes.append(f"{BELOW} an attack that applies is missing: the leak is at least this.")
        if failed := [e.point.leakage for e in self.entries if e.failed]:
            notes.append(f"{FAILED} the strongest attack scored worse than "
                         f"{wording.better_guess(failed)}: nothing is shown about the leak, "
                         "and there is no rank.")  # fmt: skip
        if any(e.no_claim for e in self.entries):
            notes.append(
                f"{NO_CLAIM} an attack returned no claim: "
                "the leak is not settled and may be larger."
            )
        if any(e.untouched for e in self.entries):
            notes.append(f"{NO_ATTACK}: no attack applies.")
        return notes

    def tex(self) -> str:
        """Return a LaTeX ``tabular`` with booktabs rules."""
        return latex(self.grid, self.notes)

    def md(self) -> str:
        """Return a Markdown table with its notes."""
        return markdown(self.grid, self.notes)

    def csv(self) -> str:
        """Return the numbers, one per line. No text in it is a formula for a spreadsheet."""
        return str(self.frame().map(_no_formula).to_csv(index=False, lineterminator="\n"))


def _no_formula(value: object) -> object:
    """Put an apostrophe before a text that a spreadsheet would evaluate."""
    return f"'{value}" if isinstance(value, str) and value[:1] in FORMULA else value


def _span(texts: Sequence[str]) -> str:
    """Return one number, or the smallest and the largest of several."""
    distinct = sorted(set(texts), key=float)
    return "–".join(distinct[:1] + distinct[1:][-1:])


def _defense_name(name: str) -> str:
    """Return the name of a defense as it appears in the table."""
    return "undefended" if name == UNDEFENDED else name


def decimals(values: Sequence[Estimate]) -> int:
    """Return the number of decimals that show the first digit of the median half interval."""
    halves = [e.half for e in values if math.isfinite(e.half)]
    # The median, because one wide interval should not remove digits from the complete column.
    half = float(np.median(halves)) if halves else 0.0
    if half <= 0:
        return _ALONE
    return min(_MOST, max(_FEWEST, math.ceil(-math.log10(half) - 1e-9)))


def _text(entry: Entry | None, digits: int) -> str | TableCell:
    """Format an entry."""
    if entry is None:
        return "–"
    if entry.untouched:
        return NO_ATTACK
    half = entry.value.half
    spread = f"{half:.{digits}f}" if math.isfinite(half) else ""
    return TableCell(
        wording.number(entry.value.mean, digits),
        spread,
        BELOW * entry.below + FAILED * entry.failed + NO_CLAIM * entry.no_claim,
    )


def table_of(
    runs: Sequence[str | Path],
    metric: str | None = None,
    utility: str | None = None,
    *,
    chosen: Selection | None = None,
    labels: Mapping[str, str] | None = None,
) -> PaperTable:
    """Build the table of one or several runs.

    Parameters
    ----------
    runs : sequence of path
        Run folders. A cell that several runs contain is taken from the first one.
    metric, utility : str, optional
        Metrics to show. By default, that of the gravest leak of each adversary, which the verdict
        reports, and the first utility metric (see `frontiers`).
    chosen : Selection, optional
        Datasets, threats, protocols and defenses to show.
    labels : mapping of str to str, optional
        Labels of datasets, partitions, protocols, defenses, threats and metrics by name.

    Raises
    ------
    UsageError
        If runs contradict one another or contain no attack, or if a name to show or to label does
        not occur in them.
    StoreError
        If the rows cannot be read, see `load_rows`.
    """
    rows = merge_runs([(str(run), load_rows(run)) for run in runs])
    analysis = RunAnalysis(
        Path(runs[0]), (chosen or Selection()).of(rows), metric or VERDICT, utility
    )
    if not analysis.panels:
        raise UsageError(
            "the selected part of these runs contains no attack, so that there is no table"
        )
    table = PaperTable(entries_of(analysis.frontiers), Names(labels))
    # Formatting the table once records all its names, with which `check` compares the labels.
    _ = table.grid
    table.names.check()
    return table


def write_table(table: PaperTable, out: str | Path) -> Path:
    """Write a table to a file. The suffix selects the format: .tex, .csv or .md.

    Raises `UsageError` for an unknown suffix, and `StoreError` if the file cannot be written.
    """
    from fedtrees.core.files import write_text

    path = Path(out)
    suffix = path.suffix[1:].lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot write {path.name!r}: end the name in .tex, .csv or .md")
    return write_text(path, getattr(table, suffix)())
