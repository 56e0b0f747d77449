"""Metrics `labels`, `routed-labels` and `class-shares`: inferred labels of rows or clients.

- `labels`: a passive party of a vertical federation has columns of the training rows and infers
  their labels. The metric applies to classification only.
- `routed-labels`: a passive party takes part in predictions by routing rows at its splits. It
  should not learn the labels of these rows.
- `class-shares`: the class distribution of single clients (property inference).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.conditional import between_0_and_1, clusterings, own_columns_of
from fedtrees.core.claims import Claim, ClassShares, Labels, RoutedLabels
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.statistics import middle_ranks
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.metrics.splits import main_direction


@dataclass(frozen=True, eq=False)
class TrueLabels:
    """True classes of the rows that the principals have without labels.

    Attributes
    ----------
    ids : int64 array, shape (n,)
        Row ids in increasing order.
    y : int64 array, shape (n,)
        Class codes.
    classes : int
        Number of classes, K.
    """

    ids: NDArray[np.int64]
    y: NDArray[np.int64]
    classes: int


@register.metric("labels")
class LabelScores(Metric[TrueLabels]):
    """V-measure, adjusted mutual information, accuracy and AUC of inferred labels.

    V-measure (Rosenberg and Hirschberg 2007) and adjusted mutual information (AMI; Vinh et al.
    2010) compare clusters with classes independently of their names. ``label_accuracy`` is the
    share of rows with the right class under the one-to-one assignment of clusters to classes that
    is best for the guess. ``label_auc`` is computed for two classes, and only if the claim contains
    probabilities for all rows.

    The blind baseline is the best of a single cluster, clusterings of the columns of the principals
    and blind attacks, chosen separately for each score with knowledge of the truth. It is therefore
    optimistic.
    """

    of: ClassVar[type[Claim]] = Labels
    before_training: ClassVar[bool] = True
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("v_measure", "V-measure", "score, 0 to 1", slot="guess", head="class grouping",
                decimals=2, severity=180, phrase="sort rows into classes with a V-measure of {}",
                covered_by=("label_accuracy",)),
        Measure("label_accuracy", "label accuracy under the best matching", "share of rows",
                klass="person", slot="rows", short="label accuracy", head="labels inferred",
                counted_by="rows", severity=30, phrase="infer the class of {}"),
        Measure("ami", "adjusted mutual information", "score, at most 1", short="AMI", decimals=2),
        Measure("label_auc", "AUC of labels", "AUC", decimals=3),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("v_measure", "label_accuracy")
    prominence: ClassVar[int] = 1

    def truth(self, case: Case) -> TrueLabels | None:
        """Return the labels of the rows that a principal has without labels.

        Rows whose labels the threat model declares known are omitted. None if no rows remain, the
        target is numeric, or a principal has labels.
        """
        adversary_data = [*case.adversary.values()]
        labelled = [h for h in case.victims.values() if h.y is not None]
        if not adversary_data or not labelled or not case.schema.classes:
            return None
        if any(h.y is not None for h in adversary_data):
            return None
        known_ids = np.unique(np.concatenate([h.ids for h in adversary_data]))
        ids = np.concatenate([h.ids for h in labelled])
        y = np.concatenate([h.y for h in labelled if h.y is not None])
        # Several victims may have labels of one row. The first one is used.
        ids, first = np.unique(ids, return_index=True)
        shared = np.isin(ids, known_ids)
        if case.known_labels is not None:
            shared &= ~np.isin(ids, case.known_labels.ids)
        if not shared.any():
            return None
        return TrueLabels(ids[shared], y[first][shared], len(case.schema.classes))

    def blind(self, case: Case, truth: TrueLabels) -> dict[str, Sequence[Claim]]:
        """Return a single cluster, clusterings of local columns, and claims of blind attacks."""
        n = len(truth.ids)
        even = np.full((n, truth.classes), 1 / truth.classes)
        one_cluster = Labels(truth.ids, np.zeros(n, dtype=np.int64), even)
        guesses: dict[str, Sequence[Claim]] = {
            "one-cluster": [one_cluster],
            **super().blind(case, truth),
        }
        ids, X = own_columns_of(case.blind_view())
        # Clustering needs at least as many rows as clusters.
        count = max(truth.classes, 2)
        if len(ids) >= count and X.shape[1]:
            clusters_by_method = clusterings(X, count, case.blind_rng())
            guesses |= {
                name: [Labels(ids, clusters)] for name, clusters in clusters_by_method.items()
            }
        return guesses

    def refuses(self, claims: Sequence[Labels], case: Case) -> str | None:
        """Refuse several claims, and labels of unknown row ids."""
        truth = self.truth(case)
        if len(claims) > 1:
            return "labels were claimed more than once"
        # Without a truth the claim is not scored, and all ids are accepted. Known labels may be
        # claimed as well, although they are not scored.
        known_ids = claims[0].ids if truth is None else truth.ids
        if case.known_labels is not None:
            known_ids = np.union1d(known_ids, case.known_labels.ids)
        strange = np.setdiff1d(claims[0].ids, known_ids)[:5].tolist()
        return f"labels of unknown ids {strange} were claimed" if strange else None

    def counted(self, truth: TrueLabels) -> int:
        """Return the number of scored rows."""
        return len(truth.ids)

    def score(self, claims: Sequence[Labels], truth: TrueLabels) -> list[Score]:
        """Compute all scores of one claim."""
        from scipy.optimize import linear_sum_assignment
        from sklearn.metrics import adjusted_mutual_info_score, roc_auc_score, v_measure_score
        from sklearn.metrics.cluster import contingency_matrix

        claim = claims[0]
        # Each row without a claim starts as a separate cluster, with a number that is not used.
        cluster = np.arange(len(truth.ids)) + int(claim.cluster.max(initial=0)) + 1
        order = np.argsort(claim.ids)
        position = np.searchsorted(claim.ids[order], truth.ids)
        position = np.minimum(position, max(len(order) - 1, 0))
        has_claim = (
            claim.ids[order][position] == truth.ids if len(order) else np.zeros(len(position), bool)
        )
        cluster[has_claim] = claim.cluster[order][position[has_claim]]
        # The assignment of clusters to classes with most correct labels (Hungarian method).
        table = contingency_matrix(truth.y, cluster)
        matched = table[linear_sum_assignment(-table)].sum()
        auc, clusters = None, "guess" if claim.probability is None else ""
        if (
            claim.probability is not None
            and has_claim.all()
            and len(np.unique(truth.y)) == 2 == truth.classes
        ):
            auc = float(roc_auc_score(truth.y, claim.probability[order][position][:, 1]))
        return [
            Score("v_measure", float(v_measure_score(truth.y, cluster))),
            Score("ami", float(adjusted_mutual_info_score(truth.y, cluster))),
            Score("label_accuracy", float(matched / len(truth.y)), klass=clusters),
            Score("label_auc", auc),
        ]


@dataclass(frozen=True, eq=False)
class AskedRows:
    """True classes of the rows to predict, and the columns of the principals.

    Attributes
    ----------
    y : int64 array, shape (n,)
        Class codes.
    classes : int
        Number of classes, K.
    local_columns : mapping of str to float32 array, shape (n, c)
        Columns of each principal for these rows. If there are several principals, the entry ``all``
        contains the columns of all of them.
    """

    y: NDArray[np.int64]
    classes: int
    local_columns: Mapping[str, NDArray[np.float32]]


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
        local_data = case.adversary
        if case.queried_rows is None or not case.schema.classes or not local_data:
            return None
        if any(h.y is not None for h in local_data.values()) or not len(case.queried_rows):
            return None
        columns = {name: case.queried_rows.X[:, h.columns] for name, h in local_data.items()}
        if len(columns) > 1:
            # Colluding parties can use their columns together.
            columns["all"] = np.hstack(list(columns.values()))
        return AskedRows(case.queried_rows.y.astype(np.int64), len(case.schema.classes), columns)

    def refuses(self, claims: Sequence[RoutedLabels], case: Case) -> str | None:
        """Refuse several claims, and row indices beyond the rows to predict."""
        if len(claims) > 1:
            return "labels of rows to predict were claimed more than once"
        n = 0 if case.queried_rows is None else len(case.queried_rows)
        rows = claims[0].rows
        return f"there are {n} rows to predict" if ((rows < 0) | (rows >= n)).any() else None

    def blind(self, case: Case, truth: AskedRows) -> dict[str, Sequence[Claim]]:
        """Return equal probabilities, orders by local columns, and clusterings of the rows.

        For an order, the rows are sorted by the first principal component of the columns of a
        principal, and each class is centred at one of K equally spaced ranks. The clusterings are
        those of `fedtrees.blind_baselines.conditional.clusterings`.
        """
        n, K = len(truth.y), truth.classes
        rows = np.arange(n)
        guesses: dict[str, Sequence[Claim]] = {"even": [RoutedLabels(rows, np.full((n, K), 1 / K))]}
        for name, X in truth.local_columns.items():
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


#: Smallest number of victims at which the blind adversary is granted shares that are computed from
#: the truth. With one victim, the median is the truth itself. With two, it is their mean.
FEWEST_TOLD = 3


@dataclass(frozen=True, eq=False)
class VictimsClasses:
    """Classes of the victims' rows.

    Attributes
    ----------
    counts : mapping of str to int64 array, shape (K,)
        Number of rows of each class, by victim.
    assumed : float64 array, shape (K,)
        Class shares that are scored for a victim without a claim. With `FEWEST_TOLD` or more
        victims, these are the shares among the rows of all victims. Otherwise they are the shares
        among the local rows of the adversary, or equal shares if it has none.
    """

    counts: Mapping[str, NDArray[np.int64]]
    assumed: NDArray[np.float64]


@register.metric("class-shares")
class ClassSharesMetric(Metric[VictimsClasses]):
    """Mean absolute error of the inferred class shares of single clients.

    ``class_error`` is the absolute difference between claimed and true share of a class at one
    client, averaged over classes and over victims with complete rows (property inference; Ateniese
    et al. 2015). It is 0 for a perfect guess.

    The blind adversary claims the same shares for every victim: the shares among its local rows, or
    equal shares. With three or more victims it is also granted two predictions that are computed
    from the truth: the shares among the rows of all victims, and the shares of least error. With
    one victim, both would be the truth itself.
    """

    of: ClassVar[type[Claim]] = ClassShares
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("class_error", "error of a class's share at one client", "share of rows", 0.0,
                "group", decimals=3, severity=165, short="class share error",
                covered_by=("bin_counts",),
                phrase="estimate the share of each class at one client with an error of {}"),
    )  # fmt: skip

    def truth(self, case: Case) -> VictimsClasses | None:
        """Count the classes of all victims with one or more complete rows.

        None if there is no such victim or the target is numeric.
        """
        # A client without rows has no class shares.
        tables = {n: table for n, table in case.complete.items() if len(table)}
        classes = max(len(case.schema.classes), 2)
        if not tables or not case.schema.classes:
            return None
        counts = {n: np.bincount(t.y, minlength=classes) for n, t in tables.items()}
        if len(counts) >= FEWEST_TOLD:
            return VictimsClasses(counts, _pooled_shares(counts))
        return VictimsClasses(counts, _own_share(case, classes))

    def refuses(self, claims: Sequence[ClassShares], case: Case) -> str | None:
        """Refuse a wrong number of classes, clients that are no victims, and repeated claims."""
        owners, classes = [c.owner for c in claims], max(len(case.schema.classes), 2)
        if len({*owners}) < len(owners):
            return "it claimed the classes of one client twice"
        for c in claims:
            if c.owner not in case.victims or len(c.share) != classes:
                return f"it claimed {len(c.share)} classes of {c.owner!r}; no victim has these"
        return None

    def blind(self, case: Case, truth: VictimsClasses) -> dict[str, Sequence[Claim]]:
        """Return claims of the same shares for every victim, see the class."""
        counts, classes = truth.counts, len(truth.assumed)
        shares = {"own": _own_share(case, classes), "even": np.full(classes, 1 / classes)}
        if len(counts) >= FEWEST_TOLD:
            shares |= {"pooled": _pooled_shares(counts), "median": _least_wrong(counts)}
        return {how: [ClassShares(n, share) for n in counts] for how, share in shares.items()}

    def score(self, claims: Sequence[ClassShares], truth: VictimsClasses) -> list[Score]:
        """Compute the mean error over all victims."""
        claimed = {c.owner: c.share for c in claims}
        off = [
            np.abs(claimed.get(n, truth.assumed) - c / c.sum()).mean()
            for n, c in truth.counts.items()
        ]
        return [Score("class_error", float(np.mean(off)))]


def _own_share(case: Case, classes: int) -> NDArray[np.float64]:
    """Return the class shares among the local rows of the adversary, equal shares without rows."""
    rows = case.blind_view().rows
    if rows is None or not len(rows):
        return np.full(classes, 1 / classes)
    return np.asarray(np.bincount(rows.y, minlength=classes) / len(rows))


def _least_wrong(counts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the shares with the least mean absolute error over all victims.

    Without the condition that the shares sum to 1, these are the medians over the victims. With the
    condition, they are the same quantile of every class, at the level at which the quantiles sum to
    1 (by the Lagrange multiplier of the sum). The level is found by bisection.
    """
    shares, low, high = np.array([c / c.sum() for c in counts.values()]), 0.0, 1.0

    def quantiles(level: float) -> NDArray[np.float64]:
        shares_at_level: NDArray[np.float64] = np.quantile(
            shares, level, axis=0, method="inverted_cdf"
        )
        return shares_at_level

    # 50 bisections reduce the interval of levels to 2^-50. Quantiles are step functions, so that
    # the sum may jump over 1. The shares are then interpolated between both sides of the jump.
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if quantiles(middle).sum() < 1 else (low, middle)
    below, above = quantiles(low), quantiles(high)
    gap = above.sum() - below.sum()
    shares_at_level = below + (above - below) * ((1 - below.sum()) / gap if gap > 0 else 0.0)
    return np.asarray(shares_at_level / shares_at_level.sum())


def _pooled_shares(counts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the class shares among the rows of all victims."""
    together = np.sum([*counts.values()], axis=0)
    return np.asarray(together / together.sum(), dtype=np.float64)
