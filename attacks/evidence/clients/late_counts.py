"""Class counts of a client's first tree if other clients' trees came before (cyclic boosting).

The rows of the client have different probabilities, so that Di Gennaro et al. (2025), Eqs. 4-9, do
not apply. The possible probabilities are few and known. In a small leaf a single pair (N, N1) gives
both sums. In a large leaf many pairs do, and the local rows determine which is likely.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.clients.cells import Cells, cells_of
from fedtrees.attacks.evidence.clients.compositions import (
    ROWS_BEFORE,
    LeafEquations,
    Totals,
    totals_of,
)
from fedtrees.attacks.evidence.clients.start_of_values import PER_ROW, VALUE_ERROR
from fedtrees.core.schema import Schema, Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LateCounts:
    """Counts of one tree.

    Attributes
    ----------
    n, n1 : int64 array, shape (J,)
        Rows and positives of every leaf. The most probable pair if several are possible.
    certain : bool array, shape (J,)
        Whether no other pair gives the leaf's sums.
    """

    n: Ints
    n1: Ints
    certain: NDArray[np.bool_]


def late_counts(
    evidence: Evidence, local_rows: Table | None, schema: Schema, h_error: Floats | None = None
) -> LateCounts | None:
    """Return the counts of a client's first tree, which comes after foreign trees.

    If the client's rounds are subsampled, the counts are those of the sample.

    Parameters
    ----------
    evidence : Evidence
        Trees of the client and foreign trees.
    local_rows : Table or None
        Rows that determine which counts are likely.
    schema : Schema
        Categories of the columns.
    h_error : float64 array, shape (J,), optional
        Error of the leaves' hessian sums. Default is that of float32.

    Returns
    -------
    LateCounts or None
        None with more than two classes, without sums, and if sums are noisy, values rounded, or
        shrunk by an L1 penalty.
    """
    t = next(t for t in range(len(evidence.trees)) if not evidence.is_foreign(t))
    tree = evidence.trees[t]
    changed = evidence.rounding is not None or evidence.noise is not None
    changed = changed or evidence.reg_alpha > 0
    if evidence.outputs > 1 or evidence.level == "values" or changed:
        return None
    if tree.g is None or tree.h is None:
        return None
    h = tree.h[tree.leaves]
    if h_error is None:
        h_error = np.spacing(h.astype(np.float32)).astype(np.float64) / 2
    if evidence.targets is not None:  # every row has a hessian of 1
        n = np.rint(h).astype(np.int64)
        return LateCounts(n, np.zeros_like(n), h_error < 0.25)
    slope = -tree.g[tree.leaves] / (h + evidence.reg_lambda)
    totals_of_leaves: list[Totals | None] = []
    guess = np.zeros((len(h), 2), dtype=np.int64)
    for j, cells in enumerate(cells_of(evidence, t, local_rows, schema)):
        if cells is None:
            totals_of_leaves.append(None)
            guess[j] = np.rint(h[j] / 0.25), 0
            continue
        # the fixed-point error grows with the number of rows, which is at most h / min(h)
        error = float(h_error[j] + PER_ROW * h[j] / cells.h.min())
        leaf = LeafEquations(h[j], error, slope[j], VALUE_ERROR, evidence.reg_lambda)
        if h[j] < evidence.min_child_weight * (
            1 - 1e-5
        ):  # XGBoost sets the weight to 0, which hides the gradient
            totals_of_leaves.append(None)
            guess[j] = _about(leaf, cells)
            continue
        totals = totals_of(leaf, cells)
        totals_of_leaves.append(totals)
        guess[j] = (totals.n[0], totals.n1[0]) if len(totals.n) else _about(leaf, cells)
    sure = np.array([f is not None and f.complete and len(f.n) == 1 for f in totals_of_leaves])
    if any(f is not None and f.complete and not len(f.n) for f in totals_of_leaves):
        sure[:] = False  # no rows give these sums, so that an assumption is violated
    return LateCounts(guess[:, 0], guess[:, 1], sure)


def _about(leaf: LeafEquations, cells: Cells) -> tuple[int, int]:
    """Return the counts of a leaf if its rows are distributed like the local rows."""
    n = cells.local_counts + ROWS_BEFORE
    n = n * leaf.h / float(n @ cells.h)
    rows = int(np.rint(n.sum()))
    positives = float(n @ cells.p) + leaf.slope * (leaf.h + leaf.reg_lambda)
    return rows, int(np.clip(np.rint(positives), 0, rows))
