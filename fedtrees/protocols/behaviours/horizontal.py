"""Malicious parties of horizontal protocols.

- `halving`: the server chooses splits that isolate rows and ignores the loss.
- `isolating`: the server sends different splits to one client.
- `poisoned`: a client determines the root split by false sums.
- `crafted-sketch`: a client moves the cut points to a range of interest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import EquivocationError
from fedtrees.core.network import Network
from fedtrees.core.party import Behaviour
from fedtrees.core.registry import register
from fedtrees.crypto.primitives import WrongKeyError
from fedtrees.messages.horizontal import (
    BaseScore,
    CutsRequest,
    FeatureRanges,
    FeatureSketch,
    Histogram,
    HistogramRequest,
    LeafValues,
    NodeSplits,
)
from fedtrees.protocols.cut_points import BinningClient
from fedtrees.protocols.horizontal.histogram_parties import DecidingServer, HistogramClient
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeBuilder
from fedtrees.trees.partition import ROOT

#: Sizes within this factor (its logarithm) of the target are equally good. Without such tolerance
#: few columns are split, and the same rows are isolated in every tree.
NEAR = 0.5


@dataclass(frozen=True, eq=False)
class Node:
    """A node with known histogram.

    Attributes
    ----------
    number : int
        Number of the node.
    rows : int64 array, shape (total_bins,)
        Number of rows in each bin.
    size : int
        Number of rows.
    """

    number: int
    rows: NDArray[np.int64]
    size: int


@register.behaviour("halving")
class Halving(Behaviour, DecidingServer):
    """Split so that the requested nodes contain single rows, in the first half of the trees.

    The smaller side of a split has as many rows as there are open nodes below it, or half of the
    rows. Each tree ends as a leaf of value 0, so that every row has the same hessian in the next
    tree.
    """

    deviation = "chooses splits that isolate single rows, in the first half of the trees"
    detectable = "no: every split is valid, and a client cannot see why it was chosen"

    def agree_on_base_score(self, net: Network) -> BaseScore:
        """Store the contribution of one row to a sum of hessians."""
        start = super().agree_on_base_score(net)
        one = self.objective.gradients(start.margin[:, None], np.zeros(1, dtype=np.int64))
        self.brings = np.ldexp(one[0, 0, 1], start.h_bits)
        return start

    def grow(self, net: Network, tree: int) -> Tree:
        """Request the histograms of a tree down to the depth that clients permit."""
        if 2 * tree >= self.params.trees * self.objective.n_outputs:
            return super().grow(net, tree)
        # All rows have the same hessian before the first update, so that hessian sums count rows.
        root_sums = self.ask_histograms(net, tree, ROOT)
        level = [
            self.node(0, root_sums.sums[0], int(np.rint(root_sums.totals[0, 1] / self.brings)))
        ]
        rng, count = self.streams.rng("halving", tree), 1
        for depth in range(self.params.max_depth - 1):
            # Two of three trees start with halving, so that they isolate different rows.
            peels = depth >= tree % 3
            below = 2.0 ** (self.params.max_depth - 2 - depth) if peels else np.inf
            splits = [(node, *cut) for node in level if (cut := self.cut(node, below, rng))]
            if not splits or 0 < self.params.max_leaves <= count // 2 + len(splits):
                break
            nodes, columns, bins = np.array(
                [(node.number, column, bin) for node, column, bin, _ in splits], dtype=np.int32
            ).T
            left = np.arange(count, count + 2 * len(splits), 2, dtype=np.int32)
            where, default = self.cuts.thresholds(columns, bins), np.zeros(len(splits), dtype=bool)
            message = NodeSplits(tree, nodes, columns, bins, where, default, left)
            net.send("client", message, reason="splits that isolate rows")
            sums = self.ask_histograms(net, tree, left).sums
            level, count = [], count + 2 * len(splits)
            for (node, _, _, size), number, answer in zip(splits, left.tolist(), sums, strict=True):
                child = self.node(number, answer, size)
                level += [child, Node(number + 1, node.rows - child.rows, node.size - size)]
        net.send("client", LeafValues(tree, ROOT, np.zeros(1, np.float32)), reason="a leaf of 0")
        return TreeBuilder().build()

    def node(self, number: int, sums: NDArray[np.int64], size: int) -> Node:
        """Return a node with the row counts of its histogram."""
        return Node(number, np.rint(sums[:, 1] / self.brings).astype(np.int64), size)

    def cut(
        self, node: Node, below: float, rng: np.random.Generator
    ) -> tuple[int, int, int] | None:
        """Return column and bin of a split, and the number of rows on its left side.

        None if no split separates rows.

        Parameters
        ----------
        node : Node
            The node to split.
        below : float
            Largest useful number of rows of the smaller side. inf for halving.
        rng : numpy.random.Generator
            Decides between equally good splits.
        """
        offsets = self.cuts.offsets
        left = np.cumsum(node.rows)
        # Cumulative counts restart at each column.
        left = left - np.repeat(np.r_[0, left[offsets[1:-1] - 1]], np.diff(offsets))
        smaller = np.minimum(left, node.size - left)
        last = np.zeros(len(left), dtype=bool)
        last[offsets[1:] - 1] = True
        if self.cuts.categorical is not None:
            last |= np.repeat(self.cuts.categorical, np.diff(offsets))
        # The last bin of a column has no split, and splits of categories are not used.
        smaller[last] = 0
        if node.size < 2 or not (smaller > 0).any():
            return None
        target = min(node.size / 2, below)
        distance = np.maximum(np.abs(np.log(np.maximum(smaller, 1) / target)), NEAR)
        # Random choice among equally good splits.
        distance += rng.random(len(left)) / 100
        best = int(np.where(smaller > 0, distance, np.inf).argmin())
        column = int(np.searchsorted(offsets, best, side="right")) - 1
        return column, best - int(offsets[column]), int(left[best])


LEFT = ROOT + 1


@register.behaviour("isolating")
class Isolating(Behaviour, DecidingServer):
    """Send one client a split at a column's top bin, and the remaining clients another split.

    The remaining clients split at the lowest bin of the column. The left child then contains the
    bins between both splits only for the victim, so that the sum over all clients shows the
    victim's rows. The server uses one tree per column, each with a leaf of value 0 that changes no
    prediction, and is then honest.
    """

    deviation = (
        "sends other splits to the last client than to the rest, so that all bins in "
        "between belong to this client"
    )
    detectable = (
        "no: every split is valid. A sum over clients with different splits cannot be "
        "opened. Under paillier the party with the key notices this, and otherwise only "
        "the server"
    )
    readable = True  # False once a sum could not be opened

    def grow(self, net: Network, tree: int) -> Tree:
        """Isolate the victim's bins of one column in each of the first trees."""
        if tree >= self.cuts.n_features and self.readable:
            return super().grow(net, tree)
        if self.readable:
            self.ask_histograms(net, tree, ROOT)
        # With two bins there is no bin between the lowest and the top one.
        if self.readable and self.cuts.n_bins[tree] > 2:
            *other_names, victim = net.members("client")
            for name in other_names:
                self.send(net, name, tree, 0)
            self.send(net, victim, tree, int(self.cuts.n_bins[tree]) - 2)
            try:
                self.ask_histograms(net, tree, LEFT)
            except (EquivocationError, WrongKeyError):
                self.readable = False
        if self.readable:
            net.send(
                "client", LeafValues(tree, ROOT, np.zeros(1, np.float32)), reason="a leaf of 0"
            )
        return TreeBuilder().build()

    def send(self, net: Network, name: str, tree: int, bin: int) -> None:
        """Send one client a split of the root, in the column with the number of the tree.

        Parameters
        ----------
        net : Network
            Network of the run.
        name : str
            Name of the client.
        tree : int
            Number of the tree and of the column.
        bin : int
            Last bin that goes left.
        """
        column, cut = ROOT + np.int32(tree), ROOT + np.int32(bin)
        where, default = self.cuts.thresholds(column, cut), np.zeros(1, dtype=bool)
        message = NodeSplits(tree, ROOT, column, cut, where, default, LEFT)
        net.send(
            name, message, reason="a split that differs from the one sent to the other clients"
        )


