"""Write the page of all published tables and figures: `docs/studies/papers.md`.

``python -m fedtrees.benchmarks.papers.page RUN ...`` stores the comparisons of runs in
``docs/studies/papers``, and writes the page from all stored files. It also writes the tables and
the figure of ``docs/studies/published-tables.md``. A run is the folder of a study, for example
``runs/timberstrike_table8``, which may have been interrupted (Ctrl-C). Without an argument, the
command only writes the pages. `published/items.csv` lists all tables and figures, and
`published/reasons.csv` the reasons for values that differ or that were not computed.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from math import isnan
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

from fedtrees.benchmarks.papers.comparisons import (
    HEADER,
    PAPERS,
    Comparison,
    compare_suite,
    comparison_line,
    published_lines,
    read_comparisons,
    read_published,
    write_comparisons,
)
from fedtrees.benchmarks.papers.tables import markdown
from fedtrees.benchmarks.papers.timberstrike import draw
from fedtrees.report.figures import static
from fedtrees.report.results import load_rows

FOLDER, PAGE = "docs/studies/papers", "docs/studies/papers.md"
#: Papers whose values are those of a single training, without repetitions.
SINGLE_RUNS = ("timberstrike",)
#: Number of trainings from which their deviation explains that a single one differs.
LEAST_SEEDS = 3
#: The study that shows a part of the values of TimberStrike, and the marks around its tables.
STUDY, BEGIN, END = "docs/studies/published-tables.md", "<!-- generated: {} -->\n", "<!-- end -->"
#: Statuses, in the order of the summary.
STATUSES = ("reproduced", "better", "differs", "no data", "not run", "refused", "no values")
INTRODUCTION = """\
# Published tables and figures next to ours

This page lists every table and figure of the five source papers with the study that computes it, the published value, our value, the blind baseline and a status. It is generated from result files by `python -m fedtrees.benchmarks.papers.page`.

{}

The command of a study is `python -m fedtrees.benchmarks.papers STUDY --data-dir DATA`. `DATA` is the folder of the [data sets](../how-to/data.md). A study that was interrupted continues where it stopped.

| Status | Meaning |
|---|---|
| reproduced | Our value is within three percentage points of the published one, or within three standard errors of the difference. Results of formulas must be equal up to rounding. |
| better | The value of our strongest attack exceeds the published one. |
| differs | Neither of the two. The reason follows, if an experiment showed it. A published value of one training differs by *the draw of one training* if it is within two standard deviations of at least three trainings of ours. |
| no data | The data set is not available. |
| not run | No result is stored. The reason follows if there is no study yet. |
| refused | We do not implement it, for the stated reason. |
| no values | A drawing, a definition or a description. |

The published values of Figures 12 and 13 of DRAFT-DP are means of the result files of the authors, because the text prints none.

*Strongest* is the best of our further attacks on the same run, and *blind* the best guess without any message, scored in the same way. Errors, probabilities by chance and seconds are better if they are smaller. Values of which none was computed yet are not listed one by one.

Our seconds are CPU seconds of one thread until the attack ends. The published ones are wall-clock seconds on other machines (DRAFT-DP: until the first reconstruction, on 16 threads).

## Durations

All studies, including those that this page does not list, took these minutes of wall-clock time in one process, on two cores that were shared with other work. The column *Run* states which part of a study was run. CPU minutes were not recorded in all runs. `python -m fedtrees.benchmarks.papers --list` shows the durations of each study.

