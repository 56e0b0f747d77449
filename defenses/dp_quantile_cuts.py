"""Defense `dp-quantile-cuts`: each client sends differentially private quantiles of its columns.

The server merges them to the cut points of the histograms, as it merges quantile sketches. The
algorithm for many quantiles of one column is in `fedtrees.privacy.quantiles`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Mechanism
from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.errors import check_positive, check_whole
from fedtrees.core.guarantee import Guarantee, PureDP
from fedtrees.core.messages import Message, Reveal, exempting
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.defenses.settled_cuts import LATER
from fedtrees.messages.cuts import CutPoints, FeatureSketch
from fedtrees.privacy.accounting import spent_on_cuts
from fedtrees.privacy.mechanisms import discrete_laplace
from fedtrees.privacy.noise import Laplace
from fedtrees.privacy.quantiles import log_chance, private_quantiles, rank_error
from fedtrees.trees.grid import LARGEST, float_rank, of_rank

# Number of steps into which the declared range of a column is divided. It is far larger than any
# useful number of bins.
_STEPS = 1 << 20


@register.defense("dp-quantile-cuts")
@dataclass(frozen=True)
class PrivateQuantileCuts(Defense):
    """Send, in place of each column's summary, quantiles chosen by the exponential mechanism.

    Each client runs the algorithm of Kaplan, Schnapp and Stemmer (2022) on all of its rows, and the
    server merges the quantiles of all clients. No secure sum is needed, because the message of each
    client is differentially private by itself.

    `epsilon` is divided evenly among the d columns and the number of rows, which is sent with
    discrete Laplace noise. A column with a declared range is discretised into 2^20 steps. A column
    without a declared range is represented by the ranks of its values among all float32 numbers.

    Parameters
    ----------
    epsilon : float
        Budget of a client's complete summary for one row added or removed, in nats.
    quantiles : int
        Number of quantiles per column and client, 1 to 1024. Each one is less exact if there are
        more.
    """

    epsilon: float
    quantiles: int = 15

    acts_through = frozenset({"cuts", "outgoing"})
    at = frozenset({"client"})
    protects = frozenset({Reveal.FEATURES})
    guards = (FeatureSketch,)
    exempts = exempting(LATER)
    requires = (CutPoints,)
    reads_rows = True
    tries = {"epsilon": (1.0,)}

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_whole("quantiles", self.quantiles, 1, 1024)

    def claim(self) -> Guarantee:
        """Return pure DP of the cut points."""
        return PureDP(float(self.epsilon), unit="cuts")

    def cuts(self) -> CutPlan:
        """Return the plan to merge the summaries of all clients."""
        return CutPlan("sketch")

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that the summary is drawn from the columns, and the error of its ranks."""
        each = self._each(len(schema.features))
        drawn = Mechanism(
            "quantiles drawn from the columns take the place of the sketch",
            rank_error=rank_error(self.quantiles, each),
            log_chance=partial(_log_chance, each),
        )
        return {(FeatureSketch, f): drawn for f in ("points", "weights", "offsets", "low")}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Replace the summary by private quantiles, and record the privacy loss."""
        assert isinstance(message, FeatureSketch)
        assert ctx.held is not None
        X = ctx.held.X
        each = self._each(X.shape[1])
        rng = ctx.rng("quantiles")
        # The exponential mechanism runs once per column, each time with the budget of one column.
        ctx.spend("exponential", l1=X.shape[1], scale=1 / each, what="FeatureSketch")
        ctx.spend("laplace", l1=1, scale=1 / each, what="FeatureSketch")
        # The noisy number of rows can be 0 or negative, and the server needs positive weights.
        rows = max(int(len(X) + discrete_laplace(1 / each, 1, rng)[0]), 1)
        weight = max(rows // (self.quantiles + 1), 1)
        columns = [
            self._quantiles(column, (low, high), each, rng)
            for column, low, high in zip(X.T, *ctx.schema.ranges, strict=True)
        ]
        # Several quantiles of a column can be equal. They are sent once, with the weight of all.
        pairs = [np.unique(column, return_counts=True) for column in columns]
        return replace(
            message,
            points=np.concatenate([points for points, _ in pairs]),
            weights=np.concatenate([times * weight for _, times in pairs]).astype(np.int64),
            offsets=np.cumsum([0, *(len(points) for points, _ in pairs)]).astype(np.int32),
            low=np.array([points[0] for points, _ in pairs], dtype=np.float32),
        )

    def _each(self, columns: int) -> float:
        """Return the budget of one column in nats. The number of rows has the same budget."""
        return self.epsilon / (columns + 1)

    def _quantiles(
        self,
        column: NDArray[np.float32],
        ends: tuple[float, float],
        epsilon: float,
        rng: np.random.Generator,
    ) -> NDArray[np.float32]:
        """Return the private quantiles of one column, float32, shape (quantiles,)."""
        steps, first, last = _steps(column[~np.isnan(column)], ends)
        chosen = private_quantiles(steps, self.quantiles, first, last, epsilon, rng)
        low, high = ends
        if np.isnan(low):
            # Without a declared range the steps are ranks among all float32 numbers.
            return of_rank(chosen)
        return (low + chosen * ((high - low or 1.0) / _STEPS)).astype(np.float32)

    def log_chance(self, message: Message, X: NDArray[np.float32], schema: Schema) -> float:
        """Return the log probability of a summary, given the rows of the client.

        Parameters
        ----------
        message : FeatureSketch
            Summary that the client sent.
        X : float32 array, shape (n, d)
            Rows of the client.
        schema : Schema
            Declares the range of every column.

        Returns
        -------
        log_probability : float
            In nats. The audit compares it between two tables that differ by one row.
        """
        assert isinstance(message, FeatureSketch)
        each, part = self._each(X.shape[1]), self.quantiles + 1
        times, weight = message.weights, int(message.weights.sum()) // self.quantiles
        # The message contains the noisy number of rows divided by the number of parts, rounded
        # down. The probability is that of all numbers with this quotient. A quotient of 1 also
        # results from every smaller number.
        smallest_rows, largest_rows = (
            (weight * part if weight > 1 else -np.inf),
            (weight + 1) * part - 1,
        )
        rows = Laplace(1 / each, whole=True)
        log_probability = float(
            rows.log_mass(*(np.array([n]) for n in (smallest_rows, largest_rows, len(X))))
        )
        for k, (column, low, high) in enumerate(zip(X.T, *schema.ranges, strict=True)):
            column_slice = slice(*message.offsets[k : k + 2])
            points = np.repeat(message.points[column_slice], times[column_slice] // weight)
            log_probability += _log_chance(each, points, column, 1.0, (low, high))
        return log_probability

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy loss of all summaries."""
        return spent_on_cuts(FeatureSketch, transcript)


def _log_chance(
    epsilon: float,
    points: NDArray[np.floating],
    values: NDArray[np.floating],
    rows_each: float,
    ends: tuple[float, float],
) -> float:
    """Return the log probability of a column's points, in nats.

    Each of the column's `values` counts as `rows_each` rows, which multiplies the budget.
    """
    (chosen, first, last), (value_steps, *_) = (_steps(part, ends) for part in (points, values))
    return log_chance(chosen, value_steps, first, last, epsilon * rows_each)


def _steps(
    values: NDArray[np.floating], ends: tuple[float, float]
) -> tuple[NDArray[np.int64], int, int]:
    """Discretise the values of a column, and return the first and the last possible step.

    A step is a fraction of the declared range. Without a declared range it is the rank among all
    float32 numbers.
    """
    low, high = map(float, ends)
    if np.isnan(low):
        top = int(float_rank(LARGEST))
        return float_rank(values.astype(np.float32)), -top, top
    share = (values.astype(np.float64) - low) / (high - low or 1.0)
    return np.floor(share * _STEPS).astype(np.int64), 0, _STEPS
