"""Rows that an audit of histograms and of cut points looks for: one a client, of one column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from fedtrees.core.channel import Chain, Channel, chained
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import LocalData, client_names, over_clients
from fedtrees.core.messages import closed
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.boosting import Histogram
from fedtrees.messages.cuts import CutPoints, FeatureSketch, GridCounts, GridRequest
from fedtrees.protocols.canaries import Canaries, brings, laws_of_sums
from fedtrees.trees.binning import Cuts, bin_rows

_MANY, _HIGH = 64, 1 << 20
_BARE = 1  # clients without a canary, for whoever needs several
_SURE = 40.0  # nats, where a release rules one of two tables out


@dataclass(frozen=True)
class StumpCanaries(Canaries):
    """Canaries of which each is all that its client adds to what everybody knows.

    One column and one split: a row is then in the fewest sums, which share the whole budget.

    `most`: 1 where only sums of all clients' histograms are opened.
    `quantiles`: Of a summary that each client draws; 0: none is drawn.
    `cuts_alone`: Whether to read nothing but what cut points are made of.
    """

    most: int = _MANY
    quantiles: int = 0
    cuts_alone: bool = False

    schema = Schema((Feature("x", low=0.0, high=float(_HIGH)),), "y")

    @classmethod
    def of(cls, defense: Composition) -> StumpCanaries:
        """Make the canaries that suit a defense."""
        quantiles = next((p.quantiles for p in defense.parts if hasattr(p, "quantiles")), 0)
        bounded = [c for c in defense.claims() if c.budget and c.budget[0] == "epsilon"]
        alone = all(getattr(c, "unit", "") == "cuts" for c in bounded)
        return cls(1 if Histogram in defense.summed and not alone else _MANY, quantiles, alone)

    @property
    def runs(self) -> int:  # type: ignore[override]
        """As many as make 2,048 canaries, or 1,024 where a run holds one."""
        return min(2048 // self.most, 1024)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows of class 0, and what each client holds besides.

        Of summaries that are drawn, the number of rows then falls on either side of a step, and a
        canary moves quantiles from a wide range to a narrow one. Elsewhere all have cells of their
        own, and there is one row besides.
        """
        step = 2 * (self.quantiles + 1) - 1 if self.quantiles else 1
        besides = np.full((step, 1), 0.75 * _HIGH if self.quantiles else 0, np.float32)
        at = np.ones(count) if self.quantiles else (np.arange(count) + 0.5) / count
        X = (at[:, None] * _HIGH).astype(np.float32)
        return Table(X, np.zeros(count, np.int64)), Table(besides, np.ones(step, np.int64))

    def held(self, rows: Table, there: NDArray[np.bool_], others: Table) -> dict[str, LocalData]:
        """Return a canary or none for each client, all for one where clients' sums are opened."""
        each = np.eye(len(rows), dtype=bool) if self._apart else np.ones((1, len(rows)), bool)
        mine = [Table.concat([rows.take(there & own), others]) for own in each]
        return over_clients([*mine, *[others] * _BARE])

    @property
    def _apart(self) -> bool:
        return bool(self.quantiles) or not self.cuts_alone

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare everything that is released with what it is where a canary is there or not."""
        who = {name: i for i, name in enumerate(client_names(len(rows)))}
        found, borders = np.zeros(len(rows)), np.zeros(0, np.float32)
        roots: list[Histogram] = []
        cuts: Cuts | None = None
        for d in training.transcript:
            m, summed = d.message, d.receivers == (d.sender,)
            if isinstance(m, GridRequest):
                borders = m.borders
            elif isinstance(m, CutPoints):
                cuts = Cuts(m.values, m.offsets, m.minimum, m.categorical)
            elif closed(m) or not (summed or d.sender in who):
                continue
            elif isinstance(m, GridCounts) and summed:
                found += _of_grid(training, m, borders, rows, others)
            elif isinstance(m, FeatureSketch):
                i = who[d.sender]
                X = np.concatenate([rows.X[[i]], others.X])
                for part in training.defense.parts:
                    a, b = (part.log_chance(m, x, training.schema) for x in (X, others.X))
                    found[i] += np.nan_to_num(a - b) if np.isfinite(max(a, b)) else 0.0
            elif type(m) is Histogram and 0 in m.nodes and not self.cuts_alone:
                roots.append(m)
        if roots and cuts is not None:
            found += _of_roots(training, roots, cuts, rows, others)
        return found

    def residuals(
        self, training: Any, rows: Table, there: NDArray[np.bool_], others: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy bins of each client's first root with those of the rows it holds."""
        law, _, row = laws_of_sums(training)
        if law is None or law.hides or row or self.cuts_alone:
            return np.zeros(0)
        who, parts = {name: i for i, name in enumerate(client_names(len(rows)))}, [np.zeros(0)]
        for d in training.transcript:
            m = d.message
            if isinstance(m, CutPoints):
                cuts = Cuts(m.values, m.offsets, m.minimum, m.categorical)
            elif type(m) is Histogram and d.sender in who and m.tree == 0 and not closed(m):
                i, units = who[d.sender], m.unit_of("sums")[0]
                held = Table.concat([rows.take(np.flatnonzero(there[i : i + 1]) + i), others])
                y, place = m.sums[0].astype(np.float64), bin_rows(held.X, cuts).codes[:, 0]
                x = np.zeros_like(y)
                np.add.at(x, place, np.rint(brings(training, 0, held) * units))
                mean, variance = law.within(units).error(y)
                noisy = (variance > 0) & np.isfinite(variance)
                parts.append((mean - x)[noisy] / np.sqrt(variance[noisy]))
        return np.concatenate(parts)


