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
    """Share of the branches of new rows at splits of other parties that are inferred.

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
                phrase="infer {} of the branches that rows to predict take at splits of others"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("branches",)

    def truth(self, case: Case) -> TrueBranches | None:
        """Return the true branches.

        None if there are no rows to predict, the model has no effective split of a party outside
        the adversary, or the principals have no data.
        """
        model, new_rows = case.model, case.asked
        if new_rows is None or not len(new_rows) or not case.splits:
            return None
        all_trees = range(len(model.trees))
        sides = [_sides(case, t, new_rows.X) for t in all_trees]
        places = [(t, u) for t, branch in enumerate(sides) for u in range(branch.shape[1])]
        # A split is effective if its node still splits the owner's column (a defense may have
        # removed it) and if its threshold, a bin number, is at least 1 (otherwise only missing
        # values go left).
        victims_splits = [
            i for i, split in enumerate(places)
            if split in case.splits and case.splits[split][0] not in case.principals
            and model.trees[split[0]].feature[split[1]] == case.splits[split][1]
            and model.trees[split[0]].threshold[split[1]] >= 1  # else only missing ones go left
        ]  # fmt: skip
        adversary_data = [h for n, h in case.local_data.items() if n in case.principals]
        if not victims_splits or not adversary_data:
            return None
        split = tuple(places[i] for i in victims_splits)
        columns = np.concatenate([h.columns for h in adversary_data])
        # Join the columns of all parties, in order to route the training rows through all trees.
        train = np.full((len(adversary_data[0]), new_rows.X.shape[1]), np.nan, dtype=np.float32)
        for part in case.local_data.values():
            train[:, part.columns] = part.X
        trained = np.hstack([_sides(case, t, train) for t in all_trees])[:, victims_splits]
        goes = np.hstack(sides)[:, victims_splits]
        return TrueBranches(split, goes, trained, train[:, columns], new_rows.X[:, columns])

    def refuses(self, claims: Sequence[Branches], case: Case) -> str | None:
        """Refuse several claims, and row indices beyond the rows to predict."""
        if len(claims) > 1:
            return "branches of rows to predict were claimed more than once"
        n = 0 if case.asked is None else len(case.asked)
        rows = claims[0].rows
        return f"there are {n} rows to predict" if ((rows < 0) | (rows >= n)).any() else None

    def blind(self, case: Case, truth: TrueBranches) -> dict[str, Sequence[Claim]]:
        """Return the branches of the majority of all training rows, and of the nearest ones."""
        neighbours = NearRows(truth.own, truth.asked)
        n, splits = len(truth.goes), range(len(truth.at))
        majority = [_share(truth.trained[:, j]) for j in splits]
        similar = [neighbours.left(truth.trained[:, j]) for j in splits]

        def claimed(probability: NDArray[np.float64]) -> list[Claim]:
            tree, node = np.array(truth.at).T
            return [Branches(np.arange(n), tree, node, probability)]

        guesses: dict[str, Sequence[Claim]] = {
            "likeliest-by-cover": claimed(np.tile(majority, (n, 1))),
            "nearest-training-rows": claimed(np.stack(similar, axis=1)),
        }
        return {**guesses, **super().blind(case, truth)}

    def score(self, claims: Sequence[Branches], truth: TrueBranches) -> list[Score]:
        """Compute the correct branching rate of one claim, None if no row reaches a split."""
        (claim,) = claims
        # NaN marks pairs of row and split without a claim.
        left = np.full(truth.goes.shape, np.nan)
        column = {split: j for j, split in enumerate(truth.at)}
        for k, split in enumerate(zip(claim.tree.tolist(), claim.node.tolist(), strict=True)):
            if split in column:
                left[claim.rows, column[split]] = claim.left[:, k]
        passed = truth.goes >= 0
        right = np.where(np.isnan(left), False, (left > 0.5) == (truth.goes == 1))
        return [Score("branches", float(right[passed].mean()) if passed.any() else None)]


def _share(goes: NDArray[np.int8]) -> float:
    return float((goes[goes >= 0] == 1).mean()) if (goes >= 0).any() else 0.5


def _sides(case: Case, t: int, X: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the branches of rows at every node of a tree, int8 array, shape (n, nodes)."""
    tree: Any = case.model.trees[t]
    goes = np.full((len(X), len(tree)), -1, dtype=np.int8)
    # Traverse the tree from the root with the rows that reach each node.
    stack = [(0, np.arange(len(X)))]
    while stack:
        node, rows = stack.pop()
        column = int(tree.feature[node])
        if column < 0:
            continue
        # At private splits the model contains bin numbers. The thresholds are those of the owners.
        _, _, threshold = case.splits.get((t, node), ("", column, float(tree.threshold[node])))
        x = X[rows, column]
        left = np.where(np.isnan(x), tree.default_left[node], x < np.float32(threshold))
        goes[rows, node] = left
        stack += [(int(tree.left[node]), rows[left]), (int(tree.right[node]), rows[~left])]
    return goes
