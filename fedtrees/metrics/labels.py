"""Labels of rows that somebody knows by id: guessed clusters against true classes."""

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
    """Class codes of the rows that principals know without labels.

    `ids`: int64 array, shape (n,), ascending
    `y`: int64 array, shape (n,)
    """

    ids: NDArray[np.int64]
    y: NDArray[np.int64]
    classes: int


@register.metric("labels")
class LabelScores(Metric[TrueLabels]):
    """V-measure, adjusted mutual information and accuracy under the best matching.

    V-measure (Rosenberg and Hirschberg 2007) and AMI (Vinh et al. 2010) compare clusters with
    classes whatever they are called; ``label_accuracy`` names every cluster after one class, the
    assignment that is best for the guess. ``label_auc`` (two classes) needs probabilities. The
    blind baseline is the best of all clusterings of own columns, by each score, with the truth in
    hand.
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
        """Return the labels of rows that a principal holds without them; None if there are none.

        Rows whose labels the threat declares known are left out.
        """
        own = [case.local_data[p] for p in case.principals if p in case.local_data]
        if not own or not case.schema.classes or any(h.y is not None for h in own):
            return None
        known = np.unique(np.concatenate([h.ids for h in own]))
        labelled = [h for h in case.victims.values() if h.y is not None]
        if not labelled:
            return None
        ids = np.concatenate([h.ids for h in labelled])
        y = np.concatenate([h.y for h in labelled if h.y is not None])
        ids, first = np.unique(ids, return_index=True)
        shared = np.isin(ids, known)
        if case.known is not None:
            shared &= ~np.isin(ids, case.known.ids)
        if not shared.any():
            return None
        return TrueLabels(ids[shared], y[first][shared], len(case.schema.classes))

    def blind(self, case: Case, truth: TrueLabels) -> dict[str, Sequence[Claim]]:
        """Return one cluster for all, clusters of own columns, and what blind attacks claim."""
        n = len(truth.ids)
        even = np.full((n, truth.classes), 1 / truth.classes)
        alike = Labels(truth.ids, np.zeros(n, dtype=np.int64), even)
        found: dict[str, Sequence[Claim]] = {"one-cluster": [alike], **super().blind(case, truth)}
        ids, X = own_columns_of(case.blind_view())
        count = max(truth.classes, 2)
        if len(ids) >= count and X.shape[1]:
            made = clusterings(X, count, case.blind_rng())
            found |= {name: [Labels(ids, clusters)] for name, clusters in made.items()}
        return found

    def refuses(self, claims: Sequence[Labels], case: Case) -> str | None:
        """Refuse several claims of labels, or ids that nobody has."""
        truth = self.truth(case)
        if len(claims) > 1:
            return "labels were claimed more than once"
        known = claims[0].ids if truth is None else truth.ids
        if case.known is not None:
            known = np.union1d(known, case.known.ids)
        strange = np.setdiff1d(claims[0].ids, known)[:5].tolist()
        return f"labels of unknown ids {strange} were claimed" if strange else None

    def counted(self, truth: TrueLabels) -> int:
        """Return the number of rows whose labels are sought."""
        return len(truth.ids)

    def score(self, claims: Sequence[Labels], truth: TrueLabels) -> list[Score]:
        """Score one claim; a row that it leaves out is a cluster of its own."""
        from scipy.optimize import linear_sum_assignment
        from sklearn.metrics import adjusted_mutual_info_score, roc_auc_score, v_measure_score
        from sklearn.metrics.cluster import contingency_matrix

        claim = claims[0]
        cluster = np.arange(len(truth.ids)) + int(claim.cluster.max(initial=0)) + 1
        order = np.argsort(claim.ids)
        at = np.searchsorted(claim.ids[order], truth.ids)
        at = np.minimum(at, max(len(order) - 1, 0))
        told = claim.ids[order][at] == truth.ids if len(order) else np.zeros(len(at), bool)
        cluster[told] = claim.cluster[order][at[told]]
        table = contingency_matrix(truth.y, cluster)
        matched = table[linear_sum_assignment(-table)].sum()
        auc, clusters = None, "guess" if claim.probability is None else ""
        if (
            claim.probability is not None
            and told.all()
            and len(np.unique(truth.y)) == 2 == truth.classes
        ):
            auc = float(roc_auc_score(truth.y, claim.probability[order][at][:, 1]))
        return [
            Score("v_measure", float(v_measure_score(truth.y, cluster))),
            Score("ami", float(adjusted_mutual_info_score(truth.y, cluster))),
            Score("label_accuracy", float(matched / len(truth.y)), klass=clusters),
            Score("label_auc", auc),
        ]
