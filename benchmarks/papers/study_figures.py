"""Draw the figures of the studies from the tables of their pages, and one from a table of results.

``python -m fedtrees.benchmarks.papers study_figures`` writes ``docs/images/study_NAME.svg`` for
every page that has such a figure. A figure has no numbers of its own: each value is read from the
page, or from ``evidence.csv``, so that page and figure always agree. Run the command again after a
table has changed.
"""

from __future__ import annotations

import csv
import math
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtrees.benchmarks.charts import (
    BarChart,
    BarPanel,
    LineChart,
    LinePanel,
    Series,
    save,
)
from fedtrees.benchmarks.papers.study import Study
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.report.figures.model import COLOURS

Chart = BarChart | LineChart
_NUMBER = re.compile(r"-?[\d,]*\.?\d+")


@dataclass(frozen=True)
class PageTable:
    """A table of a page.

    Attributes
    ----------
    head : tuple of str
        Names of the columns.
    rows : tuple of tuple of str
        The cells, without code marks and bold marks.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str, at: int = 0) -> int:
        """Return the index of a column. `at` selects one of several columns of the same name."""
        indices = [i for i, head in enumerate(self.head) if head == name]
        if len(indices) <= at:
            raise UsageError(f"a table has no column {name!r}{did_you_mean(name, self.head)}")
        return indices[at]

    def texts(self, name: str, at: int = 0) -> list[str]:
        """Return the cells of a column."""
        return [row[self.column(name, at)] for row in self.rows]

    def numbers(self, name: str, at: int = 0) -> list[float]:
        """Return the numbers of a column, NaN for a cell without one."""
        return [number(text) for text in self.texts(name, at)]

    def where(self, **cells: str) -> PageTable:
        """Return the rows with the given cells. The names of columns are written in lower case."""
        at = {head.lower().replace(" ", "_"): i for i, head in enumerate(self.head)}
        matching = [row for row in self.rows if all(row[at[k]] == v for k, v in cells.items())]
        if not matching:
            raise UsageError(f"a table has no row with {cells}")
        return PageTable(self.head, tuple(matching))


def number(text: str) -> float:
    """Return the number at the beginning of a cell, NaN if there is none."""
    if text == "inf":
        return math.inf
    matched = _NUMBER.match(text)
    return float(matched.group().replace(",", "")) if matched else math.nan


@dataclass(frozen=True)
class StudyPage:
    """The text of a page, and its tables in their order."""

    text: str
    tables: tuple[PageTable, ...]

    def stated(self, pattern: str) -> tuple[float, ...]:
        """Return the numbers that a sentence of the page states, one per group of a pattern."""
        matched = re.search(pattern, self.text, re.S)
        if matched is None:
            raise UsageError(f"a page has no sentence {pattern!r}")
        return tuple(map(number, matched.groups()))


def read_page(path: Path) -> StudyPage:
    """Read a page and its tables."""
    text = path.read_text(encoding="utf-8")
    tables, lines = [], list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = line.strip().strip("|").split("|")
            lines.append([re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", c).strip() for c in cells])
        elif lines:
            tables.append(PageTable(tuple(lines[0]), tuple(map(tuple, lines[2:]))))
            lines = []
    return StudyPage(text, tuple(tables))


def table_with(page: StudyPage, *columns: str, at: int = 0) -> PageTable:
    """Return a table that has the named columns. `at` selects one of several such tables."""
    fitting = [t for t in page.tables if {*columns} <= {*t.head}]
    if len(fitting) <= at:
        raise UsageError(f"a page has no table with the columns {', '.join(columns)}")
    return fitting[at]


Blind = Callable[[StudyPage, PageTable], Sequence[float]]


@dataclass(frozen=True)
class Bars:
    """One panel of a bar chart: the values of a column of a table.

    Attributes
    ----------
    title, column, limits, colour, log
        As in `BarPanel`. An empty cell of the column has no bar.
    blind : callable or None
        Function of the page and the table that returns the score of the blind baseline in each row.
    table : int
        Which one of several tables with the same columns.
    """

    title: str
    column: str
    limits: tuple[float, float]
    blind: Blind | None = None
    colour: str = COLOURS[1]
    log: bool = False
    table: int = 0


@dataclass(frozen=True)
class BarFigure:
    """The bar chart of a page.

    Attributes
    ----------
    labels : str
        Label of a bar, with names of columns in braces. For example, ``"{Table}, {Adversary}"``.
    panels : tuple of Bars
        The panels.
    note, label_width
        As in `BarChart`.
    none : str
        Text for the cell ``none`` in labels.
    """

    labels: str
    panels: tuple[Bars, ...]
    note: str = ""
    label_width: int = 26
    none: str = "no defense"

    def draw(self, page: StudyPage) -> Chart:
        """Return the chart with the values of the page."""
        columns = [*re.findall(r"{(.*?)}", self.labels), *(bars.column for bars in self.panels)]
        tables = [table_with(page, *columns, at=bars.table) for bars in self.panels]
        labels = [
            self.labels.format_map(
                {head: self.none if cell == "none" else cell
                 for head, cell in zip(tables[0].head, row, strict=True)}
            )
            for row in tables[0].rows
        ]  # fmt: skip
        panels = [
            BarPanel(
                bars.title, table.numbers(bars.column), bars.limits,
                [text or "–" for text in table.texts(bars.column)],
                bars.blind(page, table) if bars.blind else (), colour=bars.colour, log=bars.log,
            )
            for bars, table in zip(self.panels, tables, strict=True)
        ]  # fmt: skip
        return BarChart(labels, panels, self.note, self.label_width)


def _blind_column(at: int) -> Blind:
    """Return a function that reads a column ``Blind``."""
    return lambda page, table: table.numbers("Blind", at)


def _blind_sentence(pattern: str, *tables: str) -> Blind:
    """Return a function that reads the baseline of each table from a sentence of the page."""

    def read(page: StudyPage, table: PageTable) -> list[float]:
        baselines = page.stated(pattern)
        if not tables:
            return [*baselines] * len(table.rows)
        by_table = dict(zip(tables, baselines, strict=True))
        return [by_table[name] for name in table.texts("Table")]

    return read


def _lines(table: PageTable, x: str, name: str, y: str) -> tuple[list[str], list[Series]]:
    """Return the values of a column, and a line over them for each value of another column."""
    values = [*dict.fromkeys(table.texts(x))]
    lines: dict[str, list[tuple[float, float]]] = {}
    for value, line, score in zip(table.texts(x), table.texts(name), table.numbers(y), strict=True):
        lines.setdefault(line, []).append((float(values.index(value)), score))
    return values, [Series(line, points) for line, points in lines.items()]


def _ablation(page: StudyPage) -> Chart:
    table = table_with(page, "Attack", "sole")
    counts = {
        name: (leaderboard + comparison, recipes)
        for name, leaderboard, comparison, recipes in zip(
            table.texts("Attack"), table.numbers("sole"), table.numbers("sole", 1),
            table.numbers("Recipes"), strict=True,
        )
        if leaderboard + comparison + recipes
    }  # fmt: skip
    ranked = sorted(counts, key=lambda name: (-counts[name][0], -counts[name][1]))
    limits = tuple(1.02 * max(pair[k] for pair in counts.values()) for k in (0, 1))
    panels = [
        BarPanel(title, [counts[n][k] for n in ranked], (0, limits[k]),
                 [f"{counts[n][k]:.0f}" for n in ranked], colour=COLOURS[k])
        for k, title in enumerate(("cells with the highest score of all attacks",
                                   "cells of the recipes that name the attack"))
    ]  # fmt: skip
    return BarChart(ranked, panels)


def _audited_epsilons(page: StudyPage) -> Chart:
    table = table_with(page, "Mechanism", "Spent")
    columns = ("Noise 1", "Noise 1/2", "Noise 1/4", "Noise 1/16")
    noise = {float(at): table.numbers(name) for at, name in enumerate(columns)}
    names = table.texts("Mechanism")
    first = names.index("dp-forest[epsilon=1]"), names.index("dp-gbdt[epsilon=1]")
    rest = [k for k in range(len(names)) if k not in first and table.texts("Spent")[k] == "1"]
    series = [
        Series("other mechanisms", [(s, noise[s][k]) for s in noise], faint=True) for k in rest
    ]
    series += [Series(names[k], [(s, noise[s][k]) for s in noise]) for k in first]
    series.append(Series("claimed epsilon", [(s, 1.0) for s in noise], baseline=True))
    return LineChart(
        [LinePanel("", series)], "share of the stated noise that is drawn",
        "epsilon that the audit shows", [*noise], ["all", "a half", "a quarter", "a sixteenth"],
    )  # fmt: skip


def _counts(page: StudyPage) -> Chart:
    panels = []
    for at, title in enumerate(("breast cancer", "Pima")):
        table = table_with(page, "Defense", "Certain, 1 client", at=at)
        steps = [re.fullmatch(r"hist-rounding\[step=([\d.]+)\]", t) for t in table.texts("Defense")]
        series = []
        for clients in ("1 client", "2 clients", "3 clients"):
            certain = table.numbers(f"Certain, {clients}")
            points = [
                (float(m[1]), 100 * v) for m, v in zip(steps, certain, strict=True) if m is not None
            ]
            series.append(Series(f"sum of {clients}", points))
        panels.append(LinePanel(title, series))
    return LineChart(
        panels, "step of the rounding", "leaves with certain counts (%)", [0.1, 0.3, 0.5, 1.0],
        limits=(-3, 103),
    )  # fmt: skip


def _exact_solvers(page: StudyPage) -> Chart:
    epsilons, series = _lines(
        table_with(page, "Epsilon", "Solver", "RA"), "Epsilon", "Solver", "RA"
    )
    names = ("blind guess", "rows of the population only")
    for name, value in zip(names, table_with(page, "Baseline", "RA").numbers("RA"), strict=True):
        series.append(Series(name, [(0.0, value), (len(epsilons) - 1.0, value)], baseline=True))
    return LineChart(
        [LinePanel("", series)], "epsilon of the forest", "reconstruction accuracy (%)",
        range(len(epsilons)), ["no noise" if e == "inf" else e for e in epsilons], height=3.4,
    )  # fmt: skip


def _private_forests(page: StudyPage) -> Chart:
    table = table_with(page, "Epsilon", "Protocol", "AUC")
    epsilons, series = _lines(table, "Epsilon", "Protocol", "AUC")
    ticks = range(len(epsilons))
    return LineChart([LinePanel("", series)], "epsilon", "AUC on Adult", ticks, epsilons)


def _private_regressions(page: StudyPage) -> Chart:
    noises, series = _lines(table_with(page, "Table", "Noise", "AUC"), "Noise", "Table", "AUC")
    return LineChart(
        [LinePanel("", series)], "", "AUC of the model", range(len(noises)),
        [noise.lower() for noise in noises], limits=(0.5, 1.02),
    )  # fmt: skip


#: Wording of the reasons in ``evidence.csv``, in the order of the bars.
_REASONS = {
    "": "read by an attack", "public": "public", "redundant": "follows from other fields",
    "number": "only distinguishes messages", "own": "computed by the adversary", "empty": "empty",
    "sealed": "encrypted", "open": "no attack uses it yet",
}  # fmt: skip


def _evidence(folder: Path) -> Chart:
    with (folder / "evidence.csv").open(encoding="utf-8", newline="") as file:
        lines = Counter(
            "" if line["read_by"] else re.split(r"[:\s]", line["reason"])[0]
            for line in csv.DictReader(file)
        )
    if unknown := lines.keys() - _REASONS.keys():
        raise UsageError(f"evidence.csv has the unknown reasons {', '.join(sorted(unknown))}")
    values = [lines[reason] for reason in _REASONS]
    panel = BarPanel(
        "lines of the table, one per protocol, adversary and message field", values,
        (0, 1.02 * max(values)), [f"{v:,}" for v in values], colour=COLOURS[0],
    )  # fmt: skip
    return BarChart([*_REASONS.values()], [panel])


_BLIND_MARK = "Black mark: a guess without any message."
_AUC = Bars("AUC of the model", "AUC", (0.5, 1), colour=COLOURS[0])
#: Page without suffix -> function of the page.
FIGURES: dict[str, Callable[[StudyPage], Chart]] = {
    "ablation": _ablation,
    "audited-epsilons": _audited_epsilons,
    "counts": _counts,
    "crypto-cost": BarFigure(
        "{Defense}",
        (Bars("CPU seconds of a training, all parties (logarithmic)", "CPU seconds", (0.01, 40),
              colour=COLOURS[0], log=True),),
    ).draw,
    "exact-solvers": _exact_solvers,
    "fedxgbllr": BarFigure(
        "{Defense}",
        (Bars("share of leaves that the attack gets right", "Share of correct leaves", (0, 1),
              _blind_sentence(r"\*\*Over a run\*\*[^\n]*blind baseline (\.\d+)")), _AUC),
        _BLIND_MARK,
    ).draw,
    "joint": BarFigure(
        "{Table}, depth {Depth}, {Visible}, {Attack}",
        (Bars("reconstruction accuracy (%)", "RA", (70, 100),
              _blind_sentence(r"baseline of RA is ([\d.]+) ± [\d.]+ on Pima and ([\d.]+) ",
                              "Pima", "Stroke")),),
        _BLIND_MARK, label_width=40,
    ).draw,
    "model-files": BarFigure(
        "{Information in addition to the file}",
        tuple(Bars(f"depth {depth}", f"Depth {depth}", (0, 60)) for depth in (1, 2, 3)),
        "Files, of 60, in which the counts of the first tree are determined. –: not measured.",
        none="only the file",
    ).draw,
    "numeric-targets": BarFigure(
        "{Table}, {Adversary}, {Defense}",
        (Bars("reconstruction accuracy (%)", "RA", (0, 100), _blind_column(0)),
         Bars("exact rows (%)", "Exact rows", (0, 100), _blind_column(1))),
        _BLIND_MARK,
    ).draw,
    "peeling": BarFigure(
        "{Table}, {Adversary}, {Defense}",
        (Bars("rows that the attack returns exactly (%)", "Rows right", (0, 100)),),
    ).draw,
    "private-forests": _private_forests,
    "private-regressions": _private_regressions,
    "queries": BarFigure(
        "{Answers}",
        (Bars("thresholds found (%)", "Found", (0, 100)),
         Bars("records queried", "Records queried", (0, 2000), colour=COLOURS[0])),
        label_width=34,
    ).draw,
    "shared-trees": BarFigure(
        "{Table}, {Protocol}, {Defense}",
        (Bars("leaves with exact class counts (%)", "Leaf counts", (0, 100),
              _blind_sentence(r"baseline of counts is (\d+) on Pima and (\d+) on breast cancer",
                              "Pima", "breast cancer")), _AUC),
        _BLIND_MARK, label_width=34,
    ).draw,
    "sketches": BarFigure(
        "{Cut points}",
        tuple(Bars(data, "Exact rows", (0, 100), table=at)
              for at, data in enumerate(("breast cancer", "Pima", "Stroke"))),
        "Rows (%) that a client reconstructs exactly, by the kind of cut points.",
    ).draw,
}  # fmt: skip


def chart_of(page: str, studies: Path) -> Chart:
    """Return the chart of a study.

    Parameters
    ----------
    page : str
        Name of the page without suffix: a key of `FIGURES`, or ``evidence``.
    studies : Path
        Folder of the pages.

    Raises
    ------
    UsageError
        If the page lacks the table or the column that the figure shows.
    """
    if page == "evidence":
        return _evidence(studies)
    return FIGURES[page](read_page(studies / f"{page}.md"))


def _draw(options: Namespace) -> Iterator[str]:
    """Draw all figures, or that of one page."""
    studies, images = Path(options.docs) / "studies", Path(options.docs) / "images"
    names = sorted([*FIGURES, "evidence"])
    if options.only and options.only not in names:
        raise UsageError(f"no figure for {options.only!r}{did_you_mean(options.only, names)}")
    for name in [options.only] if options.only else names:
        file = images / f"study_{name.replace('-', '_')}.svg"
        yield f"Figure: {save(chart_of(name, studies), file).as_posix()}"


STUDIES = {
    "study_figures": Study(
        "Draw the figures of the studies from the tables of their pages",
        _draw,
        {
            "--docs": {"default": "docs", "help": "folder of the documentation"},
            "--only": {"metavar": "PAGE", "help": "only the figure of this page"},
        },
    )
}
