"""Metric `column-values`: inferred values of a party's columns, without the rows they belong to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.rows import decimal_step, part_centres, round_to_step
from fedtrees.core.claims import Claim, ColumnValues
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Schema
from fedtrees.metrics.metric import Case, Metric, Score

Values = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class VictimsColumns:
    """Distinct values of the victims' columns and their counts, by (owner, feature).

    Missing values are not included.
    """

    columns: Mapping[tuple[str, int], Values]
    schema: Schema


@register.metric("column-values")
class ColumnValuesMetric(Metric[VictimsColumns]):
    """Share of the values of the victims' columns that are inferred, regardless of their rows.

    ``column_values`` compares the multisets of true and claimed values of every column of a victim.
    A column scores the size of their intersection divided by the size of the larger multiset, so
    that claiming too many values never pays. Columns are weighted by their numbers of cells, and a
    column without a claim scores 0.

    ``column_extremes`` is the share of columns' smallest and largest values that are claimed as
    such.

    ``column_singles`` is the share of values that occur in a single row of a victim (k-anonymity
    with k = 1) and are claimed with count 1. If more single values are claimed than exist in a
    column, the number of hits is divided by the number of claimed ones, so that claiming every
    possible value does not score.

    ``category_error`` is the absolute error of the claimed share of a category at one victim,
    averaged over victims and categories (property inference; Ateniese et al. 2015). A column
    without a claim counts as equal shares.
    """

    of: ClassVar[type[Claim]] = ColumnValues
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("column_values", "values of columns", "share of cells", klass="group",
                slot="certain", head="columns listed", severity=140,
                phrase="read {} of the values of every column, without knowing their rows"),
        Measure("column_extremes", "smallest and largest values", "share of ends", klass="group",
                short="extreme values", severity=210,
                phrase="read {} of the smallest and largest values", covered_by=("column_values",)),
        Measure("column_singles", "values that only one row has", "share of values", klass="group",
                short="values of one row", severity=220, covered_by=("column_values",),
                phrase="read {} of the values that occur in a single row"),
        Measure("category_error", "error of a category's share at one client", "share of rows", 0.0,
                "group", decimals=3, severity=230, short="category share error",
                covered_by=("column_values",),
                phrase="estimate the share of each category at one client with an error of {}"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("column_values", "column_extremes", "column_singles")

    def truth(self, case: Case) -> VictimsColumns | None:
        """Return the values of the victims' columns, None if the victims have no columns."""
        victims_columns = {
            (name, int(f)): np.unique(column[~np.isnan(column)], return_counts=True)
            for name, local in case.victims.items()
            for f, column in zip(local.columns, local.X.T + np.float32(0), strict=True)
        }  # adding 0 turns -0 into 0
        return VictimsColumns(victims_columns, case.schema) if victims_columns else None

    def refuses(self, claims: Sequence[ColumnValues], case: Case) -> str | None:
        """Refuse unknown victims and columns, and columns that are claimed twice."""
        named = [(c.owner, c.feature) for c in claims]
        if len(set(named)) < len(named):
            return "it claimed the values of a column more than once"
        for owner, feature in named:
            if owner not in case.victims or not 0 <= feature < len(case.schema.features):
                return f"it claimed column {feature} of {owner!r}; no victim has it"
        return None

    def blind(self, case: Case, truth: VictimsColumns) -> dict[str, Sequence[Claim]]:
        """Return blind guesses of the values of every victim's columns.

        - ``declared``: the categories, or the integers in the declared range.
        - ``zeros``: all values are 0.
        - ``rounded-range``: evenly spaced values in the declared range, or in 0 to 1 without one.
        - ``own-columns``: the values of the adversary's complete rows, with scaled counts.
        - ``rounded-quantiles``: the quantiles of these values.
        - ``own-values``: all values of the adversary's columns, if it has no complete rows.

        The blind adversary is granted the number of cells of every column and its precision, to
        which the rounded guesses are rounded (`fedtrees.blind_baselines.rows`).
        """
        view = case.blind_view()
        adversary_rows, separate_columns = (
            view.rows,
            [h.X[~np.isnan(h.X)] for h in view.local_data if len(h.columns)],
        )
        features = case.schema.features

        def evenly(f: int, n: int, step: float) -> NDArray[np.float32]:
            low, high = features[f].declared_range or (0.0, 1.0)
            return round_to_step(low + part_centres(n) * (high - low), step)

        guesses: dict[str, Sequence[Claim]] = {
            "declared": _claim_scaled(truth, _declared_values(case.schema)),
            "zeros": _claim_values(truth, lambda f, n, step: np.zeros(n, dtype=np.float32)),
            "rounded-range": _claim_values(truth, evenly),
        }
        if adversary_rows is not None and len(adversary_rows):
            present = [c[~np.isnan(c)] for c in adversary_rows.X.T]
            columns = [np.unique(c, return_counts=True) for c in present]
            guesses["own-columns"] = _claim_scaled(truth, columns)

            def take_quantiles(f: int, n: int, step: float) -> NDArray[np.float32]:
                some = present[f].astype(np.float64)
                return (
                    round_to_step(np.quantile(some, part_centres(n)), step) if len(some) else some
                )

            guesses["rounded-quantiles"] = _claim_values(truth, take_quantiles)
        elif separate_columns:
            pooled = np.unique(np.concatenate(separate_columns), return_counts=True)
            guesses["own-values"] = _claim_scaled(truth, [pooled] * len(features))
        return {**guesses, **super().blind(case, truth)}

    def score(self, claims: Sequence[ColumnValues], truth: VictimsColumns) -> list[Score]:
        """Compute all scores. Scores are None if there is nothing to average."""
        claimed = {(c.owner, c.feature): (c.values, c.counts) for c in claims}
        cells = singles = 0
        right, singles_right, ends = 0.0, 0.0, []
        for key, (values, counts) in truth.columns.items():
            single = int((counts == 1).sum())
            cells, singles = cells + int(counts.sum()), singles + single
            guessed, copies = claimed.get(key, (values[:0], counts[:0]))
            _, true_at, guessed_at = np.intersect1d(values, guessed, return_indices=True)
            met = np.minimum(counts[true_at], copies[guessed_at]).sum()
            # Dividing by the larger multiset makes it useless to claim too many values.
            larger = max(int(counts.sum()), int(copies.sum()), 1)
            right += float(met) * int(counts.sum()) / larger
            # A value counts as single only if it is claimed with count 1.
            hits = int(((counts[true_at] == 1) & (copies[guessed_at] == 1)).sum())
            singles_right += hits * single / max(single, int((copies == 1).sum()), 1)
            if len(values):
                has_values = len(guessed) > 0
                ends += [has_values and values[k] == guessed[k] for k in (0, -1)]
        error = _category_error(claimed, truth)
        return [
            Score("column_values", right / cells if cells else None),
            Score("column_extremes", float(np.mean(ends)) if ends else None),
            Score("column_singles", singles_right / singles if singles else None),
            *([] if error is None else [Score("category_error", error)]),
        ]


