"""What a view shows of histograms: the trees, and per source the sums over its rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.laws import law_of_sums, reach_of
from fedtrees.attacks.evidence.readable import classes_of_leaves, some_rows
from fedtrees.attacks.evidence.replay import (
    EVERYONE,
    Grown,
    clients_in,
    cuts_of,
    grow_again,
    levels_of,
    params_of,
)
from fedtrees.attacks.peeling.rows import BinnedForest, Residual
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore, LeafValues
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.fixed_point import FIXED_POINT_BITS, UNIT_BITS

# Bins times nodes kept, of 24 bytes each: 700 MB.
MOST_BINS = 3e7


@dataclass(frozen=True, eq=False)
class Sources:
    """The trees of a run and all histograms of their terminal visible nodes."""

    forest: BinnedForest
    cuts: Cuts
    # Disjoint sets of rows, by owner; `EVERYONE` or `OTHERS` where sums alone are seen
    parts: Mapping[str, Residual]


def sources_of(view: View) -> Sources | None:
    """Read trees and histograms of two classes from a view; None where there are none."""
    if classes_of_leaves(view) != 2:
        return None
    cuts, params, levels = cuts_of(view), params_of(view), levels_of(view)
    start = next((m for _, m in view.messages(BaseScore)), None)
    if cuts is None or start is None or not levels or (start.g_bits, start.h_bits) != UNIT_BITS:
        return None
    released = {m.tree: m for _, m in view.messages(LeafValues)}
    owners = sorted(next(iter(levels.values()))[0].sums)
    if EVERYONE in owners and some_rows(view) and view.rows is not None and len(view.rows):
        return None  # own rows are in the sums or not, and what was sent is sealed
    kept: list[Grown] = []
    size = 0.0
    for tree in sorted(levels):
        grown = grow_again(levels[tree], cuts, params, view.schema.complete, released.get(tree))
        size += grown.sums[owners[0]].shape[0] / 2 * cuts.total_bins * len(owners)
        if kept and size > MOST_BINS:
            break
        kept.append(grown)
    forest = BinnedForest.of(
        [g.tree for g in kept], [g.nodes for g in kept], cuts, start.margin[0],
        view.defense.gradient_clip,
    )  # fmt: skip
    last = [forest.terminal(t, g.nodes) for t, g in enumerate(kept)]

    def ends(of: Callable[[Grown], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([of(g)[k] for g, k in zip(kept, last, strict=True)])

    made, off = ends(lambda g: g.made), ends(lambda g: g.off)
    parts = {}
    for o in owners:
        if o in view.principals:
            continue  # a colluding party's own rows
        law = law_of_sums(view, clients_in(view, o), hiding=False)
        slack = np.ldexp(reach_of(law, made, UNIT_BITS), FIXED_POINT_BITS) + off
        hidden = ends(lambda g, o=o: g.hidden[o]) if kept[0].hidden else None
        sums, totals = ends(lambda g, o=o: g.sums[o]), ends(lambda g, o=o: g.totals[o][g.nodes])
        told = (view.schema.complete, hidden, params.max_depth, params.subsample < 1)
        parts[o] = Residual.of(sums, totals, forest.offsets, slack, *told)
    return Sources(forest, cuts, parts)
