"""Canaries for an audit of the leaf counts of `dp-forest`."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.privacy.mechanisms import noise_log_pmf
from fedtrees.privacy_audit.canaries import (
    SEPARATE_CANARIES,
    SEPARATE_RUNS,
    SEPARATING_DEPTH,
    Canaries,
    alone_in_leaf,
    register_audit_setting,
    register_canaries,
    spare_noise,
)
from fedtrees.protocols.forests.dp_forest import DPForest
from fedtrees.protocols.training import Training

_BITS = 24  # columns of random bits
_WIDEST = 1 << 14  # largest difference between a noisy and a known count in a table of log odds


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
    separate : bool
        Include few enough canaries that most of them share their leaf with no other one.
    """

    depth: int
    mechanism: str
    epsilon: float
    separate: bool = False

    runs = SEPARATE_RUNS
    schema = Schema(
        tuple(Feature(f"b{i}", "categorical", categories=("0", "1")) for i in range(_BITS)), "y"
    )

    @property
    def max_canaries(self) -> int:  # type: ignore[override]
        """Number of canaries per leaf and class that the noise hides, 2048 at most in total."""
        if self.separate:
            return SEPARATE_CANARIES
        # With small epsilon, the noise hides many canaries of the same cell from one another.
        hidden = 1 + int(min(0.5 / self.epsilon**2, 2048))
        return min((2 << self.depth) * hidden, 2048)

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows of random bits, and one row of zeros."""
        X = rng.integers(0, 2, (count, _BITS)).astype(np.float32)
        zeros = Table(np.zeros((1, _BITS), np.float32), np.zeros(1, np.int64))
        return Table(X, rng.integers(0, 2, count)), zeros

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
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
                scores += log_odds * (alone_in_leaf(leaf) if self.separate else 1)
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
        self, training: Training, rows: Table, is_included: NDArray[np.bool_], companions: Table
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


@register_canaries(DPForest)
def create_forest_canaries(protocol: DPForest) -> ForestCanaries:
    """Create canaries for an audit of leaf counts."""
    return ForestCanaries(
        protocol.depth, protocol.mechanism, float(protocol.epsilon / protocol.trees)
    )


@register_audit_setting(DPForest)
def choose_forest_setting(
    protocol: DPForest, defense: Composition
) -> tuple[DPForest, ForestCanaries]:
    """Spend the budget on one tree with so many leaves that no other canary shares its leaf."""
    deep = replace(protocol, trees=1, depth=SEPARATING_DEPTH, repeats=False)
    return deep, replace(create_forest_canaries(deep), separate=True)
