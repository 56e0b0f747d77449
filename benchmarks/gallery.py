"""Draw a page with ten adversaries and one figure for each.

``python -m fedtrees.benchmarks.gallery -o FILE.html`` uses results that are stored in the
repository: the submissions of the leaderboard, and the files ``recipes.csv`` and ``gallery.csv`` in
``papers``. The pages of the studies report the same figures.
"""

import argparse
import csv
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.benchmarks.papers.recipes import stored
from fedtrees.core.files import write_text
from fedtrees.core.specs import parse_one
from fedtrees.report import wording
from fedtrees.report.figures.inline_svg import FrontierFigure, Mark, draw
from fedtrees.report.findings import RunAnalysis
from fedtrees.report.leakage import MARGIN, State
from fedtrees.report.page_tables import frontier
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.submissions import read
from fedtrees.report.web_page import render
from fedtrees.report.wording import ProtocolRecipe, number

#: Stored submissions. The folder exists in a clone but not in a wheel.
SUBMISSIONS = Path(__file__).parent / "leaderboard"
_LETTERS = "0ABCDEFGHIJ"
_PLACE = "pima · server+client"


@dataclass(frozen=True)
class Study:
    """A figure of ``gallery.csv``, described in ``gallery.toml``.

    Attributes
    ----------
    key : str
        Name of the figure in ``gallery.csv``.
    title : str
        Headline.
    who, what : str
        The adversary, and the measure of its success.
    utility : str
        Measure of utility.
    command : str
        Command that reproduces the figure.
    page : str
        Name of the documentation page of the study.
    """

    key: str
    title: str
    who: str
    what: str
    utility: str
    command: str
    page: str


_DESCRIBED = (resources.files("fedtrees.benchmarks") / "gallery.toml").read_text("utf-8")
STUDIES = [Study(**study) for study in tomllib.loads(_DESCRIBED)["study"]]


def figures() -> Iterator[dict[str, Any]]:
    """Yield the figures for the template, in the order of the page."""
    yield from _default_bench()
    lines_of_figure = _read()
    for study in STUDIES[:2]:
        yield _of_study(study, lines_of_figure[study.key])
    yield _recipes()
    for study in STUDIES[2:]:
        yield _of_study(study, lines_of_figure[study.key])


def _read() -> Mapping[str, list[dict[str, str]]]:
    """Return the lines of ``gallery.csv``, by figure."""
    text = (resources.files("fedtrees.benchmarks.papers") / "gallery.csv").read_text("utf-8")
    lines_of_figure: dict[str, list[dict[str, str]]] = {}
    for line in csv.DictReader(text.splitlines()):
        lines_of_figure.setdefault(line["figure"], []).append(line)
    return lines_of_figure


def _default_bench() -> Iterator[dict[str, Any]]:
    """Yield the figures of the default bench as the report draws them, one per adversary."""
    titles = {
        "server": "Whoever adds histograms reads rows off them",
        "client": "A client recognises members",
        "public": "So does whoever has the model",
    }
    for f in RunAnalysis(SUBMISSIONS, read(SUBMISSIONS / "default-bench").rows).settings:
        for a in f.tested:
            figure = frontier(f, a, 0)
            if figure and a.threat in titles:
                # The marks link to this page instead of the report.
                marks = (replace(m, href=f"#{a.threat}") for m in figure.d.marks)
                drawing = replace(figure.d, marks=tuple(marks))
                yield {
                    "id": a.threat,
                    "title": titles[a.threat],
                    "f": replace(figure, d=drawing, sparks=()),
                    "page": "",
                    "command": f"fedtrees bench --threat {a.threat}",
                }


def _of_study(study: Study, lines: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Draw a study from its lines. The first line is the undefended training."""
    # Figures above 1 are percentages.
    unit = 1.0 if float(lines[0]["read"]) <= 1 else 100.0
    utility_unit = 1.0 if float(lines[0]["utility"]) <= 1 else 100.0
    base = float(lines[0]["utility"])
    marks = []
    for letter, line in zip(_LETTERS, lines, strict=False):
        read, blind = (float(line[name]) / unit for name in ("read", "blind"))
        # The table contains means only. Without an interval, no point can be called safe.
        state: State = "leaking" if read - blind > MARGIN else "unsettled"
        change = (float(line["utility"]) - base) / utility_unit
        name = wording.short(line["defense"]).replace(" calibrated=True", "")
        say = (f"{name}: {wording.percent(read)}, blind {wording.percent(blind)}, "
               f"{number(change, 3, signed=True)}")  # fmt: skip
        marks.append(Mark(change, read, name, letter, say, f"#{study.key}", state))
    drawing = draw(marks, float(lines[0]["blind"]) / unit)
    f = FrontierFigure(study.who, study.what, study.utility, drawing, wording.percent)
    return {"title": study.title, "f": f, "page": study.page, "command": study.command,
            "id": study.key}  # fmt: skip


def _recipes() -> dict[str, Any]:
    """Draw the recipes against the strongest adversary, with the figures of the advice."""
    marks, blind = [], math.nan
    for letter, (name, tried) in zip(_LETTERS, stored().items(), strict=False):
        for t in tried:
            cell = next((c for c in t.results if c.metric == "ra" and t.place == _PLACE), None)
            if cell is None:
                continue
            blind = cell.baseline if math.isnan(blind) else blind
            e = t.utility_change.change
            change = 0.0 if name == UNDEFENDED else e.mean
            score = f"{wording.shown(cell)} ({wording.describe_baseline(cell)})"
            say = f"{name}: {score}, {number(change, 3, signed=True)}"
            marks.append(Mark(change, cell.score, _short_name(name), letter, say, "#recipes",
                              cell.state, e.low, e.high))  # fmt: skip
    f = FrontierFigure("Server and a client together", "cells right, Pima; dp-gbdt by ε", "AUC",
                       draw(marks, blind), wording.percent)  # fmt: skip
    return {"title": "Recipes against whoever sees most", "f": f, "page": "", "id": "recipes",
            "command": "python -m fedtrees.benchmarks.papers recipes --data-dir DATA"}  # fmt: skip


def _short_name(name: str) -> str:
    """Return a short name of a recipe. For example, a recipe with `dp-gbdt` is called ``ε=4``."""
    if not isinstance(name, ProtocolRecipe):
        return wording.short(name)
    params = parse_one(name.protocol).parts[0].params
    if "epsilon" not in params:
        return "cuts"
    return f"ε={params['epsilon']}{'' if 'noise' in params else ' by the server'}"


def page() -> str:
    """Return the gallery as one HTML document. Equal results give equal bytes."""
    return render("gallery.html.j2", figures=list(figures()), version=__version__)


def main() -> Path:
    """Write the page and return its path."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.gallery")
    parser.add_argument("-o", "--out", default="gallery.html")
    return write_text(Path(parser.parse_args().out), page())


if __name__ == "__main__":
    print(main())
