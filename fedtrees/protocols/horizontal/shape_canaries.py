"""Rows by which an audit measures the noise of explainable boosting machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.additive import ClientShapes
from fedtrees.protocols.canaries import Canaries

#: Even bins for each canary, all but the last empty: fewer would be joined.
_APART = 3
#: Rows in every third bin, in standard deviations of the noise: with fewer some would be joined.
_CROWD, _MOST_CROWD = 12, 200
#: Mean and variance of standard Gaussian noise that is clipped at 0.
_CLIPPED = (1 / math.sqrt(2 * math.pi), 0.5 - 1 / (2 * math.pi))


@dataclass(frozen=True)
class ShapeCanaries(Canaries):
    """Rows that each join a crowd in every third even bin of the one column.

    interpret-core clips noisy counts of even bins at 0, and joins bins until they have twice the
    mean count of one: where every third has a crowd, every bin ends with one crowd.

    Parameters
    ----------
    most : int
    scales : pair of float
        Of the noise on counts, in rows, and on sums of residuals.
    rate : float
        The learning rate; 0 where sums of several rounds are added up.
    """

    most: int
    scales: tuple[float, float]
    rate: float = 0.0

    runs = 8

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """Return a column whose even bins are one wide."""
        return Schema((Feature("x", low=0.0, high=float(_APART * self.most)),), "y")

    def held(self, rows: Table, there: NDArray[np.bool_], others: Table) -> dict[str, LocalData]:
        """Return the canaries that are there among the crowd, and a row that trains nothing."""
        mine = Table.concat([rows.take(there), others])
        return over_clients([mine, others.take(np.arange(1))])

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return a row for every third bin, of either class, and the crowd."""
        X = (_APART * np.arange(1, count + 1, dtype=np.float32) - 0.5)[:, None]
        crowd = np.repeat(X, self._crowd, axis=0)
        return Table(X, rng.integers(0, 2, count)), Table(crowd, np.arange(len(crowd)) % 2)

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare the count of a row's bin with that of the crowd alone."""
        told, scale = _told(training), self.scales[0]
        bins = np.searchsorted(told.cuts, rows.X[:, 0], side="right")
        beside = np.bincount(bins)[bins]  # canaries in it, of which half are there
        empty = (_APART - 1) * beside
        rest = told.bin_weights[1:-1][bins] - beside * (self._crowd + 0.5)
        variance = scale**2 * (beside + empty * _CLIPPED[1]) + (beside - 1) / 4
        return np.asarray((rest - scale * empty * _CLIPPED[0]) / variance)

    @property
    def _crowd(self) -> int:
        return min(math.ceil(_CROWD * self.scales[0]), _MOST_CROWD)

    def residuals(
        self, training: Any, rows: Table, there: NDArray[np.bool_], others: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy sums of residuals of every bag's one round with those of the rows."""
        told, parts = _told(training), [np.zeros(0)]
        if not self.rate:
            return parts[0]
        held = Table.concat([rows.take(there), others])
        off = np.bincount(
            np.searchsorted(told.cuts, held.X[:, 0], side="right"), 0.5 - held.y, len(told.cuts) + 1
        )
        # what scores are shifted by, to be 0 on average, is in the intercept
        for score in told.scores[:, 1:-1] + told.intercept[:, None]:
            starts = np.flatnonzero(np.diff(score, prepend=np.nan) != 0)
            weight = np.add.reduceat(told.bin_weights[1:-1], starts)
            sums = np.add.reduceat(off, starts)
            parts.append((-score[starts] * weight / self.rate - sums) / self.scales[1])
        return np.concatenate(parts)


def _told(training: Any) -> ClientShapes:
    return next(
        d.message
        for d in training.transcript
        if d.sender == "client-0" and isinstance(d.message, ClientShapes)
    )
