"""Sums of the first round in a view: whose, of how many clients, and what they leave possible."""

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
from fedtrees.messages.boosting import GlobalHistogram, Histogram
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.fixed_point import Bits, to_fixed
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import children_to_build
from fedtrees.trees.boosted.losses import clipped_bounds, objective_of

Longs = NDArray[np.int64]
Told = dict[int, dict[str, list[Histogram | GlobalHistogram]]]


def told_histograms(view: View) -> Told:
    """Return the histograms that say most of others, by tree and source: a client, or `EVERYONE`.

    Where clients are told apart, their sum says nothing more.
    """
    found: Told = defaultdict(lambda: defaultdict(list))
    for item, m in view.messages(Histogram):
        if item.opened:
            found[m.tree][EVERYONE].append(m)
        elif item.sender not in view.principals:
            found[m.tree][item.sender].append(m)
    for _, total in view.messages(GlobalHistogram):
        if not any(name != EVERYONE for name in found[total.tree]) and not any(
            np.array_equal(total.nodes, m.nodes) for m in found[total.tree][EVERYONE]
        ):
            found[total.tree][EVERYONE].append(total)
    return found


def row_of(view: View, evidence: Evidence, t: int, bits: Bits) -> Row:
    """Return what a row brings to tree ``t`` of the first round, after the defense's clip."""
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    margin = evidence.start(2).reshape(2, -1).T
    mine = evidence.class_of(t)
    labels = np.array([0 if mine else 1, mine])
    gh = objective.gradients(np.ascontiguousarray(margin), labels)[t]
    clip = view.defense.gradient_clip
    if clip is not None:
        g, h = clipped_bounds(objective, clip)
        gh = np.stack([np.clip(gh[:, 0], -g, g), np.minimum(gh[:, 1], h)], axis=1)
    units = to_fixed(gh, bits)
    return Row(int(units[0, 0]), int(units[1, 0]), int(units[0, 1]))


@dataclass(frozen=True, eq=False)
class OwnPart:
    """The principals' own rows in one tree, and what they sent of them.

    `table`: Their rows, all of them in the tree.
    `clients`: How many clients the principals are.
    `sent`: What they sent together, by the nodes it is of; empty where it is sealed.
    """

    table: Table
    clients: int
    sent: Mapping[bytes, Histogram]

    @staticmethod
    def of(view: View, t: int) -> OwnPart:
        """Return the principals' part of tree ``t``."""
        rows = Table.empty(view.schema) if view.rows is None else view.rows
        sent = {nodes: m for (tree, nodes), m in own_histograms(view).items() if tree == t}
        clients = sum(view.roles[p] == "client" for p in view.principals)
        return OwnPart(rows, clients, sent)

    def histograms(self, tree: Tree, cuts: Cuts, row: Row, of: int) -> tuple[Longs, Longs]:
        """Return what own rows bring, (n_nodes, total_bins, 2) and (n_nodes, 2), in units.

        ``of`` is the class whose rows bring ``row.g1``.
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
    """Yield every node with the rows that training sent there, given their bins, (n, d).

    Training goes by bins: a row above the last cut stays with the last bin.
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
    own: tuple[Longs, Longs] | None,
) -> SumBounds | None:
    """Return bounds on what others brought to the node sums that a server broadcasts.

    A node's sum is made of its parent's bins, whose errors add up; those of a node whose sibling
    was asked for carry the parent's and the sibling's. None where no sums are told.
    """
    if tree.g is None or tree.h is None:
        return None
    told = to_fixed(np.stack([tree.g, tree.h], axis=1), bits)
    bin_off = np.stack(bounds.bins(np.zeros((1, 2), dtype=np.int64), clients))[:, 0]
    cell = np.repeat(bin_off[None], len(tree), axis=0)  # (n_nodes, lo and hi, 2)
    node = np.repeat(bounds.off(clients)[None], len(tree), axis=0)
    for i in np.flatnonzero(tree.feature >= 0):
        pair = np.array([tree.left[i], tree.right[i]], dtype=np.int32)
        built = int(children_to_build(pair, told[pair])[0])
        cell[pair.sum() - built] = cell[i] - cell[built][::-1]
        goes = bins_left(tree, int(i), cuts)
        default, other = pair if tree.default_left[i] else pair[::-1]
        bins = goes.sum() if other == pair[0] else (~goes).sum()
        node[other] = bins * cell[i]
        node[default] = node[i] - node[other][::-1]
    if not bounds.bounded:
        node = np.array([-OPEN, OPEN])[None, :, None] + np.zeros_like(node)
    shift = 0 if own is None else own[1]
    none = np.zeros((0, cuts.total_bins, 2), dtype=np.int64)
    errors = bounds.errors(clients, 0, LISTED)
    return SumBounds(
        np.zeros(0, dtype=np.int32), none, none, told + node[:, 0] - shift,
        told + node[:, 1] - shift, none, np.zeros((0, 2), dtype=np.int64), *errors, bounds.step,
    )  # fmt: skip


def bounded_sums(
    told: list[Histogram | GlobalHistogram],
    clients: int,
    bounds: SentBounds,
    own: tuple[OwnPart, tuple[Longs, Longs]] | None,
    n_nodes: int,
) -> SumBounds:
    """Return bounds on what others brought to the sums that so many clients sent, own ones too.

    ``own`` is the principals' part in them, with its own true sums; None: they have none.
    """
    node_lo, node_hi = np.full((n_nodes, 2), -OPEN), np.full((n_nodes, 2), OPEN)
    parts, root = [], np.zeros((0, 2), dtype=np.int64)
    others, known = clients, 0
    for m in told:
        sums, totals, at, whole = m.sums, m.totals, 0, 0
        mine = None if own is None else own[0].sent.get(m.nodes.tobytes())
        if own is not None and mine is not None:
            sums, totals, others = sums - mine.sums, totals - mine.totals, clients - own[0].clients
        elif own is not None:
            at, whole, known = own[1][0][m.nodes], own[1][1][:1], own[0].clients
        lo, hi = bounds.bins(sums, others)
        if mine is not None and bounds.late:  # what is missing is missing from the whole
            lo, hi = bounds.bins(m.sums, clients)
            low, high = bounds.bins(mine.sums, clients - others)
            lo, hi = lo - high, hi - low
        parts.append((m.nodes, lo - at, hi - at, sums - at))
        if len(totals):
            low, high = bounds.nodes(totals, others)
            node_lo[:1], node_hi[:1], root = low - whole, high - whole, totals - whole
    nodes, lo, hi, sent = (np.concatenate(part) for part in zip(*parts, strict=True))
    errors = bounds.errors(others - known, known, LISTED)
    return SumBounds(nodes, lo, hi, node_lo, node_hi, sent, root, *errors, bounds.step)
