"""Leaves of guessed rows of a batch against those of the rows it was made of."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.core.columns import Measure
from fedtrees.core.guess import BatchRows, Claim
from fedtrees.core.registry import register
from fedtrees.metrics.batches import Batches
from fedtrees.metrics.metric import Case, Metric, Score


@register.metric("batch-leaves")
class BatchLeavesMetric(Metric[Batches]):
    """Share of leaves that guessed rows of a batch share with the true ones, over all trees.

    Where a network is trained on the outputs of trees: it sees no more of a row than its leaves.
    Rows are matched for the most that agree. The blind baseline as in `batch-rows`, its guessed
    rows sent through the trees.
    """

    of: ClassVar[type[Claim]] = BatchRows
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("batch_leaves", "leaves of a batch", "share of leaves", slot="guess",
                head="leaves of a batch guessed", severity=110,
                phrase="infer {} of the leaves that a batch reaches"),
        Measure("row_leaves", "rows of a batch right in every leaf", "share of rows"),
    )  # fmt: skip

    def truth(self, case: Case) -> Batches | None:
        """Return the local data; None where the model has no trees."""
        if not getattr(case.model, "trees", ()) or case.grown_on is None:
            return None
        whole = all(h.covers(case.schema) for h in case.local_data.values())
        return Batches(case) if case.schema.classes and whole else None

    def score(self, claims: Sequence[BatchRows], truth: Batches) -> list[Score]:
        """Score all batches, leaf by leaf."""
        apply = truth.case.model.apply
        found: list[NDArray[np.float64]] = []
        blind: dict[str, list[NDArray[np.float64]]] = {}
        for claim in claims:
            leaves = apply(truth.rows(claim).X)
            found.append(shared(apply(claim.table.X), leaves))
            for name, guess in truth.blind(claim).items():
                blind.setdefault(name, []).append(shared(apply(guess.X), leaves))
        lines = [np.concatenate(parts) for parts in blind.values()]
        right = np.concatenate(found)
        return [
            Score("batch_leaves", float(right.mean()), blind=float(max(x.mean() for x in lines))),
            Score(
                "row_leaves",
                float((right == 1).mean()),
                blind=float(max((x == 1).mean() for x in lines)),
            ),
        ]


def shared(guess: NDArray[np.int32], truth: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the share of its leaves that every true row has in common with its guess, (n,).

    `guess`: int array, shape (m, T). Where m > n the first n count.
    `truth`: int array, shape (n, T)
    """
    same = (guess[: len(truth), None] == truth).mean(axis=2)
    rows, columns = linear_sum_assignment(-same)
    out = np.zeros(len(truth))
    out[columns] = same[rows, columns]
    return out
