"""Attribute inference: infer one column of rows whose other columns are known.

`Sums` contains the sums of nodes and bins that constrain the attribute, and `fit_probabilities`
fits the probabilities of its values to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedtrees.attacks.membership.attack import model_in
from fedtrees.attacks.membership.references import class_logits, forest_logits
from fedtrees.attacks.observations.applicability import no_trees
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.columns import Column, columns_of
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import cuts_are_of_rows, cuts_of
from fedtrees.attacks.observations.rows_from_columns import pool_columns
from fedtrees.blind_baselines.imputer import Imputer, KnownRows, guessed
from fedtrees.blind_baselines.rows import SIGMA_SHARE
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Entries, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.view import View
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.forest import Forest, Tree

Floats = NDArray[np.float64]
_SWEEPS, _STEP = 30, 3.0
_ROUNDED = 1e-3  # rounding error of sums (fixed point) and leaf values (float32)
_NEVER = 1e-9


@dataclass(frozen=True, eq=False)
class Sum:
    """Known sums over some rows and values.

    Attributes
    ----------
    rows : int64 array, shape (m,)
        Rows that may be contained.
    terms : float32 array, shape (q, m, B)
        Contribution of each of them for a value of each cell.
    total : float64 array, shape (q, C)
        Known sums of C groups of cells.
    group : int64 array, shape (B,)
        Group of each cell, -1 for none.
    variance : float64 array, shape (q,)
        Variance of the noise on each sum.
    """

    rows: NDArray[np.int64]
    terms: NDArray[np.float32]
    total: Floats
    group: NDArray[np.int64]
    variance: Floats


@dataclass(frozen=True, eq=False)
class Sums:
    """All sums of a view, and the division of values into cells.

    Attributes
    ----------
    cell : int64 array, shape (K,)
        Cell of each value. The trees do not distinguish the values of a cell.
    every : tuple of Sum
        The sums.
    possible : bool array, shape (n, B)
        Whether the sums permit a row in a cell.
    """

    cell: NDArray[np.int64]
    every: tuple[Sum, ...]
    possible: NDArray[np.bool_]

    @staticmethod
    def of(
        view: View, seen: BoostingObservations, knowledge: KnownRows, values: NDArray[np.float32]
    ) -> Sums | None:
        """Read the sums of boosted trees of one output that contain all rows, else return None.

        ``seen`` contains the trees, and ``values`` (float32, shape (K, c)) the possible values of
        the attribute.
        """
        plain = seen.share == 1 and not seen.params.reg_alpha
        plain &= np.ndim(seen.base_margin) == 0 and seen.foreign is None
        plain &= not seen.distortion.hides_small_bins
        plain &= seen.restart is None and all(t.categories is None for t in seen.trees)
        plain &= seen.distortion.row_law is None
        if not plain:
            return None
        return _Reader(view, seen, knowledge, values).read()


class _Reader:
    def __init__(
        self,
        view: View,
        seen: BoostingObservations,
        knowledge: KnownRows,
        values: NDArray[np.float32],
    ) -> None:
        self._seen, self._told, self._own = seen, knowledge, view.rows
        d = knowledge.rows.X.shape[1]
        borders = [np.concatenate([t.threshold[t.feature == c] for t in seen.trees])
                   for c in knowledge.columns]  # fmt: skip
        if seen.observed.cuts is not None:
            ends = seen.observed.cuts.offsets
            borders = [
                np.union1d(b, seen.observed.cuts.values[ends[c] : ends[c + 1]])
                for b, c in zip(borders, knowledge.columns, strict=True)
            ]
        codes = np.column_stack(
            [np.searchsorted(np.unique(b), v, side="right")
             for b, v in zip(borders, values.T, strict=True)]
        )  # fmt: skip
        # values between the same borders take the same path, so that one per cell is enough
        _, first, cell = np.unique(codes, axis=0, return_index=True, return_inverse=True)
        self.cell, self._values = cell.reshape(-1), values[first]
        n, b = len(knowledge.rows), len(first)
        X = np.repeat(knowledge.rows.X[:, None, :], b, axis=1)
        X[:, :, knowledge.columns] = self._values
        self._X, self._shape = X.reshape(n * b, d), (n, b)
        self._y = np.repeat(knowledge.rows.y, b)
        self.possible = np.ones((n, b), dtype=bool)

    def read(self) -> Sums:
        return Sums(self.cell, tuple(self._sums()), self.possible)

    def _sums(self) -> Iterator[Sum]:
        seen = self._seen
        margin = np.full(len(self._X), float(seen.base_margin))
        own_rows = None if self._own is None or not len(self._own) else self._own
        own_margin = None if own_rows is None else np.full(len(own_rows), float(seen.base_margin))
        bins = None if seen.observed.cuts is None else bin_rows(self._X, seen.observed.cuts)
        for t, tree in enumerate(seen.trees):
            g, h = self._gradients(margin, self._y)
            passed = passes(self._X, tree)
            own_g = own_h = own_passed = None
            if own_rows is not None and own_margin is not None:
                own_g, own_h = self._gradients(own_margin, own_rows.y)
                own_passed = passes(own_rows.X, tree)
                own_margin = (
                    own_margin + tree.value[np.argmax(own_passed * (tree.feature < 0), axis=1)]
                )
            if seen.observed.histograms is not None and bins is not None:
                yield from self._of_bins(t, passed, g, h, bins.codes, bins.missing)
            else:
                yield from self._of_leaves(t, tree, passed, g, h, own_passed, own_g, own_h)
            margin = margin + tree.value[np.argmax(passed * (tree.feature < 0), axis=1)]

    def _gradients(self, margin: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats]:
        p = expit(margin)
        h = np.ones(len(p)) if self._seen.constant_hessian else np.maximum(p * (1 - p), 1e-16)
        return p - y, h

    def _of_leaves(
        self, t: int, tree: Tree, passed: NDArray[np.bool_], g: Floats, h: Floats,
        own_passed: NDArray[np.bool_] | None, own_g: Floats | None, own_h: Floats | None,
    ) -> Iterator[Sum]:  # fmt: skip
        """Yield the sums of leaves, or the equations that leaf values imply."""
        seen, none = self._seen, np.zeros(self._shape[1], dtype=np.int64)
        if seen.distortion.rounding is not None and tree.g is None:
            return
        for leaf in tree.leaves.tolist():
            inside = passed[:, leaf]
            local_sums = np.zeros(2)
            if seen.observed.own_inside and own_passed is not None and own_g is not None:
                at = own_passed[:, leaf]
                local_sums = np.array([own_g[at].sum(), own_h[at].sum()])  # type: ignore[index]
            rows, both = self._add_rows(inside, g, h)
            if tree.g is not None and tree.h is not None:
                total = np.array([tree.g[leaf], tree.h[leaf]]) - local_sums
                noise = np.full(2, _ROUNDED**2)
                if seen.distortion.noise is not None:
                    noise = noise + np.array(
                        [seen.distortion.noise[t].g[leaf], seen.distortion.noise[t].h[leaf]]
                    )
                terms = both
            else:
                if seen.distortion.noise is not None:
                    return
                c = float(tree.value[leaf]) / seen.params.learning_rate
                terms = (both[0] + c * both[1])[None]
                total = np.array([-c * seen.params.reg_lambda - local_sums[0] - c * local_sums[1]])
                noise = np.full(1, _ROUNDED**2)
            yield Sum(rows, terms, total[:, None], none, noise)

    def _of_bins(
        self, t: int, passed: NDArray[np.bool_], g: Floats, h: Floats,
        codes: NDArray[np.integer], missing: int,
    ) -> Iterator[Sum]:  # fmt: skip
        """Yield sums of the attribute's bins in every node, and mark impossible cells."""
        seen = self._seen
        assert seen.observed.histograms is not None
        assert seen.observed.cuts is not None
        of, ends = seen.observed.histograms[t], seen.observed.cuts.offsets
        slack = of.errors
        exact = seen.distortion.noise is None
        if seen.observed.own_in_bins and self._own is not None and len(self._own):
            return
        for k, node in enumerate(of.nodes.tolist()):
            inside = passed[:, node]
            if not inside.any():
                continue
            variance = np.full(2, _ROUNDED**2 + slack[k] ** 2 / 3)
            if (noise := seen.distortion.noise) is not None:
                of_bins = noise[t].cell_g, noise[t].cell_h
                variance += [np.broadcast_to(v, passed.shape[1])[node] for v in of_bins]
            if exact and not slack[k]:
                at = np.flatnonzero(inside)
                lack = np.zeros(len(at), dtype=bool)
                for c in range(codes.shape[1]):
                    present = codes[at, c] != missing
                    cell = ends[c] + np.where(present, codes[at, c], 0).astype(np.int64)
                    # a bin whose hessian is smaller than that of the row cannot contain it
                    lack |= present & (of.sums[k, cell, 1] < h[at] * (1 - _ROUNDED) - 1e-6)
                self.possible.reshape(-1)[at[lack]] = False
            rows, terms = self._add_rows(inside, g, h)
            for c in self._told.columns:
                column = codes[:, c].reshape(self._shape)[0].astype(np.int64)
                group = np.where(column == missing, -1, column)
                total = of.sums[k, ends[c] : ends[c + 1]].T
                yield Sum(rows, terms, total, group, variance)

    def _add_rows(
        self, inside: NDArray[np.bool_], g: Floats, h: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return rows that may be in a node, with their gradients and hessians."""
        rows = np.flatnonzero(inside.reshape(self._shape).any(axis=1))
        both = [np.where(inside, x, 0.0).reshape(self._shape)[rows] for x in (g, h)]
        return rows, np.stack(both).astype(np.float32)


def passes(X: NDArray[np.float32], tree: Tree) -> NDArray[np.bool_]:
    """Return which nodes every row passes, bool, shape (n, nodes)."""
    passed = np.zeros((len(X), len(tree)), dtype=bool)
    passed[:, 0] = True
    for node in np.flatnonzero(tree.feature >= 0):  # parents come before their children
        x = X[:, tree.feature[node]]
        goes = np.where(np.isnan(x), tree.default_left[node], x < tree.threshold[node])
        passed[:, tree.left[node]] = passed[:, node] & goes
        passed[:, tree.right[node]] = passed[:, node] & ~goes
    return passed


def fit_probabilities(p: Floats, sums: Sums | None, victims_values: Column | None) -> Floats:
    """Return the closest probabilities under which the expected sums are the observed ones.

    Each sum in turn changes the log odds of rows and values in proportion to their contribution
    (dual ascent of the minimum relative entropy, Csiszar 1975, with normal noise). Counts of the
    victims' values are fitted in the same way.

    Parameters
    ----------
    p : float64 array, shape (n, K)
        Prior probabilities.
    sums : Sums or None
        Observed sums.
    victims_values : Column or None
        All values of the victims, in the order of the columns of ``p``.
    """
    n = len(p)
    cell = np.arange(p.shape[1]) if sums is None else sums.cell
    b = int(cell.max()) + 1
    log_p = np.log(p + 1e-300)
    log_factor = np.zeros((n, b))
    if sums is not None:
        some = sums.possible.any(axis=1)
        log_factor[some] += np.where(sums.possible[some], 0.0, np.log(_NEVER))
    log_value = np.zeros(p.shape[1])
    dual = [] if sums is None else [np.zeros(s.total.shape) for s in sums.every]
    onto = np.zeros((p.shape[1], b))
    onto[np.arange(p.shape[1]), cell] = 1.0

    def law() -> Floats:
        z = log_p + log_factor[:, cell] + log_value
        # prevents overflow
        z -= z.max(axis=1, keepdims=True)
        q = np.exp(z)
        return np.asarray(q / q.sum(axis=1, keepdims=True))

    for _ in range(_SWEEPS):
        q = law()
        if victims_values is not None:
            counts = victims_values.counts * (n / victims_values.counts.sum())
            for _ in range(3):
                log_value += np.clip(np.log(counts) - np.log(q.sum(axis=0) + 1e-12), -2, 2)
                q = law()
        if sums is None:
            continue
        inside = q @ onto
        for s, dual_of_sum in zip(sums.every, dual, strict=True):
            if not len(s.rows):
                continue
            change = _update_dual(inside[s.rows], s, dual_of_sum)
            log_factor[s.rows] += change
            part = inside[s.rows] * np.exp(change)
            inside[s.rows] = part / part.sum(axis=1, keepdims=True)
    return law()


def _update_dual(inside: Floats, s: Sum, dual: Floats) -> Floats:
    """Return the change of the log odds by one sum, (m, B), and update its dual variable."""
    groups = s.total.shape[1]
    used = s.group >= 0
    q = len(s.terms)
    expected = np.stack([(inside * term).sum(axis=0) for term in s.terms])
    now = np.stack([np.bincount(s.group[used], e[used], minlength=groups) for e in expected])
    left = s.total - now - s.variance[:, None] * dual
    spread = np.empty((groups, q, q))
    for a in range(q):
        for c in range(a + 1):
            both = (inside * s.terms[a] * s.terms[c]).sum(axis=0)
            spread[:, a, c] = spread[:, c, a] = np.bincount(
                s.group[used], both[used], minlength=groups
            )
    spread += np.eye(q) * (s.variance + 1e-6)
    step = np.linalg.solve(spread, left.T[:, :, None])[:, :, 0].T
    moved = sum(term * by[s.group] for term, by in zip(s.terms, step, strict=True))
    largest = np.zeros(groups)
    np.maximum.at(largest, s.group[used], np.abs(moved).max(axis=0)[used])
    # limit the change of the log odds per step, for numerical stability
    less = np.minimum(1.0, _STEP / np.maximum(largest, _STEP))
    dual += step * less
    return np.asarray(np.where(used, moved * less[s.group], 0.0))


#: Weights of the model's log confidence. The one that fits the prior's rows best is used.
_WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
_TAUGHT = 2  # rounds of self-training on the target rows, without prior rows
_GAIN = 0.005  # smallest gain in nats per row for which a larger weight is preferred


@register.attack("attribute-inference")
@dataclass(frozen=True)
class AttributeInference(Attack):
    """Infer the sensitive attribute of rows whose other columns are known (``sensitive=0``).

    The probability of every value is estimated from local rows or from rows of the population
    (`fedtrees.blind_baselines.imputer.Imputer`). It is multiplied by the model's confidence in the
    known label (Fredrikson et al. 2014; Mehnaz et al. 2022), and fitted to the other evidence:
    values and counts of sketches, sums of nodes and bins, and leaf values (this part is not in a
    paper).
    Without such rows all values are equally likely at first. Estimates from the sums then replace
    this prior.
    """

    claims = (Entries,)

    threats: ClassVar[tuple[str, ...]] = tuple(
        f"{role}[sensitive=0]" for role in ("server", "client", "public")
    )

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if no attribute is to be inferred or the view has no tree model."""
        if KnownRows.of(view) is None:
            return Reason("not-all-but-one")
        return Reason("no-trees") if model_in(view) is None else None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return a value of the attribute for every row."""
        knowledge = KnownRows.of(view)
        if knowledge is None:
            return Guess.none(Reason("not-all-but-one"))
        imputer = Imputer(view.prior_rows, view.schema, knowledge.columns)
        column = _read_column(view, knowledge)
        values = imputer.values if column is None else column.values[:, None]
        p = imputer.chances(knowledge.rows, values)
        if column is None and not imputer.has_training_rows:
            values, prior = _spread(view, knowledge, values)
            # without prior rows all rows have the same prior
            p = np.repeat(prior[None], len(knowledge.rows), axis=0)
        weight = 0.0
        model = model_in(view)
        if model is not None:
            weight = _weight(model, imputer, values, knowledge)
            p = p * np.exp(weight * _confidence(model, knowledge.rows, values, knowledge))
        p /= p.sum(axis=1, keepdims=True)
        seen = None if no_trees(view) else read_boosting(view)
        sums = None if seen is None else Sums.of(view, seen, knowledge, values)
        if sums is not None or column is not None:
            prior, p = p, fit_probabilities(p, sums, column)
            for _ in range(_TAUGHT if sums is not None and not imputer.has_training_rows else 0):
                p = fit_probabilities(
                    prior * _taught(knowledge, view.schema, values, p), sums, column
                )
        cells = guessed(knowledge, view.schema, p, values, SIGMA_SHARE)
        return Guess((Entries("", *cells),), {"confidence_weight": weight})


def _taught(knowledge: KnownRows, schema: Schema, values: NDArray[np.float32], p: Floats) -> Floats:
    """Return the likelihood of every value according to rows with imputed values."""
    X = knowledge.rows.X.copy()
    _, _, cells = guessed(knowledge, schema, p, values, SIGMA_SHARE)
    X[:, knowledge.columns] = cells.reshape(len(X), -1)
    imputer = Imputer(Table(X, knowledge.rows.y), schema, knowledge.columns)
    # how to predict is chosen once, on all rows
    imputer.chances(knowledge.rows.take(slice(1)), values)
    held_out = imputer.held_out(values)
    return np.ones(p.shape) if held_out is None else held_out[1]


def _read_column(view: View, knowledge: KnownRows) -> Column | None:
    """Return all values of the victims' column if their sketches reveal these, else None."""
    if len(knowledge.columns) > 1 or not columns_of(view):
        return None
    together = pool_columns(view)
    return (
        None
        if together is None or not together[knowledge.columns[0]].exact
        else (together[knowledge.columns[0]])
    )


def _spread(
    view: View, knowledge: KnownRows, values: NDArray[np.float32]
) -> tuple[NDArray[np.float32], Floats]:
    """Return values and their probabilities from the thresholds, without prior rows.

    Models split a numeric column where rows are. Categories remain equally likely.
    """
    model = model_in(view)
    even = np.full(len(values), 1 / len(values))
    if len(knowledge.columns) > 1 or view.schema.categorical[knowledge.columns[0]] or model is None:
        return values, even
    (column,) = knowledge.columns
    trees = getattr(model, "trees", ())  # other models draw their tests without data
    used = [t.threshold[t.feature == column] for t in trees] or [np.zeros(0)]
    cuts = cuts_of(view)
    if cuts is not None and cuts_are_of_rows(view):
        used = [cuts.values[cuts.offsets[column] : cuts.offsets[column + 1]]]
    at = np.concatenate(used).astype(np.float64)
    if not len(at):
        return values, even
    low, high = at.min(), at.max()
    wide = at.std() if len(np.unique(at)) > 1 else float(np.ptp(values)) / 10
    line = np.unique(np.linspace(low - wide, high + wide, 201).astype(np.float32))
    near = np.exp(-0.5 * ((line[:, None] - at) / max(wide / 2, 1e-9)) ** 2).sum(axis=1) + 1e-9
    return line[:, None], near / near.sum()


def _confidence(
    model: object, rows: Table, values: NDArray[np.float32], knowledge: KnownRows
) -> Floats:
    """Return the log probability of each row's label for each value of the attribute, (n, K)."""
    log_chances = []
    for value in values:
        X = rows.X.copy()
        X[:, knowledge.columns] = value
        table = Table(X, rows.y)
        if isinstance(model, Forest):
            logit = forest_logits(model, table)
        else:
            logit = class_logits(model.probabilities(X), rows.y)  # type: ignore[attr-defined]
        # Log probability of the label. The logistic function itself would underflow.
        log_chances.append(-np.logaddexp(0, -logit))
    return np.column_stack(log_chances)


def _weight(
    model: object, imputer: Imputer, values: NDArray[np.float32], knowledge: KnownRows
) -> float:
    """Return the weight of the model's log confidence that fits the prior's rows best."""
    held_out = imputer.held_out(imputer.values)
    if held_out is None:
        return 1.0
    own_rows, p = held_out
    log_p, confidence = np.log(p + 1e-12), _confidence(model, own_rows, imputer.values, knowledge)
    # the candidate value closest to the true one counts as correct
    off = np.abs(own_rows.X[:, knowledge.columns][:, None] - imputer.values[None]).sum(axis=2)
    right, best = off.argmin(axis=1), (0.0, -np.inf)
    for w in _WEIGHTS:
        z = log_p + w * confidence
        z -= np.logaddexp.reduce(z, axis=1)[:, None]
        score = float(z[np.arange(len(z)), right].mean())
        # a larger weight must gain clearly, because there are few rows for validation
        # zero is the default, so that a useless model is ignored
        if score > best[1] + _GAIN:
            best = w, score
    return best[0]
