"""Compute the messages that every worker of a ring derives from the received ones.

These are the cut points, the start and the sums over all workers. A capture does not contain them,
because they are not sent. The trees are grown again to determine the nodes of the sums.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.records import Record
from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema
from fedtrees.messages.captured import (
    AgreedStart,
    GradientTotals,
    HistogramSegment,
    Intercept,
    MergedCuts,
    RankedSketch,
    RoundedHistogram,
)
from fedtrees.messages.horizontal import GlobalHistogram
from fedtrees.protocols.horizontal.xgboost_ring import XGBoostRing
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.fixed_point import UNIT_BITS, from_fixed, to_fixed
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.xgboost_cuts import pruned_cuts
from fedtrees.trees.partition import ROOT
from fedtrees.trees.sketch import Sketch, merge_sketches

Sums = NDArray[np.int64]
#: Largest error of sums that are not integer multiples of the unit. XGBoost's gradients are
#: float32, and those below 2^-7 are finer than the unit. The largest observed error was 5, for 768
#: rows.
_OFF = 16


def worked_out(
    seen: Sequence[Record], who: str, protocol: XGBoostRing, schema: Schema
) -> Iterator[Record]:
    """Yield the messages that a worker derives, in the types of `xgboost-ring`.

    A third party that saw the same messages could derive them, too. `protocol` contains the
    parameters of the run. Raises `DataError` if the captured sums do not belong to trees with these
    parameters.
    """
    messages = [r.message for r in seen]
    start = next((m.value for m in messages if isinstance(m, Intercept)), protocol.base_score)
    sketches = {m.owner: m for m in messages if isinstance(m, RankedSketch)}
    if start is None or not sketches:
        raise DataError("the capture does not tell where boosting starts: give base_score")
    merged = merge_sketches(
        [Sketch(s.points, s.weights, s.offsets, s.low) for _, s in sorted(sketches.items())],
        protocol.max_bin,
        pruned_cuts,
    )
    margin = protocol.objective_for(schema).base_margin(start)
    derived = [
        AgreedStart(margin),
        MergedCuts(merged.values, merged.offsets, merged.minimum, merged.categorical),
        *_levels(messages, merged, protocol, schema),
    ]
    for order, message in enumerate(derived, start=len(seen)):
        yield Record(0, order, who, (who,), message, "worked out of what was told")


def _levels(
    said: Iterable[object], cuts: Cuts, protocol: XGBoostRing, schema: Schema
) -> Iterator[GlobalHistogram]:
    """Yield the sums of all workers for every level of every tree, and grow the trees from them."""
    roots: dict[int, dict[str, NDArray[np.float64]]] = defaultdict(dict)
    parts: dict[tuple[int, int], list[HistogramSegment]] = defaultdict(list)
    for m in said:
        if isinstance(m, GradientTotals):
            roots[m.tree][m.parties] = m.sums
        elif isinstance(m, HistogramSegment):
            parts[m.tree, m.level].append(m)
    for tree in sorted(roots):
        totals = _root(roots[tree])
        grower = TreeGrower(cuts, protocol, totals[0], complete=schema.complete)
        level, nodes = 0, ROOT
        # The grown tree determines the order of the nodes in the histograms of the next level.
        while len(grower.nodes):
            hist, off = _summed(parts[tree, level], (len(nodes), cuts.total_bins, 2))
            yield RoundedHistogram(tree, nodes, hist, totals, off=off)
            grower.decide(hist)
            level, nodes, totals = level + 1, grower.to_build, totals[:0]
        if parts[tree, level]:
            raise _other(tree)


def _root(sums: dict[str, NDArray[np.float64]]) -> Sums:
    """Return the sums over all rows of a root.

    Two workers send them directly. Otherwise they are the sums of all workers.
    """
    key = max(sums, key=lambda whose: whose.count(","))
    together = sums[key] if "," in key else np.sum(list(sums.values()), axis=0)
    return to_fixed(together, UNIT_BITS).reshape(1, 2)


def _summed(
    parts: Sequence[HistogramSegment], shape: tuple[int, int, int]
) -> tuple[Sums, NDArray[np.int64]]:
    """Combine the parts of a histogram, and return the possible error of each node.

    Histograms with few numbers are sent by each worker, and are added here.
    """
    flat = np.full(int(np.prod(shape)), np.nan)
    n_commas = max((p.parties.count(",") for p in parts), default=0)
    if any(p.nodes != shape[0] or p.first + len(p.sums) > flat.size for p in parts):
        raise _other(parts[0].tree)
    complete = [p for p in parts if p.parties.count(",") == n_commas]
    for p in complete:
        span = slice(p.first, p.first + len(p.sums))
        flat[span] = np.nan_to_num(flat[span]) * (n_commas == 0) + p.sums
    if np.isnan(flat).any():
        raise _other(parts[0].tree if parts else 0)
    units = to_fixed(flat.reshape(shape), UNIT_BITS)
    finer = (from_fixed(units, UNIT_BITS) != flat.reshape(shape)).any(axis=(1, 2))
    return units, _OFF * finer


def _other(tree: int) -> DataError:
    """Return the error that a tree does not fit the protocol's parameters."""
    return DataError(
        f"tree {tree} was grown with other parameters, or of other sketches: give the run's by "
        "--protocol"
    )
