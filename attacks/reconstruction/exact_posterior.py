"""Exact posterior over all possible tables of the victims, for federations of very few rows.

Every multiset of rows is enumerated. A table is compatible with the transcript if it gives the
released leaf sums and, without randomness in training, the same cut points, splits and histograms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    add_values,
    at_tree,
    gradients_of,
    leaves_below,
)
from fedtrees.attacks.reconstruction.context import ReconstructionContext, equations
from fedtrees.core.errors import FedtreesError
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Largest number of tables to enumerate. With more tables, Markov chains are faster.
MOST_TABLES = 20_000
#: Weight of the uniform distribution over types in the prior, in rows. `joint` uses it as well.
EVEN = 10.0
#: Precision of sums, in gradients: float32 sums and leaf values of four digits.
_TOLD = 2e-3
#: Tables that are less likely than the best one by more than so many nats are not retrained.
_UNLIKELY = 20.0


@dataclass(frozen=True, eq=False)
class Tables:
    """All tables with a given number of rows whose columns have declared codes.

    Attributes
    ----------
    types : Table
        One row of each of the V types.
    counts : int64 array, shape (M, V)
        Number of rows of each type in every table.
    prior : float64 array, shape (M,)
        Log probability of every table (nats) up to a constant. Rows are drawn independently from a
        mixture of the local rows and the uniform distribution over types.
    """

    types: Table
    counts: Ints
    prior: Floats

    @staticmethod
    def of(schema: Schema, n: int, known_rows: Table) -> Tables | None:
        """Enumerate the tables of n rows. The local rows determine their prior.

        The result is None if a column has no codes or if there are more than `MOST_TABLES` tables.
        """
        sizes = [*(len(f.categories) for f in schema.features), len(schema.classes)]
        V = prod(sizes)
        if n < 1 or not V or comb(V + n - 1, n) > MOST_TABLES:
            return None
        row_types = np.array(list(product(*map(range, sizes))))
        rows = np.array(list(combinations_with_replacement(range(V), n)))
        counts = np.zeros((len(rows), V), dtype=np.int64)
        np.add.at(counts, (np.arange(len(rows))[:, None], rows), 1)
        local_rows = np.column_stack([known_rows.X, known_rows.y])
        weight = EVEN / V + np.array([(local_rows == one).all(axis=1).sum() for one in row_types])
        prior = counts @ np.log(weight / weight.sum()) - gammaln(counts + 1).sum(axis=1)
        return Tables(Table(row_types[:, :-1].astype(np.float32), row_types[:, -1]), counts, prior)

    def table(self, at: int) -> Table:
        """Return the rows of table number ``at``."""
        return self.types.take(np.repeat(np.arange(len(self.types)), self.counts[at]))

    def shares(self, log_p: Floats) -> Floats:
        """Return the probability that a table contains 0, 1, ... n rows of each type.

        Parameters
        ----------
        log_p : float64 array, shape (M,)
            Log posterior of the tables (nats) up to a constant.

        Returns
        -------
        float64 array, shape (V, n + 1)
        """
        n = int(self.counts[0].sum())
        p = np.exp(log_p - log_p.max())
        return np.stack([p @ (self.counts == k) for k in range(n + 1)], axis=1) / p.sum()


def likeliest(types: Table, shares: Sequence[Floats]) -> tuple[Table, float]:
    """Return the table with the largest expected number of matching rows, and this number.

    It consists of the rows with the n largest ``P(M_v >= k)``, where M_v is the number of the
    victims' rows of type v.

    Parameters
    ----------
    types : Table
        One row of each type.
    shares : sequence of float64 array, shape (V, n + 1)
        `Tables.shares` of every victim. Victims are independent.
    """
    together = shares[0]
    for victim_shares in shares[1:]:
        together = np.stack(
            [np.convolve(a, b) for a, b in zip(together, victim_shares, strict=True)]
        )
    chance = together[:, ::-1].cumsum(axis=1)[:, -2::-1]  # at least 1, 2, ... n
    n = chance.shape[1]
    first = np.argsort(-chance.ravel(), kind="stable")[:n]
    return types.take(first // n), float(chance.ravel()[first].sum())


@dataclass(frozen=True, eq=False)
class Training:
    """Public knowledge about how the trees were grown, and the adversary's local rows.

    ``computed_cuts`` is True if the cut points were computed from the training rows.
    """

    evidence: BoostingObservations
    params: TreeParams
    schema: Schema
    local_rows: Table
    computed_cuts: bool

    @cached_property
    def exact(self) -> bool:
        """Whether training is deterministic, so that the same rows give the same trees."""
        e, p = self.evidence, self.params
        drawn = min(p.colsample_bytree, p.colsample_bylevel, p.colsample_bynode) < 1
        is_exact_and_complete = e.distortion.exact and e.share == 1 and not any(e.foreign or ())
        return is_exact_and_complete and not drawn

    @cached_property
    def _of_codes(self) -> Cuts:
        largest_size = max(len(f.categories) for f in self.schema.features)
        codes = np.minimum.outer(
            np.arange(largest_size), [len(f.categories) - 1 for f in self.schema.features]
        )
        return quantile_cuts(codes.astype(np.float32), largest_size)

    def agrees(self, victims: Table) -> bool:
        """Return whether these rows reproduce the observed cut points, splits and histograms.

        The adversary's rows are added if the trees were grown on them.
        """
        observed = self.evidence.observed
        rows = Table.concat([victims, self.local_rows]) if observed.own_inside else victims
        seen, cuts = observed.cuts, quantile_cuts(rows.X, self.params.max_bin)
        if self.computed_cuts and seen is not None and not _same_cuts(seen, cuts):
            return False
        if not self.computed_cuts:  # announced cut points, or one for every code
            cuts = seen or self._of_codes
        objective = objective_of(None, self.schema.classes)
        try:
            grown = grow_forest(
                bin_rows(rows.X, cuts), rows.y, cuts, self.params, objective, streams=Streams(0)
            )
        except FedtreesError:  # rows of one class have no mean to start from
            return False
        # splits are compared exactly, because training is deterministic
        if not all(map(_splits_alike, grown.trees, self.evidence.trees)):
            return False
        inside = self.evidence.observed.own_in_bins and self.evidence.observed.own_inside
        return self._fills_bins(rows if inside else victims)

    def _fills_bins(self, rows: Table) -> bool:
        """Return whether these rows have the observed histograms."""
        e = self.evidence
        if e.observed.histograms is None or e.observed.cuts is None:
            return True
        codes = bin_rows(rows.X, e.observed.cuts).codes  # rows without gaps: every column has codes
        bins = np.zeros((len(rows.y), e.observed.cuts.offsets[-1]))
        bins[np.arange(len(bins))[:, None], codes + e.observed.cuts.offsets[:-1]] = 1
        for t, histograms in enumerate(e.observed.histograms):
            tree, (leaf, margin) = e.trees[t], at_tree(e, rows.X, t)
            gh = np.stack(gradients_of(e, margin, rows.y, rows.X[:, -1], t % e.outputs), axis=1)
            below = leaves_below(tree)[histograms.nodes][:, np.searchsorted(tree.leaves, leaf)]
            difference = np.einsum("jn,nb,nc->jbc", below, bins, gh) - histograms.sums
            if np.abs(difference).max(initial=0.0) > _TOLD:
                return False
        return True


def _same_cuts(one: Cuts, other: Cuts) -> bool:
    pairs = ((one.values, other.values), (one.minimum, other.minimum))
    return all(np.array_equal(a, b) for a, b in pairs)


def _splits_alike(one: Tree, other: Tree) -> bool:
    split = one.feature >= 0
    return np.array_equal(one.feature, other.feature) and np.array_equal(
        one.threshold[split], other.threshold[split]
    )


def posterior(tables: Tables, training: Training, basis: ReconstructionContext) -> Floats:
    """Return the log probability of every table given the evidence (nats), up to a constant.

    The leaf sums and values of all trees give the likelihood. If training is deterministic, tables
    that do not reproduce the cut points, bins and splits get probability 0, unless no table does.

    Parameters
    ----------
    tables : Tables
        The M candidate tables.
    training : Training
        Public knowledge about training.
    basis : ReconstructionContext
        The victims' leaf sums.

    Returns
    -------
    float64 array, shape (M,)
    """
    log_p = tables.prior + _fit(training.evidence, basis, tables)
    if not training.exact:
        return log_p
    agreeing = np.full(len(log_p), -np.inf)
    for at in np.flatnonzero(log_p > log_p.max() - _UNLIKELY).tolist():
        if training.agrees(tables.table(at)):
            agreeing[at] = log_p[at]
    return agreeing if np.isfinite(agreeing).any() else log_p


def _fit(evidence: BoostingObservations, basis: ReconstructionContext, tables: Tables) -> Floats:
    """Return log likelihoods of the sums of all leaves (nats) up to a constant, shape (M,)."""
    rows, out = tables.types, np.zeros(len(tables.counts))
    margin, nodes = evidence.start(len(rows)), Routes.of(evidence.trees).apply(rows.X)
    before = margin
    for t, (tree, sums) in enumerate(zip(evidence.trees, basis.sums, strict=True)):
        k, leaves = t % evidence.outputs, basis.grid.leaves(tree)
        # all trees of a round are computed from the margins before the round
        before = margin.copy() if k == 0 else before
        g, h = gradients_of(evidence, before, rows.y, rows.X[:, -1], k)
        target, variance = equations(evidence, t, sums, leaves)
        slope = tree.value[leaves.node].astype(np.float64) / evidence.params.learning_rate
        for j, node in enumerate(leaves.node):
            here = nodes[:, t] == node
            contributions = (g, h) if target.shape[1] == 2 else (g + slope[j] * h,)
            for each, want, spread in zip(contributions, target[j], variance[j], strict=True):
                difference = tables.counts @ (each * here) - want
                out -= 0.0 if evidence.is_foreign(t) else difference**2 / (2 * (spread + _TOLD**2))
        add_values(margin, k, tree.value[nodes[:, t]])
    return out
