"""Guessed thresholds against those that victims split their columns at."""

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

#: Of a column's standard deviation: how close a threshold must come.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class TrueSplit:
    """One split of a victim: column, threshold, and how many training rows came by."""

    feature: int
    threshold: float
    rows: int


@dataclass(frozen=True, eq=False)
class VictimsSplits:
    """The victims' splits by tree and node, with facts about every column that they use.

    `tolerance`: How close a guess must come. `width`: Of the range of values. `step`: The largest
    power of ten of which all values are multiples (`fedtrees.guessing.steps.step_of`).
    """

    splits: Mapping[tuple[int, int], TrueSplit]
    tolerance: Mapping[int, float]
    width: Mapping[int, float]
    step: Mapping[int, float]
    schema: Schema


@register.metric("thresholds")
class ThresholdsMetric(Metric[VictimsSplits]):
    """Which of the victims' different thresholds are known, how narrowly, and for how many rows.

    ``thresholds``: share of the victims' thresholds, equal ones of a column counted once, that come
    within 1e-5 standard deviations of the column. ``threshold_width``: mean width of the claimed
    intervals as a share of the column's (declared, else true) range; one that is not there, or
    misses, is as wide as the range. ``ranges_covered``: share of what training rows were compared
    with on their ways, over rows and trees, that is known so closely: each gives the range of
    somebody's value (Li et al. 2022, Sec. 5.1).
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
        """Return the victims' splits, None where there are none."""
        found, tolerance, width, step = {}, {}, {}, {}
        for (t, node), (owner, column, threshold) in case.splits.items():
            tree = case.model.trees[t]
            if owner in case.principals or node >= len(tree) or tree.feature[node] != column:
                continue  # a defense has taken the split back
            if tree.threshold[node] < 1:  # before every value: only missing ones go left
                continue
            ((begin, end),) = case.model.rows[t].ranges(np.array([node], dtype=np.int32))
            found[t, node] = TrueSplit(column, threshold, int(end - begin))
            if column not in tolerance:
                held = case.local_data[owner]
                x = held.X[:, np.searchsorted(held.columns, column)].astype(np.float64)
                tolerance[column] = TOLERANCE * float(np.nanstd(x))
                low, high = case.schema.features[column].declared_range or (
                    float(np.nanmin(x)),
                    float(np.nanmax(x)),
                )
                width[column], step[column] = high - low, step_of(x)
        return VictimsSplits(found, tolerance, width, step, case.schema) if found else None

    def refuses(self, claims: Sequence[Thresholds], case: Case) -> str | None:
        """Refuse thresholds that are claimed twice, or are not there."""
        named = [at for c in claims for at in zip(c.tree.tolist(), c.node.tolist(), strict=True)]
        if len(set(named)) < len(named):
            return "it claimed the threshold of a split more than once"
        strange = sorted(set(named) - set(case.splits))[:5]
        return f"it claimed thresholds of splits {strange}; no party owns them" if strange else None

    def blind(self, case: Case, truth: VictimsSplits) -> dict[str, Sequence[Claim]]:
        """Return quantiles of every declared range, also rounded to the precision of the column.

        The blind adversary is granted how many different thresholds every column has, so that the
        k-th smallest guess stands for the k-th smallest threshold. Rounding is to multiples of the
        step of the column (``rounded-quantiles``), and to the middle between two of them
        (``halved-quantiles``), where boosting libraries put a threshold between two values.
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
            every = np.unique(columns[split.feature])
            share = (np.searchsorted(every, split.threshold) + 0.5) / len(every)
            rows.append((t, node, split.feature, low + share * (high - low), low, high))
            steps.append(truth.step[split.feature])
        made: dict[str, Sequence[Claim]] = {"nothing": []}
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
                made[name] = [Thresholds(*columns_of_rows)]
        return {**made, **super().blind(case, truth)}

    def score(self, claims: Sequence[Thresholds], truth: VictimsSplits) -> list[Score]:
        """Score all claimed thresholds together."""
        claimed: dict[tuple[int, int], tuple[int, float, float, float]] = {}
        for c in claims:
            ends = zip(c.feature.tolist(), c.value, c.low, c.high, strict=True)
            claimed |= dict(
                zip(zip(c.tree.tolist(), c.node.tolist(), strict=True), ends, strict=True)
            )
        right: dict[tuple[int, float], bool] = {}
        width: dict[tuple[int, float], float] = {}
        covered = passed = 0
        for at, split in truth.splits.items():
            feature, value, low, high = claimed.get(at, (-1, 0.0, 0.0, 0.0))
            mine, key = feature == split.feature, (split.feature, split.threshold)
            close = bool(mine and abs(value - split.threshold) <= truth.tolerance[split.feature])
            inside = mine and low <= split.threshold <= high and truth.width[split.feature] > 0
            narrow = min((high - low) / truth.width[split.feature], 1.0) if inside else 1.0
            right[key] = right.get(key, False) or close
            width[key] = min(width.get(key, 1.0), narrow)
            passed, covered = passed + split.rows, covered + split.rows * close
        return [
            Score("thresholds", float(np.mean(list(right.values())))),
            Score("threshold_width", float(np.mean(list(width.values())))),
            Score("ranges_covered", covered / passed if passed else None),
        ]
