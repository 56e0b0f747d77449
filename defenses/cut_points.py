"""Defenses that compute cut points from less information about the columns of a client.

Cut points are public, or are quantiles of counts on a grid. The counts are summed securely, with or
without the noise of differential privacy. In `dp-quantile-cuts`, each client sends differentially
private quantiles of its columns (`fedtrees.privacy.mechanisms`), which the server merges as it
merges quantile sketches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Mechanism, Share, honest_shares
from fedtrees.core.defense import Channels, Context, CutPlan, Defense, DefenseInfo, Requirements
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Guarantee, PureDP, Structural
from fedtrees.core.messages import Message, Reveal, Trait, permit_types_with
from fedtrees.core.parameters import positive, whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.captured import HistogramSegment, MergedCuts
from fedtrees.messages.horizontal import CutPoints, FeatureSketch, GridCounts
from fedtrees.messages.lightgbm import BinMappers
from fedtrees.privacy.accounting import spent_on_cuts
from fedtrees.privacy.mechanisms import (
    discrete_laplace,
    discrete_laplace_share,
    log_chance,
    private_quantiles,
    rank_error,
)
from fedtrees.privacy.noise import Laplace
from fedtrees.trees.cut_points import LARGEST, float_rank, of_rank

LATER = {Trait.SUMMED: "the claim covers the choice of cut points, not the sums computed on them"}
_MOST_CELLS = 1 << 16
_SHARED = "clients"  # trusted, because a client knows the share of the noise that it adds


class SettledCuts(Defense):
    """Base of defenses that choose the origin of cut points. They allow no other summary."""

    guarantee = Structural()
    roles = frozenset({"client"})
    protects = frozenset({Reveal.FEATURES})
    permitted_types = permit_types_with(LATER)
    applies_to: ClassVar[tuple[type[Message], ...]] = (CutPoints,)


@register.defense("public-cuts")
@dataclass(frozen=True)
class PublicCuts(SettledCuts):
    """Bin at the schema's declared cut points, or in equal steps over its declared ranges.

    No message about the columns is necessary. Users of XGBoost's ring can apply the defense
    themselves: each worker creates the same ``QuantileDMatrix`` of these points before it connects,
    and creates the matrix of its data with ``ref=`` this one.
    """

    applies_to = (CutPoints, MergedCuts)
    permitted_types = {**SettledCuts.permitted_types, HistogramSegment: LATER[Trait.SUMMED]}

    def cut_plan(self) -> CutPlan:
        """Return the plan to use the declared cut points."""
        return CutPlan("public")


@register.defense("forced-bins")
@dataclass(frozen=True)
class ForcedBins(SettledCuts):
    """Give LightGBM declared bounds of bins, or equal steps over declared ranges.

    This is LightGBM's ``forcedbins_filename``, and ``max_bin_by_feature`` with one bin more than
    bounds for each column. The smallest and the largest value of each column, and the number of
    rows in each bin, are still sent. The attack `single-row-bins` then has no further values to
    assign to rows.

    Each machine needs a different file. The file counts columns from the first one that the machine
    computes bins for. LightGBM 4.7 reads the file in this way (``dataset_loader.cpp``): a
    column number in the file is a position among these columns.

    Parameters
    ----------
    bounds : int
        Largest number of bounds of a column.
    fill : bool
        Omit ``max_bin_by_feature``. LightGBM then uses the remaining bins for cut points midway
        between values, as without forced bins.
    """

    bounds: int = whole(1, 65_534, default=63)
    fill: bool = False

    applies_to = (BinMappers,)
    permitted_types = {
        BinMappers: "bounds are declared; the least and the greatest value are let through",
        HistogramSegment: LATER[Trait.SUMMED],
    }

    def cut_plan(self) -> CutPlan:
        """Return the plan to use the declared bounds."""
        return CutPlan("public", self.bounds, fill=self.fill)


class SummedCounts(SettledCuts):
    """Base of defenses that count rows on a grid. Only the sum over all clients is opened."""

    handled_types = (GridCounts,)
    summed_types = (GridCounts,)


@register.defense("grid-cuts")
@dataclass(frozen=True)
class GridCuts(SummedCounts):
    """Compute cut points from a secure sum of all clients' counts in the cells of a grid.

    No party learns the counts of a single client. The sum reveals which cells contain a row. The
    first grid is public. Its cells have equal width over the declared range, or contain equally
    many float32 numbers if no range is declared. The next grid divides each cell in proportion to
    its share of the rows.

    Parameters
    ----------
    cells : int
        Number of cells per feature, 2 to 65536.
    rounds : int
        Number of times that the rows are counted, 1 to 4. A single round needs a declared range for
        every feature.
    """

    cells: int = whole(2, _MOST_CELLS, default=1024)
    rounds: int = whole(1, 4, default=2)

    def cut_plan(self) -> CutPlan:
        """Return the plan of the grid."""
        return CutPlan("grid", self.cells, self.rounds)


@register.defense("dp-grid-cuts")
@dataclass(frozen=True)
class PrivateGridCuts(SummedCounts):
    """Compute cut points from noisy counts in the cells of a grid, with differential privacy.

    Every cell of the sum carries discrete Laplace noise of scale ``rounds d / epsilon`` for d
    counted features, as a row is in one cell of each (Ghosh et al. 2012). Each of m clients adds a
    share of it, a difference of two Polya variates (Goryczka and Xiong 2017), and the secure sum
    adds the shares up. A client knows its own share, so that the shares are scaled as if there were
    ``m - colluders`` clients: the shares of these add up to the Laplace noise of the claim. If more
    clients collude, the shares that they do not know still have ``(m - c) / (m - colluders)`` of
    its variance, but their sum is not Laplace noise any more, and epsilon grows by more than that
    ratio (`fedtrees.privacy.mechanisms`). A sum over fewer clients than `survivors` is not opened.

    Parameters
    ----------
    epsilon : float
        Budget of all counts together for one row added or removed, in nats.
    cells, rounds : int
        As in `grid-cuts`. The sum over a range of values contains less noise if there are fewer
        cells.
    survivors : int or None
        Number of clients that must stay in the run for a sum to be opened. The shares of
        ``survivors - colluders`` clients add up to the noise of the claim. None: all clients.
    colluders : int
        Number of colluding clients against whom `epsilon` holds. 0: it holds for outsiders only.
    """

    epsilon: float = positive()
    cells: int = whole(2, _MOST_CELLS, default=64)
    rounds: int = whole(1, 4, default=2)
    survivors: int | None = whole(1, default=None)
    colluders: int = whole(0, default=1)

    info = DefenseInfo(bench_grid={"epsilon": (1.0,)})

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse more survivors than clients, and as many colluders as survivors."""
        clients = sum(role == "client" for role in roles.values())
        if self.survivors is not None and self.survivors > clients:
            raise UsageError(
                f"survivors={self.survivors} of {clients} clients; give at most as many as there "
                "are, or leave it out"
            )
        # Raises UsageError if the colluding clients know all shares of the noise.
        if clients:
            self._shares(clients)

    def claim(self) -> Guarantee:
        """Return pure DP of the cut points against `colluders` colluding clients."""
        epsilon, colluders = float(self.epsilon), self.colluders
        return PureDP(epsilon, unit="cuts", trusted=(_SHARED,), colluders=colluders)

    def cut_plan(self) -> CutPlan:
        """Return the plan of the grid, and the budget of the counts."""
        return CutPlan("grid", self.cells, self.rounds, float(self.epsilon))

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the noise that all clients add together."""
        scale = self.cut_plan().count_scale(_count_features(schema, parameters))
        if not scale:
            return {}
        share = Share(Laplace(scale, integers=True), self.survivors or 0, self.colluders)
        return {(GridCounts, "counts"): share}

    def _shares(self, clients: int) -> int:
        """Return the number of clients whose shares add up to the claimed noise."""
        return honest_shares(clients, self.colluders, self.survivors or 0)

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Add this client's share of the noise, and record the privacy loss."""
        assert isinstance(message, GridCounts)
        scale = self.cut_plan().count_scale(message.features)
        rng = ctx.rng("grid-noise")
        clients = ctx.count(
            "client"
        )  # from the agreement: a malicious server could state another number
        shares = self._shares(clients)
        noise = discrete_laplace_share(scale, message.counts.shape, rng, shares)
        ctx.record_release(
            "geometric",
            l1=1,  # a row is in one cell of each feature, and each cell has noise of its own
            count=message.features,
            scale=scale,
            what="GridCounts",
            trusted=_SHARED,
            shares=self.survivors or clients,
            calibrated=shares,
        )
        return replace(message, counts=message.counts + noise)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy loss of the counts. It is structural if none were requested."""
        return spent_on_cuts(GridCounts, transcript)


def _count_features(schema: Schema, parameters: Mapping[str, Any]) -> int:
    """Return the number of features that are counted.

    Features with declared cut points, or with few categories, have public cut points.
    """
    # A categorical feature with one bin per category needs no quantiles. With native categorical
    # splits there is no limit on the number of categories.
    few = parameters["max_bin"] if not parameters.get("enable_categorical") else math.inf
    return sum(not f.cuts and not 0 < len(f.categories) <= few for f in schema.features)


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

    epsilon: float = positive()
    quantiles: int = whole(1, 1024, default=15)

    roles = frozenset({"client"})
    protects = frozenset({Reveal.FEATURES})
    handled_types = (FeatureSketch,)
    permitted_types = permit_types_with(LATER)
    applies_to = (CutPoints,)
    requirements = Requirements(reads_local_data=True)
    info = DefenseInfo(bench_grid={"epsilon": (1.0,)})

    def claim(self) -> Guarantee:
        """Return pure DP of the cut points."""
        return PureDP(float(self.epsilon), unit="cuts")

    def cut_plan(self) -> CutPlan:
        """Return the plan to merge the summaries of all clients."""
        return CutPlan("sketch")

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State that the summary is drawn from the columns, and the error of its ranks."""
        each = self._each(len(schema.features))
        drawn = Mechanism(
            "quantiles drawn from the columns take the place of the sketch",
            rank_error=rank_error(self.quantiles, each),
            log_chance=partial(_log_chance, each),
        )
        return {(FeatureSketch, f): drawn for f in ("points", "weights", "offsets", "low")}

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Replace the summary by private quantiles, and record the privacy loss."""
        assert isinstance(message, FeatureSketch)
        assert ctx.local_data is not None
        X = ctx.local_data.X
        each = self._each(X.shape[1])
        rng = ctx.rng("quantiles")
        # The exponential mechanism runs once per column, each time with the budget of one column.
        ctx.record_release("exponential", l1=X.shape[1], scale=1 / each, what="FeatureSketch")
        ctx.record_release("laplace", l1=1, scale=1 / each, what="FeatureSketch")
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

    def log_likelihood(self, message: Message, X: NDArray[np.float32], schema: Schema) -> float:
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
        smallest_rows = weight * part if weight > 1 else -np.inf
        largest_rows = (weight + 1) * part - 1
        rows = Laplace(1 / each, integers=True)
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
