"""Write the report of a run: one file, readable offline, no part able to cost another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedtrees.core.counts import many
from fedtrees.core.files import write_whole
from fedtrees.report import numbers, sections
from fedtrees.report.markup import Html, join, tag
from fedtrees.report.page import page
from fedtrees.report.rows import NOT_OK, UNDEFENDED, load_rows
from fedtrees.report.sections import Charts
from fedtrees.report.study import Study
from fedtrees.report.verdict import MARGIN

Section = Callable[[Study, Charts], Html]

SECTIONS: tuple[tuple[str, str, str, Section], ...] = (
    ("verdict", "Verdict", "What leaks, what stops it, what to do", sections.verdict),
    ("frontier", "Frontier", "Utility against worst-case advantage", sections.frontier),
    ("leaderboard", "Leaderboard", "Leaderboard", numbers.leaderboard),
    ("leaks", "Attacks", "Which attack, under which threat", sections.heatmaps),
    ("guarantees", "Guarantees", "Claimed, spent, measured", numbers.guarantees),
    ("features", "Features", "Which columns leak", sections.features),
    ("cost", "Cost", "What it costs", numbers.cost),
    ("disclosure", "Who sees what", "Who sees what", numbers.disclosure),
    ("gaps", "Gaps", "What did not run, and why", numbers.gaps),
    ("glossary", "Words", "What the words mean", numbers.glossary),
    ("methods", "Reproduce", "How to get these numbers again", numbers.methods),
)


def write_report(
    run_folder: str | Path,
    metric: str | None = None,
    utility: str | None = None,
    margin: float = MARGIN,
) -> Path:
    """Write ``report.html`` into a run folder.

    Parameters
    ----------
    run_folder : path
        Holds ``rows.csv``; ``suite.toml``, ``environment.json`` and ``disclosure.json`` are
        shown if they are there.
    metric, utility : str, optional
        What to rank by; see `frontiers`.
    margin : float
        Advantage that a defense may leave and still be called down to blind.

    Returns
    -------
    Path
        The file. The same run gives the same bytes.

    Raises
    ------
    StoreError
        The rows cannot be read, or the report cannot be written.
    UsageError
        The run has no such metric, or the margin is none.
    """
    folder = Path(run_folder)
    study = Study(folder, load_rows(folder), metric, utility, margin)
    return write_text(folder / "report.html", render(study))


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all."""
    write_whole(path, text.encode(), remedy="the rows are untouched")
    return path


def render(study: Study, chosen: tuple[str, ...] = ()) -> str:
    """Return the report as one HTML document; `chosen` limits it to some sections."""
    charts = Charts()
    kept = [s for s in SECTIONS if not chosen or s[0] in chosen]
    body = [
        tag("section", tag("h2", title), guarded(build, study, charts), id=name)
        for name, _, title, build in kept
    ]
    title = f"{_tables(study)}: what leaks, and what a defense costs"
    links = join(tag("a", short, href=f"#{name}") for name, short, _, _ in kept)
    whole = join(
        [
            tag("a", "Skip to the report", href="#main", class_="skip"),
            tag("header", tag("h1", title), guarded(_facts, study, charts), class_="top"),
            tag("nav", tag("div", links), class_="bar", aria_label="Sections"),
            tag("main", join(body), id="main"),
            tag("footer", f"Written by fedtrees {_version(study)}. This page loads nothing."),
        ],
        Html("\n"),
    )
    return page(title, whole, charts.figures)


def guarded(build: Section, study: Study, charts: Charts) -> Html:
    """Build a section; an error becomes a note in its place, never a lost report."""
    before = dict(charts.figures)
    try:
        return build(study, charts)
    except Exception as error:
        charts.figures.clear()
        charts.figures.update(before)
        what = f"This section could not be made ({type(error).__name__}: {error})."
        return tag("p", what, " The rows are unharmed.", class_="warn", role="alert")


def _version(study: Study) -> str:
    return ", ".join(sorted({v for v in study.rows["version"] if v})) or "of unknown version"


def _tables(study: Study) -> str:
    """Name the tables of the run; a suite or a folder may be named after others."""
    names = sorted({s.dataset for s in study.settings})
    return ", ".join(names) if 0 < len(names) <= 3 else f"{len(names)} tables"


def _facts(study: Study, charts: Charts) -> Html:
    rows = study.rows
    seeds = rows["seed"].dropna().nunique()
    cell = ["setting", "defense_spec", "threat", "attack_spec", "seed", "stage", "status"]
    cells = rows[rows["stage"] != "exposure"].drop_duplicates(cell)
    status = cells["status"].value_counts()
    counts = [f"{many(int(status.get('ok', 0)), 'cell')} finished"]
    counts += [f"{int(status[s])} {s}" for s in NOT_OK if s in status.index]
    here = rows[rows["stage"].isin(["train", "attack"])]
    size = [
        many(here[column].nunique(), word)
        for column, word in (("partition", "partition"), ("protocol", "protocol"))
    ]
    size += [
        many(len({*here["defense_spec"]} - {UNDEFENDED}), "defense"),
        many(len({*here["threat"]} - {""}), "threat"),
        many(len({*here["attack"]} - {""}), "attack"),
        many(seeds, "seed"),
    ]
    text = f"{', '.join(size)}; {', '.join(counts)}."
    return join([tag("p", text, class_="facts"), _filters(study)])


def _filters(study: Study) -> Html:
    choices = {
        "dataset": sorted({s.dataset for s in study.settings}),
        "partition": sorted({s.partition for s in study.settings}),
        "protocol": sorted({s.protocol for s in study.settings}),
        "threat": sorted({p.threat for p in study.panels}),
    }
    made = []
    for name, values in choices.items():
        if len(values) < 2:
            continue
        options = join(
            [tag("option", "all", value=""), *(tag("option", v, value=v) for v in values)]
        )
        made.append(tag("label", f"{name} ", tag("select", options, data_filter=name)))
    return tag("div", join(["Show", *made], " "), class_="filters") if made else Html("")
