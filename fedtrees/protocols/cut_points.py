"""Agreement of clients and server on common cut points, before any tree is grown.

Clients send quantile sketches, which the server merges, or counts of rows per cell of a public
grid. Of grid counts only the sums need to be decrypted: the server computes approximate quantiles
from the sums, and refines the grid once or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import CutPlan
from fedtrees.core.errors import BeyondParametersError, DataError
from fedtrees.core.host import Agreement
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.requests import Once, Turns, check_equal, divides, refuse
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.horizontal import (
    CutPoints,
    CutsRequest,
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    GridRequest,
)
from fedtrees.trees.binning import Cuts, bin_rows, lower_sentinel, upper_sentinel
from fedtrees.trees.cut_points import (
    LARGEST,
    Grid,
    Sketch,
    choose_cuts,
    count_cells,
    equal_width_cuts,
    first_grid,
    grid_cuts,
    grid_minimum,
    local_sketch,
    merge_sketches,
    pruned_cuts,
    refined,
)

# Without a declared range, most cells of a first grid are empty and contain only noise. The
# probability that any of `cells` noises of scale b exceeds b ln(cells / _RISK) is about _RISK.
_RISK = 0.1


def settle_on_a_grid(
    net: Network,
    plan: CutPlan,
    max_bin: int,
    schema: Schema,
    categories: NDArray[np.int32] | None = None,
) -> Cuts:
    """Return cut points from the summed counts of all clients' rows in the cells of a grid.

    Features are not counted if their cut points are declared, if they are split by categories, or
    if they have at most `max_bin` declared categories.

    Parameters
    ----------
    net : Network
        Network of the run.
    plan : CutPlan
        Number of cells and rounds, and the noise.
    max_bin : int
        Largest number of bins of a column.
    schema : Schema
        Columns.
    categories : int32 array, shape (d,), optional
        Number of categories of each feature that is split by categories, otherwise 0.

    Raises
    ------
    DataError
        If a feature declares no range and the plan has a single round.
    """
    declared_cuts = [_declared_cuts(f, max_bin) for f in schema.features]
    by_category = np.zeros(len(declared_cuts), dtype=bool) if categories is None else categories > 0
    counted = counted_features(schema, max_bin, by_category)
    low, high = schema.ranges
    endless = unbounded = counted & np.isnan(low)
    if endless.any() and plan.rounds == 1:
        names = [schema.names[f] for f in np.flatnonzero(endless)]
        raise DataError(
            f"a grid that is counted once needs a declared range for every feature; "
            f"{', '.join(names[:5])} ({len(names)} in all) have none: declare them in the schema, "
            "or give rounds=2"
        )
    grid = first_grid(low, high, plan.cells, counted)
    counts = _counts(net, grid, 0)
    for round in range(1, plan.rounds):
        scale = plan.count_scale(sum(len(b) > 0 for b in grid.borders))
        # Cells with counts below this level are treated as empty when the range is determined.
        noise = math.ceil(scale * math.log(plan.cells / _RISK))
        endless = unbounded & (round == 1)
        grid = refined(grid, counts, plan.cells, np.where(endless, noise, 0).astype(np.int64))
        counts = _counts(net, grid, round)
    values = grid_cuts(grid, counts, max_bin)
    minimum = grid_minimum(grid)
    for f, declared in enumerate(declared_cuts):
        if declared is not None:
            minimum[f], values[f] = declared[0], declared[1:]
        elif unbounded[f]:
            # The refined grid may end before the last row, which is then in the last bin.
            minimum[f], values[f][-1] = lower_sentinel(-LARGEST), upper_sentinel(LARGEST)
    return Cuts.join(values, minimum)


def counted_features(
    schema: Schema, max_bin: int, by_category: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return the features whose rows are counted, bool, shape (d,).

    Their cut points are not declared, and they are not split by categories. All parties compute
    this from the schema and public parameters.

    Parameters
    ----------
    schema : Schema
        Columns.
    max_bin : int
        Largest number of bins of a column.
    by_category : bool array, shape (d,)
        Features that are split by categories.
    """
    # Declared columns need no private counts, which leaves more budget for the remaining columns.
    undeclared = np.array([_declared_cuts(f, max_bin) is None for f in schema.features], dtype=bool)
    return undeclared & ~by_category


def _declared_cuts(feature: Feature, max_bin: int) -> NDArray[np.float32] | None:
    """Return the cut points that follow from the schema, after a sentinel. None if none do."""
    if feature.cuts:
        return np.array(feature.cuts, dtype=np.float32)
    codes = np.arange(len(feature.categories), dtype=np.float32)
    if feature.kind != "categorical" or not 0 < len(codes) <= max_bin:
        return None
    return np.array([lower_sentinel(codes[0]), *codes[1:], upper_sentinel(codes[-1])])


