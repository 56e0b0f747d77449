"""Metrics `thresholds` and `branches`, about the splits of other parties.

- `thresholds`: the inferred thresholds. In vertical federated learning, only the owner of a column
  knows the thresholds of its splits. A threshold bounds the values of all rows that reach the
  split.
- `branches`: the inferred branches of new rows. The party that requests a prediction should not
  learn which branch a row takes at a split on a column of another party, because the branch bounds
  the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.conditional import NearRows
from fedtrees.blind_baselines.rows import decimal_step
from fedtrees.core.claims import Branches, Claim, Thresholds
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Schema
from fedtrees.metrics.metric import Case, Metric, Score

#: Largest error of a correct threshold, in standard deviations of the column.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class TrueSplit:
    """One split of a victim: column, threshold, and number of training rows in the node."""

    feature: int
    threshold: float
    rows: int


@dataclass(frozen=True, eq=False)
class VictimsSplits:
    """The victims' splits by tree and node, and facts about the columns that they use.

    Attributes
    ----------
    splits : mapping of (int, int) to TrueSplit
        Splits by tree and node.
    tolerance : mapping of int to float
        Largest error of a correct threshold, by column.
    width : mapping of int to float
        Width of the declared range of a column, else of the range of its values.
    step : mapping of int to float
        Precision of a column (`fedtrees.blind_baselines.rows.decimal_step`).
    schema : Schema
        Declared ranges.
    """

    splits: Mapping[tuple[int, int], TrueSplit]
    tolerance: Mapping[int, float]
    width: Mapping[int, float]
    step: Mapping[int, float]
    schema: Schema


@register.metric("thresholds")
class ThresholdsMetric(Metric[VictimsSplits]):
    """Share of the victims' thresholds that are inferred, and of the rows that these concern.

    ``thresholds`` is the share of the distinct thresholds of the victims for which a claimed value
    differs by at most 1e-5 standard deviations of the column. ``threshold_width`` is the mean width
    of the claimed intervals as a share of the declared range of the column, or of its true range.
    A missing interval, or one that does not contain the threshold, counts 1. ``ranges_covered`` is
    the share of all comparisons of a training row with a victim's threshold, over rows and trees,
    for which the threshold is inferred. Each of them bounds a value (Li et al. 2022, Sec. 5.1).
    """

    of: ClassVar[type[Claim]] = Thresholds
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("thresholds", "inferred thresholds", "share of thresholds",
                klass="group", slot="certain", head="split points", severity=50,
                phrase="find {} of the other parties' thresholds"),
        Measure("ranges_covered", "training ranges known", "share of ranges", klass="group",
                severity=200, phrase="give {} of the ranges of one person's values",
                covered_by=("thresholds",)),
        Measure("threshold_width", "width of thresholds", "share of a range", 0.0, "group"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("thresholds", "ranges_covered")

    def truth(self, case: Case) -> VictimsSplits | None:
        """Return the splits of the victims.

        None if there are none, or the model does not state the rows of its nodes (`federboost-v`).
        """
        if case.splits and not case.model.rows:
            return None
        splits, tolerance, width, step = {}, {}, {}, {}
        for (t, node), (owner, column, threshold) in case.splits.items():
            tree = case.model.trees[t]
            if owner in case.principals or node >= len(tree) or tree.feature[node] != column:
                continue  # a defense removed the split
            if tree.threshold[node] < 1:  # below all values: only missing values go left
                continue
            # The number of training rows in the node, which are compared with the threshold.
            rows = len(case.model.rows[t].rows_of(node))
            splits[t, node] = TrueSplit(column, threshold, rows)
            if column not in tolerance:
                local_data = case.local_data[owner]
                x = local_data.X[:, np.searchsorted(local_data.columns, column)].astype(np.float64)
                tolerance[column] = TOLERANCE * float(np.nanstd(x))
                low, high = case.schema.features[column].declared_range or (
                    float(np.nanmin(x)),
                    float(np.nanmax(x)),
                )
                width[column], step[column] = high - low, decimal_step(x)
        return VictimsSplits(splits, tolerance, width, step, case.schema) if splits else None

    def refuses(self, claims: Sequence[Thresholds], case: Case) -> str | None:
        """Refuse thresholds that are claimed twice, and thresholds of unknown splits."""
        named = [
            split for c in claims for split in zip(c.tree.tolist(), c.node.tolist(), strict=True)
        ]
        if len(set(named)) < len(named):
            return "it claimed the threshold of a split more than once"
        strange = sorted(set(named) - set(case.splits))[:5]
        return f"it claimed thresholds of splits {strange}; no party owns them" if strange else None

    def blind(self, case: Case, truth: VictimsSplits) -> dict[str, Sequence[Claim]]:
        """Return equally spaced thresholds in the declared range of every column.

        The blind adversary is granted the number of distinct thresholds of every column and their
        order, so that the k-th smallest guess is used for the k-th smallest threshold. The guesses
        are also rounded to multiples of the precision of the column (``rounded-quantiles``), and to
        the middle between two multiples (``halved-quantiles``), because boosting libraries place a
        threshold between two values.
        """
        columns: dict[int, list[float]] = {}
        for split in truth.splits.values():
            columns.setdefault(split.feature, []).append(split.threshold)
        rows, steps = [], []
        for (t, node), split in truth.splits.items():
            declared = truth.schema.features[split.feature].declared_range
            if declared is None:
                continue
            low, high = declared
            distinct = np.unique(columns[split.feature])
            # The k-th of n thresholds is guessed at the quantile (k - 1/2) / n of the range.
            share = (np.searchsorted(distinct, split.threshold) + 0.5) / len(distinct)
            rows.append((t, node, split.feature, low + share * (high - low), low, high))
            steps.append(truth.step[split.feature])
        guesses: dict[str, Sequence[Claim]] = {"nothing": []}
        if rows:
            columns_of_rows = list(map(np.array, zip(*rows, strict=True)))
            value = columns_of_rows[3]
            step = np.array(steps)
            for name, quantile in {
                "even-quantiles": value,
                "rounded-quantiles": np.rint(value / step) * step,
                "halved-quantiles": (np.floor(value / step) + 0.5) * step,
            }.items():
                columns_of_rows[3] = quantile
                guesses[name] = [Thresholds(*columns_of_rows)]
        return {**guesses, **super().blind(case, truth)}

    def score(self, claims: Sequence[Thresholds], truth: VictimsSplits) -> list[Score]:
        """Compute the scores over all splits of the victims."""
        claimed: dict[tuple[int, int], tuple[int, float, float, float]] = {}
        for c in claims:
            ends = zip(c.feature.tolist(), c.value, c.low, c.high, strict=True)
            claimed |= dict(
                zip(zip(c.tree.tolist(), c.node.tolist(), strict=True), ends, strict=True)
            )
        right: dict[tuple[int, float], bool] = {}
        width: dict[tuple[int, float], float] = {}
        covered = passed = 0
        for node, split in truth.splits.items():
            feature, value, low, high = claimed.get(node, (-1, 0.0, 0.0, 0.0))
            right_column, key = feature == split.feature, (split.feature, split.threshold)
            close = bool(
                right_column and abs(value - split.threshold) <= truth.tolerance[split.feature]
            )
            inside = (
                right_column and low <= split.threshold <= high and truth.width[split.feature] > 0
            )
            # A wrong interval counts as wide as the range.
            narrow = min((high - low) / truth.width[split.feature], 1.0) if inside else 1.0
            # Several splits can have one threshold. The best claim about any of them counts.
            right[key] = right.get(key, False) or close
            width[key] = min(width.get(key, 1.0), narrow)
            passed, covered = passed + split.rows, covered + split.rows * close
        return [
            Score("thresholds", float(np.mean(list(right.values())))),
            Score("threshold_width", float(np.mean(list(width.values())))),
            Score("ranges_covered", covered / passed if passed else None),
        ]


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
    training_columns : float32 array, shape (N, c)
        Columns of the principals for the training rows.
    query_columns : float32 array, shape (n, c)
        The same columns for the rows to predict.
    """

    at: tuple[tuple[int, int], ...]
    goes: NDArray[np.int8]
    trained: NDArray[np.int8]
    training_columns: NDArray[np.float32]
    query_columns: NDArray[np.float32]


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
        Measure("branches", "inferred branches of rows", "share of branches", klass="person",
                head="branches of new rows", severity=62,
                phrase="infer {} of the branches of new rows at the splits of other parties"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("branches",)

    def truth(self, case: Case) -> TrueBranches | None:
        """Return the true branches.

        None if there are no rows to predict, the model has no effective split of a party outside
        the adversary, or the principals have no data.
        """
        model, new_rows = case.model, case.queried_rows
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
        train = _joined_by_id(adversary_data[0].ids, case.local_data.values(), new_rows.X.shape[1])
        trained = np.hstack([_sides(case, t, train) for t in all_trees])[:, victims_splits]
        goes = np.hstack(sides)[:, victims_splits]
        return TrueBranches(split, goes, trained, train[:, columns], new_rows.X[:, columns])

    def refuses(self, claims: Sequence[Branches], case: Case) -> str | None:
        """Refuse several claims, and row indices beyond the rows to predict."""
        if len(claims) > 1:
            return "branches of rows to predict were claimed more than once"
        n = 0 if case.queried_rows is None else len(case.queried_rows)
        rows = claims[0].rows
        return f"there are {n} rows to predict" if ((rows < 0) | (rows >= n)).any() else None

    def blind(self, case: Case, truth: TrueBranches) -> dict[str, Sequence[Claim]]:
        """Return the branches of the majority of all training rows, and of the nearest ones."""
        neighbours = NearRows(truth.training_columns, truth.query_columns)
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


def _joined_by_id(
    ids: NDArray[np.int64], parts: Iterable[LocalData], n_features: int
) -> NDArray[np.float32]:
    """Join the columns of all parties for some rows, float32, shape (len(ids), n_features).

    The training rows are routed through all trees, so that they need the columns of all parties.
    Rows are matched by their ids. A cell that no party has is NaN.
    """
    joined = np.full((len(ids), n_features), np.nan, dtype=np.float32)
    for part in parts:
        _, at, from_row = np.intersect1d(ids, part.ids, return_indices=True)
        joined[np.ix_(at, part.columns)] = part.X[from_row]
    return joined


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
