"""Read the results of a run and write its figures, its tables and its self-contained report.

`write_report` writes ``report.html`` into a run folder, and `plot` writes one figure, for example
``frontier.pdf``. `load_rows` and `frontiers` return the numbers behind both. A newcomer reads the
module `results` first (the table of results), then `leakage` (the conclusion about one adversary,
one defense and one measure), `findings` (all conclusions of a run), `verdict` (the sentences
of the verdict) and `page` (the report).

This package may import `fedtrees.metrics` and the layers below it. It does not import
`fedtrees.experiments`.
"""

from fedtrees.report.figures.plot import plot
from fedtrees.report.findings import frontiers
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.page import write_report
from fedtrees.report.results import Panel, Setting, load_rows

__all__ = [
    "Frontier",
    "Panel",
    "Point",
    "Setting",
    "frontiers",
    "load_rows",
    "plot",
    "write_report",
]
