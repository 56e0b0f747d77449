"""Metric `thresholds`: inferred thresholds of the splits of other parties.

In vertical federated learning, only the owner of a column knows the thresholds of its splits. A
threshold bounds the values of all rows that reach the split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, Thresholds
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.guessing.steps import step_of
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
        Precision of a column (`fedtrees.guessing.steps.step_of`).
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
        Measure("thresholds", "thresholds of others found", "share of thresholds", klass="group",
                slot="certain", head="split points", severity=50,
                phrase="find {} of the other parties' thresholds"),
        Measure("ranges_covered", "training ranges known", "share of ranges", klass="group",
                severity=200, phrase="give {} of the ranges of one person's values",
                beside=("thresholds",)),
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
            ((begin, end),) = case.model.rows[t].ranges(np.array([node], dtype=np.int32))
            splits[t, node] = TrueSplit(column, threshold, int(end - begin))
            if column not in tolerance:
                local_data = case.local_data[owner]
                x = local_data.X[:, np.searchsorted(local_data.columns, column)].astype(np.float64)
                tolerance[column] = TOLERANCE * float(np.nanstd(x))
                low, high = case.schema.features[column].declared_range or (
                    float(np.nanmin(x)),
                    float(np.nanmax(x)),
                )
                width[column], step[column] = high - low, step_of(x)
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
