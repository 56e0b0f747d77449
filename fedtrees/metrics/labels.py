"""Metric `labels`: inferred labels of rows whose features the adversary has.

In vertical federated learning, a passive party has columns of the training rows, but no labels. The
metric applies to classification only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, Labels
from fedtrees.core.registry import register
from fedtrees.guessing.clusters import clusterings, own_columns_of
from fedtrees.metrics.metric import Case, Metric, Score


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
                beside=("label_accuracy",)),
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
        adversary_data = [case.local_data[p] for p in case.principals if p in case.local_data]
        if (
            not adversary_data
            or not case.schema.classes
            or any(h.y is not None for h in adversary_data)
        ):
            return None
        known_ids = np.unique(np.concatenate([h.ids for h in adversary_data]))
        labelled = [h for h in case.victims.values() if h.y is not None]
        if not labelled:
            return None
        ids = np.concatenate([h.ids for h in labelled])
        y = np.concatenate([h.y for h in labelled if h.y is not None])
        # Several victims may have labels of one row. The first one is used.
        ids, first = np.unique(ids, return_index=True)
        shared = np.isin(ids, known_ids)
        if case.known is not None:
            shared &= ~np.isin(ids, case.known.ids)
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
        if case.known is not None:
            known_ids = np.union1d(known_ids, case.known.ids)
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