def _counts(net: Network, grid: Grid, round: int) -> NDArray[np.int64]:
    """Request the number of rows in every cell, and return the sums over all clients."""
    sizes = [len(b) for b in grid.borders]
    if not any(sizes):
        return np.zeros(0, dtype=np.int64)
    borders, offsets = np.concatenate(grid.borders), np.cumsum([0, *sizes]).astype(np.int32)
    request = GridRequest(borders, offsets, round)
    total = net.request_sum("client", request, reason="rows per cell, to settle cut points")
    return total.counts


CUT_METHODS = ("sketch", "xgboost", "equal-width", "public")
_GRID = CutPlan("grid", 1024, 2)  # the default parameters of the defense `grid-cuts`


class BinningClient(Party):
    """A client that sends summaries of its columns to the server, and bins its rows.

    The number and resolution of the summaries follow from its copy of the agreement
    (`agreed_plan`). A dishonest server can therefore not request a private summary twice, or an
    exact one in its place.

    Parameters
    ----------
    name : str
        Name of the client.
    data : Table
        Local rows.
    """

    role = "client"
    binned = False

    def __init__(self, name: str, data: Table) -> None:
        super().__init__(name)
        self.data = data
        self.summary, self.grids = Once(), 0
        self.cells: list[int] = []  # cells of every column in the last counted grid

    @property
    def summarised_rows(self) -> NDArray[np.float32]:
        """The rows that cut points are computed from, float32, shape (n, d).

        Raises
        ------
        BeyondParametersError
            If they were binned before.
        """
        if self.binned:
            raise BeyondParametersError(f"{self.name!r} has binned its rows; it keeps no values")
        return self.data.X

    @handles(
        CutsRequest,
        method="the method that all parties agreed on; refused where none asks for summaries",
        max_bin="the agreed `max_bin`; the request is answered once",
    )
    def summarise(self, message: CutsRequest) -> FeatureSketch | FeatureRanges:
        """Answer with quantile summaries or ranges of every column, once."""
        plan = agreed_plan(self.agreement)
        if plan.method not in ("sketch", "xgboost", "equal-width"):
            refuse(
                message, "method", f"cut points are settled by {plan.method!r}, not by summaries"
            )
        check_equal(message, "method", _summary_of(plan), "the kind of summary")
        check_equal(message, "max_bin", self.agreement.parameters["max_bin"], "max_bin")
        rows = self.summarised_rows
        self.summary.take(message)
        if message.method == "sketch":
            s = local_sketch(rows, message.max_bin)
            return FeatureSketch(s.points, s.weights, s.offsets, s.low)
        return FeatureRanges(*column_ranges(rows))

    @handles(
        GridRequest,
        borders="in round 0 the public grid; later increasing, of counted columns only, "
        "and at most the agreed cells and two for each earlier cell",
        offsets="as `borders`; the columns that are counted follow from the schema",
        round="in order, each once, at most the agreed number of rounds",
    )
    def count_rows(self, message: GridRequest) -> GridCounts:
        """Answer with the number of rows in every cell of a grid that the agreement permits."""
        borders = self.checked_grid(message)
        rows = self.summarised_rows
        # The number of cells bounds the borders of the next grid (`checked_grid`).
        self.grids, self.cells = self.grids + 1, [len(b) + 1 if len(b) else 0 for b in borders]
        return GridCounts(sum(len(b) > 0 for b in borders), count_cells(rows, borders))

    def checked_grid(self, message: GridRequest) -> list[NDArray[np.float32]]:
        """Return the borders of every column, or raise `BeyondParametersError`."""
        plan, d = agreed_plan(self.agreement), len(self.agreement.schema.features)
        if plan.method != "grid":
            refuse(message, "", f"cut points are settled by {plan.method!r}, not on a grid")
        # A grid that was counted before would spend the budget again.
        turns = Turns(plan.rounds)
        turns.next = self.grids
        turns.take(message, "round")
        offsets, end = message.offsets, len(message.borders)
        if message.borders.ndim != 1 or not divides(offsets, d, end):
            refuse(message, "offsets", f"{d} columns divide {end} borders, in order")
        borders = np.split(message.borders, offsets[1:-1])
        # The first grid follows from public facts. A different one would be a dishonest request.
        if message.round == 0:
            public = public_grid(self.agreement, plan)
            if not all(map(np.array_equal, borders, public.borders)):
                refuse(message, "borders", "the first grid is public, and has other borders")
            return borders
        names = self.agreement.schema.names
        for name, inner, before in zip(names, borders, self.cells, strict=True):
            # Each cell is divided into its share of the agreed number of cells, or remains
            # undivided. Both of its ends may be new borders next to merged cells.
            max_borders = plan.cells + 2 * before if before else 0
            if (
                len(inner) > max_borders
                or not np.isfinite(inner).all()
                or (np.diff(inner) <= 0).any()
            ):
                rule = f"column {name!r} has at most {max_borders} increasing borders in this round"
                refuse(message, "borders", rule)
        return borders

    @handles(
        CutPoints,
        values="taken once: no rows are binned, and none summarised, a second time",
        offsets="in order, of all columns of the schema",
        minimum="one for each column",
        categorical="columns that the schema declares as categorical, with one bin per category",
    )
    def bin(self, message: CutPoints) -> None:
        """Bin the rows once, and delete their values, which need most of the memory.

        Raises
        ------
        BeyondParametersError
            If they were binned before.
        """
        if self.binned:
            raise BeyondParametersError(
                f"{self.name!r} already received cut points, which cannot be replaced"
            )
        d, offsets = self.data.X.shape[1], message.offsets
        if not divides(offsets, d, len(message.values)):
            refuse(message, "offsets", f"{d} columns divide all cut points, in order")
        if message.minimum.shape != (d,):
            refuse(message, "minimum", f"each of {d} columns has one")
        self.check_categorical(message)
        self.binned, m = True, message
        self.cuts = m.to_cuts()
        self.bins = bin_rows(self.data.X, self.cuts)
        self.data = replace(self.data, X=np.empty((len(self.data), 0), np.float32))

    def check_categorical(self, message: CutPoints) -> None:
        """Refuse columns that are split by categories although the schema declares numbers.

        Binning fails if a value is none of the codes. The failure would tell the server whether
        there is such a value.
        """
        if message.categorical is None:
            return
        features, bins = self.agreement.schema.features, np.diff(message.offsets)
        if message.categorical.shape != (len(features),):
            refuse(message, "categorical", f"each of {len(features)} columns has one entry")
        for k in np.flatnonzero(message.categorical).tolist():
            codes = len(features[k].categories)
            if features[k].kind != "categorical" or bins[k] < codes:
                rule = f"column {features[k].name!r} has {codes} declared categories"
                refuse(message, "categorical", rule)