def _category_error(
    claimed: Mapping[tuple[str, int], Values], truth: VictimsColumns
) -> float | None:
    """Return the mean error of claimed category shares, None without categorical columns."""
    off: list[float] = []
    for key, (values, counts) in truth.columns.items():
        if not truth.schema.categorical[key[1]] or not len(values):
            continue
        codes: NDArray[Any] = np.arange(
            max(len(truth.schema.features[key[1]].categories), int(values.max()) + 1)
        )
        true_counts = np.zeros(len(codes))
        true_counts[values.astype(np.int64)] = counts
        guess, copies = claimed.get(key, (codes, np.ones(len(codes), dtype=np.int64)))
        guessed_counts = np.array([copies[guess == c].sum() for c in codes], dtype=np.float64)
        total = max(float(np.sum(copies)), 1.0)
        off += np.abs(guessed_counts / total - true_counts / true_counts.sum()).tolist()
    return float(np.mean(off)) if off else None


def _claim_scaled(truth: VictimsColumns, columns: Sequence[Values]) -> list[Claim]:
    """Claim the same values for every victim, scaled to the number of cells of its column."""
    return [
        ColumnValues(owner, f, *_scale_counts(columns[f], int(counts.sum())), False)
        for (owner, f), (_, counts) in truth.columns.items()
    ]


def _claim_values(
    truth: VictimsColumns, guess: Callable[[int, int, float], NDArray[Any]]
) -> list[Claim]:
    """Claim the values ``guess(feature, n_cells, precision)`` for every column of the victims."""
    claims: list[Claim] = []
    for (owner, f), (values, counts) in truth.columns.items():
        # The precision is computed from the true values, which the blind adversary is granted.
        step = decimal_step(values.astype(np.float64))
        cells = guess(f, int(counts.sum()), step).astype(np.float32) + np.float32(0)
        distinct, copies = np.unique(cells, return_counts=True)
        claims.append(ColumnValues(owner, f, distinct, copies, False))
    return claims


def _scale_counts(column: Values, n: int) -> Values:
    """Scale counts so that they sum to n, by the method of largest remainders."""
    values, counts = column
    if not len(values) or not n:
        return values[:0], counts[:0]
    exact = counts * (n / counts.sum())
    floored = np.floor(exact).astype(np.int64)
    # Values with the largest fractional parts are rounded up.
    rest = np.argsort(floored - exact, kind="stable")[: n - int(floored.sum())]
    floored[rest] += 1
    return values[floored > 0], floored[floored > 0]


def _declared_values(schema: Schema) -> list[Values]:
    """Return the values in the schema: categories, or integers in a declared range, each once."""
    declared: list[Values] = []
    for feature in schema.features:
        low, high = feature.low, feature.high
        if feature.categories:
            low, high = 0.0, float(len(feature.categories) - 1)
        # Without a range, only a declared end is a value of the schema.
        if low is None or high is None:
            values = np.array([v for v in (low, high) if v is not None], dtype=np.float32)
        else:
            values = np.unique(np.append(np.arange(low, high), high).astype(np.float32))
        declared.append((values, np.ones(len(values), dtype=np.int64)))
    return declared
