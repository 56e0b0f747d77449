"""Cut points merged from quantiles that each client chooses with differential privacy."""

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

# Numbers that a column with a declared range is read as: far more than anybody needs bins.
_STEPS = 1 << 20


@register.defense("dp-quantile-cuts")
@dataclass(frozen=True)
class PrivateQuantileCuts(Defense):
    """Send, in place of each column's summary, quantiles chosen by the exponential mechanism.

    Kaplan, Schnapp and Stemmer (2022), at every client, on all of its rows; the server merges them
    as it merges sketches. No secure sum is needed: what each client sends is private by itself.
    `epsilon` is split evenly over the d columns and the number of rows, which is sent with discrete
    Laplace noise. Columns are read in steps of their declared range; without one, as ranks among
    all float32 numbers.

    `epsilon`: In nats, of a client's whole summary, for one row added or removed.
    `quantiles`: Per column and client, 1 to 1024; more of them are each less exact.
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
        """Return the merging of clients' summaries."""
        return CutPlan("sketch")

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that the summary is drawn from the columns, and how far off its ranks are."""
        each = self._each(len(schema.features))
        drawn = Mechanism(
            "quantiles drawn from the columns take the place of the sketch",
            rank_error=rank_error(self.quantiles, each),
            log_chance=partial(_log_chance, each),
        )
        return {(FeatureSketch, f): drawn for f in ("points", "weights", "offsets", "low")}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Replace the summary, and enter the cost."""
        assert isinstance(message, FeatureSketch)
        assert ctx.held is not None
        X = ctx.held.X
        each = self._each(X.shape[1])
        rng = ctx.rng("quantiles")
        ctx.spend("exponential", l1=X.shape[1], scale=1 / each, what="FeatureSketch")
        ctx.spend("laplace", l1=1, scale=1 / each, what="FeatureSketch")
        rows = max(int(len(X) + discrete_laplace(1 / each, 1, rng)[0]), 1)
        weight = max(rows // (self.quantiles + 1), 1)
        columns = [
            self._quantiles(column, (low, high), each, rng)
            for column, low, high in zip(X.T, *ctx.schema.ranges, strict=True)
        ]
        pairs = [np.unique(column, return_counts=True) for column in columns]
        return replace(
            message,
            points=np.concatenate([points for points, _ in pairs]),
            weights=np.concatenate([times * weight for _, times in pairs]).astype(np.int64),
            offsets=np.cumsum([0, *(len(points) for points, _ in pairs)]).astype(np.int32),
            low=np.array([points[0] for points, _ in pairs], dtype=np.float32),
        )

    def _each(self, columns: int) -> float:
        """Return the budget of one column, as large as that of the number of rows."""
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
            return of_rank(chosen)
        return (low + chosen * ((high - low or 1.0) / _STEPS)).astype(np.float32)

    def log_chance(self, message: Message, X: NDArray[np.float32], schema: Schema) -> float:
        """Return the log probability of a summary, given columns with a declared range."""
        assert isinstance(message, FeatureSketch)
        each, part = self._each(X.shape[1]), self.quantiles + 1
        times, weight = message.weights, int(message.weights.sum()) // self.quantiles
        least, most = (weight * part if weight > 1 else -np.inf), (weight + 1) * part - 1
        rows = Laplace(1 / each, whole=True)
        told = float(rows.log_mass(*(np.array([n]) for n in (least, most, len(X)))))
        for k, (column, low, high) in enumerate(zip(X.T, *schema.ranges, strict=True)):
            mine = slice(*message.offsets[k : k + 2])
            points = np.repeat(message.points[mine], times[mine] // weight)
            told += _log_chance(each, points, column, 1.0, (low, high))
        return told

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the summaries."""
        return spent_on_cuts(FeatureSketch, transcript)


def _log_chance(
    epsilon: float,
    points: NDArray[np.floating],
    values: NDArray[np.floating],
    rows_each: float,
    ends: tuple[float, float],
) -> float:
    """Return the log probability of a column's points, given its values of so many rows each."""
    (chosen, first, last), (held, *_) = (_steps(part, ends) for part in (points, values))
    return log_chance(chosen, held, first, last, epsilon * rows_each)


def _steps(
    values: NDArray[np.floating], ends: tuple[float, float]
) -> tuple[NDArray[np.int64], int, int]:
    """Read present values of a column as steps, and return the first and the last of these.

    Steps are of the declared range; without one, ranks among all float32 numbers.
    """
    low, high = map(float, ends)
    if np.isnan(low):
        top = int(float_rank(LARGEST))
        return float_rank(values.astype(np.float32)), -top, top
    share = (values.astype(np.float64) - low) / (high - low or 1.0)
    return np.floor(share * _STEPS).astype(np.int64), 0, _STEPS
