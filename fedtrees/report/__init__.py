"""Figures and the self-contained report of a run.

``write_report(run_folder)`` writes ``report.html``; ``plot(run_folder, "frontier.pdf")`` writes a
figure; ``load_rows`` and ``frontiers`` give the numbers behind them. It may import `metrics` and
below, not `bench`.
"""

from fedtrees.report.frontier import Frontier, Point, frontiers
from fedtrees.report.html import write_report
from fedtrees.report.plot import plot
from fedtrees.report.rows import Panel, Setting, load_rows

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
