"""Sums of the first round in a view: their senders, number of clients, and bounds on the truth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.own_sums import bins_left, own_histograms
from fedtrees.attacks.evidence.readback.bounds import SentBounds
from fedtrees.attacks.evidence.readback.forms import LISTED, OPEN, Row, SumBounds
from fedtrees.attacks.evidence.replay import EVERYONE
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import GlobalHistogram, Histogram
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import children_to_build
from fedtrees.trees.boosted.histogram import Bits, to_fixed
from fedtrees.trees.boosted.losses import clipped_bounds, objective_of

Longs = NDArray[np.int64]
Told = dict[int, dict[str, list[Histogram | GlobalHistogram]]]


def told_histograms(view: View) -> Told:
    """Return the most informative histograms, by tree and source: a client, or `EVERYONE`.

    If there are histograms of single clients, their sum is left out, because it adds nothing.
    """
    histograms: Told = defaultdict(lambda: defaultdict(list))
    for item, m in view.messages(Histogram):
        if item.opened:
            histograms[m.tree][EVERYONE].append(m)
        elif item.sender not in view.principals:
            histograms[m.tree][item.sender].append(m)
    for _, total in view.messages(GlobalHistogram):
        if not any(name != EVERYONE for name in histograms[total.tree]) and not any(
            np.array_equal(total.nodes, m.nodes) for m in histograms[total.tree][EVERYONE]
        ):
            histograms[total.tree][EVERYONE].append(total)
    return histograms


def row_of(view: View, evidence: Evidence, t: int, bits: Bits) -> Row:
    """Return the contribution of a row to a tree of the first round, after the defense's clipping.

    Parameters
    ----------
    view : View
        The adversary's view.
    evidence : Evidence
        Base margin.
    t : int
        The tree.
    bits : Bits
        Fixed-point units.
    """
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    margin = evidence.start(2).reshape(2, -1).T
    tree_class = evidence.class_of(t)
    labels = np.array([0 if tree_class else 1, tree_class])
    gh = objective.gradients(np.ascontiguousarray(margin), labels)[t]
    clip = view.defense.requirements.gradient_clip
    if clip is not None:
        g, h = clipped_bounds(objective, clip)
        gh = np.stack([np.clip(gh[:, 0], -g, g), np.minimum(gh[:, 1], h)], axis=1)
    units = to_fixed(gh, bits)
    return Row(int(units[0, 0]), int(units[1, 0]), int(units[0, 1]))


@dataclass(frozen=True, eq=False)
class OwnPart:
    """The adversary's rows in one tree, and the messages about them.

    Attributes
    ----------
    table : Table
        Local rows, all of them in the tree.
    clients : int
        Number of clients that the adversary controls.
    sent : mapping of bytes to Histogram
        Sum of their messages by nodes. Empty if it is not visible.
    """

    table: Table
    clients: int
    sent: Mapping[bytes, Histogram]

    @staticmethod
    def of(view: View, t: int) -> OwnPart:
        """Return the adversary's part of tree ``t``."""
        rows = Table.empty(view.schema) if view.rows is None else view.rows
        sent = {nodes: m for (tree, nodes), m in own_histograms(view).items() if tree == t}
        clients = sum(view.roles[p] == "client" for p in view.principals)
        return OwnPart(rows, clients, sent)

    def histograms(self, tree: Tree, cuts: Cuts, row: Row, of: int) -> tuple[Longs, Longs]:
        """Return the sums of the local rows in all nodes, in units.

        Parameters
        ----------
        tree : Tree
            The tree.
        cuts : Cuts
            Bins of the features.
        row : Row
            Contribution of one row.
        of : int
            Class whose rows contribute ``row.g1``.

        Returns
        -------
        sums : int64 array, shape (n_nodes, total_bins, 2)
        totals : int64 array, shape (n_nodes, 2)
        """
        bins = bin_rows(self.table.X, cuts).codes.astype(np.int64)
        gh = np.array([[row.g0, row.h], [row.g1, row.h]])[(self.table.y == of).astype(np.intp)]
        sums = np.zeros((len(tree), cuts.total_bins, 2), dtype=np.int64)
        totals = np.zeros((len(tree), 2), dtype=np.int64)
        for node, rows in members(tree, cuts, bins):
            totals[node] = gh[rows].sum(axis=0)
            for f in range(cuts.n_features):
                b = bins[rows, f]
                here = b < cuts.n_bins[f]
                np.add.at(sums[node], cuts.offsets[f] + b[here], gh[rows[here]])
        return sums, totals


