"""Score guessed class counts of leaves, per tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.guess import LeafCounts


@dataclass(frozen=True)
class LeafCountScores:
    """How well the counts of one tree, or of several pooled, are known.

    Attributes
    ----------
    leaf_counts_exact : float
        Share of leaves with both N0 and N1 exact.
    leaf_mass_exact : float
        Share of records in such leaves.
    count_error, count1_error : float
        Mean absolute error per leaf of N = N0 + N1 and of N1, in records.
    leaves : int
        Number of leaves scored.
    """

    leaf_counts_exact: float
    leaf_mass_exact: float
    count_error: float
    count1_error: float
    leaves: int

    def as_dict(self) -> dict[str, float]:
        """Return the scores under their keys."""
        keys = ("leaf_counts_exact", "leaf_mass_exact", "count_error", "count1_error")
        return {key: getattr(self, key) for key in keys}


def true_leaf_counts(
    tree: int, nodes: NDArray[np.integer], y: NDArray[np.integer], leaves: NDArray[np.integer]
) -> LeafCounts:
    """Count the rows of each class per leaf.

    Parameters
    ----------
    tree : int
        Index of the tree in the model.
    nodes : int array, shape (n,)
        Leaf of every row: one column of ``Forest.apply``.
    y : int array, shape (n,)
        Labels 0 and 1; of more classes, whether a row is of the tree's.
    leaves : int array, shape (J,)
        Node numbers of all leaves of the tree (``Tree.leaves``), also of those without rows.

    Raises
    ------
    DataError
        A row in a node that is not a leaf.
    """
    leaves = np.unique(leaves)
    at = np.searchsorted(leaves, nodes)
    if len(nodes) and (at.max() >= len(leaves) or (leaves[at] != nodes).any()):
        raise DataError(f"tree {tree}: rows lie in nodes that are not among its leaves")
    n1 = np.bincount(at[y == 1], minlength=len(leaves))
    n0 = np.bincount(at[y != 1], minlength=len(leaves))
    return LeafCounts(tree, leaves.astype(np.intp), n0.astype(np.int64), n1.astype(np.int64))


def blind_leaf_counts(
    tree: int,
    own_nodes: NDArray[np.integer],
    own_y: NDArray[np.integer],
    leaves: NDArray[np.integer],
    n: int,
) -> LeafCounts:
    """Return what own rows alone suggest: their counts scaled to n rows and rounded.

    Parameters
    ----------
    own_nodes, own_y : int array, shape (o,)
        Leaf and label of the principals' own rows, routed through the same tree.
    leaves : int array, shape (J,)
    n : int
        Number of victims' rows (as known or assumed by the attack it is compared with).

    Notes
    -----
    With no own rows every leaf and class gets the same share. Halves round to even.
    """
    own = true_leaf_counts(tree, own_nodes, own_y, leaves)
    total = len(own_y)
    if total == 0:
        even = np.full(len(own.leaf), n / (2 * len(own.leaf)))
        return LeafCounts(tree, own.leaf, _rounded(even), _rounded(even))
    scale = n / total
    return LeafCounts(tree, own.leaf, _rounded(own.n0 * scale), _rounded(own.n1 * scale))


def _rounded(counts: NDArray[np.floating]) -> NDArray[np.int64]:
    return np.rint(counts).astype(np.int64)


def score_leaf_counts(
    guesses: Sequence[LeafCounts], truths: Sequence[LeafCounts]
) -> LeafCountScores:
    """Compare guessed with true counts, all leaves of the given true trees pooled.

    Parameters
    ----------
    guesses : sequence of LeafCounts
        Any trees in any order; a leaf that is not mentioned is guessed empty and never exact.
        Trees without a truth are ignored; mentioned leaves that do not exist are, too.
    truths : sequence of LeafCounts
        From `true_leaf_counts`; the first tree alone, or every tree the threat allows.

    Raises
    ------
    DataError
        No true leaves, or two guesses for one tree.
    """
    if sum(len(t.leaf) for t in truths) == 0:
        raise DataError("no true leaf counts to score against")
    by_tree = {guess.tree: guess for guess in guesses}
    if len(by_tree) != len(guesses):
        raise DataError("two guesses of leaf counts for one tree")
    exact, mass, error, error1 = [], [], [], []
    for truth in truths:
        n0, n1, told = _aligned(by_tree.get(truth.tree), truth)
        exact.append(told & (n0 == truth.n0) & (n1 == truth.n1))
        mass.append(truth.n0 + truth.n1)
        error.append(np.abs(n0 + n1 - truth.n0 - truth.n1))
        error1.append(np.abs(n1 - truth.n1))
    right, rows = np.concatenate(exact), np.concatenate(mass)
    return LeafCountScores(
        leaf_counts_exact=float(right.mean()),
        leaf_mass_exact=float(rows[right].sum() / rows.sum()) if rows.sum() else 0.0,
        count_error=float(np.concatenate(error).mean()),
        count1_error=float(np.concatenate(error1).mean()),
        leaves=len(right),
    )


def share_right(guesses: Sequence[LeafCounts], truths: Sequence[LeafCounts]) -> float:
    """Return the share of leaves mentioned whose N0 and N1 are both exact.

    For attacks that return only what they are certain of: 1 unless they are wrong.

    Raises
    ------
    DataError
        No leaf mentioned, or a tree or leaf mentioned that does not exist.
    """
    by_tree = {truth.tree: truth for truth in truths}
    right: list[bool] = []
    for guess in guesses:
        truth = by_tree.get(guess.tree)
        if truth is None or not np.isin(guess.leaf, truth.leaf).all():
            raise DataError(f"counts of leaves that tree {guess.tree} has not")
        n0, n1, _ = _aligned(truth, guess)
        right += ((n0 == guess.n0) & (n1 == guess.n1)).tolist()
    if not right:
        raise DataError("no leaf counts to score")
    return float(np.mean(right))


def _aligned(
    guess: LeafCounts | None, truth: LeafCounts
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return guessed N0, N1 and whether guessed at all, in the order of the true leaves."""
    n0, n1 = np.zeros_like(truth.n0), np.zeros_like(truth.n1)
    told = np.zeros(len(truth.leaf), dtype=bool)
    if guess is not None:
        where = {int(leaf): i for i, leaf in enumerate(guess.leaf)}
        for j, leaf in enumerate(truth.leaf):
            i = where.get(int(leaf))
            if i is not None:
                n0[j], n1[j], told[j] = guess.n0[i], guess.n1[i], True
    return n0, n1, told
