"""Attack `path-restriction`: infer on which side of other parties' splits the queried rows went.

The adversary is the active party of a vertical federation. It has its columns of the rows whose
predictions it requested, the trees without the thresholds of other parties, and the answers of the
endpoint. `Paths` enumerates the possible paths of a row through the trees. A path is consistent if,
for each column of another party, some bin satisfies all splits on the path.
`fedtrees.blind_baselines.conditional` compares rows with training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.queries.endpoint import Endpoint
from fedtrees.blind_baselines.conditional import NearRows
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Branches, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel, RoutesOfRows, RowBuckets, replayed, routed
from fedtrees.trees.boosted.losses import named_objective

# Upper limit of the paths per row. Beyond it, only the most probable paths are kept.
_MOST_WAYS = 2**15
_ABOVE_ALL = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Ways:
    """M paths of one row through some trees.

    Attributes
    ----------
    leaves : int32 array, shape (M, T)
        Leaf in every tree, numbered within the tree.
    low, high : int32 array, shape (M, c)
        Interval of the row's bin in each of the c columns of other parties: ``low`` included,
        ``high`` excluded.
    odds : float64 array, shape (M,)
        Prior log probability of each path, in nats.
    total : float64 array, shape (M,)
        Sum of the leaf values, 0 if leaf values are vectors.
    complete : bool
        Whether no path was discarded because of `_MOST_WAYS`.
    """

    leaves: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    odds: NDArray[np.float64]
    total: NDArray[np.float64]
    complete: bool = True

    def take(self, positions: NDArray[np.intp], complete: bool) -> Ways:
        """Return the paths at the given positions."""
        return Ways(
            self.leaves[positions],
            self.low[positions],
            self.high[positions],
            self.odds[positions],
            self.total[positions],
            complete,
        )


class Paths:
    """Enumerate paths of rows and compute the probabilities of branches.

    Parameters
    ----------
    model : HeldModel
        Trees as the active party knows them.
    is_foreign : bool array, shape (n_nodes,)
        Nodes at which other parties split.
    share_bins : bool
        Whether the bins of a column are the same at all nodes. If not, each node counts as a
        separate column.
    values : float64 array, shape (n_nodes,)
        Contribution of each leaf to the sum from which the score is computed.
    """

    def __init__(
        self,
        model: HeldModel,
        is_foreign: NDArray[np.bool_],
        share_bins: bool,
        values: NDArray[np.float64],
    ) -> None:
        self.model, self.is_foreign, self.values = model, is_foreign, values
        nodes = np.flatnonzero(is_foreign)
        columns = model.feature[nodes] if share_bins else nodes
        self.column = np.full(len(is_foreign), -1)
        # Number the columns (or nodes) that have an interval of bins.
        names, self.column[nodes] = np.unique(columns, return_inverse=True)
        self.width = len(names)

    def of_row(
        self,
        local_sides: NDArray[np.int8],
        left: NDArray[np.float64],
        fits: Callable[[NDArray[np.float64], float, float], NDArray[np.bool_]],
    ) -> Ways:
        """Return the paths that a row may take through all trees.

        Parameters
        ----------
        local_sides : int8 array, shape (n_nodes,)
            Side at splits on the adversary's columns: 1 for left, 0 for right.
        left : float64 array, shape (n_nodes,)
            Probability of going left at splits of other parties.
        fits : callable
            Receives the sums so far, and the smallest and largest sum that the remaining trees can
            add. Returns a bool array: whether the answer can still be reached.

        Returns
        -------
        ways : Ways
            Consistent paths, at most `_MOST_WAYS`.
        """
        tree_ways = [self._of_tree(t, local_sides, left) for t in range(len(self.model.sizes))]
        least, greatest = (
            np.cumsum([0.0, *(end(w.total) for w in tree_ways[::-1])])[::-1]
            for end in (np.min, np.max)
        )
        ways = tree_ways[0]
        for t, more in enumerate(tree_ways):
            ways = ways if t == 0 else _join_paths(ways, more)
            retained = np.flatnonzero(fits(ways.total, least[t + 1], greatest[t + 1]))
            complete = len(retained) <= _MOST_WAYS
            if not complete:
                retained = retained[np.argpartition(-ways.odds[retained], _MOST_WAYS)[:_MOST_WAYS]]
            ways = ways.take(retained, ways.complete and complete)
        return ways

    def _of_tree(self, t: int, local_sides: NDArray[np.int8], left: NDArray[np.float64]) -> Ways:
        """Return the paths of a row through one tree by a depth-first search."""
        m, start, rows = self.model, int(self.model.starts[t]), []
        box = np.tile(np.array([[0], [_ABOVE_ALL]], dtype=np.int32), (1, self.width))
        stack = [(0, box, 0.0)]
        while stack:
            node, box, odds = stack.pop()
            at = start + node
            if m.feature[at] < 0:
                rows.append((node, box, odds, self.values[at]))
            elif not self.is_foreign[at]:
                stack.append((int((m.left if local_sides[at] else m.right)[at]), box, odds))
            else:
                c, cut = self.column[at], np.int32(m.threshold[at])
                # A split at bin c limits the row's bin from above on the left (`high`) and from
                # below on the right (`low`).
                for child, end, p in ((m.left, 1, left[at]), (m.right, 0, 1 - left[at])):
                    part = box.copy()
                    part[end, c] = (np.minimum if end else np.maximum)(part[end, c], cut)
                    if part[0, c] < part[1, c]:
                        stack.append((int(child[at]), part, odds + np.log(max(p, 1e-9))))
        leaf, boxes, logs, added = zip(*rows, strict=True)
        ends = np.array(boxes)
        leaves = np.array(leaf, dtype=np.int32)[:, None]
        return Ways(leaves, ends[:, 0], ends[:, 1], np.array(logs), np.array(added))

    def branches(self, ways: Ways, odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that the row goes left at each node, float64, shape (n_nodes,).

        Parameters
        ----------
        ways : Ways
            Paths of the row.
        odds : float64 array, shape (M,)
            Log probabilities of the paths, in nats, up to a constant.

        Returns
        -------
        left : float64 array, shape (n_nodes,)
            Conditional on the row reaching the node. NaN if it cannot reach the node.
        """
        m, p = self.model, np.exp(odds - odds.max())
        out = np.full(len(m.feature), np.nan)
        for t, start in enumerate(m.starts.tolist()):
            size = int(m.sizes[t])
            # The probability of a node is the sum over its children.
            mass = np.bincount(ways.leaves[:, t], weights=p, minlength=size)
            for node in range(size - 1, -1, -1):  # children have greater numbers
                if m.feature[start + node] >= 0:
                    a, b = (mass[int(c[start + node])] for c in (m.left, m.right))
                    mass[node] = a + b
                    out[start + node] = a / (a + b) if a + b > 0 else np.nan
        return out