def members(tree: Tree, cuts: Cuts, bins: Longs) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield every node with the rows that training sent there.

    Training uses bins, so that a row above the last cut stays with the last bin.

    Parameters
    ----------
    tree : Tree
        The tree.
    cuts : Cuts
        Bins of the features.
    bins : int64 array, shape (n, d)
        Bin of every value.
    """
    rows_of: dict[int, NDArray[np.intp]] = {0: np.arange(len(bins))}
    for node in range(len(tree)):
        rows = rows_of.pop(node)
        yield node, rows
        f = int(tree.feature[node])
        if f < 0:
            continue
        goes = bins_left(tree, node, cuts)
        b = bins[rows, f]
        left = np.append(goes, bool(tree.default_left[node]))[np.minimum(b, len(goes))]
        rows_of[int(tree.left[node])], rows_of[int(tree.right[node])] = rows[left], rows[~left]


def sums_of_nodes(
    tree: Tree,
    cuts: Cuts,
    clients: int,
    bounds: SentBounds,
    bits: Bits,
    local_sums: tuple[Longs, Longs] | None,
) -> SumBounds | None:
    """Return bounds on other parties' contribution to broadcast node sums.

    A node's sum is computed from its parent's bins, whose errors add up. The errors of a node whose
    sibling was requested contain those of the parent and of the sibling. The adversary's
    contribution (`OwnPart.histograms`) is None if it has no rows in the sums. The result is None if
    the tree has no sums.
    """
    if tree.g is None or tree.h is None:
        return None
    node_sums = to_fixed(np.stack([tree.g, tree.h], axis=1), bits)
    bin_off = np.stack(bounds.bins(np.zeros((1, 2), dtype=np.int64), clients))[:, 0]
    cell = np.repeat(bin_off[None], len(tree), axis=0)  # (n_nodes, lo and hi, 2)
    node = np.repeat(bounds.off(clients)[None], len(tree), axis=0)
    for i in np.flatnonzero(tree.feature >= 0):
        pair = np.array([tree.left[i], tree.right[i]], dtype=np.int32)
        built = int(children_to_build(pair, node_sums[pair])[0])
        cell[pair.sum() - built] = cell[i] - cell[built][::-1]
        goes = bins_left(tree, int(i), cuts)
        default, other = pair if tree.default_left[i] else pair[::-1]
        bins = goes.sum() if other == pair[0] else (~goes).sum()
        node[other] = bins * cell[i]
        node[default] = node[i] - node[other][::-1]
    if not bounds.bounded:
        node = np.array([-OPEN, OPEN])[None, :, None] + np.zeros_like(node)
    shift = 0 if local_sums is None else local_sums[1]
    no_bins = np.zeros((0, cuts.total_bins, 2), dtype=np.int64)
    errors = bounds.errors(clients, 0, LISTED)
    return SumBounds(
        np.zeros(0, dtype=np.int32), no_bins, no_bins, node_sums + node[:, 0] - shift,
        node_sums + node[:, 1] - shift, no_bins, np.zeros((0, 2), dtype=np.int64), *errors,
        bounds.step,
    )  # fmt: skip


def bounded_sums(
    histograms: list[Histogram | GlobalHistogram],
    clients: int,
    bounds: SentBounds,
    local_part: tuple[OwnPart, tuple[Longs, Longs]] | None,
    n_nodes: int,
) -> SumBounds:
    """Return bounds on other parties' part of sums of several clients.

    ``clients`` is the number of clients in the sums, including those of the adversary, and
    ``bounds`` contains the errors of one client. The adversary's part of the sums is None if it has
    none.
    """
    node_lo, node_hi = np.full((n_nodes, 2), -OPEN), np.full((n_nodes, 2), OPEN)
    parts, root = [], np.zeros((0, 2), dtype=np.int64)
    n_others, n_known = clients, 0
    for m in histograms:
        sums, totals, at, local_total = m.sums, m.totals, 0, 0
        local_message = None if local_part is None else local_part[0].sent.get(m.nodes.tobytes())
        if local_part is not None and local_message is not None:
            sums, totals, n_others = (
                sums - local_message.sums,
                totals - local_message.totals,
                clients - local_part[0].clients,
            )
        elif local_part is not None:
            at, local_total, n_known = (
                local_part[1][0][m.nodes],
                local_part[1][1][:1],
                local_part[0].clients,
            )
        lo, hi = bounds.bins(sums, n_others)
        if local_message is not None and bounds.late:  # bins were hidden in the total
            lo, hi = bounds.bins(m.sums, clients)
            low, high = bounds.bins(local_message.sums, clients - n_others)
            lo, hi = lo - high, hi - low
        parts.append((m.nodes, lo - at, hi - at, sums - at))
        if len(totals):
            low, high = bounds.nodes(totals, n_others)
            node_lo[:1], node_hi[:1], root = (
                low - local_total,
                high - local_total,
                totals - local_total,
            )
    nodes, lo, hi, sent = (np.concatenate(part) for part in zip(*parts, strict=True))
    errors = bounds.errors(n_others - n_known, n_known, LISTED)
    return SumBounds(nodes, lo, hi, node_lo, node_hi, sent, root, *errors, bounds.step)