def agreed_plan(agreement: Agreement) -> CutPlan:
    """Return the agreed method for cut points.

    A defense decides, or else the protocol's parameter ``cuts``. A protocol without that parameter
    uses declared cut points and asks no client.
    """
    method = agreement.parameters.get("cuts", "public")
    return agreement.defense.cut_plan() or (_GRID if method == _GRID.method else CutPlan(method))


def public_grid(agreement: Agreement, plan: CutPlan) -> Grid:
    """Return the grid of the first round, which follows from schema and public parameters."""
    schema, parameters = agreement.schema, agreement.parameters
    by_category = schema.categorical & bool(parameters.get("enable_categorical"))
    counted = counted_features(schema, parameters["max_bin"], by_category)
    return first_grid(*schema.ranges, plan.cells, counted)


def _summary_of(plan: CutPlan) -> str:
    """Return the kind of summary that clients send for a plan."""
    return "sketch" if plan.method == "xgboost" else plan.method


def settle_cuts(
    net: Network,
    method: str,
    max_bin: int,
    schema: Schema,
    categories: NDArray[np.int32] | None = None,
    *,
    gather: bool = False,
) -> Cuts:
    """Agree on cut points, and send them to all clients.

    Parameters
    ----------
    net : Network
        Network of the run.
    method : {"sketch", "xgboost", "equal-width", "public", "grid"}
        Method, unless a defense chooses it. ``xgboost`` is ``sketch`` with merged sketches pruned
        as in XGBoost. ``grid`` uses counts that are summed securely.
    max_bin : int
        Largest number of bins of a column.
    schema : Schema
        Columns. Method ``public`` uses their declared cut points and ranges.
    categories : int32 array, shape (d,), optional
        Number of categories of each feature that is split by categories, otherwise 0.
    gather : bool
        Forward every client's sketch to all clients, as XGBoost's collective does.

    Returns
    -------
    cuts : Cuts
    """
    plan = cut_plan_of(net) or (_GRID if method == _GRID.method else CutPlan(method))
    if plan.method == "public":
        cuts = public_cuts(schema, max_bin)
        reason = "cut points from the declared ranges"
    elif plan.method == "grid":
        cuts = settle_on_a_grid(net, plan, max_bin, schema, categories)
        reason = "cut points, from the sums of all clients' counts"
    else:
        request = CutsRequest(_summary_of(plan), max_bin)
        parts = net.request("client", request, reason="to settle cut points")
        if net.defense.cut_plan() is None:  # a defense may replace numbers of rows
            check_sketches(net, parts)
        # XGBoost's collective sends every sketch to every client, which an attack can read.
        if gather:
            share_sketches(net, parts)
        cuts = merge_summaries(parts, max_bin, plan.method)
        reason = f"cut points, merged from the clients' {plan.method} summaries"
    if categories is not None:
        cuts = cuts.with_categories(categories)
    message = CutPoints(cuts.values, cuts.offsets, cuts.minimum, cuts.categorical)
    net.send("client", message, reason=reason)
    return cuts