def _join_paths(ways: Ways, more: Ways) -> Ways:
    """Return all pairs of paths that some bin of every column satisfies together."""
    low = np.maximum(ways.low[:, None], more.low[None])
    high = np.minimum(ways.high[:, None], more.high[None])
    i, j = np.nonzero((low < high).all(axis=2))
    return Ways(
        np.hstack([ways.leaves[i], more.leaves[j]]),
        low[i, j],
        high[i, j],
        ways.odds[i] + more.odds[j],
        ways.total[i] + more.total[j],
        ways.complete,
    )


#: Weight of an answer without noise in the distance between rows. Each local column has weight 1,
#: and the answer has this weight times their number. Under noise, the weight is multiplied by the
#: squared share of signal in the variance of the answers.
_WEIGHT = 1.0


@register.attack("path-restriction")
@dataclass(frozen=True, kw_only=True)
class PathRestriction(Attack):
    """Infer the branches of rows to predict (path restriction: Luo et al. 2021, Sec. IV-B).

    The adversary's columns exclude some paths of a row through each tree. The answer of the
    endpoint leaves those combinations of paths whose leaf values add up to it. The published attack
    handles one tree and draws one of its paths that lead to the answered class.

    This implementation weighs paths by the branches of the most similar training rows, requires
    that the bins of a column agree between trees, uses the channel of the scores, and claims each
    branch with its probability over all paths. If the view contains the routing of the rows, the
    claims repeat that routing.
    """

    claims = (Branches,)

    supports_regression: ClassVar[bool] = True

    threats: ClassVar[tuple[str, ...]] = (
        "active[queries=1000,records=new]",
        "active[queries=1000,records=new,answers=label]",
    )

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there are no foreign splits or no rows to predict, None if there are."""
        model = next((m for _, m in view.messages(HeldModel)), None)
        if model is None:
            return Reason("no-tree-splits")
        if not _foreign_nodes(view, model).any():
            return Reason("no-others-splits")
        if any(True for _ in view.messages(RoutesOfRows)):
            return None
        if view.oracle is None or view.queried_rows is None:
            return Reason("no-endpoint", threat="queries=1000,records=new")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim the branches that messages show, or else the branches inferred from answers.

        Parameters
        ----------
        view : View
            Messages of the active party, and its endpoint.
        rng : numpy.random.Generator
            Not used. The attack is deterministic.

        Returns
        -------
        guess : Guess
            One claim of type `Branches`, with a probability per row and split. Diagnostics:
            ``routed`` is the number of rows whose routing was seen, ``fitting`` the number of rows
            with a path that explains the answer, ``whole`` the number of rows for which no path was
            discarded, and ``ways`` the mean number of paths per row.
        """
        model = next((m for _, m in view.messages(HeldModel)), None)
        if model is None:
            return Guess.none(Reason("no-tree-splits"))
        nodes = np.flatnonzero(_foreign_nodes(view, model))
        rows, left = _routed_rows(view, model)
        notes = {"routed": float(len(rows))}
        if len(rows):
            notes["branches_of_a_row"] = float((~np.isnan(left)).sum(axis=1).mean())
        if not len(rows) and view.oracle is not None and view.queried_rows is not None:
            rows, left, notes = _query_rows(view, model)
        tree = np.searchsorted(model.starts, nodes, side="right") - 1
        if not len(rows):
            return Guess.none(Reason("no-records-answered"), notes)
        claim = Branches(rows, tree, nodes - model.starts[tree], left[:, nodes])
        return Guess((claim,), notes)


