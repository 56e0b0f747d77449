"""Metric `batch-leaves`: leaves of reconstructed rows of a training batch.

It applies if a neural network is trained on the outputs of trees. The server receives gradients of
a batch and reconstructs the rows of the batch. The network receives only the leaves of a row, so
that an attack can at best determine these.
"""

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
    """Share of leaves in which guessed and true rows of a batch agree, over all trees.

    Guessed and true rows are matched so that as many leaves as possible agree. ``batch_leaves`` is
    the share of agreeing leaves, over all rows and trees. ``row_leaves`` is the share of true rows
    that agree with their guess in the leaves of all trees. The blind baseline is the best blind
    guess of `batch-rows`, applied to the same trees.
    """

    of: ClassVar[type[Claim]] = BatchRows
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("batch_leaves", "leaves of a batch", "share of leaves", slot="guess",
                head="leaves of a batch guessed", severity=110,
                phrase="infer {} of the leaves that a batch reaches"),
        Measure("row_leaves", "rows of a batch right in every leaf", "share of rows"),
    )  # fmt: skip

    def truth(self, case: Case) -> Batches | None:
        """Return the batches of the training.

        None if the model has no trees, the target is numeric, a party has incomplete rows, or the
        protocol does not record which rows a round used.
        """
        if not getattr(case.model, "trees", ()) or case.grown_on is None:
            return None
        complete = all(h.covers(case.schema) for h in case.local_data.values())
        return Batches(case) if case.schema.classes and complete else None

    def score(self, claims: Sequence[BatchRows], truth: Batches) -> list[Score]:
        """Score all batches, leaf by leaf."""
        apply = truth.case.model.apply
        shares: list[NDArray[np.float64]] = []
        blind: dict[str, list[NDArray[np.float64]]] = {}
        for claim in claims:
            leaves = apply(truth.rows(claim).X)
            shares.append(shared(apply(claim.table.X), leaves))
            for name, guess in truth.blind(claim).items():
                blind.setdefault(name, []).append(shared(apply(guess.X), leaves))
        # The same blind guess is used for all batches, so that the baseline is the best guess over
        # all batches and not the best one of every batch.
        lines = [np.concatenate(parts) for parts in blind.values()]
        right = np.concatenate(shares)
        return [
            Score("batch_leaves", float(right.mean()), blind=float(max(x.mean() for x in lines))),
            Score(
                "row_leaves",
                float((right == 1).mean()),
                blind=float(max((x == 1).mean() for x in lines)),
            ),
        ]


def shared(guess: NDArray[np.int32], truth: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the share of leaves in which every true row agrees with its guess, shape (n,).

    `guess`, shape (m, T), and `truth`, shape (n, T), are the leaves of the rows in T trees. Only
    the first n guesses are used. An unmatched true row has the share 0.
    """
    same = (guess[: len(truth), None] == truth).mean(axis=2)
    rows, columns = linear_sum_assignment(-same)
    out = np.zeros(len(truth))
    out[columns] = same[rows, columns]
    return out
