"""How clients and server settle common cut points, whatever is grown on them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.errors import BeyondParametersError, DataError
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.schema import Schema, Table
from fedtrees.messages.cuts import (
    CutPoints,
    CutsRequest,
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    GridRequest,
)
from fedtrees.protocols.grid_cut_points import settle_on_a_grid
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.xgboost_cuts import pruned_cuts
from fedtrees.trees.grid import count_cells
from fedtrees.trees.sketch import (
    Sketch,
    choose_cuts,
    equal_width_cuts,
    local_sketch,
    merge_sketches,
)

CUT_METHODS = ("sketch", "xgboost", "equal-width", "public")
_GRID = CutPlan("grid", 1024, 2)  # as `grid-cuts`


class BinningClient(Party):
    """A client that summarises its columns and bins its rows."""

    role = "client"
    binned = False

    def __init__(self, name: str, data: Table) -> None:
        super().__init__(name)
        self.data = data

    @property
    def summarised_rows(self) -> NDArray[np.float32]:
        """The rows that cut points are made for, float32, shape (n, d).

        Raises `BeyondParametersError` if they were binned before.
        """
        if self.binned:
            raise BeyondParametersError(f"{self.name!r} has binned its rows; it keeps no values")
        return self.data.X

    @handles(CutsRequest)
    def summarise(self, message: CutsRequest) -> FeatureSketch | FeatureRanges:
        """Answer with quantile summaries or ranges of every column."""
        if message.method == "sketch":
            s = local_sketch(self.summarised_rows, message.max_bin)
            return FeatureSketch(s.points, s.weights, s.offsets, s.low)
        return FeatureRanges(*column_ranges(self.summarised_rows))

    @handles(GridRequest)
    def count_rows(self, message: GridRequest) -> GridCounts:
        """Answer with the number of rows in every cell."""
        m = message
        borders = np.split(m.borders, m.offsets[1:-1])
        counts = count_cells(self.summarised_rows, borders)
        return GridCounts(sum(len(b) > 0 for b in borders), m.clients, counts)

    @handles(CutPoints)
    def bin(self, message: CutPoints) -> None:
        """Bin the rows once and for all; their values are let go, which take more than all else.

        Raises `BeyondParametersError` if they were binned before.
        """
        if self.binned:
            raise BeyondParametersError(f"{self.name!r} was told cut points before; they stand")
        self.binned, m = True, message
        self.cuts = Cuts(m.values, m.offsets, m.minimum, m.categorical)
        self.bins = bin_rows(self.data.X, self.cuts)
        self.data = replace(self.data, X=np.empty((len(self.data), 0), np.float32))


def settle_cuts(
    net: Network,
    method: str,
    max_bin: int,
    schema: Schema,
    categories: NDArray[np.int32] | None = None,
    *,
    gather: bool = False,
) -> Cuts:
    """Agree on cut points and tell all clients, as the defenses say or else by the method.

    `method`: {"sketch", "xgboost", "equal-width", "public", "grid"}. ``xgboost``: as ``sketch``,
    and merged sketches are pruned as XGBoost prunes them. ``grid``: by counts that the protocol
    sums securely.
    `schema`: Its cut points and public ranges are used where the method is "public".
    `categories`: int32 array, shape (d,). Number of categories of each feature that is split by
    categories, else 0.
    `gather`: Pass every client's sketch on to all of them, as XGBoost's collective does.
    """
    plan = net.cut_plan() or (_GRID if method == _GRID.method else CutPlan(method))
    if plan.method == "public":
        cuts = public_cuts(schema, max_bin)
        why = "cut points, from what the schema declares"
    elif plan.method == "grid":
        cuts = settle_on_a_grid(net, plan, max_bin, schema, categories)
        why = "cut points, from the sums of all clients' counts"
    else:
        asked = "sketch" if plan.method == "xgboost" else plan.method
        parts = net.ask("client", CutsRequest(asked, max_bin), why="to settle cut points")
        if net.cut_plan() is None:  # else a defense may have drawn numbers of rows
            check_sketches(net, parts)
        if gather:
            share_sketches(net, parts)
        cuts = merge_summaries(parts, max_bin, plan.method)
        why = f"cut points, merged from the clients' {plan.method} summaries"
    if categories is not None:
        cuts = cuts.with_categories(categories)
    message = CutPoints(cuts.values, cuts.offsets, cuts.minimum, cuts.categorical)
    net.tell("client", message, why=why)
    return cuts


def check_sketches(net: Network, parts: Sequence[Message]) -> None:
    """Raise `BeyondParametersError` if a sketch is of more rows than its client declared."""
    for owner, part in zip(net.members("client"), parts, strict=True):
        if owner in net.declared and isinstance(part, FeatureSketch) and len(part.weights):
            most, per_column = net.declared[owner], np.split(part.weights, part.offsets[1:-1])
            rows = max(sum(weights.tolist()) for weights in per_column)
            if rows > most or part.weights.min() < 0:
                raise BeyondParametersError(
                    f"the sketch of {owner!r} counts {rows} rows of a column; it declared {most}"
                )


def share_sketches(net: Network, parts: Sequence[Message]) -> None:
    """Tell all clients every client's sketch; other summaries stay with who asked for them."""
    for owner, part in zip(net.members("client"), parts, strict=True):
        if isinstance(part, FeatureSketch):
            why = "every client merges the sketches of all by itself"
            net.tell("client", replace(part, owner=owner), why=why)


