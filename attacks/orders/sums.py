"""What opened sums tell of single rows: each is one linear equation in the ranks of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.view import View
from fedtrees.messages.vertical import KnownNodes, OpenedBinSums, replayed
from fedtrees.messages.vertical_model import HeldModel
from fedtrees.trees.boosted.fixed_point import from_fixed
from fedtrees.trees.boosted.losses import named_objective

_CLOSE = 1e-3  # share of a sum; a defense that changes labels leaves more


@dataclass(frozen=True, eq=False)
class Rows:
    """Left sides of equations, each of length 1.

    Attributes
    ----------
    matrix : sparse float64 matrix, shape (M, N)
    """

    matrix: Any

    @cached_property
    def eigen(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Eigenvalues and eigenvectors of the products of all left sides."""
        values, vectors = np.linalg.eigh((self.matrix @ self.matrix.T).toarray())
        return np.maximum(values, 0.0), vectors


@dataclass(frozen=True, eq=False)
class Equations:
    """Equations in the ranks of a column: ``rows @ (rank - 1/2) = sums``, but for noise.

    Attributes
    ----------
    rows : Rows
        Columns of which the same sums were opened share them.
    sums : float64 array, shape (M,)
    noise : float
        Variance of each: a rank is known to be in a bin at best.
    """

    rows: Rows
    sums: NDArray[np.float64]
    noise: float

    def moved(self, mean: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
        """Return what ranks are expected to be that were normal before, float64, shape (N,)."""
        matrix, (values, vectors) = self.rows.matrix, self.rows.eigen
        gap = self.sums - matrix @ (mean - 0.5)
        weights = (vectors.T @ gap) / (values + self.noise / spread**2)
        moved: NDArray[np.float64] = mean + matrix.T @ (vectors @ weights)
        return moved


def equations(view: View, shares: Mapping[int, NDArray[np.float64]]) -> dict[int, Equations]:
    """Return the equations of every column of which sums were opened.

    The principals know what each of their rows brings to a sum, its gradient or its class; others
    told what the rows of a node bring to each bin. Bins have ranks.

    Parameters
    ----------
    view : View
    shares : mapping of int to float64 array, shape (bins + 1,)
        Share of the rows up to each bin, by column.
    """
    brought, trees = _brought(view), replayed(view)
    left: dict[tuple[int, int, int], tuple[NDArray[np.int32], NDArray[np.float64]]] = {}
    right: dict[int, dict[tuple[int, int, int], float]] = {}
    for _, m in view.messages(OpenedBinSums):
        if m.tree not in brought or not set(m.columns.tolist()) <= set(shares):
            continue
        statistics, unit = brought[m.tree]
        width = statistics.shape[1]
        ends = np.cumsum([0, *(len(shares[c]) - 1 for c in m.columns.tolist())])
        for node, sums in zip(m.nodes.tolist(), m.sums[..., :width] * unit, strict=True):
            rows = trees[m.tree].rows_of(node)
            mine = statistics[rows]
            length = np.sqrt((mine**2).sum(axis=0))
            for column, a, b in zip(m.columns.tolist(), ends[:-1], ends[1:], strict=True):
                told, share = sums[a:b], shares[column]
                if not np.allclose(told.sum(axis=0), mine.sum(axis=0), rtol=_CLOSE, atol=1e-6):
                    continue  # rows without a value, or labels that are not the true ones
                middle = (share[1:] + share[:-1] - 1) / 2
                for s in np.flatnonzero(length > 0).tolist():
                    key = (m.tree, node, s)
                    left[key] = rows, mine[:, s] / length[s]
                    right.setdefault(column, {})[key] = float(middle @ told[:, s]) / length[s]
    made: dict[tuple[tuple[int, int, int], ...], Rows] = {}
    found = {}
    for column, sums_of in right.items():
        keys = tuple(sums_of)
        if keys not in made:
            made[keys] = _rows([left[key] for key in keys], view.n_rows)
        bins = np.diff(shares[column])
        noise = float((bins**3).sum()) / 12 + 1e-9
        found[column] = Equations(made[keys], np.array(list(sums_of.values())), noise)
    return found


def _rows(parts: Sequence[tuple[NDArray[np.int32], NDArray[np.float64]]], n: int) -> Rows:
    from scipy.sparse import csr_matrix

    starts = np.cumsum([0, *(len(rows) for rows, _ in parts)])
    places, values = (np.concatenate(found) for found in zip(*parts, strict=True))
    return Rows(csr_matrix((values, places, starts), shape=(len(parts), n)))


def _brought(view: View) -> dict[int, tuple[NDArray[np.float64], float]]:
    """Return what every row brings to the sums of a tree, shape (N, s), and the unit of sums."""
    model = next((m for _, m in view.messages(HeldModel)), None)
    labelled = next((h for h in view.own if h.y is not None), None)
    if model is None or labelled is None or labelled.weight is not None:
        return {}
    trees, y = replayed(view), labelled.y
    assert y is not None
    if not model.objective:
        if view.parameters.get("bootstrap"):
            return {}
        one_hot = np.eye(model.value.shape[1])[y.astype(np.int64)]
        return dict.fromkeys(trees, (one_hot, 1.0))
    objective = named_objective(model.objective, len(model.base_margin))
    unit = float(from_fixed(np.array(1), objective.bits(objective.target_sums(y, None))[0]))
    margin = np.repeat(model.base_margin[:, None], len(y), axis=1)
    found: dict[int, tuple[NDArray[np.float64], float]] = {}
    if model.value.ndim == 2:  # one tree for all classes
        return found
    for t in range(len(model.sizes)):
        k = t % len(margin)
        if k == 0:
            gradients = objective.gradients(margin, y).astype(np.float64)
        found[t] = gradients[k], unit
        if t in trees or not _others(view, model, t):
            start = int(model.starts[t])
            margin[k] += model.value[start + _leaves(view, model, t, trees.get(t))]
    return {t: brings for t, brings in found.items() if t in trees}


def _others(view: View, model: HeldModel, t: int) -> bool:
    """Tell whether a tree splits columns that the principals do not hold."""
    start = int(model.starts[t])
    used = model.feature[start : start + int(model.sizes[t])]
    return bool(set(used[used >= 0].tolist()) - {int(c) for h in view.own for c in h.columns})


def _leaves(view: View, model: HeldModel, t: int, known: KnownNodes | None) -> NDArray[np.int64]:
    """Return the leaf of every training row in a tree, int64, shape (N,)."""
    labelled = next(h for h in view.own if h.y is not None)
    place = {int(c): i for i, c in enumerate(labelled.columns)}
    nodes = set() if known is None else set(known.nodes)
    leaf, start = np.zeros(len(labelled), dtype=np.int64), int(model.starts[t])
    waiting = [(0, np.arange(len(labelled)))]
    while waiting:
        node, rows = waiting.pop()
        column, left = int(model.feature[start + node]), int(model.left[start + node])
        if column < 0:
            leaf[rows] = node
            continue
        if column in place:
            x = labelled.X[rows, place[column]]
            below = x < model.threshold[start + node]
            goes = np.where(np.isnan(x), model.default_left[start + node], below)
        elif known is not None and left in nodes:
            goes = np.isin(rows, known.rows_of(left))
        else:
            goes = np.ones(len(rows), dtype=bool)
        waiting += [(left, rows[goes]), (left + 1, rows[~goes])]
    return leaf
