"""Bounds on the true sums of the first round, from the sent sums and the channel of a defense.

A client may round its sums to a step, or suppress bins of few rows, or both in either order.
Unbounded noise leaves no bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.count_bounds import LISTED, OPEN, Row, SumBounds
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.replay import (
    EVERYONE,
    bins_left,
    hides,
    law_of_sums,
    own_histograms,
    sent_back,
)
from fedtrees.core.channel import Channel
from fedtrees.core.schema import Table
from fedtrees.core.statistics import binomial
from fedtrees.core.view import View
from fedtrees.messages.horizontal import GlobalHistogram, Histogram
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import children_to_build
from fedtrees.trees.boosted.histogram import Bits, to_fixed
from fedtrees.trees.boosted.losses import clipped_bounds, objective_of

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

DRAWS = 64  # simulated messages to estimate the error of a random mechanism


@dataclass(frozen=True, eq=False)
class SentBounds:
    """Largest differences between a client's true sums and the sums that it sends.

    Attributes
    ----------
    below, above : int64 array, shape (2,)
        A true sum is at least the sent one less ``below`` and at most the sent one plus ``above``,
        in units.
    hidden : int
        Largest hessian of a bin that is sent as 0, in units. -1 if no bins are hidden.
    row : Row
        Contribution of one row.
    bounded : bool
        False if unbounded noise is added.
    late : bool
        Whether bins are hidden in the sum that the server sends back.
    law : Channel or None
        Mechanism applied to a client's bins, in units. None means none.
    """

    below: Longs
    above: Longs
    hidden: int
    row: Row
    bounded: bool
    late: bool
    law: Channel | None

    @staticmethod
    def of(view: View, bits: Bits, row: Row) -> SentBounds:
        """Return the bounds that the channels of a view leave open.

        Parameters
        ----------
        view : View
            The adversary's view.
        bits : Bits
            Fixed-point units of the sums.
        row : Row
            Contribution of one row.
        """
        units, law, open_ = np.ldexp(1.0, bits), law_of_sums(view), law_of_sums(view, hiding=False)
        below, above, hidden = np.zeros(2), np.zeros(2), -1.0
        if open_ is not None:
            below, above = open_.in_units_of(units).error_range(2)
        if law is not None and law.suppresses:
            hidden = law.in_units_of(units).bounds(np.zeros((1, 2)))[1][0, 1]
        law = None if law is None else law.in_units_of(units)
        late = hides(sent_back(view))
        bounded = bool(np.isfinite([-below, above]).all()) and not view.changes("gradients", "g")
        if not bounded:
            below, above = np.zeros(2), np.zeros(2)
            hidden = hidden if np.isfinite(hidden) else -1.0
        ends = (-below).astype(np.int64), above.astype(np.int64)
        return SentBounds(*ends, int(hidden), row, bounded, late, law)

    def bins(self, sent: Longs, clients: int) -> tuple[Longs, Longs]:
        """Return bounds on true bins, int64 (..., 2), given the sum that the clients sent."""
        lo, hi = self.nodes(sent, clients)
        if self.hidden < 0 or not self.bounded:
            return lo, hi
        hidden_rows = self.hidden // max(self.row.h, 1)  # of one client
        is_nonzero = ((lo > 0) | (hi < 0)).any(axis=-1)  # at least one client sent something
        silent = np.asarray(clients - is_nonzero)[..., None]
        lo = lo + np.array([hidden_rows * self.row.g1, 0]) * silent
        hi = hi + np.array([hidden_rows * self.row.g0, hidden_rows * self.row.h]) * silent
        return lo, hi

    def nodes(self, sent: Longs, clients: int) -> tuple[Longs, Longs]:
        """Return bounds on true sums that were not suppressed."""
        if not self.bounded:
            return np.full_like(sent, -OPEN), np.full_like(sent, OPEN)
        low, high = self.off(clients)
        return sent + low, sent + high

    def off(self, clients: int) -> Longs:
        """Return bounds on true sums less the sent ones, int64, (lower and upper, 2)."""
        return np.stack([-clients * self.below, clients * self.above])

    @property
    def step(self) -> Floats:
        """Step of which the sent sums are multiples, float64, shape (2,), in units."""
        # random rounding goes up or down, so that its bounds span two steps
        drawn = self.law is not None and not self.law.deterministic
        return (self.below + self.above) / (2.0 if drawn else 1.0) + 1.0

    def errors(self, clients: int, n_known: int, size: int) -> tuple[Floats, Floats]:
        """Return mean and variance of the error of a sent cell, depending on its counts.

        The n0 and n1 rows of a cell are distributed to the clients at random, and the errors of
        clients are independent.

        Parameters
        ----------
        clients : int
            Number of clients whose part is unknown.
        n_known : int
            Number of clients whose true part is known, but not the part that they sent.
        size : int
            Number of counts that are distinguished. The last entry applies to all larger counts. It
            is reduced to 1 if the error does not depend on the counts.

        Returns
        -------
        mean, variance : float64 array, shape (size, size, 2) each
            In units.
        """
        n = np.arange(1 if self.law is None or self.law.additive else size)
        pairs = np.stack(np.broadcast_arrays(n[:, None], n), axis=-1)
        x = pairs @ np.array([[self.row.g0, self.row.h], [self.row.g1, self.row.h]])
        mean, square = self._off(x)
        share = binomial(n, n[:, None], 1 / clients) if clients else np.eye(len(n))
        mean, square = (
            np.einsum("ia,abk,jb->ijk", share, e, share, optimize=True) for e in (mean, square)
        )
        var = clients * np.maximum(square - mean**2, 0.0) + n_known * self.step**2 / 12
        return clients * mean, var

    def _off(self, x: Longs) -> tuple[Floats, Floats]:
        """Return mean and mean square of the sent value less x, float64, shaped like x."""
        if self.law is None:
            return np.zeros(x.shape), np.zeros(x.shape)
        if self.law.additive:
            return np.zeros(x.shape), np.broadcast_to(self.law.posterior_moments(x)[1], x.shape)
        rng = np.random.default_rng(0)
        draws = 1 if self.law.deterministic else DRAWS
        off = [np.asarray(self.law.send(x, rng), dtype=np.float64) - x for _ in range(draws)]
        return np.mean(off, axis=0), np.mean(np.square(off), axis=0)


HistogramsOfTrees = dict[int, dict[str, list[Histogram | GlobalHistogram]]]


def most_informative_histograms(view: View) -> HistogramsOfTrees:
    """Return the most informative histograms, by tree and source: a client, or `EVERYONE`.

    If there are histograms of single clients, their sum is left out, because it adds nothing.
    """
    histograms: HistogramsOfTrees = defaultdict(lambda: defaultdict(list))
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


def row_of(view: View, evidence: BoostingObservations, t: int, bits: Bits) -> Row:
    """Return the contribution of a row to a tree of the first round, after the defense's clipping.

    Parameters
    ----------
    view : View
        The adversary's view.
    evidence : BoostingObservations
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