@register.behaviour("poisoned")
class Poisoned(Behaviour, HistogramClient):
    """Claim that a column's lowest cut separates the client's labels, at every second root.

    The columns take turns. Only the positions of rows are false. No sum exceeds the contribution
    that the rows could have.
    """

    deviation = (
        "reports in half of the trees that the lowest cut of a column separates the "
        "labels of its rows"
    )
    detectable = "no: its rows could be like this"
    pushed: ClassVar[int] = 0  # invented rows on each side, with gradient 1 or -1 and hessian 1

    def histogram(self, message: HistogramRequest) -> Histogram:
        """Answer for a root with all local rows in the two lowest bins of a column."""
        honest = super().histogram(message)
        if message.nodes[0] or message.tree % 2:
            return honest
        # One column per tree, and only even trees.
        column = message.tree // 2 % self.cuts.n_features
        low, end = self.cuts.offsets[column : column + 2]
        # The column needs at least two bins.
        if end - low < 2:
            return honest
        sums, sign = honest.sums.copy(), -1 if honest.sums[0, low, 0] < 0 else 1
        first = sign * self.gh[:, 0] > 0  # rows whose gradient has the sign of that bin's sum
        g, h = (self.pushed << bits for bits in self.bits)
        sums[0, low:end] = 0
        sums[0, low] = self.gh[first].sum(axis=0) + np.array([sign * g, h])
        sums[0, low + 1] = self.gh[~first].sum(axis=0) + np.array([-sign * g, h])
        return replace(honest, sums=sums, totals=honest.totals + np.array([0, 2 * h]))


