"""Cut points from counts on a grid: clients count rows per cell, only sums are decrypted.

The server computes approximate quantiles from the summed counts, and refines the grid once or more.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import add_messages
from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.errors import DataError
from fedtrees.core.network import Network
from fedtrees.core.schema import Feature, Schema
from fedtrees.messages.cuts import GridCounts, GridRequest
from fedtrees.trees.binning import Cuts, lower_sentinel, upper_sentinel
from fedtrees.trees.grid import LARGEST, Grid, first_grid, grid_cuts, grid_minimum, refined

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
    declared_cuts = [_declared(f, max_bin) for f in schema.features]
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
    # Declared columns need no private counts, which leaves more budget for all others.
    undeclared = np.array([_declared(f, max_bin) is None for f in schema.features], dtype=bool)
    return undeclared & ~by_category


def _declared(feature: Feature, max_bin: int) -> NDArray[np.float32] | None:
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
    total = add_messages(net.ask("client", request, why="rows per cell, to settle cut points"))
    assert isinstance(total, GridCounts)
    return total.counts
