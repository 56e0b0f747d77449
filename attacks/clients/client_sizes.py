"""Estimate the number of rows of each client whose trees are seen.

`late_counts` counts the leaves of a client's first tree that was grown on trees of other clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedtrees.attacks.clients.base_score import PER_ROW, VALUE_ERROR
from fedtrees.attacks.clients.margin_cells import (
    ROWS_BEFORE,
    Cells,
    LeafEquations,
    Totals,
    cells_of,
    totals_of,
)
from fedtrees.attacks.counts.leaf_sums import initial_gradient, victim_sums
from fedtrees.attacks.counts.leaf_values import first_counts, size_scores
from fedtrees.attacks.observations.boosting import BoostingObservations, at_tree, gradients
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.core.schema import Schema, Table
from fedtrees.core.view import View

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
    evidence: BoostingObservations,
    local_rows: Table | None,
    schema: Schema,
    h_error: Floats | None = None,
) -> LateCounts | None:
    """Return the counts of a client's first tree, which comes after foreign trees.

    If the client's rounds are subsampled, the counts are those of the sample.

    Parameters
    ----------
    evidence : BoostingObservations
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
    changed = evidence.distortion.rounding is not None or evidence.distortion.noise is not None
    changed = changed or evidence.params.reg_alpha > 0
    if evidence.outputs > 1 or evidence.observed.level == "values" or changed:
        return None
    if tree.g is None or tree.h is None:
        return None
    h = tree.h[tree.leaves]
    if h_error is None:
        h_error = np.spacing(h.astype(np.float32)).astype(np.float64) / 2
    if evidence.targets is not None:  # every row has a hessian of 1
        n = np.rint(h).astype(np.int64)
        return LateCounts(n, np.zeros_like(n), h_error < 0.25)
    slope = -tree.g[tree.leaves] / (h + evidence.params.reg_lambda)
    totals_of_leaves: list[Totals | None] = []
    guess = np.zeros((len(h), 2), dtype=np.int64)
    for j, cells in enumerate(cells_of(evidence, t, local_rows, schema)):
        if cells is None:
            totals_of_leaves.append(None)
            guess[j] = np.rint(h[j] / 0.25), 0
            continue
        # the fixed-point error grows with the number of rows, which is at most h / min(h)
        error = float(h_error[j] + PER_ROW * h[j] / cells.h.min())
        leaf = LeafEquations(h[j], error, slope[j], VALUE_ERROR, evidence.params.reg_lambda)
        if h[j] < evidence.params.min_child_weight * (
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


def add_sizes(
    view: View, evidence: Sequence[BoostingObservations], late: Sequence[LateCounts | None]
) -> list[BoostingObservations]:
    """Add the number of rows to the evidence of each attacked client, if it can be determined.

    The number of all rows is declared. A single client has the rows that are not the adversary's.
    If only leaf values of several clients are seen, the most probable division is chosen. Clients
    whose first tree was grown on other clients' trees share the remaining rows.

    Parameters
    ----------
    view : View
        The adversary's view.
    evidence : sequence of BoostingObservations
        One entry per attacked client.
    late : sequence of (LateCounts or None)
        Counts of clients whose first tree was grown on other clients' trees.
    """
    rest = view.n_rows - (0 if view.rows is None else len(view.rows))
    other_clients = [n for n, r in view.roles.items() if r == "client" and n not in view.principals]
    is_complete = len(other_clients) == len(evidence)
    later = [e.is_foreign(0) for e in evidence]
    if not any(later):
        if is_complete and len(evidence) == 1:
            return [evidence[0].change(n_rows=rest)]
        return _jointly(evidence, view, rest, is_complete)
    for e, is_late in zip(evidence, later, strict=True):
        if not is_late:
            rest -= round(_first_rows(e, view) / e.share)
    guesses = [
        _class_sizes(e, view.prior_rows) if counts is None else _counted_sizes(counts)
        for e, counts, is_late in zip(evidence, late, later, strict=True)
        if is_late
    ]
    parts = iter(np.split(largest_remainder(np.concatenate(guesses), max(rest, 0)), len(guesses)))
    return [
        e.change(sizes=tuple(map(int, next(parts)))) if is_late else _with_mean_size(e, view)
        for e, is_late in zip(evidence, later, strict=True)
    ]


def row_counts(view: View, evidence: Sequence[BoostingObservations]) -> list[int] | None:
    """Return the number of rows of each attacked client, None if it is not known for all.

    Parameters
    ----------
    view : View
        The adversary's view.
    evidence : sequence of BoostingObservations
        Result of `add_sizes`. Clients whose sums are seen have no number of rows there, because
        their rows are counted leaf by leaf.
    """
    counts = []
    for e in evidence:
        if e.row_counts.n_rows is not None:
            counts.append(e.row_counts.n_rows)
        elif e.row_counts.sizes is not None:
            counts.append(sum(e.row_counts.sizes))
        elif e.observed.level != "values" and not e.is_foreign(0):
            counts.append(round(_first_rows(e, view) / e.share))
        else:
            return None
    return counts


def _with_mean_size(evidence: BoostingObservations, view: View) -> BoostingObservations:
    """Return evidence with the average number of rows of a client if nothing else is known."""
    if evidence.targets is None or evidence.observed.level != "values":
        return evidence
    return evidence.change(n_rows=round(_first_rows(evidence, view) / evidence.share))


def _jointly(
    evidence: Sequence[BoostingObservations], view: View, rest: int, everybody: bool
) -> list[BoostingObservations]:
    """Choose the most probable numbers of rows, with sum `rest`, or at most `rest`."""
    if everybody and all(e.share < 1 for e in evidence):  # sizes of samples are proportional
        samples = np.array([_first_rows(e, view) for e in evidence], dtype=np.float64)
        sizes = largest_remainder(np.maximum(samples, 1.0), max(rest, 0)).tolist()
        return [e.change(n_rows=n) for e, n in zip(evidence, sizes, strict=True)]
    if any(e.observed.level != "values" or e.share < 1 for e in evidence):
        return list(evidence)
    total = rest if everybody else None
    scores = [_scores_of(e, view) for e in evidence]
    even = _evenly(rest)
    sizes = _likeliest([even if s is None else s for s in scores], rest, total)
    sizes = sizes or _likeliest([even] * len(scores), rest, total)
    if sizes is None:
        return list(evidence)
    return [e.change(n_rows=n) for e, n in zip(evidence, sizes, strict=True)]


def _likeliest(scores: Sequence[Floats], most_rows: int, total: int | None) -> list[int] | None:
    """Return the numbers of greatest log weight with a given sum (None: at most `most_rows`)."""
    # max-plus dynamic programme over clients; the state is the number of rows so far
    before = [np.where(np.arange(most_rows + 1) == 0, 0.0, -np.inf)]
    for score in scores:
        before.append(_sum_of(before[-1], score))
    left = int(np.argmax(before[-1])) if total is None else total
    if not np.isfinite(before[-1][left]):
        return None
    sizes: list[int] = []
    for score, so_far in zip(reversed(scores), before[-2::-1], strict=True):
        n = np.arange(min(left, len(score) - 1) + 1)
        sizes.insert(0, int(np.argmax(so_far[left - n] + score[n])))
        left -= sizes[0]
    return sizes


def _evenly(most_rows: int) -> Floats:
    """Return log weights for a client without information. They favour equal numbers."""
    with np.errstate(divide="ignore"):
        return np.log(np.arange(most_rows + 1))


def _scores_of(evidence: BoostingObservations, view: View) -> Floats | None:
    """Return the log weight of every number of rows, from all trees of a first round."""
    scores = [
        size_scores(evidence, sums, initial_gradient(evidence, t), t)
        for t, sums in enumerate(victim_sums(evidence, _own(view), evidence.outputs, False))
    ]
    if any(f is None for f in scores):
        return None
    score: Floats = np.sum(scores, axis=0)
    return score if np.isfinite(score).any() else None


def _sum_of(before: Floats, score: Floats) -> Floats:
    """Return the best log weight of every sum of two numbers, as many as `before` has."""
    out = np.full(len(before), -np.inf)
    for n in np.flatnonzero(np.isfinite(score[: len(before)])):
        np.maximum(out[n:], before[: len(before) - n] + score[n], out=out[n:])
    return out


def _own(view: View) -> Table:
    return Table.empty(view.schema) if view.rows is None else view.rows


def _first_rows(evidence: BoostingObservations, view: View) -> int:
    """Return the number of rows of a client whose first tree was grown before all other trees."""
    local_rows = _own(view)
    if (
        evidence.targets is not None and evidence.observed.level == "values"
    ):  # leaf values do not reveal it
        return round(view.n_rows * evidence.share / [*view.roles.values()].count("client"))
    counts = first_counts(
        evidence, victim_sums(evidence, local_rows, 1, False)[0], len(local_rows), False
    )
    return int((counts.n0 + counts.n1).sum())


def _counted_sizes(late: LateCounts) -> Floats:
    positives = float(late.n1.sum())
    return np.array([late.n.sum() - positives, positives])


def _class_sizes(evidence: BoostingObservations, prior_rows: Table | None) -> Floats:
    """Estimate the rows of each class from the root sums of a first tree on foreign trees.

    Rows of a class are assumed to have the mean gradients of the prior's rows of that class. The
    root's sums are then linear in the class sizes.
    """
    if evidence.targets is not None:
        return np.array([1.0, 0.0])
    classes, outputs = max(evidence.outputs, 2), evidence.outputs
    first = int(np.flatnonzero(~np.array(evidence.foreign))[0])
    equal = np.ones(classes)
    if evidence.trees[first].h is None or prior_rows is None or not len(prior_rows):
        if prior_rows is None:
            return equal
        return np.bincount(prior_rows.y, minlength=classes).astype(np.float64) + 0.5
    margin = at_tree(evidence, prior_rows.X, first)[1]
    rows, sums = [], []
    for k in range(outputs):
        tree = evidence.trees[first + k]
        assert tree.g is not None
        assert tree.h is not None
        for c, seen in enumerate((tree.g, tree.h)):
            rows.append([_mean(prior_rows, margin, j, k, c) for j in range(classes)])
            sums.append(seen[tree.leaves].sum())
    solution: Floats = nnls(np.array(rows), np.array(sums))[0]
    return np.maximum(solution, 1e-3)


def _mean(rows: Table, margin: NDArray[np.float32], label: int, output: int, part: int) -> float:
    """Return the mean gradient (part 0) or hessian (1) of the rows of a class, or of all rows."""
    of_class = rows.y == label
    chosen = margin[of_class] if of_class.any() else margin
    return float(gradients(chosen, np.full(len(chosen), label), output=output)[part].mean())