def _of_grid(
    training: Any, message: GridCounts, borders: NDArray[np.float32], rows: Table, others: Table
) -> NDArray[np.float64]:
    """Return the log odds of rows by the counts of their cells."""
    public = (training.schema, training.protocol.parameters)
    clients = len(training.columns)
    law = chained(training.defense.changes((GridCounts, "counts"), *public), clients) or Chain(())
    cells, rest = (np.searchsorted(borders, of.X[:, 0], side="right") for of in (rows, others))
    base = clients * np.bincount(rest, minlength=len(message.counts))[cells, None]
    beside, found = np.bincount(cells)[cells] - 1, np.zeros(len(rows))
    for k in np.unique(beside):
        y = message.counts[cells[beside == k], None]
        found[beside == k] = _told(law, y, base[beside == k], np.ones(1), int(k))
    return found


def _of_roots(
    training: Any, roots: list[Histogram], cuts: Cuts, rows: Table, others: Table
) -> NDArray[np.float64]:
    """Return the log odds of rows by the roots that their clients send, or by the sum of all."""
    alone, together, row = laws_of_sums(training)
    clients = len(training.columns)
    summed, units = len(rows) == 1, roots[0].unit_of("sums")[0]
    mine, rest = (np.rint(brings(training, 0, of) * units) for of in (rows, others))
    places, beside = (bin_rows(of.X, cuts).codes[:, 0] for of in (rows, others))
    x = np.stack([rest[beside == place].sum(axis=0) for place in places])
    law = ((together if summed else alone) or Chain(())).within(units)
    root = int(np.flatnonzero(roots[0].nodes == 0)[0])
    bins = np.stack([m.sums[root, p] for m, p in zip(roots, places, strict=True)])
    totals = np.stack([m.totals[0] for m in roots])
    times = clients if summed else 1
    cell = slice(1, None) if row else slice(None)  # noise of its own hides a row's gradient
    by_bin = _told(law, bins[:, cell], times * x[:, cell], mine[:, cell])
    return by_bin + _told(law, totals[:, cell], times * rest.sum(axis=0)[cell], mine[:, cell])


def _told(
    law: Channel, y: NDArray[Any], x: NDArray[Any], mine: NDArray[Any], beside: int = 0
) -> NDArray[np.float64]:
    """Return the log odds that a row is in a release y, and not what others bring alone, x.

    So many others that bring the same as it are each there by a coin flip. Arrays broadcast to
    shape (n, c), of n rows; the log odds have shape (n,).
    """
    others = np.arange(beside + 1)
    weight = -gammaln(others + 1) - gammaln(beside - others + 1)
    log_chance = [
        np.stack([law.log_likelihood(y, x + j * mine) for j in others + k]) for k in (1, 0)
    ]
    there, not_there = (logsumexp(weight[:, None] + each, axis=0) for each in log_chance)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(np.nan_to_num(there - not_there), -_SURE, _SURE))