def _foreign_nodes(view: View, model: HeldModel) -> NDArray[np.bool_]:
    """Return at which nodes another party splits by a bin, bool, shape (n_nodes,).

    Splits that only separate missing values are excluded.
    """
    own_columns = np.concatenate([h.columns for h in view.local_data])
    return (model.feature >= 0) & ~np.isin(model.feature, own_columns) & (model.threshold >= 1)


def _routed_rows(view: View, model: HeldModel) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows whose routing was seen, and their sides (1: left), shape (m, n_nodes)."""
    seen_routes = [
        (int(model.starts[t]) + node, rows, goes) for t, node, rows, goes in routed(view)
    ]
    rows = np.unique(np.concatenate([np.zeros(0, np.int64), *(r for _, r, _ in seen_routes)]))
    left = np.full((len(rows), len(model.feature)), np.nan)
    for at, places, goes in seen_routes:
        left[np.searchsorted(rows, places), at] = goes
    return rows.astype(np.int64), left


def _query_rows(
    view: View, model: HeldModel
) -> tuple[NDArray[np.int64], NDArray[np.float64], dict[str, float]]:
    """Query as many rows as the budget allows and return the probabilities that they go left.

    Returns
    -------
    ids : int64 array, shape (n_rows,)
        Identifiers of all rows to predict, including rows beyond the budget.
    left : float64 array, shape (n_rows, n_nodes)
        Probability of going left at each node. Rows beyond the budget have the prior of `_before`.
    notes : dict of str to float
        Diagnostics of the guess.
    """
    assert view.oracle is not None
    assert view.queried_rows is not None
    query_rows, hidden_nodes = view.queried_rows, _foreign_nodes(view, model)
    n = min(view.oracle.left, len(query_rows))
    X = np.full((n, len(view.schema.features)), np.nan, dtype=np.float32)
    X[:, query_rows.columns] = query_rows.X[:n]
    answers = view.oracle.query(X, query_rows.ids[:n]) if n else np.zeros(0)
    endpoint, sums = Endpoint(view, model), _Sums(model)
    prior = _before(view, endpoint, hidden_nodes, answers)
    own_sides = np.array([_local_sides(model, x) for x in X]).reshape(n, len(model.feature))
    if view.oracle.answers == "leaf-ids":
        parents = [_way(model, np.asarray(leaves)) for leaves in answers]
        left = np.array(parents + [prior[i] for i in range(n, len(query_rows))])
        return query_rows.ids, left, {"fitting": float(n)}
    global_candidates = view.parameters.get("candidates", "global") == "global"
    paths = Paths(model, hidden_nodes, global_candidates, sums.values)
    fitting, n_complete, n_paths = 0, 0, 0
    for i in range(n):
        # If the score is one number, its interval excludes sums of leaf values early, which limits
        # the number of paths.
        window = endpoint.window(answers[i]) if sums.single else (-np.inf, np.inf)
        reach = partial(sums.reach, window=window)
        ways = paths.of_row(own_sides[i], prior[i], reach)
        if not len(ways.odds):
            continue
        odds = ways.odds + endpoint.fit(endpoint.score_leaves(ways.leaves), answers[i : i + 1])
        # No path explains the answer, for example because a required path was discarded. The prior
        # stays.
        if np.isneginf(odds.max()):
            continue
        branch_chances = paths.branches(ways, odds)
        prior[i] = np.where(np.isnan(branch_chances), prior[i], branch_chances)
        fitting, n_complete, n_paths = (
            fitting + 1,
            n_complete + ways.complete,
            n_paths + np.isfinite(odds).sum(),
        )
    notes = {"fitting": fitting, "whole": n_complete, "ways": n_paths / max(fitting, 1)}
    return query_rows.ids, prior, {k: float(v) for k, v in notes.items()}


class _Sums:
    """Relation between the sum of leaf values and the score, if the score is one number."""

    def __init__(self, model: HeldModel) -> None:
        self.model, value = model, model.value
        self.single = value.ndim == 1 and len(model.base_margin) == 1
        self.forest = not model.objective and value.ndim == 2 and value.shape[1] == 2
        self.values = np.zeros(len(model.feature))
        if self.single or self.forest:
            self.values = (value if self.single else value[:, 1]).astype(np.float64)
        self.single |= self.forest

    def reach(
        self,
        so_far: NDArray[np.float64],
        least: float,
        greatest: float,
        window: tuple[float, float],
    ) -> NDArray[np.bool_]:
        """Return which partial sums can still lead to a score within a window.

        Parameters
        ----------
        so_far : float64 array, shape (M,)
            Sums of the leaf values of the trees so far.
        least, greatest : float
            Smallest and largest sum that the remaining trees can add.
        window : tuple of float
            Lower and upper end of the score.

        Returns
        -------
        reachable : bool array, shape (M,)
        """
        if not self.single:
            return np.ones(len(so_far), dtype=bool)
        low, high = (self._score(so_far + more) for more in (least, greatest))
        return (high >= window[0]) & (low <= window[1])

    def _score(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the score of a margin sum, or of a sum of class-1 probabilities of a forest."""
        if self.forest:
            return total / len(self.model.sizes)
        margin = (total + self.model.base_margin[0]).astype(np.float32)[None]
        return named_objective(self.model.objective, 1).predict(margin)