def column_ranges(X: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the smallest and largest present value of each column, NaN where there is none."""
    missing = np.isnan(X)
    low = np.min(np.where(missing, np.float32(np.inf), X), axis=0, initial=np.inf)
    high = np.max(np.where(missing, np.float32(-np.inf), X), axis=0, initial=-np.inf)
    empty = low > high
    low[empty] = high[empty] = np.nan
    return low.astype(np.float32), high.astype(np.float32)


def merge_summaries(parts: list, max_bin: int, method: str) -> Cuts:  # type: ignore[type-arg]
    """Return common cut points from the clients' sketches or ranges."""
    if isinstance(parts[0], FeatureSketch):
        sketches = [Sketch(p.points, p.weights, p.offsets, p.low) for p in parts]
        choose = pruned_cuts if method == "xgboost" else choose_cuts
        return merge_sketches(sketches, max_bin, choose)
    low = np.fmin.reduce([p.low for p in parts])
    high = np.fmax.reduce([p.high for p in parts])
    return equal_width_cuts(low, high, max_bin)


def public_cuts(schema: Schema, max_bin: int) -> Cuts:
    """Return the declared cut points, where there are none equal-width ones of declared ranges.

    Raises `DataError` if a continuous feature declares neither.
    """
    equal_width = equal_width_cuts(*public_ranges(schema), max_bin)
    values, minimum = [], equal_width.minimum.copy()
    for k, feature in enumerate(schema.features):
        values.append(feature.cuts[1:] or equal_width.of(k))
        if feature.cuts:
            minimum[k] = feature.cuts[0]
    return Cuts.join(values, minimum)


def public_ranges(schema: Schema) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the declared ranges of all features, float32, shape (d,) each; NaN beside cuts.

    Raises `DataError` if a continuous feature declares neither a range nor cut points.
    """
    low, high = schema.ranges
    missing = [f.name for f, a in zip(schema.features, low, strict=True) if np.isnan(a)]
    declared = {f.name for f in schema.features if f.cuts}
    missing = [name for name in missing if name not in declared]
    if missing:
        raise DataError(
            f"public cut points need a declared range for every feature; {', '.join(missing[:5])} "
            f"({len(missing)} in all) have none: declare them in the schema, or use cuts=sketch or "
            "the defense grid-cuts, which need none"
        )
    beside_cuts = np.array([bool(f.cuts) for f in schema.features])
    low[beside_cuts] = high[beside_cuts] = np.nan
    return low, high