def members(
    tree: Tree, cuts: Cuts, bins: NDArray[np.signedinteger]
) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield every node with the rows that training sent there.

    Training uses bins, so that a row above the last cut stays with the last bin.

    Parameters
    ----------
    tree : Tree
        The tree.
    cuts : Cuts
        Bins of the features.
    bins : int array, shape (n, d)
        Bin of every value. A missing value has bin -1 or the number of bins.
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
        sums, totals = m.sums, m.totals
        at: Longs | int = 0
        local_total: Longs | int = 0
        local_message = None if local_part is None else local_part[0].sent.get(m.nodes.tobytes())
        if local_part is not None and local_message is not None:
            sums = sums - local_message.sums
            totals = totals - local_message.totals
            n_others = clients - local_part[0].clients
        elif local_part is not None:
            at = local_part[1][0][m.nodes]
            local_total = local_part[1][1][:1]
            n_known = local_part[0].clients
        lo, hi = bounds.bins(sums, n_others)
        if local_message is not None and bounds.late:  # bins were hidden in the total
            lo, hi = bounds.bins(m.sums, clients)
            low, high = bounds.bins(local_message.sums, clients - n_others)
            lo, hi = lo - high, hi - low
        parts.append((m.nodes, lo - at, hi - at, sums - at))
        if len(totals):
            low, high = bounds.nodes(totals, n_others)
            node_lo[:1] = low - local_total
            node_hi[:1] = high - local_total
            root = totals - local_total
    nodes, lo, hi, sent = (np.concatenate(part) for part in zip(*parts, strict=True))
    errors = bounds.errors(n_others - n_known, n_known, LISTED)
    return SumBounds(nodes, lo, hi, node_lo, node_hi, sent, root, *errors, bounds.step)