def _before(
    view: View, endpoint: Endpoint, hidden_nodes: NDArray[np.bool_], answers: NDArray[Any]
) -> NDArray[np.float64]:
    """Return the prior probability that rows to predict go left, float64, shape (n, n_nodes).

    The probability is the share of the most similar training rows that went left. Similarity is
    measured on the adversary's columns and on the answer. For a training row, the answer is
    computed from its leaves. Rows that were not queried are compared by the columns only.
    """
    assert view.queried_rows is not None
    model, own_values, query_values = (
        endpoint.model,
        np.hstack([h.X for h in view.local_data]),
        view.queried_rows.X,
    )
    goes = _training_sides(view, model, hidden_nodes)
    out = np.full((len(query_values), len(model.feature)), np.nan)
    near = [(slice(len(answers), None), NearRows(own_values, query_values[len(answers) :]))]
    if len(answers) and view.oracle is not None and view.oracle.answers != "leaf-ids":
        leaves = _reached_leaves(model, goes)
        both_answers = [endpoint.answer_leaves(leaves), np.asarray(answers)]
        train, new = (
            np.hstack([X, t.reshape(len(t), -1)])
            for X, t in zip((own_values, query_values[: len(answers)]), both_answers, strict=True)
        )
        weight = np.ones(train.shape[1])
        # A Laplace distribution of scale b has the variance 2 b^2.
        signal_share = both_answers[0].var() / max(
            both_answers[0].var() + 2 * endpoint.scale**2, 1e-12
        )
        weight[own_values.shape[1] :] = _WEIGHT * own_values.shape[1] * signal_share**2
        near.append((slice(0, len(answers)), NearRows(train, new, weight)))
    for at in np.flatnonzero(hidden_nodes).tolist():
        for rows, like in near:
            out[rows, at] = like.left(goes[:, at])
    return out


