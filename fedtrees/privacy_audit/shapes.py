"""Canaries for an audit of the noise of differentially private explainable boosting machines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.additive import ClientShapes
from fedtrees.privacy_audit.canaries import Canaries, register_audit_setting, register_canaries
from fedtrees.protocols.horizontal.ebm import DPEBM
from fedtrees.protocols.training import Training

#: Equal-width bins per canary. All but the last are empty. With fewer, bins would be merged.
_APART = 3
#: Crowd in every third bin, in standard deviations of the noise, and its largest size. With fewer
#: rows some bins would be merged.
_CROWD, _MOST_CROWD = 12, 200
#: Mean and variance of standard Gaussian noise that is clipped at 0.
_CLIPPED = (1 / math.sqrt(2 * math.pi), 0.5 - 1 / (2 * math.pi))
#: Parameters of an audit: `max_bins` (there are twice as many equal-width bins, minus two), the
#: number of bags whose noise is measured, and the share of epsilon for the bins.
_BINS, _BAGS, _BIN_SHARE = 3073, 64, 0.99


@dataclass(frozen=True)
class ShapeCanaries(Canaries):
    """Canaries that each join a crowd of rows in every third equal-width bin of one column.

    interpret-core clips noisy counts of equal-width bins at 0, and merges bins until they contain
    twice the mean count of a bin. If every third bin contains a crowd, every merged bin contains
    exactly one crowd.

    Parameters
    ----------
    max_canaries : int
        Number of canaries.
    scales : (float, float)
        Scales of the noise on counts, in rows, and on sums of residuals.
    rate : float
        Learning rate. 0 if the scores contain the sums of several rounds.
    """

    max_canaries: int
    scales: tuple[float, float]
    rate: float = 0.0

    runs = 8

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """A column whose equal-width bins have width 1."""
        return Schema((Feature("x", low=0.0, high=float(_APART * self.max_canaries)),), "y")

    def distribute(
        self, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> dict[str, LocalData]:
        """Return the included canaries and the crowd for one client, and one row for another.

        The single row belongs to one class, so that the second client trains no model.
        """
        first_client = Table.concat([rows.take(is_included), companions])
        return over_clients([first_client, companions.take(np.arange(1))])

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return a canary of random class for every third bin, and the crowd."""
        X = (_APART * np.arange(1, count + 1, dtype=np.float32) - 0.5)[:, None]
        crowd = np.repeat(X, self._crowd, axis=0)
        return Table(X, rng.integers(0, 2, count)), Table(crowd, np.arange(len(crowd)) % 2)

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare the count of a canary's bin with that of its crowd."""
        shapes, scale = _sent_shapes(training), self.scales[0]
        bins = np.searchsorted(shapes.cuts, rows.X[:, 0], side="right")
        # Number of canaries in the bin, half of which take part on average.
        n_canaries = np.bincount(bins)[bins]
        empty = (_APART - 1) * n_canaries
        rest = shapes.bin_weights[1:-1][bins] - n_canaries * (self._crowd + 0.5)
        # Noise of the canary's bin, clipped noise of the merged empty bins, and other canaries.
        variance = scale**2 * (n_canaries + empty * _CLIPPED[1]) + (n_canaries - 1) / 4
        return np.asarray((rest - scale * empty * _CLIPPED[0]) / variance)

    @property
    def _crowd(self) -> int:
        return min(math.ceil(_CROWD * self.scales[0]), _MOST_CROWD)

    def residuals(
        self, training: Training, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy sums of residuals of every bag's single round with the true sums."""
        shapes, parts = _sent_shapes(training), [np.zeros(0)]
        if not self.rate:
            return parts[0]
        included = Table.concat([rows.take(is_included), companions])
        off = np.bincount(
            np.searchsorted(shapes.cuts, included.X[:, 0], side="right"),
            0.5 - included.y,
            len(shapes.cuts) + 1,
        )
        # Scores are shifted to a mean of 0, and the intercept contains the shift.
        for score in shapes.scores[:, 1:-1] + shapes.intercept[:, None]:
            # Merged bins have equal scores in all their parts.
            starts = np.flatnonzero(np.diff(score, prepend=np.nan) != 0)
            weight = np.add.reduceat(shapes.bin_weights[1:-1], starts)
            sums = np.add.reduceat(off, starts)
            parts.append((-score[starts] * weight / self.rate - sums) / self.scales[1])
        return np.concatenate(parts)


@register_canaries(DPEBM)
def create_shape_canaries(protocol: DPEBM) -> ShapeCanaries | None:
    """Create canaries for an audit of the bin counts. None without noise."""
    if not protocol.noisy:
        return None
    # With several rounds, the scores are sums over rounds, and single sums are not visible.
    rate = protocol.learning_rate if protocol.max_rounds == 1 else 0.0
    return ShapeCanaries(2 * (protocol.max_bins - 1) // 3, protocol.scales(1), rate)


@register_audit_setting(DPEBM)
def choose_shape_setting(
    protocol: DPEBM, defense: Composition
) -> tuple[DPEBM, ShapeCanaries] | None:
    """Spend almost the complete budget on the bins of one column, with one round per bag."""
    bare = replace(protocol, max_bins=_BINS, max_rounds=1, outer_bags=_BAGS, bin_share=_BIN_SHARE)
    canaries = create_shape_canaries(bare)
    return None if canaries is None else (bare, canaries)


def _sent_shapes(training: Training) -> ClientShapes:
    """Return the shape functions that client 0 sent."""
    return next(
        d.message
        for d in training.transcript
        if d.sender == "client-0" and isinstance(d.message, ClientShapes)
    )
