"""The exact posterior over all tables of the victims, where these are few enough to try each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.clients.hessians import leaves_below
from fedtrees.attacks.evidence.equations import equations
from fedtrees.attacks.evidence.routing import add_values, at_tree, gradients_of
from fedtrees.core.errors import FedtreesError
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.routing import Routes
from fedtrees.trees.sketch import quantile_cuts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Of more tables Markov chains are faster.
MOST_TABLES = 20_000
#: Rows that all types alike count for beside own rows: what `joint` takes for marginals.
EVEN = 10.0
#: Gradients: what sums are told to, of float32 and leaf values of four digits.
_TOLD = 2e-3
#: Nats below the likeliest table from which none is trained on.
_UNLIKELY = 20.0


@dataclass(frozen=True, eq=False)
class Tables:
    """Every table of so many rows of columns that have declared codes.

    `types`: One row of each of the V kinds.
    `counts`: int64 array, shape (M, V). Rows of each in every table.
    `prior`: float64 array, shape (M,). Log probability, nats, up to a constant: rows are drawn
    alike, each as own rows are and as if all types were even.
    """

    types: Table
    counts: Ints
    prior: Floats

    @staticmethod
    def of(schema: Schema, n: int, own: Table) -> Tables | None:
        """Return them, None where a column has no codes or there are more than `MOST_TABLES`."""
        sizes = [*(len(f.categories) for f in schema.features), len(schema.classes)]
        V = prod(sizes)
        if n < 1 or not V or comb(V + n - 1, n) > MOST_TABLES:
            return None
        every = np.array(list(product(*map(range, sizes))))
        rows = np.array(list(combinations_with_replacement(range(V), n)))
        counts = np.zeros((len(rows), V), dtype=np.int64)
        np.add.at(counts, (np.arange(len(rows))[:, None], rows), 1)
        held = np.column_stack([own.X, own.y])
        weight = EVEN / V + np.array([(held == one).all(axis=1).sum() for one in every])
        prior = counts @ np.log(weight / weight.sum()) - gammaln(counts + 1).sum(axis=1)
        return Tables(Table(every[:, :-1].astype(np.float32), every[:, -1]), counts, prior)

    def table(self, at: int) -> Table:
        """Return the rows of one of the tables."""
        return self.types.take(np.repeat(np.arange(len(self.types)), self.counts[at]))

    def shares(self, log_p: Floats) -> Floats:
        """Return how likely it is that rows of each type are 0, 1, ... n, float64, (V, n + 1).

        `log_p`: float64 array, shape (M,). Of the posterior, nats, up to a constant.
        """
        n = int(self.counts[0].sum())
        p = np.exp(log_p - log_p.max())
        return np.stack([p @ (self.counts == k) for k in range(n + 1)], axis=1) / p.sum()


def likeliest(types: Table, shares: Sequence[Floats]) -> tuple[Table, float]:
    """Return the rows that match most in expectation, and how many do.

    They are those of the n largest ``P(M_v >= k)``, where the victims hold M_v rows of type v.

    `shares`: `Tables.shares` of every victim, each independent of the others.
    """
    together = shares[0]
    for one in shares[1:]:
        together = np.stack([np.convolve(a, b) for a, b in zip(together, one, strict=True)])
    chance = together[:, ::-1].cumsum(axis=1)[:, -2::-1]  # at least 1, 2, ... n
    n = chance.shape[1]
    first = np.argsort(-chance.ravel(), kind="stable")[:n]
    return types.take(first // n), float(chance.ravel()[first].sum())


@dataclass(frozen=True, eq=False)
class Training:
    """What is public of how trees were grown.

    `made`: whether cut points are those of the rows themselves.
    """

    evidence: Evidence
    params: TreeParams
    schema: Schema
    own: Table
    made: bool

    @cached_property
    def exact(self) -> bool:
        """Whether the same rows give the same trees: no noise, no random draws."""
        e, p = self.evidence, self.params
        drawn = min(p.colsample_bytree, p.colsample_bylevel, p.colsample_bynode) < 1
        told = e.noise is None and not (e.suppressed or any(e.foreign or ()))
        return told and e.share == 1 and not drawn

    @cached_property
    def _of_codes(self) -> Cuts:
        most = max(len(f.categories) for f in self.schema.features)
        codes = np.minimum.outer(
            np.arange(most), [len(f.categories) - 1 for f in self.schema.features]
        )
        return quantile_cuts(codes.astype(np.float32), most)

    def agrees(self, victims: Table) -> bool:
        """Tell whether these rows, with own ones, give cut points, bins and splits as were seen."""
        rows = Table.concat([victims, self.own]) if self.evidence.own_inside else victims
        seen, cuts = self.evidence.cuts, quantile_cuts(rows.X, self.params.max_bin)
        if self.made and seen is not None and not _alike(seen, cuts):
            return False
        if not self.made:  # told, or one for every code
            cuts = seen or self._of_codes
        objective = objective_of(None, self.schema.classes)
        try:
            grown = grow_forest(
                bin_rows(rows.X, cuts), rows.y, cuts, self.params, objective, streams=Streams(0)
            )
        except FedtreesError:  # rows of one class have no mean to start from
            return False
        if not all(map(_splits_alike, grown.trees, self.evidence.trees)):
            return False
        inside = self.evidence.own_in_bins and self.evidence.own_inside
        return self._fills_bins(rows if inside else victims)

    def _fills_bins(self, rows: Table) -> bool:
        """Tell whether histograms of these rows are those that were seen."""
        e = self.evidence
        if e.histograms is None or e.cuts is None:
            return True
        codes = bin_rows(rows.X, e.cuts).codes  # rows without gaps: every column has codes
        bins = np.zeros((len(rows.y), e.cuts.offsets[-1]))
        bins[np.arange(len(bins))[:, None], codes + e.cuts.offsets[:-1]] = 1
        for t, told in enumerate(e.histograms):
            tree, (leaf, margin) = e.trees[t], at_tree(e, rows.X, t)
            gh = np.stack(gradients_of(e, margin, rows.y, rows.X[:, -1], t % e.outputs), axis=1)
            below = leaves_below(tree)[told.nodes][:, np.searchsorted(tree.leaves, leaf)]
            off = np.einsum("jn,nb,nc->jbc", below, bins, gh) - told.sums
            if np.abs(off).max(initial=0.0) > _TOLD:
                return False
        return True


def _alike(one: Cuts, other: Cuts) -> bool:
    pairs = ((one.values, other.values), (one.minimum, other.minimum))
    return all(np.array_equal(a, b) for a, b in pairs)


def _splits_alike(one: Tree, other: Tree) -> bool:
    split = one.feature >= 0
    return np.array_equal(one.feature, other.feature) and np.array_equal(
        one.threshold[split], other.threshold[split]
    )


def posterior(tables: Tables, training: Training, basis: Basis) -> Floats:
    """Return the log probabilities of tables given all that was seen, nats, up to a constant, (M,).

    Leaf sums and values of all trees first; of the tables that explain them those count from which
    the same cut points, bins and splits follow, unless none does.
    """
    log_p = tables.prior + _fit(training.evidence, basis, tables)
    if not training.exact:
        return log_p
    kept = np.full(len(log_p), -np.inf)
    for at in np.flatnonzero(log_p > log_p.max() - _UNLIKELY).tolist():
        if training.agrees(tables.table(at)):
            kept[at] = log_p[at]
    return kept if np.isfinite(kept).any() else log_p


def _fit(evidence: Evidence, basis: Basis, tables: Tables) -> Floats:
    """Return log likelihoods of the sums of all leaves, nats, up to a constant, shape (M,)."""
    rows, out = tables.types, np.zeros(len(tables.counts))
    margin, nodes = evidence.start(len(rows)), Routes.of(evidence.trees).apply(rows.X)
    before = margin
    for t, (tree, sums) in enumerate(zip(evidence.trees, basis.sums, strict=True)):
        k, leaves = t % evidence.outputs, basis.grid.leaves(tree)
        before = margin.copy() if k == 0 else before
        g, h = gradients_of(evidence, before, rows.y, rows.X[:, -1], k)
        target, variance = equations(evidence, t, sums, leaves)
        slope = tree.value[leaves.node].astype(np.float64) / evidence.learning_rate
        for j, node in enumerate(leaves.node):
            here = nodes[:, t] == node
            brought = (g, h) if target.shape[1] == 2 else (g + slope[j] * h,)
            for each, want, spread in zip(brought, target[j], variance[j], strict=True):
                off = tables.counts @ (each * here) - want
                out -= 0.0 if evidence.is_foreign(t) else off**2 / (2 * (spread + _TOLD**2))
        add_values(margin, k, tree.value[nodes[:, t]])
    return out