"""  # noqa: E501


class Item(NamedTuple):
    """A table or figure of a paper.

    Attributes
    ----------
    paper, item, title : str
        Paper, name and content.
    study : str
        Names of the studies that compute it, separated by spaces.
    values : str
        Table whose values a figure draws. Empty: its own.
    status : str
        Status of an item without values. Empty: it follows from the values.
    """

    paper: str
    item: str
    title: str
    study: str
    values: str
    status: str


@cache
def read_items() -> tuple[Item, ...]:
    """Return all tables and figures of the papers."""
    return tuple(Item(**line) for line in published_lines("items.csv"))


@cache
def _reasons() -> tuple[dict[str, str], ...]:
    return tuple(published_lines("reasons.csv"))


def _durations() -> str:
    """Return the durations of the studies as a Markdown table."""
    columns = ("run", "minutes", "cpu_minutes", "measured")
    lines = [
        [f"`{line['study']}`", *(line[c] or "-" for c in columns)]
        for line in published_lines("durations.csv")
    ]
    return markdown(("Study", "Run", "Minutes", "CPU minutes", "Measured"), lines) + "\n"


def status_of(c: Comparison) -> str:
    """Return the status of a value with its reason.

    A published value of a single training may be one more draw of the distribution that our seeds
    estimate. All other reasons are in `published/reasons.csv`.
    """
    several = c.paper in SINGLE_RUNS and c.seeds >= LEAST_SEEDS
    if (
        several
        and c.status.startswith("differs")
        and abs(c.measured - c.published) <= 2 * c.deviation
    ):
        spread = c.format(c.deviation)
        return f"{c.status}: the draw of one training; {c.seeds} trainings deviate by {spread}"
    for line in _reasons():
        patterns = (line[k] for k in ("paper", "item", "setting", "score"))
        texts = (c.paper, c.item, c.setting, c.score)
        if c.status.startswith(line["status"]) and all(map(fnmatchcase, texts, patterns)):
            # A reason for a missing value states its own status.
            return line["reason"] if c.status == "not run" else f"{c.status}: {line['reason']}"
    return c.status


def with_results(results: Iterable[Comparison]) -> dict[tuple[str, str], list[Comparison]]:
    """Return all published values by paper and item, with our results where there are any."""
    measured: dict[tuple[str, str, str, str], Comparison] = {}
    # If several runs have a value, that with most seeds counts.
    for c in sorted(results, key=lambda c: c.seeds):
        if c.seeds:
            key = (c.paper, c.item, c.setting, c.score)
            measured[key] = _complete(c, measured.get(key, c))
    cells: dict[tuple[str, str], list[Comparison]] = {}
    for paper in PAPERS:
        for c in read_published(paper):
            key = (c.paper, c.item, c.setting, c.score)
            cells.setdefault(key[:2], []).append(measured.get(key, c))
    return cells


def _complete(c: Comparison, other: Comparison) -> Comparison:
    """Return a comparison with the baseline and the strongest attack of another run if it has none.

    For example, `timberstrike_seeds` only runs the published attacks.
    """
    return replace(
        c,
        blind=other.blind if isnan(c.blind) else c.blind,
        strongest=other.strongest if isnan(c.strongest) else c.strongest,
    )


def _count(statuses: Iterable[str]) -> Counter[str]:
    """Count statuses without their reasons."""
    return Counter(next(s for s in STATUSES if text.startswith(s)) for text in statuses)


def total_sentences(statuses: Iterable[str]) -> str:
    """Return how many of the values with data were computed, and how many agree."""
    counted = _count(statuses)
    values, missing = counted.total(), counted["no data"]
    available = values - missing
    agree = counted["reproduced"] + counted["better"]
    return (
        f"The papers print {values:,} values, and the data of {available:,} are available here. "
        f"Of these, {available - counted['not run']:,} have a result: "
        f"{counted['reproduced']:,} reproduced, {counted['better']:,} better, "
        f"{counted['differs']:,} differs. Therefore {agree:,} of {available:,} "
        f"({agree / available:.1%}) are reproduced or better."
    )


def write_page(results: Iterable[Comparison]) -> str:
    """Return the page as Markdown."""
    cells = with_results(results)
    statuses: dict[str, list[str]] = {paper: [] for paper in PAPERS}
    for (paper, _), part in cells.items():
        statuses[paper] += map(status_of, part)
    parts = [INTRODUCTION.format(total_sentences(chain(*statuses.values()))) + _durations()]
    for paper, title in PAPERS.items():
        lines = [_summary(item, cells) for item in read_items() if item.paper == paper]
        header = ("Item", "Content", "Study", "Values", "Status")
        total = total_sentences(statuses[paper]).replace("The papers print", "The paper prints")
        parts.append(f"## {title}\n\n{total}\n\n{markdown(header, lines)}\n")
    for (paper, name), part in cells.items():
        if not any(c.seeds for c in part):
            continue
        lines = [comparison_line(c, status_of(c)) for c in part]
        title = PAPERS[paper].partition(" (")[0]
        parts.append(f"### {title}, {name}\n\n{markdown(HEADER, lines)}\n")
    return "\n".join(parts)


def _summary(item: Item, cells: dict[tuple[str, str], list[Comparison]]) -> list[str]:
    """Return the line of an item in the summary of its paper."""
    part = cells.get((item.paper, item.values or item.item), [])
    counted = _count(map(status_of, part))
    status = ", ".join(f"{counted[s]} {s}" for s in STATUSES if counted[s])
    if item.values:
        status = f"drawn from {item.values}: {status}"
    studies = ", ".join(f"`{study}`" for study in item.study.split())
    values = str(len(part)) if part and not item.values else "-"
    return [item.item, item.title, studies or "-", values, item.status or status]


def _numbers_in(setting: str) -> list[str]:
    """Return the numbers of a setting, padded so that they sort by their value."""
    return [number.zfill(6) for number in re.findall(r"\d+", setting)]


def study_table(part: Iterable[Comparison]) -> str:
    """Return the reconstruction accuracies at the depths 3, 6 and 8 as a Markdown table."""
    header = ("Setting", "Published", "Ours", "Deviation", "Seeds", "Blind")
    lines = []
    for c in sorted(part, key=lambda c: [*c.setting.split(",")[:1], *_numbers_in(c.setting)]):
        at_a_depth = re.search(r"depth [368]\b", c.setting)
        if c.score == "RA" and c.seeds and at_a_depth and "top" not in c.setting:
            *scores, blind = (
                "" if isnan(x) else f"{x:.1f}"
                for x in (c.published, c.measured, c.deviation, c.blind)
            )
            lines.append([c.setting, *scores, str(c.seeds), blind])
    return markdown(header, lines) + "\n"


def write_study(text: str, results: Iterable[Comparison]) -> str:
    """Return the page of the study of TimberStrike's tables with current values."""
    cells = with_results(results)
    for item in ("Table 6", "Table 4", "Table 8"):
        before, begin, rest = text.partition(BEGIN.format(item))
        if begin:
            table = study_table(cells["timberstrike", item])
            text = before + begin + table + END + rest.partition(END)[2]
    return text


def main(runs: Sequence[str], root: Path = Path()) -> None:
    """Store the comparisons of runs, and write the page below `root`."""
    for run in map(Path, runs):
        name = run.resolve().name
        stored, finished = root / FOLDER / f"{name}.csv", run / "comparison.csv"
        if finished.exists():
            copyfile(finished, stored)
        else:
            # The run of a suite was interrupted. Its results so far are compared.
            write_comparisons(name, compare_suite(name, load_rows(run)), stored)
    every = [c for path in sorted((root / FOLDER).glob("*.csv")) for c in read_comparisons(path)]
    (root / PAGE).write_text(write_page(every), encoding="utf-8")
    study = root / STUDY
    if study.exists():
        study.write_text(write_study(study.read_text(encoding="utf-8"), every), encoding="utf-8")
        values = with_results(every)["timberstrike", "Table 6"]
        static.save(draw(values), root / "docs/images/table6.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
