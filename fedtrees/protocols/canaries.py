"""Canaries of a privacy audit: rows that a training includes or omits by coin flips.

The audit (Steinke, Nasr and Jagielski 2023) guesses from the messages of a run which canaries took
part. The number of correct guesses gives a lower bound on epsilon (`fedtrees.privacy.measured`).
"""

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
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.horizontal import CutPoints, Histogram
from fedtrees.privacy.mechanisms import noise_log_pmf
from fedtrees.trees.binning import Cuts, bin_rows

_BITS, _WIDEST, _NUMBERS = 24, 1 << 14, 64
_CROWD = 8192
#: In a tree of 2^12 = 4096 leaves, most of 2048 canaries share their leaf with no other canary.
#: The number of such runs is 8.
ALONE_DEPTH, _ALONE, _ALONE_RUNS = 12, 2048, 8
_EXACT = 1e-3  # smallest assumed scale of the noise, so that exact sums have finite scores


class Canaries(ABC):
    """Base class of canaries: rows that a protocol can distinguish as well as possible.

    Attributes
    ----------
    schema : Schema
        Columns and target of the canaries.
    max_canaries : int
        Largest number of canaries that one run can include without hiding one another.
    runs : int
        Number of runs of a thorough audit.
    """

    schema: Schema
    max_canaries: int
    runs: int = 1

    def distribute(
        self, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> dict[str, LocalData]:
        """Return the local data of each party.

        By default client 0 has the included canaries, and client 1 the remaining rows.

        Parameters
        ----------
        rows : Table
            Canaries, as returned by `rows`.
        is_included : bool array, shape (n,)
            Which canaries take part.
        companions : Table
            Rows that always take part, as returned by `rows`.
        """
        return over_clients([rows.take(is_included), companions])

    @abstractmethod
    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Draw `count` canaries, and rows that always take part."""

    @abstractmethod
    def scores(self, training: Any, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Return the log odds that each canary took part, relative to the coin flip.

        Parameters
        ----------
        training : Training
            A finished training.
        rows, companions : Table
            As returned by `rows`.

        Returns
        -------
        scores : float64 array, shape (n,)
        """

    def residuals(
        self, training: Any, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> NDArray[np.float64]:
        """Return the differences between noisy sums and the true sums of the rows.

        Parameters
        ----------
        training : Training
            A finished training.
        rows : Table
            Canaries.
        is_included : bool array, shape (n,)
            Which canaries took part.
        companions : Table
            Rows that always take part.

        Returns
        -------
        residuals : float64 array, shape (m,)
            In standard deviations of the agreed noise. Empty if the audit compares no sums.
        """
        return np.zeros(0)


def spare_noise(training: Any) -> float:
    """Return the standard deviation of a sum's noise, relative to the calibrated one.

    Noise shares are calibrated for fewer clients than take part, because some may collude
    (`honest_shares`). The noise of the complete sum is then wider than the claim needs. Without
    shared noise the result is 1.
    """
    protocol = training.protocol
    if getattr(protocol, "noise", "") != "distributed":
        return 1.0
    clients = [*training.transcript.roles.values()].count("client")
    return math.sqrt(clients / honest_shares(clients, protocol.colluders, 0))


@dataclass(frozen=True)
class ForestCanaries(Canaries):
    """Rows of random bits, which rarely share leaves in a forest of random tests.

    Parameters
    ----------
    depth : int
        Depth of the trees.
    mechanism : str
        Mechanism of `dp-forest`.
    epsilon : float
        Budget of one tree, in nats.
    alone : bool
        Include few enough canaries that most of them share their leaf with no other one.
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
    def max_canaries(self) -> int:  # type: ignore[override]
        """Number of canaries per leaf and class that the noise hides, 2048 at most in total."""
        if self.alone:
            return _ALONE
        # With small epsilon, the noise hides many canaries of the same cell from one another.
        hidden = 1 + int(min(0.5 / self.epsilon**2, 2048))
        return min((2 << self.depth) * hidden, 2048)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows of random bits, and one row of zeros."""
        X = rng.integers(0, 2, (count, _BITS)).astype(np.float32)
        zeros = Table(np.zeros((1, _BITS), np.float32), np.zeros(1, np.int64))
        return Table(X, rng.integers(0, 2, count)), zeros

    def scores(self, training: Any, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare the count of a canary's leaf and class with that of the other rows, by tree."""
        splits, counts = training.model.splits, training.model.counts
        leaves, scores = splits.apply(rows.X), np.zeros(len(rows))
        # The rows that always take part have known counts.
        base = splits.count(companions.X, companions.y, 2)
        tables: dict[int, NDArray[np.float64]] = {}
        for tree, leaf in enumerate(leaves.T):
            seen = counts[tree][leaf, rows.y] - base[tree][leaf, rows.y]
            # Log odds of permute-and-flip between the two labels for one additional vote.
            if self.mechanism == "majority":  # in a leaf without other rows
                odds = math.exp(-self.epsilon)
                log_odds = np.where(seen > 0, math.log(2 - odds), -self.epsilon)
                scores += log_odds * (_only(leaf) if self.alone else 1)
                continue
            cell = leaf * 2 + rows.y
            n_companions = np.bincount(cell, minlength=counts[tree].size)[cell] - 1
            for k in np.unique(n_companions):
                in_group = n_companions == k
                if int(k) not in tables:
                    tables[int(k)] = self._log_odds(int(k))
                table = tables[int(k)]
                middle = len(table) // 2
                scores[in_group] += table[np.clip(seen[in_group] + middle, 0, len(table) - 1)]
        return np.asarray(scores, dtype=np.float64)

    def residuals(
        self, training: Any, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy counts of all leaves with those of the included rows."""
        if self.mechanism == "majority":
            return np.zeros(0)
        included = Table.concat([rows.take(is_included), companions])
        difference = np.asarray(training.model.counts) - training.model.splits.count(
            included.X, included.y, 2
        )
        deviation = self._deviation * spare_noise(training)
        return np.asarray(difference.ravel() / deviation, dtype=np.float64)

    @property
    def _deviation(self) -> float:
        """Standard deviation of the noise of a count, in rows."""
        w = np.arange(-_WIDEST, _WIDEST + 1)
        chance = np.exp(noise_log_pmf(self.mechanism, self.epsilon, w))
        return float(np.sqrt(chance @ (w - chance @ w) ** 2))

    def _log_odds(self, n_companions: int) -> NDArray[np.float64]:
        """Return the log odds of a row for each difference -w to w between noisy and known count.

        `n_companions` further canaries share the cell, and each of them took part by a coin flip.
        """
        # Noise beyond 40 / epsilon has probability e^-40, which is negligible.
        w = min(int(40 / self.epsilon) + 2 * n_companions + 4, _WIDEST)
        chance = np.exp(noise_log_pmf(self.mechanism, self.epsilon, np.arange(-w, w + 1)))
        # Each companion adds 0 or 1 with probability 1/2: convolve the distribution with a coin
        # flip.
        for _ in range(n_companions):
            chance = (chance + np.concatenate([[0.0], chance[:-1]])) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(np.concatenate([[0.0], chance[:-1]])) - np.log(chance)
        return np.asarray(np.clip(np.nan_to_num(odds), -700, 700), dtype=np.float64)


@dataclass(frozen=True)
class LeafSumCanaries(Canaries):
    """Rows of class 1 among many rows of class 0, so that their gradients are near the bound.

    Parameters
    ----------
    norms : (float, float)
        Bounds on a row's gradient and hessian.
    scales : (float, float)
        Scales of the Gaussian noise on their sums in a leaf.
    alone : bool
        Include few enough canaries that most of them are alone in their leaf, and one other row.
    """

    norms: tuple[float, float]
    scales: tuple[float, float]
    alone: bool = False

    runs = _ALONE_RUNS
    schema = Schema(tuple(Feature(f"x{i}", low=0.0, high=1.0) for i in range(_NUMBERS)), "y")

    @property
    def max_canaries(self) -> int:  # type: ignore[override]
        """Number of canaries that the noise of some leaves hides, from 64 to 2048."""
        if self.alone:
            return _ALONE
        return int(np.clip(8 * (self.scales[0] / self.norms[0]) ** 2, 64, 2048))

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries of class 1, and a crowd of class 0."""
        # Many rows of class 0 keep the predictions near class 0, where gradients of class 1 are
        # large.
        crowd = 1 if self.alone else _CROWD
        X = rng.random((count + crowd, _NUMBERS), dtype=np.float32)
        y = (np.arange(len(X)) < count).astype(np.int64)
        return Table(X[:count], y[:count]), Table(X[count:], y[count:])

    def scores(self, training: Any, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare the noisy sums of every leaf with those of the crowd and half of the canaries."""
        n, scores = len(rows), np.zeros(len(rows))
        for leaf, which, seen, b in self._sums(training, Table.concat([rows, companions])):
            # A canary takes part with probability 1/2, the crowd always.
            share = np.where(np.arange(len(b)) < n, 0.5, 1.0)
            rest = seen - np.bincount(leaf, b * share, len(seen))
            # The unknown presence of the other canaries adds variance b^2 / 4 each.
            spread = np.bincount(leaf[:n], b[:n] ** 2 / 4, len(seen))
            contribution, canary_leaf = b[:n], leaf[:n]
            variance = self.scales[which] ** 2 + spread[canary_leaf] - contribution**2 / 4
            # Log odds between two normal distributions whose means differ by the contribution.
            # Half of the contribution was already subtracted.
            scores += rest[canary_leaf] * contribution / variance
        is_alone = _only(training.model.apply(rows.X)[:, 0]) if self.alone else 1
        return np.asarray(scores * is_alone)

    def residuals(
        self, training: Any, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy sums of all leaves with those of the included rows."""
        parts, included = [np.zeros(0)], Table.concat([rows.take(is_included), companions])
        trees = training.model.trees
        for k, (leaf, which, seen, b) in enumerate(self._sums(training, included)):
            difference = seen - np.bincount(leaf, b, len(seen))
            parts.append(difference[trees[k // 2].leaves] / self.scales[which])
        return np.concatenate(parts) / spare_noise(training)

    def _sums(
        self, training: Any, table: Table
    ) -> Iterator[tuple[NDArray[np.int32], int, NDArray[Any], NDArray[np.float64]]]:
        """Yield leaf of each row, index of the sum, noisy sums by node, contribution of each row.

        The index is 0 for gradients and 1 for hessians, of every tree.
        """
        forest = training.model
        if any(tree.g is None for tree in forest.trees):
            raise ProtocolError("a defense keeps the sums of leaves, which this audit reads")
        margin = np.repeat(forest.base_margin[:, None], len(table), axis=1)
        for tree, leaf in zip(forest.trees, forest.apply(table.X).T, strict=True):
            gh = forest.objective.gradients(margin, table.y)[0].astype(np.float64)
            for which, seen in enumerate((tree.g, tree.h)):
                # Contributions are clipped in the same way as in training.
                norm = self.norms[which]
                yield leaf, which, seen, np.clip(gh[:, which], -norm, norm)
            margin[0] += tree.value[leaf]


@dataclass(frozen=True)
class HistogramCanaries(Canaries):
    """Rows that share a bin of one column with few canaries, and rarely with the same ones."""

    max_bin: int

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """Columns with declared ranges, in which every bin has width 1."""
        high = float(self.max_bin)
        return Schema(tuple(Feature(f"x{i}", low=0.0, high=high) for i in range(_NUMBERS)), "y")

    @property
    def max_canaries(self) -> int:  # type: ignore[override]
        """Four canaries per bin, 1024 at most."""
        return min(4 * self.max_bin, 1024)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries in random bins and of both classes, and two rows in the last bins."""
        X = rng.integers(0, self.max_bin, (count, _NUMBERS)) + np.float32(0.5)
        last = np.full((2, _NUMBERS), self.max_bin - 0.5, np.float32)
        return Table(X, np.arange(count) % 2), Table(last, np.array([0, 1]))

    def scores(self, training: Any, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare the root histograms in a canary's bins with its contribution there."""
        scores, places = np.zeros(len(rows)), None
        client_law, total_law, row = laws_of_sums(training)
        for d in training.transcript:
            message = d.message
            if isinstance(message, CutPoints):
                m = message
                cuts = Cuts(m.values, m.offsets, m.minimum, m.categorical)
                places = bin_rows(rows.X, cuts).codes + m.offsets[:-1].astype(np.int64)
            is_visible = d.sender == "client-0" or d.receivers == (d.sender,)
            if not isinstance(message, Histogram) or has_sealed_field(message) or not is_visible:
                continue
            if places is None or 0 not in message.nodes:
                continue
            # Only roots contain every row. Later nodes depend on the splits.
            root = int(np.flatnonzero(message.nodes == 0)[0])
            units, _ = message.unit_of("sums")
            law = total_law if d.receivers == (d.sender,) else client_law
            sums, noise = _read(law, message.sums[root], units)
            contributions = gradients_of_rows(training, message.tree, rows)
            for which in (0, 1):  # gradients, hessians
                contribution = np.broadcast_to(contributions[:, which, None], places.shape)
                # Subtract the expected contribution of the other canaries in the same bin.
                half = _by_bin(places, contribution / 2, len(sums)) - contribution / 2
                spread = _by_bin(places, contribution**2 / 4, len(sums)) - contribution**2 / 4
                seen = sums[places, which] - half
                noise_variance = noise[places, which] + (row if which == 0 else 0.0)
                scale = np.maximum(np.sqrt((noise_variance + spread) / 2), _EXACT)
                scores += ((np.abs(seen) - np.abs(seen - contribution)) / scale).sum(axis=1)
        return scores


def _only(leaf: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which canaries share their leaf with no other canary, bool, shape (n,).

    The audit guesses only these.
    """
    return np.asarray(np.bincount(leaf)[leaf] == 1)


def gradients_of_rows(training: Any, tree: int, rows: Table) -> NDArray[np.float64]:
    """Return the gradient and hessian of each row in a tree of two classes, shape (n, 2).

    Parameters
    ----------
    training : Training
        A finished training.
    tree : int
        Number of the tree.
    rows : Table
        Rows.
    """
    p = training.model.first(tree).predict(rows.X)
    g, h = (
        p - rows.y,
        np.ones(len(p)) if training.defense.requirements.unit_hessian else p * (1 - p),
    )
    clip = training.defense.requirements.gradient_clip or np.inf
    return np.stack([np.clip(g, -clip, clip), np.minimum(h, 2 * clip)], axis=-1)


def laws_of_sums(training: Any) -> tuple[Channel | None, Channel | None, float]:
    """Return the channels of histogram sums, and the variance of the noise on a row's gradient.

    Returns
    -------
    client, total : Channel or None
        Channel of one client's sums, and of the sums of all clients. None without noise.
    variance : float
        0 if no defense changes the gradients of single rows.
    """
    changes, public = training.defense.changes, (training.schema, training.protocol.parameters)
    clients = sum(role == "client" for role in training.transcript.roles.values())
    sum_changes = changes((Histogram, "sums"), *public, "client")
    row = chained(changes(("gradients", "g"), *public))
    variance = 0.0 if row is None else float(row.error(np.zeros(1))[1][0])
    return chained(sum_changes), chained(sum_changes, clients), variance


def _read(
    law: Channel | None, sums: NDArray[np.int64], units: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return estimated sums and the variance of their noise, float64, shape (bins, 2) each."""
    if law is None:
        return sums / units, np.zeros(sums.shape)
    mean, variance = law.within(units).error(sums)
    return mean / units, variance / units**2


def _by_bin(
    places: NDArray[np.int64], values: NDArray[np.float64], bins: int
) -> NDArray[np.float64]:
    """Return, for each row and feature, the sum of values over all rows in the same bin."""
    total = np.bincount(places.reshape(-1), weights=values.reshape(-1), minlength=bins)
    return np.asarray(total[places], dtype=np.float64)