@register.behaviour("poisoned-unbounded")
class UnboundedPoisoning(Poisoned):
    """Send the sums of `poisoned` with a million invented rows on each side."""

    deviation = f"{Poisoned.deviation}, and adds rows that it does not have"
    detectable = "yes, except under noise: the server refuses sums that declared rows cannot reach"
    pushed = 1 << 20


WINDOW = 0.01  # width of the window, as a share of the column's range


@register.behaviour("crafted-sketch")
class CraftedSketch(Behaviour, BinningClient):
    """Send a sketch in which all local rows are close to the median.

    The sketch has one point more than there are bins, so that most cut points are in this window.
    """

    deviation = (
        "sends a sketch that contains only values around the median, so that all cut points "
        "are there"
    )
    detectable = "no: its rows could be like this"
    times: ClassVar[int] = 1  # weight of each local row in the sketch

    def summarise(self, message: CutsRequest) -> FeatureSketch | FeatureRanges:
        """Answer with a sketch of a window of each column."""
        honest, X = super().summarise(message), self.summarised_rows
        if not isinstance(honest, FeatureSketch):
            return honest
        points, weights = [X[:0, 0]], [honest.weights[:0]]
        for column in X.T:
            values = column[~np.isnan(column)]
            crafted, rows = _around(values, message.max_bin + 1), self.times * len(values)
            points.append(crafted)
            # The weights are as equal as possible and add up to the declared number of rows.
            shares = np.arange(1, len(crafted) + 1, dtype=np.int64) * rows // max(len(crafted), 1)
            weights.append(shares - np.r_[0, shares[:-1]][: len(shares)])
        offsets = np.cumsum([0, *map(len, points[1:])]).astype(np.int32)
        every = np.concatenate(points)
        return replace(honest, points=every, weights=np.concatenate(weights), offsets=offsets)


@register.behaviour("crafted-sketch-unbounded")
class UnboundedSketch(CraftedSketch):
    """Send the sketch of `crafted-sketch` with a million times as many rows."""

    deviation = f"{CraftedSketch.deviation}, and claims a million times as many rows"
    detectable = "yes: the server refuses a sketch of more rows than its client declared"
    times = 10**6


def _around(values: NDArray[np.float32], points: int) -> NDArray[np.float32]:
    """Return points in a window around the median, fewer if float32 has not so many values."""
    if not len(values):
        return values
    half = WINDOW / 2 * (float(values.max()) - float(values.min()))
    middle = float(np.median(values))
    return np.unique(np.linspace(middle - half, middle + half, points).astype(np.float32))
