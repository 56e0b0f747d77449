"""Read the trees of a view and, for every source of histograms, the sums over its rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.laws import law_of_sums, reach_of
from fedtrees.attacks.evidence.readable import classes_of_leaves, some_rows
from fedtrees.attacks.evidence.replay import (
    EVERYONE,
    ReplayedTree,
    clients_in,
    cuts_of,
    params_of,
    replay_trees,
)
from fedtrees.attacks.peeling.rows import BinnedForest, Residual
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.fixed_point import FIXED_POINT_BITS, UNIT_BITS

# Largest number of bins times nodes, of 24 bytes each: 700 MB.
MOST_BINS = 3e7


@dataclass(frozen=True, eq=False)
class Sources:
    """The trees of a run, and the histograms of the terminal nodes among those with a histogram.

    Attributes
    ----------
    forest : BinnedForest
        The trees.
    cuts : Cuts
        Bins of the features.
    parts : mapping of str to Residual
        Histograms of disjoint sets of rows, by client. If the view contains only sums over clients,
        there is one entry, for all clients or for all except the adversary's.
    """

    forest: BinnedForest
    cuts: Cuts
    # disjoint sets of rows
    parts: Mapping[str, Residual]


def sources_of(view: View) -> Sources | None:
    """Read the trees of two classes and their histograms from a view.

    Returns
    -------
    Sources or None
        None if the view contains no histograms with a base score and cut points, if gradients are
        not in the units of two classes, or if it is unknown whether the sums contain the
        adversary's rows (rows are subsampled, or a defense changed the messages).
    """
    if classes_of_leaves(view) != 2:
        return None
    cuts, params = cuts_of(view), params_of(view)
    start = next((m for _, m in view.messages(BaseScore)), None)
    if cuts is None or start is None or (start.g_bits, start.h_bits) != UNIT_BITS:
        return None
    trees: list[ReplayedTree] = []
    size = 0.0
    for one in replay_trees(view, by_client=True):
        first_sums = next(iter(one.sums.values()))
        size += len(first_sums) / 2 * cuts.total_bins * len(one.sums)
        if trees and size > MOST_BINS:
            break
        trees.append(one)
    if not trees:
        return None
    owners = sorted(trees[0].sums)
    if EVERYONE in owners and some_rows(view) and view.rows is not None and len(view.rows):
        return None
    forest = BinnedForest.of(
        [one.tree for one in trees],
        [one.nodes for one in trees],
        cuts,
        start.margin[0],
        view.defense.gradient_clip,
    )
    terminal = [forest.terminal(t, one.nodes) for t, one in enumerate(trees)]

    def at_terminal_nodes(field: Callable[[ReplayedTree], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([field(one)[k] for one, k in zip(trees, terminal, strict=True)])

    n_summands, off = at_terminal_nodes(lambda t: t.made), at_terminal_nodes(lambda t: t.off)
    parts = {}
    for name in owners:
        if name in view.principals:
            continue  # the rows of a colluding party are known
        law = law_of_sums(view, clients_in(view, name), hiding=False)
        slack = np.ldexp(reach_of(law, n_summands, UNIT_BITS), FIXED_POINT_BITS) + off
        hidden = at_terminal_nodes(lambda t, o=name: t.hidden[o]) if trees[0].hidden else None
        sums = at_terminal_nodes(lambda t, o=name: t.sums[o])
        totals = at_terminal_nodes(lambda t, o=name: t.totals[o][t.nodes])
        conditions = (view.schema.complete, hidden, params.max_depth, params.subsample < 1)
        parts[name] = Residual.of(sums, totals, forest.offsets, slack, *conditions)
    return Sources(forest, cuts, parts)
