"""The attacks `asked-labels` and `routed-labels`, on the predictions of a vertical model.

`asked-labels` queries a prediction endpoint with the training rows. `routed-labels` infers the
labels of rows from the way they are routed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedtrees.attacks.labels.attack import Clusters, LabelMixture, LeafView, leaf_view
from fedtrees.attacks.labels.evidence import Columns, no_leaves, own_columns
from fedtrees.attacks.labels.graph_methods import spread
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Labels, RoutedLabels
from fedtrees.core.endpoint import Oracle
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import KnownNodes, RowsToRoute, replayed, routed


@register.attack("asked-labels")
@dataclass(frozen=True, kw_only=True)
class AskedLabels(Attack):
    """Infer labels from the predictions of training rows, and propagate them to further rows.

    A party with columns of the training rows sends queries with their ids and the values of its
    columns. The other parties add their values (``passive[queries=1000,records=held]``). The
    predictions are close to the labels, because the model was fitted to them. Labels of rows beyond
    the budget follow from the record-id graph and the splits, as in `few-shot`.
    """

    claims = (Labels,)

    threats: ClassVar[tuple[str, ...]] = ("passive[queries=1000,records=held]",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the attack does not apply, None if it does.

        It needs an endpoint that completes training rows and returns predictions instead of leaf
        ids, and rows of which the principals do not know the labels.
        """
        if view.oracle is None:
            return Reason("no-endpoint", threat="queries=1000,records=held")
        if view.oracle.records != "held":
            return Reason("no-records-held", threat="records=held")
        if view.oracle.answers == "leaf-ids":
            return Reason("endpoint-answers", answers="leaf ids")
        if own_columns(view) is None:
            return Reason("no-unlabelled-rows")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Query random training rows up to the budget, and infer the labels of all rows.

        Parameters
        ----------
        view : View
            Contains the endpoint (``view.oracle``).
        rng : numpy.random.Generator
            Draws the rows to query.

        Returns
        -------
        guess : Guess
            `Labels` with class probabilities. The guess is empty if the attack does not apply.
        """
        mixture = LabelMixture()
        seen = leaf_view(view, mixture.single, mixture.decay)
        if seen is None or view.oracle is None:
            return Guess.none(self.inapplicable(view) or Reason("no-unlabelled-rows"))
        drawn = np.sort(rng.permutation(len(seen.columns.ids))[: view.oracle.left])
        answers = _answers(view.oracle, seen.columns, drawn, seen.classes)
        answered = np.zeros((len(seen.twins.weight), seen.classes))
        np.add.at(answered, seen.twins.of_row[drawn], answers)
        shares = spread(seen.twins, answered)[seen.twins.of_row]
        # Average the propagated labels with the most probable ones given the splits.
        if 0 < len(drawn) < len(shares) and seen.leaves.shape[1]:
            sure = np.full(len(shares), -1)
            sure[drawn] = answers.argmax(axis=1)
            climbed = mixture.climb(seen, [shares.argmax(axis=1)], sure, rng)
            shares = (shares + np.eye(seen.classes)[climbed]) / 2
        shares[drawn] = answers
        return Guess((Labels(seen.columns.ids, shares.argmax(axis=1), shares),))


def _answers(
    oracle: Oracle, columns: Columns, drawn: NDArray[np.intp], classes: int
) -> NDArray[np.float64]:
    """Query the endpoint about the drawn rows. Return class probabilities, shape (n, K)."""
    X = np.full((len(drawn), oracle.width or 0), np.nan, dtype=np.float32)
    X[:, columns.positions] = columns.X[drawn]
    outputs = oracle.query(X, columns.ids[drawn])
    if oracle.answers == "label":
        return np.eye(classes)[outputs]
    return np.stack([1 - outputs, outputs], axis=1) if outputs.ndim == 1 else np.asarray(outputs)


_PSEUDO_ROWS = 2.0  # rows with the overall class shares that are added to every node


@register.attack("routed-labels")
@dataclass(frozen=True, kw_only=True)
class RoutedRows(LabelMixture):  # type: ignore[misc]
    """Infer the labels of rows to predict from the training rows that reached the same nodes.

    During prediction, a party routes rows at the splits on its columns. It learns which nodes the
    rows reach, and knows which training rows reached them. The attack first infers the labels of
    the training rows (`label-mixture`). The class rates of the deepest visible nodes of all trees
    then classify the rows to predict (naive Bayes).
    """

    claims = (RoutedLabels,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the attack does not apply: no visible leaves, or no rows to predict."""
        why = no_leaves(view)
        if why is None and not any(True for _ in view.messages(RowsToRoute)):
            return Reason("no-routed-rows")
        return why

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return class probabilities of every routed row.

        Parameters
        ----------
        view : View
            Messages of the training and of the prediction.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        guess : Guess
            `RoutedLabels`, empty if no rows were routed.
        """
        seen = leaf_view(view, self.single, self.decay)
        if seen is None or not seen.leaves.shape[1]:
            return Guess.none(self.inapplicable(view) or Reason("no-record-ids"))
        labels = self.clusters(seen, rng)
        why = self.inapplicable(view) or Reason("no-routed-rows")
        return Guess.of(_claims(seen, labels), otherwise=why)


def _claims(seen: LeafView, labels: Clusters) -> Iterator[RoutedLabels]:
    trees, one_hot = replayed(seen.view), np.eye(seen.classes)[labels]
    # Nodes of one tree lie on a path, so that only the deepest node per tree and row counts.
    overall = one_hot.mean(axis=0)
    deepest: dict[tuple[int, int], tuple[int, int]] = {}  # of a tree and a row: depth and node
    for tree, node, rows in _rows_at_nodes(seen.view, trees):
        depth = _depth(node, trees[tree])
        for row in rows.tolist():
            if depth > deepest.get((tree, row), (-1, 0))[0]:
                deepest[tree, row] = depth, node
    if not deepest:
        return
    rates: dict[tuple[int, int], NDArray[np.float64]] = {}
    places = np.unique([row for _, row in deepest])
    logits = np.tile(np.log(overall + 1e-9), (len(places), 1))
    for (tree, row), (_, node) in deepest.items():
        if (tree, node) not in rates:
            inside = one_hot[trees[tree].rows_of(node)]
            share = (inside.sum(axis=0) + _PSEUDO_ROWS * overall) / (len(inside) + _PSEUDO_ROWS)
            rates[tree, node] = np.log((share + 1e-9) / (overall + 1e-9))
        logits[np.searchsorted(places, row)] += rates[tree, node]
    yield RoutedLabels(places, softmax(logits, axis=1))


def _rows_at_nodes(
    view: View, trees: dict[int, KnownNodes]
) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
    """Yield tree, node and rows, for nodes at which rows are routed and for their children."""
    for tree, node, rows, goes in routed(view):
        # The children are visible, too, because the answer shows which rows go left.
        left = trees[tree].left.get(node) if tree in trees else None
        if left is not None:
            yield tree, node, rows
            yield tree, left, rows[goes]
            yield tree, left + 1, rows[~goes]


def _depth(node: int, tree_nodes: KnownNodes) -> int:
    """Return the number of splits above a node."""
    parent = {child: at for at, left in tree_nodes.left.items() for child in (left, left + 1)}
    depth = 0
    while node in parent:
        node, depth = parent[node], depth + 1
    return depth
