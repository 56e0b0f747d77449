"""`regression-inversion`: recover exact values of other parties from gradients and weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import gmpy2
import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.regression.columns import ColumnsView, claim_table, entries_of_column
from fedtrees.attacks.regression.exact_algebra import Reals, norm
from fedtrees.attacks.regression.opened import colluding, opened_claims
from fedtrees.attacks.regression.rotation import (
    Column,
    Solution,
    asked_weights,
    averages,
    common_scales,
    reals,
    recover_rotated,
    rotated_rows,
    solutions,
)
from fedtrees.blind_baselines.conditional import predict_columns
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Entries, Guess
from fedtrees.core.errors import check_known
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.linear import standardise_rows
from fedtrees.messages.regression import ColumnScales, Gradient

ARITHMETIC = ("exact", "float64")
#: Largest relative difference between the norms from queried weights and from scores.
AGREE = 1e-3
#: Error in standard deviations of a column that an estimate from known values and local columns
#: has. Results with larger errors are discarded.
LIKELY = 0.3


@register.attack("regression-inversion")
@dataclass(frozen=True, kw_only=True)
class RegressionInversion(Attack):
    """Invert federated regressions in exact arithmetic (after Li et al. 2022, Sec. 4).

    If the arbiter colludes, labels and columns follow from linear equations only (`opened`).

    Vertical regressions: residuals follow from the gradients of the local columns. ``X_A X_A'``
    follows from two rounds more than other parties have columns (with batches, twice as many visits
    as they have columns). The weights of the other parties follow from the prediction endpoint, if
    there is one (`queries=`). The remaining rotation follows from known entries (`entries=`).

    Horizontal regressions: ``X_A' X_A`` follows from averaged weights.

    If the entries leave several solutions, the one that best fits declared ranges and announced
    standard deviations is chosen.

    Parameters
    ----------
    arithmetic : {"exact", "float64"}
        "exact" uses integers where messages contain integers, and real numbers with several times
        their precision. "float64" is for comparison.
    """

    arithmetic: str = "exact"

    claims = (Entries,)
    supports_regression: ClassVar[bool] = True
    threats: ClassVar[tuple[str, ...]] = ("active[queries=40,entries=105]", "client[entries=30]")

    def __post_init__(self) -> None:
        check_known("arithmetic", self.arithmetic, ARITHMETIC)

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if gradients, directions or rounds are missing, else None."""
        if colluding(view):
            return None if opened_claims(view) else Reason("one-round")
        if averages(view) and common_scales(view) is not None:
            return _why_not_rows(view)
        read = ColumnsView.of(view)
        if read is None:
            return Reason("no-regression")
        if not read.other_scales or not read.hidden:
            return Reason("no-varying-column")
        n, count = read.hidden, len(read.batches)
        if (lacking := read.lacking) is not None:
            return Reason("too-few-own-columns", rows=lacking[0], rank=lacking[1])
        if n > read.least:
            return Reason("too-many-columns", columns=n, rows=read.least)
        if count > 1 and read.rounds < 2 * n * count:
            took = {"needed": 2 * n * count, "rounds": read.rounds}
            return Reason("too-few-rounds", batches=count, columns=n, **took)
        return Reason("one-round") if read.rounds < 2 else None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Invert the regression."""
        if why := self.inapplicable(view):
            return Guess.none(why)
        if colluding(view):
            return Guess.of(opened_claims(view), otherwise=Reason("one-round"))
        with gmpy2.context(gmpy2.get_context(), precision=6 * int(view.parameters["bits"]) + 128):
            if averages(view):
                return self._rows(view)
            return self._columns(view, rng)

    def _columns(self, view: View, rng: np.random.Generator) -> Guess:
        """Invert a vertical regression.

        If a defense changes the gradients, the inversion is repeated with the same amount of error
        again, to estimate the error of the result. If it is too large, an estimate from local
        columns and known values is claimed instead.
        """
        read, precise = ColumnsView.of(view), self.arithmetic == "exact"
        assert read is not None
        weights = asked_weights(view, read, precise)
        values, notes = self._invert_rounds(view, read, weights)
        law = view.channel(Gradient, "values", "arbiter")
        blind = False
        if law is not None and not notes["exact"]:
            variance = float(law.posterior_moments(np.zeros(1))[1][0])
            # the change of the result under a second error of the same size estimates its error
            again, _ = self._invert_rounds(view, read.add_noise(variance, rng), weights)
            differences = [
                (values[s.party] - again[s.party]) / np.where(s.scale > 0, s.scale, np.inf)
                for s in read.other_scales
            ]  # fmt: skip
            total = sum(float((x**2).sum()) for x in differences)
            blind = total > 2 * LIKELY**2 * len(differences[0]) * read.hidden
        if blind:
            values = {s.party: _likely(view, s) for s in read.other_scales}
        ids = view.local_data[0].ids
        claims = [claim_table(s.party, ids, s.columns, values[s.party]) for s in read.other_scales]
        notes |= {"submits_blind": float(blind)}
        return Guess.of(claims, notes, otherwise=Reason("no-varying-column"))

    def _invert_rounds(
        self, view: View, read: ColumnsView, weights: Reals | None
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """Return the columns of other parties, float64, shape (m, c) each, and notes."""
        precise = self.arithmetic == "exact"
        rotation = recover_rotated(view, read, precise, weights)
        n, direction = read.hidden, rotation.direction
        if direction is not None and rotation.weights is not None:
            apart = abs(float(norm(direction)) - float(norm(rotation.weights)))
            if apart > AGREE * float(norm(rotation.weights)):
                direction = None  # a defense has changed answers or gradients
        ids, bits = view.local_data[0].ids, int(view.parameters["bits"])
        row_of = {i: k for k, i in enumerate(ids.tolist())}
        known_columns, where = list[Column](), list[tuple[Any, int]]()
        for s in read.other_scales:
            for k in np.flatnonzero(s.scale > 0).tolist():
                rows, values = entries_of_column(view, int(s.columns[k]), row_of)
                ends = s.mean[k : k + 1], s.scale[k : k + 1]
                codes = standardise_rows(values[:, None], *ends, bits)[:, 0]
                along = None if direction is None else rotation.weights[len(known_columns)]  # type: ignore[index]
                known_columns.append(Column(rows, list(reals(codes, bits, precise)), along))
                where.append((s, k))
        # several rotations fit the equations, and values outside declared ranges exclude some
        ranges = [view.schema.features[s.columns[k]].declared_range for s, k in where]

        def cost(j: int, x: Reals) -> float:
            s, k = where[j]
            # a standardised column has mean square 1
            spread = abs(float(x @ x) / len(x) - 1)
            return spread + _outside(s.mean[k] + s.scale[k] * x.astype(np.float64), ranges[j])

        best, count = _best(
            rotation.L, known_columns, direction, cost, precise, rotation.L.shape[1] == n
        )
        tables = {s.party: np.repeat(s.mean[None], len(ids), axis=0) for s in read.other_scales}
        for j, (s, k) in enumerate(where):
            if j in best.columns:
                x = (rotation.L @ best.columns[j]).astype(np.float64)
                tables[s.party][:, k] = s.mean[k] + s.scale[k] * x
        return tables, {
            "exact": float(rotation.exact),
            "directions": float(rotation.L.shape[1]),
            "hidden_columns": float(n),
            "solutions": float(count),
        }

    def _rows(self, view: View) -> Guess:
        """Invert a horizontal regression."""
        precise, scales = self.arithmetic == "exact", common_scales(view)
        assert scales is not None
        (victim,) = _other_clients(view)
        ids, bits = _other_ids(view), int(view.parameters["bits"])
        L = rotated_rows(view, len(ids), precise)
        mean, scale = scales.mean[:-1], scales.scale[:-1]
        varied = np.flatnonzero(scale > 0)
        known_rows = []
        for i in ids.tolist():
            columns, values = _entries_of_row(view, i)
            is_varying = np.isin(columns, varied)
            columns, values = columns[is_varying], values[is_varying]
            codes = standardise_rows(values[None], mean[columns], scale[columns], bits)[0]
            rows, known_values = columns.tolist(), list(reals(codes, bits, precise))
            if view.parameters["intercept"]:  # it is 1 in every row
                rows, known_values = [*rows, len(mean)], [*known_values, 1.0]
            known_rows.append(Column(rows, known_values))
        ranges = [feature.declared_range for feature in view.schema.features]

        def cost(i: int, x: Reals) -> float:
            values = mean + scale * x[: len(mean)].astype(np.float64)
            pairs = zip(values, ranges, strict=True)
            return float(np.mean([_outside(np.array([v]), r) for v, r in pairs]))

        square = L.shape[1] == len(ids)
        best, count = _best(L, known_rows, None, cost, precise, square)
        X = np.stack([mean + scale * (L @ best.columns[i])[: len(mean)].astype(np.float64)
                      for i in range(len(ids))])  # fmt: skip
        claim = claim_table(victim, ids, np.arange(len(mean)), X)
        notes = {"directions": float(L.shape[1]), "solutions": float(count)}
        return Guess((claim,), notes)


def _likely(view: View, s: ColumnScales) -> NDArray[np.float64]:
    """Return an estimate of a party's columns from known values and local columns, (m, c)."""
    values = np.repeat(s.mean[None], len(view.local_data[0].ids), axis=0)
    if view.known_entries is not None:
        places = {c: k for k, c in enumerate(s.columns.tolist())}
        ends = {c: (float(s.mean[k]), float(s.scale[k])) for c, k in places.items()}
        for c, likely in predict_columns(
            ends, view.known_entries, view.local_data[0], together=True
        ).items():
            values[:, places[c]] = likely
    return values


