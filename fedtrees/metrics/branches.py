"""Metric `branches`: branches of new rows at the splits of other parties.

In vertical federated prediction, the party that requests a prediction should not learn which branch
a row takes at a split on a column of another party, because the branch bounds the value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Branches, Claim
from fedtrees.core.registry import register
from fedtrees.guessing.branches import NearRows
from fedtrees.metrics.metric import Case, Metric, Score


@dataclass(frozen=True, eq=False)
class TrueBranches:
    """Branches that rows take at the k splits of parties outside the adversary.

    Attributes
    ----------
    at : tuple of (int, int)
        Tree and node of each split.
    goes : int8 array, shape (n, k)
        Branch of every row to predict: 1 left, 0 right, -1 if the row does not reach the node.
    trained : int8 array, shape (N, k)
        Branches of the training rows. The active party observes them during training.
    own : float32 array, shape (N, c)
        Columns of the principals for the training rows.
    asked : float32 array, shape (n, c)
        The same columns for the rows to predict.
    """

    at: tuple[tuple[int, int], ...]
    goes: NDArray[np.int8]
    trained: NDArray[np.int8]
    own: NDArray[np.float32]
    asked: NDArray[np.float32]


@register.metric("branches")
class BranchesMetric(Metric[TrueBranches]):
    """Share of inferred branches of new rows at the splits of other parties.

    ``branches`` is the correct branching rate (Luo et al. 2021, Sec. VI). Its denominator is the
    number of pairs of a row and a split of another party that the row reaches. Its numerator is the
    number of these pairs for which the claim names the true branch. A pair without a claim counts
    as wrong.

    The blind adversary knows the model, the columns of the principals, and the branches of the
    training rows. It predicts the branch of the majority of all training rows at the node, or of
    the 15 nearest ones.
    """

    of: ClassVar[type[Claim]] = Branches
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("branches", "branches of new rows told", "share of branches", klass="person",
                head="branches of new rows", severity=62,
                phrase="tell {} of the branches that rows to predict take at others' splits"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("branches",)

    def truth(self, case: Case) -> TrueBranches | None:
        """Return the true branches.

        None if there are no rows to predict, the model has no effective split of a party outside
        the adversary, or the principals have no data.
        """
        model, asked = case.model, case.asked
        if asked is None or not len(asked) or not case.splits:
            return None
        every = range(len(model.trees))
        sides = [_sides(case, t, asked.X) for t in every]
        places = [(t, u) for t, found in enumerate(sides) for u in range(found.shape[1])]
        kept = [
            i for i, at in enumerate(places)
            if at in case.splits and case.splits[at][0] not in case.principals
            and model.trees[at[0]].feature[at[1]] == case.splits[at][1]
            and model.trees[at[0]].threshold[at[1]] >= 1  # else only missing ones go left
        ]  # fmt: skip
        own = [h for n, h in case.local_data.items() if n in case.principals]
        if not kept or not own:
            return None
        at = tuple(places[i] for i in kept)
        columns = np.concatenate([h.columns for h in own])
        held = np.full((len(own[0]), asked.X.shape[1]), np.nan, dtype=np.float32)
        for part in case.local_data.values():
            held[:, part.columns] = part.X
        trained = np.hstack([_sides(case, t, held) for t in every])[:, kept]
        goes = np.hstack(sides)[:, kept]
        return TrueBranches(at, goes, trained, held[:, columns], asked.X[:, columns])

    def refuses(self, claims: Sequence[Branches], case: Case) -> str | None:
        """Refuse several claims, and row indices beyond the rows to predict."""
        if len(claims) > 1:
            return "branches of rows to predict were claimed more than once"
        n = 0 if case.asked is None else len(case.asked)
        at = claims[0].rows
        return f"there are {n} rows to predict" if ((at < 0) | (at >= n)).any() else None

    def blind(self, case: Case, truth: TrueBranches) -> dict[str, Sequence[Claim]]:
        """Return the branches of the majority of all training rows, and of the nearest ones."""
        near = NearRows(truth.own, truth.asked)
        n, every = len(truth.goes), range(len(truth.at))
        most = [_share(truth.trained[:, j]) for j in every]
        like = [near.left(truth.trained[:, j]) for j in every]

        def claimed(left: NDArray[np.float64]) -> list[Claim]:
            tree, node = np.array(truth.at).T
            return [Branches(np.arange(n), tree, node, left)]

        made: dict[str, Sequence[Claim]] = {
            "likeliest-by-cover": claimed(np.tile(most, (n, 1))),
            "nearest-training-rows": claimed(np.stack(like, axis=1)),
        }
        return {**made, **super().blind(case, truth)}

    def score(self, claims: Sequence[Branches], truth: TrueBranches) -> list[Score]:
        """Compute the correct branching rate of one claim, None if no row reaches a split."""
        (claim,) = claims
        left = np.full(truth.goes.shape, np.nan)
        column = {at: j for j, at in enumerate(truth.at)}
        for k, at in enumerate(zip(claim.tree.tolist(), claim.node.tolist(), strict=True)):
            if at in column:
                left[claim.rows, column[at]] = claim.left[:, k]
        passed = truth.goes >= 0
        right = np.where(np.isnan(left), False, (left > 0.5) == (truth.goes == 1))
        return [Score("branches", float(right[passed].mean()) if passed.any() else None)]


def _share(goes: NDArray[np.int8]) -> float:
    return float((goes[goes >= 0] == 1).mean()) if (goes >= 0).any() else 0.5


def _sides(case: Case, t: int, X: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the branches of rows at every node of a tree, int8 array, shape (n, nodes)."""
    tree: Any = case.model.trees[t]
    goes = np.full((len(X), len(tree)), -1, dtype=np.int8)
    waiting = [(0, np.arange(len(X)))]
    while waiting:
        node, rows = waiting.pop()
        column = int(tree.feature[node])
        if column < 0:
            continue
        _, _, threshold = case.splits.get((t, node), ("", column, float(tree.threshold[node])))
        x = X[rows, column]
        left = np.where(np.isnan(x), tree.default_left[node], x < np.float32(threshold))
        goes[rows, node] = left
        waiting += [(int(tree.left[node]), rows[left]), (int(tree.right[node]), rows[~left])]
    return goes
