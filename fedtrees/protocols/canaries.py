"""Rows that an audit puts into a training or leaves out, and how much a run tells of each."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Channel, chained, honest_shares
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.messages import closed
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.boosting import Histogram
from fedtrees.messages.cuts import CutPoints
from fedtrees.privacy.mechanisms import noise_log_pmf
from fedtrees.trees.binning import Cuts, bin_rows

_BITS, _WIDEST, _NUMBERS = 24, 1 << 14, 64
_CROWD = 8192
#: Canaries that mostly have a leaf of their own in a tree of 4096, and how many such trees.
ALONE_DEPTH, _ALONE, _ALONE_RUNS = 12, 2048, 8
_EXACT = 1e-3  # the scale that noise is taken to have where there is none


class Canaries(ABC):
    """Rows of a table of the auditor's own, as far apart as a protocol can tell rows.

    `most`: As many as one run can hold without hiding one another.
    `runs`: How many runs a thorough audit takes.
    """

    schema: Schema
    most: int
    runs: int = 1

    def held(self, rows: Table, there: NDArray[np.bool_], others: Table) -> dict[str, LocalData]:
        """Return what each party holds: one client the canaries that are there, another the rest.

        `rows, others`: As `rows` returned them.
        `there`: bool array, shape (n,). Which canaries take part.
        """
        return over_clients([rows.take(there), others])

    @abstractmethod
    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return so many canaries, and rows that always take part."""

    @abstractmethod
    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Return how the log odds that each row took part changed, float64, shape (n,).

        `rows, others`: As `rows` returned them.
        """

    def residuals(
        self, training: Any, rows: Table, there: NDArray[np.bool_], others: Table
    ) -> NDArray[np.float64]:
        """Return what noisy sums differ by from those of the rows, float64, shape (m,).

        In standard deviations of the noise that the parties agreed to add; none where no sums are
        compared.

        `rows, others`: As `rows` returned them.
        `there`: bool array, shape (n,). Which canaries took part.
        """
        return np.zeros(0)


def spare_noise(training: Any) -> float:
    """Return the standard deviation of a sum's noise, in units of that for which it is calibrated.

    Shares of noise are calibrated for fewer clients than take part, because some may collude
    (`honest_shares`). The noise of the whole sum is then wider than the claim needs. Without shared
    noise it is 1.
    """
    protocol = training.protocol
    if getattr(protocol, "noise", "") != "distributed":
        return 1.0
    clients = [*training.transcript.roles.values()].count("client")
    return math.sqrt(clients / honest_shares(clients, protocol.colluders, 0))


@dataclass(frozen=True)
class ForestCanaries(Canaries):
    """Rows of random bits, whose leaves in a forest of random tests seldom meet.

    `epsilon`: Of one tree.
    `alone`: Whether to bring no more of them than mostly find a leaf for themselves.
    """

    depth: int
    mechanism: str
    epsilon: float
    alone: bool = False

    runs = _ALONE_RUNS
    schema = Schema(
        tuple(Feature(f"b{i}", "categorical", categories=("0", "1")) for i in range(_BITS)), "y"
    )

    @property
    def most(self) -> int:  # type: ignore[override]
        """As many for each leaf and class as hide in its noise, 2048 at most."""
        if self.alone:
            return _ALONE
        hidden = 1 + int(min(0.5 / self.epsilon**2, 2048))
        return min((2 << self.depth) * hidden, 2048)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows of random bits, and one of zeros."""
        X = rng.integers(0, 2, (count, _BITS)).astype(np.float32)
        zeros = Table(np.zeros((1, _BITS), np.float32), np.zeros(1, np.int64))
        return Table(X, rng.integers(0, 2, count)), zeros

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare, in every tree, the count of a row's leaf and class with one row less."""
        splits, counts = training.model.splits, training.model.counts
        leaves, found = splits.apply(rows.X), np.zeros(len(rows))
        base = splits.count(others.X, others.y, 2)
        tables: dict[int, NDArray[np.float64]] = {}
        for tree, leaf in enumerate(leaves.T):
            seen = counts[tree][leaf, rows.y] - base[tree][leaf, rows.y]
            if self.mechanism == "majority":  # of a leaf with no other row
                other = math.exp(-self.epsilon)
                told = np.where(seen > 0, math.log(2 - other), -self.epsilon)
                found += told * (_only(leaf) if self.alone else 1)
                continue
            cell = leaf * 2 + rows.y
            beside = np.bincount(cell, minlength=counts[tree].size)[cell] - 1
            for k in np.unique(beside):
                mine = beside == k
                if int(k) not in tables:
                    tables[int(k)] = self._log_odds(int(k))
                table = tables[int(k)]
                middle = len(table) // 2
                found[mine] += table[np.clip(seen[mine] + middle, 0, len(table) - 1)]
        return np.asarray(found, dtype=np.float64)

    def residuals(
        self, training: Any, rows: Table, there: NDArray[np.bool_], others: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy counts of all leaves with those of the rows that took part."""
        if self.mechanism == "majority":
            return np.zeros(0)
        held = Table.concat([rows.take(there), others])
        off = np.asarray(training.model.counts) - training.model.splits.count(held.X, held.y, 2)
        deviation = self._deviation * spare_noise(training)
        return np.asarray(off.ravel() / deviation, dtype=np.float64)

    @property
    def _deviation(self) -> float:
        """Standard deviation of the noise of a count, rows."""
        w = np.arange(-_WIDEST, _WIDEST + 1)
        chance = np.exp(noise_log_pmf(self.mechanism, self.epsilon, w))
        return float(np.sqrt(chance @ (w - chance @ w) ** 2))

    def _log_odds(self, beside: int) -> NDArray[np.float64]:
        """Return what a count tells of a row, -w to w, with so many others there by a coin flip."""
        w = min(int(40 / self.epsilon) + 2 * beside + 4, _WIDEST)
        chance = np.exp(noise_log_pmf(self.mechanism, self.epsilon, np.arange(-w, w + 1)))
        for _ in range(beside):
            chance = (chance + np.concatenate([[0.0], chance[:-1]])) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(np.concatenate([[0.0], chance[:-1]])) - np.log(chance)
        return np.asarray(np.clip(np.nan_to_num(odds), -700, 700), dtype=np.float64)


@dataclass(frozen=True)
class LeafSumCanaries(Canaries):
    """Rows of one class in a crowd of the other, so that their gradients stay near the bound.

    `norms`: Bounds on a row's gradient and hessian.
    `scales`: Of the Gaussian noise on their sums in a leaf.
    `alone`: Whether to bring few enough to find leaves for themselves, and no crowd.
    """

    norms: tuple[float, float]
    scales: tuple[float, float]
    alone: bool = False

    runs = _ALONE_RUNS
    schema = Schema(tuple(Feature(f"x{i}", low=0.0, high=1.0) for i in range(_NUMBERS)), "y")

    @property
    def most(self) -> int:  # type: ignore[override]
        """As many as hide in the noise of some leaves, 64 to 2048."""
        if self.alone:
            return _ALONE
        return int(np.clip(8 * (self.scales[0] / self.norms[0]) ** 2, 64, 2048))

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows of class 1, and the crowd of class 0."""
        crowd = 1 if self.alone else _CROWD
        X = rng.random((count + crowd, _NUMBERS), dtype=np.float32)
        y = (np.arange(len(X)) < count).astype(np.int64)
        return Table(X[:count], y[:count]), Table(X[count:], y[count:])

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare every leaf's noisy sums with what the crowd and half of the canaries bring."""
        n, found = len(rows), np.zeros(len(rows))
        for leaf, which, seen, b in self._sums(training, Table.concat([rows, others])):
            share = np.where(np.arange(len(b)) < n, 0.5, 1.0)
            rest = seen - np.bincount(leaf, b * share, len(seen))
            spread = np.bincount(leaf[:n], b[:n] ** 2 / 4, len(seen))
            mine, at = b[:n], leaf[:n]
            variance = self.scales[which] ** 2 + spread[at] - mine**2 / 4
            # log odds of a normal whose mean is `mine` or 0, and half of it was taken off
            found += rest[at] * mine / variance
        only = _only(training.model.apply(rows.X)[:, 0]) if self.alone else 1
        return np.asarray(found * only)

    def residuals(
        self, training: Any, rows: Table, there: NDArray[np.bool_], others: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy sums of all leaves with those of the rows that took part."""
        parts, held = [np.zeros(0)], Table.concat([rows.take(there), others])
        trees = training.model.trees
        for k, (leaf, which, seen, b) in enumerate(self._sums(training, held)):
            off = seen - np.bincount(leaf, b, len(seen))
            parts.append(off[trees[k // 2].leaves] / self.scales[which])
        return np.concatenate(parts) / spare_noise(training)

    def _sums(
        self, training: Any, table: Table
    ) -> Iterator[tuple[NDArray[np.int32], int, NDArray[Any], NDArray[np.float64]]]:
        """Yield rows' leaves, which sum it is, noisy sums of nodes, and what each row brings.

        Of gradients and hessians (0 and 1) of every tree.
        """
        forest = training.model
        if any(tree.g is None for tree in forest.trees):
            raise ProtocolError("a defense keeps the sums of leaves, which this audit reads")
        margin = np.repeat(forest.base_margin[:, None], len(table), axis=1)
        for tree, leaf in zip(forest.trees, forest.apply(table.X).T, strict=True):
            gh = forest.objective.gradients(margin, table.y)[0].astype(np.float64)
            for which, seen in enumerate((tree.g, tree.h)):
                norm = self.norms[which]
                yield leaf, which, seen, np.clip(gh[:, which], -norm, norm)
            margin[0] += tree.value[leaf]


@dataclass(frozen=True)
class HistogramCanaries(Canaries):
    """Rows that share a bin of one number with few others, and seldom with the same ones."""

    max_bin: int

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """Numbers in declared ranges, of which every bin is a whole number wide."""
        high = float(self.max_bin)
        return Schema(tuple(Feature(f"x{i}", low=0.0, high=high) for i in range(_NUMBERS)), "y")

    @property
    def most(self) -> int:  # type: ignore[override]
        """Four for each bin, 1024 at most."""
        return min(4 * self.max_bin, 1024)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows in random bins and of either class, and two in the last bins."""
        X = rng.integers(0, self.max_bin, (count, _NUMBERS)) + np.float32(0.5)
        last = np.full((2, _NUMBERS), self.max_bin - 0.5, np.float32)
        return Table(X, np.arange(count) % 2), Table(last, np.array([0, 1]))

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare a row's bins of all features in every root with what it would bring there."""
        found, places = np.zeros(len(rows)), None
        alone, together, row = laws_of_sums(training)
        for d in training.transcript:
            message = d.message
            if isinstance(message, CutPoints):
                m = message
                cuts = Cuts(m.values, m.offsets, m.minimum, m.categorical)
                places = bin_rows(rows.X, cuts).codes + m.offsets[:-1].astype(np.int64)
            mine = d.sender == "client-0" or d.receivers == (d.sender,)
            if not isinstance(message, Histogram) or closed(message) or not mine:
                continue
            if places is None or 0 not in message.nodes:
                continue
            root = int(np.flatnonzero(message.nodes == 0)[0])
            units, _ = message.unit_of("sums")
            law = together if d.receivers == (d.sender,) else alone
            sums, noise = _read(law, message.sums[root], units)
            brought = brings(training, message.tree, rows)
            for which in (0, 1):  # gradients, hessians
                mine_only = np.broadcast_to(brought[:, which, None], places.shape)
                half = _by_bin(places, mine_only / 2, len(sums)) - mine_only / 2
                spread = _by_bin(places, mine_only**2 / 4, len(sums)) - mine_only**2 / 4
                seen = sums[places, which] - half
                known = noise[places, which] + (row if which == 0 else 0.0)
                scale = np.maximum(np.sqrt((known + spread) / 2), _EXACT)
                found += ((np.abs(seen) - np.abs(seen - mine_only)) / scale).sum(axis=1)
        return found


def _only(leaf: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Tell which canaries are alone in their leaf, bool, shape (n,): no others are guessed."""
    return np.asarray(np.bincount(leaf)[leaf] == 1)


def brings(training: Any, tree: int, rows: Table) -> NDArray[np.float64]:
    """Return gradient and hessian that each row brings to a tree of two classes, shape (n, 2)."""
    p = training.model.first(tree).predict(rows.X)
    g, h = p - rows.y, np.ones(len(p)) if training.defense.unit_hessian else p * (1 - p)
    clip = training.defense.gradient_clip or np.inf
    return np.stack([np.clip(g, -clip, clip), np.minimum(h, 2 * clip)], axis=-1)


def laws_of_sums(training: Any) -> tuple[Channel | None, Channel | None, float]:
    """Return the channel of a client's sums, of all clients' together, and a row's own variance."""
    asked, public = training.defense.changes, (training.schema, training.protocol.parameters)
    clients = sum(role == "client" for role in training.transcript.roles.values())
    stated = asked((Histogram, "sums"), *public, "client")
    row = chained(asked(("gradients", "g"), *public))
    variance = 0.0 if row is None else float(row.error(np.zeros(1))[1][0])
    return chained(stated), chained(stated, clients), variance


def _read(
    law: Channel | None, sums: NDArray[np.int64], units: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sums and the variance of what was done to them, float64, shape (bins, 2) each."""
    if law is None:
        return sums / units, np.zeros(sums.shape)
    mean, variance = law.within(units).error(sums)
    return mean / units, variance / units**2


def _by_bin(
    places: NDArray[np.int64], values: NDArray[np.float64], bins: int
) -> NDArray[np.float64]:
    """Return, for each row and feature, the sum of values over the rows of its bin."""
    total = np.bincount(places.reshape(-1), weights=values.reshape(-1), minlength=bins)
    return np.asarray(total[places], dtype=np.float64)