def _why_not_rows(view: View) -> Reason | None:
    """Return the reason if averaged weights do not reveal rows, else None."""
    other_clients = _other_clients(view)
    if not view.local_data or len(other_clients) != 1:
        return Reason("averages-of-several", clients=len(other_clients))
    m, width = len(_other_ids(view)), len(view.schema.features) + int(view.parameters["intercept"])
    if m > width:
        return Reason("too-few-weights", rows=m, weights=width)
    return Reason("one-round") if len(averages(view)) < 2 else None


def _other_clients(view: View) -> list[str]:
    return [n for n, r in view.roles.items() if r == "client" and n not in view.principals]


def _other_ids(view: View) -> NDArray[np.int64]:
    """Return the ids of other parties' rows, which are numbered consecutively."""
    local_ids = np.concatenate([h.ids for h in view.local_data])
    return np.setdiff1d(np.arange(view.n_rows), local_ids)


def _entries_of_row(view: View, row: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if view.known_entries is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    of_row = view.known_entries.ids == row
    return view.known_entries.columns[of_row], view.known_entries.values[of_row]


def _best(
    L: Reals,
    columns: list[Column],
    direction: Reals | None,
    cost: Callable[[int, Reals], float],
    precise: bool,
    square: bool,
) -> tuple[Solution, int]:
    """Return the most plausible solution, and the number of solutions."""
    if not L.shape[1]:
        return Solution(dict.fromkeys(range(len(columns)), L[0])), 1
    # a third of the precision separates rounding errors from linear independence
    digits = gmpy2.get_context().precision if precise else 53
    candidates = solutions(L, columns, direction, cost, 2.0 ** -(digits // 3), square)
    return candidates[0], len(candidates)


def _outside(values: NDArray[np.float64], declared: tuple[float, float] | None) -> float:
    """Return the mean distance of values from a declared range, as a share of its width."""
    if declared is None:
        return 0.0
    low, high = declared
    beyond = np.maximum(low - values, 0) + np.maximum(values - high, 0)
    return float(beyond.mean() / (high - low))
