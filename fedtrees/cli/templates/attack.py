"""A new attack: compute the class counts of the first tree's leaves from sent statistics.

fedtrees check told_counts.py
fedtrees bench --plugin told_counts.py -a told-counts --threat server -d none,split-only
"""

from dataclasses import dataclass

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.guess import Guess, LeafCounts
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import LeafValues


@register.attack("told-counts")
@dataclass(frozen=True)
class ToldCounts(Attack):
    """Compute class counts from the sums G and H of every leaf.

    In the first tree, all rows have the same prediction p. A row with label y has the gradient p -
    y and the hessian p (1 - p), so that H is proportional to the number of rows of a leaf.
    """

    likely: float = 0.25  # expected value of p, because G and H do not distinguish p from 1 - p

    def inapplicable(self, view):
        if view.rows is not None:
            return "rows of the principals' own are in the statistics, too"
        if len(view.schema.classes) != 2:
            return "it reads two classes"
        return None if self.told(view) else "no statistics are beside the leaf values"

    def run(self, view, rng):
        claims = []
        if leaf_messages := self.told(view):
            nodes, g, h = (
                np.concatenate([getattr(m, k) for m in leaf_messages]) for k in ("nodes", "g", "h")
            )
            variance = min(h.sum() / view.n_rows, 0.25)
            low = (1 - np.sqrt(1 - 4 * variance)) / 2
            p = min(low, 1 - low, key=lambda share: abs(share - self.likely))
            rows = np.rint(view.n_rows * h / h.sum())
            ones = np.clip(np.rint(rows * p - g), 0, rows)
            claims.append(LeafCounts(0, nodes, np.column_stack([rows - ones, ones]).astype(int)))
        return Guess.of(claims, otherwise="no statistics are beside the leaf values")

    def told(self, view):
        """Return the messages about leaves of the first tree that contain statistics."""
        first_tree = (m for _, m in view.messages(LeafValues) if m.tree == 0)
        return [m for m in first_tree if m.h is not None and m.h.ndim == 1 and m.h.sum() > 0]
