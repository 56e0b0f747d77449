"""Metric `routed-labels`: inferred labels of rows that a vertical model is asked to predict.

A passive party takes part in the prediction by routing rows at its splits. It should not learn
their labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, RoutedLabels
from fedtrees.core.registry import register
from fedtrees.core.statistics import middle_ranks
from fedtrees.guessing.clusters import between_0_and_1, clusterings
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.metrics.orders import main_direction


@dataclass(frozen=True, eq=False)
class AskedRows:
    """True classes of the rows to predict, and the columns of the principals.

    Attributes
    ----------
    y : int64 array, shape (n,)
        Class codes.
    classes : int
        Number of classes, K.
    own : mapping of str to float32 array, shape (n, c)
        Columns of each principal for these rows.
    """

    y: NDArray[np.int64]
    classes: int
    own: Mapping[str, NDArray[np.float32]]


@register.metric("routed-labels")
class RoutedLabelScores(Metric[AskedRows]):
    """Accuracy and AUC of inferred labels of rows that a party routes during prediction.

    An attack does not claim which class is which. ``routed_accuracy`` is therefore the share of
    correct labels under the assignment of class names that is best for the guess, and
    ``routed_auc``, which is computed for two classes, is at least 0.5. The same holds for the blind
    guesses. A row without a claim gets equal probabilities.
    """

    of: ClassVar[type[Claim]] = RoutedLabels
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("routed_accuracy", "label accuracy on rows to predict", "share of rows",
                klass="person", slot="rows", short="accuracy on new rows",
                head="labels of new rows inferred", severity=40,
                phrase="infer the class of {} of the rows to predict"),
        Measure("routed_auc", "AUC on rows to predict", "AUC", decimals=3),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("routed_auc", "routed_accuracy")

    def truth(self, case: Case) -> AskedRows | None:
        """Return the rows to predict.

        None if there are none, the target is numeric, or the principals have labels or no data.
        """
        local_data = {n: case.local_data[n] for n in case.principals if n in case.local_data}
        if case.asked is None or not case.schema.classes or not local_data:
            return None
        if any(h.y is not None for h in local_data.values()) or not len(case.asked):
            return None
        columns = {name: case.asked.X[:, h.columns] for name, h in local_data.items()}
        return AskedRows(case.asked.y.astype(np.int64), len(case.schema.classes), columns)

    def refuses(self, claims: Sequence[RoutedLabels], case: Case) -> str | None:
        """Refuse several claims, and row indices beyond the rows to predict."""
        if len(claims) > 1:
            return "labels of rows to predict were claimed more than once"
        n = 0 if case.asked is None else len(case.asked)
        rows = claims[0].rows
        return f"there are {n} rows to predict" if ((rows < 0) | (rows >= n)).any() else None

    def blind(self, case: Case, truth: AskedRows) -> dict[str, Sequence[Claim]]:
        """Return equal probabilities, orders by local columns, and clusterings of the rows.

        For an order, the rows are sorted by the first principal component of the columns of a
        principal, and each class is centred at one of K equally spaced ranks. The clusterings are
        those of `fedtrees.guessing.clusters.clusterings`.
        """
        n, K = len(truth.y), truth.classes
        rows = np.arange(n)
        guesses: dict[str, Sequence[Claim]] = {"even": [RoutedLabels(rows, np.full((n, K), 1 / K))]}
        for name, X in truth.own.items():
            if X.shape[1]:
                rank = middle_ranks(main_direction(X))
                centres = (np.arange(K) + 0.5) / K
                # Probabilities decrease with the squared distance to the centre of a class.
                affinity = np.exp(-((rank[:, None] - centres) ** 2) * K * K)
                guesses[f"columns-of-{name}"] = [
                    RoutedLabels(rows, affinity / affinity.sum(axis=1, keepdims=True))
                ]
            scaled = between_0_and_1(X)
            if scaled.shape[1] and n >= max(K, 2):
                for how, cluster in clusterings(scaled, max(K, 2), case.blind_rng()).items():
                    guesses[f"{how}-of-{name}"] = [RoutedLabels(rows, np.eye(max(K, 2))[cluster])]
        return {**guesses, **super().blind(case, truth)}

    def score(self, claims: Sequence[RoutedLabels], truth: AskedRows) -> list[Score]:
        """Compute accuracy and AUC of one claim. The AUC is None unless both classes occur."""
        from scipy.optimize import linear_sum_assignment
        from sklearn.metrics import roc_auc_score

        K = truth.classes
        p = np.full((len(truth.y), max(K, claims[0].probability.shape[1])), 1 / K)
        p[claims[0].rows, : claims[0].probability.shape[1]] = claims[0].probability
        # Confusion matrix of the most probable class, for the best assignment of class names.
        table = np.zeros((p.shape[1], K))
        np.add.at(table, (p.argmax(axis=1), truth.y), 1.0)
        right = table[linear_sum_assignment(-table)].sum() / len(truth.y)
        auc = None
        if len(np.unique(truth.y)) == 2 == K:
            auc = float(roc_auc_score(truth.y, p[:, 1]))
            auc = max(auc, 1 - auc)
        return [Score("routed_auc", auc), Score("routed_accuracy", float(right))]
