"""The interactive figures of a report: data in, plotly figures out.

Per-feature leakage is a `heatmap` of `leaks.feature_grid`.
"""

from fedtrees.report.cost_figure import cost, draw_cost
from fedtrees.report.frontier_figure import (
    advantage_limits,
    crowded_above,
    draw_frontier,
    frontier,
    group_name,
    point_label,
    utility_limits,
)
from fedtrees.report.grid_figure import cell_ink, cell_text, draw_heatmap, heatmap

__all__ = [
    "advantage_limits",
    "cell_ink",
    "cell_text",
    "cost",
    "crowded_above",
    "draw_cost",
    "draw_frontier",
    "draw_heatmap",
    "frontier",
    "group_name",
    "heatmap",
    "point_label",
    "utility_limits",
]
