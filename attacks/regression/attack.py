"""`regression-inversion`: the very values that others hold, from gradients and weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import gmpy2
import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.regression.columns import ColumnsView
from fedtrees.attacks.regression.horizontal import averages, common_scales, rotated_rows
from fedtrees.attacks.regression.opened import colluding, opened_claims
from fedtrees.attacks.regression.reals import Reals, norm
from fedtrees.attacks.regression.rotation import Column, Solution, solutions
from fedtrees.attacks.regression.vertical import asked_weights, reals, rotated
from fedtrees.core.attack import Attack
from fedtrees.core.errors import check_known
from fedtrees.core.guess import Claim, Entries, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.guessing.entries import regressed
from fedtrees.messages.regression import ColumnScales, Gradient, standardised

ARITHMETIC = ("exact", "float64")
#: Of the length that asked weights say, how far the one that scores say may be off.
AGREE = 1e-3
#: Of a column's deviation, how far off known values and own columns are, and less: where errors are
#: that large, one more of them tells too little.
LIKELY = 0.3


@register.attack("regression-inversion")
@dataclass(frozen=True, kw_only=True)
class RegressionInversion(Attack):
    """Inversion of regressions after Li et al. (2022, Sec. 4), in exact arithmetic.

    Where the arbiter colludes, labels and columns by linear equations alone (`opened`). Over
    columns: residuals from own gradients, ``X_A X_A'`` from two rounds more than others have
    columns (of batches, twice as many visits as others have columns), their weights from the
    endpoint if there is one (`queries=`), and the rotation that is left from entries that are known
    (`entries=`). Over rows: ``X_A' X_A`` from averaged weights.
    Where entries leave several solutions, that one is taken which keeps to declared ranges and to
    the standard deviations that were told.

    `arithmetic`: Whole numbers where messages are such, and real numbers with several times their
    places; or float64 throughout, to compare with.
    """

    arithmetic: str = "exact"

    gives: ClassVar[type[Claim] | None] = Entries
    threats: ClassVar[tuple[str, ...]] = ("active[queries=40,entries=105]", "client[entries=30]")

    def __post_init__(self) -> None:
        check_known("arithmetic", self.arithmetic, ARITHMETIC)

    def inapplicable(self, view: View) -> Reason | None:
        """Return what a view lacks: gradients, directions, rounds."""
        if colluding(view):
            return None if opened_claims(view) else Reason("one-round")
        if averages(view) and common_scales(view) is not None:
            return _why_not_rows(view)
        read = ColumnsView.of(view)
        if read is None:
            return Reason("no-regression")
        if not read.others or not read.hidden:
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
        """Invert."""
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

        Where a defense acts on gradients, once more with as much error again: by that the others'
        columns are off. What own columns and known values make likely is claimed if it is nearer.
        """
        read, precise = ColumnsView.of(view), self.arithmetic == "exact"
        assert read is not None
        weights = asked_weights(view, read, precise)
        values, notes = self._inverted(view, read, weights)
        law = view.channel(Gradient, "values", "arbiter")
        blind = False
        if law is not None and not notes["exact"]:
            variance = float(law.error(np.zeros(1))[1][0])
            again, _ = self._inverted(view, read.shaken(variance, rng), weights)
            off = [((values[s.party] - again[s.party]) / np.where(s.scale > 0, s.scale, np.inf))
                   for s in read.others]  # fmt: skip
            total = sum(float((x**2).sum()) for x in off)
            blind = total > 2 * LIKELY**2 * len(off[0]) * read.hidden
        if blind:
            values = {s.party: _likely(view, s) for s in read.others}
        ids = view.own[0].ids
        claims = [_claim(s.party, ids, s.columns, values[s.party]) for s in read.others]
        notes |= {"submits_blind": float(blind)}
        return Guess.of(claims, notes, otherwise=Reason("no-varying-column"))

    def _inverted(
        self, view: View, read: ColumnsView, weights: Reals | None
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """Return what others hold, float64, shape (m, c) each, and notes."""
        precise = self.arithmetic == "exact"
        found = rotated(view, read, precise, weights)
        n, direction = read.hidden, found.direction
        if direction is not None and found.weights is not None:
            apart = abs(float(norm(direction)) - float(norm(found.weights)))
            if apart > AGREE * float(norm(found.weights)):
                direction = None  # a defense has changed answers or gradients
        ids, bits = view.own[0].ids, int(view.parameters["bits"])
        row_of = {i: k for k, i in enumerate(ids.tolist())}
        known, where = [], []
        for s in read.others:
            for k in np.flatnonzero(s.scale > 0).tolist():
                rows, values = _entries_of_column(view, int(s.columns[k]), row_of)
                ends = s.mean[k : k + 1], s.scale[k : k + 1]
                codes = standardised(values[:, None], *ends, bits)[:, 0]
                along = None if direction is None else found.weights[len(known)]  # type: ignore[index]
                known.append(Column(rows, list(reals(codes, bits, precise)), along))
                where.append((s, k))
        ranges = [view.schema.features[s.columns[k]].declared_range for s, k in where]

        def cost(j: int, x: Reals) -> float:
            s, k = where[j]
            spread = abs(float(x @ x) / len(x) - 1)
            return spread + _outside(s.mean[k] + s.scale[k] * x.astype(np.float64), ranges[j])

        best, count = _best(found.L, known, direction, cost, precise, found.L.shape[1] == n)
        told = {s.party: np.repeat(s.mean[None], len(ids), axis=0) for s in read.others}
        for j, (s, k) in enumerate(where):
            if j in best.columns:
                x = (found.L @ best.columns[j]).astype(np.float64)
                told[s.party][:, k] = s.mean[k] + s.scale[k] * x
        return told, {
            "exact": float(found.exact),
            "directions": float(found.L.shape[1]),
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
        known = []
        for i in ids.tolist():
            columns, values = _entries_of_row(view, i)
            there = np.isin(columns, varied)
            columns, values = columns[there], values[there]
            codes = standardised(values[None], mean[columns], scale[columns], bits)[0]
            rows, told = columns.tolist(), list(reals(codes, bits, precise))
            if view.parameters["intercept"]:  # everybody's is 1
                rows, told = [*rows, len(mean)], [*told, 1.0]
            known.append(Column(rows, told))
        ranges = [feature.declared_range for feature in view.schema.features]

        def cost(i: int, x: Reals) -> float:
            values = mean + scale * x[: len(mean)].astype(np.float64)
            pairs = zip(values, ranges, strict=True)
            return float(np.mean([_outside(np.array([v]), r) for v, r in pairs]))

        square = L.shape[1] == len(ids)
        best, count = _best(L, known, None, cost, precise, square)
        X = np.stack([mean + scale * (L @ best.columns[i])[: len(mean)].astype(np.float64)
                      for i in range(len(ids))])  # fmt: skip
        claim = _claim(victim, ids, np.arange(len(mean)), X)
        notes = {"directions": float(L.shape[1]), "solutions": float(count)}
        return Guess((claim,), notes)


def _likely(view: View, s: ColumnScales) -> NDArray[np.float64]:
    """Return what known values and own columns make of a party's columns, shape (m, c)."""
    values = np.repeat(s.mean[None], len(view.own[0].ids), axis=0)
    if view.entries is not None:
        places = {c: k for k, c in enumerate(s.columns.tolist())}
        ends = {c: (float(s.mean[k]), float(s.scale[k])) for c, k in places.items()}
        for c, likely in regressed(ends, view.entries, view.own[0], together=True).items():
            values[:, places[c]] = likely
    return values


def _why_not_rows(view: View) -> Reason | None:
    """Return why averaged weights tell no rows, None if they may."""
    others = _other_clients(view)
    if not view.own or len(others) != 1:
        return Reason("averages-of-several", clients=len(others))
    m, width = len(_other_ids(view)), len(view.schema.features) + int(view.parameters["intercept"])
    if m > width:
        return Reason("too-few-weights", rows=m, weights=width)
    return Reason("one-round") if len(averages(view)) < 2 else None


def _other_clients(view: View) -> list[str]:
    return [n for n, r in view.roles.items() if r == "client" and n not in view.principals]


def _other_ids(view: View) -> NDArray[np.int64]:
    """Return the ids of others' rows: ids count through; those of known entries come first."""
    own = np.concatenate([h.ids for h in view.own])
    return np.setdiff1d(np.arange(view.n_rows), own)


def _entries_of_column(
    view: View, column: int, row_of: dict[int, int]
) -> tuple[list[int], NDArray[np.float32]]:
    if view.entries is None:
        return [], np.zeros(0, dtype=np.float32)
    e = view.entries
    mine = [k for k in np.flatnonzero(e.columns == column).tolist() if int(e.ids[k]) in row_of]
    return [row_of[int(e.ids[k])] for k in mine], e.values[mine]


def _entries_of_row(view: View, row: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if view.entries is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    mine = view.entries.ids == row
    return view.entries.columns[mine], view.entries.values[mine]


def _best(
    L: Reals,
    known: list[Column],
    direction: Reals | None,
    cost: Callable[[int, Reals], float],
    precise: bool,
    square: bool,
) -> tuple[Solution, int]:
    """Return the likeliest solution, and how many there were."""
    if not L.shape[1]:
        return Solution(dict.fromkeys(range(len(known)), L[0])), 1
    digits = gmpy2.get_context().precision if precise else 53
    found = solutions(L, known, direction, cost, 2.0 ** -(digits // 3), square)
    return found[0], len(found)


def _outside(values: NDArray[np.float64], declared: tuple[float, float] | None) -> float:
    """Return how far values are beyond a declared range, mean, as a share of it."""
    if declared is None:
        return 0.0
    low, high = declared
    beyond = np.maximum(low - values, 0) + np.maximum(values - high, 0)
    return float(beyond.mean() / (high - low))


def _claim(owner: str, ids: Any, columns: Any, values: NDArray[np.float64]) -> Entries:
    """Claim a table of values, as float32 has them."""
    with np.errstate(over="ignore"):
        kept = np.nan_to_num(values.astype(np.float32)).astype(np.float64)
    rows, features = np.meshgrid(ids, columns, indexing="ij")
    return Entries(owner, rows.ravel(), features.ravel().astype(np.int64), kept.ravel())
