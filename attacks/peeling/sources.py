"""What a view shows of histograms: the trees, and per source the sums over its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedtrees.attacks.evidence.laws import cell_variance, clients_of, law_of_sums
from fedtrees.attacks.evidence.readable import some_rows
from fedtrees.attacks.evidence.replay import (
    EVERYONE,
    Grown,
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
from fedtrees.trees.boosted.params import TreeParams

# Bins times nodes kept, of 24 bytes each: 700 MB.
MOST_BINS = 3e7
# Standard deviations of noise that a sum may be off: one in 300,000 is off by more.
DEVIATIONS = 4.5


@dataclass(frozen=True, eq=False)
class Sources:
    """The trees of a run and all histograms of their terminal visible nodes."""

    forest: BinnedForest
    cuts: Cuts
    # Disjoint sets of rows, by owner; `EVERYONE` or `OTHERS` where sums alone are seen
    parts: Mapping[str, Residual]


def unreadable(view: View) -> bool:
    """Tell whether histograms of this run cannot be taken apart row by row.

    Gradients must be those of the log loss of two classes; clipped, or with hessians of 1, they are
    no fingerprints; and some bin must be sent that holds a single row.
    """
    objective = view.parameters.get("objective")
    if len(view.schema.classes) != 2 or objective not in (None, "binary:logistic"):
        return True
    clip = view.defense.gradient_clip
    if view.defense.unit_hessian or (clip is not None and clip < 1):
        return True
    law = law_of_sums(view)
    return law is not None and law.hides


def sources_of(view: View) -> Sources | None:
    """Read trees and histograms from a view; None where there are none."""
    cuts, params, levels = cuts_of(view), params_of(view), levels_of(view)
    start = next((m for _, m in view.messages(BaseScore)), None)
    if cuts is None or start is None or not levels or (start.g_bits, start.h_bits) != UNIT_BITS:
        return None
    released = {m.tree: m for _, m in view.messages(LeafValues)}
    owners = sorted(next(iter(levels.values()))[0].sums)
    kept: list[Grown] = []
    size = 0.0
    for tree in sorted(levels):
        grown = grow_again(levels[tree], cuts, params, view.schema.complete, released.get(tree))
        size += grown.sums[owners[0]].shape[0] / 2 * cuts.total_bins * len(owners)
        if kept and size > MOST_BINS:
            break
        kept.append(grown)
    forest = BinnedForest.of([g.tree for g in kept], [g.nodes for g in kept], cuts, start.margin[0])
    last = [forest.terminal(t, g.nodes) for t, g in enumerate(kept)]
    slack = _slack(view, params, len(owners))
    if EVERYONE in owners and some_rows(view) and view.rows is not None and len(view.rows):
        return None  # own rows are in the sums or not, and what was sent is sealed
    parts = {}
    for o in owners:
        if o in view.principals:
            continue  # a colluding party's own rows
        sums = np.concatenate([g.sums[o][k] for g, k in zip(kept, last, strict=True)])
        totals = np.concatenate([g.totals[o][k] for g, k in zip(kept, last, strict=True)])
        sampled = params.subsample < 1
        parts[o] = Residual.of(sums, totals, forest.offsets, slack, params.max_depth, sampled)
    return Sources(forest, cuts, parts)


def _slack(view: View, params: TreeParams, sources: int) -> float:
    """Return how far sums may be off, in units of 2^-30, by what the channel says of bins.

    A node's histogram by subtraction carries the noise of its ancestors, at most one per level.
    Rounding is bounded: no sum of many levels is off by more, and of few it is seldom that much.
    """
    law = law_of_sums(view, clients_of(view) if sources == 1 else 1)
    if law is None:
        return 0.0
    most = float(np.max(np.abs(law.spread(2)))) * params.max_depth
    likely = DEVIATIONS * float(np.sqrt(max(cell_variance(law)) * params.max_depth))
    return float(np.ldexp(min(most, likely), FIXED_POINT_BITS))
