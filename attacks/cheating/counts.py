"""Class counts from sums that a cheating server opened, before anybody's predictions moved."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.reasons import Reason
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, Histogram


def unreadable(view: View) -> Reason | None:
    """Return why class counts do not follow from the sums, None if they do."""
    if len(view.schema.classes) != 2:
        return Reason("needs-classes", classes=2)
    return None if sums_by_node(view) else Reason("no-histograms")


def sums_by_node(view: View) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Return gradient sums over all clients, int64 (total_bins, 2), by tree and node."""
    sums_of_node: dict[tuple[int, int], NDArray[np.int64]] = {}
    for _, m in view.messages(Histogram):
        for node, sums in zip(m.nodes.tolist(), m.sums, strict=True):
            sums_of_node[m.tree, node] = (
                sums_of_node[m.tree, node] + sums if (m.tree, node) in sums_of_node else sums
            )
    return sums_of_node


def class_counts(sums: NDArray[np.int64], start: BaseScore, parts: int = 1) -> NDArray[np.int64]:
    """Return class counts, int64 (bins, 2), from sums of gradients and hessians (bins, 2).

    A row of class y brings the gradient p - y and the hessian p (1 - p).

    `parts`: Into how many equal parts counts are divided.
    """
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    g, h = np.ldexp(sums.astype(np.float64).T / parts, [[-start.g_bits], [-start.h_bits]])
    rows = np.rint(h / (p * (1 - p)))
    ones = np.rint(rows * p - g)
    return np.column_stack([rows - ones, ones]).astype(np.int64)
