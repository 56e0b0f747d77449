"""`cheating`: an active party whose rows bring powers of two, to nodes that it makes up."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.channel import chained
from fedtrees.core.coarsening import FewRows
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.protocols.vertical.secureboost import BoostingActive
from fedtrees.trees.boosted.builder import TreeBuilder
from fedtrees.trees.partition import ROOT, RowPartition

#: What rows may bring, in units of 2^-30: a gradient of at most 1, or a hessian of at most 1/4.
G, H = 31, 29
ROWS = G + H  # of a node: each of their sums then tells by its bits whose they are


@register.behaviour("cheating")
class Cheating(Behaviour, BoostingActive):
    """Let each row of a node bring another power of two, in the first half of the trees.

    Nodes are the halves of halves of all rows, as deep as the parameters allow, of `ROWS` rows at
    last; each tree goes on where the one before ended, and is a leaf of value 0. Where bins of few
    rows are suppressed, nodes have more rows, drawn anew for every tree, most of which bring 0.
    Where sums are noisy, all rows bring more than the noise, as far as that is allowed, with signs
    drawn for every tree.
    """

    beyond = "seals powers of two in place of gradients, and makes up which rows are in a node"
    noticed = "no: what rows bring is sealed, and any rows may be a node"

    def grow(
        self, net: Network, number: int, round: int, gh: NDArray[np.int64]
    ) -> tuple[Any, RowPartition]:
        """Ask for the sums of nodes of so few rows that sums name them."""
        n = len(gh)
        if self.together or 2 * number >= self.params.trees * self.objective.n_outputs:
            return super().grow(net, number, round, gh)
        group, brings = self.planned(n, number)
        tree = self.begin(net, number, round, np.arange(n, dtype=np.int32), brings, self.slots(n))
        if 0 in tree.hidden:
            return TreeBuilder().build(), tree.rows
        self._ask_sums(net, tree, ROOT, ROOT)
        level, count = [(0, 0, int(group.max()) + 1)], 1
        while level := [(node, a, b) for node, a, b in level if b - a > 1]:
            nodes = np.array([node for node, _, _ in level], dtype=np.int32)
            left = np.arange(count, count + 2 * len(level), 2, dtype=np.int32)
            ranges = tree.rows.ranges(nodes)
            goes = [
                group[tree.rows.rows[begin:end]] < (a + b) // 2
                for (begin, end), (_, a, b) in zip(ranges, level, strict=True)
            ]
            tree.rows.move(nodes, left, np.concatenate(goes))
            children = list[tuple[int, int, int]]()
            for (node, a, b), child in zip(level, left.tolist(), strict=True):
                tree.parents[child] = tree.parents[child + 1] = node
                children += [(child, a, (a + b) // 2), (child + 1, (a + b) // 2, b)]
            waiting = np.array([child for child, _, _ in children], dtype=np.int32)
            self._ask_sums(net, tree, waiting, waiting if self.sums_differ else left)
            level, count = children, count + len(children)
        return TreeBuilder().build(), tree.rows

    def planned(self, n: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the leaf of every row of a tree, (n,), and what it brings, (n, 2)."""
        most = 2 ** (self.params.max_depth - 1)
        rng = self.streams.rng("made-up nodes", number)
        least = [change.least for change in self.sums_law if isinstance(change, FewRows)]
        if len(least) < len(self.sums_law):  # noise
            group, brings = rng.permutation(n) * most // n, np.zeros((n, 2), dtype=np.int64)
            (_, high), (_, hessian) = self.params.ranges(self.objective, self.clip or 1.0)
            law = chained(self.sums_law)
            assert law is not None
            off = float(np.sqrt(np.ravel(law.error(np.zeros(1))[1])[0]))
            size = rng.uniform(min(1.0, 3 * off), 1.0, n)  # sums of different sizes tell rows apart
            brings[:, 0] = rng.choice([-1, 1], n) * size * high
            brings[:, 1] = rng.choice([0, hessian], n)
            return group, brings
        place = (np.arange(n) - number * most * ROWS) % n
        group = np.minimum(place // ROWS, most - 1)
        counts = place < most * ROWS
        if least:
            leaves = self._leaves_shown(n, most, max(least))
            first = rng.permutation(n)
            turns = getattr(self, "turns", np.zeros(n, dtype=np.int64))
            group = rng.permutation(n) * leaves // n
            order = np.lexsort((first, turns, group))
            place = np.empty(n, dtype=np.int64)
            place[order] = np.arange(n) - np.searchsorted(group[order], group[order])
            counts = place < ROWS
            self.turns = turns + counts
        return group, np.where(counts[:, None], _powers(place % ROWS), 0)

    def _leaves_shown(self, n: int, most: int, least: int) -> int:
        """Return of how many leaves, a power of two, most rows are seen in bins of that many."""
        rare = 1 / max(int(self.cuts.n_bins.max()), 2)

        def seen(leaves: int) -> float:
            rows = n // leaves
            return float(leaves * min(rows, ROWS) * binom.sf(least - 2, rows - 1, rare))

        found: int = max((2**k for k in range(most.bit_length())), key=seen)
        return found


def _powers(turn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what the rows of a node bring, (n, 2), by their number in it."""
    g = np.where(turn < G, 1 << np.minimum(turn, G - 1), 0)
    return np.stack([g, np.where(turn < G, 0, 1 << np.maximum(turn - G, 0))], axis=1)
