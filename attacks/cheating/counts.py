"""Compute class counts from gradient histograms that a malicious server received.

The counts are exact as long as all predictions still equal the base score, because all rows of a
class then have the same gradient and hessian.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.reasons import Reason
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, Histogram


def unreadable(view: View) -> Reason | None:
    """Return why class counts cannot be computed from the sums, None if they can."""
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
    """Compute class counts from sums of gradients and hessians.

    A row of class y contributes the gradient p - y and the hessian p (1 - p).

    Parameters
    ----------
    sums : int64 array, shape (b, 2)
        Gradient and hessian sums of b bins, as fixed-point numbers.
    start : BaseScore
        Initial log-odds and the fixed-point units of the sums.
    parts : int
        Divisor of the sums. The counts are those of an average client if it is the number of
        clients.

    Returns
    -------
    counts : int64 array, shape (b, 2)
        Number of rows of class 0 and of class 1 in every bin.
    """
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    g, h = np.ldexp(sums.astype(np.float64).T / parts, [[-start.g_bits], [-start.h_bits]])
    rows = np.rint(h / (p * (1 - p)))
    ones = np.rint(rows * p - g)
    return np.column_stack([rows - ones, ones]).astype(np.int64)
