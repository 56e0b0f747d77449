"""Behaviour `cheating`: a malicious active party encrypts powers of two in place of gradients.

The sum of a node then shows by its bits which rows are in which bin of a passive party.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import chained
from fedtrees.core.deterministic_channels import FewRows
from fedtrees.core.network import Network
from fedtrees.core.party import Behaviour
from fedtrees.core.registry import register
from fedtrees.crypto.packing import Slots
from fedtrees.protocols.vertical.secureboost import BoostingActive
from fedtrees.trees.boosted.grower import TreeBuilder
from fedtrees.trees.partition import ROOT, RowPartition

#: Ratio of the smallest power to the standard deviation of the noise, if no range proof bounds the
#: statistics.
MIN_POWER_TO_NOISE = 16


@dataclass(frozen=True)
class Powers:
    """The powers of two that replace the statistics of a node's rows.

    The binary representation of a sum shows which rows contribute to it.

    Attributes
    ----------
    first_exponent : int
        Exponent of the smallest power, in units of 2^-30.
    n_gradients, n_hessians : int
        Number of rows with a power as gradient, and as hessian. The defaults satisfy range proofs
        of a gradient of at most 1 = 2^30 units and a hessian of at most 1/4 = 2^28 units.
    """

    first_exponent: int = 0
    n_gradients: int = 31
    n_hessians: int = 29

    @property
    def rows(self) -> int:
        """Number of rows of a node with a power."""
        return self.n_gradients + self.n_hessians

    def statistics_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the statistics of rows, int64, shape (n, 2), by their position in the node.

        The first rows have a power of two as gradient, and the following ones as hessian.
        """
        first, n = self.first_exponent, self.n_gradients
        g = np.where(positions < n, 1 << (first + np.minimum(positions, n - 1)), 0)
        h = np.where(positions < n, 0, 1 << (first + np.maximum(positions - n, 0)))
        return np.stack([g, h], axis=1)


@register.behaviour("cheating")
class Cheating(Behaviour, BoostingActive):
    """Send a different power of two for each row of a node, in the first half of the trees.

    The nodes result from halving all rows repeatedly, down to 60 rows if the depth permits. Each
    tree continues with the rows after those of the previous tree, and its result is a leaf of value
    0.

    Defenses change the statistics:

    - If a defense suppresses bins with few rows, nodes have more rows, drawn again for every tree,
      and most of them have statistics 0.
    - If sums are noisy and range proofs bound the statistics, all rows have large permitted
      statistics, with random signs for every tree.
    - If sums are noisy without range proofs, the powers exceed the noise, in plaintext slots as
      wide as those of rows with weights.
    """

    deviation = "encrypts powers of two in place of gradients, and chooses which rows are in a node"
    detectable = "no: the statistics of rows are encrypted, and any set of rows may be a node"

    def grow(
        self, net: Network, number: int, round: int, gh: NDArray[np.int64]
    ) -> tuple[Any, RowPartition]:
        """Request the sums of nodes with so few rows that sums identify rows.

        Parameters
        ----------
        net : Network
            Network of the run.
        number, round : int
            Number of the tree, and round of boosting.
        gh : int64 array, shape (n, 2)
            True statistics. Only honest trees use them.
        """
        n = len(gh)
        # The second half of the trees is honest, so that the run trains a model.
        if self.together or 2 * number >= self.params.trees * self.objective.n_outputs:
            return super().grow(net, number, round, gh)
        group, statistics = self.plan_leaves(n, number)
        tree = self.begin(
            net, number, round, np.arange(n, dtype=np.int32), statistics, self.slots(n)
        )
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
            open_nodes = np.array([child for child, _, _ in children], dtype=np.int32)
            self._ask_sums(net, tree, open_nodes, open_nodes if self.sums_differ else left)
            level, count = children, count + len(children)
        return TreeBuilder().build(), tree.rows

    def plan_leaves(self, n: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the leaf of every row, shape (n,), and its statistics, shape (n, 2)."""
        max_leaves = 2 ** (self.params.max_depth - 1)
        rng = self.streams.rng("made-up nodes", number)
        few = [change for change in self.sums_law if isinstance(change, FewRows)]
        powers = Powers()
        if len(few) < len(self.sums_law):  # one of the changes is noise
            law = chained(self.sums_law)
            assert law is not None
            noise_deviation = float(np.sqrt(np.ravel(law.posterior_moments(np.zeros(1))[1])[0]))
            if self.proven:
                return self._statistics_under_noise(n, max_leaves, noise_deviation, rng)
            first = self.bits[0] + int(np.ceil(np.log2(MIN_POWER_TO_NOISE * noise_deviation)))
            n_powers = max(self.slots(n).limit.bit_length() - 1 - first, 1)
            powers = Powers(first, n_powers, n_powers)
        rows = powers.rows
        # Each tree continues after the last row of the tree before.
        place = (np.arange(n) - number * max_leaves * rows) % n
        group = np.minimum(place // rows, max_leaves - 1)
        counts = place < max_leaves * rows
        if few:
            leaves = self._count_visible_leaves(n, max_leaves, few, rows)
            turns = getattr(self, "turns", np.zeros(n, dtype=np.int64))
            first_of = rng.permutation(n)
            group = rng.permutation(n) * leaves // n
            # Rows that had the fewest turns so far get a power first.
            order = np.lexsort((first_of, turns, group))
            place = np.empty(n, dtype=np.int64)
            place[order] = np.arange(n) - np.searchsorted(group[order], group[order])
            counts = place < rows
            self.turns = turns + counts
        return group, np.where(counts[:, None], powers.statistics_of(place % rows), 0)

    def _statistics_under_noise(
        self, n: int, max_leaves: int, noise_deviation: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return leaves, and statistics that range proofs permit.

        Gradients are at least three standard deviations of the noise, or as large as permitted.
        Their different sizes distinguish the rows.
        """
        group, statistics = rng.permutation(n) * max_leaves // n, np.zeros((n, 2), dtype=np.int64)
        (_, high), (_, hessian) = self.params.ranges(self.objective, self.clip or 1.0)
        size = rng.uniform(min(1.0, 3 * noise_deviation), 1.0, n)
        statistics[:, 0] = rng.choice([-1, 1], n) * size * high
        statistics[:, 1] = rng.choice([0, hessian], n)
        return group, statistics

    def slots(self, rows: int) -> Slots:
        """Return plaintext slots for any int64, or the honest ones if proofs bound statistics."""
        return super().slots(rows) if self.proven else Slots((2**63 - 1) // rows, rows)

    def _count_visible_leaves(
        self, n: int, max_leaves: int, suppressions: list[FewRows], n_powers: int
    ) -> int:
        """Return the number of leaves, a power of two, that shows most rows with statistics."""
        from scipy.stats import binom  # takes half a second to load

        # Assumes that the rows of a node are evenly distributed over the bins of a column.
        rare = 1 / max(int(self.cuts.n_bins.max()), 2)
        min_bin_rows = max(change.least for change in suppressions)
        min_node_rows = max(change.node for change in suppressions)

        def seen(leaves: int) -> float:
            rows = n // leaves
            if rows < min_node_rows:
                return 0.0
            return float(leaves * min(rows, n_powers) * binom.sf(min_bin_rows - 2, rows - 1, rare))

        n_leaves: int = max((2**k for k in range(max_leaves.bit_length())), key=seen)
        return n_leaves