def cut_plan_of(net: Network) -> CutPlan | None:
    """Return how the defenses choose cut points, None if no defense changes the protocol.

    A part of the defense that chooses them is recorded as acting.
    """
    parts = enumerate(net.defense.parts)
    net.transcript.acted.update(i for i, part in parts if part.cut_plan() is not None)
    return net.defense.cut_plan()


def check_sketches(net: Network, parts: Sequence[Message]) -> None:
    """Raise `BeyondParametersError` if a sketch has more rows than its client declared."""
    for owner, part in zip(net.members("client"), parts, strict=True):
        if owner in net.declared and isinstance(part, FeatureSketch) and len(part.weights):
            limit = net.declared[owner].rows
            per_column = np.split(part.weights, part.offsets[1:-1])
            rows = max(sum(weights.tolist()) for weights in per_column)
            if rows > limit or part.weights.min() < 0:
                raise BeyondParametersError(
                    f"the sketch of {owner!r} counts {rows} rows of a column; it declared {limit}"
                )


def share_sketches(net: Network, parts: Sequence[Message]) -> None:
    """Forward every client's sketch to all clients. Other summaries are not forwarded."""
    for owner, part in zip(net.members("client"), parts, strict=True):
        if isinstance(part, FeatureSketch):
            reason = "every client merges the sketches of all by itself"
            net.send("client", replace(part, owner=owner), reason=reason)


def column_ranges(X: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the smallest and largest present value of each column, NaN if there is none."""
    missing = np.isnan(X)
    low = np.min(np.where(missing, np.float32(np.inf), X), axis=0, initial=np.inf)
    high = np.max(np.where(missing, np.float32(-np.inf), X), axis=0, initial=-np.inf)
    # A column without values keeps the initial infinities in reversed order.
    empty = low > high
    low[empty] = high[empty] = np.nan
    return low.astype(np.float32), high.astype(np.float32)


def merge_summaries(parts: list, max_bin: int, method: str) -> Cuts:  # type: ignore[type-arg]
    """Return common cut points from the clients' sketches or ranges.

    Parameters
    ----------
    parts : list of FeatureSketch or of FeatureRanges
        One summary per client.
    max_bin : int
        Largest number of bins of a column.
    method : str
        ``xgboost`` prunes merged sketches as XGBoost does.
    """
    if isinstance(parts[0], FeatureSketch):
        sketches = [Sketch(p.points, p.weights, p.offsets, p.low) for p in parts]
        choose = pruned_cuts if method == "xgboost" else choose_cuts
        return merge_sketches(sketches, max_bin, choose)
    # `fmin` ignores NaN, the range of a client without values in the column.
    low = np.fmin.reduce([p.low for p in parts])
    high = np.fmax.reduce([p.high for p in parts])
    return equal_width_cuts(low, high, max_bin)


def public_cuts(schema: Schema, max_bin: int) -> Cuts:
    """Return the declared cut points, or equal-width cut points of declared ranges.

    Raises
    ------
    DataError
        If a continuous feature declares neither.
    """
    # Columns with declared cut points have no range here, and their part is replaced below.
    equal_width = equal_width_cuts(*public_ranges(schema), max_bin)
    values, minimum = [], equal_width.minimum.copy()
    for k, feature in enumerate(schema.features):
        # The first declared cut point is the lower end of the first bin.
        values.append(feature.cuts[1:] or equal_width.of(k))
        if feature.cuts:
            minimum[k] = feature.cuts[0]
    return Cuts.join(values, minimum)


def public_ranges(schema: Schema) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the declared ranges of all features, float32, shape (d,) each.

    NaN for features with declared cut points.

    Raises
    ------
    DataError
        If a continuous feature declares neither a range nor cut points.
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
    has_cuts = np.array([bool(f.cuts) for f in schema.features])
    low[has_cuts] = high[has_cuts] = np.nan
    return low, high