def _training_sides(
    view: View, model: HeldModel, hidden_nodes: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Return the side of each training row at every node, int8, shape (N, n_nodes).

    1 is left and 0 is right. -1 means that the row did not reach the node or that its side is
    unknown.
    """
    X = np.full((len(view.local_data[0].ids), len(view.schema.features)), np.nan, dtype=np.float32)
    for h in view.local_data:
        X[:, h.columns] = h.X
    goes = np.array([_local_sides(model, x) for x in X])
    # The sides at hidden nodes are known from the routing during training, not from values.
    goes[:, hidden_nodes], seen = -1, replayed(view)
    for at in np.flatnonzero(hidden_nodes).tolist():
        t = int(np.searchsorted(model.starts, at, side="right")) - 1
        left = seen[t].left.get(at - int(model.starts[t])) if t in seen else None
        if left is not None:
            goes[seen[t].rows_of(left), at], goes[seen[t].rows_of(left + 1), at] = 1, 0
    for _, buckets in view.messages(RowBuckets):
        for column, bins in zip(buckets.columns.tolist(), buckets.bins, strict=True):
            nodes = np.flatnonzero(hidden_nodes & (model.feature == column))
            goes[:, nodes] = np.where(
                bins[:, None] < 0, model.default_left[nodes], bins[:, None] < model.threshold[nodes]
            )
    return goes


def _reached_leaves(model: HeldModel, goes: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return the leaves of rows from their sides, int64, shape (n, T).

    A row whose side is unknown is sent to the right.
    """
    leaves = np.zeros((len(goes), len(model.sizes)), dtype=np.int64)
    for t, start in enumerate(model.starts.tolist()):
        inner = np.ones(len(goes), dtype=bool)
        while inner.any():
            at = start + leaves[inner, t]
            side = goes[inner, at] == 1
            leaves[inner, t] = np.where(side, model.left[at], model.right[at])
            inner = model.feature[start + leaves[:, t]] >= 0
    return leaves


def _local_sides(model: HeldModel, x: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the sides at splits on the adversary's columns (1: left), int8, shape (n_nodes,)."""
    value = x[np.maximum(model.feature, 0)]
    goes: NDArray[Any] = np.where(np.isnan(value), model.default_left, value < model.threshold)
    return goes.astype(np.int8)


def _way(model: HeldModel, leaves: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return the sides on the paths to the given leaves, float64, shape (n_nodes,).

    1 is left, 0 is right, and NaN marks nodes that are not on the path.
    """
    out = np.full(len(model.feature), np.nan)
    for start, size, leaf in zip(model.starts, model.sizes, leaves, strict=True):
        node = int(leaf)
        # Children have larger numbers than their parents. One pass from the last node to the root
        # therefore finds all ancestors.
        for at in range(int(start + size) - 1, int(start) - 1, -1):
            if model.feature[at] >= 0 and node in (model.left[at], model.right[at]):
                out[at], node = node == model.left[at], at - int(start)
    return out
