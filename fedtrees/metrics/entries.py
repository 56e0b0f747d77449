"""Metric `entries`: inferred feature values of the victims, cell by cell.

The adversary knows the ids of the rows, for example because it has other columns of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.conditional import predict_columns
from fedtrees.blind_baselines.imputer import imputed
from fedtrees.core.claims import Claim, Entries
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.metrics.metric import Case, Metric, Score

#: Largest error of an exact value and of a close value, in standard deviations of the column. The
#: second is that of the reconstruction accuracy (`fedtrees.blind_baselines.rows.SIGMA_SHARE`).
FOUND, CLOSE = 1e-6, 0.319


@dataclass(frozen=True, eq=False)
class VictimsEntries:
    """The k cells of the victims that the threat model does not declare known.

    Attributes
    ----------
    owner : str array, shape (k,)
        Victim that has the cell.
    ids, feature : int64 array, shape (k,)
        Row id and feature of the cell.
    value : float64 array, shape (k,)
        True value. Missing values are not included.
    mean, spread : float64 array, shape (k,)
        Mean and standard deviation of the column at its owner. The latter is 0 for a constant
        column.
    """

    owner: NDArray[np.str_]
    ids: NDArray[np.int64]
    feature: NDArray[np.int64]
    value: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


@register.metric("entries")
class EntriesMetric(Metric[VictimsEntries]):
    """Share of the victims' feature values that are inferred, cell by cell.

    Values that the threat model declares known are not scored. ``entries`` is the share of cells
    with an error of at most a millionth of the standard deviation of their column, and
    ``entries_close`` at most 0.319 standard deviations. ``exact_entry_rows`` is the share of rows
    of a victim whose scored cells are all exact. ``relative_error`` is the mean absolute error
    divided by the mean absolute deviation from the mean, both in standard deviations (Li et al.
    2022, Sec. 6.2). A cell without a claim counts as guessed at the mean, and the error of a cell
    is at most 10 standard deviations.
    """

    of: ClassVar[type[Claim]] = Entries
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("entries", "values found", "share of cells", slot="guess", head="missing cells",
                severity=120, phrase="infer {} of the other parties' values"),
        Measure("entries_close", "values nearly found", "share of cells", severity=130,
                phrase="come close to {} of the other parties' values", covered_by=("entries",)),
        Measure("exact_entry_rows", "rows with every value found", "share of rows", klass="person"),
        Measure("relative_error", "relative error of values", "ratio", 0.0, decimals=2),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("entries", "exact_entry_rows", "relative_error")

    def truth(self, case: Case) -> VictimsEntries | None:
        """Return the cells that are not declared known, None if there are none."""
        declared = case.known_entries
        known_cells = (
            set()
            if declared is None
            else {*zip(declared.ids.tolist(), declared.columns.tolist(), strict=True)}
        )
        parts = []
        for name, local_data in case.victims.items():
            X = local_data.X.astype(np.float64)
            for position, column in enumerate(local_data.columns.tolist()):
                x = X[:, position]
                new = ~np.isnan(x)
                if known_cells:
                    new &= [(i, column) not in known_cells for i in local_data.ids.tolist()]
                if not new.any():
                    continue
                k, present = int(new.sum()), x[~np.isnan(x)]
                # The computed deviation of a constant column can be slightly above 0, so test for
                # equality.
                constant = (present == present[0]).all()
                spread = 0.0 if constant else float(present.std())
                ends = (np.full(k, float(present.mean())), np.full(k, spread))
                parts.append(
                    (np.full(k, name), local_data.ids[new], np.full(k, column), x[new], *ends)
                )
        if not parts:
            return None
        return VictimsEntries(*map(np.concatenate, zip(*parts, strict=True)))

    def refuses(self, claims: Sequence[Entries], case: Case) -> str | None:
        """Refuse cells that no victim has, and two claims about one victim.

        A claim with an empty owner is about rows of any victim.
        """
        for c in claims:
            local_data = case.victims.get(c.owner)
            if not c.owner and case.victims:
                if not np.isin(c.ids, np.concatenate([h.ids for h in case.victims.values()])).all():
                    return "it claimed values of rows that no victim has"
                continue
            if local_data is None or not np.isin(c.feature, local_data.columns).all():
                return f"it claimed values of {c.owner!r} in columns that this party does not have"
            if not np.isin(c.ids, local_data.ids).all():
                return f"it claimed values of rows that {c.owner!r} does not have"
        owners = [c.owner for c in claims]
        return "it claimed values of one owner twice" if len({*owners}) < len(owners) else None

    def blind(self, case: Case, truth: VictimsEntries) -> dict[str, Sequence[Claim]]:
        """Return constant guesses of every column, and predictions from local data.

        The constants are the mean, the median, the mode, and the centre of the interval with most
        values, whose half width is the tolerance `CLOSE`. The blind adversary is granted them,
        although it would have to estimate them. If the threat model declares known values, they are
        extrapolated by regression on local columns (`fedtrees.blind_baselines.conditional`). If it
        declares a sensitive attribute, ``imputed`` predicts it from local rows
        (`fedtrees.blind_baselines.imputer`).
        """
        guesses: dict[str, Sequence[Claim]] = {
            "means": _claims(truth, truth.mean),
            "medians": _claims(truth, _by_column(truth, np.median)),
            "modes": _claims(truth, _by_column(truth, _mode)),
            "densest": _claims(truth, _by_column(truth, _densest)),
        }
        declared, view = case.known_entries, case.blind_view()
        if case.knowledge is not None and case.knowledge.sensitive is not None:
            # Local rows contain the sensitive attribute. Regressions on known values are not
            # needed.
            cells = imputed(view, CLOSE)
            return guesses if cells is None else {**guesses, "imputed": [Entries("", *cells)]}
        with_columns = [h for h in view.local_data if len(h.columns)]
        if declared is not None and with_columns:
            guesses["regressed"] = _claims(truth, _predict_cells(truth, declared, with_columns[0]))
            guesses["regressed-together"] = _claims(
                truth, _predict_cells(truth, declared, with_columns[0], True)
            )
        return {**guesses, **super().blind(case, truth)}

    def score(self, claims: Sequence[Entries], truth: VictimsEntries) -> list[Score]:
        """Compute the scores over all cells of all victims."""
        # Cells without a claim remain at the mean and are never exact or close.
        guess = truth.mean.copy()
        has_claim = np.zeros(len(guess), dtype=bool)
        for c in claims:
            cells = zip(c.ids.tolist(), c.feature.tolist(), strict=True)
            claimed = dict(zip(cells, c.value.tolist(), strict=True))
            for k in np.flatnonzero((truth.owner == c.owner) | (not c.owner)).tolist():
                value = claimed.get((truth.ids[k], truth.feature[k]))
                if value is not None:
                    guess[k], has_claim[k] = value, True
        # Errors in a constant column are absolute.
        unit = np.where(truth.spread > 0, truth.spread, 1.0)
        error = np.minimum(np.abs(guess - truth.value) / unit, 10.0)
        size = float((np.abs(truth.value - truth.mean) / unit).mean())
        exact, close = has_claim & (error <= FOUND), has_claim & (error <= CLOSE)
        # A row is exact if every one of its scored cells is exact.
        rows: dict[tuple[str, int], bool] = {}
        for key, right in zip(zip(truth.owner, truth.ids, strict=True), exact, strict=True):
            rows[key] = rows.get(key, True) and bool(right)
        return [
            Score("entries", float(exact.mean())),
            Score("entries_close", float(close.mean())),
            Score("exact_entry_rows", float(np.mean(list(rows.values())))),
            Score("relative_error", float(error.mean()) / size if size else None),
        ]


def _by_column(
    truth: VictimsEntries, constant: Callable[[NDArray[np.float64]], float]
) -> NDArray[np.float64]:
    """Fill every cell with a constant of its column, computed over the cells of all victims."""
    guess = np.empty(len(truth.value))
    for feature in np.unique(truth.feature):
        in_column = truth.feature == feature
        guess[in_column] = constant(truth.value[in_column])
    return guess


def _mode(x: NDArray[np.float64]) -> float:
    """Return the most frequent value."""
    values, counts = np.unique(x, return_counts=True)
    return float(values[counts.argmax()])


def _densest(x: NDArray[np.float64]) -> float:
    """Return the centre of the values in the interval of length 2 `CLOSE` with most values."""
    x, width = np.sort(x), 2 * CLOSE * float(x.std())
    inside = np.searchsorted(x, x + width, side="right") - np.arange(len(x))
    first = int(inside.argmax())
    return float(x[first] + x[first + inside[first] - 1]) / 2


def _claims(truth: VictimsEntries, guess: NDArray[np.float64]) -> list[Claim]:
    """Return one claim per victim from guessed values in the order of the cells."""
    claims: list[Claim] = []
    for owner in np.unique(truth.owner).tolist():
        of_owner = truth.owner == owner
        claims.append(Entries(owner, truth.ids[of_owner], truth.feature[of_owner], guess[of_owner]))
    return claims


def _predict_cells(
    truth: VictimsEntries,
    known_entries: KnownEntries,
    local_data: LocalData,
    together: bool = False,
) -> NDArray[np.float64]:
    """Return the prediction of `predict_columns` in every cell of a local row, else the mean."""
    features, first = np.unique(truth.feature, return_index=True)
    ends = zip(features.tolist(), truth.mean[first], truth.spread[first], strict=True)
    values = predict_columns(
        {f: (float(mean), float(s)) for f, mean, s in ends}, known_entries, local_data, together
    )
    position, guess = {i: k for k, i in enumerate(local_data.ids.tolist())}, truth.mean.copy()
    for k, (i, feature) in enumerate(zip(truth.ids.tolist(), truth.feature.tolist(), strict=True)):
        if i in position and feature in values:
            guess[k] = values[feature][position[i]]
    return guess
